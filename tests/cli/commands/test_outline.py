"""`explorer outline` and `explorer formats`: at once, with nothing installed, and safe to print."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
from onnx import helper

import explorer
from explorer.base.outline import Outline, OutlineRow
from explorer.cli import main
from explorer.cli.arguments import help
from explorer.report import doctor_words, formats, outline_words
from explorer.session import headers
from tests import answers, manual
from tests.fresh import loaded, tops

Sample = Callable[[str], Path]
ROOT = Path(explorer.__file__).parent.parent


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main.main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


# what it takes to start


SLOW = {
    *("argparse", "collections", "contextlib", "dataclasses", "difflib", "enum", "functools", "gettext"),
    *("hashlib", "inspect", "json", "locale", "logging", "msgspec", "numpy", "onnx", "onnxruntime"),
    *("pathlib", "pickle", "random", "re", "rich", "shutil", "signal", "subprocess", "tempfile", "textual"),
    *("textwrap", "threading", "torch", "typing", "zipfile"),
}


def test_the_outline_of_an_onnx_file_imports_a_dozen_small_modules(sample: Sample) -> None:
    seen = loaded("outline", sample("lenet"))
    assert not tops(seen) & SLOW
    assert not seen & {
        "explorer.facts",
        "explorer.session.session",
        "explorer.settings.parse",
        "explorer.process.signals",
    }
    # the rooms on the way to a module are empty
    own = {name for name in seen if not any(other.startswith(f"{name}.") for other in seen)}
    # five of them hold the door to files, the place it confines, the system's name, the versions tested and
    # the texts of errors, which must be there when no file can be opened
    assert len(own - set(sys.builtin_module_names)) <= 35, sorted(seen)


def test_listing_a_folder_imports_no_framework_and_nothing_that_draws(sample: Sample) -> None:
    seen = loaded(sample("lenet").parent)
    assert not tops(seen) & {"msgspec", "numpy", "onnx", "rich", "textual", "torch"}


def test_the_layers_of_an_onnx_file_import_nothing_that_draws_where_there_is_no_terminal(
    sample: Sample,
) -> None:
    seen = loaded("layers", sample("lenet"))
    # what filelock imports is there: the analysis is kept under a lock
    assert not tops(seen) & {"argparse", "dataclasses", "onnx", "torch"}
    assert not {
        name for name in seen if name.startswith("rich.") and name.split(".")[1] in ("console", "text")
    }


# what it says


def test_a_person_reads_names_types_shapes_sizes_and_the_sums(
    capsys: pytest.CaptureFixture[str], sample: Sample
) -> None:
    code, out, err = run(capsys, "outline", sample("lenet"))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].split("   ")[1:] == ["ONNX", "242.71 KiB"]
    assert "opset       17" in lines
    tensor = next(line for line in lines if "conv2.weight" in line and line.startswith("tensor"))
    assert tensor.split() == ["tensor", "conv2.weight", "float32", "[16,", "6,", "5,", "5]", "9.38", "KiB"]
    assert lines[-1] == "12 operators, 10 tensors of 241.04 KiB, 1 input, 1 output"
    assert all(line == line.rstrip() for line in lines)


def test_the_json_keeps_its_contract_and_says_the_same(
    capsys: pytest.CaptureFixture[str], sample: Sample
) -> None:
    code, out, _ = run(capsys, "outline", sample("bert_tiny"), "--json")
    assert code == 0
    answer = json.loads(out)
    answers.check("outline", answer)
    rows = list(headers.read_outline(str(sample("bert_tiny"))).rows)
    assert [row["path"] for row in answer["rows"]] == [row.path for row in rows]
    assert [row["bytes"] for row in answer["rows"]] == [row.nbytes for row in rows]


def test_an_outline_with_nothing_in_it_is_still_a_document() -> None:
    empty = Outline("onnx", "m", 3, (), ())
    assert json.loads("".join(outline_words.write_json(empty, {})))["rows"] == []
    assert "".join(outline_words.compose_text(empty)).endswith("nothing is in it\n")


def test_a_folder_is_listed_by_its_name_by_outline_and_by_formats(
    capsys: pytest.CaptureFixture[str], sample: Sample, tmp_path: Path
) -> None:
    shutil.copy(sample("lenet"), tmp_path / "a.bin")
    printed = [run(capsys, *words) for words in ((tmp_path,), ("outline", tmp_path), ("formats", tmp_path))]
    assert printed[0] == printed[1] == printed[2]
    assert "model  a.bin  onnx  242.71 KiB" in printed[0][1]
    code, out, _ = run(capsys, "formats", tmp_path, "--json")
    assert code == 0
    answers.check("outline", json.loads(out))


def test_formats_are_listed_as_the_manual_has_them(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "formats")
    assert code == 0
    for format, converts in headers.list_formats():
        assert f"{format.name}: {format.about}" in out
        assert f"| {format.name} | {format.about}" in manual.formats()
        assert format.name not in converts
    code, out, _ = run(capsys, "formats", "--json")
    answers.check("formats", json.loads(out))
    assert len(json.loads(out)["formats"]) == len(list(headers.list_formats()))


@pytest.mark.parametrize("words", [("outline", "alexnet"), ("formats", "alexnet")])
def test_a_name_has_no_header(capsys: pytest.CaptureFixture[str], words: tuple[str, ...]) -> None:
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "not a file whose header could be read; explorer layers alexnet opens it" in err


def test_a_broken_file_is_one_line_and_an_exit_code(
    capsys: pytest.CaptureFixture[str], sample: Sample, tmp_path: Path
) -> None:
    broken = tmp_path / "m.onnx"
    for content in (sample("lenet").read_bytes()[:120], b"no model"):
        broken.write_bytes(content)
        for words in ((), ("--json",)):
            code, out, err = run(capsys, "outline", broken, *words)
            assert (code, out, err.count("\n")) == (2, "", 1)
    assert "this is not an ONNX model" in err


def test_of_a_file_that_was_cut_off_what_is_there_is_shown_before_the_error(
    capsys: pytest.CaptureFixture[str], sample: Sample, tmp_path: Path
) -> None:
    broken = tmp_path / "m.onnx"
    broken.write_bytes(sample("lenet").read_bytes()[:2000])
    code, out, err = run(capsys, "outline", broken)
    assert (code, err.count("\n")) == (2, 1)
    assert "truncated or damaged" in err
    assert out.splitlines()[-1].endswith("as far as it can be read")
    code, written, again = run(capsys, "outline", broken, "--json")
    assert (code, again) == (2, err)
    shown = json.loads(written)
    answers.check("outline", shown)
    assert len(shown["rows"]) == sum(line.startswith(("operator", "tensor")) for line in out.splitlines()) > 5


def test_the_header_of_a_download_that_stopped_in_its_weights_is_shown_whole(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    names = [f"blocks.{at}.weight" for at in range(4)]
    entries = {
        name: {"dtype": "F32", "shape": [8, 8], "data_offsets": [256 * at, 256 * at + 256]}
        for at, name in enumerate(names)
    }
    header = json.dumps(entries).encode()
    (tmp_path / "whole.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(1024))
    made = gguf.GGUFWriter(tmp_path / "whole.gguf", "llama")
    for name in names:
        made.add_tensor(name, np.ones((8, 8), np.float32))
    made.write_header_to_file()
    made.write_kv_data_to_file()
    made.write_tensors_to_file()
    made.close()
    for kind in ("safetensors", "gguf"):
        whole, cut = (tmp_path / f"{name}.{kind}" for name in ("whole", "cut"))
        cut.write_bytes(whole.read_bytes()[:-700])
        _, shown, _ = run(capsys, "outline", whole, "--json")
        code, found, err = run(capsys, "outline", cut, "--json")
        assert json.loads(found)["rows"] == json.loads(shown)["rows"]
        assert (code, err.count("\n")) == (2, 1)
        assert "the file is cut off" in err
        code, out, err = run(capsys, "info", cut, "--quiet")
        assert (code, out) == (2, "")
        assert err.endswith("; explorer outline shows what can be read of it\n")


def test_who_cannot_open_a_file_is_told_that_it_has_an_outline_and_of_no_other(
    capsys: pytest.CaptureFixture[str], sample: Sample, tmp_path: Path
) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    ports = [helper.make_tensor_value_info(name, 1, [2]) for name in ("x", "b")]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", ports[:1], ports[1:])), tmp_path / "cycle.onnx")
    (tmp_path / "cut.onnx").write_bytes(sample("lenet").read_bytes()[:2000])
    (tmp_path / "text.onnx").write_text("no model")
    for name, told in (("cycle", True), ("cut", True), ("text", False), ("missing", False)):
        code, out, err = run(capsys, "info", tmp_path / f"{name}.onnx", "--quiet")
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert err.endswith("; explorer outline shows what can be read of it\n") == told


def test_nothing_in_a_file_reaches_the_terminal_as_a_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202egpj.exe\n"
    node = helper.make_node(f"Op{evil}", [evil], [evil], name=evil, domain=evil)
    port = helper.make_tensor_value_info(evil, 1, [evil, 2])
    model = helper.make_model(helper.make_graph([node], "g", [port], [port]), producer_name=evil)
    helper.set_model_props(model, {evil: evil})
    onnx.save(model, tmp_path / "m.onnx")
    for words in (("outline",), ("outline", "--json")):
        code, out, _ = run(capsys, *words, tmp_path / "m.onnx")
        assert code == 0
        assert out.replace("\n", "").isprintable()


def test_a_long_name_does_not_move_the_other_rows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [
        OutlineRow("n" * 500, "tensor", "float32", (1,), 4),
        OutlineRow("w", "tensor", "float32", (2,), 8),
    ]
    lines = list(outline_words.compose_text(Outline("x", "m", None, (), rows)))
    assert lines[0] == "m   x\n"
    assert len(lines[3]) < 150


def test_columns_that_only_later_rows_fill_are_kept_apart() -> None:
    rows = [OutlineRow(f"n{i}", "operator", "Abs", note="a -> b") for i in range(3000)]
    rows += [OutlineRow(f"w{i:04}", "tensor", "float32", (64, 3), 768, "in w.bin") for i in range(3000)]
    lines = list(outline_words.compose_text(Outline("x", "m", None, (), rows)))
    assert lines[2].split() == ["operator", "n0", "Abs", "a", "->", "b"]
    tensors = [line for line in lines if line.startswith("tensor")]
    assert {len(line) for line in tensors} == {len(tensors[0])}
    assert tensors[-1].split() == ["tensor", "w2999", "float32", "[64,", "3]", "768", "B", "in", "w.bin"]
    assert len(lines) == 6004


def test_a_narrow_terminal_cuts_lines_and_a_pipe_does_not() -> None:
    rows = [("a" * 30, "b" * 30)] * 2
    assert {len(line) for line in outline_words.columns(rows, 40)} == {40}
    assert {len(line) for line in outline_words.columns(rows, None)} == {62}


def test_rows_are_printed_as_they_are_read() -> None:
    read = []

    def endless() -> Any:
        for n in range(1_000_000):
            read.append(n)
            yield OutlineRow(f"w{n}", "tensor", "float32", (1,), 4)

    lines = outline_words.compose_text(Outline("x", "m", 3, (), endless()))
    for _, _ in zip(range(10), lines, strict=False):
        pass
    assert len(read) < 5000


def test_a_reader_that_goes_away_ends_it_quietly(sample: Sample) -> None:
    command = f"{sys.executable} -m explorer outline {sample('bert_tiny')} | head -1"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=env, check=False)
    assert done.stderr == ""
    assert len(done.stdout.splitlines()) == 1


def test_code_of_torchscript_is_the_text_that_the_file_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Sequential(torch.nn.ReLU()))
    scripted = torch.jit.script(net)
    path = tmp_path / "net.pt"
    scripted.save(str(path))
    for layer, module in (
        ("", scripted),
        ("0", getattr(scripted, "0")),
        ("1.0", getattr(getattr(scripted, "1"), "0")),
    ):
        assert main.main(["outline", str(path), "--code", *(("--layer", layer) if layer else ())]) == 0
        text = capsys.readouterr().out
        # torch numbers the mangled class names anew when it writes a file
        forward = [line.strip() for line in module.code.splitlines()[1:] if "torch_mangle" not in line]
        assert forward
        assert set(forward) <= {line.strip() for line in text.splitlines()}
    assert main.main(["outline", str(path), "--code", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    answers.check("outline", document)
    assert {fact["name"] for fact in document["facts"]} == {"module", "class", "code"}


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--code", "--layer", "2"], "--layer 2: the model has no such module; "),
        (["--layer", "0"], "--layer: a module is chosen for its code; add --code"),
    ],
)
def test_code_of_no_module_is_refused(
    words: list[str], error: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    path = tmp_path / "net.pt"
    torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 4))).save(str(path))
    assert main.main(["outline", str(path), *words]) == 2
    assert error in capsys.readouterr().err


def test_code_of_a_format_without_code_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["outline", "sample_models/lenet.onnx", "--code"]) == 2
    assert "only a TorchScript file contains code" in capsys.readouterr().err


def test_the_rows_can_be_had_as_csv_shortened_and_exact(
    sample: Sample, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(sample("lenet"))
    assert main.main(["outline", path, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert main.main(["outline", path, "--csv", "--top", "14"]) == 0
    records = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [record["path"] for record in records] == [row["path"] for row in rows[:14]]
    assert main.main(["outline", path, "--top", "2", "--exact"]) == 0
    text = capsys.readouterr().out
    assert f"2 of {len(rows)} rows; --top shows more" in text
    assert f"{sum(row['bytes'] is not None for row in rows)} tensors" in text
    assert main.main(["outline", path, "--exact"]) == 0
    assert "192,000" in capsys.readouterr().out


@pytest.mark.parametrize("words", ["outline lenet.onnx", "outline .", "formats"])
@pytest.mark.parametrize("room", [60, 80])
def test_no_line_is_wider_than_the_terminal(
    words: str, room: int, sample: Sample, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(sample("lenet").parent)
    for module in (outline_words, formats):
        monkeypatch.setattr(module, "width", lambda: room)
    assert main.main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines
    assert [line for line in lines if len(line) > room or line != line.rstrip()] == []


def test_help_and_the_check_of_the_installation_fit_the_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (help, doctor_words):
        monkeypatch.setattr(module, "width", lambda: 60)
    for words in (["tile", "--help"], ["--help", "all"], ["doctor"]):
        main.main(words)
        lines = capsys.readouterr().out.splitlines()
        assert lines
        assert [line for line in lines if len(line) > 60] == []
