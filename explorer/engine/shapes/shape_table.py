"""Shape table: known types of a graph's values during inference, and how two types are merged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from explorer.engine.graph.model import Node
from explorer.engine.operators.call import Type
from explorer.engine.shapes.constants import ConstantContents
from explorer.facts import Shape


class ShapeTable(Struct):
    """Known types and contents of a graph during inference.

    Attributes:
        types: By name; names of dimensions as canonical texts.
        contents: By name.
        origins: Values whose type is taken from elsewhere: 'declared' or 'observed'.
        doubtful: Values that come in as bounds.
        conflicts: Values of nodes that cannot run, and why.
        overruled: What had been inferred of values of which a run showed something else.
    """

    types: dict[str, Type]
    contents: ConstantContents
    origins: dict[str, str] = field(default_factory=dict)
    doubtful: frozenset[str] = frozenset()
    conflicts: dict[str, str] = field(default_factory=dict)
    overruled: dict[str, Shape | None] = field(default_factory=dict)


def possible(kind: Type) -> bool:
    """Whether a rule's answer is a valid type: a malformed attribute may have got into it."""
    shape = kind[1]
    if shape is None:
        return True
    return all(d is None or isinstance(d, str) or (isinstance(d, int) and d >= 0) for d in shape)


def complete_all(names: Sequence[str], types: Mapping[str, Type]) -> bool:
    """Whether the types and all dimensions of the values are known; a name left out needs none."""
    for name in names:
        if name:
            kind = types.get(name)
            if kind is None or kind[0] is None or kind[1] is None or None in kind[1]:
                return False
    return True


def better(old: Type, new: Type) -> Type:
    """`old`, with its unknown parts taken from `new`."""
    dtype = old[0] or new[0]
    if old[1] is None or new[1] is None or len(old[1]) != len(new[1]):
        return dtype, old[1] if old[1] is not None else new[1]
    if None not in old[1]:
        return dtype, old[1]
    return dtype, tuple(b if a is None else a for a, b in zip(old[1], new[1], strict=True))


def common(a: Type | None, b: Type | None) -> Type | None:
    """The type on which two branches agree."""
    if a is None or b is None:
        return None
    return a[0] if a[0] == b[0] else None, same_sizes(a[1], b[1])


def same_sizes(a: Shape | None, b: Shape | None) -> Shape | None:
    """The sizes that two shapes have in common; None if their ranks differ, or one is not known."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple([x if x == y else None for x, y in zip(a, b, strict=True)])


def merge(types: dict[str, Type], answer: Mapping[str, Type]) -> bool:
    """Adds what is new; True if something was."""
    gained = False
    for name, kind in answer.items():
        old = types.get(name, (None, None))
        new = better(old, kind)
        if new != old:
            types[name] = new
            gained = True
    return gained


def take(nodes: Sequence[Node], table: ShapeTable, candidates: Mapping[str, Type], origin: str) -> bool:
    """Copies `candidates` to outputs of the first open nodes, those whose inputs are known.

    Values further behind are left to the next round: inferred from here they may differ from what the
    file declares. Behind a node that cannot run, no candidate holds.
    """
    gained = False
    blank: set[str] = set(table.conflicts)
    for node in nodes:
        waiting = any(name in blank for name in node.inputs)
        for name in node.outputs:
            old = table.types.get(name, (None, None))
            if not name or (old[0] is not None and old[1] is not None and None not in old[1]):
                continue
            blank.add(name)
            kind = candidates.get(name)
            if waiting or kind is None or kind[1] is None or name in table.origins:
                continue
            new = better(old, kind)
            if new != old:
                table.types[name] = new
                table.origins[name] = origin
                gained = True
    return gained
