"""The tile dialog promises: figures follow what is typed, each with its formula, and nothing waits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec.structs import replace
from textual.widgets import Input

from explorer.base.errors import Misuse
from explorer.base.options import list_declared_options
from explorer.engine.tiling.cost import compute_plan_cost
from explorer.engine.tiling.cost.formulas import add_formulas
from explorer.facts import Plan, SkippedSite, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.quantize import Accumulator
from explorer.features.tiling import plan_words as words
from explorer.features.tiling.tile_screen import CostList, TileDialog
from explorer.features.tiling.tile_words import plan_matmuls
from explorer.features.tiling.tiling_cost_page import CostRow, cost_rows, formula_page, headline
from explorer.report.layout import Page
from explorer.tui.text.lines import line_text, line_width
from explorer.tui.widgets.option_field import OptionField
from explorer.tui.widgets.text_input import TextInput
from tests.tui.hands import Hands, screen
from tests.tui.scripted import ScriptedEngine, alexnet, plan

NPU = Hardware("npu", 4096, 64, 1e9, 512 * 1024, (64, 64))
PROFILES = """
[machine.npu]
macs_per_cycle = 4096
bytes_per_cycle = 64
clock = "1 GHz"
buffer = "512 KiB"

[machine.tiny]
macs_per_cycle = 64
bytes_per_cycle = 8
clock = "100 MHz"
buffer = "16 KiB"
"""


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "config.toml"
    path.write_text(PROFILES)
    monkeypatch.chdir(tmp_path)  # a short path: messages begin with it, and the dialog is narrow
    monkeypatch.setenv("EXPLORER_CONFIG", path.name)
    return path


@pytest.fixture(autouse=True)
def _no_profiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXPLORER_CONFIG", "/nowhere/config.toml")


def rows_of(made: Plan, machine: Hardware | None = None) -> list[CostRow]:
    cost = add_formulas(compute_plan_cost(made, machine))
    largest = max(cost.sites, key=lambda site: site.macs) if cost.sites else None
    return cost_rows(made, cost, largest)


def figure(rows: list[CostRow], label: str, width: int = 90) -> str:
    return next(text for row in rows if (text := line_text(row.head(width))).strip().startswith(label))


def figures(hands: Hands) -> list[str]:
    found = hands.pilot.app.screen.query_one(CostList)
    return [line_text(found.row_line(i, 90)) for i in range(found.row_count)]


def option(hands: Hands, name: str) -> OptionField:
    return hands.pilot.app.screen.query_one(f"#{name}", OptionField)


async def to(hands: Hands, name: str) -> OptionField:
    found = option(hands, name)
    found.focus()
    await hands.rest()
    return found


# the rows


def test_the_figures_are_those_of_the_cost() -> None:
    made = plan(TileSpec())
    cost = compute_plan_cost(made, NPU)
    rows = rows_of(made, NPU)
    assert "1.6 %" in figure(rows, "Tile utilization")
    assert "227.16 MiB" in figure(rows, "Traffic  ")
    assert f"traffic is {cost.ratio:.2f} x that" in figure(rows, "Lower bound")
    assert "234.08 MiB" in figure(rows, "Traffic without reuse")
    assert "fits in 512.00 KiB" in figure(rows, "Buffer, double")
    assert "3.72 M" in figure(rows, "Cycles")
    assert "roofline: memory bounds 3 of 3" in figure(rows, "Cycles")
    for order in ("mnk", "nmk", "knm", "nkm", "mkn", "kmn"):
        one = next(total for total in cost.orders if total.order == order)
        assert f"{one.traffic / 2**20:.2f} MiB" in figure(rows, order)
    assert "in one go" in figure(rows, "dataflow")
    assert "2.74 M" in figure(rows, "weight-stationary")


@pytest.mark.parametrize("machine", [None, NPU])
def test_the_dialog_says_what_the_command_says(machine: Hardware | None) -> None:
    made = plan(TileSpec())
    cost = add_formulas(compute_plan_cost(made, machine))
    printed = [*words.plan_cost(alexnet().info, cost), *plan_matmuls(made)]
    said = " ".join("".join(Page(printed, fit=False).plain()).split())
    rows = [line_text(row.head(200)).strip() for row in rows_of(made, machine)]
    own = ("Matmuls: ", "Left as they are: ", *(() if machine else ("Time ",)))
    for row in rows:
        assert row.startswith(own) or all(cell.strip() in said for cell in row.split("  ")), row


def test_without_a_machine_time_is_unknown_and_the_rest_is_there() -> None:
    rows = rows_of(plan(TileSpec()))
    assert "?" in figure(rows, "Time")
    assert "227.16 MiB" in figure(rows, "Traffic  ")
    assert "KiB" in figure(rows, "Buffer")


def test_the_formula_beside_a_figure_is_that_of_the_figure() -> None:
    def about(rows: list[CostRow], label: str) -> str:
        row = next(row for row in rows if line_text(row.head(90)).strip().startswith(label))
        return "\n".join(map(line_text, row.about(110)))

    one = rows_of(plan(TileSpec(sites=("classifier.6",))))
    assert "tile utilization  1.5 %" in about(one, "Tile util")
    assert "4,096,000 / (1,024 x 64 x 64 x 64)" in about(one, "Tile util")
    assert "1.5 %" in figure(one, "Tile util")
    many = rows_of(plan(TileSpec()), NPU)
    assert "MACs of all matmuls / (number of all tile matmuls x TM TK TN)" in about(many, "Tile util")
    assert "sum over 3 matmuls, every call" in about(many, "Traffic without")
    assert "the most that a matmul needs" in about(many, "Buffer")
    assert "f shows the formulas with the numbers of classifier.1, the largest matmul" in about(
        many, "Tile util"
    )
    labels = [line_text(row.head(90)).strip() for row in many if not row.site]
    for label in (text.split("  ")[0] for text in labels):
        assert not re.search(r" = [\d,.]+", about(many, label)), f"{label}: a number of one site"
    often = replace(plan(TileSpec(sites=("classifier.6",))).sites[0], calls=12)
    rows = rows_of(replace(plan(TileSpec()), sites=(often,)))
    assert "sum over 1 matmul, every call" in about(rows, "Traffic without")


def test_cycles_say_of_which_model_of_the_machine_they_are() -> None:
    rows = rows_of(plan(TileSpec()), NPU)
    heads = [line_text(row.head(90)).strip() for row in rows]
    assert "cycles of a systolic array, 64 x 64" in heads


def test_sites_and_what_is_left_are_rows_with_their_reasons() -> None:
    made = plan(TileSpec())
    left = (
        SkippedSite("features.0", "Conv", "a convolution \x1b[31m", 600_000_000),
        SkippedSite("features.3", "Conv", "a convolution \x1b[31m", 55_566_528),
        SkippedSite("odd", "Einsum", "no product"),
    )
    rows = rows_of(replace(made, skipped=left))
    text = [line_text(row.head(90)) for row in rows]
    assert any("classifier.4" in line and "4,096" in line for line in text)
    assert [row.site for row in rows if row.site] == ["classifier.1", "classifier.4", "classifier.6"]
    conv = next(row for row in rows if "Conv" in line_text(row.head(90)))
    assert line_text(conv.head(90)).split()[:2] == ["2", "Conv"]
    assert "91.8 %" in line_text(conv.head(90))
    assert "features.0, features.3" in "\n".join(map(line_text, conv.about(90)))
    odd = next(line for line in text if "Einsum" in line)
    assert "%" not in odd, "how many MACs it has is not known"
    assert "\x1b" not in "".join(text)


def test_the_headline_says_which_share_of_the_model_runs_on_tiles() -> None:
    made = plan(TileSpec())
    assert line_text(headline(made, 80)) == "14,336 tile matmuls in 3 matmuls · 8.2 % of the model's MACs"
    whole = replace(made, macs_total=made.macs)
    assert "100.0 % of the model's MACs" in line_text(headline(whole, 80))
    assert ">99.9 %" in line_text(headline(replace(made, macs_total=made.macs + 1), 80))
    assert "an unknown number of MACs" in line_text(headline(replace(made, macs_total=None), 80))


@pytest.mark.parametrize("width", [24, 40, 52, 74, 110])
@pytest.mark.parametrize("machine", [None, NPU])
def test_no_row_is_wider_than_the_list(width: int, machine: Hardware | None) -> None:
    made = plan(TileSpec(tile=(1, 2, 3)))
    rows = rows_of(made, machine)
    assert all(line_width(row.head(width)) <= width for row in rows)
    page = max(40, width)
    assert all(line_width(line) <= page for row in rows for line in row.about(page))
    site = add_formulas(compute_plan_cost(made, machine)).sites[0]
    assert all(line_width(line) <= page for line in formula_page(site, page))


def test_figures_of_open_sizes_say_for_which_they_are() -> None:
    made = replace(plan(TileSpec()), dims={"batch": 1, "sequence": 64}, free=("batch", "sequence"))
    assert "batch=1, sequence=64" in figure(rows_of(made), "Counted for", 120)
    assert "takes every size" in figure(rows_of(made), "Counted for", 120)
    assert "only for this sequence" in figure(rows_of(replace(made, free=("batch",))), "Counted for", 120)
    padded = replace(made, sites=tuple(replace(site, edges="padded") for site in made.sites))
    skip = SkippedSite(
        "group/Conv", "Conv", "small groups; '--grouped pack' packs them; or bind it with --dim"
    )
    rows = rows_of(replace(padded, skipped=(skip,)))
    assert figure(rows, "Counted for", 74).rstrip().endswith("takes every size."), "the line is whole"
    texts = [line_text(line) for row in rows for line in (row.head(200), *row.about(200))]
    assert any("always padded; to fix batch, press Esc, then D" in text for text in texts)
    assert any("'grouped pack' packs them; or bind it with D" in text for text in texts)
    assert not [text for text in texts if "--" in text], "an option is no key of the dialog"
    often = replace(made.sites[0], calls=12)
    rows = rows_of(replace(made, sites=(often,)))
    about = next(row.about(90) for row in rows if row.site)
    assert "12 runs" in "\n".join(map(line_text, about))


# by keys


@pytest.mark.sampled(1)
@pytest.mark.parametrize("size", [(80, 24), (60, 15), (120, 40)])
async def test_the_dialog_shows_figures_at_every_size(size: tuple[int, int]) -> None:
    async with screen(size=size) as hands:
        await hands.press("t")
        top = hands.pilot.app.screen
        assert "14,336 tile matmuls in 3 matmuls" in hands.dialog()
        box = top.query_one("#box").region
        assert box.bottom <= size[1]
        for name in ("#tile", "#edges", "#grouped", "#form", "#sites", "#machine", "#plan", "#about"):
            region = top.query_one(name).region
            assert region.height >= 1
            assert region.bottom < box.bottom, name
        assert top.query_one(CostList).region.height >= 3
        edges, grouped = option(hands, "edges").region, option(hands, "grouped").region
        assert (edges.y == grouped.y) == (size == (60, 15)), "beside each other only where rows are few"
        assert "pack" in line_text(option(hands, "grouped").line_at(0))[: grouped.width]


@pytest.mark.slow
async def test_down_goes_to_the_field_below_and_never_to_the_right() -> None:
    async with screen(ScriptedEngine(), (80, 24)) as hands:
        await hands.press("t")
        places = []
        for _ in range(7):
            focused = hands.pilot.app.screen.focused
            assert focused is not None
            places.append(focused.region.y)
            await hands.press("down")
        assert places == list(range(places[0], places[0] + 7))


@pytest.mark.slow
@pytest.mark.parametrize("size", [(80, 24), (60, 15)])
async def test_words_that_have_room_stay_where_they_are_whichever_is_chosen(size: tuple[int, int]) -> None:
    async with screen(ScriptedEngine(), size) as hands:
        await hands.press("t")
        for name in ("edges", "grouped", "form"):
            words = await to(hands, name)
            for _ in words.words:
                assert all(word in line_text(words.line_at(0)) for word in words.words), name
                await hands.press("right")


@pytest.mark.slow
async def test_figures_follow_what_is_typed_and_the_formula_what_is_chosen(profiles: Path) -> None:
    async with screen() as hands:
        await hands.press("t")
        before = figures(hands)
        await hands.press("backspace", "backspace", *"32")
        after = figures(hands)
        assert before != after
        assert "28,672 tile matmuls" in hands.dialog()
        await hands.press(*["down"] * 9)
        assert isinstance(hands.pilot.app.focused, CostList)
        await hands.press("down", "down", "down", "down")
        assert "traffic mnk = " in hands.dialog()
        await hands.press("up", "up", "up", "up", "up")
        assert hands.pilot.app.focused is option(hands, "machine"), "up from the first row leaves the list"


@pytest.mark.slow
async def test_a_machine_of_the_configuration_file_gives_cycles_and_time(profiles: Path) -> None:
    async with screen() as hands:
        await hands.press("t")
        assert any("?" in line for line in figures(hands) if line.strip().startswith("Time"))
        await to(hands, "machine")
        await hands.press("right")
        assert any("3.72 M" in line for line in figures(hands))
        await hands.press("right")
        assert any("does not fit in 16.00 KiB" in line for line in figures(hands))
        await hands.press("escape")
        await hands.press("t")
        assert option(hands, "machine").value == "tiny", "what was chosen is kept"


@pytest.mark.slow
async def test_rates_that_were_typed_for_the_roofline_are_a_machine_too() -> None:
    async with screen() as hands:
        await hands.press("m", *"4T", "down", *"100GB", "enter")
        await hands.press("1", "t")
        assert option(hands, "machine").value == "as typed", "it is the only one"
        assert any(line.strip().startswith("Time") and " ms" in line for line in figures(hands))


@pytest.mark.slow
async def test_enter_on_an_empty_machine_says_once_what_is_needed() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("m", "enter")
        assert hands.dialog().count("the rates of computing and of moving bytes are missing") == 1


@pytest.mark.slow
@pytest.mark.parametrize("width", [60, 120])
async def test_more_machines_than_there_is_room_for_have_a_sign_where_they_go_on(width: int) -> None:
    async with screen(size=(width, 40)) as hands:
        await hands.press("m")
        field = option(hands, "profile")
        field.focus()
        for step in range(len(field.words)):
            line = line_text(field.line_at(0))
            shown = [word for word in field.words if f" {word} " in f"{line} "]
            assert line_width(field.line_at(0)) <= field.size.width
            assert field.value in shown, "the chosen one is whole"
            assert line.endswith("…") == (field.words[-1] not in shown)
            assert ("…" in line[:12]) == (step > 0 and field.words[0] not in shown)
            await hands.press("right")


@pytest.mark.slow
async def test_where_there_is_no_machine_to_choose_a_key_types_one_and_it_holds_everywhere() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        assert any("m types one" in line for line in figures(hands))
        await hands.press("m", *"4T", "down", *"100GB", "enter")
        assert option(hands, "machine").value == "as typed"
        assert any(line.strip().startswith("Time") and " ms" in line for line in figures(hands))
        await hands.press("escape", "6")
        assert "4.00 TMAC/s" in hands.text("#roofline")
        await hands.press("S")
        assert hands.pilot.app.screen.query_one("#sweep-machine", OptionField).value == "as typed"
        await hands.press("escape", "m", *["backspace"] * 20, *"8T", "enter", "1", "t")
        assert option(hands, "machine").value == "as typed"
        top = hands.pilot.app.screen
        assert isinstance(top, TileDialog)
        assert top.hardware is not None
        assert top.hardware.peak_macs == 8e12, "what was typed last"


@pytest.mark.slow
async def test_a_machine_that_was_chosen_for_tiles_is_that_of_the_roofline(profiles: Path) -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        assert any("choose a machine above" in line for line in figures(hands))
        await to(hands, "machine")
        await hands.press("right", "escape", "6")
        assert "npu: 4.10 TMAC/s" in hands.text("#roofline")
        await hands.press("S")
        assert hands.pilot.app.screen.query_one("#sweep-machine", OptionField).value == "npu"


@pytest.mark.slow
async def test_a_broken_configuration_file_is_told_and_the_dialog_works(profiles: Path) -> None:
    profiles.write_text("[machine.npu]\nmacs = 3\n")
    async with screen() as hands:
        await hands.press("t")
        assert "14,336 tile matmuls" in hands.dialog()
        assert "there is no setting 'macs'" in hands.dialog()


@pytest.mark.slow
async def test_a_cost_that_cannot_be_told_leaves_the_plan() -> None:
    engine = ScriptedEngine(errors={"cost": Misuse("the machine contradicts itself")})
    async with screen(engine) as hands:
        await hands.press("t")
        assert "14,336 tile matmuls" in hands.dialog()
        assert "contradicts itself" in hands.dialog()
        assert any("classifier.1" in line for line in figures(hands))
        await hands.press("enter")
        assert "Proven equal" in hands.dialog()


@pytest.mark.slow
async def test_the_help_of_the_dialog_says_what_each_declared_option_is_for() -> None:
    async with screen() as hands:
        await hands.press("t")
        await hands.press("question_mark")
        shown = " ".join(hands.dialog().split())
        assert shown.startswith("Fields, words and keys Fields tile tile size, 64 or 64x64x64: M x K x N")
        for option in (option for option in list_declared_options(TileSpec) if option.declared.label):
            assert f"{option.declared.label} {' '.join(option.declared.help.split())}" in shown


async def test_grouped_convolutions_are_packed_when_asked() -> None:
    async with screen() as hands:
        await hands.press("t")
        await to(hands, "grouped")
        await hands.press("right")
        await hands.press("enter")
        spec = next(args[0] for m, args, _ in hands.engine.asked if m == "tile")
        assert spec.grouped == "pack"


async def test_a_mapping_file_takes_the_place_of_the_tile() -> None:
    async with screen() as hands:
        await hands.press("t")
        for name, text in (("mapping", "fi.toml"), ("level", "UB")):
            hands.pilot.app.screen.query_one(f"#{name}", TextInput).focus()
            await hands.press(*text)
        await hands.press("enter")
        spec = next(args[0] for m, args, _ in hands.engine.asked if m == "tile")
        assert (spec.mapping, spec.level, spec.tile) == ("fi.toml", "UB", TileSpec().tile)


@pytest.mark.slow
async def test_an_accumulator_that_is_typed_names_the_sums_that_overflow_it() -> None:
    async with screen() as hands:
        await hands.press("t")
        await to(hands, "accumulator")
        await hands.press(*"1")
        assert "an accumulator cannot have '1' bits" in hands.dialog()
        await hands.press(*"8")
        await hands.press("enter")
        spec = next(args[0] for m, args, _ in hands.engine.asked if m == "tile")
        assert spec.accumulator == 18
    made, sums = plan(TileSpec()), Accumulator(9216, 22, 30, 7, 1_500_000)
    sites = (replace(made.sites[0], sums=sums), *made.sites[1:])
    floats = rows_of(replace(made, accumulator_bits=18))
    assert "no effect: no matmul here sums stored integers" in figure(floats, "Accumulator")
    rows = rows_of(replace(made, sites=sites, accumulator_bits=18))
    assert "1 of 1 overflow 18 bits: 22 bits are needed" in figure(rows, "Accumulator")
    said = next(row for row in rows if "Accumulator" in line_text(row.head(90))).about(90)
    assert any(sites[0].name in line_text(line) and "9,216" in line_text(line) for line in said)
    assert (
        figure(rows_of(replace(made, sites=sites, accumulator_bits=22)), "Accumulator")
        .strip()
        .endswith("22 bits hold every sum: 22 bits are needed")
    )


@pytest.mark.slow
async def test_letters_are_keys_and_no_part_of_a_tile() -> None:
    async with screen() as hands:
        await hands.press("t")
        await hands.press("f")
        assert hands.dialog().startswith("How the figures come about")
        assert "lower bound  " in hands.dialog()
        await hands.press("escape")
        await hands.press("q", "z")
        top = hands.pilot.app.screen
        assert isinstance(top, TileDialog)
        assert top.spec().tile == (64, 64, 64)


@pytest.mark.parametrize("hardware", [Hardware(), NPU])
@pytest.mark.parametrize("width", [40, 53, 80])
def test_each_order_of_the_loops_is_one_line_that_ends_in_whole_figures(
    width: int, hardware: Hardware
) -> None:
    (site,) = add_formulas(compute_plan_cost(plan(TileSpec(sites=("classifier.6",))), hardware)).sites
    page = [line_text(line) for line in formula_page(site, width)]
    rows = [line for line in page if line.split()[:1] in ([order] for order in ("mnk", "nmk", "knm", "kmn"))]
    assert len(rows) == 4
    assert all(len(line) <= width and "…" not in line and line.split()[1:] for line in rows)


@pytest.mark.slow
async def test_formulas_of_the_site_under_the_cursor() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        found = hands.pilot.app.screen.query_one(CostList)
        at = next(i for i, row in enumerate(found.rows) if row.site == "classifier.6")
        found.focus()
        found.move_to(at)
        await hands.rest()
        assert "grid 1 x 64 x 16  tile 64x64x64" in hands.dialog()
        await hands.press("f")
        assert "classifier.6" in hands.dialog()
        assert "ceil(N / TN)  =  ceil(1,000 / 64)" in hands.dialog()


async def test_what_is_typed_takes_the_place_of_the_tile_and_an_edit_goes_on_behind_it() -> None:
    async with screen() as hands:
        await hands.press("t", *"32")
        entry = hands.pilot.app.screen.query_one("#tile", Input)
        assert entry.value == "32"
        await hands.press("escape", "t", "backspace", "8")
        assert hands.pilot.app.screen.query_one("#tile", Input).value == "64x64x68"
        await hands.press("escape", "t", "left", "1")
        assert hands.pilot.app.screen.query_one("#tile", Input).value == "64x64x614"


@pytest.mark.slow
async def test_an_answer_that_comes_late_is_not_shown_for_something_else() -> None:
    async with screen() as hands:
        await hands.press("t")
        hands.engine.hold.add("plan")
        # as a paste: typed, what is no size for a moment may be said
        hands.pilot.app.screen.query_one("#tile", Input).value = "64x64x32"
        await hands.rest()
        assert "14,336" in hands.dialog(), "what is known stays until there is something else"
        await hands.press("enter")
        assert isinstance(hands.pilot.app.screen, TileDialog), "and it is not what would be done"
        await hands.press("backspace", "backspace", *"16")
        hands.engine.release()
        await hands.rest()
        assert "57,280 tile matmuls" in hands.dialog()
        await hands.press("enter")
        spec = next(args[0] for m, args, _ in hands.engine.asked if m == "tile")
        assert spec.tile == (64, 64, 16)


@pytest.mark.slow
async def test_enter_before_the_plan_is_there_does_what_was_typed_once_it_is() -> None:
    async with screen() as hands:
        await hands.press("t")
        hands.engine.hold.add("plan")
        hands.at_once("backspace", "backspace", *"32", "enter")
        await hands.rest()
        assert isinstance(hands.pilot.app.screen, TileDialog)
        hands.engine.release()
        await hands.rest()
        specs = [args[0] for m, args, _ in hands.engine.asked if m == "tile"]
        assert [spec.tile for spec in specs] == [(64, 64, 32)]


@pytest.mark.slow
async def test_presets_stand_among_the_machines_of_the_dialogs() -> None:
    async with screen(size=(120, 40)) as hands:
        await hands.press("t")
        await to(hands, "machine")
        await hands.press("right")
        assert option(hands, "machine").value == "a100"
        assert any(line.strip().startswith("Time") and " s" not in line[:4] for line in figures(hands))
        await hands.press("escape", "6")
        assert "a100" in hands.text("#roofline")


@pytest.mark.slow
@pytest.mark.parametrize("before", [(60, 15), (140, 40)])
async def test_the_dialog_keeps_its_hint_where_the_terminal_is_made_smaller(before: tuple[int, int]) -> None:
    async with screen(ScriptedEngine(alexnet()), size=before) as hands:
        await hands.press("t")
        await hands.pilot.resize_terminal(60, 15)
        await hands.rest()
        box = hands.pilot.app.screen.query_one("#box")
        assert box.region.bottom <= 15
        assert box.query_one("#about").region.bottom < box.region.bottom


@pytest.mark.slow
async def test_who_asks_for_the_machine_again_is_on_the_one_in_use() -> None:
    async with screen() as hands:
        await hands.press("m", "right", "enter")
        first = hands.main.store.hardware
        await hands.press("m", "right", "enter")
        second = hands.main.store.hardware
        assert first is not None
        assert second is not None
        assert "" != first.name != second.name != ""
