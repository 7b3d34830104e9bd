"""Facts about models side by side, and about our numbers beside another tool's."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts import Info

__all__ = ["Comparison", "Difference", "TorchinfoDifference", "TorchinfoTable"]


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
