"""Why figures are not exact: an upper bound has a plain text, an assumption a text of its own class.

A bound is the most that a figure can be. With an assumption, the figure may be more or less.
"""

from __future__ import annotations


class Assumption(str):
    """A reason that is an assumption, not an upper bound.

    The engine passes it on; a fact holds the plain text and `assumed`.
    """

    __slots__ = ()


def is_assumption(reason: str) -> bool:
    """Whether figures with this reason rest on an assumption and have no bound."""
    return isinstance(reason, Assumption)
