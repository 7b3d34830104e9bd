"""Operators by type, with the range of values of every attribute."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from msgspec.structs import replace

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.costs.operator_stats import compute_operator_stats
from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.layouts import MS
from explorer.engine.graph.model import Node

Build = Callable[..., object]


def test_counts_and_costs_add_up_to_the_totals(sample: Callable[[str], Path]) -> None:
    analysis = analyse(read(str(sample("mobilenet_small"))))
    stats = compute_operator_stats(analysis)
    totals = analysis.info.totals
    assert sum(s.count for s in stats) == totals.nodes
    assert sum(s.macs or 0 for s in stats) == totals.macs
    assert sum(s.params for s in stats) == totals.params
    assert sum(s.elementwise_ops or 0 for s in stats) == totals.elementwise_ops
    assert stats[0].op == "Conv"


def test_ranges_hold_for_every_convolution(build: Build) -> None:
    nodes = [
        Node("Conv", ["x", "w1"], ["a"], name="c1", attributes={"kernel_shape": (3, 3), "strides": (2, 1)}),
        Node("Conv", ["a", "w2"], ["b"], name="c2", attributes={"group": 8, "pads": (1, 1, 2, 2)}),
        Node("Conv", ["b", "w3"], ["c"], name="c3"),
    ]
    model = build(
        nodes,
        inputs={"x": (1, 4, 20, 20)},
        outputs=["c"],
        weights={"w1": (8, 4, 3, 3), "w2": (8, 1, 5, 3), "w3": (2, 8, 1, 1)},
    )
    (conv,) = compute_operator_stats(analyse(model))  # type: ignore[arg-type]
    found = conv.attributes
    assert conv.count == 3
    assert (found["kernel_shape"].minimum, found["kernel_shape"].maximum) == ((1, 1), (5, 3))
    # attributes that a file leaves out have the values that the standard gives them
    assert (found["strides"].minimum, found["strides"].maximum) == ((1, 1), (2, 1))
    assert found["strides"].values == (((1, 1), 2), ((2, 1), 1))
    assert (found["group"].minimum, found["group"].maximum, found["group"].distinct) == (1, 8, 2)
    assert found["pads"].maximum == (1, 1, 2, 2)
    assert (found["input_channels"].minimum, found["input_channels"].maximum) == (4, 8)
    assert found["input_height"].maximum == 20


def test_a_shared_parameter_counts_once_for_its_type(build: Build) -> None:
    nodes = [
        Node("MatMul", ["x", "w"], ["a"], name="first"),
        Node("MatMul", ["a", "w"], ["b"], name="second"),
    ]
    model = build(nodes, inputs={"x": (2, 4)}, outputs=["b"], weights={"w": (4, 4)})
    (matmul,) = compute_operator_stats(analyse(model))  # type: ignore[arg-type]
    assert (matmul.count, matmul.params, matmul.macs) == (2, 16, 64)


def test_operators_that_share_a_bias_keep_the_weights_that_are_their_own(build: Build) -> None:
    nodes = [
        Node("Conv", ["x", "w1", "b"], ["a"], name="first"),
        Node("Conv", ["a", "w2", "b"], ["y"], name="second"),
        Node("Add", ["y", "b"], ["z"], name="add"),
    ]
    weights = {"w1": (4, 4, 3, 3), "w2": (4, 4, 1, 1), "b": (4,)}
    model = build(nodes, inputs={"x": (1, 4, 8, 4)}, outputs=["z"], weights=weights)
    params = {stat.op: stat.params for stat in compute_operator_stats(analyse(model))}  # type: ignore[arg-type]
    assert params == {"Conv": 4 * 4 * 9 + 4 * 4 + 4, "Add": 4}


def test_words_have_values_and_no_range(build: Build) -> None:
    nodes = [
        Node("Conv", ["x", "w"], ["a"], name="c", attributes={"auto_pad": "SAME_UPPER"}),
    ]
    model = build(nodes, inputs={"x": (1, 4, 8, 8)}, outputs=["a"], weights={"w": (4, 4, 3, 3)})
    (conv,) = compute_operator_stats(analyse(model))  # type: ignore[arg-type]
    assert conv.attributes["auto_pad"].values == (("SAME_UPPER", 1),)
    assert conv.attributes["auto_pad"].minimum is None
    assert "pads" not in conv.attributes


def test_permutations_have_values_and_no_range(sample: Callable[[str], Path]) -> None:
    analysis = analyse(read(str(sample("bert_tiny"))))
    perm = next(stat for stat in compute_operator_stats(analysis) if stat.op == "Transpose").attributes[
        "perm"
    ]
    assert (perm.minimum, perm.maximum, perm.distinct) == (None, None, 2)
    assert sorted(value for value, _ in perm.values) == [(0, 2, 1, 3), (0, 2, 3, 1)]


def test_the_size_of_an_input_is_told_from_its_channels_wherever_they_stand(build: Build) -> None:
    scalars = ["s", "z", "w", "s", "z", "s", "z"]
    how = {"channels_last": 1, "kernel_shape": (5, 5)}
    node = Node("QLinearConv", ["x", *scalars], ["y"], domain=MS, attributes=how)
    weights = {"s": ("float32", ()), "z": ("uint8", ()), "w": ("uint8", (4, 3, 5, 5))}
    model = build([node], inputs={"x": ("uint8", (1, 20, 30, 3))}, outputs=["y"], weights=weights)
    (stat,) = compute_operator_stats(analyse(replace(model, opsets={**model.opsets, MS: 1})))
    sizes = {name: stat.attributes[f"input_{name}"].minimum for name in ("channels", "height", "width")}
    assert sizes == {"channels": 3, "height": 20, "width": 30}
