"""Which inputs of a hunt are worth keeping: the smallest that between them reach every step of the code.

A step is a pair of lines of the program that ran one after the other. Measured with Python's own tracing,
because what is kept must be judged alike on every machine, with atheris or without.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import FrameType
from typing import Any

from tests.fuzz.limits import attempt

__all__ = ["FILES", "LARGEST", "TOTAL", "chosen", "steps"]

LARGEST = 16 << 10
TOTAL = 64 << 10
"""Bytes of one file, and of a target's files together, that are kept at most."""
FILES = 120
"""Of a target: the rest of what reaches something new reaches little of it."""

_PACKAGE = str(Path(__file__).parent.parent.parent / "explorer")

Step = tuple[str, int, int]


def steps(run: Callable[[str], None], path: str) -> set[Step]:
    """Pairs of lines of the program that ran one after the other, on this input."""
    found: set[Step] = set()
    last: dict[int, int] = {}

    def inside(frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line":
            name, line = frame.f_code.co_filename, frame.f_lineno
            found.add((name, last.get(id(frame), 0), line))
            last[id(frame)] = line
        elif event == "return":
            last.pop(id(frame), None)
        return inside

    def entered(frame: FrameType, event: str, arg: Any) -> Any:
        return inside if frame.f_code.co_filename.startswith(_PACKAGE) else None

    sys.settrace(entered)
    try:
        attempt(run, path, 20)
    finally:
        sys.settrace(None)
    return found


def chosen(run: Callable[[str], None], given: Iterable[bytes], path: Path, total: int = TOTAL) -> list[bytes]:
    """Those of `given` that each reach something new, the smallest first."""
    reached: set[Step] = set()
    kept: list[bytes] = []
    for content in sorted(set(given), key=lambda c: (len(c), c)):
        if len(content) > LARGEST or total < len(content) or len(kept) == FILES:
            continue
        path.write_bytes(content)
        found = steps(run, str(path))
        if not found <= reached:
            reached |= found
            kept.append(content)
            total -= len(content)
    return kept
