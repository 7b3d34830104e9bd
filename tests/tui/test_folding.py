"""Folding from the screen: what would go is shown first, and Enter makes states that undo leaves."""

from __future__ import annotations

from msgspec.structs import replace

from explorer.facts import HistoryEntry
from explorer.facts.split.fold import Fold, FoldedNode, FoldStep, NodeLeft
from explorer.session.parts import history as states
from tests.tui.hands import Hands, screen
from tests.tui.scripted import proof

WHAT = "1 BatchNormalization folded into 1 Conv"
STEP = FoldStep(
    kind="batchnorm",
    what=WHAT,
    folded=(FoldedNode("bn1", "BatchNormalization", ("conv1",), "Conv"),),
    left=(NodeLeft("bn2", "BatchNormalization", "it trains: training_mode = 1"),),
    nodes=5,
    nodes_before=6,
    weight_bytes=100,
    weight_bytes_before=116,
)


def scripted(hands: Hands, step: FoldStep | None, *, passes: bool = True) -> None:
    engine = hands.engine

    def fold() -> Fold:
        assert step is not None
        if not passes:
            return Fold((replace(step, verification=proof(False)),))
        engine.states = states.append(engine.states, HistoryEntry(WHAT, "1.onnx", "explorer fold"))
        return Fold(
            (replace(step, verification=proof(), output="1.onnx"),), output="1.onnx", command="explorer fold"
        )

    engine._fold_choice = lambda: Fold(() if step is None else (step,), STEP.left)  # type: ignore[attr-defined]
    engine._fold = fold  # type: ignore[attr-defined]


async def test_what_would_go_is_shown_first_and_enter_makes_a_state() -> None:
    async with screen(size=(120, 40)) as hands:
        scripted(hands, STEP)
        await hands.press("ampersand")
        assert WHAT in hands.dialog()
        assert "it trains" in hands.dialog()
        await hands.press("escape")
        assert len(hands.engine.states.entries) == 1
        await hands.press("ampersand", "enter")
        assert hands.dialog().startswith("Folded\n")
        assert [entry.label for entry in hands.engine.states.entries][1:] == [WHAT]


async def test_a_fold_that_fails_its_proof_makes_no_state() -> None:
    async with screen(size=(120, 40)) as hands:
        scripted(hands, STEP, passes=False)
        await hands.press("ampersand", "enter")
        assert hands.dialog().startswith("Folding refused\n")
        assert len(hands.engine.states.entries) == 1


async def test_where_nothing_folds_the_reasons_are_told() -> None:
    async with screen(size=(120, 40)) as hands:
        scripted(hands, None)
        await hands.press("ampersand")
        assert hands.dialog().startswith("Nothing to fold\n")
        assert "it trains" in hands.dialog()
        await hands.press("enter")
        assert ("fold", (), {}) not in hands.engine.asked
