"""The map view promises: keys change tiles and orders, and all figures are those of the nest on the left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.engine.mapping.cost import compute_mapping_cost
from explorer.facts.cost import Hardware
from explorer.facts.mapping import MachineMemory, MemoryMachine
from explorer.features.mapping import mapping_search_view
from explorer.features.mapping.mapping_view import MappingView, NestList
from explorer.features.tiling.tile_screen import TileDialog
from explorer.features.tiling.tile_view import TileView
from explorer.settings import machines
from explorer.settings.machines import read_hardware_profiles
from explorer.settings.mapping_file import read_mapping
from explorer.tui.dialogs.dialogs import PickDialog
from explorer.tui.state.hardware import use_hardware
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine

SIZES = ((60, 15), (140, 40))


@pytest.fixture(autouse=True)
def no_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    """The presets alone."""
    monkeypatch.setenv("EXPLORER_CONFIG", "/nowhere/config.toml")


def view(hands: Hands) -> MappingView:
    top = hands.pilot.app.screen
    assert isinstance(top, MappingView)
    return top


def words(hands: Hands, selector: str) -> str:
    widget = view(hands).query_one(selector)
    if isinstance(widget, NestList):
        lines = [widget.row_line(index, 60) for index in range(widget.row_count)]
    else:
        assert isinstance(widget, LineView | Status | TitleBar)
        lines = list(widget.lines)
    return "\n".join(line_text(line) for line in lines)


async def open_view(hands: Hands, name: str = "gemmini", layer: str = "classifier.6") -> MappingView:
    use_hardware(hands.main.store, machines.find_hardware(name))
    while hands.at() != layer:
        await hands.press("down")
    await hands.press("U")
    return view(hands)


@pytest.mark.parametrize("size", SIZES)
async def test_arrows_change_a_tile_and_the_figures_are_those_of_the_nest(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        shown = await open_view(hands)
        best = shown._mapping
        assert best is not None
        assert "1x4096x1000" in words(hands, "TitleBar")
        assert "array  16x16x16" in words(hands, "#map-nest")
        costs = words(hands, "#map-costs")
        while (row := shown._get_row()) is not None and row.number == 1:
            await hands.press("down")  # a loop of one trip has no larger tile
        await hands.press("right")
        edited = shown._mapping
        assert edited is not None
        assert edited != best
        assert shown._cost == compute_mapping_cost(edited, shown._machine)  # type: ignore[arg-type]
        # sums spill when the whole output no longer stays: rounded figures show that
        assert best.levels[0].keep == "C"
        await hands.press("space")
        assert words(hands, "#map-costs") != costs
        assert "edited; b returns" in words(hands, "TitleBar") or size[0] < 80
        await hands.press("b")
        assert shown._mapping == best
        assert words(hands, "#map-costs") == costs
        for pane in ("#map-costs", "#map-side"):
            lines = shown.query_one(pane, LineView).lines
            assert all(line_width(line) <= size[0] for line in lines)
        await hands.press("q")
        assert hands.pilot.app.screen is hands.main


async def test_every_edit_is_a_mapping_of_a_machine_with_cores_and_three_levels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    machine = MemoryMachine(
        Hardware("cores", macs_per_cycle=64, bytes_per_cycle=16),
        (
            MachineMemory("DRAM"),
            MachineMemory("cache", size=1 << 16),
            MachineMemory("core", size=1 << 13, cores=4, inside=True),
        ),
        unit=(1, 16, 8),
    )
    monkeypatch.setattr(mapping_search_view, "find_memories", lambda hardware: machine)
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        before = shown._mapping
        for keys in ("left left o down down right", "down down down left left left left", "space down o h h"):
            for key in keys.split():
                await hands.press(key)
                assert shown._cost is not None
                assert shown._cost.mapping == shown._mapping
        assert shown._mapping != before
        await hands.press("end", "right")
        assert "the array has no loops below it" in words(hands, "JobLine")


async def test_a_tile_that_is_too_large_is_shown_with_the_bytes_that_are_missing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hardware = Hardware("small", macs_per_cycle=64, bytes_per_cycle=16)
    memories = MachineMemory("DRAM"), MachineMemory("buffer", size=1300)
    machine = MemoryMachine(hardware, memories, unit=(1, 16, 16))
    monkeypatch.setattr(mapping_search_view, "find_memories", lambda hardware: machine)
    async with screen(size=(100, 30)) as hands:
        await open_view(hands)
        await hands.press("right")
        # A of 32, B of 32 x 16 and C of 16 floats are 2,240 bytes
        assert "940 bytes missing" in words(hands, "#map-side")
        assert "does not fit" in words(hands, "TitleBar")
        await hands.press("b")
        assert "missing" not in words(hands, "#map-side")


async def test_without_a_machine_the_view_lists_those_with_memories() -> None:
    async with screen(size=(80, 24)) as hands:
        await hands.press("end", "U")
        assert isinstance(hands.pilot.app.screen, PickDialog)
        await hands.press("escape")
        page = words(hands, "#map-side")
        assert "No machine with memories is chosen" in page
        assert "gemmini" in page
        assert "a100" not in page
        await hands.press("m", "enter")
        assert shown_machine(hands) == "tpu-v1"
        assert hands.main.store.hardware == machines.find_hardware("tpu-v1")
        assert "unified buffer" in words(hands, "#map-nest")


def shown_machine(hands: Hands) -> str:
    machine = view(hands)._machine
    assert machine is not None
    return machine.hardware.name


async def test_a_constraint_that_leaves_nothing_is_one_line_and_changes_nothing() -> None:
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        best = shown._mapping
        await hands.press("slash")
        hands.pilot.app.screen.query_one(Input).value = "n=7"
        await hands.press("enter")
        assert "no tile of classifier.6 meets 'n=7'" in words(hands, "JobLine")
        assert shown._mapping == best
        await hands.press("slash")
        hands.pilot.app.screen.query_one(Input).value = "n<=64 order=mnk"
        await hands.press("enter")
        assert "least cycles, n<=64 order=mnk" in words(hands, "TitleBar")
        assert shown._mapping is not None
        assert shown._mapping.levels[0].tile[2] <= 64


async def test_the_front_is_a_plot_and_the_figure_can_change() -> None:
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        await hands.press("p", "right_square_bracket", "right_square_bracket")
        assert "cycles over bytes held" in words(hands, "#map-side")
        count = re.search(r"(\d+) of (\d+)", words(hands, "#map-side"))
        assert count is not None
        search = shown._search
        assert search is not None
        assert shown._mapping == search.front[int(count[1]) - 1].mapping
        await hands.press("c")
        assert "least traffic" in words(hands, "TitleBar")


async def test_a_front_of_one_mapping_is_told_in_words() -> None:
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands, "zen4-core")
        await hands.press("p")
        search = shown._search
        assert search is not None
        assert len(search.front) == 1
        side = " ".join(words(hands, "#map-side").split())
        assert "The front has one mapping: no other takes fewer cycles" in side
        assert "●" not in side


async def test_the_mapping_of_the_screen_is_written_as_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mapping.toml"
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        await hands.press("right", "w")
        hands.pilot.app.screen.query_one(Input).value = str(path)
        await hands.press("enter")
        assert f"written to {path}"[:30] in words(hands, "JobLine")
        mapping = shown._mapping
        assert mapping is not None
        file = read_mapping(str(path))
        assert file.machine == "gemmini"
        assert file.sites["classifier.6"].levels == mapping.levels


async def test_enter_proves_the_code_of_the_edited_nest_and_x_writes_it(tmp_path: Path) -> None:
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        await hands.press("right", "enter")
        assert "The code: equal on evidence" in hands.dialog()
        assert "16 of 16" in hands.dialog()
        asked = hands.engine.emitted[-1]
        assert shown._mapping is not None
        assert asked.levels == shown._mapping.levels
        await hands.press("escape", "x")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "code")
        await hands.press("enter", "escape")
        assert f"written to {tmp_path / 'code'}" in words(hands, "JobLine")
        # code that is there already is replaced after a question
        (tmp_path / "code").mkdir()
        (tmp_path / "code" / "mapping.json").touch()
        await hands.press("x")
        hands.pilot.app.screen.query_one(Input).value = str(tmp_path / "code")
        await hands.press("enter")
        assert "has code already" in " ".join(hands.dialog().split())
        await hands.press("y")
        assert hands.engine.asked[-1][2]["overwrite"]


async def test_a_fused_epilogue_is_in_the_figures_and_in_the_code() -> None:
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        assert shown._cost is not None
        traffic = shown._cost.traffic
        await hands.press("J")
        assert "fused Add" in words(hands, "TitleBar")
        # the bias of 1,000 columns is read
        assert shown._cost.traffic == traffic + 4000
        await hands.press("enter")
        assert hands.engine.asked[-1][2]["fuse"] == "epilogue"
        await hands.press("escape", "N")
        assert "fused: no operator that follows can be fused" in words(hands, "TitleBar")


async def test_a_search_stops_with_escape_and_with_the_view() -> None:
    async with screen(size=(100, 30)) as hands:
        hands.engine.hold = {"map"}
        shown = await open_view(hands)
        assert "searching the best mapping" in words(hands, "JobLine")
        # the smallest tiles are there at once
        assert "scratchpad + accumulator  1x16x16" in words(hands, "#map-nest")
        await hands.press("escape")
        assert "the search was stopped; b searches again" in words(hands, "JobLine")
        assert shown._mapping is not None
        await hands.press("b", "q")
        assert hands.pilot.app.screen is hands.main
        assert not hands.engine.waiting


async def test_the_tiles_of_the_first_memory_play_in_the_order_of_the_nest() -> None:
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        await hands.press("o", "i")
        tiles = hands.pilot.app.screen
        assert isinstance(tiles, TileView)
        assert shown._mapping is not None
        level = shown._mapping.levels[0]
        assert tiles.site.tile == level.tile
        assert tiles._steps.order == level.order
        inside = shown._mapping.levels[1]
        grid = [-(-outer // inner) for outer, inner in zip(level.tile, inside.tile, strict=True)]
        steps = grid[0] * grid[1] * grid[2]
        first = "\n".join(line_text(line) for line in tiles.query_one("#block", LineView).lines)
        assert f"In array 1 of {steps:,}  {inside.order}" in first
        await hands.press("s")
        assert tiles._inner_step == 1 % steps
        await hands.press("S", "]")
        assert (tiles.place.depth, tiles._inner_step) == (1, 0)
        await hands.press("q")
        assert hands.pilot.app.screen is shown


async def test_a_machine_file_brings_its_memories(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        '[machine.own]\nmacs_per_cycle = 64\nunit = "1x16x16"\n[[machine.own.memory]]\nname = "DRAM"\n'
        'bytes_per_cycle = 8\n[[machine.own.memory]]\nname = "buffer"\nsize = "64 KiB"\n'
    )
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands)
        await hands.press("m", "end", "enter")
        hands.pilot.app.screen.query_one("#file", Input).value = str(path)
        await hands.rest()
        assert "own: 64 MACs and 8 B a cycle, no clock" in hands.dialog()
        await hands.press("enter")
        assert shown._machine is not None
        assert [memory.name for memory in shown._machine.memories] == ["DRAM", "buffer"]
        assert shown._cost is not None
        assert shown._cost.cycles is not None


@pytest.mark.parametrize("from_file", [False, True])
@pytest.mark.parametrize("typed", ["copy", ""])
async def test_an_edited_copy_of_a_machine_keeps_its_memories_with_and_without_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, from_file: bool, typed: str
) -> None:
    monkeypatch.setenv("EXPLORER_CONFIG", str(tmp_path / "config.toml"))
    path = tmp_path / "own.toml"
    path.write_text(
        '[machine.own]\nmacs_per_cycle = 64\nunit = "1x16x16"\nmac_pj = 1.5\n[[machine.own.memory]]\n'
        'name = "DRAM"\nbytes_per_cycle = 8\n[[machine.own.memory]]\nname = "buffer"\nsize = "64 KiB"\n'
    )
    async with screen(size=(100, 30)) as hands:
        shown = await open_view(hands, name="gemmini")
        await hands.press("m", "end", "enter")
        fields = hands.pilot.app.screen
        if from_file:
            fields.query_one("#file", Input).value = str(path)
            await hands.rest()
        changed = ("macs-cycle", "128") if from_file else ("bytes-cycle", "32")
        fields.query_one(f"#{changed[0]}", Input).value = changed[1]
        await hands.rest()
        kept = "DRAM, buffer" if from_file else "DRAM, scratchpad, accumulator"
        copied = "own" if from_file else "gemmini"
        name = typed or f"{copied}-2"
        fields.query_one("#save", Input).value = typed
        await hands.rest()
        told = " ".join(hands.dialog().split())
        assert f"With the memories of {copied}: {kept}." in told
        assert f"{name} is written into" in told
        await hands.press("enter")
        machine = shown._machine
        assert machine is not None
        assert (machine.hardware.name, ", ".join(memory.name for memory in machine.memories)) == (
            name,
            kept,
        )
        assert machine.memories[0].bytes_per_cycle == (8 if from_file else 32)
        assert machine.hardware.macs_per_cycle == (128 if from_file else 256)
        assert machine.mac_pj == (1.5 if from_file else None)
        for clock in ("2 GHz", "3 GHz"):
            await hands.press("m", "end", "enter")
            hands.pilot.app.screen.query_one("#clock", Input).value = clock
            await hands.rest()
            await hands.press("enter")
        kept_names = list(read_hardware_profiles())
        # a name of the dialog's own stays; a copy of a machine that the user named is another machine
        assert kept_names == ([name] if not typed else ["copy", "copy-2"])
        assert shown._machine.hardware.clock == 3e9
        assert [memory.name for memory in shown._machine.memories] == kept.split(", ")


async def test_the_tile_dialog_says_which_key_chooses_the_machine_of_a_mapping(tmp_path: Path) -> None:
    problem = Misuse(
        "it is for machine 'npu', which is not in the config file",
        where="fi.toml",
        hint="add --machine FILE",
        code="other_machine",
    )
    async with screen(ScriptedEngine(errors={"cost": problem}), size=(100, 30)) as hands:
        await hands.press("end", "t")
        page = " ".join(hands.dialog().split())
        assert "not in the config file; m chooses the machine" in page
        assert "--machine" not in page


async def test_the_tile_dialog_leads_to_the_map_view_and_back() -> None:
    async with screen(size=(100, 30)) as hands:
        use_hardware(hands.main.store, machines.find_hardware("edge-npu"))
        await hands.press("end", "t", "U")
        assert shown_machine(hands) == "edge-npu"
        await hands.press("n")
        await hands.press("escape")
        assert isinstance(hands.pilot.app.screen, TileDialog)
