"""Open sizes: one key lists them all, what is bound stands in the header, what is not stays unknown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.facts import TensorInfo
from explorer.features.sizes.sizes_screen import SizesDialog
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.strips import KeyBar, Status, TitleBar
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, alexnet, flat


def engine(*names: str) -> ScriptedEngine:
    """A model whose input has these open sizes."""
    known = alexnet()
    fed = (TensorInfo("ids", "int64", names),)
    info = replace(known.info, model=replace(known.info.model, inputs=fed), assumptions={"dims": {}})
    return ScriptedEngine(replace(known, info=info))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (140, 40)])
async def test_a_key_binds_open_sizes_and_the_header_says_which(size: tuple[int, int]) -> None:
    async with screen(engine("batch", "sequence"), size=size) as hands:
        assert "batch=?" in hands.strip(TitleBar)
        await hands.press("D")
        assert isinstance(hands.pilot.app.screen, SizesDialog)
        assert "Open: batch, sequence" in hands.dialog()
        await hands.press("8", "down", "6", "4", "enter")
        assert ("bind", ({"batch": 8, "sequence": 64},), {}) in hands.engine.asked
        assert "batch=8" in hands.strip(TitleBar)
        assert "bound: batch=8, sequence=64" in hands.strip(Status)
        await hands.press("D", "down")
        assert [entry.value for entry in hands.pilot.app.screen.query(Input)] == ["8", "64"]
        await hands.press("backspace", "backspace", "enter")
        assert hands.engine.states.dims == {"batch": 8}
        await hands.press("2")
        page = " ".join(hands.text("#model").split())
        assert "Some sizes are open: sequence. Press D to set them" in page
        assert "--dim" not in page, "the screen names the key"


async def test_a_model_without_layers_is_told_from_a_filter_that_finds_none() -> None:
    async with screen(ScriptedEngine(flat(0))) as hands:
        assert "The model has no layers" in " ".join(hands.text("#layer").split())
    async with screen(ScriptedEngine(flat(1))) as hands:
        await hands.press("slash", *"tile", "enter")
        assert "No layer matches the filter" in " ".join(hands.text("#layer").split())


async def test_the_key_that_binds_sizes_is_named_as_long_as_some_are_open() -> None:
    def footer() -> str:
        return line_text(hands.main.query_one(KeyBar).lines[0])

    async with screen(engine("batch"), size=(60, 15)) as hands:
        assert "D sizes" in footer()
        for tab in "123456":
            await hands.press(tab)
            assert "D sizes" in footer(), "figures are missing there, too"
    async with screen(size=(60, 15)) as hands:
        assert "D sizes" not in footer()


@pytest.mark.slow
async def test_what_is_no_size_is_said_and_not_bound() -> None:
    async with screen(engine("batch")) as hands:
        await hands.press("D", "0")
        assert "'0' is not a whole number of 1 or more" in hands.dialog()
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, SizesDialog)
        await hands.press("escape")
        assert hands.engine.states.dims is None
        hands.engine.errors["bind"] = Misuse("the model cannot be of that size")
        await hands.press("D", "3", "enter")
        assert "cannot be of that size" in hands.dialog()
        await hands.press("escape")
        assert "batch=?" in hands.strip(TitleBar)


@pytest.mark.slow
async def test_a_model_without_open_sizes_says_so_and_one_of_hundreds_can_be_scrolled() -> None:
    known = alexnet()
    fixed = replace(known, info=replace(known.info, assumptions={}))
    async with screen(ScriptedEngine(fixed)) as hands:
        await hands.press("D")
        assert isinstance(hands.pilot.app.screen, MainScreen)
        assert "this model leaves no size open" in hands.strip(Status)
    async with screen(engine(*(f"\x1b[2J{at}" for at in range(100)))) as hands:
        await hands.press("D")
        await hands.burst(*["down"] * 30, "7")
        entry = hands.pilot.app.focused
        assert isinstance(entry, Input)
        assert entry.region.bottom <= 24
        assert "36 more have no field: they are bound when the model is opened" in hands.dialog()
        await hands.press("enter")
        assert hands.engine.states.dims == {"\x1b[2J30": 7}
        assert "\x1b" not in hands.strip(TitleBar)
