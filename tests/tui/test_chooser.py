"""What can be opened, on the screen: a folder's models by their headers, recent ones, sessions, names."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from textual.widgets import Input

from explorer.facts import History, HistoryEntry
from explorer.facts.models.listing import NamedModel, RecentModel
from explorer.process import recent_models, saved_sessions
from explorer.process.saved_sessions import Opening, SavedSession
from explorer.tui.dialogs.manual import HelpDialog
from explorer.tui.models.choice_list import ChoiceList
from explorer.tui.models.open_models import ModelChoice, OpenModel
from explorer.tui.program import ExplorerApp
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.lines import line_text
from explorer.tui.widgets.strips import Status, TitleBar
from tests.terminal import Terminal
from tests.tui.hands import drawn
from tests.tui.scripted import ScriptedEngine

Sample = Callable[[str], Path]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(sample: Sample, tmp_path: Path) -> Path:
    found = tmp_path / "models"
    (found / "below").mkdir(parents=True)
    shutil.copy(sample("lenet"), found / "below" / "lenet.onnx")
    shutil.copy(sample("jsc_tiny"), found / "jsc_tiny.onnx")
    shutil.copy(sample("mlp_128"), found / "mlp_128.onnx")
    return found


class Chooser:
    """Presses keys and reads the list."""

    def __init__(self, app: ExplorerApp, pilot: Any, chosen: list[ModelChoice]) -> None:
        self.app, self.pilot, self.chosen = app, pilot, chosen

    async def rest(self) -> None:
        for _ in range(3):
            await self.app.workers.wait_for_complete()
            await self.pilot.pause()
        await drawn()

    async def press(self, *keys: str) -> None:
        for key in keys:
            await self.pilot.press(key)
            await self.rest()

    async def type(self, text: str) -> None:
        """All at once, as a paste or a quick hand."""
        await self.pilot.press(*({"/": "slash", ".": "full_stop", "_": "underscore"}.get(c, c) for c in text))
        await self.rest()

    def rows(self) -> list[str]:
        rows = self.app.screen.query_one(ChoiceList)
        return [line_text(rows.row_line(i, rows.size.width)).strip() for i in range(rows.row_count)]

    def part(self, title: str) -> list[str]:
        """The names below a heading."""
        rows = self.app.screen.query_one(ChoiceList)
        found: list[str] = []
        inside = False
        for row, line in zip(rows._rows, self.rows(), strict=True):
            if isinstance(row, str):
                inside = line.startswith(title)
            elif inside:
                found.append(line.split()[0])
        return found

    def strip(self, kind: type[TitleBar] | type[Status]) -> str:
        return "\n".join(line_text(line) for line in self.app.screen.query_one(kind).lines)


@asynccontextmanager
async def chooser(folder: Path | str, size: tuple[int, int] = (100, 30)) -> AsyncIterator[Chooser]:
    chosen: list[ModelChoice] = []

    def begin(choice: ModelChoice) -> OpenModel:
        chosen.append(choice)
        return OpenModel(choice.source, ScriptedEngine())

    app = ExplorerApp("", None, folder=str(folder), begin=begin)
    async with app.run_test(size=size) as pilot:
        hands = Chooser(app, pilot, chosen)
        await hands.rest()
        yield hands


async def test_models_are_listed_by_their_headers_and_enter_opens_one(folder: Path) -> None:
    async with chooser(folder) as hands:
        assert "models" in hands.strip(TitleBar)
        assert "3 models" in hands.strip(Status)
        assert hands.part("In ") == ["jsc_tiny.onnx", "mlp_128.onnx", "below/lenet.onnx"]
        (lenet,) = (row for row in hands.rows() if row.startswith("below/lenet"))
        assert lenet.split()[1:7] == ["onnx", "242.71", "KiB", "61.71", "k", "float32"]
        await hands.press("down", "down", "enter")
        assert [one.source for one in hands.chosen] == [str(folder / "below" / "lenet.onnx")]
        assert isinstance(hands.app.screen, MainScreen)


async def test_the_question_mark_opens_the_help_until_something_is_typed(folder: Path) -> None:
    async with chooser(folder) as hands:
        await hands.press("question_mark")
        help_screen = hands.app.screen
        assert isinstance(help_screen, HelpDialog)
        await hands.press("escape", *"lenet", "question_mark")
        assert hands.app.screen is not help_screen
        assert hands.app.screen.query_one(Input).value == "lenet?"
        await hands.press("ctrl+c")
        assert hands.app.return_code == 0


async def test_a_narrow_list_has_room_for_the_names_of_files_with_several_dtypes(tmp_path: Path) -> None:
    (folder := tmp_path / "models").mkdir()
    tensors = {"weight": np.zeros((64, 64), np.float32), "scale": np.zeros(64, np.int8)}
    save_file(tensors, folder / "jets_int8.safetensors")
    async with chooser(folder, size=(80, 24)) as hands:
        (row,) = (row for row in hands.rows() if "float32, …" in row)
        assert row.startswith("jets_int8.safetensors ")


async def test_a_narrow_list_says_at_its_end_what_the_language_model_is_on_which_the_cursor_stands(
    tmp_path: Path,
) -> None:
    (made := tmp_path / "models" / "small").mkdir(parents=True)
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 4096}
    (made / "config.json").write_text(json.dumps(config))
    save_file({"model.norm.weight": np.zeros(8, np.float32)}, made / "model.safetensors")
    async with chooser(made.parent, size=(80, 24)) as hands:
        (row,) = (row for row in hands.rows() if row.startswith("small"))
        assert "huggingface" in row
        assert "LlamaForCausalLM, 4,096 tokens: float32" in hands.strip(Status)


@pytest.mark.slow
async def test_typing_narrows_and_tab_sorts(folder: Path) -> None:
    async with chooser(folder) as hands:
        orders = {}
        for _ in range(5):
            order = hands.strip(Status).split("Enter")[0].split(" · ")[1].strip()
            orders[order] = hands.part("In ")
            await hands.press("tab")
        assert orders["size"] == orders["params"] == ["below/lenet.onnx", "mlp_128.onnx", "jsc_tiny.onnx"]
        assert orders["name"] == ["below/lenet.onnx", "jsc_tiny.onnx", "mlp_128.onnx"]
        await hands.press("tab", "tab", "shift+tab")
        assert hands.part("In ") == ["jsc_tiny.onnx", "mlp_128.onnx", "below/lenet.onnx"]
        await hands.type("lenet")
        assert hands.part("In ") == ["below/lenet.onnx"]
        await hands.press("escape")
        assert len(hands.part("In ")) == 3
        await hands.press("escape")
    assert (hands.chosen, hands.app.return_code) == ([], 0)


@pytest.mark.slow
async def test_what_nothing_is_called_is_said_and_a_whole_name_is_what_enter_opens(folder: Path) -> None:
    async with chooser(folder) as hands:
        await hands.type("nope")
        assert hands.rows() == []
        assert "no name matches" in hands.strip(Status)
        await hands.press("escape")
        await hands.type("resnet18")
        assert any(row.startswith("quantized_resnet18 ") for row in hands.rows())
        await hands.press("enter")
        assert [one.source for one in hands.chosen] == ["resnet18"]


async def test_a_name_that_begins_with_the_typed_letters_precedes_one_that_contains_them(
    folder: Path,
) -> None:
    shutil.copy(folder / "jsc_tiny.onnx", folder / "a_mlp.onnx")
    async with chooser(folder) as hands:
        assert hands.part("In ")[0] == "a_mlp.onnx"
        await hands.type("mlp")
        assert hands.part("In ") == ["mlp_128.onnx", "a_mlp.onnx"]
        assert "2 matches · " in hands.strip(Status)
        await hands.type("_128")
        assert "1 match · " in hands.strip(Status)
        await hands.press("enter")
        assert [one.source for one in hands.chosen] == [str(folder / "mlp_128.onnx")]


def test_typed_letters_of_a_named_model_put_the_cursor_on_the_name_that_begins_with_them() -> None:
    rows = ChoiceList()
    rows.parts = {
        "torchvision": [NamedModel("deeplabv3_resnet50"), NamedModel("resnet101"), NamedModel("resnet50")]
    }
    rows.words = ("resnet5",)
    rows.lay_out(keep=False)
    assert rows.current_choice == NamedModel("resnet50")


async def test_the_folder_precedes_sessions_which_have_their_path_and_their_age(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for at, place in enumerate((folder, folder / "below", tmp_path)):
        store = saved_sessions.begin(os.environ)
        assert store is not None
        store.save(SavedSession("resnet18" if place == tmp_path else "mlp_128.onnx", str(place), Opening()))
        written = time.time() - (30, 7_200, 3 * 86_400)[at]
        os.utime(Path(store.folder, "session.msgpack"), (written, written))
        store.release()
    async with chooser("", size=(140, 30)) as hands:
        headings = [row for row in hands.rows() if row.startswith(("In ", "Sessions", "torchvision"))]
        assert [heading.split()[0] for heading in headings[:2]] == ["In", "Sessions"]
        assert hands.part("Sessions") == ["models/mlp_128.onnx", "models/below/mlp_128.onnx", "resnet18"]
        ages = [row.split("  ")[-1].strip() for row in hands.rows() if "session" in row.split()]
        assert ages[0].endswith("s ago")
        assert ages[1:] == ["2 h ago", "3 d ago"]
        await hands.type("below/mlp")
        assert hands.part("Sessions") == ["models/below/mlp_128.onnx"], "a part of its path finds a session"


@pytest.mark.slow
async def test_two_quick_keys_open_one_model(folder: Path) -> None:
    async with chooser(folder) as hands:
        await hands.pilot.press("enter", "enter")
        await hands.rest()
        assert len(hands.chosen) == 1


@pytest.mark.slow
async def test_names_of_torchvision_are_listed_with_their_parameters(folder: Path) -> None:
    async with chooser(folder) as hands:
        await hands.type("resnet50")
        (row,) = (row for row in hands.rows() if row.startswith("resnet50 "))
        assert row.split() == ["resnet50", "torchvision", "25.56", "M"]


@pytest.mark.slow
async def test_recent_models_are_there_and_a_missing_one_says_so(folder: Path, tmp_path: Path) -> None:
    for name in ("gone.onnx", "mlp_128.onnx"):
        recent_models.add(
            str(folder / name), Opening(dims={"n": 2}), RecentModel("", 0, "onnx", 7), os.environ
        )
    (tmp_path / "other").mkdir()
    (folder / "gone.onnx").write_bytes(b"x")
    recent_models.add(str(folder / "gone.onnx"), Opening(), RecentModel("", 0, "onnx", 7), os.environ)
    (folder / "gone.onnx").unlink()
    async with chooser(tmp_path / "other", size=(200, 30)) as hands:
        assert "no model is in it" in hands.strip(Status)
        gone, kept = (row for row in hands.rows() if "mlp_128" in row or "gone" in row)
        assert "not there any more" in gone
        assert "not there any more" not in kept
        await hands.press("enter")
        assert "removed from the list" in hands.strip(Status)
        assert hands.chosen == []
        await hands.press("enter")
        (choice,) = hands.chosen
        assert choice.source == str(folder / "mlp_128.onnx")
        assert choice.opening is not None
        assert choice.opening.dims == {"n": 2}  # opened as it was


def test_recent_models_are_a_bounded_number_and_what_ran_with_trust_is_none_of_them(tmp_path: Path) -> None:
    for number in range(recent_models.MAX_RECENT + 5):
        recent_models.add(f"model_{number}", Opening(), RecentModel("", 0), os.environ)
    recent_models.add("code", Opening(trust=True), RecentModel("", 0), os.environ)
    found = recent_models.list_recent(os.environ)
    assert len(found) == recent_models.MAX_RECENT
    assert found[0].source == f"model_{recent_models.MAX_RECENT + 4}"
    (tmp_path / "state" / "explorer" / "recent.msgpack").write_bytes(b"\xff\x00nonsense")
    assert recent_models.list_recent(os.environ) == ()


@pytest.mark.slow
async def test_a_session_that_waits_is_resumed_from_the_list(folder: Path, tmp_path: Path) -> None:
    store = saved_sessions.begin(os.environ)
    assert store is not None
    store.save(SavedSession("mlp_128.onnx", str(folder), Opening()))
    store.release()
    (tmp_path / "other").mkdir()
    async with chooser(tmp_path / "other") as hands:
        assert hands.part("Sessions") == ["mlp_128.onnx"]
        await hands.press("enter")
        (choice,) = hands.chosen
        assert choice.kept == store.folder


@pytest.mark.slow
async def test_sessions_in_which_nothing_was_done_are_listed_once_a_model(
    folder: Path, tmp_path: Path
) -> None:
    for at, states in enumerate((1, 2, 1, 1)):
        store = saved_sessions.begin(os.environ)
        assert store is not None
        made = Path(store.folder, "1.onnx")
        made.touch()
        done = [HistoryEntry("as opened", None, ""), HistoryEntry("tile 16x16x16", str(made), "", parent=0)]
        history = History(tuple(done[:states]), states - 1)
        store.save(SavedSession("mlp_128.onnx", str(folder), Opening(), history))
        os.utime(Path(store.folder, "session.msgpack"), (4_000_000_000 + at, 4_000_000_000 + at))
        store.release()
    (tmp_path / "other").mkdir()
    async with chooser(tmp_path / "other") as hands:
        assert len(hands.part("Sessions")) == 2


@pytest.mark.slow
async def test_of_many_sessions_the_newest_leave_room_for_what_is_in_the_folder(folder: Path) -> None:
    for at in range(12):
        store = saved_sessions.begin(os.environ)
        assert store is not None
        store.save(SavedSession(f"model_{at}.onnx", str(folder), Opening()))
        os.utime(Path(store.folder, "session.msgpack"), (4_000_000_000 + at, 4_000_000_000 + at))
        store.release()
    async with chooser(folder) as hands:
        assert hands.part("Sessions")[:2] == ["model_11.onnx", "model_10.onnx"]
        assert len(hands.part("Sessions")) == 8
        assert any("8 of 12: type to find one" in row for row in hands.rows())
        await hands.type("model_1")
        assert hands.part("Sessions") == ["model_11.onnx", "model_10.onnx", "model_1.onnx"]


@pytest.mark.slow
async def test_a_path_that_is_typed_is_opened_and_a_folder_is_listed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with chooser(tmp_path / "other") as hands:
        await hands.type(f"{folder}/nope.onnx")
        await hands.press("enter")
        assert "no such file" in hands.strip(Status)
        await hands.press("escape")
        await hands.type(str(folder))
        await hands.press("enter")
        assert len(hands.part("In ")) == 3
        await hands.type(f"{folder}/mlp_128.onnx")
        await hands.press("enter")
        assert [one.source for one in hands.chosen] == [str(folder / "mlp_128.onnx")]


@pytest.mark.slow
async def test_in_a_browser_nothing_outside_the_folder_is_listed_or_opened(
    folder: Path, tmp_path: Path, sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLORER_SERVED", str(folder))
    shutil.copy(sample("lenet"), tmp_path / "secret.onnx")
    async with chooser(folder) as hands:
        assert not any("torchvision" in row for row in hands.rows())
        for typed in (f"{folder}/../secret.onnx", str(tmp_path), "os:getcwd"):
            await hands.type(typed)
            await hands.press("enter")
            assert hands.chosen == []
            assert "serve" in hands.strip(Status)
            await hands.press("escape")


@pytest.mark.slow
async def test_hostile_names_and_headers_are_rows_like_others(tmp_path: Path) -> None:
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}).encode()
    name = "deep" * 20 + "\x1b]0;owned\x07.safetensors"
    (tmp_path / name).write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    (tmp_path / "code.py").write_bytes(b'"""Begins as a model might."""\n')
    async with chooser(tmp_path, size=(60, 15)) as hands:
        assert "1 model " in hands.strip(Status)
        row = hands.rows()[1]
        assert row.isprintable()
        assert len(row) <= 60


@pytest.mark.slow
def test_at_a_terminal_explorer_alone_opens_what_is_chosen(folder: Path) -> None:
    with Terminal([sys.executable, "-m", "explorer"], cwd=folder) as terminal:
        terminal.wait_for("61.71 k")
        terminal.press("lenet")
        terminal.press("\r")
        terminal.wait_for("416.52 k")
        terminal.press("q")
        assert terminal.end() == 0
