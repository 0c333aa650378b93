"""drawn_commands - draws commands that Redis and Kvasir share: few keys and ids, so that they meet.

Every draw comes from one random.Random. What depends on the clock is not drawn: XADD's * only on keys
whose last id lies in the far future (the answer is then the last id plus one), times to live only as
absolute times, and those far away or past.
"""

KEYS = ["a", "b", "c", "d", "{x}e"]
FAR = 9999999999999  # milliseconds: the year 2286
TIMES = [33177117420, 33177117421, 33177117422, 1, 0, -1, 33177117420123, 9223372036854775807, -9223372036854775808,
         9223372036854775]
NUMBERS = [0, 1, 2, 3, 5, 100, -1, 9223372036854775807, 9223372036854775808, "x", "", "1.5", "-0"]


def maybe(r, chance, *words):
    return list(words) if r.random() < chance else []


def key(r):
    return r.choice(KEYS)


def some_keys(r, most=3):
    return [key(r) for _ in range(r.randint(1, most))]


def number(r):
    return r.choice(NUMBERS) if r.random() < 0.3 else r.randint(0, 4)


def entry_id(r):
    x = r.random()
    if x < 0.55:
        return f"{r.randint(0, 9)}-{r.randint(0, 4)}"
    if x < 0.75:
        return str(r.randint(0, 9))
    if x < 0.90:
        return f"{FAR + r.randint(0, 1)}-{r.randint(0, 3)}"
    return r.choice(["-", "+", "$", "*", "x", "", "1-x", "-1", "1-", "0-0", "18446744073709551615",
                     "18446744073709551615-18446744073709551615", "18446744073709551616", "1-1-1"])


def new_id(r):
    x = r.random()
    if x < 0.4:
        return f"{r.randint(0, 9)}-{r.randint(0, 4)}"
    if x < 0.6:
        return f"{r.randint(0, 9)}-*"
    if x < 0.75:
        return f"{FAR + r.randint(0, 1)}-*"
    word = entry_id(r) if x < 0.9 else str(r.randint(0, 9))
    return word if word != "*" else "5-*"


def case(r, word):
    return word if r.random() < 0.8 else word.lower()


def strategy(r):
    words = [case(r, "MAXLEN"), *maybe(r, 0.2, "="), number(r)] if r.random() < 0.5 else \
        [case(r, "MINID"), *maybe(r, 0.2, "="), entry_id(r)]
    return words + maybe(r, 0.05, "LIMIT", number(r)) + maybe(r, 0.03, "MAXLEN", number(r))


def xadd(r):
    fields = [w for _ in range(r.randint(1, 3)) for w in (r.choice("fgh"), r.choice(["v", "", "w\r\n"]))]
    return ["XADD", key(r), *maybe(r, 0.2, case(r, "NOMKSTREAM")), *(strategy(r) if r.random() < 0.2 else []),
            new_id(r), *fields[:len(fields) - (r.random() < 0.03)]]


def xadd_next(r):
    return ["XADD", key(r), f"{FAR + r.randint(0, 3)}-*", "f", "v"]


def end(r):
    x = r.random()
    return r.choice("-+") if x < 0.5 else ("(" if x < 0.65 else "") + entry_id(r)


def xrange(r):
    return [r.choice(["XRANGE", "XREVRANGE"]), key(r), end(r), end(r), *maybe(r, 0.3, "COUNT", number(r)),
            *maybe(r, 0.02, "COUNT")]


def xread(r):
    n = r.randint(1, 3)
    ids = [entry_id(r) for _ in range(n - (r.random() < 0.03))]
    return ["XREAD", *maybe(r, 0.3, case(r, "COUNT"), number(r)), *maybe(r, 0.1, "BLOCK", 1), case(r, "STREAMS"),
            *[key(r) for _ in range(n)], *ids]


def xsetid(r):
    return ["XSETID", key(r), f"{FAR + r.randint(0, 9)}-{r.randint(0, 3)}"]


def xinfo(r):
    return ["XINFO", *r.choice([["STREAM", key(r)], ["STREAM", key(r), "FULL", *maybe(r, 0.5, "COUNT", number(r))],
                                ["GROUPS", key(r)], ["CONSUMERS", key(r), "g"], ["STREAM"], ["NOSUCH", key(r)]])]


def expire_at(r):
    command = r.choice(["EXPIREAT", "PEXPIREAT"])
    return [command, key(r), r.choice(TIMES), *maybe(r, 0.4, *[case(r, w) for w in
                                                               r.sample(["NX", "XX", "GT", "LT"], r.randint(1, 2))])]


def copy(r):
    return ["COPY", key(r), key(r), *maybe(r, 0.3, "DB", number(r)), *maybe(r, 0.5, case(r, "REPLACE"))]


SIMPLE = {
    "XLEN": lambda r: [key(r)],
    "XDEL": lambda r: [key(r), *[entry_id(r) for _ in range(r.randint(1, 3))]],
    "XTRIM": lambda r: [key(r), *strategy(r)],
    "DEL": some_keys, "UNLINK": some_keys, "EXISTS": some_keys, "TOUCH": some_keys, "WATCH": some_keys,
    "TYPE": lambda r: [key(r)], "GET": lambda r: [key(r)], "PERSIST": lambda r: [key(r)],
    "EXPIRETIME": lambda r: [key(r)], "PEXPIRETIME": lambda r: [key(r)],
    "RENAME": lambda r: [key(r), key(r)], "RENAMENX": lambda r: [key(r), key(r)],
    "MOVE": lambda r: [key(r), number(r)],
    "SWAPDB": lambda r: [number(r), number(r)],
    "SELECT": lambda r: [number(r)],
    "DBSIZE": lambda r: [], "MULTI": lambda r: [], "EXEC": lambda r: [], "DISCARD": lambda r: [],
    "UNWATCH": lambda r: [], "FLUSHDB": lambda r: maybe(r, 0.3, "ASYNC"), "FLUSHALL": lambda r: [],
    "KEYS": lambda r: [r.choice(["*", "[ab]", "[^a]", "?", "{*", "\\a", "[", "a*b"])],
    "SCAN": lambda r: [0, "COUNT", 1000, *maybe(r, 0.3, "MATCH", "[a-c]"), *maybe(r, 0.3, "TYPE", "stream")],
    "OBJECT": lambda r: [r.choice(["ENCODING", "REFCOUNT", "FREQ", "NOSUCH"]), key(r)],
    "EXPIRE": lambda r: [key(r), r.choice([0, -1, "x", 9223372036854775807])],
    "RESET": lambda r: [],
}
RARE = {"FLUSHALL", "FLUSHDB", "SELECT", "SWAPDB", "RESET", "WATCH"}  # one in ten of the others
GROUPS = [(xadd, 8), (xadd_next, 5), (xrange, 4), (xread, 4), (xsetid, 1), (xinfo, 3), (expire_at, 3), (copy, 2)]


def draw(r):
    """One command as a list of words."""
    if r.random() < 0.5:
        return r.choices([g for g, _ in GROUPS], [w for _, w in GROUPS])[0](r)
    name = r.choice(sorted(SIMPLE))
    if name in RARE and r.random() < 0.9:
        return draw(r)
    words = [name, *SIMPLE[name](r)]
    return words[:-1] if r.random() < 0.01 and len(words) > 1 else words + maybe(r, 0.01, "more")
