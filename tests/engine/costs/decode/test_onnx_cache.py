"""Decode steps of graphs that take their key-value cache as inputs, worked by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest

from explorer.base.errors import Misuse
from explorer.engine.costs.decode import onnx_cache
from explorer.engine.costs.decode.step import analyze_graph_step
from explorer.engine.costs.memory.liveness import AnalysisResult, compute_memory
from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.graph.model import Model, Node, Value

Build = Callable[..., Model]

E, H, D, V = 8, 2, 4, 32
"""Width, heads, width of a head, vocabulary."""

PAST, PRESENT = ("batch", H, "past", D), ("batch", H, "past + seq", D)


def layer(i: int, source: str) -> tuple[list[Node], str]:
    """Attention over a cache, written out as an exporter does, and a residual."""
    p = f"l{i}"
    k, v = f"past_key_values.{i}.key", f"past_key_values.{i}.value"
    nodes = [Node("MatMul", [source, f"{p}.{w}"], [f"{p}.{w}.out"], name=f"{p}.{w}") for w in ("q", "k", "v")]
    for w in ("q", "k", "v"):
        nodes += [
            Node("Reshape", [f"{p}.{w}.out", "heads"], [f"{p}.{w}.split"], name=f"{p}.{w}.split"),
            Node(
                "Transpose",
                [f"{p}.{w}.split"],
                [f"{p}.{w}.t"],
                name=f"{p}.{w}.t",
                attributes={"perm": (0, 2, 1, 3)},
            ),
        ]
    nodes += [
        Node("Concat", [k, f"{p}.k.t"], [f"present.{i}.key"], name=f"{p}.cat_k", attributes={"axis": -2}),
        Node("Concat", [v, f"{p}.v.t"], [f"present.{i}.value"], name=f"{p}.cat_v", attributes={"axis": 2}),
        Node(
            "Transpose",
            [f"present.{i}.key"],
            [f"{p}.kt"],
            name=f"{p}.kt",
            attributes={"perm": (0, 1, 3, 2)},
        ),
        Node("MatMul", [f"{p}.q.t", f"{p}.kt"], [f"{p}.scores"], name=f"{p}.scores"),
        Node("Softmax", [f"{p}.scores"], [f"{p}.probs"], name=f"{p}.softmax", attributes={"axis": -1}),
        Node("MatMul", [f"{p}.probs", f"present.{i}.value"], [f"{p}.ctx"], name=f"{p}.context"),
        Node("Transpose", [f"{p}.ctx"], [f"{p}.back"], name=f"{p}.back", attributes={"perm": (0, 2, 1, 3)}),
        Node("Reshape", [f"{p}.back", "width"], [f"{p}.flat"], name=f"{p}.flat"),
        Node("MatMul", [f"{p}.flat", f"{p}.o"], [f"{p}.o.out"], name=f"{p}.o"),
        Node("Add", [source, f"{p}.o.out"], [f"{p}.y"], name=f"{p}.add"),
    ]
    return nodes, f"{p}.y"


@pytest.fixture
def exported(build: Build) -> Callable[..., Model]:
    """A decoder of two layers in the naming of Hugging Face's exporter."""

    def make(
        past: Any = PAST,
        present: Any = PRESENT,
        ids: Any = ("batch", "seq"),
        mask: Any = ("batch", "past + seq"),
    ) -> Model:
        import numpy as np

        nodes = [Node("Gather", ["table", "input_ids"], ["h"], name="embed")]
        at = "h"
        for i in range(2):
            more, at = layer(i, at)
            nodes += more
        nodes.append(Node("MatMul", [at, "head"], ["logits"], name="head"))
        nodes.append(Node("Cast", ["attention_mask"], ["unused"], name="mask", attributes={"to": 1}))
        weights: dict[str, Any] = {
            "table": (V, E),
            "head": (E, V),
            "heads": np.array([0, -1, H, D]),
            "width": np.array([0, -1, E]),
        }
        weights |= {f"l{i}.{w}": (E, E) for i in range(2) for w in "qkvo"}
        caches = [f"past_key_values.{i}.{w}" for i in range(2) for w in ("key", "value")]
        inputs = {
            "input_ids": ("int64", ids),
            "attention_mask": ("int64", mask),
            **dict.fromkeys(caches, past),
        }
        presents = [f"present.{i}.{w}" for i in range(2) for w in ("key", "value")]
        model = build(nodes, inputs=inputs, outputs=["logits", *presents], weights=weights)
        described = tuple(
            Value(v.name, "float32", present) if v.name in presents else v for v in model.graph.outputs
        )
        from msgspec.structs import replace

        return replace(model, graph=replace(model.graph, outputs=described))

    return make


def step(model: Model, past: int, dims: Mapping[str, int] | None = None, **shapes: Any) -> AnalysisResult:
    return analyze_graph_step(model, past, dims or {}, shapes, partial(examine, model))


@pytest.mark.parametrize("past", [0, 1, 7, 100])
def test_a_step_behind_a_cache_by_hand(exported: Callable[..., Model], past: int) -> None:
    analysis = step(exported(), past).analysis
    totals = analysis.info.totals
    # four projections of one row, one query against all keys, the head; twice the layer
    attention = H * (past + 1) * (D + D)
    assert totals.macs == 2 * (4 * E * E + attention) + E * V
    assert totals.kv_cache_bytes == 2 * 2 * past * H * D * 4
    assert totals.coverage == 1.0
    rows = {x.path: x for x in analysis.layers}
    assert rows["l0.scores"].macs == H * (past + 1) * D
    assert rows["l0.cat_k"].kv_cache_bytes == past * H * D * 4
    assert rows["l0.scores"].kv_cache_bytes is None
    assert rows["l0"].kv_cache_bytes == 2 * past * H * D * 4
    assert analysis.info.model.outputs[0].shape == (1, 1, V)
    assert analysis.info.model.outputs[1].shape == (1, H, past + 1, D)
    assert analysis.info.assumptions["dims"]["past"] == past
    decode = analysis.info.assumptions["decode"]
    assert (decode["past"], decode["tokens"]) == (past, 1)
    assert "4 cache inputs" in decode["how"]
    assert "batch (batch) = 1" in decode["how"]


def test_the_cache_is_in_the_timeline_and_grows_with_the_batch(exported: Callable[..., Model]) -> None:
    both = step(exported(), 100, {"batch": 3})
    cache = 3 * 4 * 100 * H * D * 4
    assert both.analysis.info.totals.kv_cache_bytes == cache
    assert "batch" not in both.analysis.info.assumptions["decode"]["how"]
    found = compute_memory(both)
    assert found.steps[0].live_bytes == cache + 3 * 8 + 3 * 101 * 8
    assert found.peak_bytes > cache


def test_a_step_of_what_is_bound_by_hand_is_the_same(exported: Callable[..., Model]) -> None:
    from explorer.engine.costs.onnx.analyse import analyse

    by_hand = analyse(exported(), dims={"batch": 1, "seq": 1, "past": 9, "past + seq": 10})
    by_step = step(exported(), 9).analysis
    assert by_step.info.totals.macs == by_hand.info.totals.macs
    assert by_step.info.totals.bytes_read == by_hand.info.totals.bytes_read


@pytest.mark.parametrize("total", ["past + seq", "past+1", "total_sequence_length", "whatever"])
def test_the_mask_covers_cache_and_token_whatever_its_length_is_called(
    exported: Callable[..., Model], total: str
) -> None:
    found = step(exported(mask=("batch", total)), 9).analysis
    assert {t.name: t.shape for t in found.info.model.inputs}["attention_mask"] == (1, 10)


def test_what_cannot_be_recognised_is_asked_for_by_name(build: Build, exported: Callable[..., Model]) -> None:
    from msgspec.structs import replace

    model = exported()
    strange = Value("style", "float32", ("styles", 4))
    model = replace(model, graph=replace(model.graph, inputs=(*model.graph.inputs, strange)))
    with pytest.raises(Misuse, match=r"'styles' in a decode step is unknown; give --dim styles=SIZE"):
        step(model, 5)
    assert step(model, 5, {"styles": 2}).analysis.info.totals.kv_cache_bytes == 4 * 5 * H * D * 4


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"seq": 4}, "dimension 'seq' has size 4, but one decode step needs 1"),
        ({"past": 4}, "dimension 'past' has size 4, but one decode step needs 5"),
    ],
)
def test_dims_that_contradict_the_step_are_refused(
    exported: Callable[..., Model], dims: dict[str, int], says: str
) -> None:
    with pytest.raises(Misuse, match=says):
        step(exported(), 5, dims)


def test_a_sequence_that_is_fixed_cannot_be_one_token(exported: Callable[..., Model]) -> None:
    with pytest.raises(Misuse, match="a dimension has size 16, but one decode step needs 1"):
        step(exported(ids=("batch", 16)), 5)
    # a step of one token may well be fixed
    assert step(exported(ids=("batch", 1), mask=("batch", "total")), 5).analysis.info.totals.coverage == 1


def test_one_name_for_cache_and_sequence_is_refused(exported: Callable[..., Model]) -> None:
    with pytest.raises(Misuse, match="dimension 'seq' has size 5, but one decode step needs 1"):
        step(exported(past=("batch", H, "seq", D)), 5)


def grouped(build: Build, shared: int = 1, past: Any = "past", present: Any = "total") -> Model:
    """GroupQueryAttention: four heads of the query, `shared` of key and value, each 4 wide, in float16."""
    nodes = [
        Node(
            "GroupQueryAttention",
            ["q", "k", "v", "past_key", "past_value", "lengths", "longest"],
            ["y", "present_key", "present_value"],
            name="attention",
            domain="com.microsoft",
            attributes={"num_heads": 4, "kv_num_heads": shared},
        )
    ]
    inputs = {
        "q": ("float16", ("batch", "seq", 16)),
        "k": ("float16", ("batch", "seq", 4 * shared)),
        "v": ("float16", ("batch", "seq", 4 * shared)),
        "past_key": ("float16", ("batch", shared, past, 4)),
        "past_value": ("float16", ("batch", shared, past, 4)),
        "lengths": ("int32", ("batch",)),
        "longest": ("int32", ()),
    }
    model = build(nodes, inputs=inputs, outputs=["y", "present_key", "present_value"])
    from msgspec.structs import replace

    shape = ("batch", shared, present, 4)
    outputs = [Value("y", "float16", ("batch", "seq", 16))]
    outputs += [Value(n, "float16", shape) for n in ("present_key", "present_value")]
    opsets = {**model.opsets, "com.microsoft": 1}
    return replace(model, graph=replace(model.graph, outputs=tuple(outputs)), opsets=opsets)


def test_grouped_heads_are_cached_as_few_as_they_are(build: Build) -> None:
    found = step(grouped(build), 31).analysis
    assert found.info.totals.macs == 4 * 32 * (4 + 4)
    assert found.info.totals.kv_cache_bytes == 2 * 31 * 4 * 2
    assert found.layers[0].kv_cache_bytes == 2 * 31 * 4 * 2


def test_a_cache_written_in_place_is_a_buffer(build: Build) -> None:
    found = step(grouped(build, past="longest_text", present="longest_text"), 31).analysis
    assert found.info.model.inputs[3].shape == (1, 1, 32, 4)
    assert found.info.totals.kv_cache_bytes == 2 * 31 * 4 * 2
    assert "buffers" in found.info.assumptions["decode"]["how"]
    assert found.info.totals.macs == 4 * 32 * (4 + 4)


def test_a_buffer_of_a_fixed_size_holds_what_it_holds(build: Build) -> None:
    model = grouped(build, past=64, present=64)
    found = step(model, 31).analysis
    assert found.info.totals.kv_cache_bytes == 2 * 31 * 4 * 2
    with pytest.raises(Misuse, match="needs 101"):
        step(model, 100)


def test_no_cache_is_overlooked_whatever_the_exporter_puts_before_it(build: Build) -> None:
    """Seen in an export of a Llama: a Concat of one piece before a cache. And one that is changed first."""
    nodes = [
        Node("Concat", ["past.0"], ["alone"], name="alone", attributes={"axis": 2}),
        Node("Concat", ["alone", "k"], ["present.0"], name="cat", attributes={"axis": 2}),
        Node("Concat", ["past.1", "k"], ["present.1"], name="cat1", attributes={"axis": 2}),
        Node("Mul", ["past.2", "two"], ["scaled"], name="scaled"),
        Node("Concat", ["scaled", "k"], ["present.2"], name="cat2", attributes={"axis": 2}),
    ]
    caches = [f"past.{i}" for i in range(3)]
    inputs: dict[str, Any] = {"k": ("batch", 2, 1, 4), **dict.fromkeys(caches, ("batch", 2, "past", 4))}
    outputs = [f"present.{i}" for i in range(3)]
    model = build(nodes, inputs=inputs, outputs=outputs, weights={"two": (1,)})
    assert set(onnx_cache.find_cache(model)) == set(caches)
    found = step(model, 9).analysis
    assert found.info.totals.kv_cache_bytes == 3 * 9 * 8 * 4
    assert {x.path: x.kv_cache_bytes for x in found.layers if x.kv_cache_bytes} == {
        "alone": 288,
        "cat1": 288,
        "scaled": 288,
    }


def in_place(build: Build, positions: Any) -> Model:
    """Attention of opset 24 over caches that the step writes its token into."""
    nodes = [
        Node("TensorScatter", [f"{w}_cache", w, "at"], [f"{w}_next"], name=f"write_{w}") for w in ("k", "v")
    ]
    nodes.append(Node("Attention", ["q", "k_next", "v_next"], ["y"], name="attention"))
    inputs: dict[str, Any] = dict.fromkeys("qkv", ("batch", 4, 1, 8))
    inputs |= dict.fromkeys(("k_cache", "v_cache"), ("batch", 4, positions, 8))
    inputs["at"] = ("int64", ("batch",))
    model = build(nodes, inputs=inputs, outputs=["y", "k_next", "v_next"], opset=24)
    from msgspec.structs import replace

    outputs = [
        Value(v.name, "float32", inputs["k_cache"]) if "next" in v.name else v for v in model.graph.outputs
    ]
    return replace(model, graph=replace(model.graph, outputs=tuple(outputs)))


@pytest.mark.parametrize(("positions", "attended"), [("longest", 32), (64, 64)])
def test_a_cache_that_is_written_into_is_attended_to_as_long_as_it_is(
    build: Build, positions: Any, attended: int
) -> None:
    found = step(in_place(build, positions), 31).analysis
    assert found.info.totals.kv_cache_bytes == 2 * 31 * 4 * 8 * 4
    assert next(x for x in found.layers if x.path == "attention").macs == 4 * attended * (8 + 8)
    assert "buffers, written in place" in found.info.assumptions["decode"]["how"]


def test_a_cache_that_does_not_grow_by_one_token_is_refused(build: Build) -> None:
    with pytest.raises(Misuse, match="'present_key' would hold 99 tokens after one step, not 32"):
        step(grouped(build, present=99), 31)


@pytest.mark.parametrize("rank", [3, 4])
def test_attention_of_onnx_with_its_cache(build: Build, rank: int) -> None:
    three = dict.fromkeys("qkv", ("batch", "seq", 16))
    four = dict.fromkeys("qkv", ("batch", 4, "seq", 4))
    cache = dict.fromkeys(("past_key", "past_value"), ("batch", 4, "past", 4))
    attributes = {"q_num_heads": 4, "kv_num_heads": 4} if rank == 3 else {}
    nodes = [
        Node(
            "Attention",
            ["q", "k", "v", "", "past_key", "past_value"],
            ["y", "pk", "pv"],
            name="attention",
            attributes=attributes,
        )
    ]
    inputs = {**(three if rank == 3 else four), **cache}
    model = build(nodes, inputs=inputs, outputs=["y", "pk", "pv"], opset=23)
    # queries of rank 4 do not say which of their axes counts tokens
    dims = {"seq": 1} if rank == 4 else {}
    found = step(model, 15, dims).analysis
    assert found.info.totals.macs == 4 * 16 * (4 + 4)
    assert found.info.totals.kv_cache_bytes == 2 * 15 * 16 * 4
    assert found.info.model.outputs[1].shape == (1, 4, 16, 4)


def test_multi_head_attention_of_the_runtime_with_its_cache(build: Build) -> None:
    nodes = [
        Node(
            "MultiHeadAttention",
            ["q", "k", "v", "", "", "", "past_key", "past_value"],
            ["y", "pk", "pv"],
            name="attention",
            domain="com.microsoft",
            attributes={"num_heads": 4},
        )
    ]
    inputs: dict[str, Any] = dict.fromkeys("qkv", ("batch", "seq", 16))
    inputs |= dict.fromkeys(("past_key", "past_value"), ("batch", 4, "past", 4))
    found = step(build(nodes, inputs=inputs, outputs=["y", "pk", "pv"]), 15).analysis
    assert found.info.totals.macs == 4 * 16 * (4 + 4)
    assert found.info.totals.kv_cache_bytes == 2 * 15 * 16 * 4


def test_inputs_of_a_concat_that_is_no_cache_are_left_alone(build: Build) -> None:
    nodes = [
        Node("Concat", ["image", "other"], ["both"], name="cat", attributes={"axis": 1}),
        Node("Relu", ["both"], ["y"]),
    ]
    model = build(nodes, inputs={"image": (1, 3, 8), "other": (1, 3, 8)}, outputs=["y"])
    assert not onnx_cache.find_cache(model)


def test_eighty_layers_of_grouped_heads_as_in_llama_70b(build: Build) -> None:
    """80 layers, 8 heads of 128 for key and value, two bytes: 327,680 bytes a token."""
    nodes, inputs, outputs = [], {}, []
    for i in range(80):
        names = [f"past_key_values.{i}.key", f"past_key_values.{i}.value"]
        nodes.append(
            Node(
                "GroupQueryAttention",
                ["qkv", "", "", *names, "lengths", "longest"],
                [f"y{i}", f"present.{i}.key", f"present.{i}.value"],
                domain="com.microsoft",
                attributes={"num_heads": 64, "kv_num_heads": 8},
            )
        )
        inputs |= dict.fromkeys(names, ("bfloat16", ("batch", 8, "past", 128)))
        outputs += [f"y{i}", f"present.{i}.key", f"present.{i}.value"]
    inputs |= {
        "qkv": ("bfloat16", ("batch", "seq", 80 * 128)),
        "lengths": ("int32", ("batch",)),
        "longest": ("int32", ()),
    }
    found = step(build(nodes, inputs=inputs, outputs=outputs), 2048).analysis
    assert found.info.totals.kv_cache_bytes == 2048 * 327_680 == 671_088_640
    assert found.info.totals.macs == 80 * 64 * 2049 * 256
