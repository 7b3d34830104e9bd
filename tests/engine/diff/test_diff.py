"""A diff lists what differs and nothing else, whatever names were given."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer import Session, TileSpec, diff_files
from explorer.base.errors import Cancelled
from explorer.engine.diff import diff
from explorer.engine.formats.onnx.reader import read
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.formats.onnx.writer import encode
from explorer.engine.graph.model import (
    ComputedPayload,
    Function,
    Graph,
    Inline,
    Model,
    Node,
    Payload,
    Tensor,
    Value,
    build_int64_tensor,
)
from explorer.facts import Analysis, Diff, Info, ModelInfo, NodeDiff, Totals
from tests.engine.proof.tiled import linear

Sample = Callable[[str], Path]


def analysed(model: Model) -> Analysis:
    """What a diff takes from an analysis: where the model came from, and its totals."""
    totals = Totals(len(model.graph.nodes), 0, None, 0, 0, 0, 0, 0, 0, 0, 0, 1.0)
    return Analysis(Info(ModelInfo(model.path, "onnx", (), ()), {}, totals), ())


def compare(before: Model, after: Model, **options: Any) -> Diff:
    return diff(before, after, before_analysis=analysed(before), after_analysis=analysed(after), **options)


def weight(name: str, shape: tuple[int, ...], seed: int = 0, dtype: str = "float32") -> Tensor:
    count = 1
    for size in shape:
        count *= size
    return Tensor(name, dtype, shape, Inline(random.Random(seed).randbytes(4 * count)))


def value(name: str, *shape: int) -> Value:
    return Value(name, "float32", shape or (1, 8))


def make(
    nodes: Sequence[Node], weights: Sequence[Tensor] = (), *, x: str = "x", y: str = "y", **extra: Any
) -> Model:
    graph = Graph("g", tuple(nodes), (value(x),), (value(y),), {w.name: w for w in weights})
    return validate(Model(graph, {"": 17, "local": 1}, 8, **extra))


def op(kind: str, inputs: str, output: str, name: str | None = None, **attributes: Any) -> Node:
    return Node(
        kind, inputs.split(), [output], name=f"make_{output}" if name is None else name, attributes=attributes
    )


def mlp(alpha: float = 1.0, seed: int = 1, shape: tuple[int, int] = (8, 8), act: str = "Relu") -> Model:
    """Two products with an activation between."""
    return make(
        [
            op("Gemm", "x w1", "h", "fc1", alpha=alpha),
            op(act, "h", "a", "act"),
            op("Gemm", "a w2", "y", "fc2"),
        ],
        [weight("w1", shape, seed), weight("w2", (8, 8), 2)],
    )


def only(found: Diff) -> NodeDiff:
    (row,) = found.nodes
    return row


def counts(found: Diff) -> dict[str, tuple[int, int, int, int, int]]:
    return {o.op: (o.total, o.changed, o.unchanged, o.added, o.removed) for o in found.summary}


def rows(found: Diff) -> list[tuple[str, str | None, str | None]]:
    return [(row.status, row.before, row.after) for row in found.nodes]


# names that do not differ


def test_identical_models_list_nothing() -> None:
    found = compare(mlp(), mlp())
    assert (found.equal, found.nodes) == (True, ())
    assert counts(found) == {
        "Gemm": (2, 0, 2, 0, 0),
        "Relu": (1, 0, 1, 0, 0),
        "Input": (1, 0, 1, 0, 0),
        "Output": (1, 0, 1, 0, 0),
    }


def test_the_samples_are_equal_to_themselves(sample: Sample) -> None:
    for name in ("lenet", "jsc_tiny", "mobilenet_small", "bert_tiny", "three_inputs"):
        found = compare(read(str(sample(name))), read(str(sample(name))))
        assert (found.equal, found.nodes) == (True, ()), name


def test_another_attribute_is_told_with_both_values() -> None:
    found = compare(mlp(), mlp(alpha=2.0))
    row = only(found)
    assert (row.status, row.before, row.what) == ("changed", "fc1", "attribute alpha 1.0 -> 2.0")
    assert (row.match, row.confidence) == ("name", 1.0)
    assert not found.equal
    assert counts(found)["Gemm"] == (2, 1, 1, 0, 0)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ({"axis": 1}, {}, "attribute axis 1 -> not given"),
        ({}, {"axis": 1}, "attribute axis not given -> 1"),
        ({"k": (1, 2)}, {"k": (1, 3)}, "attribute k [1, 2] -> [1, 3]"),
        ({"mode": "a"}, {"mode": "b"}, "attribute mode 'a' -> 'b'"),
        ({"mode": "x" * 70 + "a"}, {"mode": "x" * 70 + "b"}, "attribute mode: content differs"),
        ({"alpha": 0.1}, {"alpha": 0.2}, "attribute alpha 0.1 -> 0.2"),
        ({"alpha": 0.1}, {"alpha": 0.10000000894069672}, "attribute alpha 0.1 -> 0.100000009"),
        ({"alpha": 0.1}, {"alpha": 0.1 + 2**-56}, "attribute alpha 0.1 -> 0.10000000000000002"),
        ({"scales": (0.0, 1.0)}, {"scales": (-0.0, 1.0)}, "attribute scales [0.0, 1.0] -> [-0.0, 1.0]"),
        (
            {"k": tuple(range(20))},
            {"k": tuple(range(21))},
            "attribute k [0, 1, 2, 3, 4, 5, 6, 7, ... 20 values] -> [0, 1, 2, 3, 4, 5, 6, 7, ... 21 values]",
        ),
        (
            {"t": build_int64_tensor("", [1, 2])},
            {"t": build_int64_tensor("", [1, 3])},
            "attribute t int64 [2] [1, 2] -> int64 [2] [1, 3]",
        ),
        ({"t": weight("", (99,), 1)}, {"t": weight("", (99,), 2)}, "attribute t: content differs"),
    ],
)
def test_attributes_in_words(before: dict[str, Any], after: dict[str, Any], what: str) -> None:
    found = compare(make([op("Op", "x", "y", **before)]), make([op("Op", "x", "y", **after)]))
    assert only(found).what == what


def test_a_default_that_is_written_out_is_no_change() -> None:
    def conv(**attributes: Any) -> Model:
        node = op("Conv", "x w", "y", "conv", kernel_shape=(1, 1), **attributes)
        return make([node], [weight("w", (8, 8, 1, 1))])

    written = conv(strides=(1, 1), pads=(0, 0, 0, 0), auto_pad="NOTSET", group=1)
    assert compare(conv(), written).nodes == ()
    assert compare(written, conv()).nodes == ()
    found = compare(conv(), conv(strides=(2, 2), group=2))
    assert (
        only(found).what == "attribute strides [1, 1] (default) -> [2, 2]; attribute group 1 (default) -> 2"
    )


def test_a_nan_attribute_is_equal_to_itself() -> None:
    same = [make([op("Op", "x", "y", value=float("nan"))]) for _ in range(2)]
    assert compare(*same).equal


def test_weights_of_other_values_are_found() -> None:
    row = only(compare(mlp(), mlp(seed=9)))
    assert (row.status, row.before, row.what) == ("changed", "fc1", "weight w1 values differ")


def test_weights_of_another_shape_or_type_are_told() -> None:
    assert only(compare(mlp(), mlp(shape=(8, 9)))).what == "weight w1 [8, 8] float32 -> [8, 9]"
    base, other = mlp(), mlp()
    half = Tensor("w1", "float16", (8, 8), Inline(bytes(128)))
    graph = replace(other.graph, initializers={**other.graph.initializers, "w1": half})
    found = compare(base, replace(other, graph=graph))
    assert only(found).what == "weight w1 [8, 8] float32 -> [8, 8] float16"


@pytest.mark.parametrize("at", [0, 1, 70_000, 149_999, 2_399_999])
def test_one_bit_in_a_large_weight_is_found(at: int) -> None:
    data = random.Random(0).randbytes(2_400_000)
    spoiled = bytearray(data)
    spoiled[at] ^= 1

    def holding(payload: Payload) -> Model:
        return make([op("Gemm", "x w", "y")], [Tensor("w", "float32", (600_000,), payload)])

    def slabs() -> Any:
        # pieces that end elsewhere than any chunk that is compared
        for start in range(0, len(spoiled), 77_777):
            yield memoryview(spoiled)[start : start + 77_777]

    original = holding(Inline(data))
    for other in (Inline(bytes(spoiled)), ComputedPayload(len(spoiled), slabs)):
        assert only(compare(original, holding(other))).what == "weight w values differ"
    spoiled[at] ^= 1
    assert compare(original, holding(ComputedPayload(len(spoiled), slabs))).equal


def test_a_large_constant_is_compared_to_the_last_byte(tmp_path: Path) -> None:
    def saved(name: str, last: int) -> Model:
        payload = Inline(bytes(99_999) + bytes([last]))
        tensor = Tensor("", "float32", (25_000,), payload)
        path = tmp_path / name
        path.write_bytes(encode(make([op("Constant", "", "c", value=tensor), op("Add", "x c", "y")])))
        return read(str(path))

    assert compare(saved("a.onnx", 1), saved("b.onnx", 1)).equal
    row = only(compare(saved("a.onnx", 1), saved("b.onnx", 2)))
    assert row.what == "attribute value: content differs"


def test_strings_are_compared() -> None:
    helper = pytest.importorskip("onnx").helper

    def words(*found: bytes) -> Any:
        return helper.make_tensor("s", 8, [2], list(found))

    for before, after, equal in ((b"ab", b"cd", True), (b"ab", b"ce", False)):
        models = []
        for text in (before, after) if not equal else (before, before):
            graph = helper.make_graph(
                [helper.make_node("Identity", ["s"], ["y"], name="n")],
                "g",
                [],
                [helper.make_tensor_value_info("y", 8, [2])],
                [words(b"same", text)],
            )
            models.append(parsed(helper.make_model(graph).SerializeToString()))
        assert compare(*models).equal is equal


def parsed(data: bytes) -> Model:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
        file.write(data)
        file.flush()
        return read(file.name)


def test_an_input_taken_from_elsewhere_is_told() -> None:
    def model(source: str) -> Model:
        return make([op("Relu", "x", "r"), op("Tanh", "x", "t"), op("Add", f"r {source}", "y", "add")])

    row = only(compare(model("r"), model("t")))
    assert (row.before, row.what) == ("add", "input 1: r -> t")


def test_another_operator_of_the_same_name_is_a_change() -> None:
    row = only(compare(mlp(), mlp(act="Tanh")))
    assert (row.status, row.what, row.op_before, row.op_after) == (
        "changed",
        "operator Relu -> Tanh",
        "Relu",
        "Tanh",
    )
    assert row.confidence < 1


def clipped(*ends: float, shared: bool = False) -> Model:
    """A chain of Clips, each with a Constant for its lower end, or all with the first one's."""
    nodes = []
    for at, end in enumerate(ends):
        low = "low0" if shared else f"low{at}"
        if low == f"low{at}":
            nodes.append(op("Constant", "", low, value_float=end))
        nodes.append(op("Clip", f"{'x' if not at else f'h{at}'} {low}", f"h{at + 1}"))
    return make([*nodes, op("Relu", f"h{len(ends)}", "y")])


def test_equal_constants_of_another_name_are_no_change() -> None:
    one, other = clipped(0.5, 0.5, 0.5), clipped(0.5, 0.5, 0.5, shared=True)
    for forth in (True, False):
        found = compare(one, other) if forth else compare(other, one)
        row = only(found)
        assert row.status == "folded"
        place = "" if forth else "in the first graph: "
        assert row.what == f"{place}2 Constant replaced by a Constant of equal value with another name"
        assert counts(found)["Clip"] == (3, 0, 3, 0, 0)
        assert counts(found)["Constant"] == ((3, 0, 1, 0, 2) if forth else (1, 0, 1, 2, 0))


def test_a_constant_of_another_value_under_another_name_is_a_change() -> None:
    found = compare(clipped(0.5, 0.25, 0.5), clipped(0.5, 0.5, 0.5, shared=True))
    assert counts(found)["Clip"] == (3, 1, 2, 0, 0)
    assert ("changed", "make_h2", "make_h2") in rows(found)


def test_an_operator_replaced_in_its_place_is_one_row() -> None:
    def model(kind: str, label: str) -> Model:
        return make(
            [op("Exp", "x", "h", "first"), op(kind, "h", label, label), op("Neg", label, "y", "last")]
        )

    found = compare(model("Relu", "the_relu"), model("Tanh", "the_tanh"))
    row = only(found)
    assert (row.status, row.before, row.after, row.match) == ("changed", "the_relu", "the_tanh", "structure")
    assert 0 < row.confidence < 0.6
    assert counts(found)["Relu"] == (1, 1, 0, 0, 0)


# names that differ


def renamed(model: Model, seed: int = 0, *, strip: bool = False) -> Model:
    """Every node, value and weight under another name, nodes in another possible order."""
    rng = random.Random(seed)
    fixed = {v.name for v in (*model.graph.inputs, *model.graph.outputs)}
    names: dict[str, str] = {"": ""}

    def new(name: str) -> str:
        return names.setdefault(
            name, name if name in fixed else f"new_{rng.randrange(1 << 40):x}_{len(names)}"
        )

    nodes = [
        Node(
            n.op,
            [new(i) for i in n.inputs],
            [new(o) for o in n.outputs],
            name="" if strip else f"node {rng.randrange(1 << 40):x}",
            domain=n.domain,
            attributes=n.attributes,
        )
        for n in model.graph.nodes
    ]
    rng.shuffle(nodes)
    weights = {
        new(name): replace(tensor, name=new(name), record=None)
        for name, tensor in model.graph.initializers.items()
    }
    graph = replace(model.graph, nodes=tuple(nodes), initializers=weights, values=())
    return validate(replace(model, graph=graph))


def test_renamed_nodes_match_and_the_models_are_equal() -> None:
    found = compare(mlp(), renamed(mlp()))
    assert found.equal
    assert {row.status for row in found.nodes} == {"renamed"}
    # the last one still gives the graph's output
    assert [row.match for row in found.nodes] == ["structure", "structure", "outputs"]
    assert all(0.5 < row.confidence < 1 for row in found.nodes)
    assert counts(found)["Gemm"] == (2, 0, 2, 0, 0)


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("name", ["lenet", "mobilenet_small", "bert_tiny", "three_inputs"])
def test_every_node_of_a_renamed_sample_matches(sample: Sample, name: str, strip: bool) -> None:
    model = read(str(sample(name)))
    found = compare(model, renamed(model, strip=strip))
    assert {row.status for row in found.nodes} == {"renamed"}
    assert found.equal


def test_a_change_in_a_renamed_model_is_still_one_change() -> None:
    found = compare(mlp(), renamed(mlp(seed=9)))
    changed = [row for row in found.nodes if row.status != "renamed"]
    assert [(row.before, row.what) for row in changed] == [("fc1", "weight w1 values differ")]
    assert changed[0].match == "structure"


def test_less_agreement_is_less_confidence() -> None:
    sure = next(r for r in compare(mlp(), renamed(mlp())).nodes if r.before == "fc1")
    less = next(r for r in compare(mlp(), renamed(mlp(seed=9))).nodes if r.before == "fc1")
    least = next(r for r in compare(mlp(), renamed(mlp(seed=9, alpha=3.0))).nodes if r.before == "fc1")
    assert sure.confidence > less.confidence > least.confidence


def test_a_renamed_value_alone_is_listed_at_the_node_that_gives_it() -> None:
    base = mlp()
    nodes = [
        op("Gemm", "x w1", "hidden", "fc1", alpha=1.0),
        op("Relu", "hidden", "a", "act"),
        base.graph.nodes[2],
    ]
    row = only(compare(base, make(nodes, list(base.graph.initializers.values()))))
    assert (row.status, row.before, row.what) == ("renamed", "fc1", "output h is now hidden")


def test_numbers_that_shift_do_not_mislead() -> None:
    def chain(kinds: Sequence[str]) -> Model:
        nodes = []
        for i, kind in enumerate(kinds):
            last = "y" if i == len(kinds) - 1 else str(i + 1)
            takes = f"{i or 'x'}" + (f" w_{kind[4:]}" if kind.startswith("Conv") else "")
            nodes.append(op(kind[:4], takes, last, f"{kind[:4]}_{i}"))
        weights = [weight(f"w_{k[4:]}", (8, 8), int(k[4:])) for k in kinds if k.startswith("Conv")]
        return make(nodes, weights)

    before = chain(["Conv1", "Relu", "Conv2", "Relu", "Conv3", "Relu", "Conv4"])
    after = chain(["Conv1", "Relu", "Tanh", "Conv2", "Relu", "Conv3", "Relu", "Conv4"])
    found = compare(before, after)
    assert [(r.status, r.after) for r in found.nodes if r.status != "renamed"] == [
        ("added", "Tanh_2"),
        ("changed", "Conv_3"),
    ]
    assert counts(found)["Conv"] == (4, 1, 3, 0, 0)


def test_identical_twins_match_one_to_one() -> None:
    nodes = [*(op("Relu", "x", f"r{i}") for i in range(3)), op("Sum", "r0 r1 r2", "y")]
    assert compare(make(nodes), renamed(make(nodes))).equal
    fewer = make([*(op("Relu", "x", f"q{i}") for i in range(2)), op("Sum", "q0 q1", "y")])
    assert counts(compare(make(nodes), renamed(fewer)))["Relu"] == (3, 0, 2, 0, 1)


# nodes that come and go


def test_an_added_node_is_one_row_and_its_user_has_another_input() -> None:
    before = make([op("Exp", "x", "a"), op("Neg", "a", "y")])
    after = make([op("Exp", "x", "a"), op("Abs", "a", "b"), op("Neg", "b", "y")])
    found = compare(before, after)
    assert rows(found) == [("added", None, "make_b"), ("changed", "make_y", "make_y")]
    assert found.nodes[1].what == "input 0: a -> b"
    back = compare(after, before)
    assert rows(back) == [("removed", "make_b", None), ("changed", "make_y", "make_y")]


def bypassed(model: Model, at: int) -> Model:
    """The model without one node; who took its output takes its first input."""
    gone = model.graph.nodes[at]
    nodes = [
        Node(
            n.op,
            [gone.inputs[0] if name == gone.outputs[0] else name for name in n.inputs],
            n.outputs,
            name=n.name,
            attributes=n.attributes,
        )
        for n in model.graph.nodes
        if n is not gone
    ]
    return validate(replace(model, graph=replace(model.graph, nodes=tuple(nodes))))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("name", ["lenet", "mobilenet_small", "bert_tiny"])
def test_a_node_taken_out_of_a_renamed_sample_is_the_only_one_gone(
    sample: Sample, name: str, strip: bool
) -> None:
    model = read(str(sample(name)))
    ends = {v.name for v in model.graph.outputs}
    inner = [
        i
        for i, n in enumerate(model.graph.nodes)
        if n.inputs and n.outputs[0] not in ends and n.inputs[0] not in model.graph.initializers
    ]
    for at in inner[:: max(1, len(inner) // 8)]:
        found = compare(model, renamed(bypassed(model, at), at, strip=strip))
        users = sum(model.graph.nodes[at].outputs[0] in n.inputs for n in model.graph.nodes)
        removed = [row.op_before for row in found.nodes if row.status == "removed"]
        assert removed == [model.graph.nodes[at].op]
        assert sum(row.status == "changed" for row in found.nodes) == users
        assert not any(row.status == "added" for row in found.nodes)


def test_nothing_in_common_is_all_removed_and_all_added() -> None:
    found = compare(make([op("Exp", "x", "y", "a")]), make([op("Add", "x w", "y", "b")], [weight("w", (8,))]))
    assert counts(found)["Exp"][0] == 1
    assert not found.equal


# the graph itself


def test_inputs_and_outputs_are_compared() -> None:
    base = make([op("Exp", "x", "y")])
    wider = replace(base.graph, inputs=(value("x", 1, 9),))
    row = only(compare(base, replace(base, graph=wider)))
    assert (row.op_before, row.what) == ("Input", "shape [1, 8] -> [1, 9]")
    whole = replace(base.graph, outputs=(Value("y", "float64", (1, 8)),))
    row = only(compare(base, replace(base, graph=whole)))
    assert (row.op_before, row.what) == ("Output", "type float32 -> float64")


def test_an_input_of_another_name_is_a_change_because_callers_type_it() -> None:
    found = compare(make([op("Exp", "x", "y", "e")]), make([op("Exp", "image", "y", "e")], x="image"))
    assert only(found).what == "name x -> image"
    assert not found.equal


def test_an_output_given_by_another_node_is_told() -> None:
    def model(first: str, second: str) -> Model:
        return make([op("Exp", "x", first, "e"), op("Neg", "x", second, "n"), op("Abs", "x", "z", "z")])

    found = compare(model("y", "q"), model("q", "y"))
    assert "comes from e -> n" in [row.what for row in found.nodes if row.op_before == "Output"]


def test_outputs_in_another_order_are_told() -> None:
    base = make([op("Exp", "x", "y"), op("Neg", "x", "z")])
    one = replace(base.graph, outputs=(value("y"), value("z")))
    two = replace(base.graph, outputs=(value("z"), value("y")))
    found = compare(replace(base, graph=one), replace(base, graph=two))
    assert [row.what for row in found.nodes] == ["position 0 -> 1", "position 1 -> 0"]


def test_another_operator_set_is_a_change() -> None:
    base = make([op("Exp", "x", "y")])
    row = only(compare(base, replace(base, opsets={"": 18, "local": 1})))
    assert (row.op_before, row.before, row.what) == ("Opset", "ai.onnx", "opset 17 -> 18")
    assert compare(base, replace(base, opsets={"": 17})).equal, "an import that nothing uses"


def test_a_function_with_another_body_changes_its_callers() -> None:
    def model(kind: str, inner: str = "t") -> Model:
        body = (Node(kind, ["a"], [inner]), Node("Neg", [inner], ["b"]))
        functions = [
            Function("local", "F", ("a",), ("b",), body, {"": 17}),
            Function("local", "G", ("a",), ("b",), (Node("F", ["a"], ["b"], domain="local"),), {"local": 1}),
        ]
        call = Node("G", ["x"], ["y"], name="call", domain="local")
        return make([call], functions={f.key: f for f in functions})

    assert compare(model("Exp"), model("Exp", "other")).equal, "names inside a body mean nothing"
    found = compare(model("Exp"), model("Abs"))
    assert ("changed", "call", "call") in rows(found)
    assert {r.before for r in found.nodes if r.op_before == "Function"} == {"F", "G"}
    added = compare(make([op("Exp", "x", "y")]), model("Exp"))
    assert {r.after for r in added.nodes if r.op_after == "Function"} == {"F", "G"}


def test_branches_are_compared_by_meaning() -> None:
    def model(kind: str, names: Mapping[str, str], source: str = "p") -> Model:
        body = Graph(
            "b",
            (
                Node(kind, [names.get(source, source)], [names.get("i", "i")]),
                Node("Neg", [names.get("i", "i")], ["o"]),
            ),
            (),
            (value("o"),),
            {},
        )
        one = Node("Constant", [], ["r"], attributes={"value_float": 1.0})
        same = Graph("same", (one,), (), (value("r"),), {})
        nodes = [
            op("Exp", "x", names.get("p", "p"), "p"),
            op("Abs", "x", names.get("q", "q"), "q"),
            Node("If", ["x"], ["y"], name="flow", attributes={"then_branch": body, "else_branch": same}),
        ]
        return make(nodes)

    assert compare(model("Exp", {}), model("Exp", {"i": "inner", "p": "outer"})).equal
    row = only(compare(model("Exp", {}), model("Abs", {})))
    assert (row.before, row.what) == ("flow", "attribute then_branch: content differs")
    row = only(compare(model("Exp", {}), model("Exp", {}, "q")))
    assert (row.before, row.what) == ("flow", "input 1: p -> q")


def test_jsc_tiny_with_its_linear_quantized(sample: Sample) -> None:
    """Linear 1 of 1 changed; BatchNorm1d 1, ReLU 2, output 1, input 1 unchanged."""
    before = validate(read(str(sample("jsc_tiny"))))
    (linear,) = [n for n in before.graph.nodes if n.op in ("Gemm", "MatMul")]
    quantized = Node("QuantLinear", linear.inputs, linear.outputs, name=linear.name, domain="com.acme")
    nodes = tuple(quantized if n is linear else n for n in before.graph.nodes)
    after = replace(
        before,
        graph=replace(before.graph, nodes=nodes),
        opsets={**before.opsets, "com.acme": 1},
    )
    for other in (validate(after), renamed(validate(after))):
        found = counts(compare(before, other))
        assert found.pop("Opset") == (0, 0, 0, 1, 0)
        assert found == {
            linear.op: (1, 1, 0, 0, 0),
            "BatchNormalization": (1, 0, 1, 0, 0),
            "Relu": (2, 0, 2, 0, 0),
            "Input": (1, 0, 1, 0, 0),
            "Output": (1, 0, 1, 0, 0),
        }


# tiled sites


def tiled(source: Path | str, form: str, tile: int = 64) -> tuple[Diff, Diff]:
    """The diff of a model and its tiled self, there and back."""
    with Session(str(source)) as session:
        session.tile(TileSpec((tile, tile, tile), form=form), verify=False)  # type: ignore[arg-type]
        return session.diff(0, 1), session.diff(1, 0)


@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
def test_a_tiled_site_is_one_row_in_every_form(sample: Sample, form: str) -> None:
    there, back = tiled(sample("mlp_128"), form)
    assert {row.status for row in there.nodes} == {"tiled"}
    assert all(row.what == f"{row.op_before} -> 8 products" for row in there.nodes)
    products = sum(o.changed for o in there.summary)
    assert products == len(there.nodes)
    assert all(o.added == o.removed == 0 for o in there.summary)
    assert {row.status for row in back.nodes} == {"merged"}
    assert all(row.what == f"8 products -> {row.op_after}" for row in back.nodes)
    assert not there.equal
    assert not back.equal


def test_the_textbook_case_opens_to_the_textbook(sample: Sample) -> None:
    there, _ = tiled(sample("mlp_128"), "lab")
    inside = dict(there.nodes[0].children)
    assert inside.pop("2DMM_64x64x64") == 8
    assert inside.pop("Sum") == 4
    assert sum(n for op, n in inside.items() if op.startswith("Split2D_")) == 2
    assert sum(n for op, n in inside.items() if op.startswith("Concat2D_")) == 1


def test_only_the_tiled_layers_of_lenet_change(sample: Sample) -> None:
    there, _ = tiled(sample("lenet"), "scan")
    assert [row.what for row in there.nodes] == [
        "Conv -> 13 products",
        "Conv -> 6 products",
        "Gemm -> 14 products",
        "Gemm -> 4 products",
        "Gemm -> 2 products",
    ]
    assert counts(there)["Gemm"] == (3, 3, 0, 0, 0)
    assert counts(there)["Conv"] == (2, 2, 0, 0, 0)
    assert counts(there)["Relu"][1] == 0


def test_tiled_anew_with_another_tile_is_one_row_too(sample: Sample) -> None:
    with Session(str(sample("mlp_128"))) as session:
        session.tile(TileSpec((64, 64, 64), form="unrolled"), verify=False)
        session.undo()
        first = validate(read(session.history().entries[1].path or ""))
        session.tile(TileSpec((32, 64, 64), form="unrolled"), verify=False)
        second = validate(read(session.history().entries[2].path or ""))
    assert compare(first, first).equal
    found = compare(first, second)
    assert {(row.status, row.what) for row in found.nodes} == {("tiled", "8 products -> 16 products")}


def test_a_tile_operator_with_another_body_is_seen(sample: Sample) -> None:
    with Session(str(sample("mlp_128"))) as session:
        session.tile(TileSpec((64, 64, 64), form="unrolled"), verify=False)
        good = validate(read(session.history().entries[1].path or ""))
    key = next(k for k in good.functions if k[1].startswith("2DMM_"))
    (product,) = good.functions[key].nodes
    swapped = Node(product.op, product.inputs[::-1], product.outputs)
    spoiled = replace(good.functions[key], nodes=(swapped,), record=None)
    found = compare(good, replace(good, functions={**good.functions, key: spoiled}))
    assert not found.equal
    assert {(row.status, row.what) for row in found.nodes if row.op_before != "Function"} == {
        ("changed", "8 products in both graphs, but their nodes differ")
    }


def test_a_site_whose_node_was_renamed_is_found_by_its_output() -> None:
    before = make([op("Gemm", "x w", "y", "")], [weight("w", (8, 8))])
    after = make(
        [
            Node("MatMul", ["x", "w"], ["p"], name="s/p", metadata={"tile_hw.site": "s"}),
            Node("Identity", ["p"], ["y"], name="s/y", metadata={"tile_hw.site": "s"}),
        ],
        [weight("w", (8, 8))],
    )
    row = only(compare(before, after))
    assert (row.status, row.match, row.children) == ("tiled", "outputs", (("MatMul", 1), ("Identity", 1)))


def test_the_transpose_of_a_tiled_weight_says_where_it_went(tmp_path: Path) -> None:
    model = make(
        [op("Transpose", "w", "wt", "turn", perm=(1, 0)), op("MatMul", "x wt", "y", "fc")],
        [weight("w", (70, 8))],
    )
    graph = replace(model.graph, outputs=(value("y", 1, 70),))
    path = tmp_path / "m.onnx"
    path.write_bytes(encode(replace(model, graph=graph)))
    there, back = tiled(path, "unrolled", 4)
    assert ("removed", "turn", "part of a tiled weight in the second graph") in [
        (r.status, r.before, r.what) for r in there.nodes
    ]
    assert ("added", "turn", "part of a tiled weight in the first graph") in [
        (r.status, r.after, r.what) for r in back.nodes
    ]


# any graphs


@st.composite
def graphs(draw: st.DrawFn) -> Model:
    """A model of up to a dozen nodes with branches, joins, attributes and weights."""
    count = draw(st.integers(1, 12))
    values, nodes, weights = ["x"], [], []
    for i in range(count):
        kind = draw(st.sampled_from(["Relu", "Add", "Gemm", "Clip", "Split"]))
        takes = [draw(st.sampled_from(values))]
        gives = [f"v{i}"]
        attributes: dict[str, Any] = {}
        if kind == "Add":
            takes.append(draw(st.sampled_from(values)))
        elif kind == "Gemm":
            weights.append(weight(f"w{i}", (draw(st.integers(1, 3)), 4), draw(st.integers(0, 3))))
            takes.append(f"w{i}")
            attributes["alpha"] = draw(st.sampled_from([0.5, 1.0]))
        elif kind == "Clip":
            takes += ["", draw(st.sampled_from(values))]
        elif kind == "Split":
            gives.append(f"v{i}b")
        nodes.append(Node(kind, takes, gives, name=f"layer{i}/{kind}/n", attributes=attributes))
        values += gives
    nodes.append(Node("Sum", [v for v in values[-3:] if v], ["y"], name="the/last/sum"))
    return make(nodes, weights)


few = settings(max_examples=60, deadline=None)


@few
@given(graphs())
def test_any_graph_equals_itself(model: Model) -> None:
    found = compare(model, model)
    assert (found.equal, found.nodes) == (True, ())


@few
@given(graphs(), st.integers(0, 99), st.booleans())
def test_any_graph_equals_its_renamed_self(model: Model, seed: int, strip: bool) -> None:
    found = compare(model, renamed(model, seed, strip=strip))
    assert not any(o.added or o.removed for o in found.summary)
    assert found.equal


@few
@given(graphs(), st.integers(0, 99))
def test_an_appended_node_is_found_whatever_the_names(model: Model, seed: int) -> None:
    last = Node("Erf", ["v0"], ["extra"], name="extra/erf/n")
    longer = validate(replace(model, graph=replace(model.graph, nodes=(*model.graph.nodes, last))))
    found = compare(model, longer)
    assert rows(found) == [("added", None, "extra/erf/n")]
    assert rows(compare(longer, model)) == [("removed", "extra/erf/n", None)]
    shuffled = compare(model, renamed(longer, seed))
    assert {o.op: (o.added, o.removed) for o in shuffled.summary if o.added or o.removed} == {"Erf": (1, 0)}


@few
@given(graphs(), graphs())
def test_the_books_balance_for_any_two_graphs(one: Model, other: Model) -> None:
    there, back = compare(one, other), compare(other, one)
    for found, model in ((there, one), (back, other)):
        assert all(o.total == o.changed + o.unchanged + o.removed for o in found.summary)
        own = {"Input", "Output", "Opset", "Function"}
        assert sum(o.total for o in found.summary if o.op not in own) == len(model.graph.nodes)
    assert sum(o.added for o in there.summary) == sum(o.removed for o in back.summary)
    assert sum(o.removed for o in there.summary) == sum(o.added for o in back.summary)
    for found in (there, back):
        assert all(0 < row.confidence <= 1 for row in found.nodes)
        befores = [row.before for row in found.nodes if row.op_before not in (None, "Input", "Output")]
        assert len(befores) == len(set(befores)), "each node is in one row at most"


def test_the_books_balance_where_many_pairings_are_as_good() -> None:
    def sums(middle: list[tuple[str, str, str]]) -> Model:
        ops = [op(kind, given, made, f"layer{i}/{kind}/n") for i, (kind, given, made) in enumerate(middle)]
        return make([*ops, op("Sum", "v2 v3 v4", "y", "the/last/sum")])

    one = sums(
        [
            ("Relu", "x", "v0"),
            ("Relu", "x", "v1"),
            ("Relu", "x", "v2"),
            ("Add", "x x", "v3"),
            ("Add", "x x", "v4"),
        ]
    )
    other = sums(
        [
            ("Relu", "x", "v0"),
            ("Add", "v0 x", "v1"),
            ("Add", "x x", "v2"),
            ("Relu", "x", "v3"),
            ("Relu", "x", "v4"),
        ]
    )
    there, back = compare(one, other), compare(other, one)
    assert sum(o.added for o in there.summary) == sum(o.removed for o in back.summary)
    assert sum(o.removed for o in there.summary) == sum(o.added for o in back.summary)


def test_it_can_be_stopped() -> None:
    with pytest.raises(Cancelled):
        compare(mlp(), mlp(), cancel=lambda: True)


def test_it_says_how_far_it_is() -> None:
    seen: list[str] = []
    compare(mlp(), mlp(), on_progress=lambda progress: seen.append(progress.phase))
    assert "comparing nodes" in seen


@pytest.mark.slow
def test_twenty_thousand_stripped_nodes_are_matched_without_names() -> None:
    nodes = [op("Relu", f"v{i}" if i else "x", f"v{i + 1}", "") for i in range(20_000)]
    nodes.append(op("Exp", "v20000", "y", ""))
    model = make(nodes)
    found = compare(model, renamed(model, strip=True))
    assert found.equal


def test_a_model_that_was_tiled_twice_is_still_told_apart_from_the_first(
    sample: Sample, tmp_path: Path
) -> None:
    once, twice = str(tmp_path / "once.onnx"), str(tmp_path / "twice.onnx")
    with Session(str(sample("lstm_tiny"))) as session:
        session.tile(TileSpec((8, 8, 8), sites=("/lstm/*",)), output=once, verify=False)
    with Session(once) as session:
        session.tile(TileSpec((4, 4, 4)), output=twice, verify=False)
    found = diff_files(str(sample("lstm_tiny")), twice)
    assert sorted((row.status, row.before) for row in found.nodes) == [
        ("tiled", "/classifier/MatMul"),
        ("tiled", "/lstm/LSTM"),
    ]
    assert read(twice).graph.outputs[0].shape == ("batch", "sequence", 12)


@pytest.mark.slow
def test_products_in_a_loop_over_a_weight_inside_a_loop_over_rows_are_all_counted(tmp_path: Path) -> None:
    source = linear(tmp_path / "m.onnx", 8, 96, 16)
    target = tmp_path / "t.onnx"
    with Session(source.path) as session:
        session.tile(TileSpec((4, 2, 4), form="scan"), output=str(target), verify=False)
    (change,) = diff_files(source.path, str(target)).nodes
    assert change.what == "Gemm -> 384 products"
    assert dict(change.children)["2DMM_4x2x4"] == 2 * 48 * 4
