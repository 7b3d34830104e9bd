"""Record of a change: what a state of the history keeps about the change that made it.

Each kind of change has a subclass.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.base.checked import Count, Natural, PathText, Spec
from explorer.base.fact import Fact


class ChangeRecord(Fact, frozen=True):
    """Settings of a change, and the results that its states keep.

    Properties hold what every part of the program may read. The fields of a subclass belong to the feature
    that makes the change.

    Attributes:
        ending: Suffix of the name of the file to which the state is saved: 'lenet_tiled.onnx'.
    """

    ending: ClassVar[str] = "_changed"

    @property
    def products(self) -> int | None:
        """Number of tile matmuls that the change made, or None if it made none or the number is unknown."""
        return None

    @property
    def products_text(self) -> str:
        """Number of tile matmuls as text, with a sign if it is a bound, or '' if it made none."""
        return ""

    @property
    def sizes(self) -> Mapping[str, int] | None:
        """Sizes of open dimensions to which its figures apply, or None if it has no such figures."""
        return None

    @property
    def rounds(self) -> bool:
        """Whether the outputs of the state differ from its parent's on purpose, as after quantization."""
        return False


class ProofRequest(Spec, frozen=True):
    """How the result of a change is verified.

    Attributes:
        verify: Whether to verify the result.
        draws: Number of random inputs.
        seed: Seed of the first random input.
        input: Path of a file with inputs, which replace random ones, or None.
    """

    verify: bool = True
    draws: Count = 1
    seed: Natural = 0
    input: PathText | None = None
