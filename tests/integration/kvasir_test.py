"""kvasir_test - starts real servers and talks to them over real sockets; prints TAP.

A test file imports `test`, `Server`, `Client` and ends with `main()`:

    @test("PING answers PONG")
    def _():
        with Server() as server, server.connect() as c:
            assert c.call("PING") == "PONG"

Servers listen on a free TCP port and a unix socket in a folder of their own, both gone with the
`with` block; whatever is left is killed at exit.

A machine may take the CPU away from the test, or from the server, for a second at any place. So:
- Nothing sleeps for a fixed time: `wait_until` asks again and again until a generous deadline,
  KVASIR_TEST_PATIENCE, and no shorter bound from above is put on a time.
- The tiny model makes thousands of tokens a second. A generation that a test wants to find running
  is held by the server's debug twin: `stand_still`, then GEN, then `stop_at`; `go_on` ends that.
- Readings of several commands are of one moment when nothing runs, or inside one MULTI.
- A time that has to pass is moved (SEAM CLOCK), and made long, so that none passes by itself before.
"""
import atexit
import collections
import contextlib
import ctypes
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback

BUILD = os.environ.get("KVASIR_BUILD", os.path.join(os.path.dirname(__file__), "..", "..", "build"))
SOURCE = os.environ.get("KVASIR_SRC", os.path.join(os.path.dirname(__file__), "..", ".."))
# Everything that waits gives up after this; sanitizer builds on a busy machine are slow.
PATIENCE_S = float(os.environ.get("KVASIR_TEST_PATIENCE", "120"))
TWIN = "kvasir-server-test"  # the debug twin: with SEAM

_servers = []
_said = collections.deque(maxlen=3)  # the last commands and their replies: a failure prints them


def _facts():
    return [" -> ".join(repr(each)[:400] for each in said) for said in _said]


@atexit.register
def _kill_all():
    for server in list(_servers):
        server.kill()


class Skip(Exception):
    """A test that cannot run here; the text says why."""


class ReplyError(Exception):
    """An error reply; str() is its line without the leading dash."""

    @property
    def prefix(self):
        return str(self).split(" ", 1)[0]


class Closed(Exception):
    """The server closed the connection."""


class Client:
    """One connection. call() sends and waits; send() and receive() apart make pipelines."""

    def __init__(self, address, timeout=None):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM)
        self.socket.settimeout(timeout or PATIENCE_S)
        self._connect(address)
        if family == socket.AF_INET:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.buffer = b""

    def _connect(self, address):
        """On a Unix socket, so many may wait to be accepted that there is no room: once more, then."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self.socket.connect(address)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        self.socket.close()

    @staticmethod
    def encode(*args):
        out = [b"*%d\r\n" % len(args)]
        for a in args:
            a = a if isinstance(a, bytes) else str(a).encode()
            out.append(b"$%d\r\n%s\r\n" % (len(a), a))
        return b"".join(out)

    def send_raw(self, data):
        self.socket.sendall(data)

    def send_as_much(self, data):
        """What the server takes of it before it closes the connection."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.send_raw(data)

    def send(self, *args):
        self.send_raw(self.encode(*args))

    def _fill(self):
        try:
            data = self.socket.recv(65536)
        except ConnectionResetError:
            data = b""
        if not data:
            raise Closed("the server closed the connection")
        self.buffer += data

    def _line(self):
        while b"\r\n" not in self.buffer:
            self._fill()
        line, self.buffer = self.buffer.split(b"\r\n", 1)
        return line

    def _bytes(self, n):
        while len(self.buffer) < n + 2:
            self._fill()
        data, self.buffer = self.buffer[:n], self.buffer[n + 2:]
        return data

    def receive(self, errors=True):
        """The next reply: str, bytes for bulks, int, float, bool, None, list, dict (RESP3 map).
        An error is raised, or returned inside lists and with errors=False."""
        line = self._line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest.decode()
        if kind == b"-":
            error = ReplyError(rest.decode("utf-8", "replace"))
            if errors:
                raise error
            return error
        if kind == b":":
            return int(rest)
        if kind == b",":
            return float(rest)
        if kind == b"#":
            return rest == b"t"
        if kind == b"_":
            return None
        if kind == b"$":
            return None if rest == b"-1" else self._bytes(int(rest))
        if kind == b"=":
            return self._bytes(int(rest))[4:]
        if kind in b"*~>":
            return None if rest == b"-1" else [self.receive(False) for _ in range(int(rest))]
        if kind == b"%":
            return {_key(self.receive(False)): self.receive(False) for _ in range(int(rest))}
        raise AssertionError(f"unknown reply type {line!r}")

    def call(self, *args):
        self.send(*args)
        reply = self.receive(False)
        _said.append((args, reply))
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def transaction(self, *commands):
        """The replies to these commands, inside one MULTI: at one moment, no step ends between them."""
        self.send_raw(b"".join(self.encode(*command) for command in (("MULTI",), *commands, ("EXEC",))))
        *queued, replies = [self.receive(False) for _ in range(len(commands) + 2)]
        _said.append((commands, queued, replies))
        assert queued == ["OK"] + ["QUEUED"] * len(commands), queued
        return replies

    def error(self, *args):
        """The error line that this command must get."""
        self.send(*args)
        reply = self.receive(False)
        _said.append((args, reply))
        assert isinstance(reply, ReplyError), f"{args[:4]}: expected an error, got {reply!r}"
        return str(reply)

    def closed(self):
        """True when the server has closed this connection, after whatever it still sent."""
        try:
            while True:
                self._fill()
        except Closed:
            return True
        except socket.timeout:
            return False

    # ---- what many tests need of a conversation ---------------------------------------------------

    def fields(self, entry):
        """The fields of a stream entry [id, [name, value ...]] as a dict of str."""
        flat = entry[1]
        return {flat[i].decode(): flat[i + 1].decode("utf-8", "replace") for i in range(0, len(flat), 2)}

    def info(self, *sections):
        text = self.call("INFO", *sections).decode()
        return dict(line.split(":", 1) for line in text.split("\r\n") if ":" in line)

    def geninfo(self, key):
        return named(self.call("GENINFO", key))

    def read_answer(self, key, last):
        """The reader's loop of the README: every piece after `last`, and the end entry."""
        pieces, is_over = [], False
        while True:
            wait = () if is_over else ("BLOCK", 4000)
            reply = self.call("XREAD", *wait, "STREAMS", key, last)
            if isinstance(reply, dict):
                reply = list(reply.items())
            for entry in reply[0][1] if reply else ():
                last = entry[0]
                fields = self.fields(entry)
                if "piece" in fields:
                    pieces.append(entry[1][1])
                if "finish" in fields:
                    return pieces, entry
            assert reply or not is_over, f"{key} is {self.geninfo(key)}, and no end entry came"
            if not reply:  # it may have ended just now: one last look
                is_over = self.geninfo(key)["state"] not in ("queued", "running")

    def wait_end(self, key, last):
        """Every piece after `last`, joined, and the fields of the end entry."""
        pieces, entry = self.read_answer(key, last)
        return b"".join(pieces), self.fields(entry)

    # ---- the twin of the server: steps are let go by the test -------------------------------------

    def stand_still(self):
        """No more steps are launched: a GEN is queued or running from now on, until go_on."""
        assert self.call("SEAM", "STEPS", 0) == "OK"

    def go_on(self):
        assert self.call("SEAM", "STEPS", -1) == "OK"

    def step_until(self, condition, what):
        """Lets one step go after the other until the condition holds. Nothing runs then."""
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline, f"steps in vain: {_text(what)}"
            self.call("SEAM", "STEPS", 1)
            wait_until(lambda: self.call("SEAM", "STANDS"), lambda: f"a step, until {_text(what)}")

    def stop_at(self, n, *keys):
        """Each of these keys generates, and has n tokens or a few more, all branches together. Say
        stand_still before their GEN."""
        def infos():
            return [self.geninfo(key) for key in keys]
        self.step_until(lambda: all(i["state"] == "running" and i["generated"] >= n for i in infos()),
                        lambda: f"{keys} have {n} tokens each: {infos()}")


def named(reply):
    """Names and values, an array in RESP2, a map in RESP3, as a dict; texts as str."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[0::2], reply[1::2])
    return {_key(k): v.decode() if isinstance(v, bytes) else v for k, v in pairs}


def _key(name):
    return name.decode() if isinstance(name, bytes) else name


def is_sanitized():
    """True when the programs under test were built with a sanitizer: frames and memory are larger."""
    makefile = os.path.join(BUILD, "Makefile")
    if not os.path.exists(makefile):
        return False
    with open(makefile, encoding="utf-8") as f:
        return "-fsanitize" in f.read()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def model_path(name):
    """A model under models/; KVASIR_MODEL names another file for the real one. Skip when it is not
    there."""
    path = os.path.join(SOURCE, "models", name)
    if name.startswith("SmolLM2"):
        path = os.environ.get("KVASIR_MODEL") or path
    if os.path.exists(path):
        return path
    raise Skip(f"{os.path.relpath(path, SOURCE)} is not there")


REAL_MODEL = "SmolLM2-135M-Instruct.Q4_1.gguf"
_tiny = []


def tiny_model(*options):
    """A deterministic tiny model, made once per test program and set of options."""
    for known, path in _tiny:
        if known == options:
            return path
    folder = tempfile.mkdtemp(prefix="kvasir-model-")
    atexit.register(shutil.rmtree, folder, True)
    path = os.path.join(folder, "tiny.gguf")
    subprocess.run([os.path.join(BUILD, "kvasir-mkmodel"), *options, "--out", path], check=True,
                   stdout=subprocess.DEVNULL)
    _tiny.append((options, path))
    return path


def die_with_the_test():
    """In the child: a test program that is killed takes its servers along (Linux)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Server:
    """A kvasir-server of its own. options: {"port": 0} as on the command line; wait=False returns
    before it is ready. conf: text of a configuration file."""

    def __init__(self, options=None, conf=None, wait=True, tcp=True, env=None, program="kvasir-server"):
        self.folder = tempfile.mkdtemp(prefix="kvasir-")
        self.socket_path = os.path.join(self.folder, "s")
        self.log_path = os.path.join(self.folder, "log")
        self.options, self.conf, self.env, self.tcp = options or {}, conf, env, tcp
        self.program = program  # or TWIN
        self.port = 0
        self.process = None
        try:
            self._start(wait)
        except BaseException:
            self.kill()
            raise

    def _start(self, wait):
        for attempt in range(5):
            self.port = free_port() if self.tcp else 0
            self._launch()
            if not wait:
                return
            if self._wait_ready():
                return
            # Somebody else took the port between our look and the server's bind.
            if "Address already in use" not in self.log() or attempt == 4:
                raise AssertionError(f"the server did not start: {self.log()[-2000:]}")

    def _launch(self):
        argv = [os.path.join(BUILD, self.program)]
        if self.conf is not None:
            path = os.path.join(self.folder, "kvasir.conf")
            with open(path, "w", encoding="utf-8") as f:
                f.write(self.conf)
            argv.append(path)
        options = {"port": self.port, "unixsocket": self.socket_path, **self.options}
        for name, value in options.items():
            argv += ["--" + name, *map(str, value if isinstance(value, (list, tuple)) else [value])]
        self.port = int(options["port"])
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, cwd=self.folder,
                                            stdin=subprocess.DEVNULL, preexec_fn=die_with_the_test,
                                            env={**os.environ, **(self.env or {})})
        if self not in _servers:
            _servers.append(self)

    def wait_listening(self):
        """A client of a server that was started with wait=False and may be loading still."""
        def client():
            assert self.process.poll() is None, f"it exited with {self.process.returncode}: {self.log()[-2000:]}"
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return self.connect()
        return wait_until(client, "it listens")

    def _wait_ready(self):
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            if "Ready to accept connections" in self.log():
                return True
            if self.process.poll() is not None:
                return False
            time.sleep(0.01)
        return False

    def log(self):
        with open(self.log_path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def connect(self, tcp=False, timeout=None):
        return Client(("127.0.0.1", self.port) if tcp else self.socket_path, timeout)

    def terminate(self):
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_S)

    def kill(self):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self in _servers:
            _servers.remove(self)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            if kind is None and self.process.poll() is None:
                status = self.terminate()
                assert status == 0, f"exit status {status}: {self.log()[-3000:]}"
            elif kind is None and self.process.returncode not in (0, None):
                raise AssertionError(f"the server died with {self.process.returncode}: {self.log()[-3000:]}")
        finally:
            self.kill()


MODEL_OPTIONS = {"kv-cache-size": "32mb", "threads": 1}


def model_server(program="kvasir-server", **options):
    """A server with the tiny model, on a unix socket; options with _ for -."""
    return Server({**MODEL_OPTIONS, "model": tiny_model(), **{k.replace("_", "-"): v for k, v in options.items()}},
                  tcp=False, program=program)


def with_model(program="kvasir-server", **options):
    """The test gets such a server and a client; the books must add up behind it."""
    def wrap(function):
        def run():
            with model_server(program, **options) as server, server.connect() as c:
                function(server, c)
                assert c.call("DEBUG", "AUDIT") == "OK"
        return run
    return wrap


def wait_until(condition, what, patience=PATIENCE_S):
    """The condition's first true value. `what` it waits for, or a function that tells."""
    deadline = time.monotonic() + patience
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited in vain: {_text(what)}"
        time.sleep(0.005)


def _text(what):
    return what() if callable(what) else what


_tests = []


def test(name):
    def register(function):
        _tests.append((name, function))
        return function

    return register


def main_in_folders(functions):
    """Tests of programs: runs every test_* of the dictionary, each with an empty folder of its own."""

    def in_folder(function):
        with tempfile.TemporaryDirectory() as folder:
            function(folder)

    for name, function in functions.items():
        if name.startswith("test_"):
            test(name)(functools.partial(in_folder, function))
    main()


def main():
    """Runs all registered tests (or those whose name holds an argument) and prints TAP."""
    chosen = [t for t in _tests if all(a in t[0] for a in sys.argv[1:])]
    print(f"1..{len(chosen)}", flush=True)
    failed = 0
    for number, (name, function) in enumerate(chosen, 1):
        _said.clear()
        try:
            function()
            print(f"ok {number} - {name}", flush=True)
        except Skip as reason:
            print(f"ok {number} - {name} # SKIP {reason}", flush=True)
        except BaseException as fault:  # noqa: B902 - a KeyboardInterrupt is a failure, too
            failed += 1
            print(f"not ok {number} - {name}", flush=True)
            for line in [*traceback.format_exc().splitlines(), "the last replies:", *_facts()]:
                print(f"# {line[:2000]}", flush=True)  # a reply of a megabyte helps nobody
            if isinstance(fault, KeyboardInterrupt):
                break
    sys.exit(1 if failed else 0)
