"""Assumptions about onnxruntime: texts of its errors, passes to switch off, names in its own graphs.

It documents none of these. Nothing here imports it.
"""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^\s*\[ONNXRuntimeError\]\s*:\s*\d+\s*:\s*([A-Z_]+)\s*:\s*")
_SOURCE_PLACE = re.compile(r"(/[\w./-]+\.(cc|h|cpp):\d+\s*)|(\bonnxruntime::\S+\s*)")
_OF_A_PASS = ("Failed to find kernel", "Attempt to replace the existing tensor")
_SCALED = "_bn"
_BLOCKED = re.compile(r"(.*)_nchwc(?:_token_\d+)?", re.DOTALL)
_CAST = "InsertedPrecisionFreeCast_"
_PIECES = ("_inlfunc_", "_if_")
_KERNEL = "_kernel_time"

SIGNED_TO_UNSIGNED = "Avx2WeightS8ToU8Transformer"
"""What 'x64quantprecision' switches on. It leaves a product of signed bytes that gives signed bytes without a
kernel, and fails where two nodes share a zero point; these have exact kernels anyway.

Assumes: the pass has this name.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: it is not left out; a model that it spoils loads at a lower level of optimization.
"""

ONE_ZERO_POINT = "QDQS8ToU8Transformer"
"""What 'x64quantprecision' switches on, too: to a DequantizeLinear without a zero point it gives one, and one
alone where it has scales along an axis, which the runtime then cannot run.

Assumes: the pass has this name.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: it is not left out; a model that it spoils fails in one line of onnxruntime's.
"""

PROPAGATION = "QDQPropagationTransformer"
"""It writes a QuantizeLinear without a zero point behind a DequantizeLinear that has none: to unsigned bytes,
of signed ones.

Assumes: the pass has this name.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: it is not left out; `verify` finds that the outputs differ.
"""

BLOCKED_DOMAIN = "com.microsoft.nchwc"
"""Domain of the operators that keep channels in blocks.

Assumes: they are in this domain.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the sum and the activation that such a Conv took in have no time of their own, and it has all.
"""

LAID_OUT = "ReorderOutput"
LAYOUT_CHANGES = frozenset(("ReorderInput", LAID_OUT))
"""Operators that only change where channels lie.

Assumes: these two are all.
Seen: onnxruntime 1.23 to 1.32.
Otherwise: the time of others is that of no layer, and is shown as such.
"""


def message(error: BaseException) -> str:
    """The text of an error without its number and source places; its kind if no text is left.

    Assumes: a message begins with `[ONNXRuntimeError] : 1 : FAIL :`; places are paths or `onnxruntime::`.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: the whole message is shown.
    """
    kind = _PREFIX.match(str(error))
    text = " ".join(_SOURCE_PLACE.sub("", _PREFIX.sub("", str(error))).split())
    return text or (kind[1].replace("_", " ").lower() if kind is not None else "")


def is_of_a_pass(error: BaseException) -> bool:
    """Whether onnxruntime refused a valid graph because of a change by one of its passes.

    Assumes: such errors have one of two sentences in them.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: no: the next lower level of optimization is tried at once.
    """
    return any(words in str(error) for words in _OF_A_PASS)


def blocked_values(node: str) -> tuple[str, ...]:
    """The values that a node in blocked layout may compute, by the node's name; none for another node.

    Assumes: such a node is called after the value, with `_nchwc` behind it; one that was a BatchNormalization
        has `_bn` between them.
    Seen: onnxruntime 1.23 to 1.32; `_bn` in 1.32.
    Otherwise: its time is that of no layer, and is shown as such.
    """
    match = _BLOCKED.fullmatch(node)
    return (match[1], match[1].removesuffix(_SCALED)) if match else ()


def without_precision(value: str) -> str:
    """The name of a value in the original graph, by its name in another precision.

    Assumes: `InsertedPrecisionFreeCast_` stands before it, and names the Cast that makes it.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: the time of the node that makes it is that of no layer, and is shown as such.
    """
    return value.removeprefix(_CAST)


def is_inserted_cast(node: str) -> bool:
    """Whether onnxruntime inserted a Cast, by the node's name.

    Assumes: `InsertedPrecisionFreeCast_` stands before its name.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: its time is that of no layer, and is shown as such.
    """
    return node.startswith(_CAST)


def is_piece(node: str) -> bool:
    """Whether a node comes from an operator without a kernel, or from a branch with a constant condition.

    Assumes: `_inlfunc_` or `_if_` stands before its name.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: its time is that of no layer, and is shown as such.
    """
    return node.startswith(_PIECES)


def timed_kernel(event: str) -> str | None:
    """The node whose kernel a profile event times; None for another event.

    Assumes: `_kernel_time` stands behind the node's name.
    Seen: onnxruntime 1.23 to 1.32.
    Otherwise: no kernel has a time: the profile says that nothing ran, and no layer has a figure.
    """
    return event.removesuffix(_KERNEL) if event.endswith(_KERNEL) else None
