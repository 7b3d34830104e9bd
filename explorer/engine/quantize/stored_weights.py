"""Stored weights as their layers use them: dequantized, unpacked, or rounded by a format's function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.engine.number_formats import find_format
from explorer.engine.number_formats.microscaling import BLOCK, Microscaling
from explorer.engine.number_formats.number_format import Array
from explorer.engine.quantize.functions import microscaling, qonnx
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.values.numbers import Numbers, StoredCodes, make_slabs
from explorer.engine.values.slices.heat import build_real_tensor
from explorer.engine.values.slices.table import SlicedTensor


def find_rounders(model: Model) -> Mapping[str, Node]:
    """Returns the function calls that round stored tensors to a number format, by the name of the tensor."""
    initializers, rounder_nodes = model.graph.initializers, dict[str, Node]()
    for node in model.graph.nodes:
        if node.domain in (microscaling.DOMAIN, qonnx.DOMAIN) and all(
            name in initializers for name in node.inputs
        ):
            rounder_nodes.setdefault(node.inputs[0], node)
    return rounder_nodes


def round_weight(model: Model, node: Node, numbers: Numbers) -> Numbers:
    """Returns a stored weight as its function rounds it, with codes and scales.

    The function runs when the numbers are first read.

    Args:
        model: Model that stores the weight.
        node: Call that rounds the weight, from `find_rounders`.
        numbers: Stored numbers of the weight.
    """

    @cache
    def run_function() -> Array:
        initializers = {name: model.graph.initializers[name] for name in node.inputs}
        output = Value(node.outputs[0], "float32", numbers.shape)
        graph = Graph("", (node,), (), (output,), initializers)
        session = RuntimeSession(replace(model, graph=graph), label=f"'{numbers.name}'", optimize=False)
        values: Array = session.run({})[output.name]
        return values

    def compute_scales() -> Array:
        values = read_numbers(numbers)
        if node.domain == microscaling.DOMAIN:
            return _compute_block_scales(node, values)
        return np.broadcast_to(model.graph.initializers[node.inputs[1]].array(), values.shape)

    points = model.graph.initializers[node.inputs[2]].array() if node.op == "IntQuant" else np.zeros(1)
    zero_points = np.broadcast_to(points, numbers.shape)

    def compute_codes() -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            code_values = run_function() / compute_scales() + zero_points.astype(np.float32)
        return np.rint(code_values).astype(np.int64) if node.op == "IntQuant" else code_values

    kind = "int64" if node.op == "IntQuant" else "float32"
    distinct_points = np.unique(points)
    zero_point = (
        int(distinct_points[0])
        if distinct_points.size == 1
        else _build_computed_numbers(numbers, lambda: zero_points.astype(np.int64), None, "int64")
    )
    coded = StoredCodes(
        _build_computed_numbers(numbers, compute_codes, None, kind),
        _build_computed_numbers(numbers, compute_scales, None),
        None,
        zero_point,
    )
    return _build_computed_numbers(numbers, run_function, coded)


def read_numbers(numbers: Numbers) -> Array:
    """Reads all stored numbers of a tensor into one array."""
    return np.concatenate([np.asarray(slab) for slab in numbers.slabs()]).reshape(numbers.shape)


def _build_computed_numbers(
    numbers: Numbers, run: Callable[[], Array], coded: StoredCodes | None, dtype: str = "float32"
) -> Numbers:
    """Returns numbers of the same name and shape, computed by `run` when they are first read."""
    return replace(
        numbers,
        dtype=dtype,
        slabs=lambda: make_slabs(run())(),
        part=None,
        scales=None,
        stored_codes=coded,
        raw=None,
    )


def _compute_block_scales(node: Node, values: Array) -> Array:
    """Returns the power of two that scales the block of each number, in an MX format."""
    fmt: Any = find_format(node.op)
    assert isinstance(fmt, Microscaling)
    axis = int(node.attributes.get("axis", -1)) % max(values.ndim, 1)
    starts = np.arange(0, values.shape[axis], BLOCK)
    largest = np.maximum.reduceat(np.abs(values), starts, axis)
    scales = fmt.compute_scales(largest).repeat(BLOCK, axis)
    return scales.take(np.arange(values.shape[axis]), axis)


def make_weight_decoder(model: Model | None) -> Callable[[Numbers], Numbers]:
    """Returns a function that maps stored numbers to the numbers that layers multiply by.

    It dequantizes, unpacks or rounds them.

    Args:
        model: Model that stores the numbers, or None if it has no graph.
    """
    rounder_nodes = {} if model is None else find_rounders(model)

    def decode(numbers: Numbers) -> Numbers:
        if model is not None and numbers.name in rounder_nodes:
            return round_weight(model, rounder_nodes[numbers.name], numbers)
        opened = numbers if numbers.unpack is None else numbers.unpack()
        return opened if opened.scales is None else build_real_tensor(SlicedTensor(opened, "", "weight"))

    return decode
