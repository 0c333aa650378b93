"""test_model_bench.py - kvasir-model-bench as a program: its table, its JSON, its complaints."""
import json
import os
import subprocess

from kvasir_test import main_in_folders

BUILD = os.environ.get("KVASIR_BUILD", ".")
PROGRAM = os.path.join(BUILD, "kvasir-model-bench")
SMALL = ["--backend", "ref", "--threads", "1", "--repeat", "2", "--gen", "3"]


def run(*options):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True)


def make_model(folder):
    path = os.path.join(folder, "tiny.gguf")
    subprocess.run([os.path.join(BUILD, "kvasir-mkmodel"), "--out", path], check=True,
                   capture_output=True)
    return path


def test_json_has_every_test_with_its_runs(folder):
    done = run("--model", make_model(folder), *SMALL, "--prompt", "20,40", "--batch", "1,3",
               "--context", "33", "--chunk", "16", "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert [t["test"] for t in report["tests"]] == ["pp20", "pp40", "tg3 x 1 @ 32", "tg3 x 3 @ 32"]
    for test in report["tests"]:
        assert test["runs"] == 2
        assert 0 < test["slowest"] <= test["tokens_per_s"] <= test["fastest"], test
    assert "ref" in report["device"] and report["threads"] == 1 and "nll" not in report


def test_likelihood_does_not_depend_on_threads(folder):
    model, text = make_model(folder), os.path.join(folder, "text")
    with open(text, "w", encoding="utf-8") as file:
        file.write("The quick brown fox jumps over the lazy dog. " * 8)
    values = set()
    for options in (["--threads", "1"], ["--threads", "2"]):
        done = run("--model", model, "--backend", "ref", *options, "--prompt", "0", "--gen", "0",
                   "--nll", text, "--nll-ids", "100", "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["tests"] == [] and report["nll_ids"] == 100
        values.add(report["nll"])
    assert len(values) == 1 and 0 < values.pop() < 50, values


def test_the_table_names_device_and_medians(folder):
    done = run("--model", make_model(folder), *SMALL, "--prompt", "8", "--batch", "2")
    assert done.returncode == 0, done.stderr
    for words in "device  ref", "tokens/s", "pp8", "tg3 x 2 @ 0":
        assert words in done.stdout, done.stdout


def test_attention_is_timed_paged_and_contiguous(folder):
    model = make_model(folder)
    for kv_type in "bf16", "int8":
        done = run("--model", model, "--backend", "cpu", "--threads", "1", "--repeat", "2", "--attention",
                   "--batch", "1,3", "--kv-type", kv_type, "--json")
        assert done.returncode == 0, done.stderr  # it compares the two results, too
        points = json.loads(done.stdout)["attention"]
        assert [(p["context"], p["batch"]) for p in points] == [(512, 1), (512, 3), (2048, 1), (2048, 3)]
        assert all(p["paged_us"] > 0 and p["contiguous_us"] > 0 and p["ratio"] > 0 for p in points), points
    done = run("--model", model, "--backend", "cpu", "--repeat", "1", "--attention", "--batch", "2")
    assert done.returncode == 0 and "contiguous" in done.stdout and "2048" in done.stdout, done.stdout


def test_sequences_may_share_their_context(folder):
    done = run("--model", make_model(folder), "--backend", "cpu", "--threads", "1", "--repeat", "1", "--gen", "2",
               "--prompt", "0", "--batch", "3", "--context", "272", "--share", "--json")
    assert done.returncode == 0, done.stderr
    assert [t["test"] for t in json.loads(done.stdout)["tests"]] == ["tg2 x 3 @ 272"]


def test_the_kv_type_is_told_and_halves_a_block(folder):
    model, block_bytes = make_model(folder), {}
    for kv_type in "bf16", "int8":
        done = run("--model", model, "--backend", "cpu", "--kv-type", kv_type, "--prompt", "0", "--gen", "0", "--json")
        report = json.loads(done.stdout)
        assert report["kv_type"] == kv_type, report
        block_bytes[kv_type] = report["block_bytes"]
    assert 1.7 < block_bytes["bf16"] / block_bytes["int8"] < 2, block_bytes


# On a model that costs nothing the times say nothing; who gets in together does.
def test_the_service_batches_what_each_reservation_allows(folder):
    done = run("--model", make_model(folder), "--backend", "cpu", "--threads", "1", "--repeat", "1", "--service", "96",
               "--scale", "8")
    assert done.returncode == 0, done.stderr
    rows = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines() if line.startswith(("orca", "paged"))}
    assert list(rows) == ["orca-max", "orca-pow2", "orca-oracle", "paged"], done.stdout
    batch = [float(row[2]) for row in rows.values()]
    assert 5 < batch[0] < 7.01 and batch == sorted(batch), rows  # seven runs of the context fit
    useful = [float(row[3]) for row in rows.values()]
    assert useful == sorted(useful) and useful[0] < 30, rows
    assert all(row[4] == "0" for name, row in rows.items() if name != "paged"), rows  # they never lack memory


def test_wrong_options_are_told(folder):
    model = make_model(folder)
    for options, words in [
        (["--model", model, "--batch", "1,x"], "--batch x: a number from 1 to 256"),
        (["--model", model, "--batch", "257"], "--batch 257"),
        (["--model", model, "--prompt", ",".join("1" * 17)], "more than 16 sizes"),
        (["--model", model, "--backend", "tpu"], "tpu"),
        (["--model", model, "--context", "100000"], "the model was trained for"),
        (["--model", model + "x"], "tiny.ggufx"),
        (["--model", model, "--service", "4"], "nobody waits"),
        (["--model", model, "--trace", "x"], "--trace is a load of --service"),
        (["--model", model, "--service", "4", "--trace", model + "x"], "tiny.ggufx"),
        ([], "--model is missing"),
        (["--model", model, "more"], "\"more\" is not an option"),
    ]:
        done = run(*options)
        assert done.returncode == 1 and words in done.stderr, (options, done.stderr)
        assert done.stdout == ""


main_in_folders(globals())
