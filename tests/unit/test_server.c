/* test_server.c - the whole server in this process, without a model: moved clocks, failing memory,
 * sockets that read one byte or fail to write. Other clients never notice. */
#include <errno.h>
#include <event2/event.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "server/command.h"
#include "server/server.h"

enum { MAX_STEPS = 2000 };
static const int64_t WALL_MS = 1700000000000; /* where the frozen clock starts */

static char path[64];
/* The seam: what socket calls do; reset by start(). */
static size_t read_max;
static int n_writes, fail_write_at;

static ssize_t seam_read(int fd, void *data, size_t len)
{
    return read(fd, data, read_max && read_max < len ? read_max : len);
}

static ssize_t seam_write(int fd, const void *data, size_t len)
{
    if (++n_writes == fail_write_at) {
        errno = EPIPE;
        return -1;
    }
    return socket_system.write(fd, data, len);
}

static int seam_accept(int fd, struct sockaddr *address, socklen_t *len)
{
    return socket_system.accept(fd, address, len);
}

static const struct socket_ops seam = {seam_read, seam_write, seam_accept};

/* A server with these options: pairs of name and value, ended by NULL. */
static struct server *start(const char *const *options)
{
    struct config c;
    struct err err;
    snprintf(path, sizeof path, "/tmp/kvasir-server-%d", (int)getpid());
    read_max = 0;
    n_writes = fail_write_at = 0;
    log_threshold = LOG_WARNING + 1;
    clock_freeze(WALL_MS, 1000000); /* time passes only when a test says so */
    config_default(&c);
    c.port = 0;
    assert_int_equal(
        option_set(option_find(config_options, BYTES("unixsocket")), &c, bytes_from(path), &err),
        0);
    for (; *options; options += 2)
        assert_int_equal(option_set(option_find(config_options, bytes_from(options[0])), &c,
                                    bytes_from(options[1]), &err),
                         0);
    struct server *s = server_new(&c, &err);
    if (!s)
        fail_msg("%s", err.text);
    s->loop->sockets = &seam;
    return s;
}
#define START(...) start((const char *const[]){__VA_ARGS__ __VA_OPT__(, ) NULL})

static void stop(struct server *s)
{
    server_stop(s, "test");
    for (int i = 0; i < MAX_STEPS && server_step(s, false); i++)
        clock_advance_ms(100);
    server_free(s);
    assert_int_equal(access(path, F_OK), -1);
}

static void steps(struct server *s, int n)
{
    while (n-- > 0)
        (void)server_step(s, false);
}

static int dial(struct server *s)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    assert_int_equal(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    assert_int_equal(fcntl(fd, F_SETFL, O_NONBLOCK), 0);
    steps(s, 3);
    return fd;
}

/* Sends a line and lets the server work. */
static void say(struct server *s, int fd, const char *line)
{
    ssize_t n = write(fd, line, strlen(line));
    (void)n; /* the server may have closed: what it said is looked at */
    steps(s, 3);
}

/* What has come until now; "closed" behind it when the server has closed. */
static const char *heard(int fd)
{
    static char text[65536];
    size_t len = 0;
    for (;;) {
        ssize_t n = read(fd, text + len, sizeof text - 16 - len);
        if (n <= 0) {
            if (n == 0 || errno != EAGAIN)
                len += (size_t)sprintf(text + len, "closed");
            text[len] = '\0';
            return text;
        }
        len += (size_t)n;
    }
}

/* Time passes: the tick looks at the clients ten times a second of real time, here at once. */
static void pass_ms(struct server *s, int64_t ms)
{
    clock_advance_ms(ms);
    event_active(s->tick, EV_TIMEOUT, 0);
    steps(s, 4);
}

/* ---- time limits ------------------------------------------------------------------------------ */

static void test_without_auth_a_client_has_ten_seconds(void **state)
{
    struct server *s = START("requirepass", "secret");
    int in = dial(s), out = dial(s), slow = dial(s);
    say(s, in, "AUTH secret\r\n");
    for (int i = 0; i < 11; i++) { /* a byte now and then is no AUTH */
        say(s, slow, (char[]){"AUTH secret\r\n"[i], '\0'});
        pass_ms(s, 900);
    }
    assert_string_equal(heard(out), "");
    pass_ms(s, 200);
    assert_string_equal(heard(out), "-ERR closing: no AUTH within 10 s\r\nclosed");
    assert_string_equal(heard(slow), "-ERR closing: no AUTH within 10 s\r\nclosed");
    say(s, in, "PING\r\n");
    assert_string_equal(heard(in), "+OK\r\n+PONG\r\n");
    close(in), close(out), close(slow);
    stop(s);
}

static void test_idle_clients_time_out_and_waiting_ones_do_not(void **state)
{
    struct server *s = START("timeout", "60");
    int idle = dial(s), waiting = dial(s);
    say(s, waiting, "XREAD BLOCK 0 STREAMS k 0\r\n");
    pass_ms(s, 59000);
    assert_string_equal(heard(idle), "");
    pass_ms(s, 2000);
    assert_string_equal(heard(idle), "-ERR closing: idle for longer than timeout\r\nclosed");
    pass_ms(s, 1000000);
    assert_string_equal(heard(waiting), "");
    close(idle), close(waiting);
    stop(s);
}

static void
test_xread_times_out_by_the_clock_and_a_wake_for_nothing_does_not_restart_it(void **state)
{
    struct server *s = START();
    int reader = dial(s), writer = dial(s);
    say(s, reader, "XREAD BLOCK 1000 STREAMS k 9\r\n");
    clock_advance_ms(900);
    say(s, writer, "XADD k 5-1 a b\r\n"); /* below the cursor: redis#13004 */
    steps(s, 5);
    assert_string_equal(heard(reader), "");
    clock_advance_ms(200);
    steps(s, 5);
    assert_string_equal(heard(reader), "*-1\r\n");
    say(s, reader, "PING\r\n");
    assert_string_equal(heard(reader), "+PONG\r\n");
    close(reader), close(writer);
    stop(s);
}

static void test_a_key_expires_by_the_clock_and_its_time_can_be_read(void **state)
{
    struct server *s = START();
    int fd = dial(s);
    say(s, fd, "XADD k 1-1 a b\r\nPEXPIRE k 1000\r\nPTTL k\r\n");
    assert_string_equal(heard(fd), "$3\r\n1-1\r\n:1\r\n:1000\r\n");
    clock_advance_ms(999);
    say(s, fd, "EXISTS k\r\n");
    assert_string_equal(heard(fd), ":1\r\n");
    clock_advance_ms(2);
    say(s, fd, "EXISTS k\r\nDBSIZE\r\n");
    assert_string_equal(heard(fd), ":0\r\n:0\r\n");
    close(fd);
    stop(s);
}

static void test_the_end_does_not_wait_for_a_client_that_does_not_read(void **state)
{
    struct server *s = START("shutdown-timeout", "5");
    int fd = dial(s), n = 0;
    char line[8192];
    memset(line, 'x', sizeof line);
    memcpy(line, "ECHO ", 5);
    memcpy(line + sizeof line - 3, "\r\n", 3);
    for (int i = 0; i < 200; i++)
        say(s, fd, line); /* more replies than the kernel takes */
    server_stop(s, "test");
    for (; server_step(s, false); n++) {
        assert_true(n < MAX_STEPS);
        clock_advance_ms(10);
    }
    assert_true(n > 300); /* it did wait */
    close(fd);
    server_free(s);
}

/* ---- faults ----------------------------------------------------------------------------------- */

static const char script[] = "*3\r\n$4\r\nXADD\r\n$1\r\nk\r\n$3\r\nFOO\r\n"
                             "XADD k 1-1 text hello\r\nXADD k 2-1 role user content hi\r\n"
                             "XRANGE k - +\r\nMULTI\r\nXLEN k\r\nTYPE k\r\nEXEC\r\n"
                             "XREAD STREAMS k 0\r\nXDEL k 1-1\r\nCOPY k l\r\nKEYS *\r\n"
                             "CONFIG GET maxclients\r\nCOMMAND COUNT\r\nFLUSHALL\r\nPING\r\n";

static char *run_script(struct server *s)
{
    int fd = dial(s);
    say(s, fd, script);
    steps(s, (int)sizeof script + 20); /* as many reads as bytes */
    char *text = strdup(heard(fd));
    close(fd);
    steps(s, 3);
    return text;
}

static void test_one_byte_reads_give_the_same_replies(void **state)
{
    struct server *s = START();
    char *whole = run_script(s);
    assert_non_null(strstr(whole, "+PONG\r\n"));
    read_max = 1;
    char *bytes = run_script(s);
    assert_string_equal(whole, bytes);
    free(whole);
    free(bytes);
    stop(s);
}

/* CVE-2026-23479: a failing write, at whatever moment, costs that client and nobody else. */
static void test_a_failing_write_costs_one_client(void **state)
{
    struct server *s = START();
    for (int n = 1; n <= 12; n++) {
        int reader = dial(s), writer = dial(s), other = dial(s);
        say(s, reader, "XREAD BLOCK 0 STREAMS k $\r\n");
        say(s, other, "XREAD BLOCK 0 STREAMS k $\r\n");
        n_writes = 0;
        fail_write_at = n;
        say(s, writer, "XADD k * a b\r\nPING\r\nXLEN k\r\n");
        say(s, writer, "PING\r\n");
        steps(s, 5);
        fail_write_at = 0;
        int fresh = dial(s);
        say(s, fresh, "PING\r\n");
        assert_string_equal(heard(fresh), "+PONG\r\n");
        if (n == 1) { /* the writer's own reply failed, both readers have theirs */
            assert_non_null(strstr(heard(other), "\r\n$1\r\na\r\n$1\r\nb\r\n"));
            assert_non_null(strstr(heard(reader), "\r\n$1\r\na\r\n$1\r\nb\r\n"));
        }
        close(reader), close(writer), close(other), close(fresh);
        steps(s, 5);
    }
    assert_int_equal(s->n_clients, 0);
    stop(s);
}

/* Among subscribers, too, also in the middle of one PUBLISH: nobody else misses a message. */
static void test_a_failing_write_of_a_subscriber_costs_one_client(void **state)
{
    struct server *s = START("client-output-buffer-limit", "pubsub 1 0 0"); /* written at once */
    for (int n = 1; n <= 8; n++) {
        int fd[3], whole = 0, writer = dial(s);
        for (int i = 0; i < 3; i++) {
            fd[i] = dial(s);
            say(s, fd[i], i == 1 ? "PSUBSCRIBE c*\r\n" : "SUBSCRIBE c\r\n");
            assert_non_null(strstr(heard(fd[i]), "subscribe"));
        }
        n_writes = 0;
        fail_write_at = n;
        say(s, writer, "PUBLISH c hello\r\n");
        steps(s, 5);
        fail_write_at = 0;
        for (int i = 0; i < 3; i++) {
            const char *got = heard(fd[i]);
            whole += strstr(got, "hello\r\n") && !strstr(got, "closed");
        }
        assert_int_equal(whole, n <= 3 ? 2 : 3);
        say(s, fd[0], "PING\r\n");
        close(fd[0]), close(fd[1]), close(fd[2]), close(writer);
        steps(s, 5);
        assert_int_equal(s->n_clients, 0);
        assert_false(pubsub_has_subscribers(s->pubsub));
    }
    stop(s);
}

/* Seconds of the limit and of `timeout` by the moved clock. */
static void test_a_subscriber_may_be_silent_and_not_deaf(void **state)
{
    struct server *s = START("timeout", "60", "client-output-buffer-limit", "pubsub 0 100kb 5");
    int quiet = dial(s), deaf = dial(s), writer = dial(s);
    char line[10100];
    memset(line, 'x', sizeof line);
    memcpy(line, "PUBLISH d ", 10);
    memcpy(line + sizeof line - 3, "\r\n", 3);
    say(s, quiet, "SUBSCRIBE q\r\n");
    say(s, deaf, "SUBSCRIBE d\r\n");
    pass_ms(s, 30000);
    for (int i = 0; i < 100; i++)
        say(s, writer, line);
    pass_ms(s, 0); /* the limit is seen to be passed */
    pass_ms(s, 4000);
    assert_int_equal(s->n_clients, 3);
    pass_ms(s, 2000);
    assert_int_equal(s->n_clients, 2);
    assert_int_equal(s->stats.evicted_clients, 1);
    pass_ms(s, 300000);
    pass_ms(s, 2000);                  /* in which it could have read why */
    assert_int_equal(s->n_clients, 1); /* the writer was idle */
    assert_non_null(strstr(heard(quiet), "subscribe"));
    close(quiet), close(deaf), close(writer);
    stop(s);
}

/* Each allocation that a client can cause fails once. The client gets an error or is closed; the
 * next one is served, and nothing is lost of the server's memory. */
static void test_failing_memory_costs_one_client(void **state)
{
    struct server *s = START();
    uint64_t n = 1;
    for (bool failed = true; failed; n++) {
        assert_true(n < 500);
        int fd = dial(s);
        mem_fail_at(n, false);
        say(s, fd, script);
        steps(s, 10);
        failed = mem_try_calls() >= n;
        mem_fail_at(0, false);
        close(fd);
        steps(s, 3);
        fd = dial(s);
        say(s, fd, "FLUSHALL\r\nPING\r\n");
        assert_string_equal(heard(fd), "+OK\r\n+PONG\r\n");
        close(fd);
        steps(s, 3);
    }
    assert_true(n > 10);
    assert_int_equal(s->n_clients, 0);
    assert_int_equal(mem_bytes(MEM_CLIENT), 0);
    stop(s);
}

static void test_a_client_that_goes_leaves_nothing_behind(void **state)
{
    struct server *s = START();
    static const char *const lines[] = {
        "MULTI\r\nXADD k * a b\r\n",       "XREAD BLOCK 0 STREAMS k l $ $\r\nPING\r\nPING\r\n",
        "*3\r\n$4\r\nXADD\r\n$1\r\nk",     "*1048576\r\n$1\r\na\r\n",
        "CLIENT SETNAME x\r\nHELLO 3\r\n", "WATCH a b c\r\nSUBSCRIBE x y\r\nPSUBSCRIBE x*\r\n"};
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        int fd = dial(s);
        say(s, fd, lines[i]);
        close(fd);
        steps(s, 5);
        assert_int_equal(s->n_clients, 0);
        assert_int_equal(mem_bytes(MEM_CLIENT), 0);
    }
    stop(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_without_auth_a_client_has_ten_seconds),
        cmocka_unit_test(test_idle_clients_time_out_and_waiting_ones_do_not),
        cmocka_unit_test(
            test_xread_times_out_by_the_clock_and_a_wake_for_nothing_does_not_restart_it),
        cmocka_unit_test(test_a_key_expires_by_the_clock_and_its_time_can_be_read),
        cmocka_unit_test(test_the_end_does_not_wait_for_a_client_that_does_not_read),
        cmocka_unit_test(test_one_byte_reads_give_the_same_replies),
        cmocka_unit_test(test_a_failing_write_costs_one_client),
        cmocka_unit_test(test_a_failing_write_of_a_subscriber_costs_one_client),
        cmocka_unit_test(test_a_subscriber_may_be_silent_and_not_deaf),
        cmocka_unit_test(test_failing_memory_costs_one_client),
        cmocka_unit_test(test_a_client_that_goes_leaves_nothing_behind),
    };
    (void)signal(SIGPIPE, SIG_IGN); /* the test writes to connections that the server closed */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
