"""Two models side by side: one cursor in both, a way to every difference, and what else both are asked."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer import compare_files
from explorer.base.errors import BadModel
from explorer.engine.diff import compare_trees
from explorer.facts import Analysis, Diff, NodeDiff, Verification
from explorer.facts.comparison import Comparison, TreeDiff
from explorer.features.compare.pair_page import (
    PairRows,
    build_detail_lines,
    choose_columns,
    draw_title,
    graph_line,
)
from explorer.features.compare.pair_screen import PairDialog, PairScreen
from explorer.tui.dialogs.dialogs import MessageDialog
from explorer.tui.dialogs.states.history_dialog import DiffScreen
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.line_view import LineList
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet, blocks, proof

SAMPLES = Path(__file__).parents[2] / "sample_models"
SIZES = ((60, 15), (80, 24), (100, 30), (140, 40), (200, 50))


def beside(other: Analysis, **how: Any) -> ScriptedEngine:
    """An engine that sets AlexNet, or the model that it is given, beside another."""

    class Engine(ScriptedEngine):
        def _tree_diff(self, before: int = 0, after: int | None = None, other: str | None = None) -> TreeDiff:
            whole = shorter(self.model) if other is None else against
            return compare_trees(self.model, whole, form="rows")

        def _diff(self, before: int = 0, after: int | None = None, other: str | None = None) -> Diff:
            return super()._diff(before, after)

        def _verify(
            self, before: int = 0, after: int | None = None, other: str | None = None
        ) -> Verification:
            return proof()

        def _compare(self, before: int = 0, after: int | None = None, other: str | None = None) -> Comparison:
            return compare_files(SAMPLES / "lenet.onnx", SAMPLES / "mlp_128.onnx")

    against = other
    return Engine(**how)


def shorter(analysis: Analysis, fewer: int = 1) -> Analysis:
    """A model without its last layers, the last one left with twice the MACs."""
    layers = list(analysis.layers[:-fewer])
    layers[-1] = replace(layers[-1], macs=2 * (layers[-1].macs or 0) + 1)
    return Analysis(analysis.info, tuple(layers))


def top(hands: Hands) -> PairScreen:
    shown = hands.pilot.app.screen
    assert isinstance(shown, PairScreen)
    return shown


def rows(hands: Hands) -> list[str]:
    shown = top(hands).rows
    return [line_text(shown.row_line(at, shown.size.width)).rstrip() for at in range(shown.row_count)]


def about(hands: Hands) -> str:
    return "\n".join(line_text(line) for line in top(hands).query_one("#pair-about").lines)  # type: ignore[attr-defined]


async def opened(hands: Hands, name: str = "resnet18") -> None:
    await hands.press("equals_sign")
    hands.pilot.app.screen.query_one(Input).value = name
    await hands.press("enter")


async def test_equals_sets_any_model_beside_and_one_cursor_moves_in_both() -> None:
    async with screen(beside(shorter(alexnet())), (140, 40)) as hands:
        await opened(hands)
        assert hands.engine.asked[-1] == ("tree_diff", (), {"before": 0, "other": "resnet18"})
        title = [line_text(line) for line in top(hands).query_one(TitleBar).lines]
        assert "1 resized, 1 removed" in title[1]
        last = rows(hands)[-1]
        assert last.startswith(" - ")
        assert "-4.10 M" in last
        await hands.press("end")
        assert "removed" in about(hands)
        await hands.press("y")
        assert "sent to terminal" in line_text(top(hands).query_one(Status).lines[0])


async def test_both_open_at_the_first_difference_with_the_groups_around_it_open() -> None:
    async with screen(beside(shorter(blocks(6), 2), analysis=blocks(6)), (120, 40)) as hands:
        await opened(hands)
        pair = top(hands)
        assert pair._pair.visible[pair.rows.cursor] == pair._pair.stops[0] > 0
    async with screen(beside(alexnet()), (80, 24)) as hands:
        await opened(hands)
        assert top(hands).rows.cursor == 0, "both are the same"


def test_equal_constants_of_a_group_share_a_row_that_opens() -> None:
    fact = compare_trees(blocks(6), shorter(blocks(6), 3), form="rows")
    leaves = [at for at, row in enumerate(fact.rows) if row.end == at + 1 and row.depth == 2]
    constants = tuple(at for at in leaves if not fact.rows[at].differs)[:4]
    pair = PairRows(replace(fact, constants=constants))
    assert pair.find_first_difference() == pair.place_of(pair.stops[0])
    pair.reveal(constants[0])
    place = pair.place_of(constants[0])
    assert pair.count_folded_constants(constants[0]) == 2, "those of one block"
    assert constants[1] not in pair.visible
    assert pair.toggle(place, True)
    assert constants[1] in pair.visible
    assert pair.toggle(place, False)
    assert constants[1] not in pair.visible
    pair.reveal(constants[1])
    assert constants[1] in pair.visible, "a row that is gone to is shown"


async def test_help_begins_with_the_keys_of_both_models_and_no_other_screens() -> None:
    async with screen(beside(shorter(alexnet())), (140, 40)) as hands:
        await opened(hands)
        await hands.press("question_mark")
        heads = [line for line in hands.dialog().splitlines() if line[:3] in ("Wit", "In ", "Loo")]
        assert heads[:2] == ["With two models side by side", "Look"]


async def test_n_and_shift_n_go_through_the_differences_and_open_what_they_lie_in() -> None:
    async with screen(beside(shorter(blocks(6), 2), analysis=blocks(6)), (120, 40)) as hands:
        await opened(hands)
        pair = top(hands)
        stops = len(pair._pair.stops)
        assert stops >= 2
        await hands.press("minus")
        assert all(not sign.startswith("▾") for sign in rows(hands))
        seen = []
        for _ in range(stops + 1):
            await hands.press("n")
            place = pair.rows.cursor
            row = pair._pair.row(place)
            assert row is not None
            assert row.status != "same"
            seen.append(pair._pair.visible[place])
        assert sorted(set(seen)) == pair._pair.stops
        assert seen[-1] == seen[0]
        await hands.press("N")
        assert pair._pair.visible[pair.rows.cursor] == seen[-2]


async def test_only_differences_are_shown_on_a_key_and_the_rest_comes_back() -> None:
    async with screen(beside(shorter(alexnet())), (100, 30)) as hands:
        await opened(hands)
        before = rows(hands)
        await hands.press("end", "o")
        fewer = rows(hands)
        assert len(fewer) < len(before)
        left = [top(hands)._pair.row(at) for at in range(len(fewer))]
        assert all(row is not None and row.differs for row in left)
        assert "removed" in about(hands)
        await hands.press("o")
        assert rows(hands) == before


async def test_a_model_beside_itself_has_no_difference_to_go_to() -> None:
    async with screen(beside(alexnet()), (80, 24)) as hands:
        await opened(hands)
        assert "the same in all of its" in line_text(top(hands).query_one(TitleBar).lines[1])
        before = rows(hands)
        await hands.press("n", "o")
        assert rows(hands) == before


@pytest.mark.slow
@pytest.mark.parametrize("key", ["d", "c", "v"])
async def test_what_is_asked_of_both_comes_back_to_both(key: str) -> None:
    async with screen(beside(shorter(alexnet())), (100, 30)) as hands:
        await opened(hands)
        await hands.press("n", key)
        method = {"d": "diff", "c": "compare", "v": "verify"}[key]
        assert hands.engine.asked[-1] == (method, (), {"before": 0, "other": "resnet18"})
        assert not isinstance(hands.pilot.app.screen, PairScreen)
        if key == "d":
            assert isinstance(hands.pilot.app.screen, DiffScreen)
            assert "back to both models" in line_text(hands.pilot.app.screen.query_one(Status).lines[0])
        await hands.press("escape")
        assert top(hands).rows.cursor > 0


@pytest.mark.slow
async def test_a_job_that_is_stopped_or_fails_leads_back_to_both() -> None:
    errors = {"diff": BadModel("no graph", where="resnet18")}
    engine = beside(shorter(alexnet()), hold=("verify",), errors=errors)
    async with screen(engine, (100, 30)) as hands:
        await opened(hands)
        await hands.press("v")
        assert hands.main is hands.pilot.app.screen
        await hands.press("escape")
        assert top(hands)
        await hands.press("d")
        assert isinstance(hands.pilot.app.screen, MessageDialog)
        await hands.press("escape")
        assert top(hands)


@pytest.mark.slow
async def test_enter_leads_to_the_layer_in_the_tree() -> None:
    async with screen(beside(shorter(alexnet())), (100, 30)) as hands:
        await opened(hands)
        await hands.press("n", "n")
        path = top(hands)._pair.row(top(hands).rows.cursor).before.path  # type: ignore[union-attr]
        await hands.press("enter")
        assert hands.at() == path


async def test_a_state_stands_beside_the_model_as_opened() -> None:
    async with screen(beside(alexnet(), tilings=1)) as hands:
        hands.engine.states = replace(hands.engine.states, current=1)
        await hands.press("equals_sign")
        dialog = hands.pilot.app.screen
        assert isinstance(dialog, PairDialog)
        assert dialog.query_one(LineList).rows[0].title == "as opened"
        await hands.press("enter")
        assert hands.engine.asked[-1] == ("tree_diff", (), {"before": 0, "after": 1})
        assert top(hands)


@pytest.mark.slow
async def test_paths_are_completed_and_a_folder_is_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets" / "b.onnx").touch()
    async with screen(beside(alexnet())) as hands:
        await hands.press("equals_sign")
        entry = hands.pilot.app.screen.query_one(Input)
        await hands.press("n", "tab")
        assert entry.value == "nets/"
        await hands.press("b", "tab")
        assert entry.value == os.path.join("nets", "b.onnx")
        await hands.press("enter")
        assert hands.engine.asked[-1][2]["other"] == os.path.join("nets", "b.onnx")


async def test_only_folders_and_models_are_listed_and_any_file_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with screen(beside(alexnet())) as hands:
        await hands.press("equals_sign")
        assert hands.pilot.app.screen.query_one(LineList).empty_note == "no model in this folder"
        await hands.press("escape")
        for name in (
            "notes.md",
            "build.py",
            "a.ONNX",
            "b.pt2",
            "c.torchscript",
            "d.gguf",
            "data.npz",
            "bare",
        ):
            (tmp_path / name).touch()
        (tmp_path / "nets").mkdir()
        await hands.press("equals_sign")
        rows = hands.pilot.app.screen.query_one(LineList).rows
        assert [row.title for row in rows] == ["a.ONNX", "b.pt2", "c.torchscript", "d.gguf", "nets/"]
        await hands.press(*"bare", "enter")
        assert hands.engine.asked[-1][2]["other"] == "bare"


@pytest.mark.slow
async def test_part_of_a_files_name_finds_it_behind_the_name_as_it_is_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("net_int8.onnx", "int8_net.onnx", ".int8", "other.onnx"):
        (tmp_path / name).touch()
    async with screen(beside(alexnet())) as hands:
        await hands.press("equals_sign", *"int8")
        rows = hands.pilot.app.screen.query_one(LineList).rows
        assert [row.title for row in rows] == ["int8_net.onnx", "int8", "net_int8.onnx"]
        await hands.press("down", "down", "enter")
        assert hands.engine.asked[-1][2]["other"] == "net_int8.onnx"


async def test_a_model_that_is_none_is_one_line_and_is_asked_for_again() -> None:
    engine = beside(alexnet(), errors={"tree_diff": BadModel("no such file", where="nosuch.onnx")})
    async with screen(engine) as hands:
        await opened(hands, "nosuch.onnx")
        assert "nosuch.onnx: no such file" in hands.dialog()
        await hands.press("escape")
        assert hands.pilot.app.screen.query_one(Input).value == "nosuch.onnx"


@pytest.mark.slow
async def test_in_a_browser_nothing_outside_its_folder_is_set_beside_and_no_code_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EXPLORER_SERVED", str(tmp_path))
    async with screen(beside(alexnet())) as hands:
        for typed, said in (
            ("/etc/hostname", "outside the folder"),
            ("os:getcwd", "only files of the folder"),
        ):
            await opened(hands, typed)
            assert said in hands.dialog()
            await hands.press("escape", "escape")
        assert "tree_diff" not in [method for method, *_ in hands.engine.asked]


@pytest.mark.slow
async def test_two_models_on_the_command_line_open_side_by_side() -> None:
    async with screen(beside(shorter(alexnet())), (140, 40), beside="resnet18") as hands:
        assert top(hands)
        await hands.press("q")
        assert hands.main is hands.pilot.app.screen


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", SIZES)
async def test_lines_fill_the_terminal_and_no_more(size: tuple[int, int]) -> None:
    async with screen(beside(blocks(3)), size) as hands:
        await opened(hands)
        shown = top(hands).rows
        for exact in (False, True):
            shown.exact = exact
            for at in range(shown.row_count):
                assert line_width(shown.row_line(at, shown.size.width)) <= shown.size.width
            laid = choose_columns(size[0], exact=exact)
            assert laid.name >= 12
            assert laid.has_two_sides == (size[0] >= 100)


@pytest.mark.parametrize("size", SIZES)
async def test_no_kind_is_cut_that_the_standard_names(size: tuple[int, int]) -> None:
    model = alexnet()
    layers = [replace(x, kind="GlobalAveragePool") if x.kind == "Relu" else x for x in model.layers]
    async with screen(beside(replace(model, layers=tuple(layers))), size) as hands:
        await opened(hands)
        rows = top(hands).rows
        for exact in (False, True):
            rows.exact = exact
            widths = rows.columns(rows.size.width)
            assert widths.name >= 14
            if widths.kind:
                lines = [line_text(rows.row_line(at, rows.size.width)) for at in range(rows.row_count)]
                assert any("GlobalAveragePool " in line for line in lines)
                assert not any("GlobalAv…" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80, 110])
async def test_long_names_beside_each_other_differ(width: int) -> None:
    model = alexnet()
    long_name = "a_block_with_a_very_long_name_number_{}_of_the_encoder_that_computes"
    layers = [
        replace(layer, name=long_name.format(layer.id), path=long_name.format(layer.id))
        for layer in model.layers
    ]
    engine = beside(blocks(3))
    engine.model = replace(model, layers=tuple(layers))
    async with screen(engine, (width, 24)) as hands:
        await opened(hands)
        shown = [row for row in rows(hands) if "computes" in row]
        assert [re.findall(r"\d+", row)[0] for row in shown] == ["0", "11"]


def test_what_differs_in_no_row_is_cut_before_the_scroll_bar() -> None:
    renamed = NodeDiff("changed", "input", "input", f"name {'x' * 40} -> y", "Input", "Input")
    said = line_text(graph_line(renamed, 40))
    assert said.endswith("…")
    assert len(said) == 39


def test_rows_that_open_and_close_are_those_that_a_fresh_list_has() -> None:
    fact = compare_trees(blocks(6), shorter(blocks(6), 3), form="rows")
    shown = PairRows(fact)
    for place in (0, 3, 1, 0, 2, 5, 0):
        shown.toggle(min(place, len(shown.visible) - 1))
        spliced = list(shown.visible)
        shown.rebuild()
        assert spliced == shown.visible


@pytest.mark.slow
async def test_a_session_that_was_cut_off_is_resumed_with_both_models() -> None:
    async with screen(beside(shorter(alexnet())), (100, 30), beside="resnet18") as hands:
        assert isinstance(hands.pilot.app.screen, PairScreen)
        view = hands.main.view()
    assert view is not None
    async with screen(beside(shorter(alexnet())), (100, 30), view=view) as hands:
        assert isinstance(hands.pilot.app.screen, PairScreen)
        assert ("tree_diff", (), {"before": 0, "other": "resnet18"}) in hands.engine.asked
        await hands.press("escape")
        left = hands.main.view()
    assert left is not None
    async with screen(beside(shorter(alexnet())), (100, 30), view=left) as hands:
        assert hands.pilot.app.screen is hands.main, "who had left them finds the tree"


@pytest.mark.slow
async def test_a_second_model_that_is_gone_is_told_once_and_the_first_is_resumed() -> None:
    async with screen(beside(shorter(alexnet())), (100, 30), beside="gone.onnx") as hands:
        assert "gone.onnx" in hands.dialog()
        await hands.press("escape")
        view = hands.main.view()
    assert view is not None
    async with screen(beside(shorter(alexnet())), (100, 30), view=view) as hands:
        assert hands.pilot.app.screen is hands.main


@pytest.mark.parametrize(("width", "height"), [(60, 15), (64, 24), (110, 15)])
async def test_two_files_of_one_folder_show_the_folder_once_and_a_cut_reason_ends_in_an_ellipsis(
    width: int, height: int
) -> None:
    folder = "/models/of/a/team/with/long/folders/"
    fact = replace(
        compare_trees(alexnet(), shorter(alexnet()), form="rows"),
        before=f"{folder}seal.onnx",
        after=f"{folder}seal_pruned.onnx",
    )
    names = line_text(draw_title(fact, False, width)[0]).strip()
    assert names.endswith("seal.onnx  →  seal_pruned.onnx")
    assert len(names) <= width
    row = next(row for row in fact.rows if row.differs)
    what = tuple(f"weight of block {i} differs in many of its values" for i in range(9))
    lines = build_detail_lines(replace(row, what="; ".join(what)), width, 4)
    assert line_text(lines[0]).endswith("…")
    assert all(line_width(line) <= width for line in lines)
