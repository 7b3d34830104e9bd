"""A quantized model beside its original: one row a layer, and none for what only reads what is rounded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

from explorer import Session, TileSpec, diff_files
from explorer.facts import Diff
from explorer.facts.quantize import QuantizeSpec

W = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


def save(path: Path, nodes: list[Any], tensors: dict[str, Any]) -> str:
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in tensors.items()],
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("qonnx.custom_op.general", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return str(path)


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], name=output, **attributes)


def original(folder: Path, last: str = "Relu") -> str:
    nodes = [node("MatMul", "x w", "m"), node("Relu", "m", "r"), node(last, "r", "y")]
    return save(folder / "a.onnx", nodes, {"w": W})


def codes(axis: int | None = 1) -> tuple[Any, Any]:
    scale = np.asarray(np.abs(W).max(0 if axis == 1 else None) / 127, np.float32)
    return np.rint(W / scale).astype(np.int8), scale


def rounding(value: str, output: str, scale: str = "s") -> list[Any]:
    return [
        node("QuantizeLinear", f"{value} {scale}", f"{value}_q{output}", output_dtype=TensorProto.INT8),
        node("DequantizeLinear", f"{value}_q{output} {scale}", output),
    ]


def rows(before: str, after: str) -> list[tuple[str, str]]:
    return [(row.status, row.what) for row in diff_files(before, after).nodes]


@pytest.mark.parametrize(("axis", "said"), [(1, "per channel"), (None, "per tensor")])
def test_a_quantized_layer_is_one_row_with_its_signal_to_noise(tmp_path: Path, axis: Any, said: str) -> None:
    stored, scale = codes(axis)
    tensors = {"w_q": stored, "ws": scale, "s": np.float32(0.05)}
    nodes = [
        *rounding("x", "xr"),
        node("DequantizeLinear", "w_q ws", "w", axis=1),
        node("MatMul", "xr w", "m"),
        node("Relu", "m", "r"),
        node("Relu", "r", "y"),
    ]
    found = diff_files(original(tmp_path), save(tmp_path / "b.onnx", nodes, tensors))
    snr = 10 * np.log10((W.astype(float) ** 2).sum() / ((stored * scale.astype(float) - W) ** 2).sum())
    assert [(row.before, row.status, row.what) for row in found.nodes] == [
        ("m", "quantized", f"MatMul -> int8, {said}, {snr:.1f} dB")
    ]
    assert not found.equal
    assert dict(found.nodes[0].children) == {"DequantizeLinear": 2, "QuantizeLinear": 1}
    assert {
        row.op: (row.changed, row.unchanged, row.added) for row in found.summary if row.changed or row.added
    } == {"MatMul": (1, 0, 0)}


@pytest.mark.parametrize("node", ["MatMul", "Gemm<transB=1>"])
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"weight": "int4", "block": 16}, "weight int4, block 16"),
        ({"weight": "uint4", "symmetric": False}, "weight uint4, per channel"),
        (
            {"weight": "int8", "input": "uint8", "form": "qoperator"},
            "int8 x uint8, output uint8, per channel",
        ),
    ],
    ids=["blocks", "zero points", "qoperator"],
)
def test_weights_in_blocks_and_in_operators_of_integers_have_their_signal_to_noise(
    node: str, spec: dict[str, Any], said: str, tmp_path: Path
) -> None:
    """What the report of the quantization says of the same weight, to a tenth of a dB."""
    weight = np.random.default_rng(0).standard_normal((40, 40)).astype(np.float32)
    text = f"(float[3,40] x) => (float[3,40] y) {{ y = {node}(x,w) }}"
    proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> g {text}')
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    onnx.save(proto, tmp_path / "a.onnx")
    with Session(str(tmp_path / "a.onnx")) as session:
        fact = session.quantize(QuantizeSpec(**{"input": "float32", **spec}), output=str(tmp_path / "b.onnx"))
    snr, op = fact.layers[0].weight_snr_db, node.partition("<")[0]
    said = said.replace(", output uint8", "") if op == "Gemm" else said
    found = rows(str(tmp_path / "a.onnx"), str(tmp_path / "b.onnx"))
    assert ("quantized", f"{op} -> {said}, {snr:.1f} dB") in found


def test_what_rounds_a_value_for_another_operator_is_its_maker_s(tmp_path: Path) -> None:
    """A Relu that reads a rounded product is as it was; the product is what is rounded."""
    nodes = [
        node("MatMul", "x w", "m"),
        *rounding("m", "mr"),
        node("Relu", "mr", "r"),
        node("Relu", "r", "y0"),
        *rounding("y0", "y"),
    ]
    after = save(tmp_path / "b.onnx", nodes, {"w": W, "s": np.float32(0.05)})
    assert rows(original(tmp_path), after) == [
        ("quantized", "MatMul -> output int8"),
        ("quantized", "Relu -> output int8"),
    ]


def test_a_change_beside_the_number_format_is_told(tmp_path: Path) -> None:
    """A layer that reads something else, or is another, is not merely quantized."""
    stored, scale = codes()
    tensors = {"w_q": stored, "ws": scale, "s": np.float32(0.05)}
    nodes = [
        node("Neg", "x", "n"),
        *rounding("n", "xr"),
        node("DequantizeLinear", "w_q ws", "w", axis=1),
        node("MatMul", "xr w", "m"),
        node("Relu", "m", "r"),
        node("LeakyRelu", "r", "y", alpha=0.5),
    ]
    found = rows(original(tmp_path, "LeakyRelu"), save(tmp_path / "b.onnx", nodes, tensors))
    assert found[0] == ("added", "")
    assert found[1][0] == "changed"
    assert found[1][1].startswith("MatMul -> int8, per channel")
    assert found[1][1].endswith("input 0: x -> n")
    assert found[2] == ("changed", "attribute alpha 0.01 (default) -> 0.5")


def test_two_quantized_models_are_compared_scale_by_scale(tmp_path: Path) -> None:
    """Where both round, how they do it is what differs: nothing is folded."""
    made = []
    for at, scale in enumerate((0.05, 0.06)):
        nodes = [*rounding("x", "xr"), node("MatMul", "xr w", "m"), node("Relu", "m", "y")]
        made.append(save(tmp_path / f"{at}.onnx", nodes, {"w": W, "s": np.float32(scale)}))
    found = rows(*made)
    assert [status for status, _ in found] == ["changed", "changed"]
    assert all("weight s" in what for _, what in found)
    assert diff_files(made[0], made[0]).equal


def test_an_input_that_is_an_output_rounded_is_not_lost(tmp_path: Path) -> None:
    """No layer has this rounding, so it has rows of its own: the models are not equal."""
    before = save(tmp_path / "a.onnx", [node("Identity", "x", "y")], {})
    after = save(tmp_path / "b.onnx", rounding("x", "y"), {"s": np.float32(0.1)})
    found = diff_files(before, after)
    assert not found.equal
    assert "QuantizeLinear" in {row.op_after for row in found.nodes if row.status == "added"}


def test_rounding_that_nobody_reads_is_listed(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", "x w", "m"),
        node("Relu", "m", "r"),
        node("Relu", "r", "y"),
        *rounding("x", "dead"),
    ]
    after = save(tmp_path / "b.onnx", nodes, {"w": W, "s": np.float32(0.1)})
    assert [status for status, _ in rows(original(tmp_path), after)] == ["added", "added"]


def test_functions_of_qonnx_and_casts_are_formats_too(tmp_path: Path) -> None:
    domain = "qonnx.custom_op.general"
    tensors = {"w": W, "s": np.float32(0.0625), "z": np.float32(0), "bits": np.float32(6)}
    quantizers = [
        helper.make_node(
            "IntQuant", [name, "s", "z", "bits"], [f"{name}r"], domain=domain, signed=1, narrow=0
        )
        for name in ("x", "w")
    ]
    rest = [node("MatMul", "xr wr", "m"), node("Relu", "m", "r"), node("Relu", "r", "y")]
    after = save(tmp_path / "b.onnx", [*quantizers, *rest], tensors)
    rounded = np.clip(np.rint(W.astype(float) * 16), -32, 31) / 16
    snr = 10 * np.log10((W.astype(float) ** 2).sum() / ((rounded - W) ** 2).sum())
    assert rows(original(tmp_path), after) == [("quantized", f"MatMul -> fixed6.4, {snr:.1f} dB")]
    casts = [
        node("Cast", "x", "h", to=TensorProto.FLOAT16),
        node("Cast", "h", "xr", to=TensorProto.FLOAT),
        node("Cast", "wh", "wr", to=TensorProto.FLOAT),
    ]
    half = W.astype(np.float16)
    after = save(tmp_path / "c.onnx", [*casts, *rest], {"wh": half})
    snr = 10 * np.log10((W.astype(float) ** 2).sum() / ((half.astype(float) - W) ** 2).sum())
    assert rows(original(tmp_path), after) == [("quantized", f"MatMul -> float16, {snr:.1f} dB")]


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        generator = np.random.default_rng(1)
        self.left = [
            {"input": generator.standard_normal((1, 1, 28, 28)).astype(np.float32)} for _ in range(2)
        ]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def test_what_onnxruntime_s_quantizer_made_reads_alike(sample: Any, tmp_path: Path) -> None:
    """It drops a Relu where the range of the integers does the same, and rounds what operators put out."""
    before, after = str(sample("lenet")), str(tmp_path / "q.onnx")
    quantize_static(before, after, _Reader(), per_channel=True)
    found: Diff = diff_files(before, after)
    assert {row.status for row in found.nodes} == {"quantized", "folded"}
    quantized = {row.before: row.what for row in found.nodes if row.status == "quantized"}
    assert quantized["/fc2/Gemm"].startswith("Gemm -> int8, per channel, 4")
    (row,) = [row for row in found.nodes if row.status == "folded"]
    assert (
        row.what == "4 Relu replaced by the integer range of the quantizer that follows, with the same values"
    )
    assert not {"QuantizeLinear", "DequantizeLinear"} & {row.op for row in found.summary}
    model = onnx.load(after)
    zeros = {node.input[2] for node in model.graph.node if node.op_type == "QuantizeLinear"}
    first = next(
        one for one in model.graph.initializer if one.name in zeros and numpy_helper.to_array(one) == -128
    )
    first.CopyFrom(numpy_helper.from_array(np.array(-120, np.int8), first.name))
    onnx.save(model, tmp_path / "below.onnx")  # what is below zero passes by eight steps
    below = diff_files(before, str(tmp_path / "below.onnx")).nodes
    assert [row.op_before for row in below if row.status == "removed"] == ["Relu"]
    assert ["3 Relu replaced" in row.what for row in below if row.status == "folded"] == [True]
    back = {row.before: row.what for row in diff_files(after, before).nodes if row.before == "/fc2/Gemm"}
    assert back["/fc2/Gemm"].startswith("int8, per channel, 4")
    assert back["/fc2/Gemm"].partition(" -> ")[2].startswith("Gemm")


def test_layers_that_compute_with_integers_read_like_those_between_rounding(
    sample: Any, tmp_path: Path
) -> None:
    """QLinearConv and QGemm are the same rows as QDQ, with the same figures; another stride is told."""
    before, told = str(sample("lenet")), {}
    for form in ("qdq", "qoperator"):
        after = str(tmp_path / f"{form}.onnx")
        with Session(before) as session:
            session.quantize(QuantizeSpec("int8", "int8", "auto", form=form), output=after, report=False)
        found = diff_files(before, after)
        told[form] = {
            r.before: r.what.replace("output int8, ", "") for r in found.nodes if r.op_before != "Opset"
        }
        assert {row.status for row in found.nodes if row.before} == {"quantized"}
        assert not {"QuantizeLinear", "DequantizeLinear"} & {row.op for row in found.summary}
        if form == "qoperator":
            assert {row.op_after for row in found.nodes} >= {"QLinearConv", "QGemm"}
            model = onnx.load(after)
            made = next(n for n in model.graph.node if n.op_type == "QLinearConv")
            kept = [a for a in made.attribute if a.name != "strides"]
            del made.attribute[:]
            made.attribute.extend([*kept, helper.make_attribute("strides", [2, 2])])
            onnx.save(model, after)
            changed = [row for row in diff_files(before, after).nodes if row.status == "changed"]
            assert [row.what.rpartition("; ")[2] for row in changed] == ["attribute strides [1, 1] -> [2, 2]"]
    assert told["qoperator"].pop(None, "") in ("", "opset none -> 1")
    assert told["qoperator"] == told["qdq"]


def test_integers_by_onnxruntime_s_quantizer_are_no_part_of_a_tiling(sample: Any, tmp_path: Path) -> None:
    before, after = str(sample("lenet")), str(tmp_path / "q.onnx")
    quantize_static(before, after, _Reader(), per_channel=True, quant_format=QuantFormat.QOperator)
    found: Diff = diff_files(before, after)
    assert not any("tiled" in row.what for row in found.nodes)
    convolutions = [row for row in found.nodes if row.op_before == "Conv"]
    assert [row.status for row in convolutions] == ["quantized"] * 2
    assert all(row.op_after == "QLinearConv" for row in convolutions)
    assert all(row.what.startswith("Conv -> int8, output int8, per channel, 4") for row in convolutions)


def test_what_rounds_the_input_of_a_tiled_layer_is_no_part_of_a_weight(tmp_path: Path) -> None:
    quantized, tiled = str(tmp_path / "q.onnx"), str(tmp_path / "t.onnx")
    with Session(original(tmp_path)) as session:
        session.quantize(QuantizeSpec(), output=quantized)
    with Session(quantized) as session:
        session.tile(TileSpec(tile=(4, 4, 4)), output=tiled)
    said = {
        what for pair in ((str(tmp_path / "a.onnx"), tiled), (quantized, tiled)) for _, what in rows(*pair)
    }
    assert "rounds an input of a tiled matmul" in said
    assert not any("weight" in what for what in said)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("to", "form", "said"),
    [
        ("fixed12.6", "auto", "fixed12.6"),
        ("fixed8.4", "function", "fixed8.4"),
        ("floatE3M2", "auto", "floatE3M2"),
        ("floatE2M7", "auto", "floatE2M7"),
        ("int8", "function", "int8, per channel"),
        ("ternary", "auto", "ternary, per channel"),
        ("binary", "auto", "binary, per channel"),
        *((name, "auto", name) for name in ("mxint8", "mxfp8", "mxfp6", "mxfp4", "mxfp8e5m2")),
    ],
)
def test_a_weight_that_a_function_rounds_tells_its_signal_to_noise(
    to: str, form: Any, said: str, tmp_path: Path
) -> None:
    """As the quantization told it, which asked the format."""
    after = str(tmp_path / "q.onnx")
    with Session(original(tmp_path)) as session:
        fact = session.quantize(QuantizeSpec(weight=to, input=to, form=form), output=after)
    snr = fact.layers[0].weight_snr_db
    assert rows(str(tmp_path / "a.onnx"), after) == [("quantized", f"MatMul -> {said}, {snr:.1f} dB")]


@pytest.mark.parametrize(("read", "status"), [("r", "folded"), ("h", "removed")])
def test_a_relu_is_done_by_a_range_only_where_nobody_reads_what_comes_before_it(
    tmp_path: Path, read: str, status: str
) -> None:
    """A branch that captures the product reads what is below zero."""

    def saved(name: str, between: str, read: str) -> str:
        then = f"then_branch = t () => (float[2,4] o) {{ o = Neg ({read}) }}"
        other = f"else_branch = e () => (float[2,4] p) {{ p = Exp ({read}) }}"
        text = f"h = MatMul (x, w) {between} k = If (c) <{then}, {other}> m = MatMul (r, v) y = Add (m, k)"
        ends = "net (float[2,4] x, bool c) => (float[2,4] y)"
        model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {ends} {{ {text} }}')
        weights = {"w": np.eye(4), "v": np.ones((4, 4)), "s": np.array(0.02)}
        tensors = {name: np.asarray(one, np.float32) for name, one in weights.items()}
        tensors["z"] = np.array(-128, np.int8)
        model.graph.initializer.extend(numpy_helper.from_array(one, name) for name, one in tensors.items())
        onnx.save(model, tmp_path / name)
        return str(tmp_path / name)

    float_ = saved("float.onnx", "r = Relu (h)", "r")
    rounded = saved("rounded.onnx", "q = QuantizeLinear (h, s, z) r = DequantizeLinear (q, s, z)", read)
    found = diff_files(float_, rounded)
    assert [row.status for row in found.nodes if row.op_before == "Relu"] == [status]
