"""What a runtime makes of a model: the level of optimization at which it loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import Model
from explorer.engine.proof.proof import verify
from explorer.engine.runtime.onnxruntime import RuntimeSession, find_weights_folder, shorten_error
from tests.engine.proof import tiled as t


def spoiled_by_optimisation(path: Path) -> Model:
    """Signed bytes that a Reshape reads: onnxruntime's own pass makes a node of it that it then refuses."""
    zero, scale = np.zeros((), np.int8), np.array(0.05, np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("QuantizeLinear", ["h", "scale", "zero"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
        helper.make_node("Reshape", ["d", "shape"], ["r"]),
        helper.make_node("Tanh", ["r"], ["y"]),
    ]
    weights = {"w": t.weight(6, 8), "scale": scale, "zero": zero, "shape": np.array([16])}
    return t.model(path, nodes, {"x": (2, 6)}, weights, opset=23)


def test_a_model_that_optimisation_spoils_runs_at_a_lower_level(tmp_path: Path) -> None:
    model = spoiled_by_optimisation(tmp_path / "m.onnx")
    session = RuntimeSession(model, label="the model")
    assert session.level == "basic"
    assert RuntimeSession(model, label="the model", optimize=False).level == ""
    x = t.weight(2, 6)
    plain = RuntimeSession(model, label="the model", optimize=False).run({"x": x})
    assert np.array_equal(session.run({"x": x})["y"], plain["y"])
    assert verify(model, model).passed


@pytest.mark.parametrize("scales", [np.array(0.05, np.float32), t.weight(6) ** 2])
@pytest.mark.parametrize("stored", [True, False])
def test_signed_bytes_without_a_zero_point_stay_what_they_are(
    tmp_path: Path, scales: np.ndarray[Any, Any], stored: bool
) -> None:
    # the runtime's own passes give them the zero point of unsigned bytes, or one for a whole axis
    codes = np.arange(-24, 24, dtype=np.int8).reshape(6, 2, 4)
    nodes = [
        helper.make_node("DequantizeLinear", ["codes", "scales"], ["wide"], axis=0),
        helper.make_node("Reshape", ["wide", "shape"], ["w"]),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    weights, inputs = {"scales": scales, "shape": np.array([6, 8])}, {"x": (2, 6)}
    if stored:
        model = t.model(tmp_path / "m.onnx", nodes, inputs, {**weights, "codes": codes})
    else:
        types = {"codes": TensorProto.INT8}
        model = t.model(tmp_path / "m.onnx", nodes, {**inputs, "codes": (6, 2, 4)}, weights, dtypes=types)
    x = t.weight(2, 6)
    feeds = {"x": x} if stored else {"x": x, "codes": codes}
    y = RuntimeSession(model, label="the model").run(feeds)["y"]
    true = x.astype(np.float64) @ (codes * np.reshape(scales, (-1, 1, 1)).astype(np.float64)).reshape(6, 8)
    assert np.abs(y - true).max() < 1e-5


def test_a_reason_without_words_is_told_by_its_kind() -> None:
    assert shorten_error(RuntimeError("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ")) == "not implemented"
    assert shorten_error(RuntimeError("[ONNXRuntimeError] : 1 : FAIL : no such kernel.")) == "no such kernel"


def test_what_loads_at_no_level_is_refused_in_the_words_of_the_highest(tmp_path: Path) -> None:
    node = helper.make_node("Tan", ["x"], ["y"])
    model = t.model(
        tmp_path / "m.onnx",
        [node],
        {"x": (2,)},
        {},
        dtypes={"x": TensorProto.DOUBLE, "y": TensorProto.DOUBLE},
    )
    with pytest.raises(BadModel, match=r"cannot load the model: .*Tan"):
        RuntimeSession(model, label="the model")


def test_weights_behind_a_link_stay_where_they_lie(tmp_path: Path) -> None:
    """A model in a cache of links is not copied into memory, which has no room for one of many GB."""
    for name in ("stored", "links"):
        (tmp_path / name).mkdir()
    node, weight = helper.make_node("MatMul", ["x", "w"], ["y"]), t.weight(64, 64)
    t.model(tmp_path / "stored" / "m.onnx", [node], {"x": (2, 64)}, {"w": weight})
    link = tmp_path / "links" / "m.onnx"
    link.symlink_to(tmp_path / "stored" / "m.onnx")
    model = reader.read(str(link))
    assert len(encode_skeleton(model, folder=find_weights_folder(model))) < weight.nbytes / 4
    x = t.weight(2, 64)
    assert np.array_equal(RuntimeSession(model, label="the link").run({"x": x})["y"], x @ weight)
