"""The float64 run is the truth that errors are measured against, so it must agree with the runtime."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from explorer.base.errors import Cancelled
from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model
from explorer.engine.proof.float64 import evaluator
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from tests.engine.proof import tiled as t


def agrees(model: Model, tolerance: float = 2e-6, **dims: int) -> None:
    feeds = draw(plan_inputs(model, dims), 0)
    true = evaluator.run(model, feeds)
    for name, value in RuntimeSession(model, label="it").run(feeds).items():
        assert true[name].dtype == np.float64
        assert true[name].shape == value.shape
        scale = max(float(np.abs(value).max()), 1e-30)
        assert float(np.abs(true[name] - value).max()) <= tolerance * scale


@pytest.mark.parametrize(
    ("name", "dims"),
    [
        ("lenet", {}),
        ("mobilenet_small", {}),
        ("bert_tiny", {"batch": 2, "sequence": 9}),
        ("three_inputs", {}),
        ("jsc_tiny", {}),
    ],
)
def test_the_sample_models(name: str, dims: dict[str, int], sample: Callable[[str], Path]) -> None:
    agrees(reader.read(str(sample(name))), **dims)


def one(path: Path, op: str, x: tuple[int, ...], weights: dict[str, np.ndarray], **attributes: Any) -> Model:
    node = helper.make_node(op, ["x", *weights], ["y"], **attributes)
    return t.model(path, [node], {"x": x}, weights)


@pytest.mark.parametrize(
    ("x", "w", "attributes"),
    [
        ((2, 3, 9, 8), (4, 3, 3, 3), {}),
        ((2, 3, 9, 8), (4, 3, 3, 2), {"strides": [2, 3], "pads": [1, 0, 2, 1]}),
        ((2, 4, 9, 8), (6, 2, 3, 3), {"group": 2, "dilations": [2, 1]}),
        ((2, 4, 9, 8), (8, 1, 3, 3), {"group": 4, "strides": [2, 2], "pads": [1, 1, 1, 1]}),
        ((2, 3, 9, 8), (4, 3, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        ((2, 3, 9, 8), (4, 3, 2, 3), {"auto_pad": "SAME_LOWER"}),
        ((2, 3, 9), (4, 3, 3), {"pads": [1, 1]}),
        ((1, 3, 5, 6, 7), (4, 3, 2, 2, 2), {"strides": [1, 2, 1]}),
        ((2, 3, 9, 8), (4, 3, 1, 1), {"strides": [2, 2]}),
    ],
)
def test_convolutions(x: tuple[int, ...], w: tuple[int, ...], attributes: Any, tmp_path: Path) -> None:
    weights = {"w": t.weight(*w), "b": t.weight(w[0], seed=1)}
    agrees(one(tmp_path / "m.onnx", "Conv", x, weights, **attributes))


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    "attributes",
    [
        {"kernel_shape": [3, 2]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1},
        {"kernel_shape": [2, 2], "strides": [2, 2], "auto_pad": "SAME_UPPER"},
    ],
)
def test_pooling(op: str, attributes: dict[str, Any], tmp_path: Path) -> None:
    agrees(one(tmp_path / "m.onnx", op, (2, 3, 10, 8), {}, **attributes))


def test_average_pooling_that_counts_its_padding(tmp_path: Path) -> None:
    attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}
    agrees(one(tmp_path / "m.onnx", "AveragePool", (2, 3, 10, 8), {}, **attributes))


@pytest.mark.parametrize(("a", "b"), itertools.product((0, 1), (0, 1)))
def test_gemm_and_matmul(a: int, b: int, tmp_path: Path) -> None:
    agrees(t.linear(tmp_path / "m.onnx", 5, 70, 9, transA=a, transB=b, alpha=0.5, beta=2.0))
    shapes = {(0, 0): ((2, 3, 70), (70, 9)), (0, 1): ((70,), (70, 9)), (1, 0): ((3, 70), (70,))}
    x, w = shapes.get((a, b), ((2, 3, 70), (2, 70, 9)))
    agrees(one(tmp_path / "n.onnx", "MatMul", x, {"w": t.weight(*w)}))


def test_functions_loops_and_branches(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    for form in ("lab", "scan"):
        after, _ = t.tiled(source, t.TileSpec(tile=(2, 4, 3), form=form))  # type: ignore[arg-type]
        agrees(after)


@pytest.mark.slow
def test_products_in_slabs_are_exact_in_either_memory_order() -> None:
    x = t.weight(3, 4000, dtype=np.float64)
    for weight in (t.weight(4000, 1500), t.weight(1500, 4000).T):
        exact, bound = evaluator.multiply_exactly(x, weight)
        np.testing.assert_allclose(exact, x @ weight.astype(np.float64), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(bound, np.abs(x) @ np.abs(weight.astype(np.float64)), rtol=1e-3)


@pytest.mark.parametrize("scale", [(1e-30, 1e-30), (1e-40, 1.0), (1e25, 1e25), (1.0, 1.0)])
def test_the_scale_of_a_product_is_right_at_the_ends_of_float32(scale: tuple[float, float]) -> None:
    x = np.maximum(t.weight(40, 300, dtype=np.float64), 0) * scale[0]
    x[3] = 0  # a row that a ReLU has emptied
    weight = (t.weight(300, 50) * scale[1]).astype(np.float32)
    weight[:, 4] = 0
    _, bound = evaluator.multiply_exactly(x, weight)
    np.testing.assert_allclose(bound, x @ np.abs(weight.astype(np.float64)), rtol=1e-5)


def test_erf_is_as_the_c_library_has_it(tmp_path: Path) -> None:
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, 1e-300, 5.999, 6.0, -7.0, 0.5 / 256]
    x = np.concatenate([np.linspace(-8, 8, 40_001), special])
    source = t.model(tmp_path / "m.onnx", [helper.make_node("Erf", ["x"], ["y"])], {"x": x.shape}, {})
    got = evaluator.run(source, {"x": x})["y"]
    want = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(got, want, rtol=1e-15)
    assert np.array_equal(np.signbit(got[:-10]), np.signbit(want[:-10]))


def test_random_operators_have_no_truth(tmp_path: Path) -> None:
    node = helper.make_node("RandomNormalLike", ["x"], ["y"])
    model = t.model(tmp_path / "m.onnx", [node], {"x": (2, 2)}, {})
    with pytest.raises(evaluator.NoReference, match="draws random numbers"):
        evaluator.run(model, {"x": np.zeros((2, 2), np.float32)})


def test_it_stops_when_asked(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 5, 9, 7)
    with pytest.raises(Cancelled):
        evaluator.run(source, draw(plan_inputs(source), 0), lambda: True)


@pytest.mark.parametrize(
    ("op", "shapes", "attributes"),
    [
        ("Softmax", [(3, 4, 50)], {"axis": -1}),
        ("Softmax", [(3, 4, 50)], {"axis": 1}),
        ("Softmax", [(3, 4, 50)], {}),
        ("LayerNormalization", [(3, 4, 50), (50,), (50,)], {"epsilon": 1e-3}),
        ("LayerNormalization", [(3, 4, 50), (4, 50)], {"axis": 1}),
        ("Concat", [(3, 4), (3, 2)], {"axis": -1}),
        ("Transpose", [(3, 4, 2)], {"perm": (2, 0, 1)}),
        ("Flatten", [(3, 4, 2)], {"axis": 2}),
    ],
)
def test_operators_of_an_encoder_are_as_onnx_says(
    op: str, shapes: list[tuple[int, ...]], attributes: dict[str, object]
) -> None:
    values = [t.weight(*shape, dtype=np.float64) * 3 for shape in shapes]
    names = [f"x{i}" for i in range(len(values))]
    node = helper.make_node(op, names, ["y"], **attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, 11, v.shape) for n, v in zip(names, values, strict=True)],
        [helper.make_tensor_value_info("y", 11, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    want = ReferenceEvaluator(model).run(None, dict(zip(names, values, strict=True)))[0]
    got = evaluator._RULES[op]({a.name: helper.get_attribute_value(a) for a in node.attribute}, values)
    if got is None:
        assert op == "Softmax"  # by another axis: onnx's own evaluator does it
        return
    np.testing.assert_allclose(got, want, rtol=1e-6 if op == "LayerNormalization" else 1e-13)
