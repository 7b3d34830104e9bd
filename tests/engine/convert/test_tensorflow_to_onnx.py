"""Keras models and SavedModels become ONNX by tf2onnx, proved against TensorFlow."""

from __future__ import annotations

import importlib.util
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from explorer import BadModel, MissingExtra, Misuse, Session
from explorer.cli.main import main

is_installed = all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "tf2onnx"))
with_tensorflow = pytest.mark.skipif(not is_installed, reason="the extra [tensorflow] is not installed")


def write_keras_zip(path: Path, layer: dict[str, Any]) -> str:
    """Writes an archive with the entries of a Keras file and a description of one layer."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("metadata.json", json.dumps({"keras_version": "3.15.1"}))
        archive.writestr(
            "config.json", json.dumps({"class_name": "Sequential", "config": {"layers": [layer]}})
        )
        archive.writestr("model.weights.h5", b"")
    return str(path)


@pytest.mark.parametrize(
    "layer",
    [
        {"class_name": "Lambda", "module": "keras.layers", "config": {}},
        {"class_name": "Scale", "module": "my_layers", "config": {}},
        {
            "class_name": "Dense",
            "module": "keras.layers",
            "config": {"activation": {"class_name": "function"}},
        },
    ],
)
def test_a_keras_file_that_names_code_needs_trust(tmp_path: Path, layer: dict[str, Any]) -> None:
    source = write_keras_zip(tmp_path / "model.keras", layer)
    with (
        pytest.raises(Misuse, match=r"runs code that the file names; .* add --trust"),
        Session(source) as session,
    ):
        session.convert(str(tmp_path / "out.onnx"))
    assert not (tmp_path / "out.onnx").exists()


def test_the_missing_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    layer = {"class_name": "Dense", "module": "keras.layers", "config": {}}
    source = write_keras_zip(tmp_path / "model.keras", layer)
    with pytest.raises(MissingExtra, match="tensorflow"), Session(source) as session:
        session.convert(str(tmp_path / "out.onnx"))


@pytest.mark.parametrize("entry", ["nothing", "not JSON", "layers without an end"])
def test_a_broken_keras_file_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], entry: str
) -> None:
    path = tmp_path / "model.keras"
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("metadata.json", "model.weights.h5"):
            archive.writestr(name, b"")
        archive.writestr(
            "config.json", {"nothing": b"", "not JSON": b"{", "layers without an end": b"[" * 100_000}[entry]
        )
    assert main(["convert", str(path), "-o", str(tmp_path / "out.onnx")]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "model.keras" in error


def test_a_saved_model_needs_trust_and_the_error_names_the_command(tmp_path: Path) -> None:
    (tmp_path / "saved_model.pb").write_bytes(b"\x08\x01")
    with (
        pytest.raises(BadModel, match=r"explorer convert .* -o model\.onnx --trust"),
        Session(str(tmp_path)) as session,
    ):
        session.info()
    with (
        pytest.raises(Misuse, match="program that may read and write files"),
        Session(str(tmp_path)) as session,
    ):
        session.convert(str(tmp_path / "out.onnx"))


def test_only_onnx_is_written(tmp_path: Path) -> None:
    source = write_keras_zip(tmp_path / "model.keras", {"class_name": "Dense", "config": {}})
    with pytest.raises(Misuse, match=r"keras cannot be converted to '\.pt'"), Session(source) as session:
        session.convert(str(tmp_path / "out.pt"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two Keras models, each as .keras, .h5 and SavedModel."""
    import keras

    folder = tmp_path_factory.mktemp("keras")
    layers = keras.layers
    image = keras.Sequential(
        [
            keras.Input((12, 12, 1), name="image"),
            layers.Conv2D(4, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Flatten(),
            layers.Dense(10, name="logits"),
        ]
    )
    features, steps = keras.Input((5,), name="features"), keras.Input((None, 5), name="steps")
    joined = layers.Concatenate()([features, layers.LSTM(6)(steps)])
    outputs = {"kind": layers.Dense(3, name="kind")(joined), "box": layers.Dense(1, name="box")(joined)}
    for name, model in (("image", image), ("two", keras.Model([features, steps], outputs))):
        model.save(folder / f"{name}.keras")
        model.save(folder / f"{name}.h5")
        model.export(folder / f"{name}_saved", verbose=False)
    return folder


@with_tensorflow
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of Keras, when it saves a model
@pytest.mark.parametrize("ending", [".keras", ".h5", "_saved"])
@pytest.mark.parametrize(
    ("name", "sizes", "outputs"),
    [
        ("image", {"batch": 2, "image_0": 2}, 1),
        ("two", {"batch": 2, "steps_1": 3, "features_0": 2, "steps_0": 2}, 2),
    ],
)
def test_the_onnx_file_computes_what_tensorflow_computes(
    folder: Path, tmp_path: Path, ending: str, name: str, sizes: dict[str, int], outputs: int
) -> None:
    is_saved = ending == "_saved"
    names = {key for key in sizes if is_saved != (key == "batch")}
    dims = {key: sizes[key] for key in names}
    with Session(str(folder / f"{name}{ending}"), dims=dims, trust=is_saved) as session:
        fact = session.convert(str(tmp_path / "out.onnx"))
    assert fact.passed
    assert fact.verification is not None
    assert len(fact.verification.outputs) == outputs
    with Session(str(tmp_path / "out.onnx"), dims=dims) as session:
        assert session.info().totals.params
