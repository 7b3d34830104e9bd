"""Emitted C computes the product and moves the bytes that the closed form counts."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.mapping.cost import find_epilogue_level, group_memories
from explorer.engine.mapping.emit_c import EpilogueStep, emit_site
from explorer.engine.mapping.proof import (
    RunInputs,
    compute_exact_sums,
    find_compiler,
    find_worst_error,
    list_planned_counters,
    run_emitted,
)
from explorer.engine.mapping.walk import walk_nest
from explorer.facts.cost import Hardware
from explorer.facts.mapping import Epilogue, MachineMemory, MemoryMachine, NestLevel, SiteMapping
from tests.engine.mapping.nests import nests

pytestmark = pytest.mark.skipif(find_compiler() is None, reason="no C compiler")


def machine_for(nest):
    """Builds a machine whose memories hold what each level of a nest holds."""
    memories = [MachineMemory("outer")]
    for index, (level, holds) in enumerate(zip(nest.levels[:-1], nest.holds[:-1], strict=True)):
        cores = int(np.prod(level.split))
        memories.append(MachineMemory(f"level{index}", holds=holds, cores=cores, inside=True))
    machine = MemoryMachine(Hardware("drawn"), tuple(memories))
    assert len(group_memories(machine)) == len(nest.levels)
    return machine


def integers(shape, seed=0):
    return np.random.default_rng(seed).integers(-128, 128, shape, dtype=np.int8)


FUSED = Epilogue(("Add", "Add", "QuantizeLinear"), "int8", bias_bytes=4, residual_bytes=4)
STEPS = (
    EpilogueStep("bias"),
    EpilogueStep("scale", 0.01),
    EpilogueStep("residual"),
    EpilogueStep("quantize", 0.5, 3),
)


def check(nest, *, fused=False, compiled=True):
    """Compares walk, plan and, if `compiled`, the emitted C of a nest."""
    if np.prod(nest.levels[-1].split) > 1:
        nest = nest._replace(
            levels=(*nest.levels[:-1], NestLevel(nest.levels[-1].order, nest.levels[-1].tile))
        )
    machine, (m, k, n) = machine_for(nest), nest.size
    fused = fused and find_epilogue_level(nest) >= 0
    mapping = SiteMapping(
        "site",
        nest.size,
        nest.levels,
        batch=2,
        dtype="int8",
        accumulator="int32",
        epilogue=FUSED if fused else Epilogue(),
    )
    bias = np.arange(2 * n, dtype=np.int32).reshape(2, n) * 50
    residual = np.random.default_rng(2).standard_normal((2, m, n), dtype=np.float32)
    ends = {"bias": bias, "residual": residual} if fused else {}
    inputs = RunInputs(integers((2, m, k)), integers((2, k, n), 1), **ends)
    steps = STEPS if fused else ()
    expected = inputs.A.astype(np.int32) @ inputs.B.astype(np.int32)
    if fused:
        real = (expected + bias[:, None]).astype(np.float32) * np.float32(0.01) + residual
        expected = np.clip(np.rint(real / np.float32(0.5)) + 3, -128, 127)
    walked = walk_nest(mapping, machine, inputs, steps)
    assert (walked.output == expected).all()
    planned = list_planned_counters(mapping, machine)
    assert {place: walked.counters[place] for place in planned} == planned
    if compiled:
        result = run_emitted(emit_site(mapping, machine, steps=steps), mapping, inputs)
        assert (result.output == expected).all()
        assert result.counters == walked.counters


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(max_size=12), st.booleans())
def test_drawn_nests(nest, fused):
    check(nest, fused=fused)


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(max_size=7), st.booleans())
def test_drawn_nests_walked_in_numpy(nest, fused):
    check(nest, fused=fused, compiled=False)


@pytest.mark.slow
@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(max_size=16), st.booleans())
def test_two_hundred_drawn_nests(nest, fused):
    check(nest, fused=fused)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_float_has_its_value(dtype):
    codes = np.arange(1 << 16, dtype=np.uint16).view(get_numpy_type(dtype)).reshape(1, -1, 1)
    mapping = SiteMapping(
        "site",
        (1 << 16, 1, 1),
        (NestLevel("mnk", (4096, 1, 1)), NestLevel("mnk", (64, 1, 1))),
        dtype=dtype,
        accumulator="float32",
    )
    machine = MemoryMachine(Hardware("two"), (MachineMemory("outer"), MachineMemory("buffer")))
    inputs = RunInputs(codes, np.ones((1, 1, 1), codes.dtype))
    result = run_emitted(emit_site(mapping, machine), mapping, inputs)
    expected = codes.astype(np.float32)
    np.testing.assert_array_equal(result.output, expected)
    planned = list_planned_counters(mapping, machine)
    assert planned[0, "A loads"] == 2 << 16
    assert {place: result.counters[place] for place in planned} == planned


@pytest.mark.parametrize(("depth", "zero"), [(1024, 0), (1025, 0), (300, -127), (515, 127)])
def test_sums_of_extreme_codes_are_exact(depth, zero):
    signs = np.where(np.arange(depth) % 3 == 0, 127, -128).astype(np.int8)
    inputs = RunInputs(
        np.stack([signs, np.full(depth, -128, np.int8)])[None],
        np.full((1, depth, 2), -128, np.int8),
        zero_a=zero,
        zero_b=zero,
    )
    expected = (inputs.A.astype(np.int64) - zero) @ (inputs.B.astype(np.int64) - zero)
    assert (compute_exact_sums(inputs, "int32") == expected).all()


LEVELS = NestLevel("knm", (20, 16, 24)), NestLevel("mnk", (8, 8, 8))


@pytest.mark.parametrize("levels", [LEVELS, (NestLevel("mkn", (48, 30, 7)), LEVELS[1])])
def test_floats_are_within_rounding(levels):
    size = (50, 70, 33)
    mapping = SiteMapping("site", size, levels)
    machine = MemoryMachine(Hardware("two"), (MachineMemory("outer"), MachineMemory("buffer")))
    random = np.random.default_rng(3)
    inputs = RunInputs(
        random.standard_normal((1, 50, 70), dtype=np.float32),
        random.standard_normal((1, 70, 33), dtype=np.float32),
    )
    result = run_emitted(emit_site(mapping, machine), mapping, inputs)
    assert find_worst_error(result.output, inputs) < 1
    wrong = result.output.copy()
    wrong[0, 3, 4] += 1e-3
    assert find_worst_error(wrong, inputs) > 1


@pytest.mark.parametrize("order", ["mnk", "knm", "mkn"])
def test_requantized_output_leaves_in_its_own_type(order):
    size = (40, 50, 60)
    mapping = SiteMapping(
        "site",
        size,
        (NestLevel(order, (16, 16, 16)), NestLevel("mnk", (8, 8, 8))),
        dtype="int8",
        accumulator="int32",
        epilogue=Epilogue(("Add", "QuantizeLinear"), "int8", bias_bytes=4),
    )
    machine = MemoryMachine(Hardware("two"), (MachineMemory("outer"), MachineMemory("buffer")))
    scale = np.float32(0.00171)
    steps = EpilogueStep("bias"), EpilogueStep("requantize", float(scale), 3), EpilogueStep("clip", -128, 127)
    bias = np.arange(60, dtype=np.int32)[None] * 100 - 2000
    inputs = RunInputs(integers((1, 40, 50)), integers((1, 50, 60), 1), bias, zero_a=5)
    result = run_emitted(emit_site(mapping, machine, steps=steps), mapping, inputs)
    sums = (inputs.A.astype(np.int32) - 5) @ inputs.B.astype(np.int32) + bias
    expected = np.clip(np.rint(sums.astype(np.float32) * scale) + np.float32(3), -128, 127).astype(np.int8)
    assert (result.output == expected).all()
    planned = list_planned_counters(mapping, machine)
    assert {place: result.counters[place] for place in planned} == planned
    spilled = planned[0, "C reads"]
    assert planned[0, "C writes"] == spilled + 40 * 60


def test_large_integers_are_not_rounded():
    mapping = SiteMapping(
        "site",
        (3, 4, 5),
        (NestLevel("mnk", (2, 2, 2)), NestLevel("mnk", (1, 1, 1))),
        dtype="int8",
        accumulator="int32",
        epilogue=Epilogue(("Add", "Clip"), "int32", bias_bytes=4),
    )
    machine = MemoryMachine(Hardware("two"), (MachineMemory("outer"), MachineMemory("buffer")))
    steps = EpilogueStep("bias"), EpilogueStep("clip", -(2.0**31), 2**30 + 3)
    bias = np.full((1, 5), 2**30 + 1, np.int32)
    inputs = RunInputs(integers((1, 3, 4)) // 64, integers((1, 4, 5), 1) // 64, bias)
    result = run_emitted(emit_site(mapping, machine, steps=steps), mapping, inputs)
    sums = inputs.A.astype(np.int32) @ inputs.B.astype(np.int32) + bias[0]
    assert (result.output == np.minimum(sums, 2**30 + 3)).all()
    assert (walk_nest(mapping, machine, inputs, steps).output == result.output).all()
