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

_PRODUCING_OPS = frozenset(("Add", "Gemm", "If", "Loop", "MatMul", "Mul", "ReduceSum", "Scan", "Sum"))
"""Operators that may make new blocks of codes."""

_SPLITTING_OPS = frozenset(("Constant", "Split"))
"""Operators that cut their input into parts: a hundred from one block of rows."""


class _Parts(Struct, frozen=True):
    """A body in two parts.

    Attributes:
        body: The body; kept, since it is identified by its id.
        rearranging: Nodes that rearrange elements.
        producing: Nodes that multiply and add, nodes that cut for them, and all nodes that depend on these.
        input_names: Values that `producing` reads.
        produced: Outputs of the body that `producing` computes.
    """

    body: Graph
    rearranging: Sequence[Node]
    producing: Sequence[Node]
    input_names: Sequence[str]
    produced: Sequence[str]


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
    """Follows the producing part of a body once for all activations of the same shapes.

    Args:
        table: The table of blocks.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self._parts: dict[int, _Parts] = {}
        self._templates: dict[int, _Template | None] = {}
        """By body; None: the body never repeats."""

    def follow(self, interpreter: Interpreter, body: Graph, scope: ValueScope) -> None:
        """Computes the outputs of a body into its scope."""
        template = self._templates.get(id(body))
        if template is None and id(body) in self._templates:
            interpreter.run(body.nodes, scope)
            return
        if id(body) not in self._parts:
            self._parts[id(body)] = _split_body(body, interpreter.functions)
        parts = self._parts[id(body)]
        interpreter.run(parts.rearranging, scope)
        values = [scope[name] for name in parts.input_names]
        key = (*map(id, interpreter.calls), *_value_keys(values))
        if template is not None and template.key == key:
            results = self._repeat(template, values)
            scope.update(zip(parts.produced, results, strict=True))
            return
        first, block_count = self.table.next, len(self.table.blocks)
        interpreter.run(parts.producing, scope)
        results = [scope[name] for name in parts.produced]
        input_ids = {id(v) for v in values if isinstance(v, Symbol)}
        new_blocks, size = self.table.blocks[block_count:], self.table.next - first
        can_repeat = (
            template is None
            and _are_products_of(new_blocks, input_ids, first)
            and all(_is_new_result(r, first) for r in results)
        )
        self._templates[id(body)] = _Template(key, values, results, first, size) if can_repeat else None

    def _repeat(self, template: _Template, values: Sequence[Value | None]) -> list[Value]:
        """The outputs of the nodes for other activations."""
        pairs = zip(template.values, values, strict=True)
        new_by_old_id = {id(old): new for old, new in pairs if isinstance(new, Symbol)}
        block = self.table.repeat(template.first, template.size, new_by_old_id)
        shift = np.asarray(block.base - template.first, np.int32 if self.table.next < 1 << 31 else np.int64)
        return [Symbol(np.add(r.codes, shift)) if isinstance(r, Symbol) else r for r in template.results]


def _value_keys(values: Sequence[Value | None]) -> Iterator[tuple[Any, ...]]:
    """The key of values: shapes of activations, and which of them are the same object."""
    first: dict[int, int] = {}
    for index, value in enumerate(values):
        first_index = first.setdefault(id(value), index)
        yield (first_index, value.shape) if isinstance(value, Symbol) else ("number", id(value))


def _split_body(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> _Parts:
    """A body split into two parts; both in execution order."""
    rearranging: list[Node] = []
    producing: list[Node] = []
    produced: set[str] = set()
    input_names: dict[str, None] = {}
    splitting = _find_splits_for_producers(body, functions)
    for node in body.nodes:
        names = [*reads(node)]
        if produced.isdisjoint(names) and id(node) not in splitting and not _produces(node, functions):
            rearranging.append(node)
            continue
        producing.append(node)
        input_names.update(dict.fromkeys(name for name in names if name not in produced))
        produced.update(node.outputs)
    outputs = [v.name for v in body.outputs if v.name in produced]
    return _Parts(body, rearranging, producing, tuple(input_names), outputs)


def _find_splits_for_producers(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> set[int]:
    """Ids of the nodes that only cut a value for nodes that multiply and add."""
    read_by_others = {v.name for v in body.outputs}
    for node in body.nodes:
        if not _produces(node, functions):
            read_by_others.update(reads(node))
    return {
        id(node)
        for node in body.nodes
        if _only_splits(node, functions) and read_by_others.isdisjoint(node.outputs)
    }


def _only_splits(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node does nothing but cut its input."""
    function = functions.get(node.key)
    nodes = (node,) if function is None else function.nodes
    return {part.op for part in nodes} <= _SPLITTING_OPS and any(part.op == "Split" for part in nodes)


def _produces(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node may multiply or add."""
    function = functions.get(node.key)
    if function is not None:
        return any(_produces(inner, functions) for inner in function.nodes)
    return node.op in _PRODUCING_OPS


def _are_products_of(blocks: Iterable[SymbolBlock], input_ids: set[int], first: int) -> bool:
    """Whether blocks are products of, or slices of, values in `input_ids` and numbers, and sums of such."""

    def is_input(value: Symbol) -> bool:
        return id(value) in input_ids or (
            value.sliced_from is not None and id(value.sliced_from[0]) in input_ids
        )

    def is_new(value: Value) -> bool:
        whole = value.whole if isinstance(value, Symbol) else None
        return not isinstance(value, Symbol) or (whole is not None and whole.base >= first)

    return all(
        (isinstance(b, SymbolProduct) and is_input(b.left) and not isinstance(b.right, Symbol))
        or (isinstance(b, Total) and all(is_new(value) for value, _ in b.terms))
        for b in blocks
    )


def _is_new_result(value: Value, first: int) -> bool:
    """Whether all codes of a result are from code `first` on."""
    return not isinstance(value, Symbol) or bool((value.codes >= first).all())
