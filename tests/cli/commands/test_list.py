"""`explorer list`: a folder's models by their headers, as `info` would tell them, and none of them loaded."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from explorer import Session, list_models
from explorer.cli import main
from explorer.engine.models import listing
from explorer.engine.models.torch.torchvision_names import list_torchvision_models
from explorer.process import header_reader
from explorer.process.header_reader import HeaderReader

Sample = Callable[[str], Path]
CORPUS = Path(__file__).parents[2] / "fuzz" / "corpus" / "checkpoint"
TFLITE = Path(__file__).parents[2] / "engine" / "formats" / "tflite" / "models"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def folder(sample: Sample, tmp_path: Path) -> Path:
    """Models of four formats, one of them broken, one in a folder below."""
    found = tmp_path / "models"
    (found / "below").mkdir(parents=True)
    shutil.copy(sample("lenet"), found / "lenet.onnx")
    shutil.copy(TFLITE / "convolutions.tflite", found / "below" / "convolutions.tflite")
    layers = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    torch.save(layers.state_dict(), found / "state.pt")
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 4]}}).encode()
    (found / "lies.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"\0\0\0\0")
    (found / "notes.txt").write_text("no model")
    return found


def asked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["list", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_each_model_is_told_with_its_format_size_parameters_and_types(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text, _ = asked(capsys, str(folder))
    assert code == 0
    lines = text.splitlines()
    assert lines[0].endswith("4 models")
    (lenet,) = (line.split() for line in lines if "lenet.onnx" in line)
    assert lenet[:7] == ["lenet.onnx", "onnx", "242.71", "KiB", "61.71", "k", "float32"]
    assert "notes.txt" not in text
    # one that lies has a reason in place of figures, and the others stay
    (lies,) = (line for line in lines if "lies.safetensors" in line)
    assert "do not take" in lies


def test_text_json_and_python_say_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(asked(capsys, str(folder), "--json")[1])
    found = list_models(str(folder))
    assert [m["path"] for m in document["models"]] == [m.path for m in found.models]
    assert [m["params"] for m in document["models"]] == [m.params for m in found.models]
    assert document["models"][1]["note"] == found.models[1].note != ""
    assert document["torchvision"] is None


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "name", ["lenet", "bert_tiny", "lstm_tiny", "mobilenet_small", "mlp_128", "three_inputs", "jsc_tiny"]
)
def test_parameters_are_those_that_info_counts(name: str, sample: Sample) -> None:
    listed = listing.read_model_file(str(sample(name)))
    with Session(str(sample(name))) as session:
        assert listed.params == session.info().totals.params


@pytest.mark.parametrize("name", ["convolutions_int8", "lstm", "attention"])
def test_tensors_of_the_same_bytes_are_counted_once(name: str) -> None:
    path = str(TFLITE / f"{name}.tflite")
    with Session(path) as session:
        assert listing.read_model_file(path).params == session.info().totals.params


def test_tensors_of_the_same_bytes_in_a_data_file_are_counted_once(tmp_path: Path) -> None:
    def value(name: str) -> onnx.ValueInfoProto:
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4])

    def weight(name: str, offset: int) -> onnx.TensorProto:
        tensor = onnx.TensorProto(name=name, dims=[4, 4], data_type=onnx.TensorProto.FLOAT, data_location=1)
        for key, text in ("location", "weights"), ("offset", str(offset)), ("length", "64"):
            tensor.external_data.add(key=key, value=text)
        return tensor

    names = ["x", "y", "z", "out"]
    nodes = [
        onnx.helper.make_node("MatMul", [a, f"w{at}"], [b])
        for at, (a, b) in enumerate(itertools.pairwise(names))
    ]
    weights = [weight("w0", 0), weight("w1", 0), weight("w2", 64)]
    graph = onnx.helper.make_graph(nodes, "g", [value("x")], [value("out")], weights)
    path = tmp_path / "model.onnx"
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    path.write_bytes(model.SerializeToString())
    (tmp_path / "weights").write_bytes(bytes(128))
    with Session(str(path)) as session:
        assert listing.read_model_file(str(path)).params == session.info().totals.params == 32


def test_a_checkpoint_counts_no_optimizer_and_a_tied_weight_once(tmp_path: Path) -> None:
    layer = torch.nn.Linear(10, 10, bias=False)
    model = {"one.weight": layer.weight.data, "two.weight": layer.weight.data}
    adam = {"state": {0: {"exp_avg": torch.zeros(10, 10)}}, "param_groups": [{"lr": 0.1, "params": [0]}]}
    torch.save({"model": model, "optimizer": adam}, tmp_path / "a.pt")
    assert listing.read_model_file(str(tmp_path / "a.pt")).params == 100


def test_quantization_is_told_where_the_header_says_so() -> None:
    (found,) = list_models(str(TFLITE / "convolutions_int8.tflite")).models
    assert found.quantization == "int8 with scales"
    assert found.types[0].name == "int8"


def test_a_folder_that_is_a_model_is_listed_as_one(tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a.weight": torch.zeros(3, 4)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text('{"quantization_config": {"quant_method": "gptq", "bits": 4}}')
    (found,) = list_models(str(tmp_path)).models
    assert (found.format, found.params, found.quantization) == ("huggingface", 12, "gptq, 4 bits")


@pytest.mark.slow
def test_a_saved_model_in_a_folder_is_listed_with_what_to_do_with_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "exported" / "variables").mkdir(parents=True)
    (folder / "exported" / "saved_model.pb").write_bytes(b"\x08\x01")
    found = {model.path: model for model in list_models(str(folder)).models}
    saved = found[f"exported{os.sep}"]
    assert (saved.format, saved.params) == ("saved_model", None)
    assert "explorer convert" in saved.note
    assert "exported" in asked(capsys, str(folder))[1]
    assert len(found) == 5
    # alone in a folder it is told too, and named it says the same
    shutil.copytree(folder / "exported", folder / "alone" / "exported")
    assert "exported" in asked(capsys, str(folder / "alone"))[1]
    code, _, said = asked(capsys, str(folder / "alone" / "exported"))
    assert code == 2
    assert "explorer convert" in said


@pytest.mark.slow
def test_a_header_that_takes_too_long_costs_its_own_row_only(
    sample: Sample, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # the first by the clock, the second by what it takes of the processor
    rows = {f"t{at}": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]} for at in range(100_000)}
    header = json.dumps(rows).encode()
    (tmp_path / "many.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    for seconds, patience in ((0.0, 6), (0.01, 12_000)):
        monkeypatch.setattr(header_reader, "_CLOCK_FACTOR", patience)
        late = HeaderReader(seconds=seconds)
        try:
            read = late.read(str(tmp_path / "many.safetensors"))
            assert read.note.startswith(f"its header takes more than {seconds:g} s")
        finally:
            late.close()
    reader = HeaderReader()
    try:
        first, second = reader.read_all([str(sample("lenet")), str(sample("mlp_128"))])
        assert (first.params, second.params) == (61_706, 16_384)
    finally:
        reader.close()
    assert reader.read(str(sample("lenet"))).note  # closed: nothing is started again


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere: there is no such folder"),
        (["empty"], "no model is in it"),
        (["a", "b"], "one word too many"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], said: str, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    code, out, err = asked(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert said in err


@pytest.mark.slow
def test_without_a_folder_torchvision_is_listed_and_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    before = "torchvision" in sys.modules
    document = json.loads(asked(capsys, "--json")[1])
    assert {"name": "alexnet", "params": 61_100_840} in document["torchvision"]
    assert ("torchvision" in sys.modules) == before
    assert document["models"] == []


@pytest.mark.slow
def test_the_names_and_counts_are_torchvisions_own() -> None:
    from torchvision import models

    found = {one.name: one.params for one in list_torchvision_models() or ()}
    counts = {
        name: next(iter(models.get_model_weights(name))).meta["num_params"] for name in models.list_models()
    }
    assert found == counts


def test_a_long_name_of_a_type_does_not_widen_the_list(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # a fuzzed file whose storage type has a name of 99 bytes
    shutil.copy(CORPUS / "24bab1440d5c05f4", folder / "odd.pt")
    code, out, _ = asked(capsys, str(folder))
    assert code == 0
    assert "odd.pt" in out
    assert max(map(len, out.splitlines())) < 160
