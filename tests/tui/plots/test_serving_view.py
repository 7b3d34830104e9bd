"""The page of serving: prompt, context, batch and devices change by keys, and the figures follow."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from textual.widgets import Input
from transformers import GPT2Config, GPT2LMHeadModel

from explorer import Session
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.features.sizes.serving_screen import ServingDialog, ServingView
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

SIZES = ((60, 15), (140, 40))


@cache
def gpt() -> Session:
    model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=128, n_positions=4096))
    return Session(model, inputs={"input_ids": torch.zeros(1, 4, dtype=torch.int64)})


def served(spec: ServingSpec, *, machine: object = None) -> Serving:
    return gpt().serving(spec)


@pytest.fixture
def engine() -> ScriptedEngine:
    made = ScriptedEngine()
    made.served = served
    return made


def text(hands: Hands) -> str:
    view = hands.pilot.app.screen.query_one("#serving-page", LineView)
    return " ".join(" ".join(line_text(line) for line in view.lines).split())


def title(hands: Hands) -> str:
    return " ".join(line_text(line) for line in hands.pilot.app.screen.query_one(TitleBar).lines)


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
async def test_keys_change_what_is_asked_and_q_goes_back(
    engine: ScriptedEngine, size: tuple[int, int]
) -> None:
    async with screen(engine, size=size) as hands:
        await hands.press("@")
        assert isinstance(hands.pilot.app.screen, ServingView)
        assert "bytes(context) = 512*context" in text(hands)
        assert "memory over tokens in the cache" in text(hands)
        assert "MACs of a token over tokens in the cache" in text(hands)
        for key, asked in (
            ("right", ServingSpec(contexts=(16384,))),
            ("p", ServingSpec(prompt=4096, contexts=(16384,))),
            ("b", ServingSpec(prompt=4096, contexts=(16384,), batches=(2, 16, 64))),
            ("d", ServingSpec(prompt=4096, contexts=(16384,), batches=(2, 16, 64), devices=(2,))),
        ):
            await hands.press(key)
            assert hands.engine.asked[-1][:2] == ("serving", (asked,))
        assert "Layouts over devices" in text(hands)
        view = hands.pilot.app.screen.query_one("#serving-page", LineView)
        assert all(line_width(line) <= size[0] for line in view.lines)
        await hands.press("q")
        assert isinstance(hands.pilot.app.screen, MainScreen)


@pytest.mark.slow
async def test_all_of_a_question_can_be_typed_and_what_cannot_be_read_is_said(engine: ScriptedEngine) -> None:
    async with screen(engine, size=(140, 40)) as hands:
        await hands.press("@", "t")
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, ServingDialog)
        dialog.query_one("#context", Input).value = "never"
        await hands.pilot.pause()
        assert "'never' is not a number of tokens" in hands.dialog()
        dialog.query_one("#context", Input).value = "1k,2k"
        dialog.query_one("#kv-dtype", Input).value = "fp8"
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, ServingView)
        assert "context 1,024, 2,048" in title(hands)
        assert "bytes(context) = 128*context" in text(hands)


async def test_a_model_without_a_cache_is_told_why() -> None:
    async with screen(ScriptedEngine()) as hands:
        await hands.press("@")
        assert "no key-value cache" in hands.dialog()


@pytest.mark.slow
async def test_open_sizes_of_a_text_lead_there_by_the_same_key(engine: ScriptedEngine) -> None:
    engine.curves = {name: gpt().sizes(name, 1, 64) for name in ("sequence", "batch")}
    async with screen(engine) as hands:
        await hands.press("D")
        keys = hands.pilot.app.screen.query_one("#sizes-keys", Status)
        assert "@ serving" in " ".join(line_text(line) for line in keys.lines)
        await hands.press("@")
        assert isinstance(hands.pilot.app.screen, ServingView)
        await hands.press("q")
        assert isinstance(hands.pilot.app.screen, MainScreen)
        # what reads no text is not served
        engine.curves = {"batch": engine.curves["batch"]}
        await hands.press("D", "@")
        note = hands.pilot.app.screen.query_one("#sizes-note", Status)
        assert "this model reads no text" in " ".join(line_text(line) for line in note.lines)
