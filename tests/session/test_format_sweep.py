"""`explorer sweep --quantize`: number formats side by side, layer by layer, and a mixed precision."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from explorer import Session, sweep_formats
from explorer.base.errors import Cancelled, Misuse
from explorer.cli import main
from explorer.engine.quantize.runs import observe_values
from explorer.facts.pareto_front import mark_format_front
from explorer.facts.quantize import FormatRow, FormatSweepSpec, QuantizeSpec
from explorer.features.sweep.format_sweep_words import front_plots
from explorer.report.scatter import draw_scatter
from explorer.settings.quantize import read_text
from tests import documents

Sample = Callable[[str], Path]
Run = Callable[..., str]
FORMATS = ("int8", "fixed8.4", "mxfp4")


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in the test's folder: standard output, or for bad input what is complained of."""
    monkeypatch.chdir(tmp_path)

    def call(*typed: object, code: int = 0) -> str:
        assert main.main([*map(str, typed), "--quiet"]) == code
        said = capsys.readouterr()
        return said.err if code == 2 else said.out

    return call


@pytest.fixture
def calib(tmp_path: Path) -> Path:
    """Five pictures."""
    path = tmp_path / "calib.npz"
    np.savez(path, np.random.default_rng(3).standard_normal((5, 1, 1, 28, 28)).astype(np.float32))
    return path


def outputs(model: Path, pictures: Path) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    # without it two products of bytes saturate at 16 bits on a processor without VNNI
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    with np.load(pictures) as file:
        return np.concatenate([session.run(None, {"input": x})[0] for x in file["arr_0"]]).astype(np.float64)


@pytest.mark.slow
def test_each_row_is_what_its_file_computes(sample: Sample, calib: Path, tmp_path: Path, run: Run) -> None:
    """The signal to noise by onnxruntime and numpy, on the model that `quantize` writes for a row."""
    model = sample("lenet")
    asked = ("sweep", model, "--quantize", "int8,weight=int4+input=int8", "--per-layer", "--calibrate", calib)
    rows = json.loads(run(*asked, "-o", "r.db", "--json"))["choices"]
    scopes = [(row["scope"], row["format"]) for row in rows]
    for name in ("int8", "weight=int4+input=int8"):
        assert [scopes.count((scope, name)) for scope in ("all", "only", "without")] == [1, 5, 5]
    plain = outputs(model, calib)
    for at in (1, 4, 9, 21):
        row = rows[at - 1]
        run(*asked, "-o", "r.db", "--take", f"{at}:{at}.toml", "--json")
        made = tmp_path / f"{at}.onnx"
        told = json.loads(
            run("quantize", model, "-o", made, "--config", f"{at}.toml", "--calibrate", calib, "--json")
        )
        gap = outputs(made, calib) - plain
        snr = 10 * math.log10((plain**2).sum() / (gap**2).sum())
        assert row["snr_db"] == pytest.approx(snr, abs=1e-3)
        assert row["weight_bytes"] == told["totals"]["weight_bytes"]["after"]
        assert row["bitops"] == told["totals"]["bitops"]["after"]
        assert row["changed"] == sum(not layer["reason"] for layer in told["layers"])


def test_the_command_of_a_row_makes_it(sample: Sample, run: Run) -> None:
    model = sample("lenet")
    rows = json.loads(run("sweep", model, "--quantize", "fixed8.4", "--per-layer", "--json"))["choices"]
    for row in (rows[0], rows[2]):
        assert row["command"].startswith("explorer quantize ")
        told = json.loads(run(*row["command"].split()[1:], "--force", "--json"))
        assert told["outputs"][0]["snr_db"] == row["snr_db"]


@pytest.mark.slow
def test_bits_of_weights_are_their_mean(sample: Sample) -> None:
    """LeNet has 61,470 weights, 30,720 of them in fc1; an MX block of 32 shares 8 bits."""
    with Session(str(sample("lenet"))) as session:
        found = session.sweep_formats(FormatSweepSpec(("int8", "mxfp4"), per_layer=True))
        sizes = {
            layer.name: layer.weight_bytes_before // 4
            for layer in session.quantize_choice(QuantizeSpec()).layers
        }
    bits = {(row.scope, row.format, row.layer): row.weight_bits for row in found.rows}
    total = sum(sizes.values())
    assert bits["all", "int8", ""] == 8
    assert bits["all", "mxfp4", ""] == 4 + 8 / 32
    for layer, own in sizes.items():
        assert bits["only", "int8", layer] == pytest.approx((8 * own + 32 * (total - own)) / total)
        assert bits["without", "int8", layer] == pytest.approx((32 * own + 8 * (total - own)) / total)


@pytest.mark.slow
def test_the_original_runs_once_for_all_formats(sample: Sample, monkeypatch: pytest.MonkeyPatch) -> None:
    runs: list[Any] = []

    def observed(*given: Any) -> None:
        runs.append(given)
        observe_values(*given)

    monkeypatch.setattr("explorer.engine.quantize.original.observe_values", observed)
    sweep_formats(sample("lenet"), spec=FormatSweepSpec(FORMATS, per_layer=True), workers=1)
    assert len(runs) == 1


def test_a_second_run_makes_only_what_is_missing(sample: Sample, calib: Path, tmp_path: Path) -> None:
    kept, model = str(tmp_path / "r.db"), sample("lenet")
    first = sweep_formats(model, spec=FormatSweepSpec(("int8",)), output=kept)
    more = sweep_formats(model, spec=FormatSweepSpec(("int8", "fixed8.4")), output=kept)
    assert (first.made, first.kept, more.made, more.kept) == (1, 0, 1, 1)
    assert more.rows[0].snr_db == first.rows[0].snr_db
    # other samples give other figures
    other = sweep_formats(model, spec=FormatSweepSpec(("int8",), calibrate=str(calib)), output=kept)
    assert (other.made, other.kept) == (1, 0)
    np.savez(calib, np.ones((2, 1, 1, 28, 28), np.float32))
    again = sweep_formats(model, spec=FormatSweepSpec(("int8",), calibrate=str(calib)), output=kept)
    assert (again.made, again.rows[0].calibration) == (1, "calib.npz, 2 samples")


def test_one_that_is_stopped_goes_on(sample: Sample, tmp_path: Path) -> None:
    kept, spec, steps = str(tmp_path / "r.db"), FormatSweepSpec(("int8",), per_layer=True), count()
    with Session(str(sample("lenet"))) as session:
        with pytest.raises(Cancelled):
            session.sweep_formats(spec, output=kept, workers=1, cancel=lambda: next(steps) > 30)
        rest = session.sweep_formats(spec, output=kept)
    assert len(rest.rows) == 11
    assert rest.made + rest.kept == 11
    assert 0 < rest.kept < 11


@pytest.mark.slow
def test_one_that_is_done_in_slices_is_that_of_one_go(sample: Sample) -> None:
    """Each slice begins no row when its time is up, and the next one makes only what is missing."""
    spec = FormatSweepSpec(("int8", "mxfp4"), per_layer=True, snr=20.0, cost="bitops")
    with Session(str(sample("lenet"))) as session:
        whole = session.sweep_formats(spec)
        none = session.sweep_formats(spec, seconds=0)
        assert (len(none.rows), none.open, none.mixed) == (0, 22, ())
        found, made = none, 0
        while found.open:
            found = session.sweep_formats(spec, seconds=1e-9)
            assert found.made == 1, "a slice makes one at least"
            made += found.made
            assert len(found.rows) >= made
        again = session.sweep_formats(spec, seconds=0)
    assert made == len(whole.rows)
    assert [(row.key, row.snr_db, row.pareto) for row in again.rows] == [
        (row.key, row.snr_db, row.pareto) for row in whole.rows
    ]
    assert again.mixed == whole.mixed
    assert (again.made, again.open, again.output) == (0, 0, "")


def test_layers_of_a_module_are_those_of_its_graph(tmp_path: Path) -> None:
    """What is tried of an nn.Module is the ONNX that its command writes, and so is the state that is made."""
    from torch import nn, zeros

    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    with Session(net, inputs=zeros(1, 8)) as session:
        found = session.sweep_formats(FormatSweepSpec(("int8",), per_layer=True))
        assert [row.error for row in found.rows] == [""] * 5
        row = found.rows[1]
        made = session.quantize(read_text(row.config, ""), as_graph=True)
        assert made.outputs[0].snr_db == pytest.approx(row.snr_db)
        assert [layer.name for layer in made.layers if not layer.reason] == [row.layer]
        again = session.requantize(row.layer, weight="int16")
        assert [layer.weight for layer in again.layers if not layer.reason] == ["int16"]


@pytest.mark.slow
def test_a_mixed_precision_saves_what_it_is_asked_to(sample: Sample, run: Run) -> None:
    """Of LeNet's bytes half are in fc1, of its BitOPs most in the convolutions: the first step differs."""
    model, found = sample("lenet"), {}
    for cost in ("weights", "bitops"):
        asked = ("sweep", model, "--quantize", "mxfp4", "--snr", 12, "--cost", cost, "-o", "r.db", "--json")
        told = json.loads(run(*asked))
        (one,) = told["mixed"]
        rows = told["choices"]
        alone = {row["layer"]: row for row in rows if row["scope"] == "only"}
        noise = {layer: 10 ** (-row["snr_db"] / 10) for layer, row in alone.items()}
        field = "bitops" if cost == "bitops" else "weight_bytes"
        saved = {layer: row[f"{field}_before"] - row[field] for layer, row in alone.items()}
        first = next(row["layer"] for row in rows if row["scope"] == "mixed")
        assert first == min(noise, key=lambda layer: noise[layer] / saved[layer])
        good = [row for row in rows if row["snr_db"] >= 12]
        best = next(row for row in rows if row["key"] == one["row"])
        assert (one["cost"], best[field]) == (cost, min(row[field] for row in good))
        found[cost] = [row["layer"] for row in rows if row["scope"] == "mixed"]
    assert found["weights"] != found["bitops"]


@pytest.mark.slow
def test_a_mixed_precision_holds_its_limits(sample: Sample, run: Run, calib: Path, tmp_path: Path) -> None:
    model = sample("lenet")
    limits = ("--bits", 7.5, "--snr", 17, "--calibrate", calib)
    asked = ("sweep", model, "--quantize", "int8,mxfp4", *limits, "-o", "r.db")
    told = json.loads(run(*asked, "--take", "found:mixed.toml", "--json"))
    jsonschema.validate(told, documents.schema("sweep"))
    (one,) = told["mixed"]
    row = next(row for row in told["choices"] if row["key"] == one["row"])
    assert one["met"]
    assert row["weight_bits"] <= 7.5
    assert row["snr_db"] >= 17
    assert row["format"] == "int8,mxfp4"
    run("quantize", model, "-o", "mixed.onnx", "--config", "mixed.toml", "--calibrate", calib)
    plain = outputs(model, calib)
    gap = outputs(tmp_path / "mixed.onnx", calib) - plain
    assert 10 * math.log10((plain**2).sum() / (gap**2).sum()) == pytest.approx(row["snr_db"], abs=1e-3)
    again = json.loads(run(*asked, "--json"))
    assert again["made"] == 0
    assert again["mixed"] == told["mixed"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (("--bits", 3), "at most 3 bits"),
        (("--bits", 5, "--snr", 40), "at most 5 bits a weight and at least 40 dB"),
    ],
)
def test_a_limit_that_cannot_be_held_is_said(sample: Sample, run: Run, limits: Any, said: str) -> None:
    asked = ("sweep", sample("lenet"), "--quantize", "int8,mxfp4", *limits)
    text = run(*asked, code=1)
    assert f"no choice that was tried has {said}" in " ".join(text.split())
    (one,) = json.loads(run(*asked, "--json", code=1))["mixed"]
    assert not one["met"]
    assert one["row"]


@pytest.mark.slow
def test_the_least_snr_alone_saves_bytes(sample: Sample) -> None:
    """Nothing among the rows that hold it has fewer bytes; without a row that does none is named as one."""
    found = sweep_formats(sample("lenet"), spec=FormatSweepSpec(("int8", "mxfp4"), snr=30.0))
    (one,) = found.mixed
    best = next(row for row in found.rows if row.key == one.row)
    good = [row for row in found.rows if (row.snr_db or 0) >= 30]
    assert one.met
    assert best.weight_bytes == min(row.weight_bytes or 0 for row in good)
    assert (best.weight_bytes or 0) <= (found.rows[0].weight_bytes or 0)  # int8 throughout holds it


POINTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5), st.integers(1, 5)), max_size=25)


@given(POINTS)
def test_the_front_is_what_nothing_else_beats(points: list[tuple[int, int, int]]) -> None:
    rows = mark_format_front(
        [
            FormatRow(f"k{at}", "m", "f", "", "all", "int8", weight_bytes=a, bitops=b, snr_db=float(c))
            for at, (a, b, c) in enumerate(points)
        ]
    )
    for row, (a, b, c) in zip(rows, points, strict=True):
        better = [(x, y, z) for x, y, z in points if x <= a and y <= b and z >= c and (x, y, z) != (a, b, c)]
        assert row.pareto is not bool(better)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--quantize", "int9000"), "--quantize: there is no number format 'int9000'"),
        (("--quantize", "weights=int8"), "--quantize: 'weights=int8' does not set the format of a part"),
        (("--quantize", ","), "--quantize: there is nothing"),
        (("--quantize", "int8", "--tile", "16"), "--tile: does not apply to number formats"),
        (("--bits", "4"), "--bits: does not apply to tilings"),
        (("--quantize", "int8", "--take", "int8.toml"), "--take: 'int8.toml' is not a row and file"),
        (("--quantize", "int8", "--take", "9:x.toml"), "--take: there is no row 9"),
        (("--quantize", "int8", "--take", "found:x.toml"), "--take: there is no row found"),
        (("--quantize", "int8", "--calibrate", "none.npz"), "none.npz: there is no such file"),
        (("--quantize", "int8", "--site", "nothing"), "--site: no layer is called 'nothing'"),
    ],
)
def test_bad_input_is_one_line(sample: Sample, run: Run, tmp_path: Path, words: Any, said: str) -> None:
    error = run("sweep", sample("lenet"), *words, code=2)
    assert error.startswith(f"explorer: {said}")
    assert error.count("\n") == 1
    assert not [*tmp_path.glob("*.toml")]


def test_a_file_of_results_shows_number_formats_too(sample: Sample, run: Run) -> None:
    model = sample("lenet")
    run("sweep", model, "--quantize", "int8,fixed8.4", "-o", "r.db")
    assert len([*csv.DictReader(io.StringIO(run("sweep", "r.db", "--csv")))]) == 2
    run("sweep", model, "--tile", "16,32,64", "-o", "r.db")
    assert len(json.loads(run("sweep", "r.db", "--json"))["rows"]) == 3
    rows = json.loads(run("sweep", "r.db", "--quantize", "int8", "--json"))["choices"]
    assert [row["format"] for row in rows] == ["int8"]


def test_a_model_that_cannot_be_opened_does_not_keep_others_from_it(sample: Sample, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(b"no model")
    found = sweep_formats(sample("lenet"), broken, spec=FormatSweepSpec(("int8",), bits=9))
    assert [bool(row.error) for row in found.rows if row.scope == "all"] == [False, True]
    assert [*found.failed] == [str(broken)]
    assert [one.met for one in found.mixed] == [True]


@pytest.mark.slow
def test_processes_make_the_same_rows(sample: Sample) -> None:
    spec = FormatSweepSpec(FORMATS, per_layer=True)
    here, there = (sweep_formats(sample("lenet"), spec=spec, workers=many) for many in (1, 2))
    assert there.workers == 2
    assert [(row.key, row.snr_db, row.pareto) for row in here.rows] == [
        (row.key, row.snr_db, row.pareto) for row in there.rows
    ]


def test_a_format_that_no_layer_takes_is_a_row_that_says_so(sample: Sample) -> None:
    base = QuantizeSpec(form="qdq")
    found = sweep_formats(sample("lenet"), spec=FormatSweepSpec(("int8", "mxfp4"), per_layer=True, base=base))
    (odd,) = [row for row in found.rows if row.error]
    assert odd.format == "mxfp4"
    assert "only a function has it" in odd.error
    with pytest.raises(Misuse, match="only a function has it"):
        sweep_formats(sample("lenet"), spec=FormatSweepSpec(("mxfp4",), base=base))


@pytest.mark.slow
def test_a_trial_with_a_file_of_its_own_tells_the_same(
    sample: Sample, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many new weights are written before they are run, few are not."""
    spec = FormatSweepSpec(("int8", "mxfp4"), per_layer=True)
    few = sweep_formats(sample("lenet"), spec=spec, workers=1)
    monkeypatch.setattr("explorer.features.quantize.quantize._MAX_BYTES_IN_MEMORY", -1)
    many = sweep_formats(sample("lenet"), spec=spec, workers=1)
    assert [(row.key, row.snr_db) for row in few.rows] == [(row.key, row.snr_db) for row in many.rows]


@pytest.mark.slow
def test_the_front_is_drawn_in_text_on_a_page_and_as_a_picture(
    sample: Sample, run: Run, tmp_path: Path
) -> None:
    asked = ("sweep", sample("lenet"), "--quantize", "int8,mxfp4", "--snr", 17, "-o", "r.db")
    said = run(*asked, "--cost", "bitops")
    assert "SNR dB over BitOPs" in said
    assert "◈ front and path" in said
    rows = json.loads(run(*asked, "--cost", "bitops", "--json"))["choices"]
    finite = [row for row in rows if row["snr_db"] is not None]
    plot = said[said.index("SNR dB over") : said.index("front and path")]
    for end in (min, max):
        assert f"{end(row['snr_db'] for row in finite):.1f} ┤" in plot
    for path in ("front.svg", "front.html", "front.md"):
        run("sweep", "r.db", "--plot", path)
    page = (tmp_path / "front.html").read_text()
    assert page.count("<svg") == 1
    assert "SNR over weight bytes" in page
    assert all(f"<strong>{name}</strong>" in page or name in page for name in ("int8", "mxfp4"))
    assert (tmp_path / "front.svg").read_text().count("greedy path") == 1
    assert run("sweep", "r.db", "--plot", "front.svg", code=2).startswith(
        "explorer: front.svg: the file exists"
    )
    assert "use .svg or .png" in run(*asked, "--plot", "front.txt", code=2)
    asked_both = ("--take", "1:none.toml", "--plot", "none.svg")
    said = run("sweep", sample("lenet"), "--quantize", "int8", *asked_both, code=2)
    assert said.startswith("explorer: --plot: there are 0 plots")
    assert not (tmp_path / "none.svg").exists()


def test_a_plot_has_every_choice_at_its_place() -> None:
    """Each dot by its figures: the front of the table with row numbers, the way of the search, all others."""
    points = [("all", 8e6, 30.0), ("only", 30e6, 60.0), ("only", 31e6, 50.0), ("mixed", 16e6, 40.0)]
    rows = [
        FormatRow(f"k{at}", "m", "f", "", scope, "int8", weight_bytes=int(paid), snr_db=snr)
        for at, (scope, paid, snr) in enumerate(points)
    ]
    rows = [*mark_format_front(rows)]
    lossless = replace(rows[0], key="k9", snr_db=math.inf)
    (plot,) = front_plots([*rows, lossless], "weights")
    assert {dot.at: dot.label for dot in plot.dots if dot.label} == {
        (8e6, 30.0): "1",
        (30e6, 60.0): "2",
        (16e6, 40.0): "4",
    }
    assert {dot.at: dot.mark for dot in plot.dots} == {
        (8e6, 30.0): "◆",
        (30e6, 60.0): "◆",
        (31e6, 50.0): "·",
        (16e6, 40.0): "◈",
    }
    lines = ["".join(span.text for span in line) for line in draw_scatter(plot, 60, 14)]
    assert len(lines) == 14
    assert max(map(len, lines)) <= 60
    drawn = lines[1:-3]
    assert drawn[0].index("◆") == 58  # 31 MB is in the last column, 59
    assert drawn[-1].index("◆") == drawn[-1].index("┤") + 1
    assert sum(line.count("◆") for line in drawn) == 2
    assert drawn[-1].split("┤")[1].startswith("◆1")
    assert "2◆" in drawn[0] or "◆2" in drawn[0]
    assert front_plots(rows, "bitops") == []
    (chosen,) = front_plots(rows, "weights", "k2")
    assert chosen.dots[-1].at == (31e6, 50.0)
    assert draw_scatter(plot, 20, 3) == draw_scatter(plot, 20, 4)
