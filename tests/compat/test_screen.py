"""The screen over a sample model, driven by Textual's pilot."""

from __future__ import annotations

from pathlib import Path

from explorer import Session
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine

LENET = Path(__file__).parents[2] / "sample_models" / "lenet.onnx"


async def test_the_cursor_walks_down_the_layers_and_up_again() -> None:
    with Session(str(LENET)) as session:
        engine = ScriptedEngine(session.analysis())
    async with screen(engine) as hands:
        rows = len(hands.tree())
        first, seen = hands.at(), []
        for _ in range(rows - 1):
            await hands.press("down")
            seen.append(hands.at())
        assert len({first, *seen}) == rows
        assert "/fc3/Gemm" in seen
        for _ in range(rows - 1):
            await hands.press("up")
        assert hands.at() == first


async def test_a_page_of_help_opens_and_closes() -> None:
    async with screen() as hands:
        await hands.press("question_mark")
        assert hands.dialog()
        await hands.press("escape")
        assert not hands.dialog()
