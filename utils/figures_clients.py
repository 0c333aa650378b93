"""figures_clients - figures of clients that misbehave or give up: what they cost, and what they get.

unread and half run over the tiny model: what is measured is the server. retry runs the real one, since
its times are the subject.
"""
import contextlib
import os
import resource
import select
import shutil
import subprocess
import sys
import time
import urllib.request

from figures_lib import say, say_pings, start_pings


def memory(c):
    """Resident bytes, bytes of clients' buffers, the largest output buffer."""
    i = c.info("memory", "clients")
    return (int(i["used_memory_rss"]), int(i["mem_clients_normal"]), int(i["client_recent_max_output_buffer"]))


def raise_file_limit(n):
    """Room for n connections in this process; the server asks for its own."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < n:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(n, hard), hard))
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < n:
        raise SystemExit(f"{n} open files are needed, the hard limit is {hard} (ulimit -Hn)")


def read_pieces(client, key, last, n):
    """The reader's loop until n pieces have come; the number, and whether the end came first."""
    pieces = 0
    while pieces < n:
        for entry in client.call("XREAD", "BLOCK", 4000, "STREAMS", key, last)[0][1]:
            last = entry[0]
            if b"finish" in entry[1]:
                return pieces, True
            pieces += entry[1][0] == b"piece"
    return pieces, False


def unread(lib, _):
    """10,000 pieces of one key come, and two clients that asked for them never read."""
    n, limit_s = 10000, 3
    model = lib.tiny_model("--context", "16384")
    options = {"model": model, "piece-interval": 0, "client-output-buffer-limit": ["normal", "64mb", "1mb", limit_s]}
    with lib.Server(options) as s, s.connect() as c:
        c.call("GEN", "warm", "hello", "MAXTOKENS", 4)
        before = memory(c)
        tail, whole = s.connect(), s.connect()
        last = c.call("GEN", "k", "Once upon a time", "ASYNC", "IGNOREEOS", "MAXTOKENS", 15000, "SEED", 1)
        # One asks for what is new, over and over; the other for all there is. Neither ever reads.
        tail.send_raw(tail.encode("XREAD", "BLOCK", 0, "STREAMS", "k", "$") * 20000)
        ping = start_pings(lib, s, 5)
        with s.connect() as reader:
            pieces, ended = read_pieces(reader, "k", last, n)
        whole.send_raw(whole.encode("XREAD", "STREAMS", "k", 0) * 100)
        lib.wait_until(lambda: memory(c)[2] > 2**20, "the second client has more than 1 MiB unread")
        now = memory(c)
        keys = int(c.info("memory")["mem_keys"])
        say("pieces that came to a client that reads", pieces, f"{n}", pieces == n and not ended)
        say("  resident MiB more, with the key", f"{(now[0] - before[0]) / 2**20:.1f}")
        say("  of them the key, its pieces and ids", f"{keys / 2**20:.1f}")
        say("  buffers of both that do not read, MiB", f"{(now[1] - before[1]) / 2**20:.2f}", "under 6",
            now[1] - before[1] < 6 * 2**20)
        say("  of them the largest: 1 MiB and one reply, doubled", f"{now[2] / 2**20:.2f}", "under 4", now[2] < 4 * 2**20)
        closed = lib.wait_until(lambda: int(c.info("stats")["client_output_buffer_limit_disconnections"]),
                                "the one over 1 MiB is closed after its time limit")
        say(f"  closed after {limit_s} s over 1 MiB", closed, "at least 1")
        c.call("CANCEL", "k")
        say_pings(ping.communicate()[0])
        tail.close()
        whole.close()
        c.call("DEL", "k")
        lib.wait_until(lambda: int(c.info("clients")["connected_clients"]) == 1, "both are gone")
        say("  their bytes behind them", memory(c)[1] - before[1], "under 65536", memory(c)[1] - before[1] < 65536)


def half(lib, _):
    """10,000 connections that send half a command, some of them with a large promise, and say no more."""
    n, batch = 10000, 500
    raise_file_limit(n + 500)
    halves = [b"*3\r\n$4\r\nXADD\r\n$1\r\nk\r\n$100\r\nhalf of a text", b"*2\r\n$4\r\nECHO\r\n$16777216\r\nabc",
              b"*1000000\r\n$3\r\nDEL\r\n", b"XADD k * text hel", b"*"]
    with lib.Server({"model": lib.tiny_model(), "maxclients": n + 1000}) as s, s.connect() as c:
        c.call("GEN", "warm", "hello", "MAXTOKENS", 4)
        before, clients = memory(c), []
        for start in range(0, n, batch):
            for i in range(start, start + batch):
                clients.append(s.connect())
                clients[-1].send_raw(halves[i % len(halves)])
            lib.wait_until(lambda: int(c.info("clients")["connected_clients"]) == len(clients) + 1, "they are accepted")
        lib.wait_until(lambda: int(c.info("stats")["total_net_input_bytes"]) >= sum(
            len(halves[i % len(halves)]) for i in range(n)), "all halves have come")
        after = memory(c)
        each = (after[0] - before[0]) / n
        say(f"{n} connections with half a command: resident bytes each", int(each), "under 16384", each < 16384)
        say("  counted bytes each", (after[1] - before[1]) // n)
        ping = start_pings(lib, s, 5)
        answers, start = 0, time.monotonic()
        with s.connect(tcp=True) as other:
            while time.monotonic() < start + 5:
                assert len(other.call("GEN", f"g{answers}", "hello", "MAXTOKENS", 8, "IGNOREEOS")) > 0
                answers += 1
        say("  answers of 8 tokens to one other client in 5 s", answers, "some", answers > 0)
        say_pings(ping.communicate()[0])
        poll = select.poll()
        for each_client in clients:
            poll.register(each_client.socket, select.POLLIN)
        say("  of them closed or answered by the server", len(poll.poll(0)), "0", not poll.poll(0))
        for each_client in clients[::2]:  # the other halves come
            each_client.close()
        lib.wait_until(lambda: int(c.info("clients")["connected_clients"]) == n // 2 + 1, "half of them have gone")
        for each_client in clients:
            each_client.close()
        lib.wait_until(lambda: int(c.info("clients")["connected_clients"]) == 1, "all have gone")
        say("  counted bytes behind them", memory(c)[1] - before[1], "under 65536", memory(c)[1] - before[1] < 65536)


# ---- retries ----------------------------------------------------------------------------------------

# redis-py with its default options: a timeout of 5 s, ten retries that nobody sees.
ONE_GEN = """
import sys, redis
sys.stdout.buffer.write(redis.Redis(port=int(sys.argv[1])).execute_command("GEN", *sys.argv[2:]))
"""


def find_redis_py(top):
    """An interpreter with redis-py 8: KVASIR_CLIENT_PYTHON, or that of utils/check."""
    code = "import redis, sys; sys.exit(int(redis.__version__.split('.')[0]) < 8)"
    for python in (os.environ.get("KVASIR_CLIENT_PYTHON"), os.path.join(top, "build-check", "venv", "bin", "python"),
                   sys.executable):
        if python and os.path.exists(python) and subprocess.run([python, "-c", code], capture_output=True,
                                                               check=False).returncode == 0:
            return python
    raise SystemExit("redis-py 8 is not there: name an interpreter that has it in KVASIR_CLIENT_PYTHON")


class RetryWorld:
    """A server with the real model, and what its counters say."""

    def __init__(self, server, connection, python):
        self.server, self.c, self.python = server, connection, python

    def client(self, *args):
        return subprocess.Popen([self.python, "-c", ONE_GEN, str(self.server.port), *map(str, args)],
                                stdout=subprocess.PIPE)

    def answer(self, *args):
        return self.client(*args).communicate()[0]

    def ended(self):
        return sum(int(v) for k, v in self.c.info("engine").items() if k.startswith("finished_"))

    def count(self, name):
        return int(self.c.info("engine", "stats")[name])

    def kill(self, process, key, lib):
        lib.wait_until(lambda: self.c.geninfo(key)["generated"] >= 8, "it generates")
        process.kill()
        process.communicate()
        lib.wait_until(lambda: self.c.info("clients")["blocked_clients"] == "0", "its client is seen to be gone")


def retry_long(w, rate):
    n = max(64, int(rate * 45))  # redis-py gives up after 60 s
    links, ended, start = w.count("total_connections_received"), w.ended(), time.monotonic()
    text = w.answer("long", "Tell me a long story.", "MAXTOKENS", n, "TEMP", 0, "IGNOREEOS")
    took = time.monotonic() - start
    say(f"redis-py 8, default options, GEN of {n} tokens: seconds", f"{took:.1f}", "over 30", took > 30)
    sent = w.count("total_connections_received") - links
    say("  connections, each with the GEN once more", sent, "several", sent > 1)
    say("  generations", w.ended() - ended, "1", w.ended() - ended == 1)
    entries = w.c.call("XRANGE", "long", "-", "+")
    same = len(entries) == 2 and entries[1][1][1] == text
    say("  the answer is the one end entry's text", same, "True", same)


def retry_id(w, rate, lib):
    gen = ("act", "Name a river.", "MAXTOKENS", max(32, int(rate * 3)), "TEMP", 0, "IGNOREEOS", "ID", "action-1")
    ended = w.ended()
    w.kill(w.client(*gen), "act", lib)
    first = w.answer(*gen)
    tokens, again = w.count("generated_tokens"), w.answer(*gen)
    say("with ID, client killed and started again, twice: same answer", first == again, "True", first == again != b"")
    say("  generations in all", w.ended() - ended, "1", w.ended() - ended == 1)
    say("  tokens computed for the last", w.count("generated_tokens") - tokens, "0", w.count("generated_tokens") == tokens)


def retry_orphan(w, rate, lib):
    gen = ("Write about rivers and the sea. " * 20, "MAXTOKENS", max(128, int(rate * 20)), "SEED", 11, "TEMP", 1, "IGNOREEOS")
    lone = w.answer("lone", *gen)
    w.c.call("CACHE", "CLEAR")
    w.kill(w.client("k", *gen), "k", lib)
    killed = time.monotonic()
    lib.wait_until(lambda: w.c.geninfo("k")["state"] == "idle", "it is given up")
    say("killed for longer than orphan-timeout: seconds until given up", f"{time.monotonic() - killed:.1f}")
    finish = w.c.geninfo("k")["finish"]
    say("  finish", finish, "orphaned", finish == "orphaned")
    prompts, prompt = w.count("computed_prompt_tokens"), w.c.geninfo("k")["prompt"]
    text = w.answer("k", *gen)
    computed = w.count("computed_prompt_tokens") - prompts
    say("  asked again: bytes of an undisturbed run", text == lone, "True", text == lone)
    say(f"  tokens computed again, of a prompt of {prompt} and what was made", computed, "a block at most", computed <= 16)
    say("  entries of the key", w.c.call("XLEN", "k"), "2", w.c.call("XLEN", "k") == 2)
    say("  audit", w.c.call("DEBUG", "AUDIT"), "OK")


def decode_rate(c):
    """Tokens a second behind some 2,000 others: what a generation of a few thousand has on average."""
    _, fields = c.call("GEN", "rate", "Write about rivers and the sea. " * 290, "MAXTOKENS", 100, "IGNOREEOS", "TEMP", 0,
                       "WITHINFO")
    info = dict(zip(fields[::2], fields[1::2]))
    return int(info[b"generated"]) * 1000 / int(info[b"decode-ms"])


def retry(lib, paths):
    """redis-py 8 with default options: a GEN of more than 30 s, an ID, and a client that was killed."""
    python = find_redis_py(paths.top)
    with lib.Server({"model": paths.model}) as s, s.connect() as c:
        rate = decode_rate(c)
        world = RetryWorld(s, c, python)
        retry_long(world, rate)
        retry_id(world, rate, lib)
        retry_orphan(world, rate, lib)


# ---- other people's programs ------------------------------------------------------------------------

def clients(lib, paths):
    """The table client x what it does, and what the exporter says."""
    done = subprocess.run([sys.executable, os.path.join(paths.top, "tests", "clients", "test_other_clients.py")],
                          capture_output=True, text=True, check=False)
    for line in done.stdout.splitlines():
        if line.startswith("# |"):
            print("  " + line[2:])
    failures = [line for line in done.stdout.splitlines() if line.startswith("not ok")]
    passed = sum(line.startswith("ok") and "# SKIP" not in line for line in done.stdout.splitlines()) - 1
    say("cells that passed", passed, "90 with all clients here", not failures)
    if not shutil.which("prometheus-redis-exporter"):
        say("prometheus-redis-exporter", "not here")
        return
    with lib.Server({"model": lib.tiny_model()}) as s, s.connect() as c:
        c.call("GEN", "k", "hello", "MAXTOKENS", 4)
        port = lib.free_port()
        exporter = subprocess.Popen(["prometheus-redis-exporter", "-redis.addr", f"redis://127.0.0.1:{s.port}",
                                     "-web.listen-address", f"127.0.0.1:{port}"], stderr=subprocess.PIPE, text=True)

        def scrape():
            with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as r:
                return r.read().decode()
            return None

        metrics = [line for line in lib.wait_until(scrape, "the exporter answers").splitlines() if line[0] != "#"]
        exporter.terminate()
        errors = [line for line in exporter.communicate()[1].splitlines() if "level=error" in line]
        say("prometheus-redis-exporter: metrics of this server", sum(line.startswith("redis_") for line in metrics))
        say("  redis_up", "redis_up 1" in metrics, "True", "redis_up 1" in metrics)
        say("  lines with an error in its log", len(errors), "0", not errors)


PARTS = {"unread": unread, "half": half, "clients": clients}
OF_MODEL = {"retry": retry}
