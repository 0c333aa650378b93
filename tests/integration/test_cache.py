#!/usr/bin/env python3
"""What the cache keeps: blocks of deleted conversations go first, whose blocks they are is told, and
every block size gives the same answers."""
from kvasir_test import (MODEL_OPTIONS, PATIENCE_S, TWIN, Server, main, model_server, named, test, tiny_model,
                         wait_until, with_model)

GREEDY = ("TEMP", 0, "IGNOREEOS")


def cache_info(c):
    return named(c.call("CACHE", "INFO"))


def text(n, beginning=""):
    """A text of about n tokens that begins like no other of another beginning."""
    return beginning + " ".join(str(i * i + n) for i in range(n // 3))


# ---- conversations that are gone -----------------------------------------------------------------


@test("DEL, UNLINK, expiry, overwriting, FLUSHDB and FLUSHALL: blocks of the conversation are unwanted at once")
@with_model()
def _(server, c):
    removals = {
        "DEL": lambda key: c.call("DEL", key),
        "UNLINK": lambda key: c.call("UNLINK", key),
        "EXPIRE in the past": lambda key: c.call("PEXPIRE", key, -1),
        "PEXPIRE": lambda key: (c.call("PEXPIRE", key, 1), wait_until(lambda: c.call("EXISTS", key) == 0, "expiry")),
        "RENAME onto": lambda key: (c.call("XADD", "x", "*", "text", "a"), c.call("RENAME", "x", key)),
        "COPY onto": lambda key: (c.call("XADD", "y", "*", "text", "a"), c.call("COPY", "y", key, "REPLACE")),
        "FLUSHDB": lambda key: c.call("FLUSHDB"),
        "FLUSHALL": lambda key: c.call("FLUSHALL"),
    }
    for i, (how, remove) in enumerate(removals.items()):
        c.call("CACHE", "CLEAR")
        c.call("GEN", "stays", text(120, "stays"), *GREEDY, "MAXTOKENS", 4)
        c.call("GEN", "goes", text(100 + i, "goes"), *GREEDY, "MAXTOKENS", 4)
        own = c.geninfo("goes")["own-blocks"]
        assert own >= 6 and c.geninfo("goes")["cached-blocks"] == own, (how, c.geninfo("goes"))
        if how.startswith("FLUSH"):
            c.call("DEL", "stays")
        before = cache_info(c)["unwanted"]
        remove("goes")
        wait_until(lambda: cache_info(c)["unwanted"] == before + own, f"{how}: {own} blocks unwanted")


@test("a new conversation takes the blocks of a deleted one, not those of older ones that stay")
def _():
    with model_server() as server, server.connect() as c:
        block_bytes = int(c.info()["block_bytes"])
        c.call("GEN", "k", text(150), *GREEDY, "MAXTOKENS", 2)
        size = c.geninfo("k")["own-blocks"]
    # room for two of these; the third takes the place of one of them
    with model_server(kv_cache_size=(2 * size + 2) * block_bytes) as server, server.connect() as c:
        for key in ("old", "young"):
            c.call("GEN", key, text(150, key), *GREEDY, "MAXTOKENS", 2)
        cached = c.call("CACHE", "PROBE", " more", "KEY", "old")[1]
        assert cached > 100
        c.call("DEL", "young")
        c.call("GEN", "new", text(150, "new"), *GREEDY, "MAXTOKENS", 2)
        assert cache_info(c)["evictions"] > 0
        assert c.call("CACHE", "PROBE", " more", "KEY", "old")[1] == cached
        c.call("GEN", "newer", text(150, "newer"), *GREEDY, "MAXTOKENS", 2)  # and so it would be without DEL
        assert c.call("CACHE", "PROBE", " more", "KEY", "old")[1] < cached


@test("a forked child keeps what its deleted source had computed; with the last one it goes")
@with_model()
def _(server, c):
    c.call("GEN", "a", text(150), *GREEDY, "MAXTOKENS", 2)
    assert c.call("FORK", "a", "b") == 1 and c.call("COPY", "a", "d") == 1
    assert c.geninfo("a")["own-blocks"] == 0 and c.geninfo("b")["own-blocks"] == 0  # they are of both
    tokens, cached = c.call("CACHE", "PROBE", " so", "KEY", "b")
    assert cached > 100
    c.call("DEL", "a", "d")
    assert cache_info(c)["unwanted"] == 0
    c.call("GEN", "b", " so", *GREEDY, "MAXTOKENS", 2)
    assert c.geninfo("b")["cached"] == cached
    c.call("DEL", "b")
    assert cache_info(c)["unwanted"] >= cached // 16


@test("a key that is deleted while it generates lets its blocks go, a fork of it keeps them")
@with_model(TWIN)
def _(server, c):
    c.stand_still()
    c.call("GEN", "k", text(100), *GREEDY, "MAXTOKENS", 1500, "ASYNC")
    c.stop_at(20, "k")
    info = c.geninfo("k")
    assert info["blocks"] >= info["own-blocks"] >= 7 and info["shared-blocks"] == info["swapped-blocks"] == 0, info
    c.call("FORK", "k", "child")
    c.step_until(lambda: c.geninfo("k")["own-blocks"] > 1, lambda: f"a block of its own is full: {c.geninfo('k')}")
    c.call("DEL", "k")
    after = cache_info(c)
    assert 0 < after["unwanted"] < after["cached"] and after["used"] == 0, after
    assert c.call("CACHE", "PROBE", " on", "KEY", "child")[1] > 100
    c.call("DEL", "child")
    assert cache_info(c)["unwanted"] == cache_info(c)["cached"]


# ---- whose blocks --------------------------------------------------------------------------------


@test("GENINFO and CACHE INFO tell shared from own blocks while two read one prefix")
@with_model(TWIN)
def _(server, c):
    prompt = text(200)
    c.call("GEN", "a", prompt, *GREEDY, "MAXTOKENS", 1)
    own = c.geninfo("a")["own-blocks"]
    c.stand_still()
    for key in ("b", "d"):
        c.call("GEN", key, prompt, *GREEDY, "MAXTOKENS", 1500, "ASYNC")
    c.stop_at(30, "b", "d")
    b, d, all_of = c.geninfo("b"), c.geninfo("d"), cache_info(c)
    assert b["shared-blocks"] == d["shared-blocks"] == all_of["shared"] >= own - 2, (b, d, all_of)
    assert 0 < b["own-blocks"] <= b["blocks"] - b["shared-blocks"] + 1, b
    assert c.geninfo("a")["own-blocks"] <= 1, c.geninfo("a")  # its end at most: others have used the rest
    assert c.call("CANCEL", "b", "d") == 2
    assert cache_info(c)["shared"] == 0 and c.geninfo("b")["blocks"] == 0


@test("share-prefixes is an option of the file, the command line and CONFIG SET")
@with_model(share_prefixes="yes")
def _(server, c):
    assert c.call("CONFIG", "GET", "share-prefixes")[1] == b"yes"
    c.call("GEN", "a", text(100), *GREEDY, "MAXTOKENS", 1)
    assert c.call("CACHE", "PROBE", text(100))[1] > 60
    c.call("CONFIG", "SET", "share-prefixes", "no")  # another namespace: nothing of it is found
    assert c.call("CACHE", "PROBE", text(100))[1] == 0
    c.call("CONFIG", "SET", "share-prefixes", "yes")
    assert c.call("CACHE", "PROBE", text(100))[1] > 60
    assert c.error("CONFIG", "SET", "share-prefixes", "maybe").startswith("ERR")


# ---- block sizes ---------------------------------------------------------------------------------

SIZES = {"cpu": (16, 32, 64, 128), "ref": (8, 16, 32, 64, 128)}
answers = {}


def run_with(backend, size):
    """Cold, warm, forked, together: ids by way."""
    prompt = text(300)
    with model_server(backend=backend, block_size=size) as server, server.connect() as c:
        assert cache_info(c)["block-size"] == size
        lines = []
        for key in ("cold", "warm"):
            entry = c.call("GEN", key, prompt, *GREEDY, "MAXTOKENS", 40, "LOGPROBS", 0, "WITHINFO")
            lines.append(dict(zip(entry[1][0::2], entry[1][1::2]))[b"logprobs"])
        assert c.geninfo("warm")["cached"] >= c.geninfo("warm")["prompt"] - 1
        c.call("FORK", "warm", "forked")
        readers = [server.connect() for _ in range(4)]
        for i, reader in enumerate(readers):
            reader.send("GEN", f"r{i}" if i else "forked", " and so", *GREEDY, "MAXTOKENS", 40)
        lines += [reader.receive() for reader in readers]
        for reader in readers:
            reader.close()
        assert c.call("DEBUG", "AUDIT") == "OK"
        assert lines[0] == lines[1] and lines[3] == lines[4] == lines[5], lines
        return lines


def register(backend, size):
    @test(f"block-size {size} on {backend} gives the ids and log-probabilities of every other size")
    def _():
        lines = run_with(backend, size)
        assert answers.setdefault(backend, lines) == lines, (answers[backend], lines)


for name, sizes in SIZES.items():
    for n in sizes:
        register(name, n)


@test("other block sizes are refused, and the list of those that are possible is named")
def _():
    for options, words in (
        ({"block-size": 24}, "block-size must be 8, 16, 32, 64 or 128"),
        ({"block-size": 4}, "block-size"),
        ({"block-size": 256}, "block-size"),
        ({"block-size": 8, "backend": "cpu"}, "cpu: block size 8; it takes 16, 32, 64 and 128"),
    ):
        with Server({**MODEL_OPTIONS, "model": tiny_model(), **options}, tcp=False, wait=False) as server:
            assert server.process.wait(PATIENCE_S) != 0, options
            assert words in server.log(), (options, server.log())
            server.process.returncode = 0  # as it should be


main()
