#!/usr/bin/env python3
"""Few bytes that ask for much, and bytes that try to be a reply.

Servers of the same protocol and of the same kind took big allocations from unauthenticated headers,
used counts from the wire for arrays on the stack, matched patterns in exponential time or by unbounded
recursion, let CR LF in names and generated text forge replies, and let one request fan out until they
stood still.
"""
import os
import resource
import socket
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from forced import byte_ids, end_of, forced, number  # noqa: E402
from kvasir_test import TWIN, Client, ReplyError, Server, is_sanitized, main, test, tiny_model, wait_until  # noqa: E402

# Of the server's main thread: an array of as many pointers as MANY does not fit.
SMALL_STACK = (1 << 20) if is_sanitized() else (512 << 10)


def small_stack_server(options=None):
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (SMALL_STACK, hard))
    try:
        return Server({"proto-max-bulk-len": "16mb", **(options or {})})
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))


def is_fine(c):
    assert c.call("PING") == "PONG"


# ---- counts -----------------------------------------------------------------------------------------

MANY = 200_000
names = [f"n{i}" for i in range(MANY)]

# a command with as many arguments as that, and what its reply must be or hold
WIDE = {
    "XREAD": (["XREAD", "STREAMS", *names, *["0"] * MANY], lambda r: r is None),
    "XREAD that blocks": (["XREAD", "BLOCK", "1", "STREAMS", *names, *["$"] * MANY], lambda r: r is None),
    "XREAD out of balance": (["XREAD", "STREAMS", *names], lambda r: "nbalanced" in str(r) or "Invalid stream ID" in str(r)),
    "FORK": (["FORK", "source", *names], lambda r: r == MANY),
    "FORK, one twice": (["FORK", "source", *names, "n7", "REPLACE"], lambda r: str(r).startswith("ERR")),
    "EXISTS": (["EXISTS", *names], lambda r: r == MANY),
    "TOUCH": (["TOUCH", *names], lambda r: r == MANY),
    "WATCH": (["WATCH", *names], lambda r: r == "OK"),
    "CANCEL": (["CANCEL", *names], lambda r: r == 0),
    "DEL": (["DEL", *names], lambda r: r == MANY),
    "UNLINK": (["UNLINK", *names], lambda r: r == 0),
    "XDEL": (["XDEL", "source", *["1-1"] * MANY], lambda r: r in (0, 1)),
    "XADD": (["XADD", "wide", "*", *names], lambda r: r is not None),
    "CONFIG GET": (["CONFIG", "GET", *names], lambda r: r == []),
    "COMMAND INFO": (["COMMAND", "INFO", *names], lambda r: len(r) == MANY),
    "COMMAND DOCS": (["COMMAND", "DOCS", *names], lambda r: r == []),
    "COMMAND GETKEYS": (["COMMAND", "GETKEYS", "XREAD", "STREAMS", *names, *["0"] * MANY], lambda r: len(r) == MANY),
    "CLIENT LIST": (["CLIENT", "LIST", "ID", *["77777"] * MANY], lambda r: r == b""),
    "an unknown one": (["NOSUCH", *names], lambda r: str(r).startswith("ERR unknown command") and len(str(r)) < 500),
}
WITH_MODEL = {
    "DETOKENIZE": (["DETOKENIZE", *["70"] * MANY], lambda r: r == b"C" * MANY),
    "GEN of stops": (["GEN", "k", "x", *["STOP", "a"] * 100_000], lambda r: str(r) == "ERR GEN has more than 64 STOP"),
    "GEN of biases": (["GEN", "k", "x", *["BIAS", "5", "1"] * 100_000], lambda r: str(r) == "ERR GEN has more than 1024 BIAS"),
    "GEN of unknown options": (["GEN", "k", "x", *names], lambda r: str(r).startswith("ERR unknown GEN option")),
}


def run_wide(server, commands):
    with server.connect() as c, server.connect() as other:
        c.call("XADD", "source", "1-1", "text", "x")
        for name, (command, is_right) in commands.items():
            c.send(*command)
            reply = c.receive(False)
            assert is_right(reply), (name, str(reply)[:200])
            is_fine(other)
        c.call("RESET")
        is_fine(c)


@test("as many arguments as a request may have do not grow the stack")
def _():
    with small_stack_server({"client-query-buffer-limit": "256mb"}) as server:
        run_wide(server, WIDE)


@test("as many options, stops and ids as a request may have do not grow the stack")
def _():
    with small_stack_server({"client-query-buffer-limit": "256mb", "model": tiny_model()}) as server:
        run_wide(server, WITH_MODEL)


@test("before AUTH a header that asks for much is an error and the end, whatever it asks")
def _():
    with Server({"requirepass": "secret"}) as server, server.connect() as c:
        c.call("AUTH", "secret")
        before = number(c, "used_memory_rss")
        for header in (b"*1000000\r\n", b"*11\r\n", b"*2147483647\r\n", b"*1\r\n$500000000\r\n", b"*1\r\n$16385\r\n",
                       b"*2\r\n$4\r\nAUTH\r\n$536870912\r\n"):
            with server.connect() as d:
                d.send_raw(header)
                assert str(d.receive(False)).startswith("ERR Protocol error"), header
                assert d.closed(), header
        assert number(c, "used_memory_rss") - before < 4 << 20


@test("a request nested in a request is an error at its second level")
def _():
    with small_stack_server() as server, server.connect() as c:
        with server.connect() as d:
            d.send_as_much(b"*1\r\n" * 100_000)
            assert str(d.receive(False)) == "ERR Protocol error: expected '$', got '*'"
        is_fine(c)


# ---- patterns ---------------------------------------------------------------------------------------

PATTERNS = {
    "many stars": "a*" * 500 + "b",
    "stars and marks": "*?" * 500 + "b",
    "classes": "*[a-z]" * 500 + "b",
    "classes without an end": "[" * 5000,
    "one class without an end": "*[" + "a" * 5000,
    "ranges the wrong way": "[z-a]" * 500,
    "backslashes": "\\" * 5001,
    "negated classes": "*[^b]" * 500 + "b",
}


@test("hostile patterns cost neither exponential time nor stack, wherever a command takes one")
def _():
    with small_stack_server() as server, server.connect() as c, server.connect() as subscriber:
        c.call("XADD", "a" * 2000, "*", "text", "x")
        subscriber.call("SUBSCRIBE", "a" * 2000)
        # Matches of 2,000 by 1,000 take a fraction of a second; exponential time outlasts any patience.
        for name, pattern in PATTERNS.items():
            for command in (("KEYS", pattern), ("SCAN", 0, "MATCH", pattern, "COUNT", 1000), ("CONFIG", "GET", pattern),
                            ("PUBSUB", "CHANNELS", pattern), ("COMMAND", "LIST", "FILTERBY", "PATTERN", pattern)):
                assert isinstance(c.call(*command), list), (name, command[0])
            subscriber.send("PSUBSCRIBE", pattern)
            subscriber.receive()
            assert c.call("PUBLISH", "a" * 1999, "x") in (0, 1), name


# ---- text that wants to be a reply --------------------------------------------------------------------

FORGED = b"x\r\n+OK\r\n:1\r\n$2\r\nhi\r\n"


@test("CR LF in names and arguments never ends an error line early, whoever repeats them")
def _():
    with Server({"model": tiny_model()}, program=TWIN) as server, server.connect() as c, server.connect() as waiter:
        f = FORGED
        c.call("XADD", f, "1-1", "text", "x")
        c.stand_still()
        waiter.send("GEN", f, "a story", "MAXTOKENS", 1900, "IGNOREEOS")
        wait_until(lambda: c.geninfo(f)["state"] == "running", "it runs")
        for command in (("GEN", f, "another"), ("XADD", f, "*", "a", "b"), ("RENAME", f, "o"), ("MOVE", f, 1), ("XSETID", f, "9-9"),
                        (f,), (f, f, f), ("GEN", "k", "x", f), ("GEN", "k", "x", "TEMP", f), ("GEN", "k", "x", "AS", f),
                        ("GEN", "k", "x", "STOP", ""), ("FORK", f, "d", "AT", f), ("FORK", f, "d", "AT", "7-7"), ("TOKENIZE", "x", f),
                        ("CONFIG", "SET", f, f), ("CONFIG", "SET", "maxmemory-policy", f), ("CONFIG", f), ("CLIENT", f),
                        ("CLIENT", "KILL", f), ("CLIENT", "KILL", "USER", f), ("CLIENT", "LIST", "TYPE", f),
                        ("CLIENT", "SETNAME", f), ("HELLO", 3, f), ("HELLO", 3, "SETNAME", f), ("HELLO", f), ("AUTH", f, f),
                        ("XREAD", "STREAMS", f, f), ("XADD", f, f, "a", "b"), ("SELECT", f),
                        ("OBJECT", f, f), ("DEBUG", f), ("COMMAND", f), ("ACL", f), ("ACL", "CAT", f), ("SCAN", f), ("EXPIRE", f, f),
                        ("MEMORY", f), ("XINFO", f, f), ("CACHE", f), ("CACHE", "PROBE", "x", "AS", f), ("SLOWLOG", f),
                        ("CLUSTER", f), ("LATENCY", f), ("PUBSUB", f), ("EVAL", f), ("GET", f), ("MODULE", f)):
            c.send(*command)
            line = c.receive(False)
            assert isinstance(line, ReplyError), (command, line)
            c.send("ECHO", "next")
            assert c.receive() == b"next", command
        assert c.call("CANCEL", f) == 1
        error = str(waiter.receive(False))
        assert error.startswith("CANCELLED") and "\r" not in error, error
        waiter.send("GEN", f, "", "DEADLINE", 1, "MAXTOKENS", 1900)
        waiter.receive(False)
        waiter.send("PING")
        assert waiter.receive() == "PONG"


@test("generated CR LF, a stop string and an ID with CR LF come as lengths and bytes in both protocols")
def _():
    text = b"a\r\n+OKb"
    with Server({"model": tiny_model(), "piece-interval": 0}) as server:
        for protocol in (2, 3):
            with server.connect() as c:
                c.call("HELLO", protocol)
                c.call("FLUSHALL")
                say = [*forced(byte_ids(text)), "MAXTOKENS", len(text), "IGNOREEOS"]
                assert c.call("GEN", "k", "x", *say, "ID", FORGED) == text
                assert end_of(c, "k")["id"].encode() == FORGED
                last = c.call("GEN", "s", "x", *say, "STOP", "\r\n+OKb", "ASYNC")
                pieces, end = c.wait_end("s", last)
                assert pieces == b"a" and end["matched"] == "\r\n+OKb", (pieces, end)
                assert str(c.error("GEN", "k", "other", "ID", FORGED)).startswith("ERR ")
                is_fine(c)


# ---- who sends and does not wait ----------------------------------------------------------------------


@test("behind a GEN only so much is read; the sender is held back, and answered in the end")
def _():
    options = {"model": tiny_model(), "client-query-buffer-limit": "1mb"}
    with Server(options, program=TWIN) as server, server.connect() as c, server.connect() as d:
        n, command = 200, Client.encode("ECHO", "x" * 100_000)
        c.stand_still()
        d.send("GEN", "k", "x", "MAXTOKENS", 1500, "IGNOREEOS")
        sender = threading.Thread(target=lambda: d.send_raw(command * n))
        sender.start()
        wait_until(lambda: number(c, "client_recent_max_input_buffer") >= 1 << 20, "the limit to be parked")
        assert number(c, "client_recent_max_input_buffer") <= 4 << 20 and sender.is_alive()
        assert c.call("CANCEL", "k") == 1
        assert str(d.receive(False)).startswith("CANCELLED")
        for _ in range(n):
            assert len(d.receive()) == 100_000
        sender.join()


@test("readers that have stopped reading take no step from a generation beside them")
def _():
    # the soft limit's time would close them on a slow machine
    options = {"model": tiny_model(), "piece-interval": 0, "client-output-buffer-limit": "normal 64mb 0 0"}
    with Server(options) as server, server.connect() as c:
        def steps():
            c.call("DEL", "lone")
            c.call("CACHE", "CLEAR")
            before = number(c, "steps")
            c.call("GEN", "lone", "x", "MAXTOKENS", 200, "IGNOREEOS", "TEMP", 0)
            return number(c, "steps") - before

        alone = steps()
        c.call("XADD", "big", "*", "text", "y" * 20000)
        stuck = []
        for _ in range(50):
            client = server.connect(tcp=True)
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send_raw(Client.encode("XRANGE", "big", "-", "+") * 500)
            stuck.append(client)
        assert steps() == alone
        memory = [int(line.split(b"tot-mem=")[1].split()[0]) for line in c.call("CLIENT", "LIST").splitlines()]
        assert len(memory) == 51 and max(memory) < 3 << 20, memory
        for client in stuck:
            client.close()


main()
