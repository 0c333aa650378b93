#!/usr/bin/env python3
"""The same request gives the same tokens: alone, cold, warm, evicted, forked, among others, in any
chunks, on any number of threads, greedy and sampled, on the tiny and on the real model, through the server.

Every cell of the table is one test: a way of running it x a way of choosing. Each compares the bytes
of the answers with those of a lone cold run on one thread.
"""
import os
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from kvasir_test import REAL_MODEL, TWIN, Server, main, model_path, test, tiny_model, wait_until  # noqa: E402

TOKENS = 24
PROMPTS = [
    "Once upon a time there was a small server that never forgot what it was told.",
    "The shortest way from here to the sea is " + "along the river, over the bridge, " * 12,
    "x",
    "Numbers: " + " ".join(str(i * i) for i in range(60)),
]
CHOICES = {
    "greedy": ["TEMP", 0],
    "sampled": ["TEMP", 0.9, "SEED", 77, "TOPK", 50, "TOPP", 0.95],
    "penalised": ["TEMP", 0.7, "SEED", 5, "REPEAT", 1.1, "FREQUENCY", 0.3, "PRESENCE", 0.2],
}
MODELS = {
    "tiny": lambda: {"model": tiny_model()},
    "real": lambda: {"model": model_path(REAL_MODEL)},
}
servers, wanted = {}, {}


def gen(c, key, prompt, choice, tokens=TOKENS, *more):
    return c.call("GEN", key, prompt, "MAXTOKENS", tokens, "IGNOREEOS", *CHOICES[choice], *more)


def server_for(model, **options):
    """One server per model and set of options, shared by the cells that need no fresh cache."""
    name = (model, tuple(sorted(options.items())))
    if name not in servers:
        servers[name] = Server({**MODELS[model](), **options})
    return servers[name]


def fresh(c):
    c.call("FLUSHALL")
    c.call("CACHE", "CLEAR")


def baseline(model, choice):
    """The lone run: one thread, an empty cache before every prompt."""
    if (model, choice) not in wanted:
        with server_for(model, threads=1).connect() as c:
            answers = []
            for i, prompt in enumerate(PROMPTS):
                fresh(c)
                answers.append(gen(c, f"k{i}", prompt, choice))
            wanted[model, choice] = answers
    return wanted[model, choice]


def run_one_by_one(c, choice):
    return [gen(c, f"k{i}", prompt, choice) for i, prompt in enumerate(PROMPTS)]


def cold(model, choice):
    with server_for(model).connect() as c:
        answers = []
        for i, prompt in enumerate(PROMPTS):
            fresh(c)
            answers.append(gen(c, f"k{i}", prompt, choice))
        return answers


def warm(model, choice):
    with server_for(model).connect() as c:
        fresh(c)
        run_one_by_one(c, choice)
        c.call("FLUSHALL")
        answers = run_one_by_one(c, choice)
        ends = [c.fields(c.call("XREVRANGE", f"k{i}", "+", "-", "COUNT", 1)[0]) for i in range(len(PROMPTS))]
        assert all(int(e["cached"]) == int(e["prompt"]) - 1 for e in ends if int(e["prompt"]) > 1), ends
        return answers


def evicted(model, choice):
    with server_for(model).connect() as c:
        fresh(c)
        run_one_by_one(c, choice)
        fresh(c)
        return run_one_by_one(c, choice)


def forked(model, choice):
    """Half of the answer, then a fork that goes on to its end."""
    with server_for(model).connect() as c:
        fresh(c)
        answers = []
        for i, prompt in enumerate(PROMPTS):
            if choice == "penalised":  # the counts are those of one generation: compare one whole
                answers.append(gen(c, f"k{i}", prompt, choice))
                continue
            head = gen(c, f"k{i}", prompt, choice, TOKENS // 2)
            assert c.call("FORK", f"k{i}", f"child{i}") == 1
            gen(c, f"k{i}", " and now for something else", choice, 3)
            answers.append(head + gen(c, f"child{i}", "", choice, TOKENS - TOKENS // 2))
        return answers


def among_others(model, choice):
    """All prompts at once, among 28 others that come and go in the same batches."""
    server, answers = server_for(model), {}

    def ask(name, prompt, how):
        with server.connect() as c:
            answers[name] = gen(c, f"o{name}", prompt, how)

    with server.connect() as c:
        fresh(c)
        others = [(100 + i, f"{i} bottles on the wall, " * (i % 7 + 1), list(CHOICES)[i % 3]) for i in range(28)]
        mine = [(i, prompt, choice) for i, prompt in enumerate(PROMPTS)]
        threads = [threading.Thread(target=ask, args=job) for job in others[:14] + mine + others[14:]]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert c.call("DEBUG", "AUDIT") == "OK"
    return [answers[i] for i in range(len(PROMPTS))]


def with_options(**options):
    def run(model, choice):
        with server_for(model, **options).connect() as c:
            fresh(c)
            return run_one_by_one(c, choice)

    return run


WAYS = {
    "cold": cold,
    "warm": warm,
    "evicted between": evicted,
    "forked half way": forked,
    "among 31 others": among_others,
    "chunks of 16": with_options(**{"max-chunk": 16}),
    "chunks of 64, two threads": with_options(**{"max-chunk": 64, "threads": 2}),
    "three threads": with_options(threads=3),
}
# The real model goes all ways in tests/golden/test_golden_sameness.c; here those that only a server has.
QUICK = {"real": ("cold", "among 31 others")}


def register(model, way, choice):
    @test(f"{model} model, {way}, {choice}")
    def _():
        answers, lone = WAYS[way](model, choice), baseline(model, choice)
        for prompt, got, want in zip(PROMPTS, answers, lone):
            assert got == want, f"prompt {prompt[:30]!r}: {got!r}, alone {want!r}"


for each_model in MODELS:
    for each_way in WAYS:
        for each_choice in CHOICES:
            if each_way in QUICK.get(each_model, WAYS):
                register(each_model, each_way, each_choice)


def small_pool(kv_type="auto", **mode):
    """32 clients, prompts of 200 tokens, 100 generated, 64 blocks of 16: everybody finishes. Returns INFO."""
    with Server({"model": tiny_model(), "threads": 2, "kv-type": kv_type}) as roomy, roomy.connect() as c:
        vocabulary = int(c.info()["model_vocabulary"])
        block_bytes = int(c.info()["block_bytes"])
        prompts = [b"".join(((i * 7919 + j * 31 + i * j) % (vocabulary - 10)).to_bytes(4, "little") for j in range(200))
                   for i in range(32)]
        lone = []
        for i, prompt in enumerate(prompts):
            c.call("CACHE", "CLEAR")
            lone.append(c.call("GEN", f"k{i}", prompt, "IDS", "MAXTOKENS", 100, "TEMP", 0.8, "SEED", i, "IGNOREEOS"))
    with Server({"model": tiny_model(), "threads": 2, "kv-type": kv_type, "kv-cache-size": 64 * block_bytes,
                 **mode}, program=TWIN) as tight, tight.connect() as c:
        answers = {}
        c.stand_still()  # until all are there

        def ask(i):
            with tight.connect() as own:
                answers[i] = own.call("GEN", f"k{i}", prompts[i], "IDS", "MAXTOKENS", 100, "TEMP", 0.8, "SEED", i,
                                      "IGNOREEOS")

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(32)]
        for t in threads:
            t.start()
        wait_until(lambda: c.info("clients")["blocked_clients"] == "32", "all wait")
        c.go_on()
        for t in threads:
            t.join()
        info = c.info()
        assert int(info["cache_blocks"]) == 64, info
        assert c.call("DEBUG", "AUDIT") == "OK"
        assert [answers[i] for i in range(32)] == lone
        return info


@test("a small pool that must preempt and evict gives the answers of a lone run")
def _():
    info = small_pool()
    assert int(info["preemptions"]) > 0 and int(info["preempted_tokens_dropped"]) > 0, info
    assert int(info["swapped_out_bytes"]) == 0, info


@test("preemption by swap gives the answers of a lone run; host slots come back")
def _():
    info = small_pool(**{"preemption-mode": "swap", "swap-space": "64mb"})
    assert int(info["preemptions"]) > 0 and int(info["preempted_tokens_dropped"]) == 0, info
    assert int(info["swapped_out_bytes"]) >= int(info["swapped_in_bytes"]) > 0, info
    assert int(info["swap_blocks_free"]) == int(info["swap_blocks"]) > 0, info


@test("with int8 keys and values, swapped too, the answers are those of a lone run; INFO names the type")
def _():
    info = small_pool("int8", **{"preemption-mode": "swap", "swap-space": "64mb"})
    assert info["kv_type"] == "int8" and int(info["preemptions"]) > 0, info
    assert int(info["swapped_in_bytes"]) > 0, info


@test("a host without room for a group costs no answer")
def _():
    info = small_pool(**{"preemption-mode": "swap", "swap-space": "20kb"})
    assert int(info["preemptions"]) > 0, info


main()
