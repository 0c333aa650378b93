#!/usr/bin/env python3
"""Other people's clients against a real server: the table client x what it does.

The checks are in other_clients.*, alike in all languages; a library that is not installed is skipped
aloud. The server is the debug twin, whose steps CANCEL's check holds back: there is something to cancel. The last test prints the table, which utils/figures shows, too."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from kvasir_test import BUILD, PATIENCE_S, TWIN, Server, Skip, main, test, tiny_model  # noqa: E402

CHECKS = ("connect", "GEN", "BLOCK", "ASYNC and XREAD", "FORK", "CANCEL", "pipeline", "MULTI", "reconnect")
# name: (interpreter, what proves that the library is there, script)
NODE = next((n for n in ("/usr/bin/node", "/usr/bin/nodejs", "/usr/local/bin/node") if os.path.exists(n)), "node")
PYTHON_OF_INDEX = os.environ.get("KVASIR_CLIENT_PYTHON") or "python-of-KVASIR_CLIENT_PYTHON"
REDIS_PY = ["-c", "import redis.asyncio"]
HIREDIS = os.path.join(BUILD, "tests", "clients", "other_clients")
# name: (interpreter, what proves that the library is there, script, its arguments behind the port)
CLIENTS = {
    "redis-cli": (["bash"], ["-c", "command -v redis-cli"], "other_clients.sh"),
    "redis-py of Debian": (["/usr/bin/python3"], REDIS_PY, "other_clients.py", "sync"),
    "redis-py of Debian, asyncio": (["/usr/bin/python3"], REDIS_PY, "other_clients.py", "asyncio"),
    "redis-py of the index": ([PYTHON_OF_INDEX], REDIS_PY, "other_clients.py", "sync"),
    "redis-py of the index, asyncio": ([PYTHON_OF_INDEX], REDIS_PY, "other_clients.py", "asyncio"),
    "node-redis": ([NODE], ["-e", "require('redis')"], "other_clients.js"),
    "hiredis": (["env"], ["test", "-x", HIREDIS], HIREDIS),
    "phpredis": (["php"], ["-r", "exit(extension_loaded('redis') ? 0 : 1);"], "other_clients.php"),
    "redis-rb": (["ruby"], ["-e", "require 'redis'"], "other_clients.rb"),
    "Perl's Redis": (["perl"], ["-MRedis", "-e", "1"], "other_clients.pl"),
}
ENV = {**os.environ, "NODE_PATH": "/usr/share/nodejs:/usr/lib/nodejs"}
outcomes = {}


def outcomes_of(client):
    """Runs all checks once per client; {check: outcome}."""
    interpreter, proof, script, *arguments = CLIENTS[client]
    if client in outcomes:
        return outcomes[client]
    try:
        missing = subprocess.run([*interpreter, *proof], capture_output=True, env=ENV, check=False).returncode
    except FileNotFoundError:
        missing = True
    if missing:
        raise Skip(f"{client} is not installed")
    with Server({"model": tiny_model()}, program=TWIN) as s:
        done = subprocess.run([*interpreter, os.path.join(HERE, script), str(s.port), *arguments], capture_output=True,
                              env=ENV, timeout=PATIENCE_S, check=False)
    lines = [line.split(": ", 1) for line in done.stdout.decode("utf-8", "replace").splitlines() if ": " in line]
    outcomes[client] = {"": done.stderr, **dict(lines)}
    return outcomes[client]


def register(client, check):
    @test(f"{client}: {check}")
    def _():
        found = outcomes_of(client)
        assert found.get(check) == "ok", found.get(check, found)


for known in CLIENTS:
    for each in CHECKS:
        register(known, each)


@test("the table")
def _():
    passed = 0
    print("# | " + " | ".join(["client", *CHECKS]) + " |")
    for client in CLIENTS:
        found = outcomes.get(client)
        cells = ["not here" if found is None else "ok" if found.get(check) == "ok" else "FAILED" for check in CHECKS]
        passed += cells.count("ok")
        print(f"# | {client} | " + " | ".join(cells) + " |")
    print(f"# {passed} of {len(CLIENTS) * len(CHECKS)} cells passed")


if __name__ == "__main__":
    main()
