"""Shapes of models beyond 2 GiB, where onnx's own inference refuses the file. Files are holes on the disk."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.protobuf_wire import (
    encode_length_delimited,
    encode_tagged_varint,
    encode_varint,
)
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.shapes import infer

ROWS, COLUMNS = 1 << 20, 640
SIZE = ROWS * COLUMNS * 4


def structure() -> onnx.ModelProto:
    """A table of 2.5 GiB that ids look up, a determinant that only onnx's inference knows, a reshape."""
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], name="look up"),
        helper.make_node("Concat", ["rows", "rows"], ["twice"], name="twice", axis=0),
        helper.make_node("Det", ["square"], ["d"], name="det"),
        helper.make_node("Unsqueeze", ["d", "axes"], ["y"], name="last"),
    ]
    inputs = [
        helper.make_tensor_value_info("ids", TensorProto.INT64, ["N"]),
        helper.make_tensor_value_info("square", TensorProto.FLOAT, ["B", 3, 3]),
    ]
    outputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("twice", "y")]
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    graph = helper.make_graph(nodes, "g", inputs, outputs, [axes])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def one_file(path: Path) -> None:
    model = structure()
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    head = b"".join(encode_tagged_varint(1, n) for n in (ROWS, COLUMNS)) + encode_tagged_varint(2, 1)
    head += encode_length_delimited(8, b"table") + encode_varint(9 << 3 | 2) + encode_varint(SIZE)
    tensor = encode_varint(5 << 3 | 2) + encode_varint(len(head) + SIZE) + head
    with path.open("wb") as file:
        file.write(model.SerializeToString())
        file.write(
            encode_varint(7 << 3 | 2) + encode_varint(len(graph) + len(tensor) + SIZE) + graph + tensor
        )
        file.truncate(file.tell() + SIZE)


def beside(path: Path) -> None:
    model = structure()
    table = model.graph.initializer.add(name="table", data_type=TensorProto.FLOAT, dims=[ROWS, COLUMNS])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "weights.bin"), ("offset", "0"), ("length", str(SIZE))):
        table.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    with (path.parent / "weights.bin").open("wb") as file:
        file.truncate(SIZE)


@pytest.mark.parametrize("write", [one_file, beside])
def test_a_model_above_two_gibibytes_has_all_its_shapes(tmp_path: Path, write: object) -> None:
    path = tmp_path / "large.onnx"
    write(path)  # type: ignore[operator]
    model = validate(read(str(path)))
    found = infer(model).values
    assert found["table"].shape == (ROWS, COLUMNS)
    assert found["rows"].shape == ("N", COLUMNS)
    assert found["twice"].shape == ("2*N", COLUMNS)
    assert found["y"].shape == ("B", 1)
    totals = analyse(model, dims={"N": 5, "B": 2}).info.totals
    assert totals.params == ROWS * COLUMNS
    # five rows of the table, twice, and two determinants
    assert totals.activation_bytes_sum == 4 * (5 * COLUMNS + 10 * COLUMNS + 2 + 2)
