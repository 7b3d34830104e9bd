"""Preview: a model's tree before it is analyzed, what its header says, as rows of the layer tree.

Opening a model for real takes as long as it takes: torch is imported, shapes are inferred, costs counted.
Its header is read in a moment (`explorer.session.headers`), so the screen shows that first, in the same
rows, without the figures that nobody knows yet. The rows come as the header is read, and the first of them
at once; a process of its own reads it, so that neither the screen nor the analysis waits.
"""

from __future__ import annotations

import math
import os
import sys
from array import array
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from explorer.base.errors import ExplorerError
from explorer.base.outline import ReadableRows
from explorer.facts import NOTHING_KNOWN, Layer, TensorInfo
from explorer.session import headers
from explorer.session.cache.rows import GROUP, PAGE, UNKNOWN, Structure, chunks, close, messages, narrow

if TYPE_CHECKING:
    from explorer.base.outline import Outline, OutlineRow
    from explorer.engine.costs.layer_tree import Scope

PENDING = "not analyzed yet"
_FIRST = 8 * PAGE
"""Rows before the tree is shown first; then it is shown with `_MORE` times as many, and so on."""
_MORE = 16
_ENOUGH = 100_000
"""Rows that are on show by then; what comes behind them comes at once."""

Send = Callable[[tuple[str, Any]], None]


class ModelHeader(Struct, frozen=True):
    """What a header says of the whole model."""

    format: str
    file_bytes: int | None
    facts: tuple[tuple[str, str], ...]


def send(source: str, out: Send, after_first: Callable[[], object] = lambda: None) -> None:
    """Sends what the header of `source` says, in parts, and 'end' behind them.

    The parts: ('header', Header), ('rows', pages as chunks), ('tree', a chunk of the structure of all rows
    sent so far, and with the last of them how far it goes: 'more', 'all', or 'all known'). What has no
    header ends early, of a broken one come the rows that can be read: opening it says why. `after_first` is
    called whenever there is something on show.
    """
    try:
        outline = headers.outline(source)
        facts = tuple((str(key), str(text)) for key, text in outline.facts)
        out(("header", ModelHeader(outline.format, outline.file_bytes, facts)))
        _send_rows(outline, out, after_first)
    except ExplorerError:
        pass
    out(("end", None))


def _send_rows(outline: Outline, out: Send, after_first: Callable[[], object]) -> None:
    tree = _Tree()
    sent_rows = _FIRST
    readable = ReadableRows(outline.rows)
    for some in messages(tree.rows(readable)):
        out(("rows", some))
        if tree.count >= sent_rows:
            sent_rows = tree.count * _MORE if tree.count < _ENOUGH else sys.maxsize
            _send_structure(tree.structure(tree.count // PAGE * PAGE), out, "more")
            after_first()
    is_final = tree.plain and readable.broken is None
    _send_structure(tree.structure(tree.count), out, "all known" if is_final else "all")


def _send_structure(found: Structure, out: Send, far: str) -> None:
    parts = list(chunks(found))
    for at, chunk in enumerate(parts):
        out(("tree", (chunk, far if at == len(parts) - 1 else "")))


class _Tree:
    """Rows of an outline as a tree: names and scopes say what lies in what."""

    def __init__(self) -> None:
        self.parent, self.depth, self.kinds = array("i"), array("H"), array("i")
        self.flags, self.params, self.weights = array("B"), array("q"), array("q")
        self._kind_ids: dict[str, int] = {}
        self._open: list[tuple[str, int]] = []  # path and row of the groups around
        self._known: dict[str, dict[str, tuple[Scope, ...] | None]] = {"/": {}, ".": {}}
        self._operators = self._scoped = False
        self.plain = True
        """Whether there are only tensors and groups that their names make: an analysis knows no more."""

    @property
    def count(self) -> int:
        return len(self.parent)

    def rows(self, outlined: Iterable[OutlineRow]) -> Iterator[Layer]:
        """A layer for each, and for each group that a name tells."""
        waiting: OutlineRow | None = None  # an operator, until it is known whether it is alone in its group
        for row in outlined:
            operator = row.kind == "operator"
            if waiting is not None:
                yield from self._operator(waiting, row if operator else None)
            waiting = row if operator else None
            if row.kind == "tensor":
                name = self._within(row.path)
                # beside operators, what is stored has no row in the tree of an analysis either
                if not self._scoped and (self._open or not self._operators):
                    yield self._add(row.path, name, row.dtype, tensor=row, note=row.note)
            elif row.kind == "module":
                if row.path and row.path != "(model)":
                    yield self._add(row.path, self._within(row.path), row.dtype, group=True, note=row.note)
            elif row.kind in ("function", "model", "more"):
                self._open.clear()
                yield self._add(row.path, row.path, row.dtype or row.kind, note=row.note)
        if waiting is not None:
            yield from self._operator(waiting, None)

    def _operator(self, row: OutlineRow, following: OutlineRow | None) -> Iterator[Layer]:
        from explorer.engine.costs.onnx.scopes import (
            from_name,  # 10 ms, which a file of tensors need not wait for
        )

        self._operators = True
        if self._open and not self._scoped:  # modules are listed, and this lies in one
            yield self._add(row.path, self._within(row.path), row.dtype, note=row.note)
            return
        self._scoped = True
        scopes, name = from_name(row.path, self._known)
        if scopes:
            inner = scopes[-1]
            shared = len(self._open) >= len(scopes) and self._open[len(scopes) - 1][0] == inner.path
            if following is not None and not shared:
                around = from_name(following.path, self._known).scopes
                shared = len(around) >= len(scopes) and around[len(scopes) - 1].path == inner.path
            if not shared:
                scopes, name = scopes[:-1], inner.name
        for depth, scope in enumerate(scopes):
            if depth < len(self._open) and self._open[depth][0] == scope.path:
                continue
            del self._open[depth:]
            yield self._add(scope.path, scope.name, scope.kind, group=True)
        del self._open[len(scopes) :]
        yield self._add(row.path, name, row.dtype, note=row.note)

    def _within(self, path: str) -> str:
        """What a path is called in the innermost group that it lies in; the groups beyond are left."""
        while self._open:
            around = self._open[-1][0]
            if path.startswith(around) and path[len(around) : len(around) + 1] in (".", "/"):
                return path[len(around) + 1 :]
            self._open.pop()
        return path

    def _add(
        self,
        path: str,
        name: str,
        kind: str,
        *,
        group: bool = False,
        tensor: OutlineRow | None = None,
        note: str = "",
    ) -> Layer:
        at, depth = self.count, len(self._open)
        parent = self._open[-1][1] if self._open else -1
        params = size = 0
        weights: tuple[TensorInfo, ...] = ()
        if note or (kind if group else tensor is None):
            self.plain = False
        if tensor is not None:
            size = tensor.nbytes or 0
            shape = None if tensor.shape is None else tuple(tensor.shape)
            params = math.prod(d for d in tensor.shape or () if isinstance(d, int) and d >= 0)
            weights = (TensorInfo(path, tensor.dtype, shape, "declared"),)
        self.parent.append(parent)
        self.depth.append(depth)
        self.flags.append(GROUP | UNKNOWN if group else UNKNOWN)
        self.kinds.append(self._kind_ids.setdefault(kind, len(self._kind_ids)))
        self.params.append(min(params, _MOST))
        self.weights.append(min(size, _MOST))
        if group:
            self._open.append((path, at))
        return Layer(
            id=at,
            parent=None if parent < 0 else parent,
            path=path,
            name=name,
            kind=kind,
            depth=depth,
            group=group,
            weights=weights,
            params=params,
            weight_bytes=size,
            reason=f"{PENDING}; {note}" if note else PENDING,
            **NOTHING_KNOWN,
        )

    def structure(self, count: int) -> Structure:
        """What is known of the first `count` rows."""
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
        signs: dict[Any, int] = {}
        signed = array("i", bytes(4 * count))
        below: dict[int, list[int]] = {}
        for at in range(count - 1, -1, -1):
            above = result.parent[at]
            inside = below.pop(at, ())
            if inside:
                _mark_runs(result.flags, repeat, inside, signed)
            sign = (self.kinds[at], params[at], tuple([signed[i] for i in reversed(inside)]))
            signed[at] = signs.setdefault(sign, len(signs))
            below.setdefault(above, []).append(at)
            if above >= 0:
                params[above] = min(params[above] + params[at], _MOST)
                weights[above] = min(weights[above] + weights[at], _MOST)
        _mark_runs(result.flags, repeat, below.pop(-1, ()), signed)
        is_counted = not self._scoped  # what operators without modules hold is for the analysis to find
        result.columns = {
            "macs": unknown,
            "params": narrow(params) if is_counted else unknown,
            "weight_bytes": narrow(weights) if is_counted else unknown,
            "activation_bytes": unknown,
        }
        close(result)
        return result


_MOST = (1 << 62) - 1


def _mark_runs(flags: array[int], repeat: array[int], backwards: Any, signed: array[int]) -> None:
    """Marks siblings that are built alike and hold something; they come last first."""
    siblings = list(reversed(backwards))
    start = 0
    while start < len(siblings):
        stop = start + 1
        first = siblings[start]
        if flags[first] & GROUP:
            while stop < len(siblings) and signed[siblings[stop]] == signed[first]:
                stop += 1
            if stop - start > 1:
                for at in siblings[start:stop]:
                    repeat[at] = 0
                repeat[first] = stop - start
        start = stop


def run(source: str, descriptor: int) -> None:
    """The process that reads a header: writes to a pipe until nobody reads it."""
    from multiprocessing.connection import Connection

    with Connection(descriptor, readable=False) as out:
        parent = os.getppid()

        def checked(message: tuple[str, Any]) -> None:
            if os.getppid() != parent:
                raise BrokenPipeError
            out.send(message)

        # the first rows are waited for, the others are not: the analysis is
        send(source, checked, lambda: os.nice(5))
