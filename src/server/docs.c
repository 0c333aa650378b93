/* docs.c - the syntax line of a command as a tree, for COMMAND DOCS and HELP.
 *
 * COMMAND DOCS wants the arguments of each command as nested maps; as C initialisers they would be
 * several times the commands themselves, and nobody would read them. One line says the same:
 *
 *     key:key [<condition: NX|XX|GT|LT>] seconds:integer [STOP text]...
 *
 *     name or name:type      a value (key string integer double pattern unix-time)
 *     WORD                   a word to be typed as it stands (no lower-case letter in it)
 *     WORD name              inside brackets: a value that follows its word
 *     [ ... ]                may be left out          ( ... )    belongs together
 *     <name: a|b|c>          one of them              ...        behind an item: may be repeated
 *
 * Recursive descent; the depth is that of our own lines. Main thread only. */
#include "server/docs.h"

#include <ctype.h>
#include <string.h>
#include "base/mem.h"

struct parser {
    const char *at, *start;
    struct err *err;
    bool failed;
};

static struct docs_node *parse_sequence(struct parser *p, const char *stops);

static struct docs_node *node_new(enum docs_kind kind)
{
    struct docs_node *n = xcalloc(1, sizeof *n);
    n->kind = kind;
    return n;
}

void docs_free(struct docs_node *node)
{
    if (!node)
        return;
    for (int i = 0; i < node->n; i++)
        docs_free(node->children[i]);
    xfree(node->children);
    str_free(&node->name);
    str_free(&node->token);
    str_free(&node->type);
    xfree(node);
}

static void add_child(struct docs_node *parent, struct docs_node *child)
{
    parent->children = xrealloc(parent->children, sizeof(child) * (size_t)(parent->n + 1));
    parent->children[parent->n++] = child;
}

static void fail(struct parser *p, const char *what)
{
    if (!p->failed)
        (void)err_set(p->err, "syntax '%s': %s at '%s'", p->start, what, p->at);
    p->failed = true;
}

static void skip_blanks(struct parser *p)
{
    while (*p->at == ' ')
        p->at++;
}

static void lower_append(struct str *out, const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        str_append_char(out, (char)tolower((unsigned char)data[i]));
}

static bool is_token_word(const char *data, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if (islower((unsigned char)data[i]))
            return false;
    return true;
}

static const struct {
    const char *token, *name;
} token_names[] = {{"*", "auto-id"}, {"=", "equal"}, {"~", "approximately"}, {"$", "new-id"}};

static void name_token(struct docs_node *n, const char *data, size_t len)
{
    str_append(&n->token, data, len);
    for (size_t i = 0; i < sizeof token_names / sizeof *token_names; i++) {
        if (strcmp(n->token.data, token_names[i].token) == 0) {
            str_append_str(&n->name, token_names[i].name);
            return;
        }
    }
    lower_append(&n->name, data, len);
}

static struct docs_node *parse_word(struct parser *p)
{
    size_t len = strcspn(p->at, " []<>()|.");
    if (len == 0) {
        fail(p, "expected a word");
        return NULL;
    }
    const char *word = p->at;
    p->at += len;
    if (is_token_word(word, len)) {
        struct docs_node *token = node_new(DOCS_TOKEN);
        name_token(token, word, len);
        return token;
    }
    struct docs_node *value = node_new(DOCS_VALUE);
    size_t name_len = len;
    for (size_t i = 0; i < len; i++)
        if (word[i] == ':')
            name_len = i; /* the last one: ip:port:string is ip:port */
    str_append(&value->name, word, name_len);
    if (name_len < len)
        str_append(&value->type, word + name_len + 1, len - name_len - 1);
    else
        str_append_str(&value->type, "string");
    return value;
}

/* A block of one item is that item; of a word and one value, the value with its word; of a word and
 * more, a block with its word. */
static struct docs_node *fold(struct docs_node *block)
{
    if (block->n == 0 || block->children[0]->optional || block->children[0]->multiple)
        return block;
    if (block->n == 1) {
        struct docs_node *only = block->children[0];
        block->n = 0;
        docs_free(block);
        return only;
    }
    struct docs_node *word = block->children[0];
    if (word->kind != DOCS_TOKEN)
        return block;
    memmove(block->children, block->children + 1, sizeof(word) * (size_t)--block->n);
    struct docs_node *target = block;
    if (block->n == 1 && block->children[0]->kind == DOCS_VALUE && !block->children[0]->optional) {
        target = block->children[0];
        block->n = 0;
        docs_free(block);
    } else {
        str_append(&target->name, word->name.data, word->name.len);
    }
    str_append(&target->token, word->token.data, word->token.len);
    docs_free(word);
    return target;
}

static struct docs_node *parse_enclosed(struct parser *p, char end)
{
    const char stops[2] = {end, '\0'};
    p->at++;
    struct docs_node *block = parse_sequence(p, stops);
    if (*p->at != end)
        fail(p, "a bracket is not closed");
    else
        p->at++;
    return fold(block);
}

static struct docs_node *parse_one_of(struct parser *p)
{
    struct docs_node *choice = node_new(DOCS_ONE_OF);
    p->at++;
    size_t len = strcspn(p->at, " []<>()|.");
    if (len > 0 && p->at[len - 1] == ':') {
        str_append(&choice->name, p->at, len - 1);
        p->at += len;
    }
    while (!p->failed) {
        add_child(choice, fold(parse_sequence(p, "|>")));
        if (*p->at == '|') {
            p->at++;
            continue;
        }
        if (*p->at == '>')
            p->at++;
        else
            fail(p, "an angle bracket is not closed");
        break;
    }
    return choice;
}

static struct docs_node *parse_item(struct parser *p)
{
    struct docs_node *n = *p->at == '['   ? parse_enclosed(p, ']')
                          : *p->at == '(' ? parse_enclosed(p, ')')
                          : *p->at == '<' ? parse_one_of(p)
                                          : NULL;
    return n ? n : parse_word(p);
}

static struct docs_node *parse_sequence(struct parser *p, const char *stops)
{
    struct docs_node *block = node_new(DOCS_BLOCK);
    for (;;) {
        skip_blanks(p);
        if (p->failed || *p->at == '\0' || strchr(stops, *p->at))
            break;
        bool optional = *p->at == '[';
        struct docs_node *item = parse_item(p);
        if (!item)
            break;
        item->optional |= optional;
        if (strncmp(p->at, "...", 3) == 0) {
            p->at += 3;
            item->multiple = true;
            item->multiple_token = item->token.len > 0;
        }
        add_child(block, item);
    }
    return block;
}

/* Blocks and choices that were given no name are called after what comes first in them. */
static void name_all(struct docs_node *n)
{
    for (int i = 0; i < n->n; i++)
        name_all(n->children[i]);
    if (n->name.len == 0 && n->n > 0) {
        struct bytes first = bytes_of(&n->children[0]->name);
        str_append(&n->name, first.data, first.len);
    }
}

struct docs_node *docs_parse(const char *syntax, struct err *err)
{
    struct parser p = {syntax, syntax, err, false};
    struct docs_node *root = parse_sequence(&p, "");
    if (*p.at != '\0')
        fail(&p, "unexpected character");
    if (p.failed) {
        docs_free(root);
        return NULL;
    }
    name_all(root);
    return root;
}

/* ---- COMMAND DOCS ----------------------------------------------------------------------------- */

static const char *type_name(const struct docs_node *n)
{
    return n->kind == DOCS_TOKEN    ? "pure-token"
           : n->kind == DOCS_BLOCK  ? "block"
           : n->kind == DOCS_ONE_OF ? "oneof"
                                    : n->type.data;
}

static void reply_flags(struct reply *r, const struct docs_node *n)
{
    reply_text(r, "flags");
    reply_set(r, n->optional + n->multiple + n->multiple_token);
    if (n->optional)
        reply_status(r, "optional");
    if (n->multiple)
        reply_status(r, "multiple");
    if (n->multiple_token)
        reply_status(r, "multiple_token");
}

static void reply_node(struct reply *r, const struct docs_node *n)
{
    bool is_key = n->kind == DOCS_VALUE && strcmp(n->type.data, "key") == 0;
    bool has_flags = n->optional || n->multiple;
    reply_map(r, 2 + is_key + (n->token.len > 0) + has_flags + (n->n > 0));
    reply_text(r, "name");
    reply_bulk(r, bytes_of(&n->name));
    reply_text(r, "type");
    reply_text(r, type_name(n));
    if (is_key) {
        reply_text(r, "key_spec_index");
        reply_int(r, 0);
    }
    if (n->token.len > 0) {
        reply_text(r, "token");
        reply_bulk(r, bytes_of(&n->token));
    }
    if (has_flags)
        reply_flags(r, n);
    if (n->n > 0) {
        reply_text(r, "arguments");
        docs_reply_arguments(r, n);
    }
}

void docs_reply_arguments(struct reply *r, const struct docs_node *root)
{
    reply_array(r, root->n);
    for (int i = 0; i < root->n; i++)
        reply_node(r, root->children[i]);
}

/* ---- for people ------------------------------------------------------------------------------- */

static void print_node(const struct docs_node *n, struct str *out)
{
    if (n->optional)
        str_append_char(out, '[');
    if (n->token.len > 0)
        str_append(out, n->token.data, n->token.len);
    if (n->token.len > 0 && n->kind != DOCS_TOKEN)
        str_append_char(out, ' ');
    if (n->kind == DOCS_VALUE)
        str_append(out, n->name.data, n->name.len);
    bool choice = n->kind == DOCS_ONE_OF && !n->optional;
    if (choice)
        str_append_char(out, '<');
    for (int i = 0; i < n->n; i++) {
        if (i > 0)
            str_append_str(out, n->kind == DOCS_ONE_OF ? " | " : " ");
        print_node(n->children[i], out);
    }
    if (choice)
        str_append_char(out, '>');
    if (n->optional)
        str_append_char(out, ']');
    if (n->multiple)
        str_append_str(out, " ...");
}

void docs_print(const struct docs_node *root, struct str *out)
{
    for (int i = 0; i < root->n; i++) {
        if (i > 0)
            str_append_char(out, ' ');
        print_node(root->children[i], out);
    }
}
