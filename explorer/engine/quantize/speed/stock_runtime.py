"""Quantized files in an onnxruntime with default options: the kernels of their layers, and run times.

Sessions here have the options that a user's program gets by default. `engine.runtime` instead sets options
that give the same numbers on every processor.
"""

from __future__ import annotations

import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnxruntime

from explorer.base.errors import BadModel
from explorer.engine.formats.onnx import reader
from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.repeated_nodes import list_stored_nodes
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.runtime.onnxruntime import MAX_OPTIMIZED, Array, find_weights_folder, shorten_error
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.engine.runtime.reference import has_bfloat16
from explorer.facts.quantize import KernelCount, RuntimeKernels, RunTimes
from explorer.host import processor, scratch

INTEGER_KERNELS = frozenset(
    (
        *("QLinearConv", "QLinearMatMul", "QGemm", "QAttention"),
        *("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"),
        *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "GatherBlockQuantized"),
    )
)
"""Operators whose kernels compute with integers."""

_FLOAT_KERNELS = frozenset(("MatMulNBits", "QMoE"))
"""Operators whose kernels read integer weights and multiply floats."""

_MAX_WEIGHT_BYTES = 512 << 20
"""Limit for the bytes of a model's weights. `run_times` holds the weights of two models in memory."""

_MAX_FUNCTION_BYTES = 16 << 20
"""Limit for the weights of a model with functions, which onnxruntime expands to many times their size."""

_TIMED_SECONDS, _ROUNDS = 0.3, (3, 25)
"""Seconds of timed runs, and the minimum and maximum number of rounds."""

_LONG_RUN = 5.0
"""Seconds of a run from which only one round is timed."""


class NotLoaded(Exception):
    """Raised if onnxruntime does not load or run a model. The text is the reason, in one line."""


def _create_session(model: Model, optimized: str = "") -> Any:
    """Creates a session with default options.

    If `optimized` is a path, the session writes the graph of its extended optimization there.

    Raises:
        NotLoaded: The weights are too large, or onnxruntime rejects the model.
    """
    if has_bfloat16(model):
        raise NotLoaded("onnxruntime runs no bfloat16 on a processor")
    limit = _MAX_FUNCTION_BYTES if model.functions else _MAX_WEIGHT_BYTES
    if sum(tensor.nbytes for tensor in model.graph.initializers.values()) > limit:
        functions = " beside functions" if model.functions else ""
        raise NotLoaded(f"its weights take more than {limit >> 20} MiB{functions}")
    if len(model.graph.nodes) > MAX_OPTIMIZED:
        raise NotLoaded(f"onnxruntime takes minutes to optimize more than {MAX_OPTIMIZED:,} nodes")
    model = build_plain_form(model)
    folder = find_weights_folder(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    if optimized:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath = optimized
        weights = "session.optimized_model_external_initializers_"
        options.add_session_config_entry(f"{weights}file_name", "weights.data")
        options.add_session_config_entry(f"{weights}min_size_in_bytes", "1024")
        options.add_session_config_entry("session.disable_prepacking", "1")
    try:
        return onnxruntime.InferenceSession(
            encode_skeleton(model, folder=folder), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        raise NotLoaded(f"onnxruntime does not load it: {shorten_error(error)}") from None


def find_kernels(model: Model, choices: Sequence[LayerChoice]) -> tuple[RuntimeKernels, Mapping[str, str]]:
    """Returns the operator that runs each quantized layer in the graph that onnxruntime optimizes.

    Args:
        model: The quantized model.
        choices: Choices for its layers.

    Returns:
        Counts of layers by kernel, and the operator of each layer by its name. If onnxruntime does not load
        the model, the first has the problem, and the second is empty.
    """
    quantized = [choice for choice in choices if not choice.reason]
    fields: dict[str, Any] = {
        "runtime": f"onnxruntime {onnxruntime.__version__}",
        "instructions": processor.find_instruction_set(),
        "layers": len(quantized),
    }
    try:
        with scratch.create_folder() as folder:
            path = os.path.join(folder, "optimized.onnx")
            _create_session(model, path)
            nodes = [*list_stored_nodes(reader.read(path).graph.nodes)]
    except (NotLoaded, BadModel) as problem:
        return RuntimeKernels(**fields, problem=str(problem)), {}
    operators = {choice.layer.name: op for choice in quantized if (op := _find_operator(choice, nodes))}
    kernels = [op for op in operators.values() if op in INTEGER_KERNELS | _FLOAT_KERNELS]
    counts = tuple(KernelCount(op, n, op in INTEGER_KERNELS) for op, n in Counter(kernels).most_common())
    integer_layers = sum(kernel.layers for kernel in counts if kernel.integer)
    return RuntimeKernels(**fields, integer_layers=integer_layers, kernels=counts), operators


def _find_operator(choice: LayerChoice, nodes: Sequence[Node]) -> str:
    """Returns the operator that replaced a layer, found by its name, weight or output, or ''."""
    layer = choice.layer
    codes = {
        f"{weight.stored}_{end}"
        for weight in layer.list_operands("weight")
        for end in ("quantized", "blocks")
    }
    for node in nodes:  # in graph order, because a weight may pass several of these nodes
        if node.op in _CARRIERS and not codes.isdisjoint(node.inputs):
            codes.update(node.outputs)
    outputs = {name for output in layer.node.outputs for name in (output, f"{output}_quantized") if output}
    candidates = [node for node in nodes if _is_replacement(node, layer.node.name, codes, outputs)]
    candidates.sort(key=lambda node: node.op not in INTEGER_KERNELS | _FLOAT_KERNELS)
    return candidates[0].op if candidates else ""


_CARRIERS = frozenset(("DequantizeLinear", "Cast", "Transpose", "Reshape"))
"""Operators between a stored weight and its layer."""

_ADJACENT = frozenset(
    ("QuantizeLinear", "DequantizeLinear", "Cast", "Transpose", "Reshape", "Add", "Relu", "Clip")
)
"""Operators next to a layer that read its weight or its output, but are not the layer."""


def _is_replacement(node: Node, name: str, codes: Collection[str], output_names: Collection[str]) -> bool:
    """Whether a node has the name of a layer, reads the codes of its weight, or computes its output."""
    if node.op in _ADJACENT:
        return False
    return bool(name and node.name == name) or not (
        {*codes}.isdisjoint(node.inputs) and {*output_names}.isdisjoint(node.outputs)
    )


def run_times(
    original: Model, quantized: Model, feeds: Mapping[str, Array], check: Callable[[], None] = lambda: None
) -> RunTimes | str:
    """Times alternating runs of two models on the same inputs, or returns the reason why they do not run.

    Args:
        original: The original.
        quantized: The quantized model.
        feeds: Input arrays, by input name.
        check: Function called before each run. It raises `Cancelled` to stop.
    """
    try:
        sessions = [_create_session(model) for model in (original, quantized)]
        samples: list[list[float]] = [[], []]
        warm_up_times = [_time_run(session, feeds, check) for session in sessions]
        least, largest = (1, 1) if max(warm_up_times) > _LONG_RUN else _ROUNDS
        deadline = time.perf_counter() + _TIMED_SECONDS
        while len(samples[0]) < least or (len(samples[0]) < largest and time.perf_counter() < deadline):
            for times, session in zip(samples, sessions, strict=True):
                times.append(_time_run(session, feeds, check))
    except NotLoaded as problem:
        return str(problem)
    minima, medians = [min(times) for times in samples], [statistics.median(times) for times in samples]
    return RunTimes(minima[0], minima[1], medians[0], medians[1], len(samples[0]))


def _time_run(session: Any, feeds: Mapping[str, Array], check: Callable[[], None]) -> float:
    check()
    began = time.perf_counter()
    try:
        session.run(None, dict(feeds))
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        raise NotLoaded(f"onnxruntime does not run it: {shorten_error(error)}") from None
    return time.perf_counter() - began
