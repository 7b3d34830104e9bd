"""The help: `?` opens it everywhere, at the section of what is on show, and typed words search all of it."""

from __future__ import annotations

import pytest
from textual.widgets import Input

from explorer.tui.commands.help_action import KEYS
from explorer.tui.dialogs.dialogs import Choices
from explorer.tui.dialogs.help_index import build_index, find_entries
from explorer.tui.dialogs.manual import HelpDialog
from tests.tui.hands import Hands, screen


def results(hands: Hands) -> list[tuple[str, str]]:
    return [(row.key, row.title) for row in hands.pilot.app.screen.query_one(Choices).rows]


async def ask(hands: Hands, words: str) -> list[tuple[str, str]]:
    await hands.press("question_mark")
    assert isinstance(hands.pilot.app.screen, HelpDialog)
    await hands.press(*("space" if c == " " else c for c in words))
    return results(hands)


async def test_a_word_finds_commands_keys_options_terms_and_headings() -> None:
    async with screen(size=(120, 40)) as hands:
        found = await ask(hands, "tile")
        assert found[0] == ("t", "Tile…")
        assert {"option", "term", "manual", "command"} <= {key for key, _ in found}
        await hands.press("enter")
        assert hands.dialog().startswith("Tile matmuls")


async def test_several_words_must_all_be_there() -> None:
    async with screen(size=(120, 40)) as hands:
        found = await ask(hands, "memory batch")
        assert ("D", "Open sizes…") in found[:3]
        await hands.press("ctrl+u", *"zzzz")
        assert results(hands) == []
        assert "nothing matches 'zzzz'" in hands.pilot.app.screen.query_one(Choices).strip(0, 60).text


async def test_a_key_of_another_screen_is_shown_with_that_screen() -> None:
    async with screen(size=(120, 40)) as hands:
        await ask(hands, "into the tiles")
        rows = hands.pilot.app.screen.query_one(Choices).rows
        keys = [row for row in rows if (row.key, row.title) == ("i", "Into the tiles")]
        assert len({row.tip for row in keys}) == len(keys)
        assert sum(row.tip.startswith("In the ") for row in keys) == len(keys) - 1


async def test_enter_opens_a_term_an_option_and_a_heading_of_the_manual() -> None:
    async with screen(size=(120, 40)) as hands:
        for words, title, text in (
            ("arithmetic intensity", "arithmetic intensity", "memory-bound"),
            ("--granularity", "--granularity", "scale"),
            ("columns filters", "Columns and filters", "explorer layers"),
        ):
            await ask(hands, words)
            await hands.press("enter")
            assert hands.dialog().startswith(title)
            assert text in hands.dialog()
            await hands.press("escape", "escape")
            assert hands.dialog() == ""


def test_headings_of_the_manual_are_found_with_their_pages() -> None:
    index = build_index(KEYS)
    headings = {entry.title: entry.topic for entry in index if entry.kind == "manual"}
    assert headings["Filters"] == "filter"
    assert not any(title.startswith(("#", "$")) for title in headings), "code is not a heading"
    assert find_entries(index, "live")[0].title == "live"
    assert {entry.kind for entry in index} == {"key", "option", "term", "manual", "command"}


_OPEN = {
    "t": "Fields", "S": "Fields", "m": "Fields", "b": "Fields", "%": "Fields",
    "A": "Fields", "Z": "Fields", "comma": "Fields", "C": "Keys of this dialog", "a": "Keys of this dialog",
    "Y": "Keys of this dialog", "x": "Keys of this dialog", "X": "Keys of this dialog",
    "ctrl+p": "Keys of this dialog", "equals_sign": "Keys of this dialog",
}  # fmt: skip


@pytest.mark.sampled(6)
@pytest.mark.parametrize("key", list(_OPEN))
async def test_the_question_mark_opens_the_section_of_every_dialog(key: str) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("end", key)
        below = hands.pilot.app.screen
        assert below is not hands.main
        await hands.press("question_mark")
        assert isinstance(hands.pilot.app.screen, HelpDialog)
        assert hands.dialog().splitlines()[1] == _OPEN[key]
        await hands.press("question_mark")
        assert hands.pilot.app.screen is below, "a second one closes it"


async def test_in_a_filter_the_question_mark_is_a_wildcard_once_something_is_typed() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("slash", *"c", "question_mark")
        assert hands.main.query_one("#filter", Input).value == "c?"
        await hands.press("ctrl+u", "question_mark")
        assert hands.dialog().splitlines()[1] == "Filter"


async def test_a_key_of_another_screen_is_explained_and_not_run() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("a")
        found = await ask(hands, "save model onnx")
        assert found[0] == ("w", "Save…")
        await hands.press("enter")
        assert "Write the current model as ONNX" in hands.dialog()
        assert not hands.pilot.app.screen.query(Input)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [(60, 15), (80, 24), (100, 30), (140, 40), (200, 50)])
async def test_a_dialog_is_as_wide_as_the_terminal_allows(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        for key in ("question_mark", "t", "a", "x"):
            await hands.press(key)
            box = hands.pilot.app.screen.query_one("#box").region
            assert box.width == int(size[0] * 0.96)
            assert box.bottom <= size[1]
            await hands.press("escape")


async def test_a_command_without_a_key_is_shown_with_the_way_to_run_it() -> None:
    async with screen(size=(100, 30)) as hands:
        await hands.press("question_mark")
        text = " ".join(hands.dialog().split())
        assert ": name Code of the module" in text
        assert ": name means that a command has no key: press : and type its name, then Enter." in text
        await hands.press("question_mark", "colon", *"resetcolumns", "enter")
        assert hands.dialog() == ""
