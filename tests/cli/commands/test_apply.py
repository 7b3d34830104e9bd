"""`explorer apply`: a user's pass joins history and proof, and a bad one is one line that leaves nothing."""

from __future__ import annotations

import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import parser

from explorer import Misuse, PassSpec, Session
from explorer.cli.main import main
from explorer.engine.edit import user_passes
from explorer.passes import graph_pass

SAMPLES = Path(__file__).parents[3] / "sample_models"
LINEAR = """<ir_version: 8, opset_import: ["" : 17]> net (float[4, 3] x) => (float[4, 2] y)
<float[3, 2] w = {1, 2, 3, 4, 5, 6}, float[2] b = {0.5, -0.5}> {
    h = MatMul (x, w)
    y = Add (h, b)
}"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the passes of the samples and a model of a product with a bias."""
    (tmp_path / "my_passes.py").write_text((SAMPLES / "passes.py").read_text())
    onnx.save(parser.parse_model(LINEAR), tmp_path / "m.onnx")
    return tmp_path


def words(folder: Path, name: str, *more: str) -> list[str]:
    passes = str(folder / "my_passes.py")
    target = str(folder / "o.onnx")
    return ["apply", str(folder / "m.onnx"), name, "-o", target, "--passes", passes, "--trust", *more]


def write_pass(folder: Path, text: str) -> None:
    (folder / "my_passes.py").write_text(f"from explorer.passes import graph_pass\n{text}\n")


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


def test_a_fused_bias_is_proved_equal(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words(folder, "fuse-bias", "--json", "--quiet")) == 0
    fact = json.loads(capsys.readouterr().out)
    assert operators(folder / "o.onnx") == ["Gemm"]
    assert (fact["nodes_before"], fact["nodes"]) == (2, 1)
    assert fact["operators"] == {"Add": -1, "Gemm": 1, "MatMul": -1}
    assert fact["verification"]["passed"]
    assert fact["blame"] == ""
    assert fact["notes"] == []
    command = words(folder, "fuse-bias", "--json", "--quiet", "--force")
    command[1] = str(SAMPLES / "mlp_128.onnx")
    assert main(command) == 0
    assert json.loads(capsys.readouterr().out)["notes"] == ["the pass changed nothing"]


def test_a_gelu_by_tanh_differs_and_the_layer_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = words(folder, "tanh-gelu", "--quiet")
    command[1] = str(SAMPLES / "bert_tiny.onnx")
    command += ["--dim", "batch=1", "--dim", "sequence=8"]
    assert main([*command, "--json"]) == 1
    fact = json.loads(capsys.readouterr().out)
    assert fact["verification"]["verdict_kind"] == "different"
    assert "intermediate" in fact["blame"]
    assert fact["output"] == ""
    assert not (folder / "o.onnx").exists()
    assert main([*command, "--no-verify", "--option", "cubic=0.05"]) == 0
    assert "Tanh" in operators(folder / "o.onnx")


def test_a_pass_is_a_state_that_undo_leaves_and_the_script_makes_again(folder: Path) -> None:
    spec = PassSpec("fuse-bias", str(folder / "my_passes.py"))
    with Session(folder / "m.onnx", trust=True) as session:
        fact = session.apply_pass(spec)
        entry = session.history().entries[1]
        assert (entry.change, entry.label) == ("apply", "pass fuse-bias")
        assert fact.command.startswith("explorer apply ")
        script = session.script_text()
        session.undo()
        assert session.history().current == 0
    line = next(line for line in script.splitlines() if line.startswith("$explorer apply"))
    assert f"fuse-bias --passes {folder / 'my_passes.py'} --trust" in line


def test_a_pass_of_a_notebook_needs_no_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_passes, "_DECLARED", {})

    @graph_pass("drop-names", "removes the names of all nodes")
    def drop_names(model: onnx.ModelProto, layers: Any, *, op: str = "") -> onnx.ModelProto:
        assert [layer.kind for layer in layers if not layer.group] == ["MatMul", "Add"]
        for node in model.graph.node:
            node.name = op
        return model

    with Session(folder / "m.onnx") as session:
        fact = session.apply_pass(PassSpec("drop-names", options={"op": "named"}))
        assert fact.verification is not None
        assert fact.verification.passed
        assert fact.command == ""
        with pytest.raises(Misuse, match="put it into a file"):
            session.script_text()


def test_passes_are_listed_with_their_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["passes", "--passes", str(folder / "my_passes.py"), "--trust"]) == 0
    text = capsys.readouterr().out
    assert "fuse-bias" in text
    assert "factor of the cubic term (default 0.044715)" in text


BAD: dict[str, tuple[str, str]] = {
    "raises": (
        "@graph_pass('p')\ndef p(model):\n    raise RuntimeError('no\\nluck')",
        "RuntimeError: no luck",
    ),
    "returns nothing": ("@graph_pass('p')\ndef p(model):\n    pass", "return model"),
    "an undefined value": (
        "@graph_pass('p')\ndef p(model):\n    model.graph.node[1].input[0] = 'gone'\n    return model",
        "invalid graph",
    ),
    "no such operator": (
        "@graph_pass('p')\ndef p(model):\n    model.graph.node[1].op_type = 'Nonsense'\n    return model",
        "Nonsense",
    ),
    "options alike": (
        "@graph_pass('p')\ndef p(model, *, bits=4, Bits=8):\n    return model",
        "two options alike",
    ),
    "no default": ("@graph_pass('p')\ndef p(model, *, bits):\n    return model", "has no default"),
    "an unknown type": ("@graph_pass('p')\ndef p(model, *, bits=()):\n    return model", "has the type"),
    "other arguments": ("@graph_pass('p')\ndef p(*models):\n    return models[0]", "takes (*models)"),
    "a bad name": ("@graph_pass('My Pass')\ndef p(model):\n    return model", "not a name of a pass"),
    "two of one name": (
        "@graph_pass('p')\ndef p(model):\n    return model\n@graph_pass('p')\ndef q(m):\n    return m",
        "two passes are named 'p'",
    ),
    "no pass": ("x = 1", "declares no pass"),
    "another pass": ("@graph_pass('pq')\ndef p(model):\n    return model", "there is no pass 'p'"),
    "no Python": ("def p(:", "are not Python"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_pass_is_one_line_and_nothing_is_written(
    folder: Path, capsys: pytest.CaptureFixture[str], case: str
) -> None:
    text, message = BAD[case]
    write_pass(folder, text)
    before = sorted(path.name for path in folder.iterdir())
    assert main(words(folder, "p")) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1, error
    assert "Traceback" not in error
    assert sorted(path.name for path in folder.iterdir()) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--option", "cubic=soft"], "is not a number"),
        (["--option", "cube=1"], "no option 'cube'"),
        (["--option", "cubic"], "write NAME=VALUE"),
        (["--option", "cubic=1", "--option", "cubic=2"], "'cubic' is 1 and 2"),
    ],
)
def test_a_bad_option_is_one_line(
    folder: Path, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(words(folder, "tanh-gelu", *more)) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.strip().splitlines()) == 1
    assert not (folder / "o.onnx").exists()


def test_a_file_of_passes_needs_trust(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [word for word in words(folder, "fuse-bias") if word != "--trust"]
    assert main(command) == 2
    assert "--trust" in capsys.readouterr().err


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A function that installs a package with the pass `installed`."""
    root = tmp_path / "site"

    def add(package: str) -> None:
        about = root / f"{package}-1.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (about / "entry_points.txt").write_text(f"[explorer.passes]\ninstalled = {package}:run\n")
        code = "from explorer.passes import graph_pass\n@graph_pass('installed')\ndef run(model):\n"
        (root / f"{package}.py").write_text(f"{code}    return model\n")

    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setattr(user_passes, "_DECLARED", {})
    yield add
    for name in ("first_plugin", "second_plugin"):
        sys.modules.pop(name, None)


def test_a_package_that_cannot_be_imported_hides_no_other_pass(
    install: Callable[[str], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install("first_plugin")
    install("second_plugin")
    (tmp_path / "site" / "second_plugin.py").write_text("import a_module_that_nobody_has\n")
    importlib.invalidate_caches()
    assert main(["passes", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["passes"]
    assert (first["name"], first["problem"]) == ("installed", "")
    assert "a_module_that_nobody_has" in second["problem"]
    assert second["home"] == "second_plugin"


def test_a_pass_of_a_package_needs_no_file_and_no_trust(
    folder: Path, install: Callable[[str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install("first_plugin")
    importlib.invalidate_caches()
    command = ["apply", str(folder / "m.onnx"), "installed", "-o", str(folder / "o.onnx"), "--quiet"]
    assert main(command) == 0
    assert operators(folder / "o.onnx") == ["MatMul", "Add"]
    install("second_plugin")
    importlib.invalidate_caches()
    assert main([*command, "--force"]) == 2
    error = capsys.readouterr().err
    assert "2 plug-ins have a pass 'installed'" in error
    assert len(error.strip().splitlines()) == 1
