"""Quantized products of every operator: tiles of integers, proved exact, or why they are of floats."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from explorer import Session
from explorer.cli.main import main
from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model
from explorer.facts import TileSpec
from explorer.facts.quantize import QuantizeSpec
from tests.engine.proof.test_integer import with_constant
from tests.engine.proof.tiled import prove, with_array
from tests.pairs import turns

Shape = tuple[int, ...]

_STRIDED = {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}

CASES: dict[str, tuple[str, str, dict[str, Any], dict[str, Shape], Shape]] = {
    "Gemm with alpha and beta": (
        "Gemm",
        "x w b",
        {"alpha": 0.3, "beta": 0.7},
        {"w": (13, 11), "b": (11,)},
        (7, 11),
    ),
    "Gemm with alpha = beta": (
        "Gemm",
        "x w b",
        {"alpha": 0.5, "beta": 0.5},
        {"w": (13, 11), "b": (11,)},
        (7, 11),
    ),
    "Gemm with beta a multiple of alpha": (
        "Gemm",
        "x w b",
        {"alpha": -0.5, "beta": 2.0, "transB": 1},
        {"w": (11, 13), "b": (11,)},
        (7, 11),
    ),
    "Gemm without its bias": ("Gemm", "x w b", {"beta": 0.0}, {"w": (13, 11), "b": (11,)}, (7, 11)),
    "Gemm, weight on the left": ("Gemm", "w x b", {"transB": 1}, {"w": (11, 13), "b": (11, 1)}, (11, 7)),
    "MatMul, weight on the left": ("MatMul", "w x", {}, {"w": (11, 7)}, (11, 13)),
    "MatMul, a stack on the left": ("MatMul", "w s", {}, {"w": (11, 4)}, (3, 11, 5)),
    "MatMul, a stack of weights": ("MatMul", "s w", {}, {"w": (3, 5, 6)}, (3, 4, 6)),
    "FusedMatMul, turned": ("FusedMatMul", "x w", {"transA": 1, "alpha": -0.3}, {"w": (7, 11)}, (13, 11)),
    "FusedMatMul, weight on the left": (
        "FusedMatMul",
        "w x",
        {"transB": 1, "alpha": 2.0},
        {"w": (11, 13)},
        (11, 7),
    ),
    "FusedMatMul, a stack": ("FusedMatMul", "s w", {"transB": 1}, {"w": (6, 5)}, (3, 4, 6)),
    "FusedMatMul with itself": ("FusedMatMul", "q q", {"transB": 1, "alpha": 0.1}, {}, (6, 6)),
    "MatMul with itself": ("MatMul", "q q", {}, {}, (6, 6)),
    "ConvTranspose": ("ConvTranspose", "i w b", _STRIDED, {"w": (4, 5, 3, 3), "b": (5,)}, (2, 5, 10, 10)),
    "ConvTranspose in groups": (
        "ConvTranspose",
        "i w b",
        {**_STRIDED, "group": 2},
        {"w": (4, 3, 3, 3), "b": (6,)},
        (2, 6, 10, 10),
    ),
    "Conv in groups": ("Conv", "i w b", {"group": 2}, {"w": (6, 2, 3, 3), "b": (6,)}, (2, 6, 3, 3)),
    "Conv in groups, computed kernel": ("Conv", "i k", {"group": 2}, {}, (2, 6, 3, 3)),
    "Einsum": ("Einsum", "s w", {"equation": "bik,kj->bij"}, {"w": (5, 6)}, (3, 4, 6)),
    "Einsum into heads": ("Einsum", "s w", {"equation": "btd,hde->bhte"}, {"w": (2, 5, 3)}, (3, 2, 4, 3)),
    "Einsum, a weight a group": ("Einsum", "s w", {"equation": "gtd,gde->gte"}, {"w": (3, 5, 6)}, (3, 4, 6)),
    "Einsum, weight on the left": ("Einsum", "w s", {"equation": "kj,bik->jbi"}, {"w": (5, 6)}, (6, 3, 4)),
}
"""What a user calls each product: operator, what it reads, attributes, what is stored, the output's shape."""

PLAIN = {"MatMul": ("MatMul", "x w", {}, {"w": (13, 11)}, (7, 11))}
"""One that is a MatMulNBits where its weight has four bits."""

FEEDS: dict[str, Shape] = {"x": (7, 13), "s": (3, 4, 5), "q": (6, 6), "i": (2, 4, 5, 5), "k": (6, 2, 3, 3)}


def saved(path: Path, name: str) -> str:
    op, names, attributes, stored, out = {**CASES, **PLAIN}[name]
    draw = np.random.default_rng(3)
    domain = "com.microsoft" if op == "FusedMatMul" else ""
    nodes = [helper.make_node(op, names.split(), ["y"], name="fc", domain=domain, **attributes)]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info(n, TensorProto.FLOAT, FEEDS[n])
            for n in dict.fromkeys(names.split())
            if n not in stored
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, out)],
        [numpy_helper.from_array(draw.normal(size=s).astype(np.float32), n) for n, s in stored.items()],
    )
    sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=10), path)
    return str(path)


def quantized(tmp_path: Path, name: str, spec: QuantizeSpec) -> str:
    where = str(tmp_path / "q.onnx")
    with Session(saved(tmp_path / "a.onnx", name)) as session:
        session.quantize(spec, output=where, report=False)
    return where


def read(where: str) -> Model:
    onnx.save(onnx.shape_inference.infer_shapes(onnx.load(where)), where)
    return reader.read(where)


def both(kind: str) -> QuantizeSpec:
    return QuantizeSpec(weight=kind, input=kind)


TILED = TileSpec((4, 3, 5), grouped="pack")


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("name", "kind", "form"),
    turns(CASES, ["int8", "uint8", "int16", "uint16", "fixed16.8"], ["lab", "scan", "batched"]),
)
def test_a_quantized_product_is_tiled_as_integers_and_proved_exact(
    tmp_path: Path, name: str, kind: str, form: Any
) -> None:
    found = prove(read(quantized(tmp_path, name, both(kind))), replace(TILED, form=form))
    assert found.passed, found.verdict
    assert "exact integer arithmetic" in found.sites[0].reason


CUT = ("MatMul, a stack on the left", "MatMul, a stack of weights", "Einsum into heads")
"""Whose weights are cut as the graph runs."""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "kind", "form"),
    turns(
        [name for name in CASES if name not in CUT],
        ["fixed12.6", "fixed6.2", "ufixed15.9", "int4", "ternary"],
        ["lab", "scan", "batched"],
        times=1,
    ),
)
def test_codes_that_a_function_rounds_to_are_tiled_as_integers_too(
    tmp_path: Path, name: str, kind: str, form: Any
) -> None:
    found = prove(read(quantized(tmp_path, name, both(kind))), replace(TILED, form=form))
    assert found.passed, found.verdict
    assert "exact integer arithmetic" in found.sites[0].reason


@pytest.mark.parametrize("name", CUT)
def test_codes_of_a_function_that_are_cut_as_it_runs_stay_floats(tmp_path: Path, name: str) -> None:
    with Session(quantized(tmp_path, name, both("fixed12.6"))) as session:
        (site,) = session.plan(TILED).sites
    reason = "its weight is cut at run time, but its codes are computed while the file is written"
    assert site.in_floats == reason


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("label", "change"),
    [("/x_step", lambda v: v * np.float32(1.001)), ("/x_step", lambda v: v * 2), ("/scale", lambda v: v * 2)],
)
def test_a_step_that_is_not_the_formats_is_found(
    tmp_path: Path, label: str, change: Callable[[np.ndarray], np.ndarray]
) -> None:
    source = read(quantized(tmp_path, "Conv in groups", both("fixed12.6")))
    assert not prove(source, replace(TILED, form="unrolled"), with_constant(label, change)).passed


def test_a_function_of_that_name_that_does_not_round_is_found(tmp_path: Path) -> None:
    """What it gives are no codes, whatever it is called."""
    where = quantized(tmp_path, "Einsum", both("fixed12.6"))
    model = onnx.load(where)
    (function,) = model.functions
    for node in function.node:
        if node.op_type == "Round":
            node.op_type = "Identity"
    onnx.save(model, where)
    assert not prove(read(where), TILED).passed


def a_code(made: Model) -> Model:
    """The last number of the last stored tile, or of the weight where it is cut as it runs, one further."""
    stored = made.graph.initializers
    tiles = [n for n in stored if "/tile_" in n or "/codes/" in n]
    tiles = tiles or [n for n in stored if n.startswith("w_quantized")]

    def changed(codes: np.ndarray) -> np.ndarray:
        flat = codes.reshape(-1)
        flat[-1] += 1 if flat[-1] < 100 else -1
        return codes

    return with_array(made, tiles[-1], changed)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("name", "kind"),
    turns([name for name, case in CASES.items() if case[3]], ["int8", "fixed16.8", "fixed12.6"], times=1),
)
def test_one_changed_code_of_a_weight_is_found(tmp_path: Path, name: str, kind: str) -> None:
    if kind == "fixed12.6" and name in CUT:
        return  # of floats: its weight stays as it was
    found = prove(read(quantized(tmp_path, name, both(kind))), replace(TILED, form="lab"), a_code)
    assert not found.passed
    assert found.verdict_kind == "different"


SPOILT: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    "alpha forgotten": ("Gemm with alpha and beta", "/scale", lambda v: v / np.float32(0.3)),
    "beta forgotten": ("Gemm with alpha and beta", "/bias_float", lambda v: v / np.float32(0.7)),
    "beta over alpha forgotten": ("Gemm with beta a multiple of alpha", "/bias", lambda v: v // -4),
    "the scale of another channel": ("ConvTranspose", "/scale", lambda v: np.roll(v, 1, -1)),
    "the bias of another channel": ("ConvTranspose in groups", "/bias", lambda v: np.roll(v, 1, -1)),
    "the scale of another head": ("Einsum into heads", "/scale", lambda v: np.roll(v, 1, -1)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", SPOILT)
def test_what_stands_behind_the_sum_is_proved_too(tmp_path: Path, fault: str) -> None:
    name, label, change = SPOILT[fault]
    source = read(quantized(tmp_path, name, both("int8")))
    found = prove(source, replace(TILED, form="unrolled"), with_constant(label, change))
    assert not found.passed


LEFT: dict[str, tuple[str, QuantizeSpec, str]] = {
    "weights only": ("Einsum", QuantizeSpec(weight="int8", input="float32"), "its input is not quantized"),
    "blocks": (
        "Einsum",
        replace(both("int8"), block=2),
        "its weight has scales in blocks or computed scales",
    ),
    "MatMulNBits": ("MatMul", QuantizeSpec(weight="int4", input="float32"), "its input is not quantized"),
    "MatMulNBits of an int8 input": (
        "MatMul",
        QuantizeSpec(weight="int4", input="int8"),
        "its weight has scales in blocks, so a sum has no common scale",
    ),
    "wide codes": (
        "Einsum",
        both("fixed20.6"),
        "its input has codes of 20 bits, but tiles multiply 16 bits; a sum of K = 5 products needs 42 bits",
    ),
}


@pytest.mark.parametrize("case", LEFT)
def test_why_a_quantized_product_stays_in_floats_is_told(
    tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, spec, reason = LEFT[case]
    where = quantized(tmp_path, name, spec)
    assert main(["tile", where, "--json"]) == 0
    (site,) = json.loads(capsys.readouterr().out)["plan"]["sites"]
    assert site["in_floats"] == reason
    assert main(["tile", where]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"Computed in floats, although quantized: fc ({reason})" in said


def test_what_is_divided_by_a_scale_of_0_is_no_product_of_integers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """x / 0 is no code: of an input it stays in floats, and an operator that rounds its output is left."""
    for form, op, at in (("qdq", "QuantizeLinear", 1), ("qoperator", "QLinearMatMul", 6)):
        (tmp_path / form).mkdir()
        where = quantized(tmp_path / form, "MatMul", replace(both("int8"), form=form))
        model = onnx.load(where)
        scale = next(n for n in model.graph.node if n.op_type == op).input[at]
        stored = next(t for t in model.graph.initializer if t.name == scale)
        stored.CopyFrom(numpy_helper.from_array(np.zeros((), np.float32), scale))
        onnx.save(model, where)
        left = main(["tile", where])
        told = " ".join("".join(capsys.readouterr()).split())
        if form == "qdq":
            assert (left, "its input is divided by a scale of 0" in told) == (0, True)
        else:
            why = "its output is divided by a scale of 0, so it stays untiled"
            assert (left, told) == (2, f"explorer: no matmul can be tiled ({why})")


@pytest.mark.parametrize("scale", [np.nan, np.inf])
def test_a_scale_that_is_no_number_gives_no_product_of_integers(
    tmp_path: Path, scale: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """And what is NaN on either side is not told to differ."""
    where = quantized(tmp_path, "MatMul", both("int8"))
    model = onnx.load(where)
    name = next(n for n in model.graph.node if n.op_type == "QuantizeLinear").input[1]
    stored = next(t for t in model.graph.initializer if t.name == name)
    stored.CopyFrom(numpy_helper.from_array(np.asarray(scale, np.float32), name))
    onnx.save(model, where)
    assert main(["tile", where, "-o", str(tmp_path / "t.onnx")]) == 3
    told = " ".join("".join(capsys.readouterr()).split())
    assert "its input has a scale that is not a number, or infinite" in told
    assert "NaN against NaN shows nothing" in told


@pytest.mark.parametrize(
    ("codes", "scale", "more"),
    [
        (ml_dtypes.float8_e4m3fn, np.float32, {}),
        (ml_dtypes.float8_e5m2fnuz, np.float16, {}),
        (np.int16, np.float16, {}),
        (np.int16, np.float16, {"output_dtype": TensorProto.FLOAT}),
    ],
)
def test_tiles_of_a_dequantized_weight_hold_what_the_runtime_dequantizes(
    codes: Any, scale: Any, more: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Codes may be small floats; a product of wide integers and float16 scales is rounded once."""
    draw = np.random.default_rng(5)
    numbers = draw.normal(0, 9000 if codes is np.int16 else 3, (9, 7)).astype(codes)
    stored = {"w": numbers, "s": draw.uniform(1e-4, 2e-4, 7).astype(scale)}
    kind = more.get("output_dtype") or helper.np_dtype_to_tensor_dtype(np.dtype(scale))
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=1, **more),
        helper.make_node("MatMul", ["x", "d"], ["y"], name="fc"),
    ]
    ends = [helper.make_tensor_value_info(n, kind, shape) for n, shape in (("x", (5, 9)), ("y", (5, 7)))]
    tensors = [numpy_helper.from_array(a, n) for n, a in stored.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], tensors)
    opsets = [helper.make_opsetid("", 23)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, tmp_path / "m.onnx")
    model.graph.output.append(onnx.ValueInfoProto(name="d"))
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = session.run(["d"], {"x": np.zeros((5, 9), helper.tensor_dtype_to_np_dtype(kind))})[0]
    target = str(tmp_path / "t.onnx")
    assert main(["tile", str(tmp_path / "m.onnx"), "-o", target, "--tile", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["verification"]["verdict_kind"] == "equal"
    weights = [numpy_helper.to_array(tensor) for tensor in onnx.load(target).graph.initializer]
    np.testing.assert_array_equal(next(w for w in weights if w.shape == (9, 7)), wanted)
