/* tok_load.c - a tokenizer out of the metadata of a GGUF file.
 *
 * The keys (all under tokenizer.ggml.): `model` must be gpt2, byte-level BPE; `pre` names the way
 * text is cut; `tokens`, `token_type`, `merges` are the vocabulary; `bos_token_id`, `eos_token_id`,
 * `eot_token_id`, `eom_token_id`, `add_bos_token` say how texts begin and end.
 *
 * Which ids end a text, by rule: the three of the metadata, and every control token whose spelling
 * is a turn's or a text's end in a template in common use (END_SPELLINGS). A model trained for chat
 * ends its answers with the turn's mark while the metadata often names the text's end alone, or the
 * other way round; either in the middle of an answer means that the answer is over. An id that is
 * missing or outside the vocabulary is a warning, not a fault: with no end id at all, a generation
 * ends by its length.
 *
 * Tokens of type user-defined are found whole in any text when they are runs of blanks, words and
 * the like, as they were in training. Those that look like marks (<tool_call>, [INST]) are found
 * only where control tokens are: text of a client must not turn into the frame around it, and
 * converters do file such marks under user-defined.
 *
 * SentencePiece vocabularies (model "llama") are refused by name: their rules are another file. */
#include <string.h>
#include "base/log.h"
#include "base/mem.h"
#include "model/gguf.h"
#include "model/tok_bpe.h"
#include "model/tok_split.h"
#include "model/tokenizer.h"

#define KEY(name) "tokenizer.ggml." name

/* Values of token_type in the file format. */
enum { TYPE_NORMAL = 1, TYPE_UNKNOWN, TYPE_CONTROL, TYPE_USER, TYPE_UNUSED, TYPE_BYTE };

static const char *const END_KEYS[] = {KEY("eos_token_id"), KEY("eot_token_id"),
                                       KEY("eom_token_id")};
static const char *const END_SPELLINGS[] = {
    "<|im_end|>",    "<|eot_id|>",      "<|eom_id|>",    "<|end|>", "<|end_of_text|>",
    "<|endoftext|>", "<|end_of_turn|>", "<end_of_turn>", "</s>",
};
#define N_OF(array) (sizeof(array) / sizeof *(array))

/* The vocabulary while it is read. */
struct loading {
    const struct gguf *gguf;
    struct tokenizer_spec spec;
    struct str arena;     /* owns the bytes of all tokens */
    size_t *ends;         /* [n_vocab] owns; in the arena */
    struct bytes *texts;  /* [n_vocab] owns */
    char *kinds;          /* [n_vocab] owns */
    struct bytes *merges; /* [n_merges] owns; they borrow from the file */
    char pre[48];
};

/* ---- tokens --------------------------------------------------------------------------------- */

static bool looks_like_mark(struct bytes s)
{
    return s.len > 2 && ((s.data[0] == '<' && s.data[s.len - 1] == '>') ||
                         (s.data[0] == '[' && s.data[s.len - 1] == ']'));
}

/* The kind letter of struct tokenizer_spec. */
static char kind_of(int32_t type, struct bytes spelled)
{
    switch (type) {
    case TYPE_CONTROL:
    case TYPE_UNKNOWN:
        return 'c';
    case TYPE_USER:
        return looks_like_mark(spelled) ? 'm' : 'u';
    case TYPE_UNUSED:
        return 'x';
    case TYPE_BYTE:
        return 'b';
    default:
        return 'n';
    }
}

/* "<0xE2>" -> the byte; anything else is no byte token. */
static int parse_byte_token(struct bytes s)
{
    static const char HEX[] = "0123456789ABCDEF";
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>')
        return -1;
    const char *high = memchr(HEX, s.data[3], 16), *low = memchr(HEX, s.data[4], 16);
    return high && low ? (int)((high - HEX) * 16 + (low - HEX)) : -1;
}

/* Appends the bytes of one token to the arena: normal ones are spelled in GPT-2's alphabet, except
 * for added words that converters left as they are. */
static void append_token(struct loading *l, int32_t i, struct bytes spelled)
{
    int byte = l->kinds[i] == 'b' ? parse_byte_token(spelled) : -1;
    if (byte >= 0)
        str_append_char(&l->arena, (char)byte);
    else if (l->kinds[i] != 'n' || !bpe_unspell(spelled, &l->arena))
        str_append(&l->arena, spelled.data, spelled.len);
    l->ends[i] = l->arena.len;
}

static int read_tokens(struct loading *l, struct err *err)
{
    struct gguf_array tokens, types = {0};
    const char *path = gguf_path(l->gguf);
    int has = gguf_get_array(l->gguf, KEY("tokens"), GGUF_STRING, &tokens, err);
    int has_types = gguf_get_array(l->gguf, KEY("token_type"), GGUF_I32, &types, err);
    if (has < 0 || has_types < 0)
        return -1;
    if (has == 0 || tokens.n == 0 || tokens.n > INT32_MAX)
        return err_set(err, "%s: " KEY("tokens") " is missing or empty", path);
    if (has_types && types.n != tokens.n)
        return err_set(err, "%s: " KEY("token_type") " has %llu values for %llu tokens", path,
                       (unsigned long long)types.n, (unsigned long long)tokens.n);
    int32_t n = (int32_t)tokens.n;
    l->ends = xcalloc((size_t)n, sizeof *l->ends);
    l->texts = xcalloc((size_t)n, sizeof *l->texts);
    l->kinds = xcalloc((size_t)n, 1);
    l->spec.n_vocab = n;
    for (int32_t i = 0; i < n; i++) {
        struct bytes spelled = {"", 0};
        (void)gguf_array_next_string(&tokens, &spelled); /* gguf_open counted them */
        l->kinds[i] =
            kind_of(has_types ? gguf_array_i32(&types, (uint64_t)i) : TYPE_NORMAL, spelled);
        append_token(l, i, spelled);
    }
    for (int32_t i = 0; i < n; i++) {
        size_t from = i > 0 ? l->ends[i - 1] : 0;
        l->texts[i] = (struct bytes){l->arena.data ? l->arena.data + from : "", l->ends[i] - from};
    }
    return 0;
}

static int read_merges(struct loading *l, struct err *err)
{
    struct gguf_array merges;
    int has = gguf_get_array(l->gguf, KEY("merges"), GGUF_STRING, &merges, err);
    if (has < 0)
        return -1;
    if (has == 0 || merges.n > INT32_MAX)
        return err_set(err, "%s: " KEY("merges") " is missing", gguf_path(l->gguf));
    l->spec.n_merges = (int32_t)merges.n;
    l->merges = xcalloc((size_t)merges.n + 1, sizeof *l->merges);
    for (int32_t i = 0; i < l->spec.n_merges; i++)
        (void)gguf_array_next_string(&merges, &l->merges[i]);
    return 0;
}

/* ---- beginnings and ends -------------------------------------------------------------------- */

/* The id that a key names: 1 and *id, 0 when absent or, with a warning, outside the vocabulary. */
static int read_id(const struct loading *l, const char *key, int32_t *id, struct err *err)
{
    int64_t value = -1;
    uint32_t unsigned_value;
    /* -1 stands for "none" in files of some converters: taken as absent. */
    int has = gguf_get_i32(l->gguf, key, id, NULL);
    if (has > 0)
        value = *id;
    else if (has < 0 && (has = gguf_get_u32(l->gguf, key, &unsigned_value, err)) > 0)
        value = unsigned_value;
    if (has <= 0)
        return has;
    if (value >= 0 && value < l->spec.n_vocab)
        return 1;
    log_warning(LOG_MODEL, "%s: %s is %lld, outside the vocabulary of %d: ignored",
                gguf_path(l->gguf), key, (long long)value, l->spec.n_vocab);
    return 0;
}

static bool spells_an_end(struct bytes text)
{
    for (size_t i = 0; i < N_OF(END_SPELLINGS); i++)
        if (bytes_equal(text, bytes_from(END_SPELLINGS[i])))
            return true;
    return false;
}

static int mark_ends(struct loading *l, struct err *err)
{
    int n_ends = 0;
    for (size_t i = 0; i < N_OF(END_KEYS); i++) {
        int32_t id;
        int has = read_id(l, END_KEYS[i], &id, err);
        if (has < 0)
            return -1;
        if (has > 0) {
            l->kinds[id] = 'e';
            n_ends++;
        }
    }
    for (int32_t i = 0; i < l->spec.n_vocab; i++) {
        if ((l->kinds[i] == 'c' || l->kinds[i] == 'm') && spells_an_end(l->texts[i])) {
            l->kinds[i] = 'e';
            n_ends++;
        }
    }
    if (n_ends == 0)
        log_warning(LOG_MODEL, "%s: no end-of-text id: generations end by their length only",
                    gguf_path(l->gguf));
    return 0;
}

static int read_bos(struct loading *l, struct err *err)
{
    int32_t id;
    int has = read_id(l, KEY("bos_token_id"), &id, err);
    if (has > 0) {
        l->spec.has_bos = true;
        l->spec.bos = id;
        if (l->kinds[id] == 'n')
            l->kinds[id] = 'c';
    }
    if (has < 0)
        return -1;
    l->spec.add_bos = split_adds_bos(l->pre); /* where the metadata does not say */
    return gguf_get_bool(l->gguf, KEY("add_bos_token"), &l->spec.add_bos, err) < 0 ? -1 : 0;
}

/* ---- the whole ------------------------------------------------------------------------------ */

/* `model` and `pre`: is this a vocabulary that we can read? */
static int read_model(struct loading *l, struct err *err)
{
    struct bytes model = {"", 0}, pre = {"", 0};
    const char *path = gguf_path(l->gguf);
    if (gguf_get_string(l->gguf, KEY("model"), &model, err) < 0 ||
        gguf_get_string(l->gguf, KEY("pre"), &pre, err) < 0)
        return -1;
    if (bytes_equal_nocase(model, "llama"))
        return err_set(err,
                       "%s: tokenizer 'llama' (SentencePiece) is not supported, only 'gpt2' "
                       "(byte-level BPE)",
                       path);
    if (!bytes_equal_nocase(model, "gpt2"))
        return err_set(err, "%s: tokenizer '%.*s' is not known, only 'gpt2' (byte-level BPE)", path,
                       (int)(model.len < 40 ? model.len : 40), model.data);
    if (pre.len == 0)
        return err_set(err, "%s: " KEY("pre") " is missing: how text is cut is not known", path);
    size_t n = pre.len < sizeof l->pre - 1 ? pre.len : sizeof l->pre - 1;
    memcpy(l->pre, pre.data, n);
    l->spec.pre = l->pre;
    return 0;
}

static struct tokenizer *build(struct loading *l, struct err *err)
{
    struct err why = {0};
    l->spec.texts = l->texts;
    l->spec.kinds = l->kinds;
    l->spec.merges = l->merges;
    struct tokenizer *t = tokenizer_build(&l->spec, &why);
    return t ? t : err_null(err, "%s: %.200s", gguf_path(l->gguf), why.text);
}

/* Called once for a model, at load. NULL with a message that names the file. */
struct tokenizer *tokenizer_load(const struct gguf *gguf, struct err *err)
{
    struct loading l = {.gguf = gguf};
    struct tokenizer *t = NULL;
    if (read_model(&l, err) < 0 || read_tokens(&l, err) < 0 || read_merges(&l, err) < 0 ||
        mark_ends(&l, err) < 0 || read_bos(&l, err) < 0)
        goto out;
    t = build(&l, err);
out:
    xfree(l.merges);
    xfree(l.kinds);
    xfree(l.texts);
    xfree(l.ends);
    str_free(&l.arena);
    return t;
}
