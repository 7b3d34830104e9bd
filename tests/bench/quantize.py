"""Speed and memory of quantization, beside onnx's load and save and onnxruntime's `quantize_static`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench.tile import Bench, Line, Measure, largest, ms

__all__ = ["cases"]


def weights(bench: Bench, folder: Path) -> Iterator[Line]:
    """Nothing is run: the weights are read twice, for their range and for their codes."""
    source = bench.models("alexnet")
    copied, ours = bench.best(
        ("load_save", source, folder / "copy.onnx"),
        ("quantize_save", source, folder / "quantized.onnx", "weight=int8"),
    )
    a, b = copied["seconds"], ours["seconds"]
    yield "AlexNet: weights to int8 / load + save", ms(b), ms(a), 0.5, b / a, "x"


def calibrated(bench: Bench, folder: Path) -> Iterator[Line]:
    """Both on the same four inputs, weights per channel, ranges from least to greatest."""
    source, target = bench.models("alexnet"), folder / "quantized.onnx"
    theirs, bare, whole = bench.best(
        ("quantize_static", source, folder / "static.onnx"),
        ("quantize_save", source, target, "int8"),
        ("quantize_save", source, target, "int8", "report"),
    )
    a = theirs["seconds"]
    for said, seen in (("", bare), (", with its report", whole)):
        b = seen["seconds"]
        yield f"AlexNet to int8{said} / quantize_static", ms(b), ms(a), 1.5, b / a, "x"


def table(folder: Path) -> Path:
    """A model of one weight of 600 MB, a table, and one of 1 MB."""
    path = folder / "table.onnx"
    if not path.exists():
        import numpy as np
        import onnx
        from onnx import helper, numpy_helper

        random, shapes = np.random.default_rng(0), {"table": (150_000, 1000), "w": (1000, 256)}
        stored = [
            numpy_helper.from_array(random.standard_normal(shape, dtype=np.float32), name)
            for name, shape in shapes.items()
        ]
        nodes = [
            helper.make_node("Gather", ["table", "ids"], ["rows"], name="embed"),
            helper.make_node("MatMul", ["rows", "w"], ["y"], name="head"),
        ]
        ids, y = (
            helper.make_tensor_value_info(name, kind, shape)
            for name, kind, shape in (("ids", 7, [1, 16]), ("y", 1, [1, 16, 256]))
        )
        graph = helper.make_graph(nodes, "table", [ids], [y], stored)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def peaks(bench: Bench, folder: Path) -> Iterator[Line]:
    """Above the imports, without a report: no more than the largest weight and 100 MB."""
    for path in (bench.models("alexnet"), bench.models("vgg16"), table(folder)):
        most = largest(path)
        for words in ("weight=int8", "int8"):
            (seen,) = bench.best(("quantize_save", path, folder / "quantized.onnx", words))
            b = seen["megabytes"]
            said = f"{path.stem} to {words}: peak"
            yield said, f"{b:,.0f} MB", f"{most:,.0f} MB weight", most + 100, b, "MB"


def cases(models: Callable[[str], Path], measured: Measure, rounds: int, folder: Path) -> Iterator[Line]:
    """Every case in turn; `folder` is where what they write goes."""
    bench = Bench(models, lambda: folder, measured, rounds)
    for case in (weights, calibrated, peaks):
        yield from case(bench, folder)
