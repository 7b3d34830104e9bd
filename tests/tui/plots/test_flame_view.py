"""The flame view promises: boxes as wide as what they take, walked by arrows, by time or what is counted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from explorer.base.families import FAMILIES
from explorer.facts import Layer
from explorer.features.graph.flame_screen import FILL, FlameView, draw_flame_lines
from explorer.report.flame_layout import FlameLabel, IcicleBox
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.text.theme import ALL_THEMES
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine
from tests.tui.test_profiling import scripted_profile


def view(hands: Hands) -> FlameView:
    found = hands.pilot.app.screen
    assert isinstance(found, FlameView)
    return found


def box(hands: Hands) -> str:
    return line_text(view(hands).query_one("#flame-box", Status).lines[0]).strip()


def title(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in view(hands).query_one(TitleBar).lines)


def page(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in view(hands).query_one("#flame", LineView).lines)


async def test_the_boxes_are_walked_and_the_chosen_one_tells_its_name_its_figure_and_its_share():
    async with screen(size=(120, 40)) as hands:
        await hands.press("exclamation_mark")
        # where the tree's cursor is
        assert box(hands).startswith("features  Sequential · 655.57 M MACs · 91.8 % of the model")
        await hands.press("down")
        assert box(hands).startswith("features.3  Conv · 223.95 M MACs · 31.4 % of the model")
        await hands.press("right")
        assert box(hands).startswith("features.6  Conv")
        await hands.press("left", "h", "up", "k")
        assert box(hands).startswith("alexnet  714.19 M MACs")
        await hands.press("up", "e")
        assert box(hands) == "alexnet  714,188,480 MACs"
        assert "by MACs: 714,188,480" in title(hands)


async def test_enter_zooms_backspace_comes_back_and_of_a_layer_enter_leads_to_the_tree():
    async with screen(size=(80, 24)) as hands:
        await hands.press("end", "exclamation_mark")
        assert box(hands).startswith("classifier")
        await hands.press("enter")
        assert "Flame classifier" in title(hands)
        assert box(hands).startswith("classifier  Sequential · 58.62 M MACs · 8.2 % of the model")
        await hands.press("down")
        assert box(hands).startswith(
            "classifier.1  Gemm · 37.75 M MACs · 5.3 % of the model · 64.4 % of classifier"
        )
        how = ["--by", "macs", "--layer", "classifier", "-o", "flame.svg"]
        words = view(hands).verb_words("a.onnx")
        assert words == ["plot", "a.onnx", "--what", "flame", *how]
        await hands.press("backspace")
        assert "Flame alexnet" in title(hands)
        await hands.press("enter", "0")
        assert "Flame alexnet" in title(hands)
        await hands.press("down", "enter")
        assert hands.at() == "classifier.1"


async def test_the_next_figure_keeps_the_layer_and_esc_the_cursor_of_the_tree():
    async with screen(size=(120, 30)) as hands:
        await hands.press("exclamation_mark", "down", "c")
        assert "by params: 61.10 M" in title(hands)
        # too thin for a box of its own it is in one with others, and stays the one that is meant
        assert box(hands).startswith("2 rows from features.0  330.69 k params")
        await hands.press("c")
        assert "by weights" in title(hands)
        await hands.press("c")
        assert "by activations" in title(hands)
        await hands.press("c")
        assert "by MACs" in title(hands)
        assert box(hands).startswith("features.3  Conv")
        await hands.press("right", "escape")
        assert hands.at() == "features"


async def test_of_a_model_that_was_timed_its_time_comes_first_and_what_is_no_layer_has_a_box(monkeypatch):
    monkeypatch.setattr(ScriptedEngine, "_profile", scripted_profile, raising=False)
    async with screen(size=(120, 30)) as hands:
        await hands.press("percent_sign", "enter", "escape", "exclamation_mark")
        assert "by measured time: 30 ms" in title(hands)
        assert box(hands).startswith("features  Sequential · 15 ms measured time · 50.0 % of the model")
        assert "runtime overhead" in page(hands)
        assert "copies" in page(hands)
        await hands.press("right")
        assert box(hands).startswith("copies  5 ms measured time · 16.7 % of the model")
        # it is no row: nothing is in it, and the tree has it not
        await hands.press("enter", "t", "down")
        assert box(hands).startswith("copies")


@pytest.mark.parametrize("size", [(60, 15), (140, 40)])
async def test_the_levels_fill_the_height_and_a_chain_of_groups_is_one_box(size: tuple[int, int]) -> None:
    layers = [
        Layer(0, None, "net", "net", "Net", 0, True, macs=900),
        Layer(1, 0, "net.body", "body", "Body", 1, True, macs=900),
        Layer(2, 1, "net.body.fc1", "fc1", "Linear", 2, False, macs=600),
        Layer(3, 1, "net.body.fc2", "fc2", "Linear", 2, False, macs=300),
    ]
    engine = ScriptedEngine()
    info = replace(engine.model.info, totals=replace(engine.model.info.totals, macs=900))
    engine.model = replace(engine.model, info=info, layers=tuple(layers))
    async with screen(engine, size=size) as hands:
        await hands.press("exclamation_mark")
        panel = view(hands).query_one("#flame", LineView)
        assert len(panel.lines) == panel.size.height
        assert [one.level for one in view(hands)._boxes] == [0, 1, 2, 2]
        assert "net.body" in page(hands)
        tall = panel.size.height
        await hands.pilot.click("#flame", offset=(size[0] - 4, tall - 1))
        await hands.rest()
        assert box(hands).startswith("net.body.fc2")
        await hands.press("up", "t")
        assert hands.at() == "net.body"


async def test_a_click_chooses_a_box_and_a_second_one_zooms():
    async with screen(size=(80, 24)) as hands:
        await hands.press("exclamation_mark", "up")
        await hands.pilot.click("#flame", offset=(10, 6))
        await hands.rest()
        assert box(hands).startswith("features")
        await hands.pilot.click("#flame", offset=(10, 6))
        await hands.rest()
        assert "Flame features" in title(hands)


@pytest.mark.slow
async def test_a_hundred_thousand_rows_are_boxes_of_many_that_open():
    engine = ScriptedEngine()
    rows = tuple(Layer(at, None, f"t{at}", f"t{at}", "Tensor", 0, False, params=1) for at in range(100_000))
    info = replace(engine.model.info, totals=replace(engine.model.info.totals, macs=None, params=100_000))
    engine.model = replace(engine.model, info=info, layers=rows)
    async with screen(engine, size=(60, 15)) as hands:
        await hands.press("exclamation_mark")
        assert "by params: 100.00 k; 100,000 rows are too thin" in title(hands)
        await hands.press("up", "down")
        sizes = [view(hands).box.rows]
        while sizes[-1] > 1:
            await hands.press("enter", "down")
            sizes.append(view(hands).box.rows)
        assert sizes == sorted(sizes, reverse=True)
        assert len(sizes) < 8
        row = view(hands).box.first
        await hands.press("t")
        assert hands.at() == f"t{row}"


@pytest.mark.slow
async def test_it_is_whole_on_small_and_large_terminals():
    async with screen() as hands:
        await hands.press("exclamation_mark")
        for size in ((60, 15), (80, 24), (200, 50), (30, 8)):
            await hands.pilot.resize_terminal(*size)
            await hands.rest()
            lines = view(hands).query_one("#flame", LineView).lines
            assert all(line_width(line) <= size[0] for line in lines)
            assert len(lines) <= size[1] - 4
            assert box(hands).startswith("features")


def test_families_have_letters_where_there_are_no_colours_and_a_colour_in_every_theme():
    boxes = [
        IcicleBox(0, 2, 0, 0, 0, 20, 9),
        IcicleBox(0, 1, 1, 1, 0, 12, 6),
        IcicleBox(1, 2, 1, 1, 12, 2, 1),
    ]
    labels = [FlameLabel("m", "other"), FlameLabel("conv1", "conv"), FlameLabel("fc", "matmul")]
    figures = lambda at: ("9", "")  # noqa: E731
    lettered = draw_flame_lines(boxes, labels, figures, 0, 4, True)
    assert [line_text(line) for line in lettered] == [
        "▏m                 ▕",
        "▏9                 ▕",
        "▏C conv1   ▕▏▕",
        "▏9         ▕▏▕",
    ]
    filled = draw_flame_lines(boxes, labels, figures, 0, 4, False)
    assert [role for _, role in filled[2]] == [f"{FILL}conv", f"{FILL}matmul"]
    # the chosen one stands out
    assert (filled[0][0][1], lettered[0][0][1]) == (f"{FILL}chosen", "mark")
    assert all(f"family-{name}" in theme.variables for theme in ALL_THEMES for name in FAMILIES)


@pytest.mark.parametrize("light", [False, True])
async def test_without_colors_the_chosen_box_differs_from_the_others(
    light: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with screen(size=(100, 30)) as hands:
        await hands.press(*(["T"] * light), "exclamation_mark", "down")
        panel = view(hands).query_one("#flame", LineView)

        def background(role: str) -> tuple[int, int, int]:
            style = panel._style(role, "")
            color = style.color if style.reverse else style.bgcolor
            assert color is not None
            return tuple(color.get_truecolor())  # type: ignore[return-value]

        difference = [abs(a - b) for a, b in zip(background("mark"), background("conv"), strict=True)]
        assert min(difference) > 100
