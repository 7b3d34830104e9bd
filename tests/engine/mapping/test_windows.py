"""What memories load of a convolution's input equals a walk with sets of elements."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

import explorer
from explorer.engine.mapping.cost import build_nest, compute_mapping_cost
from explorer.engine.mapping.nest import Nest
from explorer.engine.mapping.windows import count_window_moves
from explorer.facts.cost import Hardware
from explorer.facts.mapping import MachineMemory, MemoryMachine, SiteMapping
from tests.engine.mapping.nests import nests


def walk_elements(nest: Nest, level: int, elements: np.ndarray) -> tuple[int, int]:
    """Runs the loops of all cores and counts the elements that come into a level, and those read for it."""
    held: dict = {}  # (level, core) -> rows and columns of A
    counts = [0, 0]
    holders = nest.list_holders("A")
    outer = max((index for index in holders if index < level), default=-1)

    def seen(tile: tuple) -> set:
        (low, high), (left, right) = tile
        return set(elements[low:high, left:right].ravel().tolist()) - {0}

    def loops(index: int, position: int, cores: list) -> None:
        if not cores or index > level:
            return
        step = nest.levels[index]
        if position < 3:
            axis = "mkn".index(step.order[position])
            chunk = step.tile[axis] * step.split[axis]
            for trip in range(max(-(-(ranges[axis][1] - ranges[axis][0]) // chunk) for _, ranges in cores)):
                inside = []
                for core, ranges in cores:
                    low = ranges[axis][0] + trip * chunk
                    high = min(ranges[axis][1], low + chunk)
                    if low < high:
                        inside.append((core, (*ranges[:axis], (low, high), *ranges[axis + 1 :])))
                loops(index, position + 1, inside)
            return
        inner = []
        for core, ranges in cores:
            for place in itertools.product(*(range(count) for count in step.split)):
                parts = []
                for axis, (start, stop) in enumerate(ranges):
                    low = start + place[axis] * step.tile[axis]
                    parts.append((low, min(stop, low + step.tile[axis])))
                if all(low < high for low, high in parts):
                    inner.append(((*core, place), tuple(parts)))
        if index in holders:
            reads: dict = {}
            for core, ranges in inner:
                keep = "A" in step.keep
                tile = ((0, nest.size[0]), (0, nest.size[1])) if keep else ranges[:2]
                if held.get((index, core)) == tile:
                    continue
                before = held.get((index, core))
                held[index, core] = tile
                for other in [o for o in held if o[0] > index and o[1][: index + 1] == core]:
                    if "A" not in nest.levels[other[0]].keep:
                        del held[other]
                if index == level:
                    new = seen(tile) - (seen(before) if before is not None else set())
                    counts[0] += len(new)
                    reads.setdefault(core[: outer + 1], set()).update(new)
            counts[1] += sum(map(len, reads.values()))
        loops(index + 1, 0, inner)

    loops(0, 0, [((), tuple((0, length) for length in nest.size))])
    return counts[0], counts[1]


def list_elements(
    shape: tuple, kernel: int, stride: int, pad: int, dilation: int, channels: int
) -> np.ndarray:
    """Numbers the elements of the input behind A, channel by channel with the taps within; 0 is padding."""
    images, all_channels, height, width = shape
    rows, columns = ((size + 2 * pad - dilation * (kernel - 1) - 1) // stride + 1 for size in shape[2:])
    table = np.zeros((images * rows * columns, channels * kernel * kernel), np.int64)
    for m, (image, p, q) in enumerate(itertools.product(range(images), range(rows), range(columns))):
        for k, (c, r, s) in enumerate(itertools.product(range(channels), range(kernel), range(kernel))):
            y, x = p * stride + r * dilation - pad, q * stride + s * dilation - pad
            if 0 <= y < height and 0 <= x < width:
                table[m, k] = 1 + ((image * all_channels + c) * height + y) * width + x
    return table


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(nests(max_size=8), st.integers(0, 1 << 16))
def test_drawn_nests(nest: Nest, seed: int) -> None:
    memories = [
        MachineMemory(f"level{index}", holds=holds, cores=int(np.prod(level.split)), inside=True)
        for index, (level, holds) in enumerate(zip(nest.levels[:-1], nest.holds[:-1], strict=True))
    ]
    machine = MemoryMachine(Hardware("drawn"), (MachineMemory("outer"), *memories))
    last = nest.levels[-1]
    levels = (*nest.levels[:-1], type(last)(last.order, last.tile))
    mapping = SiteMapping("site", nest.size, levels, batch=2, dtype="int8", accumulator="int32")
    # rows of A that share elements with their neighbors, as windows do
    m, k, _ = nest.size
    elements = np.add.outer(np.arange(m) * (1 + seed % 3), np.arange(k)) % (m + 2)
    moves = count_window_moves(compute_mapping_cost(mapping, machine), machine, elements)
    nest = build_nest(mapping, machine)
    expected = [walk_elements(nest, level, elements) for level in nest.list_holders("A")[:-1]]
    assert [(move.loads, move.outside_reads) for move in moves] == [(2 * a, 2 * b) for a, b in expected]
    assert all(move.loads is not None and move.loads <= move.gathered for move in moves)


CASES = [(1, 3, 1, 0, 1, 1), (2, 3, 2, 1, 1, 1), (1, 2, 1, 1, 2, 2), (1, 1, 1, 0, 1, 1), (1, 3, 1, 1, 1, 4)]


@pytest.mark.parametrize("operator", ["Conv", "ConvInteger"])
@pytest.mark.parametrize(("images", "kernel", "stride", "pad", "dilation", "groups"), CASES)
def test_convolutions_of_a_model(
    tmp_path: Path, operator: str, images: int, kernel: int, stride: int, pad: int, dilation: int, groups: int
) -> None:
    shape, (kind, result) = (
        (images, 4, 9, 7),
        ("int8", "INT32") if operator == "ConvInteger" else ("float32", "FLOAT"),
    )
    weight = np.random.default_rng(0).integers(1, 9, (8, 4 // groups, kernel, kernel)).astype(kind)
    node = helper.make_node(
        operator, ["x", "w"], ["y"], "conv",
        strides=[stride] * 2, pads=[pad] * 4, dilations=[dilation] * 2, group=groups,
    )  # fmt: skip
    values = [
        helper.make_tensor_value_info("x", TensorProto.INT8 if kind == "int8" else TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("y", getattr(TensorProto, result), None),
    ]
    graph = helper.make_graph([node], "g", values[:1], values[1:], [numpy_helper.from_array(weight, "w")])
    path = tmp_path / "conv.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    machine = MemoryMachine(
        Hardware("chip", macs_per_cycle=4),
        (MachineMemory("DRAM", bytes_per_cycle=4), MachineMemory("buffer", size=300)),
        unit=(2, 3, 2),
    )
    with explorer.Session(str(path)) as session:
        plain, site = (session.map(machine, direct=direct).sites[0] for direct in (False, True))
    assert (plain.windows, plain.cost) == ((), site.cost)
    elements = list_elements(shape, kernel, stride, pad, dilation, 4 // groups)
    loads, reads = walk_elements(build_nest(site.cost.mapping, machine), 0, elements)
    width = groups * (1 if kind == "int8" else 4)
    assert [(move.loads, move.outside_reads) for move in site.windows] == [(loads * width, reads * width)]
