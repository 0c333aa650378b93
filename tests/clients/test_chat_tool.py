#!/usr/bin/env python3
"""kvasir-chat against a scripted server: what it sends, what it prints, how it ends.

A thread plays the server: a list of steps, each the command expected next (a list of arguments, None
for anything) and the raw reply, or "close" to drop the connection instead, behind some bytes or none."""
import os
import resource
import signal
import socket
import subprocess
import sys
import threading

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from kvasir_test import PATIENCE_S  # noqa: E402

CHAT = os.path.join(os.environ.get("KVASIR_BUILD", "."), "kvasir-chat")


def bulk(text):
    data = text.encode()
    return b"$%d\r\n%s\r\n" % (len(data), data)


def array(items):
    return b"*%d\r\n" % len(items) + b"".join(i if isinstance(i, bytes) else bulk(i) for i in items)


def entries(key, *rows):
    """XREAD's reply: rows of (id, field, value, ...)."""
    return array([array([key, array([array([r[0], array(list(r[1:]))]) for r in rows])])])


def end(id, text, finish="stop", **more):
    row = [id, "role", "assistant", "content", text, "finish", finish]
    for name, value in more.items():
        row += [name, value]
    return row


class Server:
    def __init__(self, steps):
        self.steps, self.faults, self.seen = list(steps), [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        self.lock = threading.Lock()
        self.cancelled = threading.Event()
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self.serve_until_reset, args=(connection,), daemon=True).start()

    def serve_until_reset(self, connection):
        try:
            self.serve(connection)
        except ConnectionError:
            pass  # kvasir-chat left in the middle of a reply

    def serve(self, connection):
        stream = connection.makefile("rb")
        while True:
            head = stream.readline()
            if not head.startswith(b"*"):
                break
            arguments = []
            for _ in range(int(head[1:])):
                n = int(stream.readline()[1:])
                arguments.append(stream.read(n + 2)[:-2].decode())
            if not self.answer(connection, arguments):
                break
        connection.close()

    def answer(self, connection, arguments):
        if arguments[0] == "CANCEL":  # comes on a connection of its own, whenever it does
            self.seen.append(arguments)
            connection.sendall(b":1\r\n")
            self.cancelled.set()
            return True
        with self.lock:
            step = self.steps.pop(0) if self.steps else (["nothing more"], b"-ERR end of script\r\n")
            self.seen.append(arguments)
        expected, reply = step[0], step[1]
        if expected is not None and arguments != expected:
            self.faults.append("got %r, expected %r" % (arguments, expected))
        if reply == "close":
            connection.sendall(b"".join(step[2:]))
            return False
        if reply == "cancel":  # blocks until CANCEL has come
            self.cancelled.wait(PATIENCE_S)
            reply = step[2]
        connection.sendall(reply)
        return True


def start(server, *options):
    return subprocess.Popen([CHAT, "-p", str(server.port), "--key", "k", *options],
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def talk(steps, lines, *options):
    server = Server(steps)
    out, err = start(server, *options).communicate(lines.encode(), timeout=PATIENCE_S)[0:2]
    return server, out.decode(), err.decode()


EXISTS = (["EXISTS", "k"], b":1\r\n")
NEW = (["EXISTS", "k"], b":0\r\n")
GEN = ["GEN", "k", "hi", "AS", "user", "ASYNC"]
BLOCK = ["XREAD", "BLOCK", "4000", "STREAMS", "k"]


def check(server, out, expected):
    assert not server.faults, server.faults
    assert not server.steps, "left in the script: %r" % server.steps
    assert out == expected, "printed %r, expected %r" % (out, expected)


def test_pieces_are_printed_as_they_come():
    server, out, _ = talk([
        EXISTS, (GEN, bulk("5-0")),
        (BLOCK + ["5-0"], entries("k", ("6-0", "piece", "Hel"), ("6-1", "piece", "lo"))),
        (BLOCK + ["6-1"], entries("k", ("6-2", "piece", " you"), end("7-0", "Hello you"))),
    ], "hi\n")
    check(server, out, "Hello you\n")


def test_what_pieces_lack_comes_from_the_end():
    server, out, _ = talk([EXISTS, (GEN, bulk("5-0")),
                           (BLOCK + ["5-0"], entries("k", ("6-0", "piece", "Hel"))),
                           (BLOCK + ["6-0"], entries("k", end("7-0", "Hello\n")))], "hi\n")
    check(server, out, "Hello\n")


def test_options_and_system_text_go_along():
    gen = ["GEN", "k", "hi", "AS", "user", "TEMP", "0", "MAXTOKENS", "5", "STOP", "a b", "ASYNC"]
    server, out, _ = talk([
        NEW, (["XADD", "k", "*", "role", "system", "content", "Be brief."], bulk("1-0")),
        (gen, bulk("1-0")), (BLOCK + ["1-0"], entries("k", end("2-0", "x", "length"))),
    ], "hi\n", "--temp", "0", "--max-tokens", "5", "--stop", "a b", "--system", "Be brief.")
    check(server, out, "x\n")


def test_a_dead_connection_is_opened_again():
    server, out, _ = talk([
        EXISTS, (GEN, "close"), (GEN, bulk("5-0")),
        (BLOCK + ["5-0"], entries("k", ("6-0", "piece", "a"))),
        (BLOCK + ["6-0"], "close"), (BLOCK + ["6-0"], entries("k", end("7-0", "ab"))),
    ], "hi\n")
    check(server, out, "ab\n")


def test_loading_is_waited_for():
    server, out, _ = talk([(["EXISTS", "k"], b"-LOADING the model is loading\r\n"), EXISTS,
                           (GEN, bulk("5-0")), (BLOCK + ["5-0"], entries("k", end("6-0", "a")))],
                          "hi\n")
    check(server, out, "a\n")


def test_an_error_is_told_and_is_the_exit_status():
    server = Server([EXISTS, (GEN, b"-BUSYKEY a generation is running on k\r\n")])
    chat = start(server)
    out, err = chat.communicate(b"hi\n", timeout=PATIENCE_S)
    check(server, out.decode(), "")
    assert b"BUSYKEY" in err and chat.returncode == 1, (err, chat.returncode)


def test_a_reply_nested_without_end_is_an_error_and_no_crash():
    nested = b"*1\r\n" * 100000
    server = Server([(["EXISTS", "k"], nested), (["EXISTS", "k"], nested)])  # it asks once more
    chat = start(server)
    out, err = chat.communicate(b"hi\n", timeout=PATIENCE_S)
    assert chat.returncode == 1 and out == b"" and b"nested" in err, (chat.returncode, out, err)


def test_a_reply_that_promises_much_costs_nothing_and_is_an_error():
    for header in (b"*3000000000\r\n", b"*2147483647\r\n", b"*1\r\n*1048577\r\n", b"$2147483647\r\n"):
        # the server goes away behind the header; the command is sent once more
        server = Server([(["EXISTS", "k"], "close", header)] * 2)
        chat = start(server)
        out, err = chat.communicate(b"hi\n", timeout=PATIENCE_S)
        assert chat.returncode == 1 and out == b"", (header, chat.returncode, out)
        why = {b"*3": b"out of range", b"$2": b"closed"}.get(header[:2], b"elements, more than 1048576")
        assert why in err, (header, err)
    grown = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss  # KiB, of the largest child so far
    assert grown < 1 << 20, grown


def test_a_failed_answer_keeps_its_text():
    server, out, err = talk([EXISTS, (GEN, bulk("5-0")), (BLOCK + ["5-0"], entries(
        "k", end("6-0", "part", "error", error="the device failed")))], "hi\n")
    check(server, out, "part\n")
    assert "the device failed" in err, err


def test_nothing_and_not_running_ends_the_wait():
    server, out, err = talk([
        EXISTS, (GEN, bulk("5-0")), (BLOCK + ["5-0"], b"*-1\r\n"),
        (["GENINFO", "k"], array(["state", "running", "place", b":0\r\n"])),
        (BLOCK + ["5-0"], b"*-1\r\n"), (["GENINFO", "k"], array(["state", "none"])),
        (["XREAD", "STREAMS", "k", "5-0"], b"*-1\r\n"),
    ], "hi\n")
    check(server, out, "")
    assert "end is not there" in err, err


def test_fork_new_and_slashes():
    server, out, err = talk([
        EXISTS, (["FORK", "k", "k2"], b":1\r\n"),
        (["GEN", "k2", "/path", "AS", "user", "ASYNC"], bulk("5-0")),
        (["XREAD", "BLOCK", "4000", "STREAMS", "k2", "5-0"], entries("k2", end("6-0", "b"))),
        (["FORK", "k2", "k3"], b":0\r\n"), (["EXISTS", "k4"], b":0\r\n"),
        (["GEN", "k4", "c", "AS", "user", "ASYNC"], bulk("1-0")),
        (["XREAD", "BLOCK", "4000", "STREAMS", "k4", "1-0"], entries("k4", end("2-0", "d"))),
    ], "/fork k2\n//path\n/fork k3\n/new k4\nc\n/what\n/quit\nnever sent\n")
    check(server, out, "b\nd\n")
    assert "not forked" in err and "unknown command" in err, err


def test_ctrl_c_cancels_on_a_second_connection():
    server = Server([EXISTS, (GEN, bulk("5-0")),
                     (BLOCK + ["5-0"], entries("k", ("6-0", "piece", "a"))),
                     (BLOCK + ["6-0"], "cancel", entries("k", end("7-0", "ab", "cancelled")))])
    chat = start(server)
    chat.stdin.write(b"hi\n")
    chat.stdin.flush()
    assert chat.stdout.read(1) == b"a"  # the answer has begun: no race with the signal
    chat.send_signal(signal.SIGINT)  # once: the second one would end the program
    assert server.cancelled.wait(PATIENCE_S), server.seen
    out, _ = chat.communicate(timeout=PATIENCE_S)
    check(server, out.decode(), "b\n")
    assert ["CANCEL", "k"] in server.seen


def main():
    if not os.access(CHAT, os.X_OK):
        print("1..0 # SKIP kvasir-chat is not built: %s" % CHAT)
        return 0
    tests = [(n, f) for n, f in globals().items() if n.startswith("test_")]
    failed = 0
    print("1..%d" % len(tests))
    for i, (name, test) in enumerate(tests, 1):
        try:
            test()
            print("ok %d - %s" % (i, name))
        except Exception as fault:  # every fault is one test's, the others still run
            failed += 1
            print("not ok %d - %s\n# %s: %s" % (i, name, type(fault).__name__, fault))
        sys.stdout.flush()
    return 1 if failed else 0


sys.exit(main())
