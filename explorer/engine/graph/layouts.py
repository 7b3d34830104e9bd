"""Which operators have the channels of their images last: the one place that shapes and costs ask.

onnxruntime's optimizer writes such operators into files (`SessionOptions.optimized_model_filepath`). The
rules of both tables are written for channels that stand second; here an image is turned before a rule is
asked, and its answer turned back. Weights keep their order (outputs, inputs, kernel) in all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.facts import Shape

MS, NCHWC, NHWC = "com.microsoft", "com.microsoft.nchwc", "com.ms.internal.nhwc"

_ALWAYS = -1

CHANNELS_LAST: Mapping[tuple[str, str], int] = {
    **dict.fromkeys(
        [(MS, op) for op in ("QLinearConv", "QLinearAveragePool", "QLinearGlobalAveragePool")], 0
    ),
    **dict.fromkeys([(MS, op) for op in ("NhwcConv", "NhwcFusedConv", "NhwcMaxPool")], _ALWAYS),
    **{
        (NHWC, op): _ALWAYS
        for op in (
            *("AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "DepthToSpace"),
            *("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "GridSample", "InstanceNormalization"),
            *("LRN", "LpPool", "MaxPool", "QLinearAveragePool", "QLinearConv", "QLinearConvTranspose"),
            "SpaceToDepth",
        )
    },
}
"""By (domain, operator): the attribute `channels_last` where it is left out; below 0 if it is always so."""


def is_last(key: tuple[str, str], attributes: Mapping[str, Any]) -> bool:
    """Whether the first input and the outputs of an operator have their channels last."""
    default = CHANNELS_LAST.get(key, 0)
    return default == _ALWAYS or bool(attributes.get("channels_last", default))


def channels_first(shape: Shape | None) -> Shape | None:
    """(N, *spatial, C) as (N, C, *spatial); what has no channels stays."""
    return shape if shape is None or len(shape) < 2 else (shape[0], shape[-1], *shape[1:-1])


def channels_last(shape: Shape | None) -> Shape | None:
    """(N, C, *spatial) as (N, *spatial, C)."""
    return shape if shape is None or len(shape) < 2 else (shape[0], *shape[2:], shape[1])
