"""Decode steps of models that run over whole texts, worked by hand and against a graph with a cache."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.base.errors import Misuse
from explorer.engine.costs.decode.step import step_of_graph
from explorer.engine.costs.memory.liveness import AnalysisResult, memory
from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.graph.model import Model, Node

Build = Callable[..., Model]
Rows = dict[str, Any]

E, H, D, V = 8, 2, 4, 32
"""Width, heads, width of a head, vocabulary of the graphs."""


def rows(found: AnalysisResult) -> Rows:
    return {layer.path: layer for layer in found.analysis.layers}


# -- graphs --------------------------------------------------------------------------------------


def decoder(build: Build, *, cache: bool, mask: str = "Trilu", extra: Node | None = None) -> Model:
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
    if not cache and mask:
        nodes += [
            Node("Shape", ["ids"], ["size"], name="size"),
            Node("Gather", ["size", "one"], ["length"], name="length"),
            Node("Concat", ["length", "length"], ["square"], name="square", attributes={"axis": 0}),
            Node("ConstantOfShape", ["square"], ["full"], name="full"),
            Node(mask, ["full"], ["triangle"], name="triangle"),
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
    if extra is not None:
        nodes.append(extra)
    at = extra.outputs[0] if extra is not None else "y"
    nodes.append(Node("MatMul", [at, "head"], ["logits"], name="head"))
    weights: dict[str, Any] = {
        "table": (V, E),
        "head": (E, V),
        "heads": np.array([0, -1, H, D]),
        "width": np.array([0, -1, E]),
        "one": np.array([1]),
        "kernel": (E, E, 3),
        "axis": np.array([1]),
        "first": np.array(1),
        "first3": np.array([0]),
        "far3": np.array([3]),
        "end": np.array([-1]),
        "far": np.array([-(1 << 31)]),
        "backwards": np.array([-1]),
    }
    weights |= {f"w{w}": (E, E) for w in "qkvo"}
    inputs: dict[str, Any] = {"ids": ("int64", ("batch", "seq"))}
    if cache:
        inputs |= dict.fromkeys(("past_k", "past_v"), ("batch", H, "past", D))
    outputs = ["logits", "present_k", "present_v"] if cache else ["logits"]
    return build(nodes, inputs=inputs, outputs=outputs, weights=weights)


def step(model: Model, past: int, dims: Mapping[str, int] | None = None) -> AnalysisResult:
    return step_of_graph(model, past, dims or {}, {}, partial(examine, model))


@pytest.mark.parametrize(("past", "batch"), [(0, 1), (1, 1), (2, 1), (9, 3), (63, 1)])
def test_with_and_without_a_cache_a_step_is_the_same_work(build: Build, past: int, batch: int) -> None:
    derived = step(decoder(build, cache=False), past, {"batch": batch})
    behind = step(decoder(build, cache=True), past, {"batch": batch})
    macs = batch * (4 * E * E + 2 * H * (past + 1) * D + E * V)
    a, b = derived.analysis.info.totals, behind.analysis.info.totals
    assert (a.macs, a.flops) == (b.macs, b.flops) == (macs, 2 * macs)
    assert a.kv_cache_bytes == b.kv_cache_bytes == 2 * batch * past * H * D * 4
    assert a.weight_bytes_read == b.weight_bytes_read == 4 * (4 * E * E + E * V + batch * E)
    mine, theirs = rows(derived), rows(behind)
    for path in ("q_proj", "scores", "softmax", "context", "o_proj", "add", "head"):
        for figure in ("macs", "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes"):
            assert getattr(mine[path], figure) == getattr(theirs[path], figure), (path, figure)
        assert [t.shape for t in mine[path].inputs] == [t.shape for t in theirs[path].inputs], path
        assert [t.shape for t in mine[path].outputs] == [t.shape for t in theirs[path].outputs], path


def test_rows_say_that_they_are_derived_and_the_assumptions_say_how(build: Build) -> None:
    found = step(decoder(build, cache=False), 9)
    shown = rows(found)
    assert shown["q_proj"].formula.startswith("derived, 1 of 10 rows of (")
    assert shown["scores"].formula.startswith("derived, 1 of 10 queries, against as many keys, of (")
    assert shown["scores"].kv_cache_bytes == 9 * H * D * 4
    assert shown["q_proj"].kv_cache_bytes is None
    decode = found.analysis.info.assumptions["decode"]
    assert (decode["past"], decode["tokens"]) == (9, 1)
    assert decode["how"].startswith("derived from passes over 10 and 9 tokens")
    assert "masks over pairs of positions are taken to hide what comes later" in decode["how"]
    assert found.analysis.info.model.inputs[0].shape == (1, 1)
    assert found.analysis.info.model.outputs[0].shape == (1, 1, V)


def test_the_cache_is_alive_from_the_start_to_the_end(build: Build) -> None:
    both = step(decoder(build, cache=False), 99)
    found = memory(both)
    cache = 2 * 99 * H * D * 4
    assert found.steps[0].live_bytes == cache + 8
    assert all(s.live_bytes >= cache for s in found.steps)
    assert found.peak_bytes == both.analysis.info.totals.activation_bytes_peak
    assert sum(x.bytes for x in found.lifetimes if x.tensor.name.startswith("cache of")) == cache


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (Node("Conv", ["y", "kernel"], ["z"], name="conv", attributes={"pads": (1, 1)}), r"conv \(Conv\)"),
        (
            Node("ReduceMean", ["y", "axis"], ["z"], name="pool", attributes={"keepdims": 1}),
            r"pool \(ReduceMean\)",
        ),
        (Node("Softmax", ["y"], ["z"], name="over", attributes={"axis": 1}), r"over \(Softmax\)"),
        (Node("LayerNormalization", ["y", "one"], ["z"], name="norm", attributes={"axis": 1}), r"norm \(Lay"),
        (Node("CumSum", ["y", "first"], ["z"], name="sum", attributes={"reverse": 1}), r"sum \(CumSum back"),
        (Node("Slice", ["y", "end", "far", "axis", "backwards"], ["z"], name="flip"), r"flip \(Slice back"),
        (
            Node("Slice", ["y", "first3", "far3", "axis"], ["z"], name="few"),
            r"few \(Slice\).*several positions",
        ),
        (Node("Add", ["y", "y"], ["z"], name="mine", domain="my.own"), r"mine \(my.own.Add\)"),
        (Node("TopK", ["y", "one"], ["z", "at"], name="top", attributes={"axis": 1}), r"top \(TopK\)"),
    ],
)
def test_what_mixes_the_text_otherwise_is_refused_by_name(
    build: Build, extra: Node, says: str | None
) -> None:
    model = decoder(build, cache=False, extra=extra)
    with pytest.raises(Misuse, match=says):
        step(model, 9)


def test_a_head_on_the_last_position_alone_is_the_same_step(build: Build) -> None:
    """Picking one position is no mixing: the head works on one row either way."""
    last = Node("Gather", ["y", "end"], ["z"], name="last", attributes={"axis": 1})
    picked = step(decoder(build, cache=False, extra=last), 9).analysis.info.totals
    every = step(decoder(build, cache=False), 9).analysis.info.totals
    assert (picked.macs, picked.kv_cache_bytes) == (every.macs, every.kv_cache_bytes)


def test_attention_without_a_mask_is_refused(build: Build) -> None:
    with pytest.raises(Misuse, match=r"context .*nothing shows that its attention does not look ahead"):
        step(decoder(build, cache=False, mask=""), 9)


def test_a_bias_over_pairs_of_positions_is_no_mask(build: Build) -> None:
    """A mask is made by telling earlier from later; anything else over pairs of positions hides nothing."""
    with pytest.raises(Misuse, match="nothing shows that its attention does not look ahead"):
        step(decoder(build, cache=False, mask="Identity"), 9)


def masked_by(build: Build, nodes: list[Node], **more: Any) -> Model:
    """Attention whose scores meet 'm', made by `nodes` of inputs and weights `more`."""
    nodes = [
        Node("Transpose", ["k"], ["kt"], attributes={"perm": (0, 2, 1)}),
        Node("MatMul", ["q", "kt"], ["s"], name="scores"),
        *nodes,
        Node("Where", ["m", "s", "low"], ["w"], name="where"),
        Node("Softmax", ["w"], ["p"], name="softmax", attributes={"axis": -1}),
        Node("MatMul", ["p", "v"], ["y"], name="context"),
    ]
    text = dict.fromkeys("qkv", ("batch", "seq", 8))
    weights: dict[str, Any] = {"low": np.float32(-1e9).reshape(()), **more.pop("weights", {})}
    return build(nodes, inputs={**text, **more}, outputs=["y"], weights=weights)


def test_a_mask_cut_out_of_a_stored_square_is_a_mask(build: Build) -> None:
    cut = [
        Node("Shape", ["q"], ["size"]),
        Node("Gather", ["size", "one"], ["length"]),
        Node("Slice", ["square", "zero", "length", "zero"], ["rows"], name="rows"),
        Node("Slice", ["rows", "zero", "length", "one"], ["m"], name="columns"),
    ]
    limits = {"one": np.array([1]), "zero": np.array([0])}
    square = {"square": ("bool", (64, 64)), **limits}
    assert rows(step(masked_by(build, cut, weights=square), 9))["context"].macs == 10 * 8
    oblong = {"square": ("bool", (64, 32)), **limits}
    with pytest.raises(Misuse, match="look ahead"):
        step(masked_by(build, cut, weights=oblong), 9)


def test_a_mask_of_padding_hides_nothing_that_comes_later(build: Build) -> None:
    """What BERT is exported with: one row of the batch's padding, spread over all queries."""
    spread = [
        Node("Shape", ["s"], ["shape"]),
        Node("Unsqueeze", ["attention_mask", "one"], ["row"]),
        Node("Expand", ["row", "shape"], ["m"], name="spread"),
    ]
    padding = ("bool", ("batch", "seq"))
    model = masked_by(build, spread, attention_mask=padding, weights={"one": np.array([1])})
    with pytest.raises(Misuse, match="look ahead"):
        step(model, 9)


def test_a_mask_over_pairs_that_comes_in_is_believed(build: Build) -> None:
    same = [Node("Identity", ["attention_mask"], ["m"])]
    found = step(masked_by(build, same, attention_mask=("bool", ("batch", "seq", "seq"))), 9)
    assert rows(found)["context"].kv_cache_bytes == 9 * 8 * 4


def test_a_bias_looked_up_for_every_distance_is_no_mask(build: Build) -> None:
    """Relative positions as in T5: distances are compared on the way to the table, but hide nothing."""
    looked_up = [
        Node("CumSum", ["ids", "axis"], ["at"]),
        Node("Unsqueeze", ["at", "one"], ["column"]),
        Node("Unsqueeze", ["at", "two"], ["line"]),
        Node("Less", ["column", "line"], ["before"]),
        Node("Cast", ["before"], ["index"], attributes={"to": 7}),
        Node("Gather", ["table", "index"], ["m"], name="bias"),
    ]
    weights = {"axis": np.array(1), "one": np.array([1]), "two": np.array([2]), "table": ("bool", (2,))}
    model = masked_by(build, looked_up, ids=("int64", ("batch", "seq")), weights=weights)
    with pytest.raises(Misuse, match="look ahead"):
        step(model, 9)
    compared = masked_by(
        build,
        [*looked_up[:3], Node("Less", ["column", "line"], ["m"])],
        ids=("int64", ("batch", "seq")),
        weights=weights,
    )
    assert rows(step(compared, 9))["context"].macs == 10 * 8


def test_products_written_as_einsum(build: Build) -> None:
    nodes = [
        Node("Einsum", ["q", "k"], ["s"], name="scores", attributes={"equation": "bqd,bkd->bqk"}),
        Node("Trilu", ["square"], ["triangle"]),
        Node("Add", ["s", "square"], ["given"], name="mask"),
        Node("Softmax", ["given"], ["p"], attributes={"axis": -1}),
        Node("Einsum", ["p", "v"], ["y"], name="context", attributes={"equation": "bqk,bkd->bqd"}),
    ]
    text: dict[str, Any] = dict.fromkeys("qkv", (1, "seq", 8))
    model = build(nodes, inputs={**text, "square": ("seq", "seq")}, outputs=["y", "triangle"])
    found = rows(step(model, 9))
    assert (found["scores"].macs, found["context"].macs) == (80, 80)
    assert found["scores"].kv_cache_bytes == found["context"].kv_cache_bytes == 9 * 8 * 4


@pytest.mark.parametrize("cache", [True, False])
def test_less_than_nothing_in_the_cache_is_refused(build: Build, cache: bool) -> None:
    with pytest.raises(Misuse, match="there cannot be -1 tokens in the cache"):
        step(decoder(build, cache=cache), -1)


def test_a_model_of_images_has_no_step() -> None:
    pytest.importorskip("torch")
    from explorer import Session

    with Session("alexnet", past=5) as session, pytest.raises(Misuse, match="does not take a text"):
        session.info()


def test_a_text_of_fixed_length_has_no_step(build: Build) -> None:
    model = build(
        [Node("Gather", ["t", "ids"], ["y"])],
        inputs={"ids": ("int64", (1, 16))},
        outputs=["y"],
        weights={"t": (4, 4)},
    )
    with pytest.raises(Misuse, match="its text has a fixed length of 16"):
        step(model, 9)


@pytest.mark.parametrize("op", ["Attention", "GroupQueryAttention", "MultiHeadAttention"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_in_one_operator(build: Build, op: str, causal: bool) -> None:
    names = {
        "Attention": {"q_num_heads": 4, "kv_num_heads": 2, "is_causal": int(causal)},
        "GroupQueryAttention": {"num_heads": 4, "kv_num_heads": 2, "causal": int(causal)},
        "MultiHeadAttention": {"num_heads": 4, "unidirectional": int(causal)},
    }
    heads = 4 if op == "MultiHeadAttention" else 2
    node = Node(
        op,
        ["q", "k", "v"],
        ["y"],
        name="attention",
        domain="" if op == "Attention" else "com.microsoft",
        attributes=names[op],
    )
    inputs = {"q": ("batch", "seq", 16), "k": ("batch", "seq", 4 * heads), "v": ("batch", "seq", 4 * heads)}
    model = build([node], inputs=inputs, outputs=["y"], opset=23)
    if not causal:
        with pytest.raises(Misuse, match="look ahead"):
            step(model, 15)
        return
    found = rows(step(model, 15))["attention"]
    assert found.macs == 4 * 16 * (4 + 4)
    assert found.kv_cache_bytes == 2 * 15 * 4 * heads * 4
    assert found.bytes_read == 4 * (16 + 2 * 16 * 4 * heads)
    assert [t.shape for t in found.inputs] == [(1, 1, 16), (1, 16, 4 * heads), (1, 16, 4 * heads)]


# -- modules -------------------------------------------------------------------------------------

LAYERS, WIDTH, HEADS, SHARED, INNER, WORDS = 2, 16, 4, 2, 24, 50


def llama(torch: Any, *, fused: bool, causal: bool = True, width: int = WIDTH, layers: int = LAYERS) -> Any:
    """A decoder as Llama is built: grouped heads, rotary positions, gated layers; attention fused or not."""
    nn, F = torch.nn, torch.nn.functional
    d = width // HEADS

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(width, SHARED * d, bias=False) for _ in range(2))

        def forward(self, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = (p(x).view(b, n, -1, d).transpose(1, 2) for p in (self.q, self.k, self.v))

            def turned(t: Any) -> Any:
                left, right = t.chunk(2, -1)
                return t * cos + torch.cat((-right, left), -1) * sin

            q, k = turned(q), turned(k)
            if fused:
                y = F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)
            else:
                k, v = (t.repeat_interleave(HEADS // SHARED, 1) for t in (k, v))
                scores = q @ k.transpose(2, 3) * d**-0.5
                y = (scores + mask if causal else scores).softmax(-1) @ v
            return self.o(y.transpose(1, 2).reshape(b, n, width))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention, self.norm1, self.norm2 = Attention(), nn.RMSNorm(width), nn.RMSNorm(width)
            self.gate, self.up = (nn.Linear(width, INNER, bias=False) for _ in range(2))
            self.down = nn.Linear(INNER, width, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any, mask: Any) -> Any:
            x = x + self.attention(self.norm1(x), cos, sin, mask)
            y = self.norm2(x)
            return x + self.down(F.silu(self.gate(y)) * self.up(y))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(WORDS, width), nn.RMSNorm(width)
            self.layers = nn.ModuleList(Block() for _ in range(layers))
            self.head = nn.Linear(width, WORDS, bias=False)

        def forward(self, input_ids: Any) -> Any:
            n, device = input_ids.shape[1], input_ids.device
            angles = torch.outer(torch.arange(n, device=device).float(), torch.ones(d, device=device))
            x = self.embed(input_ids)
            mask = torch.full((n, n), float("-inf"), device=device, dtype=x.dtype).triu(1)
            cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
            for layer in self.layers:
                x = layer(x, cos, sin, mask)
            return self.head(self.norm(x))

    return Llama()


def gpt(torch: Any) -> Any:
    """A decoder as GPT-2 is built: one product for query, key and value, learned positions, a stored mask."""
    nn, d = torch.nn, WIDTH // HEADS

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
            self.register_buffer("bias", torch.ones(64, 64, dtype=torch.bool).tril().view(1, 1, 64, 64))

        def forward(self, x: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = (
                t.view(b, n, HEADS, d).transpose(1, 2) for t in self.qkv(self.norm1(x)).split(WIDTH, 2)
            )
            scores = (q @ k.transpose(2, 3) / d**0.5).masked_fill(~self.bias[:, :, :n, :n], float("-inf"))
            x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, WIDTH))
            return x + self.down(self.act(self.up(self.norm2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(WORDS, WIDTH), nn.Embedding(64, WIDTH)
            self.h, self.norm = nn.ModuleList(Block() for _ in range(LAYERS)), nn.LayerNorm(WIDTH)
            self.head = nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, input_ids: Any) -> Any:
            x = self.wte(input_ids) + self.wpe(torch.arange(input_ids.shape[1], device=input_ids.device))
            for block in self.h:
                x = block(x)
            return self.head(self.norm(x))

    return Gpt()


def step_of(
    make: Callable[[Any], Any], past: int, *, batch: int = 1, length: int = 8, dtype: str = "float32"
) -> AnalysisResult:
    torch = pytest.importorskip("torch")
    from explorer.engine.costs.decode.module_step import step_of_module
    from explorer.engine.formats.torch_module.loaded import LoadedModule

    def build() -> Any:
        return make(torch).to(getattr(torch, dtype))

    ids = torch.zeros(batch, length, dtype=torch.int64)
    loaded = LoadedModule("made here", build, "random", example=(ids,))
    return step_of_module(loaded, past, {}, {})


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("past", [0, 1, 7, 50])
def test_a_small_llama_by_hand(fused: bool, past: int) -> None:
    found = step_of(lambda torch: llama(torch, fused=fused), past)
    d = WIDTH // HEADS
    projections = 2 * WIDTH * WIDTH + 2 * WIDTH * SHARED * d
    attention = HEADS * (past + 1) * 2 * d
    weights = LAYERS * (projections + 3 * WIDTH * INNER) + WIDTH * WORDS
    totals = found.analysis.info.totals
    assert totals.macs == weights + LAYERS * attention
    # two heads of four are cached, whatever they are repeated to
    assert totals.kv_cache_bytes == LAYERS * 2 * past * SHARED * d * 4
    norms = (2 * LAYERS + 1) * WIDTH
    assert totals.weight_bytes_read == 4 * (weights + norms + WIDTH)
    assert totals.coverage == 1.0
    assert (rows(found)["layers"].kv_cache_bytes or 0) == totals.kv_cache_bytes
    assert (
        rows(found)["layers.1"].macs
        == rows(found)["layers.0"].macs
        == weights_of_layer(projections, attention)
    )
    assert found.analysis.info.assumptions["dims"] == {"batch": 1}


def weights_of_layer(projections: int, attention: int) -> int:
    return projections + 3 * WIDTH * INNER + attention


@pytest.mark.parametrize("past", [1, 20, 63])
def test_a_small_gpt_by_hand(past: int) -> None:
    totals = step_of(gpt, past).analysis.info.totals
    weights = LAYERS * (4 * WIDTH * WIDTH + 8 * WIDTH * WIDTH) + WIDTH * WORDS
    assert totals.macs == weights + LAYERS * 2 * WIDTH * (past + 1)
    # keys and values are parts of one product: only they are cached, not the query beside them
    assert totals.kv_cache_bytes == LAYERS * 2 * past * WIDTH * 4
    biases = LAYERS * (3 * WIDTH + WIDTH + 4 * WIDTH + WIDTH)
    norms = (2 * LAYERS + 1) * 2 * WIDTH
    # a row of the words and one of the positions; a row of the stored mask in every layer
    tables = 4 * 2 * WIDTH + LAYERS * (past + 1)
    assert totals.weight_bytes_read == 4 * (weights + biases + norms) + tables


def test_a_text_longer_than_the_model_takes_is_refused() -> None:
    with pytest.raises(Misuse, match=r"does not run over 65 tokens: the model failed in h\.0"):
        step_of(gpt, 64)


def test_batch_and_width_of_numbers_scale_the_cache() -> None:
    one = step_of(lambda torch: llama(torch, fused=True), 10).analysis.info.totals
    four = step_of(lambda torch: llama(torch, fused=True), 10, batch=4, dtype="bfloat16").analysis.info
    assert four.totals.kv_cache_bytes == 4 * (one.kv_cache_bytes or 0) // 2
    assert four.totals.macs == 4 * (one.macs or 0)
    assert four.assumptions["dims"] == {"batch": 4}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("length", [3, 8, 40])
def test_the_length_of_the_example_does_not_matter(length: int) -> None:
    found = step_of(lambda torch: llama(torch, fused=True), 10, length=length)
    assert found.analysis == step_of(lambda torch: llama(torch, fused=True), 10).analysis


@pytest.mark.parametrize("fused", [True, False])
def test_a_module_that_sees_the_whole_text_is_refused(fused: bool) -> None:
    with pytest.raises(Misuse, match="nothing shows that its attention does not look ahead"):
        step_of(lambda torch: llama(torch, fused=fused, causal=False), 9)


def test_modules_that_mix_the_text_otherwise_are_refused_by_name() -> None:
    def with_layer(make: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def build(torch: Any) -> Any:
            class Net(torch.nn.Module):
                def __init__(self) -> None:
                    super().__init__()
                    self.embed, self.mix = torch.nn.Embedding(WORDS, WIDTH), make(torch)

                def forward(self, input_ids: Any) -> Any:
                    mixed = self.mix(self.embed(input_ids))
                    return mixed[0] if isinstance(mixed, tuple) else mixed

            return Net()

        return build

    def convolution(torch: Any) -> Any:
        class Along(torch.nn.Conv1d):
            def forward(self, x: Any) -> Any:
                return super().forward(x.transpose(1, 2)).transpose(1, 2)

        return Along(WIDTH, WIDTH, 3, padding=1)

    def pooled(torch: Any) -> Any:
        class Pooled(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x - x.mean(1, keepdim=True)

        return Pooled()

    def flipped(torch: Any) -> Any:
        class Flipped(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x + x.flip(1)

        return Flipped()

    def prefixed(torch: Any) -> Any:
        class Prefixed(torch.nn.Module):
            def forward(self, x: Any) -> Any:
                return x + x[:, :2].amax(1, keepdim=True)

        return Prefixed()

    def windowed(torch: Any) -> Any:
        class Windowed(torch.nn.Module):
            """Attention inside windows of four, the text filled up to a multiple of them."""

            def forward(self, x: Any) -> Any:
                n = x.shape[1]
                y = torch.nn.functional.pad(x, (0, 0, 0, -n % 4)).view(x.shape[0], -1, 4, WIDTH)
                y = (y @ y.transpose(2, 3)).softmax(-1) @ y
                return y.reshape(x.shape[0], -1, WIDTH)[:, :n]

        return Windowed()

    def encoder(torch: Any) -> Any:
        return torch.nn.TransformerEncoderLayer(WIDTH, HEADS, batch_first=True)

    def recurrent(torch: Any) -> Any:
        return torch.nn.LSTM(WIDTH, WIDTH, batch_first=True, bidirectional=True)

    for make in (convolution, pooled, flipped, prefixed, windowed, encoder, recurrent):
        with pytest.raises(Misuse, match=r"^mix.*no decode step can be derived"):
            step_of(with_layer(make), 9)


def test_the_graph_that_a_module_is_exported_to_has_the_same_step(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from explorer import Session

    path = str(tmp_path / "decoder.onnx")
    axes = {"input_ids": {0: "batch", 1: "seq"}}
    ids = torch.zeros(1, 8, dtype=torch.int64)
    names = {"input_names": ["input_ids"], "output_names": ["logits"], "dynamic_axes": axes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(gpt(torch).eval(), (ids,), path, dynamo=False, opset_version=17, **names)
    module = step_of(gpt, 20).analysis.info.totals
    with Session(path, past=20) as session:
        graph = session.info().totals
        assert session.memory().peak_bytes == graph.activation_bytes_peak
    assert (graph.macs, graph.kv_cache_bytes) == (module.macs, module.kv_cache_bytes)
    assert graph.coverage == module.coverage == 1.0


def with_cache(torch: Any) -> Any:
    """A decoder that runs over a text, or over its last token with the keys and values of the others.

    It numbers positions by the distance of each to the one before and has a bias for every distance, as
    BLOOM has: neither says anything of the text.
    """
    nn, d = torch.nn, WIDTH // HEADS

    class Decoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.norm = nn.Embedding(WORDS, WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.head = nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, ids: Any, cache: Any = None) -> Any:
            b, n = ids.shape
            x = self.embed(ids)
            parts = self.qkv(self.norm(x)).chunk(3, -1)
            q, k, v = (t.view(b, n, HEADS, d).transpose(1, 2).reshape(b * HEADS, n, d) for t in parts)
            if cache is not None:
                k, v = torch.cat((cache[0], k), 1), torch.cat((cache[1], v), 1)
            at = torch.arange(k.shape[1], device=ids.device)
            number = torch.cat((at[:1] - 1, at)).diff().cumsum(0)
            alibi = number.to(x.dtype).view(1, 1, -1).expand(b * HEADS, 1, -1)
            scores = alibi.baddbmm(q, k.transpose(1, 2))
            later = at[None, :] > at[-n:, None]
            y = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
            y = self.out(y.view(b, HEADS, n, d).transpose(1, 2).reshape(b, n, WIDTH))
            logits = self.head(x + y)
            return logits if cache is None else (logits, k, v)

    return Decoder()


@pytest.mark.parametrize("past", [1, 5, 30])
def test_a_step_costs_what_torch_counts_when_it_runs_with_a_cache(past: int) -> None:
    """The derived figures against a real step, counted by torch's own counter."""
    torch = pytest.importorskip("torch")
    from torch.utils.flop_counter import FlopCounterMode

    totals = step_of(with_cache, past).analysis.info.totals
    model = with_cache(torch)
    cache = tuple(torch.zeros(HEADS, past, WIDTH // HEADS) for _ in range(2))
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, 1, dtype=torch.int64), cache)
    assert totals.macs == counter.get_total_flops() // 2
    assert totals.kv_cache_bytes == sum(t.numel() * t.element_size() for t in cache)


def test_torch_s_own_encoder_layer_with_a_causal_mask() -> None:
    def build(torch: Any) -> Any:
        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embed = torch.nn.Embedding(WORDS, WIDTH)
                self.layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 32, batch_first=True)

            def forward(self, input_ids: Any) -> Any:
                n = input_ids.shape[1]
                mask = torch.nn.Transformer.generate_square_subsequent_mask(n, device=input_ids.device)
                return self.layer(self.embed(input_ids), src_mask=mask, is_causal=True)

        return Net()

    totals = step_of(build, 9).analysis.info.totals
    assert totals.macs == 4 * WIDTH * WIDTH + 2 * WIDTH * 32 + 2 * 10 * WIDTH
    assert totals.kv_cache_bytes == 2 * 9 * WIDTH * 4


def test_the_cache_of_the_llama_of_70_billion_by_hand() -> None:
    """80 layers, 8 shared heads of 128, two bytes: 327,680 bytes a token; a step reads all weights once."""
    torch = pytest.importorskip("torch")
    from explorer.engine.costs.decode.module_step import step_of_module
    from explorer.engine.formats.torch_module.loaded import LoadedModule

    nn, width, inner, d, shared, layers, words = torch.nn, 8192, 28_672, 128, 8, 80, 128_256

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.o = (nn.Linear(width, width, bias=False) for _ in range(2))
            self.k, self.v = (nn.Linear(width, shared * d, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, inner, bias=False) for _ in range(2))
            self.down = nn.Linear(inner, width, bias=False)

        def forward(self, x: Any) -> Any:
            b, n, _ = x.shape
            q, k, v = (p(x).view(b, n, -1, d).transpose(1, 2) for p in (self.q, self.k, self.v))
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
            x = x + self.o(y.transpose(1, 2).reshape(b, n, width))
            return x + self.down(nn.functional.silu(self.gate(x)) * self.up(x))

    class Llama(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.layers = nn.Sequential(*(Block() for _ in range(layers)))
            self.head = nn.Linear(width, words, bias=False)

        def forward(self, ids: Any) -> Any:
            return self.head(self.layers(self.embed(ids)))

    ids = {"ids": torch.zeros(1, 8, dtype=torch.int64)}
    loaded = LoadedModule("70b", lambda: Llama().to(torch.bfloat16), "random", example=ids)
    totals = step_of_module(loaded, 2048, {}, {}).analysis.info.totals
    assert totals.kv_cache_bytes == 2048 * 327_680 == 671_088_640
    weights = layers * (2 * width * width + 2 * width * shared * d + 3 * width * inner) + width * words
    assert totals.macs == weights + layers * 64 * 2049 * 2 * d
    assert totals.weight_bytes_read == 2 * (weights + width)
