"""Reference evaluator of onnx: runs bfloat16 models, for which onnxruntime has no CPU kernels."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from explorer.base.errors import BadModel
from explorer.engine.compat.onnx import build_scan_along_any_axis
from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import Model
from explorer.engine.graph.random_operators import list_all_nodes

NOTE = "run by onnx's reference evaluator, as onnxruntime has no kernels for bfloat16"
"""Note for the report of a bfloat16 model."""


def has_bfloat16(model: Model) -> bool:
    """Whether a model input or output is bfloat16, or a node other than Cast reads a stored bfloat16 tensor.

    onnxruntime can handle a bfloat16 tensor that is only stored and cast, such as a quantized weight.
    """
    graph = model.graph
    if "bfloat16" in {value.dtype for value in (*graph.inputs, *graph.outputs)}:
        return True
    bfloat16_weights = {name for name, tensor in graph.initializers.items() if tensor.dtype == "bfloat16"}
    nodes = list_all_nodes(model, graph.nodes) if bfloat16_weights else ()
    return any(node.op != "Cast" and not bfloat16_weights.isdisjoint(node.inputs) for node in nodes)


class Evaluator:
    """The counterpart of `onnxruntime.InferenceSession` for bfloat16 models.

    Args:
        model: The model to run.
        folder: Folder of the weights.
    """

    def __init__(self, model: Model, folder: str) -> None:
        import onnx
        from onnx.external_data_helper import load_external_data_for_model
        from onnx.reference import ReferenceEvaluator

        proto = onnx.load_model_from_string(encode_skeleton(model, folder=folder))
        load_external_data_for_model(proto, folder)
        try:
            self._evaluator = ReferenceEvaluator(proto, new_ops=build_scan_along_any_axis())
        except UnicodeDecodeError:
            raise BadModel("a string in it is not UTF-8, and so it does not run") from None

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        """Computes the requested outputs."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            return list(self._evaluator.run(list(names), dict(feeds)))
