#!/usr/bin/env python3
"""phpredis, redis-rb and Perl's Redis against a real server: the table client x what it does.

The checks are in other_clients.php, .rb and .pl, alike in all three; a library that is not installed
is skipped aloud."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from kvasir_test import PATIENCE_S, Server, Skip, main, test, tiny_model  # noqa: E402

CHECKS = ("connect", "GEN", "BLOCK", "ASYNC and XREAD", "FORK", "CANCEL", "pipeline", "MULTI", "reconnect")
# name: (interpreter, what proves that the library is there, script)
CLIENTS = {
    "phpredis": (["php"], ["-r", "exit(extension_loaded('redis') ? 0 : 1);"], "other_clients.php"),
    "redis-rb": (["ruby"], ["-e", "require 'redis'"], "other_clients.rb"),
    "Perl's Redis": (["perl"], ["-MRedis", "-e", "1"], "other_clients.pl"),
}
outcomes = {}


def outcomes_of(client):
    """Runs all checks once per client; {check: outcome}."""
    interpreter, proof, script = CLIENTS[client]
    if client in outcomes:
        return outcomes[client]
    try:
        missing = subprocess.run([*interpreter, *proof], capture_output=True, check=False).returncode
    except FileNotFoundError:
        missing = True
    if missing:
        raise Skip(f"{client} is not installed")
    with Server({"model": tiny_model()}) as s:
        done = subprocess.run([*interpreter, os.path.join(HERE, script), str(s.port)], capture_output=True,
                              timeout=PATIENCE_S, check=False)
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
main()
