"""Constants and shape arithmetic in the tree: one row a group, until somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from explorer import Session
from explorer.facts.graph.edges import RowEdges
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rail import Rail
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, flat

CONSTANTS = RowEdges((0, 2), (2, 6), tuple(range(8)), (2, 4, 5, 6, 7), (1, 3, 5))


@pytest.fixture
def grouped(tmp_path: Path) -> Iterator[Session]:
    """A chain whose second group adds a constant of its own and reshapes by what a group in it works out."""
    node = helper.make_node
    value = helper.make_tensor("v", TensorProto.FLOAT, [1], [1.0])
    nodes = [
        node("Identity", ["w"], ["w2"], name="w2"),
        node("Relu", ["x"], ["a"], name="/one/Relu"),
        node("Constant", [], ["c"], name="/two/Constant", value=value),
        node("Add", ["a", "c"], ["b"], name="/two/Add"),
        node("Shape", ["b"], ["s"], name="/two/size/Shape"),
        node("Cast", ["s"], ["s2"], name="/two/size/Cast", to=TensorProto.INT64),
        node("Reshape", ["b", "s2"], ["r"], name="/two/Reshape"),
        node("Mul", ["r", "w2"], ["y"], name="/Mul"),
    ]
    floats = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [floats("x", TensorProto.FLOAT, [1, 8])],
        [floats("y", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor("w", TensorProto.FLOAT, [8], [1.0] * 8)],
    )
    path = tmp_path / "grouped.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    with Session(str(path)) as session:
        yield session


def _tree(session: Session) -> TreeModel:
    model = TreeModel(session.analysis().layers)
    model.set_constants(session.edges().constants)
    return model


def _named(model: TreeModel) -> list[str]:
    return [
        f"+{model.count_layers(row)}"
        if model.is_constants(row)
        else model.layers[model.find_first_layer(row)].name
        for row in model.rows
    ]


def _opened(model: TreeModel) -> None:
    """Open every row but those of constants."""
    at = 0
    while at < len(model.rows):
        row = model.rows[at]
        if model.is_expandable(row) and not model.is_open(row) and not model.is_constants(row):
            model.toggle(at)
        at += 1


def test_the_constants_of_a_group_are_a_row_and_a_group_of_nothing_else_goes_with_them(
    grouped: Session,
) -> None:
    model = _tree(grouped)
    _opened(model)
    assert _named(model) == ["+1", "one", "two", "+3", "Add", "Reshape", "Mul"]
    model.toggle(3)
    assert _named(model)[3:7] == ["+3", "Constant", "size", "Shape"]
    model.show_constants(True)
    assert "+3" not in _named(model)
    assert len(model.rows) == model.count


def test_a_filter_and_a_flat_list_keep_constants_back_until_they_are_asked_for(grouped: Session) -> None:
    model = _tree(grouped)
    inside = [layer.id for layer in model.layers if layer.path.startswith("two")]
    constant = {row for row in grouped.edges().constants if row in inside}
    model.set_filter(inside)
    assert model.matches == set(inside) - constant
    assert model.hidden_constants == len(constant) > 0
    assert model.match_count == len(inside)
    model.show_constants(True)
    assert model.matches == set(inside)
    assert model.hidden_constants == 0
    model.show_constants(False)
    model.set_filter(constant)
    assert model.matches == constant, "nothing else was found"
    assert model.hidden_constants == 0
    model.add_matches(set(inside) - constant)
    assert model.matches == set(inside) - constant, "and then something was"
    model.set_filter(None)
    model.set_flat(True)
    leaves = [layer.id for layer in model.layers if not layer.group]
    assert set(model.rows) == set(leaves) - set(grouped.edges().constants)
    assert model.hidden_constants == len(leaves) - len(model.rows)


def test_what_the_tree_folds_is_what_the_graph_leaves_out(grouped: Session, sample: object) -> None:
    with Session(str(sample("mobilenet_small"))) as other:  # type: ignore[operator]
        for session in (grouped, other):
            model = _tree(session)
            _opened(model)
            folded = sum(model.count_layers(row) for row in model.rows if model.is_constants(row))
            assert folded == session.graph().folded > 0


def test_every_constant_is_reached_by_its_layer(grouped: Session) -> None:
    for layer in grouped.analysis().layers:
        model = _tree(grouped)
        model.fold_all()
        at = model.reveal(layer.id)
        assert model.rows[at] == layer.id


def test_a_tree_of_very_many_rows_folds_in_each_of_its_ranges() -> None:
    model = TreeModel(flat(10_000).layers)
    model.set_constants([at for at in range(10_000) if at % 5 < 3])
    assert all(model.is_range(row) and not model.is_constants(row) for row in model.rows)
    model.toggle(0)
    inside = [row for row in model.rows if model.depth(row) == 1]
    assert len(inside) == 401
    assert model.is_constants(inside[0])
    assert model.count_layers(inside[0]) == 600
    at = model.reveal(7_001)
    assert model.rows[at] == 7_001


def test_the_rail_joins_what_is_left() -> None:
    model, rail = TreeModel(flat(8).layers), Rail(CONSTANTS)
    model.set_constants(CONSTANTS.constants)
    lines = {model.find_first_layer(row): rail.line(model, at, 0) for at, row in enumerate(model.rows)}
    # 2 reads what 0 makes, 6 what 2 makes beside 4; 4 reads a constant only
    assert [lines[at] for at in (0, 1, 2, 4, 6, 7)] == ["╷ ", "│ ", "╰╮", " │", "╭╯", "╵ "]


async def test_a_key_opens_them_and_another_shows_them_all() -> None:
    engine = ScriptedEngine(flat(8))
    engine._edges = lambda: CONSTANTS  # type: ignore[method-assign]
    async with screen(engine) as hands:
        await hands.press("R")
        names = [line.split()[0] for line in hands.tree()]
        assert names == ["node_0", "▸", "node_2", "node_4", "node_6", "node_7"]
        await hands.press("down")
        assert "+3 constants" in hands.tree()[1]
        assert "3 constants and shape arithmetic" in " ".join(hands.text("#layer").split())
        await hands.press("enter", "down", "down")
        assert hands.at() == "node_3"
        await hands.press("minus")
        assert "▸ +3 constants" in hands.tree()[1]
        await hands.press("slash", *"node_5", "enter")
        assert hands.at() == "node_5"
        await hands.press("escape")
        assert hands.at() == "node_5", "a filter that is cleared leaves the cursor where it was"
        await hands.press("full_stop")
        assert [line.split()[0] for line in hands.tree()[:8]] == [f"node_{at}" for at in range(8)]
        assert hands.at() == "node_5"
        await hands.press("full_stop")
        assert len([line for line in hands.tree() if "constant" in line]) == 1


async def test_a_model_that_begins_with_constants_is_shown_from_its_first_layer() -> None:
    engine = ScriptedEngine(flat(8))
    engine._edges = lambda: RowEdges((), (), (), (), (0, 1))  # type: ignore[method-assign]
    async with screen(engine) as hands:
        assert "+2 constants" in hands.tree()[0]
        assert hands.at() == "node_2"
        await hands.press("up")
        assert "2 constants and shape arithmetic" in " ".join(hands.text("#layer").split())
