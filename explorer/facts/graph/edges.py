"""Facts about the edges between the rows of a layer tree, reduced to the data that the tree view draws."""

from __future__ import annotations

from explorer.base.fact import Fact


class RowEdges(Fact, frozen=True):
    """Downward edges between rows.

    Rows are grouped by name, so an edge can point upward against the execution order. Such edges are missing
    here, and so are the back edges of loops. `Session.connections` has every edge of a layer.

    Attributes:
        makers: Row id of the producer of each edge that passes over at least one row, ascending. The edges
            between neighbors are in `followers`.
        readers: Row ids of the readers of the same edges.
        nodes: Ids of the rows that produce or read a tensor. A group is included only if it does so itself,
            as a loop does.
        followers: Ids of the rows in `nodes` that read a tensor of the preceding row in `nodes`.
        constants: Ids of the rows that hold only constants and shape arithmetic. A drawing omits them.
        unknown: Reason why the edges are unknown, or '' if they are known.
    """

    makers: tuple[int, ...] = ()
    readers: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    followers: tuple[int, ...] = ()
    constants: tuple[int, ...] = ()
    unknown: str = ""
