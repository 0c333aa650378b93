#!/usr/bin/env python3
"""Commands that need no model: keys, expiry, streams, transactions, introspection, configuration."""
import os
import socket
import subprocess
import tempfile
import threading
import time

from kvasir_test import (BUILD, PATIENCE_S, SOURCE, Client, ReplyError, Server, main, test, tiny_model,
                         wait_until)

INVALID_ID = "ERR Invalid stream ID specified as stream command argument"
NOT_INT = "ERR value is not an integer or out of range"


def one_server(function):
    def run():
        with Server(tcp=False) as server, server.connect() as c:
            function(server, c)
    return run


def add(c, key, *fields):
    return c.call("XADD", key, "*", *(fields or ("text", "x")))


@test("wrong numbers of arguments and unknown subcommands have Redis' texts")
@one_server
def _(server, c):
    assert c.error("XLEN") == "ERR wrong number of arguments for 'xlen' command"
    assert c.error("ECHO", "a", "b") == "ERR wrong number of arguments for 'echo' command"
    assert c.error("CLIENT", "SETNAME") == "ERR wrong number of arguments for 'client|setname' command"
    assert c.error("CLIENT", "NOSUCH") == "ERR unknown subcommand 'NOSUCH'. Try CLIENT HELP."
    assert c.error("client") == "ERR wrong number of arguments for 'client' command"
    assert c.error("PING", "a", "b") == "ERR wrong number of arguments for 'ping' command"
    assert c.error("LPUSH", "k") == "ERR unknown command 'LPUSH', with args beginning with: 'k' "


@test("keys: EXISTS TYPE DEL UNLINK RENAME COPY DBSIZE")
@one_server
def _(server, c):
    add(c, "a")
    add(c, "b")
    assert c.call("EXISTS", "a", "b", "c", "a") == 3
    assert c.call("TYPE", "a") == "stream" and c.call("TYPE", "zz") == "none"
    assert c.call("OBJECT", "ENCODING", "a") == b"stream" and c.call("OBJECT", "ENCODING", "zz") is None
    assert c.call("MEMORY", "USAGE", "a") > 100 and c.call("MEMORY", "USAGE", "zz") is None
    assert c.call("MEMORY", "USAGE", "a", "SAMPLES", 5) > 100
    assert c.call("DBSIZE") == 2
    assert c.call("RENAME", "a", "c") == "OK" and c.call("EXISTS", "a") == 0
    assert c.error("RENAME", "a", "c") == "ERR no such key"
    assert c.call("COPY", "c", "d") == 1 and c.call("COPY", "c", "d") == 0
    assert c.call("COPY", "c", "d", "REPLACE") == 1
    assert c.call("COPY", "c", "c2", "DB", 5) == 1 and c.call("EXISTS", "c2") == 0
    assert c.error("COPY", "c", "c2", "DB", 16) == "ERR DB index is out of range"
    assert c.error("COPY", "c", "c2", "FOO") == "ERR syntax error"
    assert c.call("DEL", "b", "c", "zz") == 2 and c.call("UNLINK", "d") == 1
    assert c.call("DBSIZE") == 0
    c.call("SELECT", 5)
    assert c.call("EXISTS", "c2") == 1
    assert c.call("FLUSHALL", "ASYNC") == "OK" and c.call("DBSIZE") == 0
    assert c.error("FLUSHDB", "NOW") == "ERR syntax error"
    assert c.error("SELECT", 16) == "ERR DB index is out of range"
    assert c.error("SELECT", "x") == NOT_INT


@test("SCAN and KEYS: every key once, MATCH, COUNT, TYPE, hostile patterns")
@one_server
def _(server, c):
    for i in range(500):
        c.send("XADD", f"key:{i}", "*", "text", "x")
    for _ in range(500):
        c.receive()
    seen, cursor, calls = [], b"0", 0
    while True:
        cursor, names = c.call("SCAN", cursor, "COUNT", 50)
        seen += names
        calls += 1
        if cursor == b"0":
            break
    assert len(seen) == 500 and len(set(seen)) == 500 and 3 < calls < 60, (len(seen), calls)
    assert len(c.call("KEYS", "*")) == 500 and c.call("KEYS", "key:4?9") != []
    assert sorted(c.call("KEYS", "key:[1-2]")) == [b"key:1", b"key:2"]
    cursor, names = c.call("SCAN", 0, "COUNT", 100000, "MATCH", "key:7", "TYPE", "stream")
    assert cursor == b"0" and names == [b"key:7"]
    assert c.call("SCAN", 0, "COUNT", 100000, "TYPE", "string") == [b"0", []]
    assert c.error("SCAN", "x") == "ERR invalid cursor"
    assert c.error("SCAN", 0, "COUNT", 0) == "ERR syntax error"
    assert c.error("SCAN", 0, "COUNT", "x") == NOT_INT
    assert c.error("SCAN", 0, "FOO", 1) == "ERR syntax error"
    c.call("XADD", "a" * 5000, "*", "text", "x")
    assert c.call("KEYS", "a*" * 2000 + "b") == []  # CVE-2022-36021: exponential time outlasts any patience


@test("times at both ends of the range: the past stays the past, rounding does not wrap")
@one_server
def _(server, c):
    add(c, "k")
    assert c.call("EXPIRE", "k", 100) == 1
    assert c.call("PEXPIREAT", "k", -2 ** 63, "GT") == 0 and c.call("EXISTS", "k") == 1
    assert c.call("PEXPIREAT", "k", 2 ** 63 - 1) == 1
    assert c.call("EXPIRETIME", "k") == (2 ** 63 - 1 + 500) // 1000
    assert c.call("PEXPIREAT", "k", -2 ** 63, "LT") == 1 and c.call("EXISTS", "k") == 0


@test("the EXPIRE family: units, conditions, TTL, the past, PERSIST")
@one_server
def _(server, c):
    add(c, "k")
    assert c.call("TTL", "k") == -1 and c.call("PTTL", "zz") == -2 and c.call("EXPIRETIME", "k") == -1
    assert c.call("EXPIRE", "zz", 10) == 0
    assert c.transaction(("EXPIRE", "k", 100), ("TTL", "k"), ("PTTL", "k")) == [1, 100, 100000]
    assert c.call("EXPIRE", "k", 50, "GT") == 0 and c.call("EXPIRE", "k", 200, "GT") == 1
    assert c.call("EXPIRE", "k", 300, "LT") == 0 and c.call("EXPIRE", "k", 100, "LT") == 1
    assert c.call("EXPIRE", "k", 100, "NX") == 0 and c.call("EXPIRE", "k", 100, "XX") == 1
    assert c.call("PERSIST", "k") == 1 and c.call("PERSIST", "k") == 0
    assert c.call("EXPIRE", "k", 100, "XX") == 0 and c.call("PEXPIRE", "k", 100000, "NX") == 1
    at = int(time.time()) + 1000
    assert c.call("EXPIREAT", "k", at) == 1 and c.call("EXPIRETIME", "k") == at
    assert c.call("PEXPIREAT", "k", at * 1000 + 7) == 1 and c.call("PEXPIRETIME", "k") == at * 1000 + 7
    assert c.error("EXPIRE", "k", 1, "NX", "XX") == \
        "ERR NX and XX, GT or LT options at the same time are not compatible"
    assert c.error("EXPIRE", "k", 1, "GT", "LT") == \
        "ERR GT and LT options at the same time are not compatible"
    assert c.error("EXPIRE", "k", 1, "FOO") == "ERR Unsupported option FOO"
    assert c.error("EXPIRE", "k", "1.5") == NOT_INT
    assert c.error("EXPIRE", "k", 2**62) == "ERR invalid expire time in 'expire' command"
    assert c.error("PEXPIRE", "k", 2**63 - 1) == "ERR invalid expire time in 'pexpire' command"
    assert c.call("EXPIRE", "k", -1) == 1 and c.call("EXISTS", "k") == 0
    add(c, "k")
    assert c.call("PEXPIRE", "k", 1) == 1
    wait_until(lambda: c.call("DBSIZE") == 0, "the key goes by itself")


@test("XADD: ids, NOMKSTREAM, trimming, errors")
@one_server
def _(server, c):
    assert c.call("XADD", "s", "5-1", "text", "a") == b"5-1"
    assert c.call("XADD", "s", "5-*", "text", "b") == b"5-2"
    assert c.call("XADD", "s", "6", "text", "c") == b"6-0"
    assert c.call("XADD", "none", "NOMKSTREAM", "*", "a", "b") is None and c.call("EXISTS", "none") == 0
    assert "equal or smaller than the target stream top item" in c.error("XADD", "s", "5-1", "a", "b")
    assert c.error("XADD", "s", "0-0", "a", "b") == "ERR The ID specified in XADD must be greater than 0-0"
    assert c.error("XADD", "s", "x", "a", "b") == INVALID_ID
    assert c.error("XADD", "s", "*", "a") == "ERR wrong number of arguments for 'xadd' command"
    assert c.error("XADD", "s", "*", "a", "b", "c") == "ERR wrong number of arguments for 'xadd' command"
    assert c.call("XLEN", "s") == 3
    c.call("XADD", "s", "MAXLEN", "=", 2, "*", "text", "d")
    assert c.call("XLEN", "s") == 2
    c.call("XADD", "s", "MAXLEN", "~", 1000, "LIMIT", 10, "*", "text", "e")
    assert c.error("XADD", "s", "MAXLEN", 1, "MINID", 1, "*", "a", "b") == \
        "ERR syntax error, MAXLEN and MINID options at the same time are not compatible"
    assert c.error("XADD", "s", "MAXLEN", -1, "*", "a", "b") == "ERR The MAXLEN argument must be >= 0."
    assert c.error("XADD", "s", "MAXLEN", 1, "LIMIT", 1, "*", "a", "b") == \
        "ERR syntax error, LIMIT cannot be used without the special ~ option"
    assert c.error("XADD", "s", "LIMIT", 1, "*", "a", "b") == \
        "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
    assert c.error("XADD", "s", "MAXLEN", "x", "*", "a", "b") == NOT_INT
    assert c.error("XTRIM", "s", "LIMIT", 5) == \
        "ERR syntax error, LIMIT cannot be used without specifying a trimming strategy"
    assert c.error("XTRIM", "s", "FOO", 5) == "ERR syntax error"
    assert c.call("XTRIM", "s", "MAXLEN", 1) == 2 and c.call("XLEN", "s") == 1
    assert c.call("XTRIM", "zz", "MINID", "5-1") == 0


@test("XRANGE and XREVRANGE: ends, exclusive ends, COUNT, missing keys")
@one_server
def _(server, c):
    for i in range(1, 6):
        c.call("XADD", "s", f"{i}-1", "n", i)
    ids = [e[0] for e in c.call("XRANGE", "s", "-", "+")]
    assert ids == [b"1-1", b"2-1", b"3-1", b"4-1", b"5-1"]
    assert [e[0] for e in c.call("XREVRANGE", "s", "+", "-", "COUNT", 2)] == [b"5-1", b"4-1"]
    assert [e[0] for e in c.call("XRANGE", "s", "(2-1", "4")] == [b"3-1", b"4-1"]
    assert c.call("XRANGE", "s", "2", "2") == [[b"2-1", [b"n", b"2"]]]
    assert c.call("XRANGE", "zz", "-", "+") == [] and c.call("XRANGE", "s", "7", "9") == []
    assert c.call("XRANGE", "s", "-", "+", "COUNT", 0) is None
    assert c.error("XRANGE", "s", "x", "+") == INVALID_ID
    assert c.error("XRANGE", "s", "-", "+", "FOO", 1) == "ERR syntax error"
    assert c.call("XDEL", "s", "2-1", "9-9") == 1 and c.call("XLEN", "s") == 4
    assert c.error("XDEL", "s", "2-1", "x") == INVALID_ID and c.call("XLEN", "s") == 4


@test("XINFO STREAM: the same names in RESP2 and RESP3, FULL")
@one_server
def _(server, c):
    for i in range(1, 4):
        c.call("XADD", "s", f"{i}-1", "n", i)
    c.call("XDEL", "s", "2-1")
    flat = c.call("XINFO", "STREAM", "s")
    info = dict(zip(flat[0::2], flat[1::2]))
    assert info[b"length"] == 2 and info[b"last-generated-id"] == b"3-1"
    assert info[b"max-deleted-entry-id"] == b"2-1" and info[b"entries-added"] == 3
    assert info[b"recorded-first-entry-id"] == b"1-1" and info[b"groups"] == 0
    assert info[b"first-entry"] == [b"1-1", [b"n", b"1"]] and info[b"last-entry"] == [b"3-1", [b"n", b"3"]]
    c.call("HELLO", 3)
    assert c.call("XINFO", "STREAM", "s")["length"] == 2
    full = c.call("XINFO", "STREAM", "s", "FULL", "COUNT", 1)
    assert full["entries"] == [[b"1-1", [b"n", b"1"]]] and full["groups"] == []
    assert c.error("XINFO", "STREAM", "zz") == "ERR no such key"
    assert c.error("XINFO", "STREAM", "s", "FOO") == \
        "ERR unknown subcommand or wrong number of arguments for 'STREAM'. Try XINFO HELP."


@test("XREAD: several keys, cursors, $, COUNT, both protocols, errors")
@one_server
def _(server, c):
    for i in range(1, 4):
        c.call("XADD", "a", f"{i}-1", "n", i)
        c.call("XADD", "b", f"{i}-1", "n", i)
    reply = c.call("XREAD", "COUNT", 1, "STREAMS", "a", "zz", "b", "1-1", "0", "3-1")
    assert reply == [[b"a", [[b"2-1", [b"n", b"2"]]]]], reply
    assert len(c.call("XREAD", "STREAMS", "a", "b", "0", "0")) == 2
    assert c.call("XREAD", "STREAMS", "a", "$") is None
    assert c.call("XREAD", "BLOCK", 1, "STREAMS", "a", "$") is None
    assert c.error("XREAD", "STREAMS", "a", "b", "0").startswith("ERR Unbalanced XREAD list of streams")
    assert c.error("XREAD", "COUNT", "1", "a", "0") == "ERR syntax error"
    assert c.error("XREAD", "BLOCK", "-1", "STREAMS", "a", "0") == "ERR timeout is negative"
    assert c.error("XREAD", "BLOCK", "x", "STREAMS", "a", "0") == \
        "ERR timeout is not an integer or out of range"
    assert c.error("XREAD", "STREAMS", "a", "x") == INVALID_ID
    c.call("HELLO", 3)
    assert c.call("XREAD", "COUNT", 1, "STREAMS", "a", "b", "0", "2-1") == \
        {"a": [[b"1-1", [b"n", b"1"]]], "b": [[b"3-1", [b"n", b"3"]]]}
    assert c.call("XREAD", "BLOCK", 1, "STREAMS", "zz", "0") is None


@test("a blocked XREAD is woken by XADD, and commands behind it wait")
@one_server
def _(server, c):
    with server.connect() as reader:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "x", "y", "$", "$")
        reader.send("PING")
        reader.send("XLEN", "y")
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it blocks")
        c.call("XADD", "other", "*", "n", 0)
        c.call("XADD", "y", "7-1", "n", 1)
        assert reader.receive() == [[b"y", [[b"7-1", [b"n", b"1"]]]]]
        assert reader.receive() == "PONG" and reader.receive() == 1
        assert c.info("clients")["blocked_clients"] == "0"


@test("a blocked reader that goes, also half-closed, frees its place")
@one_server
def _(server, c):
    for how in ("close", "half"):
        reader = server.connect()
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "x", "$")
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it blocks")
        reader.close() if how == "close" else reader.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "it is gone")
        add(c, "x")
        reader.close()


@test("behind a blocked command only so much is read: the sender is held back, then all is answered")
def _():
    with Server({"client-query-buffer-limit": "1mb"}, tcp=False) as server, server.connect() as c, \
            server.connect() as reader:
        command = Client.encode("ECHO", "x" * 100000)
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "x", "$")
        sender = threading.Thread(target=lambda: reader.send_raw(command * 100))
        sender.start()
        wait_until(lambda: int(c.info("clients")["client_recent_max_input_buffer"]) >= 1 << 20, "parked")
        assert int(c.info("clients")["client_recent_max_input_buffer"]) <= 4 << 20
        assert sender.is_alive()
        add(c, "x")
        assert reader.receive()[0][0] == b"x"
        for _ in range(100):
            assert len(reader.receive()) == 100000
        sender.join()


@test("a blocked client that parked its limit and then goes is noticed although nobody reads from it")
def _():
    with Server({"client-query-buffer-limit": "1mb"}, tcp=False) as server, server.connect() as c:
        reader = server.connect()
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "x", "$")
        sender = threading.Thread(target=lambda: reader.send_as_much(b"x" * (8 << 20)))
        sender.start()
        wait_until(lambda: int(c.info("clients")["client_recent_max_input_buffer"]) >= 1 << 20, "parked")
        reader.socket.shutdown(socket.SHUT_RDWR)
        wait_until(lambda: c.info("clients")["connected_clients"] == "1", "it is gone")
        sender.join()
        reader.close()


@test("readers of a key that is deleted or flushed go on waiting and are woken by its next entry")
@one_server
def _(server, c):
    add(c, "x")
    with server.connect() as reader:
        reader.send("XREAD", "BLOCK", 0, "STREAMS", "x", "$")
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it blocks")
        c.call("DEL", "x")
        add(c, "x", "text", "new")
        assert reader.receive()[0][1][0][1] == [b"text", b"new"]


@test("MULTI: queueing, EXEC, DISCARD, aborted by an error at queueing, errors inside")
@one_server
def _(server, c):
    assert c.call("MULTI") == "OK"
    assert c.error("MULTI") == "ERR MULTI calls can not be nested"
    assert c.call("XADD", "s", "1-1", "a", "b") == "QUEUED" and c.call("XLEN", "s") == "QUEUED"
    assert c.call("XADD", "s", "1-1", "a", "b") == "QUEUED"
    assert c.call("XREAD", "BLOCK", 0, "STREAMS", "s", "$") == "QUEUED"
    with server.connect() as other:
        assert other.call("XLEN", "s") == 0
    reply = c.call("EXEC")
    assert reply[:2] == [b"1-1", 1] and isinstance(reply[2], ReplyError) and reply[3] is None, reply
    c.call("MULTI")
    assert c.error("XLEN").startswith("ERR wrong number")
    assert c.call("XLEN", "s") == "QUEUED"
    assert c.error("EXEC") == "EXECABORT Transaction discarded because of previous errors."
    c.call("MULTI")
    assert c.call("DEL", "s") == "QUEUED" and c.call("DISCARD") == "OK" and c.call("EXISTS", "s") == 1
    assert c.error("EXEC") == "ERR EXEC without MULTI" and c.error("DISCARD") == "ERR DISCARD without MULTI"
    c.call("MULTI")
    assert c.error("SHUTDOWN") == "ERR Command not allowed inside a transaction"
    assert c.error("EXEC").startswith("EXECABORT")
    c.call("MULTI")
    assert c.call("EXEC") == []


@test("a transaction over client-query-buffer-limit is refused, not the connection")
def _():
    with Server({"client-query-buffer-limit": "1mb"}, tcp=False) as server, server.connect() as c:
        c.call("MULTI")
        errors = 0
        for _ in range(20):
            c.send("ECHO", "x" * 100000)
            errors += isinstance(c.receive(False), ReplyError)
        assert errors > 5
        assert c.error("EXEC").startswith("EXECABORT")
        assert c.call("PING") == "PONG"


@test("QUIT and RESET inside MULTI, and a client that goes in the middle")
@one_server
def _(server, c):
    with server.connect() as d:
        d.call("MULTI")
        d.send("XADD", "s", "*", "a", "b")
        d.send("QUIT")
        assert d.receive() == "QUEUED" and d.receive() == "OK" and d.closed()
    with server.connect() as d:
        d.call("MULTI")
        d.call("XADD", "s", "*", "a", "b")
    wait_until(lambda: c.info("clients")["connected_clients"] == "1", "both are gone")
    assert c.call("EXISTS", "s") == 0


@test("CLIENT: names, SETINFO, LIST with filters, ID, INFO")
@one_server
def _(server, c):
    assert c.call("CLIENT", "GETNAME") is None and c.call("CLIENT", "SETNAME", "bob") == "OK"
    assert c.call("CLIENT", "GETNAME") == b"bob"
    assert c.error("CLIENT", "SETNAME", "a b") == \
        "ERR Client names cannot contain spaces, newlines or special characters."
    assert c.call("client", "setinfo", "LIB-NAME", "py") == "OK"
    assert c.call("CLIENT", "SETINFO", "lib-ver", "1.0") == "OK"
    assert c.error("CLIENT", "SETINFO", "lib-foo", "1") == "ERR Unrecognized option 'lib-foo'"
    assert c.error("CLIENT", "SETINFO", "lib-ver", "1 0").startswith("ERR lib-ver cannot contain spaces")
    number = c.call("CLIENT", "ID")
    with server.connect() as d:
        d.call("PING")  # a connect returns before the server has accepted
        lines = c.call("CLIENT", "LIST").decode().splitlines()
        assert len(lines) == 2
        mine = dict(p.split("=", 1) for p in lines[0].split(" "))
        assert mine["id"] == str(number) and mine["name"] == "bob" and mine["lib-name"] == "py"
        assert mine["cmd"] == "client|list" and mine["flags"] == "U" and mine["resp"] == "2"
        other = d.call("CLIENT", "ID")
        assert f"id={other} " in c.call("CLIENT", "LIST", "ID", other, 99999).decode()
        assert c.call("CLIENT", "LIST", "TYPE", "pubsub") == b""
        assert c.error("CLIENT", "LIST", "TYPE", "foo") == "ERR Unknown client type 'foo'"
        assert c.error("CLIENT", "LIST", "ID", "x") == "ERR Invalid client ID"
    assert c.error("CLIENT", "MAINT_NOTIFICATIONS", "ON").startswith("ERR unknown subcommand")
    assert c.error("CLIENT", "TRACKING", "ON").startswith("ERR Client tracking is not supported")


@test("COMMAND: count, info, key positions, docs of every command, list, help")
@one_server
def _(server, c):
    everything = c.call("COMMAND")
    assert len(everything) == c.call("COMMAND", "COUNT") > 50
    assert all(len(e) == 10 for e in everything)
    info = c.call("COMMAND", "INFO", "gen", "nosuch", "client|setname")
    assert info[0][0] == b"gen" and info[0][1] == -2 and info[0][3:6] == [1, 1, 1]
    assert set(info[0][2]) == {"write", "denyoom", "blocking"}
    assert set(info[0][6]) == {"@write", "@stream", "@slow", "@blocking"}, info[0][6]
    assert info[1] is None and info[2][0] == b"client|setname"
    fork = c.call("COMMAND", "INFO", "fork")[0]
    assert "movablekeys" in fork[2] and set(fork[6]) == {"@write", "@stream", "@slow"}
    assert set(c.call("COMMAND", "INFO", "cancel")[0][2]) == {"write", "fast"}
    assert c.call("COMMAND", "GETKEYS", "FORK", "s", "a", "b", "at", "1-1", "REPLACE") == [b"s", b"a", b"b"]
    assert c.call("COMMAND", "GETKEYS", "XREAD", "COUNT", 1, "STREAMS", "x", "y", "0", "0") == [b"x", b"y"]
    assert c.call("COMMAND", "GETKEYS", "CACHE", "PROBE", "KEY", "KEY", "k") == [b"k"]
    assert c.call("COMMAND", "GETKEYS", "DEL", "a", "b") == [b"a", b"b"]
    assert c.call("COMMAND", "GETKEYS", "XINFO", "STREAM", "a") == [b"a"]
    assert c.call("COMMAND", "GETKEYS", "GEN", "k", "p", "STOP", "k2") == [b"k"]
    assert c.error("COMMAND", "GETKEYS", "PING", "x") == "ERR The command has no key arguments"
    assert c.error("COMMAND", "GETKEYS", "NOSUCH", "x") == "ERR Invalid command specified"
    assert c.error("COMMAND", "GETKEYS", "XREAD", "STREAMS", "a", "b", "c").startswith("ERR Invalid arguments")
    assert b"gen" in c.call("COMMAND", "LIST") and c.call("COMMAND", "LIST", "FILTERBY", "PATTERN", "x*d") == \
        [b"xadd", b"xread", b"xsetid"]
    assert b"gen" in c.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "stream")
    assert c.error("COMMAND", "LIST", "FOO") == "ERR syntax error"
    c.call("HELLO", 3)
    docs = c.call("COMMAND", "DOCS")
    assert set(docs) == {e[0].decode() for e in everything}
    for name, doc in docs.items():
        assert {"summary", "since", "group", "complexity"} <= set(doc), name
    names = [a["token"] for a in docs["gen"]["arguments"][1]["arguments"] if "token" in a]
    assert b"MAXTOKENS" in names and b"N" not in names
    assert list(c.call("COMMAND", "DOCS", "xadd", "nosuch")) == ["xadd"]
    for container in ("CLIENT", "CONFIG", "OBJECT", "MEMORY", "XINFO", "CACHE", "COMMAND", "DEBUG"):
        lines = c.call(container, "HELP")
        assert lines[0].startswith(container) and lines[-2] == "HELP", lines


@test("CONFIG GET and SET: patterns, several at once, all or nothing, start-only")
@one_server
def _(server, c):
    flat = c.call("CONFIG", "GET", "max*", "timeout")
    got = dict(zip(flat[0::2], flat[1::2]))
    assert got[b"maxclients"] == b"10000" and got[b"timeout"] == b"0" and b"max-running" in got
    assert c.call("CONFIG", "GET", "nosuch") == []
    assert c.call("CONFIG", "SET", "timeout", 30, "orphan-timeout", "2s") == "OK"
    assert c.call("CONFIG", "GET", "orphan-timeout") == [b"orphan-timeout", b"2000"]
    error = c.error("CONFIG", "SET", "timeout", 40, "maxclients", "x")
    assert error.startswith("ERR CONFIG SET failed (possibly related to argument 'maxclients') - "), error
    assert c.call("CONFIG", "GET", "timeout") == [b"timeout", b"30"]
    assert c.error("CONFIG", "SET", "port", 1) == \
        "ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config"
    assert c.error("CONFIG", "SET", "nosuch", 1) == \
        "ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"
    assert "duplicate parameter" in c.error("CONFIG", "SET", "timeout", 1, "TIMEOUT", 2)
    for name in ("logfile", "unixsocket", "model", "enable-debug-command"):
        assert "immutable" in c.error("CONFIG", "SET", name, "/tmp/x")
    assert c.error("CONFIG", "SET", "timeout").startswith("ERR wrong number of arguments")


@test("INFO: sections, never an error, verbatim in RESP3")
@one_server
def _(server, c):
    info = c.info()
    assert info["redis_version"] == "7.2.4" and info["server_name"] == "kvasir" and info["loading"] == "0"
    assert info["redis_mode"] == "standalone" and info["role"] == "master" and info["model_loaded"] == "0"
    assert c.call("INFO", "nosuch") == b""
    assert set(c.info("clients")) & {"connected_clients"} and "redis_version" not in c.info("CLIENTS")
    add(c, "k")
    assert c.info("keyspace")["db0"] == "keys=1,expires=0,avg_ttl=0"
    c.send("HELLO", 3)
    c.receive()
    c.send("INFO", "server")
    while b"\r\n" not in c.buffer:
        c._fill()
    assert c.buffer.startswith(b"="), c.buffer[:20]
    assert c.receive().startswith(b"# Server\r\n")


@test("without a model GEN is an error that says so, and keys work")
@one_server
def _(server, c):
    for args in (("GEN", "k", "hi"), ("TOKENIZE", "a"), ("DETOKENIZE", 1), ("CACHE", "INFO"),
                 ("CACHE", "CLEAR"), ("CACHE", "PROBE", "x")):
        assert c.error(*args).startswith("ERR no model is loaded"), args
    assert c.call("DEBUG", "AUDIT") == "OK"
    assert c.call("CANCEL", "k", "l") == 0
    add(c, "k")
    assert c.geninfo("k")["state"] == "idle" and c.geninfo("zz")["state"] == "none"
    assert c.call("FORK", "k", "a", "b") == 2 and c.call("XLEN", "a") == 1


@test("a single reply over client-output-buffer-limit is an error, and the link lives")
def _():
    options = {"client-output-buffer-limit": "normal 100kb 0 0"}
    with Server(options, tcp=False) as server, server.connect() as c:
        for i in range(1, 12):
            c.call("XADD", "s", f"{i}-0", "text", "x" * 10000)
        error = c.error("XRANGE", "s", "-", "+")
        assert error == "ERR the reply is over client-output-buffer-limit (102400 bytes), use COUNT", error
        assert c.error("XREAD", "STREAMS", "s", "0").startswith("ERR the reply is over")
        assert len(c.call("XRANGE", "s", "-", "+", "COUNT", 5)) == 5


@test("DEBUG only for whom enable-debug-command names")
def _():
    with Server({"enable-debug-command": "no"}, tcp=False) as server, server.connect() as c:
        assert c.error("DEBUG", "AUDIT").startswith("ERR DEBUG command not allowed.")


@test("SHUTDOWN and SIGTERM: exit status 0, blocked readers are answered, the socket file goes")
def _():
    for how in ("SHUTDOWN", "SIGTERM"):
        with Server(tcp=False) as server:
            reader, c = server.connect(), server.connect()
            reader.send("XREAD", "BLOCK", 0, "STREAMS", "x", "$")
            wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it blocks")
            assert c.error("SHUTDOWN", "FOO") == "ERR syntax error"
            assert c.error("SHUTDOWN", "SAVE", "NOSAVE") == "ERR syntax error"
            assert c.error("SHUTDOWN", "ABORT") == "ERR No shutdown in progress."
            if how == "SHUTDOWN":
                c.send("SHUTDOWN", "NOSAVE")
            else:
                server.process.terminate()
            assert reader.receive() is None and reader.closed()
            assert c.closed() and c.buffer == b""
            assert server.process.wait(PATIENCE_S) == 0
            assert not os.path.exists(server.socket_path)


@test("two servers on one port or socket: the second says which and exits with 1")
def _():
    with Server() as server:
        program = os.path.join(BUILD, "kvasir-server")
        for options in (["--port", str(server.port)], ["--port", "0", "--unixsocket", server.socket_path]):
            run = subprocess.run([program, *options], capture_output=True, text=True, timeout=PATIENCE_S)
            assert run.returncode == 1 and ("in use" in run.stdout or "another server" in run.stdout), run
        with server.connect() as c:
            assert c.call("PING") == "PONG"


@test("--check-config, --version, wrong options and files")
def _():
    program = os.path.join(BUILD, "kvasir-server")

    def run(*args):
        done = subprocess.run([program, *args], capture_output=True, text=True, timeout=PATIENCE_S)
        return done.returncode, done.stdout + done.stderr
    assert run("--version")[0] == 0 and "kvasir-server" in run("--version")[1]
    assert run(os.path.join(SOURCE, "conf", "kvasir.conf"), "--check-config") == \
        (0, "the configuration is valid\n")
    code, text = run("--probe", "--threads", "1")
    assert code == 0 and "cpu: " in text and "1 thread" in text and "ref: " in text, text
    assert run("--nosuch", "1") == \
        (1, "kvasir-server: command line: unknown option 'nosuch' (see conf/kvasir.conf)\n")
    assert run("/nonexistent.conf")[0] == 1
    with tempfile.NamedTemporaryFile("w", suffix=".conf") as f:
        f.write("databases 0\n")
        f.flush()
        code, text = run(f.name)
        assert code == 1 and f"{f.name}:1: databases must be between 1 and 1024, not 0" in text, text
    code, text = run("--port", "0")
    assert code == 1 and "nobody could connect" in text
    with tempfile.TemporaryDirectory() as folder:
        code, text = run("--port", "0", "--unixsocket", os.path.join(folder, "s"), "--model", "/nonexistent.gguf")
        assert code == 1 and "loading failed" in text and "/nonexistent.gguf" in text, text
        code, text = run("--port", "0", "--unixsocket", os.path.join(folder, "s"), "--model", tiny_model(),
                         "--backend", "cpu", "--kv-type", "f32")
        assert code == 1 and "cpu: K/V of type f32 is not possible; it has bf16, int8" in text, text
    assert run("--kv-type", "fp8")[0] == 1 and "auto, f32, bf16" in run("--kv-type", "fp8")[1], run("--kv-type", "fp8")


main()
