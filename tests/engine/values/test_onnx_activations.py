"""The values inside an ONNX graph are those that onnx's own evaluator finds there."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from explorer.base.errors import BadModel, Cancelled, Misuse
from explorer.cli import main
from explorer.engine.runtime import observer
from explorer.engine.values import onnx_activations
from explorer.facts import TileSpec
from explorer.process.client import EngineProcess
from explorer.session import Session

Sample = Callable[[str], Path]


def info(name: str, kind: int = TensorProto.FLOAT, shape: Any = (2, 3)) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def write(folder: Path, nodes: Any, outputs: Any, *, inputs: Any = None, **more: Any) -> str:
    graph = helper.make_graph(list(nodes), "g", inputs or [info("x")], outputs, more.pop("weights", []))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10, **more)
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


def node(op: str, inputs: Any, outputs: Any, name: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, name=name, **attributes)


def test_every_node_gives_what_the_evaluator_finds(sample: Sample, tmp_path: Path) -> None:
    path = str(sample("lenet"))
    output = str(tmp_path / "o.npz")
    with Session(path) as session:
        found = session.activations(output=output, seed=3)
    model = onnx.load(path)
    given = model.graph.input[0]
    shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
    x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)
    names = [name for n in model.graph.node if n.op_type != "Constant" for name in n.output]
    del model.graph.output[:]
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    expected = ReferenceEvaluator(model).run(names, {given.name: x})
    assert [t.tensor.name for t in found.tensors] == names
    with np.load(output) as values:
        for stats, truth in zip(found.tensors, expected, strict=True):
            np.testing.assert_allclose(values[stats.layer], truth, rtol=1e-4, atol=1e-5)
            assert stats.mean == pytest.approx(float(np.mean(truth, dtype=np.float64)), rel=1e-4, abs=1e-5)
    assert found.inputs[0].endswith("standard normal, seed 3")


def test_layers_are_chosen_by_glob_and_by_the_group_around_them(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        rows = session.analysis().layers
        group = next(layer for layer in rows if layer.group)
        inside = [x.path for x in rows if not x.group and x.parent == group.id and x.kind != "Constant"]
        assert [t.layer for t in session.activations([group.path]).tensors] == inside
        assert [t.layer for t in session.activations([inside[0]]).tensors] == inside[:1]
        with pytest.raises(Misuse, match="no layer matches"):
            session.activations(["nothing*"])


def test_a_model_runs_again_for_what_did_not_fit(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    """In pieces that fit in the budget it gives the same as at once."""
    with Session(sample("lenet")) as session:
        whole = session.activations().tensors
        runs = []
        real = observer.RuntimeSession

        def counted(*args: Any, **kwargs: Any) -> Any:
            runs.append(1)
            return real(*args, **kwargs)

        monkeypatch.setattr(onnx_activations, "BUDGET", 4096)
        monkeypatch.setattr(observer, "RuntimeSession", counted)
        assert session.activations().tensors == whole
        assert len(runs) > 2


def test_the_user_s_own_input_is_used(tmp_path: Path) -> None:
    path = write(tmp_path, [node("Neg", ["x"], ["y"], "neg")], [info("y")])
    np.save(tmp_path / "x.npy", np.full((2, 3), 5, np.float32))
    with Session(path) as session:
        found = session.activations(input=str(tmp_path / "x.npy"))
        assert (found.tensors[0].minimum, found.tensors[0].maximum) == (-5, -5)
        assert found.inputs == (f"x: float32 [2, 3], from {tmp_path / 'x.npy'}",)
        np.save(tmp_path / "x.npy", np.zeros((2, 4), np.float32))
        with pytest.raises(Misuse, match=r"\[2, 4\] there and \[2, 3\] in the model"):
            session.activations(input=str(tmp_path / "x.npy"))
        with pytest.raises(Misuse, match="the result would replace its own input"):
            session.activations(input=str(tmp_path / "x.npy"), output=str(tmp_path / "x.npy"), overwrite=True)


def test_open_dimensions_take_the_size_of_the_input(tmp_path: Path) -> None:
    shape = ("n", 3)
    path = write(
        tmp_path,
        [node("Neg", ["x"], ["y"], "neg")],
        [info("y", shape=shape)],
        inputs=[info("x", shape=shape)],
    )
    np.save(tmp_path / "x.npy", np.ones((7, 3), np.float32))
    with Session(path) as session:
        assert session.activations(input=str(tmp_path / "x.npy")).tensors[0].tensor.shape == (7, 3)
    with Session(path, dims={"n": 4}) as session:
        assert session.activations().tensors[0].tensor.shape == (4, 3)
        with pytest.raises(Misuse, match=r"\[7, 3\] there and \[4, 3\]"):
            session.activations(input=str(tmp_path / "x.npy"))


def test_types_that_the_runtime_does_not_hand_over_are_seen_all_the_same(tmp_path: Path) -> None:
    kinds = {"b": TensorProto.BFLOAT16, "f": TensorProto.FLOAT8E4M3FN, "i": TensorProto.INT4}
    nodes = [node("Cast", ["x"], [name], f"to_{name}", to=kind) for name, kind in kinds.items()]
    path = write(tmp_path, nodes, [info(name, kind) for name, kind in kinds.items()])
    np.save(tmp_path / "x.npy", np.array([[1, -2, 3], [4, 5, -6]], np.float32))
    with Session(path) as session:
        output = str(tmp_path / "o.npz")
        found = {
            t.layer: t for t in session.activations(input=str(tmp_path / "x.npy"), output=output).tensors
        }
    assert [found[f"to_{n}"].tensor.dtype for n in kinds] == ["bfloat16", "float8_e4m3fn", "int4"]
    assert [found[f"to_{n}"].bytes for n in kinds] == [12, 6, 3]
    assert all((t.minimum, t.maximum) == (-6, 5) for t in found.values())
    with np.load(output) as values:
        assert values["to_i"].tolist() == [[1, -2, 3], [4, 5, -6]]


def test_what_cannot_be_seen_says_why(tmp_path: Path) -> None:
    """Values inside a branch stay inside; a sequence is no tensor; a node without a name has its output's."""
    then = helper.make_graph([node("Neg", ["x"], ["t"], "inner")], "t", [], [info("t")])
    other = helper.make_graph([node("Abs", ["x"], ["e"], "inner2")], "e", [], [info("e")])
    yes = numpy_helper.from_array(np.array(True), "yes")
    nodes = [
        node("If", ["yes"], ["y"], "choice", then_branch=then, else_branch=other),
        node("SplitToSequence", ["x"], ["s"], "cut", axis=0),
        node("Relu", ["y"], ["z"], ""),
    ]
    path = write(tmp_path, nodes, [info("z")], weights=[yes])
    with Session(path) as session:
        found = session.activations()
        rows = {layer.path for layer in session.analysis().layers if not layer.group}
    assert [t.layer for t in found.tensors] == ["choice", "z"]
    skipped = dict(found.skipped)
    assert "not a tensor" in skipped["cut"]
    inner = [path for path in skipped if path != "cut"]
    assert len(inner) == 2
    assert set(inner) <= rows
    assert all("stay inside" in skipped[path] for path in inner)


def test_a_layer_with_two_outputs_has_two_entries(tmp_path: Path) -> None:
    nodes = [node("Split", ["x"], ["a", "b"], "cut", axis=0, num_outputs=2)]
    path = write(tmp_path, nodes, [info("a", shape=(1, 3)), info("b", shape=(1, 3))])
    output = str(tmp_path / "o.npz")
    with Session(path) as session:
        found = session.activations(["cut"], output=output)
    assert [t.tensor.name for t in found.tensors] == ["a", "b"]
    with np.load(output) as values:
        assert values.files == ["cut.0", "cut.1"]


def test_a_model_that_the_runtime_refuses_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, [helper.make_node("Odd", ["x"], ["y"], domain="some.where")], [info("y")])
    with Session(path) as session, pytest.raises(BadModel) as caught:
        session.activations()
    assert "\n" not in str(caught.value)


def broken(folder: Path, *, loads: bool) -> str:
    """Two layers that run, one that cannot, and one behind it."""
    wrong = node("Reshape", ["b", "wish"], ["r"], "wrong")
    nodes = [
        node("Relu", ["x"], ["a"], "first"),
        node("Add", ["a", "a"], ["b"], "second"),
        node("Identity", ["five"], ["wish"], "wish"),
        wrong if loads else node("Odd", ["b"], ["r"], "wrong", domain="some.where"),
        node("Neg", ["r"], ["y"], "behind"),
    ]
    five = numpy_helper.from_array(np.array([7, 5], np.int64), "five")
    path = write(folder, nodes, [info("y", shape=(None, None))], weights=[five])
    model = onnx.load(path)
    model.opset_import.append(helper.make_opsetid("some.where", 1))
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("loads", [True, False])
@pytest.mark.parametrize("budget", [1, 1 << 28])
def test_a_model_that_fails_half_way_shows_what_ran_and_names_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool, budget: int
) -> None:
    monkeypatch.setattr(onnx_activations, "BUDGET", budget)
    output = str(tmp_path / "o.npz")
    with Session(broken(tmp_path, loads=loads)) as session:
        found = session.activations(output=output)
        with pytest.raises(BadModel):
            session.activations(["behind"])
        assert [t.layer for t in session.activations(["first"]).tensors] == ["first"]
    assert [t.layer for t in found.tensors] == ["first", "second", "wish"]
    (failed, reason), after = found.skipped
    assert failed == "wrong"
    assert reason.startswith("failed here: onnxruntime cannot")
    assert after == ("behind", "not reached: the model failed in wrong")
    with np.load(output) as values:
        assert values.files == ["first", "second", "wish"]


def test_the_verb_s_totals_are_those_of_the_input_that_was_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weight = numpy_helper.from_array(np.ones((3, 4), np.float32), "w")
    nodes = [node("MatMul", ["x", "w"], ["y"], "fc")]
    path = write(
        tmp_path, nodes, [info("y", shape=("N", 4))], weights=[weight], inputs=[info("x", shape=("N", 3))]
    )
    np.save(tmp_path / "x.npy", np.ones((5, 3), np.float32))
    assert main.main(["activations", path, "--input", str(tmp_path / "x.npy"), "--json", "--quiet"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["model"]["inputs"][0]["shape"] == [5, 3]
    assert found["totals"]["macs"] == 5 * 3 * 4


def test_a_tiled_model_shows_its_own_values(sample: Sample) -> None:
    with Session(sample("mlp_128")) as session:
        before = session.activations()
        session.tile(TileSpec((64, 64, 64)), verify=False)
        after = session.activations()
    assert after.source != before.source
    last = before.tensors[-1].mean, after.tensors[-1].mean
    assert last[0] == pytest.approx(last[1], rel=1e-4, abs=1e-6)


@pytest.mark.slow
def test_a_stopped_job_leaves_nothing_beside_its_target(sample: Sample, tmp_path: Path) -> None:
    """The process is killed in the middle of writing, and what it had written goes with it."""
    engine = EngineProcess(sample("bert_tiny"), dims={"batch": 64, "sequence": 64})
    try:
        job = engine.submit("activations", output=str(tmp_path / "o.npz"))
        while job.progress is None or not job.progress.total or job.progress.done <= 1:
            assert not job.future.done()
            time.sleep(0.001)
        engine.stop(job)
        with pytest.raises(Cancelled):
            job.future.result(120)
        assert not list(tmp_path.iterdir())
    finally:
        engine.close()
