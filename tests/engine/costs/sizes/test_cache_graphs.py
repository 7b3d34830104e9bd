"""Curves and steps of graphs that take their key-value cache: as long a text, as much work."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from explorer import Session
from explorer.engine.formats.onnx import writer
from explorer.engine.graph.model import Model
from tests.engine.costs.decode.test_derive import D, E, H, V, decoder

Build = Callable[..., Model]


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


def test_the_length_of_a_text_of_a_graph_without_one(build: Build, tmp_path: Path) -> None:
    path = str(tmp_path / "whole.onnx")
    writer.write(decoder(build, cache=False), path)
    with Session(path) as session:
        fact = session.sizes("seq", 1, 2048)
        step = session.decode(64)
    cache = fact.curve("kv_cache")
    assert cache is not None
    assert cache.form == f"{2 * H * D * 4}*seq"
    assert step.kv_bytes_per_token == 2 * H * D * 4
    assert fact.others == {"batch": 1}
