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


def test_a_shortened_list_of_names_tells_the_command_that_prints_all() -> None:
    names = [f"site_{index}" for index in range(20)]
    assert suggest_name("zz", names, listing="explorer plan MODEL") == (
        "choose from: site_0, site_1, site_2, site_3, site_4, site_5 and 14 more;"
        " explorer plan MODEL lists all"
    )
    assert "lists all" not in suggest_name("zz", names[:3], listing="explorer plan MODEL")
