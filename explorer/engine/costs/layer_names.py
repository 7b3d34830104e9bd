"""Finds rows of a layer tree by the names that report files and runtimes use for them."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Sequence
from itertools import islice

from explorer.base.errors import suggest_name, suggest_only_near
from explorer.facts import Layer

MATMULS = {
    *str.split("Conv ConvTranspose Gemm MatMul Linear FULLY_CONNECTED CONV_2D DEPTHWISE_CONV_2D"),
    *(f"{kind}{n}d" for n in (1, 2, 3) for kind in ("Conv", "ConvTranspose")),
}
"""Kinds of layers that consist of one matmul or convolution."""
_DERIVED_NAME = re.compile(r"(?:fused )?(.*?)(?:_nchwc)?(?:_token_[0-9]+)?", re.DOTALL)
"""Name that onnxruntime gives to a fused or blocked-layout node; group 1 is the original node or value
name."""
_MODULE_PREFIX = "nn.Module: "
"""Prefix of the names that torch's profiler gives to modules."""
_MAX_COMPARED_LENGTH, _MAX_COMPARED_NAMES = 200, 20_000
"""Maximum name length, and maximum number of names, that a search for similar names compares; it is slow."""
_MAX_FUSED_STEPS = 4
"""Maximum number of layers that one kernel computes after the layer whose output names the kernel."""


class LayerNames:
    """Lookup tables from names to rows of a tree."""

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

    def find_named(
        self, name: str, op: str = "", module: tuple[str, int, int] | None = None
    ) -> Sequence[int]:
        """Returns the ids of the rows that a name may refer to: none if it is unknown, several if ambiguous.

        Args:
            name: A path, a row name, a tensor name, or a name that a runtime derived from one of them.
            op: Operator type that the runtime reports under this name.
            module: Class of the module, its index among the executed modules of that class, and their number.
        """
        if rows := self._find_rows(name.removeprefix(_MODULE_PREFIX)):
            return rows
        if op:
            match = _DERIVED_NAME.fullmatch(name)
            assert match is not None
            return [self._find_kernel_layer(row, op) for row in self._find_rows(match[1])]
        if module is not None:
            kind, index, count = module
            candidates = self._kinds.get(kind, [])
            # if the numbers of rows and modules differ, the index does not identify a row
            return (candidates[index],) if len(candidates) == count else ()
        return ()

    def _find_rows(self, name: str) -> Sequence[int]:
        """Finds the row with this path, else rows with this name, else the row that produces this tensor."""
        if (row := self.paths.get(name)) is not None:
            return (row,)
        if rows := self._names.get(name):
            return rows
        return () if (row := self._values.get(name)) is None else (row,)

    def _find_kernel_layer(self, row: int, op: str) -> int:
        """Finds the layer of a kernel: the nearest producer of kind `op` from `row` on, else `row`."""
        candidate: int | None = row
        for _ in range(_MAX_FUSED_STEPS):
            if candidate is None:
                break
            if op in (self._rows[candidate].kind, f"Fused{self._rows[candidate].kind}"):
                return candidate
            inputs = [tensor.name for tensor in self._rows[candidate].inputs]
            candidate = next((self._values[name] for name in inputs if name in self._values), None)
        return row

    def find_matching(self, pattern: str) -> Sequence[int]:
        """Returns the ids of the layers whose paths match a glob, or of the groups if no layer matches."""
        matches = re.compile(fnmatch.translate(pattern.replace("[", "[[]")), re.DOTALL).match
        return [row for path, row in self._leaves if matches(path)] or [
            row for path, row in self._groups if matches(path)
        ]

    def suggest_names(self, name: str) -> str:
        """Returns a hint with similar names of layers, or a general hint if no layer has a similar name."""
        return suggest_name(
            name[:_MAX_COMPARED_LENGTH], self._list_names(), listing="explorer layers MODEL --columns path"
        )

    def suggest_similar(self, name: str) -> str:
        """Returns a hint with similar names of layers, or '' if no layer has a similar name."""
        return suggest_only_near(name[:_MAX_COMPARED_LENGTH], self._list_names())

    def _list_names(self) -> Iterable[str]:
        """Returns the paths and names with which a name is compared."""
        return islice((*self.paths, *self._names), _MAX_COMPARED_NAMES)
