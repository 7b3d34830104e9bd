"""A Slice takes the elements that onnxruntime takes, in shapes and in folded values."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from explorer.engine.formats.onnx import reader
from explorer.engine.shapes import Inference
from explorer.engine.shapes.constant_folding import FOLDABLE

LARGEST = (1 << 31) - 1, (1 << 63) - 1


@pytest.mark.parametrize("size", [1, 4])
def test_starts_and_ends_beyond_both_ends_of_an_axis(tmp_path: Path, size: int) -> None:
    places = sorted({-(1 << 63), -size - 2, -size - 1, -size, -1, 0, 1, size, size + 1, *LARGEST})
    bounds = [
        (start, end, step)
        for start, end, step in itertools.product(places, places, (1, 2, -1, -3))
        if step > 0 or end not in LARGEST  # onnxruntime and the standard disagree on the others
    ]
    numbers = {n: np.asarray([n], np.int64) for n in {0, *itertools.chain(*bounds)}}
    slices = [
        helper.make_node("Slice", ["x", str(start), str(end), "0", str(step)], [f"{start}:{end}:{step}"])
        for start, end, step in bounds
    ]
    names = [each.output[0] for each in slices]
    infos = [helper.make_tensor_value_info(n, TensorProto.INT64, None) for n in names]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, (size,))
    stored = [numpy_helper.from_array(array, str(n)) for n, array in numbers.items()]
    graph = helper.make_graph(slices, "g", [x], infos, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "slices.onnx")
    results = InferenceSession(tmp_path / "slices.onnx").run(names, {"x": np.arange(size)})
    types = Inference(reader.read(str(tmp_path / "slices.onnx")), {}, {}).main.values
    for (start, end, step), name, expected in zip(bounds, names, results, strict=True):
        arguments = [numbers[n] for n in (start, end, 0, step)]
        np.testing.assert_array_equal(FOLDABLE["Slice"]({}, np.arange(size), *arguments), expected, name)
        assert types[name].shape == expected.shape, name
