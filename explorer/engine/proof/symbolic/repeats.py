"""Executes a Scan body once for many iterations that differ only in their activations.

A tiled convolution is a Scan over blocks of rows. Its thousands of iterations compute the same products with
different left operands. Nodes that rearrange an activation are executed in each iteration. Nodes that
multiply and add, and nodes that split the activation for them, are executed once. A code is the number of a
symbolic element. Each repetition is one block of codes (`blocks.Repeat`) that refers to its activation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.interpreter import Interpreter, ValueScope, list_reads
from explorer.engine.graph.model import Function, Graph, Node
from explorer.engine.proof.symbolic.blocks import BlockTable, Symbol, SymbolBlock, SymbolProduct, Total, Value

_PRODUCING_OPS = frozenset(("Add", "Gemm", "If", "Loop", "MatMul", "Mul", "ReduceSum", "Scan", "Sum"))
"""Operators that may create new blocks of codes."""

_SPLITTING_OPS = frozenset(("Constant", "Split"))
"""Operators that split their input into parts, up to a hundred from one block of rows."""


class _SplitBody(Struct, frozen=True):
    """A body that is split into two parts.

    Attributes:
        body: Scan body. The reference keeps it alive, because it is identified by its id.
        rearranging: Nodes that rearrange elements, in execution order.
        producing: Nodes that multiply and add, nodes that split values for them, and all nodes that depend on
            these, in execution order.
        input_names: Names of the values that `producing` reads.
        output_names: Names of the body's outputs that `producing` computes.
    """

    body: Graph
    rearranging: Sequence[Node]
    producing: Sequence[Node]
    input_names: Sequence[str]
    output_names: Sequence[str]


class _Template(Struct, frozen=True):
    """The first execution of the producing part of a body.

    Attributes:
        key: Key that a repetition must have.
        values: Inputs of the part. The references keep them alive, because `key` contains their ids.
        results: Outputs of the part, with codes from `first` on.
        first: The first new code.
        size: Number of new codes.
    """

    key: tuple[Any, ...]
    values: Sequence[Value | None]
    results: Sequence[Value]
    first: int
    size: int


class BodyRepeats:
    """Executes the producing part of a body once for all activations of the same shapes.

    Args:
        table: Table of blocks.
    """

    def __init__(self, table: BlockTable) -> None:
        self.table = table
        self._parts: dict[int, _SplitBody] = {}
        self._templates: dict[int, _Template | None] = {}
        """First execution by id of the body, or None if the body cannot be repeated."""

    def run_body(self, interpreter: Interpreter, body: Graph, scope: ValueScope) -> None:
        """Computes the outputs of a body and stores them in its scope."""
        template = self._templates.get(id(body))
        if template is None and id(body) in self._templates:
            interpreter.run(body.nodes, scope)
            return
        if id(body) not in self._parts:
            self._parts[id(body)] = _split_body(body, interpreter.functions)
        split_body = self._parts[id(body)]
        interpreter.run(split_body.rearranging, scope)
        values = [scope[name] for name in split_body.input_names]
        key = (*map(id, interpreter.calls), *_list_value_keys(values))
        if template is not None and template.key == key:
            results = self._repeat(template, values)
            scope.update(zip(split_body.output_names, results, strict=True))
            return
        first, block_count = self.table.next, len(self.table.blocks)
        interpreter.run(split_body.producing, scope)
        results = [scope[name] for name in split_body.output_names]
        input_ids = {id(v) for v in values if isinstance(v, Symbol)}
        new_blocks, size = self.table.blocks[block_count:], self.table.next - first
        # a body that has run with another key (other shapes or weights) is never repeated
        can_repeat = (
            template is None
            and _are_products(new_blocks, input_ids, first)
            and all(_is_new_result(r, first) for r in results)
        )
        self._templates[id(body)] = _Template(key, values, results, first, size) if can_repeat else None

    def _repeat(self, template: _Template, values: Sequence[Value | None]) -> list[Value]:
        """Returns the outputs of the producing part for other activations."""
        pairs = zip(template.values, values, strict=True)
        new_by_old_id = {id(old): new for old, new in pairs if isinstance(new, Symbol)}
        block = self.table.create_repeat(template.first, template.size, new_by_old_id)
        shift = np.asarray(block.base - template.first, np.int32 if self.table.next < 1 << 31 else np.int64)
        return [Symbol(np.add(r.codes, shift)) if isinstance(r, Symbol) else r for r in template.results]


def _list_value_keys(values: Sequence[Value | None]) -> Iterator[tuple[Any, ...]]:
    """Yields a key for each value: shape and first index of an activation, or the id of numbers.

    Equal first indices mean that two values are the same object.
    """
    first: dict[int, int] = {}
    for index, value in enumerate(values):
        first_index = first.setdefault(id(value), index)
        yield (first_index, value.shape) if isinstance(value, Symbol) else ("number", id(value))


def _split_body(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> _SplitBody:
    """Splits a body into nodes that rearrange elements and nodes that produce new codes."""
    rearranging: list[Node] = []
    producing: list[Node] = []
    produced_names: set[str] = set()
    input_names: dict[str, None] = {}
    splitting_ids = _find_splits_for_producers(body, functions)
    for node in body.nodes:
        names = [*list_reads(node)]
        if (
            produced_names.isdisjoint(names)
            and id(node) not in splitting_ids
            and not _may_produce(node, functions)
        ):
            rearranging.append(node)
            continue
        producing.append(node)
        input_names.update(dict.fromkeys(name for name in names if name not in produced_names))
        produced_names.update(node.outputs)
    outputs = [v.name for v in body.outputs if v.name in produced_names]
    return _SplitBody(body, rearranging, producing, tuple(input_names), outputs)


def _find_splits_for_producers(body: Graph, functions: Mapping[tuple[str, str, str], Function]) -> set[int]:
    """Returns the ids of the nodes that only split a value for nodes that multiply and add."""
    read_by_others = {v.name for v in body.outputs}
    for node in body.nodes:
        if not _may_produce(node, functions):
            read_by_others.update(list_reads(node))
    return {
        id(node)
        for node in body.nodes
        if _is_only_split(node, functions) and read_by_others.isdisjoint(node.outputs)
    }


def _is_only_split(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node only splits its input."""
    function = functions.get(node.key)
    nodes = (node,) if function is None else function.nodes
    return {part.op for part in nodes} <= _SPLITTING_OPS and any(part.op == "Split" for part in nodes)


def _may_produce(node: Node, functions: Mapping[tuple[str, str, str], Function]) -> bool:
    """Whether a node may multiply or add."""
    function = functions.get(node.key)
    if function is not None:
        return any(_may_produce(inner, functions) for inner in function.nodes)
    return node.op in _PRODUCING_OPS


def _are_products(blocks: Iterable[SymbolBlock], input_ids: set[int], first: int) -> bool:
    """Whether all blocks are products of inputs (or slices of them) and numbers, or sums of new blocks."""

    def is_input(value: Symbol) -> bool:
        return id(value) in input_ids or (
            value.sliced_from is not None and id(value.sliced_from[0]) in input_ids
        )

    def is_new(value: Value) -> bool:
        block = value.block if isinstance(value, Symbol) else None
        return not isinstance(value, Symbol) or (block is not None and block.base >= first)

    return all(
        (isinstance(b, SymbolProduct) and is_input(b.left) and not isinstance(b.right, Symbol))
        or (isinstance(b, Total) and all(is_new(value) for value, _ in b.terms))
        for b in blocks
    )


def _is_new_result(value: Value, first: int) -> bool:
    """Whether all codes of a result are new, which means at least `first`."""
    return not isinstance(value, Symbol) or bool((value.codes >= first).all())
