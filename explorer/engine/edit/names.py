"""Resolves names of nodes and values that a user types, and the scopes that they are in.

An exact match comes first. Only a name without an exact match may start with a scope
('branch.then_branch::y'), because exporters use colons in their own names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.engine.edit.scopes import GraphScope, collect_defined_values, list_scopes
from explorer.engine.graph.model import Model, Node

Aliases = Callable[[], Mapping[str, str]]
"""Function that returns, by layer path or name, a value that the layer's node produces.

It is called only if no node has the name.
"""

_MAX_SHOWN = 3

_T = TypeVar("_T")


class FoundNode(Struct, frozen=True):
    """A node that matches a name: its scope, and its index among the nodes of the scope's body."""

    scope: GraphScope
    index: int

    @property
    def node(self) -> Node:
        """The node."""
        return self.scope.body.nodes[self.index]

    @property
    def text(self) -> str:
        """The text that refers to the node in messages."""
        return f"'{self.node.label}'{self.scope.text}"

    @property
    def value_name(self) -> str:
        """A value that the node produces, which identifies it."""
        return next((name for name in self.node.outputs if name), self.node.op)


class FoundValue(Struct, frozen=True):
    """A value that matches a name, with the scope that defines it."""

    scope: GraphScope
    value_name: str


_Match = TypeVar("_Match", FoundNode, FoundValue)


def find_own_nodes(model: Model, name: str) -> list[FoundNode]:
    """Returns the nodes whose own name matches."""
    return _find_matches(model, name, lambda scope, text: _list_nodes(scope, lambda node: node.name == text))


def find_nodes(model: Model, name: str) -> list[FoundNode]:
    """Returns the nodes that match a name: by their own name, else by a value that they produce."""
    return find_own_nodes(model, name) or _find_matches(
        model, name, lambda scope, text: _list_nodes(scope, lambda node: text in node.outputs)
    )


def find_values(model: Model, name: str) -> list[FoundValue]:
    """Returns the values that match a name."""
    return _find_matches(
        model,
        name,
        lambda scope, text: [FoundValue(scope, text)] if text in collect_defined_values(scope.body) else [],
    )


class NoSuchNode(Misuse):
    """Error: no node has the name that the user typed."""


def find_node(model: Model, name: str, flag: str, aliases: Aliases) -> FoundNode:
    """Returns the only node that matches a name, or else the node of the layer that `aliases` finds.

    Raises:
        NoSuchNode: No node matches.
        Misuse: Several nodes match.
    """
    matches = find_nodes(model, name)
    if not matches and name and (value := aliases().get(name)):
        matches = find_nodes(model, value)
    if not matches:
        labels = [node.label for scope in list_scopes(model) for node in scope.body.nodes]
        message = f"no node is called '{name}'"
        raise NoSuchNode(message, where=flag, hint=suggest_name(name, labels, listing="explorer nodes MODEL"))
    return take_single_match(matches, name, flag)


def take_single_match(matches: Sequence[_Match], name: str, flag: str) -> _Match:
    """Returns the only match.

    Raises:
        Misuse: There are several matches.
    """
    if len(matches) > 1:
        are_in_different_scopes = len({candidate.scope.path for candidate in matches}) == len(matches)
        spellings = [
            f"{candidate.scope.name}::{name}" if are_in_different_scopes else candidate.value_name
            for candidate in matches
        ]
        hint = (
            "write "
            + " or ".join(f"'{spelling}'" for spelling in spellings[:_MAX_SHOWN])
            + ", ..." * (len(spellings) > _MAX_SHOWN)
        )
        kind = "nodes" if isinstance(matches[0], FoundNode) else "values"
        raise Misuse(f"{len(matches):,} {kind} are called '{name}'", where=flag, hint=hint)
    return matches[0]


def _list_nodes(scope: GraphScope, is_match: Callable[[Node], bool]) -> list[FoundNode]:
    return [FoundNode(scope, index) for index, node in enumerate(scope.body.nodes) if is_match(node)]


def _find_matches(model: Model, name: str, find_here: Callable[[GraphScope, str], Iterable[_T]]) -> list[_T]:
    """Returns the matches of a name in all scopes. Without one, tries the start of the name as a scope."""
    if not name:
        return []
    all_scopes = list(list_scopes(model))
    matches = [match for scope in all_scopes for match in find_here(scope, name)]
    if matches or "::" not in name:
        return matches
    named_scopes = [scope for scope in all_scopes if name.startswith(f"{scope.name}::")]
    return [match for scope in named_scopes for match in find_here(scope, name[len(scope.name) + 2 :])]
