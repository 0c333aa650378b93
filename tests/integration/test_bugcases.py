#!/usr/bin/env python3
"""Failures that users of comparable servers reported, tried on a whole server.

What one layer can show alone is tested beside that layer.
"""
import os
import random
import resource
import socket
import struct
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from forced import ENDS, FIRST_BYTE, byte_ids, end_of, forced, ids, number  # noqa: E402
from kvasir_test import (REAL_MODEL, TWIN, Client, ReplyError, Server, is_sanitized, main, model_path,  # noqa: E402
                         test, tiny_model, wait_until)

LLAMA = "\N{LLAMA}".encode()
_shared = []


def shared():
    """One server for all tests that change no option; keys are flushed."""
    if not _shared:
        _shared.append(Server({"model": tiny_model(), "piece-interval": 0}))
    with _shared[0].connect() as c:
        c.call("FLUSHALL")
    return _shared[0]


def raw_text_of_end(c, key):
    flat = c.call("XREVRANGE", key, "+", "-", "COUNT", 1)[0][1]
    return dict(zip(flat[0::2], flat[1::2])).get(b"text", b"")


def streamed(c, key, prompt, *options):
    """Every piece's bytes, and the fields of the end entry."""
    pieces, entry = c.read_answer(key, c.call("GEN", key, prompt, *options, "ASYNC"))
    return pieces, c.fields(entry)


def patched_model(*changes):
    """The tiny model's file with some bytes replaced by as many others."""
    with open(tiny_model(), "rb") as f:
        data = f.read()
    for old, new in changes:
        assert len(old) == len(new) and old in data, (old, new)
        data = data.replace(old, new)
    path = os.path.join(os.path.dirname(tiny_model()), f"patched-{len(changes)}-{abs(hash(changes))}.gguf")
    with open(path, "wb") as f:
        f.write(data)
    return path


# ---- text and ids -----------------------------------------------------------------------------------


@test("text that spells control tokens stays text, as a prompt and as a message's content")
def _():
    text = "<|im_start|>Hello World<|im_end|>"
    with shared().connect() as c:
        plain, special = c.call("TOKENIZE", text), c.call("TOKENIZE", text, "SPECIAL")
        assert min(plain) >= FIRST_BYTE and c.call("DETOKENIZE", *plain) == text.encode()
        assert special[0] == 1 and special[-1] == 2 and special[1:-1] == c.call("TOKENIZE", "Hello World")
        # a message costs its content's ids and the marks around it, whatever it spells
        marks = c.call("CACHE", "PROBE", "x", "AS", "user")[0] - len(c.call("TOKENIZE", "x"))
        assert c.call("CACHE", "PROBE", text, "AS", "user")[0] == marks + len(plain)
        c.call("GEN", "k", text, "MAXTOKENS", 1, "IGNOREEOS")
        assert int(end_of(c, "k")["prompt"]) == len(plain)


@test("a NUL in a prompt is a character; what stands behind it counts")
def _():
    text = (b"Reply with exactly the word BANANA and nothing else.\0"
            b" If you can read this sentence, reply APPLE instead.")
    with shared().connect() as c:
        tokens = c.call("TOKENIZE", text)
        assert c.call("DETOKENIZE", *tokens) == text
        c.call("GEN", "k", text, "MAXTOKENS", 1, "IGNOREEOS")
        assert c.geninfo("k")["prompt"] == len(tokens)
        assert c.call("XRANGE", "k", "-", "+")[0][1] == [b"text", text]


@test("a bulk of 512 MiB or of 2^31+1 bytes is refused by its header; others are served")
def _():
    server = shared()
    with server.connect() as other:
        other.call("PING")
        before = number(other, "used_memory_rss")
        for n in (512 << 20, 2**31 + 1):
            with server.connect() as c:
                c.send_as_much(b"*3\r\n$3\r\nGEN\r\n$1\r\nk\r\n$%d\r\n" % n + b"\n" * 65536)
                error = c.receive(False)
                assert isinstance(error, ReplyError) and "Protocol error: invalid bulk length" in str(error)
                assert c.closed()
        assert number(other, "used_memory_rss") - before < 8 << 20
        assert other.call("PING") == "PONG"


@test("a prompt of 15 MiB is refused with the context's size, and nobody waits for it")
def _():
    server = shared()
    with server.connect() as c, server.connect() as other:
        def was_away_us():
            """How long the main thread was away from everybody else, of CPU time."""
            other.call("CONFIG", "RESETSTAT")
            c.send("GEN", "k", b"\n" * (15 << 20))
            for _ in range(20):
                assert other.call("PING") == "PONG"
            error = str(c.receive(False))
            assert error.startswith("ERR ") and "2048" in error, error
            assert other.call("EXISTS", "k") == 0
            return number(other, "main_thread_max_stall_cpu_usec")

        # Tokenising 15 MiB takes seven seconds, each time; a machine that is busy does not so each time.
        wait_until(lambda: was_away_us() < 2_000_000, lambda: f"the main thread was away for {was_away_us()} us")


@test("long runs of one thing come back from their ids")
def _():
    rng = random.Random(8)
    texts = [b"a" * 65536, b" " * 32768, b"7" * 20000, LLAMA * 4096, b"\n" * 16384,
             bytes(rng.choice(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")
                   for _ in range(32768))]
    with shared().connect() as c:
        for text in texts:
            tokens = c.call("TOKENIZE", text)
            assert c.call("DETOKENIZE", *tokens) == text, text[:8]


# ---- streaming --------------------------------------------------------------------------------------


@test("a character of four tokens arrives whole, streamed and not")
def _():
    say = forced(byte_ids(LLAMA + b"z") + [2])
    with shared().connect() as c:
        assert c.call("GEN", "whole", "x", *say) == LLAMA + b"z"
        pieces, end = streamed(c, "k", "x", *say)
        assert b"".join(pieces) == LLAMA + b"z" and end["finish"] == "stop", (pieces, end)
        for piece in pieces:
            piece.decode()  # each alone is whole UTF-8
        assert raw_text_of_end(c, "k") == LLAMA + b"z"


@test("a byte that is no UTF-8 in the answer passes as it is, and what follows is not lost")
def _():
    # E2 9C 85 is a character, a second 85 alone is none. REPEAT halves the bias of what has come (the
    # 85 is in the prompt), FREQUENCY takes 30 each time: so 85 may come twice.
    want = b"\xe2\x9c\x85\x85x"
    say = ["IDS", "TEMP", 0, "REPEAT", 2, "FREQUENCY", 30, "BIAS", byte_ids(b"\xe2")[0], 900,
           "BIAS", byte_ids(b"\x9c")[0], 800, "BIAS", byte_ids(b"\x85")[0], 1000,
           "BIAS", byte_ids(b"x")[0], 455, "BIAS", 2, 445, "MAXTOKENS", 20]
    prompt = ids(*byte_ids(b"\x85"))
    with shared().connect() as c:
        assert c.call("GEN", "whole", prompt, *say) == want
        pieces, end = streamed(c, "k", prompt, *say)
        assert b"".join(pieces) == want and end["finish"] == "stop", (pieces, end)
        assert raw_text_of_end(c, "k") == raw_text_of_end(c, "whole") == want


# ---- where an answer ends ---------------------------------------------------------------------------


@test("no part of a stop string is sent, and the end tells which it was")
def _():
    with Server({"model": model_path(REAL_MODEL), "piece-interval": 0}) as server, server.connect() as c:
        prompt, say = "Here is the English alphabet: ABC", ["TEMP", 0, "MAXTOKENS", 40]
        pieces, end = streamed(c, "whole", prompt, *say)
        assert b"".join(pieces).startswith(b"DEFGHIJ"), pieces
        pieces, end = streamed(c, "k", prompt, *say, "STOP", "DEFGHIJ")
        assert pieces == [] and end["text"] == "" and end["matched"] == "DEFGHIJ", (pieces, end)
        assert end["finish"] == "stop" and c.call("XLEN", "k") == 2
        pieces, end = streamed(c, "k2", prompt, *say, "STOP", "GHIJK")
        assert b"".join(pieces) == b"DEF" and end["text"] == "DEF" and end["matched"] == "GHIJK", (pieces, end)


@test("a stop string over several tokens ends the text before it, streamed as not")
def _():
    say = forced(byte_ids(b"alph betg")) + ["STOP", "pet", "STOP", " bet", "MAXTOKENS", 9]
    with shared().connect() as c:
        assert c.call("GEN", "whole", "x", *say) == b"alph"
        pieces, end = streamed(c, "k", "x", *say)
        assert b"".join(pieces) == b"alph" == end["text"].encode() and end["matched"] == " bet", (pieces, end)


@test("text held back for a possible stop string is delivered when the end follows")
def _():
    say = forced(byte_ids(b"pleas") + [2]) + ["STOP", "ast", "STOP", "seas"]
    with shared().connect() as c:
        assert c.call("GEN", "whole", "x", *say) == b"pleas"
        pieces, end = streamed(c, "k", "x", *say)
        assert b"".join(pieces) == b"pleas" and end["finish"] == "stop" and "matched" not in end, (pieces, end)


@test("without an end-of-text id, or with one outside the vocabulary, the limit ends the answer")
def _():
    spellings = ((b"<|endoftext|>", b"<|endoftexx|>"), (b"<|im_end|>", b"<|im_enx|>"))
    key = b"tokenizer.ggml.eos_token_id" + struct.pack("<I", 4)
    missing = spellings + ((b"tokenizer.ggml.eos_token_id", b"tokenizer.ggml.xos_token_id"),)
    outside = spellings + ((key + struct.pack("<I", 2), key + struct.pack("<I", 323)),)
    for changes in (missing, outside):
        with Server({"model": patched_model(*changes), "max-context": 128}) as server, server.connect() as c:
            assert c.info()["model_end_ids"] == "none"
            for limit, generated in ((30, 30), (100000, 127)):
                # 2 was the id; here it is like any other control token
                c.call("GEN", f"k{limit}", "x", "MAXTOKENS", limit, "BIAS", 2, 1000, "TEMP", 0)
                end = end_of(c, f"k{limit}")
                assert end["finish"] == "length" and int(end["generated"]) == generated, end


@test("each of the model's end-of-text ids ends the answer and is part of nothing; INFO lists them")
def _():
    with shared().connect() as c:
        assert c.info()["model_end_ids"] == ",".join(map(str, ENDS))
        for token in ENDS:
            key = f"k{token}"
            assert c.call("GEN", key, "x", *forced(byte_ids(b"ab") + [token])) == b"ab"
            end = end_of(c, key)
            assert end["finish"] == "stop" and end["generated"] == "2" and "matched" not in end, end
            # and it is not in the sequence that goes on
            assert c.call("CACHE", "PROBE", "y", "KEY", key)[0] == 4


@test("limits are exact, and every id is in the stream, in the text and in the count")
def _():
    letters = b"abcdefghijklmnopqrst"
    with shared().connect() as c:
        for limit in (1, 5, 20):
            say = forced(byte_ids(letters)) + ["MAXTOKENS", limit, "IGNOREEOS"]
            pieces, end = streamed(c, f"k{limit}", "x", *say)
            assert b"".join(pieces) == letters[:limit] == end["text"].encode(), (pieces, end)
            assert end["generated"] == str(limit) and end["finish"] == "length", end
            assert c.geninfo(f"k{limit}")["generated"] == limit


# ---- the cache --------------------------------------------------------------------------------------


def same_with_a_warm_cache(backend, n_prompts):
    rng = random.Random(18)
    prompts = ["".join(rng.choice("abcdefghijklmnopqrstuvwxyz0123456789") for _ in range(512))
               for _ in range(n_prompts)]
    with Server({"model": tiny_model("--layers", "2"), "backend": backend}) as server, server.connect() as c:
        def run(clear):
            answers, cached = [], 0
            for prompt in prompts:
                if clear:
                    c.call("CACHE", "CLEAR")
                c.call("DEL", "k")
                answers.append(c.call("GEN", "k", prompt, "TEMP", 0, "MAXTOKENS", 16, "IGNOREEOS"))
                cached += int(end_of(c, "k")["cached"])
            return answers, cached

        first, warm, off, again = run(False), run(False), run(True), run(True)
        assert first[0] == warm[0] == off[0] == again[0]
        assert warm[1] > n_prompts * 450 and off[1] == again[1] == 0, (first[1], warm[1], off[1])


for each_backend, n in (("cpu", 16), ("ref", 4)):  # ref is slow
    @test(f"answers are the same with a warm cache and with an empty one: {each_backend}")
    def _(backend=each_backend, n_prompts=n):
        same_with_a_warm_cache(backend, n_prompts)


@test("the first answer to a long prompt is that of all later ones")
def _():
    prompt = ids(*((i * i * 31 + i) % 300 + FIRST_BYTE for i in range(3000)))
    with Server({"model": tiny_model("--context", "4096", "--layers", "2")}) as server, server.connect() as c:
        answers = []
        for key in ("a", "b", "c"):
            answers.append(c.call("GEN", key, prompt, "IDS", "TEMP", 0, "SEED", 0, "MAXTOKENS", 24, "IGNOREEOS"))
            cached = int(end_of(c, key)["cached"])
            assert cached == (0 if key == "a" else 2999), (key, cached)
        assert answers[0] == answers[1] == answers[2]


@test("an id taken back at a block's edge leaves no block that answers for it")
def _():
    ten = byte_ids(b"\n") * 15
    with shared().connect() as c:
        c.call("CACHE", "CLEAR")
        c.call("GEN", "a", ids(*ten), "IDS", "MAXTOKENS", 1, "TEMP", 0, "IGNOREEOS")
        text, x = end_of(c, "a")["text"], c.call("XREVRANGE", "a", "+", "-", "COUNT", 1)[0]
        token = c.call("TOKENIZE", text)
        assert len(token) == 1, text
        assert c.call("XDEL", "a", x[0]) == 1
        options = ["IDS", "MAXTOKENS", 8, "TEMP", 0, "IGNOREEOS"]
        after_a = c.call("GEN", "a", ids(FIRST_BYTE + 11), *options)
        prompt = ids(*ten, token[0], FIRST_BYTE + 13)
        warm = c.call("GEN", "b", prompt, *options)
        c.call("FLUSHALL")
        c.call("CACHE", "CLEAR")
        assert c.call("GEN", "b", prompt, *options) == warm and end_of(c, "b")["cached"] == "0"
        c.call("CACHE", "CLEAR")
        assert c.call("GEN", "c", ids(*ten, FIRST_BYTE + 11), *options) == after_a


# ---- what does not fit ------------------------------------------------------------------------------


@test("a prompt larger than the pool is refused with need and limit, ten small ones are served")
def _():
    with shared().connect() as c:
        block_bytes = number(c, "block_bytes")
    with Server({"model": tiny_model(), "kv-cache-size": 64 * block_bytes}) as server, server.connect() as c:
        error = c.error("GEN", "big", ids(*[FIRST_BYTE + 65] * (65 * 16)), "IDS", "MAXTOKENS", 1)
        assert error.startswith("OOM ") and "64" in error and "66" in error or "65" in error, error
        assert c.call("EXISTS", "big") == 0
        clients = [server.connect() for _ in range(10)]
        for i, small in enumerate(clients):
            small.send("GEN", f"k{i}", f"small {i}", "MAXTOKENS", 8, "TEMP", 0, "IGNOREEOS")
        for small in clients:
            assert small.receive() != b""
            small.close()
        assert c.call("DEBUG", "AUDIT") == "OK"


@test("a prompt of the context and one more is refused; of one less it gets one token")
def _():
    with Server({"model": tiny_model(), "max-context": 128}) as server, server.connect() as c:
        for n in (129, 128):
            error = c.error("GEN", "k", ids(*[FIRST_BYTE + 65] * n), "IDS", "MAXTOKENS", 5)
            assert error.startswith("ERR ") and "128" in error and str(n) in error, error
            assert c.call("EXISTS", "k") == 0
            error = c.error("GEN", "k", b"A" * n, "MAXTOKENS", 5)
            assert error.startswith("ERR ") and "128" in error, error
        c.call("GEN", "k", ids(*[FIRST_BYTE + 65] * 127), "IDS", "MAXTOKENS", 5, "IGNOREEOS")
        end = end_of(c, "k")
        assert end["finish"] == "length" and end["generated"] == "1" and end["prompt"] == "127", end
        assert c.error("GEN", "k", "").startswith("ERR ")  # full is full


# ---- clients that leave -----------------------------------------------------------------------------


def leave_by_fin(client):
    client.close()


def leave_by_reset(client):
    client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


def leave_by_half(client):
    client.socket.shutdown(socket.SHUT_WR)


def big_context():
    return tiny_model("--context", "32768")


@test("a client that closes, resets or half-closes ends its generation, once, and frees its blocks")
def _():
    with Server({"model": big_context(), "orphan-timeout": 0}, program=TWIN) as server, server.connect() as c:
        for n, leave in enumerate((leave_by_fin, leave_by_reset, leave_by_half), 1):
            key, client = f"k{n}", server.connect(tcp=True)
            c.stand_still()
            client.send("GEN", key, "x", "MAXTOKENS", 30000, "IGNOREEOS")
            c.stop_at(5, key)
            c.go_on()
            leave(client)
            wait_until(lambda: c.geninfo(key)["state"] == "idle", "the orphan's end")
            end = end_of(c, key)
            assert end["finish"] == "orphaned" and 5 <= int(end["generated"]) < 30000, end
            client.close()
            info = c.info()
            assert int(info["finished_orphaned"]) == n and info["cache_blocks_used"] == "0", info
            assert c.call("XLEN", key) == 2
        assert c.call("DEBUG", "AUDIT") == "OK"
        assert sum(int(v) for k, v in c.info().items() if k.startswith("finished_")) == 3


@test("a client that leaves during a long prefill ends it there")
def _():
    options = {"model": big_context(), "orphan-timeout": 0, "max-chunk": 64, "max-batch-tokens": 128}
    with Server(options, program=TWIN) as server, server.connect() as c:
        n = 24000
        client = server.connect(tcp=True)
        c.stand_still()
        client.send("GEN", "k", ids(*((i * 7) % 200 + FIRST_BYTE for i in range(n))), "IDS", "MAXTOKENS", 5)
        c.step_until(lambda: c.geninfo("k")["computed"] > 0, "the first chunk")
        client.close()
        wait_until(lambda: c.geninfo("k")["state"] == "idle", "the orphan's end")
        assert end_of(c, "k")["finish"] == "orphaned"
        rows = number(c, "rows")
        assert rows < n, rows
        c.go_on()
        c.call("GEN", "other", "x", "MAXTOKENS", 1, "IGNOREEOS")
        assert number(c, "rows") <= rows + 64 + 1  # the step that ran then, and other's: no more of it
        assert c.call("DEBUG", "AUDIT") == "OK"


@test("what clients had queued and left is never computed")
def _():
    options = {"model": big_context(), "orphan-timeout": 0, "max-running": 1}
    with Server(options, program=TWIN) as server, server.connect() as c:
        c.stand_still()
        c.call("GEN", "long", "x", "MAXTOKENS", 30000, "IGNOREEOS", "ASYNC")
        c.stop_at(1, "long")
        clients = [server.connect() for _ in range(20)]
        for i, client in enumerate(clients):
            client.send("GEN", f"k{i}", f"{i} bottles on the wall, " * 20, "MAXTOKENS", 5)
        wait_until(lambda: number(c, "generations_queued") == 20, "twenty in the queue")
        for client in clients:
            client.close()
        wait_until(lambda: number(c, "generations_queued") == 0, "an empty queue")
        assert c.geninfo("long")["state"] == "running"
        assert c.call("CANCEL", "long") == 1
        info = c.info()
        assert int(info["finished_orphaned"]) == 20 and int(info["computed_prompt_tokens"]) == 1, info
        for i in range(20):
            assert end_of(c, f"k{i}")["finish"] == "orphaned"
        assert c.call("DEBUG", "AUDIT") == "OK"


@test("a CANCEL around the last token gives one end, cancelled or finished")
def _():
    limit = 12
    with shared().connect() as c, shared().connect() as other:
        before = {k: int(v) for k, v in c.info().items() if k.startswith("finished_")}
        finishes = []
        for round_number in range(60):
            key = f"k{round_number}"
            c.send("GEN", key, "x", "MAXTOKENS", limit, "IGNOREEOS")
            seen = limit - 2 + round_number % 3
            while True:
                info = other.geninfo(key)
                if info["state"] == "idle" or info.get("generated", 0) >= seen:
                    break
            cancelled = other.call("CANCEL", key)
            reply = c.receive(False)
            end = end_of(c, key)
            assert end["finish"] == ("cancelled" if cancelled else "length"), (cancelled, end)
            assert isinstance(reply, ReplyError) == bool(cancelled), (cancelled, reply)
            assert c.call("XLEN", key) == 2
            finishes.append(end["finish"])
        after = {k: int(v) for k, v in c.info().items() if k.startswith("finished_")}
        assert sum(after.values()) - sum(before.values()) == 60, (before, after)
        assert after["finished_length"] - before["finished_length"] == finishes.count("length")
        assert c.call("DEBUG", "AUDIT") == "OK" and c.info()["cache_blocks_used"] == "0"


@test("of six at once with one place to run and one to wait, four are told so at once")
def _():
    options = {"model": big_context(), "max-running": 1, "max-queue": 1}
    with Server(options, program=TWIN) as server, server.connect() as c:
        c.stand_still()
        c.call("GEN", "k0", "x", "MAXTOKENS", 30000, "IGNOREEOS", "ASYNC")
        wait_until(lambda: c.geninfo("k0")["state"] == "running", "the first to run")
        c.call("GEN", "k1", "x", "MAXTOKENS", 5, "IGNOREEOS", "ASYNC")
        for i in range(2, 6):
            error = c.error("GEN", f"k{i}", "x", "MAXTOKENS", 5)
            assert error.startswith("QUEUEFULL ") and "1" in error, error
        assert c.call("CANCEL", "k0") == 1
        c.go_on()
        wait_until(lambda: c.geninfo("k1")["state"] == "idle", "the queued one's end")
        assert end_of(c, "k1")["finish"] == "length"


@test("beams with a stop string that never comes, with and without early stop, end within the limit")
def _():
    limit = 10
    with shared().connect() as c:
        for width in (1, 2, 16):
            for early in ([], ["EARLYSTOP"]):
                before = number(c, "steps")
                answers = c.call("GEN", "k", "Hi", "BEAM", width, "MAXTOKENS", limit, "STOP", "###", *early)
                assert len(answers) == width and number(c, "steps") - before <= limit, (width, early)
                ends = [c.fields(e) for e in c.call("XRANGE", "k", "-", "+")[1:]]
                assert [e["branch"] for e in ends] == [str(i) for i in range(width)], ends
                assert all(int(e["generated"]) <= limit for e in ends), ends
                c.call("DEL", "k")
        assert c.call("DEBUG", "AUDIT") == "OK"


# ---- chat -------------------------------------------------------------------------------------------


@test("what a template refuses is an error with its reason, and nothing is generated")
def _():
    for template in ("mistral", "llama-2", "gemma"):
        with Server({"model": tiny_model(), "chat-template": template}) as server, server.connect() as c:
            for role in ("user", "user", "user", "assistant", "assistant"):
                c.call("XADD", "k", "*", "role", role, "content", "x")
            error = c.error("GEN", "k", "y", "AS", "user", "MAXTOKENS", 3)
            assert error.startswith("ERR ") and "user" in error, error
            assert c.call("XLEN", "k") == 5 and number(c, "rows") == 0
            assert c.call("GEN", "other", "y", "AS", "user", "MAXTOKENS", 3, "IGNOREEOS") is not None


@test("an assistant message with calls and no content is kept and ignored; an empty one is empty")
def _():
    with shared().connect() as c:
        c.call("XADD", "k", "*", "role", "user", "content", "What is the weather?")
        before = c.call("CACHE", "PROBE", "", "KEY", "k")[0]
        c.call("XADD", "k", "*", "role", "assistant", "tool_calls", '[{"name": "weather"}]')
        assert c.call("CACHE", "PROBE", "", "KEY", "k")[0] == before
        assert c.call("GEN", "k", "", "MAXTOKENS", 3, "IGNOREEOS") is not None
        assert int(end_of(c, "k")["prompt"]) == before
        c.call("XADD", "e", "*", "role", "user", "content", "")
        c.call("XADD", "e", "*", "role", "assistant", "content", "")
        assert c.call("GEN", "e", "go on", "MAXTOKENS", 3, "IGNOREEOS") is not None


# ---- few bytes that ask for much --------------------------------------------------------------------


@test("a thousand clients that send a byte now and then cost little and hold nobody up")
def _():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(hard, 4096)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    n = min(1000, max(soft, wanted) // 2 - 100)
    request = Client.encode("GEN", "k", "x", "MAXTOKENS", 1)
    with Server({"model": tiny_model()}) as server, server.connect() as c:
        before = number(c, "used_memory_rss")
        slow = []
        while len(slow) < n:  # not more at once than wait to be accepted
            slow += [server.connect() for _ in range(min(100, n - len(slow)))]
            wait_until(lambda: number(c, "connected_clients") == len(slow) + 1, "their acceptance")
        for at in range(12):
            for client in slow:
                client.send_raw(request[at:at + 1])
            assert c.call("PING") == "PONG"
        assert c.call("GEN", "other", "x", "MAXTOKENS", 3, "IGNOREEOS") is not None
        if not is_sanitized():  # red zones and quarantine
            assert (number(c, "used_memory_rss") - before) / n < 16384
        for client in slow:
            client.close()
        wait_until(lambda: number(c, "connected_clients") == 1, "the slow ones to be gone")


@test("readers that stop reading are bounded, and others get their answers")
def _():
    # the soft limit's time would close them on a slow machine
    options = {"model": big_context(), "piece-interval": 0, "client-output-buffer-limit": "normal 64mb 0 0"}
    with Server(options) as server, server.connect() as c:
        stuck = [server.connect(tcp=True) for _ in range(50)]
        big = "y" * 20000
        c.call("XADD", "big", "*", "text", big)
        for i, client in enumerate(stuck):
            client.send("GEN", f"s{i}", "x", "MAXTOKENS", 40, "IGNOREEOS", "ASYNC")
            for _ in range(200):  # 4 MB of replies that nobody reads
                client.send("XREAD", "STREAMS", "big", f"s{i}", "0", "0")
        for client in stuck:
            assert len(client.socket.recv(100)) > 0
        answer = c.call("GEN", "other", "x", "MAXTOKENS", 40, "IGNOREEOS", "TEMP", 0)
        c.call("CACHE", "CLEAR")
        assert c.call("GEN", "again", "x", "MAXTOKENS", 40, "IGNOREEOS", "TEMP", 0) == answer
        memory = [int(line.split(b"tot-mem=")[1].split()[0]) for line in c.call("CLIENT", "LIST").splitlines()]
        assert len(memory) == 51 and max(memory) < 3 << 20, memory
        for client in stuck:
            client.close()


@test("a fan-out too large is refused by its number, before anything is made of it")
def _():
    server = shared()
    with server.connect() as c:
        bias = [word for i in range(2000) for word in ("BIAS", i % 300, 1)]
        for options, limit in ((["STOP", "a"] * 100000, "64"), (bias, "1024"), (["STOP", "a" * 1025], "1024"),
                               (["MAXTOKENS", 2**31], "2147483647"), (["N", 1000000], "1 to 64"),
                               (["BEAM", 1000000], "1 to 16"), (["LOGPROBS", 1000000], "0 to 20")):
            error = c.error("GEN", "k", "x", *options)
            assert error.startswith("ERR ") and limit in error, error
        assert c.call("EXISTS", "k") == 0
        with server.connect() as wide:  # a million stops are more arguments than a request may have
            wide.send_raw(b"*2000003\r\n$3\r\nGEN\r\n")
            assert "invalid multibulk length" in str(wide.receive(False)) and wide.closed()


@test("an empty prompt is an error or starts from nothing by rule; control bytes are text")
def _():
    with shared().connect() as c:
        assert c.error("GEN", "k", "").startswith("ERR ")
        assert c.error("GEN", "k", "", "IDS").startswith("ERR ")
        assert c.error("GEN", "k", "abc", "IDS").startswith("ERR ")
        assert c.error("GEN", "k", ids(-1), "IDS").startswith("ERR ")
        assert c.error("GEN", "k", ids(323), "IDS").startswith("ERR ")
        assert c.call("EXISTS", "k") == 0
        assert c.call("GEN", "k", "", "AS", "user", "MAXTOKENS", 2, "IGNOREEOS") is not None
        for i, prompt in enumerate((b"\0", b"\x01\x02\x7f", b"\r\n\r\n", bytes(range(256)))):
            assert c.call("GEN", f"c{i}", prompt, "MAXTOKENS", 2, "IGNOREEOS") is not None
            assert int(end_of(c, f"c{i}")["prompt"]) == len(c.call("TOKENIZE", prompt))


# ---- keys that go -----------------------------------------------------------------------------------

GOING = {
    "DEL": [("DEL", "k")],
    "UNLINK": [("UNLINK", "k")],
    "FLUSHDB": [("FLUSHDB",)],
    "FLUSHALL": [("FLUSHALL",)],
    "expiry": [("PEXPIRE", "k", 1)],
    "an expiry in the past": [("EXPIRE", "k", -1)],
    "RENAME onto it": [("XADD", "o", "*", "text", "x"), ("RENAME", "o", "k")],
    "COPY onto it": [("XADD", "o", "*", "text", "x"), ("COPY", "o", "k", "REPLACE")],
    "FORK onto it": [("XADD", "o", "*", "text", "x"), ("FORK", "o", "k", "REPLACE")],
    "DEL in a transaction": [("MULTI",), ("DEL", "k"), ("EXEC",)],
}


def read_until_pieces(reader, key, n):
    """The id of the n-th piece; with a long piece-interval a branch's next one comes with its end."""
    last = "0"
    while True:
        for entry in reader.call("XREAD", "BLOCK", 0, "STREAMS", key, last)[0][1]:
            last = entry[0]
            n -= entry[1][0] == b"piece"
            if n == 0:
                return last


def key_that_goes(n, options):
    with Server({"model": big_context(), "piece-interval": "60s"}, program=TWIN) as server:
        for way, commands in GOING.items():
            with server.connect() as c, server.connect() as reader, server.connect() as waiter:
                c.call("FLUSHALL")
                c.stand_still()
                waiter.send("GEN", "k", "x", "MAXTOKENS", 30000, "IGNOREEOS", *options)
                c.stop_at(10 * n, "k")
                reader.send("XREAD", "BLOCK", 0, "STREAMS", "k", read_until_pieces(reader, "k", n))
                wait_until(lambda: number(c, "blocked_clients") == 2, "two waiting clients")
                for command in commands:
                    c.call(*command)
                reply = str(waiter.receive(False))
                assert reply.startswith("CANCELLED") and "gone" in reply, (way, reply)
                ends = [c.fields(entry) for entry in reader.receive()[0][1] if b"finish" in entry[1]]
                assert [e["finish"] for e in ends] == ["cancelled"] * n, (way, ends)
                assert c.call("DEBUG", "AUDIT") == "OK"


for what, n_branches, branches in (("an answer", 1, ()), ("three", 3, ("N", 3))):
    @test(f"whoever reads a generating key gets its end when the key goes, however it goes: {what}")
    def _(n=n_branches, options=branches):
        key_that_goes(n, options)


main()
