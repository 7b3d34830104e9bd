"""The proof promises of integers: the same numbers bit for bit, and every fault is found where it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Function, Model, Node, build_tensor, get_dtype_code
from explorer.facts import TileSpec
from explorer.session import Session
from tests.engine.proof import tiled as t
from tests.engine.proof.tiled import node_like, prove, with_array, with_body, with_nodes
from tests.engine.tiling.integers import OPERATORS, integers
from tests.engine.tiling.kinds.test_integer import between, packed
from tests.pairs import turns

FORMS = ("lab", "scan", "unrolled", "batched")


def source_of(path: Path, name: str) -> Model:
    """The case as our reader gives it, with shapes for the tests' own planning."""
    where = OPERATORS[name](path)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(where)), where)
    return reader.read(where)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "form"), turns([n for n in OPERATORS if "grouped" not in n and "QGemm" not in n], FORMS)
)
def test_tiled_integers_are_proven_bit_for_bit(tmp_path: Path, name: str, form: Any) -> None:
    found = prove(source_of(tmp_path / "a.onnx", name), TileSpec((4, 6, 5), form=form, edges="padded"))
    assert found.passed, found.verdict
    assert found.verdict.startswith("equal bit for bit")
    assert "exact" in found.sites[0].reason
    assert found.sites[0].tiles > 1


def with_constant(label: str, change: Callable[[np.ndarray], np.ndarray]) -> Callable[[Model], Model]:
    """A hand that writes other numbers into the Constant that is called so."""
    hits = []

    def changed(node: Node) -> Node:
        if node.op != "Constant" or not node.outputs[0].endswith(label):
            return node
        hits.append(node)
        old = node.attributes["value"].array()
        return node_like(node, attributes={"value": build_tensor("", change(np.array(old)))})

    def hand(made: Model) -> Model:
        spoiled = with_nodes(made, changed)
        assert hits, f"there is no constant {label}"
        return spoiled

    return hand


def without(label: str) -> Callable[[Model], Model]:
    """A hand that lets an elementwise node pass its first input on."""

    def changed(node: Node) -> Node:
        if not node.name.endswith(label) or node.op == "Constant":
            return node
        return node_like(node, op="Identity", inputs=node.inputs[:1], attributes={})

    return lambda made: with_nodes(made, changed)


def wrapped(made: Model) -> Model:
    """Rounds and casts, as a requantization does that forgets to saturate."""

    def changed(node: Node) -> Node:
        if node.op != "QuantizeLinear":
            return node
        return node_like(node, op="Cast", inputs=node.inputs[:1], attributes={"to": get_dtype_code("uint8")})

    return with_nodes(made, changed)


def first_tile(made: Model) -> str:
    return next(name for name in made.graph.initializers if "/tile_" in name)


FAULTS: dict[str, tuple[str, Callable[[Model], Model], str]] = {
    "a tile off by one": (
        "QLinearConv, padded",
        lambda made: with_array(made, first_tile(made), lambda w: np.roll(w, 1, 1)),
        "not its slice of the weight",
    ),
    "an element of a tile": (
        "QLinearMatMul, signed, a scale a column",
        lambda made: with_array(made, first_tile(made), lambda w: w + (np.indices(w.shape).sum(0) == 0)),
        "not its slice of the weight",
    ),
    "images surrounded by 0 instead of the zero point": (
        "QLinearConv, padded",
        with_constant("x_around_value", lambda v: np.zeros_like(v)),
        "the number 0 instead of the zero point",
    ),
    "images surrounded by another number": (
        "QLinearConv, padded",
        with_constant("x_around_value", lambda v: v + np.asarray(1, v.dtype)),
        "which is not the zero point",
    ),
    "the scale of another channel": (
        "QLinearConv, padded",
        with_constant("/scale", lambda v: np.roll(v, 1)),
        "differ from exact integer arithmetic",
    ),
    "no bias": ("QLinearConv, padded", without("/biased"), "the bias is missing"),
    "the bias of another channel": (
        "QLinearConv, padded",
        with_constant("/bias", lambda v: np.roll(v, 1)),
        "the bias is not the original's",
    ),
    "the zero point of X forgotten": ("MatMulInteger, zero points", without("/biased"), "bias is missing"),
    "the zero point of W forgotten": (
        "MatMulInteger, zero points",
        without("/w_zero_off"),
        "differ from exact integer arithmetic",
    ),
    "the zero point of Y": (
        "QLinearConv, padded",
        with_constant("/y_zero", lambda v: v + np.asarray(1, v.dtype)),
        "differ from exact integer arithmetic",
    ),
    "no saturation": ("QLinearConv, padded", wrapped, "differ from exact integer arithmetic"),
    "not requantized": (
        "QLinearMatMul, signed, a scale a column",
        with_constant("/quantum", lambda v: v * 2),
        "differ from exact integer arithmetic",
    ),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(tmp_path: Path, fault: str) -> None:
    name, spoil, reason = FAULTS[fault]
    source = source_of(tmp_path / "a.onnx", name)
    found = prove(source, TileSpec((4, 6, 5), form="unrolled"), spoil)
    assert not found.passed
    assert reason in found.sites[0].reason


def test_an_operator_that_takes_off_a_zero_point_is_found(tmp_path: Path) -> None:
    def body(function: Function) -> Function:
        (product,) = function.nodes
        one = Node("Constant", (), ("one",), attributes={"value": build_tensor("", np.asarray(1, np.int8))})
        spoiled = node_like(product, inputs=(*product.inputs, "one"))
        return type(function)(
            function.domain, function.name, function.inputs, function.outputs, (one, spoiled), function.opsets
        )

    source = source_of(tmp_path / "a.onnx", "MatMulInteger, signed")
    found = prove(source, TileSpec((4, 6, 5), form="unrolled"), lambda made: with_body(made, "2DMM", body))
    assert not found.passed
    assert "zero points of their own" in found.sites[0].structure
    assert found.sites[0].max_abs


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [0, 11])
def test_between_dequantizers_the_sums_are_exact(tmp_path: Path, columns: int, form: Any) -> None:
    where = between(tmp_path / "a.onnx", kind=np.int8, columns=columns, both=True)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(where)), where)
    found = prove(reader.read(where), TileSpec((4, 6, 5), form=form))
    assert found.passed, found.verdict
    assert "exact integer arithmetic" in found.sites[0].reason


def test_between_dequantizers_the_scale_of_another_column_is_found(tmp_path: Path) -> None:
    where = between(tmp_path / "a.onnx", kind=np.int8, columns=11, both=True)
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(where)), where)
    spoil = with_constant("/scale", lambda v: np.roll(v, 1))
    found = prove(reader.read(where), TileSpec((4, 6, 5), form="unrolled"), spoil)
    assert not found.passed
    assert "exact integer arithmetic" in found.sites[0].reason


@pytest.mark.parametrize("bits", [4, 8])
def test_packed_weights_are_compared_bit_for_bit(tmp_path: Path, bits: int) -> None:
    from explorer import Session

    where = packed(tmp_path / "a.onnx", bits=bits, zeros="packed" if bits == 4 else "", bias=True)
    result = Session(where).tile(TileSpec((4, 6, 5)), output=str(tmp_path / "b.onnx"), verify=True)
    assert result.verification is not None
    assert result.verification.passed
    assert result.verification.sites[0].tiles == result.plan.products


def test_dense_integers_take_the_whole_range() -> None:
    from explorer.engine.proof.sites.exact import draw_dense_integers

    made = draw_dense_integers(integers(np.int8, 4000), (0, 1))
    assert (made.min(), made.max()) == (-128, 127)


def test_an_original_that_saturates_is_named_as_the_cause_of_a_difference(tmp_path: Path) -> None:
    """A verdict on a processor where it does not is 'equal bit for bit'."""
    product = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    weight = np.full((64, 8), 127, np.int8)
    model = t.model(tmp_path / "m.onnx", [product], {"x": (4, 64)}, {"w": weight}, dtypes={"x": 2, "y": 6})
    result = Session(model.path).tile(TileSpec((4, 16, 8)))
    assert result.verification is not None
    if result.verification.verdict_kind == "parts":
        assert "saturates" in result.verification.verdict
        assert "threshold" not in result.verification.verdict
