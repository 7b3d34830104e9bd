"""Whole models in formats of their own: what flows in onnxruntime, number by number, and in QONNX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from explorer import Session
from explorer.engine.number_formats import EXAMPLES
from explorer.facts.quantize import QuantizeSpec
from tests.engine.quantize.one_call import LEVELS, run
from tests.engine.quantize.representable import float_numbers, microscaled, nearest, rounded_magnitudes

DEFINITIONS: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "fixed12.6": lambda values, axis: nearest(values, [code / 64 for code in range(-2048, 2048)]),
    "floatE4M3": lambda values, axis: rounded_magnitudes(values, float_numbers(4, 3, 7)),
    "mxfp8": lambda values, axis: np.apply_along_axis(in_blocks, axis, values, "mxfp8"),
    "mxint8": lambda values, axis: np.apply_along_axis(in_blocks, axis, values, "mxint8"),
}


def in_blocks(row: np.ndarray, name: str) -> np.ndarray:
    return np.concatenate([microscaled(row[at : at + 32], name) for at in range(0, len(row), 32)])


def quantized(path: str, output: Path, name: str) -> onnx.ModelProto:
    bias = {"mxfp8": "float32", "mxint8": "float32", "int8": "auto"}.get(name, name)
    with Session(path) as session:
        spec = QuantizeSpec(weight=name, input=name, bias=bias, form="function")
        session.quantize(spec, output=str(output), report=False)
    model = onnx.load(output)
    onnx.checker.check_model(model, full_check=True)
    return model


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(DEFINITIONS))
@pytest.mark.parametrize("model", ["lenet", "lstm_tiny"])
def test_each_number_that_a_layer_reads_is_the_nearest_of_its_format(
    tmp_path: Path, sample: Callable[[str], str], model: str, name: str
) -> None:
    made = quantized(sample(model), tmp_path / "q.onnx", name)
    calls = [node for node in made.graph.node if node.domain]
    flowing = {node.input[0] for node in calls} | {node.output[0] for node in calls}
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in made.graph.initializer}
    given = {value.name for value in made.graph.output}
    made.graph.output.extend(onnx.ValueInfoProto(name=n) for n in flowing - given - set(stored))
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    x = session.get_inputs()[0]
    draw = np.random.default_rng(0)
    sizes = [size if isinstance(size, int) else 3 for size in x.shape]
    feeds = {x.name: draw.normal(0, 2, sizes).astype(np.float32)}
    names = [value.name for value in session.get_outputs()]
    seen = {**stored, **feeds, **dict(zip(names, session.run(None, feeds), strict=True))}
    assert len(calls) >= 4
    for node in calls:
        axis = next((a.i for a in node.attribute if a.name == "axis"), -1)
        expected = DEFINITIONS[name](seen[node.input[0]], axis)
        assert np.array_equal(seen[node.output[0]], expected), node.name


@pytest.mark.slow
@pytest.mark.parametrize("model", ["jsc_tiny", "lenet", "mobilenet_small"])
def test_qonnx_executes_a_whole_model_as_onnxruntime_does(
    tmp_path: Path, sample: Callable[[str], str], in_qonnx: Callable[..., dict[str, Any]], model: str
) -> None:
    feeds, expected = {}, {}
    # of the large model, whose operators it executes one at a time, an integer and a fixed point
    few = ("int8", "fixed12.6")
    for name in few if model == "mobilenet_small" else (*few, "floatE4M3", "float8e5m2", "ternary", "binary"):
        made = quantized(sample(model), tmp_path / f"{name}.onnx", name)
        (x,) = made.graph.input
        sizes = [size.dim_value for size in x.type.tensor_type.shape.dim]
        feeds[name] = {x.name: np.random.default_rng(0).normal(0, 1, sizes).astype(np.float32)}
        (expected[name],) = run(tmp_path / f"{name}.onnx", feeds[name][x.name], LEVELS[0], x.name)
    for name, (outputs, _) in in_qonnx(tmp_path, feeds).items():
        (got,) = outputs.values()
        # one node at a time, or all of them: onnxruntime may lay a convolution's channels out otherwise
        assert np.allclose(got, expected[name], rtol=1e-6, atol=1e-6), name
        assert np.ptp(got) > 0


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EXAMPLES[1:])
def test_every_format_quantizes_a_model_and_is_weighed(sample: Callable[[str], str], name: str) -> None:
    with Session(sample("jsc_tiny")) as session:
        result = session.quantize(QuantizeSpec(weight=name, input=name))
        assert {layer.weight for layer in result.layers if not layer.reason} == {name}
        assert all(layer.weight_snr_db is not None for layer in result.layers if not layer.reason)
        assert np.isfinite(result.outputs[0].cosine)


@pytest.mark.parametrize("name", ["int8", "fixed12.6", "mxfp6"])
def test_a_size_that_was_bound_for_the_figures_stays_open_in_the_file(
    tmp_path: Path, sample: Callable[[str], str], name: str
) -> None:
    with Session(sample("lstm_tiny"), dims={"batch": 1, "sequence": 5}) as session:
        spec = QuantizeSpec(weight=name, input=name, bias="float32")
        session.quantize(spec, output=str(tmp_path / "q.onnx"), report=False)
    values = np.ones((3, 7, 20), np.float32)
    (got,) = run(tmp_path / "q.onnx", values, LEVELS[-1], "features")
    assert got.shape == (3, 7, 12)
