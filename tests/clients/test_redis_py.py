#!/usr/bin/env python3
"""redis-py against a real server: Debian's version 4 and the newest one of the Python index.

The checks are in redis_py.py, which runs under the interpreter that has the library; every check of
every version is one test here.
"""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from kvasir_test import PATIENCE_S, Server, Skip, main, test, tiny_model  # noqa: E402

CHECKS = ("asyncio", "basics", "cancel", "errors", "gen", "group", "keys", "pipeline", "resp3", "stream", "threads",
          "unix_socket", "what_is_parsed")
PYTHONS = {"redis-py of Debian": "/usr/bin/python3", "redis-py of the index": os.environ.get("KVASIR_CLIENT_PYTHON")}
results = {}


def results_of(library):
    """Runs all checks once per library; {check: outcome}."""
    if library not in results:
        python = PYTHONS[library]
        if not python or subprocess.run([python, "-c", "import redis"], capture_output=True, check=False).returncode:
            results[library] = None
        else:
            with Server({"model": tiny_model()}) as s:
                done = subprocess.run([python, os.path.join(HERE, "redis_py.py"), s.socket_path, str(s.port)],
                                      capture_output=True, text=True, timeout=PATIENCE_S, check=False)
            lines = [line.split(" ", 1) for line in done.stdout.splitlines()]
            results[library] = {"": done.stderr, **{line[0]: line[1] for line in lines}}
    if results[library] is None:
        raise Skip(f"{library}: not installed")
    return results[library]


def register(library, check):
    @test(f"{library}: {check.replace('_', ' ')}")
    def _():
        outcomes = results_of(library)
        assert outcomes.get(check) == "ok", outcomes.get(check, outcomes)


for known in PYTHONS:
    for each in CHECKS:
        register(known, each)
main()
