/* test_conn.c - connections and listeners under socket faults: short writes, resets, reads of one
 * byte, accept errors. The socket seam fails call number n; nothing here sleeps. */
#include <errno.h>
#include <event2/event.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "server/conn.h"
#include "server/listen.h"

/* What the seam does; a test sets it and socket functions below obey. */
static struct {
    size_t read_max, write_max; /* bytes a call; 0: no bound */
    int write_error_at, accept_errors, accept_error;
    int n_reads, n_writes, n_accepts;
} fault;

static ssize_t faulty_read(int fd, void *data, size_t len)
{
    fault.n_reads++;
    return read(fd, data, fault.read_max && fault.read_max < len ? fault.read_max : len);
}

static ssize_t faulty_write(int fd, const void *data, size_t len)
{
    if (++fault.n_writes == fault.write_error_at) {
        errno = ECONNRESET;
        return -1;
    }
    return socket_system.write(fd, data,
                               fault.write_max && fault.write_max < len ? fault.write_max : len);
}

static int faulty_accept(int fd, struct sockaddr *address, socklen_t *len)
{
    if (fault.n_accepts++ < fault.accept_errors) {
        errno = fault.accept_error;
        return -1;
    }
    return socket_system.accept(fd, address, len);
}

static const struct socket_ops faulty = {faulty_read, faulty_write, faulty_accept};

/* One end of a socket pair as a conn; the other is the test's. */
struct peer_pair {
    struct conn_loop *loop;
    struct conn conn;
    int other;
    struct str got;
    int n_ended, n_drained;
};

static void on_data(void *owner, const char *data, size_t len)
{
    str_append(&((struct peer_pair *)owner)->got, data, len);
}

static void on_ended(void *owner)
{
    ((struct peer_pair *)owner)->n_ended++;
}

static void on_drained(void *owner)
{
    ((struct peer_pair *)owner)->n_drained++;
}

static const struct conn_events events = {on_data, on_ended, on_drained};

static struct conn_loop *loop_new(void)
{
    struct conn_loop *loop = xcalloc(1, sizeof *loop);
    loop->base = event_base_new();
    loop->sockets = &faulty;
    loop->events = &events;
    memset(&fault, 0, sizeof fault);
    return loop;
}

static void loop_free(struct conn_loop *loop)
{
    event_base_free(loop->base);
    xfree(loop);
}

static struct peer_pair *pair_new(void)
{
    struct peer_pair *p = xcalloc(1, sizeof *p);
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, fds), 0);
    p->loop = loop_new();
    p->other = fds[1];
    conn_open(&p->conn, p->loop, fds[0], p);
    return p;
}

static void pair_free(struct peer_pair *p)
{
    conn_close(&p->conn);
    if (p->other >= 0)
        close(p->other);
    loop_free(p->loop);
    str_free(&p->got);
    xfree(p);
}

static void spin(struct peer_pair *p)
{
    (void)event_base_loop(p->loop->base, EVLOOP_ONCE | EVLOOP_NONBLOCK);
}

static void test_bytes_arrive_when_read_one_by_one(void **state)
{
    struct peer_pair *p = pair_new();
    fault.read_max = 1;
    assert_int_equal(write(p->other, "hello", 5), 5);
    for (int i = 0; i < 5; i++)
        spin(p);
    assert_string_equal(p->got.data, "hello");
    assert_int_equal(fault.n_reads, 5);
    pair_free(p);
}

static void test_output_survives_short_writes_and_a_slow_reader(void **state)
{
    struct peer_pair *p = pair_new();
    enum { N = 1 << 20 };
    static char read_back[N];
    size_t n_read = 0;
    fault.write_max = 1000;
    for (int i = 0; i < N; i++)
        str_append_char(&p->conn.out, (char)(i * 7 + i / 251));
    conn_flush(&p->conn);
    assert_true(conn_unsent(&p->conn) > 0); /* the kernel's buffer is full */
    while (n_read < N) {
        ssize_t n = read(p->other, read_back + n_read, 5000);
        if (n > 0)
            n_read += (size_t)n;
        spin(p);
    }
    for (int i = 0; i < N; i++)
        assert_int_equal(read_back[i], (char)(i * 7 + i / 251));
    assert_int_equal(conn_unsent(&p->conn), 0);
    assert_int_equal(p->n_drained, 1);
    assert_true(p->conn.out.cap < 4096); /* an idle connection holds no buffer */
    pair_free(p);
}

static void test_a_write_error_is_remembered_and_frees_the_output(void **state)
{
    struct peer_pair *p = pair_new();
    fault.write_max = 10;
    fault.write_error_at = 3;
    str_append_str(&p->conn.out, "0123456789012345678901234567890123456789");
    conn_flush(&p->conn);
    assert_true(p->conn.failed);
    assert_int_equal(conn_unsent(&p->conn), 0);
    conn_flush(&p->conn); /* harmless */
    assert_int_equal(fault.n_writes, 3);
    pair_free(p);
}

static void test_the_end_is_told_once(void **state)
{
    struct peer_pair *p = pair_new();
    assert_int_equal(write(p->other, "x", 1), 1);
    assert_int_equal(shutdown(p->other, SHUT_WR), 0);
    for (int i = 0; i < 5; i++)
        spin(p);
    assert_string_equal(p->got.data, "x");
    assert_int_equal(p->n_ended, 1);
    assert_true(p->conn.ended && !p->conn.failed);
    conn_read_set(&p->conn, true); /* there is nothing to read any more */
    assert_false(p->conn.reading);
    pair_free(p);
}

static void test_a_paused_connection_reads_nothing_but_sees_its_peer_go(void **state)
{
    struct peer_pair *p = pair_new();
    conn_read_set(&p->conn, false);
    assert_int_equal(write(p->other, "x", 1), 1);
    spin(p);
    assert_int_equal(p->got.len, 0);
    assert_false(conn_peer_is_gone(&p->conn));
    assert_int_equal(shutdown(p->other, SHUT_WR), 0);
    assert_true(conn_peer_is_gone(&p->conn));
    pair_free(p);
}

/* ---- listeners -------------------------------------------------------------------------------- */

static int n_accepted;
static bool last_is_unix;

static void on_accepted(void *owner, int fd, const struct peer *peer)
{
    n_accepted++;
    last_is_unix = peer->is_unix && peer->is_loopback;
    close(fd);
}

static const char *socket_path(void)
{
    static char path[64];
    snprintf(path, sizeof path, "/tmp/kvasir-conn-%d", (int)getpid());
    return path;
}

static int dial(const char *path)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", path);
    if (connect(fd, (struct sockaddr *)&a, sizeof a) == 0)
        return fd;
    close(fd);
    return -1;
}

static struct listeners *open_unix(struct conn_loop *loop, const char *permission, struct err *err)
{
    struct listen_config config = {
        .bind = "", .backlog = 16, .unix_path = socket_path(), .unix_permission = permission};
    n_accepted = 0;
    return listeners_open(loop, &config, on_accepted, NULL, err);
}

/* CVE-2025-48367: an aborted handshake is skipped, the next client is served in the same wake. */
static void test_an_aborted_handshake_does_not_stop_accepting(void **state)
{
    struct conn_loop *loop = loop_new();
    struct err err;
    struct listeners *l = open_unix(loop, "", &err);
    assert_non_null(l);
    fault.accept_errors = 3;
    fault.accept_error = ECONNABORTED;
    int fd = dial(socket_path());
    assert_true(fd >= 0);
    (void)event_base_loop(loop->base, EVLOOP_ONCE);
    assert_int_equal(n_accepted, 1);
    assert_true(last_is_unix);
    close(fd);
    listeners_free(l);
    loop_free(loop);
}

static int64_t now_ms(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* It rests for 100 ms each time; a busy machine makes them longer, nothing makes them shorter than
 * half of it. A loop that turns meanwhile would be through at once. */
static void test_without_file_descriptors_accepting_rests_and_goes_on(void **state)
{
    enum { FAILURES = 3, LEAST_REST_MS = 50 };
    struct conn_loop *loop = loop_new();
    struct err err;
    struct listeners *l = open_unix(loop, "", &err);
    assert_non_null(l);
    log_threshold = LOG_WARNING + 1; /* it warns, rightly */
    fault.accept_errors = FAILURES;
    fault.accept_error = EMFILE;
    int fd = dial(socket_path());
    int64_t began = now_ms();
    while (n_accepted == 0)
        (void)event_base_loop(loop->base, EVLOOP_ONCE);
    assert_true(now_ms() - began >= FAILURES * LEAST_REST_MS);
    assert_in_range(fault.n_accepts, FAILURES + 1, FAILURES + 2); /* and a look for others */
    close(fd);
    log_threshold = LOG_NOTICE;
    listeners_free(l);
    loop_free(loop);
}

static void test_the_unix_socket_has_its_permissions_from_the_start(void **state)
{
    struct conn_loop *loop = loop_new();
    struct err err;
    struct stat info;
    mode_t before = umask(0);
    struct listeners *l = open_unix(loop, "600", &err);
    assert_non_null(l);
    assert_int_equal(stat(socket_path(), &info), 0);
    assert_int_equal(info.st_mode & 0777, 0600);
    assert_int_equal(umask(before), 0); /* put back */
    listeners_free(l);
    assert_int_equal(stat(socket_path(), &info), -1); /* and the file goes */
    loop_free(loop);
}

static void test_a_dead_socket_file_is_replaced_a_living_one_is_not(void **state)
{
    struct conn_loop *loop = loop_new();
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    struct err err;
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(a.sun_path, sizeof a.sun_path, "%s", socket_path());
    assert_int_equal(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    close(fd); /* as a crash leaves it */
    struct listeners *l = open_unix(loop, "", &err);
    assert_non_null(l);
    assert_null(open_unix(loop, "", &err));
    assert_non_null(strstr(err.text, "another server listens there"));
    fd = dial(socket_path());
    assert_true(fd >= 0); /* the first one still does */
    close(fd);
    listeners_free(l);
    loop_free(loop);
}

static void test_a_file_that_is_no_socket_is_never_removed(void **state)
{
    struct conn_loop *loop = loop_new();
    struct err err;
    FILE *f = fopen(socket_path(), "w");
    assert_non_null(f);
    fclose(f);
    assert_null(open_unix(loop, "", &err));
    assert_non_null(strstr(err.text, "is not a socket"));
    assert_int_equal(unlink(socket_path()), 0);
    loop_free(loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_arrive_when_read_one_by_one),
        cmocka_unit_test(test_output_survives_short_writes_and_a_slow_reader),
        cmocka_unit_test(test_a_write_error_is_remembered_and_frees_the_output),
        cmocka_unit_test(test_the_end_is_told_once),
        cmocka_unit_test(test_a_paused_connection_reads_nothing_but_sees_its_peer_go),
        cmocka_unit_test(test_an_aborted_handshake_does_not_stop_accepting),
        cmocka_unit_test(test_without_file_descriptors_accepting_rests_and_goes_on),
        cmocka_unit_test(test_the_unix_socket_has_its_permissions_from_the_start),
        cmocka_unit_test(test_a_dead_socket_file_is_replaced_a_living_one_is_not),
        cmocka_unit_test(test_a_file_that_is_no_socket_is_never_removed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
