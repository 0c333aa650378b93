/* features.c - which kinds of behaviour inputs have shown so far.
 *
 * Inputs are worth keeping when they show something that no other did. What counts is seen from
 * outside, with any compiler: the kind of an answer to a command (its type, the words of an error,
 * the magnitude of a number or a length), and what the engine was brought to do (hits, copies,
 * evictions, preemptions, ends by reason), by powers of two. */
#include "tests/fuzz/features.h"

#include <ctype.h>
#include <string.h>
#include "server/command.h"

enum { ERROR_BYTES = 48 }; /* of an error's text: behind them stand values */

static uint64_t mix(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

static void note(struct features *f, uint64_t hash)
{
    uint64_t at = mix(hash) % FEATURES_BITS, bit = UINT64_C(1) << at % 64;
    f->n += !(f->seen[at / 64] & bit);
    f->seen[at / 64] |= bit;
}

static unsigned magnitude(uint64_t n)
{
    unsigned bits = 0;
    for (; n > 0; n >>= 1)
        bits++;
    return bits;
}

static uint64_t hash_text(uint64_t hash, const char *text)
{
    for (; *text; text++)
        hash = (hash ^ (uint8_t)*text) * 1099511628211u;
    return hash;
}

uint32_t features_name(const struct table *commands, const struct request *q)
{
    const struct command *c = command_find(commands, q->args[0]), *sub = NULL;
    if (!c)
        return 0;
    if (c->subcommands && q->n_args > 1)
        sub = command_find_sub(c, q->args[1]);
    return (uint32_t)mix(hash_text(hash_text(1, c->name), sub ? sub->name : ""));
}

/* Letters up to the first value that an error quotes. */
static uint64_t hash_error(const char *at, const char *end)
{
    uint64_t hash = 2;
    for (int n = 0; at < end && n < ERROR_BYTES && *at != '\''; at++, n++)
        if (isalpha((unsigned char)*at))
            hash = (hash ^ (uint8_t)*at) * 1099511628211u;
    return hash;
}

void features_note_answer(struct features *f, uint32_t name, const char *at, const char *end)
{
    uint64_t kind = (uint8_t)*at;
    if (*at == '-' || *at == '+') {
        kind ^= hash_error(at, end);
    } else {
        bool is_negative = at[1] == '-';
        uint64_t n = 0;
        for (const char *digit = at + 1 + is_negative; isdigit((unsigned char)*digit); digit++)
            n = n * 10 + (uint64_t)(*digit - '0');
        kind ^= (uint64_t)(magnitude(n) * 2 + is_negative) << 8;
    }
    note(f, (uint64_t)name << 32 ^ kind * 0x9e3779b97f4a7c15u);
}

void features_note_engine(struct features *f, const struct engine_stats *before,
                          const struct engine_stats *after)
{
    const struct engine_stats *a = after, *b = before;
    const uint64_t done[] = {
        a->prompt_tokens - b->prompt_tokens,
        a->cached_tokens - b->cached_tokens,
        a->generated_tokens - b->generated_tokens,
        a->hits_full - b->hits_full,
        a->hits_tail - b->hits_tail,
        a->copies - b->copies,
        a->evictions - b->evictions,
        a->preemptions - b->preemptions,
        a->merged - b->merged,
        a->dropped_tokens - b->dropped_tokens,
        a->swapped_out_blocks - b->swapped_out_blocks,
        a->swapped_in_blocks - b->swapped_in_blocks,
        a->swap_full - b->swap_full,
    };
    for (uint64_t i = 0; i < sizeof done / sizeof *done; i++)
        note(f, 3 + i * 64 + magnitude(done[i]));
    for (uint64_t i = 0; i < GEN_N_FINISHES; i++)
        note(f, 4096 + i * 64 + magnitude(a->ends[i] - b->ends[i]));
}
