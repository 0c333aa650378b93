#!/usr/bin/env python3
"""CLIENT: who is connected, KILL, UNBLOCK, PAUSE, REPLY, and what drivers probe for."""
import time

from kvasir_test import TWIN, Server, main, test, tiny_model, wait_until


def one_server(function):
    def run():
        with Server(tcp=False) as server, server.connect() as c:
            function(server, c)
    return run


def with_model(function):
    """A model that makes no step: what generates does so for as long as a test needs."""
    def run():
        options = {"model": tiny_model(), "orphan-timeout": "200ms"}
        with Server(options, tcp=False, program=TWIN) as server, server.connect() as c:
            c.stand_still()
            function(server, c)
    return run


LONG = ("MAXTOKENS", 100000, "IGNOREEOS")


def client_line(c, client_id):
    text = c.call("CLIENT", "LIST", "ID", client_id).decode()
    return dict(word.split("=", 1) for word in text.strip().split(" ")) if text else None


def blocked(c, client_id):
    line = client_line(c, client_id)
    return line is not None and "b" in line["flags"]


def start_gen(server, c, key, *options):
    """A second connection that waits in a GEN; its id."""
    other = server.connect()
    other_id = other.call("CLIENT", "ID")
    other.send("GEN", key, "hello", *LONG, *options)
    wait_until(lambda: blocked(c, other_id), "the GEN blocks")
    c.stop_at(1, key)
    return other, other_id


@test("CLIENT LIST: filters by id and type, bad ones refused")
@one_server
def _(server, c):
    with server.connect() as d:
        c_id, d_id = c.call("CLIENT", "ID"), d.call("CLIENT", "ID")
        d.call("CLIENT", "SETNAME", "worker")
        assert len(c.call("CLIENT", "LIST").splitlines()) == 2
        assert client_line(c, d_id)["name"] == "worker"
        assert len(c.call("CLIENT", "LIST", "ID", c_id, d_id, 999).splitlines()) == 2
        assert c.call("CLIENT", "LIST", "ID", 999) == b""
        assert len(c.call("client", "list", "type", "NORMAL").splitlines()) == 2
        for kind in ("master", "replica", "slave", "pubsub"):
            assert c.call("CLIENT", "LIST", "TYPE", kind) == b"", kind
    with server.connect() as d, server.connect() as e:
        d_id = d.call("CLIENT", "ID")
        d.call("SUBSCRIBE", "channel")
        assert c.call("CLIENT", "LIST", "TYPE", "pubsub").startswith(b"id=%d " % d_id)
        assert f"id={d_id} " not in c.call("CLIENT", "LIST", "TYPE", "normal").decode()
        assert c.call("CLIENT", "KILL", "TYPE", "pubsub") == 1 and d.closed()
        assert e.call("PING") == "PONG" and c.call("PUBLISH", "channel", "x") == 0
    assert c.error("CLIENT", "LIST", "TYPE", "foo") == "ERR Unknown client type 'foo'"
    assert c.error("CLIENT", "LIST", "ID", "x") == "ERR Invalid client ID"
    assert c.error("CLIENT", "LIST", "FOO") == "ERR syntax error"
    assert c.error("CLIENT", "LIST", "ID") == "ERR syntax error"


@test("CLIENT INFO is a line of its own, verbatim in RESP3")
@one_server
def _(server, c):
    line = c.call("CLIENT", "INFO").decode()
    assert line.startswith("id=") and line.endswith("\n") and " cmd=client|info " in line, line
    for word in ("addr=", "laddr=", "name=", "db=0", "sub=0", "multi=-1", "user=default", "resp=2",
                 "lib-name=", "lib-ver="):
        assert f" {word}" in line, (word, line)
    c.call("HELLO", 3)
    c.send("CLIENT", "INFO")
    header = c._line()
    assert header[:1] == b"=" and c._bytes(int(header[1:])).startswith(b"txt:id=")


@test("CLIENT KILL: every filter, the old form, SKIPME, and bad ones")
@one_server
def _(server, c):
    def fresh():
        d = server.connect()
        return d, d.call("CLIENT", "ID")

    d, d_id = fresh()
    assert c.call("CLIENT", "KILL", "ID", d_id) == 1 and d.closed()
    assert c.call("CLIENT", "KILL", "ID", d_id) == 0
    d, d_id = fresh()
    address = client_line(c, d_id)["addr"]
    local = client_line(c, d_id)["laddr"]
    assert c.call("CLIENT", "KILL", "ID", d_id, "ADDR", address, "LADDR", local, "TYPE", "normal",
                  "USER", "default", "SKIPME", "yes") == 1 and d.closed()
    d, d_id = fresh()
    assert c.call("CLIENT", "KILL", "ID", d_id, "TYPE", "pubsub") == 0 and d.call("PING") == "PONG"
    assert c.call("CLIENT", "KILL", "ID", d_id, "ADDR", "1.2.3.4:5") == 0
    assert c.call("CLIENT", "KILL", "ID", d_id, "LADDR", "1.2.3.4:5") == 0
    assert c.call("CLIENT", "KILL", "TYPE", "normal") == 1 and d.closed()  # not itself
    assert c.call("CLIENT", "KILL", "ID", c.call("CLIENT", "ID")) == 0
    assert c.error("CLIENT", "KILL", "1.2.3.4:5") == "ERR No such client"
    assert c.error("CLIENT", "KILL", "ID", 0) == "ERR client-id should be greater than 0"
    assert c.error("CLIENT", "KILL", "ID", "x") == "ERR client-id should be greater than 0"
    assert c.error("CLIENT", "KILL", "TYPE", "foo") == "ERR Unknown client type 'foo'"
    assert c.error("CLIENT", "KILL", "USER", "foo") == "ERR No such user 'foo'"
    assert c.error("CLIENT", "KILL", "SKIPME", "maybe") == "ERR syntax error"
    assert c.error("CLIENT", "KILL", "ID", 1, "ADDR") == "ERR syntax error"
    assert c.error("CLIENT", "KILL", "FOO", "bar") == "ERR syntax error"
    assert c.call("PING") == "PONG"


@test("CLIENT KILL over TCP by address; of oneself: the reply comes, then the end")
def _():
    with Server() as server, server.connect(tcp=True) as c, server.connect(tcp=True) as d:
        line = client_line(c, d.call("CLIENT", "ID"))
        assert line["addr"] == "127.0.0.1:%d" % d.socket.getsockname()[1]
        assert line["laddr"] == f"127.0.0.1:{server.port}"
        assert c.call("CLIENT", "KILL", line["addr"]) == "OK" and d.closed()
        with server.connect(tcp=True) as e:
            assert e.call("CLIENT", "KILL", "ID", e.call("CLIENT", "ID"), "SKIPME", "no") == 1
            assert e.closed()
        with server.connect(tcp=True) as e:
            me = "127.0.0.1:%d" % e.socket.getsockname()[1]
            e.send_raw(e.encode("CLIENT", "KILL", me) + e.encode("PING"))
            assert e.receive() == "OK" and e.closed() and not e.buffer  # PING was not run
        assert c.call("CLIENT", "KILL", "LADDR", f"127.0.0.1:{server.port}") == 0
        assert c.call("PING") == "PONG"


@test("CLIENT KILL of the only waiter of a GEN starts the orphan clock")
@with_model
def _(server, c):
    other, other_id = start_gen(server, c, "k")
    assert c.call("CLIENT", "KILL", "ID", other_id) == 1
    assert other.closed() and not other.buffer
    wait_until(lambda: c.geninfo("k")["state"] == "idle", "nobody waits, it ends")
    assert c.geninfo("k")["finish"] == "orphaned"
    assert c.call("DEBUG", "AUDIT") == "OK"


@test("CLIENT KILL and UNBLOCK of a blocked XREAD; of who does not wait")
@one_server
def _(server, c):
    for how, expected in ((("UNBLOCK",), None), (("UNBLOCK", "TIMEOUT"), None),
                          (("UNBLOCK", "ERROR"), "UNBLOCKED client unblocked via CLIENT UNBLOCK")):
        with server.connect() as d:
            d_id = d.call("CLIENT", "ID")
            d.send_raw(d.encode("XREAD", "BLOCK", 0, "STREAMS", "k", "$") + d.encode("PING"))
            wait_until(lambda: blocked(c, d_id), "XREAD blocks")
            assert c.call("CLIENT", how[0], d_id, *how[1:]) == 1
            if expected is None:
                assert d._line() == b"*-1"
            else:
                assert str(d.receive(False)) == expected
            assert d.receive() == "PONG"  # what was parked goes on
            assert c.call("CLIENT", "UNBLOCK", d_id) == 0
    with server.connect() as d:
        d_id = d.call("CLIENT", "ID")
        d.send("XREAD", "BLOCK", 0, "STREAMS", "k", "$")
        wait_until(lambda: blocked(c, d_id), "XREAD blocks")
        assert c.call("CLIENT", "KILL", "ID", d_id) == 1 and d.closed()
        assert c.call("XADD", "k", "*", "text", "x")  # wakes nobody
    assert c.call("CLIENT", "UNBLOCK", 999) == 0
    assert c.error("CLIENT", "UNBLOCK", "x") == "ERR value is not an integer or out of range"
    assert c.error("CLIENT", "UNBLOCK", 1, "SOON") == \
        "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"
    assert c.error("CLIENT", "UNBLOCK", 1, "ERROR", 2) == \
        "ERR unknown subcommand or wrong number of arguments for 'UNBLOCK'. Try CLIENT HELP."


@test("CLIENT UNBLOCK of a GEN: null or error, and it counts as gone")
@with_model
def _(server, c):
    other, other_id = start_gen(server, c, "a")
    assert c.call("CLIENT", "UNBLOCK", other_id) == 1 and other._line() == b"$-1"
    wait_until(lambda: c.geninfo("a")["finish"] == "orphaned", "its orphan clock ran")
    assert other.call("PING") == "PONG"
    other, other_id = start_gen(server, c, "b", "WITHINFO")
    assert c.call("CLIENT", "UNBLOCK", other_id, "TIMEOUT") == 1 and other._line() == b"*-1"
    other, other_id = start_gen(server, c, "c")
    assert c.call("CLIENT", "UNBLOCK", other_id, "ERROR") == 1
    assert str(other.receive(False)).startswith("UNBLOCKED ")
    other.call("HELLO", 3)
    other.send("GEN", "d", "hello", *LONG)
    wait_until(lambda: blocked(c, other_id), "the GEN blocks")
    assert c.call("CLIENT", "UNBLOCK", other_id) == 1 and other._line() == b"_"
    wait_until(lambda: c.geninfo("d")["finish"] == "orphaned", "the last one ends, too")
    assert c.call("DEBUG", "AUDIT") == "OK"


@test("CLIENT REPLY OFF, SKIP, ON: exactly these replies are missing")
@one_server
def _(server, c):
    c.send("CLIENT", "REPLY", "SKIP")
    c.send("PING", "skipped")
    assert c.call("PING", "seen") == b"seen"
    c.send("CLIENT", "REPLY", "OFF")
    c.send("PING", "1")
    c.send("NOSUCH")
    c.send("XADD", "k", "*", "text", "x")
    assert c.call("CLIENT", "REPLY", "ON") == "OK"
    assert c.call("XLEN", "k") == 1  # it ran
    c.send("CLIENT", "REPLY", "OFF")
    c.send("CLIENT", "REPLY", "SKIP")
    assert c.call("CLIENT", "REPLY", "ON") == "OK"
    assert c.call("PING") == "PONG"
    assert c.error("CLIENT", "REPLY", "MAYBE") == "ERR syntax error"
    c.send("CLIENT", "REPLY", "OFF")
    c.send("RESET")
    assert c.receive() == "RESET"  # which ends it


@test("CLIENT REPLY SKIP swallows the answer of a blocked GEN")
@with_model
def _(server, c):
    with server.connect() as d:
        c.go_on()
        d.send("CLIENT", "REPLY", "SKIP")
        d.send("GEN", "k", "hello", "MAXTOKENS", 5)
        d.send("PING", "after")
        assert d.receive() == b"after"
    assert c.geninfo("k")["state"] == "idle" and c.call("XLEN", "k") == 2


@test("CLIENT PAUSE WRITE: writes wait, reads run, EXEC by what it holds, UNPAUSE ends it")
@one_server
def _(server, c):
    c.call("XADD", "k", "*", "text", "x")
    with server.connect() as d, server.connect() as e, server.connect() as f:
        e.call("MULTI")
        e.call("XLEN", "k")
        f.call("MULTI")
        f.call("XADD", "k", "*", "text", "z")
        assert c.call("CLIENT", "PAUSE", 10**6, "WRITE") == "OK"
        d_id = d.call("CLIENT", "ID")
        d.send_raw(d.encode("XADD", "k", "*", "text", "y") + d.encode("XLEN", "k"))
        f.send("EXEC")
        assert c.call("XLEN", "k") == 1 and e.call("EXEC") == [1]
        wait_until(lambda: c.info("clients")["paused_clients"] == "2", "two wait")
        assert c.call("CANCEL", "k") == 0  # a write that is never held back
        assert c.call("CLIENT", "UNBLOCK", d_id) == 0
        assert c.call("CLIENT", "UNPAUSE") == "OK"
        d.receive()
        assert len(f.receive()) == 1 and d.receive() in (2, 3)
    assert c.call("XLEN", "k") == 3


@test("CLIENT PAUSE ALL: everything but CANCEL, UNPAUSE and SHUTDOWN waits, up to its time")
@one_server
def _(server, c):
    with server.connect() as d:
        start = time.monotonic()  # before: the pause ends 300 ms later at the earliest
        assert c.call("CLIENT", "PAUSE", 300) == "OK"
        assert d.call("CANCEL", "k") == 0
        assert d.call("PING") == "PONG"
        assert time.monotonic() - start >= 0.3
        assert c.call("CLIENT", "PAUSE", 10**9, "ALL") == "OK"
        d.send("PING")
        assert c.call("CLIENT", "UNPAUSE") == "OK" and d.receive() == "PONG"
    assert c.error("CLIENT", "PAUSE", "x") == "ERR timeout is not an integer or out of range"
    assert c.error("CLIENT", "PAUSE", -1) == "ERR timeout is negative"
    assert c.error("CLIENT", "PAUSE", 2**63 - 1) == "ERR timeout is out of range"
    assert c.error("CLIENT", "PAUSE", 1, "SOME") == "ERR CLIENT PAUSE mode must be WRITE or ALL"
    assert c.call("CLIENT", "UNPAUSE") == "OK"


@test("who goes while paused has not run his command; SIGTERM ends a pause")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        assert c.call("CLIENT", "PAUSE", 10**9, "WRITE") == "OK"
        with server.connect() as d:
            d.send("XADD", "gone", "*", "text", "x")
            wait_until(lambda: c.info("clients")["paused_clients"] == "1", "it waits")
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "it is gone")
        d = server.connect()
        d.send("XADD", "held", "*", "text", "x")
        wait_until(lambda: c.info("clients")["paused_clients"] == "1", "it waits")
        assert c.call("EXISTS", "gone", "held") == 0
        assert server.terminate() == 0
        assert str(d.receive(False)).startswith("ERR the server is shutting down")


@test("CLIENT PAUSE ALL holds AUTH back without closing who sent it; refusals are told at once")
def _():
    with Server({"requirepass": "secret"}, tcp=False) as server, server.connect() as c:
        c.call("AUTH", "secret")
        assert c.call("CLIENT", "PAUSE", 10**9, "ALL") == "OK"
        with server.connect() as d:
            assert d.error("PING") == "NOAUTH Authentication required."
            assert d.error("NOSUCH").startswith("ERR unknown command")
            d.send("AUTH", "secret")
            d.send("PING")
            assert c.call("CLIENT", "UNPAUSE") == "OK"
            assert d.receive() == "OK" and d.receive() == "PONG"


@test("CLIENT PAUSE lets generations end and readers hear of it")
@with_model
def _(server, c):
    other, _ = start_gen(server, c, "k")
    assert c.call("CLIENT", "PAUSE", 10**9, "ALL") == "OK"
    assert c.call("CANCEL", "k") == 1
    assert str(other.receive(False)).startswith("CANCELLED ")
    assert c.call("CLIENT", "UNPAUSE") == "OK"


@test("CLIENT NO-TOUCH leaves idle times alone, TOUCH does not; NO-EVICT is shown")
@one_server
def _(server, c):
    assert c.call("CLIENT", "NO-EVICT", "ON") == "OK" and c.call("CLIENT", "NO-TOUCH", "on") == "OK"
    flags = client_line(c, c.call("CLIENT", "ID"))["flags"]
    assert "e" in flags and "T" in flags, flags
    c.call("XADD", "k", "*", "text", "x")
    wait_until(lambda: c.call("OBJECT", "IDLETIME", "k") >= 1, "a second passes")
    c.call("XRANGE", "k", "-", "+")
    c.call("XREAD", "STREAMS", "k", 0)
    c.call("XLEN", "k")
    c.call("TYPE", "k")
    assert c.call("OBJECT", "IDLETIME", "k") >= 1
    assert c.transaction(("TOUCH", "k", "missing"), ("OBJECT", "IDLETIME", "k")) == [1, 0]
    wait_until(lambda: c.call("OBJECT", "IDLETIME", "k") >= 1, "a second passes")
    assert c.call("CLIENT", "NO-TOUCH", "OFF") == "OK" and c.call("CLIENT", "NO-EVICT", "OFF") == "OK"
    assert c.transaction(("XRANGE", "k", "-", "+"), ("OBJECT", "IDLETIME", "k"))[1] == 0
    assert c.error("CLIENT", "NO-TOUCH", "x") == "ERR syntax error"
    assert c.error("CLIENT", "NO-EVICT", "x") == "ERR syntax error"


@test("CLIENT TRACKING is an error, and what asks about it says off")
@one_server
def _(server, c):
    assert c.error("CLIENT", "TRACKING", "ON").startswith("ERR ")
    assert c.error("CLIENT", "TRACKING", "MAYBE") == "ERR syntax error"
    assert c.call("CLIENT", "TRACKING", "OFF") == "OK"
    assert c.error("CLIENT", "CACHING", "YES").startswith("ERR CLIENT CACHING can be called only")
    assert c.error("CLIENT", "CACHING", "x") == "ERR syntax error"
    assert c.call("CLIENT", "GETREDIR") == -1
    assert c.call("CLIENT", "TRACKINGINFO") == [b"flags", [b"off"], b"redirect", -1, b"prefixes", []]
    c.call("HELLO", 3)
    assert c.call("CLIENT", "TRACKINGINFO") == {"flags": [b"off"], "redirect": -1, "prefixes": []}
    assert c.error("CLIENT", "MAINT_NOTIFICATIONS", "ON") == \
        "ERR unknown subcommand 'MAINT_NOTIFICATIONS'. Try CLIENT HELP."


if __name__ == "__main__":
    main()
