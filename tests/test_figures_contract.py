"""The verbs of the figures keep the JSON contract, and their CSV holds the same rows.

Like the schemas of the other verbs these are written out by hand: a renamed key must break a test here
and not somebody's script. Keys may be added.
"""

from __future__ import annotations

import csv
import io
import json
import xml.etree.ElementTree as ET
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.cli import main
from tests import answers

Ask = Callable[..., dict[str, Any]]

ROOF = ("--peak-macs", "4T", "--bandwidth", "100GB/s")


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """The JSON document that a command prints, after `answers.check`."""

    def call(*words: object, code: int = 0) -> dict[str, Any]:
        assert main.main([*map(str, words), "--json", "--quiet"]) == code
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        answers.check(str(words[0]), found)
        return found

    return call


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """What a command prints."""

    def call(*words: object, code: int = 0) -> str:
        assert main.main([*map(str, words), "--quiet"]) == code
        return capsys.readouterr().out

    return call


def refusal(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    assert main.main([str(word) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


VERBS = {
    "memory": ((), "steps"),
    "roofline": (ROOF, "layers"),
    "plan": (("--tile", "8"), "sites"),
    "training": ((), "layers"),
    "weights": ((), "tensors"),
    "activations": ((), "tensors"),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["lenet", "three_inputs", "mobilenet_small"])
@pytest.mark.parametrize("verb", VERBS)
def test_every_figure_is_the_same_as_json_csv_and_text(
    ask: Ask, said: Callable[..., str], sample: Callable[[str], Path], verb: str, name: str
) -> None:
    options, key = VERBS[verb]
    document = ask(verb, sample(name), *options)
    rows = list(csv.DictReader(io.StringIO(said(verb, sample(name), *options, "--csv"))))
    assert len(rows) == len(document[key])
    for row, record in zip(rows, document[key], strict=True):
        for column, value in record.items():
            if isinstance(value, int) and not isinstance(value, bool):
                assert int(row[column]) == value
            elif value is None:
                assert row[column] == ""
    text = said(verb, sample(name), *options)
    for record in document[key][:20]:
        assert (record.get("path") or record.get("name") or "(inputs)") in text


def test_the_memory_timeline_peaks_where_info_says(ask: Ask, sample: Callable[[str], Path]) -> None:
    document = ask("memory", sample("lenet"))
    peak = document["memory"]["peak_bytes"]
    assert (
        peak == document["totals"]["activation_bytes_peak"] == max(s["live_bytes"] for s in document["steps"])
    )
    at = document["memory"]["peak_step"]
    alive = sum(t["bytes"] for t in document["tensors"] if t["born"] <= at <= t["dies"])
    assert alive == peak <= document["memory"]["arena_bytes"]


def test_the_roofline_of_lenet_by_hand(ask: Ask, sample: Callable[[str], Path]) -> None:
    document = ask("roofline", sample("lenet"), "--peak-macs", "1e9", "--bandwidth", "1e9")
    row = next(row for row in document["layers"] if row["path"] == "/conv1/Conv")
    # 1x6x28x28 outputs x 25 taps; input 784, weights 156, outputs 4704 floats
    assert row["macs"] == 117_600
    assert row["bytes"] == 4 * (784 + 156 + 4704)
    assert row["intensity"] == pytest.approx(2 * 117_600 / row["bytes"])
    assert row["limit"] == "compute"
    assert row["seconds"] == pytest.approx(117_600 / 1e9)


@pytest.fixture
def npu(tmp_path: Path) -> str:
    path = tmp_path / "npu.toml"
    path.write_text(
        "macs_per_cycle = 64\nbytes_per_cycle = 8\nclock = '1 MHz'\narray = '8x8'\nbuffer = '1 KiB'\n"
    )
    return str(path)


def test_the_plan_of_a_product_by_hand(ask: Ask, sample: Callable[[str], Path], npu: str) -> None:
    model = sample("linear_32x64x128")
    document = ask("plan", model, "--tile", "16x32x64", "--machine", npu)
    (site,) = document["sites"]
    assert (site["M"], site["K"], site["N"], site["grid"]) == (32, 64, 128, [2, 2, 2])
    assert site["products"] == 8
    # every tile is whole; the operands twice each, the output once
    assert site["traffic"] == 4 * (2 * 32 * 64 + 2 * 64 * 128 + 32 * 128)
    assert site["traffic_without_reuse"] == 8 * 4 * (16 * 32 + 32 * 64 + 2 * 16 * 64) - 4 * 32 * 128
    assert site["compute_cycles"] == 32 * 64 * 128 // 64
    assert site["memory_cycles"] == site["traffic"] // 8
    assert site["seconds"] == max(site["compute_cycles"], site["memory_cycles"]) / 1e6
    assert site["buffer"] == 4 * (16 * 32 + 32 * 64 + 16 * 64)
    assert document["cost"]["fits"] is False
    assert document["machine"]["origin"] == npu
    # tiles of 16 x 64 outputs fill the 8 x 8 array 2 x 8 times, and 32 deep each time
    (stationary,) = (row for row in document["systolic"] if row["dataflow"] == "output-stationary")
    assert stationary["cycles"] == 8 * (2 * 8) * (2 * 8 + 8 + 32 - 2)
    by_name = {row["name"]: row for row in document["formulas"]}
    assert by_name["traffic mnk"]["filled"] == "2 x 8,192 + 2 x 32,768 + 16,384"
    assert by_name["products"]["filled"] == "2 x 2 x 2"


def test_the_loop_order_of_a_plan_can_be_chosen(ask: Ask, sample: Callable[[str], Path]) -> None:
    model = sample("mlp_128")
    best = ask("plan", model, "--tile", "32")["cost"]
    for order in ("knm", "weight-stationary"):
        chosen = ask("plan", model, "--tile", "32", "--order", order)
        assert {site["dataflow"] for site in chosen["sites"]} == {"weight-stationary"}
        assert chosen["cost"]["total"]["order"] == order
        assert chosen["cost"]["total"]["traffic"] >= best["total"]["traffic"]
    assert {row["site"] for row in chosen["orders"]} == {site["name"] for site in chosen["sites"]}


def test_the_text_of_a_plan_shows_formulas_when_they_are_asked_for(
    said: Callable[..., str], sample: Callable[[str], Path], npu: str
) -> None:
    model = sample("lenet")
    short = said("plan", model, "--machine", npu, "--tile", "8")
    assert "64 MACs and 8 B a cycle, 1.00 MHz, buffer 1.00 KiB, array 8 x 8" in short
    assert "all matmuls in one loop order" in short
    assert "output-stationary" in short
    assert "M K N  =" not in short
    long = said("plan", model, "--machine", npu, "--tile", "8", "--formulas")
    assert long.startswith(short[: short.index("The buffer holds")].rstrip())
    assert "M K N  =" in long
    assert "A tile is no larger than its matmul, so the buffer can be smaller" in " ".join(short.split())
    without = said("plan", model)
    assert "No cycles without a machine" in without
    assert "systolic" not in without


@pytest.mark.parametrize(
    ("profile", "why"),
    [
        ("macs_per_cycle = 4\n", "No cycles: add bytes_per_cycle to the machine half."),
        ("buffer = 4096\n", "No cycles: add macs_per_cycle and bytes_per_cycle to the machine half."),
        ("macs_per_cycle = 4\nbytes_per_cycle = 4\n", "No time: add clock to the machine half."),
    ],
)
def test_a_plan_says_what_it_would_have_to_know_of_the_machine(
    said: Callable[..., str], sample: Callable[[str], Path], tmp_path: Path, profile: str, why: str
) -> None:
    (tmp_path / "half.toml").write_text(profile)
    text = said("plan", sample("lenet"), "--machine", tmp_path / "half.toml")
    assert why in text
    assert "Time  " not in text


@pytest.mark.parametrize(
    ("rate", "cycles_end"),
    [
        ("bytes_per_cycle = 8", "memory"),
        ("read_bytes_per_cycle = 8\nwrite_bytes_per_cycle = 4", "No cycles: add bytes_per_cycle"),
    ],
)
def test_a_plan_takes_the_rate_of_a_machine_from_its_outermost_memory(
    ask: Ask,
    said: Callable[..., str],
    sample: Callable[[str], Path],
    tmp_path: Path,
    rate: str,
    cycles_end: str,
) -> None:
    machine = tmp_path / "half.toml"
    start = "[machine.half]\nmacs_per_cycle = 16\n"
    names = f'name = "DRAM"\n{rate}\n', 'name = "L1"\nsize = "8 KiB"\n'
    machine.write_text(start + "".join(f"[[machine.half.memory]]\n{name}" for name in names))
    assert cycles_end in said("plan", sample("lenet"), "--machine", machine)
    total = ask("plan", sample("lenet"), "--machine", machine)["cost"]["total"]
    if not cycles_end.startswith("No"):
        machine.write_text(f"{start}{rate}\n")
        assert ask("plan", sample("lenet"), "--machine", machine)["cost"]["total"] == total
        assert total["cycles"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("what", ["memory", "operators", "roofline"])
@pytest.mark.parametrize("ending", ["svg", "png"])
def test_a_picture_is_drawn_and_is_the_same_twice(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path, what: str, ending: str
) -> None:
    options = ROOF if what == "roofline" else ()
    files = [tmp_path / f"{at}.{ending}" for at in range(2)]
    for file in files:
        assert ask("plot", sample("lenet"), "--what", what, "-o", file, *options)["output"] == str(file)
    first, second = (file.read_bytes() for file in files)
    assert first == second
    if ending == "png":
        assert first.startswith(b"\x89PNG")
    else:
        assert ET.fromstring(first).tag.endswith("svg")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_the_report_stands_alone_and_holds_the_figures(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    page = tmp_path / "lenet.html"
    totals = ask("report", sample("lenet"), "-o", page, *ROOF)["totals"]
    tags = _Tags()
    tags.feed(page.read_text())
    assert not [
        tag for tag, attrs in tags.seen if {"src", "srcset"} & set(attrs) or tag in ("link", "iframe")
    ]
    # operators, memory, the roofline, memory over a training step
    assert len([tag for tag, _ in tags.seen if tag == "svg"]) == 4
    text = "".join(tags.text)
    for figure in (totals["params"], totals["macs"], totals["activation_bytes_peak"]):
        assert f"{figure:,}" in text or any(attrs.get("title") == f"{figure:,}" for _, attrs in tags.seen)
    for heading in ("Totals", "Operators", "Layers", "Memory", "Roofline", "Training", "Weights"):
        assert heading in text
    assert any(tag == "table" and attrs.get("class") == "sortable" for tag, attrs in tags.seen)


@pytest.mark.slow
def test_the_report_as_markdown_has_every_layer_in_a_table(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    page = tmp_path / "lenet.md"
    ask("report", sample("lenet"), "-o", page)
    text = page.read_text()
    assert "| conv1 |" in text.replace("&nbsp;", "").replace("/conv1/Conv", "conv1") or "Conv |" in text
    assert text.count("data:image/svg+xml;base64,") == 3
    assert "Roofline: no machine was named" in text
    assert "Measured time: the model was not run: --measured" in text
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


@pytest.mark.slow
def test_the_report_says_where_the_time_goes_where_that_is_asked_for(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    page = tmp_path / "lenet.md"
    ask("report", sample("lenet"), "-o", page, "--measured", "--steps", "3")
    text = page.read_text()
    measured = text[text.index("## Measured time") : text.index("## Weights")]
    # the layers that take most, the run from left to right, groups by what they take
    assert measured.count("data:image/svg+xml;base64,") == 3
    assert "| Wall time |" in measured
    assert "3 runs, as requested" in measured
    assert all(name in measured for name in ("/conv1/Conv", "/conv2/Conv", "/fc3/Gemm"))
    assert "Measured time: the model was not run" not in text


@pytest.mark.slow
def test_a_name_in_a_model_is_never_markup_on_a_page(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    import onnx

    model = onnx.load(sample("lenet"))
    model.graph.node[0].name = "<script>alert(1)</script>|`x`$a_b$\x1b[2J"
    hostile = tmp_path / "hostile.onnx"
    onnx.save(model, hostile)
    for ending in ("html", "md"):
        ask("report", hostile, "-o", tmp_path / f"page.{ending}", *ROOF)
        text = (tmp_path / f"page.{ending}").read_text()
        assert "<script>alert" not in text
        assert "\x1b" not in text
    for what in ("memory", "roofline"):
        ask(
            "plot",
            hostile,
            "--what",
            what,
            "-o",
            tmp_path / "p.svg",
            "--force",
            *(ROOF if what[0] == "r" else ()),
        )
        ET.fromstring((tmp_path / "p.svg").read_bytes())


def test_activations_of_an_input_of_my_own_are_written(
    ask: Ask, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    given = np.random.default_rng(3).standard_normal((1, 1, 28, 28)).astype(np.float32)
    np.save(tmp_path / "x.npy", given)
    out = tmp_path / "values.npz"
    document = ask(
        "activations", sample("lenet"), "--input", tmp_path / "x.npy", "--layer", "*Conv*", "-o", out
    )
    assert document["output"] == str(out)
    with np.load(out, allow_pickle=False) as values:
        assert len(values.files) == len(document["tensors"]) == 2
        for name, stats in zip(values.files, document["tensors"], strict=True):
            assert values[name].shape == tuple(stats["shape"])
            assert values[name].max() == pytest.approx(stats["maximum"])
            assert values[name].mean(dtype=np.float64) == pytest.approx(stats["mean"])


def test_two_copies_of_a_model_agree_and_two_models_do_not(ask: Ask, sample: Callable[[str], Path]) -> None:
    same = ask("compare", sample("lenet"), sample("lenet"))
    assert same["agree"] is True
    assert same["differences"] == []
    other = ask("compare", sample("lenet"), sample("mlp_128"), sample("jsc_tiny"), code=1)
    assert other["agree"] is False
    assert len(other["models"]) == 3
    assert {"params", "macs"} <= {difference["figure"] for difference in other["differences"]}


@pytest.mark.parametrize(
    ("words", "said_"),
    [
        (("roofline", "{lenet}"), "--peak-macs"),
        (("roofline", "{lenet}", "--peak-macs", "fast", "--bandwidth", "1G"), "fast"),
        (("plan", "{lenet}", "--order", "mkk"), "--order: 'mkk' is not known"),
        (("plan", "{lenet}", "--machine", "none.toml"), "none.toml: there is no such file"),
        (("plan", "{lenet}", "--tile", "0"), "--tile"),
        (("plan", "{lenet}", "--site", "nothing"), "no site is called 'nothing'"),
        (("plot", "{lenet}"), "plot: needs --output; add --output FILE"),
        (("plot", "{lenet}", "-o", "x.jpg"), "use .svg or .png"),
        (("report", "{lenet}", "-o", "x.pdf"), "use .html or .md"),
        (("memory", "{lenet}", "--csv", "--json"), "leave out --csv or --json"),
        (("info", "{lenet}", "--past", "3"), "write --decode --past N"),
        (("info", "{lenet}", "--decode"), "write --decode --past N"),
        (("compare", "{lenet}"), "needs two models"),
        (("layers", "{lenet}", "--compare"), "lenet"),
        (("activations", "{lenet}", "--input", "missing.npy"), "missing.npy"),
        (("activations", "{lenet}", "--layer", "nothing*"), "nothing*"),
        (("weights", "{lenet}", "--layer", "nothing*"), "nothing*"),
        (("training", "{lenet}", "--batch", "0"), "--batch"),
        (("info", "{lenet}", "--rules", "rules.py"), "--trust"),
    ],
)
def test_what_cannot_be_answered_is_one_line(
    capsys: pytest.CaptureFixture[str], sample: Callable[[str], Path], words: tuple[str, ...], said_: str
) -> None:
    lenet = str(sample("lenet"))
    assert said_ in refusal(capsys, *(word.format(lenet=lenet) for word in words))


def test_a_file_that_exists_is_kept(
    capsys: pytest.CaptureFixture[str], sample: Callable[[str], Path], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.svg"
    kept.write_text("mine")
    assert "the file exists" in refusal(capsys, "plot", sample("lenet"), "-o", kept)
    assert kept.read_text() == "mine"
    assert main.main(["plot", str(sample("lenet")), "-o", str(kept), "--force", "--quiet"]) == 0
    assert kept.read_text() != "mine"
