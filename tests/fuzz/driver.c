/* driver.c - runs a fuzz entry without a fuzzer: replays seeds and mutates them, as a TAP test.
 *
 * A fuzz target is one function, LLVMFuzzerTestOneInput, that must survive any bytes. clang's fuzzer
 * finds inputs by coverage, but it is not everywhere and has no end; `make check` needs something
 * that runs with any compiler, always the same and for seconds. So this main is linked in its place:
 * it replays every seed (inputs that once broke something become seeds and are tried for ever), then
 * mutates them blindly, a fixed number of times from a fixed seed.
 *
 *   fuzz_gguf [--mutate N] [--seconds T] [--seed S] [--from ROUND] [--keep DIRECTORY]
 *             [FILE or DIRECTORY ...]
 *
 * --seconds goes on until the time is over. Each round has random numbers of its own, so that a late
 * one can be run again alone (--from).
 *
 * --keep DIRECTORY writes there what showed something new to a target that can tell (fuzz_features).
 * Kept files, the smallest first, with --mutate 0 and --keep to another folder: that folder then
 * holds no more than is needed to show it all.
 *
 *   fuzz_gguf --shrink FILE
 *
 * makes an input that kills the target shorter for as long as it does, and writes it back.
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
#include <sys/wait.h>
#include <time.h>
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
    PROGRESS_S = 60,
    FAULT_WORDS = 24, /* bytes of what the target said when it died, NUL included */
    HEAD_BYTES = 512, /* half of the mutations fall here: formats keep their structure in front */
};

struct seed {
    char *name;      /* owns */
    struct str data; /* owns */
};

struct arguments {
    uint64_t rounds, seconds; /* seconds: instead of rounds; 0: not given */
    uint64_t seed, from;      /* from: the first round */
    const char *shrink;       /* borrowed; a file instead of all this; NULL: not asked for */
    int n_paths;
};

struct driver {
    struct seed *seeds; /* [n_seeds] owns */
    int n_seeds;
    int n_tests;      /* TAP lines so far */
    const char *keep; /* borrowed; a folder; NULL: none */
    int n_kept;
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
static void run_input(const char *what, const char *data, size_t len)
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

/* Names of kept inputs say nothing: what they show changes with the target. */
static void keep(struct driver *d, const void *data, size_t len)
{
    char path[512];
    struct err err;
    snprintf(path, sizeof path, "%s/%04d", d->keep, d->n_kept++);
    if (file_replace(path, data, len, &err) != 0)
        printf("# %s\n", err.text);
}

static void try_input(struct driver *d, const char *what, const char *data, size_t len)
{
    uint64_t before = d->keep && fuzz_features ? fuzz_features() : 0;
    run_input(what, data, len);
    if (d->keep && fuzz_features && fuzz_features() > before)
        keep(d, data, len);
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

/* Replaces s by a mutation of a seed; the seed's name. */
static const char *make_mutation(const struct driver *d, struct rng *rng, struct str *s)
{
    const struct seed *from = &d->seeds[rng_below(rng, (uint64_t)d->n_seeds)];
    const struct seed *other = &d->seeds[rng_below(rng, (uint64_t)d->n_seeds)];
    str_append(s, from->data.data, from->data.len);
    for (uint64_t n = rng_below(rng, 4) + 1; n > 0; n--)
        mutations[rng_below(rng, sizeof mutations / sizeof mutations[0])](rng, s, &other->data);
    return from->name;
}

/* For targets whose inputs are decisions: any bytes are a good one. */
static const char *make_drawn(struct rng *rng, struct str *s)
{
    for (uint64_t n = 1 + rng_below(rng, fuzz_drawn_bytes), more = 0; n > 0; n -= more) {
        uint64_t bytes = rng_next(rng);
        more = n < sizeof bytes ? n : sizeof bytes;
        str_append(s, &bytes, more);
    }
    return "nothing";
}

static void print_progress(uint64_t rounds, int64_t seconds)
{
    printf("# %" PRIu64 " rounds", rounds);
    if (fuzz_requests)
        printf(", %" PRIu64 " requests", fuzz_requests());
    printf(", %" PRId64 " s\n", seconds);
    fflush(stdout);
}

static void mutate_all(struct driver *d, const struct arguments *a)
{
    struct str s = {0};
    time_t start = time(NULL), told = start;
    uint64_t round = a->from;
    for (; a->seconds > 0 ? time(NULL) - start < (time_t)a->seconds : round - a->from < a->rounds;
         round++) {
        struct rng rng = rng_from(a->seed ^ round << 20);
        char what[400];
        str_clear(&s);
        bool is_drawn = &fuzz_drawn_bytes != NULL && rng_next(&rng) % 2 == 0;
        const char *from = is_drawn ? make_drawn(&rng, &s) : make_mutation(d, &rng, &s);
        snprintf(what, sizeof what, "round %" PRIu64 " of seed %" PRIu64 ", from %s", round,
                 a->seed, from);
        try_input(d, what, s.data, s.len);
        if (time(NULL) - told >= PROGRESS_S) {
            told = time(NULL);
            print_progress(round + 1 - a->from, told - start);
        }
    }
    str_free(&s);
    print_progress(round - a->from, time(NULL) - start);
    printf("ok %d - %" PRIu64 " mutations of %d seeds, seed %" PRIu64 "\n", ++d->n_tests,
           round - a->from, d->n_seeds, a->seed);
}

/* ---- shrinking -------------------------------------------------------------------------------- */

/* Tries it in a child and hears its first words, by which one fault is told from another. False: it
 * lived. */
static bool is_deadly(const struct str *s, char words[FAULT_WORDS])
{
    int status = 0, ends[2];
    fflush(stdout);
    if (pipe(ends) != 0)
        return false;
    pid_t child = fork();
    if (child == 0) {
        (void)dup2(ends[1], STDOUT_FILENO); /* fails only without descriptors: then it is loud */
        (void)dup2(ends[1], STDERR_FILENO);
        run_input("a shorter one", s->data, s->len);
        _exit(0);
    }
    close(ends[1]);
    struct str heard = {0};
    char data[4096];
    for (ssize_t n; child > 0 && (n = read(ends[0], data, sizeof data)) > 0;)
        str_append(&heard, data, (size_t)n);
    close(ends[0]);
    memset(words, 0, FAULT_WORDS);
    memcpy(words, bytes_of(&heard).data, heard.len < FAULT_WORDS ? heard.len : FAULT_WORDS - 1);
    str_free(&heard);
    return child > 0 && waitpid(child, &status, 0) == child && status != 0;
}

/* Without the run of n bytes at `at`, or with zeros in its place: kept where it still kills. */
static bool try_without(struct str *s, const char *fault, size_t at, size_t n, bool drop)
{
    char words[FAULT_WORDS];
    struct str shorter = {0};
    str_append(&shorter, s->data, s->len);
    if (drop) {
        memmove(shorter.data + at, shorter.data + at + n, s->len - at - n);
        shorter.len -= n;
    } else {
        memset(shorter.data + at, 0, n);
    }
    bool is_kept = (drop || memcmp(shorter.data, s->data, s->len) != 0) &&
                   is_deadly(&shorter, words) && strcmp(words, fault) == 0;
    if (is_kept) {
        str_free(s);
        *s = shorter;
    } else {
        str_free(&shorter);
    }
    return is_kept;
}

static void make_shorter(struct str *s, const char *fault)
{
    for (size_t n = s->len / 2; n > 0; n /= 2) {
        for (size_t at = 0; at + n <= s->len;)
            at += try_without(s, fault, at, n, true) ? 0 : n;
        for (size_t at = 0; at + n <= s->len; at += n)
            (void)try_without(s, fault, at, n, false); /* what can be zero says nothing */
    }
}

static int shrink_file(const char *path)
{
    struct str data = {0};
    struct err err;
    char fault[FAULT_WORDS];
    int status = file_read(path, LONGEST_INPUT, &data, &err);
    if (status == 0 && !is_deadly(&data, fault))
        status = err_set(&err, "%s does not kill the target", path);
    size_t before = data.len;
    if (status == 0) {
        make_shorter(&data, fault);
        status = file_replace(path, data.data, data.len, &err);
    }
    if (status == 0)
        printf("# %s: %zu bytes of %zu\n", path, data.len, before);
    else
        printf("Bail out! %s\n", err.text);
    str_free(&data);
    return status;
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

static int parse(int argc, char **argv, struct driver *d, struct arguments *a)
{
    for (int i = 1; i < argc; i++) {
        const char **text = strcmp(argv[i], "--shrink") == 0 ? &a->shrink
                            : strcmp(argv[i], "--keep") == 0 ? &d->keep
                                                             : NULL;
        if (text && i + 1 < argc) {
            *text = argv[++i];
            continue;
        }
        uint64_t *number = strcmp(argv[i], "--mutate") == 0    ? &a->rounds
                           : strcmp(argv[i], "--seed") == 0    ? &a->seed
                           : strcmp(argv[i], "--seconds") == 0 ? &a->seconds
                           : strcmp(argv[i], "--from") == 0    ? &a->from
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
        try_input(d, name, d->seeds[i].data.data, d->seeds[i].data.len);
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
    if (status == 0 && a.shrink)
        return shrink_file(a.shrink) == 0 ? 0 : 1;
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
        mutate_all(&d, &a);
        printf("1..%d\n", d.n_tests);
    }
    free_seeds(&d);
    return status == 0 ? 0 : 1;
}
