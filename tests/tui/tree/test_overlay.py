"""Figures from outside, and providers of onnxruntime, as columns of the layer tree on the screen."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from explorer.facts.external.overlay import Overlay, OverlayColumn
from explorer.tui.text.lines import line_text
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.overlay_rows import show_overlay
from explorer.tui.tree.rows import find_metric, list_columns
from explorer.tui.tree.table import list_chosen_columns
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import blocks


@pytest.fixture
def profile(tmp_path: Path) -> str:
    path = tmp_path / "p.csv"
    path.write_text("layer,latency (us)\nfeatures.0,12.5\nfeatures.3,101\nnobody,1\n", encoding="utf-8")
    return str(path)


def line(hands: Hands, name: str) -> str:
    tree = hands.main.query_one(LayerTree)
    lines = [line_text(tree.row_line(at, 100)) for at in range(tree.row_count)]
    return next(text for text in lines if f" {name} " in text)


async def test_a_file_named_on_the_command_line_is_a_column_that_sums_sorts_and_filters(profile: str) -> None:
    async with screen(size=(160, 40), overlays=(profile,)) as hands:
        assert "2 of 3 rows matched: latency; no layer is nobody" in hands.strip(Status)
        assert "114 µs" in line(hands, "features")
        assert "12.5 µs" in line(hands, "0")
        tree = hands.main.query_one(LayerTree)
        hands.main.panes.move_to_layer([layer.path for layer in tree.model.layers].index("features.0"))
        await hands.rest()
        assert "latency 12.5 µs 11.0 %" in " ".join(hands.text("#layer").split())
        hands.main.panes.sort_by("latency")
        await hands.rest()
        conv = [tree.model.layers[row].path for row in tree.model.rows if row >= 0]
        assert conv.index("features.3") < conv.index("features.0") < conv.index("features.6")
        await hands.press("slash", *"latency>50us", "enter")
        assert {tree.model.layers[at].path for at in tree.model.matches or ()} == {"features.3"}


@pytest.mark.slow
async def test_x_lays_a_file_over_the_layers_keeps_it_over_a_tiling_and_takes_it_away(
    profile: str, tmp_path: Path
) -> None:
    async with screen(size=(160, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        await hands.press("X")
        assert "Figures from a file" in hands.dialog()
        await hands.press(*profile, "enter")
        assert list_chosen_columns(tree.model)[:3] == ["kind", "output", "latency"]
        assert tree.model.metric.id == "latency", "the one that has room where others have none"
        await hands.press("C")
        assert "latency" in "".join(row for row in hands.pilot.app.screen._rows.rows)  # type: ignore[attr-defined]
        await hands.press("escape")
        await hands.tile()
        assert list_chosen_columns(tree.model)[:3] == ["kind", "output", "latency"]
        assert hands.main.store.overlays == (profile,)
        assert tree.model.overlay is not None
        await hands.press("x")
        await hands.press(*("backspace",) * 40, *str(tmp_path / "out.csv"), "enter")
        rows = csv.DictReader((tmp_path / "out.csv").read_text(encoding="utf-8").splitlines())
        assert {row["path"]: row["latency"] for row in rows}["features.0"] == "1.25e-05"
        await hands.press("X", "enter")
        assert tree.model.overlay is None
        assert "latency" not in list_chosen_columns(tree.model)


@pytest.mark.slow
async def test_a_file_that_is_none_is_told_and_changes_nothing(tmp_path: Path) -> None:
    async with screen(size=(160, 40)) as hands:
        await hands.press("X", *str(tmp_path / "none.csv"), "enter")
        assert "cannot be read" in hands.dialog()
        assert hands.main.store.overlays == ()


@pytest.mark.slow
async def test_the_column_of_providers_asks_onnxruntime_and_filters() -> None:
    async with screen(size=(160, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        hands.main.panes.rearrange(lambda model: model.set_columns(("provider", "macs")))
        await hands.rest()
        assert "CUDA" in line(hands, "0")
        assert "CPU" in line(hands, "relu0")
        await hands.press("slash", *"provider:cuda", "enter")
        assert {tree.model.layers[at].kind for at in tree.model.matches or ()} == {"Conv"}


@pytest.mark.parametrize(("over", "wanted"), [("sum", 6), ("max", 3), ("min", 1), ("mean", 2)])
def test_a_run_of_equal_blocks_has_what_its_blocks_have_together(over: str, wanted: float) -> None:
    model = TreeModel(blocks(12).layers)
    run = next(row for row in model.rows if row < 0)
    first = dict(zip(model.members(run), (1.0, 2.0, 3.0), strict=False))
    column = OverlayColumn("heat", "heat", "number", over)  # type: ignore[arg-type]
    show_overlay(model, Overlay(("f",), (column,), {"heat": first}, 3, 3, 3))
    metric = find_metric("heat", list_columns(model))
    assert metric is not None
    assert model.figure(run, metric) == (wanted, "")
