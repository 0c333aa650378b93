#!/usr/bin/env python3
"""The protocol over real sockets: byte streams of others, cuts, limits, handshakes, RESP2 and RESP3."""
import glob
import os
import socket
import threading

from kvasir_test import SOURCE, Client, Closed, Server, Skip, is_sanitized, main, test, wait_until

STREAMS = os.path.join(os.environ["KVASIR_WORKLOADS"], "resp") if "KVASIR_WORKLOADS" in os.environ \
    else os.path.join(SOURCE, "tests", "fuzz", "seeds", "resp")


def stream(name):
    with open(os.path.join(STREAMS, name + ".resp"), "rb") as f:
        return f.read()


def answer(client, data, cut=None):
    """All that the server says to these bytes; the sending side is closed behind them."""
    try:
        client.send_raw(data[:cut])
        if cut is not None:
            client.send_raw(data[cut:])
        client.socket.shutdown(socket.SHUT_WR)
    except OSError:
        pass  # closed by the server in the middle: what it said is what counts
    try:
        while True:
            client._fill()
    except Closed:
        return client.buffer


@test("ok_* streams are answered as Redis does and the link lives")
def _():
    with Server(tcp=False) as server:
        expected = {
            "ok_binary_arg": b"$4\r\n\0\r\n\xff\r\n", "ok_empty_line": b"+PONG\r\n",
            "ok_neg_multibulk": b"+PONG\r\n", "ok_null_bulk_arg": b"$0\r\n\r\n",
            "ok_ping_inline": b"+PONG\r\n", "ok_ping_lf_only": b"+PONG\r\n",
            "ok_pipeline_3": b"+PONG\r\n" * 3, "ok_zero_multibulk": b"+PONG\r\n",
        }
        for name, reply in expected.items():
            with server.connect() as c:
                c.send_raw(stream(name))
                while len(c.buffer) < len(reply):
                    c._fill()
                assert c.buffer == reply, (name, c.buffer)
                c.buffer = b""
                assert c.call("PING") == "PONG", name


@test("bad_* streams get at most one error line, then the link is closed; others are served")
def _():
    with Server(tcp=False) as server, server.connect() as other:
        for path in sorted(glob.glob(os.path.join(STREAMS, "bad_*.resp"))):
            name = os.path.basename(path)[:-5]
            with server.connect() as c:
                said = answer(c, stream(name))
            if name == "bad_http_post":
                assert said == b"", said  # a browser sees nothing
            else:
                assert said.startswith(b"-ERR Protocol error: ") and said.endswith(b"\r\n"), (name, said)
                assert said.count(b"\r\n") == 1, (name, said)
            assert other.call("PING") == "PONG"
        assert "FLUSHALL" not in server.log()


@test("a bad request closes the link also while the client keeps it open")
def _():
    with Server(tcp=False) as server:
        for data in (b"*abc\r\n", b"*1\r\nfoo\r\n", b"*1\r\n$4\r\nPINGXX"):
            with server.connect() as c:
                c.send_raw(data)
                assert c.closed()
                assert c.buffer.startswith(b"-ERR Protocol error")


@test("short streams are answered the same wherever they are cut")
def _():
    with Server(tcp=False) as server:
        for path in sorted(glob.glob(os.path.join(STREAMS, "*.resp"))):
            data = stream(os.path.basename(path)[:-5])
            if len(data) > 100 or b"HELLO" in data:  # HELLO's reply holds the client's number
                continue
            with server.connect() as c:
                whole = answer(c, data)
            for cut in range(1, len(data)):
                with server.connect() as c:
                    assert answer(c, data, cut) == whole, (path, cut)


@test("an error line never holds what a client could forge a reply with")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        error = c.error("NO\r\n+OK\r\n", "a\r\nb", "\x00")
        assert error == "ERR unknown command 'NO  +OK  ', with args beginning with: 'a  b' ' ' ", repr(error)
        assert c.call("PING") == "PONG"
        long = c.error("x" * 100000, "y" * 100000)
        assert len(long) < 400, len(long)


@test("ten thousand commands in one packet get ten thousand replies, and others are served meanwhile")
def _():
    with Server(tcp=False) as server, server.connect() as c, server.connect() as other:
        c.send_raw(b"PING\r\n" * 10000)
        assert other.call("PING") == "PONG"
        for _ in range(10000):
            assert c.receive() == "PONG"


@test("a request may come byte by byte, several in one packet, and split in every command")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        for byte in Client.encode("ECHO", "hello\r\nthere"):
            c.send_raw(bytes([byte]))
        assert c.receive() == b"hello\r\nthere"


@test("HELLO switches the protocol, reports it, and fails without changing anything")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        flat = c.call("HELLO")
        assert flat[0::2] == [b"server", b"version", b"proto", b"id", b"mode", b"role", b"modules"]
        assert flat[5] == 2 and flat[1] == b"redis"
        assert c.error("HELLO", 999) == "NOPROTO unsupported protocol version"
        assert c.error("HELLO", "x") == "ERR Protocol version is not an integer or out of range"
        assert c.error("HELLO", 3, "FOO").startswith("ERR Syntax error in HELLO option 'FOO'")
        assert c.error("HELLO", 3, "SETNAME", "a b").startswith("ERR Client names")
        assert c.call("HELLO")[5] == 2
        assert c.error("HELLO", 3, "AUTH", "default").startswith("ERR Syntax error")
        reply = c.call("HELLO", 3, "SETNAME", "me", "AUTH", "default", "whatever")
        assert reply["proto"] == 3 and reply["modules"] == []
        assert c.call("CLIENT", "GETNAME") == b"me"
        assert isinstance(c.call("CONFIG", "GET", "port"), dict)
        assert c.call("HELLO", 2)[5] == 2


@test("RESET is as a new connection")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        c.call("HELLO", 3)
        c.call("CLIENT", "SETNAME", "x")
        c.call("SELECT", 3)
        c.call("MULTI")
        assert c.call("RESET") == "RESET"
        assert c.call("CLIENT", "GETNAME") is None
        assert c.call("HELLO")[5] == 2
        assert b" db=0 " in c.call("CLIENT", "INFO")


@test("QUIT answers, then closes; what is behind it is not run")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        c.send_raw(b"QUIT\r\nPING\r\n")
        assert c.closed() and c.buffer == b"+OK\r\n"


@test("before AUTH: ten arguments of 16 KiB, then an error and the end")
def _():
    with Server({"requirepass": "secret"}, tcp=False) as server:
        for name in ("unauth_11_args", "unauth_bulk_16385"):
            with server.connect() as c:
                said = answer(c, stream(name))
                assert said.startswith(b"-ERR Protocol error: unauthenticated"), said
        with server.connect() as c:
            assert c.error("PING") == "NOAUTH Authentication required."
            assert c.error(*["x"] * 10).startswith("ERR unknown command")
            assert c.error("HELLO", 3).startswith("NOAUTH HELLO must be called")
            assert c.error("AUTH", "wrong").startswith("WRONGPASS")
            assert c.error("AUTH", "other", "secret").startswith("WRONGPASS")
            assert c.error("AUTH", "a", "b", "c") == "ERR syntax error"
            c.send("AUTH", "nope")
            c.send("PING")
            c.send("AUTH", "secret")
            c.send("PING")
            replies = [c.receive(False) for _ in range(4)]
            assert str(replies[0]).startswith("WRONGPASS") and str(replies[1]).startswith("NOAUTH")
            assert replies[2:] == ["OK", "PONG"], replies
        with server.connect() as c:
            assert c.call("HELLO", 3, "AUTH", "default", "secret")["proto"] == 3
        assert "secret" not in server.log()


@test("a client that never authenticates and never reads is bounded and closed")
def _():
    with Server({"requirepass": "secret"}, tcp=False) as server, server.connect() as watcher:
        watcher.call("AUTH", "secret")
        with server.connect() as c:
            c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            try:
                for _ in range(200):
                    c.send_raw(stream("unauth_flood_ping_5000"))
                raise AssertionError("a million unread replies were taken")
            except (BrokenPipeError, ConnectionResetError):
                pass
        assert int(watcher.info("clients")["client_recent_max_output_buffer"]) < 300000


@test("AUTH without a configured password is refused as Redis does")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        assert c.error("AUTH", "x").startswith("ERR AUTH <password> called without any password configured")
        assert c.call("AUTH", "default", "x") == "OK"


@test("maxclients refuses with a text that clients know")
def _():
    with Server({"maxclients": 3}, tcp=False) as server:
        clients = [server.connect() for _ in range(3)]
        assert [c.call("PING") for c in clients] == ["PONG"] * 3
        with server.connect() as c:
            assert c.closed() and c.buffer == b"-ERR max number of clients reached\r\n", c.buffer
        clients.pop().close()
        wait_until(lambda: clients[0].info("clients")["connected_clients"] == "2", "the place is free")
        with server.connect() as c:
            assert c.call("PING") == "PONG"
        for c in clients:
            c.close()


@test("protected mode serves the loopback interface")
def _():
    with Server({"bind": "127.0.0.1"}) as server, server.connect(tcp=True) as c:
        assert c.call("PING") == "PONG"
        assert b"addr=127.0.0.1:" in c.call("CLIENT", "INFO")


def other_address():
    """An address of this machine that is not loopback, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        try:
            s.connect(("192.0.2.1", 9))
            return s.getsockname()[0]
        except OSError:
            return None


@test("protected mode refuses others with -DENIED until a password is set")
def _():
    address = other_address()
    if not address or address.startswith("127."):
        raise Skip("this machine has no address but loopback")
    with Server({"bind": "*"}) as server:
        with Client((address, server.port)) as c:
            c.send("PING")
            assert c.closed() and c.buffer.startswith(b"-DENIED "), c.buffer
            assert c.buffer.count(b"\r\n") == 1
        with server.connect() as local:
            local.call("CONFIG", "SET", "requirepass", "pw")
        with Client((address, server.port)) as c:
            assert c.call("AUTH", "pw") == "OK"


@test("a header that promises much costs nothing")
def _():
    with Server(tcp=False) as server, server.connect() as watcher:
        before = int(watcher.info("memory")["mem_clients_normal"])
        clients = []
        for _ in range(50):
            c = server.connect()
            c.send_raw(b"*1048576\r\n$16000000\r\nabc")
            clients.append(c)
        wait_until(lambda: watcher.info("clients")["connected_clients"] == "51", "all are connected")
        after = int(watcher.info("memory")["mem_clients_normal"])
        assert (after - before) / 50 < 8192, (before, after)
        for c in clients:
            c.close()


@test("a request over client-query-buffer-limit is an error and the end of the link")
def _():
    with Server({"client-query-buffer-limit": "1mb"}, tcp=False) as server, server.connect() as c:
        c.send_as_much(c.encode("ECHO", "x" * 1100000))
        assert c.closed() and b"over client-query-buffer-limit" in c.buffer, c.buffer[:100]
        with server.connect() as d:  # many small arguments count with what keeps them
            d.send_raw(b"*200000\r\n$4\r\nECHO\r\n")
            d.send_as_much(b"$1\r\nx\r\n" * 100000)
            assert d.closed() and b"over client-query-buffer-limit" in d.buffer, d.buffer[:100]


@test("a bulk over proto-max-bulk-len is refused by its header")
def _():
    with Server({"proto-max-bulk-len": "1mb"}, tcp=False) as server, server.connect() as c:
        assert len(c.call("ECHO", "x" * 1048576)) == 1048576
        c.send_raw(b"*2\r\n$4\r\nECHO\r\n$1048577\r\n")
        assert c.closed() and c.buffer == b"-ERR Protocol error: invalid bulk length\r\n"


@test("who does not read is parsed no further, and loses nothing when it reads again")
def _():
    with Server(tcp=False) as server, server.connect() as c, server.connect() as watcher:
        n, text = 400, "x" * 10000
        sender = threading.Thread(target=lambda: c.send_raw(Client.encode("ECHO", text) * n))
        sender.start()
        wait_until(lambda: int(watcher.info("clients")["client_recent_max_output_buffer"]) > 1 << 20,
                   "the unread replies pass 1 MiB")
        assert int(watcher.info("clients")["client_recent_max_output_buffer"]) < 4 << 20
        for _ in range(n):
            assert len(c.receive()) == 10000
        sender.join()


@test("a client over the soft limit for its time is closed")
def _():
    options = {"client-output-buffer-limit": "normal 64mb 100kb 0"}
    with Server(options, tcp=False) as server, server.connect() as c, server.connect() as watcher:
        c.send_as_much(Client.encode("ECHO", "x" * 1000000) * 3)
        wait_until(lambda: watcher.info("clients")["connected_clients"] == "1", "it is closed")
        assert watcher.info("stats")["client_output_buffer_limit_disconnections"] == "1"


@test("an idle client is closed after timeout")
def _():
    with Server({"timeout": 1}, tcp=False) as server, server.connect() as c:
        assert c.closed() and b"idle" in c.buffer, c.buffer


@test("a reset or half-closed socket is cleaned up")
def _():
    with Server() as server, server.connect() as watcher:
        for how in ("reset", "half", "close"):
            c = server.connect(tcp=True)
            assert c.call("PING") == "PONG"
            if how == "reset":
                c.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            if how == "half":
                c.send("PING")
                c.socket.shutdown(socket.SHUT_WR)
                assert c.receive() == "PONG" and c.closed()
            c.close()
            wait_until(lambda: watcher.info("clients")["connected_clients"] == "1", how)


@test("idle connections are cheap: under 16 KiB each, buffers gone after use")
def _():
    with Server(tcp=False) as server, server.connect() as watcher:
        clients = [server.connect() for _ in range(300)]
        for c in clients:
            assert len(c.call("ECHO", "x" * 20000)) == 20000
        memory = int(watcher.info("memory")["mem_clients_normal"])
        assert memory / 301 < 4096, memory
        rss = int(watcher.info("memory")["used_memory_rss"])
        more = [server.connect() for _ in range(300)]
        for c in more:
            c.call("PING")
        grown = int(watcher.info("memory")["used_memory_rss"]) - rss
        if not is_sanitized():
            assert grown / 300 < 16384, grown
        for c in clients + more:
            c.close()


main()
