/* cpu_body_rows.h - what is done to one row: quantise, normalise, SwiGLU, and the scans of choose.
 *
 * Sums over a row run in 16 lanes, element i in lane i mod 16, then through one fixed tree, so that
 * 1, 8 or 16 elements at a time give the same bits. Exponentials are our own polynomial: libm's differ
 * between machines. */

enum {
    LANE_VECTORS = 16 / VL,
    BLOCK_VECTORS = CPU_BLOCK / VL,
    SCAN_CHUNK = 1024, /* 64 floats a lane, then doubles: the error stays near one rounding */
};

/* 2^x for x up to 127, about 1 ulp. x below -126 gives +0 and so does NaN. */
AI vf vf_exp2(vf x)
{
    vf bound = vf_set(-126.f);
    vf y = vf_max(x, bound);
    vi n = vi_from(y);
    vf f = vf_sub(y, vf_from(n)); /* -0.5 .. 0.5, exact; the series of 2^f: ln(2)^k / k! */
    vf p = vf_fma(vf_set(1.5403530e-4f), f, vf_set(1.3333558e-3f));
    p = vf_fma(p, f, vf_set(9.6181291e-3f));
    p = vf_fma(p, f, vf_set(5.5504109e-2f));
    p = vf_fma(p, f, vf_set(2.4022651e-1f));
    p = vf_fma(p, f, vf_set(6.9314718e-1f));
    p = vf_fma(p, f, vf_set(1.f));
    vf power = vf_bits(vi_shl(vi_add(n, vi_set(127)), 23));
    return vf_keep_ge(x, bound, vf_mul(p, power));
}

/* Nearest bf16, ties to even, in the high half of each word; the low half is garbage. */
AI vi bf16_bits(vf x)
{
    vi u = vi_bits(x);
    vi odd = vi_and(vi_shr(u, 16), vi_set(1));
    return vi_add(u, vi_add(odd, vi_set(0x7fff)));
}
AI vf bf16_value(vf x)
{
    return vf_bits(vi_and(bf16_bits(x), vi_set((int32_t)0xffff0000)));
}

/* A block whose largest value is below 2^-100 counts as zero: 127 / max would overflow. The clamp
 * only matters for Inf and NaN, which must not come out as -128 (the AVX2 dots would saturate). */
static void put_int8(const float *row, int32_t k, int32_t R, int32_t r, int32_t *stream)
{
    for (; k > 0; k -= CPU_BLOCK, row += CPU_BLOCK, stream += CPU_BLOCK_WORDS * R) {
        vf top = vf_set(0.f);
        vi q[BLOCK_VECTORS], total = vi_set(0);
        for (int i = 0; i < BLOCK_VECTORS; i++)
            top = vf_max(vf_abs(vf_load(row + i * VL)), top);
        float most = vf_hmax(top);
        bool zero = !(most >= 0x1p-100f);
        float s = zero ? 0.f : most / 127.f;
        vf inverse = vf_set(zero ? 0.f : 127.f / most);
        for (int i = 0; i < BLOCK_VECTORS; i++) {
            vf x = vf_mul(vf_load(row + i * VL), inverse);
            q[i] = vi_from(vf_min(vf_max(x, vf_set(-127.f)), vf_set(127.f)));
            total = vi_add(total, q[i]);
        }
        int32_t words[8], sum = vi_hsum(total);
        vi_pack8(q, (int8_t *)words);
        for (int i = 0; i < 8; i++)
            stream[i * R + r] = words[i];
        float *factors = (float *)(stream + 8 * R);
        factors[r] = s;
        factors[R + r] = s * (float)sum;
        stream[10 * R + r] = sum;
    }
}

static void put_bf16(const float *row, int32_t k, int32_t R, int32_t r, void *stream)
{
    for (int32_t i = 0; i < k; i += 16) {
        float values[16];
        for (int v = 0; v < LANE_VECTORS; v++)
            vf_store(values + v * VL, bf16_value(vf_load(row + i + v * VL)));
        for (int j = 0; j < 16; j += 2) {
            int32_t pair = (i + j) / 2;
            if (BF16_NATIVE) {
                uint32_t bits[2];
                memcpy(bits, values + j, 8);
                ((uint32_t *)stream)[pair * R + r] = bits[1] | bits[0] >> 16;
            } else {
                ((float *)stream)[pair * 2 * R + r] = values[j];
                ((float *)stream)[pair * 2 * R + R + r] = values[j + 1];
            }
        }
    }
}

static void round_bf16(const float *row, int32_t n, uint16_t *out)
{
    for (int32_t i = 0; i < n; i += VL)
        vi_store_high(out + i, bf16_bits(vf_load(row + i)));
}

/* ---- codes of int8 rows of the K/V pool ---------------------------------------------------------- */

static float largest(const float *x, int32_t n)
{
    vf top = vf_set(0.f);
    for (int32_t i = 0; i < n; i += VL)
        top = vf_max(vf_abs(vf_load(x + i)), top);
    return vf_hmax(top);
}

static void to_codes(const float *x, int32_t n, float inverse, float limit, int32_t *out)
{
    vf most = vf_set(limit), least = vf_set(-limit), factor = vf_set(inverse);
    for (int32_t i = 0; i < n; i += VL) {
        vf code = vf_mul(vf_load(x + i), factor);
        vi_store(out + i, vi_from(vf_min(vf_max(code, least), most)));
    }
}

static void norm(float *x, const float *delta, const float *w, float eps, int32_t c, float *out)
{
    vf lanes[LANE_VECTORS];
    for (int v = 0; v < LANE_VECTORS; v++)
        lanes[v] = vf_set(0.f);
    for (int32_t i = 0; i < c; i += 16) {
        UNROLL for (int v = 0; v < LANE_VECTORS; v++)
        {
            vf a = vf_load(x + i + v * VL);
            if (delta) {
                a = vf_add(a, vf_load(delta + i + v * VL));
                vf_store(x + i + v * VL, a);
            }
            lanes[v] = vf_fma(a, a, lanes[v]);
        }
    }
    float mean = vf_tree(lanes) / (float)c;
    vf scale = vf_set(1.f / sqrtf(mean + eps));
    for (int32_t i = 0; i < c; i += VL)
        vf_store(out + i, vf_mul(vf_mul(vf_load(x + i), scale), vf_load(w + i)));
}

static void swiglu(const float *gate_up, int32_t f, float *out)
{
    vf minus_log2e = vf_set(-1.44269504f), most = vf_set(127.f);
    for (int32_t i = 0; i < f; i += 16, gate_up += 32) {
        UNROLL for (int v = 0; v < LANE_VECTORS; v++)
        {
            vf gate = vf_load(gate_up + v * VL), up = vf_load(gate_up + 16 + v * VL);
            vf x = vf_min(most, vf_mul(gate, minus_log2e)); /* a NaN stays one */
            vf one_plus = vf_add(vf_exp2(x), vf_set(1.f));
            vf_store(out + i + v * VL, vf_mul(vf_div(gate, one_plus), up));
        }
    }
}

/* ---- scans over the vocabulary ------------------------------------------------------------------ */

static float scan_max(const float *x, int32_t n)
{
    vf top[4], low = vf_set(-INFINITY);
    int32_t i = 0;
    for (int j = 0; j < 4; j++)
        top[j] = low;
    for (; i + 4 * VL <= n; i += 4 * VL) {
        UNROLL for (int j = 0; j < 4; j++) top[j] = vf_max(vf_load(x + i + j * VL), top[j]);
    }
    float most = vf_hmax(vf_max(vf_max(top[0], top[1]), vf_max(top[2], top[3])));
    for (; i < n; i++)
        most = x[i] > most ? x[i] : most;
    return most;
}

/* A stretch of n <= SCAN_CHUNK values, n a multiple of 16. The factor comes in two parts: rounded to
 * one float it would bend all exponents the same way, and draws from a long tail would show it. */
AI float sum_exp_chunk(const float *x, int32_t n, float m, float high, float low)
{
    vf lanes[LANE_VECTORS], vm = vf_set(m);
    for (int v = 0; v < LANE_VECTORS; v++)
        lanes[v] = vf_set(0.f);
    for (int32_t i = 0; i < n; i += 16) {
        UNROLL for (int v = 0; v < LANE_VECTORS; v++)
        {
            vf d = vf_sub(vf_load(x + i + v * VL), vm);
            vf p = vf_exp2(vf_fma(d, vf_set(high), vf_mul(d, vf_set(low))));
            lanes[v] = vf_add(lanes[v], p);
        }
    }
    return vf_tree(lanes);
}

static double scan_sum_exp(const float *x, int32_t n, float m, double scale)
{
    double factor = scale * 1.4426950408889634, total = 0;
    float high = (float)factor, low = (float)(factor - (double)high);
    int32_t whole = n / 16 * 16;
    for (int32_t i = 0; i < whole; i += SCAN_CHUNK)
        total +=
            sum_exp_chunk(x + i, whole - i < SCAN_CHUNK ? whole - i : SCAN_CHUNK, m, high, low);
    float rest[16];
    memcpy(rest, x + whole, sizeof(float) * (n - whole));
    for (int32_t i = n - whole; i < 16; i++)
        rest[i] = -INFINITY; /* adds +0 */
    return total + sum_exp_chunk(rest, 16, m, high, low);
}

static int32_t scan_find(const float *x, int32_t n, int32_t from, float bound)
{
    int32_t i = from;
    for (; i + 64 <= n; i += 64) { /* most stretches hold none */
        vf top = vf_set(-INFINITY);
        for (int j = 0; j < 64; j += VL)
            top = vf_max(vf_load(x + i + j), top); /* of a NaN and a number, the number */
        if (vf_hmax(top) >= bound)
            break;
    }
    while (i < n && !(x[i] >= bound))
        i++;
    return i;
}

static float scalar_exp2(float x)
{
    float lane[VL];
    vf_store(lane, vf_exp2(vf_set(x)));
    return lane[0];
}
