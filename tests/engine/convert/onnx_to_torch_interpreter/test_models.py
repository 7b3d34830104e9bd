"""ONNX models in torch: the same results as onnxruntime's, weights by their names, files of torch's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import onnx  # noqa: E402
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx.reference import ReferenceEvaluator  # noqa: E402

import explorer  # noqa: E402
from explorer import BadModel, Misuse, Session, TileSpec  # noqa: E402
from explorer.engine.convert.onnx_to_torch_interpreter.module import load_onnx  # noqa: E402
from explorer.engine.formats.onnx import reader  # noqa: E402

SAMPLES = Path(__file__).parents[4] / "sample_models"


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", ["lab", "scan", "unrolled", "batched"])
def test_a_tiled_model_loads_whatever_its_form(form: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "tiled.onnx")
    with Session(SAMPLES / "lenet.onnx") as session:
        session.tile(TileSpec(tile=(16, 16, 16), form=form), output=path, verify=False)
    module = explorer.to_torch(path)  # compared with onnxruntime in there
    assert module(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["bert_tiny", "mobilenet_small", "three_inputs", "jsc_tiny"])
def test_ordinary_models_load(name: str) -> None:
    explorer.to_torch(SAMPLES / f"{name}.onnx", draws=2)


def test_weights_are_parameters_under_their_names() -> None:
    module = explorer.to_torch(SAMPLES / "lenet.onnx", verify=False)
    stored = {t.name: numpy_helper.to_array(t) for t in onnx.load(SAMPLES / "lenet.onnx").graph.initializer}
    assert set(module.state_dict()) == {name for name, value in stored.items() if value.dtype != np.int64}
    assert np.array_equal(module.state_dict()["conv1.weight"].numpy(), stored["conv1.weight"])
    assert isinstance(dict(module.named_parameters())["conv1.weight"], torch.nn.Parameter)
    assert not module.training


def test_writing_to_a_weight_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes((SAMPLES / "lenet.onnx").read_bytes())
    before = path.read_bytes()
    module = explorer.to_torch(path, verify=False)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(1.0)
    assert path.read_bytes() == before


def saved(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], held: dict[str, Any]) -> str:
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [numpy_helper.from_array(v, name) for name, v in held.items()]
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return str(path)


def value(name: str, kind: int, shape: list[Any]) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def test_an_lstm_in_both_directions(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    held = {
        "w": draw.standard_normal((2, 20, 3)).astype(np.float32),
        "r": draw.standard_normal((2, 20, 5)).astype(np.float32),
        "b": draw.standard_normal((2, 40)).astype(np.float32),
    }
    node = helper.make_node(
        "LSTM", ["x", "w", "r", "b"], ["y", "h", "c"], hidden_size=5, direction="bidirectional"
    )
    outs = [value("y", 1, [4, 2, 2, 5]), value("h", 1, [2, 2, 5]), value("c", 1, [2, 2, 5])]
    explorer.to_torch(saved(tmp_path / "m.onnx", [node], [value("x", 1, [4, 2, 3])], outs, held))


def test_eight_bits_give_the_same_whole_numbers(tmp_path: Path) -> None:
    draw = np.random.default_rng(0)
    weight = draw.integers(-128, 128, (6, 3, 3, 3)).astype(np.int8)
    held = {
        "sx": np.float32(0.02), "zx": np.uint8(120), "w": weight,
        "sw": (0.01 + draw.random(6) / 100).astype(np.float32), "zw": np.zeros(6, np.int8),
        "sy": np.float32(0.1), "zy": np.uint8(7), "b": draw.integers(-500, 500, 6).astype(np.int32),
    }  # fmt: skip
    names = ["x", "sx", "zx", "w", "sw", "zw", "sy", "zy", "b"]
    node = helper.make_node("QLinearConv", names, ["y"], pads=[1, 1, 1, 1])
    path = saved(
        tmp_path / "m.onnx",
        [node],
        [value("x", TensorProto.UINT8, [2, 3, 8, 8])],
        [value("y", TensorProto.UINT8, [2, 6, 8, 8])],
        held,
    )
    x = draw.integers(0, 256, (2, 3, 8, 8)).astype(np.uint8)
    # not onnxruntime: on a processor without VNNI its sums of two products saturate at 16 bits
    true = ReferenceEvaluator(path).run(None, {"x": x})[0]
    got = load_onnx(reader.read(path))(torch.from_numpy(x)).numpy()
    assert np.array_equal(got, true)


@pytest.mark.filterwarnings("ignore")
def test_a_dynamically_quantized_encoder(tmp_path: Path) -> None:
    # its weights use all of 8 bits: a runtime whose sums saturate at 16 is off by 0.8 here
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(SAMPLES / "bert_tiny.onnx", tmp_path / "q.onnx")
    explorer.to_torch(tmp_path / "q.onnx")


def test_branches_and_loops_run(tmp_path: Path) -> None:
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["on"]), helper.make_node("Add", ["s", "x"], ["t"])],
        "body",
        [value("i", 7, []), value("go", 9, []), value("s", 1, [2])],
        [value("on", 9, []), value("t", 1, [2])],
    )
    then = helper.make_graph([helper.make_node("Neg", ["sum"], ["a"])], "then", [], [value("a", 1, [2])])
    other = helper.make_graph(
        [helper.make_node("Identity", ["sum"], ["b"])], "else", [], [value("b", 1, [2])]
    )
    nodes = [
        helper.make_node("Loop", ["n", "", "x"], ["sum"], body=body),
        helper.make_node("ReduceSum", ["sum"], ["total"], keepdims=0),
        helper.make_node("Greater", ["total", "zero"], ["positive"]),
        helper.make_node("If", ["positive"], ["y"], then_branch=then, else_branch=other),
    ]
    held = {"n": np.int64(3), "zero": np.float32(0)}
    path = saved(tmp_path / "m.onnx", nodes, [value("x", 1, [2])], [value("y", 1, [2])], held)
    module = explorer.to_torch(path)
    assert module(torch.tensor([1.0, 2.0])).tolist() == [-4.0, -8.0]
    assert module(torch.tensor([-1.0, -2.0])).tolist() == [-4.0, -8.0]


def test_an_operator_that_is_not_known_is_named_before_anything_runs(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonMaxSuppression", ["x", "x"], ["y"]),
        helper.make_node("Odd", ["y"], ["z"], domain="a.b"),
    ]
    path = saved(tmp_path / "m.onnx", nodes, [value("x", 1, [1, 2, 4])], [value("z", 1, None)], {})
    with pytest.raises(
        BadModel, match=r"operators have no counterpart in torch here: NonMaxSuppression \(1\), a\.b\.Odd"
    ):
        load_onnx(reader.read(path))


def test_inputs_go_by_place_or_by_name() -> None:
    module = explorer.to_torch(SAMPLES / "bert_tiny.onnx", verify=False)
    ids = torch.zeros(1, 4, dtype=torch.int64)
    mask, kinds = torch.ones_like(ids), torch.zeros_like(ids)
    by_name = module(ids, token_type_ids=kinds, attention_mask=mask)
    assert all(torch.equal(a, b) for a, b in zip(module(ids, mask, kinds), by_name, strict=True))
    with pytest.raises(Misuse, match="input 'attention_mask' is missing"):
        module(ids)
    with pytest.raises(Misuse, match="no input 'mask' is open"):
        module(ids, mask=mask)


def test_another_kind_of_file_is_refused(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(2)}, tmp_path / "w.pt")
    with pytest.raises(Misuse, match="to_torch reads ONNX, and this is checkpoint"):
        explorer.to_torch(tmp_path / "w.pt")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("ending", ["pt", "pt2"])
def test_a_tiled_file_converts_to_torchs_formats(ending: str, tmp_path: Path) -> None:
    path, target = str(tmp_path / "tiled.onnx"), str(tmp_path / f"tiled.{ending}")
    with Session(SAMPLES / "jsc_tiny.onnx") as session:
        session.tile(TileSpec(tile=(8, 8, 8), form="scan"), output=path, verify=False)
    with Session(path) as session:
        fact = session.convert(target)
    assert fact.passed
    assert fact.output == target
    load: Any = torch.jit.load if ending == "pt" else lambda name: torch.export.load(name).module()
    (given,) = onnx.load(path).graph.input
    shape = [d.dim_value or 1 for d in given.type.tensor_type.shape.dim]
    x = torch.randn(*shape)
    assert torch.allclose(load(target)(x), explorer.to_torch(path, verify=False)(x), atol=1e-6)


@pytest.mark.slow
def test_open_dimensions_stay_open_in_an_exported_program(tmp_path: Path) -> None:
    target = str(tmp_path / "b.pt2")
    with Session(SAMPLES / "bert_tiny.onnx") as session:
        fact = session.convert(target, draws=1)
    assert fact.passed
    assert [info.shape for info in fact.inputs] == [("batch", "sequence")] * 3
    assert fact.verification is not None
    assert {2, 3, 17} <= {one["batch"] for one in fact.verification.sizes}
    program = torch.export.load(target).module()
    ids = torch.zeros(5, 11, dtype=torch.int64)
    assert program(ids, torch.ones_like(ids), torch.zeros_like(ids))[0].shape == (5, 11, 64)
