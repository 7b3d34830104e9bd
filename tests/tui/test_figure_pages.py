"""What the Memory and Roofline tabs and the parts computed on demand say, without a terminal."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer.base.units import rate_text
from explorer.facts import TensorInfo
from explorer.facts.memory import Lifetime, Memory, MemoryStep
from explorer.facts.profile.points import MeasuredPoint
from explorer.facts.roofline import Machine
from explorer.facts.values import Activations, Histogram, TensorStats, Weights
from explorer.features.training.training_page import step_blocks
from explorer.features.training.training_words import build_layer_fields
from explorer.features.values.values_page import activation_lines, weight_lines
from explorer.report.blocks import Column, Table
from explorer.report.present.figures import size
from explorer.report.present.look.info import build_tensor_blocks
from explorer.tui.tabs.memory import draw_memory_page, find_step, find_step_at, is_stacked_by_default
from explorer.tui.tabs.model import model_page
from explorer.tui.tabs.roofline import draw_roofline_page, find_point_at, find_points, rank_points
from explorer.tui.tabs.roofline_plot import draw_roof_plot
from explorer.tui.text.drawing import draw
from explorer.tui.text.lines import Line, flow_pieces, line_text, line_width
from explorer.tui.text.plot import draw_area, draw_axes, find_columns, log_ticks, part_names
from tests.tui.scripted import ScriptedEngine, alexnet, blocks, memory, roofline, training

MACHINE = Machine("laptop", 4e12, 100e9)
SIZES = ((29, 9), (37, 19), (60, 34), (100, 50))


def said(lines: object) -> str:
    return "\n".join(line_text(line) for line in lines)  # type: ignore[attr-defined]


def words(lines: object) -> str:
    """The same with its line breaks undone."""
    return " ".join(said(lines).split())


def chain(*sizes: int) -> Memory:
    """A chain of layers: each tensor is written by one step and read by the next."""
    lives = tuple(
        Lifetime(TensorInfo(f"t{i}", "float32", (size,)), size, i, min(i + 1, len(sizes) - 1), 0)
        for i, size in enumerate(sizes)
    )
    live = [sum(x.bytes for x in lives if x.born <= i <= x.dies) for i in range(len(sizes))]
    steps = tuple(
        MemoryStep(f"l{i}" if i else "", "Op", live[i], i if i else None) for i in range(len(sizes))
    )
    return Memory(steps, lives, sum(sizes), max(live), live.index(max(live)), max(live), 7)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("width", "height"), SIZES)
@pytest.mark.parametrize("exact", [False, True])
def test_no_page_is_wider_than_its_pane(width: int, height: int, exact: bool) -> None:
    model = alexnet()
    fact, roof, step = memory(model), roofline(model, MACHINE), training(model, 8, "adam")
    shown = rank_points(roof)
    pages: list[list[Line]] = []
    for at in (0, 3, 12):
        pages.append(draw_memory_page(fact, at, width, height, exact))
        pages.append(draw_roofline_page(shown, at, [at], width, height))
    engine = ScriptedEngine(model)
    weights, ran = engine._weights(["features.*"]), engine._activations(["features.0"])
    pages.append(model_page(model.info, None, width, exact, step_blocks(model.info, step)))
    pages.append(draw(build_layer_fields(step, 0, 10), width, exact))
    pages += [weight_lines(weights, 99, width, exact), activation_lines(ran, 99, width, exact)]
    few = replace(weights, tensors=weights.tensors[:2])
    pages.append(weight_lines(few, 2, width, exact))
    for page in pages:
        for line in page:
            assert line_width(line) <= width, line_text(line)


def test_memory_tells_peak_arena_buffers_and_who_is_alive_largest_first() -> None:
    fact = chain(100, 300, 200, 50)
    page = draw_memory_page(fact, 2, 60, 34, exact=True)
    text = words(page)
    for figure in ("peak 500 B", "arena 500 B", "sum of buffers 650 B", "weights 7 B"):
        assert figure in text, figure
    assert "Step 2 of 0 .. 3 l2 Op" in text
    assert "500 B live: this is the peak" in text
    rows = [line_text(line).split() for line in page if line_text(line).startswith("  ◆  t")]
    assert [row[1] for row in rows] == ["t1", "t2"]
    assert rows[0][-3:] == ["1", "..", "2"]


@pytest.mark.parametrize("width", [40, 48, 60, 100])
def test_a_step_has_one_line_whatever_its_path_is(width: int) -> None:
    fact = chain(*range(100, 400))
    path = "/backbone/stage_2/block_{}/attention/projection/{}"
    kinds = ("MatMul", "GlobalAveragePool", "LayerNormalization")
    steps = [
        replace(step, path=path.format(at, kinds[at % 3]) if at else "", kind=kinds[at % 3] if at else "")
        for at, step in enumerate(fact.steps)
    ]
    fact = replace(fact, steps=tuple(steps))
    shown = set[str]()
    for at in (100, 101, 102, 200, 299):
        page = [line_text(line).strip() for line in draw_memory_page(fact, at, width, 18, exact=False)]
        (index,) = [index for index, line in enumerate(page) if line.startswith(f"Step {at}")]
        assert " live" in page[index + 1]
        assert f"_{at}" in page[index] or f"…{at}" in page[index], page[index]
        shown.add(page[index].removeprefix(f"Step {at}"))
    assert len(shown) == 5


def test_away_from_the_peak_only_its_culprits_are_marked() -> None:
    fact = chain(100, 300, 200, 50)
    text = said(draw_memory_page(fact, 1, 60, 34, exact=True))
    assert "as much" not in text
    assert "live: as much as at the peak" in said(
        draw_memory_page(chain(100, 100, 100), 2, 60, 34, exact=True)
    )
    assert " ◆  t1" in text
    assert " ◆  t0" not in text
    assert "400 B live, 80.0 % of the peak" in text
    assert "live at the peak, step 2" in text
    assert "◆" not in said(draw_memory_page(fact, 0, 60, 34, exact=True))


def test_a_bound_says_that_it_is_one() -> None:
    fact = replace(chain(1, 2), status="unknown", reason="2 tensors were left out")
    assert "peak ≥ 3 B" in words(draw_memory_page(fact, 0, 60, 34, exact=True))
    assert "2 tensors were left out" in words(draw_memory_page(fact, 0, 60, 34, exact=True))
    bound = replace(fact, status="bound", reason="nonzero")
    assert "peak ≤ 3 B" in words(draw_memory_page(bound, 0, 60, 34, exact=True))
    assumed = replace(bound, reason="assumed: a value taken as 1", assumed=True)
    page = words(draw_memory_page(assumed, 0, 60, 34, exact=True))
    assert "peak ≈ 3 B" in page
    assert "assumed: a value taken as 1" in page
    assert "bound: assumed" not in page


def test_a_model_that_runs_nothing_has_no_timeline() -> None:
    nothing = Memory((), (), 0, 0, 0, 0, 0)
    assert "Nothing runs" in said(draw_memory_page(nothing, 0, 60, 34, exact=False))


def test_the_timeline_reaches_its_top_at_the_peak_and_shows_the_cursor() -> None:
    fact = chain(*([10] * 40), 90, *([10] * 59))
    page = draw_memory_page(fact, 40, 80, 34, exact=False)
    top = next(line for line in page if "┤" in line_text(line))
    peaks = [x for x, cell in enumerate(line_text(top)) if cell not in " ┤100B│"]
    assert peaks
    accents = [piece for piece, role in top if role == "accent" and piece.strip()]
    assert accents
    mark = next(line_text(line) for line in page if "▲" in line_text(line))
    assert peaks[0] - 1 <= mark.index("▲") <= peaks[-1] + 1


def test_many_tensors_are_capped_and_counted() -> None:
    tensor = TensorInfo("t", "float32", (1,))
    fact = Memory((MemoryStep("", "", 300),), (Lifetime(tensor, 1, 0, 0, 0),) * 300, 300, 300, 0, 300, 0)
    assert "200 of 300 tensors" in said(draw_memory_page(fact, 0, 60, 34, exact=False))


@pytest.mark.parametrize(
    "names",
    [
        [f"cache of blocks.{i}.scaled_dot_product_attention" for i in range(6)],
        [f"/encoder/layer.0/attention/self/value/MatMul_output_{i}" for i in range(6)],
        [f"/model/layers.{i}/self_attn/rotary_emb/output_{9 - i}" for i in range(6)],
    ],
)
def test_tensors_whose_names_are_cut_can_still_be_told_apart(names: list[str]) -> None:
    lives = tuple(Lifetime(TensorInfo(name, "float32", (1,)), 4, 0, 0, 0) for name in names)
    page = draw_memory_page(
        Memory((MemoryStep("", "", 24),), lives, 24, 24, 0, 24, 0), 0, 50, 34, exact=False
    )
    rows = [text for text in map(line_text, page) if text.lstrip().startswith("◆ ") and "live at" not in text]
    assert len(set(rows)) == len(names)


def test_a_layer_is_found_on_the_timeline_and_a_group_by_its_first_step() -> None:
    fact = memory(alexnet())
    assert fact.steps[find_step(fact, 3, 3) or 0].path == "features.3"
    assert find_step(fact, 0, 10) == 1
    assert find_step(fact, 99, 99) is None


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_click_on_the_timeline_finds_the_step_drawn_there(width: int, height: int) -> None:
    fact = memory(alexnet())
    for at in range(len(fact.steps)):
        page = draw_memory_page(fact, at, width, height, exact=False)
        y, line = next((y, line_text(x)) for y, x in enumerate(page) if "▲" in line_text(x))
        found = find_step_at(fact, (line.index("▲"), y - 2), width, height, False)
        assert found is not None
        # where steps share a column the click finds one of them
        assert abs(found - at) <= (width < 30)
        assert find_step_at(fact, (line.index("▲"), y + 2), width, height, False) is None
        assert find_step_at(fact, (0, y), width, height, False) is None


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_click_on_the_list_finds_the_layer_written_there(width: int, height: int) -> None:
    shown = rank_points(roofline(alexnet(), MACHINE))
    for at, chosen in ((0, [0]), (5, [5, 6]), (12, [12])):
        page = draw_roofline_page(shown, at, chosen, width, height)
        top = next(y for y, line in enumerate(page) if line_text(line).startswith("   layer"))
        assert find_point_at(shown, at, chosen, top, width, height) is None
        for y in range(top + 1, len(page)):
            found = find_point_at(shown, at, chosen, y, width, height)
            assert found is not None
            assert shown.points[found].path[-3:] in line_text(page[y])


@pytest.mark.parametrize(("width", "height"), [(58, 10), (38, 19), (30, 14)])
def test_in_a_small_pane_the_machine_and_the_longest_layers_are_on_show_without_scrolling(
    width: int, height: int
) -> None:
    shown = rank_points(roofline(alexnet(), MACHINE))
    text = [line_text(line) for line in draw_roofline_page(shown, 0, [0, 1], width, height)]
    assert len(text) <= height
    said = " ".join(text[:4])
    for figure in (MACHINE.name, rate_text(MACHINE.peak_macs, "MAC/s"), rate_text(MACHINE.bandwidth, "B/s")):
        assert figure in said
    assert sum(line.startswith(" ◆") for line in text) == 2


def test_the_roofline_tells_what_bounds_each_layer_longest_first() -> None:
    roof = roofline(alexnet(), MACHINE)
    shown = rank_points(roof)
    assert [p.seconds for p in shown.points] == sorted((p.seconds or 0 for p in shown.points), reverse=True)
    text = words(draw_roofline_page(shown, 0, [0], 100, 50))
    for figure in (
        "laptop: 4.00 TMAC/s, 100.00 GB/s",
        "Ridge 80.0 FLOPs/byte",
        "Compute-bound layers 2",
        "Memory-bound layers 11",
    ):
        assert figure in text, figure
    # 37.75 M MACs need 9 us, 144 MiB of weights at 100 GB/s 1.5 ms: classifier.1 waits for memory
    first = next(
        line_text(x) for x in draw_roofline_page(shown, 0, [0], 100, 50) if " ◆ class" in line_text(x)
    )
    assert first.split()[1] == "classifier.1"
    assert "1.5 ms" in first
    assert "memory" in first.split()
    relu = next(i for i, p in enumerate(shown.points) if p.kind == "Relu")
    assert "this layer has no MACs" in said(draw_roofline_page(shown, relu, [relu], 100, 50))


def test_a_group_under_the_cursor_has_no_macs_only_if_none_of_its_layers_has_any() -> None:
    shown = rank_points(roofline(alexnet(), MACHINE))
    relus = [i for i, p in enumerate(shown.points) if p.kind == "Relu"]
    conv = next(i for i, p in enumerate(shown.points) if p.kind == "Conv")
    mixed = said(draw_roofline_page(shown, relus[0], [relus[0], conv], 100, 50))
    assert "MACs" not in mixed.split("by time")[0].split("FLOPs/s over")[-1].split("layers chosen")[0]
    assert "FLOPs/s over FLOPs a byte" in mixed
    assert "these layers have no MACs" in said(draw_roofline_page(shown, relus[0], relus, 100, 50))


def test_times_that_nobody_knows_are_no_zeros() -> None:
    roof = roofline(alexnet(), MACHINE)
    points = tuple(replace(p, seconds=None, intensity=None, limit="unknown") for p in roof.points)
    roof = replace(roof, points=points, seconds=None, compute_seconds=None, memory_seconds=None, coverage=0.0)
    text = words(draw_roofline_page(rank_points(roof), 0, [0, 1], 100, 50))
    assert "0 ms" not in text
    for figure in ("Least time ?", "full rate ?", "full bandwidth ?", "2 layers chosen: ?, ?"):
        assert figure in text, figure
    some = words(
        draw_roofline_page(rank_points(replace(roofline(alexnet(), MACHINE), coverage=0.5)), 0, [0], 100, 50)
    )
    assert some.count("≥") == 3, "each is a sum of the known part"


def test_the_cursor_of_the_roofline_stays_in_view() -> None:
    roof = roofline(alexnet(), MACHINE)
    shown = rank_points(roof)
    for at in range(len(shown.points)):
        page = draw_roofline_page(shown, at, [at], 60, 19)
        assert len(page) <= 19
        rows = [line_text(line) for line in page if line_text(line).startswith(" ◆ ")]
        assert rows
        assert shown.points[at].path in rows[0]
        assert f"{at + 1} of {len(shown.points)} by time" in said(page)
        drawn = [
            span for line in page if line_text(line).lstrip(" 0123456789.,")[:1] in "│┤" for span in line
        ]
        assert drawn.count(("◆", "accent")) == (shown.intensity_steps[at] is not None)


def test_layers_of_a_group_are_chosen_together_with_their_share() -> None:
    roof = roofline(alexnet(), MACHINE)
    shown = rank_points(roof)
    chosen = find_points(shown.points, 0, 10)
    assert len(chosen) == 10
    assert "10 layers chosen: 210 µs, 8.2 %" in said(draw_roofline_page(shown, chosen[0], chosen, 100, 50))


def test_unknown_layers_lower_what_the_roofline_claims() -> None:
    roof = roofline(blocks(), MACHINE)
    text = words(draw_roofline_page(rank_points(roof), 0, [0], 100, 50))
    assert "Unknown 1" in text
    assert "Least time ≥" in text
    assert "\x1b" not in text
    assert rank_points(roof).points[-1].seconds is None


def test_a_machine_that_no_layer_loads_still_draws_its_roof() -> None:
    nothing = replace(roofline(alexnet(), MACHINE), points=(), seconds=0.0)
    assert "No layer takes time" in said(draw_roofline_page(rank_points(nothing), 0, [], 60, 34))


def stats(count: int = 4, **more: object) -> TensorStats:
    base = TensorStats(
        TensorInfo("w", "float32", (2, 2)), "fc", count, 4 * count, -1.5, 2.5, 0.25, 1.0, 0.25, 0, 0,
        ((0.5, 0.125),), True, Histogram((-1.5, 0.5, 2.5), (3, 1)),
    )  # fmt: skip
    return replace(base, **more)  # type: ignore[arg-type]


def test_the_values_of_a_tensor_are_told_in_full_with_a_histogram() -> None:
    text = words(
        weight_lines(Weights("m", (stats(),), notes=("random weights, seed 0",)), 1, 60, exact=False)
    )
    for figure in (
        "w float32 [2, 2]", "min -1.5", "max 2.5", "mean 0.25", "std 1", "zeros 25.0 %", "count 4",
        "50 % 0.125", "random weights, seed 0",
    ):  # fmt: skip
        assert figure in text, figure
    assert "█" in text
    read_off = weight_lines(Weights("m", (stats(quantiles_exact=False),)), 1, 60, exact=False)
    assert "50 % ≈ 0.125" in words(read_off)


@pytest.mark.parametrize("width", [24, 29, 38, 60])
def test_no_figure_of_a_tensor_is_cut_however_narrow_the_page(width: int) -> None:
    odd = stats(61_100_840, minimum=-1.234e-05, maximum=-0.8634, mean=-1.234e-12, std=1.235e-05)
    lines = weight_lines(Weights("m", (odd,)), 1, width, exact=False)
    for figure in ("-1.234e-05", "-0.8634", "-1.234e-12", "1.235e-05", "25.0 %", "61,100,840"):
        assert figure in words(lines), figure
    assert all(line_width(line) <= width for line in lines)


def test_values_that_are_not_finite_are_told_apart() -> None:
    odd = stats(minimum=None, maximum=None, mean=None, std=None, zeros=None, nan=3, inf=1, histogram=None)
    text = words(weight_lines(Weights("m", (odd,)), 1, 60, exact=False))
    assert "3 NaN, 1 Inf: not in the figures" in text
    assert "min - max" in text


def test_the_children_of_a_group_are_compared_in_brief_and_counted() -> None:
    found = Weights("m", tuple(stats(tensor=TensorInfo(f"w{i}", "float32", (2, 2))) for i in range(5)))
    text = said(weight_lines(found, 40, 60, exact=False))
    assert "5 of 40 tensors" in text
    assert "█▃\n min -1.5  max 2.5  mean 0.25  std 1" in text


def test_tied_and_equal_tensors_are_named_and_told_apart() -> None:
    found = Weights("m", (stats(),), tied=(("w", "head.weight"),), duplicates=(("w", "copy"), ("a", "b")))
    text = said(weight_lines(found, 1, 60, exact=False))
    assert "tied: one tensor: w, head.weight" in text
    assert "equal bytes: w, copy" in text
    assert "a, b" not in text


def test_activations_name_their_input_their_calls_and_what_did_not_run() -> None:
    ran = Activations(
        "m", ("x float32 (1, 3): random, seed 0",), (stats(call=1),), skipped=(("gone", "never called"),)
    )
    text = words(activation_lines(ran, 1, 60, exact=False))
    for figure in ("call 2", "x float32 (1, 3): random, seed 0", "not seen gone never called"):
        assert figure in text, figure


def test_training_keeps_its_figures_apart_and_sums_a_group() -> None:
    model = alexnet()
    step = training(model, 2, "momentum")
    text = words(model_page(model.info, None, 60, True, step_blocks(model.info, step)))
    for figure in ("Training: batch 2, momentum", "MACs, forward 1,428,376,960", "Gradients 244,403,360 B"):
        assert figure in text, figure
    part = words(draw(build_layer_fields(step, 0, 10), 60, exact=True))
    assert f"MACs, forward {2 * (model.layers[0].macs or 0):,}" in part
    # the first layer has no gradient of its input
    assert f"MACs, input grad {2 * (655_566_528 - 70_276_800):,}" in part
    assert build_layer_fields(step, 99, 99) == []


def test_an_unknown_layer_makes_the_sum_of_its_group_a_lower_bound() -> None:
    step = training(alexnet(), 1, "sgd")
    hole = replace(step.layers[0], forward_macs=None, status="unknown", reason="no rule")
    part = words(draw(build_layer_fields(replace(step, layers=(hole, *step.layers[1:])), 0, 10), 60))
    assert "MACs, forward ≥ 585.29 M" in part
    assert "no rule" in part


# pictures


def test_the_peak_is_marked_and_named_above_its_column_without_any_colour() -> None:
    fact = chain(*([10] * 40), 90, *([10] * 59))
    page = draw_memory_page(fact, 3, 80, 34, exact=False)
    y, line = next((y, x) for y, x in enumerate(page) if "▼ peak" in line_text(x))
    assert "▼ peak 100 B" in line_text(line)
    under = line_text(page[y + 1])[line_text(line).index("▼")]
    assert under == "█"
    lit = [x for x, (piece, role) in enumerate(page[y + 1]) if role == "warn" and piece.strip()]
    assert lit


def test_the_timeline_stands_on_the_weights_and_says_so() -> None:
    fact = replace(chain(100, 300, 200, 50), weight_bytes=500)
    alone, stacked = (
        [line_text(line) for line in draw_memory_page(fact, 0, 80, 34, False, stacked)]
        for stacked in (False, True)
    )
    assert any("peak 500 B" in line and "with the weights 1000 B" in line for line in stacked)
    close = [line_text(line) for line in draw_memory_page(fact, 0, 40, 34, False, True)]
    assert any("peak 500 B + weights" in line for line in close)
    assert any(line.startswith("1000 B ┤") for line in stacked)
    assert any(line.startswith(" 500 B ┤") for line in stacked), "the top of the weights"
    assert sum("░" in line for line in stacked) == 6
    assert not any("░" in line for line in alone)
    assert any(line.startswith(" 500 B ┤") for line in alone)
    assert is_stacked_by_default(fact)
    assert not is_stacked_by_default(replace(fact, weight_bytes=5000))


def test_the_axis_of_the_timeline_names_the_modules_where_they_begin() -> None:
    page = draw_memory_page(memory(alexnet()), 4, 100, 40, exact=False)
    at = next(y for y, line in enumerate(page) if "▲" in line_text(line))
    assert line_text(page[at + 1]).split() == ["features", "classifier"]
    paths = ["", *(f"layer{i}.{j}.conv" for i in range(3) for j in range(4))]
    assert [name for _, name in part_names(paths, 60)] == ["layer0", "layer1", "layer2"]
    assert [name for _, name in part_names(paths, 130)][:2] == ["layer0.0", "layer0.1"]
    paths = [f"/inception_block_{i}/branch{j}/Conv" for i in range(6) for j in range(4)]
    assert [name for _, name in part_names(paths, 60)] == [f"…block_{i}" for i in range(6)], (
        "cut, but distinguished"
    )
    assert part_names(paths, 30) == [], "too little is left of them"


def test_layers_on_the_roof_are_drawn_by_their_time_and_the_slowest_are_named() -> None:
    shown = rank_points(roofline(alexnet(), MACHINE))
    page = draw_roofline_page(shown, 5, [5], 100, 50)
    text = said(page)
    assert "classifier.1, 2 more" in text
    assert "features.3" in text
    assert "● from 10 %" in text
    picture = [line_text(line) for line in page if line_text(line).lstrip(" 0123456789.,")[:1] in "│┤"]
    assert sum(line.count("●") for line in picture) == 1, "the classifier takes nine tenths"
    assert any("•" in line for line in picture)
    head = next(line_text(line) for line in page if "FLOPs a byte " in line_text(line))
    assert head.split()[0] == "TFLOPs/s"
    ticks = [line.split("┤")[0].strip() for line in picture if "┤" in line]
    assert "1" in ticks
    assert all(set(tick) <= set("0.1,") for tick in ticks), "one unit"


def test_a_curve_shows_the_largest_of_the_values_that_share_a_column() -> None:
    spike = [1.0] * 1000
    spike[500] = 100.0
    rows = draw_area(spike, 20, 4)
    assert sum(cell != " " for cell in line_text(rows[0])) == 1
    assert " " not in line_text(rows[-1])
    assert len(line_text(rows[0]).rstrip()) == 11


def test_each_value_has_columns_and_together_they_are_all() -> None:
    for count in (1, 3, 20, 500):
        covered = [x for i in range(count) for x in find_columns(i, count, 20)]
        assert set(covered) == set(range(20))
        assert max(covered) == 19


def test_words_under_an_axis_neither_overlap_nor_leave_the_plot() -> None:
    lines = draw_axes([((" " * 12, "text"),)], {0: "1 T"}, [(0, "0.1"), (1, "1"), (5, "10"), (11, "100")])
    under = line_text(lines[-1])
    assert under.split() == ["0.1", "10", "100"]
    assert len(under) == len(line_text(lines[-2]))


def test_ticks_are_powers_of_ten_and_never_too_many() -> None:
    assert log_ticks(-1.2, 3.4, 10) == [-1, 0, 1, 2, 3]
    assert log_ticks(0, 9, 3) == [0, 4, 8]
    assert log_ticks(0.2, 0.8, 3) == []


def test_a_figure_that_is_not_exact_stands_under_those_that_are() -> None:
    rows = [(size(1_000_000, ">= "),), (size(2_000_000),)]
    lines = draw([Table((Column("bytes", "right"),), rows)], 40)
    assert len({line_width(line) for line in lines[1:]}) == 1
    assert "≥ 976.56 KiB" in line_text(lines[1])


def test_a_shape_without_room_stands_below_its_tensor_whole() -> None:
    tensors = [TensorInfo("features.10.weight", "float32", (1, 256, 13, 13)), TensorInfo("x", "int8", (1,))]
    lines = [line_text(line).strip() for line in draw(build_tensor_blocks("Outputs", tensors), 37)]
    assert "[1, 256, 13, 13]" in lines
    assert any(line.startswith("x ") and line.endswith("[1]") for line in lines)


def test_figures_beside_each_other_are_never_torn_apart() -> None:
    pieces = [
        (("peak ", "dim"), ("1.31 MiB", "number")),
        (("sum ", "dim"), ("2 MiB", "number")),
        (("x", "dim"),),
    ]
    assert [line_text(line) for line in flow_pieces(pieces, 24)] == [" peak 1.31 MiB", " sum 2 MiB  x"]
    assert [line_text(line) for line in flow_pieces(pieces, 40)] == [" peak 1.31 MiB  sum 2 MiB  x"]
    assert flow_pieces([], 40) == []


@given(
    peak=st.floats(1e-3, 1e24),
    bandwidth=st.floats(1e-3, 1e24),
    width=st.integers(20, 140),
    height=st.integers(1, 60),
    at=st.integers(0, 12),
)
@settings(max_examples=60, deadline=None)
def test_no_machine_however_odd_breaks_the_roofline(
    peak: float, bandwidth: float, width: int, height: int, at: int
) -> None:
    shown = rank_points(roofline(alexnet(), Machine("", peak, bandwidth)))
    page = draw_roofline_page(shown, at, [at], width, height)
    assert max(map(line_width, page)) <= max(width, 29)
    assert any("◆" in line_text(line) for line in page)


@given(
    sizes=st.lists(st.integers(0, 10**12), min_size=1, max_size=300),
    at=st.integers(0, 400),
    width=st.integers(20, 140),
    height=st.integers(1, 60),
)
@settings(max_examples=60, deadline=None)
def test_no_model_however_odd_breaks_the_timeline(sizes: list[int], at: int, width: int, height: int) -> None:
    page = draw_memory_page(chain(*sizes), at, width, height, exact=False)
    assert max(map(line_width, page)) <= max(width, 38)
    assert sum(line_text(line).count("▲") for line in page) == 1


@given(
    counts=st.lists(st.integers(0, 10**9), min_size=1, max_size=64),
    low=st.floats(-1e30, 1e30),
    width=st.integers(20, 140),
)
@settings(max_examples=60, deadline=None)
def test_no_tensor_however_odd_breaks_its_statistics(counts: list[int], low: float, width: int) -> None:
    edges = tuple(low + i for i in range(len(counts) + 1))
    odd = stats(histogram=Histogram(edges, tuple(counts)), minimum=low, maximum=float("-inf"))
    for brief in (False, True):
        page = weight_lines(Weights("m", (odd,)), 1, width, exact=True, brief=brief)
        assert max(map(line_width, page)) <= max(width, 45)


def test_what_was_measured_lies_under_the_roof_with_a_line_to_what_was_predicted() -> None:
    shown = rank_points(roofline(alexnet(), MACHINE))
    first = shown.points[0]
    assert first.intensity
    peak = 2 * MACHINE.peak_macs
    slow = MeasuredPoint(first.layer, first.path, 1000.0, peak / 1e4, peak / 10, 0.5)
    fast = MeasuredPoint(-1, "x", 10.0, peak * 100, None, 0.02)
    plot = [
        line_text(line) for line in draw_roof_plot(replace(shown, measured=(fast, slow)), 0, [0], 100, 24)
    ]
    assert "× predicted" in plot[0]
    column = max(row.rfind("×") for row in plot)
    marks = [row[column] for row in plot if len(row) > column and row[column] in "×│◆"]
    # of the chosen layer a diamond; far above the roof there is room, too
    assert marks[0] == "×"
    assert marks[-1] == "◆"
    assert set(marks[1:-1]) == {"│"}
    assert any("•" in row for row in plot[1:4])
