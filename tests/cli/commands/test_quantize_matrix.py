"""Models in each kind of format by one command: what is said of them is what plain numpy finds."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

from explorer.cli.main import main

SAMPLES = Path(__file__).parents[3] / "sample_models"
MODELS = ("jsc_tiny", "jsc_tiny_x10", "lstm_tiny", "bert_tiny", "mobilenet_small")
FORMATS = {
    "int8": ["--to", "int8", "--form", "qdq"],
    "fixed8.4": ["--to", "fixed8.4"],
    "mxfp8": ["--to", "mxfp8"],
    "int4": ["--to", "weight=int4", "--block", "32"],
}
BITS = {"int8": (8, 8), "fixed8.4": (8, 8), "mxfp8": (8.25, 8.25), "int4": (4, 32)}
"""Of a weight and of an input, with their share of what a block has in common."""
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


class Layer(NamedTuple):
    """What multiplies in an original: its weights with axes of channels and depth, what it reads, MACs."""

    weights: list[tuple[Any, int, int]]
    reads: list[Any]
    macs: int


def run(model: bytes, samples: list[dict[str, Any]], level: str = LEVELS[0]) -> list[dict[str, Any]]:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return [dict(zip(names, session.run(None, feeds), strict=True)) | feeds for feeds in samples]


def ratio(original: list[Any], other: list[Any]) -> float:
    """Signal to noise in dB."""
    x, q = (np.concatenate([np.asarray(a, np.float64).ravel() for a in some]) for some in (original, other))
    error = float(np.square(x - q).sum())
    return float(10 * np.log10(np.square(x).sum() / error)) if error else np.inf


def drawn(model: Any) -> dict[str, Any]:
    """Two samples, along a first axis of their own."""
    random, made = np.random.default_rng(7), {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [2, *(d.dim_value or (12 if at else 1) for at, d in enumerate(kind.shape.dim))]
        most = 2 if "type" in value.name else 90
        numbers = random.normal(size=shape).astype(np.float32)
        whole = np.ones(shape, np.int64) if "mask" in value.name else random.integers(0, most, shape)
        made[value.name] = whole if kind.elem_type == onnx.TensorProto.INT64 else numbers
    return made


def layers_of(model: Any, seen: list[dict[str, Any]]) -> dict[str, Layer]:
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    found = {}
    for node in model.graph.node:
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        axes = {"Conv": (0, 1), "Gemm": (0, 1) if attributes.get("transB") else (1, 0), "LSTM": (1, 2)}
        axes["MatMul"] = (-1, -2)
        if node.op_type not in axes:
            continue
        read = [name for name in node.input[:2] if name not in stored]
        values = [one[name] for name in read for one in seen]
        parts = [stored[name] for name in node.input[1:3] if name in stored and stored[name].ndim > 1]
        weights = [(part, *(axis % part.ndim for axis in axes[node.op_type])) for part in parts]
        out = seen[0][node.output[0]].size
        if node.op_type == "LSTM":
            macs = int(np.prod(values[0].shape[:2])) * sum(part.size for part in parts)
        elif not parts:
            macs = out * values[0].shape[-1]
        else:
            macs = out * (parts[0][0].size if node.op_type == "Conv" else parts[0].shape[weights[0][2]])
        found[node.name] = Layer(weights, values, macs)
    return found


def fixed(values: Any) -> Any:
    return np.clip(np.rint(np.asarray(values, np.float64) * 16), -128, 127) / 16


def integers(values: Any, rest: tuple[int, ...], largest: int) -> Any:
    """Symmetric, a scale for each index of the axes that are not named."""
    scale = np.abs(values).max(rest, keepdims=True) / np.float32(largest)
    scale = np.where(scale > 0, scale, 1).astype(np.float32)
    return np.clip(np.rint(values / scale), -largest - 1, largest).astype(np.float32) * scale


def microscaled(values: Any, rest: tuple[int, ...], _: int = 0) -> Any:
    """E4M3 with a power of two: that of the largest less 8."""
    top = np.abs(values).max(rest, keepdims=True)
    scale = np.exp2(np.floor(np.log2(np.where(top > 0, top, 1))) - 8, dtype=np.float64)
    cut = np.clip(values / scale, -448, 448).astype(np.float32)
    return cut.astype(ml_dtypes.float8_e4m3fn).astype(np.float64) * scale


def in_blocks(values: Any, axis: int, of: Callable[..., Any]) -> Any:
    turned = np.moveaxis(values, axis, -1)
    many = turned.shape[-1]
    whole = np.pad(turned, [(0, 0)] * (turned.ndim - 1) + [(0, -many % 32)])
    made = of(whole.reshape(*whole.shape[:-1], -1, 32), (-1,), 7).reshape(whole.shape)
    return np.moveaxis(made[..., :many], -1, axis)


def rounded(weight: Any, channel: int, depth: int, name: str, granularity: str) -> tuple[Any, float]:
    """What a format makes of a weight, and the bytes that hold it."""
    others = tuple(axis for axis in range(weight.ndim) if axis != channel)
    blocks = weight.size // weight.shape[depth] * -(-weight.shape[depth] // 32)
    if name == "fixed8.4":
        return fixed(weight), weight.size
    if name == "mxfp8":
        return in_blocks(weight, depth, microscaled), weight.size + blocks
    if granularity.endswith(("channel", "channels")):
        largest = {"int8": 127, "int4": 7}[name]
        return integers(weight, others, largest), weight.size * BITS[name][0] / 8 + 4 * weight.shape[channel]
    return in_blocks(weight, depth, integers), weight.size / 2 + 4 * blocks


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("source", MODELS)
def test_one_command_quantizes_and_says_what_is_so(
    source: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs at every level; weights, bytes, BitOPs, saturation and outputs are reckoned a second way."""
    path, target, data = SAMPLES / f"{source}.onnx", tmp_path / "q.onnx", tmp_path / "samples.npz"
    model = onnx.load(path)
    given = drawn(model)
    np.savez(data, **given)
    words = [str(path), "--calibrate", str(data), "--quiet", "--json"]
    assert main(["quantize", *words, "-o", str(target), *FORMATS[name]]) == 0
    fact = json.loads(capsys.readouterr().out)

    samples = [{key: array[at] for key, array in given.items()} for at in range(2)]
    outputs = [output.name for output in model.graph.output]
    seen_model = onnx.ModelProto.FromString(model.SerializeToString())
    inner = {value for node in model.graph.node for value in (*node.input[:2], *node.output[:1]) if value}
    made_by_nodes = {value for node in model.graph.node for value in node.output}
    seen_model.graph.output.extend(
        onnx.ValueInfoProto(name=value) for value in sorted((inner & made_by_nodes) - set(outputs))
    )
    seen = run(seen_model.SerializeToString(), samples)

    made = [run(target.read_bytes(), samples, level) for level in LEVELS]
    for output in fact["outputs"]:
        ratios = [ratio([o[output["name"]] for o in seen], [o[output["name"]] for o in one]) for one in made]
        assert min(ratios) - 0.02 <= output["snr_db"] <= max(ratios) + 0.02
        # of few bits a tie falls on the other side where products are added up in another order
        assert max(ratios) - min(ratios) < 1

    told = {layer["name"]: layer for layer in fact["layers"]}
    layers = layers_of(model, seen)
    assert layers
    for key, layer in layers.items():
        said, took = told[key], not told[key]["reason"]
        weight, read = BITS[name] if took else (32, 32)
        read = read if said["input"] == name else 32
        assert said["macs"] == layer.macs
        assert said["bitops"] == round(layer.macs * read * (weight if layer.weights else read))
        assert (said["bits"]["weight"] or weight, said["bits"]["input"] or read) == (weight, read)
        if took and layer.weights:
            parts = [rounded(*one, name, said["granularity"]) for one in layer.weights]
            own = ratio([one[0] for one in layer.weights], [part for part, _ in parts])
            assert float(said["weight_snr_db"]) == pytest.approx(own, rel=1e-3)
            assert said["weight_bytes"] == pytest.approx(sum(size for _, size in parts), abs=1)
        if took and said["input"] == name == "fixed8.4":
            values = np.concatenate([value.ravel() for value in layer.reads])
            assert said["saturated"] == pytest.approx(np.mean((values > 127.5 / 16) | (values < -128.5 / 16)))
            assert said["input_snr_db"] == pytest.approx(ratio([values], [fixed(values)]), rel=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["int8", "fixed8.4"])
@pytest.mark.parametrize("source", [model for model in MODELS if model != "bert_tiny"])
def test_one_command_quantizes_and_tiles_to_integers_that_are_proved(
    source: str, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Sums of integers are exact; the recurrence of an LSTM stays in floats and is shown on evidence."""
    target = tmp_path / "t.onnx"
    words = ["tile", str(SAMPLES / f"{source}.onnx"), "-o", str(target), "--quantize", name, "--quiet"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "checked bit for bit" in said
    if source != "lstm_tiny":
        assert "their sums are exact" in said
    assert "_int8" in said
