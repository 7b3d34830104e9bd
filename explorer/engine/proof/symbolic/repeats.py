"""Repeated Scan bodies: same nodes, same numbers, other activations of the same shapes.

A tiled convolution is a Scan over blocks of rows: a thousand times the same products, which differ only in
their left operands. Nodes that rearrange an activation are followed every time. Nodes that multiply and add,
and those that cut the activation for them, are followed once. A repetition is a block of codes
(`blocks.Repeat`) that names its activation.
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
"""Operators that may make new blocks of codes."""

_CUTTING = frozenset(("Constant", "Split"))
"""Operators that cut their input into parts: a hundred from one block of rows."""


class _Parts(Struct, frozen=True):
    """A body in two parts.

    Attributes:
        body: The body; kept, since it is identified by its id.
        moving: Nodes that rearrange elements.
        making: Nodes that multiply and add, nodes that cut for them, and all nodes that depend on these.
        read: Values that `making` reads.
        made: Outputs of the body that `making` computes.
    """

    body: Graph
    moving: Sequence[Node]
    making: Sequence[Node]
    read: Sequence[str]
    made: Sequence[str]


class _Template(Struct, frozen=True):
    """The followed second part of a body.

    Attributes:
        key: The key that a repetition must have.
        values: Its inputs; kept, since `key` identifies numbers by their id.
        results: Its outputs: codes from `first` on.
        first: The first new code.
        size: Number of new codes.
    """

    key: tuple[Any, ...]
    values: Sequence[Value | None]
    results: Sequence[Value]
    first: int
    size: int


class BodyRepeats:
    """Follows the making part of a body once for all activations of the same shapes.

    Args:
        table: The table of blocks.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self._parts: dict[int, _Parts] = {}
        self._known: dict[int, _Template | None] = {}
        """By body; None: the body never repeats."""

    def follow(self, interpreter: Interpreter, body: Graph, scope: ValueScope) -> None:
        """Computes the outputs of a body into its scope."""
        template = self._known.get(id(body))
        if template is None and id(body) in self._known:
            interpreter.run(body.nodes, scope)
            return
        if id(body) not in self._parts:
            self._parts[id(body)] = _split_body(body, interpreter.functions)
        parts = self._parts[id(body)]
        interpreter.run(parts.moving, scope)
        values = [scope[name] for name in parts.read]
        key = (*map(id, interpreter.calls), *_value_keys(values))
        if template is not None and template.key == key:
            results = self._repeat(template, values)
            scope.update(zip(parts.made, results, strict=True))
            return
        first, before = self.table.next, len(self.table.blocks)
        interpreter.run(parts.making, scope)
        results = [scope[name] for name in parts.made]
        read = {id(v) for v in values if isinstance(v, Symbol)}
        new_blocks, size = self.table.blocks[before:], self.table.next - first
        alone = (
            template is None
            and _are_products_of(new_blocks, read, first)
            and all(_made_since(r, first) for r in results)
        )
        self._known[id(body)] = _Template(key, values, results, first, size) if alone else None

    def _repeat(self, template: _Template, values: Sequence[Value | None]) -> list[Value]:
        """The outputs of the nodes for other activations."""
        pairs = zip(template.values, values, strict=True)
        instead = {id(old): new for old, new in pairs if isinstance(new, Symbol)}
        block = self.table.repeat(template.first, template.size, instead)
        shift = np.asarray(block.base - template.first, np.int32 if self.table.next < 1 << 31 else np.int64)
        return [Symbol(np.add(r.codes, shift)) if isinstance(r, Symbol) else r for r in template.results]


def _value_keys(values: Sequence[Value | None]) -> Iterator[tuple[Any, ...]]:
    """The key of values: shapes of activations, and which of them are the same object."""
    first: dict[int, int] = {}
    for at, value in enumerate(values):
        here = first.setdefault(id(value), at)
        yield (here, value.shape) if isinstance(value, Symbol) else ("number", id(value))


def _split_body(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> _Parts:
    """A body split into two parts; both in execution order."""
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
    """Ids of the nodes that only cut a value for nodes that multiply and add."""
    elsewhere = {v.name for v in body.outputs}
    for node in body.nodes:
        if not _makes(node, functions):
            elsewhere.update(reads(node))
    return {id(node) for node in body.nodes if _cuts(node, functions) and elsewhere.isdisjoint(node.outputs)}


def _cuts(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node does nothing but cut its input."""
    function = functions.get(node.key)
    nodes = (node,) if function is None else function.nodes
    return {part.op for part in nodes} <= _CUTTING and any(part.op == "Split" for part in nodes)


def _makes(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node may multiply or add."""
    function = functions.get(node.key)
    if function is not None:
        return any(_makes(inner, functions) for inner in function.nodes)
    return node.op in _MAKING


def _are_products_of(blocks: Iterable[SymbolBlock], read: set[int], first: int) -> bool:
    """Whether blocks are products of, or slices of, values in `read` and numbers, and sums of such."""

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


def _made_since(value: Value, first: int) -> bool:
    """Whether all codes of a result are from code `first` on."""
    return not isinstance(value, Symbol) or bool((value.codes >= first).all())
