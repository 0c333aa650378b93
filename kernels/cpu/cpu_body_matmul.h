/* cpu_body_matmul.h - matrix products over packed panels, one source for every instruction set.
 *
 * Order of sums of one output element (row, column), whatever the tile, the panel or the thread:
 *
 *   int8   one accumulator from +0, blocks of 32 ascending: I = exact integer dot; ds = scale * s,
 *          rounded; acc = fma(I, ds, acc); with a minimum, acc = fma(minimum, t, acc). P8H does so
 *          twice a block, for 16 of K each.
 *   bf16   one accumulator, pairs ascending, the odd k first (as VDPBF16PS does)
 *   f32    one accumulator, k ascending
 *
 * Walk: passes of 252 rows (the activations then stay in L2), panels, pieces of K that leave panel and
 * tile in L1, tiles, columns. A piece of K continues from the sums in `out`: f32 through memory is
 * exact. A single row walks two panels at once: two DRAM streams and enough independent sums.
 *
 * Arrays here have constant bounds on purpose: with bounds that are parameters they would be variable
 * length arrays and stay in memory, 2 to 3 times slower. */

enum {
    PASS_TILES = 42,         /* 252 rows */
    PIECE_BYTES = 16 * 1024, /* of a panel: half of a 32 KB L1 */
    PANEL_VECTORS = CPU_PANEL / VL,
    MOST_VECTORS = PANEL_VECTORS < 8 ? 8 : PANEL_VECTORS,
};

/* ---- facts of a format: constants once inlined ------------------------------------------------- */

AI bool is_nibbles(const int format)
{
    return format == CPU_P4 || format == CPU_P4S || format == CPU_P4F;
}
AI bool has_minimum(const int format)
{
    return format == CPU_P4 || format == CPU_P4F || format == CPU_P8M;
}
AI bool has_f32_scale(const int format)
{
    return format == CPU_P4F || format == CPU_P8M || format == CPU_P8H;
}
/* What the stored integers are above their meaning. */
AI int offset_of(const int format)
{
    return format == CPU_P4S ? 8 : format == CPU_P8 ? BYTE_OFFSET : 0;
}
AI vf block_factor(const int format, const uint8_t *block, int which, int column)
{
    const uint8_t *at = block + (is_nibbles(format) ? 512 : 1024);
    if (has_f32_scale(format))
        return vf_load((const float *)(at + 128 * which + 4 * column));
    return vf_half(at + 64 * which + 2 * column);
}
AI vi dot_byte(const int format, vi sum, vi w, vi x)
{
    if (format == CPU_P8)
        return vi_dot8(sum, w, x);
    return format == CPU_P8M ? vi_dot8u(sum, w, x) : vi_dot8s(sum, w, x);
}

/* ---- one block of C vectors of columns for R rows ---------------------------------------------- */

AI void nibble_dots(const int R, const int C, const uint8_t *block, const int32_t *x,
                    vi dot[CPU_TILE][4])
{
    UNROLL for (int q = 0; q < 4; q++)
    {
        UNROLL for (int c = 0; c < C; c++)
        {
            vi w = vi_load(block + q * 128 + c * VL * 4);
            vi low = vi_low4(w), high = vi_high4(w);
            UNROLL for (int r = 0; r < R; r++)
            {
                dot[r][c] = vi_dot4(dot[r][c], low, vi_set(x[q * R + r]));
                dot[r][c] = vi_dot4(dot[r][c], high, vi_set(x[(q + 4) * R + r]));
            }
        }
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < C; c++) dot[r][c] = vi_dot4_end(dot[r][c]);
    }
}

AI void byte_dots(const int format, const int R, const int C, const uint8_t *block, int first,
                  const int n, const int32_t *x, vi dot[CPU_TILE][4])
{
    UNROLL for (int i = 0; i < n; i++)
    {
        int q = first + i;
        UNROLL for (int c = 0; c < C; c++)
        {
            vi w = vi_load(block + q * 128 + c * VL * 4);
            UNROLL for (int r = 0; r < R; r++) dot[r][c] =
                dot_byte(format, dot[r][c], w, vi_set(x[q * R + r]));
        }
    }
}

/* acc [R][C] += the block at `block` (already moved to its columns' bytes) times the rows at x. */
AI void quant_block(const int format, const int R, const int C, const uint8_t *block, int column,
                    const int32_t *x, vf acc[CPU_TILE][MOST_VECTORS], const int at)
{
    const float *s = (const float *)(x + 8 * R), *t = s + R;
    const int32_t *sum = x + 10 * R;
    const int parts = format == CPU_P8H ? 2 : 1;
    UNROLL for (int part = 0; part < parts; part++)
    {
        vi dot[CPU_TILE][4];
        UNROLL for (int r = 0; r < R; r++)
        {
            UNROLL for (int c = 0; c < C; c++) dot[r][c] = vi_set(0);
        }
        if (is_nibbles(format))
            nibble_dots(R, C, block + column * 4, x, dot);
        else
            byte_dots(format, R, C, block + column * 4, part * (8 / parts), 8 / parts, x, dot);
        UNROLL for (int c = 0; c < C; c++)
        {
            vf d = block_factor(format, block, part, column + c * VL);
            UNROLL for (int r = 0; r < R; r++)
            {
                vi i = dot[r][c];
                if (offset_of(format))
                    i = vi_sub(i, vi_set(offset_of(format) * sum[r]));
                acc[r][at + c] = vf_fma(vf_from(i), vf_mul(d, vf_set(s[r])), acc[r][at + c]);
            }
            if (has_minimum(format)) {
                vf m = block_factor(format, block, 1, column + c * VL);
                UNROLL for (int r = 0; r < R; r++) acc[r][at + c] =
                    vf_fma(m, vf_set(t[r]), acc[r][at + c]);
            }
        }
    }
}

/* ---- pairs of bf16: weights, keys and values ---------------------------------------------------- */

/* acc [R][C] at `at` += the chain of one pair: w [C] addresses of vectors of (even, odd) words, read
 * `offset` values behind them; x the pair's values: element (half, row) lies at half * XH + row * XR
 * floats, or word (row) at row * XR where pairs stay packed. Without `odd` only the even half counts.
 * The odd halves of all rows go before the even ones: with the words of one half at a time 6 x 2 sums
 * fit sixteen registers. */
AI void pair_step(const int R, const int C, const uint16_t *const w[MOST_VECTORS], size_t offset,
                  const void *x, const int XH, const int XR, vf acc[CPU_TILE][MOST_VECTORS],
                  const int at, const bool odd)
{
    if (BF16_NATIVE) {
        const int32_t *words = x;
        UNROLL for (int c = 0; c < C; c++)
        {
            vi pair = vi_load(w[c] + offset);
            if (!odd)
                pair = vi_and(pair, vi_set(0xffff));
            UNROLL for (int r = 0; r < R; r++) acc[r][at + c] =
                vf_dot_bf16(acc[r][at + c], pair, vi_set(words[r * XR]));
        }
        return;
    }
    const float *values = x;
    UNROLL for (int half = odd ? 1 : 0; half >= 0; half--)
    {
        vf part[MOST_VECTORS];
        UNROLL for (int c = 0; c < C; c++)
        {
            vi word = vi_load(w[c] + offset);
            part[c] = vf_bits(half ? vi_and(word, vi_set((int32_t)0xffff0000)) : vi_shl(word, 16));
        }
        UNROLL for (int r = 0; r < R; r++)
        {
            vf b = vf_set(values[half * XH + r * XR]);
            UNROLL for (int c = 0; c < C; c++) acc[r][at + c] =
                vf_fma_to(acc[r][at + c], part[c], b);
        }
    }
}

/* ---- a tile: R rows x (NP panels x C vectors), n_blocks of K ------------------------------------ */

AI void tile_step(const int format, const int R, const int C, const uint8_t *block, int column,
                  const int32_t *x, vf acc[CPU_TILE][MOST_VECTORS], const int at)
{
    if (format < CPU_BF16) {
        quant_block(format, R, C, block, column, x, acc, at);
    } else if (format == CPU_BF16) {
        const int words = BF16_NATIVE ? R : 2 * R;
        const uint16_t *pairs[MOST_VECTORS];
        UNROLL for (int c = 0; c < C; c++) pairs[c] =
            (const uint16_t *)block + (column + c * VL) * 2;
        for (int p = 0; p < CPU_BLOCK / 2; p++)
            pair_step(R, C, pairs, p * 2 * CPU_PANEL, x + p * words, R, 1, acc, at, true);
    } else {
        const float *values = (const float *)x;
        for (int k = 0; k < CPU_BLOCK; k++) {
            vf w[MOST_VECTORS];
            UNROLL for (int c = 0; c < C; c++) w[c] =
                format == CPU_F16 ? vf_half(block + (k * CPU_PANEL + column + c * VL) * 2)
                                  : vf_load((const float *)block + k * CPU_PANEL + column + c * VL);
            UNROLL for (int r = 0; r < R; r++)
            {
                vf b = vf_set(values[k * R + r]);
                UNROLL for (int c = 0; c < C; c++) acc[r][at + c] = vf_fma(w[c], b, acc[r][at + c]);
            }
        }
    }
}

AI int row_words(const int format)
{
    if (format < CPU_BF16)
        return CPU_BLOCK_WORDS;
    return format == CPU_BF16 && BF16_NATIVE ? CPU_BLOCK / 2 : CPU_BLOCK;
}

AI void tile(const int format, const int R, const int NP, const int C, const uint8_t *w,
             size_t panel_bytes, int column, const int32_t *x, int n_blocks, float *out, size_t ld,
             bool first)
{
    vf acc[CPU_TILE][MOST_VECTORS];
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < NP * C; c++) acc[r][c] =
            first ? vf_set(0.f) : vf_load(out + r * ld + c / C * CPU_PANEL + column + c % C * VL);
    }
    const size_t block_bytes = cpu_format_block_bytes(format);
    for (int b = 0; b < n_blocks; b++, w += block_bytes, x += row_words(format) * R) {
        UNROLL for (int n = 0; n < NP; n++)
            tile_step(format, R, C, w + n * panel_bytes, column, x, acc, n * C);
    }
    UNROLL for (int r = 0; r < R; r++)
    {
        UNROLL for (int c = 0; c < NP * C; c++)
            vf_store(out + r * ld + c / C * CPU_PANEL + column + c % C * VL, acc[r][c]);
    }
}

/* Columns of a panel in groups of what the registers hold. bf16 and f32 need no integer sums and so
 * take twice as many. */
AI int columns_for(const int format, const int R)
{
    if (VL == 1)
        return 1;
    if (format >= CPU_BF16)
        return R <= WIDE_ROWS / 2 ? (PANEL_VECTORS < 4 ? PANEL_VECTORS : 4) : 2;
    return R <= WIDE_ROWS ? 2 : 1;
}

/* A stretch of K of one panel, against which tiles run. */
struct piece {
    const uint8_t *w;
    int n_blocks;
    bool is_first;         /* sums begin at +0, later ones with what is in out */
    size_t ahead, n_ahead; /* weights to ask for meanwhile: this far behind w, so many bytes */
};

/* The bytes [from, end) / CPU_PANEL of what is to be asked for. Into L2: L1 holds the piece in use. */
AI void fetch_ahead(const struct piece *p, size_t from, size_t end)
{
    const uint8_t *at = p->w + p->ahead;
    for (size_t i = p->n_ahead * from / CPU_PANEL; i < p->n_ahead * end / CPU_PANEL; i += 64)
        __builtin_prefetch(at + i, 0, 2);
}

AI void panel_rows(const int format, const int R, const struct piece *p, const int32_t *x,
                   float *out, size_t ld)
{
    const int C = columns_for(format, R);
    for (int column = 0; column < CPU_PANEL; column += C * VL) {
        fetch_ahead(p, column, column + C * VL);
        tile(format, R, 1, C, p->w, 0, column, x, p->n_blocks, out, ld, p->is_first);
    }
}

/* panel_tile of a format: one function, since pass and edge would otherwise hold a copy each, and all
 * row counts in it are most of what there is to compile. */
typedef void (*panel_tile)(int R, const struct piece *p, const int32_t *x, float *out, size_t ld);

AI void panel_any(const int format, int R, const struct piece *p, const int32_t *x, float *out,
                  size_t ld)
{
    // clang-format off
    switch (R) {
    case 1: panel_rows(format, 1, p, x, out, ld); break;
    case 2: panel_rows(format, 2, p, x, out, ld); break;
    case 3: panel_rows(format, 3, p, x, out, ld); break;
    case 4: panel_rows(format, 4, p, x, out, ld); break;
    case 5: panel_rows(format, 5, p, x, out, ld); break;
    default: panel_rows(format, 6, p, x, out, ld); break;
    }
    // clang-format on
}

/* ---- the walk ------------------------------------------------------------------------------------ */

/* One row, one or two panels side by side. */
AI void row_panels(const int format, const int NP, const uint8_t *w, size_t panel_bytes,
                   const int32_t *x, int n_blocks, float *out)
{
    const int C = VL == 1 ? 1 : PANEL_VECTORS;
    for (int column = 0; column < CPU_PANEL; column += C * VL)
        tile(format, 1, NP, C, w, panel_bytes, column, x, n_blocks, out, 0, true);
}

AI void matmul_row(const int format, const struct cpu_matmul *m)
{
    int32_t n_blocks = m->k / CPU_BLOCK, whole = m->n / CPU_PANEL, p = m->first_panel;
    const uint8_t *w = m->panels + (size_t)p * m->panel_bytes;
    for (; p + 2 <= m->end_panel && p + 2 <= whole; p += 2, w += 2 * m->panel_bytes)
        row_panels(format, 2, w, m->panel_bytes, m->x, n_blocks, m->out + p * CPU_PANEL);
    for (; p < m->end_panel; p++, w += m->panel_bytes) {
        float padded[CPU_PANEL];
        int32_t columns = m->n - p * CPU_PANEL;
        row_panels(format, 1, w, m->panel_bytes, m->x, n_blocks, padded);
        memcpy(m->out + p * CPU_PANEL, padded,
               sizeof(float) * (columns < CPU_PANEL ? columns : CPU_PANEL));
    }
}

/* The last panel where columns are missing: through a padded tile, for nothing may be written past
 * the row. */
AI void matmul_edge(const int format, panel_tile run, const struct cpu_matmul *m, const uint8_t *w)
{
    int32_t n_blocks = m->k / CPU_BLOCK, column = m->n / CPU_PANEL * CPU_PANEL;
    const struct piece piece = {.w = w, .n_blocks = n_blocks, .is_first = true};
    for (int32_t i = m->first_tile; i < m->end_tile; i++) {
        float padded[CPU_TILE * CPU_PANEL];
        int32_t row = cpu_tile_first(m->rows, i), R = cpu_tile_first(m->rows, i + 1) - row;
        const int32_t *x = (const int32_t *)m->x + (size_t)row * n_blocks * row_words(format);
        run(R, &piece, x, padded, CPU_PANEL);
        for (int32_t r = 0; r < R; r++)
            memcpy(m->out + (row + r) * m->ld + column, padded + r * CPU_PANEL,
                   sizeof(float) * (m->n - column));
    }
}

/* The sums of a tile go to lines that no cache holds: asks for them before the tile begins. Left to
 * the stores, they cost a tenth of a prompt's matmuls (AVX2, Zen 3). */
AI void fetch_sums(int R, const float *out, size_t ld)
{
    for (int r = 0; r < R; r++) {
        __builtin_prefetch(out + r * ld, 1);
        __builtin_prefetch(out + r * ld + CPU_PANEL / 2, 1);
    }
}

/* The tiles [first, end) against one piece. While the first of them run, they ask for the weights that
 * lie PIECE_BYTES further on, since pieces and panels are one stream: a step of few rows reads all
 * weights from memory, and the caches' own prefetch gets lost in the columns. A few lines at a time:
 * all at once they stand in each other's way. */
AI void matmul_piece(const int format, panel_tile run, const struct cpu_matmul *m,
                     struct piece piece, int32_t b, int32_t first, int32_t end, float *out)
{
    const size_t n_bytes = piece.n_blocks * cpu_format_block_bytes(format);
    const int32_t n_blocks = m->k / CPU_BLOCK, n_asking = end - first < 4 ? end - first : 4;
    for (int32_t i = first; i < end; i++, piece.ahead += piece.n_ahead) {
        int32_t row = cpu_tile_first(m->rows, i), R = cpu_tile_first(m->rows, i + 1) - row;
        const int32_t *x =
            (const int32_t *)m->x + ((size_t)row * n_blocks + (size_t)b * R) * row_words(format);
        piece.n_ahead = i < first + n_asking ? n_bytes / n_asking : 0;
        fetch_sums(R, out + row * m->ld, m->ld);
        run(R, &piece, x, out + row * m->ld, m->ld);
    }
}

AI void matmul_pass(const int format, panel_tile run, const struct cpu_matmul *m, int32_t first,
                    int32_t end)
{
    const size_t block_bytes = cpu_format_block_bytes(format);
    const int32_t n_blocks = m->k / CPU_BLOCK, most = PIECE_BYTES / (int32_t)block_bytes;
    for (int32_t p = m->first_panel; p < m->end_panel; p++) {
        const uint8_t *w = m->panels + (size_t)p * m->panel_bytes;
        if ((p + 1) * CPU_PANEL > m->n)
            continue; /* the edge */
        for (int32_t b = 0; b < n_blocks; b += most) {
            struct piece piece = {.w = w + b * block_bytes,
                                  .n_blocks = n_blocks - b < most ? n_blocks - b : most,
                                  .is_first = b == 0,
                                  .ahead = PIECE_BYTES};
            matmul_piece(format, run, m, piece, b, first, end, m->out + p * CPU_PANEL);
        }
    }
}

AI void matmul_any(const int format, panel_tile run, const struct cpu_matmul *m)
{
    if (m->rows == 1) {
        matmul_row(format, m);
        return;
    }
    for (int32_t i = m->first_tile; i < m->end_tile; i += PASS_TILES) {
        int32_t end = i + PASS_TILES < m->end_tile ? i + PASS_TILES : m->end_tile;
        matmul_pass(format, run, m, i, end);
    }
    if (m->end_panel * CPU_PANEL > m->n)
        matmul_edge(format, run, m, m->panels + (size_t)(m->end_panel - 1) * m->panel_bytes);
}

#define MATMUL(name, format)                                                                       \
    static __attribute__((noinline)) void panel_##name(int R, const struct piece *p,               \
                                                       const int32_t *x, float *out, size_t ld)    \
    {                                                                                              \
        panel_any(format, R, p, x, out, ld);                                                       \
    }                                                                                              \
    static void matmul_##name(const struct cpu_matmul *m)                                          \
    {                                                                                              \
        matmul_any(format, panel_##name, m);                                                       \
    }
MATMUL(p4, CPU_P4)
MATMUL(p4s, CPU_P4S)
MATMUL(p4f, CPU_P4F)
MATMUL(p8, CPU_P8)
MATMUL(p8m, CPU_P8M)
MATMUL(p8h, CPU_P8H)
MATMUL(bf16, CPU_BF16)
MATMUL(f16, CPU_F16)
MATMUL(f32, CPU_F32)
