#!/usr/bin/env python3
"""GEN and its relatives over real sockets with a tiny model: replies, waiting, retries, the end."""
import socket
import struct

from kvasir_test import (MODEL_OPTIONS, PATIENCE_S, TWIN, Client, ReplyError, Server, main, model_server, named, test,
                         tiny_model, wait_until, with_model)

LONG = ("IGNOREEOS", "TEMP", 0, "MAXTOKENS", 1500)


def start_long(server, c, key, *more):
    """A client that blocks in a long GEN, and that generation running: it stands still meanwhile."""
    waiter = server.connect()
    c.stand_still()
    waiter.send("GEN", key, "a long story", *LONG, *more)
    c.stop_at(3, key)
    return waiter


@test("GEN returns the text that the end entry holds; the conversation is a stream")
@with_model()
def _(server, c):
    text = c.call("GEN", "k", "hello", "TEMP", 0, "MAXTOKENS", 8, "IGNOREEOS")
    entries = c.call("XRANGE", "k", "-", "+")
    assert len(entries) == 2 and entries[0][1] == [b"text", b"hello"]
    end = dict(zip(entries[1][1][0::2], entries[1][1][1::2]))
    assert end[b"text"] == text and end[b"finish"] == b"length" and end[b"generated"] == b"8"
    info = c.geninfo("k")
    assert info["state"] == "idle" and info["finish"] == "length" and info["generated"] == 8, info
    assert c.call("TYPE", "k") == "stream" and c.call("XLEN", "k") == 2


@test("GENINFO is a map in RESP3 with the same names; a missing key has state none")
@with_model()
def _(server, c):
    names = ["state", "place", "prompt", "cached", "computed", "generated", "blocks", "shared-blocks",
             "finish", "queued-ms", "prefill-ms", "decode-ms", "own-blocks", "cached-blocks", "swapped-blocks"]
    flat = c.call("GENINFO", "zz")
    assert [n.decode() for n in flat[0::2]] == names and flat[1] == b"none"
    c.call("HELLO", 3)
    assert list(c.call("GENINFO", "zz")) == names


@test("WITHINFO returns the end entry as XRANGE shows it")
@with_model()
def _(server, c):
    entry = c.call("GEN", "k", "hello", "MAXTOKENS", 3, "SEED", 7, "WITHINFO")
    assert entry == c.call("XRANGE", "k", "-", "+")[-1]
    assert c.fields(entry)["seed"] == "7"
    c.call("HELLO", 3)
    assert isinstance(c.call("GEN", "k2", "hello", "MAXTOKENS", 3, "WITHINFO"), list)


@test("the same seed gives the same text, an option out of range names limit and value")
@with_model()
def _(server, c):
    a = c.call("GEN", "a", "once", "MAXTOKENS", 12, "SEED", 5, "TEMP", 1.5, "IGNOREEOS")
    assert a == c.call("GEN", "b", "once", "MAXTOKENS", 12, "SEED", 5, "TEMP", 1.5, "IGNOREEOS")
    assert c.error("GEN", "c", "x", "TEMP", 101) == "ERR GEN TEMP must be a number from 0 to 100, not '101'"
    assert c.error("GEN", "c", "MAXTOKENS", 5).startswith("ERR unknown GEN option '5'. What follows the key")
    assert c.call("EXISTS", "c") == 0  # a refusal writes nothing
    assert c.error("GEN", "c").startswith("ERR") and c.error("GEN", "c", "").startswith("ERR")


@test("STOP cuts the text and names what matched; BIAS forces ids; IDS takes them")
@with_model()
def _(server, c):
    ids = c.call("TOKENIZE", "abc abc")
    assert c.call("DETOKENIZE", *ids) == b"abc abc"
    forced = c.call("TOKENIZE", "x")[0]
    text = c.call("GEN", "k", "go", "MAXTOKENS", 5, "TEMP", 0, "BIAS", forced, 1000)
    assert text == b"xxxxx", text
    entry = c.call("GEN", "s", "go", "MAXTOKENS", 50, "TEMP", 0, "BIAS", forced, 1000, "STOP", "xxx", "WITHINFO")
    fields = c.fields(entry)
    assert fields["finish"] == "stop" and fields["matched"] == "xxx" and fields["text"] == "", fields
    packed = struct.pack(f"<{len(ids)}i", *ids)
    assert c.call("GEN", "i", packed, "IDS", "MAXTOKENS", 3, "TEMP", 0, "WITHINFO")
    assert c.geninfo("i")["prompt"] >= len(ids)
    assert c.error("GEN", "j", b"abc", "IDS", "MAXTOKENS", 1).startswith("ERR")
    assert c.error("GEN", "j", struct.pack("<i", 10**6), "IDS", "MAXTOKENS", 1).startswith("ERR")
    assert c.error("DETOKENIZE", 1, 100000).startswith("ERR a token must be from 0 to ")
    assert c.error("TOKENIZE", "a", "FOO") == "ERR syntax error"


@test("LOGPROBS is a line a token in the end entry: its own, then the best; PRIORITY is taken")
@with_model()
def _(server, c):
    for n in (0, 3, 20):
        entry = c.call("GEN", f"k{n}", "hello", "TEMP", 0, "MAXTOKENS", 6, "IGNOREEOS", "LOGPROBS", n,
                       "PRIORITY", -100, "WITHINFO")
        end = dict(zip(entry[1][0::2], entry[1][1::2]))
        lines = [[tuple(pair.split(b":")) for pair in line.split(b" ")] for line in end[b"logprobs"].split(b"\n")]
        assert len(lines) == 6 and all(len(line) == n + 1 for line in lines), lines
        for own, *best in lines:
            values = [float(value) for _, value in best]
            assert float(own[1]) <= 0 and values == sorted(values, reverse=True), lines
    for option, value in (("LOGPROBS", 21), ("LOGPROBS", -1), ("PRIORITY", 101), ("PRIORITY", "x")):
        try:
            c.call("GEN", "k", "hello", option, value)
            assert False, (option, value)
        except ReplyError as e:
            assert f"GEN {option} must be an integer from" in str(e), e
    assert b"logprobs" not in c.call("GEN", "plain", "hello", "MAXTOKENS", 2, "WITHINFO")[1][0::2]


@test("PROMPTLOGPROBS is a line a token of the prompt: the first alone, the others as those of LOGPROBS, cold and warm")
@with_model()
def _(server, c):
    def end_of(key, *args):
        entry = c.call("GEN", key, *args, "TEMP", 0, "IGNOREEOS", "WITHINFO")
        return dict(zip(entry[1][0::2], entry[1][1::2]))

    def lines_of(text):
        return [line.split(b" ") for line in text.split(b"\n")]

    end = end_of("a", "hello there", "MAXTOKENS", 40, "LOGPROBS", 3, "PROMPTLOGPROBS", 3)
    n = int(end[b"prompt"])
    first, *others = lines_of(end[b"prompt-logprobs"])
    assert len(first) == 1 and b":" not in first[0] and len(others) == n - 1, (first, others)
    assert all(len(line) == 4 for line in others), others
    # what was generated with its log-probabilities is the prompt of the next: the same lines, though
    # its blocks are in the cache
    generated = lines_of(end[b"logprobs"])
    again = end_of("a", " on", "MAXTOKENS", 2, "PROMPTLOGPROBS", 3)
    lines = lines_of(again[b"prompt-logprobs"])
    assert lines[:n] == [first] + others and lines[n : n + 40] == generated, lines
    assert again[b"cached"] == b"0" and len(lines) == int(again[b"prompt"])
    warm = end_of("b", "hello there", "MAXTOKENS", 2, "PROMPTLOGPROBS", 0)
    assert [line[:1] for line in lines_of(warm[b"prompt-logprobs"])] == [first] + [line[:1] for line in others]
    assert b"prompt-logprobs" not in end_of("c", "hello", "MAXTOKENS", 2, "LOGPROBS", 1)
    for value in (21, -1, "x"):
        assert c.error("GEN", "d", "hello", "PROMPTLOGPROBS", value) == (
            f"ERR GEN PROMPTLOGPROBS must be an integer from 0 to 20, not '{value}'")


@test("N and BEAM tell PROMPTLOGPROBS once, with branch 0, and LOGPROBS with each branch")
@with_model()
def _(server, c):
    alone = c.fields(c.call("GEN", "alone", "hello there", "MAXTOKENS", 2, "PROMPTLOGPROBS", 2, "WITHINFO"))
    for how in (("N", 3), ("BEAM", 3)):
        ends = c.call("GEN", how[0], "hello there", *how, "MAXTOKENS", 6, "IGNOREEOS", "LOGPROBS", 2,
                      "PROMPTLOGPROBS", 2, "WITHINFO")
        told = [c.fields(end) for end in ends]
        assert len(told) == 3 and [end.get("prompt-logprobs") for end in told] == [alone["prompt-logprobs"], None, None]
        for end in told:
            lines = [line.split(" ") for line in end["logprobs"].split("\n")]
            assert len(lines) == int(end["generated"]) and all(len(line) == 3 for line in lines), lines


@test("a long text is tokenised beside the loop; inside MULTI at once; the client may go meanwhile")
@with_model()
def _(server, c):
    text = "hello world " * 20000
    direct = c.call("TOKENIZE", text)
    assert len(direct) > 20000
    short = text[:60000]
    c.call("MULTI")
    c.call("TOKENIZE", short)
    c.call("TOKENIZE", text)
    replies = c.call("EXEC")
    assert replies[0] == c.call("TOKENIZE", short)
    assert str(replies[1]) == "ERR 240000 bytes are too many inside MULTI, at most 65536", replies[1]
    assert c.call("DETOKENIZE", *direct) == text.encode()
    gone = server.connect()
    gone.send("TOKENIZE", text)
    gone.close()
    c.send("TOKENIZE", text)
    c.send("PING")
    assert c.receive() == direct and c.receive() == "PONG"


@test("a long CACHE PROBE runs beside the loop and says the same as inside MULTI; its key may go meanwhile")
@with_model()
def _(server, c):
    long = "some words to count " * 110
    c.call("GEN", "w", long, "MAXTOKENS", 1)
    c.call("GEN", "k", "hello", "MAXTOKENS", 1)
    for args in ((long,), (long, "KEY", "k"), (long, "AS", "user")):
        direct = c.call("CACHE", "PROBE", *args)
        c.call("MULTI")
        c.call("CACHE", "PROBE", *args)
        assert c.call("EXEC") == [direct] and direct[0] > 100, direct
    assert c.call("CACHE", "PROBE", long)[1] > 100
    with server.connect() as other:
        other.send("CACHE", "PROBE", long, "KEY", "k")
        c.call("DEL", "k")
        assert other.receive()[0] > 100
        other.send("CACHE", "PROBE", long)
    assert c.error("CACHE", "PROBE", "x" * 2_000_000).startswith("ERR a prompt of 2000000 bytes can never fit")
    assert c.call("DEBUG", "AUDIT") == "OK"


@test("CACHE PROBE, INFO and CLEAR tell what is shared")
@with_model()
def _(server, c):
    prompt = "the quick brown fox jumps over the lazy dog " * 5
    tokens, cached = c.call("CACHE", "PROBE", prompt)
    assert tokens > 50 and cached == 0
    c.call("GEN", "k", prompt, "MAXTOKENS", 2)
    again, cached = c.call("CACHE", "PROBE", prompt)
    assert again == tokens and tokens - 17 <= cached < tokens, (tokens, cached)
    info = named(c.call("CACHE", "INFO"))
    assert info["cached"] > 0 and info["used"] == 0
    assert info["kv-type"] == c.info()["kv_type"] and info["block-bytes"] == int(c.info()["block_bytes"])
    assert c.call("CACHE", "CLEAR") > 0 and c.call("CACHE", "PROBE", prompt) == [tokens, 0]
    more, _ = c.call("CACHE", "PROBE", " and more", "KEY", "k")
    assert more > tokens
    assert c.error("CACHE", "PROBE", "x", "FOO", "y") == "ERR syntax error"


@test("a blocked GEN parks what is behind it; CANCEL from another connection ends it")
@with_model(TWIN)
def _(server, c):
    waiter = start_long(server, c, "k")
    waiter.send("PING")
    assert c.info("clients")["blocked_clients"] == "1"
    assert c.error("GEN", "k", "other").startswith("BUSYKEY a generation is running on ")
    assert c.error("XADD", "k", "*", "text", "x").startswith("BUSYKEY")
    assert c.call("CANCEL", "k", "zz") == 1 and c.call("CANCEL", "k") == 0
    assert str(waiter.receive(False)).startswith("CANCELLED"), "the waiter learns it"
    assert waiter.receive() == "PONG"
    assert c.fields(c.call("XRANGE", "k", "-", "+")[-1])["finish"] == "cancelled"
    waiter.close()


@test("BLOCK bounds the wait with null, and the same GEN again attaches or gets the end")
@with_model(TWIN)
def _(server, c):
    c.stand_still()
    args = ("GEN", "k", "a story", *LONG)
    assert c.call(*args, "BLOCK", 1) is None
    assert c.call(*args, "BLOCK", 2, ) is None
    with server.connect() as other:
        other.send(*args)
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it attached")
        assert c.call("CANCEL", "k") == 1
        assert str(other.receive(False)).startswith("CANCELLED")
    assert c.call("XLEN", "k") == 2  # one generation, not four
    c.send("GEN", "w", "x", *LONG, "WITHINFO", "BLOCK", 1)
    while b"\r\n" not in c.buffer:
        c._fill()
    assert c.receive() is None
    assert c.error("GEN", "k2", "x", "BLOCK", -1).startswith("ERR GEN BLOCK must be an integer from 0")
    assert c.error("GEN", "k2", "x", "BLOCK", 5, "ASYNC") == "ERR GEN BLOCK and ASYNC exclude each other"


@test("ASYNC returns the id to read after; XREAD brings pieces and the end")
@with_model()
def _(server, c):
    last = c.call("GEN", "k", "tell", "IGNOREEOS", "MAXTOKENS", 40, "ASYNC")
    text, end = c.wait_end("k", last)
    assert end["finish"] == "length" and end["generated"] == "40"
    assert text == c.call("XRANGE", "k", "-", "+")[-1][1][1], "joined pieces are the text"


@test("GEN inside MULTI submits and EXEC returns the id; XREAD then reads it")
@with_model()
def _(server, c):
    c.call("MULTI")
    assert c.call("GEN", "k", "tell", "IGNOREEOS", "MAXTOKENS", 5) == "QUEUED"
    assert c.call("GEN", "k2", "tell", "TEMP", "x") == "QUEUED"
    ids = c.call("EXEC")
    assert isinstance(ids[1], ReplyError) and "TEMP" in str(ids[1])
    _, end = c.wait_end("k", ids[0])
    assert end["finish"] == "length"


@test("DEADLINE ends with TIMEDOUT, WITHINFO shows the entry whatever the finish")
@with_model(TWIN)
def _(server, c):
    c.stand_still()
    error = c.error("GEN", "k", "a story", *LONG, "DEADLINE", 50)
    assert error.startswith("TIMEDOUT"), error
    assert c.fields(c.call("XRANGE", "k", "-", "+")[-1])["finish"] == "deadline"
    assert c.fields(c.call("GEN", "w", "a story", *LONG, "DEADLINE", 50, "WITHINFO"))["finish"] == "deadline"


@test("DEL, FLUSHALL and expiry of a generating key answer its waiter, then the key is gone")
@with_model(TWIN)
def _(server, c):
    for how in (("DEL", "k"), ("FLUSHALL",), ("PEXPIRE", "k", 1), ("RENAME", "other", "k")):
        c.call("XADD", "other", "*", "text", "x")
        waiter = start_long(server, c, "k")
        reader = server.connect()
        # one packet: once PONG is here, XREAD has run and waits, or has been answered by a piece
        reader.send_raw(Client.encode("PING") + Client.encode("XREAD", "BLOCK", 0, "STREAMS", "k", "$"))
        assert reader.receive() == "PONG"
        c.call(*how)
        assert str(waiter.receive(False)).startswith("CANCELLED"), how
        assert reader.receive() is not None
        if how[0] != "RENAME":
            wait_until(lambda: c.call("EXISTS", "k") == 0, "the key is gone")
        waiter.close()
        reader.close()
        c.call("FLUSHALL")


@test("a waiter that goes leaves an orphan that ends; the same GEN resumes it")
@with_model(TWIN, orphan_timeout=0)
def _(server, c):
    args = ("GEN", "k", "a story", "IGNOREEOS", "TEMP", 0, "MAXTOKENS", 1500)
    expected = c.call("GEN", "lone", *args[2:])
    for how in ("close", "half"):
        c.call("DEL", "k")
        c.call("CACHE", "CLEAR")
        waiter = server.connect()
        c.stand_still()
        waiter.send(*args)
        c.stop_at(5, "k")
        waiter.close() if how == "close" else waiter.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: c.geninfo("k")["state"] == "idle", "it ended")
        info = c.geninfo("k")  # which delivers nothing, as XRANGE would
        assert info["finish"] == "orphaned" and 5 <= info["generated"] < 1500, info
        c.go_on()
        assert c.call(*args) == expected, how
        assert c.call("XLEN", "k") == 2
        waiter.close()


@test("FORK while the source generates: children go on, destinations are all or none")
@with_model(TWIN)
def _(server, c):
    waiter = start_long(server, c, "src")
    assert c.call("FORK", "src", "a", "b", "c") == 3
    assert c.call("FORK", "src", "d", "a") == 0 and c.call("EXISTS", "d") == 0
    assert c.call("FORK", "src", "a", "REPLACE") == 1
    assert c.call("FORK", "missing", "x") == 0
    assert c.fields(c.call("XRANGE", "a", "-", "+")[-1])["finish"] == "forked"
    assert c.geninfo("src")["state"] == "running"
    first = c.call("XRANGE", "src", "-", "+", "COUNT", 1)[0][0]
    assert c.call("FORK", "src", "e", "AT", first) == 1 and c.call("XLEN", "e") == 1
    assert c.error("FORK", "src", "f", "AT", "1-1").startswith("ERR")
    assert c.error("FORK", "src", "f", "AT", "x").startswith("ERR Invalid stream ID")
    assert c.error("FORK", "src", "src").startswith("ERR") and c.error("FORK", "src", "f", "f").startswith("ERR")
    assert c.error("FORK", "src", "f", "BRANCH", 1).startswith("ERR BRANCH 1: ")
    assert c.error("FORK", "src", "REPLACE").startswith("ERR FORK needs a destination")
    c.go_on()
    assert c.call("GEN", "b", "", "MAXTOKENS", 3, "IGNOREEOS")
    assert c.geninfo("b")["cached"] > 0
    c.call("CANCEL", "src")
    waiter.receive(False)
    waiter.close()


@test("what can never fit is OOM with the numbers, a full queue QUEUEFULL, both without an entry")
@with_model(TWIN, kv_cache_size="1mb", max_running=1, max_queue=1)
def _(server, c):
    error = c.error("GEN", "k", "word " * 300, "MAXTOKENS", 1000)
    assert error.startswith("OOM ") and any(ch.isdigit() for ch in error), error
    assert c.call("EXISTS", "k") == 0
    waiter = server.connect()
    c.stand_still()
    waiter.send("GEN", "run", "x", "IGNOREEOS", "MAXTOKENS", 400)
    wait_until(lambda: c.geninfo("run")["state"] == "running", "it runs")
    c.call("GEN", "queued", "x", "ASYNC", "MAXTOKENS", 5)
    assert c.geninfo("queued")["state"] == "queued" and c.geninfo("queued")["place"] == 1
    assert c.error("GEN", "full", "x").startswith("QUEUEFULL ")
    c.call("CANCEL", "run", "queued")
    waiter.receive(False)
    waiter.close()


@test("hostile prompts: empty, control bytes, not UTF-8, marks of the template, a megabyte")
@with_model()
def _(server, c):
    for i, prompt in enumerate((b"\x00", b"\x01\x02", b"\xff\xfe\xc0", b"<|im_start|>system", b"\r\n+OK\r\n")):
        reply = c.call("GEN", f"k{i}", prompt, "MAXTOKENS", 3, "WITHINFO")
        assert reply[1] and c.call("XRANGE", f"k{i}", "-", "+")[0][1] == [b"text", prompt]
    assert c.error("GEN", "big", b"word " * 200000).startswith("ERR")
    assert c.call("EXISTS", "big") == 0 and c.call("PING") == "PONG"


@test("eight clients with one new prefix compute it once")
@with_model()
def _(server, c):
    prompt = "a shared passage of some length " * 20
    clients = [server.connect() for _ in range(8)]
    for i, d in enumerate(clients):
        d.send("GEN", f"k{i}", f"{prompt} question {i}", "MAXTOKENS", 5, "TEMP", 0)
    for d in clients:
        d.receive()
        d.close()
    info = c.info("engine")
    one = c.call("CACHE", "PROBE", prompt)[0]
    assert int(info["computed_prompt_tokens"]) < one * 2 + 8 * 40, (info, one)


@test("LOADING while the model is loaded: PING waits, INFO answers, then it is ready")
def _():
    # A model that takes a moment: the server is asked before its log says that it is ready.
    with Server({**MODEL_OPTIONS, "model": tiny_model(), "kv-cache-size": "32mb"}, tcp=False, wait=False) as server:
        with server.wait_listening() as c:
            def ready():
                c.send("PING")
                reply = c.receive(False)
                assert reply == "PONG" or str(reply).startswith("LOADING "), reply
                assert c.info("server")["server_name"] == "kvasir"
                return reply == "PONG"
            wait_until(ready, "it is loaded")
        wait_until(lambda: "Ready to accept connections" in server.log(), "the log says so")


@test("SIGTERM ends what runs with `cancelled` and answers every client")
def _():
    with model_server(TWIN) as server, server.connect() as c:
        waiters = [start_long(server, c, f"k{i}") for i in range(3)]
        c.send_raw(Client.encode("PING") + Client.encode("XREAD", "BLOCK", 0, "STREAMS", "k0", "$"))
        assert c.receive() == "PONG"
        server.process.terminate()
        for w in waiters:
            assert str(w.receive(False)).startswith("CANCELLED")
            assert w.closed()
        assert c.receive() is not None
        assert server.process.wait(PATIENCE_S) == 0


@test("prompts and passwords never reach the log")
@with_model(loglevel="debug")
def _(server, c):
    c.call("GEN", "k", "my-private-prompt", "MAXTOKENS", 2)
    c.error("GEN", "k", "my-private-prompt", "NOSUCH")
    c.call("XADD", "k", "*", "text", "my-private-prompt")
    c.error("AUTH", "my-private-password")
    c.error("HELLO", 3, "AUTH", "other", "my-private-password")
    c.call("TOKENIZE", "my-private-prompt")
    c.call("CACHE", "PROBE", "my-private-prompt")
    c.call("CONFIG", "SET", "requirepass", "my-private-password")
    log = server.log()
    assert "my-private" not in log
    assert '"GEN" "k" (17 bytes)' in log and '"AUTH" (redacted)' in log  # the commands are there
    c.call("CONFIG", "SET", "log-prompts", "yes")
    c.call("TOKENIZE", "shown")
    assert '"TOKENIZE" "shown"' in server.log()


@test("a connection that is reset in the middle of its reply harms nobody")
@with_model()
def _(server, c):
    for _ in range(5):
        d = server.connect()
        d.send("GEN", "k", "x", "MAXTOKENS", 30, "IGNOREEOS")
        d.send("PING")
        d.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        d.close()
        c.call("DEL", "k")
    assert c.call("GEN", "z", "x", "MAXTOKENS", 3, "IGNOREEOS")


main()
