"""The History screen: every state in sight, one key to go there, to compare, to prove, to name, to keep."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer.base.errors import BadModel
from explorer.facts import History, HistoryEntry
from explorer.report.present.shell.history_words import state_blocks, states
from explorer.tui.dialogs.dialogs import EntryDialog
from explorer.tui.dialogs.states.figures_screen import FigureScreen
from explorer.tui.dialogs.states.history_dialog import DiffScreen, HistoryScreen
from explorer.tui.screen.main import MainScreen
from explorer.tui.text.drawing import draw, row_line, title_line
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.fold_list import FoldList
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, proof


def rows(hands: Hands) -> list[str]:
    """The list of the History screen."""
    top = hands.pilot.app.screen
    assert isinstance(top, HistoryScreen), type(top).__name__
    states = top.query_one("#states", LineList)
    return [line_text(states.row_line(i, 78)).rstrip() for i in range(states.row_count)]


def below(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in hands.pilot.app.screen.query_one("#state", LineView).lines)


def asked(hands: Hands, *methods: str) -> list[tuple[object, ...]]:
    return [(m, *args) for m, args, _ in hands.engine.asked if m in methods]


async def test_every_state_is_a_row_and_the_current_one_is_marked() -> None:
    async with screen(ScriptedEngine(tilings=1)) as hands:
        await hands.tile()
        await hands.press("u", "H")
        assert [row.split()[:2] for row in rows(hands)] == [["○", "0"], ["●", "1"], ["○", "2"]]
        assert rows(hands)[1].endswith("proven equal")
        assert "14,336" in rows(hands)[1]
        head = "\n".join(line_text(line) for line in hands.pilot.app.screen.query_one(TitleBar).lines)
        assert "3 states, 1 to redo" in head
        assert "Nothing is lost" in head
        assert "$ explorer tile alexnet.onnx" in below(hands)
        await hands.press("down")
        assert "can be redone" in below(hands)
        await hands.press("escape")
        assert isinstance(hands.pilot.app.screen, MainScreen)


async def test_enter_goes_to_any_state() -> None:
    async with screen(ScriptedEngine(tilings=2), size=(120, 40)) as hands:
        await hands.press("H", "home", "enter")
        assert isinstance(hands.pilot.app.screen, MainScreen)
        assert hands.engine.states.current == 0
        assert "this is 0 as opened" in hands.strip(Status)
        assert "not saved" not in hands.strip(TitleBar)
        await hands.press("H", "end", "enter")
        assert hands.engine.states.current == 2
        assert len(hands.engine.states.entries) == 3, "going back lost nothing"


async def test_a_state_that_cannot_be_read_is_not_gone_to() -> None:
    async with screen(ScriptedEngine(tilings=2), size=(120, 40)) as hands:
        hands.engine.errors["analysis"] = BadModel("ran out of memory")
        await hands.press("H", "home", "enter")
        assert "the step was undone; ran out of memory" in " ".join(hands.dialog().split())
        assert hands.engine.states.current == 2


async def test_the_first_c_marks_a_state_and_the_second_compares_with_it() -> None:
    async with screen(ScriptedEngine(tilings=2)) as hands:
        await hands.press("H", "up", "c")
        assert rows(hands)[1].startswith(" a")
        await hands.press("c")
        assert not rows(hands)[1].startswith(" a"), "the same key on the same row takes the mark away"
        await hands.press("c", "down", "c")
        top = hands.pilot.app.screen
        assert isinstance(top, DiffScreen)
        assert asked(hands, "diff") == [("diff", 1, 2)]
        head = "\n".join(line_text(line) for line in top.query_one(TitleBar).lines)
        assert "1 tile 64x64x64 → 2 tile 64x64x64" in head
        changes = top.query_one(FoldList)
        assert any("3 tiled" in line_text(changes.row_line(i, 78)) for i in range(changes.row_count))
        await hands.press("escape")
        assert len(rows(hands)) == 3, "back to the history"


@pytest.mark.slow
async def test_marked_states_stand_beside_each_other_and_the_best_is_said_in_words() -> None:
    async with screen(ScriptedEngine(tilings=3)) as hands:
        await hands.press("H", "space", "up", "up", "space")
        assert [row[1] for row in rows(hands)] == [" ", "b", " ", "a"]
        assert hands.engine.states.current == 3, "Space marks and goes nowhere"
        await hands.press("up", "space", "t")
        top = hands.pilot.app.screen
        assert isinstance(top, FigureScreen)
        assert asked(hands, "beside") == [("beside", (3, 1, 0))]
        page = "\n".join(line_text(line) for line in top.query_one("#figures", LineView).lines)
        nodes = [line.split() for line in page.splitlines() if line.strip().startswith("Nodes")]
        assert nodes == [["Nodes", "23", "21", "-8.7", "%"], ["Nodes", "23", "best", "20", "-13.0", "%"]]
        await hands.press("y")
        assert "| Nodes | 23 | 21 | -8.7 % | best 20 | -13.0 % |" in hands.pilot.app.clipboard
        await hands.press("e")
        assert "714,188,480" in "\n".join(
            line_text(line) for line in top.query_one("#figures", LineView).lines
        )
        await hands.press("escape")
        assert len(rows(hands)) == 4, "back to the history"


async def test_one_state_is_compared_with_the_model_as_opened() -> None:
    async with screen(ScriptedEngine(tilings=1), size=(60, 15)) as hands:
        await hands.press("H", "t")
        top = hands.pilot.app.screen
        assert isinstance(top, FigureScreen)
        assert asked(hands, "beside") == [("beside", (0, 1))]
        assert all(line_width(line) <= 60 for line in top.query_one("#figures", LineView).lines)
        await hands.press("escape", "home", "t")
        assert len(rows(hands)) == 2, "one state has nothing beside it"


@pytest.mark.slow
async def test_v_proves_a_state_equal_to_the_marked_one_or_to_the_original() -> None:
    async with screen(ScriptedEngine(tilings=2)) as hands:
        await hands.press("H", "v")
        assert hands.dialog().startswith("Proven equal: 0 as opened and 2 tile 64x64x64")
        await hands.press("escape", "up", "c", "down", "v")
        assert asked(hands, "verify") == [("verify", 0, 2), ("verify", 1, 2)]
        await hands.press("escape", "home", "v")
        assert len(asked(hands, "verify")) == 2, "the original is equal to itself"


async def test_a_key_that_has_nothing_to_do_says_why() -> None:
    async with screen(ScriptedEngine()) as hands:
        await hands.press("H")
        for key, why in (
            ("t", "mark one with Space"),
            ("v", "equal to itself"),
            ("s", "as opened"),
            ("y", "no command"),
        ):
            await hands.press(key)
            footer = line_text(hands.pilot.app.screen.query_one("#history-keys", Status).lines[0])
            assert why in footer
            assert footer.endswith("Esc back")


async def test_the_command_of_a_state_is_copied() -> None:
    async with screen(ScriptedEngine(tilings=1)) as hands:
        await hands.press("H", "y")
        assert hands.pilot.app.clipboard == hands.engine.states.entries[1].command
        await hands.press("up", "y")
        assert hands.pilot.app.clipboard == hands.engine.states.entries[1].command, (
            "nothing made the original"
        )


async def test_what_is_known_of_a_state_scrolls_where_it_does_not_fit() -> None:
    async with screen(ScriptedEngine(tilings=1), size=(40, 12)) as hands:
        await hands.press("H", "tab", "end")
        page = hands.pilot.app.screen.query_one("#state", LineView)
        assert page.scroll_offset.y > 0
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, MainScreen), "the keys are the list's wherever the focus is"


@pytest.mark.slow
async def test_a_comparison_can_be_stopped() -> None:
    async with screen(ScriptedEngine(tilings=1)) as hands:
        hands.engine.hold.add("diff")
        await hands.press("H", "c", "up", "c")
        assert "comparing" in hands.strip(Status)
        await hands.press("escape")
        assert "stopped, no change was made" in hands.strip(Status)


@pytest.mark.slow
async def test_a_state_is_given_a_name_and_its_name_is_taken_away() -> None:
    async with screen(ScriptedEngine(tilings=1)) as hands:
        await hands.press("H", "n")
        assert isinstance(hands.pilot.app.screen, EntryDialog)
        await hands.press(*"int8", "enter")
        assert "int8  tile 64x64x64" in rows(hands)[1]
        assert "done   tile 64x64x64" in below(hands)
        await hands.press("n", "escape")
        assert "int8" in rows(hands)[1]
        await hands.press("n", *["backspace"] * 4, "enter")
        assert "int8" not in rows(hands)[1]
        await hands.press("escape")


@pytest.mark.slow
async def test_quitting_asks_for_a_state_that_is_not_saved_wherever_the_user_is() -> None:
    async with screen(ScriptedEngine(tilings=1)) as hands:
        await hands.press("H", "n", *"int8", "enter", "home", "enter", "q")
        assert "'int8' not saved. Quit without saving?" in hands.dialog()
        await hands.press("n", "H", "end", "n", *["backspace"] * 4, "enter", "home", "enter", "q")
        assert "'tile 64x64x64' not saved. Quit without saving?" in hands.dialog(), (
            "what was undone can be redone"
        )


@pytest.mark.slow
async def test_a_change_after_a_step_back_is_a_branch_that_is_drawn_beside_the_other() -> None:
    async with screen(ScriptedEngine(tilings=2)) as hands:
        await hands.press("H", "up", "enter", "t", "enter")
        assert hands.dialog().startswith("Proven equal"), "nothing is lost, so nothing is asked"
        await hands.press("escape", "H", "home", "enter", "t", "enter", "escape", "H")
        drawn = [" ".join(row[:11].split()) for row in rows(hands)]
        assert drawn == ["○ 0", "├─○ 1", "│ ├─○ 2", "│ ○ 3", "● 4"]
        head = "\n".join(line_text(line) for line in hands.pilot.app.screen.query_one(TitleBar).lines)
        assert "5 states, 3 branches" in head
        assert "made of 0: as opened" in " ".join(below(hands).split())
        await hands.press("up", "up")
        assert "on another branch" in below(hands)
        await hands.press("enter")
        assert hands.engine.states.current == 2
        await hands.press("H", "S")
        hands.pilot.app.screen.query_one(Input).value = "all.sh"
        await hands.press("enter")
        how = {"index": 2, "branches": True, "overwrite": False}
        assert ("script", ("all.sh",), how) in hands.engine.asked


@pytest.mark.slow
async def test_the_script_of_a_state_is_written_where_the_user_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    target, mine = "a.sh", Path("b.sh")
    mine.write_text("mine")
    async with screen(ScriptedEngine(tilings=2)) as hands:
        await hands.press("H", "home", "s")
        assert len(rows(hands)) == 3, "nothing was done to the original"
        await hands.press("down", "s")
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet.sh"
        hands.pilot.app.screen.query_one(Input).value = target
        await hands.press("enter")
        assert (
            "script",
            (target,),
            {"index": 1, "branches": False, "overwrite": False},
        ) in hands.engine.asked
        assert f"written to {target}" in hands.strip(Status)
        await hands.press("H", "s")
        hands.pilot.app.screen.query_one(Input).value = str(mine)
        await hands.press("enter")
        assert "Replace it?" in hands.dialog()
        await hands.press("y")
        assert (
            "script",
            (str(mine),),
            {"index": 2, "branches": False, "overwrite": True},
        ) in hands.engine.asked


@pytest.mark.slow
async def test_tilings_made_by_hand_are_kept_as_a_file(tmp_path: Path) -> None:
    target = str(tmp_path / "npu.toml")
    async with screen() as hands:
        await hands.press("K")
        assert "no tiling yet" in hands.strip(Status)
        await hands.tile()
        await hands.press("K")
        assert hands.pilot.app.screen.query_one(Input).value == "alexnet.toml"
        hands.pilot.app.screen.query_one(Input).value = target
        await hands.press("enter")
        assert ("keep_choices", (target,), {"overwrite": False}) in hands.engine.asked
        assert "written to" in hands.strip(Status)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(140, 40), (80, 24), (60, 15), (40, 12)])
async def test_it_fits_every_terminal(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        for _ in range(20):
            state = hands.engine.states.entries[-1]
            more = (*hands.engine.states.entries, replace(state, path="x"))
            hands.engine.states = History(more, min(3, len(more) - 1))
        await hands.press("H")
        top = hands.pilot.app.screen
        states = top.query_one("#states", LineList)
        assert 3 <= states.size.height <= size[1] // 2
        assert top.query_one("#state", LineView).size.height >= 3
        assert all(line_width(states.row_line(i, size[0])) <= size[0] for i in range(states.row_count))
        await hands.press("end")
        assert states.scroll_offset.y + states.size.height == 21


@pytest.mark.parametrize("width", [30, 49, 50, 80, 140])
def test_rows_and_details_fit_and_hostile_names_are_harmless(width: int) -> None:
    hostile = HistoryEntry("tile\x1b[2J" * 9, "p", "explorer \x1b]0;x\x07", proof(), "s\x1b", "\x9b" * 99)
    fact = History((hostile, hostile), 1)
    table = states(fact, "")
    lines = [row_line(table, 1, width), title_line(table, width), *draw(state_blocks(fact, 1), width)]
    assert not {"\x1b", "\x9b", "\x07"} & set("".join(map(line_text, lines)))
    assert all(line_width(line) <= width for line in lines)


def test_what_came_of_the_proof_is_said_in_the_row() -> None:
    def said(entry: HistoryEntry) -> str:
        return line_text(row_line(states(History((entry, entry), 1), ""), 1, 80)).split("  ")[-1].strip()

    good = HistoryEntry("tile", "p", "", proof())
    bad = replace(proof(), passed=False, verdict_kind="different")
    assert said(good) == "proven equal"
    assert said(replace(good, verification=bad)) == "different"
    assert said(replace(good, verification=None)) == "no proof"
