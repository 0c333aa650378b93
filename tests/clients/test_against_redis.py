#!/usr/bin/env python3
"""redis-server 7.0 and kvasir-server are asked the same, and must answer the same: scripted conversations
(against_redis/*.txt, each in RESP2 and in RESP3), the tables behind COMMAND, and drawn commands.

    test_against_redis.py                     the tests
    test_against_redis.py --draw SEED N       draws N commands on from a seed; --script FILE plays a file"""
import ast
import glob
import os
import random
import re
import sys

from against_redis import (CLOSED, MODES, RedisServer, Tree, blocked_clients, show)
from drawn_commands import draw
from kvasir_test import Server, main, test, wait_until

HERE = os.path.dirname(os.path.abspath(__file__))
SEED, DRAWN, SESSION = 1, 8000, 400  # of a check: seed, commands; commands of one drawn conversation


class Pair:
    """Both servers, and control connections that no script sees."""

    def __init__(self, options=None):
        self.options = options or {}

    def __enter__(self):
        self.redis = RedisServer(*(w for name, value in self.options.items() for w in ("--" + name, value))).__enter__()
        self.kvasir = Server(self.options, tcp=False)
        self.paths = [self.redis.socket_path, self.kvasir.socket_path]
        self.control = [Tree(p) for p in self.paths]
        for c in self.control:
            c.ask("AUTH", self.options.get("requirepass", ""))
        return self

    def __exit__(self, *what):
        for c in self.control:
            c.close()
        self.redis.__exit__(*what)
        self.kvasir.__exit__(*what)

    def connect(self, protocol):
        both = [Tree(p) for p in self.paths]
        if protocol == 3:
            for c in both:
                c.ask("HELLO", 3)
        return both

    def reset(self):
        for c in self.control:
            assert c.ask("FLUSHALL") == ("+", b"OK")


# ---- scripts ---------------------------------------------------------------------------------------

def words_of(line):
    """Words between blanks; one in double quotes has Python's escapes."""
    return [ast.literal_eval("b" + w) if w[0] == '"' else w.encode()
            for w in re.findall(r'"(?:[^"\\]|\\.)*"|[^ \t"]+', line)]


class Line:
    """One step of a script: `[connection and one of : & ! ? *] [mode] words`. Without a connection it is a's.
    `b& XREAD ...` goes on when b is blocked, `b! ...` at once; `b?` takes b's next reply, `b*` its messages up to "end";
    `raw "bytes"` sends them as they are, closes its side and takes everything; `times N words` asks N
    times, %d is the number."""

    def __init__(self, number, text):
        self.number, self.text, self.reason = number, text, None
        self.connection, self.kind, rest = "a", ":", text
        found = re.match(r"(\w)([:&!?*])(?: (.*))?$", text)
        if found:
            self.connection, self.kind, rest = found.groups()
        self.mode = "exact"
        found = re.match(r"(raw|" + "|".join(MODES) + r")\b ?(.*)$", rest or "")
        if found:
            self.mode, rest = found.groups()
        self.times = 1
        found = re.match(r"times (\d+) (.*)$", rest or "")
        if found:
            self.times, rest = int(found.group(1)), found.group(2)
        self.words = words_of(rest or "")


def options_of(path):
    """`#! name value` in the first line: an option of both servers."""
    with open(path, encoding="utf-8") as f:
        found = re.match(r"#! (\S+) (\S+)$", f.readline())
    return dict([found.groups()]) if found else {}


def conversations(path):
    """Lists of Lines with their titles: `== title`, `# remark`, `!! reason` behind what differs."""
    found = []
    with open(path, encoding="utf-8") as f:
        for number, text in enumerate(f, 1):
            text = text.rstrip("\n")
            if text.startswith("== "):
                found.append((text[3:], []))
            elif text.startswith("!! "):
                found[-1][1][-1].reason = text[3:]
            elif text and not text.startswith("#"):
                found[-1][1].append(Line(number, text))
    return found


class Play:
    """One conversation over both servers."""

    def __init__(self, pair, protocol):
        self.pair, self.protocol, self.connections, self.n = pair, protocol, {}, 0

    def both(self, name):
        if name not in self.connections:
            self.connections[name] = self.pair.connect(self.protocol)
        return self.connections[name]

    def raw(self, line):
        answers = []
        for c in self.both(line.connection):
            c.send_raw(line.words[0])
            c.end()
            answers.append(("*", c.rest()))
        del self.connections[line.connection]
        return answers

    def send(self, line):
        """`&` goes on when both servers show one more client as blocked."""
        for c, control in zip(self.both(line.connection), self.pair.control):
            before = blocked_clients(control)
            c.send(*line.words)
            if line.kind == "!":
                continue
            wait_until(lambda: blocked_clients(control) > before, f"line {line.number} blocks")

    def answers(self, line):
        if line.mode == "raw":
            return self.raw(line)
        if line.kind == "*":
            return [c.messages() for c in self.both(line.connection)]
        if line.kind == "?":
            return [c.tree() for c in self.both(line.connection)]
        return [c.ask(*line.words) for c in self.both(line.connection)]

    def repeat(self, line):
        for i in range(line.times):
            words = [w.replace(b"%d", b"%d" % i) for w in line.words]
            theirs, ours = [c.ask(*words) for c in self.both(line.connection)]
            if theirs != ours:
                return f"line {line.number}: {words}: redis {show(theirs)}, kvasir {show(ours)}"
        self.n += line.times
        return None

    def step(self, line):
        """What is wrong with this line, or None."""
        if line.kind in "&!":
            return self.send(line)
        if line.times > 1:
            return self.repeat(line)
        theirs, ours = self.answers(line)
        self.n += 1
        compare = MODES.get(line.mode, MODES["exact"])
        if (compare(theirs) == compare(ours)) == (line.reason is None):
            return None
        what = "answers differ" if line.reason is None else "no difference any more: take the `!!` line out"
        return f"line {line.number} (RESP{self.protocol}): {what}: {line.text}\n  redis  {show(theirs)}\n  kvasir {show(ours)}"

    def close(self):
        for both in self.connections.values():
            for c in both:
                c.close()


def play(pair, path):
    """Faults and the number of comparisons of a file."""
    faults, n = [], 0
    for title, lines in conversations(path):
        for protocol in 2, 3:
            pair.reset()
            p = Play(pair, protocol)
            for line in lines:
                fault = p.step(line)
                if fault:
                    faults.append(f"{title}: {fault}")
            n += p.n
            p.close()
    return faults, n


def add_script_test(path):
    name = os.path.splitext(os.path.basename(path))[0].replace("_", " ")

    @test(f"{name}: redis-server and kvasir-server answer alike, in RESP2 and RESP3")
    def _():
        with Pair(options_of(path)) as pair:
            faults, n = play(pair, path)
        print(f"# {n} answers compared")
        assert not faults and n > 50, "\n".join(faults)


# ---- the tables behind COMMAND -----------------------------------------------------------------------

# What COMMAND says otherwise, and why.
OTHERWISE = {
    "debug": "our own subcommands",
    "monitor|flags": "refused in MULTI when it is queued, not by EXEC",
}


def named(rows):
    return {row[1][0][1].decode(): row[1] for row in rows[1]}


def facts(row):
    """arity, flags, keys, categories, tips of a row, without order; allow_busy is of scripts, notes for people."""
    def words(tree):
        return sorted(w[1] for w in tree[1] if w[1] != b"allow_busy")
    specs = [[v for k, v in zip(*[iter(spec[1])] * 2) if k[1] != b"notes"] for spec in row[8][1]]
    return {"arity": row[1], "flags": words(row[2]), "keys": row[3:6], "categories": words(row[6]), "tips": words(row[7]),
            "specs": MODES["sorted"](("*", [("*", s) for s in specs]))}


def compare_rows(theirs, ours, report):
    for name in sorted(set(theirs) & set(ours) - set(OTHERWISE)):
        a, b = facts(theirs[name]), facts(ours[name])
        for fact in a:
            if f"{name}|{fact}" not in OTHERWISE:
                report(a[fact] == b[fact], f"{name} {fact}: redis {a[fact]}, kvasir {b[fact]}")
        compare_rows(named(theirs[name][9]), named(ours[name][9]), report)


class Facts:
    """Counts what is compared, and keeps what differs."""

    def __init__(self):
        self.n, self.faults = 0, []

    def compare(self, is_right, text):
        self.n += 1
        if not is_right:
            self.faults.append(text)

    def judge(self, least):
        print(f"# {self.n} facts compared")
        assert not self.faults and self.n > least, "\n".join(self.faults)


@test("COMMAND: arity, flags, keys, categories, tips and specs of every command that both have")
def _():
    with Pair() as pair:
        facts = Facts()
        compare_rows(*[named(c.ask("COMMAND")) for c in pair.control], facts.compare)
        facts.judge(600)


# ---- drawn commands ------------------------------------------------------------------------------------

# Readers of one key each, since Redis answers a wake with the entries of one key.
READERS = (("a", ["XREAD", "BLOCK", 0, "STREAMS", "a", "$"]), ("b", ["XREAD", "COUNT", 1, "BLOCK", 0, "STREAMS", "b", "5-0"]))


def is_woken_for_nothing(answer):
    """Of what came and went in one transaction Redis 7.0 wakes the reader with no entry; Kvasir lets it wait."""
    while answer[0] in "*%" and answer[1]:
        answer = answer[1][-1]
    return answer == ("*", [])


class Onlookers:
    """Who waits for entries and who hears of events, beside a drawn conversation."""

    def __init__(self, pair, protocol):
        self.pair, self.readers, self.listener = pair, [], pair.connect(protocol)
        for c, control in zip(self.listener, pair.control):
            assert control.ask("CONFIG", "SET", "notify-keyspace-events", "KEAn") == ("+", b"OK")
            c.ask("PSUBSCRIBE", "__key*")
        for _, words in READERS:
            self.readers.append(pair.connect(protocol))
            for c, control in zip(self.readers[-1], pair.control):
                before = blocked_clients(control)
                c.send(*words)
                wait_until(lambda: blocked_clients(control) > before, "a reader to block")

    def differences(self):
        """What they have got, when whoever waits still is given something."""
        for control in self.pair.control:
            for key, _ in READERS:
                control.ask("DEL", key)
                control.ask("XADD", key, "9-9", "f", "last")
            control.ask("PUBLISH", "__keyend", "end")
        for both, answers in [(both, [c.tree() for c in both]) for both in self.readers] + \
                [(self.listener, [c.messages() for c in self.listener])]:
            if answers[0] != answers[1] and not is_woken_for_nothing(answers[0]):
                yield f"  redis  {show(answers[0])}\n  kvasir {show(answers[1])}"

    def close(self):
        for both in (*self.readers, self.listener):
            for c in both:
                c.close()


def draw_session(pair, seed, protocol):
    """Two connections, SESSION commands; the first difference as text, or None."""
    pair.reset()
    r, history = random.Random(seed), []
    connections, onlookers = [pair.connect(protocol) for _ in range(2)], Onlookers(pair, protocol)
    try:
        for step in range(SESSION):
            words, which = draw(r), int(r.random() < 0.2)
            theirs, ours = [c.ask(*words) for c in connections[which]]
            history.append(f"  {which}: {' '.join(map(repr, words))} -> {show(theirs)[:100]}")
            compare = MODES["sorted"] if words[0] in ("KEYS", "SCAN", "EXEC") else MODES["exact"]
            if "smaller than current max_deleted_entry_id" in show(ours):
                return None  # they differ here (streams.txt), and so does all behind it
            if compare(theirs) != compare(ours):
                return "\n".join([f"seed {seed} RESP{protocol} step {step}:", *history[-10:], f"  redis  {show(theirs)}",
                                  f"  kvasir {show(ours)}"])
        different = list(onlookers.differences())
    finally:
        onlookers.close()
        for both in connections:
            for c in both:
                c.close()
    return "\n".join([f"seed {seed} RESP{protocol}: readers or events:", *different]) if different else None


def draw_many(pair, seed, n):
    for i in range(n // SESSION):
        fault = draw_session(pair, seed + i, 2 + i % 2)
        if fault:
            yield fault


def types_of(arguments):
    for argument in arguments:
        yield argument["type"]
        yield from types_of(argument.get("arguments", ()))


def compare_docs(theirs, ours, report):
    for name, docs in ours.items():
        for kind in types_of(docs.get("arguments", ())):
            report(kind.decode() in "string integer double key pattern unix-time pure-token oneof block".split(),
                   f"{name} has an argument of type {kind}")
        for fact in ("since", "group") if name in theirs else ():
            report(docs[fact] == theirs[name][fact], f"{name} {fact}: redis {theirs[name][fact]}, kvasir {docs[fact]}")
        compare_docs(theirs.get(name, {}).get("subcommands", {}), docs.get("subcommands", {}), report)


@test("COMMAND DOCS: since and group as Redis says, types of arguments that redis-cli knows")
def _():
    with Pair() as pair:
        facts = Facts()
        replies = []
        for c in pair.control:
            c.ask("HELLO", 3)
            replies.append(c.call("COMMAND", "DOCS"))
        compare_docs(*replies, facts.compare)
        facts.judge(300)


@test("CLIENT INFO and CLIENT LIST have the fields of Redis, in its order")
def _():
    with Pair() as pair:
        for command in (("CLIENT", "INFO"), ("CLIENT", "LIST")):
            theirs, ours = [[field.split(b"=")[0] for field in c.ask(*command)[1].split(b"\n")[0].split(b" ")]
                            for c in pair.control]
            assert ours == theirs + [b"lib-name", b"lib-ver"], (theirs, ours)  # those of 7.2


@test("drawn commands get the same answers, whatever stood before them")
def _():
    with Pair() as pair:
        faults = list(draw_many(pair, SEED, DRAWN))
        assert not faults, "\n".join(faults[:3])


for script in sorted(glob.glob(os.path.join(HERE, "against_redis", "*.txt"))):
    add_script_test(script)

if sys.argv[1:2] == ["--draw"]:
    with Pair() as both_servers:
        for difference in draw_many(both_servers, int(sys.argv[2]), int(sys.argv[3])):
            print(difference, flush=True)
elif sys.argv[1:2] == ["--script"]:
    with Pair(options_of(sys.argv[2])) as both_servers:
        print("\n".join(play(both_servers, sys.argv[2])[0]))
else:
    main()
