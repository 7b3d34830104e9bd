"""Conversion of Keras models and SavedModels to ONNX by tf2onnx and TensorFlow.

TensorFlow itself runs the source for the comparison. A Keras file describes layers, and `_refuse_code`
refuses a description that names code. A SavedModel is a program that may read and write files, so it needs
`--trust`.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.units import printable
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.convert.tflite_to_onnx import build_result, load_packages, write_onnx
from explorer.engine.graph.model import Model
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.random_inputs import plan_inputs
from explorer.facts import Verification
from explorer.host import input_files
from explorer.host.optional_packages import format_error, require, silence, silence_output

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

_SIGNATURE = "serving_default"
"""Name of the SavedModel's function that TensorFlow serves."""

_CODE = ("Lambda", "__lambda__", "function")
"""Class names in a Keras description that stand for code: stored in the file, or imported by name."""

_MAX_DESCRIPTION = 1 << 28
"""Maximum size of a description of layers, in bytes."""


class _Program(Struct, frozen=True):
    """A function of TensorFlow with named inputs and outputs.

    Attributes:
        call: Function from the inputs, in order, to the outputs by name.
        inputs: `tf.TensorSpec` of each input.
        batch: Name of the open first dimension that all inputs share, or '' if they share none.
    """

    call: Callable[..., Mapping[str, Any]]
    inputs: Sequence[Any]
    batch: str = ""


def convert_keras(job: ConversionJob) -> ConversionResult:
    """Writes an ONNX file of a Keras model (.keras or HDF5).

    Raises:
        Misuse: The model has code of its own, and the user does not trust it.
        MissingExtra: tf2onnx or TensorFlow is not installed.
        BadModel: The file is broken, or tf2onnx cannot write this model.
        Cancelled: The user canceled (`job.cancel`).
    """
    if not job.trust:
        _refuse_code(job.source)
    return _convert(job, _load_keras)


def convert_saved_model(job: ConversionJob) -> ConversionResult:
    """Writes an ONNX file of the function that a SavedModel serves.

    Raises:
        Misuse: The user does not trust the model, or it has no such function.
        MissingExtra: tf2onnx or TensorFlow is not installed.
        BadModel: The folder is broken, or tf2onnx cannot write this model.
        Cancelled: The user canceled (`job.cancel`).
    """
    if not job.trust:
        hint = "if you know where it comes from, add --trust"
        raise Misuse("a SavedModel is a program that may read and write files", where=job.source, hint=hint)
    return _convert(job, _load_saved_model)


def _convert(job: ConversionJob, load: Callable[[ConversionJob, Any], _Program]) -> ConversionResult:
    tensorflow, tf2onnx = load_packages(job)
    with silence(), silence_output():
        job.report_progress("loading the model")
        try:
            program = load(job, tensorflow)
        except ExplorerError:
            raise
        except Exception as error:
            raise BadModel(f"TensorFlow cannot load it ({format_error(error)})", where=job.source) from error
        function = tensorflow.function(program.call)
        write = partial(tf2onnx.from_function, function, input_signature=program.inputs)
    model, notes = write_onnx(job, write, partial(_name_dimensions, batch=program.batch))
    evidence = _compare(job, function, program, model) if job.verify else None
    return build_result(model, evidence, notes)


def _load_keras(job: ConversionJob, tensorflow: Any) -> _Program:
    keras = require("keras", job.source)
    model = keras.saving.load_model(job.source, compile=False, safe_mode=not job.trust)
    outputs = getattr(model, "output_names", None) or [model.layers[-1].name]  # a Sequential has no names
    names = [printable(name) for name in outputs]

    def call(*values: Any) -> Mapping[str, Any]:
        outputs = model(list(values) if len(values) > 1 else values[0], training=False)
        return dict(zip(names, tensorflow.nest.flatten(outputs), strict=True))

    inputs = [tensorflow.TensorSpec(value.shape, value.dtype, name=value.name) for value in model.inputs]
    return _Program(call, inputs, "batch")


def _load_saved_model(job: ConversionJob, tensorflow: Any) -> _Program:
    loaded = tensorflow.saved_model.load(job.source)
    if _SIGNATURE not in loaded.signatures:
        names = ", ".join(map(printable, loaded.signatures)) or "none"
        message = f"the SavedModel has no signature '{_SIGNATURE}'; its signatures: {names}"
        raise Misuse(message, where=job.source, hint=f"save it with signatures={{'{_SIGNATURE}': function}}")
    signature = loaded.signatures[_SIGNATURE]
    inputs: Mapping[str, Any] = signature.structured_input_signature[1]

    def call(*values: Any) -> Mapping[str, Any]:
        outputs: Mapping[str, Any] = signature(**dict(zip(inputs, values, strict=True)))
        return outputs

    call.loaded = loaded  # type: ignore[attr-defined]  # the signature alone does not keep its variables
    return _Program(call, list(inputs.values()))


def _refuse_code(source: str) -> None:
    """Refuses a Keras file whose description names code: a Lambda, a function, or a class outside Keras.

    Raises:
        Misuse: The description names code.
        BadModel: The file has no description of layers that can be read.
    """
    try:
        entries = list(_list_objects(json.loads(_read_description(source))))
    except (ValueError, KeyError, OSError, RecursionError, zipfile.BadZipFile) as error:
        problem = f"its description of layers cannot be read ({format_error(error)})"
        raise BadModel(problem, where=source) from error
    for entry in entries:
        name = str(entry["class_name"])
        package = str(entry.get("module") or "keras").partition(".")[0]
        if name in _CODE or package != "keras":
            message = f"its part '{printable(name)}' runs code that the file names"
            raise Misuse(message, where=source, hint="if you know where it comes from, add --trust")


def _read_description(source: str) -> str | bytes:
    """Returns the JSON text that describes the layers of a Keras file.

    Raises:
        KeyError: The archive has no description.
        ValueError: The description is too large.
        BadModel: The HDF5 file has no description.
    """
    with input_files.open_binary(source) as file:
        if zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                if archive.getinfo("config.json").file_size > _MAX_DESCRIPTION:
                    raise ValueError(f"it has more than {_MAX_DESCRIPTION:,} bytes")
                return archive.read("config.json")
        with require("h5py", source).File(file, "r") as content:
            text: str | bytes | None = content.attrs.get("model_config")
    if text is None:
        raise BadModel("the HDF5 file has weights and no layers", where=source, hint="save the whole model")
    return text


def _list_objects(value: Any) -> Iterator[Mapping[str, Any]]:
    """Yields every object of a JSON value that names a class."""
    if isinstance(value, dict):
        if "class_name" in value:
            yield value
        for part in value.values():
            yield from _list_objects(part)
    elif isinstance(value, list):
        for part in value:
            yield from _list_objects(part)


def _name_dimensions(path: str, batch: str) -> None:
    """Renames open dimensions, because tf2onnx numbers them differently in each run.

    Args:
        path: The ONNX file to change.
        batch: Name for the first dimension of every value, or '' to name it like the other dimensions.
    """
    onnx = require("onnx", path)
    with input_files.open_binary(path, internal=True) as file:
        proto = onnx.load(file)
    for value in (*proto.graph.input, *proto.graph.output, *proto.graph.value_info):
        for axis, dimension in enumerate(value.type.tensor_type.shape.dim):
            if dimension.HasField("dim_param"):
                dimension.dim_param = batch if batch and axis == 0 else f"{value.name}_{axis}"
    onnx.save(proto, path)


def _compare(job: ConversionJob, function: Any, program: _Program, model: Model) -> Verification:
    """Runs the source in TensorFlow and the ONNX file in onnxruntime, and compares the outputs.

    Raises:
        BadModel: TensorFlow or onnxruntime cannot run the model.
    """
    session = RuntimeSession(model, label="the written file")
    names = [value.name for value in model.graph.outputs]

    def run_source(feeds: Feeds) -> list[Array]:
        try:
            with silence(), silence_output():
                outputs = function(*(feeds[spec.name] for spec in program.inputs))
        except Exception as error:
            message = f"TensorFlow cannot run it ({format_error(error)})"
            raise BadModel(message, where=job.source, hint=comparison.NO_VERIFY_HINT) from error
        return [outputs[name].numpy() for name in names]

    def run_result(feeds: Feeds) -> list[Array]:
        outputs = session.run(feeds)
        return [outputs[name] for name in names]

    input_plans = plan_inputs(model, job.dims, job.input_shapes)
    return comparison.compare_runs(job, model, run_source, run_result, input_plans, None)
