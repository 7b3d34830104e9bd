"""Weight statistics of the tensors that a model stores, and which of them are equal.

Two names of one stored tensor are tied: training one changes the other. Two stored tensors with equal bytes
are duplicates: one of them could be left out of the file.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import cache

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import many_text
from explorer.engine.costs.layer_rows import list_places
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.values.numbers import SLAB, Numbers
from explorer.engine.values.statistics import measure
from explorer.facts import Layer, Progress
from explorer.facts.values import StatisticsRow, TensorStats, Weights
from explorer.settings.filter import find_layers, is_query
from explorer.settings.statistics import EVERYTHING, RequestedStatistics


class GroupPaths:
    """The enclosing groups of each layer, so that a glob on a block also matches the layers in it.

    Attributes:
        owners: Path of the first layer that uses each stored tensor, by the name of the tensor.
    """

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.owners: dict[str, str] = {}
        self._paths: list[str] = []
        self._parents: list[int | None] = []
        self._row_by_path: dict[str, int] = {}
        self._groups_by_row: dict[int, tuple[str, ...]] = {}
        self._prefixes: dict[str, tuple[str, ...]] = {}
        for row, (path, parent, weights) in enumerate(list_places(layers)):
            self._paths.append(path)
            self._parents.append(parent)
            self._row_by_path[path] = row
            for name in weights:
                self.owners.setdefault(name, path)

    def list_enclosing_paths(self, path: str) -> tuple[str, ...]:
        """Returns `path` and the paths of all groups that contain it."""
        row = self._row_by_path.get(path)
        parent = None if row is None else self._parents[row]
        names = dict.fromkeys((path, *self._list_groups(parent), *self._list_dotted_groups(path)))
        return tuple(name for name in names if name)

    def _list_groups(self, row: int | None) -> tuple[str, ...]:
        """Returns the path of a group and those of all groups that contain it, or () for None."""
        new_rows = []
        while row is not None and row not in self._groups_by_row:
            new_rows.append(row)
            row = self._parents[row]
        groups = () if row is None else self._groups_by_row[row]
        for new_row in reversed(new_rows):
            groups = self._groups_by_row[new_row] = (self._paths[new_row], *groups)
        return groups

    def _list_dotted_groups(self, path: str) -> tuple[str, ...]:
        """Returns the beginnings of a path that end before a dot: 'a' and 'a.b' for 'a.b.c'."""
        head = path.rpartition(".")[0]
        prefixes = self._prefixes.get(head)
        if prefixes is None:
            dots = [index for index, letter in enumerate(head) if letter == "." and index]
            prefixes = self._prefixes[head] = (*[head[:index] for index in dots], head)
        return prefixes


def select(
    globs: Sequence[str], items: Iterable[tuple[str, Sequence[str]]], noun: str, layers: Sequence[Layer]
) -> list[bool]:
    """Returns for each item whether a user's globs match it. Without globs, all items match.

    Args:
        globs: Plain names and patterns. A glob without a match may be a filter, which selects layers.
        items: Names, each with further paths that a glob may match.
        noun: Noun for the items in messages.
        layers: Rows of the tree, for a filter.

    Raises:
        Misuse: A glob matches no item.
    """
    entries = list(items)
    if not globs:
        return [True] * len(entries)
    is_selected = [False] * len(entries)
    for glob in globs:
        has_match, matches = False, _build_matcher(glob)
        for index, (name, paths) in enumerate(entries):
            if any(map(matches, (name, *paths))):
                is_selected[index] = has_match = True
        if not has_match and is_query(glob):
            matching_paths = {layer.path for layer in find_layers(layers, glob)}
            for index, (name, paths) in enumerate(entries):
                if name in matching_paths or not matching_paths.isdisjoint(paths):
                    is_selected[index] = has_match = True
        if not has_match:
            candidates = dict.fromkeys(text for name, paths in entries for text in (name, *paths))
            raise Misuse(
                f"no {noun} matches '{glob}'",
                hint=suggest_name(glob, candidates, listing="explorer layers MODEL --columns path"),
            )
    return is_selected


def _build_matcher(glob: str) -> Callable[[str], bool]:
    """Returns a test whether a text matches a glob. The test caches its results, because texts repeat."""
    pattern = re.compile(fnmatch.translate(glob)).match
    return cache(lambda text: text == glob or pattern(text) is not None)


def make_kind_test(kinds: Sequence[str], layers: Sequence[Layer]) -> Callable[[str], bool]:
    """Returns a test whether the layer at a path has one of these kinds (operators or module types).

    The case of letters does not matter. Without kinds, every path passes.

    Raises:
        Misuse: No layer is of one of the kinds.
    """
    if not kinds:
        return lambda path: True
    paths: set[str] = set()
    known_kinds = dict.fromkeys(layer.kind for layer in layers if not layer.group)
    for kind in kinds:
        matching_kinds = {name for name in known_kinds if fnmatch.fnmatchcase(name.lower(), kind.lower())}
        if not matching_kinds:
            raise Misuse(
                f"no layer is a '{kind}'",
                where="--op",
                hint=suggest_name(kind, known_kinds, listing="explorer ops MODEL"),
            )
        paths.update(layer.path for layer in layers if layer.kind in matching_kinds and not layer.group)
    return paths.__contains__


def check_axis(tensors: Sequence[TensorStats], axis: int | None) -> None:
    """Checks that at least one of the tensors has the axis along which statistics are listed.

    Raises:
        Misuse: No tensor has the axis.
    """
    max_rank = max((len(stats.tensor.shape or ()) for stats in tensors), default=0)
    if tensors and axis is not None and not -max_rank <= axis < max_rank:
        hint = f"they have {max_rank} at most, 0 to {max_rank - 1}" if max_rank else "leave it out"
        raise Misuse(f"no tensor has an axis {axis}", where="--axis", hint=hint)


def build_statistics_rows(
    tensors: Sequence[TensorStats], layers: Sequence[Layer], role: str, axis: int | None
) -> tuple[StatisticsRow, ...]:
    """Returns the additional statistics of tensors: one row for each tensor or index of its axis."""
    if not any(stats.chosen for stats in tensors):
        return ()
    layer_by_path = {layer.path: layer for layer in layers}
    rows = []
    for stats in tensors:
        layer = layer_by_path.get(stats.layer)
        row_count = max((len(values) for values in stats.chosen.values()), default=0)
        shared_fields = (
            stats.layer,
            "" if layer is None else layer.kind,
            role,
            stats.tensor.name,
            stats.tensor.dtype,
            stats.tensor.shape,
            () if layer is None else tuple(t.shape for t in layer.inputs),
            () if layer is None else tuple(t.shape for t in layer.outputs),
            stats.call,
        )
        for index in range(row_count):
            values = {label: numbers[index] for label, numbers in stats.chosen.items()}
            rows.append(StatisticsRow(*shared_fields, None if axis is None else index, values))
    return tuple(rows)


def measure_weights(
    tensors: Sequence[Numbers],
    names: Sequence[str] = (),
    *,
    options: RequestedStatistics = EVERYTHING,
    source: str = "",
    layers: Sequence[Layer] = (),
    notes: Sequence[str] = (),
    decode: Callable[[Numbers], Numbers] = lambda numbers: numbers,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Weights:
    """Computes statistics of stored tensors, which are read a slab at a time.

    Args:
        tensors: The stored tensors, in the model's order.
        names: Globs over the names of tensors and the paths of layers and groups; empty means all tensors.
        options: The kinds of layers, and the additional statistics.
        source: The user's name of the model.
        layers: Rows of the model. They name the layer of a tensor whose name does not contain it.
        notes: Notes about the values.
        decode: Function that maps a stored tensor to the numbers that are measured, such as dequantized ones.
        on_progress: Function called with the number of finished tensors.
        cancel: Function called at every slab; True cancels.

    Returns:
        Each stored tensor once, under the first of its selected names. Duplicates are searched among these
        tensors.

    Raises:
        Misuse: A glob or a kind matches nothing.
        Cancelled: `cancel` returned True.
    """
    selected, aliases = _select_tensors(tensors, names, options.kinds, layers)
    tensor_stats, quantized = _measure_tensors(list(selected.values()), options, decode, on_progress, cancel)
    check_axis(tensor_stats, options.axis)
    tied = [tuple(group) for key, group in aliases.items() if len(group) > 1 and key in selected]
    if on_progress is not None:
        on_progress(Progress("looking for duplicates"))
    dequantized_note = (
        f"the figures of {many_text(quantized, 'quantized tensor')} are those of the dequantized numbers"
    )
    return Weights(
        source,
        tuple(tensor_stats),
        tuple(tied),
        _find_duplicates(list(selected.values()), cancel),
        (*notes, *([dequantized_note] if quantized else ())),
        build_statistics_rows(tensor_stats, layers, "weight", options.axis),
    )


def _measure_tensors(
    tensors: Sequence[Numbers],
    options: RequestedStatistics,
    decode: Callable[[Numbers], Numbers],
    on_progress: OnProgress,
    cancel: Cancel,
) -> tuple[list[TensorStats], int]:
    """Returns the statistics of each tensor, and the number of tensors that were dequantized."""
    choices, tensor_stats, quantized = options.choices(), list[TensorStats](), 0
    for index, tensor in enumerate(tensors):
        if on_progress is not None:
            on_progress(Progress("reading weights", index, len(tensors)))
        numbers = decode(tensor)
        quantized += numbers is not tensor
        tensor_stats.append(
            measure(
                numbers,
                bins=options.bins,
                origin="declared",
                choices=choices,
                axis=options.axis,
                cancel=cancel,
            )
        )
    return tensor_stats, quantized


def _select_tensors(
    tensors: Sequence[Numbers], names: Sequence[str], kinds: Sequence[str], layers: Sequence[Layer]
) -> tuple[dict[Hashable, Numbers], dict[Hashable, list[str]]]:
    """Returns the selected tensors, each once with its layer, and all names of each tensor.

    The keys of both mappings identify a stored tensor.
    """
    paths = GroupPaths(layers)
    # tensors of a module have their layer already, and their rows use short names such as 'weight'
    owners = [t.layer if t.trainable is not None else paths.owners.get(t.name, t.layer) for t in tensors]
    is_selected = [True] * len(tensors)
    if names:
        named_entries = (
            (t.name, paths.list_enclosing_paths(owner)) for t, owner in zip(tensors, owners, strict=True)
        )
        is_selected = select(names, named_entries, "stored tensor or layer", layers)
    is_of_kind = make_kind_test(kinds, layers)
    is_selected = [
        matches_glob and is_of_kind(owner) for matches_glob, owner in zip(is_selected, owners, strict=True)
    ]
    aliases: dict[Hashable, list[str]] = {}
    for tensor in tensors:
        if tensor.identity is not None and tensor.elements:
            aliases.setdefault(tensor.identity, []).append(tensor.name)
    selected: dict[Hashable, Numbers] = {}
    for tensor, owner, matches_glob in zip(tensors, owners, is_selected, strict=True):
        if matches_glob:
            is_shared = tensor.identity is not None and tensor.elements
            key = tensor.identity if is_shared else ("alone", tensor.name)
            selected.setdefault(key, replace(tensor, layer=owner))
    return selected, aliases


def _find_duplicates(tensors: Sequence[Numbers], cancel: Cancel) -> tuple[tuple[str, ...], ...]:
    """Groups the tensors with equal type, shape and bytes.

    Only tensors with the same type, shape and first slab are read to the end.
    """

    def get_type(tensor: Numbers) -> Hashable:
        return (tensor.dtype, tensor.shape) if tensor.elements and not tensor.unstored_zeros else None

    def digest_first_slab(tensor: Numbers) -> Hashable:
        return _compute_digest(tensor, 1, cancel)

    def digest_all(tensor: Numbers) -> Hashable:
        # a slab has at least SLAB // 4 stored bytes, so the first digest covers a smaller tensor completely
        return _compute_digest(tensor, None, cancel) if tensor.nbytes > SLAB // 4 else b""

    duplicates: list[tuple[str, ...]] = []
    for same_type in _group_by(tensors, get_type):
        for same_start in _group_by(same_type, digest_first_slab):
            for same_bytes in _group_by(same_start, digest_all):
                duplicates.append(tuple(tensor.name for tensor in same_bytes))
    return tuple(duplicates)


def _group_by(
    tensors: Iterable[Numbers], key: Callable[[Numbers], Hashable | None]
) -> Iterable[Sequence[Numbers]]:
    """Groups tensors with the same key. Groups of one tensor, and tensors with the key None, are left out."""
    groups: dict[Hashable, list[Numbers]] = {}
    for tensor in tensors:
        group_key = key(tensor)
        if group_key is not None:
            groups.setdefault(group_key, []).append(tensor)
    return [group for group in groups.values() if len(group) > 1]


def _compute_digest(tensor: Numbers, slab_count: int | None, cancel: Cancel) -> bytes | None:
    """Returns a digest of the first `slab_count` slabs, or of all for None. Without data it is None."""
    digest = hashlib.blake2b(digest_size=16)
    has_data = False
    for number, slab in enumerate((tensor.raw or tensor.slabs)()):
        stop_if(cancel)
        if slab_count is not None and number >= slab_count:
            break
        has_data = True
        digest.update(np.ascontiguousarray(slab).view(np.uint8).data)
    return digest.digest() if has_data else None
