"""Small changes of stored numbers: none passes for rounding, and what a rewrite explains is no change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from explorer.engine.graph.model import Model
from explorer.engine.proof.proof import verify
from tests.engine.proof import tiled as t
from tests.engine.proof.test_verdicts import SAMPLES, changed, pair, saved

node = helper.make_node

Weights = dict[str, np.ndarray]


def stored(name: str) -> list[str]:
    model = onnx.load(SAMPLES / f"{name}.onnx")
    return [w.name for w in model.graph.initializer if w.data_type == onnx.TensorProto.FLOAT and len(w.dims)]


def scaled(name: str, factor: float, *, smallest: bool) -> Any:
    """One number of a stored tensor, its smallest or its largest, times a factor."""

    def change(model: onnx.ModelProto) -> None:
        tensor = next(w for w in model.graph.initializer if w.name == name)
        values = numpy_helper.to_array(tensor).copy()
        sizes = np.abs(values).reshape(-1)
        at = int(np.argmin(np.where(sizes > 0, sizes, np.inf)) if smallest else np.argmax(sizes))
        values.reshape(-1)[at] *= np.float32(factor)
        tensor.CopyFrom(numpy_helper.from_array(values, name))

    return change


@pytest.mark.sampled(4)
@pytest.mark.parametrize("smallest", [True, False])
@pytest.mark.parametrize("factor", [1.0001, 1.000001])
@pytest.mark.parametrize("model", ["lenet", "jsc_tiny", "lstm_tiny"])
def test_one_number_that_is_a_little_off_is_never_equal(
    model: str, factor: float, smallest: bool, tmp_path: Path
) -> None:
    for name in stored(model):
        found = verify(*changed(model, tmp_path, scaled(name, factor, smallest=smallest)))
        assert found.verdict_kind in ("different", "unproven"), f"{name}: {found.verdict}"


def test_two_numbers_of_one_layer_do_not_hide_each_other(tmp_path: Path) -> None:
    w, b = t.weight(64, 8), t.weight(8, seed=1)
    other = {"w": w.copy(), "b": b.copy()}
    other["w"][3, 3] *= np.float32(1.00001)
    other["b"][2] *= np.float32(1.000001)
    nodes = [node("Gemm", ["x", "w", "b"], ["y"])]
    found = verify(*pair(tmp_path, (nodes, nodes), {"x": (2, 64)}, ({"w": w, "b": b}, other)))
    assert all(out.passed and not out.equal for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind == "unproven"
    assert "a constant of Gemm differs in 1 of 512 numbers" in found.verdict


# behind a rewrite


def normalised(path: Path, spoil: Any = None) -> tuple[Model, Model]:
    """Two convolutions with normalizations, the first's channel 0 below zero; and both folded by hand."""
    sizes, weights, folded = ((8, 3, 3, 3), (4, 8, 3, 3)), {}, {}
    before, after, last = [], [], ("x", "x")
    for at, size in enumerate(sizes):
        w, s, b, m = (
            t.weight(*d, seed=10 * at + i) for i, d in enumerate((size, size[:1], size[:1], size[:1]))
        )
        v = np.abs(t.weight(size[0], seed=10 * at + 4)) + 1
        if not at:
            s[0], b[0] = 0.01, -50
        factor = s / np.sqrt(v + np.float32(1e-5))
        weights |= {f"w{at}": w, f"s{at}": s, f"b{at}": b, f"m{at}": m, f"v{at}": v}
        folded |= {f"w{at}": w * factor[:, None, None, None], f"b{at}": b - m * factor}
        before += [
            node("Conv", [last[0], f"w{at}"], [f"c{at}"]),
            node("BatchNormalization", [f"c{at}", *(f"{n}{at}" for n in "sbmv")], [f"n{at}"]),
            node("Relu", [f"n{at}"], [f"r{at}"]),
        ]
        after += [
            node("Conv", [last[1], f"w{at}", f"b{at}"], [f"n{at}"]),
            node("Relu", [f"n{at}"], [f"r{at}"]),
        ]
        last = (f"r{at}", f"r{at}")
    if spoil is not None:
        spoil(folded)
    ends = {"outputs": ("r1",)}
    return pair(path, (before, after), {"x": (1, 3, 8, 8)}, (weights, folded), **ends)


def times(name: str, at: int, factor: float) -> Any:
    def change(weights: Weights) -> None:
        weights[name].reshape(-1)[at] *= np.float32(factor)

    return change


def test_weights_that_a_normalisation_was_folded_into_are_what_they_should_be(tmp_path: Path) -> None:
    found = verify(*normalised(tmp_path))
    assert found.verdict_kind == "evidence", found.verdict
    assert len(found.regions) == 2


@pytest.mark.parametrize(
    ("name", "at", "factor"),
    [("b0", 0, 1.01), ("w0", 5, 1.01), ("w0", 100, 1.0001), ("b1", 1, 1.00001), ("w1", 9, 1.000005)],
)
def test_a_folded_weight_that_is_off_is_found_however_little_shows_it(
    name: str, at: int, factor: float, tmp_path: Path
) -> None:
    found = verify(*normalised(tmp_path, times(name, at, factor)))
    assert found.verdict_kind in ("different", "unproven"), found.verdict


def fused(path: Path, spoil: Any = None) -> tuple[Model, Model]:
    """A MatMul and an Add, which became a Gemm."""
    before = [node("MatMul", ["x", "w"], ["m"]), node("Add", ["m", "b"], ["y"])]
    after = [node("Gemm", ["x", "w", "b"], ["y"])]
    weights = {"w": t.weight(16, 8), "b": t.weight(8, seed=1)}
    other = {name: value.copy() for name, value in weights.items()}
    if spoil is not None:
        spoil(other)
    return pair(path, (before, after), {"x": (4, 16)}, (weights, other))


def joined(path: Path, spoil: Any = None) -> tuple[Model, Model]:
    """Three products of one input, which became one of their weights side by side."""
    names = "qkv"
    before = [node("MatMul", ["x", n], [n.upper()]) for n in names]
    after = [node("MatMul", ["x", "w"], ["A"]), node("Split", ["A", "n"], list(names.upper()), axis=1)]
    last = [node("Mul", ["Q", "K"], ["S"]), node("Add", ["S", "V"], ["y"])]
    weights = {n: t.weight(16, 16, seed=at) for at, n in enumerate(names)}
    other = {"w": np.concatenate(list(weights.values()), 1), "n": np.array([16, 16, 16])}
    if spoil is not None:
        spoil(other)
    return pair(path, ([*before, *last], [*after, *last]), {"x": (6, 16)}, (weights, other))


def turned(path: Path, spoil: Any = None) -> tuple[Model, Model]:
    """A Gemm, and one that has its weight stored the other way round."""
    weights = {"w": t.weight(16, 8), "b": t.weight(8, seed=1)}
    other = {"w": np.ascontiguousarray(weights["w"].T), "b": weights["b"].copy()}
    if spoil is not None:
        spoil(other)
    nodes = [node("Gemm", ["x", "w", "b"], ["y"])], [node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    return pair(path, nodes, {"x": (4, 16)}, (weights, other))


@pytest.mark.parametrize("rewrite", [fused, joined, turned])
def test_a_number_that_a_rewrite_only_moves_stays_what_it_was(rewrite: Any, tmp_path: Path) -> None:
    assert verify(*rewrite(tmp_path)).verdict_kind == "evidence"
    found = verify(*rewrite(tmp_path, times("w", 77, 1.000003)))
    assert all(out.passed for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind in ("different", "unproven"), found.verdict


def smallest(factor: float) -> Any:
    def change(weights: Weights) -> None:
        weights["w"].reshape(-1)[np.argmin(np.abs(weights["w"]))] *= np.float32(factor)

    return change


@pytest.mark.parametrize("rewrite", [fused, joined, turned])
def test_the_smallest_number_that_a_rewrite_moves_is_seen_to_be_off(rewrite: Any, tmp_path: Path) -> None:
    found = verify(*rewrite(tmp_path, smallest(1.001)))
    assert all(out.passed for out in found.outputs), "or the test shows nothing"
    assert found.verdict_kind in ("different", "unproven"), found.verdict


def normalised_gemm(path: Path, factor: float) -> tuple[Model, Model]:
    """A Gemm with a normalization, folded into its weight by hand; that is stored turned, and one is off."""
    weights = {"w": t.weight(16, 8), "b": t.weight(8, seed=1), "s": t.weight(8, seed=2) + 3}
    weights |= {"t": t.weight(8, seed=3), "m": t.weight(8, seed=4), "v": np.abs(t.weight(8, seed=5)) + 1}
    by = weights["s"] / np.sqrt(weights["v"].astype(np.float64) + 1e-5)
    w = np.ascontiguousarray((weights["w"] * by).T.astype(np.float32))
    other = {"w": w, "b": ((weights["b"] - weights["m"]) * by + weights["t"]).astype(np.float32)}
    smallest(factor)(other)
    before = [node("Gemm", ["x", "w", "b"], ["g"]), node("BatchNormalization", ["g", *"stmv"], ["y"])]
    after = [node("Gemm", ["x", "w", "b"], ["y"], transB=1)]
    return pair(path, (before, after), {"x": (4, 16)}, (weights, other))


def test_a_folded_weight_that_is_stored_turned_is_held_against_what_it_should_be(tmp_path: Path) -> None:
    assert verify(*normalised_gemm(tmp_path, 1)).verdict_kind == "evidence"
    found = verify(*normalised_gemm(tmp_path, 1.0001))
    assert found.verdict_kind == "unproven"
    assert "folded it would be" in found.verdict


def test_a_folded_weight_is_said_to_be_held_to_what_its_roundings_are(tmp_path: Path) -> None:
    found = verify(*normalised_gemm(tmp_path, 1))
    assert "folded weights are correct within eight roundings" in found.verdict
    found = verify(*fused(tmp_path))
    assert "folded" not in found.verdict


def test_what_a_runtime_writes_of_a_fused_gemm_is_what_a_gemm_means(tmp_path: Path) -> None:
    nodes = [node("Gemm", ["x", "w", "b"], ["g"]), node("Relu", ["g"], ["y"])]
    weights = {"w": t.weight(16, 8), "b": t.weight(8, seed=1)}
    before = t.model(tmp_path / "a.onnx", nodes, {"x": (4, 16)}, weights)
    model = onnx.load(before.path)
    del model.graph.node[:]
    given = {"domain": "com.microsoft", "activation": "Relu", "alpha": 1.0, "beta": 1.0}
    model.graph.node.append(node("FusedGemm", ["x", "w", "b"], ["y"], **given))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found = verify(before, saved(model, tmp_path / "b.onnx"))
    assert found.verdict_kind == "evidence", found.verdict


@pytest.mark.parametrize(("slope", "kind"), [(np.float32(0.2), "evidence"), (0.2001, "different")])
def test_the_parameters_of_a_fused_activation_are_compared_as_they_are_stored(
    slope: float, kind: str, tmp_path: Path
) -> None:
    nodes = [node("Conv", ["x", "w", "b"], ["c"]), node("HardSigmoid", ["c"], ["y"])]
    weights = {"w": t.weight(8, 3, 3, 3), "b": t.weight(8)}
    before = t.model(tmp_path / "a.onnx", nodes, {"x": (1, 3, 8, 8)}, weights)
    model = onnx.load(before.path)
    del model.graph.node[:]
    given = {"domain": "com.microsoft", "activation": "HardSigmoid", "activation_params": [slope, 0.5]}
    model.graph.node.append(node("FusedConv", ["x", "w", "b"], ["y"], **given))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    found = verify(before, saved(model, tmp_path / "b.onnx"))
    assert found.verdict_kind == kind, found.verdict


def test_a_limit_that_nothing_reaches_is_not_hidden_by_a_rewrite_before_it(tmp_path: Path) -> None:
    def nodes(*product: Any) -> list[Any]:
        return [node("Softmax", ["x"], ["s"]), *product, node("Clip", ["g", "", "limit"], ["y"])]

    apart = nodes(node("MatMul", ["s", "w"], ["m"]), node("Add", ["m", "b"], ["g"]))
    joined = nodes(node("Gemm", ["s", "w", "b"], ["g"]))
    one = {"w": t.weight(16, 8) / 10, "b": t.weight(8, seed=1) / 10, "limit": np.float32(1.5)}
    feeds = {"x": (4, 16)}
    assert verify(*pair(tmp_path, (apart, joined), feeds, (one, one))).verdict_kind == "evidence"
    other = {**one, "limit": np.float32(1.5000015)}
    found = verify(*pair(tmp_path, (apart, joined), feeds, (one, other)))
    assert not found.passed, found.verdict


@pytest.mark.parametrize("lost", [False, True])
def test_a_bias_that_only_one_has_is_a_difference_however_small(lost: bool, tmp_path: Path) -> None:
    weights = {"w": t.weight(8, 3, 3, 3), "b": np.zeros(8, np.float32)}
    models = [node("Conv", ["x", "w"], ["y"])], [node("Conv", ["x", "w", "b"], ["y"])]
    nodes = models[::-1] if lost else models
    feeds = {"x": (1, 3, 8, 8)}
    assert verify(*pair(tmp_path, nodes, feeds, (weights, weights))).verdict_kind == "evidence"
    weights["b"][3] = 1e-7
    found = verify(*pair(tmp_path, nodes, feeds, (weights, weights)))
    assert found.verdict_kind == "unproven"
    assert "lacks a constant of Conv" in found.verdict


def test_a_small_number_that_one_model_adds_is_no_rounding(tmp_path: Path) -> None:
    weights = {"w": t.weight(8, 3, 3, 3), "b": np.zeros((8, 1, 1), np.float32)}
    after = [node("Conv", ["x", "w"], ["c"]), node("Add", ["c", "b"], ["y"])]
    nodes = [node("Conv", ["x", "w"], ["y"])], after
    assert verify(*pair(tmp_path, nodes, {"x": (1, 3, 8, 8)}, (weights, weights))).passed
    weights["b"][3] = 1e-7
    found = verify(*pair(tmp_path, nodes, {"x": (1, 3, 8, 8)}, (weights, weights)))
    assert found.verdict_kind == "unproven"
    assert "where an input is of the size of 1e-25" in found.verdict


def test_a_difference_that_is_taken_for_rounding_is_said_to_be(tmp_path: Path) -> None:
    weights = {"w": t.weight(8, 3, 3, 3), "f": np.ones((8, 1, 1), np.float32)}
    weights["f"][3] = np.nextafter(np.float32(1), np.float32(2))
    after = [node("Conv", ["x", "w"], ["c"]), node("Mul", ["c", "f"], ["y"])]
    nodes = [node("Conv", ["x", "w"], ["y"])], after
    found = verify(*pair(tmp_path, nodes, {"x": (1, 3, 8, 8)}, (weights, weights)))
    assert found.verdict_kind == "evidence"
    assert "the runs cannot tell rounding from an error of a changed region below" in found.verdict
    weights["f"][3] = 1
    found = verify(*pair(tmp_path, nodes, {"x": (1, 3, 8, 8)}, (weights, weights)))
    assert "cannot tell rounding" not in found.verdict, "in float64 they are the same"


# what another order of computing explains


def rounded(values: np.ndarray, units: int) -> np.ndarray:
    for _ in range(units):
        values = np.nextafter(values, np.float32(np.inf))
    return values


def test_a_table_that_is_a_rounding_off_is_no_difference_where_nothing_else_rounds(tmp_path: Path) -> None:
    table = np.sin(np.arange(64)[:, None] / 10000 ** (np.arange(16) / 16)).astype(np.float32)
    sums = [node("Add", ["x", "t"], ["y"])]
    found = verify(*pair(tmp_path, (sums, sums), {"x": (64, 16)}, ({"t": table}, {"t": rounded(table, 1)})))
    assert found.verdict_kind == "evidence", found.verdict
    assert "stored numbers differ by up to 1.2e-07 (relative)" in found.verdict
    rows = [node("Gather", ["t", "i"], ["y"])]
    one, other = {"t": t.weight(50, 8)}, {"t": rounded(t.weight(50, 8), 3)}
    ids = {"dtypes": {"i": onnx.TensorProto.INT64}}
    assert verify(*pair(tmp_path, (rows, rows), {"i": (200,)}, (one, other), **ids)).passed
    other["t"][7, 7] *= np.float32(1.0001)
    assert not verify(*pair(tmp_path, (rows, rows), {"i": (200,)}, (one, other), **ids)).passed


def test_a_rounding_of_a_number_that_moves_what_is_made_over_an_edge_is_a_difference(tmp_path: Path) -> None:
    nodes = [node("Floor", ["x"], ["f"]), node("Mul", ["f", "c"], ["g"]), node("Floor", ["g"], ["y"])]
    one = np.float32(1)
    models = pair(tmp_path, (nodes, nodes), {"x": (200,)}, ({"c": one}, {"c": np.nextafter(one, one * 0)}))
    assert verify(*models).verdict_kind == "different"


def test_weights_that_were_computed_in_another_order_are_no_difference(tmp_path: Path) -> None:
    a, b, c = t.weight(64, 64), t.weight(64, seed=1), t.weight(64, seed=2)
    nodes = [node("MatMul", ["x", "w"], ["y"])]
    weights = {"w": (a * b) * c}, {"w": a * (b * c)}
    assert (weights[0]["w"] != weights[1]["w"]).any(), "or the test shows nothing"
    found = verify(*pair(tmp_path, (nodes, nodes), {"x": (4, 64)}, weights))
    assert found.verdict_kind == "evidence", found.verdict
    assert "(relative), because they were computed in another order" in found.regions[0].reason


@pytest.mark.parametrize("factor", [2.0, 3.0])
def test_a_factor_that_moved_from_one_weight_to_the_next_is_no_difference(
    factor: float, tmp_path: Path
) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("MatMul", ["h", "v"], ["y"])]
    w, v, by = t.weight(16, 32), t.weight(32, 8, seed=1), np.float32(factor)
    models = pair(tmp_path, (nodes, nodes), {"x": (4, 16)}, ({"w": w, "v": v}, {"w": w * by, "v": v / by}))
    assert verify(*models).verdict_kind == "evidence"


@pytest.mark.slow
def test_a_factor_that_moved_within_a_normalisation_is_no_difference_and_hides_none(tmp_path: Path) -> None:
    nodes = [node("BatchNormalization", ["x", *"stmv"], ["y"], epsilon=0.0)]
    one = {n: t.weight(8, seed=i) for i, n in enumerate("stm")} | {"v": np.abs(t.weight(8, seed=3)) + 1}
    other = {**one, "s": one["s"] * 2, "v": one["v"] * 4}
    assert verify(*pair(tmp_path, (nodes, nodes), {"x": (4, 8)}, (one, other))).verdict_kind == "evidence"
    other["m"] = one["m"].copy()
    other["m"][np.argmin(np.abs(one["m"]))] *= np.float32(1.000003)
    assert not verify(*pair(tmp_path, (nodes, nodes), {"x": (4, 8)}, (one, other))).passed
