"""The status line: words about a key go with the next one, a command stays; keys act on the pane in use."""

from __future__ import annotations

import pytest

from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import Status
from tests.hunt.random_hands import shown_fault
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine


async def test_words_about_a_key_go_with_the_next_and_the_command_stays() -> None:
    async with screen(ScriptedEngine(tilings=1)) as hands:
        await hands.press("R")
        assert "rail hidden" in hands.strip(Status)
        await hands.press("R")
        assert "rail hidden" not in hands.strip(Status)
        await hands.press("r")
        assert "nothing to redo" in hands.strip(Status)
        await hands.press("down")
        assert not hands.strip(Status).strip()
        hands.main.store.say("", "explorer tile alexnet.onnx")
        await hands.press("down", "R")
        await hands.press("down")
        assert "explorer tile alexnet.onnx" not in hands.strip(Status), "words replaced it"


async def test_the_sort_key_sorts_the_operators_where_they_are_in_use() -> None:
    def operators() -> list[str]:
        return [line.lstrip("▸ ").split()[0] for line in hands.text("#operators").splitlines()[1:]]

    async with screen() as hands:
        await hands.press("3")
        by_macs, tree = operators(), hands.tree()
        assert by_macs[0] == "Conv"
        seen = [by_macs]
        while True:
            await hands.press("s")
            if operators() == by_macs:
                break
            seen.append(operators())
            assert "operators by" in hands.strip(Status)
            assert len(seen) < 9
        assert sorted(by_macs) in seen
        assert all(sorted(order) == sorted(by_macs) for order in seen)
        assert hands.tree() == tree
        await hands.press("tab", "s")
        assert hands.tree() != tree


async def test_titles_of_columns_follow_numbers_that_are_written_out() -> None:
    async with screen(size=(136, 17)) as hands:
        assert shown_fault(hands.pilot.app) == ""  # type: ignore[arg-type]
        await hands.press("e")
        assert shown_fault(hands.pilot.app) == ""  # type: ignore[arg-type]


async def test_without_colors_the_row_under_the_cursor_has_one_style(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    async with screen(size=(140, 30)) as hands:
        await hands.press("down")
        tree = hands.main.query_one("#tree", LineList)
        strip = tree.strip(tree.cursor - tree.scroll_offset.y, tree.size.width)
        styles = [segment.style for segment in strip if segment.style is not None and segment.text]
        assert len({(style.color, style.bgcolor, style.reverse) for style in styles}) == 1
        assert styles[0].reverse
