/* output.c - from sampled ids to text: whole characters, stop strings, the end of an answer.
 *
 * A token is a run of bytes, not of characters: one character may come out of three tokens, a stop
 * string may begin inside one token and end inside another. So everything here works on bytes:
 *
 *     text  |---- delivered ----|---- held back ----|
 *                               ^ the first byte that may still begin a stop string, or that
 *                                 begins a character whose rest has not come yet
 *
 * Each stop string is a small automaton (Knuth, Morris, Pratt 1977) that knows after every byte how
 * much of it the text ends with. That number is at once the match (all of it) and what has to be
 * held back (the longest of them), costs one step a byte however long the string is, and does not
 * depend on where tokens end: the string that is complete first wins; of two that are complete at
 * the same byte, the longer, which began earlier. Searching the text again after every token was
 * dropped: "aaaa..." against 64 stop strings of 1 KiB costs a millisecond a token.
 *
 * Bytes that are no UTF-8 pass as they are, in portions and in the final text alike; only a
 * possible beginning of a character at the end waits for its rest. If the answer ends there, those
 * bytes stay in the ids and outside the text ("unfinished"), and whoever continues gives them back
 * as carry.
 *
 * A matched stop string is cut from text and ids. The token in which it begins is replaced by the
 * tokens of the bytes before it, so that the ids stand for the text exactly.
 *
 * Main thread only. */
#include "engine/output.h"

#include <string.h>
#include "base/err.h"
#include "base/mem.h"
#include "base/plant.h"

/* For each prefix of the stop string, the longest proper prefix that is also its suffix. */
static void stop_init(struct output_stop *stop, struct bytes text)
{
    ASSERT(text.len > 0 && text.len <= INT32_MAX);
    int32_t n = (int32_t)text.len;

    *stop = (struct output_stop){.text = {xmemdup(text.data, text.len), text.len},
                                 .fallback = xcalloc(text.len, sizeof(int32_t))};
    for (int32_t i = 1, k = 0; i < n; i++) {
        while (k > 0 && text.data[i] != text.data[k])
            k = stop->fallback[k - 1];
        k += text.data[i] == text.data[k];
        stop->fallback[i] = k;
    }
}

/* One byte further; true when the string is complete with it. */
static bool stop_step(struct output_stop *stop, char byte)
{
    int32_t k = stop->n_matched;

    while (k > 0 && stop->text.data[k] != byte)
        k = stop->fallback[k - 1];
    k += stop->text.data[k] == byte;
    stop->n_matched = k == (int32_t)stop->text.len ? 0 : k; /* a match ends the text */
    return k == (int32_t)stop->text.len;
}

/* All stop strings one byte further: the longest of those that are complete, or NULL. */
static const struct output_stop *stops_step(struct output *o, char byte)
{
    const struct output_stop *best = NULL;

    for (int32_t i = 0; i < o->n_stops; i++)
        if (stop_step(&o->stops[i], byte) && (!best || o->stops[i].text.len > best->text.len))
            best = &o->stops[i];
    return best;
}

/* Text bytes at the end that may be the beginning of a stop string. */
static size_t held_by_stops(const struct output *o)
{
    int32_t most = 0;

    for (int32_t i = 0; i < o->n_stops && !PLANTED(HELD_OUT); i++)
        if (o->stops[i].n_matched > most)
            most = o->stops[i].n_matched;
    return (size_t)most;
}

/* Length of the longest beginning of text [at most len] that ends with a whole character. */
static size_t whole_length(const struct output *o, size_t len)
{
    return len == 0 ? 0 : len - utf8_unfinished(o->text.data, len);
}

/* Every array has its final size from here on: accepting an id allocates only when text grows. */
void output_init(struct output *o, const struct tokenizer *t, const struct gen_options *options,
                 int32_t n_before, int32_t n_context)
{
    struct bytes carry = options->carry;
    int64_t room = n_context - n_before;

    ASSERT(n_before >= 0 && room >= 0);
    if (options->max_tokens < room)
        room = options->max_tokens > 0 ? options->max_tokens : 0;
    *o = (struct output){.tokenizer = t,
                         .n_stops = options->n_stops,
                         .ignore_eos = options->ignore_eos,
                         .max_ids = options->max_tokens,
                         .n_before = n_before,
                         .n_context = n_context,
                         .ids_cap = (int32_t)room + 1,
                         .n_carried = carry.len};
    o->stops = xcalloc((size_t)o->n_stops + 1, sizeof *o->stops);
    for (int32_t i = 0; i < o->n_stops; i++)
        stop_init(&o->stops[i], options->stops[i]);
    o->ids.data = xmalloc((size_t)o->ids_cap * sizeof *o->ids.data);
    o->ids.cap = o->ids_cap;
    o->text_ends = xmalloc((size_t)o->ids_cap * sizeof *o->text_ends);
    str_append(&o->text, carry.data, carry.len);
    for (size_t i = 0; i < carry.len; i++)
        (void)stops_step(o,
                         carry.data[i]); /* one that ended there would have ended the text before */
}

void output_free(struct output *o)
{
    for (int32_t i = 0; i < o->n_stops; i++) {
        xfree((void *)(uintptr_t)o->stops[i].text.data);
        xfree(o->stops[i].fallback);
    }
    xfree(o->stops);
    xfree(o->text_ends);
    ids_free(&o->ids);
    str_free(&o->text);
    *o = (struct output){0};
}

/* The token that is exactly this byte, -1 when there is none. Walks the vocabulary: only malformed
 * bytes beside a stop string come here. */
static int32_t byte_token(const struct tokenizer *t, char byte)
{
    int32_t n = tokenizer_n_vocab(t);

    for (int32_t id = 0; id < n; id++) {
        struct bytes token = tokenizer_token(t, id);
        if (token.len == 1 && token.data[0] == byte)
            return id;
    }
    return -1;
}

/* Ids that stand for exactly these bytes: characters through the tokenizer, others byte by byte
 * (the tokenizer would put U+FFFD for them). */
static void encode_exactly(const struct tokenizer *t, struct bytes text, struct ids *out)
{
    size_t from = 0, at = 0;

    while (at < text.len) {
        uint32_t code_point;
        int bad, n = utf8_decode(text.data + at, text.len - at, &code_point, &bad);
        int32_t id = n ? -1 : byte_token(t, text.data[at]);
        if (id < 0) {
            at += (size_t)(n ? n : 1);
            continue;
        }
        if (at > from)
            tokenizer_encode(t, (struct bytes){text.data + from, at - from}, false, out);
        ids_push(out, id);
        from = ++at;
    }
    if (at > from)
        tokenizer_encode(t, (struct bytes){text.data + from, at - from}, false, out);
}

/* Cuts text and ids before the stop string that the text ends with. */
static void cut(struct output *o, const struct output_stop *stop)
{
    size_t len = o->text.len - stop->text.len;
    int32_t kept = o->n_sampled;

    len = whole_length(o, len); /* the beginning of a character is of no use without its rest */
    o->matched = stop;
    while (kept > 0 && o->text_ends[kept - 1] > len)
        kept--;
    o->ids.n = kept;
    size_t from = kept ? o->text_ends[kept - 1] : o->n_carried;
    if (len > from)
        encode_exactly(o->tokenizer, (struct bytes){o->text.data + from, len - from}, &o->ids);
    o->text.len = len;
    o->text.data[len] = '\0';
    if (o->n_delivered > len)
        o->n_delivered =
            len; /* resumed text only: what went out before a border cannot come back */
}

/* Appends a token's bytes up to the end of the first stop string; that one, or NULL. */
static const struct output_stop *append(struct output *o, struct bytes token)
{
    const struct output_stop *stop = NULL;

    for (int32_t i = 0; PLANTED(STOP_PER_TOKEN) && i < o->n_stops; i++)
        o->stops[i].n_matched = 0;
    str_append(&o->text, token.data, token.len);
    for (size_t i = 0; i < token.len && !stop; i++) {
        stop = stops_step(o, token.data[i]);
        if (stop)
            o->text.len -= token.len - 1 - i;
    }
    return stop;
}

/* The one place where an answer ends by itself: takes the id that was sampled and says whether it
 * was the last. The order is part of the contract (DESIGN 6.7): end-of-text id, stop string,
 * length, context full. The end-of-text id becomes part of nothing. */
enum gen_finish output_accept(struct output *o, int32_t id)
{
    if (!o->ignore_eos && tokenizer_is_end(o->tokenizer, id))
        return GEN_STOP;

    ASSERT(!o->matched && o->n_sampled < o->ids_cap);
    const struct output_stop *stop = append(o, tokenizer_token(o->tokenizer, id));
    ids_push(&o->ids, id);
    o->text_ends[o->n_sampled++] = o->text.len;
    if (stop) {
        cut(o, stop);
        return GEN_STOP;
    }
    if (o->n_sampled >= o->max_ids)
        return GEN_LENGTH;
    if (o->n_before + o->n_sampled >= o->n_context)
        return GEN_LENGTH;
    return GEN_NONE;
}

/* Nothing was accepted yet. */
void output_begin_stops(const struct output *o, int32_t *matched)
{
    for (int32_t i = 0; i < o->n_stops; i++)
        matched[i] = o->stops[i].n_matched;
}

bool output_accept_stops(struct output *o, int32_t id, int32_t *matched)
{
    struct bytes token = tokenizer_token(o->tokenizer, id);
    bool is_complete = false;

    for (int32_t i = 0; i < o->n_stops; i++)
        o->stops[i].n_matched = matched[i];
    for (size_t i = 0; o->n_stops > 0 && i < token.len && !is_complete; i++)
        is_complete = stops_step(o, token.data[i]) != NULL;
    output_begin_stops(o, matched);
    return is_complete;
}

/* As it was before the first id; nothing was delivered. */
void output_reset(struct output *o)
{
    ASSERT(o->n_delivered == 0);
    o->text.len = o->n_carried;
    o->ids.n = o->n_sampled = 0;
    o->matched = NULL;
    for (int32_t i = 0; i < o->n_stops; i++)
        o->stops[i].n_matched = 0;
    for (size_t i = 0; i < o->n_carried; i++)
        (void)stops_step(o, o->text.data[i]);
}

/* The text so far has been delivered by somebody before: a resumed generation tells it once. */
void output_skip(struct output *o)
{
    o->n_delivered = whole_length(o, o->text.len);
    while (o->n_ids_delivered < o->ids.n && o->text_ends[o->n_ids_delivered] <= o->n_delivered)
        o->n_ids_delivered++;
}

/* The next portion; false when there is none. is_over: nothing follows, so nothing is held back for
 * a stop string any more. The portion borrows from o until the next call. */
bool output_take(struct output *o, bool is_over, struct gen_output *portion)
{
    size_t end = o->text.len - (is_over ? 0 : held_by_stops(o));

    end = whole_length(o, end);
    if (end <= o->n_delivered)
        return false;
    *portion = (struct gen_output){.text = {o->text.data + o->n_delivered, end - o->n_delivered}};
    o->n_delivered = end;
    /* after a cut all text stands for all ids; before it the ends tell */
    while (!o->matched && o->n_ids_delivered < o->ids.n && o->text_ends[o->n_ids_delivered] <= end)
        o->n_ids_delivered++;
    if (o->matched)
        o->n_ids_delivered = o->ids.n;
    portion->n_ids = o->n_ids_delivered;
    return true;
}

/* All text that is whole characters, held back or not. */
struct bytes output_whole(const struct output *o)
{
    struct bytes all = bytes_of(&o->text);

    return (struct bytes){all.data, whole_length(o, all.len)};
}

/* The beginning of a character at the end of the ids. */
struct bytes output_unfinished(const struct output *o)
{
    struct bytes all = bytes_of(&o->text);
    size_t whole = whole_length(o, all.len);

    return (struct bytes){all.data + whole, all.len - whole};
}
