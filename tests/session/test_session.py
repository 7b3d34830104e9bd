"""The one door: what a Python program, the command line and the screen can ask for."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from explorer import Misuse, Session, TileSpec, diff_files, verify_files
from explorer.facts import Form

Sample = Callable[[str], Path]
SPEC = TileSpec((16, 16, 16))


def test_tile_verify_diff_undo_redo_save(sample: Sample, tmp_path: Path) -> None:
    with Session(sample("lenet")) as session:
        original = session.analysis()
        result = session.tile(SPEC)
        assert result.verification is not None
        assert result.verification.passed
        assert session.history().current == 1
        assert session.info().totals.macs == original.info.totals.macs
        diff = session.diff()
        assert not diff.equal
        assert [n.status for n in diff.nodes if n.before].count("tiled") == len(result.plan.sites)
        assert session.undo().current == 0
        assert session.analysis() == original
        assert session.redo().current == 1
        saved = session.save(str(tmp_path / "tiled.onnx"))
        assert session.history().entries[1].saved == saved
    onnx.checker.check_model(saved, full_check=True)
    assert verify_files(sample("lenet"), saved).passed
    assert not diff_files(sample("lenet"), saved).equal


@pytest.mark.slow
@pytest.mark.parametrize("saved", [True, False])
def test_what_is_known_of_a_result_as_it_is_proved_is_what_its_file_says(
    sample: Sample, tmp_path: Path, saved: bool
) -> None:
    with Session(sample("lenet")) as session:
        result = session.tile(SPEC, output=str(tmp_path / "tiled.onnx") if saved else None)
        proved = session.analysis()
        with Session(result.output) as again:
            assert proved == again.analysis()
        assert session.verify().passed  # its weights are found under the name that it has now
        session.undo()
        session.tile(SPEC, verify=False)
        unproved = session.info()
    assert proved.info.totals == unproved.totals


def test_shapes_are_observed_by_whoever_asks_for_it(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The option reaches the analysis, and the row says where the shape comes from."""
    from onnx import TensorProto, helper

    from explorer.cli.main import main
    from explorer.engine.shapes import inference

    # an operator of the runtime's next release, of which no rule tells
    monkeypatch.delitem(inference._OPERATORS, ("com.microsoft", "CDist"))
    path = str(tmp_path / "far.onnx")
    graph = helper.make_graph(
        [helper.make_node("CDist", ["x", "z"], ["y"], domain="com.microsoft", name="far")],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 3]) for n, rows in (("x", 6), ("z", 4))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    with Session(path) as session:
        assert session.analysis().layers[0].outputs[0].shape is None
    with Session(path, observe=True) as session:
        output = session.analysis().layers[0].outputs[0]
        assert (output.shape, output.origin) == ((6, 4), "observed")
        assert session.info().assumptions["observed"]
    assert main(["layers", path, "--observe"]) == 0
    row = next(line for line in capfd.readouterr().out.splitlines() if "CDist" in line)
    assert "[6, 4]" in row
    assert "shape as seen in a run" in row


def test_totals_that_hold_an_upper_bound_say_so(tmp_path: Path, sample: Sample) -> None:
    """How many elements are not zero depends on the data; the product behind it counts all of them."""
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("NonZero", ["x"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["w", "f"], ["y"], name="product"),
    ]
    given = {"x": [6, 5], "w": [3, 2]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in given.items()]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    path = str(tmp_path / "most.onnx")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    with Session(path) as session:
        info = session.info()
        assert info.totals.macs == 3 * 2 * 30
        assert info.model.notes == ("3 layers are counted at an upper bound, so the totals are upper bounds",)
    with Session(str(sample("lenet"))) as session:
        assert not [note for note in session.info().model.notes if "bound" in note]


@pytest.mark.slow
def test_the_cost_before_is_that_of_the_batch_that_was_tiled(sample: Sample) -> None:
    """Symbolic, it would be unknown, and nobody could say that the MACs are unchanged."""
    with Session(sample("bert_tiny"), dims={"sequence": 16}) as session:
        session.tile(SPEC, verify=False)
        changes = session.diff()
        totals = changes.totals_before
        assert changes.totals_after.coverage == 1
    with Session(sample("bert_tiny"), dims={"sequence": 16, "batch": 1}) as bound:
        assert totals == bound.info().totals
        assert totals.coverage == 1


def test_a_session_leaves_no_folder_behind_closed_or_forgotten(sample: Sample) -> None:
    gc.freeze()  # what was there before is no part of this search, which would take seconds
    closed, forgotten = Session(sample("mlp_128")), Session(sample("mlp_128"))
    folders = [Path(session.workdir) for session in (closed, forgotten)]
    for session in (closed, forgotten):
        session.tile(SPEC, verify=False)
    assert all(list(folder.iterdir()) for folder in folders)
    closed.close()
    del session, forgotten
    gc.collect()
    gc.unfreeze()
    assert not any(folder.exists() for folder in folders)


def opened(path: str) -> int:
    """How many descriptors of this process are of a file."""
    found = 0
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the one of the listing
            found += os.path.samestat(os.fstat(int(name)), os.stat(path))
    return found


def test_a_proof_leaves_no_model_to_whoever_looks_for_garbage(sample: Sample) -> None:
    """Each would keep its file open, and its graph in memory, until somebody looks."""
    path = str(sample("mlp_128"))
    gc.disable()
    try:
        before = opened(path)
        session = Session(path)
        session.tile(TileSpec((64, 64, 64), form="scan"), verify=False)
        assert session.verify(draws=1).passed
        assert opened(path) > before
        del session
        assert opened(path) == before
    finally:
        gc.enable()


@pytest.mark.parametrize("form", ["lab", "scan"])
def test_a_tiled_convolution_stays_one_and_reads_what_it_read(sample: Sample, form: Form) -> None:
    with Session(sample("lenet")) as session:
        before = {layer.path: layer for layer in session.analysis().layers}
        session.tile(TileSpec((16, 16, 16), form=form), verify=False)
        rows = session.analysis().layers
        assert [rows[at].path for at in session.search("op:Conv")] == ["/conv1/Conv", "/conv2/Conv"]
        assert [rows[at].path for at in session.search("op:Gemm is:tiled")] == [
            "/fc1/Gemm", "/fc2/Gemm", "/fc3/Gemm",
        ]  # fmt: skip
        for row in rows:
            if row.depth == 0:
                was = before[row.path]
                assert (row.kind, row.tiled) == (was.kind, was.kind in ("Conv", "Gemm")), row.path
                assert {t.name for t in row.inputs} == {t.name for t in was.inputs}, row.path
                assert {t.name for t in row.outputs} == {t.name for t in was.outputs}, row.path


def test_undo_and_redo_stay_at_the_ends(sample: Sample) -> None:
    with Session(sample("jsc_tiny")) as session:
        assert session.undo().current == 0
        assert session.redo().current == 0


def test_other_models_stand_beside_a_state_and_nothing_is_proved_of_them(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        table = session.beside([0], others=[str(sample("mlp_128"))])
        assert table.names == (str(sample("lenet")), str(sample("mlp_128")))
        (params,) = (row for row in table.rows if row.name == "params")
        assert [one and one.value for one in params.values] == [61_706, 16_384]
        with pytest.raises(Misuse, match="compare --verify proves models"):
            session.beside([0], others=[str(sample("mlp_128"))], verify=True)


def test_a_new_transform_begins_a_branch_beside_what_was_undone(sample: Sample) -> None:
    with Session(sample("mlp_128")) as session:
        session.tile(TileSpec((64, 64, 64)), verify=False)
        session.undo()
        session.tile(TileSpec((32, 32, 32)), verify=False)
        history = session.history()
        assert (len(history.entries), history.current) == (3, 2)
        assert [entry.plan and entry.plan.products for entry in history.entries] == [None, 8, 64]


def test_a_session_is_restored_from_its_history_alone(sample: Sample, tmp_path: Path) -> None:
    first = Session(sample("mlp_128"), workdir=str(tmp_path))
    first.tile(TileSpec((64, 64, 64)), verify=False)
    second = Session(sample("mlp_128"), workdir=str(tmp_path))
    second.restore(first.history())
    assert second.analysis().layers == first.analysis().layers


def test_nothing_is_overwritten_unasked(sample: Sample, tmp_path: Path) -> None:
    source = tmp_path / "model.onnx"
    shutil.copy(sample("mlp_128"), source)
    other = tmp_path / "other.onnx"
    other.write_bytes(b"precious")
    with Session(source) as session:
        for target, words in ((source, "the model itself"), (other, "exists"), (tmp_path, "directory")):
            with pytest.raises(Misuse, match=words):
                session.tile(SPEC, output=str(target), overwrite=target == source)
            with pytest.raises(Misuse, match=words):
                session.save(str(target), overwrite=target == source)
        link = tmp_path / "link.onnx"
        link.symlink_to(source)
        with pytest.raises(Misuse, match="the model itself"):
            session.tile(SPEC, output=str(link), overwrite=True)
        assert other.read_bytes() == b"precious"
        session.tile(SPEC, output=str(other), overwrite=True)
        assert other.read_bytes() != b"precious"
    assert source.read_bytes() == sample("mlp_128").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["link.onnx", "model.onnx", "other.onnx"]


def test_the_command_does_headless_what_was_done(sample: Sample, tmp_path: Path) -> None:
    target = tmp_path / "a b.onnx"
    with Session(sample("bert_tiny"), dims={"batch": 1, "sequence": 8}) as session:
        site = session.plan(SPEC).sites[0].name
        spec = TileSpec((16, 8, 16), sites=(site,), edges="padded", form="scan")
        result = session.tile(spec, output=str(target), verify=False)
    import shlex

    words = shlex.split(result.command)
    assert words[:2] == ["explorer", "tile"]
    assert words[words.index("-o") + 1] == str(target)
    assert words[words.index("--site") + 1] == site
    assert "batch=1" in words
    assert "16x8x16" in words


def test_misnamed_dimensions_inputs_and_sites_are_met_with_the_nearest(sample: Sample) -> None:
    with pytest.raises(Misuse, match="'sequence'"):
        Session(sample("bert_tiny"), dims={"sequense": 8}).open()
    with pytest.raises(Misuse, match="did you mean"):
        Session(sample("lenet"), input_shapes={"imput": (None, (1, 1, 28, 28))}).open()
    with Session(sample("lenet")) as session:
        site = session.plan(SPEC).sites[0].name
        with pytest.raises(Misuse, match="did you mean"):
            session.plan(TileSpec((16, 16, 16), sites=(site[:-1],)))


@pytest.mark.slow
def test_real_alexnet_is_tiled_and_proven_against_torch(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    with Session("alexnet") as session:
        before = session.info().totals
        result = session.tile(TileSpec((64, 64, 64)), output=str(tmp_path / "alexnet_tiled.onnx"))
        assert result.plan.products == 17_090
        linear = [s for s in result.plan.sites if s.op == "Gemm"]
        assert [s.grid for s in linear] == [(1, 144, 64), (1, 64, 64), (1, 64, 16)]
        assert sum(s.products for s in linear) == 14_336
        assert result.plan.macs == result.plan.macs_total == 714_188_480
        assert result.verification is not None
        assert result.verification.passed, result.verification.verdict
        assert sum(s.tiles for s in result.verification.sites) == 17_090
        assert all(o.passed for o in result.verification.torch)
        assert result.verification.torch
        after = session.info().totals
        assert (before.macs, before.weight_bytes) == (714_188_480, 244_403_360)
        assert (after.macs, after.weight_bytes) == (714_188_480, 244_403_360)
        assert after.coverage == 1.0


@pytest.mark.slow
def test_a_dimension_bound_in_one_of_two_models_is_enough(sample: Sample, tmp_path: Path) -> None:
    dims = {"batch": 1, "sequence": 8}
    target = str(tmp_path / "tiled.onnx")
    with Session(sample("bert_tiny"), dims=dims) as session:
        session.tile(SPEC, output=target, verify=False)
    evidence = verify_files(sample("bert_tiny"), target, dims=dims, draws=1)
    assert evidence.passed, evidence.verdict
    with pytest.raises(Misuse, match="sequense"):
        diff_files(sample("bert_tiny"), target, dims={"sequense": 8})


def test_the_tiled_share_of_a_model_that_is_not_fully_known_is_unknown(
    sample: Sample, tmp_path: Path
) -> None:
    import onnx
    from onnx import helper

    model = onnx.load(sample("mlp_128"))
    first = model.graph.input[0].name
    model.graph.node.append(helper.make_node("Unheard", [first], ["unheard"], domain="of"))
    model.opset_import.append(helper.make_opsetid("of", 1))
    onnx.save(model, tmp_path / "strange.onnx")
    with Session(str(tmp_path / "strange.onnx")) as session:
        assert session.plan(SPEC).macs_total is None
    with Session(sample("bert_tiny")) as session:
        plan = session.plan(SPEC)
        assert plan.macs == plan.macs_total, "attention included"


def test_the_command_of_a_tiling_says_all_that_the_model_was_opened_with(sample: Sample) -> None:
    import shlex

    from explorer.cli.arguments import parser as words
    from explorer.cli.commands import VERBS

    with Session(
        sample("bert_tiny"), dims={"batch": 2}, rules="own.py", trust=True, observe=True, past=3
    ) as session:
        command = shlex.split(session.command(TileSpec()))
    given = words.read(command[1:], VERBS)[1]
    assert (given.dim, given.rules, given.trust, given.observe, given.past) == (
        {"batch": 2},
        "own.py",
        True,
        True,
        3,
    )


def test_a_tiling_after_an_undo_leaves_the_files_of_other_states_alone(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(sites=("*fc1*",)), verify=False)
        session.undo()
        for site in ("*fc2*", "*fc3*"):
            session.tile(TileSpec(sites=(site,)), verify=False)
        paths = [entry.path for entry in session.history().entries[1:]]
        assert len(set(paths)) == 3
        with Session(sample("lenet"), workdir=session.workdir) as again:  # as an engine that was restarted
            again.restore(session.history())
            assert again.info(1).totals.nodes != again.info(2).totals.nodes
            assert again.info(1).totals == session.info(1).totals
