#!/usr/bin/env python3
"""redis-cli against a real server: arguments, pipes, RESP3, raw output."""
import fcntl
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import sys
import termios
import time

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


class Terminal:
    """redis-cli on a terminal of its own: what is typed, and what stands on the screen."""

    def __init__(self, server, *args):
        if not shutil.which("redis-cli"):
            raise Skip("redis-cli is not installed")
        self.screen = ""
        try:
            self.pid, self.fd = pty.fork()
        except OSError as why:
            raise Skip(f"no pseudo-terminal to be had: {why}") from None
        if self.pid == 0:
            os.environ.update(TERM="xterm", HOME=server.folder)
            os.execvp("redis-cli", ["redis-cli", "-s", server.socket_path, *args])
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 300, 0, 0))

    def type(self, text):
        """Key by key, as a person does: hints come with each."""
        self.screen = ""
        for key in text:
            os.write(self.fd, key.encode())

    def see(self, pattern):
        """Waits until this stands on the screen."""
        deadline = time.monotonic() + PATIENCE_S
        while not re.search(pattern, self.screen, re.S):
            assert time.monotonic() < deadline, f"{pattern!r} is not on the screen: {self.screen[-2000:]!r}"
            if select.select([self.fd], [], [], 1)[0]:
                self.screen += os.read(self.fd, 65536).decode("utf-8", "replace")

    def enter(self, line, answer, prompt="> "):
        """A whole line; then the answer and the next prompt: what is typed before that gets lost."""
        self.type(line + "\r")
        self.see(answer + "[^>]*" + prompt)

    def close(self):
        os.close(self.fd)
        os.waitpid(self.pid, 0)


@test("redis-cli on a terminal: hints from COMMAND DOCS, answers, errors, a transaction's prompt")
def _():
    with Server(model()) as s:
        t = Terminal(s)
        t.see("> ")
        t.type("GEN ")
        t.see(r"key \[prompt \[AS role\]")
        t.enter("k hello MAXTOKENS 3 IGNOREEOS", "\"\r\n")
        t.type("FORK k ")
        t.see("destination")
        t.enter("a b", r"\(integer\) 2\r\n")
        t.enter("NOSUCH", r"\(error\) ERR unknown command 'NOSUCH'")
        t.enter("MULTI", "OK\r\n", r"\(TX\)> ")
        t.enter("XLEN k", "QUEUED\r\n", r"\(TX\)> ")
        t.enter("EXEC", r"1\) \(integer\) 2\r\n")
        t.enter("HELP GEN", "summary:.*Lets the model continue a conversation")
        t.type("quit\r")
        t.close()


@test("redis-cli --pipe, --bigkeys, --memkeys, --latency")
def _():
    with Server(model()) as s:
        requests = b"".join(b"*5\r\n$4\r\nXADD\r\n$2\r\nk%d\r\n$1\r\n*\r\n$4\r\ntext\r\n$2\r\nhi\r\n" % (i % 10)
                            for i in range(1000))
        assert "errors: 0, replies: 1000" in cli(s, "--pipe", stdin=requests)
        assert "10 streams with 1000 entries" in cli(s, "--bigkeys")
        assert "Biggest stream" in cli(s, "--memkeys")
        out = cli(s, "--raw", "--latency", "-i", "1")  # that is for a second, and ends
        assert out.split() and float(out.split()[-2]) >= 0, out


main()
