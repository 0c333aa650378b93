/* cpu_body_attention8.h - softmax attention over int8 K and V: exact integer dots, one split at a time.
 *
 * Per row, whatever the tile: S[t] = (I * scale of K[t]) * scale of q, I the exact dot of the 16-bit
 * query and the codes of K; m = max; P = exp2((S - m) * c), +0 where masked; l = sums of P in 16 lanes
 * and the tree; W[t] = P[t] * scale of V[t], rounded to 15 bits of the row's largest W; O = the exact
 * dots of W and the codes of V, times what a step of W is.
 *
 * So K and V are as coarse as their bytes and nothing else is: the 16 bits of query and weights round
 * 256 times finer. The dots are below 2^31: 256 products of 127 and 32,767. Being exact they need no
 * order. A masked token has W = 0, and bytes cannot be NaN; the scales beyond may be, and are masked.
 */

enum { SPLIT_WORDS = CPU_SPLIT / 2 }; /* of a row's weights: pairs of tokens */

struct attend8_scratch {
    int32_t q[CPU_MAX_HEAD / 2 * CPU_TILE];                    /* [D/4 quads][even, odd][R] words */
    float scale[CPU_TILE];                                     /* of the queries */
    float s[CPU_TILE][CPU_SPLIT] __attribute__((aligned(64))); /* scores, then P * scale of V */
    int32_t w[CPU_TILE][SPLIT_WORDS]
        __attribute__((aligned(64))); /* page: 8 words, tokens i, i + 8 */
    float step[CPU_TILE];             /* what 1 of w stands for */
};

AI const uint16_t *key_scales(const struct cpu_attend *a, int32_t page)
{
    return (const uint16_t *)(a->v[page] + CPU_PAGE * a->head_dim);
}
AI const uint16_t *value_scales(const struct cpu_attend *a, int32_t page)
{
    return key_scales(a, page) + CPU_PAGE;
}

AI void spread_codes(const int R, const struct cpu_attend *a, struct attend8_scratch *scratch)
{
    for (int r = 0; r < R; r++) {
        memcpy(&scratch->scale[r], a->q[r] + a->head_dim, sizeof(float));
        for (int32_t i = 0; i < a->head_dim / 2; i++)
            memcpy(&scratch->q[i * R + r], a->q[r] + 2 * i, 4);
    }
}

/* acc [R][C] += the dots of one quad: at [C] addresses of vectors of bytes, read `offset` behind them;
 * the word of a half and a row lies at x[half * XH + r * XR]. */
AI void quad_step(const int R, const int C, const uint8_t *const at[MOST_VECTORS], size_t offset,
                  const int32_t *x, const int XH, const int XR, vi acc[CPU_TILE][MOST_VECTORS])
{
    UNROLL for (int half = 0; half < 2; half++)
    {
        vi part[MOST_VECTORS];
        UNROLL for (int c = 0; c < C; c++)
        {
            vi bytes = vi_load(at[c] + offset);
            part[c] = half ? vi_odd16(bytes) : vi_even16(bytes);
        }
        UNROLL for (int r = 0; r < R; r++)
        {
            vi b = vi_set(x[half * XH + r * XR]);
            UNROLL for (int c = 0; c < C; c++) acc[r][c] = vi_dot16(acc[r][c], part[c], b);
        }
    }
}

/* Scores of R rows against C vectors of tokens from vector number `first` on. */
AI void score_codes(const int R, const int C, const struct cpu_attend *a, int32_t first,
                    struct attend8_scratch *scratch)
{
    const int each = CPU_PAGE / VL;
    const uint8_t *k[MOST_VECTORS];
    vi acc[CPU_TILE][MOST_VECTORS];
    UNROLL for (int c = 0; c < C; c++) k[c] =
        a->k[(first + c) / each] + (first + c) % each * VL * 4;
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = vi_set(0);
    }
    for (int32_t quad = 0; quad < a->head_dim / 4; quad++)
        quad_step(R, C, k, (size_t)quad * 4 * CPU_PAGE, scratch->q + quad * 2 * R, R, 1, acc);
    UNROLL for (int c = 0; c < C; c++)
    {
        vf scale = vf_bf16(key_scales(a, (first + c) / each) + (first + c) % each * VL);
        UNROLL for (int r = 0; r < R; r++)
        {
            vf s = vf_mul(vf_mul(vf_from(acc[r][c]), scale), vf_set(scratch->scale[r]));
            vf_store(scratch->s[r] + (first + c) * VL, s);
        }
    }
}

/* Scores -> weights of row r; n of `padded` tokens count (padded: whole pages). */
AI void weigh(struct cpu_attend *a, struct attend8_scratch *scratch, int r, int32_t padded)
{
    float *s = scratch->s[r];
    int32_t n = a->n[r];
    a->m[r] = hide_and_max(s, n, padded);
    vf vm = vf_set(a->m[r]), vc = vf_set(a->c), zero = vf_set(0.f), top = zero;
    vf lanes[LANE_VECTORS];
    for (int v = 0; v < LANE_VECTORS; v++)
        lanes[v] = zero;
    for (int32_t t = 0; t < padded; t += 16) {
        UNROLL for (int v = 0; v < LANE_VECTORS; v++)
        {
            int32_t at = t + v * VL;
            vf p = vf_exp2(vf_mul(vf_sub(vf_load(s + at), vm), vc));
            vf scale = vf_bf16(value_scales(a, t / CPU_PAGE) + v * VL);
            vf w = vf_first(vf_mul(p, scale), n - at, zero);
            lanes[v] = vf_add(lanes[v], p);
            top = vf_max(w, top);
            vf_store(s + at, w);
        }
    }
    a->l[r] = vf_tree(lanes);
    float most = vf_hmax(top);
    bool none = !(most >= 0x1p-100f); /* values as good as zero: the inverse would overflow */
    scratch->step[r] = none ? 0.f : most / 32767.f;
    vf inverse = vf_set(none ? 0.f : 32767.f / most), limit = vf_set(32767.f);
    for (int32_t t = 0; t < padded; t += 16) {
        vi codes[LANE_VECTORS];
        UNROLL for (int v = 0; v < LANE_VECTORS; v++) codes[v] =
            vi_from(vf_min(vf_mul(vf_load(s + t + v * VL), inverse), limit));
        vi_join16(codes, scratch->w[r] + t / 2);
    }
}

/* O [R][C vectors from dimension `at`] over whole pages. */
AI void mix_codes(const int R, const int C, struct cpu_attend *a, int32_t at, int32_t n_pages,
                  const struct attend8_scratch *scratch)
{
    vi acc[CPU_TILE][MOST_VECTORS];
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = vi_set(0);
    }
    for (int32_t page = 0; page < n_pages; page++) {
        const int32_t *w = scratch->w[0] + page * CPU_PAGE / 2;
        const uint8_t *v[MOST_VECTORS];
        UNROLL for (int c = 0; c < C; c++) v[c] = a->v[page] + (at + c * VL) * 4;
        for (int quad = 0; quad < CPU_PAGE / 4; quad++)
            quad_step(R, C, v, (size_t)quad * 4 * a->head_dim, w + quad, CPU_PAGE / 4, SPLIT_WORDS,
                      acc);
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++)
            vf_store(a->o[r] + at + c * VL, vf_mul(vf_from(acc[r][c]), vf_set(scratch->step[r])));
    }
}

AI void attend8_rows(const int R, struct cpu_attend *a)
{
    const int C = TILE8_VECTORS(R);
    struct attend8_scratch scratch;
    int32_t n_pages = (a->n[R - 1] + CPU_PAGE - 1) / CPU_PAGE, i = 0;
    int32_t n_vectors = n_pages * (CPU_PAGE / VL), n_dims = a->head_dim / VL, fetched = 0;
    spread_codes(R, a, &scratch);
    for (; i + C <= n_vectors; i += C) {
        score_codes(R, C, a, i, &scratch);
        fetched = fetch_pages(a, fetched, i + C, n_vectors);
    }
    for (; i < n_vectors; i++)
        score_codes(R, 1, a, i, &scratch);
    for (int r = 0; r < R; r++)
        weigh(a, &scratch, r, n_pages * CPU_PAGE);
    for (i = 0; i + C <= n_dims; i += C)
        mix_codes(R, C, a, i * VL, n_pages, &scratch);
    for (; i < n_dims; i++)
        mix_codes(R, 1, a, i * VL, n_pages, &scratch);
}

static void attend8(struct cpu_attend *a)
{
    // clang-format off
    switch (a->n_rows) {
    case 1: attend8_rows(1, a); break;
    case 2: attend8_rows(2, a); break;
    case 3: attend8_rows(3, a); break;
    case 4: attend8_rows(4, a); break;
    case 5: attend8_rows(5, a); break;
    default: attend8_rows(6, a); break;
    }
    // clang-format on
}
