"""Figures over an open size are those of an analysis at the size, and crossings are where they cross."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn
from torch.nn import functional

from explorer import Misuse, Session
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import SizeCurves

Sample = Callable[[str], Path]
MACHINE = Machine("chip", 1e12, 50e9)


class Output(NamedTuple):
    logits: torch.Tensor
    past_key_values: list[tuple[torch.Tensor, torch.Tensor]]


class Decoder(nn.Module):
    """Two layers of causal attention over ids of a vocabulary of 100, with a cache."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 32)
        self.qkv = nn.ModuleList(nn.Linear(32, 96, bias=False) for _ in range(2))
        self.head = nn.Linear(32, 100, bias=False)

    def forward(
        self,
        input_ids: torch.Tensor,
        past_key_values: list[tuple[torch.Tensor, torch.Tensor]] | None = None,
    ) -> Output:
        x = self.embed(input_ids)
        cache = []
        for at, qkv in enumerate(self.qkv):
            q, k, v = (part.unsqueeze(1) for part in qkv(x).split(32, 2))
            if past_key_values is not None:
                k, v = (torch.cat(pair, 2) for pair in zip(past_key_values[at], (k, v), strict=True))
            cache.append((k, v))
            causal = past_key_values is None
            x = x + functional.scaled_dot_product_attention(q, k, v, is_causal=causal).squeeze(1)
        return Output(self.head(x), cache)


def decoder(tokens: int = 8) -> Session:
    return Session(Decoder(), inputs=torch.zeros(1, tokens, dtype=torch.int64))


def held_to_analyses(fact: SizeCurves, opened: Callable[[int], Session], *sizes: int) -> None:
    """The curves give what a session that was opened at a size says."""
    for size in sizes:
        with opened(size) as session:
            totals, at = session.open().totals, fact.sizes.index(size)
            said = {curve.name: curve.values[at] for curve in fact.curves}
            assert said["macs"] == totals.macs, size
            assert said["activations"] == totals.activation_bytes_peak, size
            assert said["weights"] == totals.weight_bytes
            assert said["moved"] == (totals.bytes_read or 0) + (totals.bytes_written or 0), size
            if fact.machine is not None:
                roof = session.roofline(fact.machine)
                assert said["time"] == pytest.approx(roof.seconds), size
                assert said["compute"] == pytest.approx(roof.compute_seconds)
                assert said["memory"] == pytest.approx(roof.memory_seconds)


def test_curves_of_a_graph_are_those_of_the_graph_at_each_size(sample: Sample) -> None:
    path = sample("bert_tiny")
    with Session(path, dims={"sequence": 16}) as session:
        fact = session.sizes("batch", machine=MACHINE)
        assert session.info().totals.coverage < 1, "the session keeps its own sizes"
    assert (fact.low, fact.high, fact.at, fact.closed) == (1, 1024, None, True)
    assert {1, 2, 4, 512, 1024} <= set(fact.sizes)
    odd = fact.sizes[len(fact.sizes) // 2 + 1]
    held_to_analyses(fact, lambda n: Session(path, dims={"sequence": 16, "batch": n}), 1, 3, odd, 1024)
    (crossing,) = fact.crossings
    assert (crossing.size, crossing.above, crossing.below, crossing.counted) == (
        *(14, "activations", "weights"),
        True,
    )
    macs = fact.curve("macs")
    assert macs is not None
    assert macs.form == "2461696*batch"


def test_a_size_that_the_model_cannot_have_ends_the_range_and_says_why(sample: Sample) -> None:
    with Session(sample("bert_tiny")) as session:
        fact = session.sizes("sequence")
        assert fact.high == 64
        assert any("not counted above 64" in note for note in fact.notes)
        assert fact.others == {"batch": 1}
        with pytest.raises(Misuse, match="sequence=512"):
            session.sizes("sequence", 1, 512)
        with pytest.raises(Misuse, match="no size is called 'batches'; did you mean 'batch'"):
            session.sizes("batches")


@pytest.mark.slow
def test_the_length_of_a_modules_text_with_its_cache() -> None:
    with decoder() as session:
        assert session.size_names() == {"batch": 1, "sequence": 8}
        fact = session.sizes(machine=MACHINE)
        decode = session.decode(64)
        assert session.info().model.inputs[0].shape == (1, 8)
        assert session.analysis().info.totals.macs == session.info().totals.macs
    assert (fact.name, fact.at, fact.closed) == ("sequence", 8, True)
    cache, weights = fact.curve("kv_cache"), fact.curve("weights")
    assert cache is not None
    assert weights is not None
    assert cache.form == "512*sequence", "two layers, keys and values of 32 floats"
    stored = 4 * (100 * 32 + 2 * 96 * 32 + 32 * 100)
    assert set(weights.values) == {stored}
    passes = next(c for c in fact.crossings if (c.above, c.below) == ("kv_cache", "weights"))
    assert (passes.size, passes.counted) == (stored // 512 + 1, True)
    assert decode.kv_bytes_per_token == 512
    assert (decode.kv_passes_weights, decode.checked) == (passes.size, True)
    # an embedding reads no more rows than it has: another form begins at 100 tokens
    moved = fact.curve("moved")
    assert moved is not None
    assert moved.form == ""
    near = [n for n in fact.sizes if 90 < n < 110]
    held_to_analyses(fact, decoder, 1, 2, *near, 4096)


def test_a_step_stands_beside_its_pass() -> None:
    with decoder() as session:
        fact = session.decode(64)
    with decoder(64) as session:
        whole = session.open().totals
    with Session(Decoder(), inputs=torch.zeros(1, 8, dtype=torch.int64), past=64) as session:
        step = session.open().totals
    assert fact.prefill is not None
    assert (fact.prefill.macs, fact.prefill.bytes_read) == (whole.macs, whole.bytes_read)
    assert (fact.decode.macs, fact.decode.bytes_written) == (step.macs, step.bytes_written)
    assert fact.kv_cache_bytes == step.kv_cache_bytes
    assert sum(row.kv_cache_bytes or 0 for row in fact.rows) == step.kv_cache_bytes
    assert sum(row.prefill_macs or 0 for row in fact.rows) == whole.macs
    assert sum(row.decode_macs or 0 for row in fact.rows) == step.macs


def test_a_model_without_a_text_has_no_step_and_a_text_has_a_token(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        with pytest.raises(Misuse, match="leaves no size open"):
            session.sizes()
        with pytest.raises(
            Misuse, match=r"lenet\.onnx: it has neither a text input nor cache inputs; explorer info shows"
        ):
            session.decode()
    with decoder() as session, pytest.raises(Misuse, match="at least one token"):
        session.decode(0)


def test_a_range_up_to_a_billion_takes_no_more_memory_than_one_up_to_a_thousand(sample: Sample) -> None:
    with Session(sample("lstm_tiny")) as session:
        session.sizes("batch", 1, 1000)
        tracemalloc.start()
        fact = session.sizes("batch", 1, 10**9)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert fact.sizes[-1] == 10**9
    assert most < 100_000_000
    held_to_analyses(fact, lambda n: Session(sample("lstm_tiny"), dims={"batch": n, "sequence": 1}), 10**9)


def test_a_text_that_is_cut_at_a_length_has_curves_without_a_cache(tmp_path: Path) -> None:
    starts = [
        helper.make_tensor(n, TensorProto.INT64, [1], [v])
        for n, v in (("zero", 0), ("most", 100), ("axis", 1))
    ]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 8], [0.1] * 64)
    nodes = [
        helper.make_node("Slice", ["x", "zero", "most", "axis"], ["cut"], name="cut"),
        helper.make_node("MatMul", ["cut", "w"], ["y"], name="mm"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "sequence", 8])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    path = tmp_path / "cut.onnx"
    graph = helper.make_graph(nodes, "g", [x], [y], [*starts, weight])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with Session(path) as session:
        fact = session.sizes("sequence")
    held_to_analyses(fact, lambda n: Session(path, dims={"sequence": n}), 1, 64, 128, 32768)
    assert "kv_cache" not in {curve.name for curve in fact.curves}


def strided(tmp_path: Path) -> Path:
    """A convolution that halves an open height, rounded down: no polynomial of the height."""
    weight = helper.make_tensor("w", TensorProto.FLOAT, [8, 1, 3, 3], [0.1] * 72)
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="conv", strides=[2, 2])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "height", 9])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph([node], "g", [x], [y], [weight])
    path = tmp_path / "strided.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_figures_without_a_closed_form_are_counted_at_every_size_that_is_told(tmp_path: Path) -> None:
    path = strided(tmp_path)
    with Session(path) as session:
        fact = session.sizes("height", 3, 400)
    assert not fact.closed
    assert set(fact.sizes) <= set(fact.counted)
    assert not any(curve.form for curve in fact.curves if curve.name != "weights")
    held_to_analyses(fact, lambda n: Session(path, dims={"height": n}), *fact.sizes[::9], fact.high)
    (crossing,) = fact.crossings
    for size, above in ((crossing.size, True), (crossing.size - 1, False)):
        with Session(path, dims={"height": size}) as session:
            totals = session.open().totals
            assert ((totals.activation_bytes_peak or 0) > totals.weight_bytes) == above
