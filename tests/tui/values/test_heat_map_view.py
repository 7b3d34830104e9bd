"""The map of a tensor: what keys do, what is painted, with colors and without, before and after."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper
from textual import events

from explorer import Session, TileSpec
from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.facts import History, HistoryEntry
from explorer.facts.values import HeatMap
from explorer.features.values.heat_panel import HeatPanel, Picture, choose_palette
from explorer.features.values.map_page import build_figure_lines, cell_span, cursor_line, title_lines
from explorer.features.values.map_view import HEAT_KEYS, HeatMapView
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

LENET = "sample_models/lenet.onnx"
STORED = {t.name: numpy_helper.to_array(t) for t in onnx.load(LENET).graph.initializer}
SIZES = ((60, 15), (140, 40))


class RealNumbers(ScriptedEngine):
    """A script whose maps are those of a session."""

    def __init__(self, session: Session, other: str = "") -> None:
        super().__init__(session.analysis())
        self.session, self.other = session, other
        if other:
            made = HistoryEntry("quantized", "q.onnx", "", parent=0)
            self.states = History((*self.states.entries, made), 1)

    def _heat_map(self, *, before: int | None, **how: Any) -> HeatMap:
        return self.session.heat_map(before=None if before is None else self.other, **how)


@pytest.fixture(scope="module")
def lenet() -> Iterator[Session]:
    with Session(LENET) as session:
        yield session


async def at_layer(hands: Hands, name: str) -> HeatMapView:
    """The map of a layer's first tensor."""
    await hands.press("slash", *name, "enter", "I")
    view = hands.pilot.app.screen
    assert isinstance(view, HeatMapView)
    await hands.rest()
    return view


def under(view: HeatMapView) -> str:
    return line_text(view.query_one("#heat-cell", Status).lines[0])


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_the_number_under_the_cursor_is_told_wherever_it_goes(
    lenet: Session, size: tuple[int, int]
) -> None:
    weight = STORED["fc2.weight"]
    async with screen(RealNumbers(lenet), size=size) as hands:
        view = await at_layer(hands, "fc2")
        assert view.fact is not None
        for _ in range(9):
            await hands.press("plus")
        assert (view.fact.rows, view.fact.columns) == ((0, 1), (0, 1))
        assert f"[0, 0]  {weight[0, 0]:.6g}" in under(view)
        for key, place in (("right", (0, 1)), ("down", (1, 1)), ("left", (1, 0)), ("up", (0, 0))):
            await hands.press(key)
            assert f"[{place[0]}, {place[1]}]  {weight[place]:.6g}" in under(view)
        await hands.press("minus", "minus", "0")
        assert (view.fact.rows, view.fact.columns) == ((0, 84), (0, 120))
        await hands.press("o")
        far = np.unravel_index(np.abs(weight - weight.mean(dtype=np.float64)).argmax(), weight.shape)
        assert view._cursor_place[0] <= far[0] <= view._cursor_place[0] + 84 // view.fact.heights
        assert f"{weight[far]:.6g}" in under(view)


@pytest.mark.slow
async def test_of_a_group_with_loops_within_it_every_tensor_that_is_offered_can_be_read() -> None:
    with Session("sample_models/lstm_tiny.onnx") as session:
        session.tile(TileSpec((64, 64, 64)), verify=False)
        async with screen(RealNumbers(session)) as hands:
            await hands.press("home", "I")
            view = hands.pilot.app.screen
            assert isinstance(view, HeatMapView)
            seen: list[str] = []
            for _ in range(7):
                assert not view._pending_error
                assert view.fact is not None
                seen.append(view.fact.tensor.name)
                await hands.press("n")
            assert len(set(seen)) > 3


@pytest.mark.slow
async def test_higher_axes_and_other_tensors_of_the_layer_are_paged_through(lenet: Session) -> None:
    async with screen(RealNumbers(lenet), size=(140, 40)) as hands:
        view = await at_layer(hands, "conv2")
        await hands.press(
            "right_square_bracket", "right_curly_bracket", "right_curly_bracket", "down", "right"
        )
        assert view.fact is not None
        assert view.fact.place == (2, 1)
        assert f"[2, 1, 1, 1]  {STORED['conv2.weight'][2, 1, 1, 1]:.6g}" in under(view)
        await hands.press("left_square_bracket", "left_square_bracket")
        assert view.fact.place == (2, 5)
        await hands.press("n")
        assert view.fact.tensor.name == "conv2.bias"
        assert (view.fact.heights, view.fact.widths) == (1, 16)
        await hands.press("n")
        assert (view.fact.role, view.fact.tensor.shape) == ("activation", (1, 16, 10, 10))
        await hands.press("n")
        assert view.fact.tensor.name == "conv2.weight"
        await hands.press("q")
        assert not isinstance(hands.pilot.app.screen, HeatMapView)


@pytest.mark.slow
async def test_before_and_after_stand_side_by_side(lenet: Session, tmp_path: Path) -> None:
    model = onnx.load(LENET)
    for tensor in model.graph.initializer:
        if tensor.name == "fc2.weight":
            tensor.CopyFrom(numpy_helper.from_array(STORED["fc2.weight"] * np.float32(2), "fc2.weight"))
    onnx.save(model, tmp_path / "before.onnx")
    async with screen(RealNumbers(lenet, str(tmp_path / "before.onnx")), size=(140, 40)) as hands:
        hands.main.store.history = hands.engine.states
        view = await at_layer(hands, "fc2")
        assert not view.query_one("#heat-before", HeatPanel).display
        await hands.press("b")
        assert view.query_one("#heat-before", HeatPanel).display
        fact = view.fact
        assert fact is not None
        assert fact.before is not None
        assert fact.before.cells == tuple(2 * cell for cell in fact.cells if cell is not None)
        assert view.largest == pytest.approx(2 * float(np.abs(STORED["fc2.weight"]).max()))
        first = np.float32(fact.cells[0] or 0)
        assert f"{first:.6g}  before {first * 2:.6g}" in under(view)
        await hands.press("plus")
        assert view.fact is not None
        assert view.fact.before is not None
        assert view.fact.before.stats is not None, "what was told of the whole stays"
        await hands.press("b")
        assert not view.query_one("#heat-before", HeatPanel).display


@pytest.mark.slow
@pytest.mark.parametrize(
    ("to", "first"),
    [
        (("int8",), "conv2.weight_quantized"),
        (("mxfp8",), "conv2.weight_mxfp8"),
        (("weight=int4", "--block", "32"), ""),
    ],
)
async def test_a_quantized_layer_shows_its_weight_and_codes(
    to: tuple[str, ...], first: str, tmp_path: Path
) -> None:
    """From its group as from the layer: what is multiplied, and what is stored for it."""
    path = str(tmp_path / "q.onnx")
    assert main(["quantize", LENET, "-o", path, "--to", *to, "--no-report", "--quiet"]) == 0
    with Session(path) as session:
        async with screen(RealNumbers(session, LENET), size=(140, 40)) as hands:
            hands.main.store.history = hands.engine.states
            if first:
                await hands.press("home")
                while hands.at() != "conv2":
                    await hands.press("down")
                await hands.press("I")
                view = hands.pilot.app.screen
                assert isinstance(view, HeatMapView)
                await hands.rest()
                assert view.fact is not None
                assert view.fact.tensor.name == first
                error = np.array(view.fact.cells) - STORED["conv2.weight"][0, 0].reshape(-1)
                assert 0 < np.abs(error).max() < 0.01, "what it stands for, not the code"
                await hands.press("q")
            view = await at_layer(hands, "conv2" if "mxfp8" in to else "fc2")
            assert view.fact is not None
            if "mxfp8" in to:
                await hands.press("b")
                assert view.fact is not None
                assert view.fact.before is not None
                assert view.fact.before.cells == tuple(STORED["conv2.weight"][0, 0].reshape(-1).tolist())
                assert "right: before" in line_text(view.query_one(TitleBar).lines[0])
                return
            for _ in range(9):
                await hands.press("plus")
            fact = session.values("fc2.weight_quantized" if first else "fc2.weight_blocks", "0, 0")
            assert fact.codes is not None
            assert f"code {fact.codes[0]}, scale" in under(view)


@pytest.mark.slow
async def test_what_cannot_be_shown_is_said_in_a_line(lenet: Session) -> None:
    engine = RealNumbers(lenet)
    async with screen(engine, size=(80, 24)) as hands:
        view = await at_layer(hands, "fc2")
        await hands.press("b")
        assert "no state before it" in under(view)
        engine.errors["heat_map"] = Misuse("no room for it")
        await hands.press("plus")
        assert "no room for it" in under(view)
        del engine.errors["heat_map"]
        await hands.press("plus")
        assert view.fact is not None
        assert view.fact.rows == (0, 42), "the same key asks again"
        await hands.press("q", "escape", "slash", *"pool", "enter", "home", "I")
        assert not isinstance(hands.pilot.app.screen, HeatMapView), "a group has none"


@pytest.fixture(scope="module")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """A model that puts out tensors of no number, of one, of five axes, and of none that a map has."""
    tensors = {
        "empty": np.zeros((3, 0, 4), np.float32),
        "five": np.arange(240, dtype=np.float32).reshape(2, 2, 3, 4, 5),
        "one": np.float32([0.5]).reshape(()),
        "text": np.array([[b"a", b"b"]], object),
    }
    nodes = [onnx.helper.make_node("Identity", [name], [f"{name}_out"], name=f"a_{name}") for name in tensors]
    nodes.append(onnx.helper.make_node("Concat", ["five", "five"], ["both"], name="of_five", axis=0))
    nodes.append(onnx.helper.make_node("Where", ["flag", "rows", "row"], ["some"], name="of_two"))
    tensors["rows"], tensors["row"] = np.ones((300, 4), np.float32), np.float32([2, 3, 4, 5])
    tensors["flag"] = np.array([True])
    outputs = [onnx.helper.make_empty_tensor_value_info(node.output[0]) for node in nodes]
    stored = [numpy_helper.from_array(tensor, name) for name, tensor in tensors.items()]
    graph = onnx.helper.make_graph(nodes, "odd", [], outputs, stored)
    path = tmp_path_factory.mktemp("odd") / "odd.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
    with Session(str(path)) as session:
        yield session


WALK = ("plus", "minus", "0", "end", "home", "o", "right", "down", "left", "up", "pagedown")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["empty", "five", "one"])
async def test_every_key_goes_over_a_tensor_of_any_shape(odd: Session, name: str) -> None:
    async with screen(RealNumbers(odd), size=(140, 40)) as hands:
        view = await at_layer(hands, f"a_{name}")
        for key in (*WALK, "right_square_bracket", "right_curly_bracket", *WALK):
            await hands.press(key)
        assert view.fact is not None
        if name == "empty":
            assert "no numbers" in under(view)
        else:
            told = under(view).partition("]")[0].strip(" [")
            assert len(told.split(", ") if told else ()) == len(view.fact.tensor.shape or ())


@pytest.mark.slow
async def test_keys_that_come_before_the_next_tensor_are_not_for_the_one_before(odd: Session) -> None:
    async with screen(RealNumbers(odd), size=(140, 40)) as hands:
        view = await at_layer(hands, "of_two")
        for name in view._names[1:]:
            for key in ("n", "end", "plus", "o", "minus"):
                view.app.post_message(events.Key(key, key if len(key) == 1 else None))
            await hands.rest()
            fact = view.fact
            assert fact is not None
            own = odd.heat_map(name)
            assert (view.request.name, fact.tensor, fact.stats) == (name, own.tensor, own.stats)


@pytest.mark.slow
async def test_a_tensor_that_cannot_be_read_is_named_and_nothing_else_is_shown(odd: Session) -> None:
    async with screen(RealNumbers(odd), size=(140, 40)) as hands:
        view = await at_layer(hands, "a_text")
        title = view.query_one(TitleBar)
        assert "text" in line_text(title.lines[0])
        assert "has no values" in under(view)
        for key in WALK:
            await hands.press(key)
        assert "has no values" in under(view)


@pytest.mark.slow
async def test_a_state_before_that_lacks_a_tensor_is_told_and_stands_beside_the_next(
    lenet: Session, tmp_path: Path
) -> None:
    model = onnx.load(LENET)
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Relu", [model.graph.input[0].name], ["y"])],
        "other",
        list(model.graph.input),
        [onnx.helper.make_empty_tensor_value_info("y")],
        [tensor for tensor in model.graph.initializer if tensor.name == "fc2.bias"],
    )
    onnx.save(onnx.helper.make_model(graph), tmp_path / "other.onnx")
    async with screen(RealNumbers(lenet, str(tmp_path / "other.onnx")), size=(140, 40)) as hands:
        hands.main.store.history = hands.engine.states
        view = await at_layer(hands, "fc2")
        await hands.press("b")
        assert "fc2.weight" in under(view)
        assert "[0" not in under(view), "why, and not the number under the cursor"
        assert view.fact is not None
        assert view.fact.before is None
        await hands.press("n")
        assert view.fact.before is not None
        assert view.fact.before.cells == tuple(STORED["fc2.bias"].tolist())
        await hands.press("b", "n", "p")
        assert view.fact.before is None, "taken away, it does not come back"


@pytest.mark.slow
async def test_two_maps_side_by_side_are_equally_wide(lenet: Session) -> None:
    async with screen(RealNumbers(lenet, LENET), size=(80, 24)) as hands:
        hands.main.store.history = hands.engine.states
        view = await at_layer(hands, "fc2")
        await hands.press("b")
        pictures = [panel.picture for panel in view.query(HeatPanel)]
        panels = zip(pictures, view.query(HeatPanel), strict=True)
        assert view.fact is not None
        for picture, panel in panels:
            assert picture is not None
            assert picture.fact.widths * picture.cell_width <= panel.size.width
        assert len({picture.cell_width for picture in pictures if picture}) == 1


@pytest.mark.slow
async def test_the_footer_names_keys_that_do_something_here(lenet: Session, odd: Session) -> None:
    said = []
    for session, layer in ((lenet, "conv2"), (lenet, "fc2"), (odd, "a_text")):
        async with screen(RealNumbers(session), size=(140, 40)) as hands:
            view = await at_layer(hands, layer)
            said.append(line_text(view.query_one("#heat-keys", Status).lines[0]))
    keys = ("+ - zoom", "[ ] matrix", "b before")
    assert [tuple(key in line for key in keys) for line in said] == [
        *((True, True, False), (True, False, False), (False, False, False)),
    ]


@pytest.mark.slow
async def test_y_copies_the_command_that_draws_the_same(lenet: Session) -> None:
    async with screen(RealNumbers(lenet), size=(80, 24)) as hands:
        view = await at_layer(hands, "conv2")
        await hands.press("right_square_bracket", "plus")
        words = view.verb_words("m.onnx")
        assert words == [
            *("values", "m.onnx", "conv2.weight", "--map", "3x3", "--at", "0,1"),
            *("--rows", "0:3", "--columns", "0:3"),
        ]


@pytest.fixture
def fact(lenet: Session) -> HeatMap:
    """Four by three numbers, one of them none."""
    found = lenet.heat_map("fc1.weight", rows=(0, 4), columns=(0, 3))
    cells = (1.0, -1.0, 0.0, None, 0.5, -0.5, 0.1, -0.1, 0.0, 1.0, 1.0, -1.0)
    return replace(found, cells=cells)


@pytest.mark.slow
async def test_numbers_that_are_random_are_called_so_above_their_map(lenet: Session) -> None:
    class Random(RealNumbers):
        def _heat_map(self, **how: Any) -> HeatMap:
            return replace(super()._heat_map(**how), notes=("random weights, seed 0",))

    async with screen(Random(lenet)) as hands:
        view = await at_layer(hands, "fc2")
        above = [line_text(line).strip() for line in view.query_one(TitleBar).lines]
        assert above[1] == "random weights, seed 0"
        assert above[0].startswith("fc2.weight")


def test_two_numbers_are_painted_in_a_cell(fact: HeatMap) -> None:
    colors = choose_palette(True, "truecolor")
    picture = Picture(fact, 1.0, 3, 2, 3, 3, colors)
    strong, weak = colors.positive[-1], colors.negative[-1]
    assert picture.line(0) == [
        ("▀", strong, colors.missing),
        ("▀", weak, colors.color(0.5, 1.0)),
        ("▀", colors.zero, colors.color(-0.5, 1.0)),
    ]
    assert picture.line(1)[2] == ("◆", colors.cursor, weak)
    assert picture.line(2) == []
    assert [picture.cell_at(2, 1), picture.cell_at(3, 0), picture.cell_at(0, 2)] == [(2, 2), None, None]


def test_without_colors_a_shade_is_a_number(fact: HeatMap) -> None:
    picture = Picture(fact, 1.0, 3, 0, 3, 4, None)
    lines = ["".join(piece for piece, _, _ in picture.line(y)) for y in range(5)]
    assert lines == ["██ ", "?▒▒", "░░ ", "◆██", ""]


def test_cells_of_a_small_tensor_are_drawn_large(fact: HeatMap) -> None:
    for colors in (choose_palette(True, "standard"), None):
        picture = Picture(fact, 1.0, 0, 0, 40, 12, colors)
        lines = [picture.line(y) for y in range(12)]
        assert picture.cell_width > 1
        assert all(sum(len(text) for text, _, _ in line) <= 40 for line in lines)
        seen = {picture.cell_at(x, y) for x in range(40) for y in range(12)} - {None}
        assert seen == {(row, column) for row in range(4) for column in range(3)}


@pytest.mark.parametrize("system", ["standard", "256"])
@pytest.mark.parametrize("dark", [True, False])
def test_signs_zero_and_strength_are_told_apart(dark: bool, system: str) -> None:
    colors = choose_palette(dark, system)
    told = [*colors.negative, *colors.positive, colors.zero, colors.missing]
    assert len(set(told)) == len(told)
    assert colors.cursor not in told
    assert colors.color(1e-9, 1.0) == colors.positive[0], "the least is not zero"
    assert colors.color(2.0, 1.0) == colors.positive[-1]


def test_cells_stand_for_the_rows_that_the_engine_gathers() -> None:
    for size, cells in ((84, 7), (10, 4), (5, 5)):
        gathered = [at * cells // size for at in range(size)]
        for cell in range(cells):
            first, stop = cell_span((100, 100 + size), cell, cells)
            assert gathered[first - 100 : stop - 100] == [cell] * gathered.count(cell)


@pytest.mark.parametrize("width", [20, 46, 200])
def test_no_line_is_wider_than_its_room(lenet: Session, width: int) -> None:
    found = lenet.heat_map("conv2.weight", before=LENET)
    lines = [
        *build_figure_lines(found, width),
        *title_lines(found, 0, 3, width),
        cursor_line(found, 0, 0, 1.0, width),
    ]
    assert all(line_width(line) <= width for line in lines)
    assert any("Farthest" in line_text(line) for line in lines)


def test_every_key_is_in_the_help() -> None:
    from explorer.tui.commands.help_action import KEYS

    assert set(HEAT_KEYS) <= set(KEYS)
    actions = {key.id.partition("(")[0] for key in HEAT_KEYS}
    assert all(hasattr(HeatMapView, f"action_{action}") for action in actions)
