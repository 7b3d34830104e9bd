"""The Sweep screen: tilings asked for in a dialog, a table that sorts, the front as a plot, Enter tiles."""

from __future__ import annotations

import csv
import json
import math
import re
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.facts import TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.pareto_front import mark_front
from explorer.facts.sweep import Sweep, SweepRow, SweepSpec, list_combinations
from explorer.features.sweep.sweep_dialogs import SweepDialog
from explorer.features.sweep.sweep_page import (
    AXES,
    ParetoPlot,
    axes_of,
    columns_for,
    label_front,
    sweep_facts,
    sweep_head,
    sweep_line,
)
from explorer.features.sweep.sweep_screen import SweepScreen
from explorer.settings import machines
from explorer.tui.dialogs.states.figures_screen import FigureScreen
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.line_view import LineList, LineView
from explorer.tui.widgets.machine_field import MachineField
from explorer.tui.widgets.status_line import JobLine
from explorer.tui.widgets.strips import PaneHead, Status, TitleBar
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine


def row(spec: TileSpec, hardware: Hardware | None = None, verify: bool = False) -> SweepRow:
    """Figures of one product of 64 x 4096 x 1000; tiles of one row do not exist."""
    made = SweepRow("", "alexnet.onnx", "", "", spec.tile, spec.edges, spec.form, spec.grouped)
    tm, tk, tn = spec.tile
    if tm == 1:
        return replace(made, error="no such tile")
    products = math.prod(-(-size // tile) for size, tile in zip((64, 4096, 1000), spec.tile, strict=True))
    buffer = 8 * (tm * tk + tk * tn + tm * tn)
    return replace(
        made,
        hardware="" if hardware is None else "npu: 4,096 MACs/cycle",
        sites=3,
        products=products,
        utilisation=0.5,
        padded_share=0.1 if spec.edges == "padded" else 0.0,
        traffic=products * 64,
        lower_bound=products * 32,
        buffer=buffer,
        fits=buffer < 100_000,
        cycles=None if hardware is None else products * 7 + tn,
        seconds=None if hardware is None else products * 7e-9,
        verified=True if verify else None,
        verdict="equal within rounding" if verify else "",
    )


class SweepEngine(ScriptedEngine):
    """Sweeps, too."""

    def _sweep(self, spec: SweepSpec, **how: Any) -> Sweep:
        rows = [row(one, how["hardware"], how["verify"]) for one in list_combinations(spec)]
        return Sweep(mark_front(rows), how["hardware"] or Hardware(), made=len(rows))


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's configuration file, which is not there unless a test writes it; and a folder to write in."""
    path = tmp_path / "config.toml"
    monkeypatch.setenv("EXPLORER_CONFIG", str(path))
    monkeypatch.chdir(tmp_path)
    return path


def sweep_screen(hands: Hands) -> SweepScreen:
    found = hands.pilot.app.screen_stack[1]
    assert isinstance(found, SweepScreen)
    return found


def table(hands: Hands) -> list[str]:
    rows = sweep_screen(hands).query_one("#sweep-rows")
    return [line_text(rows.row_line(at, 100)) for at in range(rows.row_count)]  # type: ignore[attr-defined]


def tiles(hands: Hands) -> list[str]:
    return [line.split()[1 if "◆" in line else 0] for line in table(hands)]


def strip(hands: Hands, kind: type[TitleBar] | type[Status]) -> str:
    return "\n".join(line_text(line) for line in sweep_screen(hands).query(kind).first().lines)


def page(hands: Hands, name: str) -> str:
    return "\n".join(line_text(line) for line in sweep_screen(hands).query_one(name, LineView).lines)


async def begin(hands: Hands, **fields: str) -> None:
    """Opens the dialog, writes into its fields, and begins."""
    await hands.press("S")
    top = hands.pilot.app.screen
    if machine := fields.pop("machine", ""):
        top.query_one(MachineField).choose(machines.find_hardware(machine))
    for name, text in fields.items():
        top.query_one(f"#sweep-{name}", Input).value = text
    await hands.press("enter")


@pytest.mark.slow
async def test_the_first_time_it_asks_and_says_how_many_tilings_these_are() -> None:
    async with screen(SweepEngine()) as hands:
        await hands.press("S")
        assert isinstance(hands.pilot.app.screen, SweepDialog)
        assert "4 tilings" in hands.dialog()
        assert "alexnet" in strip(hands, TitleBar)
        # nothing is counted yet
        assert not any(text in strip(hands, TitleBar) for text in ("tilings", "front", "no machine"))
        hands.pilot.app.screen.query_one("#sweep-depths", Input).value = "16,32"
        await hands.rest()
        assert "8 tilings" in hands.dialog()
        hands.pilot.app.screen.query_one("#sweep-depths", Input).value = "16,zero"
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, SweepDialog)
        assert "'zero' is not a whole number" in hands.dialog()
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main


async def test_a_model_without_a_matmul_to_tile_is_refused_before_the_form() -> None:
    refusal = Misuse("no matmul can be tiled (tiled already)")
    async with screen(SweepEngine(errors={"plan": refusal})) as hands:
        await hands.press("S")
        assert not isinstance(hands.pilot.app.screen, SweepDialog)
        assert "no matmul can be tiled (tiled already)" in hands.dialog()
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main


async def test_every_tiling_is_a_row_and_the_front_is_marked_and_plotted(tmp_path: Path) -> None:
    (tmp_path / "npu.toml").write_text("macs_per_cycle = 4096\nbytes_per_cycle = 64\n")
    async with screen(SweepEngine(), size=(140, 40)) as hands:
        await begin(hands, tiles="16,32,64x16x16", machine="npu.toml")
        assert tiles(hands) == ["16x16x16", "32x32x32", "64x16x16"]
        marked = [line.split()[1] for line in table(hands) if "◆" in line]
        rows = sweep_screen(hands)._tilings.rows
        assert marked == ["x".join(map(str, one.tile)) for one in rows if one.pareto]
        assert marked
        assert "3 tilings" in strip(hands, TitleBar)
        assert "4,096 MACs/cycle" in strip(hands, TitleBar)
        assert "cycles over buffer" in page(hands, "#sweep-plot")
        plotted = {(one.buffer, one.cycles) for one in rows if one.pareto}
        assert page(hands, "#sweep-plot").count("◆") == 1 + len(plotted)
        assert [line.split()[0] for line in table(hands) if "◆" in line][:1] == ["◆A"]
        assert "A" in page(hands, "#sweep-plot").split("others")[1]
        await hands.press("x")
        assert "traffic over buffer" in page(hands, "#sweep-plot")


@pytest.mark.slow
async def test_a_buffer_alone_says_which_tiles_fit() -> None:
    async with screen(SweepEngine(), size=(140, 40)) as hands:
        await hands.press("S")
        hands.pilot.app.screen.query_one("#sweep-buffer", Input).value = "a lot"
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, SweepDialog)
        await hands.press("escape")
        await begin(hands, tiles="16,32,64", buffer="30 KiB")
        (asked,) = [how["hardware"] for name, _, how in hands.engine.asked if name == "sweep"]
        assert asked == Hardware(buffer=30 * 1024)
        assert sweep_screen(hands).verb_words("m.onnx")[-2:] == ["--buffer", "30KiB"]
        # it is asked for again as it was typed, and other dialogs have no machine of it
        await hands.press("n")
        assert hands.pilot.app.screen.query_one("#sweep-buffer", Input).value == "30 KiB"
        await hands.press("escape", "escape")
        assert hands.main.store.hardware is None


@pytest.mark.slow
async def test_the_rows_sort_by_keys_and_the_cursor_stays_on_its_row() -> None:
    async with screen(SweepEngine()) as hands:
        await begin(hands, tiles="64,16,32")
        assert tiles(hands) == ["64x64x64", "16x16x16", "32x32x32"]
        await hands.press("s")  # by traffic: without a machine there are no cycles
        assert tiles(hands) == ["64x64x64", "32x32x32", "16x16x16"]
        assert "sorted by traffic" in strip(hands, Status)
        await hands.press("down")
        assert "32x32x32" in page(hands, "#sweep-facts")
        await hands.press("r")
        assert tiles(hands) == ["16x16x16", "32x32x32", "64x64x64"]
        assert "32x32x32" in page(hands, "#sweep-facts")
        await hands.press("S")
        assert tiles(hands) == ["32x32x32", "16x16x16", "64x64x64"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"), [((80, 24), (140, 24)), ((140, 24), (80, 24)), ((80, 24), (60, 24))]
)
async def test_figures_stand_under_their_heads_whatever_the_width_becomes(
    before: tuple[int, int], after: tuple[int, int], tmp_path: Path
) -> None:
    (tmp_path / "npu.toml").write_text('macs_per_cycle = 4096\nbytes_per_cycle = 64\nclock = "1 GHz"\n')
    async with screen(SweepEngine(), size=before) as hands:
        await begin(hands, tiles=",".join(map(str, range(10, 40))), machine="npu.toml")
        await hands.pilot.resize_terminal(*after)
        await hands.rest()
        top = sweep_screen(hands)
        rows = top.query_one("#sweep-rows", LineList)
        head = line_text(top.query_one("#sweep-head", PaneHead).lines[0]).rstrip()
        cells = line_text(rows.row_line(0, rows.size.width)).rstrip()
        assert len(head) == len(cells)
        ends = [found.end() for found in re.finditer(r"\S+", head) if found[0] not in ("tile", "edges")]
        assert len(ends) >= 3
        assert all(cells[end - 1] != " " and cells[end : end + 1] in ("", " ") for end in ends)


@pytest.mark.slow
async def test_no_column_goes_where_a_wider_terminal_has_room_for_the_plot_beside(tmp_path: Path) -> None:
    def heads() -> list[str]:
        return line_text(sweep_screen(hands).query_one("#sweep-head", PaneHead).lines[0]).split()

    (tmp_path / "npu.toml").write_text('peak_macs = "4T"\nbandwidth = "64 GB/s"\n')
    async with screen(SweepEngine(), size=(80, 24)) as hands:
        await begin(hands, tiles="16,32,64", machine="npu.toml")
        before = heads()
        assert len(before) > 4
        for width in (119, 120, 140, 200):
            await hands.pilot.resize_terminal(width, 24)
            await hands.rest()
            assert set(before) <= set(heads())
            assert sweep_screen(hands).query_one("#sweep-plot").size.width >= 32


def test_the_front_of_a_plot_is_that_of_the_table_and_its_points_have_the_labels_of_the_rows() -> None:
    def at(size: int, cycles: int, traffic: int, buffer: int) -> SweepRow:
        known = row(TileSpec(tile=(size, size, size)), Hardware())
        return replace(known, cycles=cycles, traffic=traffic, buffer=buffer)

    # the third is best by its traffic alone: of cycles over buffer the first is better in both
    rows = mark_front([at(32, 20, 50, 30), at(16, 5, 100, 20), at(8, 10, 100, 10), at(64, 30, 200, 40)])
    assert [one.pareto for one in rows] == [True, True, True, False]
    labels = label_front(rows)
    assert [labels.get((one.tile, one.edges)) for one in rows] == ["C", "B", "A", None]
    for axes in AXES[:3]:
        plot = "\n".join(line_text(line) for line in ParetoPlot(rows, axes).lines(None, 60, 14)[1:])
        drawn = re.findall(r"(?<![A-Z])([A-Z])?◆([A-Z])?(?![A-Z])", plot)
        assert sorted(left or right for left, right in drawn) == ["A", "B", "C"], (axes, plot)
    lines = [
        sweep_line(one, columns_for(rows, 100), 100, "x", labels.get((one.tile, one.edges), ""))
        for one in rows
    ]
    assert [line_text(line)[:4] for line in lines] == ["x◆C ", "x◆B ", "x◆A ", "x   "]
    wrong = mark_front([replace(one, verified=one.tile[0] != 16) for one in rows])
    plot = "\n".join(line_text(line) for line in ParetoPlot(wrong, AXES[0]).lines(None, 60, 14)[1:])
    assert plot.count("◆") == 2, "a tiling whose proof failed is on no front"


def test_the_labels_of_a_long_front_go_on_as_in_a_spreadsheet() -> None:
    known = row(TileSpec(tile=(8, 8, 8)), Hardware())
    rows = [replace(known, tile=(n, n, n), buffer=n, cycles=1000 - n, pareto=True) for n in range(1, 61)]
    labels = [*label_front(rows).values()]
    assert labels[:2] == ["A", "B"]
    assert labels[25:28] == ["Z", "AA", "AB"]
    assert len(set(labels)) == len(labels) == 60
    plot = "\n".join(line_text(line) for line in ParetoPlot(rows, AXES[0]).lines(None, 60, 14)[1:])
    assert "◆A" in plot, "there is room for some labels"


def test_columns_of_the_plot_are_filled_to_what_is_had_with_no_larger_a_buffer() -> None:
    known = row(TileSpec(tile=(8, 8, 8)), Hardware())
    steps = ((10, 1000, 8), (20, 500, 16), (40, 700, 32), (80, 100, 64))
    rows = mark_front([replace(known, tile=(n, n, n), buffer=b, cycles=c, traffic=1) for b, c, n in steps])
    lines = [
        line_text(line).split("┤")[-1].split("│")[-1]
        for line in ParetoPlot(rows, AXES[0]).lines(None, 60, 14)
    ]
    across = max(map(len, lines[1:-2]))
    plot = [line.ljust(across) for line in lines[1:-2]]
    filled = [sum(line[x] != " " and line[x] != "·" for line in plot) for x in range(across)]
    assert filled == sorted(filled, reverse=True)
    assert len(set(filled)) == 3, "the third has more cycles than the second, for a larger buffer"


@pytest.mark.slow
async def test_marked_tilings_stand_beside_each_other_and_keep_their_marks_when_sorted() -> None:
    async with screen(SweepEngine(), size=(140, 40)) as hands:
        await begin(hands, tiles="16,32x16x16,48x16x16")
        await hands.press("t")
        assert hands.pilot.app.screen is sweep_screen(hands), "nothing is marked"
        await hands.press("end", "space", "home", "space")
        assert [line[0] for line in table(hands)] == ["b", " ", "a"]
        await hands.press("s", "r")
        assert sorted(line.split()[0][0] for line in table(hands) if line[0] != " ") == ["a", "b"]
        await hands.press("t")
        top = hands.pilot.app.screen
        assert isinstance(top, FigureScreen)
        page = [line_text(line) for line in top.query_one("#figures", LineView).lines]
        assert page[1].split() == ["48x16x16", "16x16x16", "change"]
        assert any(" ".join(line.split()) == "Tile matmuls 32,256 64,512 +100 %" for line in page)
        assert "run different MACs on tiles: Tile matmuls" in " ".join(page), (
            "nobody says that the same MACs run on tiles"
        )
        await hands.press("escape")
        assert hands.pilot.app.screen is sweep_screen(hands)


@pytest.mark.slow
async def test_the_key_of_the_machine_asks_for_another_one_here_too() -> None:
    async with screen(SweepEngine()) as hands:
        await begin(hands, tiles="16,32")
        await hands.press("m")
        assert isinstance(hands.pilot.app.screen, SweepDialog)


@pytest.mark.slow
async def test_only_the_front_on_a_key() -> None:
    async with screen(SweepEngine()) as hands:
        await begin(hands, tiles="16,32x16x16,48x16x16")
        assert len(table(hands)) == 3
        await hands.press("f")
        assert 0 < len(table(hands)) < 3
        assert all("◆" in line for line in table(hands))
        await hands.press("f")
        assert len(table(hands)) == 3


@pytest.mark.slow
async def test_enter_tiles_with_the_row_under_the_cursor_and_what_comes_is_asked_about_anew() -> None:
    async with screen(SweepEngine()) as hands:
        await begin(hands, tiles="16,32,64")
        await hands.press("down", "enter")
        specs = [args[0] for name, args, _ in hands.engine.asked if name == "tile"]
        assert [(spec.tile, spec.edges, spec.sites) for spec in specs] == [((32, 32, 32), "ragged", ())]
        assert "Proven equal" in hands.dialog()
        await hands.press("escape", "S")
        assert isinstance(hands.pilot.app.screen, SweepDialog)


@pytest.mark.slow
async def test_a_tiling_that_cannot_be_says_why_and_is_not_done() -> None:
    async with screen(SweepEngine()) as hands:
        await begin(hands, tiles="1,32")
        assert "no such tile" in table(hands)[0]
        await hands.press("enter")
        assert not [name for name, _, _ in hands.engine.asked if name == "tile"]
        assert isinstance(hands.pilot.app.screen, SweepScreen)
        assert "there is no tiling to take here" in strip(hands, JobLine)


@pytest.mark.slow
async def test_what_was_found_is_there_the_next_time_and_more_is_added_to_it() -> None:
    async with screen(SweepEngine()) as hands:
        await begin(hands, tiles="16,32")
        await hands.press("escape", "S")
        assert tiles(hands) == ["16x16x16", "32x32x32"]
        await hands.press("n")
        assert hands.pilot.app.screen.query_one("#sweep-tiles", Input).value == "16,32"
        hands.pilot.app.screen.query_one("#sweep-tiles", Input).value = "32,64"
        await hands.press("enter")
        assert tiles(hands) == ["16x16x16", "32x32x32", "64x64x64"]
        swept = [args[0].tiles for name, args, _ in hands.engine.asked if name == "sweep"]
        assert swept == [((16, 16, 16), (32, 32, 32)), ((64, 64, 64),)]


@pytest.mark.slow
async def test_proofs_come_one_by_one_and_esc_keeps_what_is_there(tmp_path: Path) -> None:
    engine = SweepEngine()
    async with screen(engine) as hands:
        await hands.press("S")
        hands.pilot.app.screen.query_one("#sweep-tiles", Input).value = "16,32,64"
        hands.pilot.app.screen.query_one("#sweep-kept", Input).value = "results.db"
        await hands.press(*["down"] * 8, "right", "enter")
        how = [(args[0].tiles, kwargs) for name, args, kwargs in engine.asked if name == "sweep"]
        assert [given for given, _ in how] == [((16, 16, 16),), ((32, 32, 32),), ((64, 64, 64),)]
        assert all(kwargs["verify"] and kwargs["output"] == "results.db" for _, kwargs in how)
        assert all("equal" in line for line in table(hands))
        engine.hold = {"sweep"}
        await hands.press("n")
        hands.pilot.app.screen.query_one("#sweep-tiles", Input).value = "16,32,64,128"
        await hands.press("enter")
        assert "sweeping · 3 of 4" in strip(hands, Status)
        await hands.press("enter")  # no tiling while it runs
        await hands.press("escape")
        assert "stopped" in strip(hands, Status)
        assert len(table(hands)) == 3
        await hands.press("escape")
        assert hands.pilot.app.screen is hands.main


@pytest.mark.slow
async def test_an_error_is_a_dialog_and_the_screen_lives() -> None:
    engine = SweepEngine(errors={"sweep": Misuse("no matmul can be tiled")})
    async with screen(engine) as hands:
        await begin(hands)
        assert "no matmul can be tiled" in hands.dialog()
        await hands.press("escape", "n")
        assert isinstance(hands.pilot.app.screen, SweepDialog)


@pytest.mark.slow
async def test_the_tilings_are_written_as_the_command_line_prints_them(tmp_path: Path) -> None:
    async with screen(SweepEngine()) as hands:

        async def write(name: str) -> None:
            await hands.press("w")
            hands.pilot.app.screen.query_one(Input).value = name
            await hands.press("enter")

        await begin(hands, tiles="16,32")
        await write("out.csv")
        assert "2 tilings written" in strip(hands, Status)
        rows = list(csv.DictReader((tmp_path / "out.csv").read_text().splitlines()))
        assert [one["tile_m"] for one in rows] == ["16", "32"]
        await write("out.json")
        assert [one["tile_m"] for one in json.loads((tmp_path / "out.json").read_text())["rows"]] == [16, 32]
        await write("out.csv")
        assert "exists. Replace it?" in hands.dialog()
        await hands.press("escape")
        await write("out.txt")
        assert "the file name's ending selects the format" in hands.dialog()


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 15), (140, 40)])
async def test_it_fits_a_small_terminal(size: tuple[int, int]) -> None:
    async with screen(SweepEngine(), size=size) as hands:
        await hands.press("S")
        box = hands.pilot.app.screen.query_one("#box").region
        assert hands.pilot.app.screen.query_one("#said").region.bottom <= box.bottom <= size[1]
        assert hands.pilot.app.screen.query_one("#said").region.height >= 1
        await hands.press("enter")
        shown = sweep_screen(hands)
        rows, plot = shown.query_one("#sweep-rows"), shown.query_one("#sweep-plot")
        assert rows.size.height >= 4
        assert plot.display is (size != (60, 15))
        await hands.press("p")
        assert plot.display
        assert "over buffer" in page(hands, "#sweep-plot")
        await hands.press("p")
        assert rows.display


def some(count: int = 5, hardware: Hardware | None = None) -> tuple[SweepRow, ...]:
    return mark_front([row(TileSpec(tile=(8 << at, 16, 16)), hardware) for at in range(count)])


@pytest.mark.parametrize("width", [24, 40, 60, 100])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    hostile = replace(some()[0], error="\x1b[2J[bold]" + "x" * 300)
    rows = (*some(hardware=Hardware()), hostile)
    columns = columns_for(rows, width)
    lines = [sweep_head(columns, "traffic", False), *(sweep_line(one, columns, width) for one in rows)]
    if width >= 60:  # below, what is on the right is cut off
        assert all(line_width(line) <= width for line in lines)
    for one in rows:
        assert all(line_width(line) <= width for line in sweep_facts(one, width))
        assert "\x1b" not in "".join(line_text(line) for line in sweep_facts(one, width))
    for axes in axes_of(rows):
        assert all(line_width(line) <= width for line in ParetoPlot(rows, axes).lines(rows[0], width, 12))


def test_a_plot_of_nothing_or_of_one_says_so_or_shows_it() -> None:
    nothing = (replace(some()[0], error="no"),)
    assert "no figures to plot" in line_text(ParetoPlot(nothing, ("buffer", "cycles")).lines(None, 60, 12)[0])
    alone = ParetoPlot(some(1), ("buffer", "traffic")).lines(None, 60, 12)
    assert sum(line_text(line).count("◆") for line in alone) == 2
