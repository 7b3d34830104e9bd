"""Reads the numbers of one tensor of a session's models: a stored tensor, or the output of a layer."""

from __future__ import annotations

import glob
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import shape_text
from explorer.engine.quantize.stored_weights import find_rounders, round_weight
from explorer.engine.runtime.input_files import read_input
from explorer.engine.values.activations import ActivationRequest
from explorer.engine.values.numbers import Numbers
from explorer.engine.values.slices import heat
from explorer.engine.values.slices.table import SlicedTensor, read_slice
from explorer.engine.values.statistics import measure
from explorer.facts import Layer
from explorer.facts.values import HeatMap, TensorValues
from explorer.features.values.activation_values import graph_of
from explorer.session.parts.figures import list_dotted_names
from explorer.session.parts.models import Cancel, Models, OnProgress, State
from explorer.settings.slices import parse_slice
from explorer.settings.statistics import parse_statistics

OUTLIERS = 10  # numbers listed beside a heat map
_SUFFIXES = ("quantized", "blocks", "float16", "bfloat16")
"""Suffixes of the names of quantized weights."""


class TensorNumbers:
    """Find tensors by name and read slices of them; caches the last output of a layer.

    Args:
        models: Models of the session.
    """

    def __init__(self, models: Models) -> None:
        self._models = models
        self._last_run: tuple[tuple[object, ...], SlicedTensor] | None = None

    def values(
        self,
        name: str,
        slice_text: str,
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
        """Read the numbers of a slice, and the numbers of the same slice in another model."""
        state = self._models, self._models.resolve_index(index)
        if output is not None:
            if not output.endswith(".npy"):
                raise Misuse(f"'{output}' is not a .npy file", where="-o", hint="OUT.npy")
            self._models.check_output_path(output, overwrite, input)
        sliced = self._find_tensor(state, name, input, seed, on_progress, cancel)
        before_slice = None
        if before is not None:
            other_name = before_name or self._find_counterpart(before, sliced, name, on_progress)
            before_slice = self._find_tensor(before, other_name, input, seed, on_progress, cancel)
            sliced, before_slice = _orient_like(sliced, before_slice), _orient_like(before_slice, sliced)
        selection = parse_slice(slice_text, sliced.numbers.shape)
        return read_slice(
            sliced,
            selection,
            slice_text,
            before=before_slice,
            output=output,
            overwrite=overwrite,
            cancel=cancel,
        )

    def heat_map(
        self,
        name: str,
        place: Sequence[int],
        rows: tuple[int, int] | None,
        columns: tuple[int, int] | None,
        size: tuple[int, int],
        with_figures: bool,
        index: int | None,
        before: State | None,
        input: str | None,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> HeatMap:
        """Read a part of a tensor as cells of a heat map; `with_figures` also measures the whole tensor."""
        state = self._models, self._models.resolve_index(index)
        sliced, before_slice = self._find_tensor(state, name, input, seed, on_progress, cancel), None
        if before is not None:
            other_name = self._find_counterpart(before, sliced, name, on_progress)
            before_slice = self._find_tensor(before, other_name, input, seed, on_progress, cancel)
            sliced, before_slice = _orient_like(sliced, before_slice), _orient_like(before_slice, sliced)
        fact = _build_map(sliced, place, rows, columns, size, cancel)
        if with_figures:
            fact = _add_figures(fact, sliced, cancel)
        if before_slice is None:
            return fact
        if before_slice.numbers.shape != sliced.numbers.shape:
            shapes = shape_text(before_slice.numbers.shape), shape_text(sliced.numbers.shape)
            other_name = before_slice.numbers.name
            raise Misuse(f"'{other_name}' is {shapes[0]} there and {shapes[1]} here", where="--before")
        before_map = _build_map(before_slice, place, rows, columns, size, cancel)
        return replace(
            fact, before=_add_figures(before_map, before_slice, cancel) if with_figures else before_map
        )

    def _find_counterpart(self, state: State, sliced: SlicedTensor, name: str, progress: OnProgress) -> str:
        """Return the name of the tensor in another model.

        The name is the same, or one name is the other with a suffix: quantization adds suffixes to weights.
        If no tensor or several match, return `name`.
        """
        shapes = {t.name: t.shape for t in state[0].open_state(state[1], progress).tensors()[0]}
        if name in shapes:
            return name
        candidates = [
            stored_name
            for stored_name, shape in shapes.items()
            if sorted(shape) == sorted(sliced.numbers.shape)
            and (stored_name.startswith(f"{name}_") or name.startswith(f"{stored_name}_"))
        ]
        return candidates[0] if len(candidates) == 1 else name

    def _find_tensor(
        self, state: State, name: str, input: str | None, seed: int, on_progress: OnProgress, cancel: Cancel
    ) -> SlicedTensor:
        """Return the stored tensor with a name. If there is none, run the model to get the value of a layer.

        Raises:
            Misuse: No tensor and no layer has the name.
        """
        models, state_index = state
        tensors, notes = models.open_state(state_index, on_progress).tensors()
        matches = [t for t in tensors if t.name == name] or _find_parameter(tensors, name)
        if matches:
            remarks = models.list_weight_notes() if state_index else notes
            numbers = matches[0] if matches[0].unpack is None else matches[0].unpack()
            graph = graph_of(models, state_index, on_progress)
            node = None if graph is None else find_rounders(graph).get(name)
            if graph is not None and node is not None:
                numbers = round_weight(graph, node, numbers)
                remarks = (
                    *remarks,
                    f"the file holds float32 numbers: {node.op} rounds them where the model runs",
                )
            return SlicedTensor(numbers, models.label(state_index), "weight", notes=tuple(remarks))
        key = id(models), state_index, name, input, seed
        if self._last_run is not None and self._last_run[0] == key:
            return self._last_run[1]
        self._last_run = None  # free its memory before the next run
        sliced = self._run_layer(state, name, [t.name for t in tensors], input, seed, on_progress, cancel)
        self._last_run = key, sliced
        return sliced

    def _run_layer(
        self,
        state: State,
        name: str,
        stored_names: Sequence[str],
        input: str | None,
        seed: int,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> SlicedTensor:
        """Return the value of a layer in a run, or the stored tensor that its name stands for."""
        models, state_index = state
        rows = models.rows(state_index, on_progress, cancel)
        values = [t.name for row in rows for t in row.outputs]
        known_names = dict.fromkeys((*stored_names, *(row.path for row in rows), *values))
        if name not in known_names:  # the tree may display another name than the path of the row
            dotted_names = list_dotted_names(rows)
            name = rows[dotted_names.index(name)].path if name in dotted_names else name
        # the output of a Constant is stored, and no run computes it
        constant = next((row.outputs[0].name for row in rows if row.path == name and row.outputs), "")
        if constant in stored_names and constant != name:
            return self._find_tensor(state, constant, input, seed, on_progress, cancel)
        # the output of every module is called 'output', so a group of modules is found by its path
        is_module = hasattr(models.open_state(state_index, on_progress), "loaded")
        group_output, group_outputs = ("", 0) if is_module else _find_group_output(rows, name)
        name = group_output or name
        if name not in known_names:
            quantized_name = next(
                (stored_name for word in _SUFFIXES if (stored_name := f"{name}_{word}") in stored_names),
                None,
            )
            if quantized_name is not None:
                return self._find_tensor(state, quantized_name, input, seed, on_progress, cancel)
            raise Misuse(
                f"no tensor or layer is called '{name}'",
                where=models.label(state_index),
                hint=suggest_name(name, known_names, listing="explorer weights MODEL")
                or "explorer weights MODEL lists what is stored",
            )
        producer = next((row.path for row in rows for t in row.outputs if t.name == name), name)
        captured: list[Numbers] = []
        calls = group_outputs

        def keep_first_output(numbers: Numbers, call: int, _: str) -> None:
            nonlocal calls
            calls += not group_outputs
            if not captured or (numbers.name == name and captured[0].name != name):
                slabs = [np.array(slab) for slab in numbers.slabs()]
                captured[:] = [replace(numbers, slabs=lambda: iter(slabs), part=None)]

        input_file = None if input is None else read_input(input)
        request = ActivationRequest(
            (glob.escape(name if name in values else producer),),
            input_file,
            seed,
            keep_first_output,
            lambda done, total: None,
        )
        run = models.open_state(state_index, on_progress).activations(request, rows)
        if not captured:
            reasons = "; ".join(reason for _, reason in run.skipped) or "it does not run"
            raise Misuse(f"'{name}' has no values: {reasons}", where=models.label(state_index))
        return SlicedTensor(
            captured[0],
            models.label(state_index),
            "activation",
            run.inputs,
            calls,
            tuple(models.list_weight_notes()),
        )


def _find_parameter(tensors: Sequence[Numbers], name: str) -> list[Numbers]:
    """Find the only tensor for a parameter whose name in the file differs, as in files of llama.cpp."""
    matches = [t for t in tensors if t.layer and f"{t.layer}.{t.name.rpartition('.')[2]}" == name]
    return matches if len(matches) == 1 else []


def _find_group_output(rows: Sequence[Layer], name: str) -> tuple[str, int]:
    """Return the first output of a group of operators and the number of outputs, else '' and 0."""
    group = next((row for row in rows if row.group and row.path == name and row.outputs), None)
    inner_names = {t.name for row in rows if not row.group for t in row.outputs}
    if group is None or group.outputs[0].name not in inner_names:
        return "", 0
    return group.outputs[0].name, len(group.outputs)


def _orient_like(sliced: SlicedTensor, reference: SlicedTensor) -> SlicedTensor:
    """Unpack a packed weight with the axes of `reference`: one row, or one column, for each output."""
    unpack = sliced.numbers.unpack
    return sliced if unpack is None else replace(sliced, numbers=unpack(reference.numbers.by_rows))


def _build_map(
    sliced: SlicedTensor,
    place: Sequence[int],
    rows: tuple[int, int] | None,
    columns: tuple[int, int] | None,
    size: tuple[int, int],
    cancel: Cancel,
) -> HeatMap:
    """Build the heat map of a part of a tensor."""
    outer, sizes = heat.locate_matrix(sliced.numbers.shape, place)
    row_range, column_range = (
        _build_range(ends, axis_size) for ends, axis_size in zip((rows, columns), sizes, strict=True)
    )
    heights, widths = (max(min(n, len(r)), 0) for n, r in zip(size, (row_range, column_range), strict=True))
    cells = heat.compute_cells(sliced, outer, row_range, column_range, heights, widths, cancel)
    is_complex = sliced.numbers.dtype.startswith("complex")
    fact = HeatMap(
        sliced.source,
        sliced.tensor,
        sliced.numbers.layer,
        sliced.role,
        sliced.dtype,
        tuple(axis[0] for axis in outer),
        (row_range.start, row_range.stop),
        (column_range.start, column_range.stop),
        heights,
        widths,
        tuple(None if np.isnan(cell) else float(cell) for cell in cells.reshape(-1)),
        (*sliced.notes, *(("complex: magnitudes are drawn",) if is_complex else ())),
    )
    if cells.size < len(row_range) * len(column_range):  # a cell stands for several numbers
        return fact
    return replace(fact, **heat.read_codes(sliced, outer, row_range, column_range))


def _add_figures(fact: HeatMap, sliced: SlicedTensor, cancel: Cancel) -> HeatMap:
    """Add statistics, outliers and the range of each channel, measured over the whole tensor."""
    numbers = heat.build_real_tensor(sliced)
    shape = sliced.numbers.shape
    stats = measure(numbers, choices=parse_statistics("min,max"), axis=0 if shape else None, cancel=cancel)
    ranges = stats.chosen
    return replace(
        fact,
        stats=replace(stats, chosen={}),
        outliers=heat.find_outliers(sliced, stats.mean, stats.std, OUTLIERS, cancel),
        channels=tuple(zip(ranges["min"], ranges["max"], strict=True)) if shape and ranges else (),
    )


def _build_range(ends: tuple[int, int] | None, size: int) -> range:
    if ends is None:
        return range(size)
    if not 0 <= ends[0] < ends[1] <= size:
        raise Misuse(f"{ends[0]}:{ends[1]} is not part of {size:,}", where="--rows")
    return range(ends[0], ends[1])
