/* cpu_body_attention.h - softmax attention of a few query rows over one split of the K/V pool.
 *
 * Per row, whatever the tile: S[t] = chain over the pairs of dimensions; m = max; P = bf16 of
 * exp2((S - m) * c), +0 where masked; l = sums of the rounded P in 16 lanes and the tree; O = chain
 * over the pairs of tokens. Splits are 256 tokens, cut from position 0, merged left to right.
 *
 * Rows of a tile see different numbers of tokens. Up to the most that any row sees the slots hold
 * finite numbers, and a masked token adds +-0 to a sum that started at +0 (finish adds +0, so that the
 * sign of a zero never shows). Slots beyond may hold NaN: no page beyond the last token is read, and
 * of an odd last pair only the low half of V. */

struct attend_scratch {
    float q[CPU_TILE][CPU_MAX_HEAD]; /* as floats, or packed pairs in the first half of a row */
    float s[CPU_TILE][CPU_SPLIT] __attribute__((aligned(64))); /* scores */
    float p[CPU_TILE][CPU_SPLIT]
        __attribute__((aligned(64))); /* probabilities; packed: half of it */
};

AI void spread_queries(const int R, const struct cpu_attend *a, float *out)
{
    for (int r = 0; r < R; r++, out += CPU_MAX_HEAD) {
        if (BF16_NATIVE) {
            memcpy(out, a->q[r], sizeof(uint16_t) * (size_t)a->head_dim);
            continue;
        }
        for (int32_t d = 0; d < a->head_dim; d += VL)
            vf_store(out + d, vf_bf16(a->q[r] + d));
    }
}

/* Asks for the pages of a later call, quarter by quarter, evenly over the `of` steps of this one's
 * scores, of which `done` are done; returns how many quarters that makes. A split comes from memory
 * when sequences decode, and waiting for it took as long as computing with it. */
AI int32_t fetch_pages(const struct cpu_attend *a, int32_t fetched, int32_t done, int32_t of)
{
    const size_t quarter = a->page_bytes / 4;
    for (; fetched < 4 * a->n_ahead * done / of; fetched++) {
        const uint8_t *at = a->ahead[fetched / 4] + quarter * (fetched % 4);
        for (size_t i = 0; i < quarter; i += 64)
            __builtin_prefetch(at + i, 0, 2);
    }
    return fetched;
}

/* Scores of R rows against C vectors of tokens from vector number `first` on. */
AI void score_tokens(const int R, const int C, const struct cpu_attend *a, int32_t first,
                     const float *q, float *s)
{
    const int step = BF16_NATIVE ? 1 : 2, each = CPU_PAGE / VL;
    const uint16_t *k[MOST_VECTORS];
    vf acc[CPU_TILE][MOST_VECTORS];
    UNROLL for (int c = 0; c < C; c++) k[c] =
        (const uint16_t *)a->k[(first + c) / each] + (first + c) % each * VL * 2;
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = vf_set(0.f);
    }
    for (int32_t p = 0; p < a->head_dim / 2; p++)
        pair_step(R, C, k, (size_t)p * 2 * CPU_PAGE, q + p * step, 1, CPU_MAX_HEAD, acc, 0, true);
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++)
            vf_store(s + r * CPU_SPLIT + (first + c) * VL, acc[r][c]);
    }
}

/* The maximum of n scores; those up to `padded`, whole pages, become -Inf: probability +0. */
AI float hide_and_max(float *s, int32_t n, int32_t padded)
{
    vf low = vf_set(-INFINITY), top[LANE_VECTORS];
    for (int32_t t = n / VL * VL; t < padded; t += VL)
        vf_store(s + t, vf_first(vf_load(s + t), n - t, low));
    for (int v = 0; v < LANE_VECTORS; v++)
        top[v] = low;
    for (int32_t t = 0; t < padded; t += 16) {
        UNROLL for (int v = 0; v < LANE_VECTORS; v++) top[v] =
            vf_max(vf_load(s + t + v * VL), top[v]);
    }
    for (int v = 1; v < LANE_VECTORS; v++)
        top[0] = vf_max(top[v], top[0]);
    return vf_hmax(top[0]);
}

/* Scores -> probabilities of one row; n of `padded` tokens count (padded: whole pages). */
AI void soften(float *s, float *p, int32_t n, int32_t padded, float c, float *m, float *l)
{
    vf lanes[LANE_VECTORS];
    *m = hide_and_max(s, n, padded);
    vf vm = vf_set(*m), vc = vf_set(c);
    for (int v = 0; v < LANE_VECTORS; v++)
        lanes[v] = vf_set(0.f);
    for (int32_t t = 0; t < padded; t += 16) {
        UNROLL for (int v = 0; v < LANE_VECTORS; v++)
        {
            int32_t at = t + v * VL;
            vf e = bf16_value(vf_exp2(vf_mul(vf_sub(vf_load(s + at), vm), vc)));
            lanes[v] = vf_add(lanes[v], e);
            if (BF16_NATIVE)
                vi_store_high((uint16_t *)p + at, vi_bits(e));
            else
                vf_store(p + at, e);
        }
    }
    *l = vf_tree(lanes);
}

/* O [R][C vectors from dimension `at`] over the first n tokens. */
AI void mix_values(const int R, const int C, const struct cpu_attend *a, int32_t at, int32_t n,
                   const float *p)
{
    const int XP = BF16_NATIVE ? 1 : 2; /* packed rows keep the row distance of the float array */
    const size_t stride = 2 * (size_t)a->head_dim;
    vf acc[CPU_TILE][MOST_VECTORS];
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++) acc[r][c] = vf_set(0.f);
    }
    for (int32_t t = 0; t < n; t += CPU_PAGE, p += CPU_PAGE / 2 * XP) {
        const uint16_t *v[MOST_VECTORS];
        int32_t left = n - t < CPU_PAGE ? n - t : CPU_PAGE, i = 0;
        UNROLL for (int c = 0; c < C; c++) v[c] =
            (const uint16_t *)a->v[t / CPU_PAGE] + 2 * (at + c * VL);
        for (; i < left / 2; i++)
            pair_step(R, C, v, i * stride, p + i * XP, 1, CPU_SPLIT, acc, 0, true);
        if (left % 2)
            pair_step(R, C, v, i * stride, p + i * XP, 1, CPU_SPLIT, acc, 0, false);
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++) vf_store(a->o[r] + at + c * VL, acc[r][c]);
    }
}

AI void attend_rows(const int R, struct cpu_attend *a)
{
    const int C = TILE_VECTORS(R);
    struct attend_scratch scratch;
    int32_t most = a->n[R - 1], n_pages = (most + CPU_PAGE - 1) / CPU_PAGE, i = 0;
    int32_t n_vectors = n_pages * (CPU_PAGE / VL), n_dims = a->head_dim / VL, fetched = 0;
    spread_queries(R, a, scratch.q[0]);
    for (; i + C <= n_vectors; i += C) {
        score_tokens(R, C, a, i, scratch.q[0], scratch.s[0]);
        fetched = fetch_pages(a, fetched, i + C, n_vectors);
    }
    for (; C > 2 && i + 2 <= n_vectors; i += 2)
        score_tokens(R, 2, a, i, scratch.q[0], scratch.s[0]);
    for (; i < n_vectors; i++)
        score_tokens(R, 1, a, i, scratch.q[0], scratch.s[0]);
    for (int r = 0; r < R; r++)
        soften(scratch.s[r], scratch.p[r], a->n[r], n_pages * CPU_PAGE, a->c, &a->m[r], &a->l[r]);
    for (i = 0; i + C <= n_dims; i += C)
        mix_values(R, C, a, i * VL, most, scratch.p[0]);
    for (; C > 2 && i + 2 <= n_dims; i += 2)
        mix_values(R, 2, a, i * VL, most, scratch.p[0]);
    for (; i < n_dims; i++)
        mix_values(R, 1, a, i * VL, most, scratch.p[0]);
}

static void attend(struct cpu_attend *a)
{
    // clang-format off
    switch (a->n_rows) {
    case 1: attend_rows(1, a); break;
    case 2: attend_rows(2, a); break;
    case 3: attend_rows(3, a); break;
    case 4: attend_rows(4, a); break;
    case 5: attend_rows(5, a); break;
    default: attend_rows(6, a); break;
    }
    // clang-format on
}

static void merge(float *m, float *l, float *o, float mb, float lb, const float *ob, float c,
                  int32_t head_dim)
{
    float most = *m > mb ? *m : mb;
    float fa = scalar_exp2((*m - most) * c), fb = scalar_exp2((mb - most) * c);
    *l = fmaf(*l, fa, lb * fb);
    *m = most;
    vf va = vf_set(fa), vb = vf_set(fb);
    for (int32_t d = 0; d < head_dim; d += VL)
        vf_store(o + d, vf_fma(vf_load(o + d), va, vf_mul(vf_load(ob + d), vb)));
}

static void finish(const float *o, float l, int32_t head_dim, float *out)
{
    vf inverse = vf_set(1.f / l);
    for (int32_t d = 0; d < head_dim; d += VL)
        vf_store(out + d, vf_fma(vf_load(o + d), inverse, vf_set(0.f)));
}
