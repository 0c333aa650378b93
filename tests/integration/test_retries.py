#!/usr/bin/env python3
"""Resent GENs over real sockets, with and without ID; the twin of the server moves its clock."""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kvasir_test import TWIN, Server, main, test, tiny_model, wait_until  # noqa: E402

GREEDY = ("TEMP", 0, "IGNOREEOS")


def server(**options):
    return Server({"model": tiny_model(), **options}, program=TWIN)


def ends(c):
    """Generations that have ended, however."""
    return sum(int(v) for k, v in c.info("engine").items() if k.startswith("finished_"))


def computed(c):
    return int(c.info("engine")["computed_prompt_tokens"])


def alone(c, key):
    """Nobody waits for the key any more: the server has seen that the client is gone."""
    wait_until(lambda: c.info("clients")["blocked_clients"] == "0", f"the client of {key} is seen to be gone")


@test("ID: the same command is answered again from its entry, on a new connection, and computes nothing")
def _():
    with server() as s, s.connect() as c:
        command = ("GEN", "k", "hello", "MAXTOKENS", 8, "ID", "one", *GREEDY)
        first = c.call(*command)
        before = ends(c), computed(c), c.call("XLEN", "k")
        with s.connect() as again:
            assert [again.call(*command) for _ in range(3)] == [first] * 3
            assert again.call(*command, "BLOCK", 1) == first
        assert (ends(c), computed(c), c.call("XLEN", "k")) == before
        entry = c.call("XREVRANGE", "k", "+", "-", "COUNT", 1)[0]
        assert c.fields(entry)["id"] == "one"
        error = c.error("GEN", "k", "other words", "MAXTOKENS", 8, "ID", "one", *GREEDY)
        assert error.startswith("ERR ID 'one' stands in entry " + entry[0].decode()), error
        c.call("XDEL", "k", entry[0])
        assert c.call(*command) and ends(c) == before[0] + 1


@test("ID with ASYNC, in MULTI, in a pipeline: the id to read after, once and again")
def _():
    with server() as s, s.connect() as c:
        async_ = ("GEN", "a", "hello", "MAXTOKENS", 5, "ID", "x", "ASYNC", *GREEDY)
        last = c.call(*async_)
        _, end = c.wait_end("a", last)
        assert end["id"] == "x" and c.call(*async_) == last
        c.send("MULTI")
        c.send("GEN", "m", "hello", "MAXTOKENS", 5, "ID", "y", *GREEDY)
        c.send("GEN", "m", "hello", "MAXTOKENS", 5, "ID", "y", *GREEDY)
        c.send("EXEC")
        replies = [c.receive() for _ in range(4)]
        assert replies[3][0] == replies[3][1], replies
        c.wait_end("m", replies[3][0])
        text = c.call("GEN", "m", "hello", "MAXTOKENS", 5, "ID", "y", *GREEDY)
        assert isinstance(text, bytes) and ends(c) == 2


@test("ID over FORK and COPY: the field goes along, the child starts its own")
def _():
    with server() as s, s.connect() as c:
        c.call("GEN", "k", "hello", "MAXTOKENS", 5, "ID", "one", *GREEDY)
        assert c.call("FORK", "k", "f") == 1 and c.call("COPY", "k", "g") == 1
        for key in ("f", "g"):
            assert c.fields(c.call("XRANGE", key, "-", "+")[1])["id"] == "one"
            assert c.call("GEN", key, "hello", "MAXTOKENS", 5, "ID", "one", *GREEDY)
            assert c.call("XLEN", key) == 4
        assert ends(c) == 3


@test("a client killed for longer than orphan-timeout gets the answer of an undisturbed run, its prompt is not computed twice")
def _():
    with server() as s, s.connect() as c:
        command = ("MAXTOKENS", 120, "SEED", 5, "TEMP", 1, "IGNOREEOS")
        prompt = "once upon a time there was " * 8
        undisturbed = c.call("GEN", "lone", prompt, *command)
        c.call("CACHE", "CLEAR")
        for name, extra in (("plain", ()), ("id", ("ID", "action"))):
            c.stand_still()
            with s.connect() as victim:
                victim.send("GEN", name, prompt, *command, *extra)
                c.stop_at(2, name)
            alone(c, name)
            prompts = computed(c)
            c.call("SEAM", "CLOCK", 10001)
            wait_until(lambda: c.geninfo(name)["state"] == "idle", "it is given up")
            assert c.geninfo(name)["finish"] == "orphaned" and c.call("XLEN", name) == 2
            c.go_on()
            assert c.call("GEN", name, prompt, *command, *extra) == undisturbed
            entries = c.call("XRANGE", name, "-", "+")
            assert len(entries) == 2 and c.fields(entries[1])["generated"] == "120", entries
            assert computed(c) - prompts <= 16, "at most what its half-filled last block held"
            c.call("CACHE", "CLEAR")


@test("a resumed answer has the log-probabilities of an undisturbed one, of every token and branch")
def _():
    with server() as s, s.connect() as c:
        prompt = "once upon a time there was " * 4
        for name, more in (("one", ()), ("group", ("N", 3))):
            command = (prompt, "MAXTOKENS", 60, "SEED", 5, "TEMP", 1, "IGNOREEOS", "LOGPROBS", 2, "PROMPTLOGPROBS", 1, *more)
            c.call("GEN", f"{name}:undisturbed", *command)
            c.stand_still()
            with s.connect() as victim:
                victim.send("GEN", name, *command)
                c.stop_at(8, name)
            alone(c, name)
            prompts = computed(c)
            c.call("SEAM", "CLOCK", 10001)
            wait_until(lambda: c.geninfo(name)["finish"] == "orphaned", "it is given up")
            c.go_on()
            c.call("GEN", name, *command)
            assert computed(c) - prompts <= 16, "its prompt is not computed twice"
            told = [{field: end.get(field) for field in ("branch", "logprobs", "prompt-logprobs", "generated")}
                    for key in (f"{name}:undisturbed", name)
                    for end in map(c.fields, c.call("XRANGE", key, "-", "+")[1:])]
            half = len(told) // 2
            assert half == len(more) + 1 if more else half == 1, told
            order = lambda end: end["branch"] or ""
            assert sorted(told[:half], key=order) == sorted(told[half:], key=order), told
            assert all(len(end["logprobs"].split("\n")) == 60 for end in told), told
            assert sum(end["prompt-logprobs"] is not None for end in told) == 2, told


@test("eleven sends over eleven connections, each given up after five seconds: one generation")
def _():
    # a thousand times as long, and the orphan's time, too: on a busy machine none of it passes by itself
    with server(**{"orphan-timeout": "10000s"}) as s, s.connect() as c:
        command = ("GEN", "k", "hello", "MAXTOKENS", 60, *GREEDY)
        c.stand_still()
        for _ in range(10):
            with s.connect() as client:
                client.send(*command)
                wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it waits")
                c.call("SEAM", "CLOCK", 5000 * 1000)
            alone(c, "k")
            c.call("SEAM", "CLOCK", 900 * 1000)
        with s.connect() as client:
            client.send(*command)
            c.go_on()
            text = client.receive()
        assert ends(c) == 1 and c.call("XLEN", "k") == 2
        assert c.fields(c.call("XRANGE", "k", "-", "+")[1])["text"] == text.decode("utf-8", "replace")


main()
