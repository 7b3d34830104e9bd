"""Record of a change: what a state of the history says of what was done, of each change a kind of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from msgspec import Struct

from explorer.base.checked import Count, Natural, PathText, Spec


class ChangeRecord(Struct, frozen=True):
    """What a change took, and what it found out that its states keep.

    What every room may ask is a property here; the fields are for the feature that makes the change.

    Attributes:
        ending: Of the name of a file that such a state is saved as: 'lenet_tiled.onnx'.
    """

    ending: ClassVar[str] = "_changed"

    @property
    def products(self) -> int | None:
        """How many tile matmuls the change made; None where it made none, or nobody knows."""
        return None

    @property
    def products_text(self) -> str:
        """The same in words, with a sign where it is a bound; '' for none."""
        return ""

    @property
    def sizes(self) -> Mapping[str, int] | None:
        """The sizes of open dimensions that its figures are of; None where it has no such figures."""
        return None

    @property
    def rounds(self) -> bool:
        """Whether the state computes other numbers on purpose."""
        return False


class ProofRequest(Spec, frozen=True):
    """How the result of a change is proved.

    Attributes:
        verify: Whether it is.
        draws: Random inputs.
        seed: Of the first draw.
        input: A file with the inputs, in place of random ones.
    """

    verify: bool = True
    draws: Count = 1
    seed: Natural = 0
    input: PathText | None = None
