"""`explorer blame` and the same from Python: exit codes, text, table, picture; what a failed proof says."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from explorer import Session, TileSpec, blame_files
from explorer.base.errors import Misuse
from explorer.cli import main
from explorer.engine.tiling import tile as transform
from explorer.facts.blame import Blame
from explorer.process.client import EngineProcess

Sample = Callable[[str], Path]
Spoil = Callable[[Path, Path], Path]


@pytest.fixture
def spoiled(sample: Sample, tmp_path: Path) -> Path:
    """LeNet with one bias of its first linear layer off by one."""
    model = onnx.load(sample("lenet"))
    fc1 = next(n for n in model.graph.node if n.op_type == "Gemm")
    bias = next(t for t in model.graph.initializer if t.name == fc1.input[2])
    array = numpy_helper.to_array(bias).copy()
    array[3] += 1
    bias.CopyFrom(numpy_helper.from_array(array, bias.name))
    onnx.save(model, tmp_path / "spoiled.onnx")
    return tmp_path / "spoiled.onnx"


def run(capsys: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    assert main.main([*map(str, words), "--quiet"]) == code
    return capsys.readouterr().out


def test_the_text_names_the_layer_and_shows_how_the_error_grows(
    sample: Sample, spoiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, "blame", sample("lenet"), spoiled, "--top", 4, code=1)
    assert "DEPARTS" in text
    assert "departs first in Gemm '/fc1/Gemm'" in text
    assert "error growth" in text
    assert "4 of 12 values" in text
    assert sum("inherited" in line and "/" in line for line in text.splitlines()) >= 1
    assert "INTRODUCED" in text


def test_models_that_agree_exit_with_zero(sample: Sample, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "blame", sample("lenet"), sample("lenet"))
    assert "NO DIFFERENCE" in text
    assert "no error anywhere" in text


def test_csv_has_every_value(sample: Sample, spoiled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(run(capsys, "blame", sample("lenet"), spoiled, "--csv", code=1))))
    assert len(rows) == 12
    assert [row["layer"] for row in rows if row["state"] == "introduced"] == ["/fc1/Gemm"]


def test_json_says_where_the_first_is(
    sample: Sample, spoiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(
        run(capsys, "blame", sample("lenet"), spoiled, "--json", "--draws", 1, "--seed", 4, code=1)
    )
    assert found["kind"] == "fault"
    assert found["seeds"] == [4]
    assert found["probes"][found["first"]]["layer"] == "/fc1/Gemm"


@pytest.mark.slow
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_is_drawn_and_an_old_one_kept(
    sample: Sample, spoiled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str
) -> None:
    target = tmp_path / f"growth.{ending}"
    text = run(capsys, "blame", sample("lenet"), spoiled, "--plot", target, code=1)
    assert f"written  {target}" in text
    drawn = target.read_bytes()
    assert (b"/fc1/Gemm" in drawn) if ending == "svg" else drawn.startswith(b"\x89PNG")
    assert main.main(["blame", str(sample("lenet")), str(spoiled), "--plot", str(target), "--quiet"]) == 2
    assert "the file exists" in capsys.readouterr().err
    assert target.read_bytes() == drawn


@pytest.mark.slow
def test_a_picture_of_no_error_can_be_drawn(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "blame", sample("lenet"), sample("lenet"), "--plot", tmp_path / "same.svg")
    assert (tmp_path / "same.svg").stat().st_size > 1000


def test_a_bad_ending_is_refused_before_any_work(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["blame", str(sample("lenet")), str(tmp_path / "is not there.onnx"), "--plot", "x.pdf"]
    assert main.main(words) == 2
    assert ".svg or .png" in capsys.readouterr().err


def test_a_proof_that_failed_says_what_to_type(
    sample: Sample, spoiled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run(capsys, "verify", sample("lenet"), spoiled, code=1)
    assert f"explorer blame {sample('lenet')} {spoiled}" in text
    assert "explorer blame" not in run(capsys, "verify", sample("lenet"), sample("lenet"))


def without_a_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transform with a defect: what it makes of the second linear layer lacks its bias."""
    from tests.engine.proof import tiled as t

    real = transform.tile

    def broken(*args: Any, **kwargs: Any) -> Any:
        made = real(*args, **kwargs)
        return t.with_array(made, "fc2.bias", lambda bias: bias * 0)

    monkeypatch.setattr("explorer.features.tiling.tiling.tile", broken)


def test_a_tiling_that_was_refused_says_what_to_type_and_it_works(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a_bias(monkeypatch)
    out = tmp_path / "tiled.onnx"
    text = run(capsys, "tile", sample("lenet"), "-o", out, code=1)
    assert f"explorer tile {sample('lenet')} -o {out}" in text
    assert "--no-verify" in text
    assert f"explorer blame {sample('lenet')} {out}" in text
    run(capsys, "tile", sample("lenet"), "-o", out, "--no-verify")
    assert "'/fc2/Gemm'" in run(capsys, "blame", sample("lenet"), out, code=1)


def test_a_session_blames_a_tiling_that_it_did_not_keep(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_a_bias(monkeypatch)
    with Session(sample("lenet"), workdir=str(tmp_path)) as session:
        assert session.tile(TileSpec()).output == ""
        fact = session.blame(spec=TileSpec())
        assert fact.first is not None
        assert fact.probes[fact.first].layer == "/fc2/Gemm"
        assert len(session.history().entries) == 1, "it was looked at only"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_session_blames_any_two_of_its_states(sample: Sample) -> None:
    with Session(sample("lenet")) as session:
        session.tile(TileSpec(tile=(16, 16, 16)))
        fact = session.blame()
        assert fact.same
        assert fact.before == str(sample("lenet"))
        assert "16x16x16" in fact.after
        assert session.blame(1, 0).same
        with pytest.raises(Misuse):
            session.blame(0, 7)


@pytest.mark.slow
def test_the_worker_hands_the_figures_on(sample: Sample) -> None:
    engine = EngineProcess(sample("lenet"))
    try:
        engine.submit("tile", TileSpec())
        fact = engine.submit("blame").future.result(timeout=120)
        assert isinstance(fact, Blame)
        assert len(fact.probes) == 12
    finally:
        engine.close()


def test_an_open_dimension_takes_the_size_that_is_given(sample: Sample) -> None:
    a = sample("bert_tiny")
    fact = blame_files(a, a, dims={"batch": 2, "sequence": 8}, draws=1)
    assert fact.same
    assert any("[2, 8]" in text for text in fact.inputs)


def test_models_of_other_inputs_are_refused_in_one_line(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["blame", str(sample("lenet")), str(sample("mlp_128")), "--quiet"]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err.count("\n") == 1
    assert "cannot be run on the same inputs" in err


def test_names_cannot_reach_the_terminal_as_commands(
    sample: Sample, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, factor in (("a", 1), ("b", 2)):
        model = onnx.load(sample("lenet"))
        for node in model.graph.node:
            node.name = f"\x1b[31m{node.name}"
        bias = next(t for t in model.graph.initializer if t.name == model.graph.node[-1].input[2])
        bias.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(bias) * factor, bias.name))
        onnx.save(model, tmp_path / f"{name}.onnx")
    text = run(capsys, "blame", tmp_path / "a.onnx", tmp_path / "b.onnx", code=1)
    assert "fc3/Gemm" in text
    assert "\x1b" not in text


@pytest.fixture
def late(tmp_path: Path) -> tuple[Path, Path]:
    """Two models that take any length; the second one adds something above ten."""
    for name, limit in (("a", 1 << 40), ("b", 10)):
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["h"]),
            helper.make_node("Shape", ["x"], ["length"], start=0, end=1),
            helper.make_node("Greater", ["length", "limit"], ["above"]),
            helper.make_node("Cast", ["above"], ["extra"], to=TensorProto.FLOAT),
            helper.make_node("Add", ["h", "extra"], ["y"], name="late"),
        ]
        shape = ["seq", 4]
        graph = helper.make_graph(
            nodes,
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
            [
                numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
                numpy_helper.from_array(np.array([limit]), "limit"),
            ],
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, tmp_path / f"{name}.onnx")
    return tmp_path / "a.onnx", tmp_path / "b.onnx"


def test_models_that_part_at_some_sizes_are_looked_at_there(
    late: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    found = json.loads(run(capsys, "blame", *late, "--json", code=1))
    assert found["at"] == {"seq": 17}
    assert [sizes["seq"] for sizes in found["sizes"]] == [1, 2, 3, 17]
    text = run(capsys, "blame", *late, "--dim", "seq=5,16,64", code=1)
    assert "(at seq=16)" in text
    assert "sizes: seq=5; seq=16; seq=64; figures at seq=16" in " ".join(text.split())
    assert blame_files(*late, dims={"seq": (5, 10)}).same
    assert not blame_files(*late, dims={"seq": 11}).same
    assert run(capsys, "diff", *late, "--dim", "seq=5,16", code=2) == ""


def test_the_inputs_may_come_from_a_file(late: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    file = late[0].parent / "x.npz"
    for length, code in ((5, 0), (20, 1)):
        np.savez(file, x=np.ones((length, 4), np.float32))
        text = run(capsys, "blame", *late, "--input", file, code=code)
        assert f"x: float32 [{length}, 4], from" in " ".join(text.split())
    for arrays in ({"z": np.ones(3)}, {"x": np.ones((5, 4))}, {"x": np.ones((5, 3), np.float32)}):
        np.savez(file, **arrays)
        assert main.main(["blame", *map(str, late), "--input", str(file)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert str(file) in line
