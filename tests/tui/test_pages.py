"""What the tabs and dialogs say, without a terminal."""

from __future__ import annotations

import re

import pytest
from msgspec.structs import replace
from rich.cells import cell_len

from explorer.base import units
from explorer.base.verdicts import VERDICTS, VerdictKind
from explorer.facts import (
    Layer,
    NodeDiff,
    OpStat,
    Progress,
    Range,
    Reach,
    SitePlan,
    TensorInfo,
    TileSpec,
    Totals,
)
from explorer.features.compare.blame_screen import BLAME_KEYS
from explorer.features.sweep.sensitivity_screen import SENSITIVITY_KEYS
from explorer.features.sweep.sweep_screen import SWEEP_KEYS
from explorer.features.tiling.tile_view import TILE_KEYS
from explorer.features.tiling.tile_words import plan_matmuls
from explorer.report.present.compare.diff import summarize_changes
from explorer.report.present.look.ops import attribute_blocks
from explorer.tui.commands.help_action import KEYS, help_lines
from explorer.tui.commands.key_table import COMMANDS, CommandKey, find_command
from explorer.tui.dialogs.states.history_dialog import HISTORY_KEYS
from explorer.tui.pages.header import header_lines
from explorer.tui.pages.verdict import verdict_lines, verdict_tone
from explorer.tui.state.store import ScreenStore
from explorer.tui.tabs import TABS, TabKey, tab_class
from explorer.tui.tabs.diff import diff_entries
from explorer.tui.tabs.head import tab_at, tab_head
from explorer.tui.tabs.layer import layer_page
from explorer.tui.tabs.model import model_page
from explorer.tui.tabs.operators import operator_entries
from explorer.tui.tabs.tab import Tab
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line, cut_middle, draw_bar, fit, line_text, line_width, text_line, wrap
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.sites import select_sites
from explorer.tui.tree.table import choose_look, place_columns
from explorer.tui.tree.widget import draw_table_line
from explorer.tui.widgets.line_view import LIST_KEYS
from explorer.tui.widgets.plot_view import PLOT_KEYS
from explorer.tui.widgets.status_line import job_line
from tests.tui.scripted import ScriptedEngine, alexnet, blocks, plan, proof

WIDTHS = (30, 37, 60, 100)
ONE = Range("SAME", "SAME", 1, (("SAME", 66),))


def drawn_row(model: TreeModel, row: int, totals: Totals, width: int, *, exact: bool = False) -> Line:
    laid = place_columns(model, width, exact=exact)
    return draw_table_line(model, row, laid, choose_look(totals, exact=exact))


def said(lines: object) -> str:
    return "\n".join(line_text(line) for line in lines)  # type: ignore[attr-defined]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("exact", [False, True])
def test_no_page_is_wider_than_its_pane(width: int, exact: bool) -> None:
    model = alexnet()
    totals = model.info.totals
    pages = [(layer_page((layer,), totals, width, exact), width) for layer in model.layers]
    pages += [(model_page(model.info, None, width, exact), width), (help_lines(width), width)]
    pages += [(draw(plan_matmuls(plan(TileSpec())), 60), 60), (verdict_lines(proof(), 60), 60)]
    pages += [(list(header_lines("a/long/name.onnx", model.info, "not saved", exact, 80)), 80)]
    rows = TreeModel(model.layers)
    pages += [([drawn_row(rows, row, totals, width, exact=exact) for row in rows.rows], width)]
    for entry in diff_entries(ScriptedEngine()._diff(), exact):
        pages.append(([entry.head(width), *(entry.body(width) if entry.body else ())], width))
    for page, room in pages:
        for line in page:
            assert line_width(line) <= room, line


@pytest.mark.sampled(8)
@pytest.mark.parametrize("width", [30, *range(34, 70)])
@pytest.mark.parametrize("exact", [False, True])
def test_no_figure_lies_under_the_scroll_bar(width: int, exact: bool) -> None:
    model = alexnet()
    rows = TreeModel(model.layers)
    pages = [layer_page((model.layers[1],), model.info.totals, width, exact)]
    pages += [model_page(model.info, None, width, exact)]
    pages += [[drawn_row(rows, row, model.info.totals, width, exact=exact) for row in rows.rows]]
    pages += [[entry.head(width) for entry in diff_entries(ScriptedEngine()._diff(), exact)]]
    pages += [
        [entry.head(width) for entry in operator_entries(model.info, ScriptedEngine()._ops(), "macs", exact)]
    ]
    for page in pages:
        for line in page:
            assert line_width(text_line(line_text(line).rstrip())) < width, line_text(line)


def test_a_long_name_does_not_run_into_the_kind() -> None:
    model = alexnet()
    first = replace(model.layers[1], parent=None, depth=0, name="x" * 200, kind="Conv", group=False)
    line = line_text(drawn_row(TreeModel((first,)), 0, model.info.totals, 80, exact=False))
    assert " Conv " in line


def test_a_layer_shows_shapes_with_names_and_dtypes_its_formula_and_its_share() -> None:
    model = alexnet()
    page = said(layer_page((model.layers[1],), model.info.totals, 60, exact=True))
    for words in (
        "features.0", "Conv", "70,276,800", "9.8 %", "1 × 64 × 55·55 × 3 × 11·11", "23,296", "93,184 B",
        "input", "float32  [1, 3, 224, 224]", "features.0.weight", "[64, 3, 11, 11]",
        "kernel_shape", "[11, 11]",
    ):  # fmt: skip
        assert words in page, words


def test_what_is_unknown_is_a_question_mark_with_its_reason() -> None:
    model = blocks()
    page = said(layer_page((model.layers[-1],), model.info.totals, 50, exact=False))
    assert "no rule for Mystery" in page
    assert "?" in page


def test_text_of_a_model_cannot_move_the_cursor_or_be_markup() -> None:
    model = blocks()
    rows = TreeModel(model.layers)
    line = line_text(drawn_row(rows, rows.rows[-1], model.info.totals, 80, exact=False))
    assert "\x1b" not in line
    assert "od\\x1b[2J[bold red]d" in line


def test_names_of_deep_layers_can_still_be_read_in_a_narrow_pane() -> None:
    model = alexnet()
    chain = tuple(
        replace(model.layers[0], id=i, parent=i - 1 if i else None, depth=i, name=f"level{i}")
        for i in range(7)
    )
    rows = TreeModel(chain)
    for width in (29, 40):
        lines = [line_text(drawn_row(rows, row, model.info.totals, width, exact=False)) for row in range(7)]
        assert all(f"level{i}" in line for i, line in enumerate(lines)), lines
        starts = [line.index("level") for line in lines]
        assert starts == sorted(set(starts))
    wide = [line_text(drawn_row(rows, row, model.info.totals, 100, exact=False)) for row in range(7)]
    assert wide[6].index("level") - wide[5].index("level") == 2


def test_a_run_reads_from_its_first_to_its_last_block() -> None:
    model = blocks()
    rows = TreeModel(model.layers)
    assert "layers.0 … layers.11 ×12" in line_text(
        drawn_row(rows, rows.rows[1], model.info.totals, 100, exact=False)
    )
    page = said(
        layer_page([model.layers[i] for i in rows.members(rows.rows[1])], model.info.totals, 60, False)
    )
    assert "first of 12 identical blocks, to encoder.layers.11" in page


def test_the_header_keeps_every_total_at_80_columns() -> None:
    model = alexnet()
    text = said(header_lines("alexnet.onnx", model.info, "", False, 80))
    for words in (
        "alexnet.onnx",
        "onnx",
        "MACs 714.19 M",
        "params 61.10 M",
        "weights 233.08 MiB",
        "coverage 100 %",
    ):
        assert words in text


def test_a_sum_with_an_unknown_part_is_said_to_be_a_lower_bound() -> None:
    model = blocks()
    group = replace(model.layers[0], status="unknown", reason="1 of 3 below has no known cost")
    whole = replace(model.info.totals, activation_bytes_peak=48)
    page = said(layer_page((group,), whole, 60, exact=False))
    assert "≥ 12.00 k" in page
    assert "params       1.20 k" in page
    rows = TreeModel((group, *model.layers[1:]))
    assert "≥ 12.0 k" in line_text(drawn_row(rows, rows.rows[0], whole, 60))
    info = replace(model.info, totals=whole)
    header = line_text(header_lines("bert.onnx", info, "", False, 120)[1])
    assert "MACs ≥ " in header
    assert "peak ≥ 48 B" in header
    assert "activ. peak  ≥ 48 B" in said(model_page(info, None, 60, exact=False))


def test_a_dimension_that_is_not_bound_says_how_to_bind_it() -> None:
    info = alexnet().info
    free = replace(info.model, inputs=(TensorInfo("ids", "int64", ("batch", "sequence")),))
    page = said(
        model_page(replace(info, model=free, assumptions={"dims": {"batch": 2}}), None, 80, exact=False)
    )
    assert "Some sizes are open: sequence. Press D to set them" in " ".join(page.split())
    assert "--dim" not in page
    assert "--dim" not in said(model_page(info, None, 80, exact=False))


@pytest.mark.parametrize(("status", "sign"), [("bound", "≤ "), ("assumed", "≈ ")])
def test_a_figure_that_is_not_exact_has_its_sign_in_the_header_and_on_the_page(
    status: Reach, sign: str
) -> None:
    info = alexnet().info
    doubted = replace(info, totals=replace(info.totals, status=status))
    macs = units.count_text(info.totals.macs)
    header = "".join(span for line in header_lines("x", doubted, "", False, 100) for span, _ in line)
    assert f"MACs {sign}{macs}" in header
    page = said(model_page(doubted, None, 80, exact=False))
    assert f"{sign}{macs}" in page
    assert "the cost of each node is known" not in page


def test_coverage_never_rounds_up_to_all() -> None:
    assert units.format_coverage(0.99999) == "99.9 %"
    assert units.format_coverage(1.0) == "100 %"
    assert units.format_coverage(None) == "?"


def test_a_plan_says_how_many_products_where_and_what_is_left_alone_why() -> None:
    text = said(draw(plan_matmuls(plan(TileSpec())), 90))
    for words in (
        "14,336",
        "1  9,216  4,096",
        "1.6 %",
        "both operands are activations",
    ):
        assert words in text


def test_the_products_of_an_lstm_lie_in_it() -> None:
    lstm = Layer(0, None, "/l/LSTM", "LSTM", "LSTM", 0, False)
    part, nested, other = (
        replace(plan(TileSpec()).sites[0], name=name, output=name)
        for name in (
            "/l/LSTM/forward/input",
            "/l/LSTM/forward/steps.body/step/hidden",
            "/l/LSTM_1/forward/input",
        )
    )
    assert select_sites([lstm], [part, nested, other]) == [part, nested]


def test_a_verdict_is_words_first_and_figures_after() -> None:
    text = said(verdict_lines(proof(), 76))
    assert "\n Equal\n" in text
    for words in ("4.1e-09", "9,216", "0.41 u, limit 8 u", "seeds 0, 1, 2"):
        assert words in text
    assert "37 new NaN" in said(verdict_lines(proof(False), 76))


@pytest.mark.parametrize("kind", VERDICTS)
def test_a_verdict_stands_in_large_letters_where_there_is_room_and_fits_everywhere(kind: VerdictKind) -> None:
    fact = replace(proof(kind in ("equal", "evidence")), verdict_kind=kind)
    for width in (30, 40, 60, 76, 88):
        lines = verdict_lines(fact, width)
        assert all(line_width(line) <= width for line in lines)
        large = [line for line in lines if set(line_text(line)) <= set(" ▀▄█") and line]
        assert [role for line in large for _, role in line] == [verdict_tone(kind)] * len(large)
        assert len(large) in (0, 3)
    assert large, "88 cells are enough for each of the five"


def test_three_facts_stand_above_the_evidence_and_a_bar_leads_to_each_limit() -> None:
    text = said(verdict_lines(proof(), 100))
    facts = text.split(" Equal\n")[0]
    assert "14,336 tile matmuls" in facts
    assert "5.1 % of the limit" in facts, "0.41 u of 8 u"
    assert "seeds 0, 1, 2" in facts
    assert "▌·········" in text.split("to the limit")[1]
    site = replace(proof().sites[0], bound_ratio=16.0, passed=False)
    over = said(verdict_lines(replace(proof(), sites=(site,), passed=False, verdict_kind="different"), 100))
    assert "200.0 % of the limit" in over
    assert "██████████" in over
    far = replace(
        proof(), sites=(replace(site, bound_ratio=80_000.0),), passed=False, verdict_kind="different"
    )
    assert "10,000 times the limit" in said(verdict_lines(far, 100))


def test_a_tiled_site_is_one_row_of_the_diff_that_opens() -> None:
    entries = diff_entries(ScriptedEngine()._diff(), exact=False)
    row = next(e for e in entries if "9,216 tile matmuls" in line_text(e.head(90)))
    assert row.body is not None
    assert "2DMM_64x64x64" in said(row.body(90))
    assert summarize_changes(ScriptedEngine()._diff()) == "3 tiled, nothing else changed"


@pytest.mark.parametrize("width", [40, 60, 90])
def test_tiled_convolutions_are_told_apart_in_the_narrowest_diff(width: int) -> None:
    names = [f"/layer{i}/layer{i}.{j}/conv{k}/Conv" for i in (1, 2, 3) for j in (0, 1) for k in (1, 2)]
    nodes = tuple(
        NodeDiff(
            "tiled", n, n, "Conv -> 441 products", "Conv", "2DMM_64x64x64", "name", 1.0, became="441 products"
        )
        for n in names
    )
    entries = diff_entries(replace(ScriptedEngine()._diff(), nodes=nodes), exact=False)
    rows = [
        line_text(entry.head(width))
        for entry in entries
        if "441" in line_text(entry.head(width)) and "matmuls" in line_text(entry.head(width))
    ]
    assert len(set(rows)) == len(names)


def test_a_cost_that_is_partly_unknown_is_a_lower_bound_and_its_change_unknown() -> None:
    change = ScriptedEngine()._diff()
    partly = replace(change, totals_before=replace(change.totals_before, coverage=0.5))
    lines = [line_text(entry.head(80)) for entry in diff_entries(partly, exact=False)]
    moved = next(line for line in lines if line.startswith(" reads"))
    assert "≥" in moved
    assert moved.rstrip().endswith("?")
    assert "≥" not in next(line for line in lines if line.startswith(" params"))


def test_models_that_differ_in_names_alone_are_equal_and_the_names_are_there() -> None:
    diff = ScriptedEngine()._diff()
    renamed = tuple(replace(node, status="renamed", children=()) for node in diff.nodes)
    assert (
        summarize_changes(replace(diff, equal=True, nodes=renamed))
        == "equal: only names inside the graph differ"
    )
    assert summarize_changes(replace(diff, equal=True, nodes=())) == "identical: no node differs"


@pytest.mark.parametrize("width", [36, 50, 70])
def test_a_cost_shows_its_change_beside_before_and_after(width: int) -> None:
    lines = [line_text(entry.head(width)) for entry in diff_entries(ScriptedEngine()._diff(), exact=False)]
    assert any(line.startswith(" MACs") and line.endswith("same") for line in lines)
    assert any("peak" in line and "%" in line for line in lines)


def test_a_job_says_what_it_does_how_far_it_is_and_that_there_is_one_at_a_time() -> None:
    counted = job_line("tiling", Progress("proving", 3, 14), 61.7, 80, refused=False)
    assert line_text(counted).startswith(" tiling · proving ")
    assert "3/14" in line_text(counted)
    assert line_text(counted).endswith("1 min 01 s  Esc stops ")
    measured = line_text(
        job_line("tiling", Progress("writing", 150_000_000, 200_000_000), 2.9, 80, refused=False)
    )
    assert "75%" in measured
    assert " 2 s " in measured
    for width in (30, 60, 80, 140):
        refused = line_text(job_line("opening", Progress("opening"), 0.2, width, refused=True))
        assert refused.startswith(" opening  ")
        assert "runs" in refused
        assert "Esc" in refused
        assert cell_len(refused) <= width


def test_sites_are_found_by_output_or_by_the_scope_in_their_name() -> None:
    model = alexnet()
    sites = plan(TileSpec()).sites
    gemm = next(x for x in model.layers if x.path == "classifier.4")
    assert [s.name for s in select_sites([gemm], sites)] == ["classifier.4"]
    exported = SitePlan(
        "/classifier/classifier.4/Gemm", "Gemm", 1, 1, 1, (1, 1, 1), 1, 1.0, "lab", "ragged", "x"
    )
    other = SitePlan(
        "/classifier/classifier.41/Gemm", "Gemm", 1, 1, 1, (1, 1, 1), 1, 1.0, "lab", "ragged", "y"
    )
    assert select_sites([gemm], [exported, other]) == [exported]
    assert select_sites([model.layers[1]], [exported]) == []
    # every module calls what it makes "output": that name says nothing
    module = Layer(
        0, None, "features.3", "3", "Conv2d", 0, False, outputs=(TensorInfo("output", "float32", (1,)),)
    )
    last = SitePlan("/classifier/6/Gemm", "Gemm", 1, 1, 1, (1, 1, 1), 1, 1.0, "lab", "ragged", "output")
    assert select_sites([module], [last], is_graph=False) == []


def test_a_range_shows_its_ends() -> None:
    ranges = {
        "kernel": Range((3, 3), (11, 11), 3, (((3, 3), 3),)),
        "group": Range(1, 1, 1, ((1, 5),)),
        "pad": Range(None, None, 2, (("same", 3), ("valid", 1))),
    }
    page = said(draw(attribute_blocks(OpStat("Conv", 5, 1, 1, 0, ranges)), 60))
    assert re.search(r"kernel +\[3, 3\] .. \[11, 11\]", page)
    assert re.search(r"group +1\n", page)
    assert re.search(r"pad +2 values", page)


@pytest.mark.parametrize("width", WIDTHS[1:])
def test_operators_are_a_histogram_that_opens_to_one_of_every_attribute(width: int) -> None:
    values = tuple((n, 12 - n) for n in range(10))
    stat = OpStat("Conv", 66, 10**9, 5, 0, {"group": Range(0, 11, 12, values), "auto_pad": ONE})
    head, row = operator_entries(alexnet().info, (stat,), "count", exact=False)
    assert row.body is not None
    page = [head.head(width), row.head(width), *row.body(width)]
    assert all(line_width(line) <= width for line in page)
    text = said(page)
    for words in ("count", "66", "1.00 G", "0 .. 11", "SAME", "4 more values"):
        assert words in text, words
    # the commonest value has the longest bar, and its count beside it
    bars = [
        line_text(line).count("█")
        for line in row.body(100)
        if re.search(r" 12  0$", line_text(line).rstrip())
    ]
    assert bars
    assert bars[0] == max(line_text(line).count("█") for line in row.body(100))


def test_no_part_of_the_activations_is_above_the_whole_where_functional_operators_put_out_more() -> None:
    model = alexnet()
    totals = replace(model.info.totals, activation_bytes_sum=1_000, activation_bytes_functional=3_000)
    layer = replace(model.layers[0], activation_bytes=2_000, counted=True)
    line = next(
        text for text in map(line_text, layer_page((layer,), totals, 80, False)) if "Activations" in text
    )
    assert line.split()[-2:] == ["50.0", "%"]


@pytest.mark.parametrize("width", [38, 48, 58, 90])
def test_an_operators_name_is_whole_before_figures_stand_beside_it(width: int) -> None:
    found = [OpStat(op, 25, 3_380_000, 38_140, 0, {}) for op in ("BatchNormalization", "GlobalAveragePool")]
    entries = operator_entries(alexnet().info, found, "macs", exact=False)
    page = said([entry.head(width) for entry in entries])
    assert "BatchNormalization" in page
    assert "GlobalAveragePool" in page


@pytest.mark.parametrize("by", ["macs", "count", "params", "elementwise_ops", ""])
def test_operators_have_bars_only_left_of_the_figure_by_which_they_are_sorted(by: str) -> None:
    stats = (OpStat("Conv", 3, 8_000, 70, 40, {}), OpStat("Gemm", 6, 4_000, 140, 20, {}))
    entries = operator_entries(alexnet().info, stats, by, exact=False)
    lines = [line_text(entry.head(90)) for entry in entries[1:]]
    figures = {"macs": ("8.00 k", "4.00 k"), "count": ("3", "6"), "params": ("70", "140")}
    figures["elementwise_ops"] = ("40", "20")
    assert sum("█" in line for line in lines) == (2 if by else 0)
    if by:
        drawn = [re.search(r"(█+▌?) +(\S+(?: k)?)", line) for line in lines]
        assert [match and match[2] for match in drawn] == [*figures[by]]
        bars = [len(match[1]) for match in drawn if match]
        values = [getattr(stat, by) for stat in stats]
        assert (bars[0] > bars[1]) == (values[0] > values[1])


def test_bars_grow_in_eighths_and_never_hide_what_is_there() -> None:
    assert draw_bar(0.0, 8)[0][0] == ""
    assert draw_bar(1e-9, 8)[0][0] == "▏"
    assert draw_bar(0.5, 8)[0][0] == "████"
    assert draw_bar(2.0, 8)[0][0] == "████████"


def test_text_is_cut_to_its_cells() -> None:
    assert fit("features", 5) == "feat…"
    assert fit("名前", 3) == "名…"
    assert cut_middle("/a/long/path/Conv", 9) == "/a/l…Conv"
    assert [line_text(x) for x in wrap((("one two three", "text"),), 9, 2)] == ["one two ", "  three"]
    figures = "7.25 MiB of 1,204 layers, 12.5 % in 3 s"
    for width in range(12, 40):
        lines = [line_text(x).strip() for x in wrap(((f"  {figures}", "text"),), width, 2)]
        assert width < 16 or not any(line[-1].isdigit() for line in lines), "a unit stays with its number"
        assert " ".join(lines) == figures
    assert all(line_width(x) <= 10 for x in wrap((("x" * 35, "text"),), 10, 2))
    assert "".join(line_text(x).strip() for x in wrap((("x" * 35, "text"),), 10, 2)) == "x" * 35


def test_every_key_is_told_once_and_means_one_thing() -> None:
    for table in (
        COMMANDS,
        LIST_KEYS,
        PLOT_KEYS,
        TILE_KEYS,
        HISTORY_KEYS,
        SWEEP_KEYS,
        SENSITIVITY_KEYS,
        BLAME_KEYS,
    ):
        keys = [key for c in table for key in c.keys]
        assert len(keys) == len(set(keys))
    assert len({c.id for c in COMMANDS}) == len(COMMANDS)
    text = said(help_lines(100))
    assert all(c.title in text and c.shown in text for c in KEYS)


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.id)
def test_every_line_of_the_registry_leads_to_what_it_names(command: CommandKey) -> None:
    assert command.runs == "app" or callable(find_command(command.id))


@pytest.mark.parametrize("tab", TABS, ids=lambda tab: tab.id)
def test_every_tab_has_its_class(tab: TabKey) -> None:
    assert issubclass(tab_class(tab), Tab)


def test_those_who_watch_the_store_are_told_once_and_of_nothing_else() -> None:
    store, told = ScreenStore("model.onnx", ScriptedEngine()), []
    store.watch(lambda: told.append("head"), "model", "history")
    store.watch(lambda: told.append("page"), "model")
    store.notify("history", "model")
    assert told == ["head", "page"]
    store.say("done")
    assert told == ["head", "page"]
    assert store.message == "done"


def test_no_key_is_one_that_terminals_take() -> None:
    taken = {f"ctrl+{k}" for k in "abshijmcz"} | {f"f{i}" for i in range(1, 13)}
    assert not taken & {key for c in KEYS for key in c.keys}
    assert not [key for c in KEYS for key in c.keys if key.startswith("alt+")]


@pytest.mark.parametrize("on_show", [tab.id for tab in TABS])
def test_each_tab_keeps_a_name_in_a_heading_of_32_cells(on_show: str) -> None:
    text = line_text(tab_head(TABS, on_show, 32, focused=True))
    assert [tab.short for tab in TABS if tab.short[:3] not in text] == []


@pytest.mark.sampled(6)
@pytest.mark.parametrize("width", [29, 39, 46, 59, 100])
@pytest.mark.parametrize("on_show", [tab.id for tab in TABS])
def test_the_tabs_fit_their_heading_and_answer_to_a_click(width: int, on_show: str) -> None:
    text = line_text(tab_head(TABS, on_show, width, focused=True))
    assert len(text) <= width
    chosen = next(tab for tab in TABS if tab.id == on_show)
    assert chosen.short in text or chosen.title in text
    for tab in TABS:
        assert tab_at(TABS, on_show, text.index(tab.key), width) == tab.id
    assert tab_at(TABS, on_show, width + 40, width) is None
