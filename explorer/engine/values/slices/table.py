"""Numbers of a slice: returned for display, written to a file, and compared with another model's numbers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.base.units import shape_text
from explorer.engine.progress import Cancel, stop_if
from explorer.engine.values.numbers import Array, Numbers, file_type
from explorer.engine.values.slices.read import dequantize_selection, parts, read
from explorer.engine.values.slices.ulps import ulps
from explorer.facts import TensorInfo
from explorer.facts.values import TensorValues, ValuesBefore
from explorer.host import output_files
from explorer.settings.slices import Selection, edges

MAX_NUMBERS = 10_000
"""Maximum number of numbers that are returned."""

_MAX_UNCHOSEN = 1_000
"""Maximum number of numbers of a tensor that is returned in full without a chosen slice."""


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
        """Type of the numbers. A quantized tensor has the type of its scales."""
        if self.numbers.scales is not None:
            return str(self.numbers.scales.scale().dtype)
        return "float32" if self.numbers.coded is not None else self.numbers.dtype

    def reals(self, selection: Selection) -> Array:
        """Returns the selected numbers as float64, or the magnitudes of complex numbers."""
        numbers = self.values(selection)
        return np.abs(numbers) if numbers.dtype.kind == "c" else numbers.astype(np.float64)

    def values(self, selection: Selection) -> Array:
        """Returns the selected numbers, dequantized if the tensor is quantized."""
        stored_values = read(self.numbers, selection)
        if self.numbers.scales is None:
            return stored_values
        return dequantize_selection(stored_values, self.numbers.scales, selection)[0]


def table(
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
        _write(sliced, selection, file_type(str(values.dtype)), output, overwrite, cancel)
    return TensorValues(
        sliced.source,
        sliced.tensor,
        sliced.numbers.layer,
        sliced.role,
        slice_text,
        selection.shape,
        tuple(tuple(axis) for axis in shown_part.indices),
        sliced.dtype,
        _python_numbers(values),
        before=None if before is None else _compare(sliced, before, selection, shown_part, values, cancel),
        inputs=sliced.inputs,
        calls=sliced.calls,
        output=output or "",
        notes=(*sliced.notes, *filter(None, (sliced.numbers.uncoded,))),
        **code_fields,
    )


def read_with_codes(
    numbers: Numbers, selection: Selection
) -> tuple[Array, dict[str, tuple[Any, ...] | None]]:
    """Returns the numbers of a slice and, if it is quantized, fields with its codes and scales.

    The fields are those of `TensorValues`.
    """
    stored_values, coded = read(numbers, selection), numbers.coded
    if numbers.scales is not None:
        values, scales, zeros = dequantize_selection(stored_values, numbers.scales, selection)
        return values, {
            "codes": _python_numbers(stored_values),
            "scales": _python_numbers(scales),
            "zero_points": _python_numbers(zeros),
        }
    if coded is None:
        return stored_values, {}
    zero_points = (
        (coded.zero,) * stored_values.size
        if isinstance(coded.zero, int)
        else _python_numbers(read(coded.zero, selection))
    )
    return stored_values, {
        "codes": _python_numbers(read(coded.codes, selection)),
        "scales": _python_numbers(read(coded.scales, selection)),
        "zero_points": zero_points,
        "offsets": None if coded.offsets is None else _python_numbers(read(coded.offsets, selection)),
    }


def _select_shown_part(selection: Selection, slice_text: str, output: str | None) -> Selection:
    """Returns the part of a slice to show.

    It is the full slice, or its edges if the slice is large and was written to a file or not chosen by the
    user.

    Raises:
        Misuse: The slice has too many numbers.
    """
    count = math.prod(selection.sizes)
    if count > _MAX_UNCHOSEN and (output is not None or not slice_text):
        return edges(selection, 8, 2)
    if count > MAX_NUMBERS:
        raise Misuse(
            f"these are {count:,} numbers, and {MAX_NUMBERS:,} at most are shown",
            where="--slice",
            hint="-o OUT.npy takes all of them",
        )
    return selection


def _python_numbers(values: Array) -> tuple[Any, ...]:
    """Converts numbers to Python objects."""
    if values.dtype.kind in "fV":
        values = values.astype(np.float64)
    return tuple(values.reshape(-1).tolist())


def _write(
    sliced: SlicedTensor,
    selection: Selection,
    kind: np.dtype[Any],
    output: str,
    overwrite: bool,
    cancel: Cancel,
) -> None:
    """Writes all numbers of a slice to an .npy file, a part at a time."""
    with (
        output_files.atomic_write(output, overwrite=overwrite) as temporary,
        output_files.binary(temporary) as file,
    ):
        header = {"descr": kind.str, "fortran_order": False, "shape": selection.shape}
        np.lib.format.write_array_header_2_0(file, header)
        for part in parts(selection):
            stop_if(cancel)
            file.write(np.ascontiguousarray(sliced.values(part).astype(kind, copy=False)).data)


def _compare(
    sliced: SlicedTensor,
    before: SlicedTensor,
    selection: Selection,
    shown_part: Selection,
    values: Array,
    cancel: Cancel,
) -> ValuesBefore:
    old_values = before.values(shown_part)
    ulps_apart = ulps(old_values, values)
    equal = elements = finite = 0
    largest, squares, steps = 0.0, 0.0, -1
    for part in parts(selection):
        stop_if(cancel)
        old, new = before.values(part).reshape(-1), sliced.values(part).reshape(-1)
        elements += old.size
        gap = _difference(old, new)
        equal += int(
            np.count_nonzero((gap == 0) | (np.isnan(_widen_numbers(old)) & np.isnan(_widen_numbers(new))))
        )
        finite_gap = gap[np.isfinite(gap)]
        if finite_gap.size:
            finite += finite_gap.size
            largest = max(largest, float(np.abs(finite_gap).max()))
            squares += float(np.vdot(finite_gap, finite_gap).real)
        if (part_ulps := ulps(old, new)) is not None and part_ulps.size:
            steps = max(steps, int(part_ulps.max()))
    return ValuesBefore(
        before.source,
        before.tensor,
        before.dtype,
        _python_numbers(old_values),
        _python_numbers(_difference(old_values, values)),
        None if ulps_apart is None else tuple(None if n < 0 else n for n in ulps_apart.reshape(-1).tolist()),
        equal,
        elements,
        largest if finite else None,
        (squares / finite) ** 0.5 if finite else None,
        steps if steps >= 0 else None,
    )


def _widen_numbers(values: Array) -> Array:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)


def _difference(old: Array, new: Array) -> Array:
    """Returns `new - old` in float64 or complex128. The difference of equal infinities is 0."""
    a, b = _widen_numbers(old), _widen_numbers(new)
    kinds = old.dtype.kind + new.dtype.kind
    if set(kinds) <= set("iu") and max(np.abs(a).max(initial=0), np.abs(b).max(initial=0)) >= 2**53:
        # neighboring integers are equal in float64
        exact: Array = (new.astype(object) - old.astype(object)).astype(np.float64)
        return exact
    with np.errstate(invalid="ignore", over="ignore"):
        return np.where(a == b, 0.0, b - a)
