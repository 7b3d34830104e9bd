"""Activations: what the layers of a model put out for one input, measured when it is made.

How a model is run and watched is its format's business (`ActivationRequest` goes in, `ActivationRun` comes
out). Here is what all formats share: the file that the values go to, and the facts.
"""

from __future__ import annotations

import contextlib
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.input_files import InputArrays, read_input
from explorer.engine.values.numbers import Numbers
from explorer.engine.values.statistics import measure
from explorer.facts import Progress
from explorer.facts.values import Activations, TensorStats
from explorer.host.output_files import atomic_write


class ActivationRequest(Struct, frozen=True):
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
    given: InputArrays | None
    seed: int
    take: Callable[[Numbers, int, str], None]
    step: Callable[[int, int], None]


class ActivationRun(Struct, frozen=True):
    """What came of it: how each input came about, what was asked for and gave nothing, and why, and types and
    shapes of the inputs that came from a file.
    """

    inputs: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)


class ActivationArchive:
    """An .npz file that is written entry by entry."""

    def __init__(self, path: str) -> None:
        self._zip = zipfile.ZipFile(path, "w", zipfile.ZIP_STORED)
        self._names: set[str] = set()

    def __enter__(self) -> ActivationArchive:
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
    archive: ActivationArchive | None
    cancel: Cancel
    on_progress: OnProgress
    found: list[TensorStats] = field(default_factory=list)

    def take(self, numbers: Numbers, call: int, name: str) -> None:
        self.found.append(measure(numbers, bins=self.bins, call=call, cancel=self.cancel))
        if self.archive is not None:
            self.archive.add(f"{name}#{call + 1}" if call else name, numbers)

    def step(self, done: int, total: int) -> None:
        stop_if(self.cancel)
        if self.on_progress is not None:
            self.on_progress(Progress("running the layers", done, total))


def activations(
    run: Callable[[ActivationRequest], ActivationRun],
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
        ran = run(ActivationRequest(tuple(layers), given, seed, collector.take, collector.step))
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
def _archive(output: str | None, overwrite: bool) -> Iterator[ActivationArchive | None]:
    if output is None:
        yield None
        return
    with atomic_write(output, overwrite=overwrite) as temporary, ActivationArchive(temporary) as archive:
        yield archive
