"""onnx, onnxruntime, tflite and torchvision without what is assumed of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from explorer.engine.compat import onnx as of_onnx
from explorer.engine.compat import onnxruntime as of_onnxruntime
from explorer.engine.compat import tflite as of_tflite


def scan(axis: int) -> Any:
    """A model whose Scan stacks its rows along an axis."""
    row = helper.make_tensor_value_info("row", TensorProto.FLOAT, [3])
    same = helper.make_tensor_value_info("same", TensorProto.FLOAT, [3])
    body = helper.make_graph([helper.make_node("Identity", ["row"], ["same"])], "body", [row], [same])
    node = helper.make_node("Scan", ["x"], ["y"], body=body, num_scan_inputs=1, scan_output_axes=[axis])
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 3])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 3] if axis == 0 else [3, 2])
    return helper.make_model(
        helper.make_graph([node], "scan", [x], [y]), opset_imports=[helper.make_opsetid("", 17)]
    )


def test_without_its_scan_onnx_runs_the_first_axis_and_refuses_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def run(axis: int) -> Any:
        return ReferenceEvaluator(scan(axis), new_ops=of_onnx.build_scan_along_any_axis()).run(
            None, {"x": x}
        )[0]

    assert run(0).tolist() == x.tolist()
    assert run(1).tolist() == x.T.tolist()
    monkeypatch.delattr("onnx.reference.ops.op_scan.Scan")
    assert of_onnx.build_scan_along_any_axis() == []
    monkeypatch.undo()
    monkeypatch.setattr(of_onnx, "build_scan_along_any_axis", list)
    assert run(0).tolist() == x.tolist()
    with pytest.raises(Exception, match=r"."):
        run(1)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[ONNXRuntimeError] : 1 : FAIL : Node (n) has no kernel", "Node (n) has no kernel"),
        ("[ONNXRuntimeError] : 9 : NOT_IMPLEMENTED : ", "not implemented"),
        ("Something else, said in another way", "Something else, said in another way"),
        ("<ONNXRuntime> FAIL: of a later release", "<ONNXRuntime> FAIL: of a later release"),
    ],
)
def test_words_of_onnxruntime_in_another_form_are_shown_as_they_are(text: str, said: str) -> None:
    assert of_onnxruntime.read_message(RuntimeError(text)) == said
    assert not of_onnxruntime.is_optimizer_error(RuntimeError(text))


def test_names_of_onnxruntime_in_another_form_are_those_of_nobody() -> None:
    assert of_onnxruntime.list_blocked_values("conv_nchwc") == ("conv", "conv")
    assert of_onnxruntime.list_blocked_values("x_bn_nchwc") == ("x_bn", "x")
    assert of_onnxruntime.list_blocked_values("conv_blocked") == ()
    assert of_onnxruntime.find_timed_node("conv_kernel_time") == "conv"
    assert of_onnxruntime.find_timed_node("conv/time") is None
    assert of_onnxruntime.strip_precision("InsertedPrecisionFreeCast_x") == "x"
    assert of_onnxruntime.strip_precision("Cast_x") == "Cast_x"


def test_an_accessor_without_code_of_python_names_nothing() -> None:
    class Kind:
        read = len

    assert of_tflite.list_used_names(Kind, "read") == ()


def test_a_detection_model_of_a_torchvision_without_its_loops_is_marked_as_assumed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torchvision")
    from torchvision.models.detection import roi_heads

    from explorer.engine.compat import torchvision as of_torchvision

    monkeypatch.delattr(roi_heads, "paste_mask_in_image")
    notes: list[str] = []
    heads: Any = SimpleNamespace()
    monkeypatch.setattr(
        roi_heads.RoIHeads, "forward", lambda self, features, proposals, sizes, targets=None: "ran"
    )
    with of_torchvision.install_replacements(notes.append):
        assert roi_heads.RoIHeads.forward(heads, {}, [], [(4, 4)]) == "ran"
    assert len(notes) == 1
    assert "has no paste_mask_in_image: every box counts with a side of 1" in notes[0]
    assert of_torchvision.get_model_part(SimpleNamespace()) == ""  # type: ignore[arg-type]
