#!/usr/bin/env python3
"""WATCH and UNWATCH over real sockets: what makes EXEC answer null, and what does not."""
from kvasir_test import TWIN, Server, main, test, tiny_model, wait_until


def two_clients(options=None, program="kvasir-server"):
    def decorate(function):
        def run():
            for protocol in 2, 3:
                with Server(options, tcp=False, program=program) as server, server.connect() as c, \
                        server.connect() as other:
                    c.call("HELLO", protocol)
                    function(server, c, other)
        return run
    return decorate


def transact(c):
    """[PONG] when a transaction of one PING runs, None when EXEC answers null."""
    c.call("MULTI")
    c.call("PING")
    return c.call("EXEC")


@test("each write of a watched key makes EXEC null; null is *-1 or _")
@two_clients()
def _(server, c, other):
    for line in ("XADD k 1-1 a b", "XADD k 2-1 a b", "XDEL k 1-1", "XTRIM k MAXLEN 0", "XADD k 3-1 a b", "EXPIRE k 100",
                 "PERSIST k", "XADD o 1-1 a b", "COPY o k REPLACE", "RENAME k o", "RENAME o k", "FORK k q",
                 "FORK q k REPLACE", "DEL k"):
        c.call("WATCH", "k")
        other.call(*line.split(" "))
        expected = None if "k" in line.split(" ")[1:] and line not in ("XADD o 1-1 a b", "FORK k q") else ["PONG"]
        if line == "XTRIM k MAXLEN 0":
            expected = None
        assert transact(c) == expected, line
        assert transact(c) == ["PONG"], line  # EXEC has forgotten it
    c.call("WATCH", "k")
    other.call("XADD", "k", "1-1", "a", "b")
    c.call("MULTI")
    c.send("EXEC")
    while b"\r\n" not in c.buffer:
        c._fill()
    assert c.buffer in (b"*-1\r\n", b"_\r\n")


@test("what changes nothing does not count: reads, refused commands, other keys and databases")
@two_clients()
def _(server, c, other):
    c.call("XADD", "k", "5-1", "a", "b")
    c.call("WATCH", "k", "k", "none")
    for line in ("XLEN k", "XRANGE k - +", "XREAD STREAMS k 0", "TYPE k", "TTL k", "XADD k 1-1 a b", "XDEL k 9-9",
                 "XTRIM k MAXLEN 10", "PERSIST k", "DEL none", "EXPIRE none 1", "COPY k copy", "RENAME none other",
                 "XADD else 1-1 a b", "GEN k hello", "CANCEL k", "EXPIRE k 5 XX"):
        other.send(*line.split(" "))
        other.receive(False)
    other.call("SELECT", 1)
    other.call("XADD", "k", "1-1", "a", "b")
    other.call("FLUSHDB")
    assert transact(c) == ["PONG"]


@test("UNWATCH, DISCARD, EXEC and RESET forget; WATCH keeps the database it was said in")
@two_clients()
def _(server, c, other):
    for i, forget in enumerate((("UNWATCH",), ("MULTI",), ("RESET",))):
        c.call("WATCH", "k")
        other.call("XADD", "k", f"{i + 1}-1", "a", "b")
        c.call(*forget)
        if forget == ("MULTI",):
            c.call("DISCARD")
        assert transact(c) == ["PONG"], forget
    c.call("WATCH", "k")
    c.call("SELECT", 2)
    assert transact(c) == ["PONG"]
    c.call("WATCH", "k")
    c.call("SELECT", 0)
    c.call("XADD", "k", "*", "a", "b")
    assert transact(c) == ["PONG"]  # that was another k
    c.call("WATCH", "k")
    c.call("SELECT", 2)
    other.call("XADD", "k", "*", "a", "b")
    assert transact(c) is None
    c.call("SELECT", 0)
    c.call("WATCH", "k")
    c.call("XADD", "k", "*", "a", "b")
    assert transact(c) is None  # its own write before MULTI counts


@test("inside MULTI: WATCH is an error that spoils nothing, UNWATCH is queued and too late")
@two_clients()
def _(server, c, other):
    c.call("MULTI")
    assert c.error("WATCH", "k") == "ERR WATCH inside MULTI is not allowed"
    assert c.call("PING") == "QUEUED" and c.call("EXEC") == ["PONG"]
    c.call("WATCH", "k")
    other.call("XADD", "k", "1-1", "a", "b")
    c.call("MULTI")
    assert c.call("UNWATCH") == "QUEUED" and c.call("EXEC") is None
    assert c.error("WATCH") == "ERR wrong number of arguments for 'watch' command"
    assert c.error("UNWATCH", "k") == "ERR wrong number of arguments for 'unwatch' command"
    c.call("WATCH", "k")
    other.call("DEL", "k")
    c.call("MULTI")
    assert c.error("NOSUCH").startswith("ERR unknown command")
    assert c.error("EXEC").startswith("EXECABORT")  # before null, as in Redis


@test("expiry between WATCH and EXEC makes it null; a key that had expired before does not")
@two_clients(program=TWIN)
def _(server, c, other):
    other.call("XADD", "k", "1-1", "a", "b")
    other.call("EXPIRE", "k", 10_000)
    c.call("WATCH", "k")
    other.call("SEAM", "CLOCK", 10_000_001)
    wait_until(lambda: other.call("EXISTS", "k") == 0, "it expires")
    assert transact(c) is None
    other.call("XADD", "k", "1-1", "a", "b")
    other.call("PEXPIRE", "k", 1)
    wait_until(lambda: other.call("EXISTS", "k") == 0, "it expires")
    c.call("WATCH", "k")
    assert transact(c) == ["PONG"]


@test("FLUSHDB and FLUSHALL touch keys that exist")
@two_clients()
def _(server, c, other):
    for flush in "FLUSHDB", "FLUSHALL":
        c.call("WATCH", "k")
        other.call(flush)
        assert transact(c) == ["PONG"]
        other.call("XADD", "k", "1-1", "a", "b")
        c.call("WATCH", "k")
        other.call(flush)
        assert transact(c) is None
    c.call("WATCH", "k")
    other.call("XADD", "k", "1-1", "a", "b")
    other.call("DEL", "k")
    assert transact(c) is None  # made and removed again


@test("SWAPDB and MOVE touch names that exist in either database")
@two_clients()
def _(server, c, other):
    other.call("XADD", "k", "1-1", "a", "b")
    c.call("SELECT", 1)
    for name, expected in ("none", ["PONG"]), ("k", None), ("k", None):  # it comes, and it goes
        c.call("WATCH", name)
        other.call("SWAPDB", 0, 1)
        assert transact(c) == expected, name
    other.call("SELECT", 1)  # where k is now, after three swaps
    for home, away in (1, 0), (0, 1):
        c.call("WATCH", "k")
        other.call("SELECT", home)
        assert other.call("MOVE", "k", away) == 1
        assert transact(c) is None


@test("compare and append: of clients that WATCH, read and write one key, each counts once")
def _():
    with Server(tcp=False) as server:
        clients = [server.connect() for _ in range(5)]
        done = [0] * 5
        while min(done) < 10:
            for c in clients:
                c.send("WATCH", "n")
                c.send("XLEN", "n")
                c.send("MULTI")
                c.send("XADD", "n", "*", "text", "x")
                c.send("EXEC")
            for i, c in enumerate(clients):
                ok, seen, multi, queued, result = (c.receive() for _ in range(5))
                done[i] += result is not None
        assert clients[0].call("XLEN", "n") == sum(done)


@test("a GEN's prompt and its end touch the key, its pieces do not")
@two_clients({"model": tiny_model(), "piece-interval": 0}, TWIN)
def _(server, c, other):
    other.call("XADD", "k", "*", "text", "once")
    c.call("WATCH", "k")
    other.stand_still()
    start = other.call("GEN", "k", "hello", "MAXTOKENS", 100000, "IGNOREEOS", "ASYNC")
    assert transact(c) is None  # the prompt
    c.call("WATCH", "k")
    other.step_until(lambda: len((other.call("XREAD", "STREAMS", "k", start) or [[0, []]])[0][1]) >= 3, "three pieces")
    assert transact(c) == ["PONG"]
    c.call("WATCH", "k")
    assert other.call("CANCEL", "k") == 1
    assert transact(c) is None  # the end
    other.go_on()
    c.call("WATCH", "k")
    assert c.call("MULTI") == "OK" and c.call("GEN", "k", "x", "MAXTOKENS", 1) == "QUEUED"
    assert len(c.call("EXEC")) == 1  # nobody else wrote
    c.call("WATCH", "k")
    wait_until(lambda: other.geninfo("k")["state"] == "idle", "the GEN ends")


@test("watchers that close leave nothing behind")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        for i in range(50):
            with server.connect() as w:
                w.call("WATCH", *(f"k{j}" for j in range(i + 1)))
                if i % 2:
                    c.call("XADD", f"k{i}", "*", "a", "b")
        c.call("FLUSHALL")
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "all have left")


main()
