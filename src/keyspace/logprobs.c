/* logprobs.c - log-probabilities as the text of a field of an end entry.
 *
 *     345:-0.25 345:-0.25 12:-1.7     a line a token: id:log-probability of the token, then of the
 *     7:-3.1 12:-0.9 345:-1.2         n best, best first
 *     128                             an id alone: nothing is known of it. The first token of a
 *                                     prompt has nothing before it; a resumed answer is not computed
 *                                     again
 *
 * Natural logarithms, six digits: a float has seven, of which the last is rounding. Lines are
 * joined, none ends the text, so that splitting it gives one line a token. Main thread only. */
#include "keyspace/logprobs.h"

#include <math.h>

/* rows [n, 1 + n_best], as the engine tells them. rows NULL: nobody asked, and data is NULL. What is
 * returned borrows from out, which is empty before. */
struct bytes logprobs_print(const struct chosen *rows, int32_t n, int32_t n_best, struct str *out)
{
    if (rows == NULL)
        return (struct bytes){NULL, 0};
    for (int32_t i = 0; i < n; i++) {
        const struct chosen *row = rows + (size_t)i * ((size_t)n_best + 1);
        str_printf(out, "%s%d", i > 0 ? "\n" : "", row[0].id);
        if (isnan(row[0].logprob))
            continue;
        str_printf(out, ":%.6g", (double)row[0].logprob);
        for (int32_t k = 1; k <= n_best && row[k].id >= 0; k++)
            str_printf(out, " %d:%.6g", row[k].id, (double)row[k].logprob);
    }
    return out->len > 0 ? bytes_of(out) : BYTES("");
}
