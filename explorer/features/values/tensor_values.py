"""Numbers of one tensor of a session's models: a stored one, or what a layer puts out."""

from __future__ import annotations

import glob
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.base.units import shape_text
from explorer.engine.quantize.stored_weights import rounded_weight, rounders
from explorer.engine.runtime.input_files import read_input
from explorer.engine.values.activations import ActivationRequest
from explorer.engine.values.numbers import Numbers
from explorer.engine.values.slices import heat
from explorer.engine.values.slices.table import SlicedTensor, table
from explorer.engine.values.statistics import measure
from explorer.facts import Layer
from explorer.facts.values import HeatMap, TensorValues
from explorer.features.values.activation_values import graph_of
from explorer.session.parts.figures import places
from explorer.session.parts.models import Cancel, Models, OnProgress, State
from explorer.settings.slices import parse_slice
from explorer.settings.statistics import parse_statistics

OUTLIERS = 10
_QUANTIZED = ("quantized", "blocks", "float16", "bfloat16")
"""What stands behind the name of a weight in a model that stores it quantized."""


class TensorNumbers:
    """Finds tensors by name and reads slices of them; what a layer put out last is kept.

    Args:
        models: The session's.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._seen: tuple[tuple[object, ...], SlicedTensor] | None = None

    def values(
        self,
        name: str,
        asked: str,
        index: int | None,
        before: State | None,
        before_name: str | None,
        input: str | None,
        seed: int,
        output: str | None,
        overwrite: bool,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> TensorValues:
        """The numbers of a slice, those of another model beside."""
        own = self._models, self._models.at(index)
        if output is not None:
            if not output.endswith(".npy"):
                raise Misuse(f"'{output}' is no .npy file", where="-o", hint="OUT.npy")
            self._models.check_target(output, overwrite, input)
        sliced = self._sliced(own, name, input, seed, on_progress, cancel)
        other = None
        if before is not None:
            there = before_name or self._counterpart(before, sliced, name, on_progress)
            other = self._sliced(before, there, input, seed, on_progress, cancel)
            sliced, other = _lying_alike(sliced, other), _lying_alike(other, sliced)
        selection = parse_slice(asked, sliced.numbers.shape)
        return table(
            sliced, selection, asked, before=other, output=output, overwrite=overwrite, cancel=cancel
        )

    def heat_map(
        self,
        name: str,
        place: Sequence[int],
        rows: tuple[int, int] | None,
        columns: tuple[int, int] | None,
        size: tuple[int, int],
        whole: bool,
        index: int | None,
        before: State | None,
        input: str | None,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> HeatMap:
        """A matrix of a tensor in cells, and the figures of the whole."""
        own = self._models, self._models.at(index)
        sliced, other = self._sliced(own, name, input, seed, on_progress, cancel), None
        if before is not None:
            there = self._counterpart(before, sliced, name, on_progress)
            other = self._sliced(before, there, input, seed, on_progress, cancel)
            sliced, other = _lying_alike(sliced, other), _lying_alike(other, sliced)
        fact = _drawn(sliced, place, rows, columns, size, cancel)
        if whole:
            fact = _figured(fact, sliced, cancel)
        if other is None:
            return fact
        if other.numbers.shape != sliced.numbers.shape:
            shapes = shape_text(other.numbers.shape), shape_text(sliced.numbers.shape)
            there = other.numbers.name
            raise Misuse(f"'{there}' is {shapes[0]} there and {shapes[1]} here", where="--before")
        made = _drawn(other, place, rows, columns, size, cancel)
        return replace(fact, before=_figured(made, other, cancel) if whole else made)

    def _counterpart(self, of: State, sliced: SlicedTensor, name: str, on_progress: OnProgress) -> str:
        """What a tensor is called in another model: the same, or with a word behind it more or less, as the
        integers of a quantized one are.
        """
        stored = {t.name: t.shape for t in of[0].opened(of[1], on_progress).tensors()[0]}
        if name in stored:
            return name
        alike = [
            other
            for other, shape in stored.items()
            if sorted(shape) == sorted(sliced.numbers.shape)
            and (other.startswith(f"{name}_") or name.startswith(f"{other}_"))
        ]
        return alike[0] if len(alike) == 1 else name

    def _sliced(
        self, of: State, name: str, input: str | None, seed: int, on_progress: OnProgress, cancel: Cancel
    ) -> SlicedTensor:
        """The stored tensor of this name, or what the layer or value of this name is in a run.

        Raises:
            Misuse: There is neither.
        """
        models, at = of
        tensors, notes = models.opened(at, on_progress).tensors()
        stored = [t for t in tensors if t.name == name] or _of_parameter(tensors, name)
        if stored:
            said = models.random_weights() if at else notes
            found = stored[0] if stored[0].opened is None else stored[0].opened()
            graph = graph_of(models, at, on_progress)
            node = None if graph is None else rounders(graph).get(name)
            if graph is not None and node is not None:
                found = rounded_weight(graph, node, found)
                said = (*said, f"the file holds float32 numbers: {node.op} rounds them where the model runs")
            return SlicedTensor(found, models.label(at), "weight", notes=tuple(said))
        key = id(models), at, name, input, seed
        if self._seen is not None and self._seen[0] == key:
            return self._seen[1]
        self._seen = None  # before there is another beside it
        sliced = self._ran(of, name, [t.name for t in tensors], input, seed, on_progress, cancel)
        self._seen = key, sliced
        return sliced

    def _ran(
        self,
        of: State,
        name: str,
        stored: Sequence[str],
        input: str | None,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> SlicedTensor:
        models, at = of
        rows = models.rows(at, on_progress, cancel)
        values = [t.name for row in rows for t in row.outputs]
        known = dict.fromkeys((*stored, *(row.path for row in rows), *values))
        if name not in known:  # the path of the row that the tree shows so
            name = next(
                (row.path for row, place in zip(rows, places(rows), strict=True) if place == name), name
            )
        # what a Constant puts out is stored, and no run makes it
        kept = next((row.outputs[0].name for row in rows if row.path == name and row.outputs), "")
        if kept in stored and kept != name:
            return self._sliced(of, kept, input, seed, on_progress, cancel)
        # modules call what they return alike ('output'): a group of them is asked for by its own path
        is_module = hasattr(models.opened(at, on_progress), "loaded")
        leaves, of_group = ("", 0) if is_module else _leaving(rows, name)
        name = leaves or name
        if name not in known:
            held_as = next((other for word in _QUANTIZED if (other := f"{name}_{word}") in stored), None)
            if held_as is not None:
                return self._sliced(of, held_as, input, seed, on_progress, cancel)
            raise Misuse(
                f"no tensor or layer is called '{name}'",
                where=models.label(at),
                hint=nearest(name, known) or "explorer weights MODEL lists what is stored",
            )
        made = next((row.path for row in rows for t in row.outputs if t.name == name), name)
        held: list[Numbers] = []
        calls = of_group

        def take(numbers: Numbers, call: int, _: str) -> None:
            nonlocal calls
            calls += not of_group
            if not held or (numbers.name == name and held[0].name != name):
                slabs = [np.array(slab) for slab in numbers.slabs()]
                held[:] = [replace(numbers, slabs=lambda: iter(slabs), part=None)]

        given = None if input is None else read_input(input)
        asked = ActivationRequest(
            (glob.escape(name if name in values else made),), given, seed, take, lambda done, total: None
        )
        ran = models.opened(at, on_progress).activations(asked, rows)
        if not held:
            why = "; ".join(reason for _, reason in ran.skipped) or "it does not run"
            raise Misuse(f"'{name}' has no values: {why}", where=models.label(at))
        return SlicedTensor(
            held[0], models.label(at), "activation", ran.inputs, calls, tuple(models.random_weights())
        )


def _of_parameter(tensors: Sequence[Numbers], name: str) -> list[Numbers]:
    """The one tensor that holds a parameter which files call otherwise, as llama.cpp does."""
    found = [t for t in tensors if t.layer and f"{t.layer}.{t.name.rpartition('.')[2]}" == name]
    return found if len(found) == 1 else []


def _leaving(rows: Sequence[Layer], name: str) -> tuple[str, int]:
    """Of a group of operators the first value that leaves it, and how many do; '' and 0 of other names."""
    group = next((row for row in rows if row.group and row.path == name and row.outputs), None)
    made = {t.name for row in rows if not row.group for t in row.outputs}
    if group is None or group.outputs[0].name not in made:
        return "", 0
    return group.outputs[0].name, len(group.outputs)


def _lying_alike(sliced: SlicedTensor, other: SlicedTensor) -> SlicedTensor:
    """A packed weight the way round that the other one lies: a row for each output, or a column."""
    opened = sliced.numbers.opened
    return sliced if opened is None else replace(sliced, numbers=opened(other.numbers.by_rows))


def _drawn(
    sliced: SlicedTensor,
    place: Sequence[int],
    rows: tuple[int, int] | None,
    columns: tuple[int, int] | None,
    size: tuple[int, int],
    cancel: Cancel,
) -> HeatMap:
    """The cells of a part of a tensor."""
    outer, sizes = heat.matrix(sliced.numbers.shape, place)
    down, across = (_range(ends, many) for ends, many in zip((rows, columns), sizes, strict=True))
    heights, widths = (max(min(n, len(r)), 0) for n, r in zip(size, (down, across), strict=True))
    made = heat.cells(sliced, outer, down, across, heights, widths, cancel)
    is_complex = sliced.numbers.dtype.startswith("complex")
    fact = HeatMap(
        sliced.source,
        sliced.tensor,
        sliced.numbers.layer,
        sliced.role,
        sliced.dtype,
        tuple(axis[0] for axis in outer),
        (down.start, down.stop),
        (across.start, across.stop),
        heights,
        widths,
        tuple(None if np.isnan(cell) else float(cell) for cell in made.reshape(-1)),
        (*sliced.notes, *(("complex: magnitudes are drawn",) if is_complex else ())),
    )
    is_each = made.size == len(down) * len(across)
    return replace(fact, **heat.codes(sliced, outer, down, across)) if is_each else fact


def _figured(fact: HeatMap, sliced: SlicedTensor, cancel: Cancel) -> HeatMap:
    numbers = heat.whole(sliced)
    shape = sliced.numbers.shape
    stats = measure(numbers, choices=parse_statistics("min,max"), axis=0 if shape else None, cancel=cancel)
    ranges = stats.chosen
    return replace(
        fact,
        stats=replace(stats, chosen={}),
        outliers=heat.outliers(sliced, stats.mean, stats.std, OUTLIERS, cancel),
        channels=tuple(zip(ranges["min"], ranges["max"], strict=True)) if shape and ranges else (),
    )


def _range(ends: tuple[int, int] | None, size: int) -> range:
    if ends is None:
        return range(size)
    if not 0 <= ends[0] < ends[1] <= size:
        raise Misuse(f"{ends[0]}:{ends[1]} is no part of {size:,}", where="--rows")
    return range(ends[0], ends[1])
