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

    @property
    def made(self) -> str:
        """A value that it makes, which no other node does."""
        return next((name for name in self.node.outputs if name), self.node.op)


class FoundValue(Struct, frozen=True):
    """A value that a name means, by the scope that defines it."""

    place: GraphScope
    made: str


_Found = TypeVar("_Found", FoundNode, FoundValue)


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


class NoSuchNode(Misuse):
    """A name that no node has."""


def find_node(model: Model, name: str, flag: str, aliases: Aliases) -> FoundNode:
    """The one node that a name means.

    Raises:
        NoSuchNode: There is none.
        Misuse: There are several.
    """
    matches = nodes_named(model, name)
    if not matches and name and (value := aliases().get(name)):
        matches = nodes_named(model, value)
    if not matches:
        labels = [node.label for place in scopes(model) for node in place.body.nodes]
        raise NoSuchNode(f"no node is called '{name}'", where=flag, hint=nearest(name, labels))
    return the_one(matches, name, flag)


def the_one(matches: Sequence[_Found], name: str, flag: str) -> _Found:
    """The one of them.

    Raises:
        Misuse: There are several.
    """
    if len(matches) > 1:
        apart = len({candidate.place.path for candidate in matches}) == len(matches)
        spellings = [f"{candidate.place.name}::{name}" if apart else candidate.made for candidate in matches]
        hint = (
            "write "
            + " or ".join(f"'{spelling}'" for spelling in spellings[:_SHOWN])
            + ", ..." * (len(spellings) > _SHOWN)
        )
        kind = "nodes" if isinstance(matches[0], FoundNode) else "values"
        raise Misuse(f"{len(matches):,} {kind} are called '{name}'", where=flag, hint=hint)
    return matches[0]


def _nodes(place: GraphScope, is_it: Callable[[Node], bool]) -> list[FoundNode]:
    return [FoundNode(place, at) for at, node in enumerate(place.body.nodes) if is_it(node)]


def _meant(model: Model, name: str, look: Callable[[GraphScope, str], Iterable[_T]]) -> list[_T]:
    """What is called so anywhere; else in the scope that stands before the name."""
    if not name:
        return []
    every = list(scopes(model))
    matches = [candidate for place in every for candidate in look(place, name)]
    if matches or "::" not in name:
        return matches
    within = [place for place in every if name.startswith(f"{place.name}::")]
    return [candidate for place in within for candidate in look(place, name[len(place.name) + 2 :])]
