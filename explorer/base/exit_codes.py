"""Exit codes: what a script learns from `$?`. Which verb gives which stands in the verb's own file."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # an outline ends before typing is imported
    from collections.abc import Mapping

DONE, DIFFERENT, BAD_INPUT, UNPROVEN = 0, 1, 2, 3
INTERRUPTED = 130
"""As shells say of what SIGINT ended."""

OF_EVERY_VERB: Mapping[str, int] = {"misuse or bad input": BAD_INPUT, "interrupted": INTERRUPTED}
"""How a verb ends that does not answer."""

IF_DONE: Mapping[str, int] = {"done": DONE}
"""Of a verb that only answers."""

IF_PROVED: Mapping[str, int] = {
    **IF_DONE,
    "equal": DONE,
    "parts": DONE,
    "evidence": DONE,
    "different": DIFFERENT,
    "unproven": UNPROVEN,
}
"""Of a verb that proves what it made: the kind of its verdict, or done, where nothing was to be proved."""
