"""figures_lib - what the parts of utils/figures share: printing, threads, PINGs on the side."""
import os
import statistics
import subprocess
import sys
import threading

failed = []  # names of figures that were not met


def say(name, value, wanted="", ok=True):
    print(f"  {name:<58} {str(value):>14}  {wanted}{'' if ok else '   <-- missed'}", flush=True)
    if not ok:
        failed.append(name)


def cpu_name():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        lines = [line.split(":", 1)[1].strip() for line in f if line.startswith(("model name", "cpu family", "model\t"))]
    return " ".join(dict.fromkeys(lines)) + f", {os.cpu_count()} cores"


def in_parallel(jobs):
    """Runs (function, arguments) each in a thread of its own; all begin together."""
    barrier = threading.Barrier(len(jobs))

    def run(function, args):
        barrier.wait()
        function(*args)

    threads = [threading.Thread(target=run, args=job) for job in jobs]
    for t in threads:
        t.start()
    for t in threads:
        t.join()


# Two numbers a line: milliseconds until PONG, and how many of them this process waited for a CPU.
PING = """
import sys, time, kvasir_test
def waited():
    with open("/proc/thread-self/schedstat", encoding="ascii") as f:
        return int(f.read().split()[1]) / 1e6
with kvasir_test.Client(sys.argv[1]) as c:
    end = time.monotonic() + float(sys.argv[2])
    while time.monotonic() < end:
        before, start = waited(), time.monotonic()
        c.call("PING")
        took = (time.monotonic() - start) * 1000
        print(took, min(took, waited() - before))
        time.sleep(0.002)
"""


def start_pings(lib, server, seconds):
    """In a process of its own, so that the clients here do not hold the clock up."""
    return subprocess.Popen([sys.executable, "-c", PING, server.socket_path, str(seconds)], stdout=subprocess.PIPE,
                            env={**os.environ, "PYTHONPATH": os.path.dirname(lib.__file__)})


def say_pings(output):
    """The times of PING, a process of its own."""
    pairs = [tuple(map(float, line.split())) for line in output.splitlines()]
    waits = sorted(took for took, _ in pairs)
    of_server = sorted(took - own for took, own in pairs)
    p99 = int(len(waits) * 0.99)
    say("  PING meanwhile, ms: median", f"{statistics.median(waits):.3f}")
    say("    p99", f"{waits[p99]:.3f}", "under 5", waits[p99] < 5)
    say("    p99 without the time in which who asked had no CPU", f"{of_server[p99]:.3f}")
    say("    longest", f"{waits[-1]:.3f}")
