"""figures_memory - the parts of utils/figures about the paged memory: groups of answers, a pool that is too small."""
import os
import threading
import time

from figures_lib import in_parallel, say

PROMPT, MADE, WIDTH, BLOCK = 1000, 64, 4, 16


class Peak:
    """The most blocks in use while the body runs, asked for again and again."""

    def __init__(self, server):
        self.server, self.blocks, self.stop = server, 0, threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def _watch(self):
        with self.server.connect() as c:
            while not self.stop.is_set():
                reply = c.call("CACHE", "INFO")
                self.blocks = max(self.blocks, reply[reply.index(b"used") + 1])
                time.sleep(0.005)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join()


def pack(ids):
    return b"".join(i.to_bytes(4, "little") for i in ids)


def groups(lib, paths):
    """BEAM 4 and N 4 over 1,000 prompt tokens, 64 generated, and four prompts that have nothing in common."""
    with open(os.path.join(paths.workloads, "prompts", "long_doc_alice_32k.txt"), "rb") as f:
        text = f.read()
    with lib.Server({"model": paths.model}) as s, s.connect() as c:
        ids = c.call("TOKENIZE", text)
        common = ["IDS", "MAXTOKENS", MADE, "IGNOREEOS"]
        pieces = [pack(ids[i * PROMPT:(i + 1) * PROMPT]) for i in range(WIDTH)]

        def beam():
            return c.call("GEN", "beam", pieces[0], "BEAM", WIDTH, *common)

        def samples():
            return c.call("GEN", "samples", pieces[0], "N", WIDTH, "TEMP", 0.8, "SEED", 1, *common)

        def ask(i):
            with s.connect() as own:
                own.call("GEN", f"k{i}", pieces[i], "TEMP", 0, *common)

        def separate():
            in_parallel([(ask, (i,)) for i in range(WIDTH)])
            return range(WIDTH)

        seen = {}
        for name, run in (("BEAM 4", beam), ("N 4", samples), ("4 separate", separate)):
            c.call("FLUSHALL")
            c.call("CACHE", "CLEAR")
            before = int(c.info()["computed_prompt_tokens"])
            with Peak(s) as peak:
                start = time.monotonic()
                answers = run()
                seconds = time.monotonic() - start
            computed = int(c.info()["computed_prompt_tokens"]) - before
            seen[name] = (peak.blocks, seconds)
            wanted = PROMPT * (WIDTH if run is separate else 1)
            say(f"{name} over {PROMPT} tokens, {MADE} generated: answers", len(answers), WIDTH, len(answers) == WIDTH)
            say("  prompt tokens computed", computed, wanted, computed == wanted)
            say("  blocks in use at most", peak.blocks)
            say("  seconds", f"{seconds:.2f}")
        alone = seen["4 separate"][0]
        most = WIDTH * -(-(PROMPT + MADE) // BLOCK)
        say("  blocks of 4 separate", alone, f"{most} at most", alone <= most)
        # Beside the shared prompt a branch has its own half-filled block and what it made.
        few = PROMPT // BLOCK + WIDTH * (-(-(PROMPT % BLOCK + MADE) // BLOCK))
        for name in ("BEAM 4", "N 4"):
            say(f"  blocks of {name}, part of separate", f"{seen[name][0] / alone:.2f}", f"{few / most:.2f} at most",
                seen[name][0] <= few)
        say("  time of BEAM 4 over N 4", f"{seen['BEAM 4'][1] / seen['N 4'][1]:.2f}")
        say("  audit", c.call("DEBUG", "AUDIT"), "OK")
        say("  blocks still in use", c.info()["cache_blocks_used"], 0, c.info()["cache_blocks_used"] == "0")


def crowd(lib, paths, mode, prompts, lone, block_bytes):
    """32 clients in 64 blocks, by one preemption mode."""
    options = {"model": paths.model, "kv-cache-size": 64 * block_bytes, "preemption-mode": mode}
    if mode == "swap":
        options["swap-space"] = 128 * block_bytes
    with lib.Server(options) as s:
        answers = {}

        def ask(i):
            with s.connect() as own:
                answers[i] = own.call("GEN", f"k{i}", prompts[i], *POOL_OPTIONS)

        start = time.monotonic()
        in_parallel([(ask, (i,)) for i in range(len(prompts))])
        seconds = time.monotonic() - start
        with s.connect() as c:
            info = c.info()
            say(f"pool of 64 blocks, 32 clients of 200 + 100 tokens, {mode}: blocks", info["cache_blocks"], "64",
                info["cache_blocks"] == "64")
            say("  answered", len(answers), "32", len(answers) == 32)
            same = sum(answers.get(i) == lone[i] for i in range(len(prompts)))
            say("  answers equal to a lone run", same, "32", same == 32)
            say("  preemptions", info["preemptions"], "some", int(info["preemptions"]) > 0)
            say("  tokens thrown away", info["preempted_tokens_dropped"])
            moved = int(info["swapped_out_bytes"]), int(info["swapped_in_bytes"])
            say("  bytes swapped out, in", f"{moved[0]}, {moved[1]}", "none" if mode == "recompute" else "some",
                (moved[1] > 0) == (mode == "swap"))
            back = info["cache_blocks_used"] == "0" and info["swap_blocks_free"] == info["swap_blocks"]
            say("  blocks and host slots back", "yes" if back else "no", "yes", back)
            say("  seconds", f"{seconds:.2f}")
            say("  audit", c.call("DEBUG", "AUDIT"), "OK")


POOL_OPTIONS = ["IDS", "MAXTOKENS", 100, "TEMP", 0, "IGNOREEOS"]


def pool(lib, paths):
    """64 blocks, 32 clients, prompts of 200 tokens, 100 generated, in both preemption modes."""
    prompts = [pack(100 + (i * 7919 + j * 31 + i * j) % 40000 for j in range(200)) for i in range(32)]
    with lib.Server({"model": paths.model}) as s, s.connect() as c:
        block_bytes = int(c.info()["block_bytes"])
        lone = [c.call("GEN", f"k{i}", p, *POOL_OPTIONS) for i, p in enumerate(prompts)]
    for mode in ("recompute", "swap"):
        crowd(lib, paths, mode, prompts, lone, block_bytes)


OF_MODEL = {"groups": groups, "pool": pool}
