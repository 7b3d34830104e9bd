"""Inspects bytecode: whether a model's code only compares a number that it reads, and with which values."""

from __future__ import annotations

import dis
import functools
import math
from types import CodeType


@functools.cache
def is_only_compared(code: CodeType, offset: int, *, without_calls: bool = False) -> bool:
    """Whether a function only compares the number that it reads, directly or through a variable.

    Args:
        code: Code of the function.
        offset: Byte offset of the instruction that reads the number.
        without_calls: Whether a number that passes through a call before the comparison does not count as
            only compared.
    """
    instructions = [entry for entry in dis.get_instructions(code) if entry.opname not in ("CACHE", "NOP")]
    # while a called Python function runs, the offset is in the cache entries after the call instruction
    index = max((index for index, entry in enumerate(instructions) if entry.offset <= offset), default=None)
    if index is None:
        return False
    comparisons = [entry for entry in instructions if entry.opname == "COMPARE_OP"]
    calls = [entry for entry in instructions if entry.opname.startswith("CALL")] if without_calls else []

    def is_compared(read: dis.Instruction) -> bool:
        enclosing_calls = [call for call in calls if call is not read and _is_enclosed_by(call, read)]
        return any(
            _is_enclosed_by(comparison, read)
            and not any(_is_enclosed_by(comparison, call) for call in enclosing_calls)
            for comparison in comparisons
        )

    following = instructions[index + 1 : index + 3]
    if following and following[0].opname == "COPY":
        following.pop(0)  # an assignment expression
    store = following[0] if following and following[0].opname.startswith("STORE_FAST") else None
    is_read_compared = is_compared(instructions[index])
    if store is None or (is_read_compared and not without_calls):
        return is_read_compared
    # Python 3.13 merges two consecutive instructions, whose argument is then a tuple of two names
    name = store.argval[0] if isinstance(store.argval, tuple) else store.argval
    loads = [
        entry
        for entry in instructions
        if entry.opname.startswith(("LOAD_FAST", "STORE_FAST_LOAD_FAST"))
        and name in (entry.argval if isinstance(entry.argval, tuple) else (entry.argval,))
    ]
    return all(map(is_compared, loads))


@functools.cache
def list_compared_constants(code: CodeType) -> tuple[float, ...]:
    """Returns the numbers that a function compares with, such as 7 in `x == 7` or `f"{x:g}" == "7"`."""
    numbers: dict[float, None] = {}
    instructions = [entry for entry in dis.get_instructions(code) if entry.opname not in ("CACHE", "NOP")]
    for index, entry in enumerate(instructions):
        if entry.opname in ("COMPARE_OP", "CONTAINS_OP"):
            for operand in instructions[max(index - 2, 0) : index]:
                value = operand.argval if operand.opname.startswith("LOAD_") else None
                parts = value if isinstance(value, (tuple, frozenset)) else (value,)
                numbers.update((n, None) for n in map(_read_number, parts) if n is not None)
    return tuple(numbers)


def _read_number(constant: object) -> float | None:
    """Returns the finite number that a constant is, or that its text denotes, or None."""
    if type(constant) not in (int, float, str):
        return None
    try:
        number = float(constant)  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _is_enclosed_by(outer: dis.Instruction, inner: dis.Instruction) -> bool:
    """Whether the source text of an instruction contains the source text of another one."""
    around, within = outer.positions, inner.positions
    if around is None or within is None or None in (*around, *within):
        return False
    begins_before = (around.lineno, around.col_offset) <= (within.lineno, within.col_offset)
    ends_after = (within.end_lineno, within.end_col_offset) <= (around.end_lineno, around.end_col_offset)
    return begins_before and ends_after
