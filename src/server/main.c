/* main.c - kvasir-server [FILE.conf] [--option value ...]: arguments in, exit status out. */
#include <config.h> /* of autoconf: the version */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/log.h"
#include "base/mem.h"
#include "runner/rank.h"
#include "server/config.h"
#include "server/server.h"

static void print_help(void)
{
    printf("usage: kvasir-server [FILE.conf] [--option value ...]\n"
           "       kvasir-server --check-config [FILE.conf] [--option value ...]\n"
           "       kvasir-server --probe [FILE.conf] [--option value ...]\n"
           "       kvasir-server --version\n\n"
           "Options and their defaults (conf/kvasir.conf explains each):\n");
    for (const struct option *o = config_options; o->name; o++)
        printf("  --%-28s %s\n", o->name, *o->default_text ? o->default_text : "(none)");
}

/* --probe: what this machine can run. */
static void print_probe(const struct config *config)
{
    struct str out = {0};
    runner_probe((int)config->threads, &out);
    fputs(out.data, stdout);
    str_free(&out);
}

/* A peer that goes away must be an error of write, not the end of the process; and a server started
 * from a terminal outlives it. */
static void ignore_signals(void)
{
    (void)signal(SIGPIPE, SIG_IGN); /* fails for no signal of ours */
    (void)signal(SIGHUP, SIG_IGN);
}

static int serve(struct config *config)
{
    struct err err;
    log_notice(LOG_SERVER, "Kvasir %s starts, PID: %d", PACKAGE_VERSION, (int)getpid());
    struct server *s = server_new(config, &err); /* takes the configuration, also when it fails */
    if (!s) {
        log_warning(LOG_SERVER, "%s", err.text);
        return 1;
    }
    int status = server_run(s);
    server_free(s);
    return status;
}

static int fail(struct config *config, const struct err *err)
{
    fprintf(stderr, "kvasir-server: %s\n", err->text);
    config_free(config);
    return 1;
}

int main(int argc, char **argv)
{
    struct config config;
    struct config_command command;
    struct err err;
    mem_tame_allocator();
    config_default(&config);
    if (config_read_args(&config, argc, argv, &command, &err) < 0)
        return fail(&config, &err);
    if (command.version || command.help) {
        if (command.version)
            printf("kvasir-server %s\n", PACKAGE_VERSION);
        else
            print_help();
        config_free(&config);
        return 0;
    }
    if (config_check(&config, &err) < 0)
        return fail(&config, &err);
    if (command.check_only || command.probe) {
        if (command.probe)
            print_probe(&config);
        else
            printf("the configuration is valid\n");
        config_free(&config);
        return 0;
    }
    if (log_open(config.logfile, (enum log_level)config.loglevel, &err) < 0)
        return fail(&config, &err);
    log_crash_handler();
    ignore_signals();
    return serve(&config);
}
