"""What the layers of a model put out, for one input: measured when it is made, kept only in a file.

How a model is run and watched is its format's business (`Asked` goes in, `Ran` comes out). Here is what
all formats share: the input that the user gives, the file that the values go to, and the facts.
"""

from __future__ import annotations

import contextlib
import os
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.base.errors import Cancelled, Misuse, nearest
from explorer.base.units import printable, shape_text
from explorer.engine.values.numbers import Array, Numbers
from explorer.engine.values.statistics import measure
from explorer.facts import Progress, Shape
from explorer.facts.values import Activations, TensorStats
from explorer.host.output_files import replacing

__all__ = ["Archive", "Asked", "Given", "Ran", "Wanted", "activations", "read_input"]

OnProgress = Callable[[Progress], None] | None
Cancel = Callable[[], bool] | None


class Wanted(Struct, frozen=True):
    """An input as the model takes it: an int in `shape` is fixed, anything else open."""

    name: str
    dtype: str | None
    shape: Shape | None


class Given(Struct, frozen=True):
    """Values of inputs that the user gave in a file, by the names in it ('' for a file of one array)."""

    path: str
    arrays: Mapping[str, Array]

    def fit(self, inputs: Sequence[Wanted]) -> dict[str, Array]:
        """The arrays by the model's names.

        Raises:
            Misuse: An input is missing or unknown, or an array has another type or shape.
        """
        names = [wanted.name for wanted in inputs]
        arrays = dict(self.arrays)
        if len(names) == 1 and len(arrays) == 1:
            arrays = {names[0]: next(iter(arrays.values()))}
        if "" in arrays:
            raise Misuse(
                f"the model takes {len(names)} inputs and this is one array",
                where=self.path,
                hint=f"give an .npz with {', '.join(names)}",
            )
        for name in arrays:
            if name not in names:
                raise Misuse(f"the model has no input '{name}'", where=self.path, hint=nearest(name, names))
        for wanted in inputs:
            if wanted.name not in arrays:
                raise Misuse(f"it has no values for the input '{wanted.name}'", where=self.path)
            self._check(wanted, arrays[wanted.name])
        return arrays

    def _check(self, wanted: Wanted, array: Array) -> None:
        label = f"the input '{wanted.name}'"
        if wanted.dtype is not None and str(array.dtype) != wanted.dtype:
            raise Misuse(
                f"{label} is {array.dtype} there and {wanted.dtype} in the model",
                where=self.path,
                hint=f"convert it with .astype('{wanted.dtype}')",
            )
        shape = wanted.shape
        if shape is not None and (
            len(shape) != array.ndim
            or any(isinstance(d, int) and d != s for d, s in zip(shape, array.shape, strict=True))
        ):
            texts = shape_text(array.shape), shape_text(shape)
            raise Misuse(f"{label} is {texts[0]} there and {texts[1]} in the model", where=self.path)

    def text(self, name: str, array: Array) -> str:
        """For the report: 'x: float32 [1, 3, 224, 224], from photo.npy'."""
        return f"{printable(name)}: {array.dtype} {shape_text(array.shape)}, from {self.path}"


class Asked(Struct, frozen=True):
    """What a format is asked to run and to watch.

    Attributes:
        layers: Globs; empty means every layer.
        given: The user's values; None for seeded random ones.
        seed: Of those.
        take: Called with everything that a layer puts out, which call of the layer it was, and what to
            call it in a file: the path of the layer, with a number where it puts out several. The numbers
            are read before it returns.
        step: Called with how much is done and how much there is; raises `Cancelled` to stop.
    """

    layers: tuple[str, ...]
    given: Given | None
    seed: int
    take: Callable[[Numbers, int, str], None]
    step: Callable[[int, int], None]


class Ran(Struct, frozen=True):
    """What came of it: how each input came about, what was asked for and gave nothing, and why, and types and
    shapes of the inputs that came from a file.
    """

    inputs: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)


_UNPACKED = 64 << 20
"""Bytes that the arrays of an archive may take when it holds less than a hundredth of that."""


def read_input(path: str) -> Given:
    """The arrays in an .npy or .npz file; nothing in it is run.

    Raises:
        Misuse: It cannot be read, or is neither.
    """
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        # opening a pipe would wait for somebody to write into it
        raise Misuse("this is not a regular file", where=path, hint="numpy.save writes one")
    try:
        # arrays of Python objects are refused: unpickling them runs what their maker wants
        with open(path, "rb") as file:
            loaded: Any = np.load(file, allow_pickle=False)
            if isinstance(loaded, np.ndarray):
                return Given(path, {"": loaded})
            size = sum(entry.file_size for entry in loaded.zip.infolist())
            if size > max(_UNPACKED, 100 * os.path.getsize(path)):
                loaded.close()
                raise Misuse(f"its arrays would take {size:,} bytes unpacked", where=path)
            with loaded:
                found = {name: loaded[name] for name in loaded.files}
            # what is no array there is handed over as bytes
            if alien := [name for name, array in found.items() if not isinstance(array, np.ndarray)]:
                raise Misuse(
                    f"'{printable(alien[0])}' in it is no array", where=path, hint="numpy.savez writes one"
                )
            return Given(path, found)
    except OSError as error:
        raise Misuse(f"cannot be read: {error.strerror or error}", where=path) from None
    except Misuse:
        raise
    except Exception:
        # its header is a piece of Python's syntax, and its archive may be of any kind: a broken file raises
        # whatever its bytes happen to ask for
        raise Misuse(
            "this is no .npy or .npz file with plain arrays", where=path, hint="numpy.save writes one"
        ) from None


class Archive:
    """An .npz file that is written entry by entry."""

    def __init__(self, path: str) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
        self._names: set[str] = set()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()

    def add(self, name: str, numbers: Numbers) -> None:
        """Writes one tensor, a slab at a time.

        Types that numpy's files have no word for become the nearest that holds every value: bfloat16 and
        float8 float32, int4 int8.
        """
        free, number = name, 2
        while free in self._names:
            free, number = f"{name}#{number}", number + 1
        self._names.add(free)
        kind = _file_type(numbers.dtype)
        header = {"descr": kind.str, "fortran_order": False, "shape": numbers.shape}
        # the date of an entry is fixed: the same values make the same file
        entry = zipfile.ZipInfo(f"{free}.npy", (1980, 1, 1, 0, 0, 0))
        with self._zip.open(entry, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for slab in numbers.slabs():
                file.write(np.ascontiguousarray(slab.astype(kind, copy=False)).view(np.uint8).data)


def _file_type(dtype: str) -> np.dtype[Any]:
    """The type of an entry; numpy finds ml_dtypes' types by name once those are imported."""
    try:
        kind = np.dtype(dtype)
        if kind.type.__module__ == "numpy":
            return kind
    except TypeError:
        pass
    return np.dtype({"int": np.int8, "uin": np.uint8}.get(dtype[:3], np.float32))


class _Collector(Struct):
    """Takes what layers put out: measures it, writes it, forgets it."""

    bins: int
    archive: Archive | None
    cancel: Cancel
    on_progress: OnProgress
    found: list[TensorStats] = field(default_factory=list)

    def take(self, numbers: Numbers, call: int, name: str) -> None:
        self.found.append(measure(numbers, bins=self.bins, call=call, cancel=self.cancel))
        if self.archive is not None:
            self.archive.add(f"{name}#{call + 1}" if call else name, numbers)

    def step(self, done: int, total: int) -> None:
        if self.cancel is not None and self.cancel():
            raise Cancelled
        if self.on_progress is not None:
            self.on_progress(Progress("running the layers", done, total))


def activations(
    run: Callable[[Asked], Ran],
    layers: Sequence[str] = (),
    *,
    source: str = "",
    input: str | None = None,
    seed: int = 0,
    bins: int = 32,
    output: str | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Activations:
    """Statistics of what the layers of a model put out for one input.

    Args:
        run: Runs the model; from its format.
        layers: Globs over paths of layers; empty means every one.
        source: What the user calls the model.
        input: An .npy or .npz file with the input; None draws it.
        seed: Of the drawn input.
        bins: Intervals of a histogram.
        output: An .npz file for the values, which are otherwise forgotten.
        overwrite: Whether an existing file may be replaced.
        on_progress: Told how many layers have run.
        cancel: Asked at every layer; True stops, and nothing is written.

    Raises:
        Misuse: The input does not fit, a glob matches nothing, or `output` cannot be written.
        BadModel: The model fails before any of these layers has run.
        Cancelled: `cancel` said so.
    """
    started = time.perf_counter()
    given = None if input is None else read_input(input)
    with _archive(output, overwrite) as archive:
        collector = _Collector(bins, archive, cancel, on_progress)
        ran = run(Asked(tuple(layers), given, seed, collector.take, collector.step))
    return Activations(
        source,
        ran.inputs,
        tuple(collector.found),
        output or "",
        ran.skipped,
        time.perf_counter() - started,
        ran.sizes,
    )


@contextlib.contextmanager
def _archive(output: str | None, overwrite: bool) -> Iterator[Archive | None]:
    if output is None:
        yield None
        return
    with replacing(output, overwrite=overwrite) as temporary, Archive(temporary) as archive:
        yield archive
