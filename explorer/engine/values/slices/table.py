"""Numbers of a slice: returned for display, written to a file, and compared with another model's numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.base.units import shape_text
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.values.numbers import Array, Numbers, choose_file_type
from explorer.engine.values.slices.read import dequantize_selection, read, split_selection
from explorer.engine.values.slices.ulps import compute_ulps
from explorer.facts import TensorInfo
from explorer.facts.values import TensorValues, ValuesBefore
from explorer.host import output_files
from explorer.settings.slices import Selection, select_edges

MAX_NUMBERS = 10_000
"""Maximum number of numbers that are returned."""

_MAX_UNSLICED = 1_000
"""Maximum number of elements of a tensor that is returned completely if the user chose no slice."""


class SlicedTensor(Struct, frozen=True):
    """A tensor of a model and its origin.

    Attributes:
        numbers: The tensor.
        source: The user's name of the model.
        role: 'weight' or 'activation'.
        inputs, calls, notes: Fields of `TensorValues`.
    """

    numbers: Numbers
    source: str
    role: str
    inputs: tuple[str, ...] = ()
    calls: int = 1
    notes: tuple[str, ...] = ()

    @property
    def tensor(self) -> TensorInfo:
        """Name, dtype and shape of the tensor."""
        origin = "declared" if self.role == "weight" else "observed"
        return TensorInfo(self.numbers.name, self.numbers.dtype, self.numbers.shape, origin)

    @property
    def dtype(self) -> str:
        """Type of the dequantized numbers: that of the scales, float32 for ggml's blocks, else as stored."""
        if self.numbers.scales is not None:
            return self.numbers.scales.number_type.name
        return "float32" if self.numbers.stored_codes is not None else self.numbers.dtype

    def read_reals(self, selection: Selection) -> Array:
        """Returns the selected numbers as float64, or the magnitudes of complex numbers."""
        numbers = self.read_values(selection)
        return np.abs(numbers) if numbers.dtype.kind == "c" else numbers.astype(np.float64)

    def read_values(self, selection: Selection) -> Array:
        """Returns the selected numbers, dequantized if the tensor is quantized."""
        stored_values = read(self.numbers, selection)
        if self.numbers.scales is None:
            return stored_values
        return dequantize_selection(stored_values, self.numbers.scales, selection)[0]


def read_slice(
    sliced: SlicedTensor,
    selection: Selection,
    slice_text: str,
    *,
    before: SlicedTensor | None = None,
    output: str | None = None,
    overwrite: bool = False,
    cancel: Cancel = None,
) -> TensorValues:
    """Returns the numbers of a slice.

    Args:
        sliced: The tensor.
        selection: The slice.
        slice_text: The slice as the user wrote it. If it is '', only the edges of a large tensor are
            returned.
        before: The tensor of another model to compare with, or None.
        output: Path of an .npy file for the full slice, or None.
        overwrite: Whether an existing file may be replaced.
        cancel: Function called at every part; True cancels.

    Raises:
        Misuse: The slice has too many numbers, the other tensor has another shape, or the tensor's numbers
            cannot be read.
        Cancelled: `cancel` returned True.
    """
    shown_part = _select_shown_part(selection, slice_text, output)
    if before is not None and before.numbers.shape != sliced.numbers.shape:
        shapes = shape_text(before.numbers.shape), shape_text(sliced.numbers.shape)
        raise Misuse(f"'{before.numbers.name}' is {shapes[0]} there and {shapes[1]} here", where="--before")
    values, code_fields = read_with_codes(sliced.numbers, shown_part)
    if output is not None:
        _write(sliced, selection, choose_file_type(str(values.dtype)), output, overwrite, cancel)
    return TensorValues(
        sliced.source,
        sliced.tensor,
        sliced.numbers.layer,
        sliced.role,
        slice_text,
        selection.shape,
        tuple(tuple(axis) for axis in shown_part.indices),
        sliced.dtype,
        _convert_to_python(values),
        before=None if before is None else _compare(sliced, before, selection, shown_part, values, cancel),
        inputs=sliced.inputs,
        calls=sliced.calls,
        output=output or "",
        notes=(*sliced.notes, *filter(None, (sliced.numbers.missing_codes_reason,))),
        **code_fields,
    )


def read_with_codes(
    numbers: Numbers, selection: Selection
) -> tuple[Array, dict[str, tuple[Any, ...] | None]]:
    """Returns the numbers of a slice and, if it is quantized, fields with its codes and scales.

    The fields are those of `TensorValues`.
    """
    stored_values, coded = read(numbers, selection), numbers.stored_codes
    if numbers.scales is not None:
        values, scales, zeros = dequantize_selection(stored_values, numbers.scales, selection)
        return values, {
            "codes": _convert_to_python(stored_values),
            "scales": _convert_to_python(scales),
            "zero_points": _convert_to_python(zeros),
        }
    if coded is None:
        return stored_values, {}
    zero_points = (
        (coded.zero,) * stored_values.size
        if isinstance(coded.zero, int)
        else _convert_to_python(read(coded.zero, selection))
    )
    return stored_values, {
        "codes": _convert_to_python(read(coded.codes, selection)),
        "scales": _convert_to_python(read(coded.scales, selection)),
        "zero_points": zero_points,
        "offsets": None if coded.offsets is None else _convert_to_python(read(coded.offsets, selection)),
    }


def _select_shown_part(selection: Selection, slice_text: str, output: str | None) -> Selection:
    """Returns the part of a slice to show: the full slice, or only its edges.

    The edges of a large slice are shown if the slice is written to a file, or if the user chose no slice.

    Raises:
        Misuse: The slice has too many numbers.
    """
    count = math.prod(selection.sizes)
    if count > _MAX_UNSLICED and (output is not None or not slice_text):
        return select_edges(selection, 8, 2)
    if count > MAX_NUMBERS:
        message = f"these are {count:,} numbers, and {MAX_NUMBERS:,} at most are shown"
        raise Misuse(message, where="--slice", hint="-o OUT.npy writes all of them")
    return selection


def _convert_to_python(values: Array) -> tuple[Any, ...]:
    """Converts numbers to Python objects."""
    if values.dtype.kind in "fV":
        values = values.astype(np.float64)
    return tuple(values.reshape(-1).tolist())


def _write(
    sliced: SlicedTensor,
    selection: Selection,
    file_type: np.dtype[Any],
    output: str,
    overwrite: bool,
    cancel: Cancel,
) -> None:
    """Writes all numbers of a slice to an .npy file, a part at a time."""
    with (
        output_files.write_atomically(output, overwrite=overwrite) as temporary,
        output_files.open_binary(temporary) as file,
    ):
        header = {"descr": file_type.str, "fortran_order": False, "shape": selection.shape}
        np.lib.format.write_array_header_2_0(file, header)
        for part in split_selection(selection):
            stop_if(cancel)
            file.write(np.ascontiguousarray(sliced.read_values(part).astype(file_type, copy=False)).data)


def _compare(
    sliced: SlicedTensor,
    before: SlicedTensor,
    selection: Selection,
    shown_part: Selection,
    values: Array,
    cancel: Cancel,
) -> ValuesBefore:
    """Compares the numbers of a slice with those of another model.

    Args:
        sliced: The tensor.
        before: The tensor of the other model.
        selection: The slice, over which the differences are computed.
        shown_part: The part of the slice to show.
        values: Numbers of `sliced` in the shown part.
        cancel: Function called at every part; True cancels.
    """
    old_values = before.read_values(shown_part)
    ulps_apart = compute_ulps(old_values, values)
    equal = elements = finite_count = 0
    largest_difference, sum_of_squares, largest_ulps = 0.0, 0.0, -1
    for part in split_selection(selection):
        stop_if(cancel)
        old, new = before.read_values(part).reshape(-1), sliced.read_values(part).reshape(-1)
        elements += old.size
        differences = _subtract(old, new)
        is_nan_in_both = np.isnan(_widen_numbers(old)) & np.isnan(_widen_numbers(new))
        equal += int(np.count_nonzero((differences == 0) | is_nan_in_both))
        finite_differences = differences[np.isfinite(differences)]
        if finite_differences.size:
            finite_count += finite_differences.size
            largest_difference = max(largest_difference, float(np.abs(finite_differences).max()))
            sum_of_squares += float(np.vdot(finite_differences, finite_differences).real)
        if (part_ulps := compute_ulps(old, new)) is not None and part_ulps.size:
            largest_ulps = max(largest_ulps, int(part_ulps.max()))
    return ValuesBefore(
        before.source,
        before.tensor,
        before.dtype,
        _convert_to_python(old_values),
        _convert_to_python(_subtract(old_values, values)),
        None if ulps_apart is None else tuple(None if n < 0 else n for n in ulps_apart.reshape(-1).tolist()),
        equal,
        elements,
        largest_difference if finite_count else None,
        (sum_of_squares / finite_count) ** 0.5 if finite_count else None,
        largest_ulps if largest_ulps >= 0 else None,
    )


def _widen_numbers(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _subtract(old: Array, new: Array) -> Array:
    """Returns `new - old` in float64 or complex128. The difference of equal infinities is 0."""
    a, b = _widen_numbers(old), _widen_numbers(new)
    kinds = old.dtype.kind + new.dtype.kind
    if set(kinds) <= set("iu") and max(np.abs(a).max(initial=0), np.abs(b).max(initial=0)) >= 2**53:
        # neighboring integers are equal in float64
        exact: Array = (new.astype(object) - old.astype(object)).astype(np.float64)
        return exact
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(a == b, 0.0, b - a)
