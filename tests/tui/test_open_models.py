"""Several models are open at once: each keeps what it shows, its jobs go on, and quitting asks for each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from explorer.base.errors import Misuse
from explorer.process.client import EngineProcess
from explorer.tui.dialogs.states.figures_screen import FigureScreen
from explorer.tui.models.chooser import ChooserScreen
from explorer.tui.models.open_list import OpenListScreen
from explorer.tui.models.open_models import MAX_OPEN, ModelChoice, OpenModel, OpenModels
from explorer.tui.program import ExplorerApp
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands
from tests.tui.scripted import ScriptedEngine

Sample = Callable[[str], Path]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@asynccontextmanager
async def two(**second: Any) -> AsyncIterator[tuple[Hands, ExplorerApp]]:
    """alexnet.onnx is open, and other.onnx was opened beside it and is on show."""

    def begin(choice: ModelChoice) -> OpenModel:
        return OpenModel(choice.source, ScriptedEngine(**second))

    engine = ScriptedEngine()
    app = ExplorerApp("models/alexnet.onnx", engine, begin=begin)
    async with app.run_test(size=(100, 30)) as pilot:
        hands = Hands(pilot, engine)
        await hands.rest()
        app.show_model(app.begin_model(ModelChoice("models/other.onnx")))
        await hands.rest()
        yield hands, app


def listed(app: ExplorerApp) -> list[str]:
    rows = app.screen.query_one("#open-models", LineList)
    return [line_text(rows.row_line(i, 90)).strip() for i in range(rows.row_count)]


async def test_each_model_keeps_its_own_screen_and_the_list_goes_from_one_to_the_other() -> None:
    async with two() as (hands, app):
        assert "2/2 other.onnx" in hands.strip(TitleBar)
        await hands.press("2")
        assert hands.main.store.tab == "model"
        await hands.press("L")
        assert isinstance(app.screen, OpenListScreen)
        first, second = listed(app)
        assert first.startswith("models/alexnet.onnx")
        assert second.startswith("● models/other.onnx")
        await hands.press("up", "enter")
        assert "1/2 alexnet.onnx" in hands.strip(TitleBar)
        assert hands.main.store.tab == "layer"
        await hands.press("L", "down", "enter")
        assert hands.main.store.tab == "model"


@pytest.mark.slow
async def test_a_model_is_closed_from_the_list_and_behind_the_last_the_chooser_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # whose models the chooser lists; those of the tests take a minute
    async with two() as (hands, app):
        await hands.press("L", "up", "x")
        assert len(listed(app)) == 1
        await hands.press("escape")
        assert "2/2" not in hands.strip(TitleBar)
        await hands.press("L", "x")
        assert isinstance(app.screen, ChooserScreen)
        assert app.models.open == []
        assert hands.engine.closed
        await hands.pilot.press("escape")
    assert app.return_code == 0


@pytest.mark.slow
async def test_the_model_on_show_has_nothing_to_stand_beside_and_it_is_said() -> None:
    async with two() as (hands, app):
        await hands.press("L", "space", "t")
        assert "mark another model than the visible one" in line_text(app.screen.query_one(Status).lines[0])
        await hands.press("equals_sign")
        assert "this is the visible model: choose another" in line_text(app.screen.query_one(Status).lines[0])
        assert isinstance(app.screen, OpenListScreen)


@pytest.mark.slow
async def test_closing_asks_if_something_is_not_saved() -> None:
    async with two() as (hands, app):
        await hands.tile()
        await hands.press("L", "x")
        assert "other.onnx: 'tile 64x64x64' not saved. Close without saving?" in hands.dialog()
        await hands.press("n")
        assert len(app.models.open) == 2
        await hands.press("x", "y")
        assert [model.source for model in app.models.open] == ["models/alexnet.onnx"]


@pytest.mark.slow
async def test_quitting_asks_for_each_changed_model_and_shows_it() -> None:
    async with two() as (hands, app):
        await hands.tile()
        await hands.press("L", "up", "enter")
        await hands.tile()
        await hands.press("q")
        assert "alexnet.onnx: 'tile 64x64x64' not saved. Quit without saving?" in hands.dialog()
        await hands.press("y")
        assert "other.onnx" in hands.strip(TitleBar)
        assert (
            "other.onnx: 'tile 64x64x64' not saved. Quit without saving? To save, press n, then w."
            in hands.dialog()
        )
        await hands.press("n")
        assert app.return_code is None
        assert hands.dialog() == ""
        await hands.press("q", "y")
        await hands.pilot.press("y")
    assert app.return_code == 0


@pytest.mark.slow
async def test_a_job_goes_on_behind_and_its_dialog_waits_with_its_model() -> None:
    async with two(hold=("tile",)) as (hands, app):
        other = app.models.open[1].engine
        await hands.press("t")
        await hands.pilot.press("enter")
        await hands.pilot.pause()
        app.show_model(app.models.open[0])
        await hands.pilot.pause()
        other.release()
        await hands.rest()
        assert hands.dialog() == ""  # alexnet is on show, and nothing lies over it
        app.show_model(app.models.open[1])
        await hands.rest()
        assert hands.dialog() != ""


@pytest.mark.slow
async def test_marked_models_stand_beside_the_one_on_show() -> None:
    async with two() as (hands, app):
        await hands.press("L", "t")  # nothing is marked: nothing happens
        await hands.press("up", "space", "t")
        (asked,) = [(args, kwargs) for m, args, kwargs in app.models.open[1].engine.asked if m == "beside"]
        assert asked == (([0],), {"others": ["models/alexnet.onnx"], "hardware": None})
        assert isinstance(app.screen, FigureScreen)
        assert "2 models beside each other" in "\n".join(map(line_text, app.screen.query_one(TitleBar).lines))
        await hands.press("escape")
        assert isinstance(app.screen, OpenListScreen)


async def test_the_same_file_is_opened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async with two() as (hands, app):
        app.show_model(app.begin_model(ModelChoice("models/alexnet.onnx")))
        await hands.rest()
        assert len(app.models.open) == 2
        assert "1/2 alexnet.onnx" in hands.strip(TitleBar)


def test_more_than_a_few_models_are_refused() -> None:
    models = OpenModels(lambda choice: OpenModel(choice.source, ScriptedEngine()))
    for number in range(MAX_OPEN):
        models.begin(ModelChoice(f"model {number}"))
    with pytest.raises(Misuse, match=f"{MAX_OPEN} models are open; close one first"):
        models.begin(ModelChoice("one more"))


@pytest.mark.slow
def test_engines_that_hold_too_much_rest_and_go_on_when_they_are_asked(sample: Sample) -> None:
    models = OpenModels(lambda choice: OpenModel(choice.source, EngineProcess(choice.source)), memory=1 << 20)
    try:
        first = models.begin(ModelChoice(str(sample("lenet"))))
        models.show(first)
        assert first.engine.submit("info").future.result(120).totals.params == 61_706
        before = first.engine.pid
        assert first.engine.resident > models.memory
        models.show(models.begin(ModelChoice(str(sample("mlp_128")))))
        assert first.engine.pid is None
        assert first.engine.submit("info").future.result(120).totals.params == 61_706
        assert first.engine.pid not in (None, before)
    finally:
        for model in models.open:
            model.close(properly=True)
