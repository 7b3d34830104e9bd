"""Profiles of whole models: the sums against wall time, and against what onnxruntime says itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from explorer.engine.profile import sessions
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.session import Session

SAMPLES = Path(__file__).parent.parent.parent / "sample_models"
_WITHIN = 0.05


def _profiled(path: str, monkeypatch: pytest.MonkeyPatch) -> tuple[Profile, list[dict[str, Any]], list[bool]]:
    """A profile, the events that onnxruntime wrote meanwhile, and which runs count."""
    told: list[Any] = []
    end = sessions.TimedSessions.end

    def kept(self: sessions.TimedSessions) -> str:
        written = end(self)
        told.extend((json.loads(Path(written).read_text(encoding="utf-8")), self.counted))
        return written

    monkeypatch.setattr(sessions.TimedSessions, "end", kept)
    with Session(path, cache=False) as session:
        found = session.profile(ProfileSpec(steps=6, time_limit=60, record=1))
    return found, told[0], told[1]


def _hold(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found, events, counted = _profiled(path, monkeypatch)
    layers = sum(one.seconds.median for one in found.layers if one.seconds)
    whole = layers + sum(one.seconds for one in found.other) + found.overhead_seconds - found.slowed_seconds
    assert whole == pytest.approx(found.wall_seconds, rel=_WITHIN)
    runs: list[list[dict[str, Any]]] = [[]]
    for event in events:
        if event["name"] == "model_run":
            runs.append([])
        elif event["name"].endswith("_kernel_time"):
            runs[-1].append(event)
    of_runs = [
        sum(event["dur"] for event in run) for run, wanted in zip(runs, counted, strict=False) if wanted
    ]
    # of the last one what was recorded is what onnxruntime said, to the microsecond
    last = [run for run, wanted in zip(runs, counted, strict=False) if wanted][-1]
    (recorded,) = found.recording
    assert sum(one.seconds for one in recorded.events) == pytest.approx(of_runs[-1] * 1e-6)
    assert len(recorded.events) == len(last)
    assert {one.name for one in recorded.events} == {event["args"]["op_name"] for event in last}


@pytest.mark.parametrize("name", ["lenet", "mobilenet_small"])
def test_kernels_add_up_to_what_onnxruntime_says(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _hold(str(SAMPLES / f"{name}.onnx"), monkeypatch)


@pytest.mark.slow
def test_a_whole_model_adds_up_to_what_onnxruntime_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "mobilenet_v2"
    pytest.importorskip("torchvision")
    path = str(tmp_path / f"{name}.onnx")
    with Session(name, cache=False) as session:
        session.convert(path, verify=False)
    _hold(path, monkeypatch)
