"""Exit codes: the values of `$?` for scripts. The module of each verb lists the codes that it uses."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # `outline` must not import typing, which takes too long
    from collections.abc import Mapping

DONE, DIFFERENT, BAD_INPUT, UNPROVEN = 0, 1, 2, 3
INTERRUPTED = 130
"""The shell's code for a program that SIGINT ended."""

OF_EVERY_VERB: Mapping[str, int] = {"misuse or bad input": BAD_INPUT, "interrupted": INTERRUPTED}
"""Exit codes that every verb has, for its failures."""

IF_DONE: Mapping[str, int] = {"done": DONE}
"""Exit codes of a verb that only answers."""

IF_PROVED: Mapping[str, int] = {
    **IF_DONE,
    "equal": DONE,
    "parts": DONE,  # every part is proved, but a rounding crossed a threshold
    "evidence": DONE,
    "different": DIFFERENT,
    "unproven": UNPROVEN,
}
"""Exit codes of a verb that proves its result, by the kind of the verdict; 0 if nothing had to be proved."""
