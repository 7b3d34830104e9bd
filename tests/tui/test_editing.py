"""Edit and extract on the screen: the layer at the cursor changes, or becomes the model; `u` goes back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from textual.widgets import Input

from explorer import Session
from explorer.facts.split.edit import EditStep
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

LENET = str(Path(__file__).parents[2] / "sample_models" / "lenet.onnx")


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(LENET) as session:
        yield session


@pytest.fixture
def engine(session: Session, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """Answers are a session's own."""
    for name in ("edit", "extract", "history", "analysis", "undo"):
        monkeypatch.setattr(ScriptedEngine, f"_{name}", staticmethod(getattr(session, name)), raising=False)
    return ScriptedEngine(session.analysis())


def fill(hands: Hands, **texts: str) -> None:
    for name, text in texts.items():
        hands.pilot.app.screen.query_one(f"#{name}", Input).value = text


async def test_a_step_changes_the_layer_under_the_cursor_and_undo_takes_it_back(engine, session):
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press("down", "comma")
        fill(hands, to="act")
        await hands.press("enter")
        assert "node '/Relu' is 'act'" in hands.dialog()
        await hands.press("escape")
        assert any("act " in row for row in hands.tree())
        await hands.press("u")
        assert not any("act " in row for row in hands.tree())
        assert session.history().current == 0


@pytest.mark.slow
async def test_what_cannot_be_done_is_told_and_asked_again(engine, session):
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press("comma", "right")
        assert "kernel_shape" in hands.dialog()
        fill(hands, attribute="strides", to="2,2")
        await hands.press("enter")
        assert "onnxruntime cannot load the edited model" in hands.dialog()
        await hands.press("escape")
        assert hands.pilot.app.screen.query_one("#to", Input).value == "2,2"
        assert session.history().entries == session.history().entries[:1]
        await hands.press("escape", "down", "down", "comma")
        assert hands.dialog() == ""  # a group is no node


@pytest.mark.slow
async def test_the_layers_under_the_cursor_become_the_model(engine, session):
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press("down", "down", "semicolon")
        assert "the same numbers, bit for bit" in hands.dialog()
        await hands.press("escape")
        assert [row.split()[0] for row in hands.tree()[1:]] == ["MaxPool", "MaxPool_1"]
        assert session.history().entries[1].words == ("extract", "--layer", "pool")
        await hands.press("u")
        assert len(hands.tree()) == 13


def test_a_step_is_a_state_even_of_a_state(session):
    session.edit([EditStep("rename", "conv1", "stem")])
    session.edit([EditStep("delete", "Relu")])
    assert [entry.label for entry in session.history().entries[1:]] == [
        "edit: node '/conv1/Conv' is 'stem'",
        "edit: Relu '/Relu': its readers now read '/conv1/Conv_output_0' instead of '/Relu_output_0'",
    ]
