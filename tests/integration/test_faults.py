#!/usr/bin/env python3
"""Call n fails, over real sockets, in the twin of the server: memory, sockets, files.

Each conversation runs again and again, and each time the next call fails, until it is through. Whoever
meets the fault gets an error or is closed; nobody else notices, and nothing is left behind. Files: the
model, the conf file at the start and at CONFIG REWRITE, the log."""
import contextlib
import os
import subprocess
import tempfile

from kvasir_test import (BUILD, PATIENCE_S, TWIN, Closed, ReplyError, Server, main, test, tiny_model, wait_until)

EIO = "Input/output error"
MEMORY, READ, WRITE, ACCEPT, FILE = range(5)  # as SEAM CALLS tells them


def again(server, *args):
    """Asks on a connection of its own, and once more when it is this one that met the fault."""
    for _ in range(3):
        with contextlib.suppress(Closed, ConnectionError, ReplyError), server.connect() as c:
            return c.call(*args)
    raise AssertionError(f"{args}: no answer in three attempts: {server.log()[-2000:]}")


class Talk:
    """A conversation of two clients. Counts links that were closed and errors, keeps no order of them."""

    def __init__(self, server, tcp):
        self.server, self.tcp = server, tcp
        self.closed, self.errors, self.link = 0, [], None

    def say(self, *commands):
        """A pipeline on the one connection; a new one when it was closed."""
        try:
            self.link = self.link or self.server.connect(self.tcp)
            for command in commands:
                self.link.send(*command)
            for _ in commands:
                reply = self.link.receive(False)
                if isinstance(reply, ReplyError):
                    self.errors.append(str(reply))
        except (Closed, ConnectionError):
            self.closed += 1
            self.link.close()
            self.link = None

    def run(self):
        gen = ("MAXTOKENS", 4, "IGNOREEOS")
        self.say(("HELLO", 3), ("CLIENT", "SETNAME", "talker"), ("ECHO", "x" * 100_000))
        self.say(("XADD", "k", "*", "text", "some text " * 20), ("XRANGE", "k", "-", "+"), ("TOKENIZE", "a b c"))
        self.say(("GEN", "k", "hello", *gen, "STOP", "nothing like it", "ID", "one"))
        self.say(("GEN", "k", "hello", *gen, "STOP", "nothing like it", "ID", "one"), ("FORK", "k", "k1", "k2"))
        self.say(("MULTI",), ("XADD", "m", "*", "text", "in it"), ("GEN", "m", "there", *gen), ("EXEC",))
        self.say(("XREAD", "BLOCK", 1, "STREAMS", "m", "nothing", "$", "$"), ("GEN", "k1", "", *gen, "N", 2))
        self.say(("CACHE", "PROBE", "hello"), ("COPY", "k1", "k3"), ("SUBSCRIBE", "c"), ("UNSUBSCRIBE", "c"))
        if self.link:
            self.link.close()
        return self


def at_rest(server):
    wait_until(lambda: not any(again(server, "GENINFO", key)[1] in (b"queued", b"running") for key in ("k", "m", "k1")),
               "everything has ended")
    assert again(server, "DEBUG", "AUDIT") == "OK"


def fail_each_call(seam, which, tcp):
    """Returns how many calls failed."""
    with Server({"model": tiny_model()}, program=TWIN) as server:
        def left():
            again(server, "FLUSHALL")
            again(server, "CACHE", "CLEAR")
            with server.connect() as c:
                info = c.info("memory", "clients")
            return int(info["mem_keys"]), int(info["connected_clients"])

        undisturbed = Talk(server, tcp).run()
        assert undisturbed.closed == 0 and undisturbed.errors == [], undisturbed.errors
        at_rest(server)
        wait_until(lambda: left()[1] == 1, "they have left")
        base = left()
        first = n = 1 if which != WRITE else 2  # the first one carries the reply to SEAM
        while True:
            again(server, "SEAM", *seam, n)
            talk = Talk(server, tcp).run()
            calls = again(server, "SEAM", "CALLS")[which]
            again(server, "SEAM", *seam, 0)
            assert talk.closed <= 1 and len(talk.errors) <= 3, (n, talk.closed, talk.errors)
            at_rest(server)
            assert server.process.poll() is None, server.log()[-3000:]
            if calls < n:
                break
            n += 1
        assert talk.closed == 0 and talk.errors == [], "the last one met no fault"
        wait_until(lambda: left() == base, lambda: f"{left()} comes back to {base}")
        return n - first


for transport in "unix socket", "TCP":
    for words, place, least in ((("MEMORY",), MEMORY, 20), (("SOCKET", "READ"), READ, 8),
                                (("SOCKET", "WRITE"), WRITE, 8), (("SOCKET", "ACCEPT"), ACCEPT, 1)):
        def register(words=words, place=place, least=least, transport=transport):
            @test(f"{' '.join(words).lower()} fails at call n, {transport}: one client at most, nothing left")
            def _():
                failed = fail_each_call(words, place, transport == "TCP")
                print(f"# {failed} calls failed")
                assert failed >= least, failed

        register()


# ---- files -----------------------------------------------------------------------------------------

def start(n, *options, conf=None, folder=None):
    """Starts a server whose n-th call on a file fails; (exit status, all that it said)."""
    argv = [os.path.join(BUILD, TWIN), *([conf] if conf else []), "--port", "0", "--unixsocket",
            os.path.join(folder, "s"), *options]
    done = subprocess.run(argv, capture_output=True, timeout=PATIENCE_S, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, "KVASIR_SEAM_FILE": str(n)})
    return done.returncode, (done.stdout + done.stderr).decode("utf-8", "replace")


def folder_of_a_test(run):
    def with_folder():
        with tempfile.TemporaryDirectory(prefix="kvasir-") as folder:
            run(folder)
    return with_folder


@test("loading a model: each call on its file fails once, is named with its reason, and ends the server with 1")
@folder_of_a_test
def _(folder):
    model = tiny_model()
    for n, what in (1, ""), (2, ""), (3, "cannot map"):
        status, text = start(n, "--model", model, folder=folder)
        assert status == 1 and f"{model}: {what}" in text and EIO in text, (n, status, text)
        assert "loading failed" in text and "crashed" not in text and "Sanitizer" not in text, text
    with Server({"model": model}, tcp=False, program=TWIN, env={"KVASIR_SEAM_FILE": "4"}) as server:
        assert again(server, "SEAM", "CALLS")[FILE] == 3, "there are more calls than were made to fail"


@test("the conf file at the start: each call fails once, is named with its reason, and ends the server with 1")
@folder_of_a_test
def _(folder):
    conf = os.path.join(folder, "own.conf")
    with open(conf, "w", encoding="utf-8") as f:
        f.write("maxclients 77\n")
    for n in 1, 2, 3:  # open, read, read at its end
        status, text = start(n, conf=conf, folder=folder)
        assert status == 1 and f"{conf}: {EIO}" in text and "crashed" not in text, (n, status, text)


@test("the log file: what cannot be opened is named and ends the server; a full disk does not stop it")
@folder_of_a_test
def _(folder):
    log = os.path.join(folder, "own.log")
    status, text = start(1, "--logfile", log, folder=folder)
    assert status == 1 and f"cannot open the log file {log}: {EIO}" in text, (status, text)
    missing = os.path.join(folder, "none", "log")
    status, text = start(0, "--logfile", missing, folder=folder)
    assert status == 1 and f"cannot open the log file {missing}: No such file or directory" in text, text
    with Server({"logfile": "/dev/full"}, tcp=False, program=TWIN, wait=False) as server:
        with server.wait_listening() as c:
            wait_until(lambda: not isinstance(c.call("PING"), ReplyError), "it answers")
            c.call("CONFIG", "SET", "loglevel", "debug")
            assert c.call("ECHO", "x") == b"x"


@test("CONFIG REWRITE: each call fails once; the error says what could not be done, the old file stays, nothing beside it")
def _():
    steps = ["", "", "", "look at", "create", "set the mode of", "write", "sync", "close", "rename",
             "sync the directory of", "sync the directory of"]  # the first three read the old file
    with Server(conf="# mine\nmaxclients 77\n", tcp=False, program=TWIN) as server:
        path = os.path.join(server.folder, "kvasir.conf")
        os.chmod(path, 0o600)

        def files():
            return len(os.listdir(f"/proc/{server.process.pid}/fd"))

        def content():
            with open(path, encoding="utf-8") as f:
                return f.read()

        with server.connect() as c:
            c.call("PING")  # it is accepted
            open_files, old = files(), content()
            for n, step in enumerate(steps, 1):
                c.call("CONFIG", "SET", "maxclients", 100 + n)
                c.call("SEAM", "FILE", n)
                error = c.error("CONFIG", "REWRITE")
                text = f"cannot {step} it: {EIO}" if step else EIO
                assert error == f"ERR Rewriting config file: {path}: {text}", (n, error)
                assert error.split("ERR ")[1].split(": ", 1)[1] in server.log(), "the log says it, too"
                if "directory" in step:
                    assert f"maxclients {100 + n}" in content()  # it is there, only not yet durable
                else:
                    assert content() == old, (n, content())
                assert files() == open_files and os.stat(path).st_mode & 0o777 == 0o600, n
                assert not [name for name in os.listdir(server.folder) if name.endswith(".tmp")], n
            c.call("SEAM", "FILE", len(steps) + 1)
            assert c.call("CONFIG", "REWRITE") == "OK" and c.call("SEAM", "CALLS")[FILE] == len(steps)
            assert "# mine\n" in content() and f"maxclients {100 + len(steps)}" in content()


if __name__ == "__main__":
    main()
