"""Scan bodies that were followed before: same nodes, same numbers, other activations of the same shapes.

A convolution on tiles is a Scan over blocks of rows: a thousand times the same products, which differ in
nothing but what stands on their left. What rearranges an activation is followed every time; what multiplies
and adds, and what cuts the activation for it, once. What is repeated is a block of codes (`blocks.Repeat`)
that says which activation is meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.interpreter import Interpreter, ValueScope, reads
from explorer.engine.graph.model import Function, Graph, Node
from explorer.engine.proof.symbolic.blocks import BlockTable, Symbol, SymbolBlock, SymbolProduct, Total, Value

_MAKING = frozenset(("Add", "Gemm", "If", "Loop", "MatMul", "Mul", "ReduceSum", "Scan", "Sum"))
"""Operators that make new blocks of codes, or may."""

_CUTTING = frozenset(("Constant", "Split"))
"""Operators whose results say what they are parts of: a hundred of one block of rows."""


class _Parts(Struct, frozen=True):
    """A body in two parts.

    Attributes:
        body: The body, which is kept: it is known by its identity.
        moving: Nodes that rearrange.
        making: Nodes that multiply and add, what cuts for them, and all that needs them.
        read: What those read.
        made: Outputs of the body that they make.
    """

    body: Graph
    moving: Sequence[Node]
    making: Sequence[Node]
    read: Sequence[str]
    made: Sequence[str]


class _Template(Struct, frozen=True):
    """The second part of a body, followed.

    Attributes:
        key: What has to be the same.
        values: What it read; they are kept, for `key` knows numbers by their identity.
        results: What it made: codes from `first` on.
        first: The first code that was made.
        size: How many.
    """

    key: tuple[Any, ...]
    values: Sequence[Value | None]
    results: Sequence[Value]
    first: int
    size: int


class BodyRepeats:
    """Follows what a body makes once for all activations of the same shapes.

    Args:
        table: Where blocks are made.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self._parts: dict[int, _Parts] = {}
        self._known: dict[int, _Template | None] = {}
        """By body; None: it is another one every time."""

    def follow(self, interpreter: Interpreter, body: Graph, scope: ValueScope) -> None:
        """Leaves the outputs of a body in its scope."""
        template = self._known.get(id(body))
        if template is None and id(body) in self._known:
            interpreter.run(body.nodes, scope)
            return
        if id(body) not in self._parts:
            self._parts[id(body)] = _in_parts(body, interpreter.functions)
        parts = self._parts[id(body)]
        interpreter.run(parts.moving, scope)
        values = [scope[name] for name in parts.read]
        key = (*map(id, interpreter.calls), *_alike(values))
        if template is not None and template.key == key:
            results = self._again(template, values)
            scope.update(zip(parts.made, results, strict=True))
            return
        first, before = self.table.next, len(self.table.blocks)
        interpreter.run(parts.making, scope)
        results = [scope[name] for name in parts.made]
        read = {id(v) for v in values if isinstance(v, Symbol)}
        new_blocks, size = self.table.blocks[before:], self.table.next - first
        alone = (
            template is None and _only_of(new_blocks, read, first) and all(_behind(r, first) for r in results)
        )
        self._known[id(body)] = _Template(key, values, results, first, size) if alone else None

    def _again(self, template: _Template, values: Sequence[Value | None]) -> list[Value]:
        """What the nodes make of other activations."""
        pairs = zip(template.values, values, strict=True)
        instead = {id(old): new for old, new in pairs if isinstance(new, Symbol)}
        block = self.table.repeat(template.first, template.size, instead)
        shift = np.asarray(block.base - template.first, np.int32 if self.table.next < 1 << 31 else np.int64)
        return [Symbol(np.add(r.codes, shift)) if isinstance(r, Symbol) else r for r in template.results]


def _alike(values: Sequence[Value | None]) -> Iterator[tuple[Any, ...]]:
    """What has to be the same of values: of activations the shape, and which of them are one and the same."""
    first: dict[int, int] = {}
    for at, value in enumerate(values):
        here = first.setdefault(id(value), at)
        yield (here, value.shape) if isinstance(value, Symbol) else ("number", id(value))


def _in_parts(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> _Parts:
    """A body divided; both parts in an order in which they can run."""
    moving: list[Node] = []
    making: list[Node] = []
    produced: set[str] = set()
    read: dict[str, None] = {}
    cutting = _cuts_for_making(body, functions)
    for node in body.nodes:
        names = [*reads(node)]
        if produced.isdisjoint(names) and id(node) not in cutting and not _makes(node, functions):
            moving.append(node)
            continue
        making.append(node)
        read.update(dict.fromkeys(name for name in names if name not in produced))
        produced.update(node.outputs)
    outputs = [v.name for v in body.outputs if v.name in produced]
    return _Parts(body, moving, making, tuple(read), outputs)


def _cuts_for_making(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> set[int]:
    """Ids of the nodes that cut something, and whose parts nobody reads but what multiplies and adds."""
    elsewhere = {v.name for v in body.outputs}
    for node in body.nodes:
        if not _makes(node, functions):
            elsewhere.update(reads(node))
    return {id(node) for node in body.nodes if _cuts(node, functions) and elsewhere.isdisjoint(node.outputs)}


def _cuts(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether all that a node does is to cut what it reads."""
    function = functions.get(node.key)
    nodes = (node,) if function is None else function.nodes
    return {one.op for one in nodes} <= _CUTTING and any(one.op == "Split" for one in nodes)


def _makes(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node may multiply or add."""
    function = functions.get(node.key)
    if function is not None:
        return any(_makes(inner, functions) for inner in function.nodes)
    return node.op in _MAKING


def _only_of(blocks: Iterable[SymbolBlock], read: set[int], first: int) -> bool:
    """Whether blocks are products of what is in `read`, or cut from it, and numbers, and sums of such."""

    def given(value: Symbol) -> bool:
        return id(value) in read or (value.part is not None and id(value.part[0]) in read)

    def own(value: Value) -> bool:
        whole = value.whole if isinstance(value, Symbol) else None
        return not isinstance(value, Symbol) or (whole is not None and whole.base >= first)

    return all(
        (isinstance(b, SymbolProduct) and given(b.left) and not isinstance(b.right, Symbol))
        or (isinstance(b, Total) and all(own(value) for value, _ in b.terms))
        for b in blocks
    )


def _behind(value: Value, first: int) -> bool:
    """Whether all that a result shows was made from code `first` on."""
    return not isinstance(value, Symbol) or bool((value.codes >= first).all())
