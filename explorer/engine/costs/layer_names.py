"""Rows of a layer tree by the names that files and runtimes give them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from explorer.base.errors import nearest, nearest_alone
from explorer.facts import Layer

MATMULS = {
    *str.split("Conv ConvTranspose Gemm MatMul Linear FULLY_CONNECTED CONV_2D DEPTHWISE_CONV_2D"),
    *(f"{kind}{n}d" for n in (1, 2, 3) for kind in ("Conv", "ConvTranspose")),
}
"""Kinds of layers that a matmul or a convolution is all of."""
_MADE = re.compile(r"(?:fused )?(.*?)(?:_nchwc)?(?:_token_[0-9]+)?", re.DOTALL)
"""What onnxruntime calls a node that it fused, or laid out in blocks: after a node, or after a value."""
_MODULE = "nn.Module: "
_COMPARED, _NEAR = 200, 20_000
"""Letters of a name and how many names are compared for one that is nearly so: that takes long."""
_STEPS = 4
"""Layers that one kernel does behind the one that gives it its name."""


class LayerNames:
    """The rows of a tree by their names; each table is made on demand."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._rows = layers
        self.paths: dict[str, int] = {}
        self._names: dict[str, list[int]] = {}
        self._values: dict[str, int] = {}
        self._kinds: dict[str, list[int]] = {}
        self._leaves: list[tuple[str, int]] = []
        self._groups: list[tuple[str, int]] = []
        for row in layers:
            self.paths.setdefault(row.path, row.id)
            self._names.setdefault(row.name, []).append(row.id)
            self._kinds.setdefault(row.kind, []).append(row.id)
            (self._groups if row.group else self._leaves).append((row.path, row.id))
            if not row.group:
                self._values.update({tensor.name: row.id for tensor in row.outputs if tensor.name})

    def named(self, name: str, op: str = "", module: tuple[str, int, int] | None = None) -> Sequence[int]:
        """The rows that a name may mean: several where it is ambiguous.

        Args:
            name: A path, else the name of rows, else a tensor; else what a runtime made of one of them.
            op: What ran under this name, as the runtime calls it.
            module: Its class, its place among those of the class that ran, and how many there are.
        """
        if rows := self._rows_of(name.removeprefix(_MODULE)):
            return rows
        if op:
            match = _MADE.fullmatch(name)
            assert match is not None
            return [self._does(row, op) for row in self._rows_of(match[1])]
        if module is not None:
            kind, at, count = module
            same = self._kinds.get(kind, [])
            # with another number of rows it is unknown which is which
            return (same[at],) if len(same) == count else ()
        return ()

    def _rows_of(self, name: str) -> Sequence[int]:
        """The row of a path; else those of a name; else the one that makes a tensor."""
        if (at := self.paths.get(name)) is not None:
            return (at,)
        if rows := self._names.get(name):
            return rows
        return () if (at := self._values.get(name)) is None else (at,)

    def _does(self, row: int, op: str) -> int:
        """The layer of a kernel that has the name of its output: the nearest earlier row of its kind."""
        at: int | None = row
        for _ in range(_STEPS):
            if at is None:
                break
            if op in (self._rows[at].kind, f"Fused{self._rows[at].kind}"):
                return at
            inputs = [tensor.name for tensor in self._rows[at].inputs]
            at = next((self._values[name] for name in inputs if name in self._values), None)
        return row

    def like(self, pattern: str) -> Sequence[int]:
        """The layers whose paths match a glob; groups where no layer does."""
        fits = re.compile(fnmatch.translate(pattern.replace("[", "[[]")), re.DOTALL).match
        return [at for path, at in self._leaves if fits(path)] or [
            at for path, at in self._groups if fits(path)
        ]

    def near(self, name: str) -> str:
        """Layers with similar names, in words; '' for none."""
        return nearest(name[:_COMPARED], self._near())

    def near_alone(self, name: str) -> str:
        """As `near`, but '' if no layer has a similar name."""
        return nearest_alone(name[:_COMPARED], self._near())

    def _near(self) -> Iterable[str]:
        return islice((*self.paths, *self._names), _NEAR)
