#!/usr/bin/env python3
"""What was chosen, and how likely it was: seeds, neighbours, log-probabilities.

Comparable servers ignored the seed of a request whose neighbour had none, gave other ids to the same
seed, listed the first tokens of the vocabulary as the best at temperature 0, reported probabilities
that sum to more than 1 or that follow the sampling options, and put the text of half a character down
to the wrong token.
"""
import math
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from forced import byte_ids, end_of, forced, ids  # noqa: E402
from kvasir_test import TWIN, Server, main, named, test, tiny_model  # noqa: E402

PROMPT = "Which of these comes next?"
_shared = []


def shared():
    """One server for all tests; keys are flushed."""
    if not _shared:
        _shared.append(Server({"model": tiny_model("--layers", "2"), "piece-interval": 0}, program=TWIN))
    with _shared[0].connect() as c:
        c.call("FLUSHALL")
    return _shared[0]


def logprobs_of(c, key, field="logprobs"):
    """A list a token: (id, log-probability) of its own, then those of the best."""
    lines = end_of(c, key)[field].split("\n")
    return [[(int(pair.split(":")[0]), float(pair.split(":")[1])) for pair in line.split(" ")] for line in lines]


def beside(c, neighbour, command):
    """The answer to a GEN that has a longer one beside it in each of its steps."""
    c.stand_still()
    c.call(*neighbour, "MAXTOKENS", 1500, "IGNOREEOS", "ASYNC")
    c.stop_at(1, neighbour[1])
    # in one packet: the neighbour goes on when the command is there, too
    c.send_raw(b"".join(c.encode(*each) for each in (("SEAM", "STEPS", -1), command, ("GENINFO", neighbour[1]))))
    _, answer, info = (c.receive() for _ in range(3))
    assert named(info)["state"] == "running", info
    c.call("CANCEL", neighbour[1])
    return answer


# ---- seeds ------------------------------------------------------------------------------------------


@test("a seed gives the same ids alone, ten times, and beside others with and without a seed")
def _():
    ask = ("GEN", "a", PROMPT, "TEMP", 0.9, "SEED", 42, "MAXTOKENS", 60, "IGNOREEOS")

    with shared().connect() as c:
        want = c.call(*ask)
        for _ in range(9):
            c.call("DEL", "a")
            assert c.call(*ask) == want
        for seed in ((), (), ("SEED", 7), ("SEED", 42)):
            c.call("DEL", "a", "b")
            assert beside(c, ("GEN", "b", PROMPT, "TEMP", 0.9, *seed), ask) == want, seed


@test("at TEMP 0 the seed changes nothing; without a seed it is drawn anew and reported")
def _():
    with shared().connect() as c:
        greedy = [c.call("GEN", f"g{seed}", PROMPT, "TEMP", 0, "SEED", seed, "MAXTOKENS", 30, "IGNOREEOS")
                  for seed in (5, 6)]
        assert greedy[0] == greedy[1]
        drawn = [c.call("GEN", f"d{i}", PROMPT, "TEMP", 1.5, "MAXTOKENS", 30, "IGNOREEOS") for i in range(3)]
        seeds = [end_of(c, f"d{i}")["seed"] for i in range(3)]
        assert len(set(seeds)) == 3 and len(set(drawn)) > 1, (seeds, drawn)
        assert c.call("GEN", "again", PROMPT, "TEMP", 1.5, "SEED", seeds[0], "MAXTOKENS", 30, "IGNOREEOS") == drawn[0]


# ---- log-probabilities ------------------------------------------------------------------------------


@test("log-probabilities are sorted, at most 0, sum to 1 at most, and the chosen one is always there")
def _():
    with shared().connect() as c:
        for key, options in (("greedy", ("TEMP", 0)), ("sampled", ("TEMP", 1.5, "SEED", 3))):
            c.call("GEN", key, PROMPT, *options, "MAXTOKENS", 12, "IGNOREEOS", "LOGPROBS", 20)
            for own, *best in logprobs_of(c, key):
                values = [v for _, v in best]
                assert len(best) == 20 and len({t for t, _ in best}) == 20, best
                assert values == sorted(values, reverse=True) and values[0] <= 0 and own[1] <= 0, best
                assert sum(math.exp(v) for v in values) <= 1.0001, best
                if own[0] in dict(best):
                    assert dict(best)[own[0]] == own[1]
                else:
                    assert own[1] <= values[-1]
                assert key == "sampled" or own == best[0], (own, best[0])
            # not the first of the vocabulary in their order
            assert any([t for t, _ in best] != sorted(t for t, _ in best) for _, *best in logprobs_of(c, key))


@test("log-probabilities are those of the raw logits, whatever the sampling options")
def _():
    with shared().connect() as c:
        c.call("GEN", "plain", PROMPT, "TEMP", 0, "MAXTOKENS", 8, "IGNOREEOS", "LOGPROBS", 10)
        want = logprobs_of(c, "plain")
        for i, options in enumerate((("TOPK", 3), ("MINP", 0.5), ("TOPP", 0.1), ("TOPK", 1, "MINP", 1))):
            c.call("GEN", f"k{i}", PROMPT, "TEMP", 0, *options, "MAXTOKENS", 8, "IGNOREEOS", "LOGPROBS", 10)
            assert logprobs_of(c, f"k{i}") == want, options
        # one that nobody would choose is forced: its own is low, the best are what they were
        unlikely = next(t for t in byte_ids(b"abcdefghijklmnop") if t not in dict(want[0]))
        c.call("GEN", "f", PROMPT, "TEMP", 5, "TOPK", 1, "BIAS", unlikely, 1000, "MAXTOKENS", 1, "LOGPROBS", 10)
        own, *best = logprobs_of(c, "f")[0]
        assert own[0] == unlikely and own[1] < want[0][-1][1] and best == want[0][1:], (own, best, want[0])


@test("log-probabilities of a character of four tokens stand with their own ids, which join to the text")
def _():
    llama = "\N{LLAMA}".encode()
    with shared().connect() as c:
        text = c.call("GEN", "k", "x", *forced(byte_ids(llama + b"z") + [2]), "LOGPROBS", 2)
        assert text == llama + b"z"
        lines = logprobs_of(c, "k")
        own = [line[0] for line in lines]
        assert [t for t, _ in own] == byte_ids(llama + b"z") and all(v <= 0 for _, v in own), own
        assert c.call("DETOKENIZE", *(t for t, _ in own)) == text
        assert int(end_of(c, "k")["generated"]) == len(lines)


@test("log-probabilities are the same from a warm cache, and beside another generation")
def _():
    with shared().connect() as c:
        ask = ("IDS", "TEMP", 0, "MAXTOKENS", 6, "IGNOREEOS", "LOGPROBS", 5)
        for n in (15, 16, 17, 31, 33):
            prompt = ids(*((i * i * 7 + n) % 250 + 3 for i in range(n)))
            c.call("CACHE", "CLEAR")
            c.call("GEN", f"cold{n}", prompt, *ask)
            c.call("GEN", f"warm{n}", prompt, *ask)
            assert end_of(c, f"cold{n}")["cached"] == "0" and int(end_of(c, f"warm{n}")["cached"]) == n - 1
            c.call("DEL", "o")
            beside(c, ("GEN", "o", "beside it"), ("GEN", f"beside{n}", prompt, *ask))
            assert logprobs_of(c, f"cold{n}") == logprobs_of(c, f"warm{n}") == logprobs_of(c, f"beside{n}"), n


@test("log-probabilities of a prompt whose blocks are cached are those of the first time, whatever its length")
def _():
    ask = ("IDS", "TEMP", 0, "MAXTOKENS", 3, "IGNOREEOS", "PROMPTLOGPROBS", 4)
    with shared().connect() as c:
        for n in (1, 15, 16, 17, 31, 32, 33, 100):
            tokens = [(i * i * 11 + n) % 250 + 3 for i in range(n)]
            c.call("CACHE", "CLEAR")
            answers = [c.call("GEN", f"{when}{n}", ids(*tokens), *ask) for when in ("cold", "warm", "again")]
            told = [end_of(c, f"{when}{n}")["prompt-logprobs"] for when in ("cold", "warm", "again")]
            assert told[0] == told[1] == told[2] and answers[0] == answers[1] == answers[2], n
            lines = told[0].split("\n")
            assert lines[0] == str(tokens[0]) and [int(line.split(":")[0]) for line in lines] == tokens, lines
            # what they were computed for is a prefix like any other
            c.call("GEN", f"plain{n}", ids(*tokens), "IDS", "TEMP", 0, "MAXTOKENS", 3, "IGNOREEOS")
            assert int(end_of(c, f"plain{n}")["cached"]) == n - 1
            assert c.call("DEBUG", "AUDIT") == "OK"


main()
