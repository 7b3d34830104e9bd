"""Channels in whole blocks, as the last level of onnxruntime writes them: by the file, not the machine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.numpy_helper import from_array

from explorer.engine.formats.onnx.reader import read
from explorer.engine.graph.layouts import NCHWC
from explorer.engine.shapes import infer

ort = pytest.importorskip("onnxruntime")
FLOAT = TensorProto.FLOAT


def save(path: Path, nodes: list[onnx.NodeProto], weights: dict[str, tuple[int, ...]], channels: int) -> None:
    rng = np.random.default_rng(1)
    stored = [
        from_array(rng.standard_normal(shape).astype(np.float32), name) for name, shape in weights.items()
    ]
    given = helper.make_tensor_value_info("x", FLOAT, [1, channels, 10, 10])
    graph = helper.make_graph(nodes, "g", [given], [helper.make_tensor_value_info("y", FLOAT, None)], stored)
    sets = [helper.make_opsetid("", 17), helper.make_opsetid(NCHWC, 1)]
    onnx.save(helper.make_model(graph, opset_imports=sets, ir_version=8), path)


def test_every_value_of_a_file_that_the_runtime_wrote_has_the_shape_that_it_has_in_a_run(
    tmp_path: Path,
) -> None:
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", ["p", "w2"], ["c"], group=36, pads=[1, 1, 1, 1]),
        node("Add", ["c", "p"], ["s"]),
        node("Conv", ["s", "w3"], ["y"]),
    ]
    save(tmp_path / "m.onnx", nodes, {"w1": (36, 20, 3, 3), "w2": (36, 1, 3, 3), "w3": (50, 36, 1, 1)}, 20)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.optimized_model_filepath = str(tmp_path / "written.onnx")
    ort.InferenceSession(str(tmp_path / "m.onnx"), options, providers=["CPUExecutionProvider"])
    written = onnx.load(tmp_path / "written.onnx")
    made = [name for node in written.graph.node for name in node.output if name and name != "y"]
    if not any(node.op_type == "ReorderInput" for node in written.graph.node):
        pytest.skip("this machine has no blocked layout")
    written.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in made)
    session = ort.InferenceSession(written.SerializeToString(), options, providers=["CPUExecutionProvider"])
    ran = session.run(["y", *made], {"x": np.zeros((1, 20, 10, 10), np.float32)})
    values = infer(read(str(tmp_path / "written.onnx"))).values
    assert {name: values[name].shape for name in ("y", *made)} == {
        name: value.shape for name, value in zip(("y", *made), ran, strict=True)
    }


@pytest.mark.parametrize(("block", "filled"), [(8, 40), (16, 48)])
def test_the_weights_of_the_file_say_how_wide_its_blocks_are(block: int, filled: int, tmp_path: Path) -> None:
    made = helper.make_node
    nodes = [
        made("ReorderInput", ["x"], ["a"], domain=NCHWC),
        made("MaxPool", ["a"], ["p"], domain=NCHWC, kernel_shape=[2, 2], strides=[2, 2]),
        made("Conv", ["p", "w"], ["c"], domain=NCHWC),
        made("ReorderOutput", ["c"], ["y"], domain=NCHWC, channels=33),
    ]
    save(tmp_path / "m.onnx", nodes, {"w": (-(-33 // block) * block, filled, 1, 1)}, 36)
    values = infer(read(str(tmp_path / "m.onnx"))).values
    assert values["a"].shape == (1, filled, 10, 10)
    assert values["p"].shape == (1, filled, 5, 5)
    assert values["y"].shape == (1, 33, 5, 5)


def test_without_a_weight_behind_it_the_number_of_channels_stays_open(tmp_path: Path) -> None:
    made = helper.make_node
    nodes = [
        made("ReorderInput", ["x"], ["a"], domain=NCHWC),
        made("GlobalAveragePool", ["a"], ["p"], domain=NCHWC),
        made("ReorderOutput", ["p"], ["y"], domain=NCHWC, channels=120),
    ]
    save(tmp_path / "m.onnx", nodes, {}, 120)
    values = infer(read(str(tmp_path / "m.onnx"))).values
    assert values["a"].shape == (1, None, 10, 10)
    assert values["y"].shape == (1, 120, 1, 1)
