#!/usr/bin/env python3
"""GEN with N and BEAM over real sockets: arrays of answers, a stream of branches, retries, forks.

The strongest checks are of sameness: a branch draws from its own stream, so what the others do, how
many there are and what memory they lack never changes what it says.
"""
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kvasir_test import TWIN, ReplyError, Server, main, test, tiny_model, wait_until  # noqa: E402

SEEDED = ("TEMP", 1.2, "SEED", 11, "IGNOREEOS")
BLOCK = 16


def server(program="kvasir-server", **options):
    return Server({"model": tiny_model(), "kv-cache-size": "32mb", "threads": 1,
                   **{name.replace("_", "-"): value for name, value in options.items()}}, program=program)


def with_server(program="kvasir-server", **options):
    def wrap(function):
        def run():
            with server(program, **options) as s, s.connect() as c:
                function(s, c)
                assert c.call("DEBUG", "AUDIT") == "OK"
                assert c.info()["cache_blocks_used"] == "0"
        return run
    return wrap


def ends(c, key):
    """The end entries of a key by branch."""
    entries = [c.fields(e) for e in c.call("XRANGE", key, "-", "+")]
    return {int(e["branch"]): e for e in entries if "branch" in e}


def text_of(c, key):
    """All of a key that the model would see, as bytes: texts and the branches that go on."""
    return [e[1][1] for e in c.call("XRANGE", key, "-", "+")]


# ---- answers ----------------------------------------------------------------------------------------


@test("N: an array in branch order, an end entry a branch; N 1 too; WITHINFO shows the entries")
@with_server()
def _(s, c):
    texts = c.call("GEN", "k", "hello", "N", 4, "MAXTOKENS", 8, *SEEDED)
    assert len(texts) == 4 and len(set(texts)) > 1, texts
    found = ends(c, "k")
    assert sorted(found) == [0, 1, 2, 3] and c.call("XLEN", "k") == 5
    assert all(e["finish"] == "length" and e["generated"] == "8" and e["seed"] == "11" for e in found.values())
    assert [t.decode("utf-8", "replace") for t in texts] == [found[i]["text"] for i in range(4)]
    assert c.geninfo("k")["generated"] == 32 and c.geninfo("k")["finish"] == "length"
    one = c.call("GEN", "one", "hello", "N", 1, "MAXTOKENS", 8, *SEEDED)
    assert one == texts[:1]
    entries = c.call("GEN", "info", "hello", "N", 2, "MAXTOKENS", 3, "WITHINFO")
    assert [c.fields(e)["branch"] for e in entries] == ["0", "1"]
    assert entries == c.call("XRANGE", "info", "-", "+")[1:]
    c.call("HELLO", 3)
    assert isinstance(c.call("GEN", "r3", "hello", "N", 2, "MAXTOKENS", 3), list)


@test("branches draw from their own streams: greedy ones are equal, branch i is the same of 4 and of 8, branch 0 that of a GEN without N")
@with_server()
def _(s, c):
    greedy = c.call("GEN", "g", "hello", "N", 4, "MAXTOKENS", 24, "TEMP", 0, "IGNOREEOS")
    assert greedy == [c.call("GEN", "g1", "hello", "MAXTOKENS", 24, "TEMP", 0, "IGNOREEOS")] * 4
    prompt = "once upon a time there was a cache " * 3
    eight = c.call("GEN", "a", prompt, "N", 8, "MAXTOKENS", 40, *SEEDED)
    assert c.call("GEN", "b", prompt, "N", 4, "MAXTOKENS", 40, *SEEDED) == eight[:4]
    assert c.call("GEN", "c", prompt, "MAXTOKENS", 40, *SEEDED) == eight[0]
    c.call("CACHE", "CLEAR")
    assert c.call("GEN", "d", prompt, "N", 4, "MAXTOKENS", 40, *SEEDED) == eight[:4]


@test("the prompt of a group is computed once")
@with_server()
def _(s, c):
    before = int(c.info("engine")["computed_prompt_tokens"])
    c.call("GEN", "k", "once upon a time there was a cache " * 8, "N", 8, "MAXTOKENS", 4, *SEEDED)
    n_prompt = int(ends(c, "k")[0]["prompt"])
    assert int(c.info("engine")["computed_prompt_tokens"]) - before == n_prompt


@test("N 64: every branch has its answer and its entry")
@with_server()
def _(s, c):
    texts = c.call("GEN", "k", "hello", "N", 64, "MAXTOKENS", 12, *SEEDED)
    assert len(texts) == 64 and sorted(ends(c, "k")) == list(range(64))
    assert c.call("GEN", "j", "hello", "N", 3, "MAXTOKENS", 12, *SEEDED) == texts[:3]


@test("STOP: branches end at different times, each with what it said")
@with_server()
def _(s, c):
    plain = c.call("GEN", "p", "hello", "N", 8, "MAXTOKENS", 60, *SEEDED)
    stop = plain[0][5:7] if plain[0][5:7].isascii() else plain[0][:1]
    cut = c.call("GEN", "k", "hello", "N", 8, "MAXTOKENS", 60, *SEEDED, "STOP", stop)
    for whole, part in zip(plain, cut):
        assert part == whole.split(stop)[0], (whole, part)
    finishes = {e["finish"] for e in ends(c, "k").values()}
    assert "stop" in finishes and len({len(t) for t in cut}) > 1, (finishes, cut)


@test("what is out of range names the range; what can never run or fit is refused with the numbers, and writes nothing")
@with_server(max_running=8)
def _(s, c):
    for option, value, range_ in (("N", 0, "1 to 64"), ("N", 65, "1 to 64"), ("N", "x", "1 to 64"), ("BEAM", 0, "1 to 16"),
                                  ("BEAM", 17, "1 to 16")):
        error = c.error("GEN", "k", "hello", option, value)
        assert error == f"ERR GEN {option} must be an integer from {range_}, not '{value}'", error
    assert c.error("GEN", "k", "hello", "N", 2, "N", 2) == "ERR GEN N is given twice"
    assert c.error("GEN", "k", "hello", "N") == "ERR GEN N needs 1 value"
    assert c.error("GEN", "k", "hello", "N", 2, "BEAM", 2) == "ERR GEN BEAM and N exclude each other"
    for option in ("TEMP", "TOPK", "TOPP", "MINP", "SEED"):
        error = c.error("GEN", "k", "hello", "BEAM", 2, option, 1)
        assert error == f"ERR GEN BEAM and {option} exclude each other", error
    assert c.error("GEN", "k", "hello", "EARLYSTOP") == "ERR GEN EARLYSTOP is for BEAM only"
    assert c.error("GEN", "k", "hello", "N", 2, "LENPENALTY", 1) == "ERR GEN LENPENALTY is for BEAM only"
    for value in (-10.5, 11, "nan"):
        error = c.error("GEN", "k", "hello", "BEAM", 2, "LENPENALTY", value)
        assert error == f"ERR GEN LENPENALTY must be a number from -10 to 10, not '{value}'", error
    error = c.error("GEN", "k", "hello", "N", 9)
    assert error.startswith("OOM 9 branches can not run at once, max-running is 8"), error
    error = c.error("GEN", "k", "hello", "BEAM", 9)
    assert error.startswith("OOM 9 branches can not run at once, max-running is 8"), error
    assert c.call("EXISTS", "k") == 0


@test("MAXTOKENS over the pool is OOM with the numbers, the default is lowered to what fits all branches")
def _():
    with server() as s, s.connect() as c:
        block_bytes = int(c.info()["block_bytes"])
    with server(kv_cache_size=64 * block_bytes) as s, s.connect() as c:
        error = c.error("GEN", "k", "hello", "N", 8, "MAXTOKENS", 500)
        assert error.startswith("OOM ") and "8 times 500" in error and "the cache has 64" in error, error
        assert c.call("EXISTS", "k") == 0
        c.call("GEN", "k", "hello", "N", 8, *SEEDED)
        assert {e["finish"] for e in ends(c, "k").values()} == {"length"}
        generated = {int(e["generated"]) for e in ends(c, "k").values()}
        assert len(generated) == 1 and 100 <= generated.pop() < 512 and c.call("DEBUG", "AUDIT") == "OK"


# ---- readers, MULTI, databases ------------------------------------------------------------------------


@test("pieces name their branch; joined they are the texts, each branch's end behind its last piece")
@with_server(piece_interval=0)
def _(s, c):
    last = c.call("GEN", "k", "hello", "N", 3, "MAXTOKENS", 12, *SEEDED, "ASYNC")
    joined, closed = {0: "", 1: "", 2: ""}, {}
    while len(closed) < 3:
        for entry in c.call("XREAD", "BLOCK", 0, "STREAMS", "k", last)[0][1]:
            last, fields = entry[0], c.fields(entry)
            branch = int(fields["branch"])
            assert branch not in closed, "nothing comes behind a branch's end"
            if "piece" in fields:
                joined[branch] += fields["piece"]
            else:
                closed[branch] = fields["text"]
    assert joined == closed
    assert "branch" not in c.fields(c.call("XRANGE", "k", "-", "+")[0])


@test("inside MULTI a group answers with the id to read after; two databases do not meet")
@with_server()
def _(s, c):
    c.call("MULTI")
    c.call("GEN", "k", "hello", "N", 3, "MAXTOKENS", 6, *SEEDED)
    c.call("XLEN", "k")
    after, length = c.call("EXEC")
    assert b"-" in after and length == 1
    wait_until(lambda: c.geninfo("k")["state"] == "idle", "it ends")
    first = [e["text"] for _, e in sorted(ends(c, "k").items())]
    c.call("SELECT", 3)
    assert c.call("EXISTS", "k") == 0
    texts = c.call("GEN", "k", "hello", "N", 3, "MAXTOKENS", 6, *SEEDED)
    assert [t.decode("utf-8", "replace") for t in texts] == first
    assert c.call("COPY", "k", "k", "DB", 4) == 1 and c.call("XLEN", "k") == 4
    c.call("SELECT", 4)
    assert c.call("XLEN", "k") == 2 and ends(c, "k").keys() == {0}


@test("gen-end is told once, behind the last branch")
@with_server(notify_keyspace_events="KEA")
def _(s, c):
    with s.connect() as watcher:
        watcher.call("PSUBSCRIBE", "__keyspace@0__:k")
        c.call("GEN", "k", "hello", "N", 3, "MAXTOKENS", 4, *SEEDED)
        c.call("DEL", "k")
        events = []
        while not events or events[-1] != b"del":
            events.append(watcher.receive()[3])
        assert events == [b"xadd"] * 4 + [b"gen-end", b"del"], events


# ---- ends that somebody else makes --------------------------------------------------------------------


def start(s, c, key, *more):
    """A client that waits for a group of three that would go on for long, and that group standing."""
    waiter = s.connect()
    c.stand_still()
    waiter.send("GEN", key, "hello", "N", 3, "MAXTOKENS", 1500, *SEEDED, *more)
    c.stop_at(3 * 3, key)
    return waiter


@test("CANCEL counts a group as one and ends all of its branches; the reply is the error, the texts stay")
@with_server(TWIN)
def _(s, c):
    with start(s, c, "k") as waiter:
        assert c.error("GEN", "k", "hello", "N", 2).startswith("BUSYKEY ")
        assert c.error("XTRIM", "k", "MAXLEN", 1).startswith("BUSYKEY ")
        assert c.call("CANCEL", "k") == 1 and c.call("CANCEL", "k") == 0
        error = waiter.receive(False)
        assert isinstance(error, ReplyError) and error.prefix == "CANCELLED" and "in branch 0 of 3" in str(error), error
        assert all(e["finish"] == "cancelled" and int(e["generated"]) > 2 for e in ends(c, "k").values())
        assert c.geninfo("k")["finish"] == "cancelled"


@test("a deadline is TIMEDOUT, WITHINFO shows the entries all the same")
@with_server(TWIN)
def _(s, c):
    c.stand_still()
    error = c.error("GEN", "k", "hello", "N", 3, "MAXTOKENS", 1500, *SEEDED, "DEADLINE", 30)
    assert error.startswith("TIMEDOUT "), error
    entries = c.call("GEN", "j", "hello", "N", 3, "MAXTOKENS", 1500, *SEEDED, "DEADLINE", 30, "WITHINFO")
    assert [c.fields(e)["finish"] for e in entries] == ["deadline"] * 3


@test("DEL, FLUSHALL and expiry end a group, its client and its reader are served")
@with_server(TWIN)
def _(s, c):
    for command in (("DEL", "k"), ("FLUSHALL",), ("PEXPIRE", "k", 1)):
        with start(s, c, "k") as waiter, s.connect() as reader:
            reader.send("XREAD", "BLOCK", 0, "STREAMS", "k", f"{2**62}-0")
            wait_until(lambda: c.info("clients")["blocked_clients"] == "2", "it waits")
            c.call(*command)
            error = waiter.receive(False)
            assert isinstance(error, ReplyError) and error.prefix == "CANCELLED" and "the key is gone" in str(error), error
            wait_until(lambda: c.call("EXISTS", "k") == 0, "it goes")


# ---- retries ------------------------------------------------------------------------------------------


@test("BLOCK is over: *-1, and the same GEN gets the array; with ID again and again")
def _():
    with server(TWIN) as s, s.connect() as c, s.connect() as other:
        command = ("GEN", "k", "hello", "N", 3, "MAXTOKENS", 20, *SEEDED, "ID", "one")
        c.stand_still()
        other.send(*command, "BLOCK", 10**6)
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it waits")
        c.call("SEAM", "CLOCK", 10**6 + 1)
        assert other._line() == b"*-1"
        other.send(*command)
        wait_until(lambda: c.info("clients")["blocked_clients"] == "1", "it waits")
        c.go_on()
        texts = other.receive()
        assert len(texts) == 3 and c.call("XLEN", "k") == 4
        for _ in range(2):
            assert c.call(*command) == texts
        assert c.call("XLEN", "k") == 4
        error = c.error("GEN", "k", "hello", "N", 2, "MAXTOKENS", 20, *SEEDED, "ID", "one")
        first = [e[0] for e in c.call("XRANGE", "k", "-", "+") if c.fields(e).get("branch") == "0"][0]
        assert error.startswith(f"ERR ID 'one' stands in entry {first.decode()} for other arguments"), error
        c.call("XDEL", "k", first)
        assert c.call(*command) != texts and c.call("XLEN", "k") == 3 + 4


@test("a client that goes when some branches are done: the others are resumed, all is as undisturbed")
def _():
    with server(TWIN, piece_interval=0) as s, s.connect() as c:
        command = ("N", 6, "MAXTOKENS", 60, *SEEDED)
        plain = c.call("GEN", "p", "hello", *command)
        stop = next(t[i:i + 1] for i in range(6, 30) for t in [plain[0]]
                    if 0 < sum(o[:12].count(t[i:i + 1]) > 0 for o in plain) < 6)
        command = (*command, "STOP", stop)
        undisturbed = c.call("GEN", "lone", "hello", *command)
        c.call("CACHE", "CLEAR")
        c.stand_still()
        with s.connect() as victim:
            victim.send("GEN", "k", "hello", *command)
            c.step_until(lambda: 1 <= c.call("XLEN", "k") - 1 and c.geninfo("k")["generated"] >= 30, "some are done")
        wait_until(lambda: c.info("clients")["blocked_clients"] == "0", "it is gone")
        c.call("SEAM", "CLOCK", 10001)
        wait_until(lambda: c.geninfo("k")["state"] == "idle", "it is given up")
        c.go_on()
        info = c.geninfo("k")
        assert info["finish"] == "orphaned", info
        assert c.call("GEN", "k", "hello", *command) == undisturbed
        assert c.call("XLEN", "k") == 7 and sorted(ends(c, "k")) == list(range(6))
        assert {e["finish"] for e in ends(c, "k").values()} <= {"stop", "length"}
        assert c.call("DEBUG", "AUDIT") == "OK"


@test("an orphaned beam is searched anew when the same GEN comes: the same answers, one entry each")
def _():
    with server(TWIN) as s, s.connect() as c:
        command = ("BEAM", 4, "MAXTOKENS", 30, "IGNOREEOS")
        undisturbed = c.call("GEN", "lone", "hello", *command)
        c.stand_still()
        with s.connect() as victim:
            victim.send("GEN", "k", "hello", *command)
            c.stop_at(4 * 4, "k")
            assert c.call("FORK", "k", "best") == 1 and c.call("FORK", "k", "third", "BRANCH", 2) == 1
        wait_until(lambda: c.info("clients")["blocked_clients"] == "0", "it is gone")
        c.call("SEAM", "CLOCK", 10001)
        wait_until(lambda: c.geninfo("k")["state"] == "idle", "it is given up")
        c.go_on()
        assert c.geninfo("k")["finish"] == "orphaned" and c.call("XLEN", "k") == 5
        assert c.call("GEN", "k", "hello", *command) == undisturbed
        assert c.call("XLEN", "k") == 5 and sorted(ends(c, "k")) == [0, 1, 2, 3]
        for key, branch in (("best", "0"), ("third", "2")):
            child = c.fields(c.call("XRANGE", key, "-", "+")[-1])
            assert child["finish"] == "forked" and child["branch"] == branch and child["text"], child
        assert c.call("DEBUG", "AUDIT") == "OK"


# ---- beams and forks ------------------------------------------------------------------------------------


@test("BEAM: best first, no pieces, no seed; EARLYSTOP and LENPENALTY are taken; twice is twice the same")
@with_server(piece_interval=0)
def _(s, c):
    texts = c.call("GEN", "k", "hello", "BEAM", 4, "MAXTOKENS", 12, "IGNOREEOS")
    assert len(texts) == 4 and len(set(texts)) == 4, texts
    found = ends(c, "k")
    assert [found[i]["text"] for i in range(4)] == [t.decode("utf-8", "replace") for t in texts]
    assert all("seed" not in e and e["finish"] == "length" for e in found.values()), found
    seen = [c.fields(e) for e in c.call("XREAD", "STREAMS", "k", "0")[0][1]]
    assert len(seen) == 5 and not any("piece" in fields for fields in seen)
    c.call("CACHE", "CLEAR")
    assert c.call("GEN", "again", "hello", "BEAM", 4, "MAXTOKENS", 12, "IGNOREEOS") == texts
    greedy = c.call("GEN", "g", "hello", "MAXTOKENS", 12, "IGNOREEOS", "TEMP", 0)
    assert c.call("GEN", "one", "hello", "BEAM", 1, "MAXTOKENS", 12, "IGNOREEOS") == [greedy]
    assert len(c.call("GEN", "l", "hello", "BEAM", 2, "MAXTOKENS", 12, "LENPENALTY", -2.5, "EARLYSTOP")) == 2


@test("a beam that is cancelled keeps its best so far, best first; a child of it finds what it computed")
def _():
    with server(TWIN) as s, s.connect() as c, s.connect() as waiter:
        c.stand_still()
        waiter.send("GEN", "k", "hello", "BEAM", 4, "MAXTOKENS", 200, "IGNOREEOS", "LOGPROBS", 0, "LENPENALTY", 0)
        c.stop_at(4 * 20, "k")
        assert c.call("FORK", "k", "best") == 1 and c.call("CANCEL", "k") == 1
        error = waiter.receive(False)
        assert isinstance(error, ReplyError) and error.prefix == "CANCELLED", error
        found = [e for _, e in sorted(ends(c, "k").items())]
        assert [e["finish"] for e in found] == ["cancelled"] * 4 and all(int(e["generated"]) >= 20 for e in found), found
        sums = [sum_of_logprobs(e) for e in found]
        assert sums == sorted(sums, reverse=True), sums
        child = c.fields(c.call("XRANGE", "best", "-", "+")[1])
        assert child["finish"] == "forked" and child["branch"] == "0" and "seed" not in child, child
        c.go_on()
        after = c.fields(c.call("GEN", "best", "", "MAXTOKENS", 4, "TEMP", 0, "WITHINFO"))
        assert int(after["prompt"]) - int(after["cached"]) <= 2, after
        assert c.call("DEBUG", "AUDIT") == "OK"


def sum_of_logprobs(fields):
    return sum(float(line.split(" ")[0].split(":")[1]) for line in fields["logprobs"].split("\n"))


@test("BEAM: the best has the greatest sum of log-probabilities, and none is below the greedy answer")
@with_server()
def _(s, c):
    c.call("GEN", "k", "hello", "BEAM", 4, "MAXTOKENS", 10, "IGNOREEOS", "LENPENALTY", 0, "LOGPROBS", 0)
    sums = [sum_of_logprobs(e) for _, e in sorted(ends(c, "k").items())]
    greedy = c.fields(c.call("GEN", "g", "hello", "MAXTOKENS", 10, "TEMP", 0, "IGNOREEOS", "LOGPROBS", 0, "WITHINFO"))
    assert sums == sorted(sums, reverse=True) and sums[0] >= sum_of_logprobs(greedy) - 1e-4, sums


@test("the conversation goes on with branch 0, FORK ... BRANCH with another; XDEL of branch 0 leaves the next")
@with_server()
def _(s, c):
    texts = c.call("GEN", "k", "hello", "BEAM", 3, "MAXTOKENS", 8, "IGNOREEOS")
    assert c.call("FORK", "k", "a") == 1 and text_of(c, "a") == [b"hello", texts[0]]
    assert c.call("FORK", "k", "b", "b2", "BRANCH", 2) == 2 and text_of(c, "b2") == [b"hello", texts[2]]
    assert c.error("FORK", "k", "x", "BRANCH", 3).startswith("ERR BRANCH 3: of the source's last generation 3 branches stand")
    assert c.error("FORK", "k", "x", "BRANCH", 64) == "ERR FORK BRANCH must be an integer from 0 to 63, not '64'"
    assert c.error("FORK", "k", "x", "BRANCH", 1, "AT", "1-1") == "ERR syntax error"
    assert c.error("FORK", "k", "x", "BRANCH") == "ERR syntax error"
    by_branch = {c.fields(e).get("branch"): e[0] for e in c.call("XRANGE", "k", "-", "+")}
    assert c.call("FORK", "k", "y", "AT", by_branch["1"]) == 1 and text_of(c, "y") == [b"hello", texts[1]]
    length = len(c.call("TOKENIZE", "hello")) + 8 + len(c.call("TOKENIZE", " and"))  # of one branch
    for key, branch in (("k", 0), ("b", 2)):
        after = c.call("GEN", key, " and", "MAXTOKENS", 8, "TEMP", 0, "IGNOREEOS", "WITHINFO")
        assert int(c.fields(after)["prompt"]) == length, c.fields(after)
        assert c.fields(after)["cached"] != "0", (branch, c.fields(after))
    c.call("GEN", "d", "hello", "BEAM", 3, "MAXTOKENS", 8, "IGNOREEOS")
    c.call("XDEL", "d", [e[0] for e in c.call("XRANGE", "d", "-", "+") if c.fields(e).get("branch") == "0"][0])
    assert c.call("COPY", "d", "e") == 1 and text_of(c, "e") == [b"hello", texts[1]]


@test("FORK of a running group: a branch with what it made, found in the cache")
def _():
    with server(TWIN, piece_interval=0) as s, s.connect() as c:
        whole = c.call("GEN", "lone", "hello", "N", 3, "MAXTOKENS", 80, *SEEDED)
        c.stand_still()
        last = c.call("GEN", "k", "hello", "N", 3, "MAXTOKENS", 80, *SEEDED, "ASYNC")
        c.stop_at(3 * 20, "k")
        assert c.call("FORK", "k", "b", "BRANCH", 1) == 1 and c.call("FORK", "k", "a") == 1
        pieces = [e for e in c.call("XREAD", "STREAMS", "k", last)[0][1] if c.fields(e).get("branch") == "2"]
        assert c.call("FORK", "k", "p", "AT", pieces[3][0]) == 1
        assert c.error("FORK", "k", "x", "BRANCH", 3) == "ERR BRANCH 3: the generation that runs has 3, from 0 on"
        assert c.call("CANCEL", "k") == 1
        c.go_on()
        for key, branch in (("a", 0), ("b", 1)):
            child = c.fields(c.call("XRANGE", key, "-", "+")[-1])
            assert child["finish"] == "forked" and child["branch"] == str(branch) and c.call("XLEN", key) == 2
            assert whole[branch].decode("utf-8", "replace").startswith(child["text"]), (branch, child)
            after = c.fields(c.call("GEN", key, "", "MAXTOKENS", 4, "TEMP", 0, "WITHINFO"))
            assert int(after["prompt"]) - int(after["cached"]) <= 2, after
        assert text_of(c, "p")[1] == b"".join(e[1][1] for e in pieces[:4])
        assert c.call("DEBUG", "AUDIT") == "OK"


# ---- too little memory --------------------------------------------------------------------------------


@test("groups that are preempted in a small pool, and beams, say what they say in a roomy one")
def _():
    ask = [(f"k{i}", f"prompt number {i} " * 3, *how, "MAXTOKENS", 120, "IGNOREEOS")
           for i, how in enumerate([("N", 4, "TEMP", 1, "SEED", 1), ("N", 3, "TEMP", 1, "SEED", 2), ("BEAM", 4), ("N", 4, "TEMP", 0)])]
    with server() as s, s.connect() as c:
        want = [c.call("GEN", *a) for a in ask]
        block_bytes = int(c.info()["block_bytes"])
    for mode in ({}, {"preemption_mode": "swap", "swap_space": "64mb"}):
        with server(TWIN, kv_cache_size=48 * block_bytes, **mode) as s, s.connect() as c:
            c.stand_still()
            clients = [s.connect() for _ in ask]
            for client, a in zip(clients, ask):
                client.send("GEN", *a)
            wait_until(lambda: c.info("clients")["blocked_clients"] == str(len(ask)), "they have come")
            c.go_on()
            assert [client.receive() for client in clients] == want
            assert int(c.info()["preemptions"]) > 0, c.info("engine")
            assert c.call("DEBUG", "AUDIT") == "OK" and c.info()["cache_blocks_used"] == "0"
            for client in clients:
                client.close()


main()
