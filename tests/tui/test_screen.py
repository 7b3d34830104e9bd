"""What a user does at the screen, key by key, with an engine that answers from a script."""

from __future__ import annotations

import asyncio
import gc
import json
import warnings
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from textual.events import Key, Paste
from textual.widgets import Input, Static

from explorer.base.errors import BadModel
from explorer.features.graph.graph_screen import GRAPH_KEYS
from explorer.features.tiling.tile_view import TILE_KEYS
from explorer.report.csv_table import format_csv
from explorer.report.document import layers
from explorer.tui.app import is_remote
from explorer.tui.commands.help_action import KEYS
from explorer.tui.commands.key_table import COMMANDS
from explorer.tui.tabs import TABS
from explorer.tui.terminal import slices
from explorer.tui.text.keys import LOOK
from explorer.tui.text.lines import line_text
from explorer.tui.tree import filter_line
from explorer.tui.tree.widget import LayerTree
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.status_line import StatusLine
from explorer.tui.widgets.strips import KeyBar, PaneHead, Status, TitleBar
from tests.tui.hands import screen
from tests.tui.scripted import ScriptedEngine, alexnet, blocks, flat


async def test_the_name_is_shown_while_the_engine_is_still_opening() -> None:
    async with screen(ScriptedEngine(hold=("open",))) as hands:
        assert "alexnet.onnx" in hands.strip(TitleBar)
        assert "opening" in hands.strip(TitleBar)
        assert "opening" in hands.strip(Status)
        hands.engine.release()
        await hands.rest()
        assert "714.19 M" in hands.strip(TitleBar)
        assert "opening" not in hands.strip(TitleBar) + hands.strip(Status)


async def test_what_the_screen_has_imported_is_never_searched_for_garbage_while_a_key_waits(
    frozen: list[str],
) -> None:
    async with screen():
        assert frozen == ["freeze"]


async def test_a_model_that_cannot_be_opened_is_one_line_in_a_dialog() -> None:
    error = BadModel("is empty", where="alexnet.onnx", hint="export it again")
    async with screen(ScriptedEngine(errors={"open": error})) as hands:
        assert "alexnet.onnx: is empty; export it again" in " ".join(hands.dialog().split())
        await hands.press("escape")
        assert hands.dialog() == ""


@pytest.mark.slow
@pytest.mark.parametrize("above", [(), ("question_mark", "escape"), ("a",)])
async def test_o_opens_a_model_again_whatever_dialog_stands_above(above: tuple[str, ...]) -> None:
    engine = ScriptedEngine(errors={"open": BadModel("is empty", where="alexnet.onnx")})
    async with screen(engine) as hands:
        if above:
            await hands.press("escape", *above)
        engine.errors.clear()
        await hands.press("o")
        assert hands.dialog() == ""
        assert len(hands.tree()) == 15
        await hands.press("a", "o")
        assert hands.dialog().startswith("Actions"), "a model that is open stays as it is"


async def test_below_the_actions_stands_what_the_current_row_cuts() -> None:
    async with screen(ScriptedEngine(), size=(100, 30)) as hands:
        await hands.press("a", "t")
        assert "Tile matmuls" in hands.dialog(), "a letter still chooses"
        await hands.press("escape", "a", "down")
        about = hands.pilot.app.screen.query_one("#pick-about", LineView)
        command = [command for command in COMMANDS if command.menu][1]
        assert command.tip not in " ".join(hands.dialog().split("\n")[:-4]), "its row cuts it"
        assert command.tip in " ".join(" ".join(map(line_text, about.lines)).split())
        assert len(about.lines) == 2, "the list does not move with the cursor"


@pytest.mark.slow
async def test_a_path_that_cannot_be_written_is_asked_for_again_as_it_was_typed(tmp_path: Path) -> None:
    there = tmp_path / "there.csv"
    there.write_text("mine")

    def typed() -> str:
        return hands.pilot.app.screen.query_one(Input).value

    async with screen(ScriptedEngine(errors={"save": BadModel("the disk is full")})) as hands:
        await hands.press("x")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "layers.xls")
        await hands.press("enter")
        assert "the file name's ending selects the format" in " ".join(hands.dialog().split())
        await hands.press("escape")
        assert typed() == str(tmp_path / "layers.xls")
        hands.pilot.app.screen.query_one(Input).value = str(there)
        await hands.press("enter", "n")
        assert typed() == str(there), "and where it may not be replaced"
        await hands.press("escape")
        assert there.read_text() == "mine"
        assert hands.dialog() == ""
        await hands.press("w")
        hands.pilot.app.screen.query_one(Input).value = "full/disk.onnx"
        await hands.press("enter")
        assert "the disk is full" in hands.dialog()
        await hands.press("enter")
        assert typed() == "full/disk.onnx"


async def test_a_model_whose_opening_was_stopped_or_failed_can_be_opened_again() -> None:
    engine = ScriptedEngine(hold=("open",), errors={"open": BadModel("is empty", where="alexnet.onnx")})
    async with screen(engine) as hands:
        await hands.press("w")
        assert hands.dialog() == ""
        assert "opening  still runs: wait until it ends" in hands.strip(Status)
        await hands.press("escape")
        assert "stopped · o opens it again" in hands.strip(TitleBar)
        await hands.press("t")
        assert "the model is not open; o opens it" in hands.strip(Status)
        engine.hold.clear()
        await hands.press("o")
        assert "is empty" in hands.dialog()
        engine.errors.clear()
        await hands.press("escape", "o")
        assert "714.19 M" in hands.strip(TitleBar)
        assert hands.at() == "features"


async def test_rows_that_come_long_after_the_model_are_waited_for_as_a_job_that_esc_stops() -> None:
    engine = ScriptedEngine(hold=("analysis",))
    async with screen(engine) as hands:
        await hands.until(lambda: "opening" in hands.strip(Status))
        assert "Esc stops" in hands.strip(Status)
        await hands.press("t")
        assert hands.dialog() == ""
        assert "opening  still runs" in hands.strip(Status)
        await hands.press("escape")
        assert "stopped · o opens it again" in hands.strip(TitleBar)
        engine.release()
        await hands.press("o")
        assert "714.19 M" in hands.strip(TitleBar)
        await hands.press("t", "enter", "escape")
        tiled = hands.strip(TitleBar)
        engine.hold.add("analysis")
        await hands.press("u")
        await hands.until(lambda: "reading the new state" in hands.strip(Status))
        await hands.press("escape")
        assert "stopped" in hands.strip(Status)
        assert hands.strip(TitleBar) == tiled, "the state that is on the screen is the engine's"


async def test_the_cursor_moves_and_the_layer_tab_follows() -> None:
    async with screen() as hands:
        assert hands.at() == "features"
        await hands.press("down", "down", "down")
        assert hands.at() == "features.3"
        assert "223.95 M" in hands.text("#layer")
        await hands.press("left")
        assert hands.at() == "features"
        await hands.press("left")
        assert len(hands.tree()) == 5
        await hands.press("right", "right", "end")
        assert hands.at() == "classifier.6"
        await hands.press("g", "pagedown")
        assert hands.at() == "classifier.6"


@pytest.mark.slow
async def test_the_column_can_be_switched_and_sorted() -> None:
    async with screen() as hands:
        for column in ("params", "activations", "read", "written", "weights", "FLOPs/byte", "MACs"):
            await hands.press("c")
            assert column in hands.strip(PaneHead, "#tree-head")
        await hands.press(*"ccccc")
        assert "weights" in hands.strip(PaneHead, "#tree-head")
        await hands.press("s")
        assert "classifier" in hands.tree()[0]
        assert "▾weights" in hands.strip(PaneHead, "#tree-head")
        await hands.press("s")
        assert "▴weights" in hands.strip(PaneHead, "#tree-head")
        assert "features" in hands.tree()[0]


async def test_numbers_are_rounded_or_exact() -> None:
    async with screen() as hands:
        await hands.press("e")
        assert "714,188,480" in hands.strip(TitleBar)
        assert "655,566,528" in hands.tree()[0]
        await hands.press("e")
        assert "714,188,480" not in hands.strip(TitleBar)


async def test_numbers_of_tabs_open_them_and_tab_goes_back() -> None:
    async with screen() as hands:
        await hands.press("2")
        assert "Inputs" in hands.text("#model")
        assert hands.main.query_one("#model").has_focus
        await hands.press("3", "enter")
        assert "kernel_shape" in hands.text("#operators")
        await hands.press("4")
        assert "the original model" in hands.text("#diff")
        await hands.press("tab")
        assert hands.main.query_one(LayerTree).has_focus


async def test_a_filter_shows_matches_with_ancestors_and_their_number() -> None:
    async with screen() as hands:
        await hands.press("slash", *"op:gemm", "enter")
        await hands.rest()
        assert "3/15" in hands.strip(PaneHead, "#tree-head")
        assert [row.split()[1] for row in hands.tree()] == ["classifier", "1", "4", "6"] or len(
            hands.tree()
        ) == 4
        assert hands.main.query_one(LayerTree).has_focus
        await hands.press("escape")
        assert len(hands.tree()) == 15


@pytest.mark.slow
async def test_a_filter_that_finds_nothing_says_so_and_what_may_have_been_meant() -> None:
    def beside() -> str:
        return str(hands.main.query_one("#filter-said", Static).render())

    async with screen() as hands:
        await hands.press("slash", *"op:gem")
        assert "no layer matches; meant op:Gemm?" in beside()
        await hands.press("enter")
        assert "no layer matches; meant op:Gemm?" in hands.strip(Status)
        await hands.press("escape")
        assert "no layer" not in hands.strip(Status)
        await hands.press("slash", *"con")
        assert "no layer" not in beside()
        assert hands.tree()


def _hold_searches(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let each search of the filter wait after 1,000 layers, until the event is set."""
    held = asyncio.Event()

    class HeldSlices:
        """Slices that do not end until they are let go."""

        def __init__(self, app: object) -> None:
            self.layers = 0

        def is_over(self) -> bool:
            self.layers += 1
            return self.layers % 1_000 == 0

        async def pause(self) -> None:
            await held.wait()

    monkeypatch.setattr(filter_line, "Slices", HeldSlices)
    monkeypatch.setattr(filter_line, "_PROGRESS", 0.0)
    return held


async def test_a_filter_that_still_searches_says_so_and_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, engine = _hold_searches(monkeypatch), ScriptedEngine(flat(3_000))
    async with screen(engine) as hands:
        await hands.pilot.press("slash", *"nosuch")
        await hands.pilot.pause(0.2)
        beside = str(hands.main.query_one("#filter-said", Static).render())
        assert "searching: 1,000 of 3,000" in beside
        assert "0+/3,000" in hands.strip(PaneHead, "#tree-head")
        assert "no layer matches" not in beside + hands.text("#layer")
        await hands.pilot.press("enter")
        await hands.pilot.pause()
        assert "no layer matches" not in hands.strip(Status)
        assert "The filter searches the layers" in hands.text("#layer")
        held.set()
        await hands.rest()
        assert "no layer matches" in hands.strip(Status)
        assert "0/3,000" in hands.strip(PaneHead, "#tree-head")
        assert "No layer matches the filter" in hands.text("#layer")


@pytest.mark.parametrize(
    ("held_keys", "keys"), [(["x"], ["backspace"]), (["space", *"macs>"], ["enter"]), (["x", "enter"], [])]
)
async def test_a_search_that_other_input_stopped_is_made_again(
    monkeypatch: pytest.MonkeyPatch, held_keys: list[str], keys: list[str]
) -> None:
    held = _hold_searches(monkeypatch)
    monkeypatch.setattr(filter_line, "_TYPING", 0.05)
    async with screen(ScriptedEngine(flat(3_000))) as hands:
        await hands.pilot.press("slash", *"node")
        await hands.pilot.pause(0.2)
        assert "+/3,000" in hands.strip(PaneHead, "#tree-head")
        monkeypatch.setattr(filter_line, "_TYPING", 0.5)
        await hands.pilot.press(*held_keys)
        if keys == ["enter"]:
            await hands.pilot.press("enter")
        held.set()
        await hands.pilot.pause(0.1)
        if keys == ["backspace"]:
            hands.main.store.notify("query")
            assert "+/3,000" in hands.strip(PaneHead, "#tree-head")  # not all layers were searched yet
        await hands.pilot.press(*keys)
        await hands.pilot.pause(0.8)
        await hands.rest()
        count = "0/3,000" if "x" in held_keys and not keys else "3,000/3,000"
        assert count in hands.strip(PaneHead, "#tree-head")


async def test_a_message_goes_with_the_next_key_and_the_command_of_the_last_action_stays() -> None:
    async with screen() as hands:
        await hands.press("N")
        assert "no search yet" in hands.strip(Status)
        await hands.press("down")
        assert "no search yet" not in hands.strip(Status)
        await hands.tile()
        command = hands.strip(Status)
        assert command.strip().startswith("$ explorer tile")
        await hands.press("down")
        assert hands.strip(Status) == command
    async with screen(size=(100, 30)) as hands:
        await hands.press("G", "f")
        status = hands.pilot.app.screen.query_one("#graph-box", Status)
        assert "m marks a layer" in line_text(status.lines[0])
        await hands.press("m")
        assert "m marks a layer" not in line_text(status.lines[0])


async def test_a_letter_typed_in_the_filter_is_no_command() -> None:
    async with screen() as hands:
        await hands.press("slash", *"quit")
        assert hands.main.query_one("#filter", Input).value == "quit"
        assert "0/15" in hands.strip(PaneHead, "#tree-head")
        await hands.press("escape")
        assert hands.at() == "features"


async def test_keys_that_come_together_take_effect_in_their_order() -> None:
    async with screen() as hands:
        await hands.press("slash", *"conx")
        for key in ("backspace", *"vv", "left", "delete", "home", "2"):
            hands.pilot.app.post_message(Key(key, key if len(key) == 1 else None))
        await hands.rest()
        assert hands.main.query_one("#filter", Input).value == "2conv"


@pytest.mark.slow
async def test_what_is_typed_at_once_with_the_key_that_opens_a_field_lands_in_it() -> None:
    async with screen() as hands:
        hands.at_once("slash", *"convx", "backspace", "enter", "down")
        await hands.rest()
        assert hands.main.query_one("#filter", Input).value == "conv"
        assert hands.main.query_one(LayerTree).has_focus
        assert hands.at() == "features.3"  # the second that is left


@pytest.mark.slow
async def test_a_filter_that_cannot_be_read_says_why_and_stays_to_be_mended() -> None:
    async with screen() as hands:
        await hands.press("slash", *"op:gemm macs>")
        assert "is not a number" in str(hands.main.query_one("#filter-said", Static).render())
        await hands.press("enter")
        assert hands.main.query_one("#filter", Input).has_focus
        await hands.press("1", "enter")
        assert hands.main.query_one(LayerTree).has_focus
        assert "3/15  op:gemm macs>1" in hands.strip(PaneHead, "#tree-head")


@pytest.mark.slow
async def test_thousands_of_keys_that_come_together_are_looked_for_once() -> None:
    async with screen() as hands:
        await hands.press("slash")
        app = hands.pilot.app
        for _ in range(300):
            app.post_message(Key("r", "r"))
        entry = app.screen.query_one(Input)
        while len(entry.value) < 300:
            await asyncio.sleep(0)
            assert len(app.workers) < 10, "what waits for its turn must not grow with every key"
        await hands.rest()
        assert "0/15" in hands.strip(PaneHead, "#tree-head")
        app.post_message(Paste("r" * 3_000))
        await hands.rest()
        assert "at most 1,000 characters" in str(hands.main.query_one("#filter-said", Static).render())
        await hands.press("escape")
        assert len(hands.tree()) == 15


@pytest.mark.slow
async def test_filter_order_and_column_outlive_a_change_of_the_model() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("slash", *"op:gemm", "enter")
        await hands.press("s", "c", "t")
        await hands.press("enter", "escape")
        head = hands.strip(PaneHead, "#tree-head")
        assert "not saved" in hands.strip(TitleBar)
        assert "3/15  op:gemm" in head
        assert "▾params" in head
        assert len(hands.tree()) == 4


async def test_tiling_shows_its_counts_before_and_a_verdict_and_the_diff_after() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("a", "t")
        assert "14,336 tile matmuls in 3 matmuls" in hands.dialog()
        assert not [m for m, _, _ in hands.engine.asked if m == "tile"]
        await hands.press("enter")
        assert "Proven equal" in hands.dialog()
        assert "every tile is its slice" in hands.dialog()
        await hands.press("enter")
        assert hands.dialog() == ""
        assert hands.main.store.tab == "diff"
        assert "9,216 tile matmuls" in hands.text("#diff")
        assert "explorer tile alexnet.onnx" in hands.strip(Status)
        assert "tile 64x64x64 · not saved" in hands.strip(TitleBar)


async def test_the_plan_follows_what_is_typed_and_a_bad_tile_cannot_be_applied() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        entry = hands.pilot.app.screen.query_one("#tile", Input)
        entry.value = "0x64x64"
        await hands.rest()
        assert "below 1" in hands.dialog()
        await hands.press("enter")
        assert "Tile matmuls" in hands.dialog()
        entry.value = "128"
        await hands.rest()
        assert "3,584 tile matmuls" in hands.dialog()


@pytest.mark.slow
@pytest.mark.usefixtures("each_frame")
async def test_the_tiled_model_is_painted_before_the_verdict_so_that_no_key_waits_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with screen() as hands:
        seen: list[str] = []

        def noted(owner: object, name: str, word: Callable[..., str]) -> None:
            plain = getattr(owner, name)

            def watched(*args: object, **more: object) -> object:
                seen.append(word(*args))
                return plain(*args, **more)

            monkeypatch.setattr(owner, name, watched)

        noted(hands.main.store, "say", lambda text, *more: "tiled" if more and not text else "")
        noted(hands.main, "_compositor_refresh", lambda: "painted")
        noted(hands.pilot.app, "push_screen", lambda dialog, *more: type(dialog).__name__)
        monkeypatch.setattr(slices, "MAX_PAINT_SECONDS", 20.0)  # a machine with other work paints later
        await hands.press("t")
        await hands.press("enter")
        assert "painted" in seen[seen.index("tiled") : seen.index("TilingResultDialog")]


@pytest.mark.slow
async def test_only_this_layer_or_this_kind_can_be_tiled() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("end", "t")
        await hands.press("down", "down", "down", "down", "down", "right")
        assert "in 1 matmul" in hands.dialog()
        await hands.press("enter")
        spec = next(args[0] for m, args, _ in hands.engine.asked if m == "tile")
        assert spec.sites == ("classifier.6",)


@pytest.mark.slow
async def test_a_layer_without_a_product_says_so() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("down", "t", "down", "down", "down", "down", "down", "right")
        assert "found no matmul that can be tiled" in hands.dialog()


async def test_esc_stops_a_job_and_nothing_is_changed() -> None:
    async with screen(size=(120, 40)) as hands:
        hands.engine.hold.add("tile")
        await hands.press("t")
        await hands.press("enter")
        assert "tiling · proving" in hands.strip(Status)
        assert "3/14" in hands.strip(Status)
        await hands.press("escape")
        assert "stopped, no change was made" in hands.strip(Status)
        assert "not saved" not in hands.strip(TitleBar)


@pytest.mark.slow
async def test_esc_in_the_filter_closes_the_filter_and_spares_the_job_behind_it() -> None:
    async with screen() as hands:
        await hands.tile()
        hands.engine.hold.add("verify")
        await hands.press("v", "slash", *"relu")
        await hands.press("escape")
        assert len(hands.tree()) == 15
        assert "verifying" in hands.strip(Status)
        await hands.press("escape")
        assert "Verify: stopped" in hands.strip(Status)


async def test_a_model_as_it_was_opened_needs_no_proof() -> None:
    async with screen() as hands:
        await hands.press("v")
        assert "nothing to prove" in hands.strip(Status)
        assert not [m for m, _, _ in hands.engine.asked if m == "verify"]


@pytest.mark.slow
async def test_the_job_bar_ticks_only_while_a_job_runs() -> None:
    async with screen() as hands:
        assert not hands.main.query_one(StatusLine).is_ticking
        await hands.tile()
        hands.engine.hold.add("verify")
        await hands.press("v")
        assert hands.main.query_one(StatusLine).is_ticking
        hands.engine.release()
        await hands.rest()
        assert not hands.main.query_one(StatusLine).is_ticking


@pytest.mark.slow
async def test_an_engine_that_dies_is_an_error_and_the_program_lives() -> None:
    async with screen() as hands:
        await hands.tile()
        hands.engine.hold.add("verify")
        await hands.press("v")
        hands.engine.die()
        await hands.rest()
        assert "the engine stopped (killed)" in " ".join(hands.dialog().split())
        await hands.press("escape", "down")
        assert hands.at() == "features.0"


async def test_undo_and_redo_walk_through_the_history() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("u")
        assert "nothing to undo" in hands.strip(Status)
        await hands.press("t")
        await hands.press("enter", "escape")
        await hands.press("u")
        assert "undone: tile 64x64x64" in hands.strip(Status)
        assert "not saved" not in hands.strip(TitleBar)
        await hands.press("r")
        assert "redone: tile 64x64x64" in hands.strip(Status)
        assert "not saved" in hands.strip(TitleBar)
        await hands.press("r")
        assert "nothing to redo" in hands.strip(Status)


@pytest.mark.slow
@pytest.mark.parametrize("keys", [("t", "enter"), ("t", "enter", "escape", "u")])
async def test_a_step_whose_model_cannot_be_read_is_taken_back(keys: tuple[str, ...]) -> None:
    async with screen(size=(120, 40)) as hands:
        for key in keys[:-1]:
            await hands.press(key)
        before = hands.strip(TitleBar)
        hands.engine.errors["analysis"] = BadModel("ran out of memory")
        await hands.press(keys[-1])
        assert "so the step was undone; ran out of memory" in " ".join(hands.dialog().split())
        await hands.press("escape")
        assert hands.strip(TitleBar) == before
        assert len(hands.tree()) == 15


@pytest.mark.slow
async def test_quitting_asks_while_a_job_runs() -> None:
    async with screen() as hands:
        await hands.tile()
        hands.engine.hold.add("verify")
        await hands.press("v", "q")
        assert "verifying is not done" in hands.dialog()
        await hands.press("n")
        hands.engine.release()
        await hands.rest()
        assert "Proven equal" in hands.dialog()


@pytest.mark.slow
async def test_what_was_saved_is_no_longer_called_unsaved(tmp_path: Path) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        await hands.press("enter", "escape", "w")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "out.onnx")
        await hands.press("enter")
        assert "saved as out.onnx" in hands.strip(TitleBar)
        await hands.press("q")
        assert hands.pilot.app.return_code == 0


async def test_enter_does_not_quit_without_saving() -> None:
    async with screen() as hands:
        await hands.tile()
        await hands.press("q", "enter", "enter")
        assert "Quit without saving?" in hands.dialog()
        await hands.press("question_mark")
        assert "Esc no" in " ".join(hands.dialog().split())
        await hands.press("escape", "escape", "q", "y")
        assert hands.pilot.app.return_code == 0


async def test_saving_asks_before_it_replaces_a_file(tmp_path: Path) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"precious")
    async with screen() as hands:
        await hands.press("w")
        hands.pilot.app.screen.query_one(Input).value = str(target)
        await hands.press("enter")
        assert "Replace it?" in hands.dialog()
        await hands.press("n")
        assert not [m for m, _, _ in hands.engine.asked if m == "save"]
        await hands.press("escape", "w")
        hands.pilot.app.screen.query_one(Input).value = str(target)
        await hands.press("enter", "enter")
        assert "Replace it?" in hands.dialog(), "a second Enter does not replace the file"
        assert not [m for m, _, _ in hands.engine.asked if m == "save"]
        await hands.press("y")
        assert ("save", (str(target),), {"overwrite": True}) in hands.engine.asked
        assert "saved as" in hands.strip(Status)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("ending", ["csv", "json"])
async def test_the_layer_table_can_be_exported(tmp_path: Path, ending: str) -> None:
    target = tmp_path / f"layers.{ending}"
    async with screen() as hands:
        await hands.press("x")
        hands.pilot.app.screen.query_one(Input).value = str(target)
        await hands.press("enter")
        assert "15 layers written" in hands.strip(Status)
    text = target.read_text()
    assert "70276800" in text
    document = layers(alexnet(), "explorer")
    if ending == "json":
        assert json.loads(text)["layers"] == json.loads(json.dumps(document["layers"]))
    else:
        assert text == format_csv(document["layers"]), "as explorer layers --csv prints it"


@pytest.mark.slow
async def test_an_export_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    async with screen() as hands:
        await hands.press("x")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "no" / "such.csv")
        await hands.press("enter")
        assert "no such folder" in " ".join(hands.dialog().split())


@pytest.mark.slow
async def test_copying_sends_the_command_or_the_layers_path() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("y")
        assert hands.pilot.app.clipboard == "features"
        assert "sent to terminal" in hands.strip(Status)
        await hands.press("t")
        await hands.press("enter", "escape", "y")
        assert hands.pilot.app.clipboard.startswith("explorer tile alexnet.onnx")


@pytest.mark.slow
async def test_the_palette_runs_a_command_by_name() -> None:
    async with screen() as hands:
        await hands.press("colon", *"operators", "enter")
        assert hands.main.store.tab == "operators"
        await hands.press("ctrl+p", "escape")
        assert hands.dialog() == ""


async def test_help_shows_the_keys() -> None:
    async with screen() as hands:
        await hands.press("question_mark")
        assert "Exact or rounded numbers" in hands.dialog()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("keys", "heading"), [(("G",), GRAPH_KEYS[0].group), (("end", "i"), TILE_KEYS[0].group), ((), LOOK)]
)
async def test_help_begins_with_the_keys_of_what_is_on_show(keys: tuple[str, ...], heading: str) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press(*keys, "question_mark")
        headings = {key.group for key in KEYS}
        found = [line for line in hands.dialog().splitlines() if line in headings]
        assert found[0] == heading
        assert found.count(heading) == 1
        assert set(found) == headings, "the others follow"


async def test_a_sort_goes_to_the_first_row_and_the_order_of_execution_keeps_the_layer() -> None:
    async with screen(size=(120, 40)) as hands:
        first = hands.at()
        await hands.press("c", "s")
        assert hands.at() == "classifier" != first
        await hands.press("s", "s")
        assert hands.at() == first
        await hands.press("down", "down", "s")
        assert hands.at() == "classifier", "the top of the sorted list is in view, with the cursor"
        assert hands.main.query_one("#tree", LayerTree).scroll_offset.y == 0
        await hands.press("s", "down")
        layer = hands.at()
        await hands.press("s")
        assert hands.at() == layer, "in the order of execution"


@pytest.mark.slow
async def test_help_leads_to_the_pages_of_the_manual() -> None:
    async with screen() as hands:
        await hands.press("question_mark", *"counted", "enter")
        assert hands.pilot.app.screen.query_one("#box").border_title == "How numbers are counted"
        assert "one multiply-accumulate" in hands.dialog()
        await hands.press("escape", "escape")
        assert hands.dialog() == ""


async def test_quitting_asks_only_if_something_would_be_lost() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        await hands.press("enter", "escape", "q")
        assert "not saved" in hands.dialog()
        await hands.press("n")
        assert hands.dialog() == ""
    async with screen() as hands:
        await hands.press("q")
        assert hands.pilot.app.return_code == 0


async def test_help_and_quit_stay_in_the_key_bar_of_a_narrow_terminal() -> None:
    async with screen(size=(60, 20)) as hands:
        keys = line_text(hands.main.query_one(KeyBar).lines[0])
        assert "? help" in keys
        assert "q quit" in keys
        assert len(keys) <= 60


@pytest.mark.parametrize("size", [(80, 24), (100, 30)])
async def test_every_tab_has_its_name_beside_the_layers(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        assert [tab.short for tab in TABS if tab.short[:3] not in hands.strip(PaneHead, "#tabs")] == []


async def test_zoom_gives_a_pane_the_whole_width() -> None:
    async with screen() as hands:
        await hands.press("z")
        assert hands.main.query_one("#left").size.width == 80
        await hands.press("tab")
        assert hands.main.query_one("#right").size.width == 80
        await hands.press("z")
        assert hands.main.query_one("#left").size.width == 39


@pytest.mark.slow
async def test_a_large_flat_model_is_shown_in_ranges_that_open() -> None:
    async with screen(ScriptedEngine(flat(30_000))) as hands:
        await hands.press("end")
        assert "node_29000 … node_29999 ×1,000" in hands.tree()[-1]
        assert "1,000 of very many" in hands.text("#layer")
        await hands.press("space", "end")
        assert hands.at() == "node_29999"


async def test_a_run_of_blocks_opens_with_the_keyboard() -> None:
    async with screen(ScriptedEngine(blocks())) as hands:
        await hands.press("down")
        assert "0 … 11 ×12" in hands.tree()[1]
        await hands.press("space")
        assert len(hands.tree()) == 15


async def test_the_mouse_does_what_the_keys_do() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.pilot.click("#tree", offset=(8, 3))
        assert hands.at() == "features.3"
        await hands.pilot.click("#tabs", offset=(12, 0))
        assert hands.main.store.tab == "model"
        await hands.press("tab")
        await hands.pilot.click("KeyBar", offset=(13, 0))
        await hands.rest()
        assert hands.main.query_one("#filter-row").has_class("open")


@pytest.mark.parametrize("name", ["SSH_CONNECTION", "SSH_TTY"])
def test_an_ssh_session_is_noticed(name: str) -> None:
    assert is_remote({name: "x"})
    assert not is_remote({"TERM": "xterm"})


async def test_nothing_moves_by_itself_in_remote_mode() -> None:
    async with screen(remote=True) as hands:
        assert hands.pilot.app.animation_level == "none"
        await hands.press("slash")
        assert not hands.main.query_one("#filter", Input).cursor_blink


async def test_the_tree_scrolls_so_that_its_cursor_stays_in_view() -> None:
    async with screen(ScriptedEngine(flat(100))) as hands:
        tree = hands.main.query_one(LayerTree)
        await hands.press("end")
        assert tree.scroll_offset.y + tree.size.height == 100
        await hands.press("g")
        assert tree.scroll_offset.y == 0
        await hands.press("pagedown", "pagedown")
        assert tree.scroll_offset.y <= tree.cursor < tree.scroll_offset.y + tree.size.height


@pytest.mark.slow
async def test_over_ssh_a_list_turns_half_a_page_when_its_cursor_leaves_it() -> None:
    async with screen(ScriptedEngine(flat(100)), remote=True) as hands:
        tree = hands.main.query_one(LayerTree)
        height = tree.size.height
        await hands.press(*["down"] * height)
        assert tree.cursor == height
        assert tree.scroll_offset.y == height - height // 2
        await hands.press("end", *["up"] * height)
        assert tree.scroll_offset.y <= tree.cursor < tree.scroll_offset.y + height


async def test_a_page_longer_than_its_pane_can_be_read_to_its_end() -> None:
    async with screen() as hands:
        await hands.press("2", "end")
        view = hands.main.query_one("#model", LineView)
        assert len(view.lines) > view.size.height
        assert view.scroll_offset.y + view.size.height == len(view.lines)


async def test_work_whose_place_is_taken_in_the_same_instant_is_complained_of_by_nobody() -> None:
    ran: list[str] = []

    async def inner(name: str) -> None:
        ran.append(name)

    async def work(handed: Coroutine[Any, Any, None]) -> None:
        await handed

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        async with screen(ScriptedEngine()) as hands:
            for name in ("first", "second", "third"):
                hands.main.run_worker(work(inner(name)), group="same", exclusive=True, exit_on_error=False)
            await hands.rest()
            gc.collect(1)  # what was made here is young
    assert ran == ["third"]
    assert not [str(one.message) for one in said if "never awaited" in str(one.message)]


class _Always(set[str]):
    """A set that has every element."""

    def __contains__(self, element: object) -> bool:
        return True


async def test_no_command_waits_for_a_busy_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = ScriptedEngine(tilings=1)
    async with screen(engine, size=(120, 40)) as hands:
        main, jobs = hands.main, hands.main.store.jobs
        monkeypatch.setattr(jobs, "locate", lambda layers, paths: jobs.ask("locate", paths))
        main.store.jumps.leave(main.store.analysis.layers[3])
        engine.hold = _Always()
        for command in COMMANDS:
            if command.action.startswith("command(") and command.id not in {"quit", "models", "open"}:
                await asyncio.wait_for(main.action_command(command.id), 5)
                while hands.pilot.app.screen is not main:
                    hands.pilot.app.pop_screen()
                    await asyncio.sleep(0)
        await asyncio.wait_for(hands.pilot.press("escape"), 5)
        engine.die()
