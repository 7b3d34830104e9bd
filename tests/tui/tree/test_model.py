"""Which rows of the tree are on show."""

from __future__ import annotations

import pytest

from explorer.facts import Layer
from explorer.facts.external.overlay import Overlay, OverlayColumn
from explorer.tui.tree.model import MATCHES, TreeModel
from explorer.tui.tree.rows import METRICS, find_metric, list_columns
from tests.tui.scripted import alexnet, blocks, flat


def names(model: TreeModel) -> list[str]:
    return [model.layers[row].name if row >= 0 else f"run of {len(model.members(row))}" for row in model.rows]


def test_a_small_model_is_shown_whole() -> None:
    model = TreeModel(alexnet().layers)
    assert len(model.rows) == len(model.layers)


def test_a_run_of_identical_blocks_is_one_row_until_it_is_opened() -> None:
    model = TreeModel(blocks(12).layers)
    assert names(model)[:3] == ["encoder", "run of 12", "od\x1b[2J[bold red]d"]
    assert model.toggle(1)
    assert names(model)[1:5] == ["run of 12", "layers.0", "layers.1", "layers.2"]
    assert [model.depth(row) for row in model.rows[:3]] == [0, 1, 2]
    model.toggle(2)
    assert names(model)[2:5] == ["layers.0", "MatMul", "Add"]
    assert model.depth(model.rows[3]) == 3
    model.toggle(1)
    assert len(model.rows) == 3


def test_a_run_is_worth_the_sum_of_its_blocks() -> None:
    model = TreeModel(blocks(12).layers)
    assert model.value(model.rows[1]) == (12_000, "")


def test_parameters_that_blocks_share_make_their_sum_an_upper_bound() -> None:
    model = TreeModel(
        (
            Layer(0, None, "a", "a", "Block", 0, True, params=5, repeat=2),
            Layer(1, 0, "a.w", "w", "MatMul", 1, False, params=5, shared_with=("b.w",)),
            Layer(2, None, "b", "b", "Block", 0, True, params=5, repeat=0),
            Layer(3, 2, "b.w", "w", "MatMul", 1, False, params=5, shared_with=("a.w",)),
        )
    )
    model.set_metric(METRICS[1])
    assert model.value(model.rows[0]) == (10, "≤")


def test_all_blocks_of_a_group_have_the_parameters_of_the_group() -> None:
    model = TreeModel(
        (
            Layer(0, None, "g", "g", "Group", 0, True, params=8),
            Layer(1, 0, "g.0", "0", "Block", 1, True, params=5, repeat=2),
            Layer(2, 1, "g.0.w", "w", "MatMul", 2, False, params=5, shared_with=("g.1.w",)),
            Layer(3, 0, "g.1", "1", "Block", 1, True, params=5, repeat=0),
            Layer(4, 3, "g.1.w", "w", "MatMul", 2, False, params=5, shared_with=("g.0.w",)),
        )
    )
    model.set_metric(METRICS[1])
    assert [model.value(row) for row in model.rows] == [(8, ""), (8, "")]


def test_figures_that_rest_on_an_assumption_are_no_bounds() -> None:
    reasons = ("assumed: a value taken as 1", "nonzero")
    model = TreeModel(
        [
            Layer(i, None, text, text, "MatMul", 0, False, macs=3, status="bound", reason=text, assumed=not i)
            for i, text in enumerate(reasons)
        ]
    )
    assert [model.figure(row, METRICS[0]) for row in model.rows] == [(3, "≈"), (3, "≤")]


def test_a_sum_over_rows_that_are_still_being_read_is_a_lower_bound() -> None:
    model = TreeModel(blocks().layers)
    model.is_growing = True
    params = METRICS[1]
    group = next(i for i, layer in enumerate(model.layers) if layer.group)
    leaf = next(i for i, layer in enumerate(model.layers) if not layer.group)
    run = next(row for row in model.rows if row < 0)
    assert model.figure(group, params)[1] == "≥"
    assert model.figure(run, params)[1] == "≥"
    assert model.figure(leaf, params)[1] == ""
    model.is_growing = False
    assert model.figure(group, params)[1] == ""


def test_an_unknown_cost_is_not_zero_and_sorts_last() -> None:
    model = TreeModel(blocks(2).layers)
    assert model.value(model.rows[-1]) == (None, "")
    model.set_order(by_cost=True)
    assert model.value(model.rows[-1]) == (None, "")


def test_sorting_orders_siblings_and_keeps_the_hierarchy() -> None:
    model = TreeModel(alexnet().layers)
    model.set_order(by_cost=True)
    assert [model.layers[r].path for r in model.rows[:4]] == [
        "features",
        "features.3",
        "features.8",
        "features.6",
    ]
    model.set_metric(METRICS[2])
    assert [model.layers[r].path for r in model.rows[:2]] == ["classifier", "classifier.1"]
    model.set_order(by_cost=False)
    assert model.rows == sorted(model.rows)


def test_a_filter_shows_matches_and_what_they_lie_in() -> None:
    model = TreeModel(blocks(12).layers)
    match = next(x.id for x in model.layers if x.path == "encoder.layers.7.MatMul")
    model.set_filter([match])
    assert names(model) == ["encoder", "layers.7", "MatMul"]
    model.toggle(0)
    assert names(model) == ["encoder"]
    model.set_filter(None)
    at = model.reveal(match)
    assert model.rows[at] == match


def test_a_large_group_that_matches_as_a_whole_is_one_row_until_it_is_opened() -> None:
    tiles = [Layer(at, 0, f"conv/tile{at}", f"tile{at}", "MatMul", 1, False) for at in range(1, 31)]
    layers = (
        Layer(0, None, "conv", "conv", "tiled", 0, True),
        *tiles,
        Layer(31, None, "relu", "relu", "Relu", 0, False),
    )
    model = TreeModel(layers)
    model.set_filter(range(31))
    assert names(model) == ["conv"]
    model.toggle(0)
    assert len(names(model)) == 31
    model.set_filter(range(0, 31, 2))
    assert len(names(model)) == 16, "some of its layers were asked for, not the group"
    model.set_filter([0, *range(1, 5)])
    assert model.add_matches(range(5, 31))
    assert names(model) == ["conv"], "also where the matches come little by little"


def test_groups_that_are_new_under_a_filter_stay_closed() -> None:
    model = TreeModel(alexnet().layers)
    conv = next(x.id for x in model.layers if x.path == "features.3")
    gemm = next(x.id for x in model.layers if x.path == "classifier.1")
    model.set_filter([conv, gemm])
    assert model.open_matches == {"features", "classifier"}
    model.set_filter([conv, gemm], frozenset([model.structure.parent[gemm]]))
    assert names(model) == ["features", "classifier", "1"]
    model.set_filter(None)
    assert model.open_matches is None


def test_after_a_change_the_same_rows_are_open() -> None:
    before = TreeModel(alexnet().layers)
    before.toggle(0)
    before.set_metric(METRICS[1])
    tiled = (
        *alexnet().layers,
        Layer(15, None, "new", "new", "tiled", 0, True),
        Layer(16, 15, "x", "x", "2DMM", 1, False),
    )
    after = TreeModel(tiled)
    after.apply_shape(before.shape)
    assert names(after) == ["features", "classifier", "1", "4", "6", "new"]
    assert after.metric is METRICS[1]


def test_closing_goes_to_the_parent() -> None:
    model = TreeModel(alexnet().layers)
    assert model.parent_index(3) == 0
    assert model.parent_index(0) is None
    model.fold_all()
    assert names(model) == ["features", "classifier"]


@pytest.mark.slow
def test_very_many_siblings_lie_in_ranges_that_open() -> None:
    model = TreeModel(flat(200_000).layers)
    assert len(model.rows) == 200
    assert model.layers[model.members(model.rows[-1])[-1]].name == "node_199999"
    at = model.reveal(123_456)
    assert model.rows[at] == 123_456
    assert len(model.rows) == 200 + 1_000
    assert model.depth(123_456) == 1
    assert model.rows[model.parent_index(at) or 0] == model.rows[123]
    model.toggle(123)
    assert len(model.rows) == 200


def test_a_range_is_worth_the_sum_of_what_is_in_it() -> None:
    layers = flat(5_001).layers
    model = TreeModel(layers)
    worth = [model.value(row)[0] for row in model.rows]
    assert len(worth) == 6
    assert worth[0] == sum(layer.macs or 0 for layer in layers[:1_000])
    assert worth[5] == layers[5_000].macs
    model.set_order(by_cost=True)
    assert [model.value(row)[0] for row in model.rows] == sorted(worth, reverse=True)


def test_a_range_of_groups_that_has_as_many_rows_as_a_full_one_is_its_groups() -> None:
    layers = [
        Layer(i, i - 1 if i % 2 else None, str(i), str(i), "Block", i % 2, not i % 2, macs=1)
        for i in range(9_000)
    ]
    model = TreeModel(layers)
    last = model.rows[-1]
    assert list(model.members(last)) == list(range(8_000, 9_000, 2))
    assert model.value(last) == (500, "")


@pytest.mark.parametrize("most", [100, 255 << 8, 1 << 40])
def test_one_unknown_figure_makes_the_sum_of_a_range_a_lower_bound(most: int) -> None:
    rows = [Layer(i, None, str(i), str(i), "Relu", 0, False, macs=most) for i in range(5_000)]
    rows[1_500] = Layer(1_500, None, "x", "x", "Odd", 0, False, status="unknown")
    model = TreeModel(rows)
    assert [model.value(row) for row in model.rows[:3]] == [
        (1_000 * most, ""),
        (999 * most, "≥"),
        (1_000 * most, ""),
    ]


def test_a_sum_is_made_anew_when_other_figures_are_laid_over_the_rows() -> None:
    model = TreeModel(flat(5_000).layers)
    column = OverlayColumn("spent", "spent", "number")
    for each in (2.0, 3.0):
        figures = {"spent": dict.fromkeys(range(5_000), each)}
        model.set_overlay(Overlay(("mine.csv",), (column,), figures, 5_000, 5_000, 5_000))
        metric = find_metric("spent", list_columns(model))
        assert metric is not None
        assert [model.figure(row, metric) for row in model.rows[:2]] == [(1_000 * each, "")] * 2


def test_a_search_says_whether_what_it_found_is_shown() -> None:
    model = TreeModel(flat(5_000).layers)
    model.set_filter([7])
    assert model.add_matches(range(10, 3_000))
    assert model.is_full
    assert not model.add_matches([4_000])
    assert (len(model.matches or ()), model.match_count) == (MATCHES, 2_992)


def test_a_run_of_very_many_blocks_opens_to_ranges() -> None:
    layers = blocks(9_000).layers
    model = TreeModel(layers)
    run = next(i for i, row in enumerate(model.rows) if row < 0)
    assert model.value(model.rows[run]) == (9_000_000, "")
    model.toggle(run)
    assert [len(model.members(row)) for row in model.rows[run + 1 : run + 10]] == [1_000] * 9
    assert model.value(model.rows[run + 1]) == (1_000_000, "")
    inside = next(x.id for x in layers if x.path == "encoder.layers.7123.MatMul")
    at = model.reveal(inside)
    assert model.rows[at] == inside
    assert model.depth(inside) == 4
