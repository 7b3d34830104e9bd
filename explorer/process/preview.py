"""Preview: sends a model's layer tree from its header, before the model is analyzed.

Opening a model can take long: torch is imported, shapes are inferred, costs are counted. Its header is read
in a moment (`explorer.session.headers`), so the screen first shows the header's rows, without unknown
figures. The rows are sent while the header is read. A separate process reads it, so that neither the screen
nor the analysis waits.
"""

from __future__ import annotations

import math
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec import Struct

from explorer.base.errors import ExplorerError
from explorer.base.outline import ReadableRows
from explorer.facts import NOTHING_KNOWN, Layer, TensorInfo
from explorer.session import headers
from explorer.session.cache.rows import (
    GROUP,
    PAGE_ROWS,
    UNKNOWN,
    Structure,
    complete_structure,
    narrow_numbers,
    pack_messages,
    split_structure,
)

if TYPE_CHECKING:
    from explorer.base.outline import Outline, OutlineRow
    from explorer.engine.costs.layer_tree import Scope

PENDING = "not analyzed yet"
"""Reason of each row whose figures the analysis will fill in."""
_FIRST_ROWS = 8 * PAGE_ROWS
"""Rows before the tree is first shown. Each later preview has `_GROWTH` times as many rows."""
_GROWTH = 16
_MAX_PREVIEW_ROWS = 100_000
"""Rows after which no further partial preview is sent: the remaining rows come with the final one."""

Send = Callable[[tuple[str, Any]], None]


class ModelHeader(Struct, frozen=True):
    """Facts about the whole model that its header contains.

    Attributes:
        format: Format of the file.
        file_bytes: Size of the file in bytes, or None if unknown.
        facts: Names and texts of further facts.
    """

    format: str
    file_bytes: int | None
    facts: tuple[tuple[str, str], ...]


def send(source: str, send_part: Send, on_shown: Callable[[], object] = lambda: None) -> None:
    """Sends the preview of a model in parts.

    Each part is a pair of its kind and its content:

    - 'header': a `ModelHeader`.
    - 'rows': a page of rows (`explorer.session.cache.rows`).
    - 'tree': (chunk, extent). The chunks of a tree form the structure of all rows sent so far. The extent is
      '' before the last chunk. With the last chunk it is 'more' (rows follow), 'all', or 'all known' (all
      rows, and an analysis would add no row).
    - 'end': None. It is the last part.

    For a source without a header, only 'end' is sent. For a broken header, the readable rows are sent;
    opening the model reports the error.

    Args:
        source: Path of the model.
        send_part: Function that sends one part.
        on_shown: Function that is called after each partial preview.
    """
    try:
        outline = headers.read_outline(source)
        facts = tuple((str(key), str(text)) for key, text in outline.facts)
        send_part(("header", ModelHeader(outline.format, outline.file_bytes, facts)))
        _send_rows(outline, send_part, on_shown)
    except ExplorerError:
        pass
    send_part(("end", None))


def _send_rows(outline: Outline, send_part: Send, on_shown: Callable[[], object]) -> None:
    """Sends the rows of an outline, and growing trees of them; the arguments are those of `send`."""
    tree = _TreeBuilder()
    sent_rows = _FIRST_ROWS
    readable = ReadableRows(outline.rows)
    for page_message in pack_messages(tree.build_rows(readable)):
        send_part(("rows", page_message))
        if tree.count >= sent_rows:
            sent_rows = tree.count * _GROWTH if tree.count < _MAX_PREVIEW_ROWS else sys.maxsize
            _send_structure(tree.build_structure(tree.count // PAGE_ROWS * PAGE_ROWS), send_part, "more")
            on_shown()
    is_final = tree.has_only_tensors and readable.broken is None
    _send_structure(tree.build_structure(tree.count), send_part, "all known" if is_final else "all")


def _send_structure(structure: Structure, send_part: Send, extent: str) -> None:
    parts = list(split_structure(structure))
    for index, chunk in enumerate(parts):
        send_part(("tree", (chunk, extent if index == len(parts) - 1 else "")))


class _OpenGroup(NamedTuple):
    """A group that contains the next rows."""

    path: str
    row: int


class _TreeBuilder:
    """Builds the layer tree from the rows of an outline; names and scopes determine the groups."""

    def __init__(self) -> None:
        self.parent, self.depth, self.kinds = array("i"), array("H"), array("i")
        self.flags, self.params, self.weights = array("B"), array("q"), array("q")
        self._kind_ids: dict[str, int] = {}
        self._open_groups: list[_OpenGroup] = []  # outermost first
        self._scope_cache: dict[str, dict[str, tuple[Scope, ...] | None]] = {"/": {}, ".": {}}
        self._has_operators = self._has_scopes = False
        self._has_tensors, self._is_partial = False, False
        self.has_only_tensors = True
        """Whether all rows are tensors and the groups that their names form: an analysis adds no row."""

    @property
    def count(self) -> int:
        return len(self.parent)

    def build_rows(self, outline_rows: Iterable[OutlineRow]) -> Iterator[Layer]:
        """Yields a layer for each outline row, and for each group in its name."""
        # the next row shows whether an operator is alone in its group
        pending_operator: OutlineRow | None = None
        for row in outline_rows:
            is_operator = row.kind == "operator"
            if pending_operator is not None:
                yield from self._build_operator_rows(pending_operator, row if is_operator else None)
            pending_operator = row if is_operator else None
            if row.kind == "tensor":
                self._has_tensors = True
                name = self._name_in_group(row.path)
                # in a graph of operators, stored tensors have no row; an analysis has none either
                if not self._has_scopes and (self._open_groups or not self._has_operators):
                    yield self._add_row(row.path, name, row.dtype, tensor=row, note=row.note)
            elif row.kind == "module":
                if row.path and row.path != "(model)":
                    yield self._add_row(
                        row.path, self._name_in_group(row.path), row.dtype, group=True, note=row.note
                    )
            elif row.kind in ("function", "model", "more"):
                self._is_partial |= row.kind == "more"
                self._open_groups.clear()
                yield self._add_row(row.path, row.path, row.dtype or row.kind, note=row.note)
        if pending_operator is not None:
            yield from self._build_operator_rows(pending_operator, None)

    def _build_operator_rows(self, row: OutlineRow, next_operator: OutlineRow | None) -> Iterator[Layer]:
        """Yields the layer of an operator, after the layers of new groups in its name.

        A group with a single operator gets no row; the operator is then called as the group.

        Args:
            row: Row of the operator.
            next_operator: Next row if it is an operator, else None.
        """
        # takes 10 ms, for which a file with only tensors does not wait
        from explorer.engine.costs.onnx.scopes import split_node_name

        self._has_operators = True
        if self._open_groups and not self._has_scopes:
            # the outline lists modules, and this operator is in one
            yield self._add_row(row.path, self._name_in_group(row.path), row.dtype, note=row.note)
            return
        self._has_scopes = True
        scopes, name = split_node_name(row.path, self._scope_cache)
        if scopes:
            inner = scopes[-1]
            is_shared = (
                len(self._open_groups) >= len(scopes)
                and self._open_groups[len(scopes) - 1].path == inner.path
            )
            if next_operator is not None and not is_shared:
                scopes_of_next = split_node_name(next_operator.path, self._scope_cache).scopes
                is_shared = (
                    len(scopes_of_next) >= len(scopes) and scopes_of_next[len(scopes) - 1].path == inner.path
                )
            if not is_shared:
                scopes, name = scopes[:-1], inner.name
        for depth, scope in enumerate(scopes):
            if depth < len(self._open_groups) and self._open_groups[depth].path == scope.path:
                continue
            del self._open_groups[depth:]
            yield self._add_row(scope.path, scope.name, scope.kind, group=True)
        del self._open_groups[len(scopes) :]
        yield self._add_row(row.path, name, row.dtype, note=row.note)

    def _name_in_group(self, path: str) -> str:
        """Closes the groups that do not contain a path; returns its name in the innermost open group."""
        while self._open_groups:
            group_path = self._open_groups[-1].path
            if path.startswith(group_path) and path[len(group_path) : len(group_path) + 1] in (".", "/"):
                return path[len(group_path) + 1 :]
            self._open_groups.pop()
        return path

    def _add_row(
        self,
        path: str,
        name: str,
        kind: str,
        *,
        group: bool = False,
        tensor: OutlineRow | None = None,
        note: str = "",
    ) -> Layer:
        """Adds a row below the innermost open group, and returns its layer; a group becomes the open group.

        Args:
            path: Path of the layer.
            name: Name in the group.
            kind: Operator, class or element type.
            group: Whether the row is a group.
            tensor: Outline row of a tensor, or None for other rows.
            note: Remark.
        """
        index, depth = self.count, len(self._open_groups)
        parent = self._open_groups[-1].row if self._open_groups else -1
        params = nbytes = 0
        weights: tuple[TensorInfo, ...] = ()
        if note or (kind if group else tensor is None):
            self.has_only_tensors = False
        if tensor is not None:
            nbytes = tensor.nbytes or 0
            shape = None if tensor.shape is None else tuple(tensor.shape)
            params = math.prod(d for d in tensor.shape or () if isinstance(d, int) and d >= 0)
            weights = (TensorInfo(path, tensor.dtype, shape, "declared"),)
        self.parent.append(parent)
        self.depth.append(depth)
        self.flags.append(GROUP | UNKNOWN if group else UNKNOWN)
        self.kinds.append(self._kind_ids.setdefault(kind, len(self._kind_ids)))
        self.params.append(min(params, _MAX_NUMBER))
        self.weights.append(min(nbytes, _MAX_NUMBER))
        if group:
            self._open_groups.append(_OpenGroup(path, index))
        return Layer(
            id=index,
            parent=None if parent < 0 else parent,
            path=path,
            name=name,
            kind=kind,
            depth=depth,
            group=group,
            weights=weights,
            params=params,
            weight_bytes=nbytes,
            reason=f"{PENDING}; {note}" if note else PENDING,
            **NOTHING_KNOWN,
        )

    def build_structure(self, count: int) -> Structure:
        """Builds the tree of the first `count` rows, with sums of parameters and bytes, and with runs."""
        repeat = array("i", [1]) * count
        result = Structure(
            parent=self.parent[:count],
            end=array("i", bytes(4 * count)),
            depth=self.depth[:count],
            repeat=repeat,
            flags=self.flags[:count],
        )
        params, weights = self.params[:count], self.weights[:count]
        unknown = array("b", [-1]) * count
        ids_by_signature: dict[Any, int] = {}
        signature_ids = array("i", bytes(4 * count))
        children_by_parent: dict[int, list[int]] = {}
        for index in range(count - 1, -1, -1):
            parent = result.parent[index]
            children = children_by_parent.pop(index, ())
            if children:
                _mark_runs(result.flags, repeat, children, signature_ids)
            signature = (
                self.kinds[index],
                params[index],
                tuple([signature_ids[i] for i in reversed(children)]),
            )
            signature_ids[index] = ids_by_signature.setdefault(signature, len(ids_by_signature))
            children_by_parent.setdefault(parent, []).append(index)
            if parent >= 0:
                params[parent] = min(params[parent] + params[index], _MAX_NUMBER)
                weights[parent] = min(weights[parent] + weights[index], _MAX_NUMBER)
        _mark_runs(result.flags, repeat, children_by_parent.pop(-1, ()), signature_ids)
        # without modules only the analysis can assign weights to operators; a configuration names no tensors
        is_counted = not self._has_scopes and self._has_tensors and not self._is_partial
        result.columns = {
            "macs": unknown,
            "params": narrow_numbers(params) if is_counted else unknown,
            "weight_bytes": narrow_numbers(weights) if is_counted else unknown,
            "activation_bytes": unknown,
        }
        complete_structure(result)
        return result


_MAX_NUMBER = (1 << 62) - 1
"""Limit of parameters and bytes: the sum of two such numbers fits into the 64 bits of an array element."""


def _mark_runs(
    flags: array[int], repeat: array[int], reversed_siblings: Any, signature_ids: array[int]
) -> None:
    """Marks runs of successive sibling groups with equal contents.

    The first group of a run gets the number of its groups in `repeat`, the others get 0.

    Args:
        flags: Flags of each row.
        repeat: Number of groups in the run that begins at each row; changed.
        reversed_siblings: Row numbers of the siblings, the last one first.
        signature_ids: Number of each row's contents; rows with equal contents have the same number.
    """
    siblings = list(reversed(reversed_siblings))
    start = 0
    while start < len(siblings):
        stop = start + 1
        first_sibling = siblings[start]
        if flags[first_sibling] & GROUP:
            while stop < len(siblings) and signature_ids[siblings[stop]] == signature_ids[first_sibling]:
                stop += 1
            if stop - start > 1:
                for index in siblings[start:stop]:
                    repeat[index] = 0
                repeat[first_sibling] = stop - start
        start = stop


def run(source: str, descriptor: int) -> None:
    """Sends the preview of a model through a pipe, until the parent process ends or closes the pipe.

    Args:
        source: Path of the model.
        descriptor: Descriptor of the pipe.
    """
    from multiprocessing.connection import Connection

    with Connection(descriptor, readable=False) as pipe:
        parent = os.getppid()

        def send_checked(message: tuple[str, Any]) -> None:
            if os.getppid() != parent:
                raise BrokenPipeError
            pipe.send(message)

        # only the first rows are urgent; after them the analysis has priority
        send(source, send_checked, lambda: os.nice(5))
