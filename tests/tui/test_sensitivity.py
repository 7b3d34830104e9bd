"""Number formats layer by layer on the screen: tried in slices, drawn, and one of them taken."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

import pytest

import explorer
from explorer.base.errors import Cancelled
from explorer.cli import main
from explorer.facts.quantize import FormatSweepSpec
from explorer.features.quantize.quantize_screen import QuantizationScreen
from explorer.features.sweep.sensitivity_screen import SensitivityScreen
from explorer.features.sweep.sweep_dialogs import FormatSweepDialog, FormatSweepRequest
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.status_line import JobLine
from explorer.tui.widgets.strips import TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.test_quantizing import LENET, SessionEngine, quantized


@pytest.fixture
def session() -> Iterator[explorer.Session]:
    with explorer.Session(str(LENET)) as opened:
        opened.open()
        yield opened


def top(hands: Hands) -> Any:
    return hands.pilot.app.screen


def table(hands: Hands) -> list[str]:
    rows = top(hands).query_one("#sweep-rows", LineList)
    return [line_text(rows.row_line(at, 100)) for at in range(rows.row_count)]


def page(hands: Hands, name: str) -> str:
    return "\n".join(line_text(line) for line in top(hands).query_one(name, LineView).lines)


def title(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in top(hands).query(TitleBar).first().lines)


def status(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in top(hands).query_one(JobLine).lines)


async def begin(hands: Hands, formats: str) -> None:
    """Types formats in place of those offered, and begins; the other fields as they are."""
    await hands.press("Z")
    assert isinstance(top(hands), FormatSweepDialog)
    await hands.burst("ctrl+u", *formats, "enter")
    assert isinstance(top(hands), SensitivityScreen)


@pytest.mark.slow
async def test_a_point_of_the_front_becomes_a_state_and_is_undone(session):
    async with screen(SessionEngine(session), size=(140, 40)) as hands:
        await begin(hands, "int8,mxfp4")
        assert len(table(hands)) == 2 * (1 + 5 + 5)
        assert "22 choices" in title(hands)
        assert "SNR dB over weight bytes" in page(hands, "#sweep-plot")
        await hands.press("x")
        assert "SNR dB over BitOPs" in page(hands, "#sweep-plot")
        await hands.press("f")
        assert 0 < len(table(hands)) < 22
        assert all("◆" in line for line in table(hands))
        await hands.press("f", "s", "home")  # the greatest signal to noise first
        row = top(hands).current
        assert row.snr_db == max(one.snr_db for one in top(hands)._trials.rows)
        await hands.press("enter")
        assert isinstance(top(hands), QuantizationScreen)
        made = quantized(session)
        assert {name for name in made if made[name] == (row.format, row.format)} == {row.layer}
        fact = session.history().entries[1].quantization
        assert fact.outputs[0].snr_db == pytest.approx(row.snr_db, abs=1e-6)
        assert f"--site {row.layer} " in f"{fact.command} "
        await hands.press("escape", "u")
        assert session.history().current == 0
        # what was tried is still there, and so it is from the quantized state: another point is a branch
        await hands.press("r", "Z")
        assert len(table(hands)) == 22
        await hands.press("down", "enter")
        assert [entry.parent for entry in session.history().entries[1:]] == [0, 0]


@pytest.mark.slow
async def test_a_mixed_precision_is_sought_written_and_its_command_makes_it(
    session, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    async with screen(SessionEngine(session), size=(80, 24)) as hands:
        await hands.press("Z")
        await hands.burst("ctrl+u", *"int8,mxfp4", "down", "right", "down", *"7", "down", "down", "right")
        assert "layer by layer what adds the least noise" in " ".join(hands.dialog().split())
        await hands.press("enter")
        assert "at most 7 bits a weight" in title(hands)
        (one,) = top(hands)._trials.mixed
        assert (one.met, one.cost) == (True, "bitops")
        await hands.press("end")
        row = top(hands).current
        assert row.scope == "mixed"
        copied: list[str] = []
        monkeypatch.setattr(hands.pilot.app, "copy_to_clipboard", copied.append)
        await hands.press("y")
        assert "w writes its formats" in status(hands)
        await hands.press("w", "enter")
        await hands.press("y")
        asked = top(hands).verb_words("m.onnx")
        await hands.press("enter")
        assert isinstance(top(hands), QuantizationScreen)
        fact = session.history().entries[1].quantization
        assert "--config formats.toml" in fact.command
        assert fact.outputs[0].snr_db == pytest.approx(row.snr_db, abs=1e-6)
    (command,) = copied
    assert main.main([*shlex.split(command)[1:], "--quiet"]) == 0
    assert f"{row.snr_db:.1f}" in capsys.readouterr().out
    assert asked == ["sweep", "m.onnx", "--quantize", "int8,mxfp4", "--bits", "7", "--cost", "bitops"]


class StoppedEngine(SessionEngine):
    """Is stopped in the second slice."""

    slices = 0

    def _answer(self, job: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if job.method == "sweep_formats" and kwargs["seconds"]:
            self.slices += 1
            if self.slices == 2:
                job.future.set_exception(Cancelled())
                return
        super()._answer(job, args, kwargs)


@pytest.mark.slow
async def test_of_integers_that_were_tiled_layers_are_tried_on_what_was_quantized(session):
    async with screen(SessionEngine(session)) as hands:
        await hands.press("Q", "enter", "escape", "t", "enter", "escape")
        states = session.history()
        assert [states.current, states.entries[1].quantization is None, states.entries[2].plan is None] == [
            *(2, False, False)
        ]
        await begin(hands, "int8,mxfp4")
        assert {row.scope for row in top(hands)._trials.rows} == {"all", "only", "without"}
        assert not [row.error for row in top(hands)._trials.rows if row.error]


@pytest.mark.slow
async def test_what_ran_before_a_stop_is_kept_and_goes_on(session, monkeypatch):
    monkeypatch.setattr("explorer.features.sweep.sensitivity_screen._SLICE_SECONDS", 0.01)
    async with screen(StoppedEngine(session)) as hands:
        await begin(hands, "int8")
        ran = len(table(hands))
        assert 0 < ran < 11
        assert "or more remain; n continues" in status(hands)
        await hands.press("n", "enter")
        assert len(table(hands)) == 11
        asked = [how["seconds"] for name, _, how in hands.engine.asked if name == "sweep_formats"]
        assert asked.count(0.0) == 1
        found = session.sweep_formats(FormatSweepSpec(("int8",), per_layer=True), seconds=0)
    assert (len(found.rows), found.open) == (11, 0)


@pytest.mark.slow
async def test_what_cannot_be_is_said_and_nothing_is_begun(session):
    async with screen(SessionEngine(session)) as hands:
        await hands.press("Z")
        await hands.burst("ctrl+u", *"weights=int8", "enter")
        assert isinstance(top(hands), FormatSweepDialog)
        assert "does not set the format of a part" in hands.dialog()
        await hands.burst("ctrl+u", *"int9000", "enter")
        assert "there is no number format 'int9000'" in hands.dialog()
        await hands.press("escape")
        assert isinstance(top(hands), FormatSweepDialog)
        assert top(hands).query_one("#sensitivity-formats").value == "int9000", "as it was typed"
        await hands.press("escape")
        assert top(hands) is hands.main


@pytest.mark.slow
@pytest.mark.parametrize("size", [(60, 15), (80, 24)])
async def test_a_small_screen_shows_the_plot_in_place_of_the_table(session, size):
    async with screen(SessionEngine(session), size=size) as hands:
        await begin(hands, "int8")
        assert (top(hands).query_one("#sweep-plot").display, size[1] > 22) in ((False, False), (True, True))
        await hands.press("p")
        assert top(hands).query_one("#sweep-plot").display
        assert "SNR dB over weight bytes" in page(hands, "#sweep-plot")


def test_the_words_of_a_request_are_those_of_the_verb() -> None:
    spec = FormatSweepSpec(
        ("int8", "weight=int4+input=int8"),
        *(True, 6.5, 20.0),
        calibrate="a b.npz",
        draws=2,
        seed=3,
        cost="bitops",
    )
    words = " ".join(FormatSweepRequest(spec, "r.db").words())
    assert words == (
        "--quantize int8,weight=int4+input=int8 --per-layer --bits 6.5 --snr 20 --cost bitops --draws 2"
        " --seed 3 --calibrate a b.npz -o r.db"
    )
