"""Our rules against onnx's test cases, onnx's inference and onnxruntime's symbolic inference."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import numpy_helper, shape_inference

from explorer.base.errors import ExplorerError
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.graph.model import Model
from explorer.engine.shapes import Inference, infer, runtime_shapes

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
MODELS = sorted(DATA.glob("*/*/model.onnx")) + sorted(DATA.glob("light/*.onnx"))


def bare(model: Model) -> Model:
    """Without what the file says of shapes behind its inputs."""
    outputs = tuple(replace(v, dtype=None, shape=None, record=None) for v in model.graph.outputs)
    return replace(model, graph=replace(model.graph, outputs=outputs, values=()))


def cases() -> Iterator[tuple[str, onnx.ModelProto, list[Any]]]:
    """onnx's node tests, once as they are and once with small inputs stored in the model."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = collect_testcases(None)
    for case in found:
        if "_expanded" in case.name:  # the same again, written in simpler operators
            continue
        inputs, outputs = case.data_sets[0]
        yield case.name, case.model, outputs
        stored = [
            numpy_helper.from_array(x, value.name)
            for value, x in zip(case.model.graph.input, inputs, strict=False)
            if isinstance(x, np.ndarray) and x.ndim <= 1 and x.size <= 64 and x.dtype.kind in "ifb"
        ]
        if stored:
            model = onnx.ModelProto()
            model.CopyFrom(case.model)
            model.graph.initializer.extend(stored)
            yield f"{case.name}, inputs stored", model, outputs


@pytest.mark.slow
def test_every_node_test_of_onnx_gives_the_shapes_that_we_say(tmp_path: Path) -> None:
    seen: Counter[str] = Counter()
    wrong = []
    path = tmp_path / "case.onnx"
    for name, proto, outputs in cases():
        path.write_bytes(proto.SerializeToString())
        try:
            model = validate(reader.read(str(path)))
        except ExplorerError:
            seen["refused"] += 1
            continue
        values = Inference(bare(model)).main.values
        for value, array in zip(proto.graph.output, outputs, strict=False):
            info = values.get(value.name)
            if not isinstance(array, np.ndarray) or info is None or info.shape is None:
                seen["unknown"] += 1
                continue
            seen[info.origin if None not in info.shape else "partly"] += 1
            fits = len(info.shape) == array.ndim and all(
                d is None or (d >= s if info.origin == "bound" else d == s)  # type: ignore[operator]
                for d, s in zip(info.shape, array.shape, strict=True)
            )
            if not fits or (array.dtype.kind in "iub" and info.dtype not in (None, str(array.dtype))):
                wrong.append((name, info, array.dtype, array.shape))
    assert wrong == []
    assert seen["inferred"] > 1500
    assert seen["bound"] > 50
    assert seen["refused"] < 20
    assert seen["unknown"] + seen["partly"] < 700


@pytest.mark.sampled(12)
@pytest.mark.parametrize("path", MODELS, ids=lambda p: p.parent.name if p.name == "model.onnx" else p.stem)
def test_a_model_of_onnx_gets_at_least_the_shapes_that_onnx_infers(path: Path) -> None:
    proto = onnx.load(path, load_external_data=False)
    del proto.graph.value_info[:]
    for output in proto.graph.output:
        output.ClearField("type")
    ours = infer(bare(validate(reader.read(str(path))))).values
    theirs = shape_inference.infer_shapes(proto, data_prop=True)
    for value in (*theirs.graph.value_info, *theirs.graph.output):
        kind = value.type.tensor_type
        if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
            continue
        info = ours.get(value.name)
        assert info is not None, value.name
        assert info.shape is not None, value.name
        assert len(info.shape) == len(kind.shape.dim), value.name
        for mine, other in zip(info.shape, kind.shape.dim, strict=True):
            if other.HasField("dim_value"):
                assert mine == other.dim_value, value.name


def test_names_agree_with_the_symbolic_inference_of_onnxruntime(tmp_path: Path) -> None:
    """A transformer with open batch and length, which onnx's own inference loses in its reshapes."""
    pytest.importorskip("sympy")
    symbolic = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer")
    path = Path(__file__).parents[3] / "sample_models" / "bert_tiny.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = symbolic.SymbolicShapeInference.infer_shapes(onnx.load(path), auto_merge=True)
    ours = infer(validate(reader.read(str(path)))).values
    compared = 0
    for value in theirs.graph.value_info:
        shape = [
            d.dim_value if d.HasField("dim_value") else d.dim_param for d in value.type.tensor_type.shape.dim
        ]
        if value.name not in ours or any(
            isinstance(d, str) and d not in ("batch", "sequence") for d in shape
        ):
            continue
        if "min(64,sequence)" in (ours[value.name].shape or ()):
            continue  # theirs believes that the slice of a table of 64 rows is as long as the sentence
        assert list(ours[value.name].shape or ()) == shape, value.name
        compared += 1
    assert compared > 150


@pytest.mark.parametrize("name", ["lenet", "mobilenet_small", "bert_tiny", "three_inputs"])
def test_a_model_that_the_runtime_has_optimised_has_the_shapes_of_a_run(tmp_path: Path, name: str) -> None:
    """The runtime writes operators of its own: blocked convolutions, fused products, fused activations."""
    ort = pytest.importorskip("onnxruntime")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    options.log_severity_level = 4
    source = Path(__file__).parents[3] / "sample_models" / f"{name}.onnx"
    ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])
    model = validate(reader.read(options.optimized_model_filepath))
    sizes = {d: 3 for v in model.graph.required_inputs for d in v.shape or () if isinstance(d, str)}
    ours = infer(model, sizes).values
    seen, _ = runtime_shapes.observe_shapes(model, ours, sizes)
    assert seen
    for value, kind in seen.items():
        assert (ours[value].dtype, ours[value].shape) == kind, value
