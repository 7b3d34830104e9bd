"""An nn.Module becomes an ONNX file that says what was asked for and computes what the module computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from explorer import BadModel, Misuse
from explorer.facts.conversion import Conversion

torch = pytest.importorskip("torch")
onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")

import onnxruntime  # noqa: E402

from explorer.engine.models.torch import onnx_export  # noqa: E402
from tests.engine.convert import nets  # noqa: E402

Convert = Callable[..., Conversion]
EXPORTERS = ("dynamo", "torchscript")


def small() -> Any:
    torch.manual_seed(0)
    return nets.Small().eval()


def shape(value: Any) -> list[Any]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_a_module_is_written_by_the_exporter_that_was_asked_for(
    convert: Convert, tmp_path: Path, exporter: str
) -> None:
    module = small()
    fact = convert(module, "small.onnx", inputs=torch.rand(1, 1, 12, 12), exporter=exporter)
    assert onnx_export.EXPORTERS[exporter] in fact.how
    assert (fact.source_format, fact.format) == ("torch", "onnx")
    assert fact.verification is not None
    assert fact.verification.passed
    assert fact.verification.seeds == (0, 1, 2)
    assert fact.verification.outputs[0].reference == "float64"
    written = onnx.load(tmp_path / "small.onnx")
    onnx.checker.check_model(written, full_check=True)
    assert fact.opset == written.opset_import[0].version
    assert fact.file_bytes == (tmp_path / "small.onnx").stat().st_size
    x = torch.rand(1, 1, 12, 12)
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    (theirs,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.allclose(theirs, module(x).detach().numpy(), atol=1e-5)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("exporter", "opset", "by"),
    [
        ("torchscript", 11, "TorchScript"),
        ("torchscript", 20, "TorchScript"),
        (None, 13, "TorchScript"),
        (None, 23, "torch.export"),
    ],
)
def test_the_file_has_the_opset_that_was_asked_for(
    convert: Convert, tmp_path: Path, exporter: str | None, opset: int, by: str
) -> None:
    fact = convert(
        small(), "small.onnx", inputs=torch.rand(1, 1, 8, 8), exporter=exporter, opset=opset, draws=1
    )
    assert by in fact.how
    assert fact.opset == opset
    assert onnx.load(tmp_path / "small.onnx").opset_import[0].version == opset


@pytest.mark.parametrize(
    ("exporter", "opset", "says"),
    [
        ("torchscript", 23, "the TorchScript exporter writes opset 7 to 20; --exporter dynamo writes later"),
        ("dynamo", 12, "the torch.export exporter writes opset 18 to"),
        (None, 99, "torch writes opset 7 to"),
        (None, 3, "torch writes opset 7 to"),
    ],
)
def test_an_opset_that_nobody_writes_is_refused_with_those_that_somebody_does(
    convert: Convert, exporter: str | None, opset: int, says: str
) -> None:
    with pytest.raises(Misuse, match=says):
        convert(small(), "small.onnx", inputs=torch.rand(1, 1, 8, 8), exporter=exporter, opset=opset)


@pytest.mark.slow
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_names_and_open_dimensions_are_in_the_file_and_hold_at_other_sizes(
    convert: Convert, tmp_path: Path, exporter: str
) -> None:
    fact = convert(
        small(),
        "small.onnx",
        inputs=torch.rand(1, 1, 8, 9),
        exporter=exporter,
        input_names=["photo"],
        output_names=["scores"],
        dynamic={"photo": {0: "batch", -1: "width"}},
    )
    graph = onnx.load(tmp_path / "small.onnx").graph
    assert [(v.name, shape(v)) for v in graph.input] == [("photo", ["batch", 1, 8, "width"])]
    assert [(v.name, shape(v)) for v in graph.output] == [("scores", ["batch", 10])]
    assert fact.inputs[0].shape == ("batch", 1, 8, "width")
    assert fact.verification is not None
    names = [out.name for out in fact.verification.outputs]
    assert names[0] == "scores"
    assert names[1] == "scores with image [3, 1, 8, 11]"
    assert names[-1] == "scores with image [17, 1, 8, 19]", "a prime above 16"
    session = onnxruntime.InferenceSession(tmp_path / "small.onnx")
    assert session.run(None, {"photo": np.zeros((7, 1, 8, 31), np.float32)})[0].shape == (7, 10)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("exporter", EXPORTERS)
def test_names_behind_those_of_the_inputs_are_for_the_weights(
    convert: Convert, tmp_path: Path, exporter: str
) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2)).eval()
    names = ["photo", "learned_0", "learned_1", "learned_2"]
    fact = convert(net, "net.onnx", inputs=torch.rand(1, 3), exporter=exporter, input_names=names)
    assert fact.passed
    graph = onnx.load(tmp_path / "net.onnx").graph
    assert [value.name for value in graph.input] == ["photo"]
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}
    assert [*stored] == ["learned_0", "learned_1", "learned_2", "2.bias"], "a name that is missing stays"
    for name, weight in zip(stored, net.state_dict().values(), strict=True):
        assert np.array_equal(stored[name], weight.numpy())


def test_a_size_that_a_trace_took_for_a_constant_is_found_out_and_nothing_is_kept(
    convert: Convert, tmp_path: Path
) -> None:
    fact = convert(
        nets.Counting().eval(),
        "counting.onnx",
        inputs=torch.rand(2, 8),
        exporter="torchscript",
        dynamic={"x": {0: "batch"}},
    )
    assert not fact.passed
    assert (fact.output, fact.file_bytes) == ("", None)
    assert fact.verification is not None
    assert [out.passed for out in fact.verification.outputs] == [True, False, False]
    assert "with x [3, 8]" in fact.verification.verdict
    assert not (tmp_path / "counting.onnx").exists()


@pytest.mark.slow
def test_an_exporter_that_fixes_an_open_dimension_is_told_of(convert: Convert) -> None:
    with pytest.raises(BadModel, match=r"could not leave 'batch' open, and fixed it at 2; .*--dynamic"):
        convert(
            nets.Counting().eval(),
            "counting.onnx",
            inputs=torch.rand(2, 8),
            exporter="dynamo",
            dynamic={"x": {0: "batch"}},
        )


def test_a_decision_by_values_that_a_trace_lost_is_found_out(convert: Convert, tmp_path: Path) -> None:
    (tmp_path / "old.onnx").write_bytes(b"what was there before")
    fact = convert(
        nets.Deciding().eval(), "old.onnx", inputs=torch.rand(2, 8), exporter="torchscript", overwrite=True
    )
    assert not fact.passed
    assert (tmp_path / "old.onnx").read_bytes() == b"what was there before"


@pytest.mark.slow
def test_several_inputs_and_outputs_keep_their_names_and_integers_stay_inside_their_table(
    convert: Convert, tmp_path: Path
) -> None:
    torch.manual_seed(1)
    shapes = {"x": (None, (2, 5, 4)), "ids": ("int64", (2, 5))}
    fact = convert(nets.Words().eval(), "words.onnx", input_shapes=shapes, dynamic={
        "x": {0: "n"}, "ids": {0: "n"}
    })  # fmt: skip
    assert [t.name for t in fact.inputs] == ["x", "ids"]
    assert [t.name for t in fact.outputs] == ["output.states", "output.last", "output.best"]
    assert [t.shape for t in fact.outputs] == [("n", 5, 6), (1, "n", 6), ("n", 5)]
    assert fact.verification is not None
    assert fact.verification.passed
    assert "ids: int64 [2, 5], 0 to 6, rows of the table it indexes" in fact.verification.inputs


def test_an_input_that_nothing_uses_is_said_to_be_gone(convert: Convert) -> None:
    shapes = {"x": (None, (2, 8)), "mask": (None, (2, 8))}
    fact = convert(nets.Masked().eval(), "masked.onnx", input_shapes=shapes, exporter="torchscript")
    assert fact.passed
    assert [t.name for t in fact.inputs] == ["x"]
    assert "no operator uses mask: not in the file" in fact.notes


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_names": [*"abcdefghijklmnopqrstuvw"]}, "22 names for weights, and the file stores"),
        ({"input_names": ["image", "logits", "logits"]}, "a value of the file is called .logits. already"),
        ({"output_names": ["a", "b"]}, "--output-names: the model has 1 output; they are output"),
        ({"output_names": ["fc.weight"]}, "'fc.weight' is already the name of a weight"),
        ({"input_names": ["y"], "output_names": ["y"]}, "'y' is already the name of an input"),
        ({"dynamic": {"imag": {0: "n"}}}, "no input is called 'imag'; did you mean 'image'"),
        ({"dynamic": {"image": {4: "n"}}}, r"'image' has no axis 4; its shape is \[1, 1, 8, 9\]"),
        ({"dynamic": {"image": {2: "n", 3: "n"}}}, "'n' would be 8 and 9"),
        ({"method": "script"}, "--method: does not go with torch to ONNX; choose from: --exporter"),
        ({"draws": 0}, r"convert\(draws\): 0 cannot be taken; give a whole number of at least 1"),
    ],
)
def test_what_cannot_be_had_is_refused_in_one_line(
    convert: Convert, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(Misuse, match=says) as caught:
        convert(small(), "small.onnx", inputs=torch.rand(1, 1, 8, 9), **options)
    assert "\n" not in str(caught.value)


def test_a_model_that_the_exporter_cannot_write_leaves_nothing(convert: Convert, tmp_path: Path) -> None:
    with pytest.raises(BadModel, match=r"cannot be exported to ONNX .*svd"):
        convert(nets.Unwritable().eval(), "svd.onnx", inputs=torch.rand(2, 8), exporter="torchscript")
    assert not (tmp_path / "svd.onnx").exists()


@pytest.mark.slow
def test_the_newer_exporter_takes_the_convolutions_of_a_traced_file(convert: Convert) -> None:
    module = nets.Small().eval()
    convert(module, "small.pt", inputs=torch.rand(1, 1, 8, 8), verify=False)
    assert convert("small.pt", "small.onnx", exporter="dynamo", draws=1).passed


@pytest.mark.slow
def test_the_newer_exporters_reason_is_the_operator_and_not_its_advice(convert: Convert) -> None:
    with pytest.raises(BadModel, match=r"\(DispatchError: No ONNX function found for .*svd"):
        convert(nets.Unwritable().eval(), "svd.onnx", inputs=torch.rand(2, 8), exporter="dynamo")


def test_without_the_comparison_nothing_is_claimed(convert: Convert) -> None:
    fact = convert(nets.Deciding().eval(), "any.onnx", inputs=torch.rand(2, 8), verify=False,
                   exporter="torchscript")  # fmt: skip
    assert fact.output == "any.onnx"
    assert fact.verification is None


@pytest.mark.slow
def test_large_weights_lie_in_a_file_beside_the_model_and_move_with_it(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(onnx_export, "_EXTERNAL_BYTES", 100)
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(40, 40), torch.nn.ReLU()).eval()
    fact = convert(module, "large.onnx", inputs=torch.rand(2, 40), exporter="dynamo", draws=1)
    assert fact.passed
    beside = tmp_path / "large.onnx.data"
    assert beside.stat().st_size >= 40 * 40 * 4
    assert fact.file_bytes == beside.stat().st_size + (tmp_path / "large.onnx").stat().st_size
    onnxruntime.InferenceSession(tmp_path / "large.onnx")


def test_a_file_for_every_weight_becomes_one_file_beside_the_model(convert: Convert, tmp_path: Path) -> None:
    """What the TorchScript exporter writes above 2 GiB."""
    from explorer.engine.convert.onnx_file import join_external_data

    path = tmp_path / "small.onnx"
    convert(small(), "small.onnx", inputs=torch.rand(1, 1, 8, 8), verify=False)
    feeds = {onnx.load(path).graph.input[0].name: np.ones((1, 1, 8, 8), np.float32)}
    before = onnxruntime.InferenceSession(path).run(None, feeds)
    onnx.save(
        onnx.load(path),
        path,
        save_as_external_data=True,
        all_tensors_to_one_file=False,
        size_threshold=0,
        convert_attribute=False,
    )
    assert len(list(tmp_path.iterdir())) > 3
    join_external_data(str(path))
    assert {entry.name for entry in tmp_path.iterdir()} <= {"small.onnx", "small.onnx.data"}
    after = onnxruntime.InferenceSession(path).run(None, feeds)
    assert np.array_equal(before[0], after[0])


def test_a_users_module_is_left_as_it_was(convert: Convert) -> None:
    module = small().train()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    convert(module, "small.onnx", inputs=torch.rand(1, 1, 8, 8), draws=1)
    assert module.training
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_a_conversion_can_be_stopped(convert: Convert, tmp_path: Path) -> None:
    from explorer import Cancelled

    asked = 0

    def cancel() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(Cancelled):
        convert(small(), "small.onnx", inputs=torch.rand(1, 1, 8, 8), cancel=cancel)
    assert not (tmp_path / "small.onnx").exists()
