"""`explorer convert`: what it prints, what its JSON holds, its exit codes, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer.base.errors import Misuse
from explorer.cli import main
from explorer.cli.arguments import parser
from explorer.cli.commands import VERBS
from explorer.engine.convert import CONVERTERS, find
from explorer.facts.conversion import ConversionOptions
from explorer.manual import page
from tests import answers

Run = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs a command in this process, in the test's folder: exit code, standard output and error."""
    monkeypatch.chdir(tmp_path)

    def call(*typed: object) -> tuple[int, str, str]:
        code = main.main([str(word) for word in typed])
        out, err = capsys.readouterr()
        return code, out, err

    return call


@pytest.fixture
def tensors(tmp_path: Path) -> Path:
    """A safetensors file of two tensors."""
    head = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
            "a.bias": {"dtype": "F16", "shape": [2], "data_offsets": [24, 28]},
        }
    ).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + bytes(range(28)))
    return path


def test_it_says_what_was_made_and_on_what_evidence(run: Run, tensors: Path) -> None:
    code, out, err = run("convert", "a.safetensors", "-o", "a.pt", "--quiet")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "a.safetensors   safetensors to checkpoint   by copying 2 tensors, 28 B"
    assert "equal byte for byte: 2 tensors, 28 B" in out
    assert out.splitlines()[-1].startswith("written  a.pt   ")


def test_the_answer_as_json(run: Run, tensors: Path) -> None:
    code, out, _ = run("convert", "a.safetensors", "-o", "a.pt", "--json")
    found = json.loads(out)
    answers.check("convert", found)
    assert code == 0
    assert (found["from"], found["to"], found["output"]) == ("safetensors", "checkpoint", "a.pt")
    assert found["file_bytes"] == os.path.getsize("a.pt")
    assert (found["stored"]["passed"], found["stored"]["tensors"], found["stored"]["nbytes"]) == (True, 2, 28)
    assert found["verification"] is None
    assert parser.read(found["command"].split()[1:], VERBS)[0].name == "convert"


def test_a_module_the_answer_as_json(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine.py").write_text("from torch import nn\ndef net():\n    return nn.Linear(8, 4)\n")
    typed = [
        "mine.py:net",
        "-o",
        "net.onnx",
        "--dynamic",
        "input:0=batch",
        "--input-names",
        "x",
        "--opset",
        "14",
    ]
    code, out, _ = run("convert", *typed, "--exporter", "torchscript", "--draws", 2, "--seed", 5, "--json")
    found = json.loads(out)
    answers.check("convert", found)
    assert code == 0
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["batch", 8], "origin": "declared"}]
    assert (found["opset"], found["verification"]["seeds"]) == (14, [5, 6])
    verb, given = parser.read(found["command"].split()[1:], VERBS)
    assert verb.name == "convert"
    assert given.dynamic == {"input": {0: "batch"}}
    assert (given.opset, given.exporter, given.input_names) == (14, "torchscript", ("x",))


def test_a_model_that_came_out_different_is_exit_code_1_and_nothing_is_written(
    run: Run, tmp_path: Path
) -> None:
    pytest.importorskip("torch")
    (tmp_path / "mine2.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x):\n        return x if x.sum() > 0 else -2 * x\n"
    )
    typed = ["convert", "mine2.py:Net", "-o", "net.pt", "--input-shape", "x:2,8", "--quiet"]
    code, out, err = run(*typed)
    assert (code, err) == (1, "")
    assert "DIFFERENT" in out
    assert out.splitlines()[-1].strip() == "no file written; --no-verify writes it without the comparison"
    assert not (tmp_path / "net.pt").exists()
    code, out, _ = run(*typed, "--json")
    found = json.loads(out)
    answers.check("convert", found)
    assert (code, found["output"], found["verification"]["passed"]) == (1, None, False)
    code, out, _ = run(*typed, "--no-verify")
    assert code == 0
    assert "not compared with the source" in out
    assert (tmp_path / "net.pt").exists()


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        (["a.safetensors"], "needs --output; add --output FILE"),
        (["a.safetensors", "-o", "b.onnx"], "safetensors cannot be converted to '.onnx'; it can become"),
        (
            ["a.safetensors", "-o", "b"],
            "to a file without an ending; it can become safetensors (.safetensors)",
        ),
        (["a.safetensors", "-o", "a.safetensors"], "this is the model itself"),
        (["a.safetensors", "-o", "there.pt"], "the file exists; choose another name, or add --force"),
        (
            ["a.safetensors", "-o", "b.pt", "--opset", "17"],
            "--opset: does not go with safetensors to a state_dict",
        ),
        (["nothing.safetensors", "-o", "b.pt"], "no such file"),
        (["broken.safetensors", "-o", "b.pt"], "broken.safetensors"),
        # before it is opened: a pair that does not exist needs no framework and no whole file
        (["broken.safetensors", "-o", "b.onnx"], "safetensors cannot be converted to '.onnx'"),
        ([".", "-o", "b.pt"], "a.safetensors"),
        (
            ["lenet.onnx", "-o", "b.safetensors"],
            "onnx cannot be converted to '.safetensors'; it can become Torch",
        ),
        (["a.safetensors", "-o", "b.pt", "--dynamic", "x"], "'x' names no input; write x:0=batch"),
        (["a.safetensors", "-o", "b.pt", "--dynamic", "x:batch"], "'x:batch' names no axis"),
        (["a.safetensors", "-o", "b.pt", "--dynamic", "x:0=1"], "'1' is not a name for a dimension"),
        (["a.safetensors", "-o", "b.pt", "--dynamic", "x:0=a,0=b"], "axis 0 has two names, 'a' and 'b'"),
        (["a.safetensors", "-o", "b.pt", "--input-names", "a,,b"], "has an empty name"),
        (["a.safetensors", "-o", "b.pt", "--output-names", "a,a"], "'a' is listed twice"),
        (["a.safetensors", "-o", "b.pt", "--exporter", "dynmo"], "did you mean 'dynamo'"),
        (["a.safetensors", "-o", "b.pt", "--method", "compile"], "'compile' is not known"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_2(
    run: Run, tensors: Path, tmp_path: Path, typed: list[str], says: str
) -> None:
    (tmp_path / "there.pt").write_bytes(b"x")
    (tmp_path / "broken.safetensors").write_bytes(tensors.read_bytes()[:-1])
    (tmp_path / "lenet.onnx").write_bytes((ROOT / "sample_models" / "lenet.onnx").read_bytes())
    before = sorted(os.listdir(tmp_path))
    code, out, err = run("convert", *typed)
    assert (code, out) == (2, "")
    assert err.startswith("explorer: ")
    assert err.count("\n") == 1
    assert says in err
    assert sorted(os.listdir(tmp_path)) == before


def test_force_replaces_a_file(run: Run, tensors: Path, tmp_path: Path) -> None:
    (tmp_path / "there.pt").write_bytes(b"x")
    assert run("convert", "a.safetensors", "-o", "there.pt", "--force", "--quiet")[0] == 0
    assert (tmp_path / "there.pt").read_bytes()[:2] == b"PK"


def test_names_from_a_file_cannot_reach_the_terminal(run: Run, tmp_path: Path) -> None:
    name = "\x1b[31mred\x1b]0;title\x07"
    head = json.dumps({name: {"dtype": "F4", "shape": [2], "data_offsets": [0, 1]}}).encode()
    (tmp_path / "evil.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + b"\x01")
    code, out, err = run("convert", "evil.safetensors", "-o", "evil.pt")
    assert code == 2
    assert "torch has no type float4_e2m1fn" in err
    assert "\x1b" not in out + err


def test_tensors_are_converted_without_torch(tensors: Path) -> None:
    """A machine without PyTorch turns safetensors into a state_dict."""
    code = (
        "import sys; sys.modules['torch'] = None; sys.modules['safetensors'] = None\n"
        "from explorer.cli.main import main\n"
        "raise SystemExit(main(['convert', 'a.safetensors', '-o', 'a.pt']))"
    )
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tensors.parent, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_without_torch_a_module_says_what_to_type(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), str(tmp_path / "m.pt"))
    monkeypatch.setitem(sys.modules, "torch", None)
    code, _, err = run("convert", "m.pt", "-o", "m.onnx")
    assert code == 2
    assert "pip install 'explorer-nn[torch]'" in err


def test_every_pair_of_the_table_is_found_by_its_ending() -> None:
    for converter in CONVERTERS:
        for source in converter.sources:
            for ending in converter.endings:
                found = find(
                    source, "model", f"made{ending.upper()}", ConversionOptions(), module=converter.module
                )
                if source != "checkpoint":
                    assert found.function == converter.function, (source, ending)


def test_the_manual_names_what_can_be_made() -> None:
    said = page("formats").partition("## Converting\n")[2].partition("\n\n`")[0]
    for converter in CONVERTERS:
        assert converter.endings[0] in said or converter.about.split()[-1] in said, converter.about


def test_a_pair_that_does_not_exist_lists_those_that_do() -> None:
    with pytest.raises(Misuse, match=r"tflite cannot be converted to '\.pt'; it can become ONNX \(\.onnx\)"):
        find("tflite", "m.tflite", "m.pt", ConversionOptions(), module=None)


@pytest.mark.slow
@pytest.mark.parametrize("made", ["net.onnx", "net.pt", "net.pt2", "tiled.pt2", "lenet.pt"])
def test_a_disk_that_is_full_is_a_line_and_leaves_nothing(
    run: Run, sample: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, made: str
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "full.py").write_text(
        "import torch\n\ndef net():\n    return torch.nn.Linear(8, 8), torch.zeros(1, 8)\n"
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: types.SimpleNamespace(free=1 << 19))

    def export(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch.onnx, "export", export)
    source = str(sample("lenet")) if made == "lenet.pt" else "full.py:net"
    typed = ["tile", source, "--to", "torch"] if made == "tiled.pt2" else ["convert", source]
    before = sorted(os.listdir(tmp_path))
    code, out, err = run(*typed, "-o", made, "--no-verify", "--quiet")
    assert (code, out) == (2, "")
    assert err == f"explorer: {made}: cannot be written: the disk is full; nothing was written\n"
    assert sorted(os.listdir(tmp_path)) == before
