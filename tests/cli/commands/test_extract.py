"""`explorer extract`: a part that runs alone gives the numbers that it gave in the whole."""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import helper

from explorer.base.exit_codes import UNPROVEN
from explorer.cli.main import main
from explorer.engine.graph.model import Inline, Model
from explorer.engine.split import extract as engine

SAMPLES = Path(__file__).parent.parent.parent.parent / "sample_models"
LENET = str(SAMPLES / "lenet.onnx")
BERT = [str(SAMPLES / "bert_tiny.onnx"), "--dim", "batch=1", "--dim", "sequence=8"]


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["extract", *words]) == code
    out, err = capsys.readouterr()
    return out if code < 2 else err


def told(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(said(capsys, *words, "--json"))
    return found


def names(ports: list[dict[str, Any]]) -> list[str]:
    return [one["name"] for one in ports]


@pytest.mark.parametrize(
    ("words", "inputs", "outputs", "layers"),
    [
        (["--layer", "conv2"], ["/pool/MaxPool_output_0"], ["/conv2/Conv_output_0"], 1),
        (["--layer", "op:Conv"], ["input", "/pool/MaxPool_output_0"], None, 2),
        (["--from", "conv1", "--to", "conv2"], ["input"], ["/conv2/Conv_output_0"], 4),
        (["--to", "/pool/MaxPool_output_0"], ["input"], ["/pool/MaxPool_output_0"], 3),
        (["--from", "/Flatten_output_0"], ["/Flatten_output_0"], ["logits"], 5),
    ],
)
def test_a_part_has_the_values_of_the_whole_as_its_ends(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: list[str],
    inputs: list[str],
    outputs: list[str] | None,
    layers: int,
) -> None:
    fact = told(capsys, LENET, *words, "-o", str(tmp_path / "part.onnx"))
    assert names(fact["inputs"]) == inputs
    assert outputs is None or names(fact["outputs"]) == outputs
    assert (fact["layers"], fact["exact"]) == (layers, True)
    onnx.checker.check_model(onnx.load(tmp_path / "part.onnx"), full_check=True)


def test_a_block_of_an_encoder_runs_alone_at_other_lengths(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "block.onnx"
    fact = told(capsys, *BERT, "--layer", "encoder.layer.1", "-o", str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    x, mask = (one.name for one in session.get_inputs())
    feeds = {x: np.ones((2, 5, 64), np.float32), mask: np.zeros((2, 1, 1, 5), np.float32)}
    assert session.run(None, feeds)[0].shape == (2, 5, 64)
    assert fact["params"] == 49984


@pytest.mark.parametrize(("layer", "exact"), [("rnd", None), ("*", True), ("last", True)])
def test_what_random_numbers_make_is_never_called_equal_or_different(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, layer: str, exact: bool | None
) -> None:
    shaped = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [3, 8]) for name in "xyz"]
    nodes = [
        helper.make_node("RandomNormalLike", ["x"], ["r"], name="rnd"),
        helper.make_node("Add", ["x", "r"], ["y"], name="add"),
        helper.make_node("Mul", ["x", "r"], ["q"], name="last"),
        helper.make_node("Abs", ["x"], ["z"], name="abs"),
    ]
    shaped.append(helper.make_tensor_value_info("q", onnx.TensorProto.FLOAT, [3, 8]))
    graph = helper.make_graph(nodes, "g", shaped[:1], shaped[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, tmp_path / "random.onnx")
    words = [str(tmp_path / "random.onnx"), "--layer", layer, "-o", str(tmp_path / "part.onnx")]
    fact = told(capsys, *words)
    drawn = {one["name"]: (one["drawn"], one["equal"]) for one in fact["compared"]}
    random, sure = (True, False), (False, True)
    told_of = {
        "rnd": {"r": random},
        "*": {"y": random, "q": random, "z": sure},
        "last": {"q": sure},  # of what the whole drew before it
    }
    assert (drawn, fact["exact"]) == (told_of[layer], exact)
    text = said(capsys, *words, "--force")
    assert ("not compared, because it depends on random numbers" in text) == (layer != "last")


def test_a_part_with_another_weight_is_not_kept(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = engine.build_part_model

    def wrong(*given: Any) -> Model:
        part = made(*given)
        name, tensor = next(iter(part.graph.initializers.items()))
        data = bytearray(tensor.payload.view())  # type: ignore[union-attr]
        data[-1] ^= 1
        other = replace(tensor, payload=Inline(bytes(data)), record=None)
        return replace(part, graph=replace(part.graph, initializers={**part.graph.initializers, name: other}))

    monkeypatch.setattr(engine, "build_part_model", wrong)
    text = said(capsys, LENET, "--layer", "conv2", "-o", str(tmp_path / "part.onnx"), code=1)
    assert "NUMBERS DIFFER" in text
    assert "no file written" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ([], "the part is not named"),
        (["--layer", "conv9"], "no layer is called 'conv9'"),
        (["--from", "conv9"], "no layer or tensor is called 'conv9'"),
        (["--from", "fc3", "--to", "conv1"], "no path leads from fc3 to conv1"),
        (["--layer", "fc1", "--to", "fc2"], "--layer: it cannot be combined with --from or --to"),
    ],
)
def test_what_is_no_part_is_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, words: list[str], line: str
) -> None:
    err = said(capsys, LENET, *words, "-o", str(tmp_path / "part.onnx"), code=2)
    assert line in err
    assert len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_a_part_of_a_module_is_a_program_without_its_sample_inputs_or_a_state_dict(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "small.py").write_text(SMALL)
    sys.path.insert(0, str(tmp_path))
    try:
        source = ["small:make", "--input-shape", "x:2,8", "--trust"]
        program, stored = tmp_path / "part.pt2", tmp_path / "part.pt"
        fact = told(capsys, *source, "--layer", "body*", "-o", str(program))
        assert (names(fact["inputs"]), names(fact["outputs"])) == (["first"], ["body_add"])
        assert (fact["exact"], fact["runtime"], fact["params"]) == (True, "torch", 8 * 8 + 8)
        assert told(capsys, *source, "--layer", "body", "-o", str(stored))["exact"] is True
        # layers of a Sequential are called by numbers, which are no names of arguments
        words = ["small:plain", "--input-shape", "input:2,8", "--trust", "--layer", "2"]
        fact = told(capsys, *words, "-o", str(tmp_path / "numbered.pt2"))
        assert (names(fact["inputs"]), names(fact["outputs"])) == (["_1"], ["_2"])
        assert fact["exact"] is True
        # torch runs it as one kernel where nothing trains, which no program has, and which rounds otherwise
        words = ["small:attention", "--input-shape", "src:2,5,8", "--trust", "--layer", "layers.0"]
        for file in ("attention.pt2", "attention.pt"):
            fact = told(capsys, *words, "-o", str(tmp_path / file))
            assert (fact["exact"], "inference-only attention kernels" in fact["notes"][-1]) == (True, True)
        import small

        whole = small.make().eval()
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("small", None)
    with zipfile.ZipFile(program) as archive:
        assert [one.file_size for one in archive.infolist() if "sample_inputs" in one.filename] in ([0], [])
    x = torch.rand(2, 8)
    with torch.no_grad():
        part = torch.export.load(str(program)).module()
        state = torch.load(stored, weights_only=True)
        whole.body.linear.load_state_dict(
            {name: part.state_dict()[f"body.linear.{name}"] for name in ("weight", "bias")}
        )
        assert torch.equal(part(x), whole.body(x))
        assert all(torch.equal(one, part.state_dict()[name]) for name, one in state.items())
    assert sorted(state) == ["body.linear.bias", "body.linear.weight"]
    assert whole.load_state_dict(state, strict=False).unexpected_keys == []


SMALL = """
import torch
from torch import nn


class Body(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        return torch.relu_(self.linear(x)).add_(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.body, self.last = nn.Linear(8, 8), Body(), nn.Linear(8, 3)

    def forward(self, x):
        return self.last(self.body(self.first(x)))


def make():
    return Whole()


def attention():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def plain():
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))
"""


def test_a_part_of_a_graph_is_no_file_of_torchs(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    err = said(capsys, LENET, "--layer", "conv1", "-o", str(tmp_path / "part.pt2"), code=2)
    assert "a part of a graph is an ONNX file" in err
    assert not list(tmp_path.iterdir())


def test_the_name_that_was_typed_is_not_suggested_again(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lenet = str(Path(__file__).parent.parent.parent.parent / "sample_models" / "lenet.onnx")
    assert main(["extract", lenet, "--from", "logits", "-o", str(tmp_path / "part.onnx")]) == 2
    error = capsys.readouterr().err
    assert "'logits' cannot be an end of a part: no layer reads it" in error
    assert "did you mean" not in error
    assert not list(tmp_path.iterdir())


def test_values_that_are_all_nan_are_not_proved_and_not_called_different(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    text = "agraph (float[2,3] x) => (float[2,3] y) { a = Abs(x) n = Neg(a) l = Log(n) y = Tanh(l) }"
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    onnx.save(model, tmp_path / "m.onnx")
    words = [str(tmp_path / "m.onnx"), "--from", "l", "-o", str(tmp_path / "part.onnx")]
    assert main(["extract", *words]) == UNPROVEN
    out = capsys.readouterr().out
    assert "NaN against NaN shows nothing" in out
    assert "DIFFER" not in out
    assert not (tmp_path / "part.onnx").exists()
