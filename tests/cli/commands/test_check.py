"""`explorer check`: budgets that are met, missed and unknown, baselines, pyproject.toml, and reports."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import explorer
from explorer import CheckSpec, Misuse, Session
from explorer.cli.main import main

SAMPLES = Path(__file__).parents[3] / "sample_models"
LENET_MACS, LENET_PARAMS = 416_520, 61_706


class Answer(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Answer]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command in a folder with two models."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    for name in ("lenet.onnx", "mlp_128.onnx"):
        shutil.copy(SAMPLES / name, tmp_path / name)

    def run_words(*words: str) -> Answer:
        code = main(["check", *words, *([] if "--quiet" in words else ["--quiet"])])
        captured = capsys.readouterr()
        return Answer(code, captured.out, captured.err)

    return run_words


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    domain: str = "",
    columns: int = 8,
    output: int = TensorProto.FLOAT,
) -> None:
    """A model with a product of 2 x 8 by 8 x `columns`, and further nodes."""
    weight = numpy_helper.from_array(np.ones((8, columns), np.float32), "w")
    ports = [helper.make_tensor_value_info("y", output, None)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 8])]
    product = helper.make_node("MatMul", ["x", "w"], ["m"], name="product")
    graph = helper.make_graph([product, *nodes], "g", inputs, ports, [weight])
    opsets = [helper.make_opsetid("", 17), *([helper.make_opsetid(domain, 1)] if domain else [])]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)


def mystery(name: str, source: str = "m", target: str = "y") -> onnx.NodeProto:
    """A node with an operator that nobody knows."""
    return helper.make_node("Mystery", [source], [target], name=name, domain="my.ops")


def rows(answer: Answer) -> dict[str, dict[str, object]]:
    """The budgets of the first model by name."""
    return {row["name"]: row for row in json.loads(answer.out)["models"][0]["budgets"]}


def test_a_budget_is_met_or_missed(run: Run) -> None:
    met = run("lenet.onnx", "--max-macs", "0.5M", "--max-params", str(LENET_PARAMS), "--min-coverage", "100%")
    assert (met.code, met.err) == (0, "")
    assert "416.52 k" in met.out
    assert "3 budgets are met" in met.out
    missed = run("lenet.onnx", "--max-macs", str(LENET_MACS - 1), "--max-peak", "1MiB")
    assert (missed.code, missed.err) == (1, "")
    assert "MACs: 416,520 is over the limit of 416,519" in missed.out
    assert "of 2 budgets, 1 missed" in missed.out


def test_the_limit_itself_is_allowed_to_the_last_digit(run: Run) -> None:
    assert run("lenet.onnx", "--max-macs", str(LENET_MACS)).code == 0
    assert run("lenet.onnx", "--max-macs", "416.519k").code == 1
    assert run("lenet.onnx", "--max-macs", "4.1652e5").code == 0


def test_a_change_refers_to_the_baseline(run: Run, tmp_path: Path) -> None:
    words = ("net.onnx", "--against", "base.json")
    save(tmp_path / "net.onnx", [helper.make_node("Relu", ["m"], ["y"])], columns=10)
    assert run(*words, "--update").code == 0
    assert run(*words, "--max-macs", "+0%", "--max-weight-bytes", "-0%").code == 0
    save(tmp_path / "net.onnx", [helper.make_node("Relu", ["m"], ["y"])], columns=11)
    within = run(*words, "--max-macs", "+10%", "--json")
    assert within.code == 0
    row = rows(within)["max_macs"]
    assert (row["value"], row["before"], row["bound"]) == (176, 160, 176)
    assert row["change"] == pytest.approx(0.1)
    assert run(*words, "--max-macs", "+9.99%").code == 1
    shrunk = run(*words, "--max-macs", "-1%", "--csv")
    assert shrunk.code == 1
    assert "missed" in shrunk.out.splitlines()[1]


def test_a_lower_bound_is_missed_above_the_limit_and_unknown_below_it(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "net.onnx", [mystery("odd")], "my.ops")
    above = run("net.onnx", "--max-macs", "100")
    assert (above.code, above.err) == (1, "")
    assert ">= 128" in above.out
    below = run("net.onnx", "--max-macs", "1G")
    assert below.code == 2
    assert "unknown" in below.out
    assert below.err.count("\n") == 1
    assert "only a lower bound of it is known" in below.err
    assert "explorer layers net.onnx --filter status:unknown" in below.err
    assert run("net.onnx", "--min-coverage", "0.99").code == 1
    both = run("net.onnx", "--max-macs", "1G", "--max-params", "1")
    assert both.code == 1


def test_open_sizes_are_named(run: Run) -> None:
    shutil.copy(SAMPLES / "bert_tiny.onnx", "bert.onnx")
    answer = run("bert.onnx", "--max-macs", "1G")
    assert answer.code == 2
    assert "sizes are open; add --dim batch=1 --dim sequence=1, with your sizes" in answer.err
    assert run("bert.onnx", "--max-macs", "1G", "--dim", "batch=1", "--dim", "sequence=8").code == 0


def test_an_upper_bound_is_met_below_the_limit_and_unknown_above_it(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "net.onnx", [helper.make_node("NonZero", ["m"], ["y"])], output=TensorProto.INT64)
    peak = rows(run("net.onnx", "--max-peak", "1M", "--json"))["max_peak"]
    assert (peak["sign"], peak["verdict"]) == ("<= ", "met")
    assert run("net.onnx", "--max-peak", "80").code == 2


def test_a_baseline_that_is_a_bound_decides_only_what_it_can(run: Run, tmp_path: Path) -> None:
    words = ("net.onnx", "--against", "base.json")
    save(tmp_path / "net.onnx", [mystery("odd")], "my.ops")
    assert run(*words, "--update").code == 0
    assert run(*words, "--max-macs", "+5%").code == 2
    save(tmp_path / "net.onnx", [helper.make_node("Relu", ["m"], ["y"])])
    assert run(*words, "--max-macs", "+0%").code == 0
    assert run(*words, "--max-macs", "-5%").code == 2


def test_a_layer_that_becomes_unknown_is_named(run: Run, tmp_path: Path) -> None:
    words = ("net.onnx", "--against", "base.json")
    save(tmp_path / "net.onnx", [mystery("odd")], "my.ops")
    assert run(*words, "--update").code == 0
    assert run(*words, "--no-new-unknown").code == 0
    save(tmp_path / "net.onnx", [mystery("odd", target="n"), mystery("even", "n")], "my.ops")
    answer = run(*words, "--no-new-unknown")
    assert answer.code == 1
    assert "newly unknown: even" in answer.out


def test_an_update_keeps_other_models_and_shows_the_old_figures(run: Run, tmp_path: Path) -> None:
    assert run("mlp_128.onnx", "--against", "base.json", "--update").code == 0
    assert run("./lenet.onnx", "--against", "base.json", "--update").code == 0
    models = json.loads((tmp_path / "base.json").read_text())["models"]
    assert set(models) == {"lenet.onnx", "mlp_128.onnx"}
    assert models["lenet.onnx"]["figures"]["macs"] == {"value": LENET_MACS, "sign": ""}
    shutil.copy("mlp_128.onnx", "lenet.onnx")
    answer = run("lenet.onnx", "--against", "base.json", "--update", "--max-macs", "+0%", "--json")
    assert answer.code == 0
    assert rows(answer)["max_macs"]["before"] == LENET_MACS
    (notes,) = [model["notes"] for model in json.loads(answer.out)["models"]]
    assert notes == ["the baseline is of inputs with other shapes: input [1, 1, 28, 28]"]


def test_an_update_with_a_broken_model_writes_nothing(run: Run, tmp_path: Path) -> None:
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    answer = run("lenet.onnx", "broken.onnx", "--against", "base.json", "--update", "--junit", "c.xml")
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert {path.name for path in tmp_path.iterdir()} == {"broken.onnx", "lenet.onnx", "mlp_128.onnx"}


def test_the_same_model_has_one_name_in_each_folder(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("lenet.onnx", "--against", "base.json", "--update").code == 0
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert run("../lenet.onnx", "--against", "../base.json", "--max-macs", "+0%").code == 0
    assert run(str(tmp_path / "lenet.onnx"), "--against", "../base.json", "--max-macs", "+0%").code == 0


BROKEN = '{"baseline_version": 1, "models": {"lenet.onnx": {"figures": {"macs": {"value": -1}}}}}'
WRONG_WORDS = [
    ("lenet.onnx", "no budget is set"),
    ("lenet.onnx --max-macs 5%", "has no sign; write +5%"),
    ("lenet.onnx --max-macs +5", "is not a limit; write 4.1G"),
    ("lenet.onnx --max-macs +5%%", "is not a limit"),
    ("lenet.onnx --max-macs 4.1GB", "is not a limit"),
    ("lenet.onnx --max-macs nan", "is not a limit"),
    ("lenet.onnx --max-peak=-5", "is not a limit"),
    ("lenet.onnx --max-macs=-101%", "is not a limit"),
    ("lenet.onnx --max-seconds 5ps", "is not a limit; write 20ms"),
    ("lenet.onnx --min-coverage 101%", "is more than 100 % of the nodes"),
    ("lenet.onnx --min-coverage +5%", "is not a limit; write 95%"),
    ("lenet.onnx --max-macs +5%", "add --against baseline.json"),
    ("lenet.onnx --no-new-unknown", "add --against baseline.json"),
    ("lenet.onnx --max-macs +5% --against none.json", "none.json: there is no such baseline"),
    ("lenet.onnx --max-macs 5G --against text.json", "text.json: this is not a baseline"),
    ("lenet.onnx --max-macs 5G --against broken.json", "broken.json: this is not a baseline"),
    ("lenet.onnx --max-macs 5G --against huge.json", "huge.json: this is not a baseline"),
    ("lenet.onnx --max-macs 5G --against .", "cannot be read"),
    ("lenet.onnx --against broken.json", "broken.json: this is not a baseline"),
    ("--against broken.json", "broken.json: this is not a baseline"),
    ("lenet.onnx --against good.json", "no budget is set for this model; add --max-macs +5%"),
    ("lenet.onnx --config team.toml", "broken.json: this is not a baseline"),
    ("bert_tiny.onnx lenet.onnx --max-macs 1G --dim batch=1", "lenet.onnx: --dim: no dimension"),
    ("mlp_128.onnx --max-macs +5% --against good.json", "no model 'mlp_128.onnx'; add it with --update"),
    ("lenet.onnx --update", "--update: needs the path of the baseline"),
    ("lenet.onnx --update --against text.json", "write a new one with --update --force"),
    ("lenet.onnx --update --against lenet.onnx --force", "lenet.onnx: this is the model itself"),
    ("lenet.onnx --update --against none/base.json", "there is no such folder"),
    ("lenet.onnx --max-macs 5G --junit text.json", "text.json: the file exists"),
    ("lenet.onnx --max-macs 5G --junit lenet.onnx", "lenet.onnx"),
    ("nothing.onnx --max-macs 5G", "nothing.onnx"),
    ("lenet.onnx --max-macs 5G --config none.toml", "none.toml: cannot be read"),
    ("lenet.onnx --max-macs 5G --config empty.toml", "there is no table [tool.explorer]"),
    ("", "check: names no model; type explorer check MODEL --max-macs 4.1G"),
]


@pytest.mark.parametrize(("words", "message"), WRONG_WORDS, ids=[words for words, _ in WRONG_WORDS])
def test_bad_input_is_one_line_and_writes_nothing(words: str, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "text.json").write_text("not JSON")
    (tmp_path / "broken.json").write_text(BROKEN)
    (tmp_path / "huge.json").write_text(BROKEN.replace("-1", "9" * 400))
    (tmp_path / "empty.toml").write_text("[project]\nname = 'x'\n")
    (tmp_path / "team.toml").write_text("[tool.explorer]\nagainst = 'broken.json'\nmax-macs = '5G'\n")
    shutil.copy(SAMPLES / "bert_tiny.onnx", tmp_path / "bert_tiny.onnx")
    figures = {"macs": {"value": LENET_MACS}}
    good = {"baseline_version": 1, "models": {"lenet.onnx": {"figures": figures}}}
    (tmp_path / "good.json").write_text(json.dumps(good))
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    answer = run(*words.split())
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("explorer: ")
    assert answer.err.count("\n") == 1
    assert message in answer.err
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


PROJECT = """\
[tool.explorer]
against = "base.json"
min-coverage = 1.0

[tool.explorer."lenet.onnx"]
max-macs = "+5%"

[tool.explorer."mlp_128.onnx"]
max_params = 1
"""


def test_pyproject_has_the_budgets_of_models(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    assert run("--update").code == 1
    answer = run("--json")
    assert answer.code == 1
    checked = {model["model"]: model["budgets"] for model in json.loads(answer.out)["models"]}
    names = {model: [(row["name"], row["verdict"]) for row in budgets] for model, budgets in checked.items()}
    assert names == {
        "lenet.onnx": [("max_macs", "met"), ("min_coverage", "met")],
        "mlp_128.onnx": [("max_params", "missed"), ("min_coverage", "met")],
    }
    assert run("lenet.onnx").code == 0
    assert run("lenet.onnx", "--max-macs", "1").code == 1, "options take precedence"
    (tmp_path / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "inner")
    assert run("../lenet.onnx").code == 0
    assert run().code == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[tool.explorer."none.onnx"]\nmax-macs = 5\n', "pyproject.toml:1: none.onnx: "),
        (
            '[tool.explorer."lenet.onnx"]\nmax-mac = 5\n',
            "pyproject.toml:2: there is no setting 'max-mac'; did",
        ),
        ('[tool.explorer."lenet.onnx"]\n\nmax-macs = "5%"\n', "pyproject.toml:3: '5%' has no sign"),
        ('[tool.explorer."lenet.onnx"]\nmax-macs = true\n', "pyproject.toml:2: 'True' is not a limit"),
        ('[tool.explorer."lenet.onnx"]\ndim = 3\n', "pyproject.toml:2: '3' is not a text"),
        ("[tool.explorer.lenet.onnx]\nmax-macs = 5\n", 'in quotes: [tool.explorer."lenet.onnx"]'),
        ('[tool.explorer."lenet.onnx"]\n', "pyproject.toml:1"),
        ("[tool]\nexplorer = 3\n", "there is no table [tool.explorer]"),
        ("[tool.explorer]\nagainst = 3\n", "pyproject.toml:2: '3' is not a text"),
        ("[tool.explorer\n", "this is not TOML"),
    ],
)
def test_a_wrong_pyproject_is_one_line(text: str, message: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    answer = run()
    assert (answer.code, answer.out, answer.err.count("\n")) == (2, "", 1)
    assert message in answer.err


def test_a_mistyped_model_is_suggested(run: Run, tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.explorer."lenet.onnx"]\nmax-macs = 5\n')
    answer = run("lenett.onnx")
    assert answer.code == 2
    assert "no budget is set for this model; did you mean 'lenet.onnx'?" in answer.err


def test_github_gets_annotations_and_a_summary(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "summary.md"
    summary.write_text("# Other step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    words = ("lenet.onnx", "--max-macs", "1", "--min-coverage", "99%", "--github")
    answer = run(*words)
    assert answer.code == 1
    lines = [line for line in answer.out.splitlines() if line.startswith("::")]
    assert lines == [
        "::error file=lenet.onnx,title=MACs of lenet.onnx%3A missed::MACs: 416.52 k is over the limit of 1"
    ]
    run(*words)
    text = summary.read_text()
    assert text.startswith("# Other step\n")
    assert text.count("### Model budgets") == 2
    assert "| MACs | 1 | 416.52 k |" in text


def test_junit_has_a_case_for_each_budget(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "a&b.onnx", [mystery("odd")], "my.ops")
    words = (
        "a&b.onnx",
        "--max-macs",
        "1G",
        "--max-params",
        "1",
        "--max-weight-bytes",
        "1G",
        "--junit",
        "c.xml",
    )
    assert run(*words).code == 1
    assert run(*words).code == 1, "its own report may be replaced"
    suite = ET.parse(tmp_path / "c.xml").getroot()[0]
    assert suite.attrib == {"name": "a&b.onnx", "tests": "3", "failures": "1", "errors": "1"}
    assert [(case.get("name"), [child.tag for child in case]) for case in suite] == [
        ("max_macs", ["error"]),
        ("max_params", ["failure"]),
        ("max_weight_bytes", []),
    ]


def test_seconds_are_measured_here_or_the_least_of_a_machine(run: Run) -> None:
    answer = run("mlp_128.onnx", "--max-seconds", "1min", "--json")
    assert answer.code == 0
    row = rows(answer)["max_seconds"]
    assert row["figure"] == "seconds"
    assert 0 < float(str(row["value"])) < 60
    machine = run("lenet.onnx", "--max-seconds", "1ns", "--machine", "a100", "--json")
    assert machine.code == 1
    assert rows(machine)["max_seconds"]["figure"] == "least_seconds"


def test_a_time_is_unknown_if_the_model_cannot_run_or_its_sizes_are_guessed(run: Run, tmp_path: Path) -> None:
    save(tmp_path / "net.onnx", [mystery("odd")], "my.ops")
    answer = run("net.onnx", "--max-seconds", "1min", "--max-params", "100", "--junit", "check.xml")
    assert answer.code == 2
    assert "time of a run: ?, limit 1 min 00 s: onnxruntime cannot load the model" in answer.err
    (suite,) = ET.parse(tmp_path / "check.xml").getroot()
    assert [[child.tag for child in case] for case in suite] == [[], ["error"]]
    shutil.copy(SAMPLES / "bert_tiny.onnx", "bert.onnx")
    words = ("bert.onnx", "--max-seconds", "1min")
    guessed = run(*words)
    assert guessed.code == 2
    assert "it depends on an assumption, because sizes are open; add --dim batch=1" in guessed.err
    assert run(*words, "--dim", "batch=1", "--dim", "sequence=8").code == 0


def test_a_figure_without_a_number_is_unknown_and_no_bound(run: Run) -> None:
    shutil.copy(SAMPLES / "bert_tiny.onnx", "bert.onnx")
    answer = run("bert.onnx", "--max-macs", "1G")
    assert "MACs: ?, limit 1.00 G: the figure is unknown, because sizes are open" in answer.err


def test_python_checks_a_session(tmp_path: Path) -> None:
    with Session(SAMPLES / "lenet.onnx") as session:
        assert session.check(CheckSpec(max_macs="0.5M", max_params=70_000)).verdict == "met"
        assert session.check(CheckSpec(max_peak=1, min_coverage=1.0)).verdict == "missed"
        with pytest.raises(Misuse, match="no budget is set"):
            session.check(CheckSpec())
        with pytest.raises(Misuse, match="'4X' is not a limit"):
            session.check(CheckSpec(max_macs="4X"))
    path = tmp_path / "base.json"
    explorer.check_files(SAMPLES / "lenet.onnx", against=str(path), update=True)
    with Session(SAMPLES / "lenet.onnx") as session:
        assert session.check(CheckSpec(max_macs="+0%"), against=str(path)).verdict == "met"
