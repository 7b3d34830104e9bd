"""What is kept of models that were opened before."""

from __future__ import annotations

from msgspec import Struct

__all__ = ["CacheUsage"]


class CacheUsage(Struct, frozen=True):
    """The folder of analyses that are kept.

    Attributes:
        folder: Where it is, whether there is one or not.
        files: In it.
        bytes: Of all of them.
        most_bytes: Bound of `bytes`: what was used least recently goes first.
    """

    folder: str
    files: int
    bytes: int
    most_bytes: int
