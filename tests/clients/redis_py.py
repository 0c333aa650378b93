"""redis_py - the body of the redis-py tests; runs under whichever version its interpreter has.

Arguments: unix socket, TCP port. Prints one line `NAME ok` or `NAME FAILED: why` per check.
"""
import asyncio
import sys
import threading
import traceback

import redis
import redis.asyncio

SOCKET, PORT = sys.argv[1], int(sys.argv[2])
GREEDY = ("TEMP", "0", "IGNOREEOS")


def connect(**options):
    return redis.Redis(host="127.0.0.1", port=PORT, encoding_errors="replace", **options)  # drawn bytes are no UTF-8


def entries_of(reply):
    """XREAD's entries of the only key, whatever the protocol."""
    if not reply:
        return []
    value = next(iter(reply.values())) if isinstance(reply, dict) else reply[0][1]
    return value[0] if value and isinstance(value[0], list) else value


def check_basics():
    r = connect(decode_responses=True)
    assert r.ping() and r.echo("x") == "x"
    r.client_setname("tester")
    assert r.client_getname() == "tester"
    assert r.info()["redis_mode"] == "standalone"
    assert r.config_get("max-running")
    assert r.exists("nothing") == 0 and r.type("nothing") == "none"


def check_keys():
    r = connect(decode_responses=True)
    first = r.xadd("s", {"text": "one"})
    second = r.xadd("s", {"role": "user", "content": "two"})
    assert r.xlen("s") == 2 and r.type("s") == "stream"
    assert r.xrange("s") == [(first, {"text": "one"}), (second, {"role": "user", "content": "two"})]
    assert r.xrevrange("s", count=1)[0][0] == second
    assert r.xinfo_stream("s")["length"] == 2
    assert r.expire("s", 100) and 0 < r.ttl("s") <= 100 and r.persist("s")
    assert r.copy("s", "t") and r.rename("t", "u") and sorted(r.scan_iter()) == ["s", "u"]
    assert r.xdel("s", first) == 1 and r.xtrim("s", 0, approximate=False) == 1
    assert r.delete("s", "u") == 2 and r.dbsize() == 0


def check_what_is_parsed():
    """Replies that redis-py takes apart: a field that it looks for and does not find is a KeyError."""
    r = connect(decode_responses=True)
    r.xadd("s", {"text": "one"})
    info = r.client_info()
    assert int(info["id"]) == r.client_id() and info["user"] == "default", info
    assert any(c["id"] == str(info["id"]) for c in r.client_list()) and r.client_list(_type="pubsub") == []
    assert r.client_list(client_id=[str(r.client_id())])[0]["cmd"] == "client|list"
    assert r.xinfo_stream("s")["first-entry"][1] == {"text": "one"} and r.xinfo_groups("s") == []
    assert r.xinfo_stream("s", full=True)["entries"]
    assert r.memory_usage("s") > 0 and r.object("encoding", "s") == "stream" and r.object("refcount", "s") == 1
    assert r.config_set("slowlog-log-slower-than", 0) and r.ping() and r.config_set("slowlog-log-slower-than", -1)
    assert {"id", "start_time", "duration", "command"} <= set(r.slowlog_get()[0]) and r.slowlog_len() > 0 and r.slowlog_reset()
    assert r.command()["gen"]["arity"] == -2 and r.command_count() == len(r.command())
    assert r.command_getkeys("XLEN", "s") == ["s"]
    assert len(r.time()) == 2 and r.role()[0].lower() == "master" and r.acl_whoami() == "default" and "stream" in r.acl_cat()
    assert r.execute_command("LATENCY", "LATEST") == [] and r.module_list() == [] and r.pubsub_numsub("a") == [("a", 0)] and r.pubsub_numpat() == 0
    assert r.client_getredir() == -1 and r.client_trackinginfo() and r.client_kill_filter(_id=999999) == 0
    assert r.info("all")["cmdstat_ping"]["calls"] > 0 and r.info("keyspace")["db0"]["keys"] == 1
    assert r.xtrim("s", 0) == 1 and r.xinfo_stream("s")["length"] == 0  # redis-py trims by ~


def check_gen():
    r = connect(decode_responses=True)
    text = r.execute_command("GEN", "g", "hello there", "MAXTOKENS", 12, *GREEDY)
    assert isinstance(text, str) and text
    kept = r.xrange("g")
    assert kept[0][1]["text"] == "hello there"
    assert kept[1][1]["text"] == text and kept[1][1]["finish"] == "length", kept
    r.execute_command("FORK", "g", "g2")
    assert r.xlen("g2") == 2
    assert r.execute_command("CANCEL", "g") == 0


def check_group():
    r = connect(decode_responses=True)
    texts = r.execute_command("GEN", "n", "hello there", "N", 3, "MAXTOKENS", 12, "TEMP", 1, "SEED", 7, "IGNOREEOS")
    ends = sorted((f for _, f in r.xrange("n")[1:]), key=lambda f: int(f["branch"]))
    assert texts == [f["text"] for f in ends] and len(set(texts)) > 1, (texts, ends)
    assert r.execute_command("FORK", "n", "n2", "BRANCH", 2) == 1
    assert [f["text"] for _, f in r.xrange("n2")] == ["hello there", texts[2]]
    best = r.execute_command("GEN", "b", "hello there", "BEAM", 2, "MAXTOKENS", 6, "IGNOREEOS", "BLOCK", 4000)
    assert len(best) == 2 and best[0] == r.xrange("b")[1][1]["text"], best
    with r.pipeline() as p:
        p.execute_command("GEN", "m3", "in a transaction", "N", 3, "MAXTOKENS", 4, "IGNOREEOS")
        (last,), n_ends = p.execute(), 0
    while n_ends < 3:
        for last, fields in entries_of(r.xread({"m3": last}, block=4000)):
            n_ends += "finish" in fields


def check_stream():
    r = connect(decode_responses=True)
    whole = r.execute_command("GEN", "w", "stream this", "MAXTOKENS", 40, *GREEDY)
    last, pieces = r.execute_command("GEN", "p", "stream this", "MAXTOKENS", 40, "ASYNC", *GREEDY), []
    while True:
        entries = entries_of(r.xread({"p": last}, block=4000))
        for last, fields in entries:
            if "piece" in fields:
                pieces.append(fields["piece"])
        if entries and "finish" in entries[-1][1]:
            break
    assert "".join(pieces) == whole == entries[-1][1]["text"], (pieces, whole)


def check_pipeline():
    r = connect(decode_responses=True)
    with r.pipeline() as p:  # MULTI by default: GEN submits and replies with an id
        p.xadd("m", {"text": "before"})
        p.execute_command("GEN", "m", "in a transaction", "MAXTOKENS", 4, *GREEDY)
        p.xlen("nothing")
        added, accepted, length = p.execute()
    assert "-" in accepted and length == 0
    while not any("finish" in f for _, f in r.xrange("m")):
        r.xread({"m": accepted}, block=1000)
    with r.pipeline(transaction=False) as p:
        for i in range(500):
            p.xadd("many", {"text": str(i)})
        assert len(p.execute()) == 500


def check_cancel():
    r = connect(decode_responses=True)
    last = r.execute_command("GEN", "c", "go on for long", "MAXTOKENS", 1500, "ASYNC", "IGNOREEOS")
    r.xread({"c": last}, block=4000)
    assert r.execute_command("CANCEL", "c") in (0, 1)
    end = r.xrevrange("c", count=1)[0][1]
    assert end["finish"] in ("cancelled", "length"), end


def check_errors():
    r = connect(decode_responses=True)
    for bad in (("GEN",), ("GEN", "k", "x", "TEMP", "nan"), ("GEN", "k", "x", "NOSUCH"), ("FORK", "a", "a")):
        try:
            r.execute_command(*bad)
        except redis.ResponseError:
            continue
        raise AssertionError(f"{bad} was accepted")


def check_threads():
    r, texts = connect(decode_responses=True), {}

    def one(i):
        texts[i] = r.execute_command("GEN", f"t{i}", "the same prompt", "MAXTOKENS", 16, *GREEDY)

    threads = [threading.Thread(target=one, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert len(texts) == 8 and len(set(texts.values())) == 1, texts


def check_unix_socket():
    r = redis.Redis(unix_socket_path=SOCKET)
    assert r.ping()
    data = bytes(range(256))
    r.xadd("bytes", {b"text": data})
    assert r.xrange("bytes")[0][1][b"text"] == data


def check_asyncio():
    async def run():
        r = redis.asyncio.Redis(host="127.0.0.1", port=PORT, decode_responses=True)
        texts = await asyncio.gather(
            *(r.execute_command("GEN", f"a{i}", "all at once", "MAXTOKENS", 10, *GREEDY) for i in range(6)))
        assert len(set(texts)) == 1
        await (r.aclose() if hasattr(r, "aclose") else r.close())

    asyncio.run(run())


def check_resp3():
    if int(redis.__version__.split(".")[0]) < 5:
        return
    r = connect(decode_responses=True, protocol=3)
    r.execute_command("GEN", "three", "hello", "MAXTOKENS", 4, *GREEDY)
    info = r.execute_command("GENINFO", "three")
    assert info["state"] == "idle", info
    assert entries_of(r.xread({"three": "0"}))


def run():
    print(f"version {redis.__version__}")
    for name, check in sorted(globals().items()):
        if not name.startswith("check_"):
            continue
        connect().flushall()
        try:
            check()
            print(f"{name[6:]} ok")
        except Exception:  # noqa: BLE001
            print(f"{name[6:]} FAILED: {traceback.format_exc()!r}")


run()
