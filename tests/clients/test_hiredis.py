#!/usr/bin/env python3
"""hiredis against a real server; the checks are in test_hiredis.c."""
import os
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "integration"))
from kvasir_test import BUILD, PATIENCE_S, Server, main, test, tiny_model  # noqa: E402


@test("hiredis: GEN, pipeline, errors, a blocking read")
def _():
    with Server({"model": tiny_model()}) as s:
        done = subprocess.run([os.path.join(BUILD, "tests/clients/test_hiredis"), s.socket_path],
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout.strip() == "ok", done.stdout + done.stderr


main()
