"""A profile is kept with its state: over undo and redo, in saved sessions, and the history shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer.base.units import seconds_text
from explorer.cli.main import main
from explorer.facts import TileSpec
from explorer.facts.profile.profile import ProfileSpec
from explorer.process import saved_sessions
from explorer.process.saved_sessions import Opening, SavedSession
from explorer.session import Session

SAMPLES = Path(__file__).parent.parent.parent / "sample_models"
_FEW = ProfileSpec(steps=3, warmup=1)


@pytest.mark.slow
def test_it_goes_and_comes_with_its_state_and_a_new_one_takes_its_place() -> None:
    with Session(str(SAMPLES / "lenet.onnx"), cache=False) as session:
        first = session.profile(_FEW)
        session.tile(TileSpec(tile=(32, 32, 32)), verify=False)
        tiled = session.profile(_FEW)
        session.undo()
        assert [entry.profile for entry in session.history().entries] == [first, tiled]
        again = session.profile(_FEW)
        session.redo()
        assert [entry.profile for entry in session.history().entries] == [again, tiled]
        session.undo()
        session.tile(TileSpec(tile=(16, 16, 16)), verify=False)
        # a state that was never timed has none, whatever stood in its place
        assert session.history().entries[session.history().current].profile is None


def test_it_is_in_a_session_that_is_resumed_and_the_history_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Session(str(SAMPLES / "lenet.onnx"), cache=False) as session:
        found = session.profile(_FEW)
        history = session.history()
    env = {"XDG_STATE_HOME": str(tmp_path)}
    made = saved_sessions.begin(env)
    assert made is not None
    assert made.save(SavedSession("lenet.onnx", str(SAMPLES), Opening(), history))
    made.release()
    again, saved = saved_sessions.find(None, env)
    assert saved.history is not None
    assert saved.history.entries[0].profile == found
    again.release()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert main(["history"]) == 0
    told = capsys.readouterr().out
    assert "time" in told
    assert seconds_text(found.wall_seconds) in told
