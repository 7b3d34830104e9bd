"""Exit codes of every verb: what a script learns from `$?`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:  # an outline ends before typing is imported
    from collections.abc import Mapping

    from explorer.base.verdicts import VerdictKind

DONE, DIFFERENT, BAD_INPUT, UNPROVEN = 0, 1, 2, 3
INTERRUPTED = 130
"""As shells say of what SIGINT ended."""

OF_VERDICT: Mapping[VerdictKind, int] = {
    "equal": DONE,
    "parts": DONE,
    "evidence": DONE,
    "different": DIFFERENT,
    "unproven": UNPROVEN,
}
"""What `verify` and every other verb that proves something ends with."""
