"""What quantization is said to cost is what plain numpy finds in the written file and in the original."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec import Struct
from onnx import numpy_helper

from explorer.engine import shapes
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.quantize.answer import build_answer
from explorer.engine.quantize.calibration import calibrate_ranges
from explorer.engine.quantize.choice import choose
from explorer.engine.quantize.errors import run_errors
from explorer.engine.quantize.grids import Grids, list_range_uses
from explorer.engine.quantize.layers import find_layers
from explorer.engine.quantize.quantize import quantize_model
from explorer.engine.runtime import observer
from explorer.engine.runtime.samples import Samples, random_samples
from explorer.facts.quantize import Bits, Quantization, QuantizeSpec
from explorer.session import Session
from tests import stock

SAMPLES = Path(__file__).parents[3] / "sample_models"


class Case(Struct):
    """A quantized model and what is said of it."""

    before: str
    after: str
    samples: Samples
    fact: Quantization

    def layer(self, op: str) -> Any:
        return next(layer for layer in self.fact.layers if layer.op == op)

    def seen(self, path: str, names: list[str]) -> list[dict[str, Any]]:
        """Inner values of a file on every sample, by onnxruntime without optimization."""
        proto = onnx.load(path)
        own = {v.name for v in proto.graph.output} | {v.name for v in proto.graph.input}
        proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
        session = stock.opened(proto.SerializeToString(), stock.LEVELS[0])
        made = [v.name for v in session.get_outputs()]
        return [{**feeds, **dict(zip(made, session.run(None, feeds), strict=True))} for feeds in self.samples]


def quantize(name: str, folder: Path, *, count: int = 3, calibrator: Any = "minmax", **spec: Any) -> Case:
    source, target = str(SAMPLES / f"{name}.onnx"), str(folder / "q.onnx")
    model = reader.read(source)
    known = shapes.infer(model).values
    choices = choose(find_layers(model, known), QuantizeSpec(**spec))
    samples = random_samples(model, count)
    grids = Grids(calibrate_ranges(model, list_range_uses(choices), samples, calibrator, 99))
    writer.write(quantize_model(model, choices, grids, known), target)
    layers, outputs = run_errors(model, reader.read(target), choices, grids.find_operand_grid, samples)
    open_sizes = {d: 1 for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str)}
    with Session(source, dims=open_sizes) as session:
        info, rows = session.open(), session.layers().layers
    fact = build_answer(choices, grids.find_operand_grid, rows, info.totals.weight_bytes, layers, outputs)
    return Case(source, target, samples, fact)


def ratio(before: list[Any], after: list[Any]) -> float:
    old, new = (
        np.concatenate([np.asarray(v, np.float64).reshape(-1) for v in some]) for some in (before, after)
    )
    return float(10 * np.log10((old * old).sum() / ((new - old) ** 2).sum()))


def stored(path: str) -> dict[str, Any]:
    return {t.name: numpy_helper.to_array(t) for t in onnx.load(path).graph.initializer}


@pytest.mark.parametrize("granularity", ["channel", "tensor"])
def test_weight_errors_are_those_of_the_stored_codes(tmp_path: Path, granularity: Any) -> None:
    """Codes x scale of the written file, beside the original's weights."""
    case = quantize("lenet", tmp_path, granularity=granularity)
    was, now = stored(case.before), stored(case.after)
    nodes = {node.name: node for node in onnx.load(case.before).graph.node}
    for layer in case.fact.layers:
        name = nodes[layer.name].input[1]
        weight, codes, scale = was[name], now[f"{name}_quantized"].astype(np.float64), now[f"{name}_scale"]
        assert scale.size == (len(weight) if granularity == "channel" else 1)
        gap = codes * scale.reshape(-1, *[1] * (weight.ndim - 1)) - weight
        assert layer.weight_max_error == pytest.approx(abs(gap).max(), rel=1e-4)
        assert layer.weight_rms_error == pytest.approx(math.sqrt((gap**2).mean()), rel=1e-4)
        assert layer.weight_snr_db == pytest.approx(ratio([weight], [weight + gap]), abs=1e-3)
        assert layer.granularity == granularity
        assert layer.weight_bytes == codes.size + 4 * scale.size
        assert layer.weight_bytes_before == weight.nbytes


def test_a_layer_is_weighed_on_the_original_s_own_values(tmp_path: Path) -> None:
    """What went wrong in front of it is not laid at its door: its input is the original's, rounded."""
    case = quantize("lenet", tmp_path)
    was, now = stored(case.before), stored(case.after)
    nodes = [node for node in onnx.load(case.before).graph.node if node.op_type == "Gemm"]
    seen = case.seen(case.before, [name for node in nodes for name in (node.input[0], node.output[0])])
    for node in nodes:
        layer = next(layer for layer in case.fact.layers if layer.name == node.name)
        x, w, b = node.input
        scale, zero = now[f"{x}_scale"], now[f"{x}_zero_point"].astype(np.float64)
        weight = now[f"{w}_quantized"] * now[f"{w}_scale"].reshape(-1, 1).astype(np.float64)
        values = [one[x] for one in seen]
        rounded = [(np.clip(np.rint(v / scale) + zero, -128, 127) - zero) * np.float64(scale) for v in values]
        made = [v @ weight.T + was[b] for v in rounded]
        assert layer.input_snr_db == pytest.approx(ratio(values, rounded), abs=0.01)
        assert layer.output_snr_db == pytest.approx(
            ratio([one[node.output[0]] for one in seen], made), abs=0.01
        )
    assert case.fact.worst == min(case.fact.layers, key=lambda layer: layer.output_snr_db or 0).name


def test_outputs_are_those_of_both_files(tmp_path: Path) -> None:
    case = quantize("lenet", tmp_path, count=12, granularity="tensor", calibrator="percentile")
    (said,) = case.fact.outputs
    before, after = ([one[said.name] for one in case.seen(path, [])] for path in (case.before, case.after))
    a, b = np.concatenate(before).astype(np.float64), np.concatenate(after).astype(np.float64)
    assert said.snr_db == pytest.approx(ratio(before, after), abs=1e-3)
    assert said.cosine == pytest.approx((a * b).sum() / np.sqrt((a * a).sum() * (b * b).sum()), rel=1e-6)
    best = a.argmax(1)
    assert said.samples == 12
    assert said.top1 == pytest.approx((best == b.argmax(1)).mean())
    five = np.argsort(-b, axis=1, kind="stable")[:, :5]
    assert said.top5 == pytest.approx(np.mean([at in row for at, row in zip(best, five, strict=True)]))


def test_values_beyond_the_range_are_counted(tmp_path: Path) -> None:
    """Two of a hundred lie outside of what the percentile kept; none outside of the least and the largest."""
    case = quantize("lenet", tmp_path, calibrator="percentile")
    now = stored(case.after)
    seen = case.seen(case.before, [node.input[0] for node in onnx.load(case.before).graph.node])
    nodes = {node.name: node for node in onnx.load(case.before).graph.node}
    for layer in case.fact.layers:
        x = nodes[layer.name].input[0]
        values = np.concatenate([one[x].reshape(-1) for one in seen]).astype(np.float64)
        codes = np.rint(values / now[f"{x}_scale"])
        assert layer.saturated == pytest.approx(((codes > 127) | (codes < -128)).mean(), abs=1e-4)
    assert max(layer.saturated or 0 for layer in case.fact.layers) > 0.001
    assert all(layer.saturated == 0 for layer in quantize("lenet", tmp_path).fact.layers)


def test_bits_macs_and_bytes_add_up(tmp_path: Path) -> None:
    case = quantize("lenet", tmp_path, input="uint8", ops=("Conv",), bias="float32")
    with Session(case.before) as session:
        totals = session.open().totals
    assert totals.macs is not None
    conv = sum(layer.macs or 0 for layer in case.fact.layers if layer.op == "Conv")
    bitops = case.fact.totals.bitops
    assert bitops.before == totals.macs * 1024
    assert bitops.after == (totals.macs - conv) * 1024 + conv * 64
    assert case.layer("Conv").bits == Bits(8, 8)
    assert case.layer("Gemm").bits == Bits(32, 32)
    assert case.layer("Gemm").reason
    assert [(one.op, one.total, one.changed, one.unchanged) for one in case.fact.by_op] == [
        ("Conv", 2, 2, 0), ("Gemm", 3, 0, 3),
    ]  # fmt: skip
    now = stored(case.after)
    held = sum(
        t.size / 2 if t.dtype.name == "int4" else t.nbytes for n, t in now.items() if "_zero_point" not in n
    )
    scales = sum(now[name].nbytes for name in now if name.endswith("_scale") and now[name].ndim == 0)
    assert case.fact.totals.weight_bytes.before == totals.weight_bytes
    assert case.fact.totals.weight_bytes.after == held - scales


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert_tiny", "lstm_tiny", "mobilenet_small", "jsc_tiny"])
def test_every_kind_of_layer_is_weighed(name: str, tmp_path: Path) -> None:
    """Products of two activations, recurrent weights, grouped convolutions: all have their figures."""
    case = quantize(name, tmp_path)
    for layer in case.fact.layers:
        if not layer.reason:
            assert 10 < (layer.output_snr_db or 0) < 90, layer
            assert (layer.weight_snr_db is None) == (layer.weight == "")
            assert layer.macs
    assert all((one.snr_db or 0) > 15 for one in case.fact.outputs)
    two = [layer for layer in case.fact.layers if not layer.weight and not layer.reason]
    assert all(layer.bitops == (layer.macs or 0) * 64 for layer in two)
    assert bool(two) == (name == "bert_tiny")


def test_figures_do_not_depend_on_how_many_values_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = quantize("lenet", tmp_path).fact
    monkeypatch.setattr("explorer.engine.quantize.errors.BUDGET", 4096)
    monkeypatch.setattr(observer, "BUDGET", 4096)
    assert quantize("lenet", tmp_path).fact == whole
