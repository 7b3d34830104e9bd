"""Defines reasons why a figure is not exact, and limits on the search for values that a run assumes.

A reason is a plain `str` for an upper bound and an `Assumption` for an assumption.

A figure with an upper bound is at most as large as stated. A figure with an assumption may be larger or
smaller.
"""

from __future__ import annotations


class Assumption(str):
    """A reason that states an assumption and not an upper bound.

    The engine passes this class around. The facts store the plain text and set `assumed`.
    """

    __slots__ = ()


def is_assumption(reason: str) -> bool:
    """Whether figures with this reason rest on an assumption and so have no upper bound."""
    return isinstance(reason, Assumption)


MAX_QUESTIONS = 4_096
"""Number of queries for values at one place above which a loop counts as endless; real loops stay below."""

MAX_DECISION_RUNS = 8
"""Maximum number of attempts to run a model to its end."""
