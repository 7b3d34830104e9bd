"""Stores the known types of a graph's values during inference, and merges types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from explorer.engine.graph.model import Node, Value
from explorer.engine.operators.call import Type
from explorer.engine.shapes.constants import ConstantContents
from explorer.facts import Shape


class ShapeTable(Struct):
    """Known types and contents of a graph during inference.

    Attributes:
        types: Types by value name, with dimension names in canonical form.
        contents: Known contents by value name.
        origins: Source of each type that is not inferred: 'declared' or 'observed'.
        bounded_names: Input values whose shapes are upper bounds.
        conflicts: Reason why a node cannot run, by name of its outputs.
        overruled: Inferred shapes of values for which a run showed another shape.
        containers: Declarations of values that are not tensors, such as sequences and optionals, by name.
    """

    types: dict[str, Type]
    contents: ConstantContents
    origins: dict[str, str] = field(default_factory=dict)
    bounded_names: frozenset[str] = frozenset()
    conflicts: dict[str, str] = field(default_factory=dict)
    overruled: dict[str, Shape | None] = field(default_factory=dict)
    containers: dict[str, Value] = field(default_factory=dict)


def is_possible(value_type: Type) -> bool:
    """Whether all sizes of a type are valid. A malformed attribute can make a rule return an invalid size."""
    shape = value_type[1]
    if shape is None:
        return True
    return all(d is None or isinstance(d, str) or (isinstance(d, int) and d >= 0) for d in shape)


def are_complete(names: Sequence[str], types: Mapping[str, Type]) -> bool:
    """Whether the types and all dimensions of the values are known. An omitted value ('') counts as known."""
    for name in names:
        if name:
            value_type = types.get(name)
            if value_type is None or value_type[0] is None or value_type[1] is None or None in value_type[1]:
                return False
    return True


def fill_unknown_parts(old: Type, new: Type) -> Type:
    """Returns `old`, with its unknown parts taken from `new`."""
    dtype = old[0] or new[0]
    if old[1] is None or new[1] is None or len(old[1]) != len(new[1]):
        return dtype, old[1] if old[1] is not None else new[1]
    if None not in old[1]:
        return dtype, old[1]
    return dtype, tuple(b if a is None else a for a, b in zip(old[1], new[1], strict=True))


def find_common_type(a: Type | None, b: Type | None) -> Type | None:
    """Returns the type that two branches have in common: parts that differ are None.

    The result is None if a type is unknown.
    """
    if a is None or b is None:
        return None
    return a[0] if a[0] == b[0] else None, find_common_sizes(a[1], b[1])


def find_common_sizes(a: Shape | None, b: Shape | None) -> Shape | None:
    """Returns the sizes that two shapes have in common: a size that differs is None.

    The result is None if a shape is unknown or the ranks differ.
    """
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple([x if x == y else None for x, y in zip(a, b, strict=True)])


def merge_types(types: dict[str, Type], answer: Mapping[str, Type]) -> bool:
    """Fills unknown parts of `types` from `answer`, and returns whether any type became more complete."""
    is_changed = False
    for name, kind in answer.items():
        old = types.get(name, (None, None))
        new = fill_unknown_parts(old, kind)
        if new != old:
            types[name] = new
            is_changed = True
    return is_changed


def adopt_types(
    nodes: Sequence[Node], table: ShapeTable, candidates: Mapping[str, Type], origin: str
) -> bool:
    """Copies candidate types to the outputs of open nodes whose inputs are all known.

    An output that gets its type here counts as unknown until the next round. A node that reads it waits,
    because inference may then find a type for the node that differs from its candidate. A node that depends
    on a node that cannot run gets no candidate.

    Args:
        nodes: Open nodes, which have an output of unknown type, in execution order.
        table: The known types, which are changed.
        candidates: Declared or observed types by value name.
        origin: Origin of the candidates: 'declared' or 'observed'.

    Returns:
        Whether any type was copied.
    """
    is_changed = False
    unknown_names: set[str] = set(table.conflicts)
    for node in nodes:
        is_waiting = any(name in unknown_names for name in node.inputs)
        for name in node.outputs:
            old = table.types.get(name, (None, None))
            if not name or (old[0] is not None and old[1] is not None and None not in old[1]):
                continue
            unknown_names.add(name)
            kind = candidates.get(name)
            if is_waiting or kind is None or kind[1] is None or name in table.origins:
                continue
            new = fill_unknown_parts(old, kind)
            if new != old:
                table.types[name] = new
                table.origins[name] = origin
                is_changed = True
    return is_changed
