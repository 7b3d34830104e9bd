"""Input files: a user's .npy or .npz, checked against the model's declared inputs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from zipfile import ZipFile

import numpy as np
from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import printable, shape_text
from explorer.engine.graph.dtypes import get_element_type
from explorer.facts import Shape
from explorer.host import input_files

Array = np.ndarray[Any, Any]


class InputSpec(Struct, frozen=True):
    """A declared input of the model.

    Attributes:
        name: Name of the input.
        dtype: Element type, or None if any type fits.
        shape: Shape, or None if any shape fits. An int is a fixed size; any other entry is an open size.
    """

    name: str
    dtype: str | None
    shape: Shape | None


def count_run_rows(array_shape: tuple[int, ...], shape: Shape | None, batch: int | None) -> int | None:
    """Returns the rows of an array, along its first axis, for one run of the model.

    The result is None if a run uses the entire array, or if the array does not fit the input.

    Args:
        array_shape: Shape of the array.
        shape: Shape of the input. A fixed first size is the number of rows. The array is not cut if the last
            run would be incomplete.
        batch: Rows for each run if the first size is open, or None for all rows.
    """
    if not array_shape or (shape is not None and len(shape) != len(array_shape)):
        return None  # `fit` reports the error
    first, *rest = shape or (None,)
    fixed = first if isinstance(first, int) and first > 0 else None
    rows = fixed or batch
    if rows is None or array_shape[0] == rows or (fixed and array_shape[0] % fixed):
        return None
    sizes = zip(rest, array_shape[1:], strict=False)
    is_misfit = any(isinstance(declared, int) and declared != size for declared, size in sizes)
    return None if is_misfit else rows


class InputArrays(Struct, frozen=True):
    """Input values from a user's file, by their names in the file ('' for a file with one array)."""

    path: str
    arrays: Mapping[str, Array]

    def samples(self, inputs: Sequence[InputSpec], batch: int | None) -> list[InputArrays]:
        """Cuts the arrays along their first axis into the samples of each run.

        Args:
            inputs: Inputs of the model. A fixed first size is the number of rows in a run. An array with
                exactly that many rows is used in every run. An array is not cut if its last run would be
                incomplete.
            batch: Rows in a run if the first size is open, or None for all rows.

        Raises:
            Misuse: The arrays hold different numbers of runs.
        """
        declared_shapes = {spec.name: spec.shape for spec in inputs}
        if len(inputs) == 1 and len(self.arrays) == 1:
            declared_shapes = {next(iter(self.arrays)): inputs[0].shape}
        cuts: dict[str, int] = {}
        for name, array in self.arrays.items():
            if (
                array.ndim
                and len(array)
                and (size := count_run_rows(array.shape, declared_shapes.get(name), batch))
            ):
                cuts[name] = size
        runs = {name: -(-len(self.arrays[name]) // size) for name, size in cuts.items()}
        if len(set(runs.values())) > 1:
            counts = ", ".join(f"'{name}' {run_count:,}" for name, run_count in runs.items())
            raise Misuse(f"its arrays hold different numbers of runs: {counts}", where=self.path)
        return [
            InputArrays(
                self.path,
                {
                    name: array[run * cuts[name] : (run + 1) * cuts[name]] if name in cuts else array
                    for name, array in self.arrays.items()
                },
            )
            for run in range(next(iter(runs.values()), 1))
        ]

    def fit(self, inputs: Sequence[InputSpec]) -> dict[str, Array]:
        """Returns the arrays by the model's input names, after checking their types and shapes.

        Raises:
            Misuse: An input is missing or unknown, or an array has another type or shape.
        """
        names = [spec.name for spec in inputs]
        arrays = dict(self.arrays)
        if len(names) == 1 and len(arrays) == 1:
            arrays = {names[0]: next(iter(arrays.values()))}
        if "" in arrays:
            message = f"the model takes {len(names)} inputs and this is one array"
            raise Misuse(message, where=self.path, hint=f"give an .npz with {', '.join(names)}")
        for name in arrays:
            if name not in names:
                raise Misuse(
                    f"the model has no input '{name}'", where=self.path, hint=suggest_name(name, names)
                )
        for spec in inputs:
            if spec.name not in arrays:
                raise Misuse(f"it has no values for the input '{spec.name}'", where=self.path)
            self._check(spec, arrays[spec.name])
        return arrays

    def _check(self, spec: InputSpec, array: Array) -> None:
        """Checks the type and the shape of an array.

        Raises:
            Misuse: The array has another type or shape than the input.
        """
        label = f"the input '{spec.name}'"
        if spec.dtype is not None and get_element_type(array) != spec.dtype:
            message = f"{label} is {array.dtype} there and {spec.dtype} in the model"
            raise Misuse(message, where=self.path, hint=f"convert it with .astype('{spec.dtype}')")
        shape = spec.shape
        if shape is not None and (
            len(shape) != array.ndim
            or any(isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True))
        ):
            texts = shape_text(array.shape), shape_text(shape)
            raise Misuse(f"{label} is {texts[0]} there and {texts[1]} in the model", where=self.path)

    def text(self, name: str, array: Array) -> str:
        """Describes an array for the report: 'x: float32 [1, 3, 224, 224], from photo.npy'."""
        return f"{printable(name)}: {array.dtype} {shape_text(array.shape)}, from {self.path}"

    def texts(self, runs: Sequence[Mapping[str, Array]]) -> tuple[str, ...]:
        """Describes the arrays of several runs for the report, with the number of runs."""
        runs_text = f", in {len(runs):,} runs" if len(runs) > 1 else ""
        arrays = {name: self.arrays.get(name, array) for name, array in runs[0].items()}
        if runs_text and len(arrays) == len(self.arrays) == 1:
            arrays = {next(iter(arrays)): next(iter(self.arrays.values()))}
        return tuple(self.text(name, array) + runs_text for name, array in arrays.items())


_MAX_UNPACKED_BYTES = 64 << 20
"""Maximum unpacked bytes of an archive that is compressed more than a hundredfold."""


def check_unpacked(archive: ZipFile, path: str) -> None:
    """Refuses a decompression bomb.

    Raises:
        Misuse: The unpacked arrays take more than a hundred times the bytes of the file, and more than 64
            MiB.
    """
    size = sum(entry.file_size for entry in archive.infolist())
    if size > max(_MAX_UNPACKED_BYTES, 100 * os.path.getsize(path)):
        raise Misuse(f"its arrays would take {size:,} bytes unpacked", where=path)


def read_input(path: str) -> InputArrays:
    """Reads the arrays in an .npy or .npz file. No code in the file runs.

    Raises:
        Misuse: The file cannot be read, or is neither .npy nor .npz.
    """
    try:
        # unpickling arrays of Python objects could run any code
        with input_files.open_binary(path) as file:
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return InputArrays(path, {"": loaded})
            with loaded:
                check_unpacked(loaded.zip, path)
                arrays = {name: loaded[name] for name in loaded.files}
            # numpy returns other entries of the archive as bytes
            if other_entries := [name for name, array in arrays.items() if not isinstance(array, np.ndarray)]:
                message = f"'{printable(other_entries[0])}' in it is not an array"
                raise Misuse(message, where=path, hint="numpy.savez writes one")
            return InputArrays(path, arrays)
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    except Misuse:
        raise
    except Exception:
        # a broken header (Python syntax) or archive can raise any exception
        raise Misuse(
            "this is not a .npy or .npz file with plain arrays", where=path, hint="numpy.save writes one"
        ) from None
