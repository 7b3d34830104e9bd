"""TFLite becomes ONNX by tf2onnx where TensorFlow is installed; where it is not, what to type is said."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from explorer import BadModel, MissingExtra, Misuse
from explorer.facts.conversion import Conversion

Convert = Callable[..., Conversion]
MODELS = Path(__file__).parent.parent / "formats" / "tflite" / "models"

there = all(importlib.util.find_spec(name) is not None for name in ("tensorflow", "tf2onnx"))
tensorflow = pytest.mark.skipif(not there, reason="the extra [tensorflow] is not installed")


@pytest.mark.parametrize("missing", ["tf2onnx", "tf2onnx.convert"])
def test_where_the_extra_is_missing_it_says_what_to_type(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    # a package that is installed and lacks a part is broken
    broken = there and missing != "tf2onnx"
    says = r"pip install --force-reinstall" if broken else r"pip install 'explorer-nn\[tensorflow\]'"
    with pytest.raises(MissingExtra, match=f"type: {says}") as caught:
        convert(str(MODELS / "convolutions.tflite"), "out.onnx")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out.onnx").exists()


def test_what_tflite_cannot_become_is_refused_before_tensorflow_is_asked_for(convert: Convert) -> None:
    with pytest.raises(Misuse, match=r"tflite cannot be converted to '\.pt2'; it can become ONNX \(\.onnx\)"):
        convert(str(MODELS / "convolutions.tflite"), "out.pt2")
    with pytest.raises(Misuse, match="does not go with tflite to ONNX; choose from: --opset, --fold"):
        convert(str(MODELS / "convolutions.tflite"), "out.onnx", dynamic={"x": {0: "n"}})


@tensorflow
@pytest.mark.parametrize("name", ["convolutions", "convolutions_float16", "lstm", "flow", "attention"])
def test_a_float_model_computes_what_tensorflows_own_interpreter_computes(
    convert: Convert, tmp_path: Path, name: str
) -> None:
    import onnx

    fact = convert(str(MODELS / f"{name}.tflite"), "out.onnx", opset=17)
    assert (fact.source_format, fact.format, fact.opset) == ("tflite", "onnx", 17)
    assert fact.how.startswith("tf2onnx ")
    assert fact.verification is not None
    assert fact.verification.passed
    assert fact.verification.outputs[0].reference == "float64"
    assert fact.verification.outputs[0].max_abs is not None
    assert fact.verification.outputs[0].max_abs < 1e-3
    onnx.checker.check_model(str(tmp_path / "out.onnx"))


@tensorflow
def test_what_is_written_is_folded_where_that_is_asked_for(convert: Convert) -> None:
    plain = convert(str(MODELS / "attention.tflite"), "plain.onnx")
    fact = convert(str(MODELS / "attention.tflite"), "out.onnx", fold=True)
    assert fact.passed
    assert "nodes of constants computed" in fact.notes[0]
    assert not plain.notes


@tensorflow
def test_a_quantized_model_is_compared_by_the_step_of_its_quantization(convert: Convert) -> None:
    fact = convert(str(MODELS / "convolutions_int8.tflite"), "out.onnx")
    assert fact.passed
    assert any("rounding to 8 bits" in note for note in fact.notes)


@tensorflow
@pytest.mark.parametrize("name", ["convolutions", "convolutions_int8"])
def test_a_model_that_computes_something_else_is_not_kept(
    convert: Convert, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A converter that lost a layer's weights would be found out, quantized or not."""
    import numpy as np
    import onnx
    import tf2onnx.convert as real
    from onnx import numpy_helper

    original = real.from_tflite

    def wrong(*args: object, **kwargs: object) -> object:
        made = original(*args, **kwargs)
        path = str(kwargs["output_path"])
        model = onnx.load(path)
        numbers = [t for t in model.graph.initializer if numpy_helper.to_array(t).dtype.kind in "fi"]
        spoilt = max(numbers, key=lambda tensor: numpy_helper.to_array(tensor).size)
        array = numpy_helper.to_array(spoilt)
        spoilt.CopyFrom(numpy_helper.from_array(np.zeros_like(array), spoilt.name))
        onnx.save(model, path)
        return made

    monkeypatch.setattr(real, "from_tflite", wrong)
    fact = convert(str(MODELS / f"{name}.tflite"), "out.onnx")
    assert not fact.passed
    assert fact.output == ""


@tensorflow
def test_what_tf2onnx_cannot_write_is_one_line(convert: Convert) -> None:
    with pytest.raises(BadModel, match="tf2onnx cannot convert it") as caught:
        convert(str(MODELS / "behind.tflite"), "out.onnx")
    assert "\n" not in str(caught.value)
