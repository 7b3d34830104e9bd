"""Activations: the outputs of a model's layers for one input, measured as they are computed.

Each format runs and watches its models itself (`ActivationRequest` goes in, `ActivationRun` comes out). This
module holds the parts that all formats share: the file of values, and the facts.
"""

from __future__ import annotations

import contextlib
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from explorer.base.units import many_text
from explorer.engine.progress import Cancel, OnProgress, stop_if
from explorer.engine.runtime.input_files import InputArrays, read_input
from explorer.engine.values.figures.rank_search import RankSearch
from explorer.engine.values.numbers import Numbers, file_type
from explorer.engine.values.sample_statistics import KEPT, OutputSamples
from explorer.engine.values.statistics import measure
from explorer.engine.values.weights import check_axis, statistics_rows
from explorer.facts import Layer, Progress
from explorer.facts.values import Activations, StatisticsRow, TensorStats
from explorer.host import output_files
from explorer.host.output_files import atomic_write
from explorer.settings.statistics import EVERYTHING, AskedStatistics, Choice


class Backward(Struct, frozen=True):
    """The start of the gradient that flows back through a model: a loss of its outputs, or a given gradient.

    Attributes:
        loss: 'sum' of all outputs; 'mse', mean squared distance of the outputs to a target; 'cross-entropy'
            of the first output, classes on axis 1 (or the only one).
        target: For 'mse' an array like the first output, for 'cross-entropy' the classes; None draws it.
        gradient: The gradient at the first output, in place of a loss.
    """

    loss: str = "sum"
    target: np.ndarray[Any, Any] | None = None
    gradient: np.ndarray[Any, Any] | None = None


class ActivationRequest(Struct, frozen=True):
    """The input of a run, and the layers to watch.

    Attributes:
        layers: Globs; empty means every layer.
        given: The user's values; None for seeded random values.
        seed: Seed of random values.
        take: Called with every output of a layer, the number of the layer's call, and a name for files: the
            path of the layer, with a number if it has several outputs. The numbers are read before it
            returns.
        step: Called with the number of finished steps and of all steps; raises `Cancelled` to stop.
        batch: Samples of `given` that the model runs at a time; None: as many as it takes.
        begin: Called with the number of runs before the first one; `take` is then called for the same layers
            in every run.
        kinds: Operators or module types of layers; empty means all.
        backward: The start of the gradient; then gradients are taken in place of outputs.
        take_weight: `take` for the gradients of parameters, once a run, by their names.
    """

    layers: tuple[str, ...]
    given: InputArrays | None
    seed: int
    take: Callable[[Numbers, int, str], None]
    step: Callable[[int, int], None]
    batch: int | None = None
    begin: Callable[[int], None] = lambda runs: None
    kinds: tuple[str, ...] = ()
    backward: Backward | None = None
    take_weight: Callable[[Numbers, int, str], None] = lambda numbers, call, name: None


class ActivationRun(Struct, frozen=True):
    """The outcome of a run.

    Attributes:
        inputs: The origin of each input, in words.
        skipped: Layers without output, each with the reason.
        sizes: Types and shapes of inputs that came from a file.
    """

    inputs: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)


class ActivationArchive:
    """An .npz file that is written entry by entry."""

    def __init__(self, path: str) -> None:
        self._file = output_files.binary(path)
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)
        self._names: set[str] = set()

    def __enter__(self) -> ActivationArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def add(self, name: str, numbers: Numbers) -> None:
        """Writes one tensor, a slab at a time.

        Types that numpy's files have no word for become the nearest that holds every value: bfloat16 and
        float8 float32, int4 int8.
        """
        free, number = name, 2
        while free in self._names:
            free, number = f"{name}#{number}", number + 1
        self._names.add(free)
        kind = file_type(numbers.dtype)
        header = {"descr": kind.str, "fortran_order": False, "shape": numbers.shape}
        # the date of an entry is fixed: the same values make the same file
        entry = zipfile.ZipInfo(f"{free}.npy", (1980, 1, 1, 0, 0, 0))
        with self._zip.open(entry, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for slab in numbers.slabs():
                file.write(np.ascontiguousarray(slab.astype(kind, copy=False)).view(np.uint8).data)


class _Collector(Struct):
    """Measures the outputs of layers, and writes them if asked; keeps none."""

    options: AskedStatistics
    choices: Sequence[Choice]
    archive: ActivationArchive | None
    cancel: Cancel
    on_progress: OnProgress
    runs: int = 1
    measured: list[TensorStats] = field(default_factory=list)
    samples: dict[tuple[str, int], OutputSamples] = field(default_factory=dict)
    held: int = 0
    weights: set[str] = field(default_factory=set)
    again: str = ""
    searches: Sequence[RankSearch] = ()
    searched: dict[tuple[str, int], OutputSamples] = field(default_factory=dict)

    def begin(self, runs: int) -> None:
        self.runs = runs

    def take(self, numbers: Numbers, call: int, name: str) -> None:
        run = 0
        if self.runs == 1:
            self.measured.append(
                measure(
                    numbers,
                    bins=self.options.bins,
                    call=call,
                    choices=self.choices,
                    axis=self.options.axis,
                    cancel=self.cancel,
                )
            )
        else:
            samples = self.samples.get((name, call))
            if samples is None:
                samples = self.samples[name, call] = OutputSamples(numbers, self.choices, self.options.axis)
            run = samples.runs
            self.held -= samples.held
            samples.add(numbers, KEPT - self.held - samples.held, self.cancel)
            self.held += samples.held
        if self.archive is not None:
            called = f"{name}#{call + 1}" if call else name
            self.archive.add(f"{called}@{run + 1}" if self.runs > 1 else called, numbers)

    def take_weight(self, numbers: Numbers, call: int, name: str) -> None:
        self.weights.add(name)
        self.take(numbers, call, name)

    def step(self, done: int, total: int) -> None:
        stop_if(self.cancel)
        if self.on_progress is not None:
            self.on_progress(Progress(f"running the layers{self.again}", done, total))

    def search(self, run: Callable[[ActivationRequest], object], request: ActivationRequest) -> None:
        """Runs the same samples again until the chosen quantiles are exact."""
        searches = {
            key: search for key, samples in self.samples.items() if (search := samples.search()) is not None
        }
        self.searches = list(searches.values())
        take = self.take_again
        once_more = replace(request, take=take, take_weight=take, begin=lambda runs: None)
        self.again = " again, for exact quantiles"
        while open_ := {key: search for key, search in searches.items() if not search.done}:
            self.searched = {key: self.samples[key] for key in open_}
            for search in open_.values():
                search.begin()
            run(once_more)
            for search in open_.values():
                search.end()

    def take_again(self, numbers: Numbers, call: int, name: str) -> None:
        samples = self.searched.get((name, call))
        if samples is not None:
            samples.search_in(numbers, self.cancel)

    def found(self) -> tuple[TensorStats, ...]:
        """The figures of every output, in the order in which they came first."""
        return (
            *self.measured,
            *(
                samples.stats(self.options.bins, call, self.cancel)
                for (_, call), samples in self.samples.items()
            ),
        )

    def rows(
        self, tensor_stats: Sequence[TensorStats], layers: Sequence[Layer], backward: Backward | None
    ) -> Iterator[StatisticsRow]:
        """One row per figure: first of outputs (or of gradients), then of weights."""
        outputs: list[TensorStats] = []
        weights: list[TensorStats] = []
        for stats in tensor_stats:
            (weights if stats.tensor.name in self.weights else outputs).append(stats)
        role = "activation" if backward is None else "gradient"
        for name, some in ((role, outputs), ("weight gradient", weights)):
            yield from statistics_rows(some, layers, name, self.options.axis)

    def each_run(self) -> tuple[str, ...]:
        """A note on gradients of weights, if there are several runs."""
        if self.runs == 1 or not self.weights:
            return ()
        return (
            f"gradients of weights are those of each of the {self.runs:,} runs by itself, not of their sum",
        )


def activations(
    run: Callable[[ActivationRequest], ActivationRun],
    layers: Sequence[str] = (),
    *,
    source: str = "",
    options: AskedStatistics = EVERYTHING,
    rows: Sequence[Layer] = (),
    input: str | None = None,
    batch: int | None = None,
    seed: int = 0,
    backward: Backward | None = None,
    output: str | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Activations:
    """Statistics of the outputs of a model's layers, or of the gradients of outputs and weights.

    Args:
        run: Runs the model; supplied by its format.
        layers: Globs over paths of layers; empty means every one.
        source: The user's name for the model.
        options: The kinds of layers, and the additional statistics.
        rows: The rows of the model's analysis.
        input: An .npy or .npz file with the input; None draws it. If the file has several times the samples
            that the model takes, the figures cover all of them.
        batch: Samples to run at a time; None: as many as the model takes.
        seed: Seed of the drawn input.
        backward: The start of the gradient; None runs forward only.
        output: An .npz file for the values; None discards them.
        overwrite: Whether an existing file may be replaced.
        on_progress: Called with the number of layers that have run.
        cancel: Called at every layer; True stops, and nothing is written.

    Raises:
        Misuse: The input does not fit, a glob or kind matches nothing, or `output` cannot be written.
        BadModel: The model fails before any of these layers has run.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    input_arrays = None if input is None else read_input(input)
    with _archive(output, overwrite) as archive:
        collector = _Collector(options, options.choices(), archive, cancel, on_progress)
        hooks = collector.take, collector.step, batch, collector.begin, options.kinds
        request = ActivationRequest(
            tuple(layers), input_arrays, seed, *hooks, backward, collector.take_weight
        )
        ran = run(request)
        collector.search(run, request)
        tensor_stats = collector.found()
        check_axis(tensor_stats, options.axis)
    return Activations(
        source,
        ran.inputs,
        tensor_stats,
        output or "",
        ran.skipped,
        time.perf_counter() - started,
        ran.sizes,
        (*_rough(tensor_stats, collector), *collector.each_run()),
        tuple(collector.rows(tensor_stats, rows, backward)),
    )


def _rough(tensor_stats: Sequence[TensorStats], collector: _Collector) -> tuple[str, ...]:
    """A note on the figures that are not exact, if there are any."""
    rough = sum(not stats.quantiles_exact for stats in tensor_stats)
    steady = sum(search.steady for search in collector.searches)
    if not max(rough, steady):
        return ()
    rough_figures = "quantiles and histograms"
    if steady:
        rough_figures = (
            "histograms" if collector.options.axis is None else "quantiles over all indices, and histograms,"
        )
    note = (
        f"{rough_figures} of {many_text(max(rough, steady), 'output')} are to 0.4 % of a value, as their"
        f" numbers over all samples do not fit in {KEPT >> 20} MiB; all else is exact"
    )
    unsteady = len(collector.searches) - steady
    if unsteady:
        note += f"; {many_text(unsteady, 'output')} had other numbers in a further run, which finds quantiles"
    return (note if steady or unsteady else f"{note}, and chosen quantiles are, by further runs (--stat)",)


@contextlib.contextmanager
def _archive(output: str | None, overwrite: bool) -> Iterator[ActivationArchive | None]:
    if output is None:
        yield None
        return
    with atomic_write(output, overwrite=overwrite) as temporary, ActivationArchive(temporary) as archive:
        yield archive
