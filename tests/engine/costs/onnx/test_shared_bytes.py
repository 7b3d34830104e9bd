"""Tensors of an ONNX model that overlap in a file of external data count each byte once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper, save

from explorer import Session

ROWS, DEPTH, WIDTH = 24, 6, 10
"""The table in the file has `ROWS` rows of `WIDTH` float32."""


def build(folder: Path, places: dict[str, tuple[int, int]]) -> str:
    """Writes products with matrices `DEPTH` x `WIDTH` whose rows lie in one file, by first row and file."""
    nodes, stored = [], []
    for name, (row, file) in places.items():
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=(DEPTH, WIDTH))
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in {
            "location": f"table{file}.bin",
            "offset": row * WIDTH * 4,
            "length": DEPTH * WIDTH * 4,
        }.items():
            tensor.external_data.add(key=key, value=str(value))
        stored.append(tensor)
        nodes.append(helper.make_node("MatMul", ["x", name], [f"y_{name}"], name=f"by_{name}"))
    for file in {file for _, file in places.values()}:
        (folder / f"table{file}.bin").write_bytes(np.ones((ROWS, WIDTH), np.float32).tobytes())
    outputs = [helper.make_tensor_value_info(f"y_{n}", TensorProto.FLOAT, (3, WIDTH)) for n in places]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, DEPTH))]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    model: ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


@pytest.mark.parametrize(
    ("places", "rows"),
    [
        ({"a": (0, 0), "b": (4, 0)}, 10),
        ({"a": (0, 0), "b": (0, 0), "c": (5, 0)}, 11),
        ({"a": (2, 0), "b": (6, 0), "c": (4, 0), "d": (18, 0)}, 16),
        ({"a": (0, 0), "b": (6, 0)}, 12),
        ({"a": (0, 0), "b": (4, 1)}, 12),
    ],
)
def test_the_union_of_byte_ranges_counts(
    tmp_path: Path, places: dict[str, tuple[int, int]], rows: int
) -> None:
    with Session(build(tmp_path, places)) as session:
        totals = session.info().totals
        layers = {layer.path: layer for layer in session.analysis().layers}
    assert (totals.params, totals.weight_bytes) == (rows * WIDTH, rows * WIDTH * 4)
    assert totals.macs == len(places) * 3 * DEPTH * WIDTH
    assert all(layers[f"by_{name}"].params == DEPTH * WIDTH for name in places)
    if rows == 10:
        assert layers["by_a"].shared_with == ("by_b",)


def test_tensors_in_the_models_own_file_are_counted_as_they_are(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones((DEPTH, WIDTH), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (3, DEPTH))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (3, WIDTH))],
        [weight],
    )
    save(helper.make_model(graph, ir_version=9), tmp_path / "own.onnx")
    with Session(str(tmp_path / "own.onnx")) as session:
        assert session.info().totals.params == DEPTH * WIDTH
