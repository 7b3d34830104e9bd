"""Number formats on the screen: chosen by keys alone, live; what was lost, and another choice for a layer."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from textual.widgets import Input

import explorer
from explorer.base.errors import ExplorerError
from explorer.base.options import find_option
from explorer.facts.quantize import QuantizeSpec
from explorer.features.compare.blame_screen import BlameScreen
from explorer.features.quantize.layer_list import QuantizedLayers
from explorer.features.quantize.quantize_dialog import QuantizeDialog
from explorer.features.quantize.quantize_screen import QuantizationScreen
from explorer.report.present.shell.history_words import state_blocks
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.combo import ComboField
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

LENET = Path(__file__).parents[2] / "sample_models/lenet.onnx"


class SessionEngine(ScriptedEngine):
    """A real session, in a thread in place of a process."""

    def __init__(self, session: explorer.Session) -> None:
        super().__init__()
        self.session = session

    def _answer(self, job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        def work() -> None:
            try:
                if job.method == "locate":
                    known = {layer.path: layer.id for layer in self.session.analysis().layers}
                    answer: Any = {path: known[path] for path in args[0] if path in known}
                else:
                    answer = getattr(self.session, job.method)(*args, **kwargs)
                job.future.set_result(answer)
            except ExplorerError as error:
                job.future.set_exception(error)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()


@pytest.fixture(autouse=True)
def _without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.features.quantize.quantize_dialog._TYPING_PAUSE", 0.001)


@pytest.fixture
def session() -> Iterator[explorer.Session]:
    with explorer.Session(str(LENET)) as opened:
        opened.open()
        yield opened


def top(hands: Hands) -> Any:
    return hands.pilot.app.screen


def quantized(session: explorer.Session) -> dict[str, tuple[str, str]]:
    """Formats of the current state's layers, by their names."""
    entry = session.history().entries[session.history().current]
    assert entry.quantization is not None
    return {layer.name: (layer.weight, layer.input) for layer in entry.quantization.layers}


def history_text(session: explorer.Session) -> str:
    """What the History screen says of the current state."""
    history = session.history()
    return "\n".join(line_text(line) for line in draw(state_blocks(history, history.current), 90))


@pytest.mark.slow
async def test_formats_are_chosen_by_keys_with_what_they_save_and_become_a_state(session):
    async with screen(SessionEngine(session)) as hands:
        await hands.press("Q")
        assert isinstance(top(hands), QuantizeDialog)
        assert "61.87 KiB" in hands.dialog()
        await hands.burst(*"fixed6.3")
        assert "weight bytes 241.04 KiB -> 45.9" in hands.dialog()
        await hands.burst("ctrl+u", *"int3.5")
        assert "int3.5" in hands.dialog()
        await hands.press("enter")  # what cannot be is not done
        assert isinstance(top(hands), QuantizeDialog)
        await hands.burst("ctrl+u", "right")  # from what was typed back to the words: int8, int4
        await hands.burst(*["down"] * 6, *"re:fc[12]")
        assert "layers 2 of 5" in hands.dialog()
        await hands.press("enter")
        assert isinstance(top(hands), QuantizationScreen)
        left = ("float32", "float32")
        assert list(quantized(session).values()) == [left, left, ("int4", "int4"), ("int4", "int4"), left]
        text = top(hands).page_text()
        assert "same choice" in text
        await hands.press("escape", "w")
        assert top(hands).query_one(Input).value.endswith("_quantized.onnx")
        # undone like every change, done again, and the page is a key away
        await hands.press("escape", "u")
        assert session.history().current == 0
        await hands.press("r", "Q")
        assert isinstance(top(hands), QuantizationScreen)


async def test_int8_is_what_runs_fast_and_the_page_says_as_what_it_runs(session):
    async with screen(SessionEngine(session), size=(120, 40)) as hands:
        await hands.press("Q", "enter")
        asked = session.history().entries[1].quantize
        assert asked is not None
        assert asked.spec.form not in ("fast", "auto")
        text = top(hands).page_text()
        assert "5 of 5 layers run on integer kernels" in text
        assert "shortest" in text
        assert "fast for Conv" in text


@pytest.mark.slow
async def test_a_form_takes_what_is_typed_at_once_field_by_field(session):
    async with screen(SessionEngine(session)) as hands:
        hands.at_once("Q", *"int4", *["down"] * 6, *"re:fc[12]", "down", "2")
        await hands.rest()
        assert "layers 2 of 5" in hands.dialog()
        hands.at_once("backspace", "3", "enter")
        await hands.rest()
        left = ("float32", "float32")
        assert list(quantized(session).values()) == [left, left, ("int4", "int4"), ("int4", "int4"), left]
        assert "seeds 0 to 2" in top(hands).page_text()


@pytest.mark.slow
async def test_a_layer_is_excluded_or_takes_another_format_and_the_model_is_made_again(session):
    async with screen(SessionEngine(session), size=(120, 40)) as hands:
        await hands.press("Q", "enter")
        rows = top(hands).query_one(QuantizedLayers)
        assert rows.current.name == "/conv1/Conv"  # the one that lost most
        await hands.press("x")
        assert quantized(session)["/conv1/Conv"] == ("float32", "float32")
        # the cursor stays on it: it comes back with another format
        await hands.press("f")
        await hands.burst(*"int16", "down", *"int16", "enter")
        assert quantized(session)["/conv1/Conv"] == ("int16", "int16")
        assert quantized(session)["/fc3/Gemm"] == ("int8", "uint8")
        # each was made of the model as it was opened
        assert [entry.parent for entry in session.history().entries[1:]] == [0, 0, 0]
        await hands.press("escape", "B")
        assert isinstance(top(hands), BlameScreen)
        top(hands).plot.move_to(3)
        await hands.press("x")
        assert isinstance(top(hands), QuantizationScreen)
        assert quantized(session)["/conv2/Conv"] == ("float32", "float32")
        assert quantized(session)["/conv1/Conv"] == ("int16", "int16")
        # all of it anew, from what it was made of, with what was asked for
        await hands.press("n")
        assert isinstance(top(hands), QuantizeDialog)
        assert "layers 4 of 5" in hands.dialog()
        assert "4 of 5 layers; /fc1/Gemm lost most" in history_text(session)
        # Enter leads to the layer under the cursor
        await hands.burst(*"int4")
        await hands.press("enter")
        # the inputs stay; what was chosen by hand stays, too, and again it is a branch of the opened
        assert quantized(session)["/fc3/Gemm"] == ("int4", "uint8")
        assert quantized(session)["/conv1/Conv"] == ("int16", "int16")
        assert session.history().parent(session.history().current) == 0
        assert "weight int4, input uint8, 2 layers by hand" in history_text(session)
        await hands.press("escape", "Q", "s", "end", "enter")
        assert hands.at() == "/conv2/Conv"


@pytest.mark.slow
@pytest.mark.parametrize("before", [(60, 15), (140, 40)])
async def test_the_dialog_keeps_its_hint_at_the_smallest_size(before):
    with explorer.Session("sample_models/bert_tiny.onnx") as model:
        async with screen(SessionEngine(model), size=before) as hands:
            await hands.press("Q")
            await hands.pilot.resize_terminal(60, 15)
            await hands.rest()
            assert "layers 25 of 28" in hands.dialog()
            box = top(hands).query_one("#box")
            assert box.region.bottom <= 15
            assert box.query_one(QuantizedLayers).region.bottom < box.region.bottom


@pytest.mark.slow
async def test_enter_before_the_choice_has_come_waits_for_it(session, monkeypatch):
    async with screen(SessionEngine(session)) as hands:
        monkeypatch.setattr("explorer.features.quantize.quantize_dialog._TYPING_PAUSE", 0.1)
        hands.at_once("Q", *"fixed6.3", "enter")
        await hands.rest()
        await hands.until(lambda: isinstance(top(hands), QuantizationScreen))
        assert {weight for weight, _ in quantized(session).values()} == {"fixed6.3"}


@pytest.mark.slow
async def test_an_error_is_read_to_its_end_where_there_are_few_lines(session):
    async with screen(SessionEngine(session), size=(60, 15)) as hands:
        await hands.press("Q")
        await hands.burst(*"fixed9.400")
        said = " ".join(hands.dialog().split())
        assert "follow the point, not 400" in said
        await hands.burst("ctrl+u", *"int8")
        assert "layers 5 of 5" in " ".join(hands.dialog().split())
        assert top(hands).query_one(QuantizedLayers).display


@pytest.mark.slow
async def test_a_format_that_there_is_not_leads_back_to_the_layer_it_was_typed_for(session):
    async with screen(SessionEngine(session)) as hands:
        await hands.press("Q", "enter", "down", "f")
        await hands.burst(*"int8x", "enter")
        assert "there is no number format 'int8x'" in hands.dialog()
        await hands.press("escape")
        assert isinstance(top(hands), QuantizationScreen)
        assert top(hands).query_one(QuantizedLayers).current.name == "/conv2/Conv"
        assert len(session.history().entries) == 2


async def test_escape_stops_it_and_nothing_was_changed(session):
    async with screen(SessionEngine(session)) as hands:
        hands.engine.hold.add("quantize")
        await hands.press("Q", "enter")
        assert "quantizing" in hands.strip(Status)
        await hands.press("escape")
        assert "Quantize: stopped, no change was made" in hands.strip(Status)
        assert len(session.history().entries) == 1


@pytest.mark.slow
async def test_the_layers_of_the_tree_and_their_kind_are_what_is_meant(session):
    async with screen(SessionEngine(session)) as hands:
        await hands.press("Q")
        await hands.burst(*["down"] * 6)
        field = top(hands).query_one("#layers", ComboField)
        assert field.words == ("all 5", "this layer 1", "all Conv 2")
        await hands.press("right")
        assert "layers 1 of 5" in hands.dialog()
        await hands.press("right")
        assert "layers 2 of 5" in hands.dialog()
        await hands.burst("down", *"nowhere.npz", "enter")
        assert "nowhere.npz" in hands.dialog()
        # and what was typed stands there again
        await hands.press("escape")
        assert top(hands).query_one("#calibrate").value == "nowhere.npz"
        assert session.history().current == 0
        # a number is that of random inputs
        top(hands).query_one("#calibrate").focus()
        await hands.burst("ctrl+u", "6", "enter")
        await hands.rest()
        entry = session.history().entries[-1]
        assert (entry.quantize.draws, entry.quantize.calibrate) == (6, "")
        assert "seeds 0 to 5" in entry.quantization.calibration


@pytest.mark.parametrize("part", ["weight", "input", "bias"])
def test_every_format_that_is_offered_is_one(session, part):
    for name in find_option(QuantizeSpec, part).declared.words:
        formats = {"weight": "int8", "input": "int8", "bias": "auto", part: name}
        made = session.quantize_choice(QuantizeSpec(**formats))
        if name != "auto":
            assert name in {getattr(layer, part) for layer in made.layers}


@pytest.mark.slow
async def test_formats_of_a_file_stand_in_the_fields_and_what_is_typed_goes_before_them(
    session, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    text = '[quantize]\nweight = "int4"\ninput = "int8"\n[[quantize.site]]\nsite = "*fc3*"\non = false\n'
    (tmp_path / "mine.toml").write_text(text)
    async with screen(SessionEngine(session), size=(100, 40)) as hands:
        await hands.press("Q")
        top(hands).query_one("#quantize-config").focus()
        await hands.burst(*"mine.toml")
        await hands.rest()
        shown = {id: top(hands).query_one(f"#{id}", ComboField).value for id in ("weight", "input")}
        assert shown == {"weight": "int4", "input": "int8"}
        assert "layers 4 of 5" in hands.dialog()
        top(hands).query_one("#weight").focus()
        await hands.burst(*"int16")
        top(hands).query_one("#quantize-seed").focus()
        await hands.burst("7")
        await hands.press("enter")
        assert isinstance(top(hands), QuantizationScreen)
        entry = session.history().entries[1]
        assert (entry.quantize.seed, entry.quantize.spec.config) == (7, "mine.toml")
        made = quantized(session)
        assert made.pop("/fc3/Gemm") == ("float32", "float32")
        assert set(made.values()) == {("int16", "int8")}
        assert "--config mine.toml --to weight=int16 --seed" in entry.command  # the rest is the file's
        assert entry.command.endswith("--seed 7")
        # asked for anew the file stands there again; one that is not there is said
        await hands.press("n")
        assert top(hands).query_one("#quantize-config").value == "mine.toml"
        top(hands).query_one("#quantize-config").focus()
        await hands.burst("x")
        await hands.rest()
        assert "cannot be read" in hands.dialog()
        await hands.press("enter")
        assert isinstance(top(hands), QuantizeDialog)


@pytest.mark.slow
async def test_a_blame_of_two_states_excludes_a_layer_where_the_second_is_the_current_one(session):
    async with screen(SessionEngine(session), size=(120, 40)) as hands:
        await hands.press("Q", "enter", "escape", "H", "v", "enter")
        assert isinstance(top(hands), BlameScreen)
        top(hands).plot.move_to(3)
        await hands.press("x")
        assert isinstance(top(hands), QuantizationScreen)
        assert quantized(session)["/conv2/Conv"] == ("float32", "float32")
        # of the first quantization, which is not the current state any more, nothing is made again
        await hands.press("escape", "H", "up", "v", "enter")
        assert isinstance(top(hands), BlameScreen)
        top(hands).plot.move_to(3)
        await hands.press("x")
        assert isinstance(top(hands), BlameScreen)
