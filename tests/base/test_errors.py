"""Errors: what a hint tells of several names, in an order that no run changes."""

from __future__ import annotations

import os
import subprocess
import sys

from explorer.base.errors import nearest


def test_what_there_is_stands_in_its_own_order_and_a_set_in_that_of_the_alphabet() -> None:
    assert nearest("zz", ["gemm", "conv", "add"]) == "there is: gemm, conv, add"
    # the order of a set of strings is another one in every process
    ask = "from explorer.base.errors import nearest; print(nearest('zz', {'gemm', 'conv', 'add', 'relu'}))"
    for seed in "12":
        told = subprocess.run(
            [sys.executable, "-c", ask],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
        )
        assert told.stdout == "there is: add, conv, gemm, relu\n", told.stderr
