"""Footers: a key stands there whole or not at all, and the way back always does."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from textual import events

from explorer.tui.program import ExplorerApp
from explorer.tui.text.keys import keys_line
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.strips import Status
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine

KEYS = (("Enter", "go"), ("Space", "mark"), ("n N", "difference"), ("Esc", "back"))


async def test_of_two_keys_that_come_together_a_menu_hears_the_first() -> None:
    async with screen() as hands:
        await hands.press("a")
        menu = hands.pilot.app.screen
        for key in "XH":
            menu.post_message(events.Key(key, key))
        await hands.rest()
        assert menu not in hands.pilot.app.screen_stack
        assert len(hands.pilot.app.screen_stack) == 2, "what the first key asked for lies on the main screen"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("opens", ["S", "G", "I", "question_mark"])
async def test_a_key_that_comes_behind_the_one_that_ends_the_program_is_for_nobody(opens: str) -> None:
    app = ExplorerApp("models/alexnet.onnx", ScriptedEngine())
    async with app.run_test() as pilot:
        await pilot.pause()
        for key in ("q", opens):
            app.post_message(events.Key(key, key if len(key) == 1 else "?"))
        while app.is_running:
            await asyncio.sleep(0.01)
    assert app.return_code == 0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("opens", ["H", "question_mark", "L", "m"])
async def test_a_second_answer_takes_nothing_else_away(opens: str) -> None:
    async with screen() as hands:
        await hands.press(opens)
        above = hands.pilot.app.screen
        above.dismiss(None)
        above.dismiss(None)
        await hands.rest()
        assert hands.pilot.app.screen_stack == [hands.main]


@given(st.integers(12, 90), st.text(st.sampled_from("ab é漢"), max_size=40))
def test_keys_are_whole_at_any_width_and_the_way_back_is_there(width: int, said: str) -> None:
    line = keys_line(KEYS, width, said)
    text = line_text(line)
    assert line_width(line) <= width
    assert text.endswith("Esc back")
    assert ("? keys" in text) == (width >= 19), "help stands there wherever there is room for it"
    for key, label in KEYS:
        assert f"{key} {label}" in text or f" {key} " not in text


@pytest.mark.parametrize("keys", [("H",), ("L",)])
async def test_the_way_back_stands_in_the_footer_of_a_narrow_terminal(keys: tuple[str, ...]) -> None:
    async with screen(size=(60, 15)) as hands:
        await hands.press(*keys)
        footer = line_text(list(hands.pilot.app.screen.query(Status))[-1].lines[0])
        assert footer.endswith("Esc back")
        assert "…" not in footer
