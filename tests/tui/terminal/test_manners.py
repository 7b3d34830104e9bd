"""Manners at a terminal: Ctrl+C, Ctrl+Q, Ctrl+Z, terminals that cannot draw, the background, pasted text."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from textual.events import Key, Paste
from textual.widgets import Input

from explorer.process import screen_choices
from explorer.process.screen_choices import ScreenChoices
from explorer.tui.terminal.background import LateAnswer, is_light
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.strips import Status
from tests.terminal import SSH, Terminal, explorer
from tests.tui.hands import Hands, screen

Sample = Callable[[str], Path]


async def _change(hands: Hands) -> None:
    await hands.press("t")
    await hands.press("enter", "escape")


@pytest.mark.parametrize("key", ["ctrl+c", "ctrl+q"])
@pytest.mark.parametrize("above", [(), ("a",), ("G",)])
async def test_a_key_that_quits_asks_about_an_unsaved_model_on_every_screen(
    key: str, above: tuple[str, ...]
) -> None:
    async with screen(size=(120, 40)) as hands:
        await _change(hands)
        await hands.press(*above, key)
        assert "not saved" in hands.dialog()
        screens = len(hands.pilot.app.screen_stack)
        await hands.press(key)
        assert len(hands.pilot.app.screen_stack) == screens, "it asks once"
        await hands.press("n")
        assert hands.pilot.app.return_code is None
    async with screen() as hands:
        await hands.press(key)
        assert hands.pilot.app.return_code == 0, "nothing is lost"


async def test_ctrl_c_copies_what_is_selected() -> None:
    async with screen() as hands:
        await hands.press("x")
        entry = hands.pilot.app.screen.query_one(Input)
        assert entry.selected_text == entry.value
        await hands.press("ctrl+c")
        assert hands.pilot.app.clipboard == entry.value
        await hands.press("end", "ctrl+c")
        assert hands.pilot.app.return_code == 0, "nothing is selected"


@pytest.mark.parametrize("term", ["dumb", "unknown"])
def test_a_terminal_that_cannot_draw_is_refused_in_one_line(sample: Sample, term: str) -> None:
    path = sample("lenet")
    with explorer(path.name, env={"TERM": term}, columns=80, cwd=path.parent) as terminal:
        assert terminal.end() == 2
        lines = [line for line in terminal.written().splitlines() if line.strip()]
        assert len(lines) == 1
        assert f"TERM={term}" in lines[0]
        assert "explorer info" in lines[0]


@pytest.mark.slow
@pytest.mark.parametrize("term", ["", "vt100", "no-such-terminal"])
def test_other_terminals_are_drawn_at_their_size(sample: Sample, term: str) -> None:
    with explorer(sample("lenet"), env={"TERM": term}, columns=90, rows=20) as terminal:
        terminal.wait_for("conv1")
        terminal.settle()
        assert "quit" in terminal.text().splitlines()[19]
        terminal.press("q")
        assert terminal.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("env", [{}, SSH])
def test_ctrl_z_suspends_and_the_screen_comes_back(sample: Sample, env: dict[str, str]) -> None:
    with explorer(sample("lenet"), env=env) as terminal:
        terminal.wait_for("conv1")
        terminal.wait_for("first keys")
        terminal.press("down")  # the message of the start goes with the first key
        terminal.settle()
        shown = terminal.text()
        program = psutil.Process(terminal.process.pid)
        terminal.press("\x1a")
        terminal.wait_for(lambda: program.status() == psutil.STATUS_STOPPED)
        terminal.settle()
        assert terminal.modes() == terminal.modes_before
        terminal.screen.reset()
        os.kill(terminal.process.pid, signal.SIGCONT)
        terminal.wait_for("conv1")
        terminal.settle()
        assert terminal.text() == shown
        terminal.press("2")
        terminal.wait_for("Coverage")


def test_the_brightness_of_a_color_decides() -> None:
    assert is_light(b"\x1b]11;rgb:ffff/ffff/e0e0\x1b\\\x1b[?62;22c") is True
    assert is_light(b"\x1b]11;rgb:1e/1e/2e\x07") is False
    assert is_light(b"\x1b]11;rgba:fdfd/f6f6/e3e3/ffff\x1b\\") is True
    assert is_light(b"\x1b[?62;22c") is None


def _light_cells(terminal: Terminal) -> bool:
    """Whether the background of the tree is white."""
    cell = terminal.screen.buffer[terminal.screen.lines // 2][terminal.screen.columns // 4]
    return cell.bg in ("ffffff", "white", "brightwhite")


@pytest.mark.slow
def test_the_background_chooses_the_theme_until_the_user_does(sample: Sample, tmp_path: Path) -> None:
    state = {"XDG_STATE_HOME": str(tmp_path)}
    for background, is_white in (("ffff/ffff/ffff", True), ("0000/0000/0000", False), ("", False)):
        with explorer(sample("lenet"), env=state, background=background) as terminal:
            terminal.wait_for("conv1")
            terminal.settle()
            assert _light_cells(terminal) == is_white, background
            assert "Layers" in terminal.text(), "the answer ran no key"
    with explorer(sample("lenet"), env=state) as terminal:
        terminal.wait_for("conv1")
        terminal.settle()
        terminal.press("T")
        terminal.settle()
        assert _light_cells(terminal)
        terminal.press("q")
        assert terminal.end() == 0
    with explorer(sample("lenet"), env=state, background="0000/0000/0000") as terminal:
        terminal.wait_for("conv1")
        terminal.settle()
        assert _light_cells(terminal), "the choice is remembered"


def test_the_theme_is_kept_beside_the_other_choices(tmp_path: Path) -> None:
    environment = {"XDG_STATE_HOME": str(tmp_path), "HOME": str(tmp_path)}
    screen_choices.keep(ScreenChoices(columns=("params",), divider=40), environment)
    assert screen_choices.keep_theme(True, environment)
    screen_choices.keep(ScreenChoices(columns=("macs",)), environment)
    kept = screen_choices.load_choices(environment)
    assert (kept.light, kept.columns, kept.divider) == (True, ("macs",), None)


@pytest.mark.parametrize("answer", ["^]11;rgb:1e1e/q", "[?64;1;22c"])
async def test_an_answer_of_the_terminal_that_is_late_runs_no_key(answer: str) -> None:
    names = {"^": "circumflex_accent", "[": "left_square_bracket", "?": "question_mark", "/": "slash"}
    async with screen(late_answer=LateAnswer()) as hands:
        for character in answer:
            hands.pilot.app.post_message(Key(names.get(character, character), character))
        await hands.rest()
        assert hands.dialog() == ""
        assert hands.pilot.app.return_code is None


PASTED = "what is quantized here?\nyes, write it\n"


async def test_text_that_is_pasted_as_keys_runs_no_commands() -> None:
    async with screen() as hands:
        for character in PASTED:
            name = {" ": "space", "?": "question_mark", ",": "comma", "\n": "enter"}.get(character, character)
            hands.pilot.app.post_message(Key(name, "\r" if character == "\n" else character))
        await hands.rest()
        # the terminal did not say that more would come, so the first key is run: w asks for a path
        top = hands.pilot.app.screen
        assert top.query_one(Input).value == PASTED.splitlines()[0][1:]
        assert not any(method == "save" for method, _, _ in hands.engine.asked)


async def test_a_paste_on_the_layers_is_said_and_in_the_filter_it_is_text() -> None:
    async with screen() as hands:
        hands.pilot.app.post_message(Paste("conv\nq"))
        await hands.rest()
        assert "not run as keys" in hands.strip(Status)
        await hands.press("slash")
        hands.pilot.app.post_message(Paste("conv\nq"))
        await hands.rest()
        assert hands.main.query_one(Input).value == "conv"


async def test_keys_that_a_slow_line_brings_together_are_run() -> None:
    async with screen() as hands:
        hands.at_once(*["j"] * 40)
        await hands.rest()
        assert hands.main.query_one(LayerTree).cursor > 3
        hands.at_once("slash", *"op:Conv", "enter")
        await hands.rest()
        assert hands.main.store.query == "op:Conv"


async def test_a_click_on_the_sign_opens_a_row_at_once_and_a_double_click_once() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("minus", "end")
        tree = hands.main.query_one(LayerTree)
        rows = tree.row_count
        text = hands.tree()[0]
        assert tree.cursor != 0
        await hands.pilot.click(LayerTree, offset=(text.index("▸"), 0))
        await hands.rest()
        opened = tree.row_count
        assert opened > rows
        await hands.pilot.click(LayerTree, offset=(10, 0))
        await hands.rest()
        assert tree.row_count == rows, "elsewhere a second click opens and closes it"
