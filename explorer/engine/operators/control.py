"""Records of control flow, sequences, strings, and operators that run a complete model.

The cost of If, Loop, Scan and SequenceMap is that of their bodies, which `costs/onnx/control_flow` computes.
Their records apply only if a body cannot be analyzed.
"""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_rules import free, unknown_cost
from explorer.engine.operators.operator import Operator

_BODY = unknown_cost("its body is missing or does not fit the operator")

OPERATORS = (
    Operator("If", _BODY, settings=(0,)),
    Operator("Loop", _BODY, settings=(0, 1)),
    Operator("Scan SequenceMap", _BODY),
    Operator("SequenceAt SequenceErase SplitToSequence", free, settings=(1,)),
    Operator(
        """
        ConcatFromSequence Optional OptionalGetElement OptionalHasElement SequenceConstruct SequenceEmpty
        SequenceInsert SequenceLength RegexFullMatch StringConcat StringNormalizer StringSplit
        """,
        free,
    ),
    Operator(
        "ImageDecoder", unknown_cost("decoding an image depends on what is in the file", products=False)
    ),
    Operator(
        "Adagrad Adam Gradient Momentum",
        unknown_cost("it is part of a training step, not of a forward pass"),
        "ai.onnx.preview.training",
    ),
    Operator(
        "BeamSearch GreedySearch Sampling WhisperBeamSearch",
        unknown_cost("it runs a complete model until the text ends"),
        MS,
    ),
    Operator("EPContext Snpe", unknown_cost("it holds a model compiled for one machine"), MS),
    Operator(
        "DisentangledAttention_TRT EfficientNMS_TRT MultilevelCropAndResize_TRT PyramidROIAlign_TRT",
        unknown_cost("a plugin of TensorRT, whose definition is not public"),
    ),
)
