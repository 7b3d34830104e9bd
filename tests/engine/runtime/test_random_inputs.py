"""Inputs are drawn by seed, of the declared type and shape, in a range that means something."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from explorer.base.errors import Misuse
from explorer.engine.formats.onnx import reader
from explorer.engine.runtime.random_inputs import draw, plan_inputs
from tests.engine.proof import tiled as t


def test_ids_stay_below_the_height_of_the_table_they_index(sample: Callable[[str], Path]) -> None:
    model = reader.read(str(sample("bert_tiny")))
    planned = plan_inputs(model, {"batch": 2, "sequence": 64})
    values = draw(planned, 0)
    table = max(t.shape[0] for t in model.graph.initializers.values() if "word" in t.name)
    ids = values["input_ids"]
    assert ids.shape == (2, 64)
    assert ids.dtype == np.int64
    assert 0 <= ids.min() < ids.max() < table
    assert len(np.unique(ids)) > 32
    assert set(np.unique(values["token_type_ids"])) == {0, 1}
    assert set(np.unique(values["attention_mask"])) <= {0, 1}


def test_a_table_is_found_behind_casts_and_reshapes(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Cast", ["ids"], ["wide"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["wide", "axes"], ["column"]),
        helper.make_node("Gather", ["w", "column"], ["y"]),
    ]
    weights = {"w": t.weight(13, 4), "axes": np.array([1], np.int64)}
    model = t.model(tmp_path / "m.onnx", nodes, {"ids": (9,)}, weights, dtypes={"ids": TensorProto.INT32})
    (planned,) = plan_inputs(model)
    assert planned.text() == "ids: int32 [9], 0 to 12, rows of the table it indexes"
    assert draw((planned,), 3)["ids"].dtype == np.int32


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (TensorProto.FLOAT, "x: float32 [2, 8], standard normal"),
        (TensorProto.FLOAT16, "x: float16 [2, 8], standard normal"),
        (TensorProto.DOUBLE, "x: float64 [2, 8], standard normal"),
        (TensorProto.BOOL, "x: bool [2, 8], 0 to 1, at random"),
        (TensorProto.UINT8, "x: uint8 [2, 8], 0 to 255, the whole range"),
        (TensorProto.INT8, "x: int8 [2, 8], -128 to 127, the whole range"),
        (TensorProto.INT64, "x: int64 [2, 8], 0 to 1, as a mask"),
    ],
)
def test_every_type_has_a_range(code: int, words: str, tmp_path: Path) -> None:
    node = helper.make_node("Identity", ["x"], ["y"])
    model = t.model(tmp_path / "m.onnx", [node], {"x": (2, 8)}, {}, dtypes={"x": code, "y": code})
    planned = plan_inputs(model)
    assert planned[0].text() == words
    value = draw(planned, 0)["x"]
    assert value.shape == (2, 8)
    assert str(value.dtype) == words.split()[1]
    assert np.array_equal(value, draw(planned, 0)["x"])
    assert not np.array_equal(value, draw(planned, 1)["x"])


def test_symbolic_sizes_are_bound_and_one_otherwise(tmp_path: Path) -> None:
    node = helper.make_node("Relu", ["x"], ["y"])
    model = t.model(tmp_path / "m.onnx", [node], {"x": ("batch", "sequence", 8)}, {})
    assert plan_inputs(model)[0].shape == (1, 1, 8)
    assert plan_inputs(model, {"sequence": 5})[0].shape == (1, 5, 8)
    assert plan_inputs(model, {}, {"x": (None, (2, 3, 8))})[0].shape == (2, 3, 8)
    with pytest.raises(Misuse, match=r"declared \[batch, sequence, 8\], not \[2, 8\]"):
        plan_inputs(model, {}, {"x": (None, (2, 8))})


def test_strings_are_those_that_the_model_knows_and_others(tmp_path: Path) -> None:
    words = {"keys_strings": ["red", "green"], "values_int64s": [1, 2]}
    encoder = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **words)
    info = [helper.make_tensor_value_info("x", TensorProto.STRING, (64,))]
    info.append(helper.make_tensor_value_info("y", TensorProto.INT64, (64,)))
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]
    graph = helper.make_graph([encoder], "g", info[:1], info[1:])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    plan = plan_inputs(t.reader.read(str(tmp_path / "m.onnx")))
    drawn = draw(plan, 0)["x"]
    assert {"red", "green"} < set(drawn)
    assert drawn.shape == (64,)
    assert (drawn == draw(plan, 0)["x"]).all()
