"""Split from Python: measured times are balanced where there are some, large models cut and proved."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from explorer import Misuse, Session, TileSpec
from explorer.cli.main import main
from explorer.engine.formats.onnx import reader
from explorer.engine.split import proof
from explorer.facts.profile.profile import ProfileSpec
from explorer.facts.split.part import PartSpec
from explorer.facts.split.split import SplitSpec

LENET = str(Path(__file__).parent.parent.parent / "sample_models" / "lenet.onnx")


def test_time_that_was_measured_is_balanced() -> None:
    with Session(LENET) as session:
        with pytest.raises(Misuse, match="the times of the layers are unknown"):
            session.split(SplitSpec(2, "time"))
        took = session.profile(ProfileSpec(steps=3, optimize="none"))
        told = session.split(SplitSpec(2, "time"))
    known = sum(one.seconds.median for one in took.layers if one.seconds is not None)
    assert sum(one.cost for one in told.stages) == pytest.approx(known)
    assert told.forecast is not None
    assert told.forecast.period == max(one.seconds or 0.0 for one in told.stages)
    assert "the measured profile" in told.notes[0]


def test_what_another_session_measured_is_balanced_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("EXPLORER_NO_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = tmp_path / "model.onnx"
    path.write_bytes(Path(LENET).read_bytes())
    time.sleep(0.04)  # of what changed just now nothing is kept
    with Session(str(path)) as session:
        took = session.profile(ProfileSpec(steps=3, optimize="none"))
    with Session(str(path)) as session:
        told = session.split(SplitSpec(2, "time"))
    known = sum(one.seconds.median for one in took.layers if one.seconds is not None)
    assert sum(one.cost for one in told.stages) == pytest.approx(known)
    path.write_bytes((Path(LENET).parent / "jsc_tiny.onnx").read_bytes())
    with Session(str(path)) as session, pytest.raises(Misuse, match="the times of the layers are unknown"):
        session.split(SplitSpec(2, "time"))


@pytest.mark.slow
def test_a_network_with_branches_is_cut_written_and_proved(tmp_path: Path) -> None:
    model, stages = "googlenet", 4
    pytest.importorskip("torchvision")
    with Session(model) as session:
        macs = session.open().totals.macs
        fact = session.split(SplitSpec(stages), output=str(tmp_path / "stages"))
    assert fact.exact
    assert fact.verification is not None
    assert fact.verification.verdict_kind == "equal"
    assert all(one.passed for one in fact.outputs)
    assert sum(one.macs or 0 for one in fact.stages) == macs
    assert fact.balance > 0.8


@pytest.mark.slow
def test_a_tiled_network_is_cut_and_a_block_taken_out(tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    with Session("squeezenet1_1") as session:
        tiled = session.tile(TileSpec(), output=str(tmp_path / "tiled.onnx"), verify=False)
        fact = session.split(SplitSpec(2), output=str(tmp_path / "stages"))
        part = session.extract(PartSpec(layers=("*features.3*",)), str(tmp_path / "part.onnx"))
    assert tiled.output
    assert (fact.exact, len(fact.stages)) == (True, 2)
    assert part.exact


def half(path: Path, spoil: float = 0.0) -> str:
    """Convolutions and a skip in a type between whose operators the runtime keeps float32."""
    kind = onnx.TensorProto.FLOAT16
    rng = np.random.default_rng(4)
    weights = [rng.standard_normal((6, 6, 3, 3)).astype(np.float16) / np.float16(7) for _ in range(4)]
    weights[2][0, 0, 0, 0] += np.float16(spoil)
    nodes, value = [], "x"
    for at in range(4):
        nodes.append(helper.make_node("Conv", [value, f"w{at}"], [f"c{at}"], f"conv{at}", pads=[1] * 4))
        nodes.append(helper.make_node("Sigmoid", [f"c{at}"], [f"s{at}"], f"sigmoid{at}"))
        nodes.append(helper.make_node("Add", [f"s{at}", value], [f"a{at}"], f"add{at}"))
        value = f"a{at}"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [1, 6, 9, 9])],
        [helper.make_tensor_value_info(value, kind, [1, 6, 9, 9])],
        [onnx.numpy_helper.from_array(weight, f"w{at}") for at, weight in enumerate(weights)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


def test_a_graph_of_float16_is_cut_within_the_rounding_of_what_crosses(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = half(tmp_path / "half.onnx")
    with Session(path) as session:
        fact = session.split(SplitSpec(4), output=str(tmp_path / "stages"))
        part = session.extract(PartSpec(start=("conv1",), end=("add2",)), str(tmp_path / "part.onnx"))
    assert (fact.exact, fact.rounded) == (True, "float16")
    assert (part.exact, part.rounded) == (True, "float16")
    assert fact.output
    assert part.output
    assert main(["split", path, "--stages", "2", "-o", str(tmp_path / "two")]) == 0
    text = capsys.readouterr().out
    assert "with its values at the cuts rounded to float16" in " ".join(text.split())


def integers(path: Path, *, dequantized: bool) -> str:
    """Two matmuls of unsigned with signed bytes, which share a zero point."""
    rng = np.random.default_rng(4)
    stored = {
        "w": rng.integers(-127, 127, (8, 8)).astype(np.int8),
        "s": np.asarray(0.05, np.float32),
        "z": np.asarray(128, np.uint8),
        "k": np.asarray(0, np.int8),
    }
    nodes, kind = [], onnx.TensorProto.FLOAT if dequantized else onnx.TensorProto.UINT8
    for at, (x, y) in enumerate((("x", "a"), ("a", "y"))):
        if not dequantized:
            nodes.append(helper.make_node("QLinearMatMul", [x, "s", "z", "w", "s", "k", "s", "z"], [y], y))
            continue
        nodes += [
            helper.make_node("QuantizeLinear", [x, "s", "z"], [f"{x}_q"], f"quantize{at}"),
            helper.make_node("DequantizeLinear", [f"{x}_q", "s", "z"], [f"{x}_d"], f"dequantize{at}"),
            helper.make_node("DequantizeLinear", ["w", "s", "k"], [f"w{at}"], f"weight{at}"),
            helper.make_node("MatMul", [f"{x}_d", f"w{at}"], [y], f"matmul{at}"),
        ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, [5, 8])],
        [helper.make_tensor_value_info("y", kind, [5, 8])],
        [onnx.numpy_helper.from_array(value, name) for name, value in stored.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize("dequantized", [False, True])
def test_a_quantized_graph_whose_layers_share_a_zero_point_is_cut(tmp_path: Path, dequantized: bool) -> None:
    with Session(integers(tmp_path / "m.onnx", dequantized=dequantized)) as session:
        fact = session.split(SplitSpec(2), output=str(tmp_path / "stages"))
        part = session.extract(PartSpec(layers=("y",) if not dequantized else ("matmul1",)))
    assert fact.exact
    assert all(one.passed for one in fact.outputs), fact.outputs
    assert all(one.passed for one in part.compared), part.compared
    assert fact.output


def test_stages_of_float16_that_are_others_are_still_refused(tmp_path: Path) -> None:
    whole = reader.read(half(tmp_path / "half.onnx"))
    other = half(tmp_path / "other.onnx", spoil=0.02)
    with Session(other) as session:
        session.split(SplitSpec(2), output=str(tmp_path / "stages"), verify=False)
    stages = [reader.read(str(tmp_path / "stages" / f"stage{at}.onnx")) for at in (1, 2)]
    feeds = {"x": np.random.default_rng(0).standard_normal((1, 6, 9, 9)).astype(np.float16)}
    assert proof.compare_stages(whole, stages, feeds).exact is False


def test_a_graph_of_float32_needs_no_rounding(tmp_path: Path) -> None:
    with Session(LENET) as session:
        fact = session.split(SplitSpec(3), output=str(tmp_path / "stages"))
    assert (fact.exact, fact.rounded) == (True, "")
