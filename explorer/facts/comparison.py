"""Facts about models side by side, and about our numbers beside another tool's."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from explorer.facts import Info, NodeDiff, Shape, Totals

__all__ = [
    "FIGURES",
    "SAME",
    "Comparison",
    "Difference",
    "RowPair",
    "RowSide",
    "TorchinfoDifference",
    "TorchinfoTable",
    "TreeDiff",
    "TreeForm",
]

TreeForm = Literal["graph", "exported", "rows"]

FIGURES = (
    *("macs", "params", "weight_bytes", "activation_bytes", "bytes_read", "bytes_written"),
    "elementwise_ops",
)
"""Figures of a row of two trees side by side, by their names in a `Layer`."""

SAME = ("same", "renamed", "part")
"""States of a row that is no difference of its own."""


class Difference(Struct, frozen=True):
    """One way in which a model differs from the first of the comparison, and where that comes from.

    Several of one model and figure add up to the whole difference.

    Attributes:
        model: Position of the model in `Comparison.models`.
        figure: The field of `Totals` it concerns ('params', 'macs', ...), or 'operators'.
        delta: The part of this model's figure minus the first one's that this is about; None where one
            is unknown.
        explained: How much of `delta` the explanation accounts for; equal to it when nothing is left
            open, None where that cannot be told.
        why: In words: '20 batch normalisations folded into convolutions'.
    """

    model: int
    figure: str
    delta: int | None
    explained: int | None
    why: str


class Comparison(Struct, frozen=True):
    """The totals of several models side by side.

    Attributes:
        models: As the user named them, in that order.
        operators: Operator or leaf module type -> how many in each model.
        differences: Against the first model, by model and figure.
        agree: Parameters and MACs are equal, or every difference is explained in full.
    """

    models: tuple[Info, ...]
    operators: tuple[tuple[str, tuple[int, ...]], ...]
    differences: tuple[Difference, ...]
    agree: bool


class TorchinfoDifference(Struct, frozen=True):
    """A number of torchinfo's that is not ours, and the rule by which ours is right.

    Attributes:
        path: The layer; '' for a total.
        figure: 'macs', 'params', 'activation_bytes', ...
    """

    path: str
    kind: str
    figure: str
    theirs: int | None
    ours: int | None
    why: str


class TorchinfoTable(Struct, frozen=True):
    """torchinfo's own table, made by torchinfo, and where it differs from ours."""

    text: str
    version: str
    differences: tuple[TorchinfoDifference, ...]


class RowSide(Struct, frozen=True, gc=False):
    """A row of one of two trees that stand side by side: as in its `Layer`.

    Attributes:
        output: Shape of what it puts out first; None where nothing is known of it.
    """

    id: int
    path: str
    name: str
    kind: str
    output: Shape | None
    macs: int | None
    params: int
    weight_bytes: int
    activation_bytes: int | None
    bytes_read: int | None
    bytes_written: int | None
    elementwise_ops: int | None


class RowPair(Struct, frozen=True, gc=False):
    """A row of two trees side by side.

    Attributes:
        depth: Of the row among these rows, which are in pre-order.
        before, after: The row on either side; None where it has no counterpart.
        status: 'same'; 'renamed', nothing but names differs; 'resized', the same layer on tensors of another
            size; 'changed', 'added', 'removed', 'tiled', 'merged' as in a `NodeDiff`; 'part' of a row that is
            tiled or merged.
        what: What differs, in words.
        inside: How many rows in it differ, 'renamed' not counted.
        end: The row behind the last one in it.
    """

    depth: int
    before: RowSide | None
    after: RowSide | None
    status: str
    what: str
    inside: int
    end: int

    @property
    def either(self) -> RowSide:
        """The row as it is, or was."""
        found = self.after or self.before
        assert found is not None
        return found

    @property
    def differs(self) -> bool:
        """Whether the two sides are not the same, here or inside."""
        return self.inside > 0 or self.status not in SAME

    def delta(self, figure: str) -> int | None:
        """By how much a figure grew: what is not there counts as nothing; None where one is not known."""
        old = 0 if self.before is None else getattr(self.before, figure)
        new = 0 if self.after is None else getattr(self.after, figure)
        return None if old is None or new is None else new - old


class TreeDiff(Struct, frozen=True):
    """Two layer trees side by side, row by row.

    Attributes:
        before, after: What the user calls them.
        rows: In pre-order, as `before` has them; what was added stands where it does in `after`.
        graph: What differs in no row: inputs, outputs, operator sets.
        counts: How many layers (rows without rows in them) are in which state.
        equal: Nothing but names differs.
        form: Of what the trees are: 'graph', of ONNX graphs as they are; 'exported', of the ONNX form of a
            module; 'rows', of modules or tensors as they are opened.
        values_compared: Whether the values of weights are among what was compared; else their shapes alone.
    """

    before: str
    after: str
    rows: tuple[RowPair, ...]
    graph: tuple[NodeDiff, ...]
    counts: tuple[tuple[str, int], ...]
    equal: bool
    form: TreeForm
    values_compared: bool
    totals_before: Totals
    totals_after: Totals

    def folds(self, at: int) -> bool:
        """Whether nobody need look into a row: all in it is the same, or came, went or was tiled with it."""
        row = self.rows[at]
        if not row.inside:
            return True
        if row.status not in ("added", "removed") or row.inside < row.end - at - 1:
            return False
        return all(self.rows[one].status == row.status for one in range(at + 1, row.end))
