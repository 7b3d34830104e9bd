"""Calibration samples: inputs of a model, one sample at a time, from a user's files or drawn.

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
    read_input,
    rows_of_run,
)
from explorer.engine.runtime.random_inputs import InputShapes, draw, plan_inputs
from explorer.facts import Shape
from explorer.host import input_files

Feeds = dict[str, Array]

_SUFFIXES = (".npy", ".npz")


class Samples(Struct, frozen=True):
    """The inputs of each sample by name; can be iterated repeatedly.

    Attributes:
        text: Source of the samples: 'calib.npz, 64 samples', 'random inputs, seeds 0 to 7'.
        count: Number of samples.
        each: Yields the samples.
    """

    text: str
    count: int
    each: Callable[[], Iterator[Feeds]]

    def __iter__(self) -> Iterator[Feeds]:
        return self.each()

    def check(self) -> None:
        """Reads every sample once to check it.

        Raises:
            Misuse: One holds NaN or Inf, or cannot be read.
        """
        for _ in self:
            pass

    def sizes(self, model: Model) -> dict[str, int]:
        """Sizes of symbolic dimensions of the model's inputs with the first sample."""
        first = next(iter(self), {})
        return {
            dim: size
            for value in model.graph.feeds
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
    """Samples drawn with consecutive seeds, of the types and ranges of the model's inputs.

    Raises:
        Misuse: As for `plan_inputs`.
    """
    planned = plan_inputs(model, dims, input_shapes)
    seeds = range(seed, seed + count)
    seed_text = f"seed {seed}" if count == 1 else f"seeds {seed} to {seed + count - 1}"
    return Samples(f"random inputs, {seed_text}", count, lambda: (draw(planned, at) for at in seeds))


def read_samples(
    model: Model, path: str, dims: Mapping[str, int] | None = None, input_shapes: InputShapes | None = None
) -> Samples:
    """Samples from an .npy or .npz file, or from all such files of a folder in order of name.

    An array with one more axis than its input has its samples along the first axis. An array whose first axis
    is open, or a multiple of the model's size, is cut along it. A single sample is used with every other
    sample.

    Args:
        model: The model.
        path: Path of the file or the folder.
        dims: Sizes of symbolic dimensions. Other dimensions have the size in the file; that of the first
            axis is 1.
        input_shapes: Shapes, and types if not None, in place of the declared ones.

    Raises:
        Misuse: There is no such file, it does not fit the model, or holds NaN or Inf.
    """
    overrides, sizes = input_shapes or {}, dims or {}
    specs = [
        InputSpec(
            v.name,
            dtype or v.dtype,
            shape and tuple(sizes.get(d, d) if isinstance(d, str) else d for d in shape),
        )
        for v in model.graph.feeds
        for dtype, shape in (overrides.get(v.name, (None, v.shape)),)
    ]
    files = [_Archive(name, specs) for name in _files(path)]
    count = sum(file.count for file in files)
    text = f"{os.path.basename(os.path.normpath(path))}, {count:,} sample{'s' * (count != 1)}"
    return Samples(text, count, lambda: (feeds for file in files for feeds in file))


def _files(path: str) -> list[str]:
    try:
        names = sorted(name for name in input_files.names(path) if name.endswith(_SUFFIXES))
    except (NotADirectoryError, FileNotFoundError):
        return [path]
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    if not names:
        raise Misuse("this folder has no .npy or .npz file", where=path, hint="numpy.savez writes one")
    return [os.path.join(path, name) for name in names]


LABELS = ("labels", "label", "y", "targets", "target")
"""Usual names of arrays of labels, which are no inputs in a file of samples."""


class ArrayEntry(Struct, frozen=True):
    """An array of a file: its header, and its division into samples.

    Attributes:
        key: Its name in the archive; '' for a file of one array.
        rows: Rows along the first axis for one sample.
        shape: Shape of a sample.
        count: Number of samples; a single one serves all.
    """

    key: str
    dtype: np.dtype[Any]
    fortran: bool
    whole: tuple[int, ...]
    rows: int = 1
    shape: tuple[int, ...] = ()
    count: int = 1


class _Archive:
    """A file of samples that fits the model."""

    def __init__(self, path: str, specs: Sequence[InputSpec]) -> None:
        self.path = path
        byname = headers(path)
        inputs = {spec.name for spec in specs}
        if inputs <= byname.keys():
            # other arrays of a data set, such as labels, are no inputs
            byname = {spec.name: byname[spec.name] for spec in specs}
        else:
            byname = {n: entry for n, entry in byname.items() if n in inputs or n not in LABELS} or byname
            if len(specs) == 1 and len(byname) == 1:
                byname = {specs[0].name: next(iter(byname.values()))}
        cut = {s.name: _cut(byname[s.name], s.shape) for s in specs if s.name in byname}
        # a broadcast array without memory gives the usual message of input files for a misfit
        like = {
            name: np.broadcast_to(np.zeros((), entry.dtype), cut[name].shape if name in cut else entry.whole)
            for name, entry in byname.items()
        }
        InputArrays(path, like).fit(specs)
        self.entries = cut
        if any(not entry.count for entry in cut.values()):
            raise Misuse("there is no sample in it", where=path)
        self.count = max((entry.count for entry in cut.values()), default=1)
        if odd := [n for n, entry in cut.items() if entry.count not in (1, self.count)]:
            most = next(n for n, entry in cut.items() if entry.count == self.count)
            raise Misuse(
                f"there are {self.count:,} samples of '{printable(most)}' and "
                f"{cut[odd[0]].count:,} of '{printable(odd[0])}'",
                where=path,
            )

    def __iter__(self) -> Iterator[Feeds]:
        parts = {name: self._input_samples(name, entry) for name, entry in self.entries.items()}
        for _ in range(self.count):
            yield {name: next(part) for name, part in parts.items()}

    def _input_samples(self, name: str, entry: ArrayEntry) -> Iterator[Array]:
        """The samples of one input; a single one is repeated."""
        at = 0
        for at, value in enumerate(pieces(self.path, entry)):
            if value.dtype.kind == "f" and not np.isfinite(value).all():
                raise Misuse(
                    f"the input '{printable(name)}' has NaN or Inf in sample {at + 1:,}", where=self.path
                )
            yield value
        if entry.count == 1:
            while True:
                yield value
        if at + 1 != entry.count:
            raise Misuse(f"the input '{printable(name)}' is cut short there", where=self.path)


def _cut(entry: ArrayEntry, shape: Shape | None) -> ArrayEntry:
    """The entry with its division into samples of an input of this shape; unchanged if it cannot be cut."""
    whole = entry.whole
    plain = replace(entry, shape=whole)
    if shape is None or len(whole) - len(shape) not in (0, 1):
        return plain
    if len(whole) > len(shape):
        return replace(entry, shape=whole[1:], count=whole[0]) if _fits(whole[1:], shape) else plain
    rows = rows_of_run(whole, shape, 1)
    if rows is None:
        return plain
    return replace(entry, rows=rows, shape=(rows, *whole[1:]), count=whole[0] // rows)


def _fits(whole: tuple[int, ...], shape: Shape) -> bool:
    return all(size == d or not isinstance(d, int) for size, d in zip(whole, shape, strict=True))


def headers(path: str) -> dict[str, ArrayEntry]:
    """The headers of the arrays in a file, by name; '' for a file of one array.

    Raises:
        Misuse: It cannot be read, or is neither .npy nor .npz.
    """
    try:
        with input_files.binary(path) as file:
            if not zipfile.is_zipfile(file):
                file.seek(0)
                return {"": _header("", file)}
        with input_files.archive(path) as archive:
            check_unpacked(archive, path)
            entries = {}
            for name in archive.namelist():
                with archive.open(name) as entry:
                    entries[name.removesuffix(".npy")] = _header(name, entry)
            return entries
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    except Misuse:
        raise
    except Exception:
        # a broken archive or header can raise any exception
        reason, hint = "this is no .npy or .npz file with plain arrays", "numpy.save writes one"
        raise Misuse(reason, where=path, hint=hint) from None


def _header(name: str, file: IO[bytes]) -> ArrayEntry:
    """The header of an .npy file; the file position is then after it."""
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
    shape, fortran, dtype = read(file)
    if dtype.hasobject or dtype.names or any(size < 0 for size in shape):
        raise ValueError("no plain numbers")
    return ArrayEntry(name, dtype, fortran, tuple(int(size) for size in shape))


def pieces(path: str, entry: ArrayEntry) -> Iterator[Array]:
    """The samples of an array in order, read one at a time."""
    if entry.fortran and entry.count > 1:
        # the first axis varies fastest, so samples are not contiguous
        whole = read_input(path).arrays[entry.key.removesuffix(".npy")]
        rows = entry.rows
        for at in range(entry.count):
            yield np.ascontiguousarray(whole[at * rows : (at + 1) * rows]).reshape(entry.shape)
        return
    try:
        with _opened(path, entry.key) as file:
            _header(entry.key, file)
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
def _opened(path: str, key: str) -> Iterator[IO[bytes]]:
    """The open file of an array, from an archive if it has a name there."""
    if not key:
        with input_files.binary(path) as file:
            yield file
        return
    with input_files.archive(path) as archive, archive.open(key) as file:
        yield file
