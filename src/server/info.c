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
#include "base/thread.h"
#include <config.h> /* of autoconf: the version */
#include "runner/rank.h"
#include "server/command.h"
#include "server/memory.h"
#include "server/server.h"
#include "server/stats.h"

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
    int blocked = 0, lingering = 0, subscribed = 0, paused = 0;
    size_t largest_in = 0, largest_out = 0;
    LIST_FOREACH(&s->clients, node, next) {
        const struct client *c = LIST_ITEM(node, struct client, node);
        blocked += c->blocked != BLOCK_NONE;
        lingering += c->closing;
        subscribed += pubsub_count(c) > 0;
        paused += c->blocked == BLOCK_PAUSE;
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
    LINE(out, "cluster_connections:0");
    LINE(out, "tracking_clients:0");
    LINE(out, "clients_in_timeout_table:0");
    LINE(out, "paused_clients:%d", paused);
    LINE(out, "closing_clients:%d", lingering);
    LINE(out, "pubsub_clients:%d", subscribed);
}

/* As Redis prints it: 1.50M. */
static void line_human(struct str *out, const char *name, size_t bytes)
{
    static const char units[] = "BKMGT";
    double value = (double)bytes;
    size_t unit = 0;
    for (; value >= 1024 && unit + 2 < sizeof units; unit++)
        value /= 1024;
    if (unit == 0)
        LINE(out, "%s_human:%zuB", name, bytes);
    else
        LINE(out, "%s_human:%.2f%c", name, value, units[unit]);
}

static size_t system_memory(void)
{
    long pages = sysconf(_SC_PHYS_PAGES), bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && bytes > 0 ? (size_t)pages * (size_t)bytes : 0;
}

static void section_memory(struct server *s, struct str *out)
{
    size_t used = memory_used(s), rss = mem_rss_bytes();
    LINE(out, "used_memory:%zu", used);
    line_human(out, "used_memory", used);
    LINE(out, "used_memory_rss:%zu", rss);
    line_human(out, "used_memory_rss", rss);
    LINE(out, "total_system_memory:%zu", system_memory());
    line_human(out, "total_system_memory", system_memory());
    LINE(out, "mem_fragmentation_ratio:%.2f", used ? (double)rss / (double)used : 0.0);
    LINE(out, "mem_allocator:libc");
    LINE(out, "active_defrag_running:0");
    LINE(out, "lazyfree_pending_objects:0");
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
    LINE(out, "async_loading:0");
    LINE(out, "rdb_bgsave_in_progress:0"); /* nothing is saved; exporters want the names */
    LINE(out, "rdb_last_bgsave_status:ok");
    LINE(out, "aof_enabled:0");
    LINE(out, "aof_rewrite_in_progress:0");
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
    LINE(out, "instantaneous_ops_per_sec:%llu",
         (unsigned long long)stats_per_second(s->counts, RATE_COMMANDS));
    LINE(out, "instantaneous_input_kbps:%.2f",
         (double)stats_per_second(s->counts, RATE_BYTES_IN) / 1024);
    LINE(out, "instantaneous_output_kbps:%.2f",
         (double)stats_per_second(s->counts, RATE_BYTES_OUT) / 1024);
    LINE(out, "total_error_replies:%llu", (unsigned long long)t->errors);
    LINE(out, "total_net_input_bytes:%llu", (unsigned long long)t->bytes_in);
    LINE(out, "total_net_output_bytes:%llu", (unsigned long long)t->bytes_out);
    LINE(out, "pubsub_channels:%lld", (long long)pubsub_names(s->pubsub, PUBSUB_CHANNEL));
    LINE(out, "pubsub_patterns:%lld", (long long)pubsub_names(s->pubsub, PUBSUB_PATTERN));
    struct keyspace_stats k = s->keys ? *keyspace_stats(s->keys) : (struct keyspace_stats){0};
    LINE(out, "keyspace_hits:%llu", (unsigned long long)k.hits);
    LINE(out, "keyspace_misses:%llu", (unsigned long long)k.misses);
    LINE(out, "expired_keys:%llu", (unsigned long long)k.expired);
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
    LINE(out, "master_failover_state:no-failover");
    LINE(out, "master_replid:%s", s->run_id);
    LINE(out, "master_repl_offset:0");
    LINE(out, "second_repl_offset:-1");
    LINE(out, "repl_backlog_active:0");
}

static void section_cpu(struct server *s, struct str *out)
{
    struct rusage u = {0};
    (void)getrusage(RUSAGE_SELF, &u); /* fails for no argument of ours */
    LINE(out, "used_cpu_sys:%ld.%06ld", (long)u.ru_stime.tv_sec, (long)u.ru_stime.tv_usec);
    LINE(out, "used_cpu_user:%ld.%06ld", (long)u.ru_utime.tv_sec, (long)u.ru_utime.tv_usec);
    (void)getrusage(RUSAGE_THREAD, &u);
    LINE(out, "used_cpu_sys_main_thread:%ld.%06ld", (long)u.ru_stime.tv_sec,
         (long)u.ru_stime.tv_usec);
    LINE(out, "used_cpu_user_main_thread:%ld.%06ld", (long)u.ru_utime.tv_sec,
         (long)u.ru_utime.tv_usec);
    LINE(out, "main_thread_waited_for_cpu_usec:%lld", (long long)thread_waited_us());
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
    LINE(out, "backend:%s", m->runner->info.description);
    LINE(out, "kv_type:%s", m->runner->info.kv_type_name);
    LINE(out, "block_size:%d", m->runner->info.block_size);
    LINE(out, "block_bytes:%zu", m->runner->info.block_bytes);
    LINE(out, "blocks:%d", m->runner->info.n_blocks);
}

static void section_engine(struct server *s, struct str *out)
{
    if (!s->engine)
        return;
    struct engine_stats t;
    engine_stats(s->engine, &t);
    uint64_t block_bytes = s->served.runner->info.block_bytes;
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
    LINE(out, "preempted_tokens_dropped:%llu", (unsigned long long)t.dropped_tokens);
    LINE(out, "swap_blocks:%d", t.n_slots);
    LINE(out, "swap_blocks_free:%d", t.free_slots);
    LINE(out, "swapped_out_bytes:%llu", (unsigned long long)(t.swapped_out_blocks * block_bytes));
    LINE(out, "swapped_in_bytes:%llu", (unsigned long long)(t.swapped_in_blocks * block_bytes));
    LINE(out, "swap_full:%llu", (unsigned long long)t.swap_full);
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
    LINE(out, "cache_blocks_shared:%d", t.shared_blocks);
    LINE(out, "cache_blocks_unwanted:%d", t.unwanted_blocks);
    LINE(out, "cache_hits_full:%llu", (unsigned long long)t.hits_full);
    LINE(out, "cache_hits_tail:%llu", (unsigned long long)t.hits_tail);
    LINE(out, "cache_copies:%llu", (unsigned long long)t.copies);
    LINE(out, "cache_evictions:%llu", (unsigned long long)t.evictions);
    LINE(out, "cache_merged:%llu", (unsigned long long)t.merged);
    LINE(out, "cache_rejected_matches:%llu", (unsigned long long)t.rejected_matches);
}

static void section_commandstats(struct server *s, struct str *out)
{
    stats_print_commands(s->counts, out);
}

static void section_latencystats(struct server *s, struct str *out)
{
    stats_print_latencies(s->counts, out);
}

static void section_errorstats(struct server *s, struct str *out)
{
    stats_print_errors(s->counts, out);
}

static void section_modules(struct server *s, struct str *out)
{
}

/* What INFO alone shows, what `all` adds, and what only `everything` does, as in Redis. */
enum section_level { IN_DEFAULT, IN_ALL, IN_EVERYTHING };

static const struct section {
    const char *name;
    void (*print)(struct server *s, struct str *out);
    enum section_level level;
} sections[] = {
    {"Server", section_server, IN_DEFAULT},
    {"Clients", section_clients, IN_DEFAULT},
    {"Memory", section_memory, IN_DEFAULT},
    {"Persistence", section_persistence, IN_DEFAULT},
    {"Stats", section_stats, IN_DEFAULT},
    {"Replication", section_replication, IN_DEFAULT},
    {"CPU", section_cpu, IN_DEFAULT},
    {"Modules", section_modules, IN_DEFAULT},
    {"Commandstats", section_commandstats, IN_ALL},
    {"Errorstats", section_errorstats, IN_DEFAULT},
    {"Latencystats", section_latencystats, IN_ALL},
    {"Cluster", section_cluster, IN_DEFAULT},
    {"Keyspace", section_keyspace, IN_DEFAULT},
    {"Model", section_model, IN_DEFAULT},
    {"Engine", section_engine, IN_DEFAULT},
    {"Cache", section_cache, IN_DEFAULT},
};

static bool is_wanted(const struct section *section, const struct bytes *names, int n)
{
    static const char *const groups[] = {"default", "all", "everything"}; /* by level */
    for (int i = 0; i < n; i++) {
        if (bytes_equal_nocase(names[i], section->name))
            return true;
        for (int level = section->level; level <= IN_EVERYTHING; level++)
            if (bytes_equal_nocase(names[i], groups[level]))
                return true;
    }
    return n == 0 && section->level == IN_DEFAULT;
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
