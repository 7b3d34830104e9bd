"""Statistics by choice on the screen: `#` asks, the table sorts, leads to layers and is copied as CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from textual.widgets import Input

from explorer import Session
from explorer.cli.main import main
from explorer.facts.values import Activations, Weights
from explorer.features.values.statistics_screen import STATISTICS_KEYS, StatisticsDialog, StatisticsScreen
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.strips import Status
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

LENET = "sample_models/lenet.onnx"
STORED = {t.name: numpy_helper.to_array(t).astype(np.float64) for t in onnx.load(LENET).graph.initializer}
SIZES = ((60, 15), (140, 40))


class RealStatistics(ScriptedEngine):
    """A script whose statistics are those of a session."""

    def __init__(self, session: Session) -> None:
        super().__init__(session.analysis())
        self.session = session

    def _weights(self, names: list[str], **how: Any) -> Weights:
        return self.session.weights(names, **how)

    def _activations(self, names: list[str], **how: Any) -> Activations:
        return self.session.activations(names, **how)


@pytest.fixture(scope="module")
def lenet() -> Iterator[Session]:
    with Session(LENET) as session:
        yield session


async def asked(hands: Hands, **fields: str) -> StatisticsScreen:
    """The table for what is typed into the fields of the dialog."""
    await hands.press("number_sign")
    dialog = hands.pilot.app.screen
    assert isinstance(dialog, StatisticsDialog)
    if of := fields.pop("of", ""):
        field = dialog.query_one("#of", OptionField)
        field.index = field.words.index(of)
    for name, text in fields.items():
        dialog.query_one(f"#{name}", Input).value = text
    await hands.press("enter")
    await hands.rest()
    view = hands.pilot.app.screen
    assert isinstance(view, StatisticsScreen)
    return view


def said(view: StatisticsScreen) -> str:
    return line_text(view.query_one("#figure-keys", Status).lines[0])


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", SIZES)
async def test_the_table_has_every_weight_and_sorts_by_any_figure(
    lenet: Session, size: tuple[int, int]
) -> None:
    async with screen(RealStatistics(lenet), size=size) as hands:
        view = await asked(hands)
        assert [row.tensor for row in view._ordered] == list(STORED)
        await hands.press(*"sssss")
        assert "by var, the largest first" in said(view)
        var = {name: float(array.var()) for name, array in STORED.items()}
        largest = max(var, key=lambda name: var[name])
        assert [row.tensor for row in view._ordered] == sorted(var, key=lambda name: -var[name])
        shown = view.page_text()
        assert f"{var[largest]:.4g}" in shown, "what is sorted by is on show at every width"
        await hands.press("e")
        assert f"{var[largest]:.9g}"[:-1] in view.page_text()
        await hands.press("r")
        assert view._ordered[-1].tensor == largest
        await hands.press("S", "S", "S", "S")
        assert [row.tensor for row in view._ordered] == sorted(STORED)
        await hands.press("S")
        assert [row.tensor for row in view._ordered] == list(STORED)


@pytest.mark.slow
async def test_a_row_leads_to_its_layer_and_other_statistics_are_a_key_away(lenet: Session) -> None:
    async with screen(RealStatistics(lenet), size=(140, 40)) as hands:
        view = await asked(hands, stat="absmax", layers="*fc2*", axis="0")
        assert len(view._ordered) == 2 * 84
        rows = [row for row in view._ordered if row.tensor == "fc2.weight"]
        told = [row.values["absmax"] for row in rows]
        np.testing.assert_array_equal(told, np.abs(STORED["fc2.weight"]).max(1))
        await hands.press("n")
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, StatisticsDialog)
        assert dialog.query_one("#layers", Input).value == "*fc2*", "what was asked stands there again"
        await hands.press("escape")
        view = await asked(hands, layers="", axis="", kinds="Gemm")
        assert {row.operator for row in view._ordered} == {"Gemm"}
        await hands.press("end", "enter")
        await hands.rest()
        assert hands.at() == view._ordered[-1].layer == "/fc3/Gemm"


@pytest.mark.slow
async def test_the_table_is_copied_as_the_csv_of_the_verb(lenet: Session, capsys: Any) -> None:
    async with screen(RealStatistics(lenet), size=(140, 40)) as hands:
        view = await asked(hands, of="activations", stat="mean,quantile:0.5", kinds="Conv, Relu")
        await hands.press("Y", "s")
        copied = hands.pilot.app.clipboard
        words = view.verb_words(LENET)
    assert main([*words, "--csv"]) == 0
    printed = capsys.readouterr().out
    assert list(csv.DictReader(io.StringIO(copied))) == list(csv.DictReader(io.StringIO(printed)))
    assert words[:2] == ["activations", LENET]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("field", "text", "words"),
    [
        ("stat", "variance", "'variance' is not a statistic"),
        ("axis", "channels", "'channels' is not an axis"),
        ("input", "x.npz", "weights need no input"),
    ],
)
async def test_what_cannot_be_asked_is_said_in_the_dialog(
    lenet: Session, field: str, text: str, words: str
) -> None:
    async with screen(RealStatistics(lenet), size=(80, 24)) as hands:
        await hands.press("number_sign")
        dialog = hands.pilot.app.screen
        dialog.query_one(f"#{field}", Input).value = text
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, StatisticsDialog)
        assert words in " ".join(hands.dialog().split())


def test_its_keys_are_in_the_help() -> None:
    from explorer.tui.commands.help_action import KEYS

    assert set(STATISTICS_KEYS) <= set(KEYS)
