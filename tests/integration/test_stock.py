#!/usr/bin/env python3
"""What stock clients, GUIs and exporters ask before and beside their work, and other people's tools."""
import os
import shutil
import subprocess
import time
import urllib.request

from kvasir_test import PATIENCE_S, TWIN, ReplyError, Server, Skip, free_port, main, test, tiny_model, wait_until

NOT_INT = "ERR value is not an integer or out of range"
INVALID_ID = "ERR Invalid stream ID specified as stream command argument"


def one_server(function):
    def run():
        with Server(tcp=False) as server, server.connect() as c:
            function(server, c)
    return run


def add(c, key, text="x", id_="*"):
    return c.call("XADD", key, id_, "text", text)


# ---- a server that stands alone -------------------------------------------------------------------

@test("TIME ROLE WAIT READONLY READWRITE GET ACL WHOAMI as Redis 7 standalone")
@one_server
def _(server, c):
    before = time.time()
    seconds, micros = map(int, c.call("TIME"))
    assert before - 1 < seconds + micros / 10**6 < time.time() + 1 and 0 <= micros < 10**6
    assert c.call("ROLE") == [b"master", 0, []]
    assert c.call("WAIT", 0, 0) == 0 and c.call("WAIT", 3, 1) == 0
    assert c.error("WAIT", "x", 0) == NOT_INT
    assert c.error("WAIT", 0, "x") == "ERR timeout is not an integer or out of range"
    assert c.error("WAIT", 0, -1) == "ERR timeout is negative"
    for name in ("READONLY", "READWRITE"):
        assert c.error(name) == "ERR This instance has cluster support disabled"
    assert c.call("GET", "k") is None
    add(c, "k")
    wrong = "WRONGTYPE Operation against a key holding the wrong kind of value"
    assert c.error("GET", "k") == wrong
    assert c.call("ACL", "WHOAMI") == b"default"
    c.call("HELLO", 3)
    c.send("GET", "none")
    assert c._line() == b"_"
    assert c.call("ROLE") == [b"master", 0, []]


@test("ACL CAT: Redis' categories, and those that COMMAND INFO shows")
@one_server
def _(server, c):
    categories = [name.decode() for name in c.call("ACL", "CAT")]
    assert categories[:3] == ["keyspace", "read", "write"] and len(categories) == 21, categories
    assert b"gen" in c.call("ACL", "CAT", "stream") and b"xadd" in c.call("ACL", "CAT", "WRITE")
    assert b"client|kill" in c.call("ACL", "CAT", "admin") and c.call("ACL", "CAT", "geo") == []
    shown = {f"@{name}" for name in categories}
    for row in c.call("COMMAND"):
        assert set(row[6]) <= shown, row
        for category in row[6]:
            assert row[9] or row[0] in c.call("ACL", "CAT", category[1:]), (row[0], category)
    assert c.error("ACL", "CAT", "nosuch") == "ERR Unknown category 'nosuch'"
    assert c.error("ACL", "CAT", "a", "b") == "ERR wrong number of arguments for 'acl|cat' command"


@test("every container has HELP, and refuses what it does not know")
@one_server
def _(server, c):
    for row in c.call("COMMAND"):
        name = row[0].decode()
        if not row[9]:
            continue
        text = c.call(name, "HELP")
        assert text[0] == f"{name.upper()} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
        assert text[-2:] == ["HELP", "    Prints this help."] and text.count("HELP") == 1, text
        assert c.error(name, "HELP", "x") == f"ERR wrong number of arguments for '{name}|help' command"
        assert any(sub[0] == row[0] + b"|help" for sub in row[9]), name
        for sub in row[9]:
            word = sub[0].decode().split("|")[1].upper()
            assert any(line.split(" ")[0] == word for line in text), (name, word)
        if name != "cluster":  # whose answer is for any word
            assert c.error(name, "NOSUCH") == f"ERR unknown subcommand 'NOSUCH'. Try {name.upper()} HELP."


@test("the HELP rows of COMMAND INFO and DOCS are those of Redis 7")
@one_server
def _(server, c):
    for name, group, since, categories in (
            ("acl", "server", "6.0.0", set()), ("client", "connection", "5.0.0", {"@connection"}),
            ("cluster", "cluster", "5.0.0", set()), ("command", "server", "5.0.0", {"@connection"}),
            ("config", "server", "5.0.0", set()), ("latency", "server", "2.8.13", set()),
            ("memory", "server", "4.0.0", set()), ("module", "server", "5.0.0", set()),
            ("object", "generic", "6.2.0", {"@keyspace"}), ("pubsub", "pubsub", "6.2.0", set()),
            ("slowlog", "server", "6.2.0", set()), ("xinfo", "stream", "5.0.0", {"@stream"})):
        full = f"{name}|help".encode()
        info = c.call("COMMAND", "INFO", full.decode().upper())[0]
        assert info[:2] == [full, 2] and info[3:6] == [0, 0, 0] and info[7:] == [[], [], []], info
        assert set(info[2]) == {"loading", "stale"} and set(info[6]) == {"@slow"} | categories, info
        docs = c.call("COMMAND", "DOCS", full)
        fields = dict(zip(docs[1][0::2], docs[1][1::2]))
        assert docs[0] == full and fields[b"since"].decode() == since, docs
        assert fields[b"group"].decode() == group and fields[b"complexity"] == b"O(1)", docs
        assert c.error("COMMAND", "GETKEYS", name, "HELP") == "ERR The command has no key arguments"
        assert full in c.call("ACL", "CAT", "slow")


# ---- keys ------------------------------------------------------------------------------------------

@test("RENAMENX MOVE RANDOMKEY TOUCH OBJECT: replies and bad input")
@one_server
def _(server, c):
    assert c.call("RANDOMKEY") is None
    add(c, "a")
    add(c, "b")
    assert c.call("RANDOMKEY") in (b"a", b"b")
    assert c.call("RENAMENX", "a", "b") == 0 and c.call("RENAMENX", "a", "a") == 0
    assert c.call("RENAMENX", "a", "n") == 1 and c.call("EXISTS", "a", "n") == 1
    assert c.error("RENAMENX", "zz", "y") == "ERR no such key"
    assert c.call("TOUCH", "n", "b", "zz") == 2
    assert c.call("OBJECT", "ENCODING", "n") == b"stream" and c.call("OBJECT", "REFCOUNT", "n") == 1
    assert c.transaction(("TOUCH", "n"), ("OBJECT", "IDLETIME", "n")) == [1, 0]
    assert c.error("OBJECT", "FREQ", "n").startswith("ERR An LFU maxmemory policy is not selected")
    for word in ("ENCODING", "REFCOUNT", "IDLETIME", "FREQ"):
        assert c.call("OBJECT", word, "zz") is None
    c.call("EXPIRE", "n", 10**6)
    assert c.call("MOVE", "n", 3) == 1 and c.call("MOVE", "n", 3) == 0
    add(c, "n")
    assert c.call("MOVE", "n", 3) == 0  # taken
    assert c.error("MOVE", "n", 0) == "ERR source and destination objects are the same"
    assert c.error("MOVE", "n", 16) == "ERR DB index is out of range"
    assert c.error("MOVE", "n", -1) == "ERR DB index is out of range"
    assert c.error("MOVE", "n", "x") == NOT_INT
    assert "expires=0" in c.info("keyspace")["db0"] and "expires=1" in c.info("keyspace")["db3"]
    c.call("SELECT", 3)
    assert c.call("XLEN", "n") == 1 and 10**6 - 1000 < c.call("TTL", "n") <= 10**6


@test("SWAPDB: names change places, waiting readers find what appears, bad input")
@one_server
def _(server, c):
    add(c, "one")
    c.call("SELECT", 1)
    add(c, "two")
    add(c, "two")
    with server.connect() as d:
        d.send("XREAD", "BLOCK", 0, "STREAMS", "two", 0)  # database 0
        d_id = None
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it waits")
        assert c.call("SWAPDB", 0, 1) == "OK"
        reply = d.receive()
        assert reply[0][0] == b"two" and len(reply[0][1]) == 2, (reply, d_id)
    assert c.call("XLEN", "one") == 1 and c.call("EXISTS", "two") == 0
    assert c.call("SWAPDB", 0, 0) == "OK" and c.call("SWAPDB", "1", "0") == "OK"
    assert c.call("EXISTS", "two") == 1
    assert c.error("SWAPDB", "x", 1) == "ERR invalid first DB index"
    assert c.error("SWAPDB", 0, "y") == "ERR invalid second DB index"
    assert c.error("SWAPDB", 0, 16) == "ERR DB index is out of range"
    assert c.error("SWAPDB", -1, 0) == "ERR DB index is out of range"


@test("MOVE, RENAMENX, SWAPDB and XSETID spoil who WATCHes, and are told as Redis tells them")
@one_server
def _(server, c):
    changes = ((("MOVE", "k", 1), True), (("RENAMENX", "k", "n"), True), (("SWAPDB", 0, 1), True),
               (("XSETID", "k", "9999999999999-0"), True), (("TOUCH", "k"), False),
               (("OBJECT", "ENCODING", "k"), False), (("SWAPDB", 2, 3), False))
    with server.connect() as d, server.connect() as s:
        assert c.call("CONFIG", "SET", "notify-keyspace-events", "KEA") == "OK"
        s.call("PSUBSCRIBE", "__keyspace@*__:*")
        for words, spoils in changes:
            c.call("FLUSHALL")
            add(c, "k")
            assert s.receive()[3] == b"xadd"
            d.call("WATCH", "k")
            c.call(*words)
            d.call("MULTI")
            d.call("PING")
            assert d.call("EXEC") == (None if spoils else ["PONG"]), words
            told = {"MOVE": [(b"__keyspace@0__:k", b"move_from"), (b"__keyspace@1__:k", b"move_to")],
                    "RENAMENX": [(b"__keyspace@0__:k", b"rename_from"),
                                 (b"__keyspace@0__:n", b"rename_to")],
                    "XSETID": [(b"__keyspace@0__:k", b"xsetid")]}.get(words[0], [])
            assert [tuple(s.receive()[2:]) for _ in told] == told, words


@test("a generating key: RENAME RENAMENX MOVE SWAPDB XSETID are BUSYKEY, FORK and TOUCH are not")
def _():
    with Server({"model": tiny_model()}, tcp=False, program=TWIN) as server, server.connect() as c:
        c.stand_still()
        add(c, "other")
        c.call("GEN", "k", "hello", "MAXTOKENS", 100000, "IGNOREEOS", "ASYNC")
        for words in (("RENAME", "k", "y"), ("RENAMENX", "k", "y"), ("MOVE", "k", 1),
                      ("SWAPDB", 0, 1), ("SWAPDB", 1, 0), ("XSETID", "k", "9999999999999-0")):
            assert c.error(*words) == \
                "BUSYKEY a generation is running on 'k', CANCEL ends it", words
        assert c.call("SWAPDB", 1, 2) == "OK" and c.call("TOUCH", "k") == 1
        assert c.geninfo("k")["state"] in ("queued", "running")
        assert c.call("RENAME", "other", "k") == "OK"  # onto it: cancelled, then overwritten
        assert c.call("XLEN", "k") == 1 and c.geninfo("k")["state"] == "idle"
        c.call("SELECT", 1)
        c.call("GEN", "m", "hello", "MAXTOKENS", 100000, "IGNOREEOS", "ASYNC")
        c.call("SELECT", 0)
        add(c, "m")
        assert c.call("MOVE", "m", 1) == 0  # the name is taken there
        c.call("SELECT", 1)
        assert c.geninfo("m")["state"] in ("queued", "running") and c.call("CANCEL", "m") == 1
        assert c.call("DEBUG", "AUDIT") == "OK"


@test("while its prompt is tokenised a key is busy; CANCEL and DEL end it with an error, no entry")
def _():
    prompt = "some words " * 600  # which is tokenised by a job thread, and these are busy
    with Server({"model": tiny_model("--context", "8192")}, tcp=False, program=TWIN) as server, \
            server.connect() as c, server.connect() as d:
        for ending in ("CANCEL", "DEL", "RENAME"):
            assert c.call("SEAM", "JOBS", 2) == 2
            d.send("GEN", "k", prompt, "MAXTOKENS", 5)
            wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "the GEN has arrived")
            add(c, "other")
            packet = [("EXISTS", "k"), ("RENAME", "k", "y"), ("RENAMENX", "k", "y"), ("MOVE", "k", 1),
                      ("SWAPDB", 0, 1), ("XADD", "k", "*", "text", "x"), ("XSETID", "k", "1-1"),
                      ("DBSIZE",), ("RENAME", "other", "k") if ending == "RENAME" else (ending, "k"),
                      ("EXISTS", "k"), ("INFO", "clients")]
            c.send_raw(b"".join(c.encode(*words) for words in packet))
            replies = [c.receive(False) for _ in packet]
            assert replies[0] == 0 and replies[7] == 1, replies  # nobody sees the key
            assert all(str(r).startswith("BUSYKEY a generation is running on 'k'")
                       for r in replies[1:7]), replies
            assert replies[8:10] == {"CANCEL": [1, 0], "DEL": [0, 0], "RENAME": ["OK", 1]}[ending], replies
            assert b"blocked_clients:0" in replies[10], replies  # it was told at once
            error = str(d.receive(False))
            assert error.startswith("CANCELLED the generation on 'k' was cancelled"), error
            assert c.call("SEAM", "JOBS", 0) == 0
            assert c.call("XLEN", "k") == (ending == "RENAME")
            c.call("FLUSHALL")
        assert c.call("DEBUG", "AUDIT") == "OK"


@test("XSETID: what it accepts and every refusal of Redis")
@one_server
def _(server, c):
    assert c.error("XSETID", "zz", "1-1") == "ERR no such key"
    add(c, "k", id_="5-5")
    assert c.call("XSETID", "k", "10-1") == "OK"
    assert c.error("XADD", "k", "10-1", "text", "x").startswith("ERR The ID specified in XADD")
    assert add(c, "k", id_="10-2") == b"10-2"
    assert c.error("XSETID", "k", "10-1") == \
        "ERR The ID specified in XSETID is smaller than the target stream top item"
    assert c.call("XSETID", "k", "20-0", "ENTRIESADDED", 7, "MAXDELETEDID", "15-0") == "OK"
    info = dict(zip(*[iter(c.call("XINFO", "STREAM", "k"))] * 2))
    assert info[b"entries-added"] == 7 and info[b"max-deleted-entry-id"] == b"15-0"
    assert info[b"last-generated-id"] == b"20-0"
    assert c.error("XSETID", "k", "12-0") == \
        "ERR The ID specified in XSETID is smaller than current max_deleted_entry_id"
    assert c.error("XSETID", "k", "21-0", "MAXDELETEDID", "22-0") == \
        "ERR The ID specified in XSETID is smaller than the provided max_deleted_entry_id"
    assert c.error("XSETID", "k", "21-0", "ENTRIESADDED", 1) == \
        "ERR The entries_added specified in XSETID is smaller than the target stream length"
    assert c.error("XSETID", "k", "21-0", "ENTRIESADDED", -1) == "ERR entries_added must be positive"
    assert c.error("XSETID", "k", "21-0", "ENTRIESADDED", "x") == NOT_INT
    assert c.error("XSETID", "k", "x") == INVALID_ID
    assert c.error("XSETID", "k", "21-0", "MAXDELETEDID", "x") == INVALID_ID
    assert c.error("XSETID", "k", "21-0", "FOO") == "ERR syntax error"


@test("XINFO GROUPS and CONSUMERS of streams without groups")
@one_server
def _(server, c):
    add(c, "k")
    assert c.call("XINFO", "GROUPS", "k") == []
    assert c.error("XINFO", "GROUPS", "zz") == "ERR no such key"
    assert c.error("XINFO", "CONSUMERS", "zz", "g") == "ERR no such key"
    assert c.error("XINFO", "CONSUMERS", "k", "g") == \
        "NOGROUP No such consumer group 'g' for key name 'k'"


# ---- COMMAND ---------------------------------------------------------------------------------------

@test("COMMAND GETKEYSANDFLAGS and key specs agree with what Redis says of its own commands")
@one_server
def _(server, c):
    def flags(*words):
        return [(key.decode(), list(map(str, use)))
                for key, use in c.call("COMMAND", "GETKEYSANDFLAGS", *words)]

    assert flags("RENAME", "a", "b") == [("a", ["RW", "access", "delete"]), ("b", ["OW", "update"])]
    assert flags("DEL", "a", "b") == [("a", ["RM", "delete"]), ("b", ["RM", "delete"])]
    assert flags("XLEN", "a") == [("a", ["RO"])] and flags("XADD", "a", "*", "f", "v") == [
        ("a", ["RW", "update"])]
    assert flags("FORK", "a", "b", "c", "AT", "1-1") == [
        ("a", ["RO", "access"]), ("b", ["OW", "update"]), ("c", ["OW", "update"])]
    assert flags("CACHE", "PROBE", "text", "AS", "user", "KEY", "k") == [("k", ["RO", "access"])]
    assert flags("XREAD", "COUNT", 1, "STREAMS", "a", "b", 0, 0) == [
        ("a", ["RO", "access"]), ("b", ["RO", "access"])]
    assert c.call("COMMAND", "GETKEYS", "FORK", "a", "b", "c", "REPLACE") == [b"a", b"b", b"c"]
    assert c.call("COMMAND", "GETKEYS", "OBJECT", "ENCODING", "k") == [b"k"]
    for words in (("FORK", "a", "AT", "1-1"), ("CACHE", "PROBE", "text")):
        assert c.error("COMMAND", "GETKEYS", *words) == \
            "ERR Invalid arguments specified for command", words
    for words in (("PING", "x"), ("SWAPDB", 0, 1), ("CLIENT", "LIST")):
        assert c.error("COMMAND", "GETKEYS", *words) == "ERR The command has no key arguments"
    assert c.error("COMMAND", "GETKEYS", "NOSUCH", "x") == "ERR Invalid command specified"
    assert c.error("COMMAND", "GETKEYS", "PING") == "ERR wrong number of arguments for 'command|getkeys' command"
    assert c.error("COMMAND", "GETKEYS", "XLEN", "a", "b") == \
        "ERR Invalid number of arguments specified for command"
    c.call("HELLO", 3)
    specs = c.call("COMMAND", "INFO", "RENAME")[0][8]
    assert [s["flags"] for s in specs] == [["RW", "access", "delete"], ["OW", "update"]]
    assert [s["begin_search"]["spec"]["index"] for s in specs] == [1, 2]
    assert [s["find_keys"]["spec"]["lastkey"] for s in specs] == [0, 0]
    fork = c.call("COMMAND", "INFO", "FORK")[0]
    assert fork[8][1]["flags"] == ["OW", "update", "incomplete"] and "movablekeys" in fork[2]
    xread = c.call("COMMAND", "INFO", "XREAD")[0][8][0]
    assert xread["begin_search"] == {"type": b"keyword",
                                     "spec": {"keyword": b"STREAMS", "startfrom": 1}}


@test("COMMAND of each command: key positions, specs and GETKEYS say the same; RESP2 as RESP3")
@one_server
def _(server, c):
    rows = {row[0]: row for row in c.call("COMMAND")}
    docs = c.call("COMMAND", "DOCS")
    assert set(docs[0::2]) == set(rows) and len(rows) == c.call("COMMAND", "COUNT")
    with server.connect() as d:
        d.call("HELLO", 3)
        for row in d.call("COMMAND"):
            assert rows[row[0]][1:6] == row[1:6]
            walk = [(row, "")] + [(sub, "") for sub in row[9]]
            for each, _ in walk:
                first, last, step, specs = each[3], each[4], each[5], each[8]
                if specs and specs[0]["begin_search"]["type"] == b"index":
                    assert specs[0]["begin_search"]["spec"]["index"] == first > 0, each[0]
                    assert step == specs[0]["find_keys"]["spec"]["keystep"], each[0]
                else:
                    assert first == last == step == 0, each[0]
        named = d.call("COMMAND", "DOCS", "client|kill", "gen", "nosuch")
        assert set(named) == {"client|kill", "gen"} and named["gen"]["group"] == b"generation"
        assert "subcommands" in d.call("COMMAND", "DOCS", "client")["client"]
    listed = c.call("COMMAND", "LIST")
    subcommands = {sub[0] for row in rows.values() for sub in row[9]}
    assert set(listed) == set(rows) | subcommands and len(listed) == len(set(listed))
    assert c.call("COMMAND", "LIST", "FILTERBY", "MODULE", "x") == []
    assert set(c.call("COMMAND", "LIST", "FILTERBY", "PATTERN", "x*")) == {
        n for n in listed if n.startswith(b"x")}
    assert b"fork" in c.call("COMMAND", "LIST", "filterby", "aclcat", "stream")
    assert c.call("COMMAND", "LIST", "FILTERBY", "ACLCAT", "nosuch") == []
    assert c.error("COMMAND", "LIST", "FILTERBY", "FOO", "x") == "ERR syntax error"
    assert c.error("COMMAND", "LIST", "x") == "ERR syntax error"


# ---- INFO ------------------------------------------------------------------------------------------

@test("INFO: sections by name, several, default, all, everything; unknown ones are empty")
@one_server
def _(server, c):
    def sections(*names):
        return [line[2:] for line in c.call("INFO", *names).decode().split("\r\n")
                if line.startswith("# ")]

    default = sections()
    assert default == sections("default") and "Commandstats" not in default
    for name in ("Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU",
                 "Errorstats", "Cluster", "Keyspace"):
        assert name in default, name
    assert set(sections("all")) == set(default) | {"Commandstats", "Latencystats"} == set(sections("everything"))
    assert sections("commandstats", "KEYSPACE") == ["Commandstats", "Keyspace"]
    assert c.call("INFO", "nosuch") == b"" and sections("nosuch", "cpu") == ["CPU"]
    assert sections("default", "commandstats", "latencystats") == sections("all")
    info = c.info("all")
    for name in ("redis_version", "redis_mode", "tcp_port", "run_id", "uptime_in_seconds",
                 "connected_clients", "blocked_clients", "used_memory", "used_memory_human",
                 "used_memory_rss", "maxmemory", "total_system_memory", "mem_fragmentation_ratio",
                 "loading", "role", "connected_slaves", "instantaneous_ops_per_sec",
                 "total_commands_processed", "keyspace_hits", "expired_keys", "used_cpu_sys",
                 "used_cpu_user_main_thread", "main_thread_waited_for_cpu_usec"):
        assert name in info, name
    assert info["role"] == "master" and info["loading"] == "0" and int(info["used_memory"]) > 0
    c.call("HELLO", 3)
    c.send("INFO", "server")
    assert c._line().startswith(b"=")


@test("INFO commandstats, errorstats, hits, misses and expired keys count; RESETSTAT zeroes them")
@one_server
def _(server, c):
    def stat(name):
        text = c.info("commandstats").get("cmdstat_" + name)
        return dict(word.split("=") for word in text.split(",")) if text else None

    add(c, "k")
    c.call("XLEN", "k")
    c.call("XLEN", "none")
    c.error("GET", "k")
    c.error("XLEN")
    c.error("NOSUCH")
    c.error("CLIENT", "KILL", "1.2.3.4:5")
    xlen, get, kill = stat("xlen"), stat("get"), stat("client|kill")
    assert xlen["calls"] == "2" and xlen["rejected_calls"] == "1" and xlen["failed_calls"] == "0"
    assert get["calls"] == "1" and get["failed_calls"] == "1" and kill["failed_calls"] == "1"
    assert float(xlen["usec_per_call"]) == round(int(xlen["usec"]) / 2, 2)
    assert stat("xrange") is None  # never called
    info = c.info("errorstats", "stats")
    assert info["errorstat_WRONGTYPE"] == "count=1" and info["errorstat_ERR"] == "count=3"
    assert info["keyspace_hits"] == "2" and info["keyspace_misses"] == "1"
    c.call("MULTI")
    c.call("GET", "k")
    c.call("XLEN", "k")
    c.call("EXEC")
    assert c.info("errorstats")["errorstat_WRONGTYPE"] == "count=2"
    assert stat("exec")["failed_calls"] == "0" and stat("get")["failed_calls"] == "2"
    c.call("PEXPIRE", "k", 1)
    wait_until(lambda: c.info("stats")["expired_keys"] == "1", "it expires")
    assert c.call("CONFIG", "RESETSTAT") == "OK"
    info = c.info("all")
    assert info["expired_keys"] == "0" and "errorstat_ERR" not in info
    assert info["keyspace_hits"] == "0" and int(info["total_commands_processed"]) == 1
    assert stat("config|resetstat") is not None and stat("xlen") is None


@test("INFO instantaneous_ops_per_sec follows the load")
@one_server
def _(server, c):
    def busy():
        for _ in range(200):
            c.send("PING")
        for _ in range(200):
            c.receive()
        return int(c.info("stats")["instantaneous_ops_per_sec"]) > 50

    wait_until(busy, "the rate rises")
    wait_until(lambda: time.sleep(0.1) or int(c.info("stats")["instantaneous_ops_per_sec"]) < 50,
               "the rate falls")


# ---- CONFIG, DEBUG ---------------------------------------------------------------------------------

@test("CONFIG GET with several patterns; SET of several is all or nothing")
@one_server
def _(server, c):
    got = c.call("CONFIG", "GET", "max*", "timeout", "nosuch", "TIMEOUT")
    names = got[0::2]
    assert len(names) == len(set(names)) and b"maxclients" in names and b"timeout" in names
    assert c.call("CONFIG", "GET", "nosuch") == []
    assert c.call("CONFIG", "SET", "timeout", 7, "orphan-timeout", "3s") == "OK"
    assert c.call("CONFIG", "GET", "timeout", "orphan-timeout") == [
        b"timeout", b"7", b"orphan-timeout", b"3000"]
    for words, text in (
            (("timeout", 9, "maxclients", "x"), "ERR CONFIG SET failed (possibly related to argument 'maxclients')"),
            (("timeout", 9, "port", 1), "ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config"),
            (("timeout", 9, "nosuch", 1), "ERR Unknown option or number of arguments for CONFIG SET - 'nosuch'"),
            (("timeout", 9, "timeout", 8), "ERR CONFIG SET failed (possibly related to argument 'timeout') - duplicate parameter"),
            (("timeout", 9, "maxclients"), "ERR syntax error")):
        assert c.error("CONFIG", "SET", *words).startswith(text), words
        assert c.call("CONFIG", "GET", "timeout") == [b"timeout", b"7"], words
    c.call("HELLO", 3)
    assert c.call("CONFIG", "GET", "timeout") == {"timeout": b"7"}


@test("CONFIG REWRITE: comments and unknown lines stay, values follow, and it starts again")
def _():
    conf = ("# a comment of the owner\n"
            "timeout 5\n"
            "\n"
            "  orphan-timeout 10s\n"
            "save 900 1\n"
            "timeout 6\n"
            "requirepass \"\"\n")
    with Server(conf=conf, tcp=False) as server, server.connect() as c:
        path = os.path.join(server.folder, "kvasir.conf")
        os.chmod(path, 0o600)
        assert c.call("CONFIG", "SET", "timeout", 77, "piece-interval", "40ms",
                      "client-output-buffer-limit", "normal 32mb 1mb 60") == "OK"
        assert c.call("CONFIG", "REWRITE") == "OK"
        with open(path, encoding="utf-8") as f:
            text = f.read()
        assert text.startswith("# a comment of the owner\ntimeout 77\n\n  orphan-timeout 10s\nsave 900 1\n"), text
        assert text.count("timeout 77") == 1 and "timeout 6" not in text
        limits = c.call("CONFIG", "GET", "client-output-buffer-limit")[1].decode()
        assert "piece-interval 40\n" in text and f"client-output-buffer-limit {limits}\n" in text, text
        assert os.stat(path).st_mode & 0o777 == 0o600
        assert os.listdir(server.folder).count("kvasir.conf") == 1
        assert not [n for n in os.listdir(server.folder) if n.endswith(".tmp")]
        secret = "pass \"word\" \\ # é\n"
        assert c.call("CONFIG", "SET", "requirepass", secret) == "OK"
        assert c.call("CONFIG", "REWRITE") == "OK" and c.call("CONFIG", "REWRITE") == "OK"
        with open(path, encoding="utf-8") as f:
            again = f.read()
        assert again.count("# Written by CONFIG REWRITE") == 1
    with Server(conf=again, tcp=False) as server, server.connect() as c:
        assert c.call("AUTH", secret) == "OK"
        assert c.call("CONFIG", "GET", "timeout", "piece-interval") == [
            b"timeout", b"77", b"piece-interval", b"40"]


@test("CONFIG REWRITE without a file, and with one that cannot be written")
def _():
    with Server(tcp=False) as server, server.connect() as c:
        assert c.error("CONFIG", "REWRITE") == "ERR The server is running without a config file"
    with Server(conf="timeout 5\n", tcp=False) as server, server.connect() as c:
        os.unlink(os.path.join(server.folder, "kvasir.conf"))
        assert c.error("CONFIG", "REWRITE").startswith("ERR Rewriting config file: ")
        assert c.call("PING") == "PONG"


@test("enable-debug-command: no, local, yes, and only at start")
def _():
    refused = "ERR DEBUG command not allowed."
    with Server({"enable-debug-command": "no"}) as server, server.connect() as c:
        assert c.error("DEBUG", "AUDIT").startswith(refused)
        assert c.error("DEBUG", "HELP").startswith(refused)
        assert c.error("CONFIG", "SET", "enable-debug-command", "yes").endswith("can't set immutable config")
        c.call("MULTI")
        assert c.error("DEBUG", "AUDIT").startswith(refused)
        assert c.error("EXEC").startswith("EXECABORT")
    for setting in ("local", "yes"):
        with Server({"enable-debug-command": setting}) as server:
            for tcp in (False, True):
                with server.connect(tcp=tcp) as c:
                    assert c.call("DEBUG", "AUDIT") == "OK"
                    assert c.call("DEBUG", "HELP")[0].startswith("DEBUG <subcommand>")


# ---- LOADING ---------------------------------------------------------------------------------------

# Of Redis 7.0's commands that exist here, those with its `loading` flag.
# HELP aside, which Redis answers for every container.
LOADING = set("""acl auth client command config discard echo exec hello info latency monitor multi psubscribe
    publish pubsub punsubscribe quit readonly readwrite reset role select shutdown slowlog subscribe
    time unsubscribe unwatch watch""".split())


@test("during LOADING exactly the commands run that Redis 7 lets through")
def _():
    # A model that is a pipe without a writer: opening it takes as long as this test wants.
    with Server(tcp=False) as probe, probe.connect() as c:
        rows = c.call("COMMAND")
        flagged = {row[0].decode() for row in rows
                   if "loading" in row[2] or any("loading" in sub[2] for sub in row[9] if not sub[0].endswith(b"|help"))}
        existing = {row[0].decode() for row in rows}
        assert flagged == LOADING & existing, flagged ^ (LOADING & existing)
        path = os.path.join(probe.folder, "pipe.gguf")
        os.mkfifo(path)
        server = Server({"model": path}, tcp=False, wait=False)
        try:
            with server.wait_listening() as c:
                assert c.info()["loading"] == "1" and "loading_eta_seconds" in c.info("persistence")
                loading = "LOADING Kvasir is loading the model into memory"
                for words in (("PING",), ("GET", "k"), ("XADD", "k", "*", "text", "x"), ("DBSIZE",),
                              ("GEN", "k", "x"), ("WAIT", 0, 0), ("SCAN", 0), ("CANCEL", "k"),
                              ("RANDOMKEY",), ("SWAPDB", 0, 1), ("OBJECT", "ENCODING", "k")):
                    assert c.error(*words) == loading, words
                for words in (("ECHO", "x"), ("TIME",), ("ROLE",), ("SELECT", 1), ("HELLO", 3),
                              ("HELLO", 2), ("CLIENT", "ID"), ("CLIENT", "LIST"), ("COMMAND", "COUNT"),
                              ("CONFIG", "GET", "port"), ("CONFIG", "RESETSTAT"), ("ACL", "WHOAMI"),
                              ("OBJECT", "HELP"), ("MULTI",), ("DISCARD",), ("INFO", "all"), ("RESET",)):
                    assert not isinstance(c.call(*words), ReplyError), words
                assert c.error("READONLY") == "ERR This instance has cluster support disabled"
                c.call("MULTI")
                assert c.error("PING") == loading and c.error("EXEC").startswith("EXECABORT")
        finally:
            server.kill()


# ---- other people's programs -----------------------------------------------------------------------

def tool(name):
    path = shutil.which(name)
    if not path:
        raise Skip(f"{name} is not installed")
    return path


def run(argv, **more):
    done = subprocess.run([str(a) for a in argv], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          timeout=PATIENCE_S, **more)
    return done.returncode, done.stdout


@test("redis-cli --bigkeys, --memkeys, --scan and --latency work on conversations")
def _():
    cli = tool("redis-cli")
    with Server() as server, server.connect() as c:
        for i in range(30):
            add(c, f"conversation:{i}", "x" * i)
        for _ in range(5):
            add(c, "largest")
        base = [cli, "-p", server.port]
        status, text = run([*base, "--bigkeys"])
        assert status == 0 and b"""largest"' has 5 entries""" in text and b"31 streams" in text, text
        status, text = run([*base, "--memkeys"])
        assert status == 0 and b"31 streams" in text and b"Biggest" in text, text
        status, text = run([*base, "--scan", "--pattern", "conversation:1*"])
        assert status == 0 and len(text.split()) == 11, text
        process = subprocess.Popen([*map(str, base), "--raw", "--latency"], stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        try:
            # One sample is enough: it answers a PING and prints "min max avg samples".
            wait_until(lambda: int(c.info("commandstats").get("cmdstat_ping", "calls=0,")
                                   .split(",")[0].split("=")[1]) >= 3, "it samples")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


@test("redis-cli --pipe sends 5,000 commands and counts 5,000 replies and no error")
def _():
    cli = tool("redis-cli")
    with Server() as server, server.connect() as c:
        data = b"".join(c.encode("XADD", f"k{i % 50}", "*", "text", f"entry {i}") for i in range(5000))
        status, text = run([cli, "-p", server.port, "--pipe"], input=data)
        assert status == 0 and b"errors: 0, replies: 5000" in text, text
        assert c.call("DBSIZE") == 50 and c.call("XLEN", "k7") == 100


@test("redis-benchmark: PING, XADD, and a GEN line of its own")
def _():
    bench = tool("redis-benchmark")
    with Server({"model": tiny_model()}) as server, server.connect() as c:
        base = [bench, "-p", server.port, "-c", 10, "--csv"]
        for words in (["-n", 2000, "-t", "ping"], ["-n", 2000, "-P", 16, "-t", "ping"],
                      ["-n", 1000, "-r", 100, "XADD", "k:__rand_int__", "*", "text", "x"],
                      ["-n", 40, "-r", 1000, "GEN", "g:__rand_int__", "hello", "MAXTOKENS", 4]):
            status, text = run([*base, *words])
            assert status == 0 and b"rps" in text and b"rror" not in text, (words, text)
        stats = c.info("commandstats")
        assert "failed_calls=0" in stats["cmdstat_gen"] and "calls=40," in stats["cmdstat_gen"]
        assert "calls=1000," in stats["cmdstat_xadd"]


@test("prometheus-redis-exporter: redis_up 1, and no error line")
def _():
    exporter = tool("prometheus-redis-exporter")
    with Server({"model": tiny_model()}) as server, server.connect() as c:
        add(c, "k")
        c.call("GEN", "g", "hello", "MAXTOKENS", 4)
        log = os.path.join(server.folder, "exporter.log")

        def said():
            with open(log, encoding="utf-8", errors="replace") as f:
                return f.read()

        def start():
            port = free_port()
            with open(log, "wb") as f:
                return port, subprocess.Popen(
                    [exporter, "-redis.addr", f"redis://127.0.0.1:{server.port}", "-connection-timeout",
                     f"{int(PATIENCE_S)}s", "-web.listen-address", f"127.0.0.1:{port}"], stdout=f, stderr=subprocess.STDOUT)

        port, process = start()
        try:
            def scrape():
                nonlocal port, process
                if process.poll() is not None:  # somebody else took the port between our look and its bind
                    assert "address already in use" in said(), said()
                    port, process = start()
                try:
                    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as r:
                        return r.read().decode()
                except OSError:
                    return None
            text = wait_until(scrape, said)
        finally:
            process.terminate()
            process.wait()
        metrics = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert metrics["redis_up"] == "1", text
        assert float(metrics["redis_db_keys{db=\"db0\"}"]) == 2
        assert any(name.startswith("redis_commands_total{cmd=\"gen\"}") for name in metrics), text
        assert float(metrics["redis_latency_percentiles_usec{cmd=\"gen\",quantile=\"99\"}"]) > 0, text
        assert metrics["redis_exporter_last_scrape_error{err=\"\"}"] == "0", text
        lines = [line for line in said().splitlines() if "level=error" in line or "rror" in line]
        assert not lines, lines


if __name__ == "__main__":
    main()
