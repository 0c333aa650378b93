#!/usr/bin/env python3
"""SLOWLOG, LATENCY, MODULE and CLUSTER over real sockets."""
import time

from kvasir_test import TWIN, Server, main, test, tiny_model, wait_until

ALL = {"slowlog-log-slower-than": 0}


@test("entries: id, time, microseconds, arguments, address and name of the client; newest first")
def _():
    with Server(ALL) as server, server.connect(tcp=True) as c:
        c.call("CLIENT", "SETNAME", "me")
        before = time.time()
        c.call("SLOWLOG", "RESET")
        c.call("XADD", "k", "1-1", "a", "b")
        c.call("echo", "hi")
        entries = c.call("SLOWLOG", "GET")
        assert [e[3] for e in entries][:2] == [[b"echo", b"hi"],
                                                   [b"XADD", b"k", b"(3 bytes)", b"(1 bytes)", b"(1 bytes)"]]
        assert [e[0] for e in entries] == sorted((e[0] for e in entries), reverse=True)
        newest = entries[0]
        assert len(newest) == 6 and before - 1 < newest[1] < time.time() + 1 and newest[2] >= 0, newest
        assert newest[4].startswith(b"127.0.0.1:") and newest[5] == b"me"
        assert c.call("SLOWLOG", "RESET") == "OK" and c.call("SLOWLOG", "LEN") == 1  # RESET itself
        ids = [e[0] for e in c.call("SLOWLOG", "GET", -1)]
        assert ids[-1] > newest[0]  # ids go on


@test("a command that takes milliseconds is told in the log as what the main thread was busy with")
def _():
    n = 20000  # no machine runs one in 0.1 microseconds
    with Server() as server, server.connect() as c:
        c.send_raw(c.encode("MULTI") + c.encode("XADD", "k", "*", "a", "b") * n + c.encode("EXEC"))
        for _ in range(n + 2):
            last = c.receive()
        assert len(last) == n
        assert int(c.info("stats")["main_thread_max_stall_cpu_usec"]) > 2000
        told = [line for line in server.log().splitlines() if "away from the engine" in line]
        assert told and all(" ms of CPU: " in line for line in told), server.log()
        assert any("events" in line or "clients" in line for line in told), told


@test("GET takes a count, -1 is all; wrong words are errors")
def _():
    with Server(ALL, tcp=False) as server, server.connect() as c:
        c.call("SLOWLOG", "RESET")
        for i in range(20):
            c.call("ECHO", i)
        assert len(c.call("SLOWLOG", "GET")) == 10 and len(c.call("SLOWLOG", "GET", 3)) == 3
        assert c.call("SLOWLOG", "GET", 0) == [] and len(c.call("SLOWLOG", "GET", -1)) >= 20
        assert len(c.call("SLOWLOG", "GET", 2**62)) >= 20
        for bad in "x", "-2", "", "1.5", "9" * 30:
            assert c.error("SLOWLOG", "GET", bad) == "ERR count should be greater than or equal to -1"
        assert c.error("SLOWLOG", "GET", 1, 2) == \
            "ERR unknown subcommand or wrong number of arguments for 'GET'. Try SLOWLOG HELP."
        assert c.error("SLOWLOG", "LEN", 1) == "ERR wrong number of arguments for 'slowlog|len' command"
        assert c.error("SLOWLOG", "FOO") == "ERR unknown subcommand 'FOO'. Try SLOWLOG HELP."
        assert c.error("SLOWLOG") == "ERR wrong number of arguments for 'slowlog' command"
        assert c.call("SLOWLOG", "HELP")[0].startswith("SLOWLOG <subcommand>")


@test("only what is slow is kept, at most slowlog-max-len; both can be set while it runs")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        assert c.call("CONFIG", "GET", "slowlog-*") == [b"slowlog-log-slower-than", b"10000",
                                                      b"slowlog-max-len", b"128"]
        c.call("CONFIG", "SET", "slowlog-log-slower-than", 10**15)
        c.call("SLOWLOG", "RESET")
        c.call("ECHO", "fast")
        assert c.call("SLOWLOG", "LEN") == 0
        c.call("CONFIG", "SET", "slowlog-log-slower-than", 0)
        for i in range(150):
            c.call("ECHO", i)
        assert c.call("SLOWLOG", "LEN") == 128
        c.call("CONFIG", "SET", "slowlog-max-len", 5)
        assert c.call("SLOWLOG", "LEN") == 5
        c.call("CONFIG", "SET", "slowlog-log-slower-than", -1)
        n = c.call("SLOWLOG", "GET", 1)[0][0]
        c.call("ECHO", "x")
        assert c.call("SLOWLOG", "GET", 1)[0][0] == n
        c.call("CONFIG", "SET", "slowlog-max-len", 0, "slowlog-log-slower-than", 0)
        c.call("ECHO", "x")
        assert c.call("SLOWLOG", "GET") == []
        for name, bad in ("slowlog-max-len", -1), ("slowlog-log-slower-than", -2), ("slowlog-max-len", "x"):
            assert "CONFIG SET failed" in c.error("CONFIG", "SET", name, bad)


@test("a command that holds the main thread is kept with its time")
def _():
    with Server({"slowlog-log-slower-than": 1}, tcp=False) as server, server.connect() as c:
        for i in range(3000):
            c.send("XADD", "k", "*", "text", "x" * 100)
        for i in range(3000):
            c.receive()
        c.call("SLOWLOG", "RESET")
        c.call("XRANGE", "k", "-", "+")
        entry = next(e for e in c.call("SLOWLOG", "GET") if e[3][0] == b"XRANGE")
        assert entry[2] > 1


@test("many and long arguments are cut and say how much is missing")
def _():
    with Server(ALL, tcp=False) as server, server.connect() as c:
        c.call("DEL", "a" * 200, *(f"k{i}" for i in range(100)))
        args = c.call("SLOWLOG", "GET", 1)[0][3]
        assert len(args) == 32 and args[1] == b"a" * 128 + b"... (72 more bytes)"
        assert args[30] == b"k28" and args[31] == b"... (71 more arguments)"
        c.call("DEL", *(f"k{i}" for i in range(31)))
        assert c.call("SLOWLOG", "GET", 1)[0][3][-1] == b"k30"  # 32 fit


@test("EXEC's commands are kept, each, and EXEC is not; neither is what was refused")
def _():
    with Server(ALL, tcp=False) as server, server.connect() as c:
        c.call("SLOWLOG", "RESET")
        c.call("MULTI")
        c.call("ECHO", "in")
        c.call("XLEN", "k")
        c.call("EXEC")
        c.error("NOSUCH")
        c.error("ECHO")
        names = [e[3][0] for e in c.call("SLOWLOG", "GET")]
        assert names == [b"XLEN", b"ECHO", b"MULTI", b"SLOWLOG"], names


@test("prompts and texts are (N bytes) unless log-prompts, passwords never appear")
def _():
    options = {"model": tiny_model(), **ALL}
    with Server(options, tcp=False) as server, server.connect() as c:
        def last():
            return c.call("SLOWLOG", "GET", 1)[0][3]
        for private, words, shown in (
                (True, ("GEN", "k", "secret words", "MAXTOKENS", 1),
                 ["GEN", "k", "(12 bytes)", "(9 bytes)", "(1 bytes)"]),
                (True, ("XADD", "x", "*", "text", "secret words"),
                 ["XADD", "x", "(1 bytes)", "(4 bytes)", "(12 bytes)"]),
                (True, ("TOKENIZE", "secret words"), ["TOKENIZE", "(12 bytes)"]),
                (True, ("CACHE", "PROBE", "secret words"), ["CACHE", "PROBE", "(12 bytes)"]),
                (False, ("XLEN", "x"), ["XLEN", "x"])):
            for show in "no", "yes":
                c.call("CONFIG", "SET", "log-prompts", show)
                c.send(*words)
                c.receive(False)
                expected = shown if private and show == "no" else [str(w) for w in words]
                assert [a.decode() for a in last()] == expected, words
        c.call("CONFIG", "SET", "log-prompts", "yes")
        for words in ("CONFIG", "SET", "requirepass", "hunter2"), ("AUTH", "hunter2"), ("AUTH", "default", "hunter2"), \
                     ("HELLO", "3", "AUTH", "default", "hunter2"):
            c.send(*words)
            c.receive(False)
            assert b"(redacted)" in last(), words
        c.call("CONFIG", "SET", "requirepass", "")
        text = repr(c.call("SLOWLOG", "GET", -1))
        assert "hunter2" not in text and "bytes" not in text.split("requirepass")[1].split("]")[0]


@test("a GEN that computes for long has held the main thread for the length of a command")
def _():
    options = {"model": tiny_model(), "slowlog-max-len": 10**6, **ALL}
    with Server(options, tcp=False, program=TWIN) as server, server.connect() as c, server.connect() as other:
        c.stand_still()
        other.send("GEN", "k", "hello", "MAXTOKENS", 5, "IGNOREEOS")
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it waits")
        c.call("SEAM", "CLOCK", 10**7)  # it computes for ten thousand seconds
        c.go_on()
        other.receive()
        took_us = next(e[2] for e in c.call("SLOWLOG", "GET", -1) if e[3][0] == b"GEN")
        assert took_us < 10**9, took_us  # a thousand: a busy machine does not take so many


@test("LATENCY and MODULE answer that there is nothing, in shapes that clients parse")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        for protocol in 2, 3:
            c.call("HELLO", protocol)
            assert c.call("LATENCY", "LATEST") == [] and c.call("LATENCY", "HISTORY", "command") == []
            assert c.call("LATENCY", "RESET") == 0 and c.call("LATENCY", "RESET", "a", "b") == 0
            assert b"SLOWLOG" in c.call("LATENCY", "DOCTOR")
            assert c.call("LATENCY", "HISTOGRAM", "xadd", "nosuch") == ({} if protocol == 3 else [])
            assert c.call("MODULE", "LIST") == []
        assert c.error("LATENCY", "HISTORY") == "ERR wrong number of arguments for 'latency|history' command"
        assert c.error("MODULE", "LOAD", "/x.so") == "ERR unknown subcommand 'LOAD'. Try MODULE HELP."
        assert c.call("LATENCY", "HELP")[0].startswith("LATENCY") and c.call("MODULE", "HELP")[0].startswith("MODULE")


@test("LATENCY HISTOGRAM and INFO latencystats count every call, until RESETSTAT")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        for i in range(100):
            c.call("ECHO", i)
        c.call("CLIENT", "ID")
        c.error("XLEN")  # refused: no call
        name, flat = c.call("LATENCY", "HISTOGRAM", "echo", "XLEN", "nosuch")
        fields = dict(zip(flat[0::2], flat[1::2]))
        assert name == b"echo" and set(fields) == {b"calls", b"histogram_usec"} and fields[b"calls"] == 100
        edges, counts = fields[b"histogram_usec"][0::2], fields[b"histogram_usec"][1::2]
        assert all(e & (e - 1) == 0 for e in edges) and edges == sorted(edges), edges
        assert counts == sorted(set(counts)) and counts[-1] == 100, counts  # cumulative
        c.call("HELLO", 3)
        assert list(c.call("LATENCY", "HISTOGRAM", "client")) == ["client|id"]
        everything = c.call("LATENCY", "HISTOGRAM")
        assert everything["echo"]["calls"] == 100 and {"hello", "client|id", "latency|histogram"} <= set(everything)
        assert "xlen" not in everything
        text = c.info("latencystats")["latency_percentiles_usec_echo"]
        shown = {k: float(v) for k, v in (word.split("=") for word in text.split(","))}
        assert list(shown) == ["p50", "p99", "p99.9"] and shown["p50"] <= shown["p99"] <= shown["p99.9"], text
        assert "latency_percentiles_usec_xlen" not in c.info("all")
        assert "latency_percentiles_usec_client|id" in c.info("everything")
        c.call("CONFIG", "RESETSTAT")
        assert set(c.call("LATENCY", "HISTOGRAM")) == {"config|resetstat"}


@test("CLUSTER is the error of a Redis without cluster support, whatever the subcommand")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        for words in ("INFO",), ("SLOTS",), ("shards",), ("NODES",), ("MYID",), ("KEYSLOT", "a"), \
                ("NOSUCH",), ("MEET", 1):
            assert c.error("CLUSTER", *words) == "ERR This instance has cluster support disabled", words
        assert c.error("CLUSTER") == "ERR wrong number of arguments for 'cluster' command"
        assert c.error("CLUSTER", "KEYSLOT") == "ERR wrong number of arguments for 'cluster|keyslot' command"


@test("COMMAND knows them all with Redis' flags and categories")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        def about(name):
            info = c.call("COMMAND", "INFO", name)[0]
            return info[1], set(info[2]), tuple(info[3:6]), set(info[6])
        assert about("subscribe") == (-2, {"pubsub", "noscript", "loading", "stale"}, (0, 0, 0), {"@pubsub", "@slow"})
        assert about("unsubscribe")[0] == -1 and about("psubscribe")[1] == about("punsubscribe")[1]
        assert about("publish") == (3, {"pubsub", "loading", "stale", "fast"}, (0, 0, 0), {"@pubsub", "@fast"})
        assert about("watch") == (-2, {"noscript", "loading", "stale", "fast"}, (1, -1, 1), {"@fast", "@transaction"})
        assert about("unwatch")[0] == 1 and about("exec")[1] == {"noscript", "loading", "stale", "skip_slowlog"}
        assert about("slowlog|get") == (-2, {"admin", "loading", "stale"}, (0, 0, 0), {"@admin", "@slow", "@dangerous"})
        assert about("pubsub|numsub") == (-2, {"pubsub", "loading", "stale"}, (0, 0, 0), {"@pubsub", "@slow"})
        assert about("latency|latest")[1] == {"admin", "noscript", "loading", "stale"}
        assert about("cluster|slots")[1] == {"stale"} and about("module|list")[1] == {"admin", "noscript"}
        assert c.call("COMMAND", "GETKEYS", "WATCH", "a", "b") == [b"a", b"b"]
        for name in "subscribe", "watch", "slowlog", "cluster", "pubsub":
            assert c.call("COMMAND", "DOCS", name)[0] == name.encode()


main()
