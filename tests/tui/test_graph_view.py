"""The graph view promises: boxes and edges as the engine laid them out, and arrows that walk along them."""

from __future__ import annotations

import re
from itertools import pairwise
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
from explorer.facts.graph.module_code import ModuleCode
from explorer.features.graph.compact_page import RailPage, draw_compact
from explorer.features.graph.graph_files import write_dot
from explorer.features.graph.graph_page import GraphCanvas, View, draw_overview, find_neighbor
from explorer.features.graph.graph_screen import GRAPH_KEYS, GraphView
from explorer.report.flame_layout import FlameLabel, IcicleBox, shorten_labels
from explorer.tui.dialogs.dialogs import MessageDialog
from explorer.tui.text.lines import ROLES, line_text, line_width
from explorer.tui.text.theme import ALL_THEMES
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine


def rows_of(*edges: str) -> tuple[list[Layer], ValueFlow]:
    """Operators that are called by a letter: 'ab' is an edge from a to b; x is the input."""
    names = sorted({name for edge in edges for name in edge} - {"x"})
    rows = [Layer(at, None, name, name, "Relu", 0, False) for at, name in enumerate(names)]
    flow, info = ValueFlow(), TensorInfo("", "float32", (2, 4))
    for name in names:
        for source in (edge[0] for edge in edges if edge[1] == name):
            flow.add_reader(names.index(name), source, lambda: info, "input")
        flow.add_producer(names.index(name), name, lambda: info)
    return rows, flow


def drawn(*edges: str) -> GraphDrawing:
    """A drawing of them."""
    return view.draw(TreeRows(*rows_of(*edges)), "m")


def with_edges(*edges: str) -> ScriptedEngine:
    """An engine that has opened them."""
    engine = ScriptedEngine()
    rows, flow = rows_of(*edges)
    engine.model = replace(engine.model, layers=tuple(rows))
    engine.flow = flow
    return engine


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
        name: {key: find_neighbor(drawing, at, key) for key in ("up", "down", "left", "right")}
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


def shown(hands: Hands) -> GraphView:
    found = hands.pilot.app.screen
    assert isinstance(found, GraphView)
    return found


def chosen(hands: Hands) -> str:
    return shown(hands).drawing.boxes[shown(hands).chosen].name


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


def title(hands: Hands) -> str:
    return "\n".join(map(line_text, shown(hands).query_one(TitleBar).lines))


def status(hands: Hands) -> str:
    return "\n".join(map(line_text, shown(hands).query_one("#graph-box", Status).lines))


def boxes(hands: Hands) -> list[str]:
    """Boxes of layers and groups."""
    return [box.name for box in shown(hands).drawing.boxes if box.layers]


async def test_plus_unfolds_a_box_in_its_place_and_minus_folds_it() -> None:
    async with screen(size=(100, 30)) as hands:
        await hands.press("G", "0")
        assert boxes(hands) == ["features", "classifier"]
        assert chosen(hands) == "features"
        await hands.press("plus")
        assert boxes(hands)[-1] == "classifier"
        assert chosen(hands) == boxes(hands)[0] == "features.0"
        opened = boxes(hands)
        await hands.press("down", "plus")
        assert "this box is one operator" in status(hands)
        assert boxes(hands) == opened
        await hands.press("minus")
        assert boxes(hands) == ["features", "classifier"]
        assert chosen(hands) == "features"
        await hands.press("backspace")
        assert boxes(hands) == opened, "the drawing before"


@pytest.mark.slow
async def test_i_goes_into_a_group_o_out_of_it_and_escape_back() -> None:
    async with screen(size=(100, 30)) as hands:
        await hands.press("G", "o")
        assert {"features", "classifier"} <= {*boxes(hands)}
        assert chosen(hands) == "features"
        await hands.press("i")
        assert chosen(hands) == "0"
        await hands.press("minus", "right", "i", "minus")
        assert chosen(hands) == "classifier"
        await hands.press("minus")
        assert chosen(hands) == "classifier", "there is nothing around the whole model"
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main


@pytest.mark.slow
async def test_f_lights_the_path_between_two_marks_and_arrows_stay_on_it() -> None:
    async with screen(with_edges("xa", "ab", "ac", "bd", "cd", "be", "de"), size=(100, 40)) as hands:
        await hands.press("G", "f")
        assert "m marks a layer" in status(hands)
        await hands.press("slash", "c", "enter", "m", "end", "f")
        view = shown(hands)
        assert chosen(hands) == "c"
        assert "1 path from c to e, 1 layer on it" in title(hands)
        assert {box.name for box in view.drawing.boxes if box.lit} == {"c", "d", "e"}
        walked = []
        for key in ("down", "down", "down", "up", "up", "up"):
            await hands.press(key)
            walked.append(chosen(hands))
        assert walked == ["d", "e", "e", "d", "c", "c"]
        assert "┏" in pane(hands)
        # marked the other way round it is the same path, and f takes the light away
        await hands.press("f")
        assert shown(hands).drawing.route is None


@pytest.mark.slow
async def test_two_layers_of_which_none_feeds_the_other_have_no_path() -> None:
    async with screen(with_edges("xa", "ab", "ac"), size=(100, 40)) as hands:
        await hands.press("G", "slash", "b", "enter", "m", "slash", "c", "enter", "m", "f")
        assert "no path leads from" in status(hands)
        assert shown(hands).drawing.route is None


@pytest.mark.slow
async def test_digits_draw_what_is_around_the_chosen_box() -> None:
    async with screen(with_edges("xa", "ab", "bc", "cd", "de"), size=(100, 40)) as hands:
        await hands.press("G", "slash", "c", "enter", "1")
        assert boxes(hands) == ["b", "c", "d"]
        assert "1 step around c" in title(hands)
        await hands.press("2")
        assert boxes(hands) == ["a", "b", "c", "d", "e"]
        assert chosen(hands) == "c"
        await hands.press("0")
        assert "the whole model" in title(hands)


@pytest.mark.slow
async def test_what_was_found_is_unfolded_and_n_goes_to_the_next() -> None:
    async with screen(size=(100, 30)) as hands:
        await hands.press("G", "0")
        for key in ("slash", *"classifier.4", "enter"):
            await hands.press(key)
        assert chosen(hands) == "classifier.4"
        assert "features" in boxes(hands), "what else there is stays folded"
        await hands.press("n")
        assert chosen(hands) == "classifier.4", "only one was found"


async def test_the_page_about_a_box_tells_its_attributes_and_the_map_where_it_is() -> None:
    async with screen(size=(140, 30)) as hands:
        await hands.press("G")
        about = hands.pilot.app.screen.query_one("#graph-about", LineView)
        assert about.display
        assert "kernel_shape" in "\n".join(map(line_text, about.lines))
        assert "◆" in pane(hands)
        assert "╭──" in pane(hands)
        await hands.press("v", "a")
        assert not about.display
        assert "◆" not in pane(hands)


@pytest.mark.parametrize("size", [(60, 15), (140, 40)])
def test_the_map_never_takes_more_than_its_pane_nor_hides_the_chosen_box(size: tuple[int, int]) -> None:
    drawing = drawn("xa", *(a + b for a, b in pairwise("abcdefghijklmnopqrst")), "ag", "at", "bu", "cu", "dv")
    canvas = GraphCanvas(drawing)
    for at, box in enumerate(drawing.boxes):
        left, top = max(0, box.x - 3), max(0, box.y - 3)
        lines = canvas.lines(at, left, top, *size)
        mapped = draw_overview(lines, drawing, at, View(left, top, *size))
        assert {line_width(line) for line in mapped} == {size[0]}
        assert any(piece == "◆" or "◆" in piece for line in mapped for piece, _ in line)
        inside = [
            line_text(line)[box.x - left :][: box.width] for line in mapped[box.y - top :][: box.height]
        ]
        assert inside == [
            line_text(line)[box.x - left :][: box.width] for line in lines[box.y - top :][: box.height]
        ]


@pytest.mark.slow
async def test_no_key_of_the_view_fails_wherever_it_is_pressed() -> None:
    async with screen(size=(60, 15)) as hands:
        await hands.press("G")
        for key in GRAPH_KEYS:
            if "enter" not in key.keys:
                for spelled in key.keys:
                    await hands.press(spelled)
                    if not isinstance(hands.pilot.app.screen, GraphView):
                        await hands.press("escape")
        assert isinstance(hands.pilot.app.screen, GraphView)


COMPACT = """\
  ├ A a  Relu   2×4
╭─┼ A b  Relu   2×4
│ ├ A c  Relu   2×4
╰▸┼ A d  Relu   2×4
  └ A e  Relu"""


def compact(*edges: str) -> str:
    """The compact form of a drawing, without its input."""
    rows = "".join(draw_compact(drawn(*edges))).splitlines()
    assert "input" in rows[2]
    return "\n".join(row for row in rows if " A" in row)


def test_the_compact_form_has_a_line_for_each_box_and_rails_for_edges_that_skip_lines() -> None:
    assert compact("xa", "ab", "bc", "cd", "bd", "de") == COMPACT


def test_two_rails_that_share_a_line_stand_side_by_side_and_a_reader_of_both_has_one_arrow() -> None:
    page = RailPage(drawn("xa", "ab", "bc", "cd", "ae", "bd", "de", "be"))
    lanes = {page.drawing.boxes[rail.source].name: rail.lane for rail in page.rails}
    assert len(set(lanes.values())) == len(lanes) == 2
    (last,) = (at for at, box in enumerate(page.drawing.boxes) if box.name == "e")
    line = line_text(page.lines(None, 0, 80, 99)[last])
    assert line.count("▸") == 1
    assert line.count("╰") == 2
    narrow = RailPage(page.drawing, max_rails=1)
    assert narrow.missing >= 1, "an edge without a rail is counted"


@pytest.mark.parametrize("size", [(60, 15), (100, 30)])
async def test_c_shows_a_line_for_each_box_and_arrows_go_along_lines_and_rails(size: tuple[int, int]) -> None:
    engine = with_edges("xa", "ab", "bc", "cd", "bd", "de")
    async with screen(engine, size=size) as hands:
        await hands.press("G", "0")
        tall = shown(hands).drawing.height
        await hands.press("c")
        lines = pane(hands).splitlines()
        assert sum(bool(line.strip()) for line in lines) == len(shown(hands).drawing.boxes) < tall / 4
        assert all(line_width(line) <= size[0] for line in (((text, ""),) for text in lines))
        await hands.press("home", "down")
        walked = [chosen(hands)]
        for key in ("down", "right", "left", "down", "down", "up"):
            await hands.press(key)
            walked.append(chosen(hands))
        assert walked[1:4] == ["b", "d", "b"], "a rail leads from b to d, and back"
        assert walked[4:] == ["c", "d", "c"]
        assert shown(hands).verb_words("m.onnx")[-1] == "--compact"
        await hands.pilot.click("#graph", offset=(12, 1))
        await hands.rest()
        assert chosen(hands) == shown(hands).drawing.boxes[1].name
        await hands.press("c")
        assert "┌A" in pane(hands)


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


async def test_the_code_and_the_graph_of_a_module_are_pages() -> None:
    def answer(row: int, *, ssa: bool) -> ModuleCode:
        long_line = "%y : Tensor = aten::linear" + "(%x, %w, %b)" * 12
        return ModuleCode("net.pt", f"row {row}", "net.Net\x1b[31m", long_line if ssa else "class Net", ssa)

    async with screen(size=(80, 30)) as hands:
        hands.engine._module_code = answer  # type: ignore[attr-defined]
        await hands.press("down", "ctrl+p", *"code of the module", "enter")
        assert "Code of row 1" in hands.dialog()
        assert "class Net" in hands.dialog()
        assert "\x1b" not in hands.dialog()
        await hands.press("escape", "ctrl+p", *"ssa graph", "enter")
        assert "SSA graph of row 1" in hands.dialog()
        assert hands.dialog().count("(%x, %w, %b)") >= 9, "a long line is wrapped, and no part of it is lost"
        assert [(args, named) for name, args, named in hands.engine.asked if name == "module_code"] == [
            ((1,), {"ssa": False}),
            ((1,), {"ssa": True}),
        ]


async def test_a_graph_that_cannot_be_printed_says_so() -> None:
    engine = ScriptedEngine(errors={"module_code": Misuse("torch runs code", hint="add --trust")})
    async with screen(engine) as hands:
        await hands.press("ctrl+p", *"ssa graph", "enter")
        assert "add --trust" in hands.dialog()


@pytest.mark.parametrize("form", ["boxes", "compact", "dot"])
def test_long_names_of_boxes_keep_the_part_by_which_they_differ(form: str) -> None:
    drawing = drawn("xa", "ab", "bc", "cd")
    long_names = [f"encoder.block_with_a_long_name.layer.{i}.attention.output.projection" for i in range(4)]
    boxes = [
        replace(box, name=long_names[box.row], width=24) if box.row is not None else box
        for box in drawing.boxes
    ]
    outside = replace(boxes[0], role="outside", name=f"from {long_names[0].replace('layer.0', 'layer.9')}")
    drawing = replace(drawing, boxes=(*boxes[1:], outside), edges=())
    text = {
        "boxes": lambda: "\n".join(map(line_text, GraphCanvas(drawing).lines(None, 0, 0, 90, 90))),
        "compact": lambda: "\n".join(map(line_text, RailPage(drawing).lines(None, 0, 40, 9))),
        "dot": lambda: "\n".join(write_dot(drawing, "family")),
    }[form]()
    for layer in (0, 1, 2, 3):
        assert re.search(rf"[.…]{layer}[.…]", text), text
    if form != "boxes":  # the boxes of this drawing cover each other
        assert re.search(r"from .*[.…]9[.…]", text), text


def test_long_siblings_of_the_flame_view_differ_and_a_number_of_rows_is_short() -> None:
    names = [f"block_{side}_with_a_long_name" for side in ("left", "right")]
    boxes = [IcicleBox(0, 9, 0, 0, 0, 40, 9), *(IcicleBox(i, i + 1, 1, 1, 14 * i, 14, 4) for i in range(2))]
    boxes.append(IcicleBox(2, 9, 7, 1, 28, 4, 1))
    labels = [FlameLabel("m", "other"), *(FlameLabel(name, "conv") for name in names)]
    labels.append(FlameLabel("7 rows", "other"))
    short = [label.name for label in shorten_labels(boxes, labels, [39, 13, 13, 3])]
    assert short[0] == "m"
    assert "left" in short[1]
    assert "right" in short[2]
    assert short[3] == "×7"
    assert [label.name for label in shorten_labels(boxes, labels, [39, 40, 40, 9])[1:]] == [*names, "7 rows"]


@pytest.mark.parametrize("size", [(80, 24), (36, 15)])
async def test_the_title_and_the_help_explain_letters_and_frames(size: tuple[int, int]) -> None:
    async with screen(with_edges("xa", "ab"), size=size) as hands:
        await hands.press("G")
        title = line_text(hands.pilot.app.screen.query_one(TitleBar).lines[0])
        assert title.rstrip().endswith("A activation" if size[0] == 80 else "letters: ?")
        assert line_width(hands.pilot.app.screen.query_one(TitleBar).lines[0]) <= size[0]
        await hands.press("question_mark")
        text = " ".join(hands.dialog().split())
        assert "Signs on this screen C in a corner: conv" in text
        assert "╘══╛ a box with layers inside: + unfolds it" in text
