"""Builds the rows of a layer tree of very many tensors lazily, each when it is first read.

A row takes a kilobyte of objects, and a user looks at a few hundred rows of a million. Before it is built, a
row is an index into a few arrays, and its tensor's entry in the header. The rows equal those that
`costs.layer_rows` builds from the same tensors. That module is used for small trees, and for trees in which a
tensor has several names or two rows would have the same path.
"""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.engine.costs.layer_rows import LayerRows, Place, find_identical_runs
from explorer.engine.formats.tensor_index import StoredTensor, list_rows
from explorer.facts import NOTHING_KNOWN, Layer, TensorInfo

if TYPE_CHECKING:
    from explorer.engine.formats.tensor_index import TensorIndex


class TensorRows(LayerRows):
    """The rows of a layer tree of tensors, in pre-order.

    Args:
        contents: The tensors.

    Raises:
        ValueError: A tensor has several names, or two rows would have the same path.
    """

    def __init__(self, contents: TensorIndex) -> None:
        self._reason = contents.why
        self._kinds: Mapping[str, str] = contents.kinds
        self._items: list[StoredTensor | str] = []
        self._parent = array("i")
        self._depth = array("H")
        self._collect_items(contents)
        count = len(self._items)
        # sums may exceed 64 bits: a hostile shape without bytes can have any number of elements
        self._params: list[int] = [0] * count
        self._bytes: list[int] = [0] * count
        has_trainable = all(isinstance(entry, str) or entry.trainable is not None for entry in self._items)
        self._trainable: list[int] | None = [0] * count if has_trainable else None
        self._repeat = array("i", [1]) * count
        self._compute_sums()

    def _collect_items(self, contents: TensorIndex) -> None:
        """Collects the rows in pre-order: the path of a module, or the entry of a tensor."""
        modules: set[str] = set()
        ancestors = array("i", [-1])
        for index, row in enumerate(list_rows(contents.tensors)):
            del ancestors[row.depth + 1 :]
            self._parent.append(ancestors[-1])
            self._depth.append(row.depth)
            if row.stored is None:
                if row.path in modules:
                    raise ValueError(row.path)
                modules.add(row.path)
                self._items.append(row.path)
                ancestors.append(index)
            else:
                self._items.append(row.stored)
        if any(
            isinstance(i, StoredTensor) and (i.name in modules or i.identity is not None) for i in self._items
        ):
            raise ValueError("shared")

    def _compute_sums(self) -> None:
        """Computes sums of modules and finds runs of equal modules. Members come before their module."""
        parents, params, sizes, trained = self._parent, self._params, self._bytes, self._trainable
        id_by_signature: dict[Hashable, int] = {}
        signature_ids = array("i", bytes(4 * len(parents)))
        children: dict[int, list[int]] = {}
        for index in range(len(parents) - 1, -1, -1):
            entry = self._items[index]
            signature: Hashable
            if isinstance(entry, str):
                child_indices = children[index]
                child_indices.reverse()
                signature = self._kinds.get(entry, ""), tuple([signature_ids[i] for i in child_indices])
            else:
                params[index], sizes[index] = entry.elements, entry.nbytes
                if trained is not None:
                    trained[index] = entry.elements if entry.trainable else 0
                signature = entry.dtype, params[index]
            signature_ids[index] = id_by_signature.setdefault(signature, len(id_by_signature))
            parent = parents[index]
            if parent >= 0:
                params[parent] += params[index]
                sizes[parent] += sizes[index]
                if trained is not None:
                    trained[parent] += trained[index]
            if parent in children:
                children[parent].append(index)
            else:
                children[parent] = [index]
        children.get(-1, []).reverse()
        items = self._items
        for run in find_identical_runs(children.values(), signature_ids, lambda i: isinstance(items[i], str)):
            for index in run:
                self._repeat[index] = len(run) if index == run[0] else 0

    def __len__(self) -> int:
        return len(self._items)

    def list_places(self) -> Iterator[Place]:
        """See `LayerRows`."""
        for entry, parent in zip(self._items, self._parent, strict=True):
            path = entry if isinstance(entry, str) else entry.name
            yield path, parent if parent >= 0 else None, () if isinstance(entry, str) else (path,)

    def _build_row(self, index: int) -> Layer:
        entry, parent = self._items[index], self._parent[index]
        path = entry if isinstance(entry, str) else entry.name
        parent_path = self._items[parent] if parent >= 0 else ""
        # one separator is between the path of a module and the name of its member
        name = path[len(parent_path) + 1 :] if isinstance(parent_path, str) and parent_path else path
        parent_index = parent if parent >= 0 else None
        if not isinstance(entry, str):
            row = build_leaf_layer(
                entry, name, self._reason, index, parent_index, self._depth[index], self._params[index]
            )
            return row if self._trainable is None else replace(row, trainable_params=self._trainable[index])
        return Layer(
            id=index,
            parent=parent_index,
            path=path,
            name=name,
            kind=self._kinds.get(path, ""),
            depth=self._depth[index],
            group=True,
            params=self._params[index],
            weight_bytes=self._bytes[index],
            reason=self._reason,
            repeat=self._repeat[index],
            trainable_params=None if self._trainable is None else self._trainable[index],
            **NOTHING_KNOWN,
        )


def build_leaf_layer(
    tensor: StoredTensor,
    name: str,
    reason: str,
    index: int = 0,
    parent: int | None = None,
    depth: int = 0,
    params: int = 0,
) -> Layer:
    """Returns the row of a tensor of which only the stored facts are known.

    Args:
        tensor: The tensor's entry in the header.
        name: Last component of the tensor's name.
        reason: Reason why the costs are unknown.
        index: Index of the row in the tree.
        parent: Index of the row of its module, or None.
        depth: Depth of the row in the tree.
        params: Number of parameters of the row; 0 if `layer_rows.build` sets it later.
    """
    return Layer(
        id=index,
        parent=parent,
        path=tensor.name,
        name=name,
        kind=tensor.dtype,
        depth=depth,
        group=False,
        weights=(TensorInfo(tensor.name, tensor.dtype, tensor.shape, "declared"),),
        params=params,
        weight_bytes=tensor.nbytes,
        reason=reason,
        **NOTHING_KNOWN,
    )
