#!/usr/bin/env python3
"""Who waits, and how often somebody is woken: many readers, many keys, timeouts, neighbours that go."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kvasir_test import TWIN, Closed, Server, main, test, tiny_model, wait_until  # noqa: E402


def blocked(c, n):
    wait_until(lambda: c.info("clients")["blocked_clients"] == str(n), f"{n} wait")


@test("one wake answers everything new on all keys of the XREAD, up to COUNT")
def _():
    with Server() as s, s.connect() as c, s.connect() as r, s.connect() as few:
        r.send("XREAD", "BLOCK", 0, "STREAMS", "a", "b", "none", "0", "0", "0")
        few.send("XREAD", "COUNT", 2, "BLOCK", 0, "STREAMS", "a", "b", "0", "0")
        blocked(c, 2)
        c.call("MULTI")
        for i in range(3):
            c.call("XADD", "a", "*", "n", i)
            c.call("XADD", "b", "*", "n", i)
        c.call("EXEC")
        reply = r.receive()
        assert [(key, len(entries)) for key, entries in reply] == [(b"a", 3), (b"b", 3)], reply
        reply = few.receive()
        assert [(key, len(entries)) for key, entries in reply] == [(b"a", 2), (b"b", 2)], reply
        r.send("PING")  # exactly one reply each
        assert r.receive() == "PONG"


@test("a wake that finds nothing does not start the timeout again")
def _():
    with Server(program=TWIN) as s, s.connect() as c, s.connect() as r:
        r.send("XREAD", "BLOCK", 10**7, "STREAMS", "k", "0")
        blocked(c, 1)
        for _ in range(9):
            c.call("SEAM", "CLOCK", 10**6)
            c.call("MULTI")
            entry = c.call("XADD", "k", "5-1", "a", "b")
            c.call("DEL", "k")
            assert c.call("EXEC")[1] == 1, entry
            blocked(c, 1)
        c.call("SEAM", "CLOCK", 10**6 + 1)
        assert r.receive() is None


@test("a thousand readers of one key each get every piece and the end, in order, once")
def _():
    with Server({"model": tiny_model()}) as s, s.connect() as c:
        n = 1000
        last = c.call("XADD", "k", "*", "text", "hello")
        readers = []
        for i in range(n):
            readers.append(s.connect())
            if i % 100 == 99:  # the backlog of a slow server would overflow
                readers[-1].call("PING")
        for r in readers:
            r.send("XREAD", "BLOCK", 0, "STREAMS", "k", last)
        blocked(c, n)
        whole = c.call("GEN", "k", "", "MAXTOKENS", 12, "TEMP", 0, "IGNOREEOS")
        for r in readers:
            cursor, pieces, end = last, [], None
            while end is None:
                entries = r.receive()[0][1]
                assert [e[0] for e in entries] and entries[0][0] != cursor
                cursor = entries[-1][0]
                pieces += [e[1][1] for e in entries if e[1][0] == b"piece"]
                end = next((e for e in entries if b"finish" in e[1]), None)
                if end is None:
                    r.send("XREAD", "BLOCK", 0, "STREAMS", "k", cursor)
            assert b"".join(pieces) == whole == end[1][1]
        for r in readers:
            r.close()


@test("CVE-2026-23479: neighbours that are killed, or go, while their list is walked harm nobody")
def _():
    with Server({"model": tiny_model()}, program=TWIN) as s, s.connect() as c:
        c.stand_still()  # no piece wakes the readers before
        for _ in range(5):
            readers = [s.connect() for _ in range(40)]
            ids = [r.call("CLIENT", "ID") for r in readers]
            for i, r in enumerate(readers):
                if i % 2:
                    r.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
                else:
                    r.send("GEN", "k", "a long story", "MAXTOKENS", 1000, "IGNOREEOS", "TEMP", 0)
                if i == 0:
                    wait_until(lambda: c.geninfo("k")["state"] in ("queued", "running"), "it is there")
            blocked(c, 40)
            c.send("MULTI")
            for i in range(0, 40, 4):
                c.send("CLIENT", "KILL", "ID", ids[i])
            c.send("DEL", "k")
            for i in range(1, 40, 4):
                c.send("CLIENT", "KILL", "ID", ids[i])
            c.send("EXEC")
            replies = [c.receive(False) for _ in range(23)]
            assert replies[-1][:10] == [1] * 10, replies[-1]
            for i, r in enumerate(readers):
                try:
                    reply = r.receive(False)
                    assert i % 4 >= 2 or i % 4 == 1, (i, reply)
                except Closed:
                    assert i % 4 < 2, i
                r.close()
            assert c.call("DEBUG", "AUDIT") == "OK" and c.call("EXISTS", "k") == 0


@test("readers of keys that are evicted meanwhile wait on, and get the next entry once")
def _():
    with Server({"maxmemory-policy": "allkeys-lru", "maxmemory": "1mb"}) as s, s.connect() as c:
        n = 40
        for i in range(n):
            c.call("XADD", f"k{i}", "*", "text", "x" * 1000)
        readers = [s.connect() for _ in range(n)]
        for i, r in enumerate(readers):
            r.send("XREAD", "BLOCK", 0, "STREAMS", f"k{i}", f"k{(i + 1) % n}", "$", "$")
        blocked(c, n)
        i = 0
        while c.call("EXISTS", *(f"k{i}" for i in range(n))) > 0:
            c.call("XADD", f"filler{i}", "*", "text", "y" * 1000)
            i += 1
        blocked(c, n)
        for i in range(0, n, 2):  # each wakes two, under a memory that is still full
            c.call("XADD", f"k{i}", "*", "n", i)
        for i, r in enumerate(readers):
            reply = r.receive()
            assert [(key, len(entries)) for key, entries in reply] == [(b"k%d" % (i + i % 2 if i + i % 2 < n else 0), 1)]
            r.send("PING")
            assert r.receive() == "PONG"
            r.close()


@test("a GEN behind 2 MiB of pipelined commands: its client goes, the orphan clock starts")
def _():
    with Server({"model": tiny_model(), "orphan-timeout": 0}, program=TWIN) as s, s.connect() as c:
        c.stand_still()
        client = s.connect()
        client.send("GEN", "k", "a story", "MAXTOKENS", 1000, "IGNOREEOS")
        client.send_raw(client.encode("ECHO", "x" * 1000) * 2100)
        wait_until(lambda: c.geninfo("k")["state"] == "running", "it runs")
        client.close()
        wait_until(lambda: c.geninfo("k")["finish"] == "orphaned", "it is given up")
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "its client is gone")


main()
