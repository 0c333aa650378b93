#!/usr/bin/env python3
"""MONITOR: its lines, what they hide, who does not read them, and programs that parse them."""
import os
import re
import shutil
import subprocess
import time

from kvasir_test import PATIENCE_S, Server, Skip, main, test, tiny_model, wait_until


def monitor(server, tcp=False):
    m = server.connect(tcp)
    assert m.call("MONITOR") == "OK"
    return m


def words(line):
    """What stands behind `time [db address]`, as the line has it."""
    assert re.match(r'\d+\.\d{6} \[\d+ [^\]]+\]( ".*")+$', line), line
    return line.split("] ", 1)[1]


@test("a line is Redis': time, database, address, and the arguments quoted")
def _():
    with Server() as server, server.connect(tcp=True) as c, monitor(server) as m:
        before = time.time()
        c.call("SELECT", 3)
        c.call("ECHO", b'a "b"\\\n\r\t\x07\x08\x00\xff\xc3\xa9')
        c.call("del", "k", "")
        select, echo, delete = (m.receive() for _ in range(3))
        assert select.endswith('"SELECT" "3"')
        address = "%s:%d" % c.socket.getsockname()
        assert re.match(rf"\d+\.\d{{6}} \[3 {address}\] ", echo), echo
        assert before - 1 < float(echo.split(" ")[0]) < time.time() + 1, (before, echo)
        assert words(echo) == r'"ECHO" "a \"b\"\\\n\r\t\a\b\x00\xff\xc3\xa9"'
        assert words(delete) == '"del" "k" ""'  # as it was sent
        with server.connect() as unix:
            unix.call("PING")
            assert m.receive().split("] ")[0].endswith(f"[0 unix:{server.socket_path}")


@test("administrative commands and refused ones are not shown; a transaction stands before its EXEC")
def _():
    with Server(tcp=False) as server, server.connect() as c, monitor(server) as m:
        for admin in ("CONFIG", "GET", "port"), ("CLIENT", "LIST"), ("SLOWLOG", "LEN"):
            c.call(*admin)
        for refused in ("NOSUCH",), ("ECHO",):
            c.error(*refused)
        c.call("MULTI")
        c.call("ECHO", "in")
        c.call("XLEN", "k")
        c.call("EXEC")
        c.error("XINFO", "STREAM", "none")  # it ran, and failed
        seen = [words(m.receive()) for _ in range(5)]
        assert seen == ['"MULTI"', '"ECHO" "in"', '"XLEN" "k"', '"EXEC"', '"XINFO" "STREAM" "none"'], seen


@test("a monitor's own replies and lines stand in order, RESET ends it, CLIENT LIST shows it")
def _():
    with Server(tcp=False) as server, server.connect() as c, monitor(server) as m:
        assert "flags=OU" in c.call("CLIENT", "LIST").decode().replace("flags=UO", "flags=OU")
        m.send("ECHO", "mine")
        assert m.receive() == b"mine" and words(m.receive()) == '"ECHO" "mine"'
        assert m.call("MONITOR") == "OK"  # once more changes nothing
        c.call("PING")
        assert words(m.receive()) == '"PING"'
        m.send("HELLO", 3)
        assert m.receive()["proto"] == 3 and words(m.receive()) == '"HELLO" "3"'
        m.send("RESET")
        assert m.receive() == "RESET"
        c.call("PING")
        assert m.call("ECHO", "x") == b"x" and m.call("ECHO", "y") == b"y"
        assert "flags=U" in m.call("CLIENT", "INFO").decode()
        with monitor(server) as gone:
            gone.send("QUIT")
            assert gone.closed()
        c.call("PING")
        c.call("MULTI")
        assert c.error("MONITOR") == "ERR Command not allowed inside a transaction"


@test("prompts and texts are (N bytes) unless log-prompts, passwords never appear")
def _():
    with Server({"model": tiny_model()}, tcp=False) as server, server.connect() as c, monitor(server) as m:
        for request, hidden in (
                (("GEN", "k", "secret words", "MAXTOKENS", 1), '"GEN" "k" "(12 bytes)" "(9 bytes)" "(1 bytes)"'),
                (("XADD", "x", "*", "text", "secret words"),
                 '"XADD" "x" "(1 bytes)" "(4 bytes)" "(12 bytes)"'),
                (("TOKENIZE", "secret words"), '"TOKENIZE" "(12 bytes)"'),
                (("CACHE", "PROBE", "secret words"), '"CACHE" "PROBE" "(12 bytes)"')):
            for show in "no", "yes":
                c.call("CONFIG", "SET", "log-prompts", show)
                c.call(*request)
                line = words(m.receive())
                shown = " ".join(f'"{word}"' for word in request)
                assert line == (shown if show == "yes" else hidden), line
        for request in ("AUTH", "hunter2"), ("AUTH", "default", "hunter2"), ("HELLO", "3", "AUTH", "default", "hunter2"):
            c.send(*request)
            c.receive(False)
            line = m.receive()
            assert '"(redacted)"' in line and "hunter2" not in line and "bytes" not in line, line
        c.call("CONFIG", "SET", "requirepass", "hunter2")
        c.call("PING")
        assert words(m.receive()) == '"PING"'  # the line before shows nothing of it
        c.call("CONFIG", "SET", "requirepass", "")


@test("the log at level debug hides the same words, and does not tell how long a password is")
def _():
    with Server({"model": tiny_model(), "loglevel": "debug"}, tcp=False) as server, server.connect() as c:
        c.call("TOKENIZE", "secret words")
        c.send("AUTH", "hunter2")
        c.receive(False)
        c.call("CONFIG", "SET", "requirepass", "hunter2")
        c.call("CONFIG", "SET", "requirepass", "")
        log = server.log()
        assert '"TOKENIZE" (12 bytes)' in log and '"AUTH" (redacted)' in log, log
        assert '"CONFIG" "SET" "requirepass" (redacted)' in log, log
        assert "secret" not in log and "hunter2" not in log and "(7 bytes)" not in log, log


@test("a line is bounded, however long the arguments are and however many")
def _():
    with Server(tcp=False) as server, server.connect() as c, monitor(server) as m:
        c.call("ECHO", "a" * 1024)
        assert words(m.receive()) == f'"ECHO" "{"a" * 1024}"'
        c.call("ECHO", b"\x01" * 5000000)
        assert words(m.receive()) == '"ECHO" "' + "\\x01" * 1024 + '... (4998976 more bytes)"'
        c.call("DEL", *(f"key:{i}" for i in range(100000)))
        line = words(m.receive())
        assert len(line) < 17000 and re.search(r'"\.\.\. \(\d+ more arguments\)"$', line), line[-100:]
        left = int(re.search(r"\((\d+) more", line).group(1))
        assert line.count('" "') + left == 100001, (line.count('" "'), left)


@test("a monitor that does not read is dropped at its limit; nobody else waits, and the memory is back")
def _():
    options = {"client-output-buffer-limit": ["pubsub", "1mb", 0, 0]}
    with Server(options, tcp=False) as server, server.connect() as c:
        before = int(c.info("memory")["mem_clients_normal"])
        deaf = monitor(server)
        sent, line = 0, b"x" * 1000
        while int(c.info("stats")["client_output_buffer_limit_disconnections"]) == 0:
            assert sent < 100 * 2**20, "it is never dropped"
            for _ in range(200):
                c.send("ECHO", line)
            for _ in range(200):
                assert c.receive() == line
            sent += 200 * len(line)
            assert int(c.info("memory")["mem_clients_normal"]) < before + 8 * 2**20
        wait_until(lambda: int(c.info("clients")["connected_clients"]) == 1, "it is gone")
        assert int(c.info("memory")["mem_clients_normal"]) < before + 2**20
        assert deaf.closed()
        assert "of messages unread" in server.log()


REDIS_PY = """
import sys, redis
r = redis.Redis(unix_socket_path=sys.argv[1])
with r.monitor() as m:
    r.execute_command('GEN', 'k', 'a secret', 'MAXTOKENS', '1')
    r.execute_command('ECHO', 'say "hi"')
    seen = []
    while len(seen) < 2:
        line = m.next_command()
        if line['command'].split(' ')[0] in ('GEN', 'ECHO'):
            seen.append(line)
assert seen[0]['command'] == 'GEN k (8 bytes) (9 bytes) (1 bytes)', seen
assert seen[1]['command'] == 'ECHO say "hi"', seen
assert seen[0]['db'] == 0 and seen[0]['client_type'] == 'unix' and isinstance(seen[0]['time'], float), seen
print('fine', redis.__version__)
"""


def redis_py(python):
    if not python or subprocess.run([python, "-c", "import redis"], capture_output=True, check=False).returncode:
        raise Skip("redis-py is not installed")
    with Server({"model": tiny_model()}, tcp=False) as server:
        done = subprocess.run([python, "-c", REDIS_PY, server.socket_path], capture_output=True, text=True,
                              timeout=PATIENCE_S, check=False)
        assert done.stdout.startswith("fine"), done.stdout + done.stderr


@test("redis-py of Debian parses the lines")
def _():
    redis_py("/usr/bin/python3")


@test("redis-py of the index does so too")
def _():
    redis_py(os.environ.get("KVASIR_CLIENT_PYTHON"))


@test("redis-cli MONITOR prints them")
def _():
    if not shutil.which("redis-cli"):
        raise Skip("redis-cli is not installed")
    with Server(tcp=False) as server, server.connect() as c:
        cli = subprocess.Popen(["redis-cli", "-s", server.socket_path, "MONITOR"], stdout=subprocess.PIPE, text=True)
        try:
            wait_until(lambda: "cmd=monitor" in c.call("CLIENT", "LIST").decode(), "it monitors")
            c.call("ECHO", "hello there")
            assert cli.stdout.readline() == "OK\n"
            assert words(cli.stdout.readline().rstrip("\n")) == '"ECHO" "hello there"'
        finally:
            cli.kill()
            cli.wait()
            cli.stdout.close()


main()
