"""Quantized files in stock onnxruntime: which kernels run their layers, and how long a run takes.

Sessions here have onnxruntime's default options, like a user's program. `engine.runtime` instead sets options
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
from explorer.engine.formats.onnx.writer import skeleton
from explorer.engine.graph.model import Model, Node
from explorer.engine.graph.repeated_nodes import node_sequence
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.runtime.onnxruntime import MOST_OPTIMISED, Array, one_line, weights_folder
from explorer.engine.runtime.plain_form import plain
from explorer.engine.runtime.reference import has_bfloat16
from explorer.facts.quantize import KernelCount, RuntimeKernels, RunTimes
from explorer.host import processor, scratch

INTEGER_KERNELS = frozenset(
    (
        *("QLinearConv", "QLinearMatMul", "QGemm", "QAttention"),
        *("ConvInteger", "MatMulInteger", "MatMulIntegerToFloat"),
        *("DynamicQuantizeMatMul", "DynamicQuantizeLSTM", "MatMulNBits", "QMoE", "GatherBlockQuantized"),
    )
)
"""Operators whose kernels read the integers of a weight or of an activation."""

_MOST_BYTES = 512 << 20
"""Bytes of weights above which nothing is loaded: two sessions hold the weights of two models."""

_MOST_BYTES_OF_FUNCTIONS = 16 << 20
"""The same limit for a model with functions, which onnxruntime expands to many times their size."""

_SECONDS, _ROUNDS = 0.3, (3, 25)
"""Seconds of timed runs, and the least and the largest number of rounds."""

_LONG = 5.0
"""Seconds of a run above which it is made only once."""


class NotLoaded(Exception):
    """Stock onnxruntime does not load a model; the text is the reason, in one line."""


def _session(model: Model, optimized: str = "") -> Any:
    """A session with the options of a user's program; with `optimized` its extended form is written there.

    Raises:
        NotLoaded: The weights are too large, or onnxruntime refuses the model.
    """
    if has_bfloat16(model):
        raise NotLoaded("onnxruntime runs no bfloat16 on a processor")
    most = _MOST_BYTES_OF_FUNCTIONS if model.functions else _MOST_BYTES
    if sum(tensor.nbytes for tensor in model.graph.initializers.values()) > most:
        functions = " beside functions" if model.functions else ""
        raise NotLoaded(f"its weights take more than {most >> 20} MiB{functions}")
    if len(model.graph.nodes) > MOST_OPTIMISED:
        raise NotLoaded(f"onnxruntime takes minutes to optimize more than {MOST_OPTIMISED:,} nodes")
    model = plain(model)
    folder = weights_folder(model)
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
            skeleton(model, folder=folder), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's own classes share no base below Exception
        raise NotLoaded(f"onnxruntime does not load it: {one_line(error)}") from None


def kernels(model: Model, choices: Sequence[LayerChoice]) -> tuple[RuntimeKernels, Mapping[str, str]]:
    """The operator that runs each quantized layer, in the graph to which onnxruntime optimizes the model.

    Args:
        model: The quantized model.
        choices: The choices for its layers.

    Returns:
        Counts of layers by kernel, and the operator of each layer by its name.
    """
    taken = [choice for choice in choices if not choice.reason]
    about: dict[str, Any] = {
        "runtime": f"onnxruntime {onnxruntime.__version__}",
        "instructions": processor.instructions(),
        "layers": len(taken),
    }
    try:
        with scratch.folder() as folder:
            path = os.path.join(folder, "optimized.onnx")
            _session(model, path)
            nodes = [*node_sequence(reader.read(path).graph.nodes)]
    except (NotLoaded, BadModel) as problem:
        return RuntimeKernels(**about, problem=str(problem)), {}
    operators = {choice.layer.name: op for choice in taken if (op := _operator(choice, nodes))}
    integers = [op for op in operators.values() if op in INTEGER_KERNELS]
    counts = tuple(KernelCount(op, count) for op, count in Counter(integers).most_common())
    return RuntimeKernels(**about, integer_layers=len(integers), kernels=counts), operators


def _operator(choice: LayerChoice, nodes: Sequence[Node]) -> str:
    """The operator of the node that a layer became, matched by its name, its weight or its output."""
    layer = choice.layer
    codes = {f"{operand.stored}_{end}" for operand in layer.of("weight") for end in ("quantized", "blocks")}
    for node in nodes:  # in the order of the graph: a weight passes several of them
        if node.op in _CARRIERS and not codes.isdisjoint(node.inputs):
            codes.update(node.outputs)
    output_names = {
        name for output in layer.node.outputs for name in (output, f"{output}_quantized") if output
    }
    same = [node for node in nodes if _is_of(node, layer.node.name, codes, output_names)]
    same.sort(key=lambda node: node.op not in INTEGER_KERNELS)
    return same[0].op if same else ""


_CARRIERS = frozenset(("DequantizeLinear", "Cast", "Transpose", "Reshape"))
"""Operators that carry a stored weight to its layer."""

_SIDES = frozenset(
    ("QuantizeLinear", "DequantizeLinear", "Cast", "Transpose", "Reshape", "Add", "Relu", "Clip")
)
"""Operators around a layer that carry its weight or output, but are not the layer itself."""


def _is_of(node: Node, name: str, codes: Collection[str], output_names: Collection[str]) -> bool:
    if node.op in _SIDES:
        return False
    return bool(name and node.name == name) or not (
        {*codes}.isdisjoint(node.inputs) and {*output_names}.isdisjoint(node.outputs)
    )


def run_times(
    before: Model, after: Model, feeds: Mapping[str, Array], check: Callable[[], None] = lambda: None
) -> RunTimes | str:
    """Times of alternating runs of two models on the same inputs; or the reason why there are none.

    Args:
        before: The original.
        after: The quantized model.
        feeds: Inputs by name.
        check: Called before each run; raises `Cancelled` to stop.
    """
    try:
        sessions = [_session(model) for model in (before, after)]
        samples: list[list[float]] = [[], []]
        warm = [_once(session, feeds, check) for session in sessions]
        least, most = (1, 1) if max(warm) > _LONG else _ROUNDS
        until = time.perf_counter() + _SECONDS
        while len(samples[0]) < least or (len(samples[0]) < most and time.perf_counter() < until):
            for times, session in zip(samples, sessions, strict=True):
                times.append(_once(session, feeds, check))
    except NotLoaded as problem:
        return str(problem)
    lows, middles = [min(times) for times in samples], [statistics.median(times) for times in samples]
    return RunTimes(lows[0], lows[1], middles[0], middles[1], len(samples[0]))


def _once(session: Any, feeds: Mapping[str, Array], check: Callable[[], None]) -> float:
    check()
    began = time.perf_counter()
    try:
        session.run(None, dict(feeds))
    except Exception as error:  # as above
        raise NotLoaded(f"onnxruntime does not run it: {one_line(error)}") from None
    return time.perf_counter() - began
