"""Control flow, sequences, strings and nodes that run a whole model: the node itself costs nothing.

If, Loop, Scan and SequenceMap cost what their bodies cost, which `costs/onnx/control_flow` follows; their
records answer only where a body cannot be followed.
"""

from __future__ import annotations

from explorer.engine.graph.layouts import MS
from explorer.engine.operators.cost_rules import free, without
from explorer.engine.operators.operator import Operator

_BODY = without("its body is missing or does not fit it")

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
    Operator("ImageDecoder", without("decoding an image depends on what is in the file", products=False)),
    Operator(
        "Adagrad Adam Gradient Momentum",
        without("a step of training, of which no operator of a forward pass is part"),
        "ai.onnx.preview.training",
    ),
    Operator(
        "BeamSearch GreedySearch Sampling WhisperBeamSearch",
        without("it runs a whole model until a text ends"),
        MS,
    ),
    Operator("EPContext Snpe", without("it holds a model compiled for one machine"), MS),
    Operator(
        "DisentangledAttention_TRT EfficientNMS_TRT MultilevelCropAndResize_TRT PyramidROIAlign_TRT",
        without("a plugin of TensorRT, whose definition is not public"),
    ),
)
