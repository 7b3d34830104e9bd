"""A tiled graph with a fault in it is refused, and the report says which fault and where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from msgspec.structs import replace

from explorer.engine.graph.model import Function, Model, Node, build_tensor
from explorer.engine.proof.proof import verify
from explorer.engine.proof.sites import run
from explorer.engine.proof.sites.proof import find_original
from explorer.engine.proof.structure.walk import walk
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.facts import TileSpec
from tests.engine.proof import tiled as t

UNROLLED = TileSpec(tile=(4, 8, 8), form="unrolled")
Spoil = Callable[[Model], Model]


def exchange(made: Model, a: str, b: str) -> Model:
    """Two initializers change places."""

    def swapped(node: Node) -> Node:
        return t.node_like(node, inputs=[{a: b, b: a}.get(i, i) for i in node.inputs])

    return t.with_nodes(made, swapped)


def one_ulp(array: np.ndarray) -> np.ndarray:
    array[3, 5] = np.nextafter(array[3, 5], np.inf)
    return array


def without_last_term(node: Node) -> Node:
    return t.node_like(node, inputs=node.inputs[:-1]) if node.op == "Sum" else node


def last_term_twice(node: Node) -> Node:
    return t.node_like(node, inputs=[*node.inputs, node.inputs[-1]]) if node.op == "Sum" else node


def terms_reversed(node: Node) -> Node:
    return t.node_like(node, inputs=node.inputs[::-1]) if node.op == "Sum" else node


def concat_turned(node: Node) -> Node:
    return t.node_like(node, inputs=node.inputs[::-1]) if node.op.startswith("Concat2D") else node


def wrong_slice_of_x(node: Node) -> Node:
    if not node.op.startswith("2DMM") or "/x_0_1" not in node.inputs[0]:
        return node
    return t.node_like(node, inputs=[node.inputs[0].replace("/x_0_1", "/x_0_0"), node.inputs[1]])


def bias_twice(made: Model) -> Model:
    nodes = []
    for node in made.graph.nodes:
        if "y" in node.outputs:
            nodes += [t.node_like(node, outputs=["once"]), Node("Add", ["once", "b"], ["y"], name="again")]
        else:
            nodes.append(node)
    return t.with_graph(made, nodes=tuple(nodes))


def no_bias(node: Node) -> Node:
    return t.node_like(node, op="Identity", inputs=node.inputs[:1]) if "y" in node.outputs else node


def body(*nodes: Node) -> Callable[[Function], Function]:
    return lambda f: replace(f, nodes=tuple(nodes), record=None)


DOUBLED = body(Node("MatMul", ["A", "B"], ["P"]), Node("Add", ["P", "P"], ["C"]))
RECTIFIED = body(Node("MatMul", ["A", "B"], ["P"]), Node("Relu", ["P"], ["C"]))

FAULTS: dict[str, tuple[Spoil, str]] = {
    "two tiles swapped": (lambda m: exchange(m, "w/tile_0_0", "w/tile_1_0"), "(0, 0, 0) is not its slice"),
    "tile cut from elsewhere": (
        lambda m: t.with_array(m, "w/tile_1_1", lambda a: np.roll(a, 1, axis=0)),
        "(0, 1, 1) is not its slice",
    ),
    "tile transposed": (lambda m: t.with_array(m, "w/tile_2_0", lambda a: a.T), "it is transposed"),
    "one unit in the last place": (
        lambda m: t.with_array(m, "w/tile_0_1", one_ulp),
        "1 of 64 elements differ",
    ),
    "a term missing": (lambda m: t.with_nodes(m, without_last_term), "terms are missing"),
    "a term added twice": (lambda m: t.with_nodes(m, last_term_twice), "twice"),
    "terms out of order": (lambda m: t.with_nodes(m, terms_reversed), "one is missing"),
    "Concat in the wrong order": (lambda m: t.with_nodes(m, concat_turned), "(0, 0, 0) is not its slice"),
    "the wrong block of the input": (
        lambda m: t.with_nodes(m, wrong_slice_of_x),
        "reads depth 0 instead of 8",
    ),
    "bias twice": (bias_twice, "the bias is added twice"),
    "bias missing": (lambda m: t.with_nodes(m, no_bias), "the bias is missing"),
    "function body that doubles": (lambda m: t.with_body(m, "2DMM", DOUBLED), "depth 0 instead of 8"),
    "function body that rectifies": (
        lambda m: t.with_body(m, "2DMM", RECTIFIED),
        "not part of a tiled product",
    ),
}


WITHIN_ROUNDING = ("one unit in the last place", "terms out of order")
"""What a run cannot tell from rounding: it is not proved, and nothing shows that it is different."""


@pytest.mark.sampled(5)
@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_is_found_by_the_walk(fault: str, tmp_path: Path) -> None:
    spoil, words = FAULTS[fault]
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)
    evidence = t.prove(source, UNROLLED, spoil)
    assert not evidence.passed
    assert words in evidence.sites[0].structure
    kind = "not proved" if fault in WITHIN_ROUNDING else "different"
    assert evidence.verdict.startswith(f"{kind}: matmul 'fc': ")
    assert words in evidence.verdict


def test_a_row_of_tiles_that_is_not_scaled_is_found_though_the_one_before_it_is(tmp_path: Path) -> None:
    """By so little that no run shows it; both rows meet the same tiles."""
    source = t.linear(tmp_path / "m.onnx", 8, 24, 16, bias=False, alpha=1 + 2.0**-23)

    def scaled_early(node: Node) -> list[Node]:
        if node.op == "Sum" and "c_0_" in node.outputs[0]:
            return [t.node_like(node, outputs=["s" + node.outputs[0]])]
        return [t.node_like(node, op="Identity", inputs=node.inputs[:1]) if node.op == "Mul" else node]

    def spoil(made: Model) -> Model:
        nodes = [new for node in made.graph.nodes for new in scaled_early(node)]
        alpha = next(node for node in nodes if node.op == "Constant")
        nodes.remove(alpha)
        at = next(i for i, node in enumerate(nodes) if node.op.startswith("Concat2D"))
        parts = [name for name in nodes[at].inputs if "c_0_" in name]
        scaled = [Node("Mul", ["s" + name, alpha.outputs[0]], [name]) for name in parts]
        return t.with_graph(made, nodes=(alpha, *nodes[:at], *scaled, *nodes[at:]))

    site = t.prove(source, UNROLLED, spoil).sites[0]
    assert "(1, 0, 0) is not its slice" in site.structure
    assert site.bound_ratio is not None
    assert site.bound_ratio < site.limit


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f not in ("terms out of order", "one unit in the last place")]
)
def test_the_same_faults_show_in_the_run_of_the_site_alone(fault: str, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)
    site = t.prove(source, UNROLLED, FAULTS[fault][0]).sites[0]
    assert site.bound_ratio is not None
    assert site.bound_ratio > site.limit


@pytest.mark.sampled(1)
@pytest.mark.parametrize("row", [5, 100, 300])
def test_of_a_large_product_a_fault_in_one_row_is_found(
    row: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only some rows of it are compared with float64; the others with the original's own output."""
    source = t.linear(tmp_path / "m.onnx", 400, 24, 16)
    spec = TileSpec(tile=(64, 24, 16), form="unrolled")
    extra = np.zeros((400, 16), np.float32)
    extra[row, 3] = 2e-4

    def off(made: Model) -> Model:
        stored = {**made.graph.initializers, "extra": build_tensor("extra", extra)}
        nodes = [t.node_like(n, outputs=["once"]) if "y" in n.outputs else n for n in made.graph.nodes]
        return t.with_graph(made, nodes=(*nodes, Node("Add", ["once", "extra"], ["y"])), initializers=stored)

    whole, wrong = t.prove(source, spec), t.prove(source, spec, off).sites[0]
    monkeypatch.setattr(run, "_MAX_FULL_MACS", 0)
    sampled, found = t.prove(source, spec), t.prove(source, spec, off).sites[0]
    assert sampled.passed
    assert (sampled.sites[0].rows, sampled.sites[0].mse) == (whole.sites[0].rows, whole.sites[0].mse)
    assert found.bound_ratio == pytest.approx(wrong.bound_ratio)
    assert found.bound_ratio > found.limit


def test_onnx_itself_finds_nothing_wrong_with_them(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)
    after, _ = t.tiled(source, UNROLLED, spoil=FAULTS["two tiles swapped"][0])
    onnx.checker.check_model(after.path, full_check=True)


@pytest.mark.parametrize("form", t.FORMS)
def test_a_wrong_function_body_is_found_in_every_form_that_has_functions(form: str, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 8, 24, 16)
    if form == "batched":
        spoil: Spoil = lambda m: t.with_array(m, "w/blocks_8x8", lambda a: a * np.float32(1.5))  # noqa: E731
    else:
        spoil = lambda m: t.with_body(m, "2DMM", RECTIFIED)  # noqa: E731
    evidence = t.prove(source, TileSpec(tile=(4, 8, 8), form=form), spoil)  # type: ignore[arg-type]
    assert not evidence.passed
    assert not evidence.sites[0].passed


def test_a_fault_in_the_body_of_a_scan_is_found(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)

    def spoil(made: Model) -> Model:
        def changed(graph):  # type: ignore[no-untyped-def]
            return replace(graph, nodes=tuple(without_last_term(n) for n in graph.nodes))

        return t.with_scan(made, changed)

    evidence = t.prove(source, TileSpec(tile=(4, 8, 8), form="scan"), spoil)
    assert "terms are missing" in evidence.sites[0].structure


def test_a_tile_of_the_wrong_size_is_refused_though_the_result_is_right(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)
    after, _ = t.tiled(source, UNROLLED)
    _, other = t.tiled(source, TileSpec(tile=(4, 12, 8), form="unrolled", edges="padded"))
    evidence = verify(source, after, plan=other)
    assert "has depth 8" in evidence.sites[0].structure
    assert evidence.outputs[0].passed


def test_a_false_label_is_refused(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)

    def relabelled(node: Node) -> Node:
        if node.metadata.get("tile_hw.mnk") != "0,1,2":
            return node
        return t.node_like(node, metadata={**node.metadata, "tile_hw.mnk": "0,1,1"})

    evidence = t.prove(source, UNROLLED, lambda m: t.with_nodes(m, relabelled))
    assert "labeled (0,1,1)" in evidence.sites[0].structure


def test_a_dropped_tile_that_mse_and_allclose_let_pass_is_refused(tmp_path: Path) -> None:
    """One weight tile of 64 is zero, its values are small: MSE is 1e-9, allclose says yes, we say no."""
    w = t.weight(128, 128, seed=3, scale=0.5)
    w[32:48, 32:48] *= 1e-4
    node = onnx.helper.make_node("Gemm", ["x", "w"], ["y"], name="fc")
    source = t.model(tmp_path / "m.onnx", [node], {"x": (1, 128)}, {"w": w})
    spec = TileSpec(tile=(16, 16, 16), form="unrolled")
    after, plan = t.tiled(source, spec, spoil=lambda m: t.with_array(m, "w/tile_2_2", np.zeros_like))
    x = np.random.default_rng(0).standard_normal((1, 128)).astype(np.float32)
    dropped = w.copy()
    dropped[32:48, 32:48] = 0
    assert np.mean((x @ dropped - x @ w) ** 2) < 1e-8
    assert np.allclose(x @ dropped, x @ w, 1e-2, 1e-3)
    with_plan = verify(source, after, plan=plan)
    assert "is not its slice" in with_plan.sites[0].structure
    assert with_plan.sites[0].bound_ratio is not None
    assert with_plan.sites[0].bound_ratio > 8
    assert not with_plan.outputs[0].passed
    assert with_plan.outputs[0].mse is not None
    assert with_plan.outputs[0].mse < 1e-8


def test_a_weight_that_only_the_dense_rows_meet_is_found(tmp_path: Path) -> None:
    """Behind a Relu that is shut the weight meets zeros only; the dense random rows open it."""
    shut = np.full(8, -100, np.float32)
    nodes = [
        onnx.helper.make_node("Add", ["x", "shut"], ["low"]),
        onnx.helper.make_node("Relu", ["low"], ["h"]),
        onnx.helper.make_node("MatMul", ["h", "w"], ["y"], name="fc"),
    ]
    source = t.model(tmp_path / "m.onnx", nodes, {"x": (2, 8)}, {"w": t.weight(8, 8), "shut": shut})

    def off(array: np.ndarray) -> np.ndarray:
        array[1, 1] *= 1.001
        return array

    evidence = t.prove(
        source, TileSpec(tile=(4, 4, 4), form="unrolled"), lambda m: t.with_array(m, "w/tile_0_0", off)
    )
    assert evidence.outputs[0].equal
    site = evidence.sites[0]
    assert site.max_abs == 0
    assert site.bound_ratio is not None
    assert site.bound_ratio > 8


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_new_nan_or_inf_never_passes(value: float, tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)

    def poisoned(array: np.ndarray) -> np.ndarray:
        array[0, 0] = value
        return array

    after, plan = t.tiled(source, UNROLLED, spoil=lambda m: t.with_array(m, "w/tile_0_0", poisoned))
    with_plan = verify(source, after, plan=plan)
    assert not with_plan.passed
    assert with_plan.sites[0].nonfinite > 0
    alone = verify(source, replace(after, metadata={}))
    assert alone.sites == ()
    assert not alone.passed
    assert alone.outputs[0].nonfinite == 4
    assert "NaN or Inf that the original does not have" in alone.outputs[0].reason


def test_a_graph_that_contradicts_itself_is_refused_without_a_crash(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)

    def doubled(graph):  # type: ignore[no-untyped-def]
        return replace(graph, inputs=graph.inputs * 2)

    after, plan = t.tiled(source, TileSpec(tile=(4, 8, 8), form="scan"))
    broken = t.with_scan(after, doubled)
    original = find_original(source, "y")
    assert original is not None
    with pytest.raises(NotTiled, match="its graph cannot run on symbols"):
        walk(broken, plan.sites[0], original, original.spec_for([(4, 24)], (4, 16)), [(4, 24)], "float32")


def test_a_tile_turned_for_one_block_of_rows_only_is_found(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 8, 16, 16)

    def spoil(made: Model) -> Model:
        turned = Node("Transpose", ["w/tile_0_0"], ["turned"], attributes={"perm": (1, 0)})

        def second_rows(node: Node) -> Node:
            if node.metadata.get("tile_hw.mnk") != "1,0,0":
                return node
            return t.node_like(node, inputs=[node.inputs[0], "turned"])

        changed = t.with_nodes(made, second_rows)
        return t.with_graph(changed, nodes=(turned, *changed.graph.nodes))

    evidence = t.prove(source, UNROLLED, spoil)
    assert "tile of product (1, 0, 0) is not its slice" in evidence.sites[0].structure
    assert "it is transposed" in evidence.sites[0].structure


def test_a_fault_beside_the_sites_is_found_even_where_they_run_in_another_form(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("Gemm", ["x", "w"], ["h"], name="fc"),
        onnx.helper.make_node("Relu", ["h"], ["y"], name="act"),
    ]
    source = t.model(tmp_path / "m.onnx", nodes, {"x": (4, 64)}, {"w": t.weight(64, 96)})

    def leaky(node: Node) -> Node:
        return t.node_like(node, op="Elu", name="act") if node.op == "Relu" else node

    evidence = t.prove(source, TileSpec(tile=(2, 2, 2), form="unrolled"), lambda m: t.with_nodes(m, leaky))
    assert evidence.sites[0].passed
    assert "in scan form" in evidence.outputs[0].reason or not evidence.outputs[0].passed
    assert not evidence.passed


def test_a_planned_product_whose_weight_is_computed_in_the_original_is_no_proof(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 4, 24, 16)
    after, plan = t.tiled(source, UNROLLED)
    nodes = [
        onnx.helper.make_node("Relu", ["w0"], ["w"]),
        onnx.helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="fc"),
    ]
    weights = {"w0": np.abs(t.weight(24, 16, seed=1)), "b": t.weight(16, seed=2)}
    other = t.model(tmp_path / "other.onnx", nodes, {"x": (4, 24)}, weights)
    evidence = verify(other, after, plan=plan)
    assert evidence.verdict_kind == "different"
    assert evidence.sites == (), "there is no 'w' in it"


def moved(made: Model, before: str, order: np.ndarray) -> Model:
    """What node `before` reads comes in another order."""
    tensor = build_tensor("order", order.astype(np.int64))

    def changed(node: Node) -> Node:
        return t.node_like(node, inputs=["moved", *node.inputs[1:]]) if node.name == before else node

    (found,) = (n for n in made.graph.nodes if n.name == before)
    nodes = [*t.with_nodes(made, changed).graph.nodes]
    at = next(i for i, n in enumerate(nodes) if n.name == before)
    nodes.insert(at, Node("Gather", [found.inputs[0], "order"], ["moved"], name="mover"))
    return t.with_graph(made, nodes=tuple(nodes), initializers={**made.graph.initializers, "order": tensor})


def rows_bias(made: Model) -> Model:
    """A bias for every row, of which one is not like the others."""
    bias = np.repeat(made.graph.initializers["b"].array()[None], 256, 0)
    bias[171] += 1
    tensors = {**made.graph.initializers, "b": build_tensor("b", bias)}
    return t.with_graph(made, initializers=tensors)


def tile_by_rows(made: Model, other: int) -> Model:
    """The first tile of the weight is handed in block by block of rows; block `other` has another one."""
    tiles = np.repeat(made.graph.initializers["w/tile_0_0"].array()[None], 64, 0)
    if other >= 0:
        tiles[other, 3, 5] += 1
    tensors = {**made.graph.initializers, "tiles": build_tensor("tiles", tiles)}

    def changed(node: Node) -> Node:
        if node.op != "Scan":
            return node
        body = node.attributes["body"]
        inside = [
            t.node_like(n, inputs=[{"w/tile_0_0": "own"}.get(i, i) for i in n.inputs]) for n in body.nodes
        ]
        handed = replace(body.inputs[0], name="own", shape=(8, 8))
        grown = replace(body, nodes=tuple(inside), inputs=(*body.inputs, handed))
        attributes = {**node.attributes, "body": grown, "num_scan_inputs": 2}
        return t.node_like(node, inputs=[*node.inputs, "tiles"], attributes=attributes)

    return t.with_graph(t.with_nodes(made, changed), initializers=tensors)


def one_pair(length: int, a: int, b: int) -> np.ndarray:
    order = np.arange(length)
    order[[a, b]] = b, a
    return order


def first_rows_twice(made: Model, pair: tuple[int, int]) -> Model:
    """The first tile of each block of rows is carried in two states, one for the left and one for the right
    half of the columns. Both begin as the same rows; of the left one two later blocks are exchanged.
    """
    later = np.minimum(np.arange(64) + 1, 63)
    other = later.copy()
    other[[*pair]] = other[[*pair[::-1]]]
    arrays = {"zero": 0, "from": [0], "to": [8], "axis": [2], "later": later, "other": other}
    tensors = {name: build_tensor(name, np.array(a, np.int64)) for name, a in arrays.items()}

    def carried(node: Node) -> Node:
        _, column, depth = node.name.rsplit("_", 2) if "/p_" in node.name else ("", "0", "")
        half = "left" if int(column) < 2 else "right"
        return t.node_like(node, inputs=[half, *node.inputs[1:]]) if depth == "0" else node

    nodes: list[Node] = []
    for node in made.graph.nodes:
        if node.op != "Scan":
            nodes.append(node)
            continue
        body, blocks = node.attributes["body"], node.inputs[0]
        nodes.append(Node("Slice", [blocks, "from", "to", "axis"], ["tiles"]))
        cuts = {"begin": "zero", "lefts": "other", "rights": "later"}
        nodes += [Node("Gather", ["tiles", index], [made_of]) for made_of, index in cuts.items()]
        value = {n: replace(body.inputs[0], name=n, shape=(4, 8)) for n in ("left", "right", "l", "r")}
        grown = replace(
            body,
            nodes=(
                *map(carried, body.nodes),
                Node("Identity", ["l"], ["next_left"]),
                Node("Identity", ["r"], ["next_right"]),
            ),
            inputs=(value["left"], value["right"], *body.inputs, value["l"], value["r"]),
            outputs=(
                replace(value["l"], name="next_left"),
                replace(value["r"], name="next_right"),
                *body.outputs,
            ),
        )
        inputs, outputs = ["begin", "begin", blocks, "lefts", "rights"], ["end_l", "end_r", *node.outputs]
        attributes = {**node.attributes, "body": grown, "num_scan_inputs": 3}
        nodes.append(t.node_like(node, inputs=inputs, outputs=outputs, attributes=attributes))
    return t.with_graph(made, nodes=tuple(nodes), initializers={**made.graph.initializers, **tensors})


LATE: dict[str, tuple[Spoil, str]] = {
    "two rows exchanged": (lambda m: moved(m, "fc/x_blocks", one_pair(256, 170, 171)), "not a block of the"),
    "two blocks exchanged": (lambda m: moved(m, "fc/rows", one_pair(64, 40, 41)), "reads rows from 164"),
    "two rows of the result": (
        lambda m: moved(m, "fc/biased", one_pair(256, 170, 171)),
        "not where they bel",
    ),
    "another bias for one row": (rows_bias, "the bias is not the original's at (168"),
    "another tile for half the columns": (
        lambda m: first_rows_twice(m, (40, 41)),
        "product (41, 0, 0) reads rows from 168 of the input instead of from 164",
    ),
    "another tile for one block": (lambda m: tile_by_rows(m, 42), "tile of product (42, 0, 0) is not its"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", LATE)
def test_a_fault_in_one_block_of_rows_of_many_alike_is_found(fault: str, tmp_path: Path) -> None:
    spoil, words = LATE[fault]
    source = t.linear(tmp_path / "m.onnx", 256, 24, 32)
    evidence = t.prove(source, TileSpec(tile=(4, 8, 8), form="scan"), spoil)
    assert not evidence.passed
    assert words in evidence.sites[0].structure


@pytest.mark.slow
def test_blocks_of_rows_that_are_handed_the_same_tile_each_are_proved(tmp_path: Path) -> None:
    source = t.linear(tmp_path / "m.onnx", 256, 24, 32)
    spec = TileSpec(tile=(4, 8, 8), form="scan")
    assert t.prove(source, spec, lambda made: tile_by_rows(made, -1)).passed
    assert t.prove(source, spec, lambda made: first_rows_twice(made, (40, 40))).passed
    assert t.prove(source, spec).sites[0].tiles == 64 * 3 * 4
