"""Affine regions: a folded normalization is decided on fewer made-up values, and no fault of it passes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper, parser

from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model
from explorer.engine.proof.proof import verify
from explorer.engine.proof.regions.affine import is_affine

NUMBERS = np.random.default_rng(5)
WEIGHT = NUMBERS.normal(size=(6, 4, 3, 3)).astype(np.float32)
SCALE, SHIFT, MEAN = NUMBERS.normal(1, 0.3, (3, 6)).astype(np.float32)
VARIANCE = NUMBERS.uniform(0.5, 2.0, 6).astype(np.float32)
FACTOR = SCALE / np.sqrt(VARIANCE + np.float32(1e-5))
FOLDED = {"w": WEIGHT * FACTOR[:, None, None, None], "b": SHIFT - MEAN * FACTOR}

AFFINE = (
    "y = Identity(x)",
    "c = Constant<value = float {3.0}>()\na = Mul(x, c)\nb = Sub(a, x)\ny = Div(b, c)",
    "c = Constant<value = float[2,2] {1.0, 2.0, 3.0, 4.0}>()\na = MatMul(c, x)\ny = Transpose(a)",
    "c = Constant<value = float {3.0}>()\ns = Sqrt(c)\ny = Mul(x, s)",
)
CURVED = (
    "y = Relu(x)",
    "y = Mul(x, x)",
    "a = Neg(x)\ny = MatMul(a, x)",
    "c = Constant<value = float {3.0}>()\ny = Div(c, x)",
    "c = Constant<value = float[2] {1.0, 2.0}>()\ny = BatchNormalization<training_mode = 1>(x, c, c, c, c)",
)


def read(path: Path, body: str) -> Model:
    text = f'<ir_version: 9, opset_import: ["": 20]> g (float[2,2] x) => (float[2,2] y) {{ {body} }}'
    onnx.save(parser.parse_model(text), path)
    return reader.read(str(path))


@pytest.mark.parametrize("body", AFFINE)
def test_sums_of_multiples_of_the_inputs_are_affine(body: str, tmp_path: Path) -> None:
    assert is_affine(read(tmp_path / "a.onnx", body))


@pytest.mark.parametrize("body", CURVED)
def test_products_of_inputs_and_bends_are_not_affine(body: str, tmp_path: Path) -> None:
    assert not is_affine(read(tmp_path / "a.onnx", body))


def save(path: Path, tensors: dict[str, np.ndarray], nodes: list[onnx.NodeProto]) -> Model:
    ends = [helper.make_tensor_value_info(n, 1, (1, c, 40, 40)) for n, c in (("x", 4), ("y", 6))]
    stored = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return reader.read(str(path))


def normalized(path: Path) -> Model:
    tensors = {"w": WEIGHT, "s": SCALE, "h": SHIFT, "m": MEAN, "v": VARIANCE}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s", "h", "m", "v"], ["n"]),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    return save(path, tensors, nodes)


def folded(path: Path, tensors: dict[str, np.ndarray], **attributes: list[int]) -> Model:
    settings = {"pads": [1, 1, 1, 1], **attributes}
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["n"], **settings),
        helper.make_node("Relu", ["n"], ["y"]),
    ]
    return save(path, tensors, nodes)


def test_a_folded_normalization_is_decided_by_its_own_values_and_one_made_up_set(tmp_path: Path) -> None:
    found = verify(normalized(tmp_path / "a.onnx"), folded(tmp_path / "b.onnx", FOLDED))
    assert found.passed, found.verdict
    assert [region.draws for region in found.regions] == [2]
    assert "folded weights are correct within eight roundings" in found.verdict


def off(name: str, place: tuple[int, ...], factor: float) -> Callable[[], dict[str, np.ndarray]]:
    def spoil() -> dict[str, np.ndarray]:
        tensors = {key: value.copy() for key, value in FOLDED.items()}
        tensors[name][place] *= np.float32(factor)
        return tensors

    return spoil


@pytest.mark.parametrize(
    "tensors",
    [off("w", (2, 1, 0, 2), 1 + 1e-5), off("b", (4,), 1 + 1e-5), off("w", (5, 3, 1, 1), -1)],
    ids=["a weight", "a bias", "a sign"],
)
def test_a_fault_in_one_folded_number_is_never_equal(
    tensors: Callable[[], dict[str, np.ndarray]], tmp_path: Path
) -> None:
    found = verify(normalized(tmp_path / "a.onnx"), folded(tmp_path / "b.onnx", tensors()))
    assert not found.passed, found.verdict


def test_other_padding_of_the_same_numbers_differs(tmp_path: Path) -> None:
    shifted = folded(tmp_path / "b.onnx", FOLDED, pads=[0, 1, 2, 1])
    found = verify(normalized(tmp_path / "a.onnx"), shifted)
    assert found.verdict_kind == "different", found.verdict
