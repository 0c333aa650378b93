#!/usr/bin/env python3
"""redis-cli against a real server: arguments, pipes, RESP3, raw output."""
import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from kvasir_test import PATIENCE_S, Server, Skip, main, test, tiny_model  # noqa: E402


def cli(server, *args, stdin=None):
    if not shutil.which("redis-cli"):
        raise Skip("redis-cli is not installed")
    done = subprocess.run(["redis-cli", "-s", server.socket_path, *args], input=stdin, capture_output=True,
                          timeout=PATIENCE_S, check=False)
    return done.stdout.decode("utf-8", "replace")


def model():
    return {"model": tiny_model()}


@test("redis-cli generates, forks and reads the stream")
def _():
    with Server(model()) as s:
        text = cli(s, "--raw", "GEN", "k", "hello world", "MAXTOKENS", "8", "TEMP", "0", "IGNOREEOS")
        again = cli(s, "--raw", "GEN", "k2", "hello world", "MAXTOKENS", "8", "TEMP", "0", "IGNOREEOS")
        assert text.strip() and text == again, (text, again)
        assert cli(s, "FORK", "k", "a", "b").strip() == "2"
        assert cli(s, "XLEN", "a").strip() == "2"
        assert cli(s, "TYPE", "a").strip() == "stream"
        entries = cli(s, "--raw", "XRANGE", "k", "-", "+")
        assert "hello world" in entries and "finish" in entries, entries


@test("redis-cli -3 speaks RESP3 and shows maps")
def _():
    with Server(model()) as s:
        cli(s, "GEN", "k", "hello", "MAXTOKENS", "4", "IGNOREEOS")
        out = cli(s, "-3", "GENINFO", "k")
        assert "state" in out and "idle" in out, out
        assert "redis_version" in cli(s, "-3", "INFO", "server")


@test("redis-cli takes commands from a pipe")
def _():
    with Server(model()) as s:
        out = cli(s, stdin=b"PING\nXADD s 1-1 text hello\nXLEN s\nDEL s\nEXISTS s\n").split("\n")
        assert out[:5] == ["PONG", "1-1", "1", "1", "0"], out


@test("redis-cli -x sends a prompt from standard input, bytes as they are")
def _():
    with Server(model()) as s:
        prompt = "a prompt\nof two lines, \u00e4 and \u6f22".encode()
        out = cli(s, "--raw", "-x", "XADD", "k", "1-1", "text", stdin=prompt)
        assert out.strip() == "1-1", out
        assert prompt in cli(s, "--raw", "XRANGE", "k", "-", "+").encode()


@test("redis-cli --scan finds the keys")
def _():
    with Server(model()) as s:
        for i in range(30):
            cli(s, "XADD", f"key:{i}", "1-1", "text", "x")
        assert len(cli(s, "--scan").split()) == 30
        assert sorted(cli(s, "--scan", "--pattern", "key:1?").split()) == [f"key:1{i}" for i in range(10)]


@test("redis-cli shows errors as errors")
def _():
    with Server(model()) as s:
        assert "ERR unknown command 'NOSUCH'" in cli(s, "NOSUCH", "x")
        assert "ERR wrong number of arguments for 'gen' command" in cli(s, "GEN")


@test("redis-cli fetches the documentation of every command")
def _():
    with Server(model()) as s:
        out = cli(s, "COMMAND", "DOCS", "GEN", "FORK", "CANCEL")
        assert "summary" in out and "arguments" in out, out[:300]
        assert int(cli(s, "COMMAND", "COUNT")) > 50


main()
