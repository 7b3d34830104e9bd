"""Screens that are closed at once: what was to happen on them later happens to nobody."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from textual.app import App
from textual.events import Compose, Event, Key, Resize
from textual.geometry import Size
from textual.screen import Screen
from textual.widget import Widget

from explorer.base.errors import Misuse
from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.compat import ReportingApp
from explorer.tui.dialogs.dialogs import AnsweredOnce, MenuItem, PickDialog
from explorer.tui.screen.main import MainScreen
from explorer.tui.terminal.slices import call_after_paint
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import Status
from tests.terminal import ROOT
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine

_KEYS = sorted({command.keys[0] for command in COMMANDS if command.keys} - {"q", "escape", "O"})
"""Keys of the main screen. `O` reads names from torch, which takes seconds."""


class RefusingEngine(ScriptedEngine):
    """Refuses what is not in the script."""

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_") or name.startswith("__"):
            raise AttributeError(name)

        def refuse(*args: Any, **kwargs: Any) -> None:
            raise Misuse(f"no script has {name}")

        return refuse


async def test_a_call_after_the_paint_is_of_the_screen_that_asked_for_it() -> None:
    called: list[str] = []
    app: App[None] = App()
    async with app.run_test() as pilot:
        gone = Screen[None]()
        await app.push_screen(gone)
        call_after_paint(gone, lambda: called.append("gone"))
        call_after_paint(app.screen_stack[0], lambda: called.append("here"))
        await app.pop_screen()
        app.screen.refresh()
        await pilot.pause()
        await pilot.pause()
    assert called == ["here"]


class _Plain(AnsweredOnce[None]):
    """A dialog without the colors of the program."""

    CSS_PATH = None  # type: ignore[assignment]


async def test_other_events_go_between_the_two_layouts_of_a_dialog_that_opens() -> None:
    order: list[str] = []
    app: App[None] = App()
    async with app.run_test() as pilot:
        dialog = _Plain()

        def record(_: object) -> None:
            order.append("layout")
            asyncio.get_running_loop().call_soon(order.append, "other")

        dialog.screen_layout_refresh_signal.subscribe(app, record, immediate=True)
        await app.push_screen(dialog)
        await pilot.pause()
    assert order[:3] == ["layout", "other", "layout"]


@pytest.mark.parametrize("is_removed", [True, False])
async def test_an_error_of_what_is_being_removed_ends_nothing_and_any_other_does(is_removed: bool) -> None:
    def fail() -> None:
        raise LookupError("what it needs is gone")

    app = ReportingApp[int]()
    try:
        async with app.run_test() as pilot:
            shown = Screen[None]()
            await app.push_screen(shown)
            child = Widget()
            await shown.mount(child)
            if is_removed:
                removed = shown.remove()
                assert child.call_later(fail)
                await removed
            else:
                child.call_later(fail)
            await pilot.pause()
    except LookupError:
        assert not is_removed
    assert (app.failure is None) == is_removed


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(8))
async def test_whatever_a_key_opens_may_be_closed_in_the_same_instant(part: int) -> None:
    async with screen(RefusingEngine(tilings=1), size=(120, 36)) as hands:
        for key in _KEYS[part::8]:
            hands.at_once(key)
            size = Size(140 if hands.main.size.width == 120 else 120, 36)
            hands.pilot.app.post_message(Resize(size, size))
            hands.pilot.app.post_message(Key("escape", None))
            await hands.rest()
            for _ in range(6):
                if hands.pilot.app.screen is not hands.main:
                    await hands.press("escape")
            assert hands.pilot.app.screen is hands.main, key


class LoadedPick(PickDialog):
    """A list that has no widgets for a moment, as on a machine with other work."""

    async def on_event(self, event: Event) -> None:
        if isinstance(event, Compose):
            await asyncio.sleep(0.05)
        await super().on_event(event)


async def test_a_key_acts_on_no_screen_that_opens_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with screen() as hands:
        items = [MenuItem(name, name, name) for name in ("one", "two", "three")]

        def open_another(main: MainScreen) -> None:
            hands.pilot.app.push_screen(LoadedPick("Pick", items))

        hands.main.set_focus(None)
        monkeypatch.setattr(MainScreen, "on_key", open_another, raising=False)
        await hands.press("down")
        assert isinstance(hands.pilot.app.screen, LoadedPick)
        assert hands.pilot.app.screen.query_one(LineList).cursor == 0
        monkeypatch.undo()
        await hands.press("down")
        assert hands.pilot.app.screen.query_one(LineList).cursor == 1


async def test_no_command_starts_between_the_history_and_the_layers_of_a_state() -> None:
    async with screen() as hands:
        await hands.tile()
        hands.engine.hold.add("analysis")
        await hands.press("u")
        assert hands.main.store.history_place == 0
        await hands.press("t")
        assert hands.pilot.app.screen is hands.main
        assert "the new state is being read" in hands.strip(Status)
        hands.engine.hold.clear()
        hands.engine.release()
        await hands.rest()
        await hands.press("t")
        assert hands.dialog().startswith("Tile matmuls")


def test_no_module_calls_textual_after_a_refresh_but_the_one_that_looks_who_is_left() -> None:
    callers = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "explorer").rglob("*.py")
        if re.search(r"\.call_after_refresh\(", path.read_text(encoding="utf-8"))
    }
    assert callers == {"explorer/tui/terminal/slices.py"}
