"""The interpreter's operators against onnx's own node tests: whatever is in the tables and not refused."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
import onnxruntime  # noqa: E402
from onnx import TensorProto, numpy_helper  # noqa: E402
from onnx.backend.test.case.node import collect_testcases  # noqa: E402

from explorer.base.errors import BadModel  # noqa: E402
from explorer.engine.convert.onnx_to_torch_interpreter.domain import OPERATORS  # noqa: E402
from explorer.engine.convert.onnx_to_torch_interpreter.module import load_onnx  # noqa: E402
from explorer.engine.formats.onnx import reader  # noqa: E402
from explorer.engine.runtime.torch_arrays import convert_to_array, convert_to_tensor  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

REFUSED = (
    "attention",  # soft caps, windows, lengths, inner scores
    "uint16",  # torch has no arithmetic of them
    "uint32",
    "uint64",
    "bitwise_not_3d",
    "cubic",
    "crop_and_resize",
    "antialias",
    "not_larger",
    "not_smaller",
    "training_dropout",
    "reduce_max_empty_set",
    "reduce_min_empty_set",
)
"""Parts of the names of cases that may be refused with one line; a wrong number is allowed to none."""


@cache
def cases() -> dict[str, list[Any]]:
    """The cases by the operator that they are for."""
    found: dict[str, list[Any]] = {}
    for case in collect_testcases(None):
        ops = {(node.domain, node.op_type) for node in case.model.graph.node}
        plain = all(
            v.type.WhichOneof("value") == "tensor_type"
            for v in (*case.model.graph.input, *case.model.graph.output)
        )
        values = (*case.model.graph.input, *case.model.graph.output)
        kinds = {v.type.tensor_type.elem_type for v in values}
        # what torch has no tensors of: text, and types of 8 bits and less that are no integers of 8
        strange = TensorProto.STRING in kinds or max(kinds) >= TensorProto.FLOAT8E4M3FN
        if len(ops) == 1 and plain and not strange and ops <= set(OPERATORS):
            found.setdefault(next(iter(ops))[1], []).append(case)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("op", sorted({op for domain, op in OPERATORS if not domain}))
def test_an_operator_does_what_onnx_says(op: str, tmp_path: Path) -> None:
    refused = []
    for case in cases().get(op, ()):
        path = tmp_path / "case.onnx"
        onnx.save(case.model, path)
        try:
            run(case, str(path))
        except BadModel as error:
            refused.append((case.name, str(error)))
    assert not [one for one in refused if not any(part in one[0] for part in REFUSED)]
    assert all("\n" not in said for _, said in refused)
    if op in cases():
        assert len(refused) < len(cases()[op])


def run(case: Any, path: str) -> None:
    module = load_onnx(reader.read(path))
    for given, expected in case.data_sets or ():
        with torch.no_grad():
            results = module(*(convert_to_tensor(array(value)) for value in given))
        results = results if isinstance(results, tuple) else (results,)
        for result, true in zip(results, expected, strict=True):
            check(case.name, convert_to_array(result), array(true), case.rtol, case.atol)


def array(value: Any) -> Any:
    held = isinstance(value, TensorProto)  # numbers that numpy has no type for
    return numpy_helper.to_array(value) if held else np.asarray(value)


def check(name: str, got: Any, true: Any, rtol: float, atol: float) -> None:
    assert (got.shape, got.dtype) == (true.shape, true.dtype), name
    if got.dtype.kind in "fV":
        half = got.dtype.itemsize < 4
        np.testing.assert_allclose(
            got.astype(np.float64),
            true.astype(np.float64),
            rtol=2e-2 if half else rtol,
            atol=2e-2 if half else max(atol, 1e-6),
            err_msg=name,
        )
    else:
        assert (got == true).all(), name


def test_what_torch_rounds_otherwise_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Cast", ["x"], ["y"], to=TensorProto.FLOAT8E4M3FNUZ)
    x = onnx.helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 5])
    y = onnx.helper.make_tensor_value_info("y", TensorProto.FLOAT8E4M3FNUZ, [3, 5])
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])), tmp_path / "m.onnx")
    module = load_onnx(reader.read(str(tmp_path / "m.onnx")))
    with pytest.raises(BadModel, match="torch does not round to types of 8 bits or less as onnx does"):
        module(torch.ones(3, 5))


@pytest.mark.parametrize("shape", [(2, 5), (2, 5, 3), (1, 5, 2, 3)])
def test_local_response_normalization_takes_any_number_of_axes(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    node = onnx.helper.make_node("LRN", ["x"], ["y"], size=4, alpha=0.5, beta=0.6, bias=1.5)
    value = [onnx.helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    graph = onnx.helper.make_graph([node], "g", value[:1], value[1:])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    # channel c is divided by the squares of channels c - 1 to c + 2
    squares = np.stack([(x[:, max(c - 1, 0) : c + 3] ** 2).sum(1) for c in range(5)], 1)
    result = load_onnx(reader.read(str(tmp_path / "m.onnx")))(torch.from_numpy(x))
    np.testing.assert_allclose(result.numpy(), x / (1.5 + 0.5 / 4 * squares) ** 0.6, rtol=1e-5)


def test_an_attribute_that_is_not_known_is_refused(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Relu", ["x"], ["y"], steepness=2.0)
    value = onnx.helper.make_tensor_value_info("x", 1, [2]), onnx.helper.make_tensor_value_info("y", 1, [2])
    model = onnx.helper.make_model(onnx.helper.make_graph([node], "g", [value[0]], [value[1]]))
    onnx.save(model, tmp_path / "m.onnx")
    module = load_onnx(reader.read(str(tmp_path / "m.onnx")))
    with pytest.raises(BadModel, match="torch cannot run Relu 'y' with the attribute 'steepness' here"):
        module(torch.zeros(2))


U8, I8, F32, I32 = np.uint8, np.int8, np.float32, np.int32
S, Z = F32(0.05), U8(7)
"""A scale and a zero point."""

RUNTIMES_OWN: dict[str, tuple[dict[str, Any], list[tuple[str, Any]]]] = {
    "DynamicQuantizeMatMul": ({}, [("x", F32), ("w", U8), ("", S), ("", Z), ("c", F32)]),
    "FusedMatMul": ({"transA": 1, "transB": 1, "alpha": 0.5}, [("x", F32), ("w", F32)]),
    "MatMulIntegerToFloat": ({}, [("x", U8), ("w", U8), ("", S), ("", S), ("", Z), ("", Z), ("c", F32)]),
    "QGemm": (
        {"alpha": 0.5, "transB": 1},
        [("x", U8), ("", S), ("", Z), ("w", U8), ("", S), ("", Z), ("c", I32)],
    ),
    "QGemm, with a scale of the result alone": (
        {"transA": 1},
        [("x", I8), ("", S), ("", I8(3)), ("w", I8), ("", S), ("", I8(0)), ("c", I32), ("", F32(0.3))],
    ),
    "QLinearAdd": ({}, [("x", U8), ("", S), ("", Z), ("w", U8), ("", S), ("", Z), ("", S), ("", Z)]),
    "QLinearConcat": (
        {"axis": 0},
        [("", S), ("", Z), ("x", U8), ("", S), ("", Z), ("w", U8), ("", S), ("", Z)],
    ),
    "QLinearLeakyRelu": ({"alpha": 0.1}, [("x", I8), ("", S), ("", I8(3)), ("", S), ("", I8(-2))]),
    "QLinearMul": ({}, [("x", U8), ("", S), ("", Z), ("w", U8), ("", S), ("", Z), ("", S), ("", Z)]),
    "QLinearSigmoid": ({}, [("x", U8), ("", S), ("", Z), ("", F32(1 / 256)), ("", U8(0))]),
}
"""Operators that onnxruntime added, with attributes and inputs.

An input is a type to draw, or a stored number. A comma and a description may follow the name of the operator.
"""


@pytest.mark.parametrize("case", sorted(RUNTIMES_OWN))
def test_an_operator_of_the_runtime_does_what_the_runtime_does(case: str, tmp_path: Path) -> None:
    attributes, given = RUNTIMES_OWN[case]
    op = case.partition(",")[0]
    chance = np.random.default_rng(3)
    feeds, stored = {}, {}
    for at, (name, what) in enumerate(given):
        if not name:
            stored[f"in{at}"] = np.asarray(what)
            continue
        shape = (4,) if name == "c" else (4, 4)
        drawn = chance.standard_normal(shape) if what is F32 else chance.integers(0, 100, shape)
        feeds[f"in{at}"] = drawn.astype(what)
    model = onnx.helper.make_model(
        onnx.helper.make_graph(
            [
                onnx.helper.make_node(
                    op, [f"in{at}" for at in range(len(given))], ["y"], domain="com.microsoft", **attributes
                )
            ],
            "g",
            [
                onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
                for n, v in feeds.items()
            ],
            [onnx.ValueInfoProto(name="y")],
            [numpy_helper.from_array(value, name) for name, value in stored.items()],
        ),
        opset_imports=[onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    path = tmp_path / "one.onnx"
    onnx.save(model, path)
    (true,) = onnxruntime.InferenceSession(path).run(None, feeds)
    with torch.no_grad():
        got = convert_to_array(load_onnx(reader.read(str(path)))(*map(convert_to_tensor, feeds.values())))
    assert (got.dtype, got.shape) == (true.dtype, true.shape)
    # a number between two steps may fall to either
    assert np.abs(got.astype(np.float64) - true).max() <= (1 if got.dtype.kind in "iu" else 1e-4)
