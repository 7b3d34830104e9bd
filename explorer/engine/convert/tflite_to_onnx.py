"""Conversion of TFLite to ONNX by tf2onnx and TensorFlow.

tf2onnx is the usual converter and supports TFLite's operators and quantization. TensorFlow needs 600 MB of
disk space, so both packages belong to an optional extra. For the comparison, TensorFlow's interpreter runs
the source.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob, ConversionResult, describe_tensors
from explorer.engine.convert.onnx_file import fold_file
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.validate import validate
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import plan_inputs
from explorer.facts import Verification
from explorer.host.optional_packages import format_error, require, silence, silence_output

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model


_OPSET = 17
"""Default operator set: tf2onnx can write it, and every current runtime supports it."""

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]


def convert(job: ConversionJob) -> ConversionResult:
    """Writes an ONNX file of a TFLite model.

    Raises:
        MissingExtra: tf2onnx or TensorFlow is not installed.
        BadModel: tf2onnx cannot write this model.
        Cancelled: The user canceled (`job.cancel`).
    """
    tensorflow, tf2onnx = load_packages(job)
    model, notes = write_onnx(job, partial(tf2onnx.from_tflite, job.source))
    evidence = None
    if job.verify:
        with silence():
            interpreter = _load_interpreter(tensorflow, job)
        is_quantized = any(map(_is_quantized, interpreter.get_tensor_details()))
        evidence = _compare(job, interpreter, model, is_quantized)
        notes += (comparison.QUANTIZED_NOTE,) if is_quantized else ()
    return build_result(model, evidence, notes)


def load_packages(job: ConversionJob) -> tuple[Any, Any]:
    """Imports TensorFlow and `tf2onnx.convert`.

    Raises:
        MissingExtra: One of them is not installed.
    """
    job.report_progress("loading TensorFlow")
    # this variable is the only way to silence TensorFlow's C++ code
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with silence(), silence_output():
        return require("tensorflow", job.source), require("tf2onnx.convert", job.source)


def write_onnx(
    job: ConversionJob, write: Callable[..., Any], amend: Callable[[str], None] | None = None
) -> tuple[Model, tuple[str, ...]]:
    """Writes the ONNX file of a job, reads it, and folds it if the user asks for that.

    Args:
        job: The conversion.
        write: Function of tf2onnx that takes `opset` and `output_path`.
        amend: Function that changes the written file.

    Returns:
        The model of the file, and notes.

    Raises:
        BadModel: tf2onnx cannot write this model.
    """
    job.report_progress("converting (tf2onnx)")
    with silence(), silence_output():
        try:
            write(opset=job.options.opset or _OPSET, output_path=job.path)
        except Exception as error:
            raise BadModel(f"tf2onnx cannot convert it ({format_error(error)})", where=job.source) from error
    job.report_progress("reading the written file")
    if not os.path.exists(job.path):
        raise BadModel("tf2onnx wrote nothing", where=job.source)
    if amend is not None:
        amend(job.path)
    notes = fold_file(job)
    return validate(reader.read(job.path)), notes


def build_result(model: Model, evidence: Verification | None, notes: tuple[str, ...]) -> ConversionResult:
    """Returns the result of a conversion by tf2onnx."""
    version = importlib.import_module("tf2onnx").__version__
    return ConversionResult(
        how=f"tf2onnx {version}, opset {model.opset}",
        opset=model.opset,
        inputs=describe_tensors(model.graph.required_inputs),
        outputs=describe_tensors(model.graph.outputs),
        verification=evidence,
        notes=notes,
    )


def _load_interpreter(tensorflow: Any, job: ConversionJob) -> Any:
    """Loads the source in TensorFlow's interpreter.

    The interpreter uses the reference kernels, which compute exactly as the format defines.

    Raises:
        BadModel: TensorFlow cannot load the model.
    """
    try:
        interpreter = tensorflow.lite.Interpreter(
            model_path=job.source,
            experimental_op_resolver_type=tensorflow.lite.experimental.OpResolverType.BUILTIN_REF,
        )
        interpreter.allocate_tensors()
    except Exception as error:
        message = f"TensorFlow cannot run it ({format_error(error)})"
        raise BadModel(message, where=job.source, hint=comparison.NO_VERIFY_HINT) from error
    return interpreter


def _compare(job: ConversionJob, interpreter: Any, model: Model, is_quantized: bool) -> Verification:
    """Runs the source and the ONNX file, and compares the outputs.

    Quantized outputs are compared as real numbers.
    """
    input_plans = plan_inputs(model, job.dims, job.input_shapes)
    session = RuntimeSession(model, label="the written file")
    names = [value.name for value in model.graph.outputs]
    results = _order_outputs(interpreter, names)
    layers = (
        sum(node.op in comparison.ROUNDING_OPERATORS for node in model.graph.nodes) if is_quantized else None
    )

    def run_source(feeds: Feeds) -> list[Array]:
        return _dequantize(_run(interpreter, model, results, feeds, job), results)

    def run_result(feeds: Feeds) -> list[Array]:
        outputs = session.run(feeds)
        return _dequantize([outputs[name] for name in names], results)

    return comparison.compare_runs(job, model, run_source, run_result, input_plans, layers)


def _is_quantized(detail: Mapping[str, Any]) -> bool:
    return (
        detail["dtype"] in comparison.QUANTIZED_TYPES and len(detail["quantization_parameters"]["scales"]) > 0
    )


def _dequantize(values: Sequence[Array], details: Sequence[Mapping[str, Any]]) -> list[Array]:
    """Converts quantized outputs to real numbers."""
    numbers = []
    for value, detail in zip(values, details, strict=True):
        scale, zero_point = detail["quantization"]
        is_quantized_value = value.dtype.type in comparison.QUANTIZED_TYPES and scale
        numbers.append(
            ((value.astype(np.float64) - zero_point) * scale).astype(np.float32)
            if is_quantized_value
            else value
        )
    return numbers


def _order_outputs(interpreter: Any, names: Sequence[str]) -> list[Mapping[str, Any]]:
    """Returns the source's outputs in the order of the ONNX file: by name, or by position if names differ."""
    results = list(interpreter.get_output_details())
    detail_by_name = {detail["name"]: detail for detail in results}
    return [detail_by_name[name] for name in names] if set(detail_by_name) == set(names) else results


def _run(
    interpreter: Any, model: Model, results: Sequence[Mapping[str, Any]], feeds: Feeds, job: ConversionJob
) -> list[Array]:
    """Runs the source on arrays by the names of the ONNX inputs; returns the outputs in `results`.

    Inputs are matched by position if the names differ.

    Raises:
        BadModel: TensorFlow cannot run the model.
    """
    inputs = interpreter.get_input_details()
    has_same_names = {detail["name"] for detail in inputs} == {v.name for v in model.graph.required_inputs}
    values = [feeds[d["name"]] for d in inputs] if has_same_names else list(feeds.values())
    try:
        for detail, value in zip(inputs, values, strict=True):
            if tuple(detail["shape"]) != value.shape:
                interpreter.resize_tensor_input(detail["index"], value.shape)
        interpreter.allocate_tensors()
        for detail, value in zip(inputs, values, strict=True):
            interpreter.set_tensor(detail["index"], value)
        interpreter.invoke()
        return [interpreter.get_tensor(detail["index"]) for detail in results]
    except Exception as error:
        message = f"TensorFlow cannot run it ({format_error(error)})"
        raise BadModel(message, where=job.source, hint=comparison.NO_VERIFY_HINT) from error
