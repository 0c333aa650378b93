/* cpu_kernel.h - the inner loops of the CPU backend as a table, one table for each instruction set.
 *
 * The bodies (cpu_body_matmul.h, cpu_body_attention.h, cpu_body_rows.h) are one source over the vector
 * words of cpu_vec_*.h; cpu_kernel_<isa>.c compile them with their flags. All tables give the same
 * bits: a lane is an output element, sums keep one order, and every compute thread runs with
 * denormals flushed (cpu_pool.c). Nothing here allocates, locks or knows of threads.
 *
 * Weights lie in panels of 32 columns (output elements), K in blocks of 32, one sequential stream a
 * panel (cpu_pack.c writes them):
 *
 *   P4   Q4_1        [4 quads][32 columns][4] bytes: low nibble k = 4 quad + j, high nibble k + 16;
 *                    then f16 scale[32], f16 minimum[32]
 *   P4S  Q4_0        the same nibbles, offset 8; f16 scale[32]
 *   P4F  Q4_K        the same nibbles; f32 scale[32], f32 minimum[32]: the products of the file's f16
 *                    and 6-bit scales are exact in f32 and in nothing shorter
 *   P8   Q8_0 Q5_0   [8 quads][32 columns][4] signed bytes (+ byte_offset); f16 scale[32]
 *   P8M  Q5_1 Q5_K   the same, 0..31; f32 scale[32], f32 minimum[32]
 *   P8H  Q6_K        the same, signed; f32 scale[2][32], one for each 16 of K
 *   BF16             [K/2 pairs][32 columns][2] bf16
 *   F16, F32         [K][32 columns]
 *
 * Every form is exact: the value that a panel stands for is the file's value (for K-quants as the
 * plain unpack rounds it, up to one rounding of scale * quant).
 *
 * Activations lie in tiles of at most 6 rows, rows split evenly over the tiles, so that a tile is one
 * stream. For a tile of R rows: int8 form, per block of 32: [8 quads][R] words of four int8, [R] f32
 * scale s, [R] f32 s * sum(q), [R] int32 sum(q). bf16 form: [K/2][2][R] floats that hold bf16 values
 * (even k, odd k), or [K/2][R] packed pairs where the table says bf16_words = 1. f32 form: [K][R]. */
#ifndef CPU_KERNEL_H
#define CPU_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "kernels/choose.h"

enum cpu_format {
    CPU_P4,
    CPU_P4S,
    CPU_P4F,
    CPU_P8,
    CPU_P8M,
    CPU_P8H,
    CPU_BF16,
    CPU_F16,
    CPU_F32,
    CPU_N_FORMATS
};

enum {
    CPU_PANEL = 32, /* columns of a panel */
    CPU_BLOCK = 32, /* k of a quantised block */
    CPU_TILE = 6,   /* rows of a tile: what 16 vector registers hold with one vector of columns */
    CPU_BLOCK_WORDS = 11, /* of the int8 form, per row and block */
    CPU_PAGE = 16,        /* tokens of a K/V page: one vector of AVX-512, two of AVX2 */
    CPU_SPLIT = 256,      /* tokens of one softmax step, cut from position 0 on */
    CPU_MAX_HEAD = 256,   /* D at most */
};

/* One weight against all tiles [first_tile, end_tile) for the panels [first_panel, end_panel). */
struct cpu_matmul {
    const uint8_t *panels;
    size_t panel_bytes;
    int32_t n, k; /* columns that exist; the last panel may be padded */
    int32_t first_panel, end_panel;
    const void *x; /* the stream of tile 0 */
    int32_t rows;  /* of the whole activation: decides the tiles */
    int32_t first_tile, end_tile;
    float *out; /* [rows, ld], column 0 of panel 0 */
    size_t ld;
};

/* Up to CPU_TILE query rows against one split of one K/V head. */
struct cpu_attend {
    int32_t n_rows, head_dim;
    float c; /* scale * log2(e) */
    /* bf16: [D]. int8: [D/4 quads][2] words of two int16, dimensions (0, 2) and (1, 3) of the quad;
     * then an f32, what a code of 1 stands for. */
    const uint16_t *q[CPU_TILE];
    int32_t n[CPU_TILE]; /* tokens of this split that the row sees, 1..256, ascending */
    const uint8_t *k[CPU_SPLIT / CPU_PAGE]; /* pages, laid out as cpu_kv.c says */
    const uint8_t *v[CPU_SPLIT / CPU_PAGE]; /* int8: the scales of K and V follow */
    const uint8_t *const *ahead; /* [n_ahead] pages that a later call reads: asked for meanwhile */
    int32_t n_ahead;
    size_t page_bytes;              /* K, V and scales */
    float m[CPU_TILE], l[CPU_TILE]; /* result: maximum score, sum of probabilities */
    float *o[CPU_TILE];             /* result: [D] not yet divided by l */
};

struct cpu_kernel {
    const char *isa;
    int32_t bf16_words;  /* words of a bf16 pair in the activation stream: 1 or 2 */
    int32_t byte_offset; /* added to the bytes of P8 */
    void (*matmul[CPU_N_FORMATS])(const struct cpu_matmul *m);

    /* One row into row r of a tile of R rows; stream is the tile's. */
    void (*put_int8)(const float *row, int32_t k, int32_t R, int32_t r, int32_t *stream);
    void (*put_bf16)(const float *row, int32_t k, int32_t R, int32_t r, void *stream);
    /* x [c] += delta (may be NULL); out [c] = rmsnorm(x) * w. c is a multiple of 16. */
    void (*norm)(float *x, const float *delta, const float *w, float eps, int32_t c, float *out);
    /* gate_up [f / 16][gate 16, up 16] -> out [f] = silu(gate) * up */
    void (*swiglu)(const float *gate_up, int32_t f, float *out);
    void (*round_bf16)(const float *row, int32_t n, uint16_t *out); /* n is a multiple of 16 */

    /* Codes of int8 rows: largest |x|, NaN left out; round(x * inverse) within -limit..limit. */
    float (*largest)(const float *x, int32_t n); /* n is a multiple of 16 */
    void (*to_codes)(const float *x, int32_t n, float inverse, float limit, int32_t *out);

    void (*attend[KV_N_TYPES])(struct cpu_attend *a); /* NULL: not a type of this backend */
    /* (m, l, o) := (m, l, o), then (mb, lb, ob) */
    void (*merge)(float *m, float *l, float *o, float mb, float lb, const float *ob, float c,
                  int32_t head_dim);
    void (*finish)(const float *o, float l, int32_t head_dim, float *out);

    struct choose_passes passes; /* sum_exp: exponentials in f32, 16 lanes, the tree */
};

extern const struct cpu_kernel cpu_kernel_scalar, cpu_kernel_avx2, cpu_kernel_avx512,
    cpu_kernel_avx512_fma;
/* Whether VDPBF16PS of this CPU multiplies the high pair first and rounds twice, as the manual says
 * and as all other paths do. Call only where AVX512_BF16 exists. */
bool cpu_avx512_bf16_is_exact(void);

/* Tiles of an activation of `rows` rows: as few as can be, as even as can be. */
static inline int32_t cpu_tiles(int32_t rows)
{
    return (rows + CPU_TILE - 1) / CPU_TILE;
}
static inline int32_t cpu_tile_first(int32_t rows, int32_t tile)
{
    int32_t n = cpu_tiles(rows), base = rows / n, extra = rows % n;
    return tile * base + (tile < extra ? tile : extra);
}

static inline size_t cpu_format_block_bytes(enum cpu_format format)
{
    static const uint16_t bytes[CPU_N_FORMATS] = {
        [CPU_P4] = 512 + 128, [CPU_P4S] = 512 + 64,   [CPU_P4F] = 512 + 256,
        [CPU_P8] = 1024 + 64, [CPU_P8M] = 1024 + 256, [CPU_P8H] = 1024 + 256,
        [CPU_BF16] = 2048,    [CPU_F16] = 2048,       [CPU_F32] = 4096,
    };
    return bytes[format];
}

#endif
