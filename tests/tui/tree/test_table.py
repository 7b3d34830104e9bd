"""The layer tree as a table: from 100 columns of the terminal on, with the columns that its user chose."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace

from explorer.facts import Layer
from explorer.facts.roofline import Machine
from explorer.settings.columns import COLUMNS
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import MEASURED, METRICS
from explorer.tui.tree.table import DEFAULT_COLUMNS, choose_look, find_uncut_width, place_columns
from explorer.tui.tree.widget import LayerTree, draw_table_line, draw_tree_head
from explorer.tui.widgets.strips import PaneHead, Status
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, alexnet, blocks


def drawn(model: TreeModel, width: int, *, exact: bool = False) -> list[str]:
    laid = place_columns(model, width, exact=exact)
    lines = [draw_tree_head(model, "", width, focused=True, layout=laid)]
    look = choose_look(alexnet().info.totals, exact=exact)
    lines += [draw_table_line(model, row, laid, look) for row in model.rows]
    assert {line_width(line) for line in lines[1:]} == {width}
    return [line_text(line) for line in lines]


def test_more_columns_stand_beside_the_names_as_the_width_allows() -> None:
    model = TreeModel(alexnet().layers)
    assert drawn(model, 38)[0].split()[2:] == ["kind", "MACs"]
    assert drawn(model, 60)[0].split()[2:] == ["kind", "output", "MACs"]
    wide = drawn(model, 140)[0].split()[2:]
    assert wide[:7] == ["kind", "output", "MACs", "share", "params", "activations", "read"]
    row = next(line for line in drawn(model, 100) if " Linear" in line or " Gemm" in line)
    assert re.search(r" 37\.\d M +5\.3 % +37\.8 M", row), row
    assert "37,748,736" in "".join(drawn(model, 140, exact=True))


def test_at_least_nothing_is_shown_as_unknown() -> None:
    known = [
        replace(layer, status="unknown", macs=0 if layer.path == "classifier" else layer.macs)
        for layer in alexnet().layers
    ]
    lines = drawn(TreeModel(known), 60)
    assert any("≥" in line for line in lines), "of the others something is known"
    (line,) = (line for line in lines if "classifier " in line)
    assert "≥" not in line
    assert line.rstrip().endswith("?")


def test_digits_stand_below_each_other_and_a_run_is_its_sum() -> None:
    model = TreeModel(blocks(12).layers)
    run = drawn(model, 80)[2]
    assert "×12" in run
    assert "12.0 k" in run


def test_columns_are_chosen_and_ordered_and_the_sorted_one_always_stands_there() -> None:
    model = TreeModel(alexnet().layers)
    model.set_columns(("params", "kind"))
    assert drawn(model, 80)[0].split()[2:] == ["params", "kind", "MACs"]
    model.sort_by(METRICS[2])
    assert drawn(model, 80)[0].split()[2:] == ["params", "kind", "▾weights"]
    model.sort_by(METRICS[2])
    assert "▴weights" in drawn(model, 80)[0]
    known = [model.value(row)[0] or 0 for row in model.children(None)]
    assert known == sorted(known)
    model.sort_by(METRICS[2])
    assert not model.by_cost


@pytest.mark.slow
async def test_the_dialog_shows_hides_and_moves_columns_and_a_click_on_a_head_sorts() -> None:
    async with screen(size=(120, 40)) as hands:
        head = hands.strip(PaneHead, "#tree-head")
        assert head.split()[2:] == ["kind", "output", "MACs", "share", "params", "activ."]
        await hands.press("C", "space", "down", "right", "right", "enter")
        assert hands.dialog() == ""
        titles = ["MACs", "share", "output", "params", "activ.", "read"]
        assert hands.strip(PaneHead, "#tree-head").split()[2:] == titles
        x = hands.strip(PaneHead, "#tree-head").index("params") + 2
        await hands.pilot.click("#tree-head", offset=(x, 0))
        await hands.rest()
        assert "▾params" in hands.strip(PaneHead, "#tree-head")
        tree = hands.main.query_one(LayerTree)
        assert "classifier" in line_text(tree.row_line(0, 60))
        await hands.tile()
        assert hands.main.query_one(LayerTree).model.columns[:3] == ("macs", "share", "output")
        await hands.press("C", "r", "enter")
        assert hands.main.query_one(LayerTree).model.columns == ()


async def test_the_tree_is_sorted_by_any_column_either_way_once_the_engine_has_told_of_all_rows() -> None:
    engine = ScriptedEngine(hold=("column",))
    async with screen(engine, size=(120, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        await hands.press("C", *["down"] * 6, "left", "left", "left", "left", "left", "enter")
        x = hands.strip(PaneHead, "#tree-head").index("read") + 2
        await hands.pilot.click("#tree-head", offset=(x, 0))
        await hands.rest()
        assert "▾read" in hands.strip(PaneHead, "#tree-head")
        assert ("column", ("read",), {}) in engine.asked
        assert tree.model.layers[tree.model.rows[0]].path == "features", (
            "as executed, until there is an answer"
        )
        engine.release()
        await hands.rest()
        first = [tree.model.layers[row].path for row in tree.model.children(None)]
        assert first == ["classifier", "features"]
        assert hands.at() == "classifier"
        assert " classifier\n" in hands.text("#layer"), "the page is of the row that came to the cursor"
        await hands.press("s")
        assert [tree.model.layers[row].path for row in tree.model.children(None)] == first[::-1]


@pytest.mark.slow
async def test_the_least_time_is_asked_for_when_a_machine_is_known_and_stays_dimmed_until_the_next() -> None:
    engine = ScriptedEngine()
    async with screen(engine, size=(120, 40)) as hands:
        tree = hands.main.query_one(LayerTree)
        at = [*DEFAULT_COLUMNS, *(name for name in COLUMNS if name not in DEFAULT_COLUMNS)].index("time")
        await hands.press("C", *["down"] * at, "space", *["left"] * at, "enter")
        assert "'time' needs a machine" in hands.strip(Status)
        hands.main.store.use_machine(Machine("one", 1e12, 1e11))
        await hands.rest()
        shown = tree.row_line(1, 60)
        assert any("µs" in piece for piece, _ in shown), shown
        engine.hold.add("column")
        hands.main.store.use_machine(Machine("half", 5e11, 5e10))
        await hands.rest()
        stale = tree.row_line(1, 60)
        assert line_text(stale) == line_text(shown)
        assert "dim" in [role for piece, role in stale if "µs" in piece]
        engine.release()
        await hands.rest()
        assert line_text(tree.row_line(1, 60)) != line_text(shown)


def _bars(model: TreeModel, width: int, *, letters: bool = False) -> dict[str, float]:
    """Length of the bar of each visible layer, in cells."""
    laid, look = place_columns(model, width, exact=False), choose_look(alexnet().info.totals, letters=letters)
    lines = {model.layers[row].path: draw_table_line(model, row, laid, look) for row in model.rows}
    bars = {path: "".join(text for text, role in line if role == "bar") for path, line in lines.items()}
    return {path: sum(" ▏▎▍▌▋▊▉█".index(char) / 8 for char in bar) for path, bar in bars.items()}


@pytest.mark.parametrize("letters", [False, True])
def test_bars_have_one_scale_the_largest_layer_of_the_tree(letters: bool) -> None:
    model = TreeModel(alexnet().layers)
    full = place_columns(model, 60, exact=False).bar
    bars, leaves = _bars(model, 60, letters=letters), [layer for layer in model.layers if not layer.group]
    largest = max(layer.macs or 0 for layer in leaves)
    assert full >= 3
    for layer in leaves:
        share = full * (layer.macs or 0) / largest
        assert bars[layer.path] == pytest.approx(share, abs=1 / 8), layer.path
    assert max(bars.values()) == full
    assert {bars[layer.path] for layer in model.layers if layer.group} == {0}, "a group contains other rows"


def test_only_the_sorted_column_has_bars_and_families_keep_their_colors() -> None:
    model = TreeModel(alexnet().layers)
    model.set_metric(METRICS[1])
    laid, look = place_columns(model, 140, exact=False), choose_look(alexnet().info.totals)
    (params,) = (place for place in laid.columns if place.name == "params")
    row = next(row for row in model.rows if model.layers[row].path == "classifier.1")
    line = draw_table_line(model, row, laid, look)
    assert [role for _, role in line].count("bar") == 1
    assert line_text(line)[params.start :].startswith("█" * laid.bar)
    assert "matmul" in [role for _, role in line]
    assert "C Conv" in line_text(
        draw_table_line(model, 1, laid, choose_look(alexnet().info.totals, letters=True))
    )


def test_a_run_has_no_bar_and_neither_has_a_figure_that_nobody_knows() -> None:
    model = TreeModel(blocks(12).layers)
    assert set(_bars(model, 60).values()) == {0}, "the sum of a run is not a layer"
    model = TreeModel([replace(layer, macs=None) for layer in alexnet().layers])
    model.set_metric(METRICS[0])
    assert set(_bars(model, 60).values()) == {0}


@pytest.mark.parametrize("flat", [False, True])
def test_long_names_on_a_page_differ_in_tree_and_flat_list(flat: bool) -> None:
    first = next(layer for layer in alexnet().layers if not layer.group)
    names = [
        f"resnetv15_stage{stage}_unit{unit}_conv{conv}_batch_normalization"
        for stage in range(4)
        for unit in range(5)
        for conv in range(3)
    ]
    model = TreeModel(
        [
            replace(first, id=at, parent=None, depth=0, name=name, path=name, repeat=1)
            for at, name in enumerate(names)
        ]
    )
    model.set_flat(flat)
    for width in (38, 60):
        laid, look = place_columns(model, width, exact=False), choose_look(alexnet().info.totals)
        shown = [line_text(draw_table_line(model, row, laid, look))[: laid.name] for row in model.rows]
        assert len(set(shown)) == len(names)


def test_columns_are_left_out_from_the_right_and_the_kind_goes_last() -> None:
    deep = [replace(layer, depth=layer.depth + 6 * (not layer.group)) for layer in alexnet().layers]
    order = ["kind", "output", "macs", "share", "params", "activations"]
    for layers in (alexnet().layers, deep):
        model, previous = TreeModel(layers), 0
        for width in range(12, 140):
            laid = place_columns(model, width, exact=False)
            names = [place.name for place in laid.columns]
            shown = [name for name in order if name in names]
            assert names[: len(shown)] == shown
            if names not in ([], ["kind"], ["kind", "macs"]):
                assert shown == order[: len(shown)], width
            assert len(names) >= previous, width
            assert "kind" in names or not names
            assert "kind" in names or width < 27
            previous = len(names)


def test_deep_names_are_whole_in_a_terminal_of_60_columns_and_figures_give_way() -> None:
    layers = [
        Layer(id=at, parent=at - 1 if at else None, path="", name=name, kind="Block", depth=at, group=at < 4)
        for at, name in enumerate(
            ("encoder", "layers", "encoder_layer_3", "self_attention", "out_projection")
        )
    ]
    model = TreeModel(layers)
    model.open_rows = set(range(4))
    model.rebuild()
    head, *rows = drawn(model, 60)
    assert [row.split()[row.split()[0] in "▾▸"] for row in rows] == [layer.name for layer in layers]
    assert "kind" in head
    assert "MACs" in head


def test_all_layers_stand_in_one_list_sorted_together() -> None:
    model = TreeModel(alexnet().layers)
    opened = list(model.rows)
    model.set_order(by_cost=True)
    model.set_flat(True)
    figures = [model.value(row)[0] or 0 for row in model.rows]
    assert figures == sorted(figures, reverse=True)
    assert len(figures) == sum(not layer.group for layer in alexnet().layers)
    assert drawn(model, 80)[1].split()[0] == "features.3"
    assert not any(model.is_expandable(row) for row in model.rows)
    assert model.rows[model.reveal(3)] == 3
    group = next(layer.id for layer in alexnet().layers if layer.group)
    at = model.reveal(group)
    assert model.rows[at] == group, "what is in no list is shown in the tree"
    assert not model.flat
    model.set_order(by_cost=False)
    assert model.rows == opened


@pytest.mark.slow
async def test_a_filter_and_a_flat_list_go_together() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("F", "slash", *"op:gemm", "enter")
        assert [line.split()[0] for line in hands.tree()] == ["classifier.1", "classifier.4", "classifier.6"]
        await hands.press("escape")
        assert "flat" in hands.strip(PaneHead, "#tree-head")
        await hands.press("down", "F")
        assert hands.at() == "classifier.4", "the cursor stays where it was"


def test_every_column_can_be_shown() -> None:
    model = TreeModel(alexnet().layers)
    model.set_columns(tuple(COLUMNS))
    model.requested_figures = {
        name: [1.0] * (model.count + 1) for name in MEASURED
    }  # of a model that was timed
    head = drawn(model, 460)[0]
    assert all(column.head[:10] in head for column in COLUMNS.values())


def test_a_flat_list_keeps_the_kind_in_a_terminal_of_100_columns() -> None:
    model = TreeModel(alexnet().layers)
    model.set_flat(True)
    model.set_metric(next(metric for metric in METRICS if metric.id == "activations"))
    assert [place.name for place in place_columns(model, 49, exact=False).columns] == ["kind", "activations"]


def test_the_heading_shows_the_start_that_the_names_lack() -> None:
    start = "decoder.transformer"
    names = [f"{start}.block_{i}.self_attention.output_projection" for i in range(40)]
    first = alexnet().layers[0]
    layers = [
        replace(first, id=i, parent=None, name=name, path=name, kind="Relu", group=False, repeat=1)
        for i, name in enumerate(names)
    ]
    model = TreeModel(layers)
    head, *lines = drawn(model, 110)
    assert "transformer.block…" in head
    assert all(start not in line for line in lines)
    assert all(line.split()[0].startswith((f"{i}.", f"{i}…")) for i, line in enumerate(lines)), lines
    narrow = drawn(model, 56)
    assert len(set(narrow[1:])) == len(names)
    assert start not in narrow[0]
    model.set_filter([0, 1, 2])
    head, *lines = drawn(model, 110)
    assert start not in head
    assert len({line[:28] for line in lines}) == 3


@pytest.mark.parametrize("width", [38, 48, 84])
def test_a_tiled_layer_is_told_from_another_in_a_narrow_column(width: int) -> None:
    layers = [
        replace(layer, kind="ConvTranspose2d" if layer.id == 1 else layer.kind, tiled=layer.id in (1, 4))
        for layer in alexnet().layers
    ]
    lines = drawn(TreeModel(layers), width)
    tiled = [line for line in lines if "▦" in line]
    assert len(tiled) == 2
    assert any("Conv" in line for line in tiled)
    assert "Conv, …" not in "".join(lines)


def _deep_layers() -> list[Layer]:
    first = next(layer for layer in alexnet().layers if not layer.group)
    paths = [
        f"/stages/stages.{stage}/stages.{stage}.{block}/{kind}"
        for stage in range(3)
        for block in range(12)
        for kind in ("ConvTranspose", "BatchNormalization")
    ]
    return [
        replace(first, id=i, parent=None, depth=0, name=path, path=path, kind=path.split("/")[-1], repeat=1)
        for i, path in enumerate(paths)
    ]


def test_kinds_are_whole_before_a_column_is_added_on_the_right() -> None:
    model = TreeModel([replace(layer, name=f"layer_{layer.id}") for layer in _deep_layers()])
    for width in range(50, 140):
        lines = drawn(model, width)
        assert sum("BatchNormalization" in line for line in lines) == 36, width
    needed = find_uncut_width(model)
    assert needed < 100
    head, *lines = drawn(model, needed)
    assert head.split()[2:] == ["kind", "output", "MACs", "share", "params", "activ."]
    assert not any("…" in line for line in lines)
    assert find_uncut_width(model, letters=True) == needed + 2


def test_paths_of_a_flat_list_all_look_alike() -> None:
    model = TreeModel(_deep_layers())
    model.set_flat(True)
    needed = find_uncut_width(model)
    names = [line[2:].split("  ")[0] for line in drawn(model, needed)[1:]]
    assert names[:2] == ["stages.0.0", "stages.0.0"], "the column beside them has the kinds"
    for width in range(60, 200, 20):
        head, *lines = drawn(model, width)
        assert not any("/stages/" in line or "stages.0/stages" in line for line in lines)
        assert "kind" in head
        assert len(set(lines)) == len(lines)
        assert all(line.count("ConvTranspose") + line.count("BatchNormalization") == 1 for line in lines)
    model.set_columns(("macs",))
    assert all("ConvTranspose" in line or "BatchNormalization" in line for line in drawn(model, 60)[1:])
    model.set_constants(range(4))
    model.set_columns(())
    assert drawn(model, 44)[0].split()[:4] == ["Layers", "flat", "+4", "kind"]


def test_kinds_inside_tiled_layers_take_no_column_away() -> None:
    first = next(layer for layer in alexnet().layers if not layer.group)
    tiled = replace(first, id=0, parent=None, depth=0, group=True, tiled=True, repeat=1)
    part = replace(tiled, id=1, parent=0, depth=1, group=False, tiled=False, kind="Split2D_784x25_by_64x64")
    outside = replace(part, id=1, parent=None, depth=0)
    heads = [drawn(TreeModel(layers), 54)[0] for layers in ((tiled, part), (tiled, outside))]
    assert ["output" in head for head in heads] == [True, False]
