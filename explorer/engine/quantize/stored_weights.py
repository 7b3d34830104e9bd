"""Stored weights as their layers multiply by them: rounded, if a format's function rounds them in a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.engine.graph.model import Graph, Model, Node, Value
from explorer.engine.number_formats import format_of
from explorer.engine.number_formats.microscaling import BLOCK, Microscaling
from explorer.engine.number_formats.number_format import Array
from explorer.engine.quantize.functions import microscaling, qonnx
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.values.numbers import Numbers, StoredCodes, slabs_of
from explorer.engine.values.slices.heat import whole
from explorer.engine.values.slices.table import SlicedTensor


def rounders(model: Model) -> Mapping[str, Node]:
    """The function calls that round stored tensors to a number format in a run, by the tensor's name."""
    initializers, rounder_nodes = model.graph.initializers, dict[str, Node]()
    for node in model.graph.nodes:
        if node.domain in (microscaling.DOMAIN, qonnx.DOMAIN) and all(
            name in initializers for name in node.inputs
        ):
            rounder_nodes.setdefault(node.inputs[0], node)
    return rounder_nodes


def rounded_weight(model: Model, node: Node, numbers: Numbers) -> Numbers:
    """A stored weight as its function rounds it, with codes and scales; the function runs on the first read.

    Args:
        model: The model that stores the weight.
        node: The call that rounds it, from `rounders`.
        numbers: The stored numbers.
    """

    @cache
    def made() -> Array:
        initializers = {name: model.graph.initializers[name] for name in node.inputs}
        output = Value(node.outputs[0], "float32", numbers.shape)
        graph = Graph("", (node,), (), (output,), initializers)
        session = RuntimeSession(replace(model, graph=graph), what=f"'{numbers.name}'", optimise=False)
        values: Array = session.run({})[output.name]
        return values

    def scales() -> Array:
        values = numbers_of(numbers)
        if node.domain == microscaling.DOMAIN:
            return _of_blocks(node, values)
        return np.broadcast_to(model.graph.initializers[node.inputs[1]].array(), values.shape)

    points = model.graph.initializers[node.inputs[2]].array() if node.op == "IntQuant" else np.zeros(1)
    each = np.broadcast_to(points, numbers.shape)

    def codes() -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            code_values = made() / scales() + each.astype(np.float32)
        return np.rint(code_values).astype(np.int64) if node.op == "IntQuant" else code_values

    kind = "int64" if node.op == "IntQuant" else "float32"
    few = np.unique(points)
    zero_point = (
        int(few[0])
        if few.size == 1
        else _computed_numbers(numbers, lambda: each.astype(np.int64), None, "int64")
    )
    coded = StoredCodes(
        _computed_numbers(numbers, codes, None, kind),
        _computed_numbers(numbers, scales, None),
        None,
        zero_point,
    )
    return _computed_numbers(numbers, made, coded)


def numbers_of(numbers: Numbers) -> Array:
    """All numbers of a tensor, as they are stored."""
    return np.concatenate([np.asarray(slab) for slab in numbers.slabs()]).reshape(numbers.shape)


def _computed_numbers(
    numbers: Numbers, make: Callable[[], Array], coded: StoredCodes | None, dtype: str = "float32"
) -> Numbers:
    return replace(
        numbers, dtype=dtype, slabs=lambda: slabs_of(make())(), part=None, scales=None, coded=coded, raw=None
    )


def _of_blocks(node: Node, values: Array) -> Array:
    """The power of two that each number of an MX format shares with its block."""
    fmt: Any = format_of(node.op)
    assert isinstance(fmt, Microscaling)
    axis = int(node.attributes.get("axis", -1)) % max(values.ndim, 1)
    starts = np.arange(0, values.shape[axis], BLOCK)
    largest = np.maximum.reduceat(np.abs(values), starts, axis)
    each = fmt.scales(largest).repeat(BLOCK, axis)
    return each.take(np.arange(values.shape[axis]), axis)


def as_multiplied(model: Model | None) -> Callable[[Numbers], Numbers]:
    """A function from stored numbers to the numbers that layers multiply by: dequantized, unpacked, rounded.

    Args:
        model: The graph that stores them; None for a model without a graph.
    """
    rounder_nodes = {} if model is None else rounders(model)

    def real(numbers: Numbers) -> Numbers:
        if model is not None and numbers.name in rounder_nodes:
            return rounded_weight(model, rounder_nodes[numbers.name], numbers)
        opened = numbers if numbers.opened is None else numbers.opened()
        return opened if opened.scales is None else whole(SlicedTensor(opened, "", "weight"))

    return real
