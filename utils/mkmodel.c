/* mkmodel.c - kvasir-mkmodel writes a tiny model with random weights.
 *
 * For tests, for trying the server without a download, and as `models/tiny.gguf` of the quick start.
 * It talks nonsense, but it is a complete model: see mkmodel_build.c for what is in it. The same
 * options give the same bytes on every machine, so a test may name ids that it generates. */
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "kernels/tensor.h"
#include "utils/mkmodel_build.h"

static const char usage[] =
    "usage: kvasir-mkmodel [options] --out FILE\n"
    "Writes a small model with random weights as a GGUF file; equal options, equal bytes.\n"
    "  --out FILE       where to; replaced when it exists\n"
    "  --arch NAME      llama or qwen2 (default llama)\n"
    "  --type TYPE      of the matrices: f32 f16 bf16 q8_0 q4_0 q4_1 q5_0 q5_1 q4_k q5_k q6_k\n"
    "                   (default q8_0; the k-types need rows that are multiples of 256, such as\n"
    "                   --width 256 --heads 4 --head-dim 64 --inner 512)\n"
    "  --layers N       (default %d)\n"
    "  --width N        of the model (default %d)\n"
    "  --heads N        query heads (default %d)\n"
    "  --kv-heads N     key/value heads, a divisor of the query heads (default %d)\n"
    "  --head-dim N     even (default %d)\n"
    "  --inner N        width of the feed-forward layers (default %d)\n"
    "  --context N      longest context (default %d)\n"
    "  --seed N         of the weights (default %" PRIu64 ")\n"
    "  --untied         an output head of its own instead of the embedding\n"
    "  --qkv-bias       a bias on q, k and v (qwen2 has one anyway)\n"
    "  --rope-factors   a tensor of rotation factors, as Llama 3.1 has\n"
    "  --help\n";

enum { OPT_OUT = 256, OPT_ARCH, OPT_TYPE, OPT_SEED, OPT_HELP, OPT_NUMBER };

struct arguments {
    struct mkmodel_options options;
    const char *out;
    int untied, qkv_bias, rope_factors; /* set by getopt */
};

static int print_usage(FILE *to)
{
    struct mkmodel_options d = mkmodel_defaults();
    return fprintf(to, usage, d.layers, d.width, d.heads, d.kv_heads, d.head_dim, d.inner,
                   d.context, d.seed) < 0;
}

static int set_type(struct arguments *a, const char *text, struct err *err)
{
    a->options.type = tensor_type_find(text);
    return a->options.type < 0 ? err_set(err, "type %s is unknown; see --help", text) : 0;
}

static int set_seed(struct arguments *a, const char *text, struct err *err)
{
    if (!parse_u64(bytes_from(text), &a->options.seed))
        return err_set(err, "seed %s is not a number from 0 to 18446744073709551615", text);
    return 0;
}

/* One of the options whose value is a small number; ranges are mkmodel_build's to check. */
static int set_number(struct arguments *a, const char *name, const char *text, struct err *err)
{
    struct mkmodel_options *o = &a->options;
    const struct {
        const char *name;
        int32_t *field;
    } fields[] = {
        {"layers", &o->layers},     {"width", &o->width},       {"heads", &o->heads},
        {"kv-heads", &o->kv_heads}, {"head-dim", &o->head_dim}, {"inner", &o->inner},
        {"context", &o->context},
    };
    int64_t value;
    if (!parse_i64(bytes_from(text), &value) || value < 0 || value > INT32_MAX)
        return err_set(err, "%s %s is not a number from 0 to %d", name, text, INT32_MAX);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
        if (strcmp(fields[i].name, name) == 0)
            *fields[i].field = (int32_t)value;
    return 0;
}

/* 0 to go on, 1 when help was asked for, -1 on an error. */
static int parse(int argc, char **argv, struct arguments *a, struct err *err)
{
    const struct option options[] = {
        {"out", required_argument, NULL, OPT_OUT},
        {"arch", required_argument, NULL, OPT_ARCH},
        {"type", required_argument, NULL, OPT_TYPE},
        {"seed", required_argument, NULL, OPT_SEED},
        {"layers", required_argument, NULL, OPT_NUMBER},
        {"width", required_argument, NULL, OPT_NUMBER},
        {"heads", required_argument, NULL, OPT_NUMBER},
        {"kv-heads", required_argument, NULL, OPT_NUMBER},
        {"head-dim", required_argument, NULL, OPT_NUMBER},
        {"inner", required_argument, NULL, OPT_NUMBER},
        {"context", required_argument, NULL, OPT_NUMBER},
        {"untied", no_argument, &a->untied, 1},
        {"qkv-bias", no_argument, &a->qkv_bias, 1},
        {"rope-factors", no_argument, &a->rope_factors, 1},
        {"help", no_argument, NULL, OPT_HELP},
        {0},
    };
    int c, at, status = 0;
    while (status == 0 && (c = getopt_long(argc, argv, "", options, &at)) != -1) {
        switch (c) {
        case 0:
            break;
        case OPT_OUT:
            a->out = optarg;
            break;
        case OPT_ARCH:
            a->options.architecture = optarg;
            break;
        case OPT_TYPE:
            status = set_type(a, optarg, err);
            break;
        case OPT_SEED:
            status = set_seed(a, optarg, err);
            break;
        case OPT_NUMBER:
            status = set_number(a, options[at].name, optarg, err);
            break;
        case OPT_HELP:
            return 1;
        default: /* getopt has said what */
            return err_set(err, "see --help");
        }
    }
    if (status == 0 && optind < argc)
        return err_set(err, "argument %s is one too many; see --help", argv[optind]);
    if (status == 0 && a->out == NULL)
        return err_set(err, "--out FILE is missing; see --help");
    a->options.untied = a->untied;
    a->options.qkv_bias = a->qkv_bias;
    a->options.rope_factors = a->rope_factors;
    return status;
}

int main(int argc, char **argv)
{
    struct arguments a = {.options = mkmodel_defaults()};
    struct str file = {0};
    struct err err;
    int status = parse(argc, argv, &a, &err);
    if (status == 1)
        return print_usage(stdout);
    if (status == 0 && mkmodel_build(&a.options, &file, &err) == 0 &&
        file_replace(a.out, file.data, file.len, &err) == 0) {
        printf("%s: %s, %" PRId32 " layers of width %" PRId32 ", %s, %zu KiB\n", a.out,
               a.options.architecture, a.options.layers, a.options.width,
               tensor_type_name(a.options.type), file.len / 1024);
        str_free(&file);
        return 0;
    }
    fprintf(stderr, "kvasir-mkmodel: %s\n", err.text);
    str_free(&file);
    return 1;
}
