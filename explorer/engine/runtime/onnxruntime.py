"""onnxruntime sessions: run models in the stock runtime, with the weights left in their files.

A session gets the skeleton of a model: the structure as bytes, and the weights as references into the .onnx
file, which onnxruntime maps into memory. A sub-model of one operator therefore needs no copy of its weights.
This module also turns onnxruntime's errors into one-line `ExplorerError`s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import printable
from explorer.engine.compat.onnxruntime import (
    ONE_ZERO_POINT,
    PROPAGATION,
    SIGNED_TO_UNSIGNED,
    is_optimizer_error,
    read_message,
)
from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import FileSpan, Model, Value
from explorer.engine.graph.random_operators import list_all_nodes
from explorer.engine.runtime.plain_form import build_plain_form
from explorer.engine.runtime.reference import Evaluator, has_bfloat16

Array = np.ndarray[Any, Any]

_MAX_MESSAGE = 300
"""Maximum number of characters of onnxruntime's message in an error."""

MAX_OPTIMIZED = 4096
"""Maximum number of nodes for which graph optimization is enabled.

Every optimizer pass sorts the graph again, in time quadratic in the nodes that are ready at once. A graph of
14,336 tile products takes minutes to load with optimization and ten seconds without.
"""

_TYPES = {
    f"tensor({theirs})": ours
    for theirs, ours in (
        *((n, n) for n in ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")),
        *((n, n) for n in ("float16", "bfloat16", "int4", "uint4", "string")),
        ("float", "float32"),
        ("double", "float64"),
    )
}
"""Element types by onnxruntime's names of tensor types."""

_Level = onnxruntime.GraphOptimizationLevel

_LEVELS = (
    ("", _Level.ORT_ENABLE_ALL),
    ("extended", _Level.ORT_ENABLE_EXTENDED),
    ("basic", _Level.ORT_ENABLE_BASIC),
    ("disabled", _Level.ORT_DISABLE_ALL),
)
"""Levels of graph optimization, highest first.

Lower levels are a fallback: an optimizer pass may turn a valid graph into a graph that does not load.
"""


def expose(model: Model, names: Sequence[str]) -> Model:
    """Returns the model with `names` as its outputs. The runtime infers their types."""
    declared = {v.name: v for v in model.graph.outputs}
    outputs = tuple(declared.get(name, Value(name, None, None)) for name in names)
    return replace(model, graph=replace(model.graph, outputs=outputs))


def find_weights_folder(model: Model) -> str:
    """Returns the folder in which onnxruntime looks for weights.

    It is the model's folder, or the folder of the file with the largest weight if that lies outside.
    """
    folder = os.path.dirname(os.path.abspath(model.path)) if model.path else os.getcwd()
    spans = [t.payload for t in model.graph.initializers.values() if isinstance(t.payload, FileSpan)]
    if not spans:
        return folder
    path = os.path.realpath(max(spans, key=lambda span: span.size).source.path)
    root = os.path.realpath(folder)
    return folder if os.path.commonpath([root, path]) == root else os.path.dirname(path)


def _list_harmful_passes(model: Model) -> Sequence[str]:
    """Returns the optimizer passes that break a DequantizeLinear without a zero point.

    The result is empty if the model has no such node.
    """
    scales = [
        model.graph.initializers.get(node.inputs[1])
        for node in list_all_nodes(model, model.graph.nodes)
        if node.op == "DequantizeLinear" and not any(node.inputs[2:])
    ]
    if not scales:
        return ()
    has_single_scales = all(scale is not None and scale.elements == 1 for scale in scales)
    return (PROPAGATION,) if has_single_scales else (PROPAGATION, ONE_ZERO_POINT)


class RuntimeSession:
    """A model loaded in onnxruntime on the CPU, or in onnx's reference evaluator if it computes in bfloat16.

    Args:
        model: The model to run.
        label: Name of the model in messages ('the original', "matmul 'fc1'").
        optimize: Whether graph optimization is enabled. Loading a sub-model that runs once takes less time
            without it.
        threads: Number of threads for operators, or None for onnxruntime's default.
        sparing: Whether the memory of a value is freed after its last reader. Otherwise onnxruntime keeps the
            memory, in blocks that double in size. With large activations this option saves most of the
            memory; with small ones it costs a tenth of the time.
        keeps_signed: Whether 8-bit weights stay signed, so that sums of two products may saturate at 16 bits
            on a processor without VNNI.

    Attributes:
        outputs: Names of the outputs.
        keeps_signed: As the argument, or True if onnxruntime cannot convert the weights, for example because
            two of them share a zero point.
        level: Highest optimization level at which the model loads ('extended', 'basic' or 'disabled'), or ''
            if it loads at the requested level.

    Raises:
        BadModel: onnxruntime refuses the model at every level. The message is onnxruntime's at the highest
            level, in one line.
    """

    def __init__(
        self,
        model: Model,
        *,
        label: str,
        optimize: bool = True,
        threads: int | None = None,
        sparing: bool = False,
        keeps_signed: bool = False,
    ) -> None:
        self.label = label
        self.keeps_signed = keeps_signed
        model = build_plain_form(model)
        folder = find_weights_folder(model)
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = threads or 0
        options.enable_cpu_mem_arena = options.enable_mem_pattern = not sparing
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        # threads that spin while they wait take the processor from other programs
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # without this option, sums of two 8-bit products saturate at 16 bits on a processor without VNNI
        options.add_session_config_entry("session.x64quantprecision", "1")
        # without this option, an activation that is multiplied with a dequantized weight is rounded to 8 bits
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        # no session runs often enough to make up for the time that packing the weights takes
        options.add_session_config_entry("session.disable_prepacking", "1")
        self.outputs = tuple(v.name for v in model.graph.outputs)
        self.level = ""
        self._session: Any
        if has_bfloat16(model):
            self._session = Evaluator(model, folder)
            self._declared = {v.name: v.dtype for v in model.graph.outputs}
            return
        model_bytes = encode_skeleton(model, folder=folder)
        reasons: list[str] = []
        is_optimized = optimize and len(model.graph.nodes) <= MAX_OPTIMIZED
        harmful = _list_harmful_passes(model) if is_optimized else ()
        for name, level in _LEVELS if is_optimized else _LEVELS[-1:]:
            options.graph_optimization_level = level
            self.level = name if is_optimized else ""
            for signed in (True,) if keeps_signed else (False, True):
                disabled = [*harmful, *(SIGNED_TO_UNSIGNED if signed else ())]
                self.keeps_signed = signed
                try:
                    self._session = onnxruntime.InferenceSession(
                        model_bytes, options, providers=["CPUExecutionProvider"], disabled_optimizers=disabled
                    )
                    return
                except Exception as error:  # onnxruntime's own classes share no base below Exception
                    reasons.append(shorten_error(error))
                    if not is_optimizer_error(error):
                        break
        raise BadModel(f"onnxruntime cannot load {label}: {reasons[0]}")

    def run(self, feeds: Mapping[str, Array], names: Sequence[str] | None = None) -> dict[str, Array]:
        """Runs the model and returns its outputs by name.

        Args:
            feeds: Inputs by name.
            names: Outputs to compute, or None for all. Operators that only other outputs need are not run.

        Raises:
            BadModel: onnxruntime fails during the run.
        """
        output_names = list(self.outputs if names is None else names)
        options = onnxruntime.RunOptions()
        options.only_execute_path_to_fetches = names is not None
        try:
            if isinstance(self._session, Evaluator):
                results = self._session.run(output_names, feeds)
            else:
                results = self._session.run(output_names, dict(feeds), options)
        except Exception as error:
            raise BadModel(f"onnxruntime cannot run {self.label}: {shorten_error(error)}") from None
        return dict(zip(output_names, results, strict=True))

    def types(self) -> dict[str, str | None]:
        """Returns the element type of every output in numpy's spelling; None if it is not a tensor."""
        if isinstance(self._session, Evaluator):
            return dict(self._declared)
        return {o.name: _TYPES.get(o.type) for o in self._session.get_outputs()}


def shorten_error(error: BaseException) -> str:
    """Returns an onnxruntime error in one line of limited length, without prefix and source locations.

    If no text is left, the result is the class of the error.
    """
    text = printable(read_message(error)).rstrip(". ")
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 3] + "..."
