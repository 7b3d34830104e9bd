"""A model that takes its input to a number format, by the function that says it, and nothing else."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from explorer.engine.formats.onnx.writer import write
from explorer.engine.graph.model import Function, Graph, Model, Value
from explorer.engine.number_formats.number_format import Grid, NumberFormat
from explorer.engine.quantize.functions import DOMAIN_VERSION, build_function, call
from tests import stock

LEVELS = stock.LEVELS


def model_of(
    parts: list[tuple[NumberFormat, Grid, int]], shape: tuple[int, ...], opset: int, ir_version: int = 10
) -> Model:
    """The formats one after the other, each of what the one before gave: x, y0, y1, all of them outputs."""
    calls, functions, source = [], list[Function](), "x"
    for at, (fmt, grid, axis) in enumerate(parts):
        calls.append(call(fmt, grid, source, f"y{at}", shape, axis=axis))
        functions += [function for function in [build_function(fmt, opset)] if function]
        source = f"y{at}"
    return Model(
        Graph(
            "formats",
            tuple(node for one in calls for node in one.nodes),
            (Value("x", "float32", shape),),
            tuple(Value(f"y{at}", "float32", shape) for at in range(len(parts))),
            {tensor.name: tensor for one in calls for tensor in one.tensors},
            tuple(value for one in calls for value in one.values),
        ),
        {"": opset, **{function.domain: DOMAIN_VERSION for function in functions}},
        ir_version,
        {function.key: function for function in functions},
    )


def run(path: Path, values: np.ndarray, level: str, name: str = "x") -> list[np.ndarray]:
    """What stock onnxruntime makes of a file's input."""
    return stock.outputs(path, {name: values}, level)


def written(folder: Path, model: Model) -> Path:
    """It as a file."""
    path = folder / "formats.onnx"
    write(model, str(path))
    return path
