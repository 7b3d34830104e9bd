"""`explorer emit` and `explorer verify MODEL FOLDER`: C code of mapped matmuls, with its proof."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import helper, numpy_helper

import explorer
from explorer.base.errors import Misuse
from explorer.cli import main
from explorer.engine.graph.dtypes import get_numpy_type
from explorer.engine.mapping import proof
from explorer.report.document_schema import build_schema
from tests.cli.commands.test_map import NPU

Sample = Callable[[str], Path]
Ask = Callable[..., tuple[str, str]]


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Ask:
    """Runs a command and returns what it prints, and its errors."""

    def run(*words: Any, code: int = 0) -> tuple[str, str]:
        assert main.main([str(word) for word in words]) == code, capsys.readouterr()
        out, err = capsys.readouterr()
        return out, err

    return run


@pytest.fixture
def npu(tmp_path: Path) -> Path:
    path = tmp_path / "npu.toml"
    path.write_text(NPU)
    return path


@pytest.fixture
def folder(tmp_path: Path, sample: Sample, npu: Path) -> Path:
    """A folder with the code of one Linear."""
    path = tmp_path / "code"
    with explorer.Session(sample("linear_32x64x128")) as session:
        proof = session.emit(path, machine=str(npu))
    assert proof.verdict_kind == "evidence"
    assert proof.output == str(path)
    return path


def test_code_is_proved_in_numbers_and_bytes(ask: Ask, sample: Sample, npu: Path, tmp_path: Path) -> None:
    mapping, folder = tmp_path / "mapping.toml", tmp_path / "code"
    chosen = "--site", "/conv1/Conv", "--site", "/fc3/Gemm"
    ask("map", sample("lenet"), "--machine", npu, "-o", mapping, *chosen)
    out, _ = ask(
        "emit", sample("lenet"), "--mapping", mapping, *chosen, "--machine", npu, "-o", folder, "--json"
    )
    fact = json.loads(out)
    assert fact["verdict_kind"] == "evidence"
    assert fact["runner"] == "cc"
    for site in fact["sites"]:
        assert site["values"] == ["original", "dense"]
        assert site["restored"]
        assert site["error"] <= site["limit"]
        assert not site["differences"]
    files = sorted(path.name for path in folder.iterdir())
    assert files == [
        "driver.c",
        "mapping.json",
        *(f"site_{n:03}.c" for n in range(1, len(fact["sites"]) + 1)),
    ]
    code = "".join((folder / name).read_text() for name in files if name.endswith(".c"))
    assert not any(site["name"] in code for site in fact["sites"])


def test_verify_compiles_the_files_of_the_folder(ask: Ask, sample: Sample, folder: Path) -> None:
    out, _ = ask("verify", sample("linear_32x64x128"), folder)
    assert "equal on evidence" in out
    assert re.search(r"1 with at most \d+ % of the allowed error", " ".join(out.split()))
    assert "site_001.c" in out
    path = folder / "site_001.c"
    code = path.read_text()
    path.write_text(re.sub(r"moved\[0\]\[0\] \+= ", "moved[0][0] += 1 + ", code))
    _, err = ask("verify", sample("linear_32x64x128"), folder, code=2)
    assert "differs from what emit writes; verify does not run it; to run it, read it and add --trust" in err
    out, _ = ask("verify", sample("linear_32x64x128"), folder, "--trust", code=1)
    assert "A loads" in out
    assert "site_001.c" in out
    path.write_text(re.sub(r"moved\[0\]\[0\] \+= ", "moved[0][0] -= ", code))
    out, _ = ask("verify", sample("linear_32x64x128"), folder, "--trust", code=1)
    assert "the counter ran below zero" in out
    assert "below zero" in out.split("counted")[1]
    path.write_text(code.replace("const sum_t a = ", "const sum_t a = (x == 3 && z == 1) ? 0 : "))
    out, _ = ask("verify", sample("linear_32x64x128"), folder, "--trust", "--json", code=1)
    assert [site["file"] for site in json.loads(out)["sites"] if site["verdict_kind"] == "different"] == [
        "site_001.c"
    ]


def test_a_rejected_file_is_named(ask: Ask, sample: Sample, folder: Path) -> None:
    path = folder / "site_001.c"
    path.write_text(path.read_text() + "\nint broken( { }\n")
    _, err = ask("verify", sample("linear_32x64x128"), folder, "--trust", code=2)
    assert str(path) in err
    assert "site_001.c:" in err


def test_without_a_compiler_the_nest_is_walked(
    ask: Ask, sample: Sample, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    out, _ = ask("verify", sample("linear_32x64x128"), folder)
    assert "walked in NumPy" in " ".join(out.split())
    manifest = folder / "mapping.json"
    content = json.loads(manifest.read_text())
    content["sites"][0]["counters"][0]["bytes"] += 1
    manifest.write_text(json.dumps(content))
    out, _ = ask("verify", sample("linear_32x64x128"), folder, code=1)
    assert "planned" in out
    (folder / "site_001.c").write_text("int changed;")
    _, err = ask("verify", sample("linear_32x64x128"), folder, "--trust", code=2)
    assert "without a C compiler" in err


def test_bad_input_is_one_line(ask: Ask, sample: Sample, npu: Path, folder: Path, tmp_path: Path) -> None:
    def error(*words: Any) -> str:
        _, err = ask(*words, code=2)
        assert "Traceback" not in err
        return err

    assert "the folder holds emitted code" in error(
        "emit", sample("linear_32x64x128"), "--machine", npu, "-o", folder
    )
    strange = tmp_path / "strange"
    strange.mkdir()
    (strange / "thesis.tex").write_text("text")
    assert "other files" in error(
        "emit", sample("linear_32x64x128"), "--machine", npu, "-o", strange, "--force"
    )
    assert sorted(path.name for path in strange.iterdir()) == ["thesis.tex"]
    assert "needs a mapping" in error("emit", sample("linear_32x64x128"), "-o", tmp_path / "new")
    assert "another model" in error("verify", sample("mlp_128"), folder)
    (folder / "mapping.json").write_text('{"version": 1}')
    assert "mapping.json" in error("verify", sample("linear_32x64x128"), folder)
    assert not (tmp_path / "new").exists()


def test_json_form_holds_the_machine_and_the_nests(
    ask: Ask, sample: Sample, npu: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "nests"
    ask("emit", sample("linear_32x64x128"), "--machine", npu, "--to", "json", "-o", folder)
    assert [path.name for path in folder.iterdir()] == ["mapping.json"]
    content = json.loads((folder / "mapping.json").read_text())
    Draft202012Validator(build_schema("emit", closed=True)).validate(content)
    assert content["machine"]["memories"][1]["name"] == "scratchpad"
    assert content["sites"][0]["mapping"]["levels"][0]["tile"]
    with explorer.Session(sample("linear_32x64x128")) as session, pytest.raises(Misuse, match="no code"):
        session.verify_code(folder)


@pytest.fixture
def residual_model(tmp_path: Path) -> Path:
    """Two convolutions: the first with a Relu, the second with a residual and a Clip."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array(random.standard_normal(shape).astype(np.float32), name)

    limits = [numpy_helper.from_array(np.float32(limit), name) for name, limit in (("low", 0), ("high", 6))]
    nodes = [
        helper.make_node("Conv", ["x", "w1", "b1"], ["y1"], "first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["y1"], ["r1"]),
        helper.make_node("Conv", ["r1", "w2", "b2"], ["y2"], "second"),
        helper.make_node("Add", ["y2", "x"], ["sum"]),
        helper.make_node("Clip", ["sum", "low", "high"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [1, 8, 6, 6]) for name in ("x", "y")]
    weights = [weight("w1", 8, 8, 3, 3), weight("b1", 8), weight("w2", 8, 8, 1, 1), weight("b2", 8), *limits]
    graph = helper.make_graph(nodes, "residual", ends[:1], ends[1:], weights)
    path = tmp_path / "residual.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path)
    return path


def test_the_operators_after_a_matmul_are_fused(
    ask: Ask, residual_model: Path, npu: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, codes = tmp_path / "code", tmp_path / "codes.onnx"
    words = "--machine", npu, "--fuse", "epilogue", "-o", folder
    monkeypatch.setenv("CC", "/bin/false")
    kept = f"{folder}_site_001.c"
    for _ in range(2):
        _, err = ask("emit", residual_model, *words, code=2)
        assert err.startswith(f"explorer: {kept}")
        kept = f"{folder}_2_site_001.c"
    assert not folder.exists()
    monkeypatch.delenv("CC")
    ask("emit", residual_model, *words)
    first, second = json.loads((folder / "mapping.json").read_text())["sites"]
    assert first["mapping"]["epilogue"]["ops"] == ["bias", "Relu"]
    assert second["mapping"]["epilogue"]["ops"] == ["bias", "Add", "Clip"]
    assert second["mapping"]["epilogue"]["residual_bytes"] == 4
    path = folder / "site_002.c"
    path.write_text(path.read_text().replace("0x1.8000000000000p+2f", "0x1.0000000000000p+2f"))
    out, _ = ask("verify", residual_model, folder, "--trust", code=1)
    assert "site_002.c" in out
    ask("quantize", residual_model, "--form", "qdq", "--no-report", "-o", codes)
    out, _ = ask("emit", codes, *words, "--force", "--json")
    assert all(site["exact"] and site["restored"] for site in json.loads(out)["sites"])
    epilogue = json.loads((folder / "mapping.json").read_text())["sites"][0]["mapping"]["epilogue"]
    assert epilogue["ops"][-2:] == ["Relu", "QuantizeLinear"]
    assert epilogue["output"] in ("int8", "uint8")
    monkeypatch.setenv("CC", "no-such-compiler")
    out, _ = ask("verify", codes, folder, "--json")
    assert json.loads(out)["runner"] == "numpy"


def test_verify_computes_the_plan_from_mapping_and_machine(
    ask: Ask, sample: Sample, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    manifest = folder / "mapping.json"
    written = manifest.read_text()

    def verify(code: int, edit: Callable[[Any, Any], None]) -> str:
        content = json.loads(written)
        edit(content["machine"], content["sites"][0])
        manifest.write_text(json.dumps(content))
        return "".join(ask("verify", sample("linear_32x64x128"), folder, code=code))

    assert "16 of 16" in verify(0, lambda machine, site: site.update(counters=[], memories=[]))
    for change in ({"registers": False}, {"mac_pj": 7.0}, {"unit": [1, 1, 1]}):
        changed = verify(2, lambda machine, site, change=change: machine.update(change))
        assert "the machine was changed after the code was emitted" in changed
    for change, message in (
        ({"bytes_per_cycle": 1e-300}, "'1e-300' is not a rate"),
        ({"name": "DRAM"}, "two memories are called 'DRAM'"),
        ({"ways": 1 << 40}, "do not divide into"),
        ({"holds": ""}, "'' names no operand"),
    ):
        changed = verify(2, lambda machine, site, change=change: machine["memories"][1].update(change))
        assert message in changed
    assert "planned" in verify(1, lambda machine, site: site["mapping"].update(right="int4"))
    assert "no counter of level 99" in verify(2, lambda machine, site: site["counters"][0].update(level=99))


def test_a_mapping_that_does_not_fit_is_not_emitted(
    ask: Ask, sample: Sample, npu: Path, tmp_path: Path
) -> None:
    mapping, folder = tmp_path / "mapping.toml", tmp_path / "code"
    ask("map", sample("linear_32x64x128"), "--machine", npu, "-o", mapping)
    mapping.write_text(re.sub(r"tile = .*", "tile = [32, 64, 128]", mapping.read_text(), count=1))
    words = "--mapping", mapping, "--machine", npu, "-o", folder
    _, err = ask("emit", sample("linear_32x64x128"), *words, code=2)
    assert "scratchpad needs 73,728 bytes more" in err
    assert not folder.exists()


_PROGRAM = 'while [ "$1" != "-o" ]; do shift; done; printf \'#!/bin/sh\\n{}\\n\' > "$2"; chmod 755 "$2"'
"""A compiler that writes a script in place of a program."""


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("sleep 60", "the C compiler took longer than 0.2 s"),
        ("exit 0", "the C compiler wrote no program"),
        (_PROGRAM.format("sleep 60"), "took longer than 0.2 s"),
        (_PROGRAM.format("exit 0"), "ended without writing its output"),
    ],
)
def test_a_compiler_that_hangs_and_a_program_that_crashes_are_one_line(
    ask: Ask,
    sample: Sample,
    npu: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    script: str,
    message: str,
) -> None:
    compiler, folder = tmp_path / "cc", tmp_path / "code"
    compiler.write_text(f"#!/bin/sh\n{script}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    monkeypatch.setattr(proof, "SECONDS", 0.2)
    started = time.monotonic()
    _, err = ask("emit", sample("linear_32x64x128"), "--machine", npu, "-o", folder, code=2)
    assert message in err
    assert len(err.splitlines()) == 1
    assert time.monotonic() - started < 20
    assert not folder.exists()


def test_a_clip_at_nan_is_not_fused(ask: Ask, npu: Path, tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("Clip", ["m", "low"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, 1, [4, 4]) for name in ("x", "y")]
    weights = [
        numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"),
        numpy_helper.from_array(np.float32(np.nan), "low"),
    ]
    path = tmp_path / "clip.onnx"
    graph = helper.make_graph(nodes, "clip", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    folder = tmp_path / "code"
    ask("emit", path, "--machine", npu, "--fuse", "epilogue", "-o", folder)
    site = json.loads((folder / "mapping.json").read_text())["sites"][0]
    assert site["mapping"]["epilogue"]["ops"] == []


@pytest.mark.parametrize(
    ("dtype", "words", "compiler"),
    [
        ("float16", (), "cc"),
        ("float16", ("--fuse", "epilogue"), "cc"),
        ("bfloat16", (), "cc"),
        ("bfloat16", (), "no-such-compiler"),
    ],
)
def test_operands_of_16_bit_floats_are_converted(
    ask: Ask,
    npu: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dtype: str,
    words: tuple[str, ...],
    compiler: str,
) -> None:
    monkeypatch.setenv("CC", compiler)
    kind = get_numpy_type(dtype)
    code = onnx.TensorProto.FLOAT16 if dtype == "float16" else onnx.TensorProto.BFLOAT16
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        values = random.standard_normal(shape).astype(kind)
        return helper.make_tensor(name, code, shape, values.tobytes(), raw=True)

    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["y"], "product"),
        helper.make_node("Relu", ["y"], ["r"]),
        helper.make_node("Cast", ["r"], ["z"], to=1),
    ]
    ends = [
        helper.make_tensor_value_info("x", code, [8, 20]),
        helper.make_tensor_value_info("z", 1, [8, 12]),
    ]
    graph = helper.make_graph(nodes, "half", ends[:1], ends[1:], [weight("w", 20, 12), weight("b", 12)])
    path = tmp_path / "half.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    fact = json.loads(ask("emit", path, "--machine", npu, "-o", tmp_path / "code", "--json", *words)[0])
    site = fact["sites"][0]
    assert site["values"] == ["original", "dense"]
    assert site["restored"]
    assert site["error"] <= site["limit"]
    assert fact["verdict"].endswith(f"{dtype} operands are multiplied as float32, and sums stay float32")
