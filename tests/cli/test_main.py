"""The command line keeps its promises: one line when something is wrong, exit codes, and a clean answer."""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.numpy_helper
import onnx.parser
import pytest

import explorer
from explorer.base.errors import BadModel, Cancelled, Misuse
from explorer.base.verdicts import VERDICTS
from explorer.cli import main
from explorer.cli.arguments import parser as words
from explorer.cli.arguments.command import group_commands
from explorer.cli.arguments.screen_options import SCREEN
from explorer.cli.commands import VERBS
from explorer.cli.output.progress import ProgressLine
from explorer.facts import Progress
from explorer.settings import parse

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in this process: exit code, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        code = main.main([str(word) for word in words])
        out, err = capsys.readouterr()
        return code, out, err

    return call


def refused(answer: tuple[int, str, str]) -> str:
    """The one line of a refusal: exit code 2, nothing on standard output, no usage, no traceback."""
    code, out, err = answer
    assert code == 2
    assert out == ""
    assert err.startswith("explorer: ")
    assert err.count("\n") == 1, err
    assert "Traceback" not in err
    assert "internal error" not in err
    return err


def program(*words: object, **how: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "explorer", *map(str, words)]
    how.setdefault("env", {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])})
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **how)


# words


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ([], "name a model"),
        (["tiel"], "did you mean 'tile'?"),
        (["resnet18", "nosuch.onnx"], "nosuch.onnx: no such file"),
        (["resnet18", "resnet34"], "explorer diff resnet18 resnet34 --tree prints instead"),
        (["a", "b", "c"], "c: one model too many"),
        (["qwertyish", "resnet34"], "qwertyish: no file and no torchvision model has this name"),
        (["resnet34", "qwertyish"], "explorer --help the verbs"),
        (["resnet43"], "did you mean 'resnet34'?"),
        (["inof", "m.onnx"], "did you mean 'info'?"),
        (["quantise", "m.onnx", "-o", "x.onnx"], "quantise: no such verb; did you mean 'quantize'?"),
        (["covnert", "--onnx", "17"], "covnert: no such verb; did you mean 'convert'?"),
        (["info"], "info: needs a model; type explorer info MODEL"),
        (["diff", "a.onnx"], "diff: needs two models; type explorer diff A B"),
        (["info", "a", "b"], "b: one word too many"),
        (["info", ""], "the name of a model is empty"),
        (["info", "a", "--jsn"], "did you mean '--json'?"),
        (["a", "--json"], "it belongs to explorer info"),
        (["tile", "a", "--edges", "raged"], "did you mean 'ragged'?"),
        (["tile", "a", "--form", "xyzzy"], "choose from: auto, lab, scan, unrolled, batched"),
        (["tile", "a", "--tile", "0"], "--tile: '0' has a size below 1"),
        (["tile", "a", "--tile", "-64x64x64"], "--tile: '-64x64x64' has a size below 1"),
        (["tile", "a", "--tile", "big"], "--tile: 'big' is not a tile size"),
        (["tile", "a", "--tile"], "--tile: needs a value"),
        (["tile", "a", "--draws", "0"], "--draws"),
        (["verify", "a", "b", "--seed", "-1"], "--seed"),
        (["info", "a", "--dim", "batch"], "write name=size"),
        (["info", "a", "--input-shape", "x:1,b!"], "x:1,3,224,224"),
        (["info", "a", "--quiet=3"], "--quiet: takes no value"),
    ],
)
def test_a_wrong_word_is_one_line_that_says_what_to_type(run: Run, typed: list[str], said: str) -> None:
    assert said in refused(run(*typed))


def test_a_file_that_is_no_model_is_refused_before_the_screen(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("def small(): ...\n")
    Path("notes.onnx").touch()
    assert "net.py:small" in refused(run("net.py"))
    assert "notes.onnx: the file is empty" in refused(run("notes.onnx"))
    assert "missing.py" in refused(run("missing.py:small"))
    assert "explorer info net.py:small prints instead" in refused(run("net.py:small"))


@pytest.mark.parametrize("option", ["--draws", "-o"])
def test_an_option_of_other_verbs_names_them_all(run: Run, option: str) -> None:
    owners = [verb.name for verb in VERBS.values() if option in verb.spellings()]
    assert len(owners) > 1
    error = refused(run("info", "a", option, "3"))
    said = f"{option}: explorer info has no such option; it belongs to explorer {', '.join(owners)}"
    assert said in error


def test_options_may_stand_before_the_verb_and_a_file_may_be_called_like_one() -> None:
    verb, given = words.read(["--dim", "info=3", "info", "model.onnx", "--json"], VERBS)
    assert (verb.name, given.models, given.dim, given.json) == ("info", ["model.onnx"], {"info": 3}, True)
    verb, given = words.read(["info", "info"], VERBS)
    assert (verb.name, given.models) == ("info", ["info"])
    verb, given = words.read(["./info"], VERBS)
    assert (verb, given.models) == (SCREEN, ["./info"])
    verb, given = words.read(["diff", "--", "-a", "--json"], VERBS)
    assert (verb.name, given.models, given.json) == ("diff", ["-a", "--json"], False)


@pytest.mark.parametrize(
    ("typed", "key", "value"),
    [
        ("tile m -o out", "output", "out"),
        ("tile m -oout", "output", "out"),
        ("tile m --output=out", "output", "out"),
        ("tile m --output=a=b", "output", "a=b"),
        ("tile -o out m", "models", ["m"]),
        ("tile m -o -", "output", "-"),
        ("tile m --seed=3 --seed 4", "seed", 4),
        ("tile m --site a --site=b", "site", ("a", "b")),
        ("tile m", "site", ()),
        ("tile m", "draws", None),
        ("tile m", "output", None),
        ("info -", "models", ["-"]),
        ("info -- -o", "models", ["-o"]),
        ("info m --json --json", "json", True),
        ("formats", "models", []),
        ("formats m", "models", ["m"]),
    ],
)
def test_options_are_read_however_they_are_spelt(typed: str, key: str, value: Any) -> None:
    assert getattr(words.read(typed.split(), VERBS)[1], key) == value


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ("tile m --output=", "--output: the value is empty; write --output FILE, or leave it out"),
        ("map m --capacity=", "--capacity: the value is empty"),
        ("tile m -o", "--output: needs a value; write --output FILE"),
        ("tile m --draws --json", "--draws: needs a value"),
        ("info m --trust=yes", "--trust: takes no value"),
        ("info m -hx", "--help: takes no value"),
        ("info m -z", "-z: explorer info has no such option"),
        ("formats a b", "b: one word too many; explorer formats [MODEL]"),
        ("outline", "outline: needs a model; type explorer outline MODEL"),
        ("outline m --dim a=1", "--dim: explorer outline has no such option"),
    ],
)
def test_what_is_spelt_wrong_is_said(run: Run, typed: str, said: str) -> None:
    assert said in refused(run(*typed.split()))


def test_every_option_of_the_issue_is_read() -> None:
    line = (
        "tile m -o out --tile 64x32x16 --site *fc* --site head --edges padded --form lab --draws 5 --seed 7"
        " --force --no-verify --weights DEFAULT --dim a=1 --dim b=2 --input-shape x:1,3 --input-shape y:[4]"
        " --json --quiet --trust"
    )
    verb, given = words.read(line.split(), VERBS)
    assert verb.name == "tile"
    assert given.output == "out"
    assert given.tile == (64, 32, 16)
    assert given.site == ("*fc*", "head")
    assert (given.edges, given.form, given.draws, given.seed) == ("padded", "lab", 5, 7)
    assert all((given.force, given.no_verify, given.json, given.quiet, given.trust))
    assert given.weights == "DEFAULT"
    assert given.dim == {"a": 1, "b": 2}
    assert given.input_shape == {"x": (None, (1, 3)), "y": (None, (4,))}


def test_a_verb_is_called_like_its_file_and_does_something() -> None:
    assert len(VERBS) > 20
    for name, verb in VERBS.items():
        assert verb.name == name
        assert verb.run is not None
        assert f"explorer {name}" in f"explorer {verb.usage}"


def test_a_flag_before_its_verb_takes_a_value_where_the_verb_has_it_so() -> None:
    seen: dict[str, set[bool]] = {}
    for verb in (SCREEN, *VERBS.values()):
        for word, option in verb.spellings().items():
            seen.setdefault(word, set()).add(bool(option.metavar))
    assert [word for word, kinds in seen.items() if len(kinds) > 1] == ["--map", "--train"]
    verb, given = words.read(["--train", "profile", "m"], VERBS)
    assert (verb.name, given.train, given.models) == ("profile", True, ["m"])
    for line in (["--train", "lr=1e-3", "sweep", "m"], ["sweep", "--train", "lr=1e-3", "m"]):
        verb, given = words.read(line, VERBS)
        assert (verb.name, given.models, given.train) == ("sweep", ["m"], "lr=1e-3")
    verb, given = words.read(["--map", "sweep", "m", "--machine", "npu"], VERBS)
    assert (verb.name, given.map, given.models) == ("sweep", True, ["m"])
    verb, given = words.read(["--style", "torchinfo", "layers", "m"], VERBS)
    assert (verb.name, given.style, given.models) == ("layers", "torchinfo", ["m"])


def test_the_machine_of_a_plan_may_still_be_called_its_profile() -> None:
    for typed in ("plan m --machine npu.toml", "plan m --profile npu.toml", "--profile=npu.toml sweep m"):
        given = words.read(typed.split(), VERBS)[1]
        assert given.machine == "npu.toml"
        assert "machine" in given.explicit


def test_help_of_every_verb_names_its_options_and_shows_examples(run: Run) -> None:
    for verb in (None, *VERBS):
        code, out, err = run(verb or "--help", "--help" if verb else "all")
        assert (code, err) == (0, "")
        assert "examples:\n  explorer" in out
        for flag in VERBS[verb].options if verb else ():
            assert flag in out
        assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize("columns", [60, 80, 120])
def test_the_first_help_groups_all_verbs_and_fits_the_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) <= (10 if columns == 120 else 16)
    assert max(map(len, lines)) <= max(columns, 80), "two lines of usage take 80"
    for title, group in group_commands(VERBS.values()).items():
        assert title in out
        assert all(f" {verb.name}" in out for verb in group)
    assert "explorer --help all" in out


def test_the_columns_of_the_full_help_are_as_wide_as_their_words(run: Run) -> None:
    _, out, _ = run("--help", "all")
    for verb in VERBS.values():
        row = [verb.name, " ".join(verb.models), verb.summary]
        assert re.search("^  " + " +".join(map(re.escape, filter(None, row))) + "$", out, re.M), row


def test_the_help_calls_nothing_a_model_that_is_none(run: Run) -> None:
    models = {"MODEL", "OTHER", "BESIDE", "A", "B", "M1", "M2", "..."}
    for verb in VERBS.values():
        kinds = {word.strip("[]") for word in verb.models}
        if not verb.words and not verb.meaning:
            assert kinds - {*verb.others} <= models, verb.name
        _, out, _ = run(verb.name, "--help")
        for word, meaning in verb.others.items():
            assert f"\n{word} is {meaning}.\n" in out


def test_every_example_in_the_help_can_be_typed() -> None:
    for name, verb in VERBS.items():
        for example in verb.examples:
            typed = shlex.split(example.split("   ")[0])
            assert typed[:2] == ["explorer", name]
            words.read(typed[1:], VERBS)


def test_every_verb_says_how_it_can_end_and_a_verdict_is_one_code_everywhere() -> None:
    verify = VERBS["verify"].exits
    assert {*verify} == {*VERDICTS}
    assert [verify[kind] for kind in ("equal", "parts", "evidence", "different", "unproven")] == [
        0,
        0,
        0,
        1,
        3,
    ]
    for verb in VERBS.values():
        assert {0} <= {*verb.exits.values()} <= {0, 1, 2, 3}, verb.name
        assert all(verify.get(end, code) == code for end, code in verb.exits.items()), verb.name


def test_the_help_of_a_verb_says_what_its_exit_codes_mean(run: Run) -> None:
    _, out, _ = run("verify", "--help")
    assert out.endswith(
        """exit codes:
  0    proven equal, parts equal, equal on evidence
  1    different
  2    misuse or bad input
  3    not proved
  130  interrupted
"""
    )
    _, out, _ = run("info", "--help")
    assert out.endswith("exit codes:\n  0    done\n  2    misuse or bad input\n  130  interrupted\n")


WITHOUT_A_MODEL = (
    *("cache", "schema", "completion", "doctor", "help", "list", "machines", "man", "passes", "serve"),
)
"""Verbs that open none; each visitor of `serve` has a session of his own."""


def test_every_verb_and_the_screen_take_a_limit_of_memory() -> None:
    for verb in (SCREEN, *VERBS.values()):
        assert "--memory" in verb.options or verb.name in WITHOUT_A_MODEL


def test_a_resumed_session_has_its_own_options_and_only_trust_is_asked_again() -> None:
    verb, given = words.read(["--resume", "--trust", "--memory", "8G", "net.pt"], VERBS)
    assert (verb, given.resume, given.trust, given.memory, given.models) == (
        SCREEN,
        True,
        True,
        8 << 30,
        ["net.pt"],
    )
    assert words.read(["--resume"], VERBS)[1].models == []
    for typed in (["--dim", "batch=8"], ["--observe"], ["--rules", "r.py"], ["--decode", "--past", "3"]):
        with pytest.raises(Misuse, match="is set by the resumed session"):
            words.read(["--resume", *typed], VERBS)


def test_version_is_the_packages(run: Run) -> None:
    assert run("--version") == (0, f"explorer {explorer.__version__}\n", "")


# what cannot be opened


def test_the_screen_says_at_once_that_a_path_leads_nowhere(run: Run, tmp_path: Path) -> None:
    (tmp_path / "lenet.onnx").write_bytes(b"x")
    assert "no such file; did you mean 'lenet.onnx'?" in refused(run(tmp_path / "lenett.onnx"))
    assert "is a directory" in refused(run(tmp_path))


def test_the_screen_needs_a_terminal_and_says_what_prints_instead(run: Run, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(b"x")
    assert f"explorer info {model}" in refused(run(model))


# the session's answers, and what comes of them


class _Broken:
    """A session whose opening ends as told."""

    def __init__(self, end: BaseException) -> None:
        self.end = end

    def __call__(self, *_: object, **__: object) -> _Broken:
        return self

    def __enter__(self) -> _Broken:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def open(self, **_: object) -> None:
        print("noise of a model's own code")
        os.write(1, b"noise of native code\n")
        raise self.end


@pytest.mark.parametrize(
    ("end", "code", "said"),
    [
        (
            BadModel("is empty", where="m.onnx", hint="export it again"),
            2,
            "m.onnx: is empty; export it again",
        ),
        (Misuse("a\nb\x1b[2J", where="x"), 2, "x: a b\\x1b[2J"),
        (Cancelled(), 130, "stopped"),
        (KeyboardInterrupt(), 130, "stopped; nothing was written"),
        (MemoryError(), 2, "not enough memory"),
        (RuntimeError("surprise"), 2, "internal error: RuntimeError: surprise"),
    ],
)
def test_every_end_is_one_line_and_an_exit_code(
    run: Run, monkeypatch: pytest.MonkeyPatch, end: BaseException, code: int, said: str
) -> None:
    monkeypatch.setattr("explorer.session.Session", _Broken(end))
    got, out, err = run("info", "m.onnx")
    assert (got, out) == (code, "")
    last = err.splitlines()[-1]
    assert last.startswith("explorer: ")
    assert said in last


def test_the_help_of_a_verb_fills_the_lines_of_a_narrow_terminal(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.cli.arguments.help.width", lambda: 80)
    lines = run("plan", "--help")[1].splitlines()
    first = next(index for index, line in enumerate(lines) if line.startswith("MODEL is"))
    paragraph = lines[first : lines.index("", first)]
    assert max(map(len, paragraph)) <= 80
    assert min(len(line) for line in paragraph[:-1]) > 60, "no line is broken twice"


def test_a_message_at_a_terminal_breaks_between_words(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    piped = run("info", "no_such_model", "--dim", "batch=1")[2]
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "30")
    lines = run("info", "no_such_model", "--dim", "batch=1")[2].splitlines()
    assert len(lines) > 1
    assert max(map(len, lines)) <= 30
    assert " ".join(" ".join(lines).split()) == piped.strip()


def test_a_sentence_of_a_library_ends_once_before_the_next_step() -> None:
    assert str(Misuse("sizes differ.", hint="set other sizes")) == "sizes differ; set other sizes"
    assert str(Misuse("reading ...", hint="wait")) == "reading ...; wait"
    assert str(Misuse("sizes differ.")) == "sizes differ."


def test_a_bug_shows_its_traceback_to_who_asks(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("explorer.session.Session", _Broken(RuntimeError("surprise")))
    monkeypatch.setenv("EXPLORER_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="surprise"):
        run("info", "m.onnx")


def test_standard_output_is_only_the_answer_whatever_the_model_prints(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("explorer.session.Session", _Broken(Misuse("no")))
    assert main.main(["info", "m"]) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert "noise of native code" in err
    assert main.main(["info", "m", "--quiet"]) == 2
    out, err = capfd.readouterr()
    assert (out, err) == ("", "explorer: no\n")
    print("still there", flush=True)
    os.write(1, b"and here\n")
    assert sorted(capfd.readouterr().out.split("\n")) == ["", "and here", "still there"]


# real models


@pytest.fixture
def lenet(sample: Callable[[str], Path]) -> Path:
    return sample("lenet")


def test_every_verb_answers_in_text_and_in_json(run: Run, lenet: Path, tmp_path: Path) -> None:
    tiled = tmp_path / "tiled.onnx"
    commands = [
        ("info", lenet),
        ("layers", lenet),
        ("ops", lenet),
        ("tile", lenet, "-o", tiled, "--force"),
        ("verify", lenet, tiled),
        ("verify", lenet, lenet),
        ("diff", lenet, lenet),
    ]
    for command in commands:
        code, out, _ = run(*command)
        assert code == 0, command
        assert "\x1b" not in out
        assert out.endswith("\n")
        code, out, _ = run(*command, "--json", "--quiet")
        assert code == 0, command
        assert json.loads(out)["schema_version"] == 1


def test_what_the_runtime_cannot_run_can_be_tiled_without_the_proof(run: Run, tmp_path: Path) -> None:
    import numpy as np
    import onnx
    from onnx import helper, numpy_helper

    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="product"),
        helper.make_node("Frob", ["h"], ["y"], domain="acme"),
    ]
    ports = [[helper.make_tensor_value_info(name, 1, [3, size])] for name, size in (("x", 6), ("y", 5))]
    weight = numpy_helper.from_array(np.ones((6, 5), np.float32), "w")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    graph = helper.make_graph(nodes, "g", *ports, [weight])
    source, target = tmp_path / "a.onnx", tmp_path / "b.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), source)
    message = refused(run("tile", source, "-o", target, "--quiet"))
    assert "acme:Frob" in message
    assert message.rstrip().endswith(
        "nothing was written; --no-verify tiles the model without proving the result"
    )
    assert not target.exists()
    assert run("tile", source, "-o", target, "--quiet", "--no-verify")[0] == 0
    assert target.exists()


def test_a_shown_difference_is_exit_code_1(run: Run, lenet: Path, tmp_path: Path) -> None:
    tiled = tmp_path / "tiled.onnx"
    assert run("tile", lenet, "-o", tiled)[0] == 0
    code, out, _ = run("diff", lenet, tiled)
    assert code == 1
    assert "tiled" in out
    assert next(line.split() for line in out.splitlines() if "operator" in line) == [
        "operator", "before", "unchanged", "changed"
    ], "no node was added or removed"  # fmt: skip


def test_what_open_sizes_change_is_said_where_the_figures_are(run: Run, tmp_path: Path, lenet: Path) -> None:
    body = "(float[rows,70] x) => (float[rows,40] y) <float[70,40] w> { y = MatMul(x, w) }"
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 17]> g {body}')
    weight = onnx.numpy_helper.from_array(np.full((70, 40), 0.5, np.float32), "w")
    model.graph.initializer.append(weight)
    source, target = tmp_path / "open.onnx", tmp_path / "tiled.onnx"
    onnx.save(model, source)
    code, out, _ = run("tile", source, "-o", target)
    assert code == 0
    assert "Tiles of open sizes are always padded; '--dim rows=SIZE' fixes a size." in out
    tiles = re.search(r"([\d,]+) tile matmuls at (\d+) sizes together checked", out)
    assert tiles is not None
    tried = re.search(r"sizes: (.*); x: ", out)
    assert tried is not None
    assert len(tried[1].split("; ")) == int(tiles[2])
    assert "1 output in 1 run at the first size" in out or "1 output bit for bit the same in 1 run" in out
    assert "always padded" in run("plan", source)[1]
    assert "--dim rows=1" in run("compare", lenet, source)[1]


def test_the_last_tiles_of_an_axis_are_partial_in_plain_and_in_older_words(run: Run, lenet: Path) -> None:
    plain = run("plan", lenet, "--tile", "48", "--edges", "Partial")
    assert plain[0] == 0
    assert (
        plain == run("plan", lenet, "--tile", "48", "--edges", "ragged") == run("plan", lenet, "--tile", "48")
    )
    assert "partial tiles at the edges" in plain[1]
    assert "ragged" not in plain[1]
    assert "partial|padded" in run("tile", "--help")[1]
    assert "partial, padded" in run("sweep", lenet, "--edges", "partial, torn")[2]


def test_what_was_not_chosen_is_in_the_share_that_stays(run: Run, lenet: Path) -> None:
    _, out, _ = run("tile", lenet, "--site", "/fc*")
    shares = re.search(r"MACs are tiled, ([\d.]+) % of the model's MACs\. ([\d.]+) % are in layers that", out)
    assert shares is not None
    assert float(shares[1]) + float(shares[2]) == pytest.approx(100)
    assert "not chosen" not in run("tile", lenet)[1]


def test_tile_prints_plan_proof_and_change_and_writes_the_file(run: Run, lenet: Path, tmp_path: Path) -> None:
    tiled = tmp_path / "tiled.onnx"
    code, out, _ = run("tile", lenet, "-o", tiled, "--tile", "32")
    assert code == 0
    for said in (
        "32x32x32",
        "tile matmuls",
        "Proof",
        "equal",
        "What changed",
        f"wrote {tiled}",
        "explorer diff",
    ):
        assert said in out
    assert tiled.stat().st_size > 0
    assert list(tmp_path.iterdir()) == [tiled], "nothing else is left behind"


def test_the_next_command_opens_the_same_model(
    run: Run, sample: Callable[[str], Path], tmp_path: Path
) -> None:
    bound = ["--dim", "batch=2", "--dim", "sequence=8"]
    code, out, _ = run("tile", sample("bert_tiny"), "-o", tmp_path / "b.onnx", "--no-verify", *bound)
    assert code == 0
    command = next(line for line in out.splitlines() if "explorer diff" in line)
    assert "--dim batch=2 --dim sequence=8" in command
    shown = shlex.split(command.partition("next  ")[2].partition("  print what changed")[0])
    assert run(*shown[1:])[0] == 1, "the command works as it is printed"
    shaped = {"x": ("float32", (1, 3)), "s": (None, ())}
    given = words.read(["info", "m", "--input-shape", "x:f32:1x3", "--input-shape", "s:[]"], VERBS)[1]
    assert given.input_shape == shaped
    again = parse.write_opening_words(given.opening)
    assert words.read(["info", "m", *again], VERBS)[1].input_shape == shaped


def test_tile_without_a_target_shows_the_plan_and_writes_nothing(
    run: Run, lenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("tile", lenet)
    assert code == 0
    assert "no file was written" in out
    assert list(tmp_path.iterdir()) == []


def test_edges_are_said_to_be_what_they_will_be(run: Run, sample: Callable[[str], Path]) -> None:
    bert = sample("bert_tiny")
    _, opened, _ = run("tile", bert, "--tile", "16")
    assert "padded tiles at the edges" in opened.splitlines()[0], "open sizes are padded, whatever is asked"
    _, bound, _ = run("tile", bert, "--tile", "16", "--dim", "batch=2", "--dim", "sequence=8")
    assert "partial tiles at the edges" in bound.splitlines()[0]
    _, batched, _ = run("tile", sample("lenet"), "--tile", "16", "--form", "batched")
    assert "padded tiles at the edges" in batched.splitlines()[0]
    _, settings, _ = run("settings", bert, "--tile", "16")
    assert "padded (open sizes)" in settings
    assert "partial" not in settings.split("Brackets show")[0]


def test_what_goes_wrong_after_the_file_is_written_does_not_deny_it(
    run: Run, lenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def diff(*_: object, **__: object) -> None:
        raise BadModel("odd")

    monkeypatch.setattr("explorer.session.Session.diff", diff)
    code, out, err = run("tile", lenet, "-o", tmp_path / "t.onnx")
    assert code == 0
    assert "what changed cannot be shown: odd" in err
    assert "no file was written" not in out + err
    assert (tmp_path / "t.onnx").exists()


def test_an_existing_file_is_kept_unless_force_is_given(run: Run, lenet: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious.onnx"
    target.write_text("precious")
    assert "--force" in refused(run("tile", lenet, "-o", target))
    assert target.read_text() == "precious"
    assert run("tile", lenet, "-o", target, "--force", "--no-verify")[0] == 0
    assert target.read_bytes() != b"precious"


def test_the_model_itself_is_never_overwritten(run: Run, lenet: Path, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(lenet.read_bytes())
    (tmp_path / "link.onnx").symlink_to(model)
    for target in (model, tmp_path / "link.onnx", tmp_path / "." / "m.onnx"):
        assert "model itself" in refused(run("tile", model, "-o", target, "--force"))
    assert model.read_bytes() == lenet.read_bytes()


def test_the_models_weights_beside_it_are_never_overwritten(
    run: Run, lenet: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    onnx = pytest.importorskip("onnx")
    monkeypatch.chdir(tmp_path)
    loaded = onnx.load(lenet)
    onnx.save(loaded, "m.onnx", save_as_external_data=True, location="m.bin", size_threshold=0)
    before = Path("m.bin").read_bytes()
    assert "weights lie in this file" in refused(run("tile", "m.onnx", "-o", "m.bin", "--force"))
    assert Path("m.bin").read_bytes() == before
    assert run("tile", "m.onnx", "-o", "tiled.onnx")[0] == 0


def test_a_pipe_is_neither_read_nor_replaced(run: Run, lenet: Path, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    assert "not a regular file" in refused(run("info", pipe))
    assert "not a regular file" in refused(run("tile", lenet, "-o", pipe, "--force"))
    assert pipe.is_fifo()


def test_a_wrong_name_comes_with_the_nearest(run: Run, lenet: Path, sample: Callable[[str], Path]) -> None:
    assert "did you mean" in refused(run("tile", lenet, "--site", "/fc1/Gem"))
    assert "did you mean 'batch'?" in refused(run("info", sample("bert_tiny"), "--dim", "bacth=8"))


def test_symbolic_dimensions_are_bound_by_name(run: Run, sample: Callable[[str], Path]) -> None:
    bert = sample("bert_tiny")
    code, out, _ = run("info", bert)
    assert code == 0
    assert "--dim" in out, "the option that binds them is shown"
    one = json.loads(run("info", bert, "--dim", "batch=1", "--dim", "sequence=16", "--json")[1])
    two = json.loads(run("info", bert, "--dim", "batch=2", "--dim", "sequence=16", "--json")[1])
    assert two["totals"]["macs"] == 2 * one["totals"]["macs"] > 0
    assert two["assumptions"]["dims"] == {"batch": 2, "sequence": 16}


def test_seeds_make_a_proof_repeatable(run: Run, lenet: Path) -> None:
    words = ("verify", lenet, lenet, "--draws", "2", "--seed", "5", "--json")
    first, again = json.loads(run(*words)[1]), json.loads(run(*words)[1])
    assert len(first["seeds"]) == 2
    assert first["seeds"] == again["seeds"] != json.loads(run(*words[:-2], "6", "--json")[1])["seeds"]
    assert first["outputs"] == again["outputs"]


# the process


def test_a_reader_that_goes_away_is_no_error(lenet: Path) -> None:
    line = f"{sys.executable} -m explorer layers {lenet} | head -n 1; echo ${{PIPESTATUS[0]}}"
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(
        ["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False, env=env
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[-1] == "0"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_behind_standard_output_is_one_line() -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "explorer", "--help"]
        env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False, env=env)
    assert done.returncode == 2
    assert done.stderr == "explorer: standard output: No space left on device\n"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    line = line.replace("explorer", f"{shlex.quote(sys.executable)} -m explorer", 1)
    return subprocess.run(
        ["sh", "-c", line], capture_output=True, text=True, timeout=120, check=False, env=env
    )


@pytest.mark.parametrize("verb", ["info", "outline", "--version"])
def test_a_closed_standard_output_is_one_line(verb: str, lenet: Path) -> None:
    done = shell(f"explorer {verb} {lenet} >&-")
    assert done.returncode == 2
    assert done.stderr == "explorer: standard output: it is closed\n"


@pytest.mark.slow
def test_without_standard_error_an_answer_is_still_only_the_answer(lenet: Path) -> None:
    assert shell("explorer info nowhere.onnx 2>&-").stdout == ""
    assert shell(f"explorer layers {lenet} <&- 2>&-").stdout == shell(f"explorer layers {lenet}").stdout


@pytest.mark.slow
def test_ctrl_c_is_one_line_exit_code_130_and_no_file(lenet: Path, tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import pathlib, time\n\n\ndef model():\n    pathlib.Path('reached').touch()\n    time.sleep(1_000)\n"
    )
    pytest.importorskip("torch")
    command = [sys.executable, "-m", "explorer", "tile", "slow:model", "-o", "out.onnx"]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=env
    ) as child:
        until = time.monotonic() + 120
        while not (tmp_path / "reached").exists() and time.monotonic() < until and child.poll() is None:
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=120)
    assert (child.returncode, out, err) == (130, "", "explorer: stopped; nothing was written\n")
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "color", [{"FORCE_COLOR": "1"}, {"TERM": "xterm-256color"}, {"PYTHONIOENCODING": "ascii"}]
)
def test_redirected_output_has_no_escape_sequence_whatever_the_environment(
    lenet: Path, color: dict[str, str]
) -> None:
    env = {**os.environ, **color, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = program("layers", lenet, env=env)
    assert done.returncode == 0
    assert "\x1b" not in done.stdout + done.stderr
    assert done.stderr == ""


def test_nothing_heavy_is_loaded_to_say_the_version_or_to_read_words() -> None:
    code = (
        "import sys; from explorer.cli import main as cli; cli.main(['--version']);"
        " cli.main(['tile', 'x', '--tile', '0']);"
        "heavy = {'rich', 'textual', 'numpy', 'onnx', 'onnxruntime', 'torch', 'explorer.session'};"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=env, timeout=120)


def test_json_needs_nothing_to_draw_with(lenet: Path) -> None:
    code = (
        "import sys; from explorer.cli.main import main; assert main(['layers', sys.argv[1], '--json']) == 0;"
        "assert not {'rich', 'textual', 'torch'} & set(sys.modules)"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", code, lenet], check=True, capture_output=True, env=env, timeout=120)


# the progress line


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_one_line_that_is_wiped(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = _Terminal()
    line = ProgressLine(stream)
    line(Progress("reading", 1, 2000))
    assert stream.getvalue() == "", "a job that is over at once flashes nothing"
    now[0] = 2.0
    line(Progress("writing tiles", 1500, 2000))
    assert stream.getvalue() == "\rwriting tiles 1,500/2,000   2.0 s"
    line(Progress("writing tiles", 1501, 2000))
    assert stream.getvalue().count("\r") == 1, "not more often than the eye can follow"
    line.clear()
    assert stream.getvalue().endswith("\r" + " " * 33 + "\r")
    assert "\x1b" not in stream.getvalue()


@pytest.mark.parametrize("quiet", [True, False])
def test_progress_is_drawn_on_a_terminal_only_and_never_when_quiet(
    monkeypatch: pytest.MonkeyPatch, quiet: bool
) -> None:
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    stream = _Terminal() if quiet else io.StringIO()
    line = ProgressLine(stream, quiet=quiet)
    now[0] = 5.0
    line(Progress("reading", 1, 2))
    line.clear()
    assert stream.getvalue() == ""


@pytest.mark.parametrize("how", [(), ("--json",), ("--csv",)])
def test_rows_that_are_made_while_they_are_printed_read_the_same(
    how: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["layers", "sample_models/mobilenet_small.onnx", *how]
    assert main.main(words) == 0
    printed = capsys.readouterr().out
    monkeypatch.setattr("explorer.engine.costs.layer_rows.LAZY_ROWS", 0)
    assert main.main(words) == 0
    assert capsys.readouterr().out == printed
    assert printed.count("\n") > 50


@pytest.mark.parametrize("verb", ["map", "graph", "emit", "split"])
def test_the_help_of_an_option_speaks_of_its_own_verb(verb: str) -> None:
    from explorer.cli.commands import VERBS

    texts = [option.help for option in VERBS[verb].options.values()]
    assert not [text for text in texts if "tile only" in text or "tile:" in text or "nothing changed" in text]


def test_the_trust_of_verify_speaks_of_changed_code() -> None:
    from explorer.cli.commands import VERBS

    helps = {option.flag: option.help for option in VERBS["verify"].options.values()}
    assert "C code" in helps["--trust"]
