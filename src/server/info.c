/* info.c - INFO: sections of `name:value` lines, one table of sections and a table of numbers each.
 *
 * INFO is never an error: an unknown section is empty, since clients ask for whatever their version
 * of Redis had. Fields that clients read for decisions (redis_version, redis_mode, loading, role,
 * tcp_port, maxmemory) have Redis' names; those of our own are in Kvasir's sections. */
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>
#include "base/clock.h"
#include "base/mem.h"
#include <config.h> /* of autoconf: the version */
#include "runner/rank.h"
#include "server/command.h"
#include "server/memory.h"
#include "server/server.h"

#define LINE(out, ...) (str_printf((out), __VA_ARGS__), str_append((out), "\r\n", 2))

static void section_server(struct server *s, struct str *out)
{
    struct utsname u = {0};
    (void)uname(&u); /* shown empty then */
    LINE(out, "redis_version:%s", SERVER_REDIS_VERSION);
    LINE(out, "server_name:kvasir");
    LINE(out, "kvasir_version:%s", PACKAGE_VERSION);
    LINE(out, "redis_mode:standalone");
    LINE(out, "os:%s %s %s", u.sysname, u.release, u.machine);
    LINE(out, "arch_bits:%zu", sizeof(void *) * 8);
    LINE(out, "multiplexing_api:libevent");
    LINE(out, "process_id:%d", (int)getpid());
    LINE(out, "run_id:%s", s->run_id);
    LINE(out, "tcp_port:%lld", (long long)s->config.port);
    LINE(out, "server_time_usec:%lld", (long long)clock_now_ms() * 1000);
    LINE(out, "uptime_in_seconds:%lld", (long long)server_uptime_s(s));
    LINE(out, "uptime_in_days:%lld", (long long)server_uptime_s(s) / 86400);
}

static void section_clients(struct server *s, struct str *out)
{
    int blocked = 0, lingering = 0, subscribed = 0;
    size_t largest_in = 0, largest_out = 0;
    LIST_FOREACH(&s->clients, node, next) {
        const struct client *c = LIST_ITEM(node, struct client, node);
        blocked += c->blocked != BLOCK_NONE;
        lingering += c->closing;
        subscribed += pubsub_count(c) > 0;
        if (c->input_cap > largest_in)
            largest_in = c->input_cap;
        if (c->conn.out.cap > largest_out)
            largest_out = c->conn.out.cap;
    }
    LINE(out, "connected_clients:%lld", (long long)s->n_clients);
    LINE(out, "maxclients:%lld", (long long)s->config.maxclients);
    LINE(out, "client_recent_max_input_buffer:%zu", largest_in);
    LINE(out, "client_recent_max_output_buffer:%zu", largest_out);
    LINE(out, "blocked_clients:%d", blocked);
    LINE(out, "closing_clients:%d", lingering);
    LINE(out, "pubsub_clients:%d", subscribed);
}

static void section_memory(struct server *s, struct str *out)
{
    LINE(out, "used_memory:%zu", memory_used(s));
    LINE(out, "used_memory_rss:%zu", mem_rss_bytes());
    LINE(out, "mem_clients_normal:%zu", s->client_bytes);
    LINE(out, "mem_keys:%zu", mem_bytes(MEM_KEY));
    LINE(out, "mem_model:%zu", mem_bytes(MEM_MODEL));
    LINE(out, "mem_cache:%zu", mem_bytes(MEM_CACHE));
    LINE(out, "mem_engine:%zu", mem_bytes(MEM_ENGINE));
    struct str policy = {0};
    option_print(option_find(config_options, BYTES("maxmemory-policy")), &s->config, &policy);
    LINE(out, "maxmemory:%llu", (unsigned long long)s->config.maxmemory);
    LINE(out, "maxmemory_policy:%s", policy.data);
    str_free(&policy);
}

static void section_persistence(struct server *s, struct str *out)
{
    bool loading = s->state == SERVER_LOADING;
    LINE(out, "loading:%d", loading);
    if (loading) {
        LINE(out, "loading_start_time:%lld", (long long)s->started_unix_s);
        LINE(out, "loading_eta_seconds:1"); /* unknown; clients that wait ask again after it */
    }
}

static void section_stats(struct server *s, struct str *out)
{
    const struct server_stats *t = &s->stats;
    LINE(out, "total_connections_received:%llu", (unsigned long long)t->connections);
    LINE(out, "rejected_connections:%llu", (unsigned long long)t->rejected_connections);
    LINE(out, "total_commands_processed:%llu", (unsigned long long)t->commands);
    LINE(out, "total_error_replies:%llu", (unsigned long long)t->errors);
    LINE(out, "total_net_input_bytes:%llu", (unsigned long long)t->bytes_in);
    LINE(out, "total_net_output_bytes:%llu", (unsigned long long)t->bytes_out);
    LINE(out, "pubsub_channels:%lld", (long long)pubsub_names(s->pubsub, PUBSUB_CHANNEL));
    LINE(out, "pubsub_patterns:%lld", (long long)pubsub_names(s->pubsub, PUBSUB_PATTERN));
    LINE(out, "evicted_keys:%llu", (unsigned long long)t->evicted_keys);
    LINE(out, "protocol_errors:%llu", (unsigned long long)t->protocol_errors);
    LINE(out, "client_output_buffer_limit_disconnections:%llu",
         (unsigned long long)t->evicted_clients);
    LINE(out, "main_thread_max_stall_usec:%lld", (long long)t->max_stall_us);
    LINE(out, "main_thread_max_stall_cpu_usec:%lld", (long long)t->max_stall_cpu_us);
}

static void section_replication(struct server *s, struct str *out)
{
    LINE(out, "role:master");
    LINE(out, "connected_slaves:0");
}

static void section_cpu(struct server *s, struct str *out)
{
    struct rusage u = {0};
    (void)getrusage(RUSAGE_SELF, &u); /* fails for no argument of ours */
    LINE(out, "used_cpu_sys:%ld.%06ld", (long)u.ru_stime.tv_sec, (long)u.ru_stime.tv_usec);
    LINE(out, "used_cpu_user:%ld.%06ld", (long)u.ru_utime.tv_sec, (long)u.ru_utime.tv_usec);
}

static void section_cluster(struct server *s, struct str *out)
{
    LINE(out, "cluster_enabled:0");
}

static void section_keyspace(struct server *s, struct str *out)
{
    for (int32_t db = 0; s->keys && db < s->config.databases; db++) {
        size_t n = keys_count(s->keys, db);
        if (n > 0)
            LINE(out, "db%d:keys=%zu,expires=%zu,avg_ttl=0", db, n,
                 keys_count_expiring(s->keys, db));
    }
}

static void line_of_end_ids(const struct tokenizer *t, struct str *out)
{
    int32_t n;
    const int32_t *ids = tokenizer_end_ids(t, &n);
    str_append_str(out, "model_end_ids:");
    for (int32_t i = 0; i < n; i++)
        str_printf(out, i > 0 ? ",%d" : "%d", ids[i]);
    LINE(out, "%s", n > 0 ? "" : "none");
}

static void section_model(struct server *s, struct str *out)
{
    const struct served_model *m = &s->served;
    LINE(out, "model_loaded:%d", m->model != NULL);
    if (!m->model)
        return;
    LINE(out, "model_name:%s", m->model->name);
    LINE(out, "model_architecture:%s", m->model->architecture);
    LINE(out, "model_layers:%d", m->model->n_layers);
    LINE(out, "model_vocabulary:%d", m->model->n_vocab);
    LINE(out, "model_context:%d", m->model->n_context);
    line_of_end_ids(m->tokenizer, out);
    LINE(out, "context:%d", m->runner->info.n_context);
    LINE(out, "chat_template:%s", m->chat ? chat_name(m->chat) : "none");
    LINE(out, "backend:%s", runner_describe(m->runner));
    LINE(out, "block_size:%d", m->runner->info.block_size);
    LINE(out, "block_bytes:%zu", runner_block_bytes(m->runner));
    LINE(out, "blocks:%d", m->runner->info.n_blocks);
}

static void section_engine(struct server *s, struct str *out)
{
    if (!s->engine)
        return;
    struct engine_stats t;
    engine_stats(s->engine, &t);
    LINE(out, "generations_running:%d", t.running);
    LINE(out, "generations_queued:%d", t.queued);
    for (int f = GEN_STOP; f < GEN_N_FINISHES; f++)
        LINE(out, "finished_%s:%llu", gen_finish_name((enum gen_finish)f),
             (unsigned long long)t.ends[f]);
    LINE(out, "steps:%llu", (unsigned long long)t.steps);
    LINE(out, "rows:%llu", (unsigned long long)t.rows);
    LINE(out, "prompt_tokens:%llu", (unsigned long long)t.prompt_tokens);
    LINE(out, "cached_prompt_tokens:%llu", (unsigned long long)t.cached_tokens);
    LINE(out, "computed_prompt_tokens:%llu", (unsigned long long)t.computed_prompt_tokens);
    LINE(out, "generated_tokens:%llu", (unsigned long long)t.generated_tokens);
    LINE(out, "preemptions:%llu", (unsigned long long)t.preemptions);
    LINE(out, "last_step_usec:%lld", (long long)t.last_step_us);
    LINE(out, "max_step_usec:%lld", (long long)t.max_step_us);
}

static void section_cache(struct server *s, struct str *out)
{
    if (!s->engine)
        return;
    struct engine_stats t;
    engine_stats(s->engine, &t);
    LINE(out, "cache_blocks:%d", t.n_blocks);
    LINE(out, "cache_blocks_free:%d", t.free_blocks);
    LINE(out, "cache_blocks_cached:%d", t.cached_blocks);
    LINE(out, "cache_blocks_used:%d", t.used_blocks);
    LINE(out, "cache_blocks_promised:%d", t.promised_blocks);
    LINE(out, "cache_hits_full:%llu", (unsigned long long)t.hits_full);
    LINE(out, "cache_hits_tail:%llu", (unsigned long long)t.hits_tail);
    LINE(out, "cache_copies:%llu", (unsigned long long)t.copies);
    LINE(out, "cache_evictions:%llu", (unsigned long long)t.evictions);
    LINE(out, "cache_merged:%llu", (unsigned long long)t.merged);
    LINE(out, "cache_rejected_matches:%llu", (unsigned long long)t.rejected_matches);
}

static const struct section {
    const char *name;
    void (*print)(struct server *s, struct str *out);
} sections[] = {
    {"Server", section_server},     {"Clients", section_clients},
    {"Memory", section_memory},     {"Persistence", section_persistence},
    {"Stats", section_stats},       {"Replication", section_replication},
    {"CPU", section_cpu},           {"Cluster", section_cluster},
    {"Keyspace", section_keyspace}, {"Model", section_model},
    {"Engine", section_engine},     {"Cache", section_cache},
};

static bool is_wanted(const struct section *section, const struct bytes *names, int n)
{
    static const char *const all[] = {"all", "default", "everything"};
    for (int i = 0; i < n; i++) {
        if (bytes_equal_nocase(names[i], section->name))
            return true;
        for (size_t k = 0; k < sizeof all / sizeof *all; k++)
            if (bytes_equal_nocase(names[i], all[k]))
                return true;
    }
    return n == 0;
}

void info_print(struct server *s, const struct bytes *names, int n, struct str *out)
{
    for (size_t i = 0; i < sizeof sections / sizeof *sections; i++) {
        if (!is_wanted(&sections[i], names, n))
            continue;
        LINE(out, "%s# %s", out->len > 0 ? "\r\n" : "", sections[i].name);
        sections[i].print(s, out);
    }
}
