"""A file of a format that Explorer does not read is named by its content, with the way to convert it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import onnx
import pytest

from explorer import Session
from explorer.base.errors import ExplorerError
from explorer.cli.main import main
from explorer.engine.models import registry

HDF5 = b"\x89HDF\r\n\x1a\n" + bytes(200)
CORE_ML = b"\x08\x04\x12\x80\x01\x0a\x30\x0a\x05image\x12\x0fphoto of a digit" + bytes(500)
"""Version 4, then a description that begins with an input: a feature with a name."""
OPENVINO = b'<?xml version="1.0"?>\n<net name="resnet" version="11">\n<layers>\n</layers></net>'
FLAX = b"\x81\xa6params\x82\xa5Dense\x81\xa6kernel\xc7\x10\x01" + bytes(16)
FLAX_LONG_NAME = b"\x81\xd9\x28" + b"n" * 40 + b"\x80"

BY_CONTENT = {
    "keras_2": (HDF5, "Keras", "explorer convert"),
    "core_ml": (CORE_ML, "Core ML", "torch.onnx.export"),
    "openvino": (OPENVINO, "OpenVINO", "that it was made from"),
    "openvino_with_mark": (b"\xef\xbb\xbf" + OPENVINO, "OpenVINO", "that it was made from"),
    "executorch": (b"\x30\0\0\0ET12" + bytes(100), "ExecuTorch", "torch.export.save"),
    "tensorrt": (b"ftrt" + bytes(100), "TensorRT", "open the ONNX file"),
    "ncnn": (b"7767517\n75 83\nInput data 0 1 data\n", "ncnn", "that it was made from"),
    "flax": (FLAX, "Flax", "safetensors.flax.save_file"),
    "flax_long_name": (FLAX_LONG_NAME, "Flax", "safetensors.flax.save_file"),
    "frozen": (b"\x0a\x20\x0a\x05input\x12\x0bPlaceholder" + bytes(90), "frozen", "--graphdef"),
}


def message(source: Path) -> str:
    with pytest.raises(ExplorerError) as error, Session(str(source)) as session:
        session.info()
    return str(error.value)


@pytest.mark.parametrize("ending", ["", ".onnx", ".weights"])
@pytest.mark.parametrize("case", BY_CONTENT)
def test_content_names_the_format_and_its_conversion_whatever_the_ending(
    case: str, ending: str, tmp_path: Path
) -> None:
    data, name, conversion = BY_CONTENT[case]
    file = tmp_path / f"model{ending}"
    file.write_bytes(data)
    text = message(file)
    assert "which Explorer does not read" in text
    assert name in text
    assert conversion in text
    assert str(file) in text


@pytest.mark.parametrize(
    ("entries", "name", "conversion"),
    [
        (("metadata.json", "config.json", "model.weights.h5"), "Keras", "explorer convert"),
        (("readme.txt", "models/detect.tflite"), "TensorFlow Lite", "unzip"),
    ],
)
def test_an_archive_is_named_by_its_entries(
    entries: tuple[str, ...], name: str, conversion: str, tmp_path: Path
) -> None:
    with zipfile.ZipFile(tmp_path / "download", "w") as archive:
        for entry in entries:
            archive.writestr(entry, "{}")
    text = message(tmp_path / "download")
    assert name in text
    assert conversion in text


@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(("net.keras", "Keras"), ("net.H5", "Keras"), ("net.mlmodel", "Core ML"), ("net.pte", "ExecuTorch")),
        *(("net.engine", "TensorRT"), ("net.plan", "TensorRT"), ("net.msgpack", "Flax")),
    ],
)
def test_the_ending_of_a_damaged_file_names_the_format_as_such(file: str, name: str, tmp_path: Path) -> None:
    (tmp_path / file).write_bytes(b"damaged")
    text = message(tmp_path / file)
    assert "by its ending" in text
    assert name in text


def test_openvino_weights_are_named_by_the_network_beside_them(tmp_path: Path) -> None:
    (tmp_path / "net.xml").write_bytes(OPENVINO)
    (tmp_path / "net.bin").write_bytes(bytes(64))
    assert "OpenVINO" in message(tmp_path / "net.bin")
    (tmp_path / "net.xml").write_bytes(b"<html></html>")
    assert "OpenVINO" not in message(tmp_path / "net.bin")


def test_a_folder_is_named_by_its_content(tmp_path: Path) -> None:
    package = tmp_path / "net.mlpackage"
    (package / "Data" / "com.apple.CoreML").mkdir(parents=True)
    (package / "Data" / "com.apple.CoreML" / "model.mlmodel").write_bytes(CORE_ML)
    (package / "Manifest.json").write_text("{}")
    assert "a Core ML package" in message(package)
    network = tmp_path / "network"
    network.mkdir()
    (network / "readme.txt").write_text("A network.")
    (network / "net.xml").write_bytes(OPENVINO)
    assert "OpenVINO" in message(network)
    assert "net.xml" in message(network)


def test_the_commands_refuse_such_a_file_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net").write_bytes(CORE_ML)
    for verb in ("info", "outline", "layers"):
        assert main([verb, str(tmp_path / "net")]) == 2
        out, err = capsys.readouterr()
        assert "Core ML" in err
        assert not out


def test_an_onnx_file_is_not_taken_for_core_ml(tmp_path: Path) -> None:
    graph = onnx.helper.make_graph([], "g", [], [])
    for producer in ("\n", "\n\t", "pytorch", "\n\nmine", ""):
        model = onnx.helper.make_model(graph, producer_name=producer)
        onnx.save(model, tmp_path / "m.onnx")
        assert registry.recognize(str(tmp_path / "m.onnx")).name == "onnx", producer


@pytest.mark.parametrize(
    "data", [b"\x81", b"\x81\xa1", b"\x81\xa1\x00\x80", b"\xde\0\1", b"\x8f\xbfshort", b"\0"]
)
def test_a_few_bytes_are_not_taken_for_msgpack(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(data)
    assert "Flax" not in message(tmp_path / "file")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("class _Base: ...\nclass Net: ...\ndef _build(): ...\ndef net(): ...\n", "net.py:net"),
        ("class Net: ...\n", "net.py:Net"),
        ("width = 3\n", "net.py:NAME"),
        ("def net(:\n", "net.py:NAME"),
    ],
)
def test_a_python_file_asks_for_the_name_of_a_callable_in_it(text: str, hint: str, tmp_path: Path) -> None:
    file = tmp_path / "net.py"
    file.write_text(text)
    assert "the name of the function or class that returns the model" in message(file)
    assert message(file).endswith(hint)
