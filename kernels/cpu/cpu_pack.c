/* cpu_pack.c - stored tensors re-laid into panels of 32 columns, once, at load.
 *
 * A panel is one sequential stream: what the inner loops read next always lies next, whatever the
 * shape of the matrix. Nothing is requantised: every format (cpu_kernel.h) stands for the values in
 * the file, only widened where the file packs tighter than the loops can unpack (Q5 and K-quants).
 *
 * Each stored type has a reader that opens 32 values of one row as integers with their factors; each
 * format has a writer that deals such a block out to its column. Columns that do not exist (N is no
 * multiple of 32) are zero factors. Threads split the panels. */
#include <string.h>
#include "base/mem.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/f16.h"

/* 32 values of one row: value = q * scale[k / 16] + minimum. */
struct block {
    int8_t q[CPU_BLOCK]; /* without offset */
    float scale[2], minimum;
    uint16_t scale_half, minimum_half; /* the same as stored, for formats that keep f16 */
};

static uint16_t read16(const uint8_t *p)
{
    uint16_t h;
    memcpy(&h, p, 2);
    return h;
}
static uint32_t read32(const uint8_t *p)
{
    uint32_t u;
    memcpy(&u, p, 4);
    return u;
}

static void set_factors(struct block *b, uint16_t scale, uint16_t minimum)
{
    b->scale_half = scale;
    b->minimum_half = minimum;
    b->scale[0] = b->scale[1] = f16_to_float(scale);
    b->minimum = f16_to_float(minimum);
}

/* ---- readers: block i of a stored row ------------------------------------------------------------ */

static void read_q4(const uint8_t *quants, int offset, struct block *b)
{
    for (int j = 0; j < 16; j++) {
        b->q[j] = (int8_t)((quants[j] & 15) - offset);
        b->q[j + 16] = (int8_t)((quants[j] >> 4) - offset);
    }
}
static void read_q5(const uint8_t *high, const uint8_t *quants, int offset, struct block *b)
{
    uint32_t bits = read32(high);
    for (int j = 0; j < 16; j++) {
        b->q[j] = (int8_t)(((quants[j] & 15) | (bits >> j & 1) << 4) - offset);
        b->q[j + 16] = (int8_t)((quants[j] >> 4 | (bits >> (j + 16) & 1) << 4) - offset);
    }
}
static void read_q4_0(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)i * 18;
    set_factors(b, read16(p), 0);
    read_q4(p + 2, 8, b);
}
static void read_q4_1(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)i * 20;
    set_factors(b, read16(p), read16(p + 2));
    read_q4(p + 4, 0, b);
}
static void read_q5_0(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)i * 22;
    set_factors(b, read16(p), 0);
    read_q5(p + 2, p + 6, 16, b);
}
static void read_q5_1(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)i * 24;
    set_factors(b, read16(p), read16(p + 2));
    read_q5(p + 4, p + 8, 0, b);
}
static void read_q8_0(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)i * 34;
    set_factors(b, read16(p), 0);
    memcpy(b->q, p + 2, CPU_BLOCK);
}

/* K-quants: 256 values share two f16 factors; the eight blocks have 6-bit ones in 12 bytes, the last
 * four of them with their upper two bits in the first eight bytes. */
static void read_k_factors(const uint8_t *p, int j, struct block *b)
{
    const uint8_t *s = p + 4;
    int scale, minimum;
    if (j < 4) {
        scale = s[j] & 63;
        minimum = s[j + 4] & 63;
    } else {
        scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        minimum = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
    b->scale[0] = b->scale[1] = f16_to_float(read16(p)) * (float)scale;
    b->minimum = -(f16_to_float(read16(p + 2)) * (float)minimum);
}
static void read_q4_k(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)(i / 8) * 144, *quants = p + 16 + i % 8 / 2 * 32;
    int shift = i % 2 * 4;
    read_k_factors(p, i % 8, b);
    for (int k = 0; k < CPU_BLOCK; k++)
        b->q[k] = (int8_t)(quants[k] >> shift & 15);
}
static void read_q5_k(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)(i / 8) * 176, *quants = p + 48 + i % 8 / 2 * 32;
    int shift = i % 2 * 4;
    read_k_factors(p, i % 8, b);
    for (int k = 0; k < CPU_BLOCK; k++)
        b->q[k] = (int8_t)((quants[k] >> shift & 15) | (p[16 + k] >> (i % 8) & 1) << 4);
}
/* 128 values: 64 bytes of low nibbles, 32 bytes of upper pairs; block j of the four takes its nibble
 * from half j % 2 of the bytes (low nibbles first), its pair at bit 2 j. */
static void read_q6_k(const uint8_t *row, int32_t i, struct block *b)
{
    const uint8_t *p = row + (size_t)(i / 8) * 210;
    int half = i % 8 / 4, j = i % 4;
    const uint8_t *low = p + half * 64 + j % 2 * 32, *high = p + 128 + half * 32;
    const int8_t *scales = (const int8_t *)p + 192 + half * 8 + j * 2;
    float d = f16_to_float(read16(p + 208));
    for (int k = 0; k < CPU_BLOCK; k++) {
        int nibble = j < 2 ? low[k] & 15 : low[k] >> 4;
        b->q[k] = (int8_t)((nibble | (high[k] >> (2 * j) & 3) << 4) - 32);
    }
    b->scale[0] = d * (float)scales[0];
    b->scale[1] = d * (float)scales[1];
    b->minimum = 0;
}

/* ---- writers -------------------------------------------------------------------------------------- */

static void put_half(uint8_t *at, int column, uint16_t half)
{
    memcpy(at + 2 * column, &half, 2);
}
static void put_float(uint8_t *at, int column, float value)
{
    memcpy(at + 4 * column, &value, 4);
}

static void write_factors(enum cpu_format format, const struct block *b, int column, uint8_t *at)
{
    switch (format) {
    case CPU_P4:
        put_half(at, column, b->scale_half);
        put_half(at + 64, column, b->minimum_half);
        break;
    case CPU_P4S:
    case CPU_P8:
        put_half(at, column, b->scale_half);
        break;
    default:
        put_float(at, column, b->scale[0]);
        put_float(at + 128, column, format == CPU_P8H ? b->scale[1] : b->minimum);
        break;
    }
}

static void write_block(enum cpu_format format, const struct block *b, int column, int byte_offset,
                        uint8_t *out)
{
    if (format == CPU_P4 || format == CPU_P4S || format == CPU_P4F) {
        int offset = format == CPU_P4S ? 8 : 0;
        for (int k = 0; k < 16; k++)
            out[k / 4 * 128 + column * 4 + k % 4] =
                (uint8_t)((b->q[k] + offset) | (b->q[k + 16] + offset) << 4);
        write_factors(format, b, column, out + 512);
        return;
    }
    int offset = format == CPU_P8 ? byte_offset : 0;
    for (int k = 0; k < CPU_BLOCK; k++)
        out[k / 4 * 128 + column * 4 + k % 4] = (uint8_t)(b->q[k] + offset);
    write_factors(format, b, column, out + 1024);
}

/* What each stored type becomes. Types without a reader are kept value by value. */
static const struct stored {
    int type;
    enum cpu_format format;
    unsigned form;
    void (*read)(const uint8_t *row, int32_t i, struct block *b);
} stored_types[] = {
    {TENSOR_Q4_0, CPU_P4S, CPU_FORM_INT8, read_q4_0},
    {TENSOR_Q4_1, CPU_P4, CPU_FORM_INT8, read_q4_1},
    {TENSOR_Q5_0, CPU_P8, CPU_FORM_INT8, read_q5_0},
    {TENSOR_Q5_1, CPU_P8M, CPU_FORM_INT8, read_q5_1},
    {TENSOR_Q8_0, CPU_P8, CPU_FORM_INT8, read_q8_0},
    {TENSOR_Q4_K, CPU_P4F, CPU_FORM_INT8, read_q4_k},
    {TENSOR_Q5_K, CPU_P8M, CPU_FORM_INT8, read_q5_k},
    {TENSOR_Q6_K, CPU_P8H, CPU_FORM_INT8, read_q6_k},
    {TENSOR_BF16, CPU_BF16, CPU_FORM_BF16, NULL},
    {TENSOR_F16, CPU_F16, CPU_FORM_F32, NULL},
    {TENSOR_F32, CPU_F32, CPU_FORM_F32, NULL},
};

static const struct stored *stored_find(int type)
{
    for (size_t i = 0; i < sizeof stored_types / sizeof *stored_types; i++) {
        if (stored_types[i].type == type)
            return &stored_types[i];
    }
    return NULL;
}

/* One column of a panel whose values are kept as they are stored. */
static void write_plain_column(enum cpu_format format, const uint8_t *row, int32_t k, int column,
                               uint8_t *panel)
{
    if (format == CPU_BF16) { /* pairs */
        for (int32_t p = 0; p < k / 2; p++)
            memcpy(panel + (size_t)p * 128 + column * 4, row + 4 * p, 4);
        return;
    }
    size_t size = format == CPU_F16 ? 2 : 4;
    for (int32_t i = 0; i < k; i++)
        memcpy(panel + ((size_t)i * CPU_PANEL + column) * size, row + i * size, size);
}

/* ---- the job: panels of one segment, dealt out over the threads ----------------------------------- */

struct pack_job {
    const struct cpu *c;
    const struct tensor *parts; /* of the segment */
    int n_parts;
    const struct stored *stored;
    const struct cpu_segment *segment;
    int32_t k;
    bool is_gate_up;
};

/* The stored row that becomes column j of the segment. */
static const uint8_t *find_row(const struct pack_job *job, int32_t j)
{
    const struct tensor *t = job->parts;
    if (job->is_gate_up) {
        t += j % CPU_PANEL / 16;
        j = j / CPU_PANEL * 16 + j % 16;
    } else {
        for (; j >= t->n; t++)
            j -= (int32_t)t->n;
    }
    return (const uint8_t *)t->data + (size_t)j * tensor_row_bytes(t->type, t->k);
}

static void pack_panel(const struct pack_job *job, int32_t panel)
{
    const struct cpu_segment *s = job->segment;
    uint8_t *out = s->panels + (size_t)panel * s->panel_bytes;
    size_t block_bytes = cpu_format_block_bytes(s->format);
    for (int32_t column = 0; column < CPU_PANEL; column++) {
        int32_t j = panel * CPU_PANEL + column;
        if (j >= s->n)
            return;
        const uint8_t *row = find_row(job, j);
        if (!job->stored->read) {
            write_plain_column(s->format, row, job->k, column, out);
            continue;
        }
        for (int32_t i = 0; i < job->k / CPU_BLOCK; i++) {
            struct block b;
            job->stored->read(row, i, &b);
            write_block(s->format, &b, column, job->c->kernel->byte_offset, out + i * block_bytes);
        }
    }
}

static void pack_work(void *arg, int thread, int n_threads)
{
    const struct pack_job *job = arg;
    int first, end;
    cpu_share(job->segment->n_panels, thread, n_threads, &first, &end);
    for (int panel = first; panel < end; panel++)
        pack_panel(job, panel);
}

static int pack_segment(struct cpu *c, struct weight *w, const struct tensor *parts, int n_parts,
                        struct err *err)
{
    struct cpu_segment *s = &w->segments[w->n_segments];
    const struct stored *stored = stored_find(parts->type);
    if (!stored)
        return err_set(err, "cpu: no kernel for tensors of type %d", (int)parts->type);
    size_t n = 0, size_bytes;
    for (int i = 0; i < n_parts; i++)
        n += (size_t)parts[i].n;
    s->format = stored->format;
    s->first = w->n;
    s->n = (int32_t)n;
    s->n_panels = (int32_t)((n + CPU_PANEL - 1) / CPU_PANEL);
    s->panel_bytes = (size_t)(w->k / CPU_BLOCK) * cpu_format_block_bytes(s->format);
    if (n > INT32_MAX / 2 || !mul_ok((size_t)s->n_panels, s->panel_bytes, &size_bytes) ||
        !(s->panels = cpu_map(size_bytes)))
        return err_set(err, "cpu: no memory for a weight of %zu rows of %d", n, w->k);
    w->n_segments++;
    w->n += s->n;
    c->forms |= stored->form;
    struct pack_job job = {c, parts, n_parts, stored, s, w->k, w->is_gate_up};
    cpu_pool_run(c->pool, c->config.n_threads, pack_work, &job);
    return 0;
}

/* Neighbouring parts of one type make one segment; gate and up are always one. */
static int pack_parts(struct cpu *c, struct weight *w, const struct tensor *parts, int n_parts,
                      struct err *err)
{
    for (int i = 0, end; i < n_parts; i = end) {
        for (end = i + 1; end < n_parts && parts[end].type == parts[i].type; end++)
            ;
        if (w->is_gate_up && end != 2)
            return err_set(err, "cpu: gate is %s and up is %s; both must have one type",
                           tensor_type_name(parts[0].type), tensor_type_name(parts[1].type));
        if (pack_segment(c, w, parts + i, end - i, err) < 0)
            return -1;
    }
    return 0;
}

struct weight *cpu_pack(struct backend *b, const struct tensor *parts, int n_parts,
                        enum weight_shape shape, struct err *err)
{
    struct cpu *c = (struct cpu *)b;
    ASSERT(n_parts >= 1 && n_parts <= CPU_MAX_PARTS);
    ASSERT(shape == WEIGHT_PLAIN || (n_parts == 2 && parts[0].n == parts[1].n));
    if (parts[0].k % CPU_BLOCK != 0 || parts[0].k < CPU_BLOCK || parts[0].k > INT32_MAX / 64)
        return err_null(err, "cpu: rows of %lld values; a multiple of %d is needed",
                        (long long)parts[0].k, CPU_BLOCK);
    if (shape == WEIGHT_GATE_UP && parts[0].n % 16 != 0)
        return err_null(err, "cpu: gate has %lld rows; a multiple of 16 is needed",
                        (long long)parts[0].n);
    struct weight *w = xcalloc(1, sizeof *w);
    w->k = (int32_t)parts[0].k;
    w->is_gate_up = shape == WEIGHT_GATE_UP;
    if (pack_parts(c, w, parts, n_parts, err) < 0) {
        cpu_unpack(b, w);
        return NULL;
    }
    cpu_row_reserve(c, w->k);
    return w;
}

void cpu_unpack(struct backend *b, struct weight *w)
{
    (void)b;
    if (!w)
        return;
    for (int i = 0; i < w->n_segments; i++)
        cpu_unmap(w->segments[i].panels);
    xfree(w);
}

/* ---- back to floats: the embedding's rows ---------------------------------------------------------- */

static float read_factor(enum cpu_format format, const uint8_t *at, int which, int column)
{
    if (format == CPU_P4F || format == CPU_P8M || format == CPU_P8H) {
        float f;
        memcpy(&f, at + which * 128 + column * 4, 4);
        return f;
    }
    return f16_to_float(read16(at + which * 64 + column * 2));
}

static void quant_block_row(enum cpu_format format, const uint8_t *block, int column,
                            int byte_offset, float *out)
{
    bool nibbles = format == CPU_P4 || format == CPU_P4S || format == CPU_P4F;
    bool has_minimum = format == CPU_P4 || format == CPU_P4F || format == CPU_P8M;
    const uint8_t *at = block + (nibbles ? 512 : 1024);
    float minimum = has_minimum ? read_factor(format, at, 1, column) : 0.f;
    for (int k = 0; k < CPU_BLOCK; k++) {
        int q, which = format == CPU_P8H ? k / 16 : 0;
        if (nibbles)
            q = (block[k % 16 / 4 * 128 + column * 4 + k % 4] >> (k / 16 * 4) & 15) -
                (format == CPU_P4S ? 8 : 0);
        else
            q = (int8_t)(block[k / 4 * 128 + column * 4 + k % 4] -
                         (format == CPU_P8 ? byte_offset : 0));
        out[k] = (float)q * read_factor(format, at, which, column) + minimum;
    }
}

static float plain_value(enum cpu_format format, const uint8_t *panel, int32_t k, int column)
{
    if (format == CPU_BF16)
        return bf16_to_float(read16(panel + (size_t)(k / 2) * 128 + column * 4 + k % 2 * 2));
    const uint8_t *at = panel + ((size_t)k * CPU_PANEL + column) * (format == CPU_F16 ? 2 : 4);
    return format == CPU_F16 ? f16_to_float(read16(at)) : f32_from_bits(read32(at));
}

void cpu_weight_row(const struct cpu *c, const struct weight *w, int32_t row, float *out)
{
    const struct cpu_segment *s = w->segments;
    while (row >= s->first + s->n)
        s++;
    int32_t j = row - s->first;
    int column = j % CPU_PANEL;
    const uint8_t *panel = s->panels + (size_t)(j / CPU_PANEL) * s->panel_bytes;
    size_t block_bytes = cpu_format_block_bytes(s->format);
    if (s->format >= CPU_BF16) {
        for (int32_t k = 0; k < w->k; k++)
            out[k] = plain_value(s->format, panel, k, column);
        return;
    }
    for (int32_t i = 0; i < w->k / CPU_BLOCK; i++)
        quant_block_row(s->format, panel + i * block_bytes, column, c->kernel->byte_offset,
                        out + i * CPU_BLOCK);
}
