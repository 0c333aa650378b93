/* driver.c - runs a fuzz entry without a fuzzer: replays seeds and mutates them, as a TAP test.
 *
 * A fuzz target is one function, LLVMFuzzerTestOneInput, that must survive any bytes. clang's fuzzer
 * finds inputs by coverage, but it is not everywhere and has no end; `make check` needs something
 * that runs with any compiler, always the same and for seconds. So this main is linked in its place:
 * it replays every seed (inputs that once broke something become seeds and are tried for ever), then
 * mutates them blindly, a fixed number of times from a fixed seed.
 *
 *   fuzz_gguf [--mutate N] [--seed S] [FILE or DIRECTORY ...]
 *
 * Without paths the seeds are $KVASIR_SRC/tests/fuzz/seeds/gguf, for a program called fuzz_gguf. A
 * target may add seeds that it makes itself (fuzz_more_seeds). When the target dies, the input is
 * left in fuzz_gguf.crash and a line says from which seed and round it came; `fuzz_gguf FILE
 * --mutate 0` tries it again.
 *
 * With clang the same target runs under the real thing, in a build folder of its own:
 *   ../configure CC=clang CFLAGS="-g -O1 -fsanitize=fuzzer-no-link,address,undefined"
 *   make libmodel.a libkernels.a libbase.a
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -D_GNU_SOURCE -I../src -I.. \
 *       ../tests/fuzz/fuzz_gguf.c ../utils/mkmodel_build.c libmodel.a libkernels.a libbase.a \
 *       -lpcre2-8 -lxxhash -lm -lpthread -o fuzz_gguf
 *   mkdir corpus && ./fuzz_gguf corpus ../tests/fuzz/seeds/gguf */
#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "base/err.h"
#include "base/file.h"
#include "base/mem.h"
#include "base/rng.h"
#include "base/str.h"
#include "tests/fuzz/fuzz.h"

enum {
    MAX_SEEDS = 1024,
    LONGEST_INPUT = 1 << 20,
    DEFAULT_ROUNDS = 40000,
    HEAD_BYTES = 512, /* half of the mutations fall here: formats keep their structure in front */
};

struct seed {
    char *name;      /* owns */
    struct str data; /* owns */
};

struct driver {
    struct seed *seeds; /* [n_seeds] owns */
    int n_seeds;
    int n_tests; /* TAP lines so far */
};

/* What is being tried, for the handler of a signal: the one place where globals cannot be helped. */
static struct {
    const uint8_t *data;
    size_t len;
    char what[512];
    char path[256];
} current;

/* Only calls that are allowed in a handler. */
static void on_crash(int number)
{
    int fd = open(current.path, O_CREAT | O_WRONLY | O_TRUNC, 0644);
    if (fd >= 0) {
        ssize_t n = write(fd, current.data, current.len);
        (void)n; /* dying: nobody to tell */
        close(fd);
    }
    ssize_t n = write(STDOUT_FILENO, current.what, strlen(current.what));
    (void)n;
    signal(number, SIG_DFL);
    raise(number);
}

/* The sanitizer's report shall end in abort, or the handler would not run. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "abort_on_error=1";
}
const char *__ubsan_default_options(void);
const char *__ubsan_default_options(void)
{
    return "abort_on_error=1:print_stacktrace=1";
}

/* The copy is exact in size and on the heap, so that asan sees a read past the end. */
static void try_input(const char *what, const char *data, size_t len)
{
    uint8_t *copy = xmalloc(len > 0 ? len : 1);
    memcpy(copy, data != NULL ? data : "", len);
    current.data = copy;
    current.len = len;
    snprintf(current.what, sizeof current.what, "not ok - died at %s; input left in %s\n", what,
             current.path);
    LLVMFuzzerTestOneInput(copy, len);
    xfree(copy);
}

/* ---- seeds --------------------------------------------------------------------------------- */

static void add_seed(void *arg, const char *name, const void *data, size_t len)
{
    struct driver *d = arg;
    if (d->n_seeds == MAX_SEEDS)
        return;
    struct seed *seed = &d->seeds[d->n_seeds++];
    *seed = (struct seed){.name = xstrdup(name)};
    str_append(&seed->data, data, len);
}

static int add_file(struct driver *d, const char *path)
{
    struct str data = {0};
    struct err err;
    if (file_read(path, LONGEST_INPUT, &data, &err) != 0) {
        printf("Bail out! %s\n", err.text);
        return -1;
    }
    add_seed(d, path, data.data, data.len);
    str_free(&data);
    return 0;
}

static int is_file(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* A directory's files in the order of their names: a run is the same everywhere. */
static int add_path(struct driver *d, const char *path)
{
    struct dirent **entries;
    struct stat st;
    if (stat(path, &st) != 0 || !S_ISDIR(st.st_mode))
        return add_file(d, path);
    int n = scandir(path, &entries, is_file, alphasort), status = n < 0 ? -1 : 0;
    for (int i = 0; i < n; i++) {
        struct str file = {0};
        str_printf(&file, "%s/%s", path, entries[i]->d_name);
        if (status == 0)
            status = add_file(d, file.data);
        str_free(&file);
        free(entries[i]);
    }
    if (n >= 0)
        free(entries);
    return status;
}

/* ---- mutations ----------------------------------------------------------------------------- */

static size_t somewhere(struct rng *rng, size_t len)
{
    size_t room = rng_next(rng) % 2 == 0 && len > HEAD_BYTES ? HEAD_BYTES : len;
    return room > 0 ? (size_t)rng_below(rng, room) : 0;
}

static void flip_bit(struct rng *rng, struct str *s, const struct str *other)
{
    if (s->len > 0)
        s->data[somewhere(rng, s->len)] ^= (char)(1 << rng_below(rng, 8));
}

static void set_byte(struct rng *rng, struct str *s, const struct str *other)
{
    static const char bytes[] = {0, 1, '\n', '\r', ' ', '"', '*', '$', '-', '9', 0x7f, (char)0xff};
    if (s->len > 0)
        s->data[somewhere(rng, s->len)] = bytes[rng_below(rng, sizeof bytes)];
}

/* A little-endian number of 4 or 8 bytes that is near where something wraps. */
static void set_number(struct rng *rng, struct str *s, const struct str *other)
{
    size_t n = rng_next(rng) % 2 == 0 ? 4 : 8;
    uint64_t value = UINT64_C(1) << rng_below(rng, 64);
    value += rng_below(rng, 3) - 1;
    if (rng_next(rng) % 4 == 0)
        value = s->len + rng_below(rng, 16) - 8;
    if (s->len >= n)
        memcpy(s->data + somewhere(rng, s->len - n + 1), &value, n);
}

static void cut(struct rng *rng, struct str *s, const struct str *other)
{
    size_t len = somewhere(rng, s->len);
    s->len = len;
}

static void drop_run(struct rng *rng, struct str *s, const struct str *other)
{
    size_t at = somewhere(rng, s->len), n = (size_t)rng_below(rng, 16) + 1;
    if (at + n > s->len)
        return;
    memmove(s->data + at, s->data + at + n, s->len - at - n);
    s->len -= n;
}

/* Puts a run of another seed (or of this one) in between. */
static void insert_run(struct rng *rng, struct str *s, const struct str *other)
{
    struct str whole = {0};
    size_t at = somewhere(rng, s->len), from = somewhere(rng, other->len);
    size_t n = (size_t)rng_below(rng, 64) + 1;
    n = n < other->len - from ? n : other->len - from;
    if (n == 0 || s->len + n > LONGEST_INPUT)
        return;
    str_append(&whole, s->data, at);
    str_append(&whole, other->data + from, n);
    str_append(&whole, s->data + at, s->len - at);
    str_free(s);
    *s = whole;
}

static void (*const mutations[])(struct rng *, struct str *, const struct str *) = {
    flip_bit, set_byte, set_number, set_number, cut, drop_run, insert_run,
};

static void mutate_all(struct driver *d, uint64_t rounds, uint64_t seed)
{
    struct rng rng = rng_from(seed);
    struct str s = {0};
    for (uint64_t round = 0; round < rounds; round++) {
        char what[400];
        const struct seed *from = &d->seeds[rng_below(&rng, (uint64_t)d->n_seeds)];
        const struct seed *other = &d->seeds[rng_below(&rng, (uint64_t)d->n_seeds)];
        str_clear(&s);
        str_append(&s, from->data.data, from->data.len);
        for (uint64_t n = rng_below(&rng, 4) + 1; n > 0; n--)
            mutations[rng_below(&rng, sizeof mutations / sizeof mutations[0])](&rng, &s,
                                                                               &other->data);
        snprintf(what, sizeof what, "round %" PRIu64 " of seed %" PRIu64 ", from %s", round, seed,
                 from->name);
        try_input(what, s.data, s.len);
    }
    str_free(&s);
    printf("ok %d - %" PRIu64 " mutations of %d seeds, seed %" PRIu64 "\n", ++d->n_tests, rounds,
           d->n_seeds, seed);
}

/* ---- main ---------------------------------------------------------------------------------- */

/* "gguf" of ".../fuzz_gguf" */
static const char *target_of(const char *program)
{
    const char *slash = strrchr(program, '/');
    const char *name = slash != NULL ? slash + 1 : program;
    return strncmp(name, "fuzz_", 5) == 0 ? name + 5 : name;
}

static int add_default_seeds(struct driver *d, const char *target)
{
    struct str path = {0};
    const char *source = getenv("KVASIR_SRC");
    str_printf(&path, "%s/tests/fuzz/seeds/%s", source != NULL ? source : ".", target);
    int status = access(path.data, R_OK) == 0 ? add_path(d, path.data) : 0;
    str_free(&path);
    return status;
}

static void free_seeds(struct driver *d)
{
    for (int i = 0; i < d->n_seeds; i++) {
        xfree(d->seeds[i].name);
        str_free(&d->seeds[i].data);
    }
    xfree(d->seeds);
}

struct arguments {
    uint64_t rounds, seed;
    int n_paths;
};

static int parse(int argc, char **argv, struct driver *d, struct arguments *a)
{
    for (int i = 1; i < argc; i++) {
        uint64_t *number = strcmp(argv[i], "--mutate") == 0 ? &a->rounds
                           : strcmp(argv[i], "--seed") == 0 ? &a->seed
                                                            : NULL;
        if (number == NULL) {
            a->n_paths++;
            if (add_path(d, argv[i]) != 0)
                return -1;
        } else if (i + 1 == argc || !parse_u64(bytes_from(argv[++i]), number)) {
            printf("Bail out! %s needs a number\n", argv[i]);
            return -1;
        }
    }
    return 0;
}

static void replay_all(struct driver *d)
{
    for (int i = 0; i < d->n_seeds; i++) {
        const char *name = d->seeds[i].name, *slash = strrchr(name, '/');
        try_input(name, d->seeds[i].data.data, d->seeds[i].data.len);
        printf("ok %d - survives %s\n", ++d->n_tests, slash != NULL ? slash + 1 : name);
        fflush(stdout); /* the handler of a crash writes past stdio */
    }
}

int main(int argc, char **argv)
{
    static const int fatal[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    struct driver d = {.seeds = xcalloc(MAX_SEEDS, sizeof *d.seeds)};
    struct arguments a = {.rounds = &fuzz_rounds != NULL ? fuzz_rounds : DEFAULT_ROUNDS, .seed = 1};
    const char *target = target_of(argv[0]);
    int status = parse(argc, argv, &d, &a);
    snprintf(current.path, sizeof current.path, "fuzz_%s.crash", target);
    if (status == 0 && a.n_paths == 0)
        status = add_default_seeds(&d, target);
    if (a.n_paths == 0 && fuzz_more_seeds != NULL)
        fuzz_more_seeds(add_seed, &d);
    if (d.n_seeds == 0)
        add_seed(&d, "nothing", "", 0);
    for (size_t i = 0; i < sizeof fatal / sizeof fatal[0]; i++)
        signal(fatal[i], on_crash);
    if (status == 0) {
        replay_all(&d);
        mutate_all(&d, a.rounds, a.seed);
        printf("1..%d\n", d.n_tests);
    }
    free_seeds(&d);
    return status == 0 ? 0 : 1;
}
