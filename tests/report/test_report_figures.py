"""What a person reads of memory, time, training, values and comparisons, from facts made by hand."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from explorer.base.units import rate_text, seconds_text
from explorer.facts import Info, ModelInfo, TensorInfo, Totals
from explorer.facts.comparison import (
    Comparison,
    Difference,
    TorchinfoDifference,
    TorchinfoTable,
    build_figure_table,
    collect_model_figures,
)
from explorer.facts.memory import Lifetime, Memory, MemoryStep
from explorer.facts.roofline import Machine, Roofline, RooflinePoint
from explorer.facts.training import LayerTraining, Training
from explorer.facts.values import Activations, Histogram, TensorStats, Weights
from explorer.features.compare import compare_words as compare
from explorer.features.training import training_words as training
from explorer.features.values import weights_words as values
from explorer.report import csv_table
from explorer.report.blocks import Block
from explorer.report.layout import Page
from explorer.report.present.look import memory_words, roofline_words, torchinfo

TOTALS = Totals(3, 10, 10, 40, 100, 200, 5, 64, 64, 100, 50, 1.0)
INFO = Info(ModelInfo("m.onnx", "onnx", (), ()), {"dims": {}}, TOTALS)


def read(blocks: list[Block], width: int | None = None) -> str:
    out = io.StringIO()
    console = Console(file=out, width=width or 1 << 16, highlight=False, markup=False, emoji=False)
    console.print(Page(blocks, fit=width is not None), crop=False, soft_wrap=True)
    return out.getvalue()


def tensor(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name, "float32", shape)


def timeline(steps: int) -> Memory:
    return Memory(
        tuple(MemoryStep(f"layer{at}", "Relu", 64 if at == 3 else 16, at) for at in range(steps)),
        (Lifetime(tensor("big", 12), 48, 2, 3, 0), Lifetime(tensor("small", 4), 16, 3, steps, 48)),
        sum_bytes=64,
        peak_bytes=64,
        peak_step=3,
        arena_bytes=64,
        weight_bytes=40,
    )


def test_the_peak_is_named_with_who_is_alive_there() -> None:
    text = read(memory_words.memory(INFO, timeline(6)))
    assert "step 3, layer3" in text
    assert "no allocator needs less" in text
    alive = text[text.index("live at the peak") :].splitlines()[2:4]
    assert [line.split()[0] for line in alive] == ["big", "small"]
    assert "75.0 %" in alive[0]
    (peak,) = [line for line in text.splitlines() if line.endswith("  peak")]
    assert "layer3" in peak


def test_a_long_timeline_says_how_much_of_it_is_shown() -> None:
    fact = timeline(5_000)
    text = read(memory_words.memory(INFO, fact))
    assert "200 of 5,000 steps" in text
    assert "layer3 " in text
    assert len(text.splitlines()) < 240
    late = replace(fact, peak_step=4_990)
    assert "layer4990" in read(memory_words.memory(INFO, late))


def test_an_arena_above_the_peak_says_by_how_much() -> None:
    text = read(memory_words.memory(INFO, replace(timeline(6), arena_bytes=80)))
    assert "25.0 % above the peak" in text


def test_memory_that_is_partly_unknown_is_a_lower_bound() -> None:
    text = read(
        memory_words.memory(INFO, replace(timeline(6), status="unknown", reason="2 tensors have no size"))
    )
    assert ">= 64 B" in text
    assert "2 tensors have no size" in text


ROOFLINE = Roofline(
    Machine("npu", 4e12, 1e11, "config.toml"),
    80.0,
    (
        RooflinePoint(0, "fast", "Relu", 0, 1000, 0.0, "memory", 1e-8, 0.1),
        RooflinePoint(1, "slow", "Conv", 4 * 10**5, 100, 8000.0, "compute", 9e-8, 0.9),
        RooflinePoint(2, "odd", "Mystery", None, None, None, "unknown", None, 0.0),
    ),
    1e-7,
    1e-7,
    1.1e-8,
    1,
    1,
    1,
    2 / 3,
)


def test_the_roofline_lists_the_slowest_first_and_marks_what_is_unknown() -> None:
    text = read(roofline_words.roofline(INFO, ROOFLINE))
    assert "npu: 4.00 TMAC/s, 100.00 GB/s" in text
    assert "config.toml" in text
    assert ">= 100 ns" in text
    assert text.index("slow") < text.index("fast ") < text.index("odd")
    odd = next(line for line in text.splitlines() if "odd" in line)
    assert odd.split()[2:] == ["?", "?", "?", "unknown", "?", "?"]


def test_a_time_that_nobody_knows_is_no_zero() -> None:
    unknown = replace(ROOFLINE, seconds=None, compute_seconds=None, memory_seconds=None, coverage=0.0)
    lines = read(roofline_words.roofline(INFO, unknown)).splitlines()
    for label in ("Least time", "all MACs", "all bytes"):
        assert "?" in next(line for line in lines if label in line)


def test_the_axes_of_a_short_roofline_are_labelled_with_numbers() -> None:
    """On short axes matplotlib puts markup between the powers of ten, which is not for reading."""
    pytest.importorskip("matplotlib")
    from explorer.report import plots

    picture = plots.svg("roofline", INFO, replace(ROOFLINE, points=ROOFLINE.points[:1]))
    assert "mathdefault" not in picture
    assert all(f">{tick}<" in picture for tick in ("20", "50", "500"))
    assert "not known" not in picture
    # a sum that some layers are not in says so
    assert "at least 100 ns without 1 layer whose work is not known" in plots.svg("roofline", INFO, ROOFLINE)


def test_training_adds_forward_and_backward() -> None:
    row = LayerTraining(0, "fc", "Linear", 100, 100, 100, 40, 20, 40, 20)
    fact = Training(8, "adam", (row,), 64, 40, 20, 20, 40, 184, 100, 200, 1.0, ("a note",))
    text = read(training.training(INFO, fact))
    assert "Adam and AdamW keep 2 numbers a parameter" in text
    figures = {line.split("  ")[1]: line.split() for line in text.splitlines() if line.startswith("  ")}
    assert "300" in figures["MACs, step"]
    assert "184" in " ".join(figures["Memory, sum"])
    assert "a note" in text


def test_a_batch_that_binds_all_that_is_open_leaves_no_lower_bound() -> None:
    row = LayerTraining(0, "fc", "Linear", 100, 100, 100, 40, 20, 40, 20)
    fact = Training(8, "sgd", (row,), 64, 40, 20, 20, 0, 144, 100, 200, 1.0)
    opened = replace(INFO, totals=replace(INFO.totals, macs=None, coverage=0.5, status="unknown"))
    assert ">=" not in read(training.training(opened, fact))
    assert "<= 300" in read(training.training(opened, replace(fact, layers=(replace(row, status="bound"),))))
    assert ">= 300" in read(training.training(opened, replace(fact, coverage=0.5)))


STATS = TensorStats(
    tensor("w", 3, 4), "fc", 12, 48, -1.0, 2.0, 0.5, 0.25, 0.5, 0, 0,
    quantiles=((0.5, 0.5),), histogram=Histogram((-1.0, 0.0, 1.0, 2.0), (6, 1, 0)),
)  # fmt: skip


def test_one_tensor_is_shown_with_quantiles_and_histogram_and_many_as_rows() -> None:
    alone = read(values.weights(INFO, Weights("m.onnx", (STATS,), (("w", "v"),), (("a", "b"),), ("random",))))
    assert "quantiles" in alone
    assert "6  ████" in alone
    assert "tied" in alone
    assert "w, v" in alone
    assert "a, b" in alone
    assert "random" in alone
    many = read(values.activations(INFO, Activations("m", ("x: seed 0",), (STATS, replace(STATS, call=1)))))
    assert "quantiles" not in many
    assert "w (call 2)" in many
    assert "50.0 %" in many


def test_a_tensor_without_numbers_and_one_with_nan_are_honest() -> None:
    empty = replace(STATS, minimum=None, maximum=None, mean=None, std=None, zeros=None, histogram=None)
    broken = replace(STATS, nan=3, inf=1)
    text = read(values.weights(INFO, Weights("m", (empty, broken))))
    assert "3 NaN, 1 Inf" in text
    assert " -  " in text


def test_a_histogram_line_shows_even_a_single_value() -> None:
    line = values.spark(Histogram(tuple(range(5)), (1000, 0, 1, 500)), 4)
    assert line == "█ ▁▄"
    assert values.spark(Histogram(tuple(range(5)), (1, 1, 1, 1)), 2) == "██"
    assert values.spark(None, 4) == values.spark(Histogram(tuple(range(5)), (1, 1, 1, 1)), 0) == ""


def test_models_side_by_side_mark_what_differs_and_what_stays_open() -> None:
    other = replace(INFO, model=replace(INFO.model, source="b.onnx"), totals=replace(TOTALS, params=7))
    fact = Comparison(
        (INFO, other),
        (("Conv", (3, 0)),),
        (
            Difference(1, "params", -3, -3, "1 batch normalization folded"),
            Difference(1, "macs", None, None, "unknown"),
            Difference(1, "nodes", 4, 1, "partly"),
        ),
        False,
        build_figure_table(["a.onnx", "b.onnx"], [collect_model_figures(INFO), collect_model_figures(other)]),
    )
    lines = read(compare.compare(fact)).splitlines()
    assert "more than the explained differences" in lines[0]
    folded = next(at for at, line in enumerate(lines) if "folded" in line)
    assert lines[folded - 1].split() == ["params", "-3", "explained"]
    partly = next(at for at, line in enumerate(lines) if "partly" in line)
    assert lines[partly - 1].split() == ["nodes", "+4", "unexplained"]
    assert sum("unexplained" in line for line in lines) == 2, "what is unknown is not explained"
    (conv,) = [line for line in lines if "Conv" in line]
    assert conv.split() == ["Conv", "3", "-"]


def test_torchinfos_table_is_printed_as_it_is_and_the_differences_below() -> None:
    table = TorchinfoTable(
        "====\nLayer  Mult-Adds\n====",
        "1.8.0",
        (TorchinfoDifference("conv", "Conv1d", "macs", 6144, 12288, "batch is the channel"),),
    )
    text = read(torchinfo.torchinfo(INFO, table, None, True))
    assert "Layer  Mult-Adds" in text
    assert "6,144" in text
    assert "12,288" in text
    assert "batch is the channel" in text
    assert "Mult-Adds" in read(torchinfo.torchinfo(INFO, table, None, False))
    same = replace(table, differences=())
    assert "agrees with every figure" in read(torchinfo.torchinfo(INFO, same, None, True))


def test_small_times_and_rates_read_naturally() -> None:
    assert [seconds_text(value) for value in (0, 3.2e-9, 4.56e-6, 0.0042, 0.25, 75)] == [
        "0 ms", "3.2 ns", "4.56 µs", "4.2 ms", "250 ms", "1 min 15 s",
    ]  # fmt: skip
    assert [seconds_text(value) for value in (999.4e-9, 999.6e-9, 999.6e-6, 0.9996, 59.96)] == [
        "999 ns", "1 µs", "1 ms", "1.0 s", "1 min 00 s",
    ]  # fmt: skip
    assert rate_text(4e12, "MAC/s") == "4.00 TMAC/s"
    assert rate_text(500, "B/s") == "500 B/s"


def test_a_cell_of_csv_is_no_formula_and_no_escape_sequence() -> None:
    text = csv_table.format_csv([{"path": "=1+1", "n": 3}, {"path": "a\x1b[2J", "x": None, "ok": True}])
    assert text.splitlines() == ["path,n,x,ok", "'=1+1,3,,", "a\\x1b[2J,,,true"]


def test_times_that_were_measured_several_times_are_columns_of_csv_and_unknown_ones_empty_cells() -> None:
    times = {"median": 2.0, "p10": 1.5, "p90": 3.0}
    text = csv_table.format_csv([{"path": "a", "seconds": None}, {"path": "b", "seconds": times, "calls": 1}])
    assert text.splitlines() == [
        "path,seconds_median,seconds_p10,seconds_p90,calls",
        "a,,,,",
        "b,2.0,1.5,3.0,1",
    ]
