"""A data file on the screen: `A` asks for it, and a page says how well the states do on it."""

import pytest
from textual.widgets import Input

from explorer.facts.evaluate.evaluation import ClassScore, Confusion, Evaluation, ModelAgreement, ModelScore
from explorer.features.training.evaluate_screen import EvaluateDialog, EvaluationScreen
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine


def _evaluation(self: ScriptedEngine, data: str, **how: object) -> Evaluation:
    classes = (ClassScore(0, 30, 29), ClassScore(1, 20, 15))
    first = ModelScore(
        *("alexnet.onnx", "y", 0.88, None, 0.4321, "logits"),
        classes=classes,
        confusions=(Confusion(1, 0, 5), Confusion(0, 1, 1)),
        confused=6,
    )
    beside = ModelAgreement(31.25, 0.999, 0.01, 0.1, 0.98, None)
    second = ModelScore("alexnet.onnx, tiled", "y", 0.86, None, 0.45, "logits", agreement=beside)
    models = (first, second) if self._history().current else (first,)
    return Evaluation(data, 50, "classification", "cross entropy", ("x",), "y", 64, 2, models, 0.2)


@pytest.fixture(autouse=True)
def engine(monkeypatch):
    monkeypatch.setattr(ScriptedEngine, "_evaluate", _evaluation, raising=False)


def _type(hands, field, text):
    hands.pilot.app.screen.query_one(f"#{field}", Input).value = text


async def test_a_data_file_is_asked_for_and_the_page_shows_the_scores():
    async with screen() as hands:
        await hands.press("A")
        assert isinstance(hands.pilot.app.screen, EvaluateDialog)
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, EvaluateDialog)
        assert "there is no file" in hands.dialog()
        _type(hands, "data", "d.npz")
        _type(hands, "labels", "y")
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, EvaluationScreen)
        asked = [(args, kwargs) for name, args, kwargs in hands.engine.asked if name == "evaluate"]
        assert asked == [(("d.npz",), {"labels": "y", "states": [0], "others": []})]
        said = hands.pilot.app.screen.page_text()
        assert all(word in said for word in ("88.0 %", "0.4321", "6 wrong predictions", "50 samples"))
        await hands.press("e")
        assert "0.88" in hands.pilot.app.screen.page_text()
        await hands.press("escape", "A")
        # what was typed last stands there again, and goes when something else is typed
        assert hands.pilot.app.screen.read_answer().data == "d.npz"
        await hands.press("backspace")
        assert hands.pilot.app.screen.read_answer().data == "d.np"
        await hands.press("tab", *"yes", "shift+tab", *"t.npz")
        assert hands.pilot.app.screen.read_answer().data == "t.npz"
        assert hands.pilot.app.screen.read_answer().labels == "yes"


@pytest.mark.slow
async def test_a_tiled_state_stands_beside_the_model_as_opened():
    async with screen() as hands:
        await hands.tile()
        await hands.press("A")
        _type(hands, "data", "d.npz")
        await hands.press("enter")
        asked = [kwargs["states"] for name, _, kwargs in hands.engine.asked if name == "evaluate"]
        assert asked == [[0, 1]]
        said = hands.pilot.app.screen.page_text()
        assert "31.2" in said
        assert "98.0 %" in said
