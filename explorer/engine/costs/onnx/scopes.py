"""Reconstructs the module hierarchy (scopes) of a flat ONNX graph from names and metadata.

There are four kinds of files. torch's TorchScript exporter writes paths into names
(`/features/features.0/Conv`). Its dynamo exporter writes them into metadata (`pkg.torch.onnx.name_scopes`).
Other exporters use plain paths (`model/block_1/conv`, `encoder.0.fc`), and some files have no names. All
kinds of names produce the same scopes, so the tree of a file looks like the tree of its module.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping, Sequence
from sys import intern
from typing import Any, NamedTuple

from explorer.engine.costs.layer_tree import Scope
from explorer.engine.graph.model import Node
from explorer.engine.graph.tile_metadata import SITE_KEY
from explorer.engine.shapes.subgraphs import remove_owner_path

NAMES = "pkg.torch.onnx.name_scopes"
"""Key of a node's metadata: the paths of the modules that contain the node, outermost first, and its name."""

CLASSES = "pkg.torch.onnx.class_hierarchy"
"""Key of a node's metadata: the classes of these modules."""

TILED = "tiled"
"""Kind of the group of a tiled site's nodes, until it is replaced by the site's original operator."""

MAX_DEPTH = 48
"""Maximum nesting depth of groups. Deeper parts of a name form one group."""


class ScopedName(NamedTuple):
    """The groups that contain a node, outermost first, and its name within the innermost group."""

    scopes: tuple[Scope, ...]
    name: str


class ScopedNames(Sequence[ScopedName]):
    """The scoped names of one body's nodes, computed at first access."""

    def __init__(self, nodes: Sequence[Node], owner_path: str = "") -> None:
        self.nodes = nodes
        self.owner_path = owner_path
        self._names: list[ScopedName] | None = None

    def __len__(self) -> int:
        return len(self.nodes)

    def __getitem__(self, index: Any) -> Any:
        if self._names is None:
            self._names = assign_scoped_names(self.nodes, self.owner_path)
        return self._names[index]


def assign_scoped_names(nodes: Sequence[Node], owner_path: str = "") -> list[ScopedName]:
    """Returns the groups and the name of every node, in the order of the nodes.

    A group that would contain a single node is left out, and the node takes the group's name: `features.0`
    with a single Conv becomes a Conv named `0`. The nodes of a tiled site form a group with the site's name.
    An unnamed node is named by its type and a number.

    Args:
        nodes: Nodes of the main graph, a function, or a body.
        owner_path: Path of the node that owns the body, or ''.
    """
    names: list[ScopedName] = []
    sites: list[str] = []  # site of each node, or ""
    by_metadata: dict[tuple[str, str], ScopedName] = {}
    cache: GroupCache = {"/": {}, ".": {}}
    numbers: Counter[str] = Counter()
    has_sites = False
    for node in nodes:
        metadata = node.metadata
        site = metadata.get(SITE_KEY, "") if metadata and not owner_path else ""
        if site:
            has_sites = True
            sites.append(site)
            key = SITE_KEY, site
            if key not in by_metadata:
                scopes = metadata.get(NAMES, "")
                classes = metadata.get(CLASSES, "")
                by_metadata[key] = (
                    _read_metadata_scope(scopes, classes, node, by_metadata)
                    if scopes
                    else split_node_name(site)
                )
            names.append(by_metadata[key])
            continue
        sites.append("")
        metadata_names = metadata.get(NAMES, "") if metadata else ""
        if metadata_names:
            numbers[node.op] += 1
            names.append(_read_metadata_scope(metadata_names, metadata.get(CLASSES, ""), node, by_metadata))
        elif node.name:
            numbers[node.op] += 1
            names.append(
                split_node_name(remove_owner_path(node.name, owner_path) if owner_path else node.name, cache)
            )
        else:
            number = numbers[node.op]
            numbers[node.op] += 1
            output = next((o for o in node.outputs if o), "")
            groups = (
                split_node_name(remove_owner_path(output, owner_path), cache).scopes if "/" in output else ()
            )
            names.append(ScopedName(groups, f"{node.op}_{number}"))
    names = _collapse_single_groups(names, sites)
    return _group_by_site(nodes, names, sites) if has_sites else names


def find_module_path(node: Node) -> str:
    """Returns the path of the module that a node comes from, or ''.

    The path comes from the exporter's metadata, or else from the node's name.
    """
    metadata_names = node.metadata.get(NAMES, "") if node.metadata else ""
    scoped_name = (
        _read_metadata_scope(metadata_names, "", node, {}) if metadata_names else split_node_name(node.name)
    )
    return scoped_name.scopes[-1].path if scoped_name.scopes else ""


def _build_scopes(pieces: Sequence[str], kinds: dict[str, str]) -> tuple[Scope, ...]:
    """Returns every prefix of a dotted path as a scope."""
    if len(pieces) > MAX_DEPTH:
        pieces = [*pieces[: MAX_DEPTH - 1], ".".join(pieces[MAX_DEPTH - 1 :])]
    scopes = []
    path = ""
    for part in pieces:
        path = f"{path}.{part}" if path else part
        scopes.append(Scope(path, part, kinds.get(path, "Module")))
    return tuple(scopes)


GroupCache = Mapping[str, dict[str, tuple[Scope, ...] | None]]
"""Caches by separator: groups by the path without its last part, or None if the text is not a path."""


def split_node_name(name: str, cache: GroupCache | None = None) -> ScopedName:
    """Splits a path in a node's name: '/features/features.0/Conv', 'model/block/conv', 'encoder.0.fc'.

    Args:
        name: Name of the node.
        cache: Groups of earlier paths. The groups of this path are added.
    """
    separator = "/" if "/" in name else "."
    front, _, last = name.rpartition(separator)
    if not last:
        front = name.rstrip(separator) if separator == "/" else name.rpartition(".")[0].rstrip(".")
        front, _, last = front.rpartition(separator)
    if not last or (not front and separator == "."):
        pieces = [p for p in name.split(separator) if p]
        return ScopedName((), pieces[-1] if len(pieces) == 1 and separator == "/" else name)
    if cache is None:
        groups = _find_groups(front, separator)
    elif front in (cached_groups := cache[separator]):
        groups = cached_groups[front]
    else:
        groups = cached_groups[front] = (
            _find_groups(front, separator) if separator == "." else _find_cached_groups(front, cached_groups)
        )
    # intern, because thousands of nodes are named Conv
    return ScopedName((), name) if groups is None else ScopedName(groups, intern(last))


def _find_groups(front: str, separator: str) -> tuple[Scope, ...] | None:
    """Returns the groups of a path without its last part, or None if a dotted name contains no group."""
    if separator == ".":
        return _build_scopes([p for p in front.split(".") if p], {}) or None
    return _build_scopes(_split_path(front), {})


def _find_cached_groups(front: str, cache: dict[str, tuple[Scope, ...] | None]) -> tuple[Scope, ...]:
    """Returns the groups of a path with slashes, from the cached groups of its parent path."""
    parent_path, _, part = front.rpartition("/")
    if front.count("/") > MAX_DEPTH:
        return _build_scopes(_split_path(front), {})
    parent_groups: tuple[Scope, ...] = ()
    if parent_path:
        parent_groups = cache[parent_path] = cache.get(parent_path) or _find_cached_groups(parent_path, cache)
    container = parent_path.rstrip("/").rpartition("/")[2]
    pieces = _split_segment(part, container)
    if len(parent_groups) + len(pieces) > MAX_DEPTH:
        return _build_scopes(_split_path(front), {})
    path = parent_groups[-1].path if parent_groups else ""
    scopes = [*parent_groups]
    for name_part in pieces:
        path = f"{path}.{name_part}" if path else name_part
        scopes.append(Scope(path, intern(name_part), "Module"))
    return tuple(scopes)


def _split_segment(part: str, container: str) -> list[str]:
    """Returns the dotted parts of one path segment, without the name of its container.

    In `a/a.b`, the segment `a.b` repeats the name of its container `a`.
    """
    name = part[len(container) + 1 :] if container and part.startswith(container + ".") else part
    return [p for p in name.split(".") if p]


def _split_path(front: str) -> list[str]:
    """Returns the parts of a path with slashes."""
    pieces: list[str] = []
    container = ""
    for part in front.split("/"):
        if part:
            pieces += _split_segment(part, container)
            container = part
    return pieces


def _read_metadata_scope(
    names: str, classes: str, node: Node, cache: dict[tuple[str, str], ScopedName]
) -> ScopedName:
    """Reads dynamo's metadata: qualified module names from the root, then the operator's own name."""
    key = names, classes
    if key in cache:
        return cache[key]
    paths, kinds = _parse_strings(names), _parse_strings(classes)
    if not paths:
        return split_node_name(node.label)
    modules = [p for p in paths[:-1] if p]
    named = dict(zip(paths[:-1], (k.rpartition(".")[2] for k in kinds), strict=False))
    pieces = [p for p in modules[-1].split(".") if p] if modules else []
    cache[key] = ScopedName(_build_scopes(pieces, named), paths[-1] or node.label)
    return cache[key]


def _parse_strings(text: str) -> list[str]:
    """Parses a Python list of strings. The result is empty if the text is anything else."""
    if len(text) > 10_000:
        return []
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return []
    return value if isinstance(value, list) and all(isinstance(v, str) for v in value) else []


def _collapse_single_groups(names: list[ScopedName], sites: Sequence[str]) -> list[ScopedName]:
    """Leaves out groups that contain a single unit: a node, or all nodes of a tiled site.

    Args:
        names: Groups and name of every node.
        sites: Site of every node, or ''.
    """
    counted_sites: set[str] = set()
    unit_names: list[ScopedName] = []
    for name, site in zip(names, sites, strict=True):
        if site:
            if site in counted_sites:
                continue
            counted_sites.add(site)
        unit_names.append(name)
    # names that share one scopes object are counted together
    name_counts = Counter(id(name.scopes) for name in unit_names)
    groups = {id(name.scopes): name.scopes for name in unit_names}
    unit_counts: dict[str, int] = {}
    for key, scopes in groups.items():
        count = name_counts[key]
        for scope in scopes:
            path = scope.path
            unit_counts[path] = unit_counts.get(path, 0) + count
    single_unit = {key for key, scopes in groups.items() if scopes and unit_counts[scopes[-1].path] == 1}
    # the names in one group share its scopes object
    shared_scopes = {scopes: scopes for key, scopes in groups.items() if key not in single_unit}
    collapsed = []
    for name in names:
        scopes = name.scopes
        if id(scopes) in single_unit:
            parents = scopes[:-1]
            name = ScopedName(shared_scopes.setdefault(parents, parents), scopes[-1].name)
        collapsed.append(name)
    return collapsed


def _group_by_site(nodes: Sequence[Node], names: list[ScopedName], sites: Sequence[str]) -> list[ScopedName]:
    """Puts the nodes of a tiled site into a group with the site's name."""
    node_counts = Counter(filter(None, sites))
    regrouped = []
    for node, name, site in zip(nodes, names, sites, strict=True):
        if node_counts[site] > 1:
            node_name = split_node_name(node.label).name if node.name else node.op
            regrouped.append(ScopedName((*name.scopes, Scope(site, name.name, TILED)), node_name))
        else:
            regrouped.append(name)
    return regrouped
