"""test_mkmodel.py - kvasir-mkmodel as a program: its options, its files, its complaints."""
import hashlib
import os
import subprocess

from kvasir_test import main_in_folders

PROGRAM = os.path.join(os.environ.get("KVASIR_BUILD", "."), "kvasir-mkmodel")
WIDE = ["--width", "256", "--heads", "4", "--head-dim", "64", "--inner", "512"]
TYPES = ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"]


def run(*options):
    return subprocess.run([PROGRAM, *options], capture_output=True, text=True)


def make(folder, name, *options):
    path = os.path.join(folder, name)
    done = run("--out", path, *options)
    assert done.returncode == 0, done.stderr
    with open(path, "rb") as file:
        return file.read()


def test_equal_options_make_equal_files(folder):
    a = make(folder, "a.gguf")
    assert a[:4] == b"GGUF"
    assert a == make(folder, "b.gguf")
    assert a != make(folder, "c.gguf", "--seed", "2")
    assert 256 * 1024 < len(a) < 2 * 1024 * 1024, len(a)


def test_every_type_is_written_and_differs(folder):
    files = {hashlib.sha256(make(folder, t, "--layers", "1", "--type", t, *WIDE)).digest()
             for t in TYPES}
    assert len(files) == len(TYPES)


def test_an_existing_file_is_replaced_and_nothing_left_beside_it(folder):
    make(folder, "a.gguf")
    small = make(folder, "a.gguf", "--layers", "1")
    assert small == make(folder, "b.gguf", "--layers", "1")
    assert sorted(os.listdir(folder)) == ["a.gguf", "b.gguf"]


def test_switches_add_their_tensors(folder):
    plain = make(folder, "a.gguf")
    full = make(folder, "b.gguf", "--untied", "--qkv-bias", "--rope-factors")
    for name in b"output.weight", b"blk.3.attn_v.bias", b"rope_freqs.weight":
        length = len(name).to_bytes(8, "little")  # output.weight ends attn_output.weight too
        assert length + name in full and length + name not in plain, name


def test_wrong_options_are_told_and_write_nothing(folder):
    path = os.path.join(folder, "x.gguf")
    for options, words in [
        (["--type", "q9"], "type q9 is unknown"),
        (["--type", "q4_k"], "width 96 is no multiple of 256"),
        (["--layers", "0"], "layers 0 is not between 1 and 64"),
        (["--layers", "two"], "layers two is not a number"),
        (["--kv-heads", "4"], "heads 6 is no multiple of kv-heads 4"),
        (["--head-dim", "33"], "head-dim 33 is odd"),
        (["--seed", "-1"], "seed -1 is not a number"),
        (["--arch", "gpt2"], "architecture gpt2 is unknown"),
        (["--nonsense"], "see --help"),
        (["left-over"], "argument left-over is one too many"),
    ]:
        done = run("--out", path, *options)
        assert done.returncode == 1 and words in done.stderr, (options, done.stderr)
        assert not os.path.exists(path), options
    assert "--out FILE is missing" in run().stderr
    assert "No such file" in run("--out", os.path.join(folder, "no", "x")).stderr


def test_help_names_every_option(folder):
    done = run("--help")
    assert done.returncode == 0
    for option in ("--out --arch --type --layers --width --heads --kv-heads --head-dim --inner "
                   "--context --seed --untied --qkv-bias --rope-factors").split():
        assert "  " + option in done.stdout, option


main_in_folders(globals())
