#!/usr/bin/env python3
"""redis-py 8 with its default options: a timeout of 5 s and ten hidden retries, against a GEN that is longer.

The twin of the server: its steps are held, SEAM CLOCK lets time pass. The first test takes the library's
real five seconds; nothing else waits for a clock.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from kvasir_test import PATIENCE_S, TWIN, Server, Skip, main, test, tiny_model, wait_until  # noqa: E402

PYTHON = os.environ.get("KVASIR_CLIENT_PYTHON")
BODY = """
import sys, redis
r = redis.Redis(port=int(sys.argv[1]))
sys.stdout.buffer.write(r.execute_command("GEN", *sys.argv[2:]))
"""


def client(server, *args):
    return subprocess.Popen([PYTHON, "-c", BODY, str(server.port), *map(str, args)], stdout=subprocess.PIPE)


def answer(process):
    out, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, process.returncode
    return out


def need_redis_py_8():
    code = "import redis, sys; sys.exit(int(redis.__version__.split('.')[0]) < 8)"
    if not PYTHON or subprocess.run([PYTHON, "-c", code], capture_output=True, check=False).returncode:
        raise Skip("redis-py 8 is not installed (KVASIR_CLIENT_PYTHON)")


def server():
    need_redis_py_8()
    return Server({"model": tiny_model()}, program=TWIN)


def counts(c):
    """Generations that ended, prompt tokens that were computed."""
    info = c.info("engine")
    return sum(int(v) for k, v in info.items() if k.startswith("finished_")), int(info["computed_prompt_tokens"])


def kill(c, process, key):
    """kill -9 while it waits for the key's generation; returns when the server has seen it."""
    c.stop_at(2, key)
    process.kill()
    process.communicate()
    wait_until(lambda: c.info("clients")["blocked_clients"] == "0", "the client is seen to be gone")


@test("a GEN longer than redis-py's timeout: sent again, generated once")
def _():
    with server() as s, s.connect() as c:
        c.stand_still()
        before = int(c.info("stats")["total_connections_received"])
        process = client(s, "k", "hello", "MAXTOKENS", 10, "TEMP", 0, "IGNOREEOS")
        # Its first send is given up after five seconds; the second has come when there are two links.
        wait_until(lambda: int(c.info("stats")["total_connections_received"]) >= before + 2 and
                   c.info("clients")["blocked_clients"] == "1", "it sends again")
        c.go_on()
        text = answer(process)
        assert counts(c)[0] == 1 and c.call("XLEN", "k") == 2
        assert c.call("XRANGE", "k", "-", "+")[1][1][1] == text


@test("with ID, killed and started again: the same answer, nothing computed")
def _():
    with server() as s, s.connect() as c:
        command = ("k", "hello", "MAXTOKENS", 40, "TEMP", 0, "IGNOREEOS", "ID", "action-7")
        c.stand_still()
        kill(c, client(s, *command), "k")
        c.go_on()
        wait_until(lambda: c.geninfo("k")["state"] == "idle", "it ends by itself")
        before = counts(c)
        first = answer(client(s, *command))  # nobody had been told
        assert answer(client(s, *command)) == first  # by the ID
        assert counts(c) == before and before[0] == 1 and c.call("XLEN", "k") == 2
        assert c.call("XRANGE", "k", "-", "+")[1][1][1] == first


@test("killed for longer than orphan-timeout: asks again and gets the ids of an undisturbed run")
def _():
    with server() as s, s.connect() as c:
        command = ("a story of rivers " * 10, "MAXTOKENS", 60, "SEED", 11, "TEMP", 1, "IGNOREEOS")
        undisturbed = answer(client(s, "lone", *command))
        c.call("CACHE", "CLEAR")
        c.stand_still()
        kill(c, client(s, "k", *command), "k")
        prompts = counts(c)[1]
        c.call("SEAM", "CLOCK", 10_001)
        wait_until(lambda: c.geninfo("k")["state"] == "idle", "it is given up")
        assert c.geninfo("k")["finish"] == "orphaned"
        c.go_on()
        assert answer(client(s, "k", *command)) == undisturbed
        entries = c.call("XRANGE", "k", "-", "+")
        assert len(entries) == 2 and c.fields(entries[1])["generated"] == "60", entries
        assert counts(c)[1] - prompts <= 16, "the prompt was computed twice"


main()
