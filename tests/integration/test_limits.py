#!/usr/bin/env python3
"""maxmemory and its policies, limits of replies: who is refused, what goes, who is never touched."""
import os
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kvasir_test import TWIN, ReplyError, Server, main, test, tiny_model, wait_until  # noqa: E402

OOM = "OOM command not allowed when used memory > 'maxmemory'."
TEXT = "x" * 1000


def memory(c):
    i = c.info("memory", "stats")
    return int(i["used_memory"]), int(i["evicted_keys"])


def fill(c, n, name="k"):
    """n keys with an entry of 1,000 bytes each; the replies."""
    for i in range(n):
        c.send("XADD", f"{name}{i}", "*", "text", TEXT)
    return [c.receive(False) for _ in range(n)]


def fill_up(c, n):
    """The same until nothing fits: what a pipeline's buffers held is free again behind it."""
    replies = fill(c, n)
    while True:
        c.send("XADD", f"k{n}", "*", "a", "b")
        if isinstance(c.receive(False), ReplyError):
            return replies


@test("noeviction: writers get -OOM, reads, DEL and CANCEL never, and what DEL frees is there again")
def _():
    with Server({"model": tiny_model(), "maxmemory": "300kb"}) as s, s.connect() as c:
        replies = fill_up(c, 400)
        refused = [r for r in replies if isinstance(r, ReplyError)]
        assert 50 < len(refused) < 350 and {str(r) for r in refused} == {OOM}, replies[:3]
        for command in (("XADD", "new", "*", "a", "b"), ("GEN", "k0", "hello"), ("FORK", "k0", "f"),
                        ("COPY", "k0", "f")):
            assert c.error(*command) == OOM, command
        assert len(c.call("XRANGE", "k0", "-", "+")) == 1 and c.call("XLEN", "k0") == 1
        assert c.call("XREAD", "STREAMS", "k0", "0") and c.call("CANCEL", "k0") == 0
        assert c.call("GENINFO", "k0") and c.call("EXPIRE", "k0", 100) == 1 and c.call("TOKENIZE", "a")
        used, evicted = memory(c)
        assert used > 300 * 1024 and evicted == 0
        assert c.call("DEL", *[f"k{i}" for i in range(40)]) == 40
        c.call("XADD", "new", "*", "a", "b")
        c.call("CONFIG", "SET", "maxmemory", 0)
        c.call("FORK", "new", "newer")


@test("noeviction inside MULTI: refused when queued, and again by EXEC")
def _():
    with Server({"maxmemory": "200kb"}) as s, s.connect() as c, s.connect() as other:
        c.call("MULTI")
        c.call("XADD", "a", "*", "x", "y")
        fill_up(other, 300)
        assert c.error("XADD", "a", "*", "x", "y") == OOM
        assert c.error("EXEC").startswith("EXECABORT ")
        other.call("FLUSHALL")
        c.call("MULTI")
        c.call("XADD", "a", "*", "x", "y")
        fill_up(other, 300)
        assert c.error("EXEC") == f"EXECABORT Transaction discarded because of: {OOM}"
        assert c.call("PING") == "PONG" and c.call("EXISTS", "a") == 0
        c.call("MULTI")  # reads alone are no writers
        c.call("XLEN", "k0")
        assert c.call("EXEC") == [1]


@test("allkeys-lru: the keys that nobody used for longest go, a writer is never refused")
def _():
    with Server({"maxmemory": "400kb", "maxmemory-policy": "allkeys-lru"}) as s, s.connect() as c:
        fill(c, 50, "old")
        fill(c, 50, "used")
        for round in range(20):
            for i in range(50):
                c.call("XREAD", "STREAMS", f"used{i}", "0")
            assert not any(isinstance(r, ReplyError) for r in fill(c, 15, f"new{round}-"))
        used, evicted = memory(c)
        assert used <= 402 * 1024 and evicted > 100, (used, evicted)
        kept = c.call("EXISTS", *(f"used{i}" for i in range(50)))
        old = c.call("EXISTS", *(f"old{i}" for i in range(50)))
        assert kept >= 40 and old <= 20, (kept, old)  # five are drawn each time
        for command in ("MULTI", "DBSIZE", "INFO"):  # nothing is evicted between the two
            c.call(command)
        size, info = c.call("EXEC")
        assert f"evicted_keys:{100 + 20 * 15 - size}\r\n" in info.decode(), (size, info)


@test("allkeys-lru evicts from all databases, and a large stream goes alone")
def _():
    with Server({"maxmemory-policy": "allkeys-lru"}) as s, s.connect() as c:
        for _ in range(20):
            for _ in range(1000):
                c.send("XADD", "large", "*", "text", "y" * 100)
            for _ in range(1000):
                c.receive()
        c.call("SELECT", 3)
        fill(c, 100)
        used, _ = memory(c)
        c.call("CONFIG", "SET", "maxmemory", used - 100_000)
        wait_until(lambda: memory(c)[0] <= used - 100_000, "eviction begins by itself")
        assert c.call("DBSIZE") >= 1 or c.call("SELECT", 0)
        if c.call("DBSIZE") == 100:  # the large one went: nothing else had to
            assert memory(c)[1] == 1
        c.call("CONFIG", "SET", "maxmemory", 1)
        wait_until(lambda: c.call("DBSIZE") == 0, "all keys go")
        c.call("SELECT", 0)
        assert c.call("DBSIZE") == 0
        assert c.error("XADD", "k", "*", "a", "b") == OOM  # nothing is left to go


@test("volatile-ttl: least time to live first, both clocks; keys without one stay, then writers get -OOM")
def _():
    with Server({"maxmemory-policy": "volatile-ttl"}) as s, s.connect() as c:
        fill(c, 60)
        for i in range(40):
            if i % 2:
                c.call("EXPIRE", f"k{i}", 1000 + 10 * i)
            else:
                c.call("EXPIREAT", f"k{i}", int(time.time()) + 1000 + 10 * i)
        used, _ = memory(c)
        c.call("CONFIG", "SET", "maxmemory", used - 10_000)
        wait_until(lambda: memory(c)[0] <= used - 10_000, "eviction begins by itself")
        _, evicted = memory(c)
        assert 5 <= evicted <= 12, evicted
        assert [c.call("EXISTS", f"k{i}") for i in range(40)] == [0] * evicted + [1] * (40 - evicted)
        c.call("CONFIG", "SET", "maxmemory", 1)
        wait_until(lambda: c.call("DBSIZE") == 20, "all that may expire go")
        assert c.error("XADD", "k", "*", "a", "b") == OOM


@test("a key that generates is never evicted; its waiter gets the whole answer, CANCEL works meanwhile")
def _():
    with Server({"model": tiny_model(), "maxmemory-policy": "allkeys-lru"}, program=TWIN) as s, s.connect() as c:
        with s.connect() as waiter, s.connect() as other:
            long = ("MAXTOKENS", 300, "TEMP", 0, "IGNOREEOS")
            want = c.call("GEN", "lone", "a story", *long)
            c.stand_still()
            waiter.send("GEN", "g", "a story", *long)
            other.send("GEN", "cancelled", "an endless story", "MAXTOKENS", 1900, "TEMP", 0, "IGNOREEOS")
            c.stop_at(2, "g", "cancelled")
            c.call("CONFIG", "SET", "maxmemory", 1)
            wait_until(lambda: c.call("DBSIZE") == 2, "what does not generate goes")
            assert c.call("CANCEL", "cancelled") == 1
            assert other.receive(False).prefix == "CANCELLED"
            c.go_on()
            assert waiter.receive() == want
            wait_until(lambda: c.call("DBSIZE") == 0, "what has ended goes")
            assert c.error("GEN", "more", "hello") == OOM
            assert c.call("DEBUG", "AUDIT") == "OK"


@test("memory comes back to what it was: entries, ids, pieces, arguments, replays, names")
def _():
    with Server({"model": tiny_model()}) as s, s.connect() as c:
        def conversations():
            for i in range(5):
                c.call("GEN", f"a{i}", "hello there " * 30, "MAXTOKENS", 20, "ID", "one", "IGNOREEOS")
                c.call("GEN", f"a{i}", "and a question", "AS", "user", "MAXTOKENS", 20, "ID", "two", "IGNOREEOS")
                c.call("FORK", f"a{i}", f"b{i}", f"c{i}")
                c.call("RENAME", f"b{i}", f"a-much-longer-name-{i}" * 5)
                c.call("GEN", f"c{i}", "", "AS", "user", "MAXTOKENS", 5, "IGNOREEOS", "ASYNC")
                c.call("XADD", f"d{i}", "*", "text", "plain")
                c.call("XTRIM", f"a{i}", "MAXLEN", 1)

        def used():
            return int(c.info("memory")["mem_keys"])

        base = used()
        conversations()
        assert used() > base + 20_000
        c.call("FLUSHALL")
        wait_until(lambda: used() == base, lambda: f"{used()} bytes come back to {base}")


@test("buffers of clients count: a transaction that is queued, replies that are not read")
def _():
    with Server({"maxmemory": "3mb"}) as s, s.connect() as c, s.connect() as queue:
        before, _ = memory(c)
        queue.call("MULTI")
        for _ in range(20):
            queue.send("ECHO", "z" * 100_000)
        for _ in range(20):
            queue.receive()
        used, _ = memory(c)
        assert used - before > 2_000_000, (before, used)
        fill_up(c, 800)
        assert c.error("XADD", "k", "*", "a", "b") == OOM
        queue.call("DISCARD")
        c.call("XADD", "k", "*", "a", "b")


@test("one reply over client-output-buffer-limit is an error that says use COUNT; the link lives")
def _():
    with Server({"client-output-buffer-limit": "normal 100kb 50kb 60"}) as s, s.connect() as c:
        for _ in range(200):
            c.call("XADD", "k", "*", "text", TEXT)
        for command in (("XRANGE", "k", "-", "+"), ("XREVRANGE", "k", "+", "-"), ("XREAD", "STREAMS", "k", "0")):
            assert c.error(*command) == "ERR the reply is over client-output-buffer-limit (102400 bytes), use COUNT"
        assert len(c.call("XRANGE", "k", "-", "+", "COUNT", 50)) == 50
        assert len(c.call("XREAD", "COUNT", 50, "STREAMS", "k", "0")[0][1]) == 50


@test("an answer over client-output-buffer-limit says where its end entries stand; a retry computes nothing")
def _():
    options = {"model": tiny_model(), "client-output-buffer-limit": "normal 100kb 50kb 60"}
    with Server(options) as s, s.connect() as c:
        gen = ("GEN", "k", "hello", "N", 8, "MAXTOKENS", 300, "IGNOREEOS", "WITHINFO", "LOGPROBS", 5, "ID", "one")
        start = ("ERR the answer is over client-output-buffer-limit (102400 bytes), read its 8 end entries from "
                 "%s on with XRANGE and COUNT")
        error = c.error(*gen)
        ids, at = [], "-"
        for _ in range(9):  # one by one: each fits
            entry = c.call("XRANGE", "k", at, "+", "COUNT", 1)[0]
            ids.append(entry[0].decode())
            at = "(" + ids[-1]
        assert error == start % ids[1] and not c.call("XRANGE", "k", at, "+"), (error, ids)
        made = c.info()["generated_tokens"]
        assert c.error(*gen) == error and c.info()["generated_tokens"] == made == "2400"


@test("who asks for pieces and never reads is bounded, then closed after its time; a reader gets them all")
def _():
    options = {"model": tiny_model(), "piece-interval": 0, "client-output-buffer-limit": ["normal", "8mb", "1mb", 3600]}
    with Server(options, program=TWIN) as s, s.connect() as c, s.connect() as deaf:
        before = int(c.info("memory")["mem_clients_normal"])
        c.stand_still()
        last = c.call("GEN", "k", "hello", "ASYNC", "IGNOREEOS", "MAXTOKENS", 1500, "SEED", 1)
        deaf.send_raw(deaf.encode("XREAD", "BLOCK", 0, "STREAMS", "k", "$") * 100)  # whatever is new
        deaf.send_raw(deaf.encode("XREAD", "STREAMS", "k", last) * 2000)  # and all that came
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it waits for the first piece")
        c.go_on()
        pieces, end = c.wait_end("k", last)
        entry = c.call("XREVRANGE", "k", "+", "-", "COUNT", 1)[0][1]
        assert end["generated"] == "1500" and entry[:2] == [b"text", pieces], (end["finish"], len(pieces))
        wait_until(lambda: int(c.info("clients")["client_recent_max_output_buffer"]) > 2**20, "it has 1 MiB unread")
        used = int(c.info("memory")["mem_clients_normal"]) - before
        assert used < 6 * 2**20, used  # 1 MiB and one reply, doubled; what it sent; and no more
        c.call("CONFIG", "SET", "client-output-buffer-limit", "normal 8mb 1mb 1")
        wait_until(lambda: c.info("stats")["client_output_buffer_limit_disconnections"] == "1", "it is closed")
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "it is gone")
        assert int(c.info("memory")["mem_clients_normal"]) < before + 2**16
        assert c.geninfo("k")["finish"] == "length"


@test("200 connections with half a command, some with a large promise: a few KiB each, others are served")
def _():
    halves = [b"*3\r\n$4\r\nXADD\r\n$1\r\nk\r\n$100\r\nhalf of a text", b"*2\r\n$4\r\nECHO\r\n$16777216\r\nabc",
              b"*1000000\r\n$3\r\nDEL\r\n", b"XADD k * text hel", b"*"]
    n = 200
    with Server({"model": tiny_model()}) as s, s.connect() as c:
        c.call("GEN", "warm", "hello", "MAXTOKENS", 4)

        def memory():
            i = c.info("memory")
            return int(i["used_memory_rss"]), int(i["mem_clients_normal"])

        before = memory()
        sent = int(c.info("stats")["total_net_input_bytes"])
        clients = [s.connect() for _ in range(n)]
        for i, client in enumerate(clients):
            client.send_raw(halves[i % len(halves)])
            sent += len(halves[i % len(halves)])
        wait_until(lambda: int(c.info("stats")["total_net_input_bytes"]) >= sent, "all of it has come")
        after = memory()
        assert after[1] - before[1] < n * 4096, (before, after)
        assert after[0] - before[0] < n * 65536, (before, after)
        assert len(c.call("GEN", "other", "hello", "MAXTOKENS", 8, "IGNOREEOS")) > 0
        assert c.info("clients")["connected_clients"] == str(n + 1) and c.info("stats")["protocol_errors"] == "0"
        clients[0].send_raw(b"x" * 86 + b"\r\n")  # the other half
        assert clients[0].receive(False).prefix == "ERR"  # an entry of one field without a value
        for client in clients:
            client.close()
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "all have gone")
        assert memory()[1] < before[1] + 2**16


main()
