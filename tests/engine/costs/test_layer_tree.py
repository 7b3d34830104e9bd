"""The layer tree: groups, totals, sharing, and runs of identical blocks."""

from __future__ import annotations

import pytest

from explorer import Session
from explorer.engine.costs import layer_rows
from explorer.engine.costs.layer_rows import build
from explorer.engine.costs.layer_tree import GroupFacts, LayerLeaf, Scope, compute_totals, sum_known
from explorer.facts import Layer, Status


def scopes(path: str) -> tuple[Scope, ...]:
    pieces = path.split(".") if path else []
    return tuple(Scope(".".join(pieces[: i + 1]), p, "Module") for i, p in enumerate(pieces))


def leaf(
    path: str,
    *,
    kind: str = "Conv",
    macs: int | None = 0,
    stored: tuple[tuple[str, int, int], ...] = (),
    counted: bool = True,
    status: Status = "exact",
) -> LayerLeaf:
    group, _, name = path.rpartition(".")
    layer = Layer(
        0, None, path, name, kind, 0, False, macs=macs, status="unknown" if macs is None else status
    )
    leaf = LayerLeaf(scopes(group), layer, stored)
    leaf.counted = counted
    return leaf


def test_rows_come_in_pre_order_with_ids_parents_and_depths() -> None:
    rows = build([leaf("a.b.c"), leaf("a.d"), leaf("e")])
    assert [(r.id, r.parent, r.depth, r.path, r.group) for r in rows] == [
        (0, None, 0, "a", True),
        (1, 0, 1, "a.b", True),
        (2, 1, 2, "a.b.c", False),
        (3, 0, 1, "a.d", False),
        (4, None, 0, "e", False),
    ]


def test_a_scope_that_comes_back_is_the_same_group() -> None:
    rows = build([leaf("a.x"), leaf("b.x"), leaf("a.y")])
    assert [r.path for r in rows] == ["a", "a.x", "a.y", "b", "b.x"]


def test_a_group_carries_the_totals_of_everything_below() -> None:
    rows = build([leaf("a.b.c", macs=5), leaf("a.b.d", macs=7), leaf("a.e", macs=11)])
    assert {r.path: r.macs for r in rows if r.group} == {"a": 23, "a.b": 12}


def test_unknown_is_never_summed_up_to_zero() -> None:
    rows = build([leaf("a.x", macs=None), leaf("a.y", macs=0), leaf("b.x", macs=None), leaf("b.y", macs=3)])
    by_path = {r.path: r for r in rows}
    assert by_path["a"].macs is None
    assert by_path["b"].macs == 3
    assert by_path["b"].status == "unknown"
    assert by_path["b"].reason == "1 of 2 layers below have an unknown cost"
    assert sum_known([None, 0]) is None
    assert sum_known([0, 0]) == 0
    assert sum_known([None, 2]) == 2


def test_a_shared_parameter_counts_once_in_every_group_and_names_its_other_users() -> None:
    tied = (("w", 10, 40),)
    rows = build([leaf("a.x", stored=tied), leaf("a.y", stored=tied), leaf("b.z", stored=tied)])
    by_path = {r.path: r for r in rows}
    assert by_path["a"].params == 10
    assert by_path["a"].weight_bytes == 40
    assert by_path["a.x"].params == 10
    assert by_path["a.x"].shared_with == ("a.y", "b.z")
    assert by_path["b.z"].shared_with == ("a.x", "a.y")
    assert compute_totals([leaf("a.x", stored=tied), leaf("b.z", stored=tied)]).params == 10


def test_a_run_of_identical_blocks_can_be_read_as_such() -> None:
    leaves = [leaf("stem.conv", macs=99)]
    for i in range(4):
        leaves += [leaf(f"layers.{i}.fc", macs=6, kind="Gemm"), leaf(f"layers.{i}.act", kind="Relu")]
    leaves += [leaf("layers.4.fc", macs=7, kind="Gemm"), leaf("layers.4.act", kind="Relu")]
    rows = {r.path: r.repeat for r in build(leaves)}
    assert [rows[f"layers.{i}"] for i in range(5)] == [4, 0, 0, 0, 1]
    assert rows["stem"] == rows["layers"] == 1


def test_paths_are_unique_even_if_names_are_not() -> None:
    rows = build([leaf("a.x"), leaf("a.x"), leaf("a"), leaf("a.x#2"), leaf("a.x")])
    paths = [r.path for r in rows]
    assert len(set(paths)) == len(paths)
    assert paths[0] == "a"
    assert rows[0].group


def test_facts_of_a_group_are_shown_and_may_overrule_its_status() -> None:
    facts = GroupFacts(kind="Loop", calls=3, attributes={"n": 1}, status="bound", reason="may end earlier")
    rows = build([leaf("a.x", macs=2)], {"a": facts})
    assert (rows[0].kind, rows[0].calls, rows[0].attributes) == ("Loop", 3, {"n": 1})
    assert (rows[0].status, rows[0].reason, rows[0].macs) == ("bound", "may end earlier", 2)


def test_a_branch_that_does_not_run_keeps_its_figures_to_itself() -> None:
    leaves = [
        leaf("if.then.x", macs=10, stored=(("w", 1, 4),)),
        leaf("if.else.y", macs=3, stored=(("v", 2, 8),), counted=False),
    ]
    rows = {r.path: r for r in build(leaves, {"if.else": GroupFacts(is_excluded=True)})}
    assert rows["if"].macs == 10
    assert rows["if.else"].macs == 3
    assert rows["if"].params == 3
    whole = compute_totals(leaves)
    assert (whole.macs, whole.params, whole.nodes) == (10, 3, 1)


def test_coverage_is_the_share_of_operators_with_a_known_cost() -> None:
    whole = compute_totals([leaf("a", macs=4), leaf("b", macs=None), leaf("c"), leaf("d")])
    assert whole.coverage == pytest.approx(0.75)
    assert whole.macs == 4
    assert whole.flops == 8
    assert compute_totals([]).coverage == 1.0


def test_a_deep_tree_is_no_problem() -> None:
    path = ".".join(str(i) for i in range(3000))
    rows = build([leaf(path, macs=1)])
    assert len(rows) == 3000
    assert rows[0].macs == 1


def test_rows_that_are_made_when_they_are_looked_at_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    with Session("sample_models/bert_tiny.onnx") as session:
        at_once = session.analysis().layers
    monkeypatch.setattr(layer_rows, "LAZY_ROWS", 0)
    with Session("sample_models/bert_tiny.onnx") as session:
        found = session.analysis().layers
        steps = session.memory().steps
    assert isinstance(found, layer_rows.LeafRows)
    assert found == at_once
    assert found[-1] == at_once[-1]
    assert found[3:9] == at_once[3:9]
    assert all(step.layer is None or step.path == at_once[step.layer].path for step in steps)
