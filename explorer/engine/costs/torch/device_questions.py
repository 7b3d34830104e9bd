"""Branches on the device of a tensor: answered as on the processor, not as on the device without values.

A module may do something else on a GPU: `if x.device.type == "cuda"`. On shapes, all tensors are on the meta
device, and the branch would go a way that no user's model goes. What only a comparison reads is answered
`cpu`. What code hands on, to make another tensor beside the first, stays `meta`.
"""

from __future__ import annotations

import dis
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from types import CodeType, FrameType
from typing import Any

import torch

_CPU = torch.device("cpu")
_TENSOR: Any = torch.Tensor
_ANSWERS = {_TENSOR.device: _CPU, _TENSOR.is_cpu: True}
"""What is answered, by the attribute of a tensor that asks. Other kinds of devices are denied anyway."""

_GUARDED: Mapping[Any, torch.device] = {
    ("torch.nn.attention.flex_attention", "_validate_device"): torch.device("cuda"),
}
"""What torch's own functions are told that refuse tensors without values, by module and name.

Where a name no longer holds, the model fails as it does for torch, and its row says so.
"""

_COMPARISONS = ("COMPARE_OP", "IS_OP", "CONTAINS_OP")
_PARTS = ("type", "index")
_OURS = ("torch", "explorer")


def answer(func: Any, tensor: Any) -> Any:
    """What an attribute of a tensor without values is taken to be; None to ask the tensor.

    Args:
        func: The getter of the attribute.
        tensor: Whose attribute it is.
    """
    found = _ANSWERS.get(getattr(func, "__self__", None))
    if found is None or not tensor.is_meta:
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("explorer."):
        frame = frame.f_back
    if frame is None or frame.f_globals.get("__name__", "").partition(".")[0] in _OURS:
        at = frame and (frame.f_globals.get("__name__"), frame.f_code.co_name)
        return _GUARDED.get(at)
    return found if found is True or is_compared(frame.f_code, frame.f_lasti) else None


@cache
def is_compared(code: CodeType, offset: int) -> bool:
    """Whether code compares the device that the instruction at `offset` reads, there or by a variable.

    Args:
        code: Of the function.
        offset: In bytes.
    """
    steps = [step for step in dis.get_instructions(code) if step.opname not in ("CACHE", "NOP")]
    at = next((number for number, step in enumerate(steps) if step.offset == offset), None)
    if at is None:
        return False
    if _is_question(steps, at):
        return True
    if at + 1 < len(steps) and steps[at + 1].opname.startswith("STORE_FAST"):
        name = _names(steps[at + 1])[0]
        return any(
            step.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD_FAST"))
            and _names(step)[-1] == name
            and _is_question(steps, number)
            for number, step in enumerate(steps)
        )
    return False


def _names(step: dis.Instruction) -> tuple[str, ...]:
    """The variables of an instruction; Python 3.13 joins two that follow each other."""
    return step.argval if isinstance(step.argval, tuple) else (step.argval,)


def _is_question(steps: Sequence[dis.Instruction], at: int) -> bool:
    """Whether the value that an instruction loads is compared, or asked for its type."""
    after = steps[at + 1] if at + 1 < len(steps) else None
    if after is not None and after.opname.startswith("LOAD_") and after.argval in _PARTS:
        return True
    calls = [step for step in steps if step.opname.startswith("CALL") and _encloses(step, steps[at])]
    return any(
        step.opname in _COMPARISONS
        and _encloses(step, steps[at])
        and not any(_encloses(step, call) for call in calls)
        for step in steps
    )


def _encloses(outer: dis.Instruction, inner: dis.Instruction) -> bool:
    """Whether the source of one instruction is a part of the other's."""
    a, b = outer.positions, inner.positions
    if a is None or b is None or None in (*a, *b):
        return False
    return (a.lineno, a.col_offset) <= (b.lineno, b.col_offset) and (b.end_lineno, b.end_col_offset) <= (
        a.end_lineno,
        a.end_col_offset,
    )
