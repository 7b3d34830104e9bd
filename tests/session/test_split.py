"""Split from Python: measured times are balanced where there are some, large models cut and proved."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from explorer import Misuse, Session, TileSpec
from explorer.facts.profile.profile import ProfileSpec
from explorer.facts.split.part import PartSpec
from explorer.facts.split.split import SplitSpec

LENET = str(Path(__file__).parent.parent.parent / "sample_models" / "lenet.onnx")


def test_time_that_was_measured_is_balanced() -> None:
    with Session(LENET) as session:
        with pytest.raises(Misuse, match="nothing says how long a layer takes"):
            session.split(SplitSpec(2, "time"))
        took = session.profile(ProfileSpec(steps=3, optimize="none"))
        told = session.split(SplitSpec(2, "time"))
    known = sum(one.seconds.median for one in took.layers if one.seconds is not None)
    assert sum(one.cost for one in told.stages) == pytest.approx(known)
    assert told.forecast is not None
    assert told.forecast.period == max(one.seconds or 0.0 for one in told.stages)
    assert "the profile that was measured" in told.notes[0]


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
    with Session(str(path)) as session, pytest.raises(Misuse, match="nothing says how long a layer takes"):
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
