"""Whatever a file calls its things, no escape sequence of it reaches the terminal, and no markup a page.

Every name and text that a format can carry is made of sequences that would retitle the window, clear the
screen, fill the clipboard, color what follows or turn the reading direction; then everything that prints
is asked. What is printed may hold nothing but what is printable, on any way: tables, JSON, CSV, pages, the
screen itself.
"""

from __future__ import annotations

import json
import sys
import types
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer.cli.main import main
from tests.fuzz.mutators import unzip, zipped
from tests.terminal import Terminal, explorer

EVIL = (
    "a\x1b]0;owned\x07\x1b[2J\x1b]52;c;b3duZWQ=\x1b\\\x9b31m\x85\u2028\u202e\u2066\ufeff\u200b\r\n\t\x00"
    "<script>alert(1)</script>[red]=cmd|' /C calc'!A0"
)
#: what stands for it while an official writer writes a file: as long in bytes, and a fine name for anything
BLANK = "Q" * len(EVIL.encode())


def unsafe(text: str) -> set[str]:
    """Characters that do something to a terminal instead of being shown: controls, formats, separators."""
    return {c for c in text if c not in "\n" and unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp", "Cs")}


# files, each full of it


def onnx_file(folder: Path) -> Path:
    from onnx import TensorProto, helper

    def value(name: str, *shape: Any) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    evil = EVIL.replace("\0", "")  # protobuf's strings may hold it, onnx's helper may not
    body = helper.make_node("Relu", ["a" + evil], ["b" + evil], name="inner" + evil)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("d" + evil, 1)]
    function = helper.make_function("d" + evil, "F" + evil, ["a" + evil], ["b" + evil], [body], opsets)
    branch = helper.make_graph(
        [helper.make_node("Relu", ["m" + evil], ["o" + evil], name="br" + evil)],
        evil,
        [],
        [value("o" + evil, 2, 6)],
    )
    nodes = [
        helper.make_node("MatMul", ["x" + evil, "w" + evil], ["m" + evil], name=f"/block{evil}/fc{evil}"),
        helper.make_node("If", ["c"], ["i" + evil], then_branch=branch, else_branch=branch, name="if" + evil),
        helper.make_node("F" + evil, ["i" + evil], ["f" + evil], name="call" + evil, domain="d" + evil),
        helper.make_node("Op" + evil, ["f" + evil], ["z" + evil], domain="d" + evil, **{"text" + evil: evil}),
    ]
    weight = helper.make_tensor("w" + evil, TensorProto.FLOAT, [4, 6], [0.5] * 24)
    inputs = [value("x" + evil, "n" + evil, 4), helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
    outputs = [value("m" + evil, "n" + evil, 6), value("z" + evil, "k" + evil)]
    graph = helper.make_graph(nodes, "g" + evil, inputs, outputs, [weight], doc_string=evil)
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], doc_string=evil)
    model.producer_name, model.producer_version, model.domain = evil, evil, evil
    helper.set_model_props(model, {evil: evil})
    for node in model.graph.node:
        node.metadata_props.add(key="namespace", value=f"/top{evil}/in{evil}")
        node.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=str([f"top{evil}", f"in{evil}"]))
        node.doc_string = evil
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def safetensors_file(folder: Path) -> Path:
    from safetensors.numpy import save_file

    weights = {f"layers.{at}.{EVIL}.w": np.ones((2, 3), np.float32) for at in range(3)}
    save_file(weights, folder / "m.safetensors", {EVIL: EVIL, "format": EVIL})
    return folder / "m.safetensors"


def gguf_file(folder: Path) -> Path:
    gguf = pytest.importorskip("gguf")
    path = folder / "m.gguf"
    writer = gguf.GGUFWriter(path, EVIL)
    writer.add_name(EVIL)
    writer.add_string("k" + EVIL, EVIL)
    writer.add_array("list", [EVIL, EVIL])
    writer.add_tensor(f"blk.0.{EVIL}.weight", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def huggingface_folder(folder: Path) -> Path:
    from safetensors.numpy import save_file

    made = folder / "hf"
    made.mkdir()
    save_file({f"a.{EVIL}": np.ones(3, np.float32)}, made / "model-00001-of-00001.safetensors")
    index = {"metadata": {EVIL: EVIL}, "weight_map": {f"a.{EVIL}": "model-00001-of-00001.safetensors"}}
    (made / "model.safetensors.index.json").write_text(json.dumps(index))
    config = {"architectures": [EVIL], "model_type": EVIL, EVIL: EVIL, "text_config": {EVIL: {EVIL: [EVIL]}}}
    (made / "config.json").write_text(json.dumps(config))
    return made


def tflite_file(folder: Path) -> Path:
    pytest.importorskip("tflite")
    from tests.engine.formats.tflite.tflite_writer import Op, Sub, T, build

    path = folder / "m.tflite"
    tensors = [
        T((1, 4), name="i" + BLANK),
        T((3, 4), data=np.ones((3, 4), np.float32), name="w" + BLANK),
        T((1, 3), name=f"scope{BLANK}/o{BLANK}"),
        T((1, 3), name="z" + BLANK),
    ]
    ops = [Op("FULLY_CONNECTED", [0, 1, -1], [2]), Op(BLANK, [2], [3], custom=b"x")]
    content = build(Sub(tensors, ops, [0], [3], name=BLANK))
    assert BLANK.encode() in content
    path.write_bytes(content.replace(BLANK.encode(), EVIL.encode()))
    return path


def state_dict(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    path = folder / "m.pt"
    torch.save(
        {"model": {f"a.{EVIL}.w": torch.ones(2, 3), EVIL: torch.ones(2)}, EVIL: EVIL, "args": [EVIL]}, path
    )
    return path


def _filled(path: Path, endings: tuple[str, ...], text: str = EVIL) -> Path:
    entries = unzip(path.read_bytes())
    assert entries is not None
    assert any(BLANK.encode() in content for name, content in entries if name.endswith(endings))
    path.write_bytes(
        zipped(
            [(n, c.replace(BLANK.encode(), text.encode()) if n.endswith(endings) else c) for n, c in entries]
        )
    )
    return path


def whole_module(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    module = types.ModuleType(f"mod{BLANK}")
    made = type(f"Net{BLANK}", (torch.nn.Sequential,), {"__module__": module.__name__})
    setattr(module, made.__name__, made)
    sys.modules[module.__name__] = module
    try:
        net = made()
        net.add_module(BLANK, torch.nn.Linear(2, 3))
        net.note = BLANK
        torch.save(net, folder / "m.pt")
    finally:
        del sys.modules[module.__name__]
    # the class of an object is named on a line of its own
    return _filled(folder / "m.pt", (".pkl",), EVIL.replace("\n", "n").replace("\r", "r"))


def torchscript_file(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential()
    net.add_module(BLANK, torch.nn.Linear(2, 3))
    net.add_module("last", torch.nn.Linear(3, 3))
    torch.jit.save(torch.jit.trace(net, torch.ones(1, 2)), folder / "m.pt")
    return _filled(folder / "m.pt", (".pkl",))


def torchscript_code(folder: Path) -> Path:
    """The same in text of its code, where a name must be an identifier but a message need not."""
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential()
    net.add_module(BLANK, torch.nn.Linear(2, 3))
    torch.jit.save(torch.jit.trace(net, torch.ones(1, 2)), folder / "m.pt")
    return _filled(folder / "m.pt", (".pkl", ".py"))


def exported_program(folder: Path) -> Path:
    torch = pytest.importorskip("torch")
    net = torch.nn.Sequential()
    net.add_module(BLANK, torch.nn.Linear(2, 3))
    torch.export.save(torch.export.export(net, (torch.ones(1, 2),)), folder / "m.pt2")
    return _filled(folder / "m.pt2", (".json",), json.dumps(EVIL)[1:-1])


FILES: dict[str, Callable[[Path], Path]] = {
    "ONNX": onnx_file,
    "safetensors": safetensors_file,
    "GGUF": gguf_file,
    "Hugging Face": huggingface_folder,
    "TFLite": tflite_file,
    "a state_dict": state_dict,
    "a whole module": whole_module,
    "TorchScript": torchscript_file,
    "TorchScript's code": torchscript_code,
    "an exported program": exported_program,
}

EVERY: tuple[tuple[str, ...], ...] = (
    ("outline",),
    ("outline", "--json"),
    ("info",),
    ("info", "--json"),
    ("layers",),
    ("layers", "--csv"),
    ("layers", "--json"),
    ("weights",),
    ("weights", "--csv"),
)
GRAPH = (
    ("ops",),
    ("ops", "--csv"),
    ("memory",),
    ("memory", "--csv"),
    ("roofline", "--peak-macs", "1T", "--bandwidth", "1GB/s"),
    ("training",),
    ("tile",),
    ("activations",),
    *(("graph", "-o", f"graph.{ending}", "--force") for ending in ("html", "svg", "dot", "json")),
    ("report", "-o", "out.html", "--force"),
    ("report", "-o", "out.md", "--force"),
    ("plot", "-o", "out.svg", "--force"),
)


@pytest.mark.sampled(1)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", FILES)
def test_no_escape_sequence_of_a_file_reaches_the_terminal(
    kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = FILES[kind](tmp_path)
    shown = ""
    for verb, *options in (
        *EVERY,
        *(GRAPH if kind in ("ONNX", "TFLite", "an exported program") else GRAPH[-3:]),
    ):
        capfd.readouterr()
        main([verb, str(path), *options, "--quiet"])
        out, err = capfd.readouterr()
        assert not unsafe(out + err), (verb, options)
        assert "internal error" not in err, (verb, err)
        assert len(err.splitlines()) <= 1, (verb, err)
        shown += out
    # it was there to be shown
    assert "owned" in shown
    for page in ("out.html", "out.md", "out.svg", "graph.html", "graph.svg"):
        if (tmp_path / page).exists():
            text = (tmp_path / page).read_text()
            assert not unsafe(text) - {"\t"}, page
            assert "<script>alert" not in text, page
    if (tmp_path / "graph.dot").exists():
        assert not unsafe((tmp_path / "graph.dot").read_text())


def test_two_files_beside_each_other(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = str(onnx_file(tmp_path))
    for words in (["diff", path, path], ["compare", path, path], ["diff", path, path, "--json"]):
        main([*words, "--quiet"])
        out, err = capfd.readouterr()
        assert not unsafe(out + err), words


def test_a_folder_of_files_with_such_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    made = onnx_file(tmp_path)
    name = EVIL.replace("\0", "").replace("/", "")
    (tmp_path / f"{name}.onnx").write_bytes(made.read_bytes())
    (tmp_path / f"{name}.pt").write_bytes(b"PK\x03\x04 broken")
    model, broken = str(tmp_path / f"{name}.onnx"), str(tmp_path / f"{name}.pt")
    folder = str(tmp_path)
    for words in (["outline", folder], ["info", folder], [folder], ["outline", model], ["info", broken]):
        capfd.readouterr()
        main(words)
        out, err = capfd.readouterr()
        assert not unsafe(out + err), words
        assert out + err


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ONNX", "safetensors"])
def test_the_screen_sends_none_of_it(kind: str, tmp_path: Path) -> None:
    """In a real terminal: the bytes that go over the line are looked at, on every page, with every row."""

    def clean(terminal: Terminal) -> None:
        sent = bytes(terminal.sent)
        for piece in (
            b"\x1b]0;owned",
            b"\x1b]52;c;b3du",
            b"\xc2\x9b",
            b"\xc2\x85",
            "\u202e".encode(),
            "\u2066".encode(),
        ):
            assert piece not in sent, piece

    with explorer(FILES[kind](tmp_path), columns=160, rows=50) as terminal:
        terminal.wait_for("Layers")
        terminal.settle()
        for key in ("down", "right", "down", "right", "down", *"123456789", "/", *"own", "escape"):
            terminal.press(key)
            terminal.settle(0.15, 3.0)
        assert "owned" in terminal.written()
        clean(terminal)
        terminal.press("q")
        terminal.settle()
        clean(terminal)
