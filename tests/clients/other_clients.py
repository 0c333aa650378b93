"""redis-py against a real server. Arguments: TCP port, sync or asyncio. One line `NAME: ok` or
`NAME: FAILED why` a check. The checks are written once: what the library answers is awaited where it
has to be."""
import asyncio
import inspect
import sys
import traceback

import redis
import redis.asyncio

PORT, LIBRARY = int(sys.argv[1]), {"sync": redis, "asyncio": redis.asyncio}[sys.argv[2]]
SHORT = ("MAXTOKENS", "12", "IGNOREEOS")


async def done(value):
    return await value if inspect.isawaitable(value) else value


async def check_connect(r):
    assert await done(r.ping()) and await done(r.echo("x")) == "x" and await done(r.exists("nothing")) == 0
    await done(r.execute_command("CLIENT", "SETNAME", "tester"))
    assert (await done(r.info("server")))["redis_mode"] == "standalone"


async def check_gen(r):
    text = await done(r.execute_command("GEN", "k", "hello", *SHORT, "TEMP", "0"))
    entries = await done(r.xrange("k"))
    assert len(entries) == 2 and entries[1][1]["text"] == text and entries[1][1]["finish"] == "length", entries


async def check_block(r):
    gen = ("GEN", "k", "hello", *SHORT, "ID", "one", "BLOCK", "4000")
    text = None
    while text is None:
        text = await done(r.execute_command(*gen))
    assert await done(r.execute_command(*gen)) == text and await done(r.xlen("k")) == 2


async def check_async_and_xread(r):
    last = await done(r.execute_command("GEN", "s", "hello", "MAXTOKENS", "30", "IGNOREEOS", "ASYNC"))
    text, end = "", None
    while end is None:
        for _, entries in await done(r.xread({"s": last}, block=4000)) or []:
            for last, fields in entries:
                text += fields.get("piece", "")
                end = fields if "finish" in fields else end
    assert text == end["text"], (text, end)


async def check_fork(r):
    await done(r.execute_command("GEN", "f", "hello", "MAXTOKENS", "3", "IGNOREEOS"))
    assert await done(r.execute_command("FORK", "f", "f1", "f2")) == 2 and await done(r.xlen("f2")) == 2


async def check_cancel(r):
    await done(r.execute_command("SEAM", "STEPS", "0"))
    await done(r.execute_command("GEN", "c", "hello", "MAXTOKENS", "3000", "IGNOREEOS", "ASYNC"))
    assert await done(r.execute_command("CANCEL", "c")) == 1
    await done(r.execute_command("SEAM", "STEPS", "-1"))
    assert (await done(r.xrevrange("c", count=1)))[0][1]["finish"] == "cancelled"


async def check_pipeline(r):
    p = r.pipeline(transaction=False)
    p.xadd("p", {"text": "a"}, id="1-1")
    p.xlen("p")
    p.execute_command("GEN", "p", "b", *SHORT)
    out = await done(p.execute())
    assert out[:2] == ["1-1", 1] and isinstance(out[2], str), out


async def check_multi(r):
    p = r.pipeline(transaction=True)
    p.execute_command("GEN", "m", "x", "MAXTOKENS", "2", "IGNOREEOS")
    p.xlen("m")
    out = await done(p.execute())
    assert "-" in out[0] and out[1] == 1, out


async def check_reconnect(r):
    """The server closes every link; the library connects again by itself."""
    before = await done(r.execute_command("CLIENT", "ID"))
    killer = redis.Redis(port=PORT)
    killer.execute_command("CLIENT", "KILL", "SKIPME", "yes", "TYPE", "normal")
    killer.close()
    try:
        after = await done(r.execute_command("CLIENT", "ID"))
    except redis.ConnectionError:  # version 4 tells of the link that it lost, once
        after = await done(r.execute_command("CLIENT", "ID"))
    assert after != before


CHECKS = {"connect": check_connect, "GEN": check_gen, "BLOCK": check_block, "ASYNC and XREAD": check_async_and_xread,
          "FORK": check_fork, "CANCEL": check_cancel, "pipeline": check_pipeline, "MULTI": check_multi,
          "reconnect": check_reconnect}


async def run():
    for name, check in CHECKS.items():
        r = LIBRARY.Redis(port=PORT, decode_responses=True, encoding_errors="replace")
        try:
            await done(r.flushall())
            await check(r)
            print(f"{name}: ok", flush=True)
        except Exception:  # pylint: disable=broad-except # whatever it is, it is this check's outcome
            print(f"{name}: FAILED {traceback.format_exc()!r}", flush=True)
        await done(r.connection_pool.disconnect())


asyncio.run(run())
