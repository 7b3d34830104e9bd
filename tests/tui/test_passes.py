"""A pass of one's own on the screen: it becomes a state that `u` leaves, or the first layer that differs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Input

from explorer import Session
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

SAMPLES = Path(__file__).parents[2] / "sample_models"
WRONG = """from explorer.passes import graph_pass
@graph_pass("no-relu", "every Relu becomes an Identity")
def no_relu(model):
    for node in model.graph.node:
        node.op_type = "Identity" if node.op_type == "Relu" else node.op_type
    return model
"""


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(SAMPLES / "lenet.onnx", trust=True) as session:
        yield session


@pytest.fixture
def engine(session: Session, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """Answers are a session's own."""
    for name in ("apply_pass", "history", "analysis", "undo"):
        monkeypatch.setattr(ScriptedEngine, f"_{name}", staticmethod(getattr(session, name)), raising=False)
    return ScriptedEngine(session.analysis())


async def fill(hands: Hands, name: str, passes: Path) -> None:
    await hands.press("circumflex_accent")
    hands.pilot.app.screen.query_one("#name", Input).value = name
    hands.pilot.app.screen.query_one("#passes", Input).value = str(passes)
    await hands.press("enter")


async def test_a_pass_becomes_a_state_and_undo_takes_it_back(
    engine: ScriptedEngine, session: Session
) -> None:
    async with screen(engine, size=(100, 30)) as hands:
        await fill(hands, "split-bias", SAMPLES / "passes.py")
        assert hands.dialog().startswith("Pass split-bias\n")
        assert [entry.change for entry in session.history().entries[1:]] == ["apply"]
        await hands.press("escape", "u")
        assert session.history().current == 0


async def test_a_pass_that_changes_the_outputs_is_refused_with_the_layer(
    engine: ScriptedEngine, session: Session, tmp_path: Path
) -> None:
    (tmp_path / "wrong.py").write_text(WRONG)
    async with screen(engine, size=(120, 60)) as hands:
        await fill(hands, "no-relu", tmp_path / "wrong.py")
        assert hands.dialog().startswith("Pass no-relu refused\n")
        assert "blame" in hands.dialog()
        assert len(session.history().entries) == 1
        await hands.press("escape")
        await fill(hands, "another", tmp_path / "wrong.py")
        assert "there is no pass 'another'" in hands.dialog()
