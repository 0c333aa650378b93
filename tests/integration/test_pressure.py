#!/usr/bin/env python3
"""Too little memory and too many clients: what is preempted loses nothing, and in the end the books
add up.

Comparable servers lost text of preempted requests, leaked blocks under load until they stopped
themselves, and counted shared blocks once for each that shares them. KVASIR_TEST_LONG=1 lets the load
run for twenty minutes instead of seconds; KVASIR_TEST_SEED takes one again.
"""
import os
import random
import select
import socket
import struct
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from forced import end_of, ids, number  # noqa: E402
from kvasir_test import PATIENCE_S, TWIN, Closed, Server, Skip, main, named, test, tiny_model, wait_until  # noqa: E402

MODES = {"recompute": {}, "swap": {"preemption-mode": "swap", "swap-space": "64mb"}}
BLOCK = 16


def block_bytes():
    with Server({"model": tiny_model()}) as server, server.connect() as c:
        return number(c, "block_bytes")


def tight_server(blocks, program="kvasir-server", **options):
    return Server({"model": tiny_model(), "kv-cache-size": blocks * block_bytes(), **options}, program=program)


def cache_info(c):
    return named(c.call("CACHE", "INFO"))


def books_add_up(c, blocks):
    info = c.info()
    used, cached, free = (int(info[f"cache_blocks_{kind}"]) for kind in ("used", "cached", "free"))
    assert used == 0 and cached + free == blocks == int(info["cache_blocks"]), info
    assert c.call("DEBUG", "AUDIT") == "OK"


# ---- preemption -------------------------------------------------------------------------------------


def two_that_do_not_fit(mode):
    """40 prompt tokens and 500 generated each, in a pool for one and a half of them."""
    blocks, n = 51, 500
    ask = [(f"k{i}", ids(*((i * 7 + j * 3) % 250 + 3 for j in range(40))), "IDS", "TEMP", 0.8, "SEED", i, "MAXTOKENS", n,
            "IGNOREEOS") for i in range(2)]
    with Server({"model": tiny_model()}) as roomy, roomy.connect() as c:
        want = [c.call("GEN", *a) for a in ask]
    with tight_server(blocks, TWIN, **{"piece-interval": 0, **mode}) as server, server.connect() as c:
        got = {}

        def stream(i, last):
            with server.connect() as own:
                got[i] = own.wait_end(f"k{i}", last)

        c.stand_still()  # until both are there
        threads = [threading.Thread(target=stream, args=(i, c.call("GEN", *ask[i], "ASYNC"))) for i in range(2)]
        for t in threads:
            t.start()
        c.go_on()
        for t in threads:
            t.join()
        info = c.info()
        assert int(info["preemptions"]) > 0, info
        assert (int(info["swapped_out_bytes"]) > 0) == bool(mode), info
        for i in range(2):
            text, end = got[i]
            assert text == want[i], f"k{i}: {len(text)} bytes of {len(want[i])}"
            assert end["finish"] == "length" and end["generated"] == str(n), end
        books_add_up(c, blocks)


for each_mode, its_options in MODES.items():
    @test(f"two that do not fit together stream 500 tokens each without a gap or a repeat: {each_mode}")
    def _(options=its_options):
        two_that_do_not_fit(options)


@test("swap space that the machine does not have is a warning at start, and victims are computed again")
def _():
    if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") > 1 << 40:
        raise Skip("this machine has so much")
    with tight_server(40, **{"preemption-mode": "swap", "swap-space": 1 << 40}) as server, server.connect() as c:
        log = server.log()
        assert "no swap space: 1099511627776 bytes for blocks of" in log and "are free" in log, log
        c.transaction(*(("GEN", f"k{i}", f"{i} of six that do not fit together", "MAXTOKENS", 300, "IGNOREEOS")
                        for i in range(6)))
        for i in range(6):
            _, end = c.wait_end(f"k{i}", "0")
            assert end["finish"] == "length" and end["generated"] == "300", end
        info = c.info()
        assert int(info["preemptions"]) > 0 and info["swap_blocks"] == info["swapped_out_bytes"] == "0", info
        books_add_up(c, 40)


# ---- shared blocks ----------------------------------------------------------------------------------


@test("a hundred conversations that share ten blocks, half of them forked: each block counts once")
def _():
    blocks = 400
    with tight_server(blocks) as server, server.connect() as c:
        prefix = [(i * i) % 250 + 3 for i in range(10 * BLOCK)]
        c.call("GEN", "k0", ids(*prefix, 3), "IDS", "MAXTOKENS", 1, "IGNOREEOS")
        assert cache_info(c)["cached"] == 11  # and the block in which it ends
        for i in range(1, 50):
            c.call("GEN", f"k{i}", ids(*prefix, 3 + i), "IDS", "MAXTOKENS", 1, "IGNOREEOS")
            assert int(end_of(c, f"k{i}")["cached"]) == 10 * BLOCK
        for i in range(50):
            assert c.call("FORK", f"k{i}", f"fork{i}") == 1
        info = cache_info(c)
        assert info["cached"] == 10 + 50 and info["free"] == blocks - 60, info
        books_add_up(c, blocks)
        assert c.call("CACHE", "CLEAR") == 60 and cache_info(c)["free"] == blocks


# ---- load -------------------------------------------------------------------------------------------

CLIENTS, THREADS, KEYS, POOL = 256, 8, 200, 40
ENDS_OF_ALL = ("length", "cancelled", "orphaned", "deadline")


class Load:
    """Clients of one thread: each sends one command at a time, reads what comes, or goes."""

    def __init__(self, server, seed, over):
        self.server, self.rng, self.over = server, random.Random(seed), over
        self.clients = [server.connect() for _ in range(CLIENTS // THREADS)]
        self.waiting = set()
        self.commands = 0
        self.fault = None

    def command(self):
        rng, key = self.rng, f"k{self.rng.randrange(KEYS)}"
        other = f"k{rng.randrange(KEYS)}"
        prompt = "a common beginning of some length, and then " * rng.randrange(4) + str(rng.randrange(40))
        gen = ("GEN", key, prompt, "MAXTOKENS", 1 + rng.randrange(200), "PRIORITY", rng.randrange(3))
        if rng.randrange(3):
            return rng.choice((gen, gen, (*gen, "ASYNC"), (*gen, "BLOCK", 1 + rng.randrange(50)),
                               (*gen, "DEADLINE", 1 + rng.randrange(3000)), (*gen, "N", 1 + rng.randrange(4)),
                               (*gen, "BEAM", 1 + rng.randrange(3))))
        if rng.randrange(8):
            return rng.choice((("FORK", key, other), ("FORK", key, other, "BRANCH", rng.randrange(3)), ("XREAD", "BLOCK", 20, "STREAMS", key, "$"), ("GENINFO", key),
                               ("XRANGE", key, "-", "+", "COUNT", 5), ("XTRIM", key, "MAXLEN", 6),
                               ("CACHE", "PROBE", prompt)))
        return rng.choice((("FORK", key, other, "REPLACE"), ("CANCEL", key, other), ("DEL", key), ("EXPIRE", key, 1),
                           ("RENAME", key, other)))

    def go(self, i):
        client = self.clients[i]
        if self.rng.randrange(2):
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.close()
        self.waiting.discard(i)
        self.clients[i] = self.server.connect(tcp=self.rng.randrange(4) == 0)

    def step(self):
        rng, i = self.rng, self.rng.randrange(len(self.clients))
        if rng.randrange(25) == 0:
            self.go(i)
            return
        client = self.clients[i]
        if i not in self.waiting:
            client.send(*self.command())
            self.waiting.add(i)
            self.commands += 1
        if select.select([client.socket], [], [], 0.001)[0]:
            client.receive(False)
            self.waiting.discard(i)

    def run(self):
        try:
            while not self.over.is_set():
                self.step()
        except (Closed, OSError, AssertionError) as fault:
            self.fault = fault
        for client in self.clients:
            client.close()


def has_seen_all(c):
    """Checks the books on the way."""
    assert c.call("DEBUG", "AUDIT") == "OK"
    info = c.info()
    return int(info["preemptions"]) > 0 and all(int(info["finished_" + f]) > 0 for f in ENDS_OF_ALL)


def open_files(server):
    folder = f"/proc/{server.process.pid}/fd"
    return sorted(os.readlink(os.path.join(folder, fd)).split("[")[0] for fd in os.listdir(folder))


def load(mode, seconds):
    seed = int(os.environ.get("KVASIR_TEST_SEED", random.randrange(10**6)))
    print(f"# seed {seed}", flush=True)
    options = {"orphan-timeout": "50ms", "max-queue": 1000, "maxclients": 1000, **mode}
    with tight_server(POOL, **options) as server, server.connect() as c:
        memory = number(c, "mem_keys")  # asked first: then c is accepted
        files = open_files(server)
        over, start = threading.Event(), time.monotonic()
        loads = [Load(server, seed + i, over) for i in range(THREADS)]
        threads = [threading.Thread(target=each.run) for each in loads]
        for t in threads:
            t.start()
        try:  # a slow machine takes longer until each kind of end has come
            wait_until(lambda: has_seen_all(c) and time.monotonic() - start > seconds, "every kind of end",
                       seconds + PATIENCE_S)
        finally:
            over.set()
        for t in threads:
            t.join()
        for each in loads:
            assert each.fault is None, repr(each.fault)
        wait_until(lambda: number(c, "connected_clients") == 1, "the clients to be gone")
        wait_until(lambda: number(c, "generations_running") + number(c, "generations_queued") == 0, "the work to be done")
        books_add_up(c, POOL)
        info = c.info()
        c.call("FLUSHALL")
        wait_until(lambda: number(c, "mem_keys") == memory, "the memory of keys to be back")
        assert open_files(server) == files, (files, open_files(server))
        print(f"# {sum(each.commands for each in loads)} commands, {info['preemptions']} preemptions; finished:",
              *(f"{f} {info['finished_' + f]}" for f in ENDS_OF_ALL), flush=True)


for each_mode, its_options in MODES.items():
    @test(f"256 clients that generate, fork, cancel and go at random leave books that add up: {each_mode}")
    def _(options=its_options):
        load(options, 600 if os.environ.get("KVASIR_TEST_LONG") else 6)


main()
