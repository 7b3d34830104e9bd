"""Split on the screen: `|` shows the stages, keys move the cuts, figures follow, `w` writes them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from textual.widgets import Input

from explorer import Session
from explorer.facts.split.split import SplitSpec
from explorer.features.split.split_dialog import SplitDialog, SplitRequest
from explorer.features.split.split_view import SplitScreen
from explorer.process.saved_sessions import SavedSplit, ScreenState
from explorer.report.present.figures import share_text
from explorer.settings import machines
from explorer.tui.text.lines import line_text
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

SAMPLES = Path(__file__).parents[2] / "sample_models"


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(str(SAMPLES / "lenet.onnx")) as session:
        yield session


@pytest.fixture
def engine(session: Session, monkeypatch: pytest.MonkeyPatch) -> ScriptedEngine:
    """Answers about a split are a session's own."""
    answers = {
        "_split_draft": session.split_draft,
        "_split": session.split,
        "_run_stages": session.run_stages,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(ScriptedEngine, name, staticmethod(answer), raising=False)
    return ScriptedEngine(session.analysis())


def shown(hands: Hands) -> SplitScreen:
    found = hands.pilot.app.screen
    assert isinstance(found, SplitScreen)
    return found


def title(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in shown(hands).query_one(TitleBar).lines)


def rows(hands: Hands) -> dict[str, str]:
    """Name of each row to what stands behind it."""
    tree = shown(hands).query_one(LayerTree)
    texts = (line_text(tree.row_line(at, 72)) for at in range(tree.row_count))
    lines = [re.sub("[▾█▏▎▍▌▋▊▉]", " ", text).split() for text in texts]
    return {line[0]: " ".join(line[1:]) for line in lines}


def told(fact: Any) -> tuple[list[tuple[int, int | None, int]], list[int], float]:
    return (
        [(one.params, one.macs, one.activation_bytes) for one in fact.stages],
        [one.bytes for one in fact.cuts],
        fact.balance,
    )


def draft(hands: Hands) -> Any:
    return hands.main.store.splits[0].draft


async def test_a_key_shows_the_best_stages_and_a_moved_cut_takes_its_figures_along(engine, session):
    best = session.split(SplitSpec(4))
    async with screen(engine, size=(140, 40)) as hands:
        await hands.press("vertical_line")
        assert told(draft(hands).split) == told(best)
        assert f"balance {share_text(best.balance, 1.0)}" in title(hands)
        stages = rows(hands)
        assert stages["conv1"].startswith("1 118 k")
        assert stages["conv2"].startswith("┌ 2 240 k")
        assert stages["pool"].startswith("1-2 - ")  # its two operators lie in two stages
        await hands.press("n", "full_stop")
        moved = session.split(SplitSpec(cuts=("Relu_1", "fc1", "fc3")))
        assert told(draft(hands).split) == told(moved) != told(best)
        assert f"balance {share_text(moved.balance, 1.0)}" in title(hands)
        assert "cuts moved" in title(hands)
        assert rows(hands)["conv2"].startswith("1 240 k")
        page = "\n".join(line_text(line) for line in shown(hands).query_one("#split-page", LineView).lines)
        assert "000" in page  # who works when
        names = ",".join(one.before for one in moved.cuts)
        assert shown(hands).verb_words("x.onnx") == ["split", "x.onnx", "--cuts", names]
        await hands.press("o")
        assert told(draft(hands).split) == told(best)
        assert shown(hands).verb_words("x.onnx") == ["split", "x.onnx", "-n", "4"]


@pytest.mark.slow
async def test_many_keys_at_once_end_at_the_figures_of_the_last(engine, session):
    async with screen(engine, size=(140, 40)) as hands:
        await hands.press("vertical_line", "n")
        await hands.burst("full_stop", "full_stop", "n", "full_stop", "comma", "comma")
        places = hands.main.store.splits[0].places
        assert draft(hands).places == places
        assert told(draft(hands).split) == told(session.split_draft(SplitSpec(4), places).split)


@pytest.mark.slow
async def test_a_cut_stops_at_its_neighbours_and_the_ends(engine):
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press("vertical_line", "n", *["comma"] * 9, "less_than_sign")
        assert draft(hands).places[0] == 1
        await hands.press(*["greater_than_sign"] * 4)
        first, second, *_ = draft(hands).places
        assert first == second - 1
        assert "can go no further" in hands_said(hands)


def hands_said(hands: Hands) -> str:
    return "\n".join(line_text(line) for one in shown(hands).query(Status) for line in one.lines)


@pytest.mark.slow
async def test_a_stage_begins_at_the_cursor_or_no_longer_and_two_are_left(engine):
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press("vertical_line", "down", "x")
        assert draft(hands).places[0] == 1
        assert len(draft(hands).split.stages) == 5
        await hands.press("x", *["n", "x"] * 2)
        assert len(draft(hands).split.stages) == 2
        await hands.press("n", "x")
        assert len(draft(hands).split.stages) == 2
        assert "at least two stages" in hands_said(hands)


@pytest.mark.slow
async def test_numbers_measures_and_machines_are_asked_for_and_what_is_wrong_is_said(engine, session):
    async with screen(engine, size=(100, 30)) as hands:
        await hands.press("vertical_line", "plus")
        assert told(draft(hands).split) == told(session.split(SplitSpec(5)))
        await hands.press("minus", "b")
        assert told(draft(hands).split) == told(session.split(SplitSpec(4, "params")))
        await hands.press("b", "b")
        assert draft(hands).split.by == "training"
        await hands.press("b")  # time is not known
        assert draft(hands).split.by == "macs"
        assert "s names machines" in hands_said(hands)
        await hands.press("s")
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, SplitDialog)
        dialog.query_one("#machines", Input).value = "a100,nosuch"
        await hands.press("enter")
        assert "nosuch" in hands.dialog()
        dialog.query_one("#machines", Input).value = "a100,l4"
        await hands.press("enter")  # of four stages: told, and asked again
        assert "2 machines are neither one nor one for each stage" in " ".join(hands.dialog().split())
        await hands.press("escape")
        hands.pilot.app.screen.query_one("#stages", Input).value = "2"
        await hands.press("enter", *["b"] * 4)
        named = tuple(machines.find(name) for name in ("a100", "l4"))
        fact = session.split(SplitSpec(2, "time"), machines=named)
        assert told(draft(hands).split) == told(fact)
        assert fact.forecast is not None
        assert "runs/s" in title(hands)
        assert shown(hands).verb_words("x")[2:] == ["-n", "2", "--by", "time", "--machine", "a100,l4"]
        await hands.press("home", "down", "x")  # a third stage has no machine
        assert "2 machines are neither one nor one for each stage" in hands_said(hands)
        best = session.split_draft(SplitSpec(2, "time"), machines=named).places
        assert hands.main.store.splits[0].places == draft(hands).places == best


async def test_what_is_shown_is_written_and_proved_and_nothing_is_replaced_unasked(engine, tmp_path):
    folder = tmp_path / "stages"
    async with screen(engine, size=(100, 40)) as hands:
        await hands.press("vertical_line", "n", "full_stop", "w")
        hands.pilot.app.screen.query_one(Input).value = str(folder)
        await hands.press("enter")
        assert hands.dialog().startswith("The stages are the model\n")
        assert "the model's outputs, bit for bit" in " ".join(hands.dialog().split())
        manifest = json.loads((folder / "stages.json").read_text())
        assert [one["bytes"] for one in manifest["cuts"]] == [one.bytes for one in draft(hands).split.cuts]
        written = (folder / "stages.json").stat().st_mtime_ns
        await hands.press("escape", "w", "enter")
        assert "Replace them?" in " ".join(hands.dialog().split())
        await hands.press("n")
        assert (folder / "stages.json").stat().st_mtime_ns == written
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "none" / "stages")
        await hands.press("enter")
        assert "thereisnosuchfolder" in "".join(hands.dialog().split())  # a long path breaks lines anywhere
        assert not (tmp_path / "none").exists()


@pytest.mark.slow
async def test_what_is_written_runs_as_a_pipeline_and_stages_of_other_cuts_do_not(engine, tmp_path):
    folder = tmp_path / "stages"
    async with screen(engine, size=(100, 40)) as hands:
        await hands.press("vertical_line", "r")
        assert "no stages written yet: w writes them" in hands_said(hands)
        await hands.press("w")
        hands.pilot.app.screen.query_one(Input).value = str(folder)
        await hands.press("enter")
        assert "r runs them as a pipeline" in hands.dialog()
        await hands.press("escape", "r")
        ran = hands.dialog()
        assert ran.startswith("The pipeline ran\n")
        assert "micro-batches in" in ran
        assert "computed from stages timed alone" in ran
        assert all(one.name in ran for one in folder.glob("*.onnx"))
        await hands.press("escape", "n", "full_stop", "r")
        assert "the written stages have other cuts" in hands_said(hands)
        await hands.press("comma")
        (folder / "stage2.onnx").write_bytes(b"another")
        await hands.press("r")
        assert "stage2.onnx" in hands.dialog()
        assert "The pipeline ran" not in hands.dialog()


@pytest.mark.slow
async def test_the_main_tree_has_the_stages_then_and_cuts_stay_where_they_were_left(engine):
    async with screen(engine, size=(140, 30)) as hands:
        await hands.press("vertical_line", "n", "full_stop", "escape")
        tree = hands.main.query_one(LayerTree)
        (pool,) = (one for one in range(tree.row_count) if "pool" in line_text(tree.row_line(one, 100)))
        assert " 1-2 " in line_text(tree.row_line(pool, 100))
        places = draft(hands).places
        await hands.press("vertical_line")
        assert draft(hands).places == places
        assert "cuts moved" in title(hands)
        await hands.press("enter")
        assert hands.pilot.app.screen is hands.main


@pytest.mark.slow
async def test_a_resumed_session_has_the_cuts_where_they_were_left(engine, session):
    async with screen(engine, size=(140, 30)) as hands:
        await hands.press("vertical_line", "plus", "n", "full_stop", "escape")
        places, view = draft(hands).places, hands.main.view()
    kept = msgspec.msgpack.decode(msgspec.msgpack.encode(view), type=ScreenState)
    session.split_draft(SplitSpec(2))  # as in another process, where these cuts were never told
    async with screen(engine, size=(140, 30), view=kept) as hands:
        assert hands.main.view().splits == view.splits, "kept before it is looked at, too"
        await hands.press("vertical_line")
        assert draft(hands).places == places
        assert "5 stages" in title(hands)
        assert "cuts moved" in title(hands)


@pytest.mark.slow
@pytest.mark.parametrize(
    "saved",
    [
        SavedSplit(0, tuple(SplitRequest()), (3, 2, 10**12)),
        SavedSplit(0, ("4", "no such measure"), (1,)),
        SavedSplit(7, (), (1,)),
    ],
)
async def test_kept_cuts_that_do_not_fit_give_way_to_the_best(engine, saved):
    async with screen(engine, size=(140, 30), view=ScreenState(splits=(saved,))) as hands:
        await hands.press("vertical_line")
        assert "4 stages by MACs" in title(hands)


async def test_where_both_have_no_room_a_key_shows_the_figures(engine):
    async with screen(engine, size=(60, 15)) as hands:
        await hands.press("vertical_line")
        page, tree = (shown(hands).query_one(name) for name in ("#split-page", "#split-left"))
        assert (tree.display, page.display) == (True, False)
        await hands.press("p")
        assert (tree.display, page.display) == (False, True)
        await hands.press("tab", "n", "full_stop")
        assert (tree.display, page.display) == (True, False)
        assert "cuts moved" in title(hands)


@pytest.mark.slow
async def test_a_size_that_is_not_known_is_one_line_and_leads_back(monkeypatch):
    with Session(str(SAMPLES / "bert_tiny.onnx")) as session:
        monkeypatch.setattr(
            ScriptedEngine,
            "_split_draft",
            lambda self, *a, **how: session.split_draft(*a, **how),
            raising=False,
        )
        async with screen(ScriptedEngine(session.analysis())) as hands:
            await hands.press("vertical_line")
            assert "bind a size" in " ".join(hands.dialog().split())
            await hands.press("escape")
            assert hands.pilot.app.screen is hands.main


@pytest.mark.slow
async def test_a_module_is_cut_as_its_graph_and_has_the_stages_in_its_own_tree(monkeypatch):
    pytest.importorskip("torchvision")
    with Session("resnet18") as session:
        monkeypatch.setattr(ScriptedEngine, "_split_draft", staticmethod(session.split_draft), raising=False)
        async with screen(ScriptedEngine(session.analysis()), size=(140, 40)) as hands:
            await hands.press("vertical_line", "minus", "minus", "s")
            assert hands.pilot.app.screen.query_one("#form", OptionField).words == ("onnx", "torch")
            await hands.press("escape", "escape")
            tree = hands.main.query_one(LayerTree)
            stages = tree.model.stages
            assert stages is not None
            found = {row.path: stages.find_stage_range([row.id]) for row in tree.model.layers}
            assert (found["conv1"], found["layer1"], found["fc"]) == ((0, 0), (0, 0), (1, 1))
            assert found["layer2.0.downsample.0"] == found["layer2.0"]
            lines = [line_text(tree.row_line(at, 100)) for at in range(tree.row_count)]
            assert any("conv1" in line and "  1  " in line for line in lines)
