"""Of a large matmul the dense rows go through some of the blocks that its Scan takes: the same is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from onnx import helper

from explorer.engine.graph.model import Model, Node, build_int64_tensor, build_tensor
from explorer.engine.proof.sites import row_blocks, run
from explorer.engine.runtime.input_files import InputArrays
from explorer.facts import SiteEvidence, TileSpec
from tests.engine.proof import tiled as t

ROWS = TileSpec(tile=(16, 8, 8), form="scan")
Spoil = Callable[[Model], Model]


@pytest.fixture
def shortened(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Small matmuls are treated as large ones; the list says of each whether a part of its rows did."""
    said: list[bool] = []

    def told(*args: Any) -> row_blocks.PartialOutput | None:
        found = row_blocks.run_sampled_blocks(*args)
        said.append(found is not None)
        return found

    monkeypatch.setattr(row_blocks, "_MAX_FULL_MACS", 0)
    monkeypatch.setattr(run, "run_sampled_blocks", told)
    return said


def dilated(path: Path) -> Model:
    """A 3x3 kernel so far apart that a tap at its corner is met by 16 of 400 positions."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="fc", dilations=[16, 16], pads=[16] * 4)
    return t.model(path, [node], {"x": (1, 8, 20, 20)}, {"w": t.weight(8, 8, 3, 3)})


def shown_zeros(source: Model, spec: TileSpec, spoil: Spoil | None = None) -> SiteEvidence:
    """The evidence of a proof on an input that is zero everywhere: its own rows show nothing."""
    shape = source.graph.inputs[0].shape
    zeros = InputArrays("zeros.npy", {"": np.zeros(shape, np.float32)})
    return t.prove(source, spec, spoil, arrays=zeros).sites[0]


@pytest.mark.parametrize("edges", t.EDGES)
@pytest.mark.parametrize("M", [400, 405])
def test_some_blocks_are_enough(M: int, edges: Any, tmp_path: Path, shortened: list[bool]) -> None:
    proved = t.prove(t.linear(tmp_path / "m.onnx", M, 24, 16), TileSpec((16, 8, 8), form="scan", edges=edges))
    assert proved.passed
    assert shortened == [True]
    assert M < proved.sites[0].rows < M + 60


@pytest.mark.sampled(2)
@pytest.mark.parametrize("row", [0, 7, 23])
@pytest.mark.parametrize("M", [400, 405])
def test_a_weight_that_only_dense_rows_meet_is_found_in_some_blocks(
    row: int, M: int, tmp_path: Path, shortened: list[bool]
) -> None:
    source = t.linear(tmp_path / "m.onnx", M, 24, 16)

    def spoil(made: Model) -> Model:
        (name,) = (n for n in made.graph.initializers if n.startswith(f"w/tile_{row // 8}_1"))

        def off(array: np.ndarray) -> np.ndarray:
            array[row % 8, 3] += 0.01
            return array

        return t.with_array(made, name, off)

    sound, wrong = shown_zeros(source, ROWS), shown_zeros(source, ROWS, spoil)
    assert sound.passed
    assert shortened == [True, True]
    assert wrong.bound_ratio is not None
    assert wrong.bound_ratio > wrong.limit


@pytest.mark.sampled(3)
@pytest.mark.parametrize("tap", range(9))
def test_every_tap_of_a_kernel_is_met_whichever_blocks_are_run(
    tap: int, tmp_path: Path, shortened: list[bool]
) -> None:
    source = dilated(tmp_path / "m.onnx")

    def spoil(made: Model) -> Model:
        (name,) = (n for n, each in made.graph.initializers.items() if n.startswith(f"w/tile_{tap}_"))

        def off(array: np.ndarray) -> np.ndarray:
            array[2, 3] += 0.01
            return array

        return t.with_array(made, name, off)

    wrong = shown_zeros(source, ROWS, spoil)
    assert wrong.bound_ratio is not None
    assert wrong.bound_ratio > wrong.limit


@pytest.mark.parametrize("place", [0, 5, 15])
def test_a_body_that_is_wrong_in_one_place_of_a_tile_is_found(
    place: int, tmp_path: Path, shortened: list[bool]
) -> None:
    """Whichever row of a block it is: every one is compared in one of the blocks."""
    keep = np.ones((16, 1), np.float32)
    keep[place] = 1.001
    factor = Node("Constant", [], ["keep"], attributes={"value": build_tensor("keep", keep)})

    def scaled(function: Any) -> Any:
        nodes = Node("MatMul", ["A", "B"], ["P"]), factor, Node("Mul", ["P", "keep"], ["C"])
        return replace(function, nodes=nodes, record=None)

    source = t.linear(tmp_path / "m.onnx", 400, 24, 16, bias=False)
    wrong = shown_zeros(source, ROWS, lambda made: t.with_body(made, "2DMM", scaled))
    assert shortened == [True]
    assert wrong.bound_ratio is not None
    assert wrong.bound_ratio > wrong.limit


def test_blocks_in_another_order_are_run_whole(tmp_path: Path, shortened: list[bool]) -> None:
    """What stands behind the Scan may bring the rows back to where they belong: that is no fault."""

    def turned(made: Model) -> Model:
        order = build_int64_tensor("order", range(24, -1, -1))
        nodes: list[Node] = []
        for node in made.graph.nodes:
            if node.op != "Scan":
                nodes.append(node)
                continue
            nodes += [
                Node("Gather", [node.inputs[0], "order"], ["turned"]),
                t.node_like(node, inputs=["turned"], outputs=["rows"]),
                Node("Gather", ["rows", "order"], [node.outputs[0]]),
            ]
        return t.with_graph(
            made, nodes=tuple(nodes), initializers={**made.graph.initializers, "order": order}
        )

    proved = t.prove(t.linear(tmp_path / "m.onnx", 400, 24, 16), ROWS, turned)
    assert proved.passed, proved.verdict
    assert shortened == [False]


def off_by_one(made: Model) -> Model:
    """The convolution takes other places of the image at some positions in the middle."""

    def moved(node: Node) -> Node:
        if node.op != "Constant" or not node.outputs[0].endswith("places_0"):
            return node
        tensor = node.attributes["value"]
        places = np.array(tensor.array())
        places.reshape(-1)[30] += 1
        return t.node_like(node, attributes={"value": build_tensor(tensor.name, places)})

    return t.with_nodes(made, moved)


def blocks_exchanged(made: Model) -> Model:
    """In the body the first two blocks of the activation change places."""

    def turned(body: Any) -> Any:
        split = next(n for n in body.nodes if n.op.startswith("Split2D"))
        first, second, *others = split.outputs
        nodes = [t.node_like(n, outputs=[second, first, *others]) if n is split else n for n in body.nodes]
        return replace(body, nodes=tuple(nodes))

    return t.with_scan(made, turned)


def block_twice(made: Model) -> Model:
    """In the body one block of the activation is taken for another."""

    def taken(body: Any) -> Any:
        split = next(n for n in body.nodes if n.op.startswith("Split2D"))
        first, second, *_ = split.outputs
        nodes = [
            t.node_like(n, inputs=[first, *n.inputs[1:]]) if n.inputs[:1] == (second,) else n
            for n in body.nodes
        ]
        return replace(body, nodes=tuple(nodes))

    return t.with_scan(made, taken)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("spoil", [off_by_one, blocks_exchanged, block_twice])
def test_a_wrong_block_of_rows_is_found_by_the_walk(spoil: Spoil, tmp_path: Path) -> None:
    """Rows are compared whole where their blocks are cut from them, and once for all columns."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], name="fc", pads=[1] * 4)
    source = t.model(tmp_path / "m.onnx", [node], {"x": (1, 8, 20, 20)}, {"w": t.weight(24, 8, 3, 3)})
    assert t.prove(source, ROWS).passed
    wrong = t.prove(source, ROWS, spoil).sites[0]
    assert "product " in wrong.structure
    assert wrong.bound_ratio is not None
    assert wrong.bound_ratio > wrong.limit
