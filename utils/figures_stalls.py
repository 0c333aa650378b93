"""figures_stalls - how long single commands keep the main thread away from the engine, in ms of its CPU.

The goal is a millisecond. What Redis does in one go too (KEYS, a range of everything, EXEC, many keys in one
command) is shown without a goal. Over the tiny model: what is measured is the server.
"""
import time

from figures_clients import raise_file_limit
from figures_lib import say

GOAL_MS = 1
BATCH = 2000


def in_batches(c, commands):
    for start in range(0, len(commands), BATCH):
        batch = commands[start:start + BATCH]
        c.send_raw(b"".join(c.encode(*command) for command in batch))
        for _ in batch:
            c.receive()


class Meter:
    """Runs something and says how long the main thread was away at most meanwhile."""

    def __init__(self, server, connection):
        self.server, self.c = server, connection

    def __call__(self, name, run, goal=True, settle_s=0.5):
        """goal False: Redis takes its time for it, too. settle_s: work goes on behind the reply."""
        self.c.call("CONFIG", "RESETSTAT")
        run()
        time.sleep(settle_s)
        ms = int(self.c.info("stats")["main_thread_max_stall_cpu_usec"]) / 1000
        say("  " + name, f"{ms:.3f}", f"under {GOAL_MS}" if goal else "as long as it takes", not goal or ms < GOAL_MS)


def of_entries(lib, model):
    print("  a key of 1,000,000 entries that the model ignores")
    with lib.Server({"model": model}) as s, s.connect() as c:
        meter = Meter(s, c)
        for _ in range(0, 1000000, BATCH):
            c.send_raw(c.encode("XADD", "m", "*", "f", "v") * BATCH)
            for _ in range(BATCH):
                last = c.receive()
        meter("GEN", lambda: c.call("GEN", "m", "hello", "MAXTOKENS", 2))
        meter("CACHE PROBE", lambda: c.call("CACHE", "PROBE", "hello", "KEY", "m"))
        meter("MEMORY USAGE", lambda: c.call("MEMORY", "USAGE", "m"))
        meter("FORK", lambda: c.call("FORK", "m", "child"), goal=False)
        meter("COPY", lambda: c.call("COPY", "m", "copy"), goal=False)
        meter("XDEL in the middle", lambda: c.call("XDEL", "child", c.call("XRANGE", "m", "-", last, "COUNT", 2)[1][0]), goal=False)
        meter("DEL of a copy", lambda: c.call("DEL", "child"))
        meter("XTRIM to 10 entries", lambda: c.call("XTRIM", "copy", "MAXLEN", 10))
        meter("XTRIM to 600,000 entries", lambda: c.call("XTRIM", "m", "MAXLEN", 600000), goal=False)
        meter("DEL", lambda: c.call("DEL", "m"), settle_s=2)


def of_keys(lib, model):
    print("  100,000 keys")
    with lib.Server({"model": model}) as s, s.connect() as c:
        meter = Meter(s, c)
        in_batches(c, [("XADD", f"k{i}", "*", "text", "x" * 200) for i in range(100000)])
        meter("KEYS, none matches", lambda: c.call("KEYS", "none*"), goal=False)
        meter("RANDOMKEY", lambda: c.call("RANDOMKEY"))
        meter("DEL of 10,000 keys", lambda: c.call("DEL", *[f"k{i}" for i in range(10000)]), goal=False)
        in_batches(c, [("PEXPIRE", f"k{i}", 3000) for i in range(10000, 30000)])
        meter("20,000 keys expire", lambda: None, settle_s=4)
        used = int(c.info("memory")["used_memory"])
        c.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        meter("maxmemory: 10,000 keys and more are evicted",
              lambda: (c.call("CONFIG", "SET", "maxmemory", used * 4 // 5), c.call("XADD", "z", "*", "f", "v")), settle_s=2)
        c.call("CONFIG", "SET", "maxmemory", 0)
        meter("FLUSHALL", lambda: c.call("FLUSHALL"), settle_s=2)


def of_clients(lib, model):
    n = 10000
    print(f"  {n} connections")
    raise_file_limit(n + 500)
    with lib.Server({"model": model, "maxclients": n + 200}) as s, s.connect() as c:
        meter, clients = Meter(s, c), []
        for _ in range(n):
            clients.append(s.connect())
            clients[-1].call("PING")
        meter("CLIENT LIST", lambda: c.call("CLIENT", "LIST"), goal=False)
        meter("INFO", lambda: c.call("INFO"))
        for each in clients[:1000]:
            each.call("SUBSCRIBE", "news")
        meter("PUBLISH to 1,000", lambda: c.call("PUBLISH", "news", "hello"))
        c.call("CONFIG", "SET", "notify-keyspace-events", "KEA")
        for each in clients[1000:2000]:
            each.call("PSUBSCRIBE", "__key*__:*")
        meter("XADD, 1,000 subscribe to its events", lambda: c.call("XADD", "k", "*", "f", "v"))
        c.call("CONFIG", "SET", "notify-keyspace-events", "")
        asking = clients[2000:]
        meter("8,000 PINGs", lambda: ([x.send("PING") for x in asking], [x.receive() for x in asking]))
        meter("CLIENT KILL of all", lambda: c.call("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"))
        for each in clients:
            each.close()


def of_commands(lib, model):
    print("  single commands")
    with lib.Server({"model": model}) as s, s.connect() as c:
        meter = Meter(s, c)
        for _ in range(100):
            c.call("XADD", "src", "*", "text", "hello")
        meter("FORK of 100 entries to 1,000 keys", lambda: c.call("FORK", "src", *[f"d{i}" for i in range(1000)]), goal=False)

        def execute():
            c.send_raw(c.encode("MULTI") + c.encode("XADD", "q", "*", "f", "v") * 10000 + c.encode("EXEC"))
            for _ in range(10002):
                c.receive()

        meter("EXEC of 10,000 XADDs", execute, goal=False)
        meter("XRANGE of 10,000 entries", lambda: c.call("XRANGE", "q", "-", "+"), goal=False)
        meter("COMMAND DOCS", lambda: c.call("COMMAND", "DOCS"))
        meter("TOKENIZE of 100 KB", lambda: c.call("TOKENIZE", "hello world " * 9000))


def of_generations(lib, model):
    print("  generations")
    with lib.Server({"model": model, "max-running": 256, "max-queue": 1000, "max-batch-tokens": 1024}) as s, s.connect() as c:
        meter, prompt = Meter(s, c), "hello world, here we go. " * 120
        common = ["IGNOREEOS", "MAXTOKENS"]

        def start(tokens):
            in_batches(c, [("GEN", f"r{i}", f"hi {i}", "ASYNC", *common, tokens) for i in range(256)])

        meter("N 64 behind a long prompt", lambda: c.call("GEN", "n", prompt, "N", 64, *common, 8))
        meter("N 64 x 200 tokens, LOGPROBS 20", lambda: c.call("GEN", "l", "Once", "N", 64, *common, 200, "LOGPROBS", 20))
        meter("the same WITHINFO: a reply of 4 MB",
              lambda: c.call("GEN", "i", "Once", "N", 64, *common, 200, "LOGPROBS", 20, "WITHINFO"), goal=False)
        meter("BEAM 16 x 300 tokens", lambda: c.call("GEN", "b", prompt, "BEAM", 16, *common, 300))
        meter("256 GENs come, and run", lambda: start(1500), settle_s=3)
        keys = [f"r{i}" for i in range(256)]
        meter("CANCEL of 256 that run", lambda: c.call("CANCEL", *keys), goal=False)
        start(1500)
        time.sleep(2)
        meter("FLUSHALL with 256 that run", lambda: c.call("FLUSHALL"), goal=False)
        start(200)
        lib.wait_until(lambda: int(c.info("engine")["generations_running"]) == 0, "all have ended")
        meter("256 end in one step or two", lambda: start(100), settle_s=10)
        meter("CACHE CLEAR", lambda: c.call("CACHE", "CLEAR"), goal=False)


def stalls(lib, _):
    """How long single commands keep the main thread away from the engine at most, ms of its CPU."""
    model = lib.tiny_model("--context", "4096")
    for part in (of_entries, of_keys, of_clients, of_commands, of_generations):
        part(lib, model)


PARTS = {"stalls": stalls}
