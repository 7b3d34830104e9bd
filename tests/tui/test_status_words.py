"""The status line: words about a key go with the next one, a command stays; keys act on the pane in use."""

from __future__ import annotations

import pytest
from rich.cells import cell_len
from textual.theme import Theme
from textual.widgets import Input

from explorer.tui.text.theme import ALL_THEMES, PLAIN_CURSOR
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


@pytest.mark.parametrize("width", [40, 60, 75])
async def test_the_next_key_at_the_end_of_a_message_is_not_cut(width: int) -> None:
    long = (
        "4 matmuls of /encoder/encoder.0/attention/out_proj/MatMul are tiled already · s sorts · u undoes it"
    )
    async with screen(size=(width, 15)) as hands:
        for words in (long, long.replace(" · s sorts · ", ", and ")):
            hands.main.store.say(words)
            await hands.rest()
            line = hands.strip(Status).strip()
            assert line.startswith("4 matmuls of /")
            assert line.endswith("u undoes it")


@pytest.mark.parametrize("size", [(60, 15), (100, 30)])
async def test_examples_in_empty_fields_are_cut_with_an_ellipsis(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        await hands.press("t")
        entry = hands.pilot.app.screen.query_one("#mapping", Input)
        entry.placeholder = (
            "net.toml with the mapping of every matmul in each layer of this and of another model"
        )
        shown = entry.render_line(0).text.rstrip()
        assert cell_len(shown) <= entry.size.width
        assert shown.startswith("net.toml wit")
        assert shown.endswith("…")
        assert entry.placeholder.endswith("another model"), "the help shows it whole"


@pytest.mark.parametrize("theme", [theme for theme in ALL_THEMES if theme.name in PLAIN_CURSOR], ids=str)
async def test_with_16_colors_an_example_differs_from_typed_text_and_a_resting_row_has_one_text_color(
    theme: Theme,
) -> None:
    async with screen(size=(100, 30)) as hands:
        app = hands.pilot.app
        app.register_theme(theme)
        app.theme = theme.name
        await hands.press("down", "tab")
        tree = hands.main.query_one("#tree", LineList)
        row = tree.strip(tree.cursor - tree.scroll_offset.y, tree.size.width)
        styles = [style for text, style, _ in row if style is not None and text.strip()]
        assert not tree.has_focus
        assert len(styles) > 2
        assert len({style.color for style in styles}) == 1
        await hands.press("m")
        entry = app.screen.query_one("#peak", Input)
        example = entry.rich_style + entry.get_component_rich_style("input--placeholder", partial=True)
        assert example.color != entry.rich_style.color


async def test_a_long_command_is_cut_between_its_options() -> None:
    command = "explorer tile models/of/a/long/project/network.onnx -o tiled.onnx --tile 16x16x16 --form lab"
    async with screen(ScriptedEngine(tilings=1), size=(80, 24)) as hands:
        hands.main.store.say("", command)
        await hands.press("down")
        shown = hands.strip(Status).removeprefix(" $ ").partition("  ")[0].rstrip()
    head, _, tail = shown.partition(" … ")
    assert (command[: len(head)], command[-len(tail) :], tail[0]) == (head, tail, "-")
