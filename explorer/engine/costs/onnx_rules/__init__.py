"""Operator to rule: what each operator costs, and which of its inputs are parameters.

One table, `RULES`, put together from one module for each subject. A rule gets the shapes around a node
(`call.Call`) and answers with a `macs.Cost`. Every operator of ONNX's standard, in all of its versions,
of onnxruntime's own set and of TensorFlow Lite's schema has a row: a count, a bound, "moves data", or a
reason why none can be given.
An operator without a row is unknown, and says so. Users add rows of their own (`user`, `explorer.rules`).

If, Loop, Scan, SequenceMap and calls of local functions cost what their bodies cost, which `walker`
follows; their rows here answer only where a body cannot be followed.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from msgspec.structs import replace

from explorer.base.errors import ExplorerError
from explorer.engine.costs.onnx_rules import (
    attention,
    classic,
    convolution,
    elementwise,
    matmul,
    recurrent,
    signals,
    tflite,
    windows,
)
from explorer.engine.costs.onnx_rules.call import MS, Call, Key, MissingShape, Rule, Rules, without
from explorer.engine.costs.onnx_rules.parameters import (
    LEARNED,
    QUANTIZED,
    SETTINGS,
    is_parameter,
    packed_bits,
)
from explorer.engine.graph.layouts import CHANNELS_LAST, channels_first, is_last
from explorer.engine.operators import formulas
from explorer.engine.operators.formulas import Cost
from explorer.facts import TensorInfo

__all__ = [
    "CHANNELS_FIRST",
    "LEARNED",
    "MS",
    "QUANTIZED",
    "READERS",
    "RULES",
    "SETTINGS",
    "Call",
    "Key",
    "Rule",
    "Rules",
    "cost_of",
    "is_parameter",
    "packed_bits",
]

_TRAINING = "ai.onnx.preview.training"

_BODY = without("its body is missing or does not fit it")
_GENERATION = without("it runs a whole model until a text ends")
_COMPILED = without("it holds a model compiled for one machine")
_STEP = without("a step of training, of which no operator of a forward pass is part")
_PLUGIN = without("a plugin of TensorRT, whose definition is not public")


def _turned(key: Key, rule: Rule) -> Rule:
    """A rule for channels that stand second, asked about channels that stand last."""

    def turned(info: TensorInfo | None) -> TensorInfo | None:
        return info and replace(info, shape=channels_first(info.shape))

    def asked(call: Call) -> Cost:
        if is_last(key, call.attributes):
            call = replace(
                call,
                inputs=(*map(turned, call.inputs[:1]), *call.inputs[1:]),
                outputs=tuple(map(turned, call.outputs)),
            )
        return rule(call)

    return asked


CHANNELS_FIRST: Mapping[Key, Rule] = {
    **convolution.RULES,
    **matmul.RULES,
    **recurrent.RULES,
    **attention.RULES,
    **windows.RULES,
    **elementwise.RULES,
    **signals.RULES,
    **classic.RULES,
    **tflite.RULES,
    **{("", op): _BODY for op in str.split("If Loop Scan SequenceMap")},
    ("", "ImageDecoder"): without("decoding an image depends on what is in the file", products=False),
    **{(_TRAINING, op): _STEP for op in str.split("Adagrad Adam Gradient Momentum")},
    **{(MS, op): _GENERATION for op in str.split("BeamSearch GreedySearch Sampling WhisperBeamSearch")},
    **{(MS, op): _COMPILED for op in str.split("EPContext Snpe")},
    **{
        ("", op): _PLUGIN
        for op in str.split(
            "DisentangledAttention_TRT EfficientNMS_TRT MultilevelCropAndResize_TRT PyramidROIAlign_TRT"
        )
    },
}
"""Rule by (domain, operator), written for channels that stand second."""

RULES: Mapping[Key, Rule] = {
    key: _turned(key, rule) if key in CHANNELS_LAST else rule for key, rule in CHANNELS_FIRST.items()
}
"""Rule by (domain, operator). Counting conventions are those of `macs`."""

READERS: Collection[Key] = recurrent.READERS | attention.READERS | elementwise.READERS | signals.READERS
"""Operators whose rules look at what an input holds, not only at its shape."""


def cost_of(call: Call, table: Rules = RULES) -> Cost:
    """What a node costs; unknown, with the reason in words, if there is no rule or a shape is missing.

    Args:
        call: The node.
        table: The rules: ours, or ours with a user's.

    Raises:
        Misuse: A user's rule failed.
    """
    rule = table.get((call.domain, call.op))
    if rule is None:
        where = f" of domain {call.domain}" if call.domain else ""
        return formulas.unknown(f"no rule for operator {call.op}{where}")
    try:
        cost = rule(call)
    except MissingShape as missing:
        return formulas.unknown(str(missing))
    except ExplorerError:
        raise
    except (
        Exception
    ):  # attributes and ranks are the file's: one that fits no definition must not stop the rest
        return formulas.unknown(f"{call.op} has inputs or attributes that do not fit its definition")
    if (cost.macs or 0) < 0 or (cost.elementwise_ops or 0) < 0:
        return formulas.unknown(f"{call.op} has a size below 0 among its attributes")
    return cost
