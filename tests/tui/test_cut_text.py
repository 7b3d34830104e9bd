"""What is cut on the screen is told whole under the mouse."""

from __future__ import annotations

import pytest

from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.cut_text import told
from tests.tui.hands import screen


def test_a_shortened_text_is_found_whole_among_others() -> None:
    line = [("  encoder/…query/MatMul  ", ""), ("1.2 M", "number"), ("   Mat… float32", "kind")]
    wide = [[("encoder/layer.3/key/MatMul   MatMul", "")], [("encoder/layer.3/query/MatMul   MatMul", "")]]
    assert told(line, 4, wide) == "encoder/layer.3/query/MatMul"
    assert told(line, 26, wide) == ""
    assert told(line, 34, wide) == "MatMul"
    assert told([("decoder/…", "")], 2, wide) == ""


@pytest.mark.asyncio
async def test_a_name_that_does_not_fit_is_told_under_the_mouse() -> None:
    async with screen(size=(60, 24)) as hands:
        tree = hands.main.query_one(LayerTree)
        rows = [line_text(tree.row_line(y, tree.size.width)) for y in range(tree.row_count)]
        y, x = next((y, row.index("…")) for y, row in enumerate(rows) if "…" in row)
        await hands.pilot.hover(LayerTree, offset=(x + tree.gutter.left, y))
        await hands.rest()
        assert rows[y].split("…")[0].split()[-1] in str(tree.tooltip)
        assert "…" not in str(tree.tooltip)
        await hands.pilot.hover(LayerTree, offset=(0, tree.size.height - 1))
        assert tree.tooltip is None
