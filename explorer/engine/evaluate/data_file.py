"""Data set in a file (.npz, .npy, or a table such as .csv): inputs and labels, read batch by batch.

The first axis of an array counts the samples. A table has one sample per line, with the label in the last
column unless the user names another one.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice, tee
from typing import Any, TextIO

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import bytes_text, printable, shape_text
from explorer.engine.runtime import samples
from explorer.engine.runtime.input_files import Array, InputSpec
from explorer.host import input_files, memory_limit

TABLE = "the table"
"""Name of the part that holds the input columns of a table."""
_MAX_LINE_LENGTH = 16 << 20
"""Maximum length of a line of a table, in characters."""

Width = Callable[[], int | None]
"""Function that returns the number of elements in a sample of the model's input, or None if unknown."""


class SampleArray(Struct, frozen=True):
    """An array of the data: dtype, shape of one sample, and a function that iterates over the samples."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    iterate: Callable[[], Iterator[Array]]


class DataFile(Struct, frozen=True):
    """A file of samples.

    Attributes:
        path: Path of the file.
        count: Number of samples.
        parts: Arrays by name.
        labels: Name of the part with the labels, or ''.
        is_table: Whether the file is a table, whose numbers have no dtype of their own.
        columns: Input columns of a table.
    """

    path: str
    count: int
    parts: Mapping[str, SampleArray]
    labels: str
    is_table: bool = False
    columns: tuple[str, ...] = ()

    def iterate_batches(self, size: int) -> Iterator[dict[str, Array]]:
        """Yields batches of `size` samples of all parts, in order.

        Raises:
            Misuse: A number is NaN or Inf, or the file is cut short.
        """
        iterators = {name: part.iterate() for name, part in self.parts.items()}
        for first in range(0, self.count, size):
            batch = {}
            count = min(size, self.count - first)
            for name, rows in iterators.items():
                batch_rows = list(islice(rows, count))
                if len(batch_rows) < count:
                    raise Misuse("the file is cut short", where=self.path)
                batch[name] = np.stack(batch_rows)
                self._check_finite(name, batch[name], first)
            yield batch

    def _check_finite(self, name: str, values: Array, first: int) -> None:
        if values.dtype.kind not in "fc" or (is_finite := np.isfinite(values)).all():
            return
        row = int(np.argwhere(~is_finite)[0][0])
        message = f"'{printable(name)}' has a NaN or Inf in sample {first + row + 1:,}"
        raise Misuse(message, where=self.path)

    def assign_parts(
        self, specs: Sequence[InputSpec], chosen_parts: Sequence[str], model: str
    ) -> dict[str, str]:
        """Returns the part of the data for each input of a model.

        Args:
            specs: Inputs of the model.
            chosen_parts: Parts that the user named, in the order of the inputs or as 'input=array'.
            model: Name of the model for messages.

        Raises:
            Misuse: The part of an input is ambiguous, or does not fit the input.
        """
        inputs = [name for name in self.parts if name != self.labels]
        names = [spec.name for spec in specs]
        pairs = dict(word.split("=", 1) for word in chosen_parts if "=" in word and word not in inputs)
        positional_names = [
            word for word in chosen_parts if word not in pairs and ("=" not in word or word in inputs)
        ]
        if self.is_table:
            part_names = dict.fromkeys(names[:1], TABLE)
        elif chosen_parts:
            free = [name for name in names if name not in pairs]
            part_names = pairs | dict(zip(free, positional_names, strict=False))
        elif set(names) <= set(inputs):
            part_names = {name: name for name in names}
        else:
            part_names = dict(zip(names, inputs, strict=False)) if len(names) == len(inputs) == 1 else {}
        for name in part_names.values():
            if name not in self.parts or name == self.labels:
                raise Misuse(
                    f"no array of inputs is called '{printable(name)}'",
                    where=self.path,
                    hint=suggest_name(name, inputs),
                )
        if missing := [name for name in names if name not in part_names]:
            message = f"it is not clear which array is the input '{printable(missing[0])}' of {model}"
            hint = f"name them: --inputs {missing[0]}=NAME; it has {', '.join(inputs) or 'labels only'}"
            raise Misuse(message, where=self.path, hint=hint)
        for spec in specs:
            self._check_part(spec, self.parts[part_names[spec.name]], model)
        return part_names

    def _check_part(self, spec: InputSpec, part: SampleArray, model: str) -> None:
        """Raises Misuse if the samples do not fit the type and shape of the input."""
        name = f"'{printable(spec.name)}'"
        if spec.dtype is not None and not self.is_table and not _can_convert(part.dtype, spec.dtype):
            message = f"{name} is {part.dtype} there and {spec.dtype} in {model}"
            raise Misuse(message, where=self.path, hint=f"convert it with .astype('{spec.dtype}')")
        if spec.shape is None:
            return
        sample = spec.shape[1:]
        if self.is_table and _count_elements(sample) in (None, math.prod(part.shape)):
            return
        is_match = len(sample) == len(part.shape) and all(
            not isinstance(d, int) or d == size for d, size in zip(sample, part.shape, strict=True)
        )
        if not is_match:
            texts = shape_text(part.shape), shape_text(sample)
            raise Misuse(f"a sample of {name} is {texts[0]} there and {texts[1]} in {model}", where=self.path)


def convert_samples(values: Array, spec: InputSpec) -> Array:
    """Converts samples to the dtype of a model's input, and rows of a table to its shape."""
    array = values if spec.dtype is None else values.astype(spec.dtype)
    sample = None if spec.shape is None else spec.shape[1:]
    if sample is not None and len(sample) != values.ndim - 1:
        sizes = [d for d in sample if isinstance(d, int)]
        array = array.reshape(len(values), *(sizes if len(sizes) == len(sample) else values.shape[1:]))
    return np.ascontiguousarray(array)


def read(path: str, *, labels: str = "", inputs: Sequence[str] = (), width: Width = lambda: None) -> DataFile:
    """Opens a data file. Only the headers of arrays are read, but all lines of a table are counted.

    Args:
        path: Path of an .npz, .npy, .csv, .tsv or .txt.
        labels: Array or column with the labels; by default an array with a usual name, or the last column.
        inputs: Columns of a table that are inputs.
        width: Elements in a sample of the model's input. A table with as many columns has no labels.

    Raises:
        Misuse: The file cannot be read, holds no samples of numbers, or lacks such an array or column.
    """
    if path.lower().endswith((".csv", ".tsv", ".txt")):
        return _open_table(path, labels, inputs, width)
    entries = samples.read_headers(path)
    entries = {name or "x": entry for name, entry in entries.items()}
    counts = {name: entry.array_shape[0] for name, entry in entries.items() if entry.array_shape}
    if unusable := [
        name for name, entry in entries.items() if not entry.array_shape or entry.dtype.kind not in "biuf"
    ]:
        raise Misuse(
            f"'{printable(unusable[0])}' is not an array of numbers with a sample in each row", where=path
        )
    sample_count = next(iter(counts.values()), 0)
    if mismatched := [name for name, count in counts.items() if count != sample_count]:
        first = next(iter(counts))
        name = mismatched[0]
        message = (
            f"'{printable(name)}' has {counts[name]:,} samples and '{printable(first)}' {sample_count:,}"
        )
        raise Misuse(message, where=path)
    if not sample_count:
        raise Misuse("there is no sample in it", where=path)
    if labels and labels not in entries:
        raise Misuse(f"it has no array '{labels}'", where=path, hint=suggest_name(labels, list(entries)))
    parts = {
        name: SampleArray(entry.dtype, entry.array_shape[1:], _choose_reader(path, entry))
        for name, entry in entries.items()
    }
    label_name = labels or next((name for name in samples.LABELS if name in parts and len(parts) > 1), "")
    return DataFile(path, sample_count, parts, label_name)


def read_within_memory(path: str, *, labels: str = "", inputs: Sequence[str] = ()) -> DataFile:
    """Opens a data file like `read`, and checks that all samples fit in memory together.

    Raises:
        Misuse: `read` fails, or the samples need more memory than there is.
    """
    file = read(path, labels=labels, inputs=[name for name in inputs if "=" not in name])
    sizes = (file.count * math.prod(part.shape) * part.dtype.itemsize for part in file.parts.values())
    size, limit = sum(sizes), memory_limit.read_limit() or memory_limit.read_machine_memory()
    if limit is not None and size > limit:
        message = f"its samples take {bytes_text(size)} in memory, of {bytes_text(limit)} that there are"
        raise Misuse(message, where=path, hint="train on a part of them")
    return file


def _choose_reader(path: str, entry: samples.ArrayEntry) -> Callable[[], Iterator[Array]]:
    sample_entry = replace(entry, shape=entry.array_shape[1:], count=entry.array_shape[0])
    return lambda: samples.iterate_samples(path, sample_entry)


def _can_convert(source: np.dtype[Any], target_name: str) -> bool:
    """Whether an array fits a dtype: floats fit floats of any width, integers fit integers of their range.

    A dtype that numpy lacks, such as bfloat16, counts as float32. Booleans fit every integer type.
    """
    target = np.dtype(target_name) if target_name in _NUMPY else np.dtype(np.float32)
    if source.kind == "f":
        return target.kind == "f"
    return (
        bool(np.can_cast(source, target, "safe"))
        and source.kind in (target.kind, "u", "b")
        and target.kind != "f"
    )


_NUMPY = frozenset(
    {"bool", "float16", "float32", "float64"}
    | {f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)}
)
"""Element types that numpy has."""


def _count_elements(sample: Sequence[Any]) -> int | None:
    """Returns the number of elements in one sample; None if a size is symbolic."""
    return math.prod(sample) if all(isinstance(d, int) for d in sample) else None


# -- tables


def _open_table(path: str, labels: str, inputs: Sequence[str], width: Width) -> DataFile:
    """Opens a table and counts its lines. The numbers are read when a part is iterated.

    Raises:
        Misuse: The table is malformed, has no samples, or lacks a named column.
    """
    lines = _iterate_lines(path)
    _, head = next(lines, (0, []))
    has_no_header = all(map(_is_number, head))
    names = (
        [f"column {column_number}" for column_number in range(1, len(head) + 1)]
        if has_no_header
        else [cell.strip() for cell in head]
    )
    count = int(has_no_header and bool(head))
    for number, line in lines:
        if len(line) != len(names):
            message = f"it has {len(line):,} cells and the first line {len(names):,}"
            raise Misuse(message, where=f"{path}:{number}")
        count += 1
    if not count:
        raise Misuse("there is no sample in it", where=path)
    if len(set(names)) != len(names):
        raise Misuse("two columns are called alike", where=path)
    for name in (*inputs, *([labels] if labels else [])):
        if name not in names:
            raise Misuse(f"it has no column '{printable(name)}'", where=path, hint=suggest_name(name, names))
    label_name = labels or ("" if (inputs and names[-1] in inputs) or len(names) == width() else names[-1])
    input_names = [name for name in names if name != label_name and (not inputs or name in inputs)]
    if not input_names:
        raise Misuse("no column is left for the inputs", where=path)
    columns: dict[str, Any] = {TABLE: [names.index(name) for name in input_names]}
    columns |= {label_name: names.index(label_name)} if label_name else {}
    row_iterators: list[Iterator[Array]] = []

    def iterate_rows(selection: Any) -> Iterator[Array]:
        # parts are read in lockstep, one batch of each, so that each line is read only once
        if not row_iterators:
            row_iterators.extend(tee(_iterate_numbers(path, names, 0 if has_no_header else 1), len(columns)))
        return (row[selection] for row in row_iterators.pop())

    dtype = np.dtype(np.float64)
    parts = {
        name: SampleArray(dtype, np.shape(into), partial(iterate_rows, into))
        for name, into in columns.items()
    }
    return DataFile(path, count, parts, label_name, True, tuple(input_names))


def _iterate_lines(path: str) -> Iterator[tuple[int, list[str]]]:
    """Yields the non-empty lines as pairs of the line number (from 1) and the cells."""
    try:
        with input_files.open_text(path, encoding="utf-8-sig", newline="") as file:
            head = file.readline(1 << 20)
            file.seek(0)
            delimiter = max(",;\t", key=head.count)
            rows = csv.reader(_iterate_bounded_lines(file, path), delimiter=delimiter)
            yield from ((line_number, line) for line_number, line in enumerate(rows, 1) if line)
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise Misuse(f"this is not a table of numbers: {error}", where=path) from None


def _iterate_bounded_lines(file: TextIO, path: str) -> Iterator[str]:
    """Yields the lines of a text file. Their length is limited: a device image has no line breaks.

    Raises:
        Misuse: A line is longer than any row of a table.
    """
    while line := file.readline(_MAX_LINE_LENGTH):
        if len(line) == _MAX_LINE_LENGTH:
            message = f"a line has more than {_MAX_LINE_LENGTH >> 20} MiB: this is not a table of numbers"
            raise Misuse(message, where=path)
        yield line


def _iterate_numbers(path: str, names: Sequence[str], first: int) -> Iterator[Array]:
    """Yields the numbers of each line after the first `first` lines; `names` are the columns.

    Raises:
        Misuse: A cell is not a number.
    """
    for number, line in islice(_iterate_lines(path), first, None):
        try:
            yield np.array([float(cell) for cell in line])
        except ValueError:
            column = next(column for column, cell in enumerate(line) if not _is_number(cell))
            message = (
                f"'{printable(line[column][:40])}' in the column '{printable(names[column])}' is not a number"
            )
            hint = "classes are numbered from 0, in the order of the model's scores"
            raise Misuse(message, where=f"{path}:{number}", hint=hint) from None


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
