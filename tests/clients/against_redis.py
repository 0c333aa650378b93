"""against_redis - asks redis-server and kvasir-server the same and compares what they answer.

A reply is a tree of (type, value), so that `$-1` is not `*-1` and a status is not a bulk. What a
clock, an address or a hash's order decides is compared by a mode:

    exact    the bytes (errors included)
    shape    types, counts, names and errors; integers and bulks may have any value
    sorted   aggregates without their order, values and all
    error    only the error's prefix
"""
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from kvasir_test import PATIENCE_S, Client, Closed, Skip, die_with_the_test  # noqa: E402

AGGREGATES = b"*~>%"
CLOSED = ("closed", b"")


class RedisServer:
    """A redis-server of its own on a unix socket, without files. Skip when there is none, or not 7.0.15,
    the last one and Debian 12's.

    Debian's redis-tools brings it without a service that would take port 6379: redis-check-rdb is the
    same program, which goes by the name that it is called by."""

    def __init__(self, *options):
        program = shutil.which("redis-server") or shutil.which("redis-check-rdb")
        if not program:
            raise Skip("redis-server is not installed")
        version = subprocess.run(["redis-server", "--version"], executable=program, capture_output=True, text=True,
                                 check=False).stdout
        if "v=7.0.15 " not in version:  # words of errors differ between patches, too
            raise Skip(f"this is not Redis 7.0.15: {version.strip()}")
        self.folder = tempfile.mkdtemp(prefix="kvasir-redis-")
        self.socket_path = os.path.join(self.folder, "s")
        self.process = subprocess.Popen(
            ["redis-server", "--port", "0", "--unixsocket", self.socket_path, "--save", "", "--appendonly", "no",
             "--dir", self.folder, "--enable-debug-command", "local", *options], executable=program,
            stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL, preexec_fn=die_with_the_test)

    def __enter__(self):
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                with self.connect() as c:
                    c.send("PING")
                    c.receive(False)
                return self
            except OSError:
                assert self.process.poll() is None and time.monotonic() < deadline, "redis-server did not start"
                time.sleep(0.01)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def connect(self):
        return Client(self.socket_path)


class Tree(Client):
    """A connection whose replies keep their types."""

    def tree(self):
        try:
            return self._tree()
        except (Closed, BrokenPipeError):
            return CLOSED
        except socket.timeout:
            return ("no answer", b"")

    def _tree(self):
        line = self._line()
        kind, rest = chr(line[0]), line[1:]
        if kind in "$=" and rest != b"-1":
            return (kind, self._bytes(int(rest)))
        if line[:1] in AGGREGATES and rest != b"-1":
            n = int(rest) * (2 if kind == "%" else 1)
            return (kind, [self._tree() for _ in range(n)])
        return (kind, rest)

    def ask(self, *args):
        try:
            self.send(*args)
        except (BrokenPipeError, ConnectionResetError):
            pass  # what had been sent before the end may still be read
        return self.tree()

    def messages(self):
        """Those of Pub/Sub up to one that says end."""
        found = [self.tree()]
        while found[-1] != CLOSED and found[-1][1][-1][1] != b"end":
            found.append(self.tree())
        return ("*", found)

    def end(self):
        """Nothing more will be sent."""
        self.socket.shutdown(socket.SHUT_WR)

    def rest(self):
        """All replies up to the end of the connection, which this side does not write to any more."""
        replies = []
        while not replies or replies[-1] != CLOSED:
            replies.append(self.tree())
        return replies


def _sorted(tree):
    kind, value = tree
    if not isinstance(value, list):
        return tree
    if kind == "%":
        pairs = [(value[i], _sorted(value[i + 1])) for i in range(0, len(value), 2)]
        return (kind, sorted(pairs, key=repr))
    return (kind, sorted((_sorted(v) for v in value), key=repr))


def _shape(tree):
    kind, value = tree
    if isinstance(value, list):
        return (kind, [_shape(v) for v in value])
    return tree if kind in "+-" or tree == CLOSED or value == b"-1" else (kind, b"any")


def _error(tree):
    return ("-", tree[1].split(b" ")[0]) if tree[0] == "-" else tree


MODES = {"exact": lambda tree: tree, "sorted": _sorted, "shape": _shape, "error": _error}


def show(tree):
    """One line, as a person reads it."""
    kind, value = tree
    if isinstance(value, list):
        return f"{kind}[" + ", ".join(show(v) for v in value) + "]"
    return f"{kind}{value.decode('utf-8', 'backslashreplace')!r}"


def blocked_clients(control):
    return int(re.search(rb"blocked_clients:(\d+)", control.call("INFO", "clients")).group(1))
