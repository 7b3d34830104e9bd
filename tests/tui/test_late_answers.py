"""An engine that answers late: a dialog opens at once, and the keys typed meanwhile are for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from textual.events import Paste
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.features.sweep.sweep_dialogs import SweepDialog
from explorer.features.sweep.sweep_screen import SweepScreen
from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.dialogs.dialogs import Dialog, EntryDialog, MessageDialog
from explorer.tui.dialogs.waiting import WaitingDialog
from explorer.tui.terminal.slices import Slices
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, flat
from tests.tui.test_late_calls import RefusingEngine
from tests.tui.test_sweep import SweepEngine

_WORK = {"v", "B", "d", "f", "V", "u", "r", ";"}
"""Keys that start work which the user may go on reading beside: a proof, a run, another state."""


_LABELS: dict[str, Any] = {"placeholder": "", "hint": "", "required": False}


class AllMethods(set[str]):
    """Every method."""

    def __contains__(self, method: object) -> bool:
        return True


class ConvertingEngine(ScriptedEngine):
    """Knows what a model can become."""

    def _conversions(self) -> Any:
        return [("TensorFlow Lite", (".tflite",))]


async def _wait(hands: Hands) -> WaitingDialog:
    """The dialog that shows that a screen is being prepared."""
    await hands.until(lambda: isinstance(hands.pilot.app.screen, WaitingDialog))
    dialog = hands.pilot.app.screen
    assert isinstance(dialog, WaitingDialog)
    return dialog


def _line(dialog: Dialog[Any]) -> str:
    return line_text(dialog.query_one(Status).lines[0])


async def test_the_dialog_of_a_sweep_opens_before_the_plan_is_there() -> None:
    async with screen(SweepEngine(hold=("plan",)), size=(100, 30)) as hands:
        hands.at_once("S", "8")
        await hands.rest()
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, SweepDialog)
        assert dialog.query_one("#sweep-tiles", Input).value == "8"
        assert "1 tiling · planning…" in hands.dialog()
        hands.engine.release()
        await hands.rest()
        assert "1 tiling of 3 matmuls" in hands.dialog()
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, SweepScreen)
        assert [row.tile for row in hands.pilot.app.screen._rows.rows] == [(8, 8, 8)]


async def test_a_sweep_that_is_begun_while_its_model_is_planned_begins_then() -> None:
    async with screen(SweepEngine(hold=("plan",)), size=(100, 30)) as hands:
        hands.at_once("S", "enter")
        await hands.rest()
        assert isinstance(hands.pilot.app.screen, SweepScreen)
        assert "sweep" not in [method for method, *_ in hands.engine.asked]
        hands.engine.release()
        await hands.rest()
        assert "sweep" in [method for method, *_ in hands.engine.asked]


@pytest.mark.parametrize("keys", [("S",), ("S", "enter"), ("S", "m")])
async def test_a_model_with_nothing_to_tile_closes_the_sweep(keys: tuple[str, ...]) -> None:
    engine = SweepEngine(hold=("plan",), errors={"plan": Misuse("everything is tiled already")})
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press(*keys)
        hands.engine.release()
        await hands.rest()
        for _ in range(3):
            if not isinstance(hands.pilot.app.screen, MessageDialog):
                await hands.press("escape")  # another dialog was above
        assert "everything is tiled already" in hands.dialog()
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main
        await hands.press("S")
        assert "everything is tiled already" in hands.dialog()


async def test_escape_stops_the_plan_of_a_sweep() -> None:
    async with screen(SweepEngine(hold=("plan",)), size=(100, 30)) as hands:
        await hands.press("S", "escape")
        assert hands.pilot.app.screen is hands.main
        assert not hands.engine.waiting


async def test_keys_and_pasted_text_reach_the_dialog_that_opens_late() -> None:
    async with screen(ConvertingEngine(hold=("conversions",))) as hands:
        hands.at_once("W", "end")
        dialog = await _wait(hands)
        assert _line(dialog).strip() == "Convert…"
        await hands.press("x", "1", "/")
        hands.pilot.app.post_message(Paste("a b"))
        await hands.rest()
        assert hands.main.store.query == ""
        hands.engine.release()
        await hands.rest()
        assert isinstance(hands.pilot.app.screen, EntryDialog)
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet.tflitex1/a b"


async def test_a_fast_answer_shows_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise AssertionError("it was shown")

    monkeypatch.setattr(WaitingDialog, "on_mount", fail)
    async with screen(ConvertingEngine()) as hands:
        hands.at_once("W", "end", "x")
        await hands.rest()
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet.tflitex"


async def test_escape_stops_what_a_screen_waits_for_and_later_keys_are_for_the_main_screen() -> None:
    async with screen(ConvertingEngine(hold=("conversions", "serving"))) as hands:
        for key in "W@":
            await hands.press(key)
            await _wait(hands)
            await hands.press("escape")
            assert hands.pilot.app.screen is hands.main, key
            assert "stopped, no change was made" in hands.strip(Status)
        hands.engine.release()
        await hands.rest()
        assert hands.pilot.app.screen is hands.main
        await hands.press("/", "x")
        assert hands.main.query_one(Input).value == "x"


async def test_nobody_agrees_to_a_change_that_was_not_visible() -> None:
    async with screen(RefusingEngine(hold=("fold_choice",))) as hands:
        await hands.press("&")
        await _wait(hands)
        await hands.press("enter")
        hands.engine.release()
        await hands.rest()
        assert "no script has _fold_choice" in hands.dialog()
        assert "fold" not in [method for method, *_ in hands.engine.asked]


async def test_a_search_through_many_layers_keeps_the_keys_for_its_dialog(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ends = asyncio.Event()

    class SlowSlices(Slices):
        def is_over(self) -> bool:
            return True

        async def pause(self) -> None:
            await ends.wait()

    monkeypatch.setattr("explorer.tui.commands.context.Slices", SlowSlices)
    async with screen(ScriptedEngine(flat(3000)), size=(100, 30)) as hands:
        hands.engine.hold.add("history")
        hands.engine.submit("history")  # nobody waits for the search to end while the engine works
        context = hands.main._command_context
        context.call_with_layers(0, 3000, lambda layers: context.ask(EntryDialog("Late", "", "", **_LABELS)))
        await _wait(hands)
        await hands.press("4", "x")
        ends.set()
        hands.engine.release()
        await hands.until(lambda: isinstance(hands.pilot.app.screen, EntryDialog))
        await hands.rest()
        assert hands.pilot.app.screen.query_one(Input).value == "4x"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("part", range(6))
async def test_no_key_opens_a_screen_after_others_went_to_the_main_screen(part: int) -> None:
    keys = sorted({command.keys[0] for command in COMMANDS if command.keys} - {"escape", "O", "q"})
    for key in keys[part::6]:
        async with screen(RefusingEngine(tilings=1), size=(100, 30)) as hands:
            hands.engine.hold = AllMethods()
            hands.at_once(key)
            await hands.rest()
            await asyncio.sleep(0.06)
            await hands.rest()
            opened_at_once = hands.pilot.app.screen is not hands.main
            hands.engine.hold = set()
            while hands.engine.waiting:
                hands.engine.release()
                await hands.rest()
            opened_late = hands.pilot.app.screen is not hands.main and not opened_at_once
            command = next(command for command in COMMANDS if key in command.keys)
            assert not opened_late or command.shown in _WORK, (key, hands.pilot.app.screen)
