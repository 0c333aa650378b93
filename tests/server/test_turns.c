/* test_turns.c - in which order a turn serves clients when there are more than its slice of time has
 * room for. Each write takes a millisecond of the test's clock, so that a turn has room for one. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include "base/clock.h"
#include "tests/server/world.h"

enum { N_READERS = 60, A_FEW = 4 };

static int n_tests, n_failed;

static void check(bool ok, const char *name)
{
    n_failed += !ok;
    printf("%s %d - %s\n", ok ? "ok" : "not ok", ++n_tests, name);
}

static ssize_t slow_write(int fd, const void *data, size_t len)
{
    clock_advance_ms(1);
    return socket_system.write(fd, data, len);
}

static int count(const int *fds, int n, const char *what)
{
    int found = 0;
    for (int i = 0; i < n; i++) {
        struct str heard = {0};
        (void)world_hear(fds[i], &heard); /* what has not come is not counted */
        found += heard.len > 0 && strstr(heard.data, what) != NULL;
        str_free(&heard);
    }
    return found;
}

/* Sends without turning the loop. */
static void send_line(int fd, const char *line)
{
    (void)!write(fd, line, strlen(line)); /* a reply that does not come is the failure */
}

/* Turns until fd has heard it; the limit when that is never. */
static int turns_until(struct world *w, int fd, const char *what, int limit)
{
    int n = 0;
    while (n < limit && count(&fd, 1, what) == 0) {
        world_steps(w, 1);
        n++;
    }
    return n;
}

static void block_readers(struct world *w, int *readers)
{
    for (int i = 0; i < N_READERS; i++) {
        readers[i] = world_dial(w, false);
        (void)world_say_line(w, readers[i], "XREAD BLOCK 0 STREAMS k $");
    }
}

static void test_an_answer_does_not_wait_behind_readers_that_were_woken(struct world *w)
{
    int readers[N_READERS], adder = world_dial(w, false), asker = world_dial(w, false);
    block_readers(w, readers);
    send_line(adder, "XADD k * text x\r\n");
    world_steps(w, A_FEW);
    send_line(asker, "PING\r\n");
    int turns = turns_until(w, asker, "PONG", 2 * N_READERS);
    int before = count(readers, N_READERS, "text");
    printf("# answered after %d turns, beside %d of %d readers\n", turns, before, N_READERS);
    check(turns <= A_FEW && before < N_READERS / 2,
          "an answer does not wait behind readers that were woken");
    world_steps(w, 2 * N_READERS);
    check(before + count(readers, N_READERS, "text") == N_READERS, "and all of them are served");
    for (int i = 0; i < N_READERS; i++)
        close(readers[i]);
    close(adder);
    close(asker);
    world_steps(w, 2 * N_READERS);
}

static void test_a_woken_reader_does_not_wait_behind_who_asks_all_the_time(struct world *w)
{
    int askers[N_READERS], adder = world_dial(w, false), reader = world_dial(w, false);
    for (int i = 0; i < N_READERS; i++)
        askers[i] = world_dial(w, false);
    (void)world_say_line(w, reader, "XREAD BLOCK 0 STREAMS k $");
    send_line(adder, "XADD k * text x\r\n");
    for (int i = 0; i < N_READERS; i++)
        send_line(askers[i], "PING\r\n");
    int turns = turns_until(w, reader, "text", 2 * N_READERS);
    printf("# woken and answered after %d turns\n", turns);
    check(turns <= 2 * A_FEW, "a reader that was woken does not wait behind who asks all the time");
    for (int i = 0; i < N_READERS; i++)
        close(askers[i]);
    close(adder);
    close(reader);
    world_steps(w, 2 * N_READERS);
}

int main(void)
{
    struct world w;
    world_open(&w, NULL, false);
    struct socket_ops slow = *w.s->loop->sockets;
    slow.write = slow_write;
    w.s->loop->sockets = &slow;
    test_an_answer_does_not_wait_behind_readers_that_were_woken(&w);
    test_a_woken_reader_does_not_wait_behind_who_asks_all_the_time(&w);
    world_close(&w);
    printf("1..%d\n", n_tests);
    return n_failed > 0;
}
