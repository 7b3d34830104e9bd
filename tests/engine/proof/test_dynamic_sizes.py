"""Where a model leaves sizes open, a proof tries several: never only 1, never only below a tile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.graph.model import Model
from explorer.engine.proof import dynamic_sizes
from explorer.engine.proof.dynamic_sizes import Sizes, choose_sizes
from explorer.facts import TileSpec
from explorer.session import Session
from tests.engine.proof import tiled as t


def linear(path: Path, *shape: Any, depth: int = 8) -> Model:
    """y = x W for a stack of any of the sizes of `shape`."""
    return t.model(
        path, [helper.make_node("MatMul", ["x", "w"], ["y"])], {"x": (*shape, depth)}, weights(depth)
    )


def weights(depth: int = 8) -> dict[str, np.ndarray]:
    return {"w": t.weight(depth, 8)}


def at(sizes: Sizes, name: str) -> set[int]:
    return {row[name] for row in sizes.tried}


def of_tiled(path: Path, model: Model, tile: int = 32, **dims: Any) -> Sizes:
    session = Session(model.path)
    plan = session.plan(TileSpec((tile, 16, 16)))
    return choose_sizes(model, plan, dims)


@pytest.mark.parametrize("name", ["rows", "N", "sequence", None])
def test_a_length_is_tried_at_several(tmp_path: Path, name: str | None) -> None:
    sizes = choose_sizes(linear(tmp_path / "m.onnx", name), None, {})
    assert at(sizes, name or "") == {1, 2, 3, 17}


@pytest.mark.parametrize("name", ["rows", "N", "sequence"])
def test_a_length_is_tried_around_its_tile(tmp_path: Path, name: str) -> None:
    sizes = of_tiled(tmp_path, linear(tmp_path / "m.onnx", name))
    assert {1, 2, 3, 17, 31, 32, 33} <= at(sizes, name)
    assert max(at(sizes, name)) > 64


def test_a_first_axis_is_a_length_unless_it_is_called_a_batch(tmp_path: Path) -> None:
    assert {31, 32, 33} <= at(of_tiled(tmp_path, linear(tmp_path / "m.onnx", "frames", "views")), "frames")
    assert max(at(of_tiled(tmp_path, linear(tmp_path / "n.onnx", "batch", "views")), "batch")) == 17


def test_a_batch_that_is_the_rows_of_a_product_is_tried_around_its_tile(tmp_path: Path) -> None:
    """The pooler of a BERT multiplies one row of every sequence."""
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("ReduceMax", ["h"], ["first"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["first", "w"], ["y"]),
    ]
    model = t.model(tmp_path / "m.onnx", nodes, {"x": ("batch", "seq", 8)}, weights())
    sizes = of_tiled(tmp_path, model)
    assert {31, 32, 33} <= at(sizes, "batch")
    assert {31, 32, 33} <= at(sizes, "seq")


def test_two_lengths_are_seldom_the_same(tmp_path: Path) -> None:
    tried = choose_sizes(linear(tmp_path / "m.onnx", "height", "width"), None, {}).tried
    assert sum(row["height"] != row["width"] for row in tried) >= 3


def test_two_names_of_one_length_are_tried_at_the_same(tmp_path: Path) -> None:
    model = t.model(
        tmp_path / "m.onnx",
        [helper.make_node("Concat", ["x", "mask"], ["y"], axis=1)],
        {"x": ("seq", 2), "mask": ("mask_seq", 3)},
        {"w": t.weight(1)},
    )
    sizes = choose_sizes(model, None, {})
    assert {row["seq"] for row in sizes.tried} == {1, 2, 3, 17}
    assert all(row["seq"] == row["mask_seq"] for row in sizes.tried)


def test_sizes_that_the_model_refuses_are_dropped_and_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)]
    model = t.model(tmp_path / "m.onnx", nodes, {"x": ("rows", 2)}, {"z": t.weight(2, 2)})
    sizes = choose_sizes(model, None, {})
    assert sizes.tried == ({"rows": 2},)
    assert {row["rows"] for row in sizes.refused} == {1, 3, 17}


def test_a_model_that_runs_at_no_size_is_refused(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)]
    model = t.model(tmp_path / "m.onnx", nodes, {"x": ("rows", 2)}, {"z": t.weight(23, 2)})
    with pytest.raises(BadModel, match="cannot run the original"):
        choose_sizes(model, None, {})


def test_sizes_that_take_too_long_are_left_out_and_named_but_never_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dynamic_sizes, "_MAX_MACS", 0)
    sizes = choose_sizes(linear(tmp_path / "m.onnx", "batch", 4), None, {})
    assert sizes.tried == ({"batch": 1}, {"batch": 2})
    assert {row["batch"] for row in sizes.costly} == {3, 17}
    sizes = choose_sizes(linear(tmp_path / "n.onnx", "height", "width"), None, {})
    assert len(sizes.tried) == 2


def test_chosen_sizes_are_tried_together_and_no_others(tmp_path: Path) -> None:
    model = linear(tmp_path / "m.onnx", "batch", "seq")
    sizes = choose_sizes(model, None, {"batch": 2, "seq": (5, 16, 64)})
    assert sizes.tried == tuple({"batch": 2, "seq": seq} for seq in (5, 16, 64))
    zipped = choose_sizes(model, None, {"batch": (1, 2), "seq": (5, 16, 64)}).tried
    assert [(row["batch"], row["seq"]) for row in zipped] == [(1, 5), (2, 16), (1, 64)]


def test_a_chosen_size_that_the_model_refuses_is_an_error(tmp_path: Path) -> None:
    nodes = [helper.make_node("Concat", ["x", "z"], ["y"], axis=1)]
    model = t.model(tmp_path / "m.onnx", nodes, {"x": ("rows", 2)}, {"z": t.weight(2, 2)})
    with pytest.raises(ExplorerError, match=r"rows=7"):
        choose_sizes(model, None, {"rows": (2, 7)})


def test_a_product_for_each_sample_is_not_proved_again_for_more_samples(tmp_path: Path) -> None:
    """The pooler of a BERT needs batches around its tile; attention has a product for each sample."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["turned"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "turned"], ["scores"]),
        helper.make_node("MatMul", ["scores", "x"], ["mixed"]),
        helper.make_node("ReduceMax", ["mixed"], ["first"], axes=[1], keepdims=0),
        helper.make_node("MatMul", ["first", "w"], ["y"]),
    ]
    model = t.model(tmp_path / "m.onnx", nodes, {"x": ("batch", "seq", 8)}, weights())
    with Session(model.path) as session:
        proof = session.tile(TileSpec((16, 16, 16)), output=tmp_path / "tiled.onnx").verification
    assert proof is not None
    assert proof.passed
    tiles = {site.name: site.tiles for site in proof.sites}
    batches = [sizes["batch"] for sizes in proof.sizes]
    assert {1, 2, 3, 15, 16, 17, 41} <= set(batches)
    assert tiles["scores"] < sum(batches) < 400
    assert tiles["y"] == sum(-(-batch // 16) for batch in set(batches))
