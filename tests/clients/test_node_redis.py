#!/usr/bin/env python3
"""node-redis (Debian's package) against a real server; the checks are in node_redis.js."""
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from kvasir_test import PATIENCE_S, Server, Skip, main, test, tiny_model  # noqa: E402

NODE = next((n for n in ("/usr/bin/node", "/usr/bin/nodejs", "/usr/local/bin/node") if os.path.exists(n)), "node")
ENV = {**os.environ, "NODE_PATH": "/usr/share/nodejs:/usr/lib/nodejs"}
outcomes = {}


def outcome(check):
    if not outcomes:
        try:
            probe = subprocess.run([NODE, "-e", "require('redis')"], capture_output=True, env=ENV, check=False)
        except FileNotFoundError:
            raise Skip("node is not installed") from None
        if probe.returncode:
            raise Skip("node-redis is not installed")
        with Server({"model": tiny_model()}) as s:
            done = subprocess.run([NODE, os.path.join(HERE, "node_redis.js"), str(s.port)], capture_output=True,
                                  text=True, env=ENV, timeout=PATIENCE_S, check=False)
        outcomes.update(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
        outcomes.setdefault("", done.stderr)
    return outcomes.get(check, outcomes)


def register(check):
    @test(f"node-redis: {check}")
    def _():
        assert outcome(check) == "ok", outcome(check)


for each in ("basics", "gen", "stream", "multi", "fork", "errors"):
    register(each)
main()
