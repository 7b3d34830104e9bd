"""Errors: what a hint tells of several names, in an order that no run changes."""

from __future__ import annotations

import os
import subprocess
import sys

from explorer.base.errors import suggest_name


def test_what_there_is_stands_in_its_own_order_and_a_set_in_that_of_the_alphabet() -> None:
    assert suggest_name("zz", ["gemm", "conv", "add"]) == "choose from: gemm, conv, add"
    # the order of a set of strings is another one in every process
    names = "{'gemm', 'conv', 'add', 'relu'}"
    ask = f"from explorer.base.errors import suggest_name; print(suggest_name('zz', {names}))"
    for seed in "12":
        told = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert told.stdout == "choose from: add, conv, gemm, relu\n", told.stderr
