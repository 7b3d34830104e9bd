"""TFLite to ONNX by tf2onnx, where TensorFlow is installed.

tf2onnx knows the operators and their quantization, and is what everybody uses; TensorFlow weighs 600 MB,
so both are an extra. The source runs in TensorFlow's own interpreter for the comparison.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from explorer.engine.convert import running
from explorer.engine.convert.job import Job, Made
from explorer.engine.formats.torch_module import said
from explorer.errors import BadModel, MissingExtra
from explorer.facts import TensorInfo

if TYPE_CHECKING:
    from explorer.engine.graph import Model

__all__ = ["convert"]

INSTALL = "pip install 'explorer-nn[tensorflow]'"

_OPSET = 17
"""What tf2onnx writes and every runtime of today takes."""

Array = np.ndarray[Any, Any]


def convert(job: Job) -> Made:
    """Writes an ONNX file.

    Raises:
        MissingExtra: tf2onnx or TensorFlow is not installed.
        BadModel: tf2onnx cannot write this model.
        Cancelled: `job.cancel` said so.
    """
    from explorer.engine.formats import onnx_reader
    from explorer.engine.validate import validate

    job.tell("loading TensorFlow")
    with _quiet():
        tf2onnx = _required("tf2onnx.convert", job.source)
        tensorflow = _required("tensorflow", job.source)
        job.tell("converting (tf2onnx)")
        try:
            tf2onnx.from_tflite(job.source, opset=job.asked.opset or _OPSET, output_path=job.path)
        except Exception as error:
            raise BadModel(f"tf2onnx cannot convert it ({said(error)})", where=job.source) from error
    job.tell("reading what was written")
    if not os.path.exists(job.path):
        raise BadModel("tf2onnx wrote nothing", where=job.source)
    model = validate(onnx_reader.read(job.path))
    evidence = None
    if job.verify:
        with _quiet():
            before = _interpreter(tensorflow, job)
        evidence = _compare(job, before, model)
    version = importlib.import_module("tf2onnx").__version__
    return Made(
        how=f"tf2onnx {version}, opset {model.opset}",
        opset=model.opset,
        inputs=_infos(model.graph.feeds),
        outputs=_infos(model.graph.outputs),
        verification=evidence,
    )


def _infos(values: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(value.name, value.dtype, value.shape, "declared") for value in values)


def _required(package: str, source: str) -> Any:
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        name = (error.name or package).partition(".")[0]
        raise MissingExtra(
            f"this needs {name}, which is not installed", where=source, hint=f"type: {INSTALL}"
        ) from error
    except Exception as error:
        # a TensorFlow that does not fit its numpy or protobuf raises whatever it stumbles over
        raise MissingExtra(
            f"{package.partition('.')[0]} is installed but cannot be imported ({said(error)})",
            where=source,
            hint=f"repair it, for instance with: {INSTALL}",
        ) from error


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Nothing that TensorFlow says reaches the terminal."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    level = logging.root.manager.disable
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        logging.disable(logging.CRITICAL)
        try:
            yield
        finally:
            logging.disable(level)


# the comparison


def _interpreter(tensorflow: Any, job: Job) -> Any:
    """TensorFlow's own interpreter with the source in it; its kernels are the plain ones, which compute
    what the format defines.
    """
    try:
        made = tensorflow.lite.Interpreter(
            model_path=job.source,
            experimental_op_resolver_type=tensorflow.lite.experimental.OpResolverType.BUILTIN_REF,
        )
        made.allocate_tensors()
    except Exception as error:
        raise BadModel(
            f"TensorFlow cannot run it ({said(error)})", where=job.source, hint=running.UNPROVED
        ) from error
    return made


def _compare(job: Job, before: Any, model: Model) -> Any:
    from explorer.engine.verify import outputs
    from explorer.engine.verify.inputs import plan_inputs
    from explorer.engine.verify.proof import depth_of
    from explorer.engine.verify.runtime import Session

    drawn = plan_inputs(model, job.dims, job.input_shapes)
    session = Session(model, what="the file that was written")
    names = [value.name for value in model.graph.outputs]

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        results = session.run(feeds)
        return [results[name] for name in names]

    def reference(
        feeds: Sequence[Mapping[str, Array]], step: Callable[[], None]
    ) -> tuple[list[dict[str, Array]], str]:
        return outputs.reference(model, feeds, job.cancel, step)

    return running.compare_runs(
        job, _source(before, model, job), run, names, drawn, reference, depth=depth_of(model)
    )


def _source(interpreter: Any, model: Model, job: Job) -> Callable[[Mapping[str, Array]], list[Array]]:
    """What runs the source on arrays by name of the input: tf2onnx keeps names, or at least the order."""
    inputs, results = interpreter.get_input_details(), interpreter.get_output_details()
    given = [value.name for value in model.graph.feeds]
    names = [value.name for value in model.graph.outputs]
    named = {detail["name"] for detail in inputs} == set(given)
    places = {detail["name"]: detail for detail in results}
    ordered = [places[name] for name in names] if set(places) == set(names) else results

    def run(feeds: Mapping[str, Array]) -> list[Array]:
        values = [feeds[d["name"]] for d in inputs] if named else list(feeds.values())
        try:
            for detail, value in zip(inputs, values, strict=True):
                if tuple(detail["shape"]) != value.shape:
                    interpreter.resize_tensor_input(detail["index"], value.shape)
            interpreter.allocate_tensors()
            for detail, value in zip(inputs, values, strict=True):
                interpreter.set_tensor(detail["index"], value)
            interpreter.invoke()
            return [interpreter.get_tensor(detail["index"]) for detail in ordered]
        except Exception as error:
            raise BadModel(
                f"TensorFlow cannot run it ({said(error)})", where=job.source, hint=running.UNPROVED
            ) from error

    return run
