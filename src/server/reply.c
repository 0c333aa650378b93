/* reply.c - writes replies of the Redis protocol, version 2 or 3.
 *
 * A command writes its reply once, in terms of the richer version 3; on a connection of version 2
 * maps, sets and pushes become arrays, doubles and verbatim texts bulk strings, booleans integers.
 * Nothing is ever sent that was not asked for, and never a streamed string or an attribute: clients
 * answer these with silence or with the wrong reply to the next command. Who subscribed has asked
 * for messages; one that comes while a reply is being written waits behind it, since few clients
 * can read a push inside an array.
 *
 * What comes from outside goes only into types that carry a length. Error lines carry none, so
 * every control byte in one becomes a blank, and arguments are repeated up to 128 bytes: no key,
 * prompt or text can forge a second reply (CVE-2025-67733).
 *
 * One reply has a ceiling (client-output-buffer-limit). Past it nothing more is written, the
 * command runs to its end, and reply_end puts an error in place of what there is. */
#include "server/reply.h"

#include <math.h>
#include <stdarg.h>
#include <string.h>

void reply_begin(struct reply *r)
{
    r->mark = r->out->len;
    r->over = false;
    r->is_open = true;
}

bool reply_drop_overlong(struct reply *r)
{
    if (!r->over)
        return false;
    r->over = false;
    r->out->len = r->mark;
    return true;
}

static void bound(struct reply *r)
{
    if (reply_drop_overlong(r))
        reply_error(r, "ERR the reply is over client-output-buffer-limit (%zu bytes), use COUNT",
                    r->limit);
}

void reply_end(struct reply *r)
{
    bound(r);
    r->is_open = false;
}

void reply_follow(struct reply *r)
{
    if (r->behind.len == 0)
        return;
    str_append(r->out, r->behind.data, r->behind.len);
    str_free(&r->behind);
}

static void put(struct reply *r, const void *data, size_t len)
{
    if (r->over)
        return;
    if (r->limit > 0 && r->out->len - r->mark + len > r->limit) {
        r->over = true;
        return;
    }
    str_append(r->out, data, len);
}

static void put_header(struct reply *r, char kind, int64_t n)
{
    char line[32] = {kind};
    int len = 1 + format_i64(line + 1, n);
    line[len++] = '\r';
    line[len++] = '\n';
    put(r, line, (size_t)len);
}

static void put_line(struct reply *r, const char *line)
{
    put(r, line, strlen(line));
}

void reply_status(struct reply *r, const char *text)
{
    put(r, "+", 1);
    put_line(r, text);
    put(r, "\r\n", 2);
}

void reply_ok(struct reply *r)
{
    put(r, "+OK\r\n", 5);
}

void reply_error_bytes(struct reply *r, struct bytes text)
{
    struct str line = {0};
    str_append_char(&line, '-');
    for (size_t i = 0; i < text.len; i++) {
        unsigned char c = (unsigned char)text.data[i];
        str_append_char(&line, c < 0x20 || c == 0x7f ? ' ' : (char)c);
    }
    str_append(&line, "\r\n", 2);
    put(r, line.data, line.len);
    str_free(&line);
    r->errors++;
}

void reply_error(struct reply *r, const char *format, ...)
{
    struct str text = {0};
    va_list args;
    va_start(args, format);
    str_vprintf(&text, format, args);
    va_end(args);
    reply_error_bytes(r, bytes_of(&text));
    str_free(&text);
}

void reply_int(struct reply *r, int64_t value)
{
    put_header(r, ':', value);
}

void reply_bulk(struct reply *r, struct bytes data)
{
    put_header(r, '$', (int64_t)data.len);
    put(r, data.data, data.len);
    put(r, "\r\n", 2);
}

void reply_text(struct reply *r, const char *nul_terminated)
{
    reply_bulk(r, bytes_from(nul_terminated));
}

void reply_bulk_int(struct reply *r, int64_t value)
{
    char digits[24];
    int n = format_i64(digits, value);
    reply_bulk(r, (struct bytes){digits, (size_t)n});
}

void reply_null(struct reply *r)
{
    put_line(r, r->protocol >= 3 ? "_\r\n" : "$-1\r\n");
}

void reply_null_array(struct reply *r)
{
    put_line(r, r->protocol >= 3 ? "_\r\n" : "*-1\r\n");
}

void reply_array(struct reply *r, int64_t n)
{
    put_header(r, '*', n);
}

void reply_map(struct reply *r, int64_t n_pairs)
{
    if (r->protocol >= 3)
        put_header(r, '%', n_pairs);
    else
        put_header(r, '*', n_pairs * 2);
}

void reply_set(struct reply *r, int64_t n)
{
    put_header(r, r->protocol >= 3 ? '~' : '*', n);
}

void reply_push(struct reply *r, int64_t n)
{
    put_header(r, r->protocol >= 3 ? '>' : '*', n);
}

void reply_verbatim(struct reply *r, struct bytes text)
{
    if (r->protocol < 3) {
        reply_bulk(r, text);
        return;
    }
    put_header(r, '=', (int64_t)text.len + 4);
    put(r, "txt:", 4);
    put(r, text.data, text.len);
    put(r, "\r\n", 2);
}

void reply_raw(struct reply *r, struct bytes data)
{
    put(r, data.data, data.len);
}

size_t reply_hold(const struct reply *r)
{
    return r->out->len;
}

/* Writes a header behind the elements and rotates it to the front of them. */
static void header_at(struct reply *r, size_t at, char kind, int64_t n)
{
    if (r->over)
        return;
    size_t end = r->out->len;
    put_header(r, kind, n);
    if (r->over)
        return;
    char header[32];
    size_t len = r->out->len - end;
    memcpy(header, r->out->data + end, len);
    memmove(r->out->data + at + len, r->out->data + at, end - at);
    memcpy(r->out->data + at, header, len);
}

void reply_array_at(struct reply *r, size_t at, int64_t n)
{
    header_at(r, at, '*', n);
}

void reply_map_at(struct reply *r, size_t at, int64_t n_pairs)
{
    if (r->protocol >= 3)
        header_at(r, at, '%', n_pairs);
    else
        header_at(r, at, '*', n_pairs * 2);
}

void echo_append(struct str *out, struct bytes arg)
{
    str_append(out, arg.data, arg.len < REPLY_ECHO_MAX ? arg.len : REPLY_ECHO_MAX);
}
