"""Panes: the divider between them, the one in use, and its keys."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from textual.widget import Widget

from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import KeyBar, PaneHead
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet


def widths(hands: Hands) -> tuple[int, int]:
    return tuple(hands.main.query_one(pane).region.width for pane in ("#left", "#right"))  # type: ignore[return-value]


def bar(hands: Hands) -> str:
    return line_text(hands.main.query_one(KeyBar).lines[0])


def border(pane: Widget) -> str:
    return pane.styles.border_left[0]


@pytest.mark.slow
async def test_the_divider_is_moved_by_keys_and_by_the_mouse_and_leaves_both_panes_room() -> None:
    async with screen(size=(100, 30)) as hands:
        assert widths(hands) == (60, 40), "the names of the tabs stand beside their numbers"
        await hands.press("less_than_sign", "less_than_sign")
        assert widths(hands) == (52, 48)
        await hands.press("greater_than_sign")
        assert widths(hands) == (56, 44)
        await hands.pilot.mouse_down("#right", offset=(0, 5))
        await hands.pilot.hover("#panes", offset=(60, 9))
        await hands.pilot.mouse_up("#panes", offset=(60, 9))
        await hands.rest()
        assert widths(hands) == (60, 40)
        await hands.pilot.hover("#left", offset=(20, 9))
        assert widths(hands) == (60, 40), "it was let go"
        await hands.press(*["less_than_sign"] * 30)
        assert widths(hands) == (20, 80)
        await hands.press(*["greater_than_sign"] * 30)
        assert widths(hands) == (60, 40), "a page's figures stay whole"
        await hands.pilot.resize_terminal(200, 30)
        await hands.rest()
        assert widths(hands) == (128, 72), "where there is room it goes on"


@pytest.mark.slow
async def test_until_it_is_moved_the_table_has_what_its_columns_need_and_a_plot_has_half() -> None:
    async with screen(size=(100, 30)) as hands:
        head, tree = hands.main.query_one("#tree-head", PaneHead), hands.main.query_one(LayerTree)
        for width in (100, 120, 140, 200):
            await hands.pilot.resize_terminal(width, 30)
            await hands.rest()
            titles = line_text(head.lines[0]).replace("activ.", "activations").split()[2:]
            columns = ["kind", "output", "MACs", "share", "params", "activations"]
            assert titles[:6] == columns[: 3 if width == 100 else 6]
            rows = [line_text(tree.row_line(at, tree.size.width)) for at in range(tree.row_count)]
            assert not any("…" in row[:14] for row in rows), "names are whole"
        assert titles[6:] == ["read"]
        await hands.press("5")
        assert widths(hands) == (100, 100)
        await hands.press("1")
        assert widths(hands) == (120, 80)
        await hands.pilot.resize_terminal(80, 30)
        await hands.rest()
        assert widths(hands) == (40, 40)
        await hands.press("less_than_sign", "5")
        assert widths(hands) == (36, 44), "it stays where it was moved to"


@pytest.mark.parametrize("remote", [False, True])
async def test_the_right_pane_keeps_40_cells_and_a_word_for_each_tab(remote: bool) -> None:
    async with screen(size=(80, 24), remote=remote) as hands:
        head, tabs = hands.main.query_one("#tree-head", PaneHead), hands.main.query_one("#tabs", PaneHead)
        for width in (80, 91, 100, 140):
            await hands.pilot.resize_terminal(width, 24)
            for tab in "15":
                await hands.press(tab)
                left, right = widths(hands)
                assert right >= 40, width
                assert left + right == width
                words = ["1Lay", "2Mod", "3Op", "4Diff", "5Mem", "6Roof"]
                titles = line_text(tabs.lines[0]).replace(" ", "")
                assert [word for word in words if word not in titles] == []
                assert " kind " in line_text(head.lines[0])


async def test_a_formula_is_broken_before_its_operators_and_takes_few_lines() -> None:
    async with screen(size=(80, 24)) as hands:
        await hands.press("down")
        lines = [line_text(line).rstrip() for line in hands.main.query_one("#layer", LineView).lines]
        start = next(at for at, line in enumerate(lines) if " MACs" in line)
        formula = lines[start : start + 1] + [
            line for line in lines[start + 1 : start + 5] if line.startswith("   ")
        ]
        assert len(formula) <= 4
        assert all(line.split()[0] in "×=" for line in formula[1:]), formula


async def test_a_narrow_terminal_shows_one_pane_and_tab_flips() -> None:
    async with screen(size=(60, 15)) as hands:
        left, right = (hands.main.query_one(pane) for pane in ("#left", "#right"))
        assert (left.display, right.display) == (True, False)
        assert left.size.width == 60
        await hands.press("down", "tab")
        assert (left.display, right.display) == (False, True)
        assert "features.0" in hands.text("#layer")
        await hands.press("tab")
        assert (left.display, right.display) == (True, False)
        await hands.press("5")
        assert hands.main.query_one("#memory").has_focus
        assert right.display
        await hands.press("slash", *"gemm", "enter")
        assert left.display, "who looks for layers sees them"
        assert len(hands.tree()) == 4
        await hands.pilot.resize_terminal(100, 15)
        await hands.rest()
        assert left.display
        assert right.display


async def test_the_border_marks_the_pane_in_use_and_the_bar_below_has_its_keys() -> None:
    async with screen(size=(100, 30)) as hands:
        left, right = (hands.main.query_one(pane) for pane in ("#left", "#right"))
        assert (border(left), border(right)) == ("outer", "vkey")
        assert "s sort" in bar(hands)
        await hands.press("tab")
        assert (border(left), border(right)) == ("blank", "outer")
        assert "V values" in bar(hands)
        assert "s sort" not in bar(hands)
        await hands.press("6")
        assert "m machine" in bar(hands)
        x = bar(hands).index("machine") + 2
        await hands.pilot.click("KeyBar", offset=(x, 0))
        await hands.rest()
        assert hands.dialog().startswith("The machine")


async def test_the_tree_gets_what_long_kinds_need_and_leaves_the_right_pane_40_cells() -> None:
    opened = alexnet()
    layers = [replace(layer, kind="BatchNormalization") for layer in opened.layers]
    async with screen(ScriptedEngine(replace(opened, layers=layers))) as hands:
        for width in (100, 120, 140, 200):
            await hands.pilot.resize_terminal(width, 30)
            await hands.rest()
            tree = hands.main.query_one(LayerTree)
            rows = [line_text(tree.row_line(at, tree.size.width)) for at in range(tree.row_count)]
            assert all("BatchNormalization" in row for row in rows), width
            assert widths(hands)[1] >= 40
