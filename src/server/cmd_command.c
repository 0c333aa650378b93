/* cmd_command.c - COMMAND and its subcommands: the command table as clients read it.
 *
 * Cluster clients and proxies route by the key positions given here, redis-cli takes its hints from
 * COMMAND DOCS, and all of it comes from the rows that dispatch itself uses. */
#include "server/command.h"

#include <ctype.h>
#include <string.h>
#include "base/mem.h"
#include "server/categories.h"
#include "server/docs.h"
#include "server/key_specs.h"
#include "server/server.h"

struct flag_name {
    unsigned flag;
    const char *name;
};
static const struct flag_name flag_names[] = {
    {CMD_WRITE, "write"},
    {CMD_READONLY, "readonly"},
    {CMD_DENYOOM, "denyoom"},
    {CMD_ADMIN, "admin"},
    {CMD_NOSCRIPT, "noscript"},
    {CMD_BLOCKING, "blocking"},
    {CMD_LOADING, "loading"},
    {CMD_STALE, "stale"},
    {CMD_FAST, "fast"},
    {CMD_PUBSUB, "pubsub"},
    {CMD_SKIP_SLOWLOG, "skip_slowlog"},
    {CMD_NO_AUTH, "no_auth"},
    {CMD_NO_MULTI, "no_multi"},
    {CMD_MOVABLE_KEYS, "movablekeys"},
};
/* ACL categories that follow from flags, as in Redis. */
static const struct flag_name flag_categories[] = {
    {CMD_WRITE, "@write"}, {CMD_READONLY, "@read"},     {CMD_ADMIN, "@admin"},
    {CMD_FAST, "@fast"},   {CMD_BLOCKING, "@blocking"}, {CMD_DANGEROUS | CMD_ADMIN, "@dangerous"},
};
enum { N_FLAGS = sizeof flag_names / sizeof *flag_names };
enum { N_CATEGORIES = sizeof flag_categories / sizeof *flag_categories };

/* ---- COMMAND, COMMAND INFO -------------------------------------------------------------------- */

static void reply_flags(struct reply *r, unsigned flags)
{
    int n = 0;
    for (int i = 0; i < N_FLAGS; i++)
        n += (flags & flag_names[i].flag) != 0;
    reply_set(r, n);
    for (int i = 0; i < N_FLAGS; i++)
        if (flags & flag_names[i].flag)
            reply_status(r, flag_names[i].name);
}

/* Words of a list, each as a status (categories) or a bulk string (tips). */
static int reply_words(struct reply *r, const char *words, const char *prefix)
{
    int n = 0;
    while (words && *words) {
        size_t len = strcspn(words, " ");
        struct str word = {0};
        str_append_str(&word, prefix);
        str_append(&word, words, len);
        if (*prefix)
            reply_status(r, word.data);
        else
            reply_bulk(r, bytes_of(&word));
        str_free(&word);
        words += len + (words[len] == ' ');
        n++;
    }
    return n;
}

static int count_words(const char *words)
{
    int n = 0;
    for (; words && *words; words += strcspn(words, " "), words += *words == ' ')
        n++;
    return n;
}

static bool has_category(const struct command *c, int i)
{
    return (c->flags & flag_categories[i].flag) != 0;
}

static void reply_categories(struct reply *r, const struct command *c)
{
    int n = count_words(c->categories) + !(c->flags & CMD_FAST);
    for (int i = 0; i < N_CATEGORIES; i++)
        n += has_category(c, i);
    reply_set(r, n);
    for (int i = 0; i < N_CATEGORIES; i++)
        if (has_category(c, i))
            reply_status(r, flag_categories[i].name);
    if (!(c->flags & CMD_FAST))
        reply_status(r, "@slow");
    reply_words(r, c->categories, "@");
}

static int count_subcommands(const struct command *c)
{
    int n = 0;
    for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
        n++;
    return n;
}

/* As command_full_name, which has to look for the parent. */
static void append_full_name(struct str *out, const struct command *c, const char *parent)
{
    if (parent)
        str_printf(out, "%s|", parent);
    str_append_str(out, c->name);
}

static void reply_full_name(struct reply *r, const struct command *c, const char *parent)
{
    struct str name = {0};
    append_full_name(&name, c, parent);
    reply_bulk(r, bytes_of(&name));
    str_free(&name);
}

static void reply_info(struct reply *r, const struct command *c, const char *parent)
{
    reply_array(r, 10);
    reply_full_name(r, c, parent);
    reply_int(r, c->arity);
    reply_flags(r, c->flags);
    reply_int(r, c->first_key);
    reply_int(r, c->last_key);
    reply_int(r, c->key_step);
    reply_categories(r, c);
    reply_set(r, count_words(c->tips));
    reply_words(r, c->tips, "");
    reply_key_specs(r, c);
    if (c->subcommands)
        reply_array(r, count_subcommands(c));
    else
        reply_set(r, 0); /* as Redis has it */
    for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
        reply_info(r, sub, c->name);
}

#define FOREACH_COMMAND(c)                                                                         \
    for (const struct command *const *family_ = command_families; *family_; family_++)             \
        for (const struct command *c = *family_; c->name; c++)

static void run_command(struct client *c, const struct request *q)
{
    reply_array(&c->reply, commands_count());
    FOREACH_COMMAND(command)
    {
        reply_info(&c->reply, command, NULL);
    }
}

static void run_count(struct client *c, const struct request *q)
{
    reply_int(&c->reply, commands_count());
}

static void run_info(struct client *c, const struct request *q)
{
    if (q->n_args == 2) {
        run_command(c, q);
        return;
    }
    reply_array(&c->reply, q->n_args - 2);
    for (int i = 2; i < q->n_args; i++) {
        const struct command *command = command_find_full(c->server->commands, q->args[i]);
        if (command)
            reply_info(&c->reply, command, command_parent(command));
        else
            reply_null(&c->reply);
    }
}

/* ---- COMMAND LIST ----------------------------------------------------------------------------- */

enum list_filter { LIST_ALL, LIST_ACLCAT, LIST_PATTERN, LIST_MODULE };

static bool is_listed(const struct command *c, const struct str *name, enum list_filter filter,
                      struct bytes value)
{
    return filter == LIST_ALL || (filter == LIST_ACLCAT && command_in_category(c, value)) ||
           (filter == LIST_PATTERN && glob_match(value, bytes_of(name), true));
}

/* A command and its subcommands, by their full names. */
static int list_one(struct reply *r, const struct command *c, const char *parent,
                    enum list_filter filter, struct bytes value)
{
    struct str name = {0};
    append_full_name(&name, c, parent);
    int n = is_listed(c, &name, filter, value);
    if (n > 0)
        reply_bulk(r, bytes_of(&name));
    str_free(&name);
    for (const struct command *sub = c->subcommands; sub && sub->name; sub++)
        n += list_one(r, sub, c->name, filter, value);
    return n;
}

static void run_list(struct client *c, const struct request *q)
{
    enum list_filter filter = LIST_ALL;
    if (q->n_args == 5 && bytes_equal_nocase(q->args[2], "filterby"))
        filter = bytes_equal_nocase(q->args[3], "aclcat")    ? LIST_ACLCAT
                 : bytes_equal_nocase(q->args[3], "pattern") ? LIST_PATTERN
                 : bytes_equal_nocase(q->args[3], "module")  ? LIST_MODULE
                                                             : LIST_ALL;
    if (q->n_args != 2 && filter == LIST_ALL) {
        reply_syntax_error(&c->reply);
        return;
    }
    struct bytes value = filter == LIST_ALL ? BYTES("") : q->args[4];
    size_t at = reply_hold(&c->reply);
    int n = 0;
    FOREACH_COMMAND(command)
    {
        n += list_one(&c->reply, command, NULL, filter, value);
    }
    reply_array_at(&c->reply, at, n);
}

/* ---- COMMAND DOCS ----------------------------------------------------------------------------- */

static void reply_docs(struct reply *r, const struct command *c, const char *parent)
{
    struct err err;
    struct docs_node *root = c->syntax && *c->syntax ? docs_parse(c->syntax, &err) : NULL;
    int n_sub = count_subcommands(c);
    reply_full_name(r, c, parent);
    reply_map(r, 4 + (root != NULL) + (n_sub > 0));
    reply_text(r, "summary");
    reply_text(r, c->summary);
    reply_text(r, "since");
    reply_text(r, c->since);
    reply_text(r, "group");
    reply_text(r, c->group);
    reply_text(r, "complexity");
    reply_text(r, c->complexity);
    if (root) {
        reply_text(r, "arguments");
        docs_reply_arguments(r, root);
    }
    if (n_sub > 0) {
        reply_text(r, "subcommands");
        reply_map(r, n_sub);
        for (const struct command *sub = c->subcommands; sub->name; sub++)
            reply_docs(r, sub, c->name);
    }
    docs_free(root);
}

static void run_docs(struct client *c, const struct request *q)
{
    struct reply *r = &c->reply;
    if (q->n_args == 2) {
        reply_map(r, commands_count());
        FOREACH_COMMAND(command)
        {
            reply_docs(r, command, NULL);
        }
        return;
    }
    size_t at = reply_hold(r);
    int n = 0;
    for (int i = 2; i < q->n_args; i++) {
        const struct command *command = command_find_full(c->server->commands, q->args[i]);
        if (!command)
            continue;
        reply_docs(r, command, command_parent(command));
        n++;
    }
    reply_map_at(r, at, n);
}

/* ---- COMMAND GETKEYS -------------------------------------------------------------------------- */

/* Finds the keys of the command that stands from args[2] on. False: an error was written. */
static bool find_keys(struct client *c, const struct request *q, struct request *inner,
                      const struct command **command, struct key_positions *positions)
{
    struct str error = {0};
    *inner = (struct request){.args = q->args + 2, .n_args = q->n_args - 2};
    *command = command_resolve(c->server->commands, inner, &error);
    str_free(&error);
    const char *fault = NULL;
    if (!*command)
        fault = "ERR Invalid command specified";
    else if (!(*command)->keys && (*command)->first_key == 0)
        fault = "ERR The command has no key arguments";
    else if (!command_arity_ok(*command, inner->n_args))
        fault = "ERR Invalid number of arguments specified for command";
    else if (!command_keys(*command, inner, positions) || positions->n == 0)
        fault = "ERR Invalid arguments specified for command";
    if (fault)
        reply_error(&c->reply, "%s", fault);
    return !fault;
}

static void run_getkeys(struct client *c, const struct request *q)
{
    struct request inner;
    const struct command *command;
    struct key_positions p = {0};
    if (find_keys(c, q, &inner, &command, &p)) {
        reply_array(&c->reply, p.n);
        for (int i = 0; i < p.n; i++)
            reply_bulk(&c->reply, inner.args[p.at[i]]);
    }
    xfree(p.at);
}

static void run_getkeysandflags(struct client *c, const struct request *q)
{
    struct request inner;
    const struct command *command;
    struct key_positions p = {0};
    if (find_keys(c, q, &inner, &command, &p)) {
        reply_array(&c->reply, p.n);
        for (int i = 0; i < p.n; i++) {
            reply_array(&c->reply, 2);
            reply_bulk(&c->reply, inner.args[p.at[i]]);
            reply_key_use(&c->reply, command, i);
        }
    }
    xfree(p.at);
}

/* ---- HELP ------------------------------------------------------------------------------------- */

static void help_line(const struct command *sub, struct str *out)
{
    struct err err;
    struct docs_node *root = docs_parse(sub->syntax ? sub->syntax : "", &err);
    for (const char *c = sub->name; *c; c++)
        str_append_char(out, (char)toupper((unsigned char)*c));
    if (root && root->n > 0) {
        str_append_char(out, ' ');
        docs_print(root, out);
    }
    docs_free(root);
}

void command_run_help(struct client *c, const struct request *q)
{
    const struct command *parent = command_container(c->last_command);
    struct reply *r = &c->reply;
    struct str line = {0};
    for (const char *p = parent->name; *p; p++)
        str_append_char(&line, (char)toupper((unsigned char)*p));
    str_append_str(&line, " <subcommand> [<arg> [value] [opt] ...]. Subcommands are:");
    reply_array(r, 1 + 2 * count_subcommands(parent));
    reply_status(r, line.data);
    for (const struct command *sub = parent->subcommands; sub->name; sub++) {
        if (sub == c->last_command) /* it comes last */
            continue;
        str_clear(&line);
        help_line(sub, &line);
        reply_status(r, line.data);
        str_clear(&line);
        str_printf(&line, "    %s", sub->summary);
        reply_status(r, line.data);
    }
    reply_status(r, "HELP");
    reply_status(r, "    Prints this help.");
    str_free(&line);
}

/* ---- the family ------------------------------------------------------------------------------- */

enum { META = CMD_LOADING | CMD_STALE };
static const struct command subcommands[] = {
    {.name = "count",
     .arity = 2,
     .flags = META,
     .categories = "connection",
     .group = "server",
     .since = "2.8.13",
     .complexity = "O(1)",
     .summary = "Returns a count of commands.",
     .run = run_count},
    {.name = "docs",
     .arity = -2,
     .flags = META,
     .categories = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "7.0.0",
     .complexity = "O(N) where N is the number of commands to look up",
     .summary = "Returns documentary information about one, multiple or all commands.",
     .syntax = "[command-name]...",
     .run = run_docs},
    {.name = "getkeys",
     .arity = -4,
     .flags = META,
     .categories = "connection",
     .group = "server",
     .since = "2.8.13",
     .complexity = "O(N) where N is the number of arguments to the command",
     .summary = "Extracts the key names from an arbitrary command.",
     .syntax = "command [arg]...",
     .run = run_getkeys},
    {.name = "getkeysandflags",
     .arity = -4,
     .flags = META,
     .categories = "connection",
     .group = "server",
     .since = "7.0.0",
     .complexity = "O(N) where N is the number of arguments to the command",
     .summary = "Extracts the key names and access flags for an arbitrary command.",
     .syntax = "command [arg]...",
     .run = run_getkeysandflags},
    COMMAND_HELP(COMMAND_HELP_FLAGS, "server", "5.0.0", "connection"),
    {.name = "info",
     .arity = -2,
     .flags = META,
     .categories = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "2.8.13",
     .complexity = "O(N) where N is the number of commands to look up",
     .summary = "Returns information about one, multiple or all commands.",
     .syntax = "[command-name]...",
     .run = run_info},
    {.name = "list",
     .arity = -2,
     .flags = META,
     .categories = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "7.0.0",
     .complexity = "O(N) where N is the total number of commands",
     .summary = "Returns a list of command names.",
     .syntax = "[FILTERBY <filterby: MODULE module-name|ACLCAT category|PATTERN pattern:pattern>]",
     .run = run_list},
    {.name = NULL},
};

const struct command cmd_command_table[] = {
    {.name = "command",
     .arity = -1,
     .flags = META,
     .categories = "connection",
     .tips = "nondeterministic_output_order",
     .group = "server",
     .since = "2.8.13",
     .complexity = "O(N) where N is the total number of commands",
     .summary = "Returns detailed information about all commands.",
     .subcommands = subcommands,
     .run = run_command},
    {.name = NULL},
};
