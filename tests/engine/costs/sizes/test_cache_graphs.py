"""Curves and steps of graphs that take their key-value cache: as long a text, as much work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer import Misuse, Session, TileSpec
from explorer.engine.formats.onnx import writer
from explorer.engine.graph.model import Model, Node
from explorer.facts.profile.profile import ProfileSpec
from explorer.facts.split.split import SplitSpec

Build = Callable[..., Model]

E, H, D, V = 8, 2, 4, 32
"""Width, heads, width of a head, vocabulary of the graphs."""


def decoder(build: Build, *, cache: bool) -> Model:
    """One layer of attention, written out, over a whole text or behind a cache."""
    nodes = [Node("Gather", ["table", "ids"], ["h"], name="embed")]
    for w in "qkv":
        nodes += [
            Node("MatMul", ["h", f"w{w}"], [f"{w}0"], name=f"{w}_proj"),
            Node("Reshape", [f"{w}0", "heads"], [f"{w}1"], name=f"{w}_split"),
            Node("Transpose", [f"{w}1"], [f"{w}2"], name=f"{w}_turn", attributes={"perm": (0, 2, 1, 3)}),
        ]
    k, v = ("present_k", "present_v") if cache else ("k2", "v2")
    if cache:
        nodes += [
            Node("Concat", ["past_k", "k2"], [k], name="cat_k", attributes={"axis": 2}),
            Node("Concat", ["past_v", "v2"], [v], name="cat_v", attributes={"axis": 2}),
        ]
    nodes.append(Node("Transpose", [k], ["kt"], name="kt", attributes={"perm": (0, 1, 3, 2)}))
    nodes.append(Node("MatMul", ["q2", "kt"], ["scores"], name="scores"))
    masked = "scores"
    if not cache:
        nodes += [
            Node("Shape", ["ids"], ["size"], name="size"),
            Node("Gather", ["size", "one"], ["length"], name="length"),
            Node("Concat", ["length", "length"], ["square"], name="square", attributes={"axis": 0}),
            Node("ConstantOfShape", ["square"], ["full"], name="full"),
            Node("Trilu", ["full"], ["triangle"], name="triangle"),
            Node("Add", ["scores", "triangle"], ["masked"], name="mask"),
        ]
        masked = "masked"
    nodes += [
        Node("Softmax", [masked], ["probs"], name="softmax", attributes={"axis": -1}),
        Node("MatMul", ["probs", v], ["ctx"], name="context"),
        Node("Transpose", ["ctx"], ["back"], name="back", attributes={"perm": (0, 2, 1, 3)}),
        Node("Reshape", ["back", "width"], ["flat"], name="flat"),
        Node("MatMul", ["flat", "wo"], ["o"], name="o_proj"),
        Node("Add", ["h", "o"], ["y"], name="add"),
    ]
    nodes.append(Node("MatMul", ["y", "head"], ["logits"], name="head"))
    weights: dict[str, Any] = {
        "table": (V, E),
        "head": (E, V),
        "heads": np.array([0, -1, H, D]),
        "width": np.array([0, -1, E]),
        "one": np.array([1]),
    }
    weights |= {f"w{w}": (E, E) for w in "qkvo"}
    inputs: dict[str, Any] = {"ids": ("int64", ("batch", "seq"))}
    if cache:
        inputs |= dict.fromkeys(("past_k", "past_v"), ("batch", H, "past", D))
    outputs = ["logits", "present_k", "present_v"] if cache else ["logits"]
    return build(nodes, inputs=inputs, outputs=outputs, weights=weights)


def test_the_length_of_a_text_of_a_graph_with_a_cache(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "cached.onnx")
    writer.write(decoder(build, cache=True), path)
    with Session(path) as session:
        assert next(iter(session.size_names())) == "tokens"
        fact = session.sizes("tokens", 1, 2048)
        step = session.decode(64)
    macs, cache, weights = fact.curve("macs"), fact.curve("kv_cache"), fact.curve("weights")
    assert macs is not None
    assert cache is not None
    assert weights is not None
    for n, counted in zip(fact.sizes, macs.values, strict=True):
        assert counted == n * (4 * E * E + E * V) + 2 * H * n * n * D
    a_token = 2 * H * D * 4
    assert cache.form == f"{a_token}*tokens"
    passes = int(weights.values[0]) // a_token + 1
    crossing = next(c for c in fact.crossings if (c.above, c.below) == ("kv_cache", "weights"))
    assert (crossing.size, crossing.counted) == (passes, True)
    assert (step.kv_bytes_per_token, step.kv_passes_weights, step.checked) == (a_token, passes, True)
    assert step.prefill is not None
    assert step.prefill.macs == 64 * (4 * E * E + E * V) + 2 * H * 64 * 64 * D


STEP = 4 * E * E + E * V
"""MACs of one token with weights."""


def test_products_of_a_step_are_those_behind_its_cache(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "cached.onnx")
    writer.write(decoder(build, cache=True), path)
    with Session(path, past=100) as session:
        plan = session.plan(TileSpec())
        shapes = {site.name: (site.M, site.K, site.N) for site in plan.sites}
        assert shapes["scores"] == (1, D, 101)
        assert shapes["context"] == (1, 101, D)
        assert shapes["head"] == (1, E, V)
        assert plan.macs_total == session.info().totals.macs == STEP + 2 * H * 101 * D
        # training, a split and a run look at the same step
        assert session.training().forward_macs == plan.macs_total
        ran = session.activations()
    assert not ran.skipped
    assert "past_k: float32 [1, 2, 100, 4], standard normal" in "; ".join(ran.inputs)


@pytest.mark.slow
def test_a_step_is_tiled_split_and_timed_as_it_is_counted(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "cached.onnx")
    writer.write(decoder(build, cache=True), path)
    with Session(path, past=100) as session:
        macs = session.info().totals.macs
        split = session.split(SplitSpec(stages=2))
        assert sum(stage.macs or 0 for stage in split.stages) == macs
        timed = session.profile(ProfileSpec(steps=2, warmup=0))
        assert any("past_v: float32 [1, 2, 100, 4]" in text for text in timed.inputs)
        done = session.tile(TileSpec(tile=(2, 2, 2)), output=str(tmp_path / "tiled.onnx"))
        assert done.verification is not None
        assert done.verification.passed
        assert session.info().totals.macs == macs
        assert session.info().totals.kv_cache_bytes == 100 * 2 * H * D * 4


def test_a_graph_without_a_cache_has_no_step_to_plan(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "whole.onnx")
    writer.write(decoder(build, cache=False), path)
    with (
        Session(path, past=64) as session,
        pytest.raises(Misuse, match="has no KV cache, so it has no decode step"),
    ):
        session.plan(TileSpec())


def test_the_length_of_a_text_of_a_graph_without_one(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "whole.onnx")
    writer.write(decoder(build, cache=False), path)
    with Session(path) as session:
        fact = session.sizes("seq", 1, 2048)
        with pytest.raises(Misuse, match="has no KV cache, so it has no decode step"):
            session.decode(64)
    assert fact.curve("kv_cache") is None
    assert fact.others == {"batch": 1}
