"""Lazy layer tree of very many tensors: builds a row when it is first read.

A row takes a kilobyte of objects, and of a million tensors a user looks at a few hundred. Here a row is a
place in a few arrays and the header's entry of its tensor. The rows equal those that `costs.layer_rows` makes
of the same tensors. That module serves small trees, and trees where a tensor has several names or two rows
would have the same path.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.engine.costs.layer_rows import LayerRows, identical_runs
from explorer.engine.formats.tensor_index import StoredTensor, rows
from explorer.facts import NOTHING_KNOWN, Layer, TensorInfo

if TYPE_CHECKING:
    from explorer.engine.formats.tensor_index import TensorIndex


class TensorRows(LayerRows):
    """The rows of a tree of tensors, in pre-order.

    Args:
        contents: The tensors.

    Raises:
        ValueError: A tensor has several names, or two rows would have the same path.
    """

    def __init__(self, contents: TensorIndex) -> None:
        self._why = contents.why
        self._kinds: Mapping[str, str] = contents.kinds
        self._items: list[StoredTensor | str] = []
        self._parent = array("i")
        self._depth = array("H")
        self._gather(contents)
        count = len(self._items)
        # sums may be larger than 64 bits: a hostile shape of no bytes has any number of elements
        self._params: list[int] = [0] * count
        self._bytes: list[int] = [0] * count
        says = all(isinstance(entry, str) or entry.trainable is not None for entry in self._items)
        self._trained: list[int] | None = [0] * count if says else None
        self._repeat = array("i", [1]) * count
        self._add_up()

    def _gather(self, contents: TensorIndex) -> None:
        modules: set[str] = set()
        above = array("i", [-1])
        for at, row in enumerate(rows(contents.tensors)):
            del above[row.depth + 1 :]
            self._parent.append(above[-1])
            self._depth.append(row.depth)
            if row.stored is None:
                if row.path in modules:
                    raise ValueError(row.path)
                modules.add(row.path)
                self._items.append(row.path)
                above.append(at)
            else:
                self._items.append(row.stored)
        if any(
            isinstance(i, StoredTensor) and (i.name in modules or i.identity is not None) for i in self._items
        ):
            raise ValueError("shared")

    def _add_up(self) -> None:
        """Adds up modules and finds runs of equal modules, from the last row to the first."""
        parents, params, sizes, trained = self._parent, self._params, self._bytes, self._trained
        numbers: dict[Hashable, int] = {}
        alike = array("i", bytes(4 * len(parents)))
        below: dict[int, list[int]] = {}
        for at in range(len(parents) - 1, -1, -1):
            entry = self._items[at]
            signature: Hashable
            if isinstance(entry, str):
                inside = below[at]
                inside.reverse()
                signature = self._kinds.get(entry, ""), tuple([alike[i] for i in inside])
            else:
                params[at], sizes[at] = entry.elements, entry.nbytes
                if trained is not None:
                    trained[at] = entry.elements if entry.trainable else 0
                signature = entry.dtype, params[at]
            alike[at] = numbers.setdefault(signature, len(numbers))
            parent = parents[at]
            if parent >= 0:
                params[parent] += params[at]
                sizes[parent] += sizes[at]
                if trained is not None:
                    trained[parent] += trained[at]
            if parent in below:
                below[parent].append(at)
            else:
                below[parent] = [at]
        below.get(-1, []).reverse()
        items = self._items
        for run in identical_runs(below.values(), alike, lambda at: isinstance(items[at], str)):
            for at in run:
                self._repeat[at] = len(run) if at == run[0] else 0

    def __len__(self) -> int:
        return len(self._items)

    def _row(self, at: int) -> Layer:
        entry, parent = self._items[at], self._parent[at]
        path = entry if isinstance(entry, str) else entry.name
        above = self._items[parent] if parent >= 0 else ""
        # one separator stands between a module and its members
        name = path[len(above) + 1 :] if isinstance(above, str) and above else path
        above_at = parent if parent >= 0 else None
        if not isinstance(entry, str):
            row = leaf_layer(entry, name, self._why, at, above_at, self._depth[at], self._params[at])
            return row if self._trained is None else replace(row, trainable_params=self._trained[at])
        return Layer(
            id=at,
            parent=above_at,
            path=path,
            name=name,
            kind=self._kinds.get(path, ""),
            depth=self._depth[at],
            group=True,
            params=self._params[at],
            weight_bytes=self._bytes[at],
            reason=self._why,
            repeat=self._repeat[at],
            trainable_params=None if self._trained is None else self._trained[at],
            **NOTHING_KNOWN,
        )


def leaf_layer(
    tensor: StoredTensor,
    name: str,
    why: str,
    at: int = 0,
    parent: int | None = None,
    depth: int = 0,
    params: int = 0,
) -> Layer:
    """The row of a tensor for which only the stored facts are known.

    Args:
        tensor: What the header says.
        name: The last piece of its name.
        why: Why no more is known.
        at: Its place in the tree.
        parent: The row of its module.
        depth: How deep it lies.
        params: How many numbers it has.
    """
    return Layer(
        id=at,
        parent=parent,
        path=tensor.name,
        name=name,
        kind=tensor.dtype,
        depth=depth,
        group=False,
        weights=(TensorInfo(tensor.name, tensor.dtype, tensor.shape, "declared"),),
        params=params,
        weight_bytes=tensor.nbytes,
        reason=why,
        **NOTHING_KNOWN,
    )
