"""Two layer trees stand side by side: each row of either once, layers as the diff matches them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from explorer import Misuse, Session, TileSpec, tree_diff_files
from explorer.facts.comparison import FIGURES, RowPair, TreeDiff
from explorer.facts.quantize import QuantizeSpec
from explorer.features.compare.compare import Comparer

Sample = Callable[[str], Path]
Build = Callable[[list[str], str], Path]


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """`build(['Relu:x:y:/m/Relu'], 'a.onnx')`: a file of nodes, each its operator, input, output and name."""

    def make(nodes: list[str], name: str) -> Path:
        parts = [node.split(":") for node in nodes]
        ends = [onnx.helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, (2, 8)) for end in "xy"]
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node(op, [x], [y], name=called) for op, x, y, called in parts],
            "g",
            ends[:1],
            ends[1:],
        )
        path = tmp_path / name
        onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)]), path)
        return path

    return make


def rows(fact: TreeDiff) -> dict[str, RowPair]:
    return {row.either.path: row for row in fact.rows}


def is_whole(fact: TreeDiff, before: Session, after: Session) -> None:
    """Every row of either tree stands there once, as the tree has it, inside what it is told to be inside."""
    for side, session in (("before", before), ("after", after)):
        seen = [getattr(row, side) for row in fact.rows if getattr(row, side) is not None]
        layers = session.analysis().layers
        assert sorted(row.id for row in seen) == [layer.id for layer in layers]
        assert all(getattr(row, f) == getattr(layers[row.id], f) for row in seen for f in ("path", *FIGURES))
    for at, row in enumerate(fact.rows):
        inside = fact.rows[at + 1 : row.end]
        assert all(one.depth > row.depth for one in inside)
        assert row.end == len(fact.rows) or fact.rows[row.end].depth <= row.depth
        assert row.inside == sum(one.status not in ("same", "renamed", "part") for one in inside)


def test_a_model_beside_itself_is_the_same_in_every_row(sample: Sample) -> None:
    fact = tree_diff_files(sample("lenet"), sample("lenet"))
    assert fact.equal
    assert {row.status for row in fact.rows} == {"same"}
    assert dict(fact.counts) == {"same": 12}


@pytest.mark.parametrize("name", ["flow", "lstm"])
def test_a_loop_that_gives_values_is_the_same_beside_itself(name: str) -> None:
    path = Path(__file__).parents[1] / f"formats/tflite/models/{name}.tflite"
    with Session(path) as before, Session(path) as after:
        fact = before.tree_diff(other=path)
        is_whole(fact, before, after)
    assert fact.equal
    assert {row.status for row in fact.rows} == {"same"}


def test_an_input_of_the_same_name_that_something_else_gives_is_told_as_another(build: Build) -> None:
    before = build(["Relu:x:t:first", "Neg:t:y:end"], "a.onnx")
    after = build(["Relu:x:u:first", "Tanh:u:t:inserted", "Neg:t:y:end"], "b.onnx")
    assert rows(tree_diff_files(before, after))["end"].what == "input 0: t -> another t"


def test_a_tiled_layer_stands_beside_the_one_that_it_was(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(tile=(32, 32, 32), sites=("*fc*",)), verify=False)
        fact = session.tree_diff()
        found = rows(fact)
        assert dict(fact.counts) == {"same": 9, "tiled": 3}
        assert found["/fc1/Gemm"].what == "Gemm -> 52 products"
        assert fact.folds(next(at for at, row in enumerate(fact.rows) if row.either.name == "fc1"))
        back = session.tree_diff(1, 0)
        assert {row.status for row in back.rows} == {"same", "merged", "part"}
        assert rows(back)["/fc1/Gemm"].delta("activation_bytes") == -(
            found["/fc1/Gemm"].delta("activation_bytes") or 0
        )


def test_an_operator_that_was_taken_apart_is_one_row_and_so_is_one_tiled_otherwise(
    sample: Sample, tmp_path: Path
) -> None:
    lstm = sample("lstm_tiny")
    with Session(lstm, dims={"batch": 1, "sequence": 4}) as session:
        session.tile(TileSpec(tile=(8, 8, 8), form="scan"), output=str(tmp_path / "a.onnx"), verify=False)
        fact = session.tree_diff()
        (apart,) = (row for row in fact.rows if row.before is not None and row.before.kind == "LSTM")
        assert apart.status == "tiled"
        assert {row.status for row in fact.rows} == {"same", "tiled", "part"}
        assert dict(fact.counts)["tiled"] == 2
    with Session(sample("lenet")) as session:
        for form in ("scan", "lab"):
            session.go(0)
            spec = TileSpec(tile=(16, 16, 16), form=form, sites=("*fc1*",))
            session.tile(spec, output=str(tmp_path / f"{form}.onnx"), verify=False)
    fact = tree_diff_files(tmp_path / "scan.onnx", tmp_path / "lab.onnx")
    assert dict(fact.counts) == {"same": 11, "changed": 1}
    assert {row.status for row in fact.rows} == {"same", "changed", "part"}


def test_a_quantized_layer_stands_beside_its_group_and_costs_what_it_did(
    sample: Sample, tmp_path: Path
) -> None:
    made = tmp_path / "q.onnx"
    with Session(str(sample("lenet"))) as session:
        session.quantize(QuantizeSpec(), output=str(made), report=False)
    fact = tree_diff_files(sample("lenet"), made)
    with Session(str(sample("lenet"))) as before, Session(str(made)) as after:
        is_whole(fact, before, after)
    found = [row for row in fact.rows if row.status == "quantized"]
    assert len(found) == 5
    for row in found:
        assert row.before is not None
        assert row.after is not None
        assert (row.before.name, row.before.macs) == (row.after.name, row.after.macs)
        assert row.inside == 0
    assert not any(row.after.macs for row in fact.rows if row.status == "added" and row.after)


def test_models_with_nothing_in_common_stand_one_below_the_other(sample: Sample) -> None:
    lstm, lenet = sample("lstm_tiny"), sample("lenet")
    fact = tree_diff_files(lstm, lenet)
    with Session(lstm) as before, Session(lenet) as after:
        is_whole(fact, before, after)
    first = next(at for at, row in enumerate(fact.rows) if row.before is None)
    assert all(row.after is None for row in fact.rows[:first])
    assert {row.status for row in fact.rows} == {"added", "removed"}


def test_what_was_inserted_leaves_the_others_where_they_were(build: Build) -> None:
    a = build(["Relu:x:a:/m/one/Relu", "Tanh:a:y:/m/two/Tanh"], "a.onnx")
    b = build(["Relu:x:a:/m/one/Relu", "Neg:a:n:/m/new/Neg", "Tanh:n:y:/m/two/Tanh"], "b.onnx")
    fact = tree_diff_files(a, b)
    assert [(row.either.name, row.status) for row in fact.rows] == [
        ("m", "same"),
        ("one", "same"),
        ("new", "added"),
        ("two", "changed"),
    ]
    assert fact.rows[0].inside == 2
    assert fact.rows[0].delta("activation_bytes") == fact.rows[2].either.activation_bytes


def test_groups_belong_together_by_what_is_in_them(build: Build) -> None:
    a = build(["Relu:x:a:/enc/a/Relu", "Tanh:a:b:/enc/b/Tanh", "Neg:b:y:/head/Neg"], "a.onnx")
    b = build(["Relu:x:p:/stem/a/Relu", "Tanh:p:q:/stem/b/Tanh", "Neg:q:y:/head/Neg"], "b.onnx")
    fact = tree_diff_files(a, b)
    assert fact.equal
    assert (fact.rows[0].before.path, fact.rows[0].after.path) == ("enc", "stem")  # type: ignore[union-attr]


def test_nodes_that_share_a_name_are_told_apart(build: Build) -> None:
    nodes = ["Relu:x:a:same", "Tanh:a:b:same", "Neg:b:y:same"]
    fact = tree_diff_files(build(nodes, "a.onnx"), build([nodes[0], nodes[1], "Exp:b:y:same"], "b.onnx"))
    states = [(row.before.kind, row.after.kind, row.status) for row in fact.rows if row.before and row.after]
    assert states[:2] == [("Relu", "Relu", "same"), ("Tanh", "Tanh", "same")]
    assert not fact.equal


def test_modules_stand_side_by_side_as_they_are() -> None:
    torch = pytest.importorskip("torch")
    nn = torch.nn

    def net(*middle: Any) -> Any:
        return nn.Sequential(nn.Linear(8, 16), *middle, nn.Linear(16, 4))

    x = torch.zeros(2, 8)
    with Session(net(nn.ReLU()), inputs=x) as before, Session(net(nn.ReLU(), nn.Tanh()), inputs=x) as after:
        fact = before.parts.get_part(Comparer).tree(0, (after.parts.models, 0), None, None)
        is_whole(fact, before, after)
    assert (fact.form, fact.values_compared) == ("rows", False)
    assert [(row.either.path, row.status) for row in fact.rows] == [
        ("0", "same"),
        ("1", "same"),
        ("2", "added"),
        ("3", "changed"),
    ]
    assert fact.rows[3].what == "input 0: 1 -> 2"
    assert fact.rows[3].before is not None
    assert fact.rows[3].before.path == "2"


@pytest.mark.slow
def test_a_session_is_held_against_any_model(sample: Sample, tmp_path: Path) -> None:
    with Session(sample("lenet")) as session:
        other = str(sample("mlp_128"))
        assert session.tree_diff(other=other).after == other
        assert session.diff(other=other).equal is False
        assert [one.model.source for one in session.compare(other=other).models] == [session.source, other]
        session.tile(TileSpec(tile=(32, 32, 32)), output=str(tmp_path / "t.onnx"), verify=False)
        assert session.verify(1, other=str(sample("lenet"))).passed
        assert session.blame(1, other=str(sample("lenet"))).same
        assert session.tree_diff(1, other=str(tmp_path / "t.onnx")).equal
        with pytest.raises(Misuse, match="no entry 7"):
            session.tree_diff(7)
