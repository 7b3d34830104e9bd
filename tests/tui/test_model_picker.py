"""A folder on the screen: its models are listed as they are found, and Enter opens one."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.session import headers
from explorer.tui.model_picker import ModelList, ModelPickerApp
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.strips import Status, TitleBar
from tests.terminal import explorer

Sample = Callable[[str], Path]


class Chooser:
    """Presses keys and reads the list."""

    def __init__(self, app: ModelPickerApp, pilot: Any) -> None:
        self.app, self.pilot = app, pilot

    async def rest(self) -> None:
        for _ in range(3):
            await self.app.workers.wait_for_complete()
            await self.pilot.pause()

    async def press(self, *keys: str) -> None:
        await self.pilot.press(*keys)
        await self.pilot.pause()

    def rows(self) -> list[str]:
        rows = self.app.screen.query_one(ModelList)
        return [line_text(rows.row_line(i, rows.size.width)) for i in range(rows.row_count)]

    def strip(self, kind: type[TitleBar] | type[Status]) -> str:
        return "\n".join(line_text(line) for line in self.app.screen.query_one(kind).lines)


def models(*rows: OutlineRow) -> Outline:
    return Outline("folder", "my models", None, (), rows)


def model(path: str) -> OutlineRow:
    return OutlineRow(path, "model", "onnx", None, 2048)


async def test_the_models_are_listed_with_format_and_size_and_enter_chooses(sample: Sample) -> None:
    found = headers.choices(str(sample("lenet").parent))
    assert found is not None
    app = ModelPickerApp(found)
    async with app.run_test(size=(80, 24)) as pilot:
        hands = Chooser(app, pilot)
        await hands.rest()
        assert "sample_models" in hands.strip(TitleBar)
        assert "9 models" in hands.strip(Status)
        assert hands.rows()[0].split() == ["bert_tiny.onnx", "onnx", "738.24", "KiB"]
        await hands.press("down", "j", "down", "enter")
    assert app.choice == "lenet.onnx"


@pytest.mark.parametrize("key", ["q", "escape"])
async def test_leaving_chooses_nothing(key: str) -> None:
    app = ModelPickerApp(models(model("a.onnx")))
    async with app.run_test(size=(60, 15)) as pilot:
        await pilot.pause()
        await pilot.press(key)
    assert (app.choice, app.return_code) == (None, 0)


async def test_names_are_made_safe_and_cut_in_the_middle() -> None:
    app = ModelPickerApp(models(model("deep/" * 40 + "\x1b]0;owned\x07.onnx")))
    async with app.run_test(size=(60, 15)) as pilot:
        hands = Chooser(app, pilot)
        await hands.rest()
        (row,) = hands.rows()
        assert row.isprintable()
        assert len(row) <= 60
        assert row.rstrip().endswith("2.00 KiB")


async def test_what_was_left_out_or_went_wrong_is_said_below_the_list() -> None:
    rest = OutlineRow("…", "more", note="there is more than is looked at")
    app = ModelPickerApp(models(model("a.onnx"), rest))
    async with app.run_test(size=(100, 24)) as pilot:
        hands = Chooser(app, pilot)
        await hands.rest()
        assert len(hands.rows()) == 1
        assert "1 model   there is more than is looked at" in hands.strip(Status)

    def broken() -> Any:
        yield model("a.onnx")
        raise BadModel("the disk went away")

    app = ModelPickerApp(Outline("folder", "m", None, (), broken()))
    async with app.run_test(size=(100, 24)) as pilot:
        hands = Chooser(app, pilot)
        await hands.rest()
        assert "the disk went away" in hands.strip(Status)
        assert len(hands.rows()) == 1


def test_at_a_terminal_the_chosen_model_is_opened(sample: Sample, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    shutil.copy(sample("lenet"), tmp_path / "below" / "second.bin")
    shutil.copy(sample("jsc_tiny"), tmp_path / "first.onnx")
    with explorer(tmp_path) as terminal:
        terminal.wait_for(os.path.join("below", "second.bin"))
        terminal.press("down")
        terminal.press("\r")
        terminal.wait_for("416.52 k")
        terminal.press("q")
        assert terminal.process.wait(30) == 0
