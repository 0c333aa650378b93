"""test_sim.py - kvasir-sim as a program: its tables add up, repeat by seed, and name bad options."""
import os
import subprocess

from kvasir_test import main_in_folders

BUILD = os.environ.get("KVASIR_BUILD", ".")
PROGRAM = os.path.join(BUILD, "kvasir-sim")
POLICIES = ["orca-max", "orca-pow2", "orca-oracle", "paged"]


def run(*options, **environment):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True,
                          env={**os.environ, **environment})


def table(folder, name):
    """Rows of a TSV by the head's names, comments left out."""
    with open(os.path.join(folder, name + ".tsv"), encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file if not line.startswith("#")]
    return [dict(zip(lines[0], line)) for line in lines[1:]]


def write_trace(folder, text):
    path = os.path.join(folder, "trace.tsv")
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


def test_shares_of_memory_are_the_whole(folder):
    done = run("--only", "e1", "--part", "0.1", "--out", folder)
    assert done.returncode == 0, done.stderr
    rows = table(folder, "e1-memory")
    assert [row["policy"] for row in rows] == POLICIES + ["paged, swap"]
    for row in rows:
        parts = [float(row[k]) for k in ("running", "cached", "reserved", "internal", "external")]
        assert all(part >= 0 for part in parts), row
        assert abs(sum(parts) - 100) < 0.3, row  # five figures of one decimal
        assert abs(float(row["useful"]) - parts[0] - parts[1]) < 0.11, row
    held = [float(row["useful"]) for row in rows[:4]]
    assert held == sorted(held), rows  # the order of the paper
    # with swap admission leaves half as much: more of the pool runs, and more is preempted
    assert float(rows[4]["running"]) > float(rows[3]["running"]), rows
    assert int(rows[4]["preempted"]) >= int(rows[3]["preempted"]) and int(rows[0]["preempted"]) == 0, rows


# The figures that the project promises, on half of the full load.
def test_paged_holds_tokens_and_batches_as_published(folder):
    assert run("--only", "e3", "--part", "0.5", "--out", folder).returncode == 0
    assert all(float(row["useful"]) >= 96 for row in table(folder, "e1-memory")[3:])
    for row in table(folder, "e3-batch-sharegpt"):
        assert abs(float(row["difference %"])) <= 15, row


# The engine's groups and beams on a fifth of the load: as published, give or take a tenth of it, and
# a bit more for what no load meets (Alpaca's samples at 6, see the table's note).
def test_groups_and_beams_share_about_as_published(folder):
    assert run("--only", "e4,e5", "--part", "0.2", "--out", folder).returncode == 0
    published = {"e4-samples": {"alpaca": (6.1, 9.8), "sharegpt": (16.2, 30.5)},
                 "e5-beams": {"alpaca": (37.6, 55.2), "sharegpt": (44.3, 66.3)}}
    for name, loads in published.items():
        for row in table(folder, name):
            low, high = loads[row["load"]]
            saved = [float(row[width]) for width in ("2", "4", "6")]
            assert saved == sorted(saved) and saved[0] > 0.88 * low and saved[2] < 1.2 * high, (name, row)


def test_swap_and_recomputation_are_both_run(folder):
    assert run("--only", "e10", "--part", "0.15", "--out", folder).returncode == 0
    rows = {row["block"]: row for row in table(folder, "e10-service")}
    assert float(rows["1"]["recompute over swap"]) < 1, rows["1"]  # many small copies
    assert float(rows["1"]["GB out"]) >= float(rows["1"]["GB in"]) > 0, rows["1"]
    assert int(rows["1"]["tokens dropped"]) > 0, rows["1"]


def test_same_seed_same_tables(folder):
    outputs = [run("--only", "e4,e5,e10", "--part", "0.02", "--seed", seed).stdout
               for seed in ("5", "5", "6")]
    assert outputs[0] == outputs[1] != outputs[2]
    for words in "E4 ", "E5 ", "E10 ", "paper", "seed 5", "sigma", "deviation":
        assert words in outputs[0], words


def test_one_run_serves_every_policy_the_same_requests(folder):
    done = run("--rate", "1", "--seconds", "60", "--out", folder)
    assert done.returncode == 0, done.stderr
    rows = table(folder, "run")
    assert [row["policy"] for row in rows] == POLICIES
    assert len({row["requests"] for row in rows}) == 1
    one = run("--rate", "1", "--seconds", "60", "--policy", "paged").stdout
    assert "orca" not in one
    assert rows[-1]["batch"] in one


def test_a_trace_shares_what_its_blocks_say(folder):
    lines = ["t_ms\tin_tok\tout_tok\tblocks512"]
    lines += [f"{1000 * i}\t2048\t64\t0-2 {10 + i}" for i in range(20)]
    path = write_trace(folder, "\n".join(lines) + "\n")
    done = run("--trace", path, "--scale", "32", "--policy", "paged", "--out", folder)
    assert done.returncode == 0, done.stderr
    row = table(folder, "run")[0]
    assert row["requests"] == "20"
    assert row["found %"] == "71.2"  # three of four blocks, all but the first time


def test_curves_come_with_their_script(folder):
    done = run("--only", "e10", "--out", folder)
    assert done.returncode == 0, done.stderr
    with open(os.path.join(folder, "e10-swap.gp"), encoding="utf-8") as file:
        assert "e10-swap.svg" in file.read()
    rows = table(folder, "e10-swap")
    both = [float(row["both"]) for row in rows]
    assert both == sorted(both, reverse=True) and both[0] > 3 * both[-1]


def test_recorded_traces_are_skipped_aloud_without_a_folder(folder):
    here = subprocess.run([os.path.abspath(PROGRAM), "--only", "traces"], capture_output=True,
                          text=True, cwd=folder,
                          env={**os.environ, "KVASIR_WORKLOADS": os.path.join(folder, "none")})
    assert here.returncode == 0 and "skipped, no folder of traces" in here.stdout, here.stderr
    done = run("--only", "traces", "--traces", os.path.join(folder, "none"))
    assert done.returncode == 1 and "cannot be opened" in done.stderr


def test_wrong_options_are_told(folder):
    bad = write_trace(folder, "in_tok\tout_tok\n1\tx\n")
    for options, words in [
        ([], "one of --all, --only, --rate and --trace"),
        (["--all", "--rate", "1"], "one of --all"),
        (["--only", "e1,e8"], "--only e8"),
        (["--rate", "0"], "--rate 0: a number from 0.001 to 1000"),
        (["--rate", "x"], "--rate x"),
        (["--rate", "1", "--block", "257"], "--block 257: a number from 1 to 256"),
        (["--rate", "1", "--model", "gpt-9"], "--model gpt-9: opt-13b"),
        (["--rate", "1", "--load", "x"], "--load x: sharegpt"),
        (["--rate", "1", "--policy", "x"], "--policy x: paged"),
        (["--trace", bad], "line 2: out_tok"),
        (["--trace", bad + "x"], "cannot be opened"),
        (["--rate"], "--rate"),
        (["--frob"], "--frob is not an option"),
        (["more", "--all"], "\"more\" is not an option"),
        (["--only", "e10", "--out", os.path.join(folder, "no", "such")], "cannot be written"),
    ]:
        done = run(*options)
        assert done.returncode == 1 and words in done.stderr, (options, done.stderr)


main_in_folders(globals())
