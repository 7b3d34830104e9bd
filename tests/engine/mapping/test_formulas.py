"""The numbers of each formula of a mapping give the figure beside them."""

from __future__ import annotations

import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from explorer.engine.mapping.cost import compute_mapping_cost
from explorer.engine.mapping.formulas import add_formulas
from explorer.engine.mapping.nest import Nest
from explorer.facts.cost import Hardware
from explorer.facts.mapping import Buffers, MachineMemory, MemoryMachine, SiteMapping
from tests.engine.mapping.nests import nests


def compute(filled: str) -> float:
    """Computes the numbers of a formula."""
    text = re.sub(r"(?<=\d),(?=\d{3})", "", filled).replace(" x ", " * ")
    functions = {"ceil": lambda amount: math.ceil(amount - 1e-9), "max": max, "sqrt": math.sqrt}
    return float(eval(text, {"__builtins__": {}}, functions))


@settings(max_examples=40, deadline=None)
@given(nests(max_size=9, registers=False, cores=False), st.sampled_from(["none", "ideal"]))
def test_numbers_give_the_figure(nest: Nest, overlap: str) -> None:
    energy = {"read_pj": 3.5, "write_pj": 4.5, "read_word": {"A": 2, "C": 4}}
    memories = [MachineMemory("outer", read_bytes_per_cycle=3, write_bytes_per_cycle=1.5, **energy)]
    for index, holds in enumerate(nest.holds[:-1]):
        memories.append(
            MachineMemory(
                f"level{index}", size=4096, ways=index * 4, holds=holds, inside=True, bytes_per_cycle=7,
                buffers=Buffers(2, 1, 1, 2), **energy,
            )
        )  # fmt: skip
    machine = MemoryMachine(
        Hardware("drawn", macs_per_cycle=2, array=(2, 2), clock=1e9),
        tuple(memories),
        mac_pj=0.25,
        overlap=overlap,
        registers=nest.has_registers,
    )
    mapping = SiteMapping("site", nest.size, nest.levels, batch=3, dtype="int8", accumulator="int32")
    cost = add_formulas(compute_mapping_cost(mapping, machine), machine)
    names = {formula.name for formula in cost.formulas}
    assert {
        "MACs",
        "utilization",
        "traffic",
        "lower bound",
        "array cycles",
        "cycles",
        "time",
        "energy",
    } <= names
    for formula in cost.formulas:
        slack = 6 if formula.name == "lower bound" else 0
        assert compute(formula.filled) == pytest.approx(formula.value, rel=1e-9, abs=slack), formula
