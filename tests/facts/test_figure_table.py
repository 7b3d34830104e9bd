"""Figures beside each other: what is called the best is the best, whatever is only bounded or not known."""

from __future__ import annotations

from typing import Any

import pytest

from explorer import Misuse
from explorer.facts.comparison import (
    TABLE_FIGURES,
    FigureRow,
    FigureValue,
    build_figure_table,
    build_tilings_table,
)
from explorer.facts.sweep import SweepRow
from explorer.report.layout import Page
from explorer.report.present.compare.compared_figures import build_figure_blocks
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import line_text


def row(name: str, *values: Any, tiled: tuple[int, ...] = ()) -> FigureRow:
    """One figure of several models; a tuple is a value with its sign, None one that has no such figure."""
    columns = []
    for at, value in enumerate(values):
        column = {} if value is None else {name: FigureValue(*value if type(value) is tuple else (value,))}
        columns.append(column | ({"tiled_macs": FigureValue(tiled[at])} if tiled else {}))
    table = build_figure_table([f"m{at}" for at in range(len(values))], columns)
    return next(one for one in table.rows if one.name == name)


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((5, 3, 4), (1,)),
        ((3, 5, 3), (0, 2)),
        ((4, 4, 4), ()),
        ((4, None, 5), (0,)),
        ((4, None), ()),
        ((4, (None,)), ()),
        ((0, (None,)), (0,)),
        ((4, (5, ">= ")), (0,)),
        ((4, (3, ">= ")), ()),
        ((4, (3, "<= ")), (1,)),
        ((4, (5, "<= ")), ()),
        ((4, (1, "~ ")), ()),
        (((2, "<= "), (3, ">= ")), (0,)),
        (((2, "<= "), (2, "<= ")), ()),
    ],
)
def test_the_best_is_what_no_other_can_beat_whatever_is_not_known_of_it(
    values: tuple[Any, ...], best: tuple[int, ...]
) -> None:
    assert row("macs", *values).best == best


def test_more_utilization_and_a_stronger_proof_are_better() -> None:
    assert row("utilisation", 0.2, 0.9, 0.5).best == (1,)
    assert row("verdict_kind", "evidence", "different", "equal", "unproven").best == (2,)
    assert row("worst_error", 1e-7, float("nan"), 1e-9).best == (), "an error that is not a number may be any"
    assert row("tiled_macs", 3, 5).best == (), "more on tiles is neither better nor worse"


def test_who_tiles_less_is_not_better_for_having_fewer_cycles() -> None:
    fair = row("cycles", 100, 50, None, tiled=(9, 9, 9))
    assert (fair.best, fair.unranked) == ((1,), "")
    unfair = row("cycles", 100, 50, tiled=(9, 3))
    assert (unfair.best, unfair.unranked) == ((), "the models run different MACs on tiles")
    assert unfair.ratios == (1, 0.5)


def test_a_module_has_not_fewer_nodes_than_its_export_because_they_are_counted_otherwise() -> None:
    columns = [{"nodes": FigureValue(n), "macs": FigureValue(m)} for n, m in ((153, 9), (222, 8))]
    nodes, macs = sorted(
        build_figure_table(["a", "b"], columns, alike=False).rows, key=lambda r: -len(r.name)
    )
    assert (nodes.best, nodes.unranked) == ((), "a module and a graph count them differently")
    assert macs.best == (1,), "work is work"
    assert build_figure_table(["a", "b"], columns).rows[1].best == (0,)


def test_changes_are_from_the_first_and_of_figures_that_are_known_exactly() -> None:
    assert row("macs", 4, 5, (5, ">= "), None, (None,)).ratios == (1, 1.25, None, None, None)
    assert row("macs", 0, 5).ratios == (None, None), "nothing is a multiple of nothing"
    assert row("verdict_kind", "equal", "evidence").ratios == (None, None)


def test_what_none_of_them_has_is_no_row_and_every_figure_has_a_name() -> None:
    every = {
        name: FigureValue("equal" if unit == "verdict" else 2) for name, (unit, _) in TABLE_FIGURES.items()
    }
    table = build_figure_table(["a", "b"], [every, {}])
    assert len(table.rows) == len(TABLE_FIGURES)
    said = "".join(Page(build_figure_blocks(table), fit=False).plain(ascii_only=False))
    assert sum(line.rstrip().endswith(" -") for line in said.splitlines()) == len(TABLE_FIGURES)
    assert build_figure_table(["a", "b"], [{}, {"macs": FigureValue(None)}]).rows == ()


def test_the_table_says_best_in_words_and_how_far_each_is_from_the_first() -> None:
    columns = [{"macs": FigureValue(n), "params": FigureValue(7)} for n in (1000, 875, 1001, 24_000, 3000)]
    table = build_figure_table(["one", "two", "three", "four", "five"], columns)
    text = "".join(Page(build_figure_blocks(table), fit=False).plain(ascii_only=False))
    macs = next(line.split() for line in text.splitlines() if "MACs" in line)
    assert " ".join(macs) == "MACs 1.00 k best 875 -12.5 % 1.00 k +0.1 % 24.00 k x 24.0 3.00 k +200 %"
    assert next(line.split() for line in text.splitlines() if "Param" in line)[2:4] == ["7", "="]
    narrow = "".join(Page(build_figure_blocks(table, 2), fit=False).plain(ascii_only=False))
    heads = [line.split() for line in narrow.splitlines() if line.split()[-1:] == ["change"]]
    assert heads == [["one", name, "change"] for name in ("two", "three", "four", "five")]


def tiling(size: int, **fields: Any) -> SweepRow:
    return SweepRow("k", "m.onnx", "", "", (size, size, size), "ragged", "auto", "leave", **fields)


@pytest.mark.parametrize("width", [57, 70, 92])
def test_where_there_is_little_room_figures_have_short_names_and_none_is_cut(width: int) -> None:
    columns = [
        {
            name: FigureValue(
                {"verdict": ("equal", "evidence")[at], "seconds": 0.5}.get(unit, 1_021 * 1024 + at)
            )
            for name, (unit, _) in TABLE_FIGURES.items()
        }
        for at in range(2)
    ]
    lines = [
        line_text(line)
        for line in draw(build_figure_blocks(build_figure_table(["as opened", "tiled"], columns)), width)
    ]
    rows = lines[1 : 1 + len(TABLE_FIGURES)]
    assert not [line for line in rows if "…" in line]
    assert any("act. peak " in line or "Activations, peak " in line for line in rows)


def test_tilings_are_called_by_what_tells_them_apart() -> None:
    table = build_tilings_table([tiling(16, cycles=9, macs=4), tiling(32, cycles=8, macs=4)])
    assert table.names == ("16x16x16", "32x32x32")
    assert [one.best for one in table.rows if one.name == "cycles"] == [(1,)]
    with pytest.raises(Misuse, match="nothing to compare with"):
        build_tilings_table([tiling(16, cycles=9, macs=4), tiling(32, error="too large")])
