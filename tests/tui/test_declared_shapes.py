"""Shapes declared from the screen: what inference finds is shown first, and Enter makes a state."""

from __future__ import annotations

from explorer.facts import HistoryEntry
from explorer.facts.split.infer import InferenceResult, ValueDeclaration
from explorer.session.parts import history as states
from tests.tui.hands import Hands, screen

FOUND = InferenceResult(
    (
        ValueDeclaration("y", "", "float32 [9]", "float32 [batch, 10]", "corrected"),
        ValueDeclaration("z", "", "", "", "unknown"),
    ),
    graphs=1,
    known_before=1,
    known=1,
)


def scripted(hands: Hands) -> None:
    engine = hands.engine

    def infer() -> InferenceResult:
        engine.states = states.append(engine.states, HistoryEntry("shapes", "1.onnx", "explorer infer"))
        return FOUND

    engine._infer_choice = lambda: FOUND  # type: ignore[attr-defined]
    engine._infer = infer  # type: ignore[attr-defined]


async def test_what_inference_finds_is_shown_first_and_enter_makes_a_state() -> None:
    async with screen(size=(120, 40)) as hands:
        scripted(hands)
        await hands.press("underscore")
        assert "float32 [batch, 10]" in hands.dialog()
        await hands.press("escape")
        assert len(hands.engine.states.entries) == 1
        await hands.press("underscore", "enter")
        assert hands.dialog().startswith("Shapes declared\n")
        assert [entry.label for entry in hands.engine.states.entries][1:] == ["shapes"]


async def test_the_menu_of_actions_declares_shapes() -> None:
    async with screen(size=(120, 60)) as hands:
        scripted(hands)
        await hands.press("a", "underscore")
        assert "float32 [batch, 10]" in hands.dialog()
