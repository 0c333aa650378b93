/* tok_split.c - cutting text into the pieces that are merged alone (the pre-tokeniser).
 *
 * A vocabulary was trained on pieces cut by one regular expression, so the same cuts must be made
 * here, or other ids come out. The expressions are a table; each matches at every place of any
 * text, so the pieces joined are the text. They are run by PCRE2, anchored at the place where the
 * last piece ended, over a window of WINDOW_BYTES.
 *
 * What keeps it linear and flat, whatever the input:
 *  - PCRE2's compiled code is used where the system lets it be made (it halves the time of
 *    encoding), else its interpreter. Either keeps one backtracking point for a repeat of a single
 *    class, not one for each character: the first on 32 KiB of the caller's stack, the second on
 *    the heap.
 *  - PCRE2 is told not to check UTF-8 (a check of the whole subject for each piece would be
 *    quadratic): the caller has checked or cleaned the text.
 *  - In the worst case an alternative runs to the end of the window, finds no line end, and gives
 *    it back; the next one then takes the run as a whole. So a character is looked at a bounded
 *    number of times.
 *  - Matches, depth and heap are limited. When compiled code gives up, the interpreter tries; when
 *    that does too, the next piece is cut by hand, at the next ASCII blank: other ids may come out,
 *    but no byte is lost.
 *
 * The rule of smollm and starcoder is two rules in a row: every character of class N is cut off,
 * alone; each fragment between is cut by GPT-2's rule. A run of blanks before a digit thus ends its
 * fragment and is not cut one short, as it is before a word. One expression says the same: N alone,
 * and in the look-ahead of GPT-2's rule a digit counts as the end of the text.
 *
 * Any thread: struct split does not change, a walk belongs to its caller. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "model/tok_split.h"
#include <pcre2.h>
#include <string.h>
#include "base/mem.h"

/* A piece ends here at the latest: bounds the scratch of merging to 44 MiB. Cuts only inside runs
 * of one class longer than that, which no text has. */
#define WINDOW_BYTES (1u << 20)
/* A give-back over a whole window is one match call a character, in two alternatives at most. */
#define MATCH_LIMIT (8u << 20)
#define DEPTH_LIMIT 1000    /* the expressions nest two deep */
#define HEAP_LIMIT_KIB 4096 /* a few frames of some hundred bytes */

#define CONTRACTIONS "'s|'t|'re|'ve|'m|'ll|'d"
#define GPT2_WORDS " ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+"
#define LLAMA3_AROUND_DIGITS(digits)                                                               \
    "(?i:" CONTRACTIONS ")|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits                                  \
    "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define DIGITS_ALONE                                                                               \
    CONTRACTIONS "| ?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+|\\s+(?![^\\s\\p{N}])|\\s+"

struct split_rule {
    const char *name;
    const char *pattern;
    bool takes_whole, adds_bos;
};
static const struct split_rule RULES[] = {
    {"gpt-2", CONTRACTIONS "|" GPT2_WORDS "|\\s+(?!\\S)|\\s+", false, false},
    {"smollm", DIGITS_ALONE, false, false},
    {"starcoder", DIGITS_ALONE, false, false},
    {"llama-bpe", LLAMA3_AROUND_DIGITS("\\p{N}{1,3}"), true, true},
    {"qwen2", LLAMA3_AROUND_DIGITS("\\p{N}"), false, false},
};
#define N_RULES (sizeof RULES / sizeof *RULES)

struct split {
    const struct split_rule *rule;
    pcre2_code *code; /* owns; read only after compilation */
};

static const struct split_rule *rule_find(const char *name, struct err *err)
{
    for (size_t i = 0; i < N_RULES; i++)
        if (strcmp(RULES[i].name, name) == 0)
            return &RULES[i];
    return err_null(err,
                    "pre-tokeniser '%.40s' is not known (known: gpt-2, smollm, starcoder, "
                    "llama-bpe, qwen2)",
                    name);
}

struct split *split_open(const char *pre, struct err *err)
{
    const struct split_rule *rule = rule_find(pre, err);
    if (!rule)
        return NULL;
    int error;
    PCRE2_SIZE at;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)rule->pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &at, NULL);
    if (!code) {
        char text[120];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)text, sizeof text);
        return err_null(err, "pre-tokeniser %s does not compile at %zu: %s", pre, (size_t)at, text);
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* refused: the interpreter does it */
    struct split *s = xcalloc(1, sizeof *s);
    *s = (struct split){.rule = rule, .code = code};
    return s;
}

void split_free(struct split *s)
{
    if (!s)
        return;
    pcre2_code_free(s->code);
    xfree(s);
}

bool split_takes_whole(const struct split *s)
{
    return s->rule->takes_whole;
}

bool split_adds_bos(const char *pre)
{
    const struct split_rule *rule = rule_find(pre, NULL);
    return rule && rule->adds_bos;
}

/* match_limit: what the tests lower to see a match give up; 0 for all others. */
void split_walk_open(struct split_walk *w, const struct split *s, unsigned match_limit)
{
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    ASSERT(context && match); /* a few hundred bytes each */
    pcre2_set_match_limit(context, match_limit ? match_limit : MATCH_LIMIT);
    pcre2_set_depth_limit(context, DEPTH_LIMIT);
    pcre2_set_heap_limit(context, HEAP_LIMIT_KIB);
    *w = (struct split_walk){.split = s, .match = match, .context = context};
}

void split_walk_start(struct split_walk *w, struct bytes text)
{
    w->text = text;
    w->at = 0;
}

void split_walk_close(struct split_walk *w)
{
    pcre2_match_data_free(w->match);
    pcre2_match_context_free(w->context);
    *w = (struct split_walk){0};
}

/* The largest length <= n at which no character of data is cut. */
static size_t whole_characters(const char *data, size_t n)
{
    size_t cut = n;
    while (cut > 0 && ((uint8_t)data[cut] & 0xc0) == 0x80)
        cut--;
    return cut;
}

/* Up to the next ASCII blank or line end, that one included; at least one character. */
static size_t cut_by_hand(const char *data, size_t n)
{
    size_t i = 0;
    while (i < n && data[i] != ' ' && data[i] != '\n')
        i++;
    return i < n ? i + 1 : n;
}

/* Length of the piece that data begins with, or 0 when the match gave up. */
static size_t match_piece(struct split_walk *w, const char *data, size_t window, uint32_t options)
{
    int rc = pcre2_match(w->split->code, (PCRE2_SPTR)data, window, 0, PCRE2_NO_UTF_CHECK | options,
                         w->match, w->context);
    return rc >= 0 ? pcre2_get_ovector_pointer(w->match)[1] : 0;
}

bool split_walk_next(struct split_walk *w, struct bytes *piece)
{
    const char *data = w->text.data + w->at;
    size_t left = w->text.len - w->at;
    if (left == 0)
        return false;
    size_t window = left > WINDOW_BYTES ? whole_characters(data, WINDOW_BYTES) : left;
    size_t len = match_piece(w, data, window, 0);
    if (len == 0)
        len = match_piece(w, data, window, PCRE2_NO_JIT);
    if (len == 0) {
        w->n_failed++;
        len = cut_by_hand(data, window);
    }
    *piece = (struct bytes){data, len};
    w->at += len;
    return true;
}
