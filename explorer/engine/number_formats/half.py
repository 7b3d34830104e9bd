"""Half precision: float16 and bfloat16, a Cast there and a Cast back."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np

from explorer.engine.graph.dtypes import numpy_type
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat, Writing


class Half(NumberFormat, frozen=True):
    """A float of 16 bits. Cast does not saturate it: beyond its range is infinity, as hardware has it."""

    @property
    def writing(self) -> Writing:
        """Cast has both, from operator set 13 on."""
        return "cast"

    @property
    def element_type(self) -> str:
        """Its own name."""
        return self.name

    def codes(self, values: Array, grid: Grid, axis: int | None = None) -> Array:
        """Rounded half to even."""
        with np.errstate(over="ignore"):
            return values.astype(numpy_type(self.name))

    def rounded(self, values: Array, grid: Grid, axis: int = -1) -> Array:
        """The same, in float32 again."""
        return self.codes(values, grid).astype(np.float32)

    def limits(self, grid: Grid) -> tuple[Array, Array]:
        """The largest finite number, either way: what is beyond it becomes infinite."""
        # 65504; all bits of bfloat16's eight below 2**128
        high = np.asarray(65504 if self.name == "float16" else 2.0**128 - 2.0**120, np.float32)
        return cast(Array, -high), high


FAMILY: Sequence[tuple[str, Callable[[re.Match[str]], NumberFormat]]] = (
    (r"b?float16", lambda found: Half(found[0], 16)),
)

EXAMPLES = ("float16", "bfloat16")
