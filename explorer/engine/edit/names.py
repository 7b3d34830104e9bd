"""Names that a user types of nodes and values: what each means, in which scope, and whether it is one thing.

A name that is there as it stands is that; only one that is not may have a scope before it
('branch.then_branch::y'), because exporters put colons into names of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from explorer.base.errors import Misuse, nearest
from explorer.engine.edit.scopes import GraphScope, defined, scopes
from explorer.engine.graph.model import Model, Node

Aliases = Callable[[], Mapping[str, str]]
"""By the paths and names of layers a value that the node of each makes; asked for what no node is called."""

_SHOWN = 3

_T = TypeVar("_T")


class FoundNode(Struct, frozen=True):
    """A node that a name means."""

    place: GraphScope
    at: int

    @property
    def node(self) -> Node:
        """The node."""
        return self.place.body.nodes[self.at]

    @property
    def text(self) -> str:
        """What it is called in words."""
        return f"'{self.node.label}'{self.place.text}"


class FoundValue(Struct, frozen=True):
    """A value that a name means, by the scope that defines it."""

    place: GraphScope
    name: str


def own_nodes(model: Model, name: str) -> list[FoundNode]:
    """The nodes that have a name of their own."""
    return _meant(model, name, lambda place, text: _nodes(place, lambda node: node.name == text))


def nodes_named(model: Model, name: str) -> list[FoundNode]:
    """The nodes that a name means: by their own, else by a value that they make."""
    return own_nodes(model, name) or _meant(
        model, name, lambda place, text: _nodes(place, lambda node: text in node.outputs)
    )


def values_named(model: Model, name: str) -> list[FoundValue]:
    """The values that a name means."""
    return _meant(
        model, name, lambda place, text: [FoundValue(place, text)] if text in defined(place.body) else []
    )


def find_node(model: Model, name: str, flag: str, aliases: Aliases) -> FoundNode:
    """The one node that a name means.

    Raises:
        Misuse: There is none, or there are several.
    """
    found = nodes_named(model, name)
    if not found and name and (value := aliases().get(name)):
        found = nodes_named(model, value)
    if not found:
        known = [node.label for place in scopes(model) for node in place.body.nodes]
        raise Misuse(f"no node is called '{name}'", where=flag, hint=nearest(name, known))
    return one_node(found, name, flag)


def one_node(found: Sequence[FoundNode], name: str, flag: str) -> FoundNode:
    """The one of them.

    Raises:
        Misuse: There are several.
    """
    if len(found) > 1:
        apart = len({one.place.path for one in found}) == len(found)
        said = [f"{one.place.name}::{name}" if apart else _output(one.node) for one in found]
        raise Misuse(f"{len(found):,} nodes are called '{name}'", where=flag, hint=_either(said))
    return found[0]


def one_value(found: Sequence[FoundValue], flag: str) -> FoundValue:
    """The one of them.

    Raises:
        Misuse: There are several.
    """
    if len(found) > 1:
        name = found[0].name
        said = [f"{one.place.name}::{name}" for one in found]
        raise Misuse(f"{len(found):,} values are called '{name}'", where=flag, hint=_either(said))
    return found[0]


def _either(said: Sequence[str]) -> str:
    return "write " + " or ".join(f"'{one}'" for one in said[:_SHOWN]) + ", ..." * (len(said) > _SHOWN)


def _output(node: Node) -> str:
    return next((name for name in node.outputs if name), node.op)


def _nodes(place: GraphScope, is_it: Callable[[Node], bool]) -> list[FoundNode]:
    return [FoundNode(place, at) for at, node in enumerate(place.body.nodes) if is_it(node)]


def _meant(model: Model, name: str, look: Callable[[GraphScope, str], Iterable[_T]]) -> list[_T]:
    """What is called so anywhere; else in the scope that stands before the name."""
    if not name:
        return []
    every = list(scopes(model))
    found = [one for place in every for one in look(place, name)]
    if found or "::" not in name:
        return found
    within = [place for place in every if name.startswith(f"{place.name}::")]
    return [one for place in within for one in look(place, name[len(place.name) + 2 :])]
