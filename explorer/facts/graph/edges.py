"""Edges between the rows of a layer tree, as little as it takes to draw them beside it."""

from __future__ import annotations

from msgspec import Struct


class RowEdges(Struct, frozen=True):
    """Which rows feed which, downwards.

    Where names put rows in another order than they run in, an edge may lead up: it is not among these, as
    what leads back in a loop is not. `Session.connections` has every edge of a layer.

    Attributes:
        makers, readers: Ids of the two rows of every edge that passes over another row, by makers.
        nodes: Rows that make or read anything: groups only where they do so themselves, as a loop does.
        followers: Those of `nodes` that read what the one before them makes.
        constants: Rows with nothing in them but constants and shape arithmetic: a drawing leaves them out.
        unknown: Why the edges are not known; empty if they are.
    """

    makers: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    followers: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    unknown: str = ""
