#!/usr/bin/env python3
"""Pub/Sub and keyspace notifications over real sockets: shapes, modes, slow readers, events of keys."""
import os
import shutil
import subprocess
import sys

from kvasir_test import PATIENCE_S, Client, Closed, Server, Skip, main, test, tiny_model, wait_until

CONTEXT = ("only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this context")


class Subscriber(Client):
    """A client that keeps apart what is pushed and what is an ordinary array."""

    def __init__(self, server, protocol):
        super().__init__(server.socket_path)
        if protocol == 3:
            self.call("HELLO", 3)
        self.mark = b">" if protocol == 3 else b"*"

    def pushed(self):
        while not self.buffer:
            self._fill()
        assert self.buffer[:1] == self.mark, self.buffer[:80]
        return self.receive()


def each_protocol(options=None):
    def decorate(function):
        def run():
            for protocol in 2, 3:
                with Server(options, tcp=False) as server, server.connect() as c, \
                        Subscriber(server, protocol) as s:
                    function(server, c, s, protocol)
        return run
    return decorate


@test("SUBSCRIBE and its kin confirm each name with the number of subscriptions")
@each_protocol()
def _(server, c, s, protocol):
    s.send("SUBSCRIBE", "a", "b", "a")
    s.send("PSUBSCRIBE", "x*")
    assert [s.pushed() for _ in range(4)] == [[b"subscribe", b"a", 1], [b"subscribe", b"b", 2],
                                              [b"subscribe", b"a", 2], [b"psubscribe", b"x*", 3]]
    for words, replies in ((["UNSUBSCRIBE", "none"], [[b"unsubscribe", b"none", 3]]),
                           (["unsubscribe"], [[b"unsubscribe", b"a", 2], [b"unsubscribe", b"b", 1]]),
                           (["UNSUBSCRIBE"], [[b"unsubscribe", None, 1]]),
                           (["PUNSUBSCRIBE", "x*", "y"], [[b"punsubscribe", b"x*", 0], [b"punsubscribe", b"y", 0]]),
                           (["PUNSUBSCRIBE"], [[b"punsubscribe", None, 0]])):
        s.send(*words)
        assert [s.pushed() for _ in replies] == replies, words
    assert s.call("PING") == "PONG"
    assert s.error("SUBSCRIBE") == "ERR wrong number of arguments for 'subscribe' command"


@test("a message reaches channels and patterns, PUBLISH counts both, names and texts are bytes")
@each_protocol()
def _(server, c, s, protocol):
    name, text = b"ne\r\nws\x00\xff", b"+OK\r\n:1\r\n" * 3
    s.send("SUBSCRIBE", name, "other")
    s.send("PSUBSCRIBE", "n*", "*s*", "q*")
    for _ in range(5):
        s.pushed()
    assert c.call("PUBLISH", "nobody", "x") == 1 and s.pushed() == [b"pmessage", b"n*", b"nobody", b"x"]
    assert c.call("PUBLISH", "zz", "x") == 0
    assert c.call("PUBLISH", name, text) == 3
    assert s.pushed() == [b"message", name, text]
    assert sorted([s.pushed(), s.pushed()]) == [[b"pmessage", b"*s*", name, text], [b"pmessage", b"n*", name, text]]
    assert c.call("PUBLISH", "other", "") == 1 and s.pushed() == [b"message", b"other", b""]
    assert c.error("PUBLISH", "a") == "ERR wrong number of arguments for 'publish' command"
    with Client(server.socket_path) as late:  # in the order in which they subscribed, once each
        late.send("SUBSCRIBE", "other")
        late.receive()
        assert c.call("PUBLISH", "other", "2") == 2
        assert late.receive() == s.pushed() == [b"message", b"other", b"2"]


@test("RESP2: a subscribed connection takes the commands of that mode only, and leaves it again")
@each_protocol()
def _(server, c, s, protocol):
    s.send("SUBSCRIBE", "a")
    s.pushed()
    if protocol == 3:
        assert s.call("PING") == "PONG" and s.call("PING", "x") == b"x"
        assert s.call("XADD", "k", "1-1", "text", "x") == b"1-1"
        assert s.call("MULTI") == "OK" and s.call("DISCARD") == "OK"
    else:
        assert s.call("PING") == [b"pong", b""] and s.call("PING", "x") == [b"pong", b"x"]
        for words in ("XLEN", "k"), ("MULTI",), ("EXEC",), ("PUBLISH", "a", "x"), ("HELLO", 3):
            assert s.error(*words) == f"ERR Can't execute '{words[0].lower()}': {CONTEXT}"
        assert s.error("CONFIG", "GET", "port") == f"ERR Can't execute 'config|get': {CONTEXT}"
        assert s.error("NOSUCH") == "ERR unknown command 'NOSUCH', with args beginning with: "
        assert s.error("PING", 1, 2).startswith("ERR wrong number of arguments")
    assert c.call("PUBLISH", "a", "x") == 1 and s.pushed()[0] == b"message"
    s.send("UNSUBSCRIBE", "a")
    s.pushed()
    assert s.call("XLEN", "k") == (protocol == 3)


@test("RESET, QUIT and a closed connection end subscriptions")
@each_protocol()
def _(server, c, s, protocol):
    s.send("SUBSCRIBE", "a", "b")
    s.send("PSUBSCRIBE", "c*")
    for _ in range(3):
        s.pushed()
    assert c.call("PUBSUB", "NUMSUB", "a", "b", "zz") == [b"a", 1, b"b", 1, b"zz", 0]
    assert s.call("RESET") == "RESET" and s.call("XLEN", "k") == 0
    assert c.call("PUBSUB", "NUMSUB", "a") == [b"a", 0] and c.call("PUBSUB", "NUMPAT") == 0
    s.send("SUBSCRIBE", "a")
    assert s.receive() == [b"subscribe", b"a", 1]
    s.send_raw(Client.encode("QUIT") + Client.encode("PING"))
    assert s.receive() == "OK" and s.closed()
    wait_until(lambda: c.call("PUBSUB", "CHANNELS") == [], "QUIT ends it")
    for end in "close", "half":
        other = server.connect()
        other.send("SUBSCRIBE", "a")
        other.receive()
        assert c.call("PUBSUB", "CHANNELS") == [b"a"]
        other.close() if end == "close" else other.socket.shutdown(1)
        wait_until(lambda: c.call("PUBSUB", "CHANNELS") == [], end)
        other.close()


@test("PUBSUB CHANNELS NUMSUB NUMPAT HELP, CLIENT LIST and INFO know subscribers")
@each_protocol()
def _(server, c, s, protocol):
    with Client(server.socket_path) as other:
        for each, words in (s, ("SUBSCRIBE", "news", "new", "old")), (other, ("SUBSCRIBE", "new")), \
                           (s, ("PSUBSCRIBE", "p*")), (other, ("PSUBSCRIBE", "p*", "q*")):
            each.send(*words)
            for _ in words[1:]:
                each.receive()
        assert sorted(c.call("PUBSUB", "CHANNELS")) == [b"new", b"news", b"old"]
        assert sorted(c.call("PUBSUB", "CHANNELS", "n*")) == [b"new", b"news"]
        assert c.call("PUBSUB", "NUMSUB") == [] and c.call("PUBSUB", "NUMSUB", "new") == [b"new", 2]
        assert c.call("PUBSUB", "NUMPAT") == 2
        assert c.call("PUBSUB", "HELP")[0].startswith("PUBSUB <subcommand>")
        assert c.error("PUBSUB", "CHANNELS", "a", "b") == \
            "ERR unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP."
        assert c.error("PUBSUB", "FOO") == "ERR unknown subcommand 'FOO'. Try PUBSUB HELP."
        assert c.error("PUBSUB", "NUMPAT", "x") == "ERR wrong number of arguments for 'pubsub|numpat' command"
        info = c.info("stats", "clients")
        assert info["pubsub_channels"] == "3" and info["pubsub_patterns"] == "2"
        lines = [line for line in c.call("CLIENT", "LIST").decode().split("\n") if " flags=PU " in line]
        assert info["pubsub_clients"] == "2"
        for kind, n in ("pubsub", 2), ("NORMAL", 1), ("master", 0), ("replica", 0):
            assert c.call("CLIENT", "LIST", "TYPE", kind).count(b"id=") == n, kind
        assert c.error("CLIENT", "LIST", "TYPE", "x") == "ERR Unknown client type 'x'"
        assert sorted((" sub=3 " in line, " psub=1 " in line) for line in lines) == [(False, False), (True, True)]


@test("inside MULTI: queued, confirmed in the place of a reply; own messages never inside EXEC's array")
@each_protocol()
def _(server, c, s, protocol):
    s.send("MULTI")
    s.send("PUBLISH", "a", "none")
    s.send("SUBSCRIBE", "a", "b")
    s.send("PUBLISH", "a", "mine")
    assert [s.receive() for _ in range(4)] == ["OK", "QUEUED", "QUEUED", "QUEUED"]
    s.send("EXEC")
    while b"\r\n" not in s.buffer:
        s._fill()
    assert s.buffer.startswith(b"*3\r\n")
    s._line()
    assert s.receive() == 0
    assert s.pushed() == [b"subscribe", b"a", 1] and s.pushed() == [b"subscribe", b"b", 2]
    assert s.receive() == 1 and s.pushed() == [b"message", b"a", b"mine"]
    if protocol == 3:
        s.send_raw(b"".join(Client.encode(*w) for w in (("MULTI",), ("PUBLISH", "a", "1"), ("PING",), ("EXEC",))))
        assert [s.receive() for _ in range(4)] == ["OK", "QUEUED", "QUEUED", [1, "PONG"]]
        assert s.pushed() == [b"message", b"a", b"1"]
        s.send("PUBLISH", "b", "2")
        assert s.receive() == 1 and s.pushed() == [b"message", b"b", b"2"]


@test("a RESP3 client gets messages while it waits in XREAD, and its reply after them")
def _():
    with Server(tcp=False) as server, server.connect() as c, Subscriber(server, 3) as s:
        s.send("SUBSCRIBE", "a")
        s.pushed()
        s.send_raw(Client.encode("PING") + Client.encode("XREAD", "BLOCK", 0, "STREAMS", "k", "$"))
        assert s.receive() == "PONG"
        for i in range(3):
            assert c.call("PUBLISH", "a", i) == 1
            assert s.pushed() == [b"message", b"a", b"%d" % i]
        c.call("XADD", "k", "1-1", "text", "x")
        assert s.receive() == {"k": [[b"1-1", [b"text", b"x"]]]}


@test("who does not read is closed at the hard limit, nobody else waits, memory is bounded")
def _():
    options = {"client-output-buffer-limit": "pubsub 1mb 0 0"}
    with Server(options, tcp=False) as server, server.connect() as c, server.connect() as slow, \
            server.connect() as good:
        for each in slow, good:
            each.send("SUBSCRIBE", "a")
            each.receive()
        text, n, got = "x" * 50000, 0, []
        while c.call("PUBLISH", "a", text) == 2:
            n += 1
            good.receive()
            assert n < 200, "it is never closed"
        good.receive()
        assert n >= 20  # a megabyte had room
        wait_until(lambda: c.call("PUBSUB", "NUMSUB", "a")[1] == 1, "the slow one has left")
        assert c.info("stats")["client_output_buffer_limit_disconnections"] == "1"
        assert "bytes of messages unread" in server.log()
        try:
            while True:
                got.append(slow.receive())
        except Closed:
            pass
        assert got and all(m == [b"message", b"a", text.encode()] for m in got)  # whole ones, then the end
        for _ in range(5):  # bursts below the limit do not close who reads
            c.send_raw(b"".join(Client.encode("PUBLISH", "a", text) for _ in range(15)))
            assert all(good.receive() == [b"message", b"a", text.encode()] for _ in range(15))
            assert [c.receive() for _ in range(15)] == [1] * 15


@test("who is over the soft limit for too long is closed; the limit of a class is set alone")
def _():
    with Server(tcp=False) as server, server.connect() as c, server.connect() as slow:
        assert c.call("CONFIG", "GET", "client-output-buffer-limit")[1] == \
            b"normal 67108864 1048576 60 slave 268435456 67108864 60 pubsub 33554432 8388608 60"
        c.call("CONFIG", "SET", "client-output-buffer-limit", "pubsub 0 100kb 0")
        assert c.call("CONFIG", "GET", "client-output-buffer-limit")[1] == \
            b"normal 67108864 1048576 60 slave 268435456 67108864 60 pubsub 0 102400 0"
        for bad in "pubsub 1mb 0", "foo 1 1 1", "pubsub -1 0 0", "", "pubsub 1mb 0 0 normal 1":
            assert "client-output-buffer-limit must be 'CLASS HARD SOFT SECONDS ...'" in \
                c.error("CONFIG", "SET", "client-output-buffer-limit", bad), bad
        slow.send("SUBSCRIBE", "a")
        slow.receive()
        for _ in range(30):
            c.call("PUBLISH", "a", "x" * 50000)
        wait_until(lambda: c.call("PUBSUB", "CHANNELS") == [], "it is closed")


@test("CLIENT KILL of a subscriber, by another one and by itself, in the middle of messages")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        for by_self in False, True:
            s = Subscriber(server, 3)
            number = s.call("CLIENT", "ID")
            s.send("SUBSCRIBE", "a")
            s.pushed()
            killer = s if by_self else c
            kill = Client.encode("CLIENT", "KILL", "ID", number, "SKIPME", "no")
            publish = Client.encode("PUBLISH", "a", "x")
            killer.send_raw(publish + kill + publish + (b"" if by_self else Client.encode("PUBSUB", "NUMSUB", "a")))
            if not by_self:
                assert [c.receive() for _ in range(3)] == [1, 1, 0]  # it gets nothing any more
                c.receive()
            assert s.closed()
            wait_until(lambda: c.call("PUBSUB", "CHANNELS") == [], "its subscription goes")
            s.close()


@test("CLIENT REPLY OFF and SKIP let messages and confirmations through, as Redis does")
@each_protocol()
def _(server, c, s, protocol):
    s.send("CLIENT", "REPLY", "OFF")
    s.send("PING")
    s.send("SUBSCRIBE", "a")
    assert s.pushed() == [b"subscribe", b"a", 1]
    assert c.call("PUBLISH", "a", "x") == 1 and s.pushed() == [b"message", b"a", b"x"]
    if protocol == 3:
        s.send("PUBLISH", "a", "mine")
        assert s.pushed() == [b"message", b"a", b"mine"]
        assert s.call("CLIENT", "REPLY", "ON") == "OK"
        s.send("CLIENT", "REPLY", "SKIP")
        s.send("PUBLISH", "a", "again")
        assert s.pushed() == [b"message", b"a", b"again"] and s.call("PING") == "PONG"


@test("an idle subscriber is not closed by timeout")
def _():
    with Server(tcp=False) as server, server.connect() as s, server.connect() as idle:
        s.send("SUBSCRIBE", "a")
        s.receive()
        idle.call("CONFIG", "SET", "timeout", 1)
        assert idle.closed()  # a second later; the subscriber was idle before it
        with server.connect() as c:
            assert c.call("PUBLISH", "a", "x") == 1 and s.receive() == [b"message", b"a", b"x"]


@test("before AUTH nothing of it runs; a message to a client that is going is not sent")
def _():
    with Server({"requirepass": "pw"}, tcp=False) as server, server.connect() as c:
        for words in ("SUBSCRIBE", "a"), ("PUBLISH", "a", "b"), ("PUBSUB", "NUMPAT"):
            assert c.error(*words) == "NOAUTH Authentication required."
        c.call("AUTH", "pw")
        c.send("SUBSCRIBE", "a")
        assert c.receive() == [b"subscribe", b"a", 1]
        assert c.call("RESET") == "RESET"
        assert c.error("PUBLISH", "a", "b") == "NOAUTH Authentication required."


@test("thousands of subscriptions of one client, by hundreds in one command, and a hostile pattern")
def _():
    with Server(tcp=False) as server, server.connect() as c, server.connect() as s:
        for kind in "SUBSCRIBE", "PSUBSCRIBE":
            for start in range(0, 5000, 500):
                s.send(kind, *(f"{kind}{i}" for i in range(start, start + 500)))
                for _ in range(500):
                    s.receive()
        assert len(c.call("PUBSUB", "CHANNELS")) == 5000 and c.call("PUBSUB", "NUMPAT") == 5000
        assert c.call("PUBLISH", "PSUBSCRIBE77", "x") == 1
        s.receive()
        s.send("PSUBSCRIBE", "a*" * 3000 + "b")
        s.receive()
        assert c.call("PUBLISH", "a" * 4000, "x") == 0
        s.send("UNSUBSCRIBE")
        assert [s.receive()[2] for _ in range(5000)] == list(range(10000, 5000, -1))
        s.close()
        wait_until(lambda: c.call("PUBSUB", "NUMPAT") == 0, "all are gone")


# ---- keyspace notifications -----------------------------------------------------------------------


def events(s, c):
    """The event names so far, of both kinds of channel; a message of our own marks the end."""
    c.call("PUBLISH", "__keyend", "")
    seen = []
    while True:
        _, _, channel, text = (part.decode() for part in s.receive())
        if channel == "__keyend":
            return seen
        seen.append(channel.split("__:")[1] + "=" + text)


@test("notify-keyspace-events: letters, canonical print, wrong ones; off by default")
@each_protocol()
def _(server, c, s, protocol):
    def get():
        return c.call("CONFIG", "GET", "notify-keyspace-events")[1]
    s.send("PSUBSCRIBE", "__key*")
    s.receive()
    c.call("XADD", "k", "*", "text", "x")
    assert events(s, c) == [] and get() == b""
    for given, shown in ("KEA", b"AKE"), ("Elg", b"glE"), ("KEAnm", b"AnKEm"), ("", b""), ("Kx", b"xK"):
        assert c.call("CONFIG", "SET", "notify-keyspace-events", given) == "OK" and get() == shown
    assert c.error("CONFIG", "SET", "notify-keyspace-events", "KEq") == \
        "ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - " \
        "Invalid event class character. Use 'Ag$lshzxeKEtmdn'."
    assert get() == b"xK"
    for letters, expected in ("Kg", ["k=del"]), ("Eg", ["del=k"]), ("KEg", ["k=del", "del=k"]), ("Et", ["xadd=k"]), \
                             ("A", []), ("KE", []), ("En", ["new=k"]), ("Em", ["keymiss=k", "keymiss=k"]):
        c.call("CONFIG", "SET", "notify-keyspace-events", letters)
        c.call("DEL", "k")
        c.call("XLEN", "k")
        c.call("TYPE", "k")
        c.call("XADD", "k", "*", "text", "x")
        assert events(s, c) == expected, letters


@test("events of key commands have Redis' names and order, in the database they happened in")
def _():
    with Server({"notify-keyspace-events": "EAn"}, tcp=False) as server, server.connect() as c, \
            Subscriber(server, 3) as s:
        s.send("PSUBSCRIBE", "__key*")
        s.pushed()
        for line, expected in (("XADD s 1-1 a b", "new=s xadd=s"), ("XADD s MAXLEN 1 2-1 a b", "xadd=s xtrim=s"),
                               ("XDEL s 9-9", ""), ("XDEL s 2-1", "xdel=s"), ("XADD s 3-1 a b", "xadd=s"),
                               ("XADD s 3-2 a b", "xadd=s"), ("XTRIM s MAXLEN 1", "xtrim=s"), ("XTRIM s MAXLEN 1", ""),
                               ("RENAME s t", "new=t rename_from=s rename_to=t"), ("COPY t u", "new=u copy_to=u"),
                               ("COPY t u REPLACE", "new=u copy_to=u"), ("COPY t u", ""),
                               ("FORK t v w", "new=v copy_to=v new=w copy_to=w"),
                               ("RENAME t u", "new=u rename_from=t rename_to=u"),
                               ("EXPIRE u 100", "expire=u"), ("PERSIST u", "persist=u"), ("PERSIST u", ""),
                               ("EXPIRE u -1", "del=u"), ("EXPIRE u 5", ""), ("DEL v zz w", "del=v del=w"),
                               ("XADD s 1-1 a b", "new=s xadd=s"), ("XSETID s 9-9", "xsetid=s"),
                               ("RENAMENX s t", "new=t rename_from=s rename_to=t"), ("FLUSHALL", "")):
            c.send(*line.split(" "))
            c.receive()
            assert " ".join(events(s, c)) == expected, line
        s.send("PSUBSCRIBE", "__keyevent@3__:*")  # a second pattern: those events come twice
        s.pushed()
        c.call("XADD", "m", "1-1", "a", "b")
        assert events(s, c) == ["new=m", "xadd=m"] and c.call("MOVE", "m", 3) == 1
        assert sorted(events(s, c)) == ["move_from=m", "move_to=m", "move_to=m", "new=m", "new=m"]
        c.call("SWAPDB", 0, 3)
        assert events(s, c) == []
        c.call("SELECT", 3)
        c.call("XADD", "s", "1-1", "a", "b")
        assert s.pushed()[2] == s.pushed()[2] == b"__keyevent@3__:new"
        assert s.pushed()[2] == s.pushed()[2] == b"__keyevent@3__:xadd"
        c.call("PEXPIRE", "s", 1)
        for name in b"expire", b"expired":  # nobody asks for the key
            assert s.pushed()[2] == s.pushed()[2] == b"__keyevent@3__:" + name


@test("GEN: xadd for prompt and end, gen-end at the end, none for pieces; a doorbell for clients without XREAD")
def _():
    options = {"model": tiny_model(), "notify-keyspace-events": "KEA", "piece-interval": 0}
    with Server(options, tcp=False) as server, server.connect() as c, Subscriber(server, 3) as s, \
            server.connect() as bell:
        s.send("PSUBSCRIBE", "__keye*")
        s.pushed()
        bell.send("SUBSCRIBE", "__keyspace@0__:k")
        bell.receive()
        start = c.call("GEN", "k", "hello", "MAXTOKENS", 20, "IGNOREEOS", "ASYNC")
        while bell.receive()[2] != b"gen-end":
            pass
        assert c.fields(c.call("XREVRANGE", "k", "+", "-", "COUNT", 1)[0])["finish"] == "length"
        assert len(c.call("XREAD", "STREAMS", "k", start)[0][1]) > 3  # there were pieces
        assert events(s, c) == ["xadd=k", "xadd=k", "gen-end=k"]
        c.call("GEN", "k", "more", "MAXTOKENS", 1000, "IGNOREEOS", "ASYNC")
        c.call("CANCEL", "k")
        assert events(s, c) == ["xadd=k", "xadd=k", "gen-end=k"]
        c.call("GEN", "k", "again", "MAXTOKENS", 1000, "IGNOREEOS", "ASYNC")
        c.call("DEL", "k")
        assert events(s, c) == ["xadd=k", "xadd=k", "gen-end=k", "del=k"]
        assert c.error("GEN", "k", "x", "TEMP", -1) and events(s, c) == []
        assert c.error("GEN", "k") and events(s, c) == []


@test("a key that goes for maxmemory tells `evicted`, and spoils who WATCHes it")
def _():
    options = {"notify-keyspace-events": "Ee", "maxmemory-policy": "allkeys-lru"}
    with Server(options, tcp=False) as server, server.connect() as c, Subscriber(server, 3) as s:
        s.send("PSUBSCRIBE", "__keyevent*")
        s.pushed()
        c.call("XADD", "k", "*", "text", "x" * 100000)
        c.call("WATCH", "k")
        with server.connect() as other:
            other.call("CONFIG", "SET", "maxmemory", 1000)
            assert s.pushed() == [b"pmessage", b"__keyevent*", b"__keyevent@0__:evicted", b"k"]
            other.call("CONFIG", "SET", "maxmemory", 0)
        c.call("MULTI")
        assert c.call("EXEC") is None


# ---- other people's client ------------------------------------------------------------------------

REDIS_PY = """
import sys, redis
PATIENCE = float(sys.argv[2])
for protocol in 2, 3:
    try:
        r = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True, protocol=protocol)
    except TypeError:
        r = redis.Redis(unix_socket_path=sys.argv[1], decode_responses=True)
    r.config_set('notify-keyspace-events', 'KEA')
    p = r.pubsub(ignore_subscribe_messages=True)
    p.subscribe('a')
    p.psubscribe('__keyevent@0__:*')
    assert p.get_message(timeout=PATIENCE) is None and p.get_message(timeout=PATIENCE) is None
    assert r.publish('a', 'hi') == 1
    m = p.get_message(timeout=PATIENCE)
    assert (m['type'], m['channel'], m['data']) == ('message', 'a', 'hi'), m
    r.xadd('k', {'text': 'x'})
    m = p.get_message(timeout=PATIENCE)
    assert (m['type'], m['channel'], m['data']) == ('pmessage', '__keyevent@0__:xadd', 'k'), m
    assert r.pubsub_channels() == ['a'] and r.pubsub_numsub('a') == [('a', 1)] and r.pubsub_numpat() == 1
    with r.pipeline() as pipe:
        pipe.watch('k')
        r.xadd('k', {'text': 'y'})
        pipe.multi()
        pipe.xlen('k')
        try:
            pipe.execute()
            raise SystemExit('no WatchError')
        except redis.WatchError:
            pass
    assert r.slowlog_len() >= 0 and isinstance(r.slowlog_get(), list) and r.slowlog_reset()
    for words in ('LATENCY LATEST',), ('LATENCY HISTORY', 'x'), ('MODULE LIST',):
        assert r.execute_command(*words) == [], words
    p.unsubscribe()
    p.punsubscribe()
    p.close()
    r.flushall()
print('fine', redis.__version__)
"""


def redis_py(python):
    if not python or subprocess.run([python, "-c", "import redis"], capture_output=True, check=False).returncode:
        raise Skip("redis-py is not installed")
    with Server(tcp=False) as server:
        done = subprocess.run([python, "-c", REDIS_PY, server.socket_path, str(PATIENCE_S)], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        assert done.stdout.startswith("fine"), done.stdout + done.stderr


@test("redis-py of Debian subscribes, hears events of keys, WATCHes, reads the slow log")
def _():
    redis_py("/usr/bin/python3")


@test("redis-py of the index does so too")
def _():
    redis_py(os.environ.get("KVASIR_CLIENT_PYTHON"))


@test("redis-cli prints messages in both protocols")
def _():
    if not shutil.which("redis-cli"):
        raise Skip("redis-cli is not installed")
    with Server(tcp=False) as server, server.connect() as c:
        for protocol in "-2", "-3":
            cli = subprocess.Popen(["redis-cli", "-s", server.socket_path, protocol, "PSUBSCRIBE", "n*"],
                                   stdout=subprocess.PIPE, text=True)
            try:
                wait_until(lambda: c.call("PUBSUB", "NUMPAT") == 1, "it subscribes")
                assert c.call("PUBLISH", "news", "hello there") == 1
                lines = "".join(cli.stdout.readline() for _ in range(7)).split("\n")
                assert lines[:3] == ["psubscribe", "n*", "1"], lines
                assert lines[3:7] == ["pmessage", "n*", "news", "hello there"], lines
            finally:
                cli.kill()
                cli.wait()
                cli.stdout.close()
            wait_until(lambda: c.call("PUBSUB", "NUMPAT") == 0, "it has left")


main()
