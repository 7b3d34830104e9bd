"""Assumptions about onnxruntime: texts of its errors, names of its passes, names in its optimized graphs.

onnxruntime documents none of them. This module does not import onnxruntime.
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^\s*\[ONNXRuntimeError\]\s*:\s*\d+\s*:\s*([A-Z_]+)\s*:\s*")
_SOURCE_PLACE = re.compile(r"(/[\w./-]+\.(cc|h|cpp):\d+\s*)|(\bonnxruntime::\S+\s*)")
_PASS_ERRORS = ("Failed to find kernel", "Attempt to replace the existing tensor")
"""Texts in errors of optimization passes, not of the model."""
_BATCH_NORM_SUFFIX = "_bn"
_BLOCKED = re.compile(r"(.*)_nchwc(?:_token_\d+)?", re.DOTALL)
"""Name of a node with blocked channels; the group is the name of the original node."""
_CAST_PREFIX = "InsertedPrecisionFreeCast_"
_SPLIT_PREFIXES = ("_inlfunc_", "_if_")
"""Beginnings of the names of nodes from an inlined function or branch."""
_KERNEL_SUFFIX = "_kernel_time"

ONE_ZERO_POINT = "QDQS8ToU8Transformer"
"""A pass that 'x64quantprecision' enables. It adds a zero point to a DequantizeLinear without one.

The pass adds a single value even if the scales lie along an axis, and the runtime cannot run the result.

Assumes: the pass has this name.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the pass stays enabled, and a model that it breaks fails with one line from onnxruntime.
"""

SIGNED_TO_UNSIGNED = ("Avx2WeightS8ToU8Transformer", ONE_ZERO_POINT)
"""Passes that 'x64quantprecision' enables, and that make signed bytes unsigned.

The first pass rewrites a matmul of signed bytes with a signed result to a form without a kernel. Both also
fail if two nodes share a zero point. Without the passes, such matmuls have exact kernels.

Assumes: the passes have these names.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the passes stay enabled, and a model that they break loads at a lower level of optimization.
"""

PROPAGATION = "QDQPropagationTransformer"
"""A pass that inserts a QuantizeLinear after a DequantizeLinear.

If the DequantizeLinear has no zero point, the new QuantizeLinear has no zero point either. It then quantizes
to unsigned bytes although the values were signed.

Assumes: the pass has this name.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the pass stays enabled, and `verify` finds that the outputs differ.
"""

BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""Domain of the operators that store channels in blocks.

Assumes: onnxruntime defines all such operators in this domain.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the sum and the activation that are fused into such a Conv have no time; the Conv has the total.
"""

REORDER_OUTPUT = "ReorderOutput"
LAYOUT_CHANGES = frozenset(("ReorderInput", REORDER_OUTPUT))
"""Operators that only change the layout of channels.

Assumes: onnxruntime has no other such operators.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the time of other such operators is assigned to no layer.
"""


def read_message(error: BaseException) -> str:
    """Returns the text of an error without its number and source places, or its kind if no text is left.

    Assumes: a message begins with `[ONNXRuntimeError] : 1 : FAIL :`; source places are paths or
    `onnxruntime::`.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: the full message is shown.
    """
    kind = _PREFIX.match(str(error))
    text = " ".join(_SOURCE_PLACE.sub("", _PREFIX.sub("", str(error))).split())
    return text or (kind[1].replace("_", " ").lower() if kind is not None else "")


def is_optimizer_error(error: BaseException) -> bool:
    """Whether one of onnxruntime's passes made a valid graph invalid.

    Assumes: such an error contains one of two sentences.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: False, and the next lower level of optimization is tried at once.
    """
    return any(words in str(error) for words in _PASS_ERRORS)


def list_blocked_values(node: str) -> tuple[str, ...]:
    """Returns the values that a node in blocked layout may compute, from the node's name.

    Empty for other nodes.

    Assumes: the node's name is the value's name followed by `_nchwc`, or by `_bn_nchwc` if it was a
    BatchNormalization.
    Seen: onnxruntime 1.23 to 1.32; `_bn` in 1.32.
    Otherwise: the node's time is shown as that of no layer.
    """
    match = _BLOCKED.fullmatch(node)
    return (match[1], match[1].removesuffix(_BATCH_NORM_SUFFIX)) if match else ()


def strip_precision(value: str) -> str:
    """Returns the name of a value in the original graph, from its name after a change of precision.

    Assumes: the prefix `InsertedPrecisionFreeCast_` marks values that an inserted Cast produces.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: the time of the node that produces the value is shown as that of no layer.
    """
    return value.removeprefix(_CAST_PREFIX)


def is_inserted_cast(node: str) -> bool:
    """Whether onnxruntime inserted a Cast, by the node's name.

    Assumes: the node's name begins with `InsertedPrecisionFreeCast_`.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: the node's time is shown as that of no layer.
    """
    return node.startswith(_CAST_PREFIX)


def is_piece(node: str) -> bool:
    """Whether a node is part of an inlined operator or of a branch with a constant condition, by its name.

    The runtime inlines an operator for which it has no kernel.

    Assumes: the node's name begins with `_inlfunc_` or `_if_`.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: the node's time is shown as that of no layer.
    """
    return node.startswith(_SPLIT_PREFIXES)


def find_timed_node(event: str) -> str | None:
    """Returns the name of the node that a profile event times, or None for another event.

    Assumes: the event's name is the node's name followed by `_kernel_time`.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: no kernel has a time, so the profile says that nothing ran and no layer has a figure.
    """
    return event.removesuffix(_KERNEL_SUFFIX) if event.endswith(_KERNEL_SUFFIX) else None
