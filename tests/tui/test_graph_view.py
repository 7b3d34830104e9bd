"""The graph view promises: boxes and edges as the engine laid them out, and arrows that walk along them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

import explorer.tui
from explorer.base.errors import Misuse
from explorer.base.families import FAMILIES
from explorer.engine.costs.value_flow import ValueFlow
from explorer.engine.graph_view import view
from explorer.engine.graph_view.rows import TreeRows
from explorer.facts import Layer, TensorInfo
from explorer.facts.graph.drawing import GraphDrawing
from explorer.tui.dialogs.dialogs import MessageDialog
from explorer.tui.dialogs.graph_view import GRAPH_KEYS, GraphView
from explorer.tui.pages.graph import GraphCanvas, neighbour
from explorer.tui.text.lines import ROLES, line_text, line_width
from explorer.tui.text.theme import ALL_THEMES
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LineView
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine


def drawn(*edges: str) -> GraphDrawing:
    """A drawing of operators that are called by a letter: 'ab' is an edge from a to b; x is the input."""
    names = sorted({name for edge in edges for name in edge} - {"x"})
    rows = [Layer(at, None, name, name, "Relu", 0, False) for at, name in enumerate(names)]
    flow, info = ValueFlow(), TensorInfo("", "float32", (2, 4))
    for name in names:
        for source in (edge[0] for edge in edges if edge[1] == name):
            flow.take(names.index(name), source, lambda: info, "input")
        flow.make(names.index(name), name, lambda: info)
    return view.draw(TreeRows(rows, flow), "m")


def cells(drawing: GraphDrawing) -> list[str]:
    """All of it as text, without a chosen box."""
    lines = GraphCanvas(drawing).lines(None, 0, 0, drawing.width, drawing.height)
    return [line_text(line).rstrip() for line in lines]


DIAMOND = """\
                  ┌A─────────────────┐
                  │        a         │
                  │       Relu       │
                  └──────────────────┘
                            ╷ 2×4
          ┌─────────────────┴────┬────────────┐
          ▼                      ▼            │
┌A─────────────────┐   ┌A─────────────────┐   │
│        b         │   │        c         │   │
│       Relu       │   │       Relu       │   │
└──────────────────┘   └──────────────────┘   │
          ╷ 2×4                  ╷ 2×4        │
          └─────────────────┬────┴────────────┘
                            ▼
                  ┌A─────────────────┐
                  │        d         │
                  │       Relu       │
                  └──────────────────┘"""


def test_joins_and_skips_are_drawn_as_lines_with_corners() -> None:
    assert "\n".join(cells(drawn("xa", "ab", "ac", "bd", "cd", "ad"))[7:]) == DIAMOND


def test_wide_and_combining_characters_take_the_cells_that_they_have() -> None:
    drawing = drawn("xa", "ab")
    names = ("畳み込み層の名前がとても長い場合", "e\u0301tape")
    named = iter(names)
    boxes = tuple(replace(box, name=next(named)) if box.role == "layer" else box for box in drawing.boxes)
    canvas = GraphCanvas(replace(drawing, boxes=boxes))
    for left in range(8):
        lines = canvas.lines(1, left, 0, drawing.width - left, drawing.height)
        assert {line_width(line) for line in lines} == {drawing.width - left}
    assert "e\u0301tape" in "\n".join(map(line_text, canvas.lines(None, 0, 0, drawing.width, drawing.height)))


def test_arrows_walk_along_edges_the_straightest_first() -> None:
    drawing = drawn("xa", "ab", "ac", "bd", "cd", "de")
    names = [box.name for box in drawing.boxes]
    way = {
        name: {key: neighbour(drawing, at, key) for key in ("up", "down", "left", "right")}
        for at, name in enumerate(names)
    }
    found = {
        name: {key: None if at is None else names[at] for key, at in keys.items()}
        for name, keys in way.items()
    }
    assert found["a"]["down"] in ("b", "c")
    assert found["b"] == {"up": "a", "down": "d", "left": None, "right": "c"}
    assert found["c"]["left"] == "b"
    assert found["e"] == {"up": "d", "down": None, "left": None, "right": None}


def pane(hands: Hands) -> str:
    found = hands.pilot.app.screen.query_one("#graph", LineView)
    return "\n".join(line_text(line) for line in found.lines)


def chosen(hands: Hands) -> str:
    shown = hands.pilot.app.screen
    assert isinstance(shown, GraphView)
    return shown.drawing.boxes[shown.chosen].name


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(80, 24), (60, 15), (140, 40), (200, 50)])
async def test_g_draws_the_chosen_group_and_enter_goes_to_a_layer_of_it(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        await hands.press("G")
        assert chosen(hands) == "0"
        assert "Conv" in pane(hands)
        await hands.press("down")
        first = chosen(hands)
        assert first != "0"
        await hands.press("down", "down", "up")
        assert all(
            line_width(line) <= size[0] for line in hands.pilot.app.screen.query_one("#graph", LineView).lines
        )
        path = hands.pilot.app.screen.drawing.boxes[hands.pilot.app.screen.chosen].path  # type: ignore[attr-defined]
        await hands.press("enter")
        assert hands.pilot.app.screen is hands.main
        assert hands.main.query_one(LayerTree).current_layer.path == path  # type: ignore[union-attr]


async def test_plus_goes_into_a_group_minus_out_of_it_and_escape_back() -> None:
    async with screen(size=(100, 30)) as hands:
        await hands.press("G", "minus")
        assert {"features", "classifier"} <= {box.name for box in hands.pilot.app.screen.drawing.boxes}  # type: ignore[attr-defined]
        assert chosen(hands) == "features"
        await hands.press("plus")
        assert chosen(hands) == "0"
        await hands.press("minus", "right", "space", "minus")
        assert chosen(hands) == "classifier"
        before = chosen(hands)
        await hands.press("minus")
        assert chosen(hands) == before, "there is nothing around the whole model"
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main


async def test_no_key_of_the_view_fails_wherever_it_is_pressed() -> None:
    async with screen(size=(60, 15)) as hands:
        await hands.press("G")
        for key in GRAPH_KEYS:
            if "enter" not in key.keys:
                for spelled in key.keys:
                    await hands.press(spelled)
        assert isinstance(hands.pilot.app.screen, GraphView)


async def test_a_model_of_which_nobody_knows_the_edges_says_so() -> None:
    engine = ScriptedEngine(errors={"graph": Misuse("the order of execution is not known")})
    async with screen(engine) as hands:
        await hands.press("G")
        assert isinstance(hands.pilot.app.screen, MessageDialog)


def test_every_family_has_its_colour_on_the_screen() -> None:
    style = (Path(explorer.tui.__file__).parent / "app.tcss").read_text()
    assert dict(re.findall(r"\.line--(\w+) \{ color: \$family-(\w+); \}", style)) == {
        name: name for name in FAMILIES
    }
    for theme, field in zip(ALL_THEMES, ("color", "light", "few", "few_light"), strict=True):
        assert {f"family-{one.name}": getattr(one, field) for one in FAMILIES.values()}.items() <= (
            theme.variables.items()
        )
    assert set(FAMILIES) <= set(ROLES)
