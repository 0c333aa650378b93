#!/usr/bin/env python3
"""The recipes of RECIPES.md, run from the file's own text; only the port is another one.

A block's first line is ```LANGUAGE NAME; NAME says here how it is run. One that cannot run on any
machine of ours (ioredis, go-redis) is checked for being marked so in the text."""
import os
import re
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from kvasir_test import PATIENCE_S, SOURCE, Server, Skip, main, test, tiny_model  # noqa: E402

NODE = next((n for n in ("/usr/bin/node", "/usr/bin/nodejs", "/usr/local/bin/node") if os.path.exists(n)), "node")
PYTHONS = {"Debian": "/usr/bin/python3", "the index": os.environ.get("KVASIR_CLIENT_PYTHON")}

with open(os.path.join(SOURCE, "RECIPES.md"), encoding="utf-8") as text:
    TEXT = text.read()
BLOCKS = {m.group(2): m.group(3) for m in re.finditer(r"^```(\w+) (\S+)\n(.*?)^```$", TEXT, re.S | re.M)}


# Some milliseconds a token: what a recipe cancels goes on for ten seconds.
SLOW = ("--layers", "12", "--width", "384", "--heads", "6", "--kv-heads", "3", "--head-dim", "64", "--inner", "1024")


def server(*model):
    return Server({"model": tiny_model(*model)})


def run(server, name, command, suffix, prepare=None, env=None):
    """Writes the block into a file, runs it; what it printed."""
    code = BLOCKS[name].replace("6379", str(server.port))
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "recipe" + suffix)
        with open(path, "w", encoding="utf-8") as f:
            f.write(code)
        if prepare:
            path = prepare(path)
        done = subprocess.run([*command, path], capture_output=True, timeout=PATIENCE_S, check=False,
                              env={**os.environ, **(env or {})})
    out = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, f"status {done.returncode}: {out}\n{done.stderr.decode('utf-8', 'replace')}"
    assert out.strip(), "it printed nothing"
    return out


def need(command, what):
    try:
        failed = subprocess.run(command, capture_output=True, check=False).returncode
    except FileNotFoundError:
        failed = True
    if failed:
        raise Skip(f"{what} is not installed")


@test("recipe: redis-cli")
def _():
    if not shutil.which("redis-cli"):
        raise Skip("redis-cli is not installed")
    with server() as s:
        run(s, "redis-cli", ["sh", "-e"], ".sh")
        with s.connect() as c:
            c.wait_end("tale", "0-0")
            assert c.call("XLEN", "story:b") == 2 and c.call("XLEN", "tale") == 2 and c.call("XLEN", "notes") == 2
            c.wait_end("c", "0-0")
            assert c.call("XLEN", "c") == 2


def register_python(name, library, python):
    @test(f"recipe: {name}, redis-py of {library}")
    def _():
        if not python:
            raise Skip(f"redis-py of {library} is not installed")
        need([python, "-c", "import redis.cluster"], f"redis-py of {library}")
        with server(*(SLOW if name == "redis-py" else ())) as s:
            run(s, name, [python], ".py")


for each in ("redis-py", "redis-py-asyncio", "redis-py-cluster"):
    for known, interpreter in PYTHONS.items():
        register_python(each, known, interpreter)


@test("recipe: node-redis")
def _():
    env = {"NODE_PATH": "/usr/share/nodejs:/usr/lib/nodejs"}
    try:
        probe = subprocess.run([NODE, "-e", "require('redis')"], capture_output=True, env={**os.environ, **env},
                               check=False)
    except FileNotFoundError:
        raise Skip("node is not installed") from None
    if probe.returncode:
        raise Skip("node-redis is not installed")
    with server() as s:
        run(s, "node-redis", [NODE], ".js", env=env)
        with s.connect() as c:
            assert c.call("XLEN", "n:b") == 4


def compiled(path):
    program = path[:-2]
    compiler = os.environ.get("CC", "cc").split()
    subprocess.run([*compiler, "-Wall", "-Werror", path, "-lhiredis", "-o", program], check=True)
    return program


@test("recipe: hiredis")
def _():
    need([*os.environ.get("CC", "cc").split(), "--version"], "a C compiler")
    with server() as s:
        out = run(s, "hiredis", [], ".c", prepare=compiled)
        assert "forked" in out, out


LAST_LOOK = """
import sys, types
class Fake:  # nothing comes, nobody is at work any more, and then the end is there all the same
    replies = [[], ["state", "idle"], [["k", [("2-0", {"piece": "all of it"}), ("3-0", {"finish": "stop"})]]]]
    def said(self, *words, **options):
        return "1-0" if words[0] == "GEN" else self.replies.pop(0)
    xread = execute_command = said
class AsyncFake(Fake):
    async def said(self, *words, **options):
        return Fake.said(self, *words)
    xread = execute_command = said
sys.modules["redis"] = types.SimpleNamespace(Redis=lambda **_: Fake())
"""


@test("the readers' loops of the recipes find an end that comes between XREAD and GENINFO")
def _():
    for name, ends_at, call in (("redis-py", "print(ask", "print(*stream('k', 'hello'))"),
                                ("redis-py-asyncio", "async def ask", "print(asyncio.run(read(AsyncFake(), 'k', '1-0')))")):
        functions = BLOCKS[name].split(ends_at)[0].replace("import redis.asyncio\n", "")
        done = subprocess.run([sys.executable, "-c", LAST_LOOK + functions + call], capture_output=True,
                              text=True, timeout=PATIENCE_S, check=False)
        assert done.returncode == 0 and "all of it" in done.stdout, (name, done.stdout, done.stderr)


@test("recipes that are not run here say so")
def _():
    sections = TEXT.split("\n## ")
    unrun = [s for s in sections if re.search(r"^```(js ioredis|go go-redis)$", s, re.M)]
    assert len(unrun) == 2 and all("not run by the tests." in s for s in unrun)
    assert set(BLOCKS) == {"redis-cli", "redis-py", "redis-py-asyncio", "redis-py-cluster", "node-redis", "ioredis",
                           "hiredis", "go-redis"}, sorted(BLOCKS)


main()
