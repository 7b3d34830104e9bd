"""A quantized model runs in onnxruntime, at every level of optimisation, to what its formats say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from explorer.engine import shapes
from explorer.engine.formats.onnx import reader, writer
from explorer.engine.graph.model import Model
from explorer.engine.quantize.calibration import ranges
from explorer.engine.quantize.choice import choose
from explorer.engine.quantize.grids import Grids, wanted
from explorer.engine.quantize.layers import find_layers
from explorer.engine.quantize.quantize import quantized
from explorer.engine.runtime.samples import random_samples
from explorer.facts.quantize import QuantizeSpec

SAMPLES = Path(__file__).parents[3] / "sample_models"
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL")


def quantize(source: Path, target: Path, **spec: Any) -> Model:
    """The model in `source`, quantized into `target`."""
    model = reader.read(str(source))
    known = shapes.infer(model).values
    choices = choose(find_layers(model, known), QuantizeSpec(**spec))
    found = ranges(model, wanted(choices), random_samples(model, 2))
    writer.write(quantized(model, choices, Grids(found), known), str(target))
    return reader.read(str(target))


def run(path: Path, level: str = "ORT_DISABLE_ALL") -> list[Any]:
    """Its outputs on two random inputs."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, level)
    # without it two products of bytes saturate at 16 bits on a processor without VNNI
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    samples = random_samples(reader.read(str(path)), 2)
    return [output for feeds in samples for output in session.run(None, feeds)]


def snr(one: list[Any], other: list[Any]) -> float:
    """In dB, over all outputs."""
    pairs = list(zip(one, other, strict=True))
    error = sum(float(np.square(np.subtract(a, b, dtype=np.float64)).sum()) for a, b in pairs)
    power = sum(float(np.square(a.astype(np.float64)).sum()) for a in one)
    return float(10 * np.log10(power / max(error, 1e-300)))


@pytest.mark.parametrize("name", ["lenet", "jsc_tiny", "lstm_tiny", "bert_tiny", "mobilenet_small"])
def test_int8_runs_alike_at_every_level(name: str, tmp_path: Path) -> None:
    """Optimised or not: the same numbers, near the original's."""
    source, target = SAMPLES / f"{name}.onnx", tmp_path / "q.onnx"
    quantize(source, target)
    onnx.checker.check_model(str(target), full_check=True)
    made = run(target)
    assert snr(run(source), made) > 20
    assert all(snr(made, run(target, level)) > 90 for level in LEVELS[1:])
