"""Calibration samples: model inputs, read one sample at a time from a user's files or drawn at random.

Each sample is read when it is needed, so ten thousand images take the memory of one.
"""

from __future__ import annotations

import contextlib
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import IO, Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import printable
from explorer.engine.graph.model import Model
from explorer.engine.runtime.input_files import (
    Array,
    InputArrays,
    InputSpec,
    check_unpacked,
    count_run_rows,
    read_input,
)
from explorer.engine.runtime.random_inputs import InputShapes, draw, plan_inputs
from explorer.facts import Shape
from explorer.host import input_files

Feeds = dict[str, Array]

_SUFFIXES = (".npy", ".npz")


class Samples(Struct, frozen=True):
    """The inputs of each sample by name. A `Samples` object can be iterated repeatedly.

    Attributes:
        text: Source of the samples: 'calib.npz, 64 samples', 'random inputs, seeds 0 to 7'.
        count: Number of samples.
        each: Function that returns an iterator over the samples.
    """

    text: str
    count: int
    each: Callable[[], Iterator[Feeds]]

    def __iter__(self) -> Iterator[Feeds]:
        return self.each()

    def check(self) -> None:
        """Reads every sample once to check it.

        Raises:
            Misuse: A sample holds NaN or Inf, or cannot be read.
        """
        for _ in self:
            pass

    def sizes(self, model: Model) -> dict[str, int]:
        """Returns the sizes of the symbolic dimensions of the model's inputs, taken from the first sample."""
        first = next(iter(self), {})
        return {
            dim: size
            for value in model.graph.required_inputs
            if value.name in first
            for dim, size in zip(value.shape or (), first[value.name].shape, strict=False)
            if isinstance(dim, str)
        }


def random_samples(
    model: Model,
    count: int,
    seed: int = 0,
    dims: Mapping[str, int] | None = None,
    input_shapes: InputShapes | None = None,
) -> Samples:
    """Draws samples of the types and ranges of the model's inputs, with consecutive seeds.

    Raises:
        Misuse: A size contradicts the model, as for `plan_inputs`.
    """
    rules = plan_inputs(model, dims, input_shapes)
    seeds = range(seed, seed + count)
    seed_text = f"seed {seed}" if count == 1 else f"seeds {seed} to {seed + count - 1}"
    return Samples(f"random inputs, {seed_text}", count, lambda: (draw(rules, s) for s in seeds))


def read_samples(
    model: Model, path: str, dims: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
) -> Samples:
    """Opens the samples in an .npy or .npz file, or in all such files of a folder in order of their names.

    An array with one more axis than its input has its samples along the first axis. If the first axis of an
    input is open, or the array's size is a multiple of the input's, the array is cut along that axis. An
    array with a single sample is repeated for every sample of the other arrays.

    Args:
        model: The model.
        path: Path of the file or the folder.
        dims: Sizes of symbolic dimensions. A dimension without a size gets its size from the file; as the
            first axis, it has size 1.
        input_shapes: Shapes, and types if not None, that replace the declared ones.

    Raises:
        Misuse: The file is missing, does not fit the model, or holds NaN or Inf.
    """
    overrides, sizes = input_shapes or {}, dims or {}
    specs = [
        InputSpec(
            v.name,
            dtype or v.dtype,
            shape and tuple(sizes.get(d, d) if isinstance(d, str) else d for d in shape),
        )
        for v in model.graph.required_inputs
        for dtype, shape in (overrides.get(v.name, (None, v.shape)),)
    ]
    files = [_SampleFile(name, specs) for name in _list_sample_files(path)]
    count = sum(file.count for file in files)
    text = f"{os.path.basename(os.path.normpath(path))}, {count:,} sample{'s' * (count != 1)}"
    return Samples(text, count, lambda: (feeds for file in files for feeds in file))


def _list_sample_files(path: str) -> list[str]:
    """Returns the paths of the .npy and .npz files in a folder, or the path itself if it is no folder.

    Raises:
        Misuse: The folder cannot be read, or has no such file.
    """
    try:
        names = sorted(name for name in input_files.list_names(path) if name.endswith(_SUFFIXES))
    except (NotADirectoryError, FileNotFoundError):
        return [path]
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    if not names:
        raise Misuse("this folder has no .npy or .npz file", where=path, hint="numpy.savez writes one")
    return [os.path.join(path, name) for name in names]


LABELS = ("labels", "label", "y", "targets", "target")
"""Usual names of label arrays, which are not model inputs."""


class ArrayEntry(Struct, frozen=True):
    """An array of a file: its header, and its division into samples.

    Attributes:
        key: Name of the array's member in the archive ('x.npy'), or '' for a file with one array.
        dtype: Type of the elements.
        fortran: Whether the first axis varies fastest in the file.
        array_shape: Shape of the array.
        rows: Rows along the first axis in one sample.
        shape: Shape of a sample.
        count: Number of samples. A single sample is repeated.
    """

    key: str
    dtype: np.dtype[Any]
    fortran: bool
    array_shape: tuple[int, ...]
    rows: int = 1
    shape: tuple[int, ...] = ()
    count: int = 1


class _SampleFile:
    """A file of samples that was checked against the model's inputs."""

    def __init__(self, path: str, specs: Sequence[InputSpec]) -> None:
        self.path = path
        entry_by_name = read_headers(path)
        inputs = {spec.name for spec in specs}
        if inputs <= entry_by_name.keys():
            # a data set may hold other arrays, such as labels
            entry_by_name = {spec.name: entry_by_name[spec.name] for spec in specs}
        else:
            entry_by_name = {
                n: entry for n, entry in entry_by_name.items() if n in inputs or n not in LABELS
            } or entry_by_name
            if len(specs) == 1 and len(entry_by_name) == 1:
                entry_by_name = {specs[0].name: next(iter(entry_by_name.values()))}
        entries = {s.name: _divide(entry_by_name[s.name], s.shape) for s in specs if s.name in entry_by_name}
        # broadcast arrays take no memory, and `fit` reports their shape errors as for input files
        placeholders = {
            name: np.broadcast_to(
                np.zeros((), entry.dtype), entries[name].shape if name in entries else entry.array_shape
            )
            for name, entry in entry_by_name.items()
        }
        InputArrays(path, placeholders).fit(specs)
        self.entries = entries
        if any(not entry.count for entry in entries.values()):
            raise Misuse("there is no sample in it", where=path)
        self.count = max((entry.count for entry in entries.values()), default=1)
        if mismatched := [n for n, entry in entries.items() if entry.count not in (1, self.count)]:
            largest = next(n for n, entry in entries.items() if entry.count == self.count)
            raise Misuse(
                f"there are {self.count:,} samples of '{printable(largest)}' and "
                f"{entries[mismatched[0]].count:,} of '{printable(mismatched[0])}'",
                where=path,
            )

    def __iter__(self) -> Iterator[Feeds]:
        parts = {name: self._iterate_input(name, entry) for name, entry in self.entries.items()}
        for _ in range(self.count):
            yield {name: next(part) for name, part in parts.items()}

    def _iterate_input(self, name: str, entry: ArrayEntry) -> Iterator[Array]:
        """Yields the samples of one input. A single sample is repeated without end.

        Raises:
            Misuse: A sample has NaN or Inf, or the file is cut short.
        """
        index = 0
        for index, value in enumerate(iterate_samples(self.path, entry)):
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise Misuse(
                    f"the input '{printable(name)}' has NaN or Inf in sample {index + 1:,}", where=self.path
                )
            yield value
        if entry.count == 1:
            while True:
                yield value
        if index + 1 != entry.count:
            raise Misuse(f"the input '{printable(name)}' is cut short there", where=self.path)


def _divide(entry: ArrayEntry, shape: Shape | None) -> ArrayEntry:
    """Returns the entry divided into samples of an input of this shape.

    An array that cannot be divided is one sample.
    """
    array_shape = entry.array_shape
    single_sample = replace(entry, shape=array_shape)
    if shape is None or len(array_shape) - len(shape) not in (0, 1):
        return single_sample
    if len(array_shape) > len(shape):
        if _matches_shape(array_shape[1:], shape):
            return replace(entry, shape=array_shape[1:], count=array_shape[0])
        return single_sample
    rows = count_run_rows(array_shape, shape, 1)
    if rows is None:
        return single_sample
    return replace(entry, rows=rows, shape=(rows, *array_shape[1:]), count=array_shape[0] // rows)


def _matches_shape(sizes: tuple[int, ...], shape: Shape) -> bool:
    return all(size == d or not isinstance(d, int) for size, d in zip(sizes, shape, strict=True))


def read_headers(path: str) -> dict[str, ArrayEntry]:
    """Reads the headers of the arrays in a file, by name ('' for a file with one array).

    Raises:
        Misuse: The file cannot be read, or is neither .npy nor .npz.
    """
    try:
        with input_files.open_binary(path) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _read_header("", file)}
        with input_files.open_archive(path) as archive:
            check_unpacked(archive, path)
            entries = {}
            for name in archive.namelist():
                with archive.open(name) as entry:
                    entries[name.removesuffix(".npy")] = _read_header(name, entry)
            return entries
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    except Misuse:
        raise
    except Exception:
        # a broken archive or header can raise any exception
        reason, hint = "this is not a .npy or .npz file with plain arrays", "numpy.save writes one"
        raise Misuse(reason, where=path, hint=hint) from None


def _read_header(name: str, file: IO[bytes]) -> ArrayEntry:
    """Reads the header of an .npy file, and leaves the file position after it.

    Raises:
        ValueError: The elements are not plain numbers.
    """
    version = np.lib.format.read_magic(file)
    read_header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[
        version
    ]
    shape, fortran, dtype = read_header(file)
    if dtype.hasobject or dtype.names or any(size < 0 for size in shape):
        raise ValueError("no plain numbers")
    return ArrayEntry(name, dtype, fortran, tuple(int(size) for size in shape))


def iterate_samples(path: str, entry: ArrayEntry) -> Iterator[Array]:
    """Yields the samples of an array in order, one at a time; an array in column order is read whole.

    Raises:
        Misuse: The file cannot be read, or is cut short.
    """
    if entry.fortran and entry.count > 1:
        # the first axis varies fastest, so samples are not contiguous
        array = read_input(path).arrays[entry.key.removesuffix(".npy")]
        rows = entry.rows
        for index in range(entry.count):
            yield np.ascontiguousarray(array[index * rows : (index + 1) * rows]).reshape(entry.shape)
        return
    try:
        with _open_array(path, entry.key) as file:
            _read_header(entry.key, file)
            size = prod(entry.shape) * entry.dtype.itemsize
            for _ in range(entry.count):
                buffer = file.read(size)
                if len(buffer) != size:
                    raise Misuse("the file is cut short", where=path)
                shape = entry.shape[::-1] if entry.fortran else entry.shape
                value = np.frombuffer(buffer, entry.dtype).reshape(shape)
                yield value.T if entry.fortran else value
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        raise Misuse(f"cannot be read: {error}", where=path) from None


@contextlib.contextmanager
def _open_array(path: str, key: str) -> Iterator[IO[bytes]]:
    """Opens the file of an array, or its archive member if `key` is not empty."""
    if not key:
        with input_files.open_binary(path) as file:
            yield file
        return
    with input_files.open_archive(path) as archive, archive.open(key) as file:
        yield file
