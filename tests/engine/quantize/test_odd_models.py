"""Models as exporters, and nobody else, write them: quantized to what the format's definition says, or left.

What is expected is reckoned from the weights alone: they are rounded with numpy, and the original runs with
them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper, parser

from explorer import Session
from explorer.base.errors import ExplorerError
from explorer.facts.quantize import FormatSweepSpec, QuantizeSpec
from tests import stock
from tests.engine.quantize.test_quantized_model import LEVELS, snr

Stored = dict[str, tuple[tuple[int, ...], int | None]]
"""Shapes of what is stored, and the axis of output channels; of what is no weight None."""

CASES: dict[str, tuple[str, Stored]] = {
    "a product": ("(float[3,70] x) => (float[3,40] y) { y = MatMul(x,w) }", {"w": ((70, 40), 1)}),
    "a vector on the right": ("(float[3,70] x) => (float[3] y) { y = MatMul(x,w) }", {"w": ((70,), 9)}),
    "a vector on the left": ("(float[70,3] x) => (float[3] y) { y = MatMul(w,x) }", {"w": ((70,), 9)}),
    "a vector comes in": ("(float[70] x) => (float[4] y) { y = MatMul(x,w) }", {"w": ((70, 4), 1)}),
    "a stack that is spread": (
        "(float[5,7] x) => (float[3,5,4] y) { y = MatMul(x,w) }",
        {"w": ((3, 7, 4), 2)},
    ),
    "factors": (
        "(float[7,3] x) => (float[3,5] y) { y = Gemm<transA=1,alpha=0.5,beta=0.25>(x,w,b) }",
        {"w": ((7, 5), 1), "b": ((5,), None)},
    ),
    "turned, with factors": (
        "(float[3,7] x) => (float[3,5] y) { y = Gemm<transB=1,alpha=-1.5,beta=-1.0>(x,w,b) }",
        {"w": ((5, 7), 0), "b": ((5,), None)},
    ),
    "a factor beside a bias": (
        "(float[3,7] x) => (float[3,5] y) { y = Gemm<alpha=2.5>(x,w,b) }",
        {"w": ((7, 5), 1), "b": ((5,), None)},
    ),
    "weight and bias on the left": (
        "(float[70,3] x) => (float[4,3] y) { y = Gemm(w,x,b) }",
        {"w": ((4, 70), 0), "b": ((3,), None)},
    ),
    "a bias that flows": (
        "(float[3,7] x, float[5] b) => (float[3,5] y) { y = Gemm(x,w,b) }",
        {"w": ((7, 5), 1)},
    ),
    "one axis": (
        "(float[1,4,9] x) => (float[1,8,7] y) { y = Conv(x,w,b) }",
        {"w": ((8, 4, 3), 0), "b": ((8,), None)},
    ),
    "three axes": (
        "(float[1,4,5,5,5] x) => (float[1,8,3,3,3] y) { y = Conv(x,w,b) }",
        {"w": ((8, 4, 3, 3, 3), 0), "b": ((8,), None)},
    ),
    "transposed, in groups": (
        "(float[1,4,5,5] x) => (float[1,8,7,7] y) { y = ConvTranspose<group=2>(x,w,b) }",
        {"w": ((4, 4, 3, 3), 1), "b": ((8,), None)},
    ),
    "transposed, depthwise": (
        "(float[1,6,5,5] x) => (float[1,6,7,7] y) { y = ConvTranspose<group=6>(x,w,b) }",
        {"w": ((6, 1, 3, 3), 0), "b": ((6,), None)},
    ),
    "transposed, two channels of each": (
        "(float[1,4,9] x) => (float[1,8,11] y) { y = ConvTranspose<group=4>(x,w,b) }",
        {"w": ((4, 2, 3), 0), "b": ((8,), None)},
    ),
    "turned three ways": (
        "(float[4,3,7] x) => (float[4,3,5] y) { t = Transpose<perm=[1,2,0]>(w) y = MatMul(x,t) }",
        {"w": ((5, 4, 7), 0)},
    ),
    "turned and turned back": (
        "(float[3,7] x) => (float[3,5] y)"
        " { a = Transpose(w) b = Identity(a) c = Transpose(b) y = MatMul(x,c) }",
        {"w": ((7, 5), 1)},
    ),
    "one weight of two layers": (
        "(float[3,70] x) => (float[3,70] y) { a = MatMul(x,w) b = Relu(a) y = MatMul(b,w) }",
        {"w": ((70, 70), 1)},
    ),
    "an embedding that is the head": (
        "(int64[3] i) => (float[3,20] y) { e = Gather<axis=-2>(w,i) t = Transpose(w) y = MatMul(e,t) }",
        {"w": ((20, 8), 0)},
    ),
    "a single number": ("(float[3,1] x) => (float[3,1] y) { y = MatMul(x,w) }", {"w": ((1, 1), 1)}),
    "names that are taken": (
        "(float[3,7] x) => (float[3,7] y) { x_quantized = Identity(x) w_scale = MatMul(x_quantized,w)"
        " x_dequantized = Relu(w_scale) y = MatMul(x_dequantized,v) }",
        {"w": ((7, 7), 1), "v": ((7, 7), 1)},
    ),
    "a recurrence both ways": (
        '(float[5,1,6] x) => (float[5,2,1,4] y) { y = GRU<hidden_size=4,direction="bidirectional">(x,w,r) }',
        {"w": ((2, 12, 6), 1), "r": ((2, 12, 4), 1)},
    ),
    "a sum over two letters' axes": (
        '(float[2,5,12] x) => (float[2,5,3,4] y) { y = Einsum<equation="btd,dhk->bthk">(x,w) }',
        {"w": ((12, 3, 4), 2)},
    ),
    "turned by the runtime's own operator": (
        "(float[7,3] x) => (float[3,5] y) { y = com.microsoft.FusedMatMul<transA=1,alpha=0.5>(x,w) }",
        {"w": ((7, 5), 1)},
    ),
    "a body beside a layer": (
        "(float[3,7] x, bool c) => (float[3,7] y) { z = MatMul(x,w) y = If(c)<"
        "then_branch = a () => (float[3,7] p) { p = MatMul(z,v) },"
        "else_branch = b () => (float[3,7] q) { q = Relu(z) }> }",
        {"w": ((7, 7), 1), "v": ((7, 7), None)},
    ),
}  # fmt: skip


def made(text: str, arrays: dict[str, np.ndarray], path: Path, opset: int = 17) -> Path:
    """A model of this graph and these stored tensors; below IR version 4 they are inputs, too."""
    ir = 3 if opset < 9 else 8 if opset < 19 else 10
    sets = f'"": {opset}' + (', "com.microsoft": 1' if "com.microsoft" in text else "")
    model = parser.parse_model(f"<ir_version: {ir}, opset_import: [{sets}]> g {text}")
    for name, values in arrays.items():
        model.graph.initializer.append(numpy_helper.from_array(values, name))
        if ir < 4:
            model.graph.input.append(onnx.helper.make_tensor_value_info(name, 1, values.shape))
    onnx.save(model, path)
    return path


def weights(stored: Stored) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {name: (random.normal(size=shape) / 3).astype(np.float32) for name, (shape, _) in stored.items()}


def run(path: Path, level: str = LEVELS[0]) -> list[Any]:
    """Its outputs, with the options that a stock session has."""
    session = stock.opened(path, level)
    random = np.random.default_rng(5)
    feeds: dict[str, Any] = {}
    for given in session.get_inputs():
        size = tuple(given.shape)
        number = random.normal(size=size).astype(np.float32)
        feeds[given.name] = {"tensor(bool)": np.array(True), "tensor(int64)": np.arange(3)}.get(
            given.type, number
        )
    return list(session.run(None, feeds))


@cache
def adds_exactly() -> bool:
    """Whether a stock session adds two products of bytes without saturation: not on x86 without VNNI."""
    text = "agraph (uint8[1,64] x, int8[64,1] w) => (int32[1,1] y) { y = MatMulInteger(x,w) }"
    model = parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    feeds = {"x": np.full((1, 64), 255, np.uint8), "w": np.full((64, 1), 127, np.int8)}
    (found,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, feeds)
    return int(found[0, 0]) == 64 * 255 * 127


def quantize(source: Path, target: Path, *ops: str, **spec: Any) -> Any:
    with Session(source) as session:
        return session.quantize(
            QuantizeSpec(**spec, ops=ops), output=str(target), overwrite=True, report=False
        )


def int8(values: np.ndarray, axis: int | None) -> np.ndarray:
    """Rounded to 8 bits: one scale for each index of an axis, 9 for one in all; None: as it is."""
    if axis is None:
        return values
    over = tuple(at for at in range(values.ndim) if at != axis)
    scale = np.abs(values).max(axis=over, keepdims=True) / np.float32(127)
    return np.asarray(np.rint(values / scale) * scale, np.float32)


def blocks(values: np.ndarray, axis: int | None) -> np.ndarray:
    """The same, sixteen numbers along the first axis a scale."""
    parts = np.split(values, range(16, len(values), 16))
    return np.concatenate([int8(part, axis) for part in parts])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", CASES)
def test_weights_are_what_the_format_says_at_every_level(name: str, tmp_path: Path) -> None:
    """Only the weights are rounded, and nothing that flows, whatever onnxruntime makes of the file."""
    text, stored = CASES[name]
    arrays = weights(stored)
    target = tmp_path / "q.onnx"
    quantize(made(text, arrays, tmp_path / "m.onnx"), target, "*", weight="int8", input="float32")
    rounded = {key: int8(values, stored[key][1]) for key, values in arrays.items()}
    expected = run(made(text, rounded, tmp_path / "r.onnx"))
    assert all(snr(expected, run(target, level)) > 110 for level in LEVELS)


@pytest.mark.parametrize(
    ("spec", "how"),
    [
        ({"granularity": "tensor"}, lambda values: int8(values, 9)),
        ({"block": 16}, lambda values: blocks(values, 1)),
        ({"weight": "fixed8.4"}, lambda values: np.clip(np.rint(values * 16), -128, 127) / np.float32(16)),
        ({"weight": "int4", "form": "qdq", "granularity": "tensor"}, None),
    ],
    ids=["a scale for all", "blocks", "fixed point", "4 bits"],
)
def test_a_product_meets_its_activation_as_it_is(
    spec: dict[str, Any], how: Callable[[np.ndarray], np.ndarray] | None, tmp_path: Path
) -> None:
    """onnxruntime makes a product of its own of a weight behind a DequantizeLinear, and rounds what flows."""
    text, arrays = CASES["a product"][0], weights(CASES["a product"][1])
    source, target = made(text, arrays, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantize(source, target, **{"weight": "int8", "input": "float32", **spec})
    onnx.checker.check_model(str(target), full_check=True)
    expected = run(made(text, {"w": how(arrays["w"])}, tmp_path / "r.onnx")) if how else run(target)
    assert all(snr(expected, run(target, level)) > 110 for level in LEVELS)


@pytest.mark.sampled(10)
@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"form": "qoperator", "input": "uint8"},
        pytest.param({"weight": "fixed8.4", "input": "fixed8.4"}, marks=pytest.mark.slow),
    ],
    ids=["int8", "qoperator", "fixed point"],
)
@pytest.mark.parametrize("name", CASES)
def test_odd_models_run_alike_at_every_level(name: str, spec: dict[str, Any], tmp_path: Path) -> None:
    """With inputs and biases rounded, too, and near the original; what cannot be is left with a reason."""
    text, stored = CASES[name]
    source, target = made(text, weights(stored), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    fact, said = None, ""
    try:
        fact = quantize(source, target, "*", **spec)
    except ExplorerError as error:
        said = str(error)
    if fact is None:
        assert "no layer takes a number format (" in said
        assert not target.exists()
        return
    assert all(row.total == row.changed + row.unchanged for row in fact.by_op)
    assert sum(row.unchanged for row in fact.by_op) == sum(bool(layer.reason) for layer in fact.layers)
    found, exact = run(target), adds_exactly()
    assert snr(run(source), found) > (3 if spec.get("weight") else 14 if exact else 10)
    assert all(snr(found, run(target, level)) > (90 if exact else 10) for level in LEVELS[1:])


@pytest.mark.sampled(3)
@pytest.mark.parametrize("opset", [7, 9, 11, 13, 19, 21, 23])
def test_models_of_any_operator_set(opset: int, tmp_path: Path) -> None:
    """Older ones are raised; before IR version 4 their weights are inputs as well."""
    text = (
        "(float[1,4,9,9] x) => (float[1,10] y) { c = Conv(x,w,b) r = Relu(c) f = Flatten(r) y = Gemm(f,v,d) }"
    )
    stored: Stored = {
        "w": ((8, 4, 3, 3), 0), "b": ((8,), None), "v": ((392, 10), 1), "d": ((10,), None)
    }  # fmt: skip
    arrays = weights(stored)
    target = tmp_path / "q.onnx"
    quantize(made(text, arrays, tmp_path / "m.onnx", opset), target, weight="int8", input="float32")
    rounded = {key: int8(values, stored[key][1]) for key, values in arrays.items()}
    expected = run(made(text, rounded, tmp_path / "r.onnx"))
    assert all(snr(expected, run(target, level)) > 110 for level in LEVELS)


@pytest.mark.parametrize("fmt", ["int8", "fixed8.4", "mxfp8"])
def test_a_layer_whose_weight_holds_nan_is_left(tmp_path: Path, fmt: str) -> None:
    """The others take the format."""
    text = "(float[3,7] x) => (float[3,4] y) { a = MatMul(x,v) y = MatMul(a,w) }"
    arrays = weights({"v": ((7, 7), 1), "w": ((7, 4), 1)})
    arrays["w"][2, 2] = np.nan
    spec = QuantizeSpec(weight=fmt, input=fmt)
    fact = quantize(made(text, arrays, tmp_path / "m.onnx"), tmp_path / "q.onnx", weight=fmt, input=fmt)
    assert [layer.reason for layer in fact.layers] == ["", "the weight 'w' holds NaN or infinity"]
    assert [(row.op, row.changed, row.unchanged) for row in fact.by_op] == [("MatMul", 1, 1)]
    assert np.isnan(run(tmp_path / "q.onnx")[0][:, 2]).all()
    with Session(tmp_path / "m.onnx") as session:  # so says the choice, before anything is written
        assert [layer.reason for layer in session.quantize_choice(spec).layers] == [
            layer.reason for layer in fact.layers
        ]
        assert [layer.weight for layer in session.quantize_settings(spec).layers] == [fmt, ""]


@pytest.mark.parametrize("fmt", ["int8", "fixed8.4", "mxfp8", "mxint8", "floatE4M3"])
@pytest.mark.parametrize("shape", [(0, 7), (2, 0, 7), (2, 3, 0, 7)])
def test_a_layer_without_rows_takes_each_format(shape: tuple[int, ...], fmt: str, tmp_path: Path) -> None:
    """An empty batch, an empty sequence: the file runs, and its output is as empty as the original's."""
    sizes, outputs = (",".join(map(str, (*shape[:-1], last))) for last in (7, 4))
    text = f"(float[{sizes}] x) => (float[{outputs}] y) {{ y = MatMul(x,w) }}"
    source = made(text, weights({"w": ((7, 4), 1)}), tmp_path / "m.onnx")
    quantize(source, tmp_path / "q.onnx", weight=fmt, input=fmt)
    assert [output.shape for output in run(tmp_path / "q.onnx")] == [(*shape[:-1], 4)]


def test_weights_that_become_infinite_have_an_infinite_error(tmp_path: Path) -> None:
    """Three columns of float16 numbers are right; the fourth is beyond its range."""
    arrays = weights({"w": ((7, 4), 1)})
    arrays["w"] *= np.array([1, 1e-3, 10, 1e9], np.float32)
    source = made("(float[3,7] x) => (float[3,4] y) { y = MatMul(x,w) }", arrays, tmp_path / "m.onnx")
    with Session(source) as session:
        spec = QuantizeSpec(weight="float16", input="float32")
        (layer,) = session.quantize(spec, output=str(tmp_path / "q.onnx")).layers
    assert np.isfinite(run(tmp_path / "q.onnx")[0][:, :3]).all()
    assert not np.isfinite(run(tmp_path / "q.onnx")[0][:, 3]).any()
    assert (layer.weight_max_error, layer.weight_rms_error) == (np.inf, np.inf)
    assert layer.weight_snr_db == -np.inf


@pytest.mark.parametrize("spec", [{}, {"form": "qoperator", "input": "uint8"}], ids=["qdq", "qoperator"])
def test_a_bias_far_above_the_products_leaves_room_for_them(spec: dict[str, Any], tmp_path: Path) -> None:
    """The accumulator does not run over, whatever adds to a bias that fills it."""
    arrays = weights({"w": ((7, 4), 1), "b": ((4,), None)})
    arrays["b"] *= np.float32(1e6)
    source = made("(float[3,7] x) => (float[3,4] y) { y = Gemm(x,w,b) }", arrays, tmp_path / "m.onnx")
    quantize(source, tmp_path / "q.onnx", **spec)
    expected = run(source)
    assert all(snr(expected, run(tmp_path / "q.onnx", level)) > 100 for level in LEVELS)


def test_weights_in_a_file_of_their_own(tmp_path: Path) -> None:
    """What they become lies inside."""
    text, stored = CASES["a product"]
    arrays = weights(stored)
    model = onnx.load(made(text, arrays, tmp_path / "m.onnx"))
    (tmp_path / "data").mkdir()
    onnx.save(model, tmp_path / "data" / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    target = tmp_path / "q.onnx"
    quantize(tmp_path / "data" / "m.onnx", target, weight="int8", input="float32")
    expected = run(made(text, {"w": int8(arrays["w"], 1)}, tmp_path / "r.onnx"))
    assert all(snr(expected, run(target, level)) > 110 for level in LEVELS)


def test_a_weight_of_two_layers_of_which_one_is_chosen(tmp_path: Path) -> None:
    """The other reads it as it was."""
    text = "(float[3,7] x) => (float[3,7] y, float[3,7] z) { y = MatMul(x,w) z = MatMul(x,w) }"
    arrays = weights({"w": ((7, 7), 1)})
    with Session(made(text, arrays, tmp_path / "m.onnx")) as session:
        asked = QuantizeSpec(weight="int8", input="float32", sites=("y",))
        fact = session.quantize(asked, output=str(tmp_path / "q.onnx"), report=False)
    assert [layer.reason for layer in fact.layers] == ["", "it is not chosen"]
    whole, rounded = (
        run(made(text, {"w": w}, tmp_path / "r.onnx")) for w in (arrays["w"], int8(arrays["w"], 1))
    )
    for level in LEVELS:
        found = run(tmp_path / "q.onnx", level)
        assert snr(rounded[:1], found[:1]) > 110
        assert np.array_equal(whole[1], found[1])


@pytest.mark.parametrize("between", ["Cast<to=1>", "Reshape"])
def test_a_weight_that_is_computed_is_left_until_it_is_folded(between: str, tmp_path: Path) -> None:
    """As an activation it would be rounded while the model runs, and its bytes stay as they were."""
    read = "Cast<to=1>(h)" if "Cast" in between else "Reshape(w,s)"
    text = f"(float[3,7] x) => (float[3,7] y) {{ v = {read} y = MatMul(x,v) }}"
    (w,) = weights({"w": ((7, 7), 1)}).values()
    stored = {"h": w.astype(np.float16)} if "Cast" in between else {"w": w, "s": np.array([7, 7])}
    with Session(made(text, stored, tmp_path / "m.onnx")) as session:
        with pytest.raises(
            ExplorerError, match="its weight is computed from stored tensors: run explorer fold first"
        ):
            session.quantize_choice(QuantizeSpec())
        session.fold()
        (layer,) = session.quantize_choice(QuantizeSpec()).layers
    assert (layer.weight, layer.reason) == ("int8", "")


@pytest.mark.parametrize("fmt", ["int8", "fixed12.6", "mxfp8"])
def test_what_is_quantized_is_not_quantized_again(fmt: str, tmp_path: Path) -> None:
    text, stored = CASES["a product"]
    with Session(made(text, weights(stored), tmp_path / "m.onnx")) as session:
        session.quantize(QuantizeSpec(weight=fmt, input=fmt), report=False)
        with pytest.raises(ExplorerError, match=r"it is quantized already\)") as refused:
            session.quantize_choice(QuantizeSpec())
        assert refused.value.hint == "explorer blame FLOAT_MODEL MODEL shows what each layer lost"


def test_layers_of_two_branches_are_told_apart(tmp_path: Path) -> None:
    """What the branches call alike is not the same: names, MACs, and BitOPs of the branch that counts."""
    text = (
        "(float[3,8] x, bool c) => (float[3,4] z) { y = If(c)<"
        "then_branch = a () => (float[3,6] p) { m = MatMul(x,u) p = MatMul(m,v) },"
        "else_branch = b () => (float[3,6] q) { m = MatMul(x,w) q = Relu(m) }> z = MatMul(y,t) }"
    )
    shapes: Stored = {"u": ((8, 50), 1), "v": ((50, 6), 1), "w": ((8, 6), 1), "t": ((6, 4), 1)}
    with Session(made(text, weights(shapes), tmp_path / "m.onnx")) as session:
        found = session.quantize_choice(QuantizeSpec())
    assert {layer.name: layer.macs for layer in found.layers} == {
        "y/then_branch/m": 3 * 8 * 50,
        "y/then_branch/p": 3 * 50 * 6,
        "y/else_branch/m": 3 * 8 * 6,
        "z": 3 * 6 * 4,
    }
    before = (3 * 8 * 50 + 3 * 50 * 6 + 3 * 6 * 4) * 32 * 32
    assert found.totals.bitops.before == before
    assert found.totals.bitops.after == before - 3 * 6 * 4 * (32 * 32 - 8 * 8)


def test_layers_of_a_function_are_told_one_by_one(tmp_path: Path) -> None:
    """In a diff and a blame beside the original, whose calls are opened for it, and by a sweep."""
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[3,7] x) => (float[3,7] y) {'
        + INSIDE["a function in a function"][0]
    )
    for name, values in weights({"w": ((7, 7), 1), "v": ((7, 7), 1)}).items():
        proto.graph.initializer.append(numpy_helper.from_array(values, name))
    onnx.save(proto, tmp_path / "m.onnx")
    with Session(tmp_path / "m.onnx") as session:
        found = session.sweep_formats(FormatSweepSpec(("int8", "mxfp4")))
        assert [row.changed for row in found.rows] == [2, 2]
        fact = session.quantize(QuantizeSpec(weight="int8", input="int8"))
        assert {layer.macs for layer in fact.layers} == {3 * 7 * 7}
        rows = [(row.status, row.after) for row in session.diff().nodes if row.status == "quantized"]
        assert rows == [("quantized", "z/b/c"), ("quantized", "y")]
        beside = [
            row.after.path for row in session.tree_diff().rows if row.status == "quantized" and row.after
        ]
        assert beside == ["z/b/c", "y"]
        told = {probe.layer for probe in session.blame().probes if "int8" in probe.formats}
        assert told == {"z/b/c", "y"}


def test_bfloat16_is_measured_in_what_runs_the_file(tmp_path: Path) -> None:
    """onnxruntime casts what is stored in it; onnx's reference evaluator refuses these groups."""
    text, stored = CASES["transposed, in groups"]
    source, target = made(text, weights(stored), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(5).normal(size=(1, 4, 5, 5)).astype(np.float32))
    with Session(source) as session:
        spec = QuantizeSpec(weight="bfloat16", input="bfloat16")
        fact = session.quantize(spec, output=str(target), calibrate=str(tmp_path / "x.npz"))
    assert fact.outputs[0].snr_db == pytest.approx(snr(run(source), run(target)), abs=1e-3)


INSIDE = {
    "a function": (
        "z = my.Lin(x,w) y = MatMul(z,v) }"
        ' <domain: "my", opset_import: ["": 17]> Lin (a, m) => (b) { c = MatMul(a,m) b = Relu(c) }',
        ["z/c"],
    ),
    "a function in a function": (
        "z = my.Outer(x,w) y = MatMul(z,v) }"
        ' <domain: "my", opset_import: ["": 17]> Lin (a, m) => (b) { c = MatMul(a,m) b = Relu(c) }'
        ' <domain: "my", opset_import: ["": 17, "my": 1]> Outer (a, m) => (b) { b = my.Lin(a,m) }',
        ["z/b/c"],
    ),
    "a body of Scan": (
        "k = Constant<value_int=1>() z = Scan<num_scan_inputs=1, body = f (float[7] s) => (float[7] r)"
        " { h = Shape(s) i = Gather(h,o) t = Gather(w,k) u = Add(s,t) r = MatMul(u,w) }>(x)"
        " y = MatMul(z,v) }",
        ["z/body/t", "z/body/r"],
    ),
}


@pytest.mark.parametrize("what", INSIDE)
def test_layers_inside_are_met_or_left_and_told(what: str, tmp_path: Path) -> None:
    """Functions are opened; in a body each has its reason and its operator, and what reads sizes is none."""
    text, names = INSIDE[what]
    proto = parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "my": 1]> g (float[3,7] x) => (float[3,7] y) { ' + text
    )
    arrays = {**weights({"w": ((7, 7), 1), "v": ((7, 7), 1)}), "o": np.array(0)}
    proto.graph.initializer.extend(numpy_helper.from_array(values, name) for name, values in arrays.items())
    onnx.save(proto, tmp_path / "m.onnx")
    fact = quantize(tmp_path / "m.onnx", tmp_path / "q.onnx", weight="int8", input="float32")
    left = "it stands in a body of Scan" if "Scan" in what else ""
    assert {la.name: la.reason for la in fact.layers} == {**dict.fromkeys(names, left), "y": ""}
    assert {row.op: row.unchanged for row in fact.by_op} == {
        "MatMul": 1 if left else 0,
        **({"Gather": 1} if "z/body/t" in names else {}),
    }
    for at, name in enumerate("wv"):
        if not left or name == "v":
            proto.graph.initializer[at].CopyFrom(numpy_helper.from_array(int8(arrays[name], 1), name))
    onnx.save(proto, tmp_path / "r.onnx")
    expected = run(tmp_path / "r.onnx")
    assert all(snr(expected, run(tmp_path / "q.onnx", level)) > 110 for level in LEVELS)


def test_of_16_bits_codes_differ_by_a_step_where_sums_in_floats_do(tmp_path: Path) -> None:
    """A step is 2^-15 of the range, a float32 has 24 bits: behind a product some fall on the other side."""
    text = "(float[64,300] x) => (float[64,200] y) { h = MatMul(x,w) k = Tanh(h) y = MatMul(k,v) }"
    random = np.random.default_rng(1)
    arrays = {
        n: random.normal(size=s).astype(np.float32) / 10 for n, s in (("w", (300, 250)), ("v", (250, 200)))
    }
    target = tmp_path / "q.onnx"
    quantize(made(text, arrays, tmp_path / "m.onnx", 21), target, weight="int16", input="int16")
    model = onnx.load(target)
    scales = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer if t.name.endswith("_scale")}
    model.graph.output.append(onnx.ValueInfoProto(name="k_quantized"))
    onnx.save(model, tmp_path / "seen.onnx")
    y, found = run(tmp_path / "seen.onnx")
    x = np.random.default_rng(5).normal(size=(64, 300)).astype(np.float32)
    w, v = (
        np.rint(a / (s := np.abs(a).max(0) / np.float32(32767))).astype(np.float32) * s
        for a in arrays.values()
    )

    def codes(values: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return np.clip(np.rint(values.astype(np.float32) / scale), -32768, 32767)

    k = codes(
        np.tanh((codes(x, scales["x_scale"]).astype(np.float32) * scales["x_scale"]) @ w), scales["k_scale"]
    )
    moved = np.abs(k - found)
    assert moved.max() == 1
    assert 0 < (moved > 0).mean() < 0.02
    own, given = ((c.astype(np.float32) * scales["k_scale"]) @ v for c in (k, found))
    assert snr([given], [y]) > 125  # of the same codes
    assert 95 < snr([own], [y]) < 125


@pytest.mark.parametrize("granularity", ["tensor", "channel"])
def test_the_bias_of_a_dead_channel_is_kept(granularity: str, tmp_path: Path) -> None:
    """Its weights are 0, which any scale has: a scale of 1 would round the bias to steps of the input's."""
    arrays = weights({"w": ((7, 4), 1), "b": ((4,), None)})
    arrays["w"][:, 1:3] = 0
    arrays["w"][:, 0] *= granularity == "channel"
    arrays["w"][:, 3] *= granularity == "channel"
    arrays["b"][2] = 0
    source = made("(float[3,7] x) => (float[3,4] y) { y = Gemm(x,w,b) }", arrays, tmp_path / "m.onnx")
    spec = QuantizeSpec(granularity=granularity)  # type: ignore[arg-type]
    with Session(source) as session:
        fact = session.quantize(spec, output=str(tmp_path / "q.onnx"))
    assert fact.layers[0].accumulator is not None
    assert fact.layers[0].accumulator.bits <= 19  # no more than seven products of bytes, and a bias
    dead = [1, 2] if granularity == "channel" else [0, 1, 2, 3]
    for level in LEVELS:
        np.testing.assert_allclose(
            run(tmp_path / "q.onnx", level)[0][:, dead], run(source)[0][:, dead], rtol=1e-4
        )


SCALES = {
    "transposed, depthwise": "channel",
    "transposed, two channels of each": "2 channels",
    "transposed, in groups": "2 channels",
    "a recurrence both ways": "2 channels",
    "a stack that is spread": "3 channels",
    "a sum over two letters' axes": "3 channels",
    "turned, with factors": "channel",
}


@pytest.mark.parametrize("name", SCALES)
def test_the_answer_says_how_many_channels_share_a_scale(name: str, tmp_path: Path) -> None:
    """One axis of scales cannot tell groups, directions or stacked matrices apart."""
    text, stored = CASES[name]
    with Session(made(text, weights(stored), tmp_path / "m.onnx")) as session:
        fact = session.quantize_choice(QuantizeSpec(input="float32"))
    assert fact.layers[-1].granularity == SCALES[name]
    assert fact.layers[-1].described == f"weight int8, per {SCALES[name]}"


@pytest.mark.parametrize("size", [1e-3, 1e2])
def test_channels_of_a_depthwise_layer_keep_their_own_accuracy(size: float, tmp_path: Path) -> None:
    """The weights of the smallest channel are rounded to its own steps; so is a bias of integers."""
    text, _ = CASES["transposed, depthwise"]
    sizes = np.array([1, size, 1, 1, 1, 1], np.float32)
    arrays = weights({"w": ((6, 1, 3, 3), 0), "b": ((6,), None)})
    arrays = {"w": arrays["w"] * sizes.reshape(-1, 1, 1, 1), "b": arrays["b"] * sizes}
    source, target = made(text, arrays, tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantize(source, target)
    for before, after in zip(run(source)[0][0], run(target)[0][0], strict=True):
        assert snr([before], [after]) > 25


COMPUTED = {
    "an input": ("(float[3,32] x, float[6] b) => (float[3,6] y) { y = Gemm(x,w,b) }", ()),
    "a node's output": (
        "(float[3,32] x, float[6] a) => (float[3,6] y) { b = Abs(a) y = Gemm<transB=1>(x,v,b) }",
        (),
    ),
    "of what is stored": ("(float[3,32] x) => (float[3,6] y) { b = Neg(c) y = Gemm(x,w,b) }", ("c",)),
    "a row": ("(float[3,32] x, float[1,6] b) => (float[3,6] y) { y = Gemm(x,w,b) }", ()),
    "of unknown size": ("(float[3,32] x, float[n] b) => (float[3,6] y) { y = Gemm(x,w,b) }", ()),
}


@pytest.mark.parametrize(
    "spec",
    [
        {"weight": "int4", "input": "float32"},
        {"weight": "uint4", "input": "int8", "block": 16},
        {"weight": "int4", "input": "float32", "bias": "fixed8.4"},
        {"weight": "uint8", "input": "uint8", "form": "qoperator"},
        {},
        {"form": "function"},
    ],
    ids=lambda spec: "-".join(map(str, spec.values())) or "default",
)
@pytest.mark.parametrize("where", COMPUTED)
def test_a_bias_that_is_not_stored_is_added_as_it_is(
    where: str, spec: dict[str, Any], tmp_path: Path
) -> None:
    """The file loads at every level, and the bias comes through without any rounding."""
    text, names = COMPUTED[where]
    sizes = {"w": (32, 6), "v": (6, 32), "c": (6,)}
    used = {name: (sizes[name], None) for name in (*names, "v" if "(x,v" in text else "w")}
    source, target = made(text, weights(used), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    with Session(source, dims={"n": 6} if "n]" in text else {}) as session:
        fact = session.quantize(QuantizeSpec(**spec), output=str(target))
    assert fact.layers[0].bias == "float32"
    for level in LEVELS:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
        runtime = onnxruntime.InferenceSession(target, options, providers=["CPUExecutionProvider"])
        feeds = {
            value.name: np.full([n if isinstance(n, int) else 6 for n in value.shape], size, np.float32)
            for value in runtime.get_inputs()
            for size in (0 if value.name == "x" else 1 / 3,)
        }
        bias = -weights(used)["c"] if "c" in used else np.float32(1 / 3)
        (found,) = runtime.run(None, feeds)
        assert np.array_equal(found, np.broadcast_to(bias, (3, 6))), level


def test_a_computed_bias_alone_takes_no_format(tmp_path: Path) -> None:
    """It is said, as it is of a weight."""
    source = made(COMPUTED["an input"][0], weights({"w": ((32, 6), None)}), tmp_path / "m.onnx")
    with Session(source) as session, pytest.raises(ExplorerError, match="no stored bias"):
        session.quantize_choice(QuantizeSpec(weight="float32", input="float32", bias="int8"))


@pytest.mark.parametrize("name", SCALES)
def test_a_comparison_with_the_original_says_it_in_the_same_words(name: str, tmp_path: Path) -> None:
    """Of the file alone, as one that somebody else wrote would be read."""
    text, stored = CASES[name]
    source, target = made(text, weights(stored), tmp_path / "m.onnx"), tmp_path / "q.onnx"
    quantize(source, target, input="float32")
    with Session(source) as session:
        rows = session.tree_diff(other=str(target)).rows
        told = [row.what for row in rows if row.status == "quantized"]
    assert any(f"per {SCALES[name]}" in line for line in told), told
