"""Weight statistics: of the tensors that a model stores, and which of them are equal.

Two names of one stored tensor are tied: training one changes the other. Two tensors that happen to hold the
same bytes are duplicates: one of them could be left out of the file. Both have equal numbers; this module
tells them apart.
"""

from __future__ import annotations

import fnmatch
import hashlib
from collections.abc import Callable, Hashable, Iterable, Sequence

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.base.units import many_text
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.values.numbers import SLAB, Numbers
from explorer.engine.values.statistics import measure
from explorer.facts import Layer, Progress
from explorer.facts.values import StatisticsRow, TensorStats, Weights
from explorer.settings.filter import is_query, layers_found
from explorer.settings.statistics import EVERYTHING, AskedStatistics


class GroupPaths:
    """The groups around a layer: with them a glob on a block also matches the layers in it."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self._layers = layers
        self._at = {layer.path: layer.id for layer in layers}
        self._paths_of: dict[str, tuple[str, ...]] = {}

    def around(self, path: str) -> tuple[str, ...]:
        """`path` and the paths of all groups that it lies in."""
        paths = self._paths_of.get(path)
        if paths is None:
            names = dict.fromkeys([path])
            at: int | None = self._at.get(path)
            while at is not None:
                names[self._layers[at].path] = None
                at = self._layers[at].parent
            for cut, letter in enumerate(path):
                if letter == "." and cut:
                    names[path[:cut]] = None
            paths = self._paths_of[path] = tuple(n for n in names if n)
        return paths


def select(
    globs: Sequence[str], named: Iterable[tuple[str, Sequence[str]]], noun: str, layers: Sequence[Layer]
) -> list[bool]:
    """For each entry of `named`, whether a user's globs match it; all match if there are no globs.

    Args:
        globs: Plain names and patterns; one without a match may be a filter, which finds layers.
        named: A name, with the paths that a glob may match instead.
        noun: The noun for the entries in messages.
        layers: Rows of the tree, for a filter.

    Raises:
        Misuse: A glob matches no entry.
    """
    entries = list(named)
    if not globs:
        return [True] * len(entries)
    picked = [False] * len(entries)
    for glob in globs:
        hit = False
        for at, (name, paths) in enumerate(entries):
            for text in (name, *paths):
                if text == glob or fnmatch.fnmatchcase(text, glob):
                    picked[at] = hit = True
                    break
        if not hit and is_query(glob):
            paths_found = {layer.path for layer in layers_found(layers, glob)}
            for at, (name, paths) in enumerate(entries):
                if name in paths_found or not paths_found.isdisjoint(paths):
                    picked[at] = hit = True
        if not hit:
            candidates = dict.fromkeys(text for name, paths in entries for text in (name, *paths))
            raise Misuse(f"no {noun} matches '{glob}'", hint=nearest(glob, candidates))
    return picked


def paths_of_kinds(kinds: Sequence[str], layers: Sequence[Layer]) -> Callable[[str], bool]:
    """A test of a path: whether its layer is of one of these operators or module types, ignoring case.

    Without kinds, every path passes.

    Raises:
        Misuse: No layer is of a kind.
    """
    if not kinds:
        return lambda path: True
    paths: set[str] = set()
    known_kinds = dict.fromkeys(layer.kind for layer in layers if not layer.group)
    for kind in kinds:
        alike = {name for name in known_kinds if fnmatch.fnmatchcase(name.lower(), kind.lower())}
        if not alike:
            raise Misuse(f"no layer is a '{kind}'", where="--op", hint=nearest(kind, known_kinds))
        paths.update(layer.path for layer in layers if layer.kind in alike and not layer.group)
    return paths.__contains__


def check_axis(tensors: Sequence[TensorStats], axis: int | None) -> None:
    """Checks that one of the tensors has the axis of additional statistics.

    Raises:
        Misuse: No tensor has it.
    """
    most = max((len(stats.tensor.shape or ()) for stats in tensors), default=0)
    if tensors and axis is not None and not -most <= axis < most:
        hint = f"they have {most} at most, 0 to {most - 1}" if most else "leave it out"
        raise Misuse(f"no tensor has an axis {axis}", where="--axis", hint=hint)


def statistics_rows(
    tensors: Iterable[TensorStats], layers: Sequence[Layer], role: str, axis: int | None
) -> tuple[StatisticsRow, ...]:
    """Additional statistics of tensors, one row for each number, with the figures of their layers."""
    at = {layer.path: layer for layer in layers}
    rows = []
    for stats in tensors:
        layer = at.get(stats.layer)
        many = max((len(values) for values in stats.chosen.values()), default=0)
        about = (
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
        for index in range(many):
            values = {label: numbers[index] for label, numbers in stats.chosen.items()}
            rows.append(StatisticsRow(*about, None if axis is None else index, values))
    return tuple(rows)


def weights(
    tensors: Sequence[Numbers],
    names: Sequence[str] = (),
    *,
    options: AskedStatistics = EVERYTHING,
    source: str = "",
    layers: Sequence[Layer] = (),
    notes: Sequence[str] = (),
    real: Callable[[Numbers], Numbers] = lambda numbers: numbers,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Weights:
    """Statistics of stored tensors, read a slab at a time.

    Args:
        tensors: The stored tensors, in the model's order.
        names: Globs over the names of tensors and the paths of layers and groups; empty means all.
        options: The kinds of layers, and the additional statistics.
        source: The user's name for the model.
        layers: Its rows: they name the layer of a tensor that does not name it itself.
        notes: Notes about the values.
        real: Returns the numbers that a tensor's codes stand for; these are measured.
        on_progress: Called with the number of finished tensors.
        cancel: Called at every slab; True stops.

    Returns:
        Each stored tensor once, under the first of its selected names. Duplicates are searched among these
        tensors.

    Raises:
        Misuse: A glob or a kind matches nothing.
        Cancelled: `cancel` returned True.
    """
    selected, aliases = _select_tensors(_owned(tensors, layers), names, options.kinds, layers)
    tensor_stats, quantized = _measured(list(selected.values()), options, real, on_progress, cancel)
    check_axis(tensor_stats, options.axis)
    tied = [tuple(group) for key, group in aliases.items() if len(group) > 1 and key in selected]
    if on_progress is not None:
        on_progress(Progress("looking for duplicates"))
    stands_note = (f"of {many_text(quantized, 'quantized tensor')} the numbers that they stand for",)
    return Weights(
        source,
        tuple(tensor_stats),
        tuple(tied),
        _duplicates(list(selected.values()), cancel),
        (*notes, *(stands_note if quantized else ())),
        statistics_rows(tensor_stats, layers, "weight", options.axis),
    )


def _measured(
    tensors: Sequence[Numbers],
    options: AskedStatistics,
    real: Callable[[Numbers], Numbers],
    on_progress: OnProgress,
    cancel: Cancel,
) -> tuple[list[TensorStats], int]:
    """The statistics of each tensor, and the number of tensors that were dequantized for them."""
    choices, tensor_stats, quantized = options.choices(), list[TensorStats](), 0
    for done, tensor in enumerate(tensors):
        if on_progress is not None:
            on_progress(Progress("reading weights", done, len(tensors)))
        numbers = real(tensor)
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
    """The selected tensors, each once, and the names of every shared tensor."""
    paths = GroupPaths(layers)
    picked = select(
        names, ((t.name, paths.around(t.layer)) for t in tensors), "stored tensor or layer", layers
    )
    of_kind = paths_of_kinds(kinds, layers)
    picked = [hit and of_kind(t.layer) for hit, t in zip(picked, tensors, strict=True)]
    aliases: dict[Hashable, list[str]] = {}
    for tensor in tensors:
        if tensor.identity is not None and tensor.elements:
            aliases.setdefault(tensor.identity, []).append(tensor.name)
    selected: dict[Hashable, Numbers] = {}
    for tensor, hit in zip(tensors, picked, strict=True):
        if hit:
            is_shared = tensor.identity is not None and tensor.elements
            selected.setdefault(tensor.identity if is_shared else ("alone", tensor.name), tensor)
    return selected, aliases


def _owned(tensors: Sequence[Numbers], layers: Sequence[Layer]) -> list[Numbers]:
    """Tensors with the layer that uses them first."""
    owners: dict[str, str] = {}
    for layer in layers:
        if not layer.group:
            for weight in layer.weights:
                owners.setdefault(weight.name, layer.path)
    # tensors of a module know their layer: rows call a weight 'weight', which is no name in the model
    return [t if t.trainable is not None else replace(t, layer=owners.get(t.name, t.layer)) for t in tensors]


def _duplicates(tensors: Sequence[Numbers], cancel: Cancel) -> tuple[tuple[str, ...], ...]:
    """Groups of tensors of one type and shape that hold the same bytes.

    Only tensors that agree in type, shape and their first slab are read to the end.
    """

    def rest(tensor: Numbers) -> Hashable:
        return _digest(tensor, None, cancel) if tensor.nbytes > SLAB // 4 else b""

    return tuple(
        tuple(t.name for t in group)
        for alike in _grouped(tensors, lambda t: (t.dtype, t.shape) if t.elements and not t.zeros else None)
        for similar in _grouped(alike, lambda t: _digest(t, 1, cancel))
        for group in _grouped(similar, rest)
    )


def _grouped(
    tensors: Iterable[Numbers], key: Callable[[Numbers], Hashable | None]
) -> Iterable[Sequence[Numbers]]:
    """Groups of at least two tensors with the same key; a tensor with the key None is in no group."""
    groups: dict[Hashable, list[Numbers]] = {}
    for tensor in tensors:
        group_key = key(tensor)
        if group_key is not None:
            groups.setdefault(group_key, []).append(tensor)
    return [group for group in groups.values() if len(group) > 1]


def _digest(tensor: Numbers, most: int | None, cancel: Cancel) -> bytes | None:
    """A digest of the bytes of the first `most` slabs; None for a tensor without data."""
    digest = hashlib.blake2b(digest_size=16)
    has_data = False
    for number, slab in enumerate((tensor.raw or tensor.slabs)()):
        stop_if(cancel)
        if most is not None and number >= most:
            break
        has_data = True
        digest.update(np.ascontiguousarray(slab).view(np.uint8).data)
    return digest.digest() if has_data else None
