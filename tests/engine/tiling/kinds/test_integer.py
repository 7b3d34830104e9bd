"""Tiling promises of integers: the same integers, whatever the form, and no arithmetic but 8 bits into 32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from explorer import ExplorerError, Session, TileSpec
from explorer.engine.formats.onnx import reader
from tests import stock
from tests.engine.tiling.integers import OPERATORS, integers, matmul_integer, qgemm, save_integers
from tests.pairs import turns

FORMS = ("lab", "scan", "unrolled", "batched")


def inputs_of(path: str) -> dict[str, np.ndarray]:
    """Numbers of the whole range for every input."""
    feeds = {}
    for at, value in enumerate(ort.InferenceSession(path).get_inputs()):
        kind = {"tensor(uint8)": np.uint8, "tensor(int8)": np.int8}.get(value.type)
        shape = [d if isinstance(d, int) else 3 for d in value.shape]
        if kind is not None:
            feeds[value.name] = integers(kind, *shape, seed=10 + at)
        else:
            feeds[value.name] = np.random.default_rng(at).standard_normal(shape).astype(np.float32)
    return feeds


def run(path: str, feeds: dict[str, np.ndarray], *, optimise: bool = True) -> np.ndarray:
    return stock.outputs(path, feeds, stock.LEVELS[-1 if optimise else 0])[0]


def tiled(source: str, target: Path, spec: TileSpec) -> Session:
    session = Session(source)
    session.tile(spec, output=str(target), verify=False)
    onnx.checker.check_model(str(target), full_check=True)
    return session


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("name", "form", "edges"), turns(OPERATORS, FORMS, ["ragged", "padded", "padded"]))
def test_the_tiled_graph_gives_the_integers_of_onnxruntime(
    tmp_path: Path, name: str, form: Any, edges: Any
) -> None:
    source = OPERATORS[name](tmp_path / "a.onnx")
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form=form, edges=edges, grouped="pack"))
    feeds = inputs_of(source)
    before, after = run(source, feeds), run(str(tmp_path / "b.onnx"), feeds)
    assert after.dtype == before.dtype
    np.testing.assert_array_equal(after, before)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [n for n in OPERATORS if "QGemm" not in n and "grouped" not in n])
def test_the_tiled_graph_gives_the_integers_of_the_reference_evaluator(tmp_path: Path, name: str) -> None:
    source = OPERATORS[name](tmp_path / "a.onnx")
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form="unrolled"))
    feeds = inputs_of(source)
    expected = run(source, feeds)
    after = ReferenceEvaluator(str(tmp_path / "b.onnx")).run(None, feeds)[0]
    np.testing.assert_array_equal(after, expected)


def test_unsigned_times_signed_is_exact_where_a_processor_saturates(tmp_path: Path) -> None:
    source = matmul_integer(tmp_path / "a.onnx", np.uint8, np.int8, 128, 0)
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5)))
    x = integers(np.uint8, 7, 13, seed=10)
    exact = (x.astype(np.int64) - 128) @ integers(np.int8, 13, 11, seed=1).astype(np.int64)
    np.testing.assert_array_equal(run(str(tmp_path / "b.onnx"), {"x": x}), exact)


def test_two_activations_of_two_types_are_exact(tmp_path: Path) -> None:
    x, w = integers(np.uint8, 2, 7, 13, seed=1), integers(np.int8, 2, 13, 5, seed=2)
    node = helper.make_node("MatMulInteger", ["x", "w"], ["y"], name="fc")
    feeds = {"x": (np.uint8, x.shape), "w": (np.int8, w.shape)}
    source = save_integers(tmp_path / "a.onnx", node, feeds, {}, (np.int32, (2, 7, 5)))
    for form in FORMS:
        target = tmp_path / f"{form}.onnx"
        tiled(source, target, TileSpec((4, 6, 5), form=form))  # type: ignore[arg-type]
        made = run(str(target), {"x": x, "w": w})
        np.testing.assert_array_equal(made, x.astype(np.int64) @ w.astype(np.int64))


@pytest.mark.parametrize("form", FORMS)
def test_a_zero_point_for_every_row(tmp_path: Path, form: Any) -> None:
    x, w = integers(np.uint8, 7, 13, seed=1), integers(np.uint8, 13, 5, seed=2)
    za, zb = integers(np.uint8, 7, seed=3), integers(np.uint8, 5, seed=4)
    node = helper.make_node("MatMulInteger", ["x", "w", "za", "zb"], ["y"], name="fc")
    stored = {"w": w, "za": za, "zb": zb}
    source = save_integers(tmp_path / "a.onnx", node, {"x": (np.uint8, (7, 13))}, stored, (np.int32, (7, 5)))
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form=form))
    # onnxruntime takes one zero point for the left operand: the standard's words are the truth here
    exact = (x.astype(np.int64) - za[:, None]) @ (w.astype(np.int64) - zb)
    np.testing.assert_array_equal(run(str(tmp_path / "b.onnx"), {"x": x}), exact)


def test_a_result_with_a_scale_and_without_a_zero_point_is_float32(tmp_path: Path) -> None:
    source = qgemm(tmp_path / "a.onnx", turned=1, result=("ys",))
    with Session(source) as session:
        (layer,) = session.analysis().layers
        assert layer.outputs[0].dtype == "float32"
        proof = session.tile(TileSpec((4, 6, 5)), output=str(tmp_path / "b.onnx")).verification
    assert proof is not None
    assert proof.passed
    feeds = inputs_of(source)
    np.testing.assert_array_equal(run(str(tmp_path / "b.onnx"), feeds), run(source, feeds))


def test_the_tile_operator_is_a_product_of_bytes_without_zero_points(tmp_path: Path) -> None:
    source = matmul_integer(tmp_path / "a.onnx", np.int8, np.int8, -3, 5)
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5)))
    functions = {f.name: f for f in reader.read(str(tmp_path / "b.onnx")).functions.values()}
    (operator,) = [f for name, f in functions.items() if name == "2DMM_4x6x5_int8"]
    assert [(n.op, len(n.inputs)) for n in operator.nodes] == [("MatMulInteger", 2)]


@pytest.mark.parametrize(
    "name", ["QLinearConv", "QLinearConv, padded", "QGemm", "MatMulInteger, zero points"]
)
def test_info_counts_the_macs_of_tiled_integers(tmp_path: Path, name: str) -> None:
    source = OPERATORS[name](tmp_path / "a.onnx")
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5)))
    on_tiles = Session(str(tmp_path / "b.onnx")).info().tiled
    assert on_tiles is not None
    assert on_tiles.share == 1.0


OPEN = [("MatMulInteger", ("n", 13), ("n", 11)), ("ConvInteger, padded", ("n", 6, 9, 8), ("n", 8, 9, 8))]


@pytest.mark.parametrize(("name", "x", "y"), OPEN)
def test_a_batch_may_stay_open(tmp_path: Path, name: str, x: Any, y: Any) -> None:
    made = onnx.load(OPERATORS[name](tmp_path / "a.onnx"))
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "n"
    made.graph.output[0].type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(made, tmp_path / "open.onnx")
    tiled(str(tmp_path / "open.onnx"), tmp_path / "b.onnx", TileSpec((4, 6, 5)))
    for n in (1, 4, 5):
        feeds = {"x": integers(np.uint8, n, *x[1:])}
        np.testing.assert_array_equal(
            run(str(tmp_path / "b.onnx"), feeds), run(str(tmp_path / "open.onnx"), feeds)
        )


def between(path: Path, *, kind: Any, columns: int, both: bool, op: str = "Gemm") -> str:
    """Gemm or MatMul behind DequantizeLinear: of both operands, or of the weight alone."""
    stored = {
        "w": integers(kind, 13, 11, seed=1),
        "xs": np.float32(0.02),
        "xz": np.asarray(3, kind),
        "ws": np.random.default_rng(7).uniform(1e-3, 1e-2, columns if columns else ()).astype(np.float32),
        "wz": np.zeros(columns, kind) if columns else np.asarray(5, kind),
        "b": np.random.default_rng(2).standard_normal(11).astype(np.float32),
    }
    before = [helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=1)]
    if both:
        before += [
            helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
            helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        ]
    names = ["xd" if both else "x", "wd", "b"][: 3 if op == "Gemm" else 2]
    node = helper.make_node(op, names, ["y"], name="fc")
    if op == "MatMul":
        del stored["b"]
    for unused in () if both else ("xs", "xz"):
        del stored[unused]
    floats = {"x": (np.float32, (7, 13))}
    return save_integers(path, node, floats, stored, (np.float32, (7, 11)), before=tuple(before))


def test_a_batch_of_16_bit_codes_may_stay_open(tmp_path: Path) -> None:
    made = onnx.load(between(tmp_path / "a.onnx", kind=np.int16, columns=0, both=True, op="MatMul"))
    made.opset_import[0].version, made.ir_version = 21, 10
    for value in (made.graph.input[0], made.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(made, tmp_path / "open.onnx")
    tiled(str(tmp_path / "open.onnx"), tmp_path / "b.onnx", TileSpec((4, 6, 5)))
    for n in (1, 4, 9):  # 13 rows of the weight and 9 of the input are padded
        feeds = {"x": np.random.default_rng(n).standard_normal((n, 13)).astype(np.float32)}
        before = run(str(tmp_path / "open.onnx"), feeds)
        np.testing.assert_allclose(run(str(tmp_path / "b.onnx"), feeds), before, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize("columns", [0, 11])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
def test_between_dequantizers_the_tiles_are_of_integers(
    tmp_path: Path, kind: Any, columns: int, op: str, form: Any
) -> None:
    source = between(tmp_path / "a.onnx", kind=kind, columns=columns, both=True, op=op)
    session = tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form=form))
    plan = session.history().entries[1].plan
    assert plan is not None
    assert plan.sites[0].dtype == np.dtype(kind).name
    assert plan.sites[0].accumulator == "int32"
    feeds = inputs_of(source)
    # optimised, onnxruntime would round the activation to 8 bits
    before = run(source, feeds, optimise=False)
    np.testing.assert_allclose(run(str(tmp_path / "b.onnx"), feeds), before, rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("columns", [0, 11])
def test_a_weight_behind_a_dequantizer_alone_is_tiled_in_floats(
    tmp_path: Path, columns: int, form: Any
) -> None:
    source = between(tmp_path / "a.onnx", kind=np.int8, columns=columns, both=False)
    session = tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form=form))
    plan = session.history().entries[1].plan
    assert plan is not None
    assert plan.sites[0].dtype == "float32"
    feeds = inputs_of(source)
    # optimised, onnxruntime would round the activation to 8 bits
    before = run(source, feeds, optimise=False)
    np.testing.assert_allclose(run(str(tmp_path / "b.onnx"), feeds), before, rtol=1e-5, atol=1e-5)
    assert not [n for n in reader.read(str(tmp_path / "b.onnx")).graph.nodes if n.op.startswith("Dequant")]


def packed(path: Path, *, bits: int, zeros: str, bias: bool = False, **more: Any) -> str:
    """MatMulNBits of (2, 7, 40) x (40, 11) in blocks of 16."""
    stored: dict[str, Any] = {
        "w": integers(np.uint8, 11, 3, 2 * bits, seed=1),
        "s": np.random.default_rng(7).uniform(1e-3, 0.1, 33).astype(np.float32),
    }
    names = ["x", "w", "s"]
    if zeros == "packed":
        stored["z"] = integers(np.uint8, 11 * -(-3 * bits // 8), seed=2)
    elif zeros == "floats":
        stored["z"] = np.random.default_rng(4).uniform(0, 8, 33).astype(np.float32)
    names += ["z"] if zeros else []
    if bias:
        stored["b"] = np.random.default_rng(5).standard_normal(11).astype(np.float32)
        names += [""] * (5 - len(names)) + ["b"]
    node = helper.make_node(
        "MatMulNBits",
        names,
        ["y"],
        name="fc",
        domain="com.microsoft",
        K=40,
        N=11,
        bits=bits,
        block_size=16,
        **more,
    )
    return save_integers(path, node, {"x": (np.float32, (2, 7, 40))}, stored, (np.float32, (2, 7, 11)))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("bits", "zeros", "bias"), [(4, "", False), (4, "packed", True), (4, "floats", False), (8, "", True)]
)
def test_packed_weights_are_unpacked(tmp_path: Path, bits: int, zeros: str, bias: bool, form: Any) -> None:
    source = packed(tmp_path / "a.onnx", bits=bits, zeros=zeros, bias=bias)
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form=form))
    feeds = inputs_of(source)
    np.testing.assert_allclose(run(str(tmp_path / "b.onnx"), feeds), run(source, feeds), rtol=1e-5, atol=1e-4)


LEFT = [
    (lambda p: packed(p, bits=4, zeros="", accuracy_level=4), "accuracy_level 4"),
    (lambda p: OPERATORS["ConvInteger, grouped"](p), "left for the vector unit"),
]


@pytest.mark.parametrize(("make", "reason"), LEFT)
def test_what_is_left_is_named_with_the_reason(tmp_path: Path, make: Any, reason: str) -> None:
    from explorer import Misuse

    with pytest.raises(Misuse, match=reason):
        Session(make(tmp_path / "a.onnx")).plan(TileSpec((4, 6, 5)))


def test_weights_are_stored_as_bytes(tmp_path: Path) -> None:
    source = matmul_integer(tmp_path / "a.onnx", np.int8, np.int8, -3, 5)
    tiled(source, tmp_path / "b.onnx", TileSpec((4, 6, 5), form="unrolled"))
    stored = [numpy_helper.to_array(t) for t in onnx.load(tmp_path / "b.onnx").graph.initializer]
    assert {a.dtype for a in stored} == {np.dtype(np.int8)}
    assert sum(a.size for a in stored) == 13 * 11


def test_integers_in_the_body_of_a_loop_are_tiled_and_proven(tmp_path: Path) -> None:
    info = helper.make_tensor_value_info
    kind = onnx.TensorProto
    body = helper.make_graph(
        [
            helper.make_node("MatMulInteger", ["x", "w", "za", "zb"], ["p"], name="fc"),
            helper.make_node("Add", ["s", "p"], ["s2"]),
            helper.make_node("Identity", ["go"], ["go2"]),
        ],
        "body",
        [info("i", kind.INT64, []), info("go", kind.BOOL, []), info("s", kind.INT32, [7, 11])],
        [info("go2", kind.BOOL, []), info("s2", kind.INT32, [7, 11])],
    )
    stored = {
        "w": integers(np.uint8, 13, 11, seed=1),
        "za": np.uint8(3),
        "zb": np.uint8(7),
        "n": np.int64(3),
        "s0": np.zeros((7, 11), np.int32),
    }
    loop = helper.make_node("Loop", ["n", "", "s0"], ["y"], body=body, name="loop")
    feeds = {"x": (np.uint8, (7, 13))}
    source = save_integers(tmp_path / "a.onnx", loop, feeds, stored, (np.int32, (7, 11)))
    result = Session(source).tile(TileSpec((4, 6, 5)), output=str(tmp_path / "b.onnx"), verify=True)
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert [site.name for site in result.plan.sites] == ["loop.body/fc"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_a_convolution_between_dequantizers_pads_with_the_zero_point(tmp_path: Path, form: Any) -> None:
    stored = {
        "w": integers(np.int8, 8, 6, 3, 3, seed=1),
        "xs": np.float32(0.02),
        "xz": np.int8(-9),
        "ws": np.random.default_rng(7).uniform(1e-3, 1e-2, 8).astype(np.float32),
        "wz": np.zeros(8, np.int8),
    }
    before = (
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
    )
    node = helper.make_node("Conv", ["xd", "wd"], ["y"], name="conv", pads=[1, 1, 1, 1])
    feeds = {"x": (np.float32, (2, 6, 9, 8))}
    source = save_integers(
        tmp_path / "a.onnx", node, feeds, stored, (np.float32, (2, 8, 9, 8)), before=before
    )
    spec = TileSpec((4, 6, 5), form=form)
    result = Session(source).tile(spec, output=str(tmp_path / "b.onnx"), verify=True)
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert result.plan.sites[0].dtype == "int8"
    kept = onnx.load(tmp_path / "b.onnx").graph.node
    assert not [n for n in kept if n.op_type == "DequantizeLinear"]


@pytest.mark.parametrize("groups", [2, 3])
def test_a_grouped_convolution_with_several_zero_points_is_refused_with_the_reason(
    tmp_path: Path, groups: int
) -> None:
    source = str(tmp_path / "a.onnx")
    channels = 2 * groups
    stored = {
        "w": integers(np.uint8, channels, 2, 3, 3, seed=2),
        "xs": np.float32(0.1),
        "xz": np.uint8(7),
        "ys": np.float32(0.4),
        "wz": np.arange(60, 60 + channels, dtype=np.uint8),
        "yz": np.uint8(90),
        "ws": np.full(channels, 0.02, np.float32),
    }
    names = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    node = helper.make_node("QLinearConv", names, ["y"], name="conv", group=groups)
    shapes = (np.uint8, (1, channels, 7, 7)), (np.uint8, (1, channels, 5, 5))
    save_integers(source, node, {"x": shapes[0]}, stored, shapes[1])
    with pytest.raises(ExplorerError, match="its kernels have more than one zero point"):
        Session(source).tile(TileSpec((4, 4, 4), grouped="pack"), output=str(tmp_path / "b.onnx"))
