"""Open sizes, live, and decoding: what keys do, what is told, at any size of the terminal."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer import Session
from explorer.facts import TensorInfo
from explorer.facts.roofline import Machine
from explorer.facts.sizes.curves import SizeCurves
from explorer.facts.sizes.decode import Decode
from explorer.features.sizes.decode_screen import DecodeView
from explorer.features.sizes.decode_words import decode_blocks
from explorer.features.sizes.sizes_page import sizes_page
from explorer.features.sizes.sizes_screen import SizesDialog, SizesView
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet

Sample = Callable[[str], Path]
SIZES = ((60, 15), (80, 24), (140, 40), (200, 50))


@pytest.fixture
def curves(sample: Sample) -> Callable[..., SizeCurves]:
    """The curves of a small LSTM."""

    @cache
    def made(over: str, machine: Machine | None = None) -> SizeCurves:
        with Session(sample("lstm_tiny")) as session:
            return session.sizes(over, 1, 512, machine=machine)

    return made


@pytest.fixture
def engine(curves: Callable[..., SizeCurves]) -> ScriptedEngine:
    known = alexnet()
    fed = (TensorInfo("x", "float32", ("batch", "sequence")),)
    info = replace(known.info, model=replace(known.info.model, inputs=fed), assumptions={"dims": {}})
    made = ScriptedEngine(replace(known, info=info))
    made.curves = {name: curves(name) for name in ("sequence", "batch")}
    return made


def page(hands: Hands, id: str = "#sizes-plot") -> str:
    return "\n".join(line_text(line) for line in hands.pilot.app.screen.query_one(id, LineView).lines)


def view(hands: Hands) -> SizesView:
    found = hands.pilot.app.screen
    assert isinstance(found, SizesView)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_a_slider_moves_over_a_size_and_the_crossing_is_told(
    engine: ScriptedEngine, size: tuple[int, int]
) -> None:
    async with screen(engine, size=size) as hands:
        await hands.press("D")
        assert "sequence 1" in page(hands)
        assert "◇ activations pass the weights at sequence 115" in page(hands)
        await hands.press("up", "up", "right")
        assert view(hands).fact.sizes[view(hands).at] == 5
        await hands.press("down")
        assert "sequence 4" in page(hands)
        await hands.press("n")
        assert "sequence 115" in page(hands)
        assert "◆ activations pass the weights" in page(hands)
        await hands.press("end")
        assert "sequence 512" in page(hands)
        await hands.press("q")
        assert isinstance(hands.pilot.app.screen, MainScreen)


@pytest.mark.slow
async def test_tab_goes_to_another_size_and_enter_takes_the_one_on_show(engine: ScriptedEngine) -> None:
    async with screen(engine) as hands:
        await hands.press("D", "tab")
        assert view(hands).fact.name == "batch"
        await hands.press("up", "up", "up", "enter")
        assert ("bind", ({"sequence": 1, "batch": 8},), {}) in hands.engine.asked
        assert "bound: sequence=1, batch=8" in hands.strip(Status)
        await hands.press("D", "t")
        assert isinstance(hands.pilot.app.screen, SizesDialog)


async def test_every_open_size_that_the_figures_rest_on_is_shown_and_bound(engine: ScriptedEngine) -> None:
    engine.curves = {"sequence": replace(engine.curves["sequence"], others={"batch": 12, "fixed": 3})}
    async with screen(engine) as hands:
        await hands.press("D")
        assert "with batch=12, fixed=3" in page(hands)
        await hands.press("enter")
        assert ("bind", ({"batch": 12, "sequence": 1},), {}) in hands.engine.asked


async def test_a_size_that_is_no_open_dimension_cannot_be_bound_and_it_is_said(
    engine: ScriptedEngine,
) -> None:
    fixed = replace(engine.model, info=replace(engine.model.info, model=alexnet().info.model))
    lone = ScriptedEngine(fixed)
    lone.curves = {"sequence": engine.curves["sequence"]}
    async with screen(lone) as hands:
        await hands.press("D", "enter")
        note = " ".join(line_text(line) for line in view(hands).query_one("#sizes-note", Status).lines)
        assert "is fixed in this model" in note
        assert not any(method == "bind" for method, _, _ in lone.asked)


@pytest.mark.parametrize(("width", "height"), [(16, 6), *SIZES])
def test_no_line_of_the_curves_is_wider_than_the_screen(
    curves: Callable[..., SizeCurves], width: int, height: int
) -> None:
    fact = curves("batch", Machine("chip", 1e12, 1e9))
    for at in (0, len(fact.sizes) // 2, len(fact.sizes) - 1):
        lines = sizes_page(fact, at, width, height)
        assert all(line_width(line) <= width for line in lines)
        if height > 12:
            text = "\n".join(line_text(line) for line in lines)
            assert len(lines) <= height
            assert "█ activations" in text
            assert "━ weights" in text, "curves are told apart without colors"


def test_the_filled_curve_passes_the_line_of_the_weights_where_the_crossing_stands(
    curves: Callable[..., SizeCurves],
) -> None:
    fact = curves("sequence")
    lines = [line_text(line) for line in sizes_page(fact, 0, 80, 40)]
    at = next(y for y, line in enumerate(lines) if "◆" in line)
    column = lines[at].index("◆")
    above = [line[column + 3 :].count("█") for line in lines[at - 2 : at]]
    assert above[0] > 0, "right of it activations are above the weights"
    assert not any("█" in line[:column] for line in lines[at - 2 : at])


@pytest.fixture
def step() -> Decode:
    from tests.features.sizes.test_size_curves import decoder

    with decoder() as session:
        return session.decode(64)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_one_key_tells_at_which_length_the_cache_passes_the_weights(
    step: Decode, size: tuple[int, int]
) -> None:
    engine = ScriptedEngine()
    engine.decoded = step
    async with screen(engine, size=size) as hands:
        await hands.press("E")
        assert isinstance(hands.pilot.app.screen, DecodeView)
        assert "KV cache passes the weights at 99 tokens" in " ".join(page(hands, "#decode-page").split())
        await hands.press("right")
        assert hands.engine.asked[-1] == ("decode", (128,), {})
        await hands.press("q")
        assert isinstance(hands.pilot.app.screen, MainScreen)


async def test_a_model_without_a_text_is_told_why() -> None:
    async with screen(ScriptedEngine()) as hands:
        await hands.press("E")
        assert "neither a text input nor cache inputs" in hands.dialog()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", [40, 60, 80, 140])
def test_no_line_of_the_step_is_wider_than_the_screen(step: Decode, width: int) -> None:
    lines = draw(decode_blocks(step), width - 1)
    text = " ".join(" ".join(map(line_text, lines)).split())
    assert all(line_width(line) <= width for line in lines)
    assert "512 B" in text


async def test_what_was_taken_of_other_sizes_comes_with_the_key_that_types_them_and_no_option(
    engine: ScriptedEngine,
) -> None:
    async with screen(engine, size=(140, 40)) as hands:
        await hands.press("D")
        note = " ".join(line_text(line) for line in view(hands).query_one("#sizes-note", Status).lines)
        assert "assumed: batch=1; t types another size" in note
        assert "--" not in note
