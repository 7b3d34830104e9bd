"""What is cut on the screen is told whole under the mouse."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from explorer.facts import TensorInfo
from explorer.tui.text.lines import Line, line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.cut_text import find_full_text
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.option_field import OptionField
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, alexnet


def test_a_shortened_text_is_found_whole_among_others() -> None:
    line = [("  encoder/…query/MatMul  ", ""), ("1.2 M", "number"), ("   Mat… float32", "kind")]
    wide = [[("encoder/layer.3/key/MatMul   MatMul", "")], [("encoder/layer.3/query/MatMul   MatMul", "")]]
    assert find_full_text(line, 4, wide) == "encoder/layer.3/query/MatMul"
    assert find_full_text(line, 26, wide) == ""
    assert find_full_text(line, 34, wide) == "MatMul"
    assert find_full_text([("decoder/…", "")], 2, wide) == ""


def test_what_is_still_cut_with_room_for_everything_is_not_the_whole() -> None:
    wide = [[("BatchNormalization", "")], [("1   BatchNormal… 1x16x32x32", "")]]
    assert find_full_text([("1   BatchN… 1x16x32x32", "")], 6, wide) == "BatchNormalization"


@pytest.mark.asyncio
async def test_a_name_that_does_not_fit_is_told_under_the_mouse() -> None:
    model = alexnet()
    names = [f"/encoder/encoder.{i}/encoder.{i}.attention/query_{i}/MatMul" for i in range(len(model.layers))]
    layers = tuple(replace(layer, name=name) for layer, name in zip(model.layers, names, strict=True))
    async with screen(ScriptedEngine(replace(model, layers=layers)), size=(80, 24)) as hands:
        tree = hands.main.query_one(LayerTree)
        rows = [line_text(tree.row_line(y, tree.size.width)) for y in range(tree.row_count)]
        assert len({row[:16].strip("▾ ") for row in rows}) == len(rows), rows
        for y, row in enumerate(rows):
            if "…" in row:
                await hands.pilot.hover(LayerTree, offset=(row.index("…") + tree.gutter.left, y))
                await hands.rest()
                assert str(tree.tooltip) == names[y]
        assert any("…" in row for row in rows)
        await hands.pilot.hover(LayerTree, offset=(0, tree.size.height - 1))
        assert tree.tooltip is None


@pytest.mark.asyncio
async def test_a_shape_that_does_not_fit_is_told_under_the_mouse() -> None:
    model = alexnet()
    sizes = 1, 1024, "sequence_length", 128
    layers = (
        *model.layers[:-1],
        replace(model.layers[-1], outputs=(TensorInfo("y", "float32", sizes),)),
    )
    async with screen(ScriptedEngine(replace(model, layers=layers)), size=(100, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        row = line_text(tree.row_line(14, tree.size.width))
        await hands.pilot.hover(LayerTree, offset=(row.index("…"), 14))
        await hands.rest()
        assert str(tree.tooltip) == "1x1024xsequence_lengthx128"


@pytest.mark.asyncio
async def test_below_the_last_row_and_where_nothing_is_cut_no_line_is_made_anew() -> None:
    async with screen(size=(140, 40)) as hands:
        await hands.press("3")
        operators = hands.main.query_one("#operators", FoldList)
        assert operators.row_count < operators.size.height
        await hands.pilot.hover("#operators", offset=(3, operators.size.height - 1))
        await hands.press("1")
        page = hands.main.query_one("#layer", LineView)
        made: list[int] = []

        def drawn(width: int) -> list[Line]:
            made.append(width)
            return [(("MACs  70.28 M", ""),)]

        page.show(drawn)
        await hands.rest()
        made.clear()
        await hands.pilot.hover("#layer", offset=(1, 0))
        await hands.pilot.hover("#layer", offset=(1, page.size.height - 1))
        assert made == []


async def test_a_chosen_word_that_is_wider_than_its_field_ends_with_an_ellipsis() -> None:
    async with screen(size=(60, 15)) as hands:
        await hands.press("m")
        fields = hands.pilot.app.screen.query(OptionField)
        lines = {line_text(field.line_at(0)): field for field in fields}
        cut = [line for line, field in lines.items() if field.value not in line]
        assert any("…" in line for line in cut)
        assert all(cell_len(line) <= field.size.width or field.value in line for line, field in lines.items())
