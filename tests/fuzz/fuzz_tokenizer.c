/* fuzz_tokenizer.c - any bytes through the tokenizer and back, and as a chat's content.
 *
 * The first byte chooses the pre-tokeniser and the template. For every input:
 *  - ids without control tokens decode to the input with U+FFFD for each byte outside UTF-8, and
 *    hold no control token;
 *  - ids with control tokens, spelled out, decode to the same text;
 *  - as a user's message it adds no control token beside the template's own. */
#include <stdint.h>
#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "model/chat.h"
#include "model/tokenizer.h"
#include "tests/fuzz/fuzz.h"

static const char *const RULES[] = {"gpt-2", "smollm", "starcoder", "llama-bpe", "qwen2"};
static const char *const MERGED[] = {"aa",           "aaaa", "he", "ll",   "hell",
                                     "hello",        "\n\n", "  ", "    ", "\xef\xbf",
                                     "\xef\xbf\xbd", "'s",   "<|", "12"};
static const char *const MERGES[] = {"a a",
                                     "aa aa",
                                     "h e",
                                     "l l",
                                     "he ll",
                                     "hell o",
                                     "\xc4\x8a \xc4\x8a",
                                     "\xc4\xa0 \xc4\xa0",
                                     "\xc4\xa0\xc4\xa0 \xc4\xa0\xc4\xa0",
                                     "\xc3\xaf \xc2\xbf",
                                     "\xc3\xaf\xc2\xbf \xc2\xbd",
                                     "' s",
                                     "< |",
                                     "1 2"};
static const char *const MARKS[] = {"<|im_start|>", "<|im_end|>", "<|im_start|>user", "<|", "a<"};
#define N_OF(array) (sizeof(array) / sizeof *(array))
enum { N_NORMAL = 256 + N_OF(MERGED), N_VOCAB = N_NORMAL + N_OF(MARKS) };

static struct tokenizer *build(const char *pre)
{
    static char bytes[256];
    static struct bytes texts[N_VOCAB], merges[N_OF(MERGES)];
    char kinds[N_VOCAB];
    struct err err;
    for (int i = 0; i < 256; i++) {
        bytes[i] = (char)i;
        texts[i] = (struct bytes){bytes + i, 1};
    }
    for (size_t i = 0; i < N_OF(MERGED); i++)
        texts[256 + i] = bytes_from(MERGED[i]);
    for (size_t i = 0; i < N_OF(MERGES); i++)
        merges[i] = bytes_from(MERGES[i]);
    for (size_t i = 0; i < N_OF(MARKS); i++)
        texts[N_NORMAL + i] = bytes_from(MARKS[i]);
    memset(kinds, 'n', N_NORMAL);
    memset(kinds + N_NORMAL, 'c', N_OF(MARKS));
    struct tokenizer *t = tokenizer_build(&(struct tokenizer_spec){.n_vocab = N_VOCAB,
                                                                   .texts = texts,
                                                                   .kinds = kinds,
                                                                   .merges = merges,
                                                                   .n_merges = N_OF(MERGES),
                                                                   .pre = pre},
                                          &err);
    ASSERT(t);
    return t;
}

static const struct tokenizer *tokenizer_of(unsigned i)
{
    static struct tokenizer *built[N_OF(RULES)]; /* for the life of the process */
    if (!built[i])
        built[i] = build(RULES[i]);
    return built[i];
}

/* The text that must come back; written without the code under test. */
static void clean(const char *data, size_t n, struct str *out)
{
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        int bad, len = utf8_decode(data + at, n - at, &cp, &bad);
        str_append(out, len > 0 ? data + at : "\xef\xbf\xbd", len > 0 ? (size_t)len : 3);
        at += len > 0 ? (size_t)len : 1;
    }
}

static int32_t count_marks(const struct ids *ids)
{
    int32_t n = 0;
    for (int32_t i = 0; i < ids->n; i++) {
        ASSERT(ids->data[i] >= 0 && ids->data[i] < N_VOCAB);
        n += ids->data[i] >= N_NORMAL;
    }
    return n;
}

static void check_round_trip(const struct tokenizer *t, struct bytes text, bool special)
{
    struct ids ids = {0};
    struct str expected = {0}, back = {0};
    clean(text.data, text.len, &expected);
    tokenizer_encode(t, text, special, &ids);
    tokenizer_decode(t, ids.data, ids.n, special, &back);
    ASSERT(bytes_equal(bytes_of(&back), bytes_of(&expected)));
    ASSERT(special || count_marks(&ids) == 0);
    str_free(&back);
    str_free(&expected);
    ids_free(&ids);
}

static void check_content(const struct tokenizer *t, struct bytes text, unsigned choice)
{
    static const char *const TEMPLATES[] = {"chatml", "zephyr", "llama-2", "gemma"};
    const struct chat_template *c = chat_find(TEMPLATES[choice % N_OF(TEMPLATES)], NULL);
    struct chat_state state = {0}, empty_state = {0};
    struct ids ids = {0}, empty = {0};
    ASSERT(chat_render_turn(c, t, &state, BYTES("user"), text, false, &ids, NULL) == 0);
    ASSERT(chat_render_turn(c, t, &empty_state, BYTES("user"), BYTES(""), false, &empty, NULL) ==
           0);
    ASSERT(count_marks(&ids) == count_marks(&empty));
    ASSERT(state.place == CHAT_AFTER_MESSAGE && state.n_turns == 1);
    ids_free(&empty);
    ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0)
        return 0;
    const struct tokenizer *t = tokenizer_of(data[0] % N_OF(RULES));
    struct bytes text = {(const char *)data + 1, size - 1};
    check_round_trip(t, text, false);
    check_round_trip(t, text, true);
    check_content(t, text, data[0] / N_OF(RULES));
    return 0;
}
