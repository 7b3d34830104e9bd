"""Activations: the outputs of a model's layers for one input, measured as they are computed.

Each format runs its models with its own code, which takes an `ActivationRequest` and returns an
`ActivationRun`. This module contains the parts that all formats share: the file of values, and the
statistics.
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
from explorer.engine.values.numbers import Numbers, choose_file_type
from explorer.engine.values.sample_statistics import MAX_STORED_BYTES, OutputSamples
from explorer.engine.values.statistics import measure
from explorer.engine.values.weights import build_statistics_rows, check_axis
from explorer.facts import Layer, Progress
from explorer.facts.values import Activations, StatisticsRow, TensorStats
from explorer.host import output_files
from explorer.host.output_files import write_atomically
from explorer.settings.statistics import EVERYTHING, Choice, RequestedStatistics


class Backward(Struct, frozen=True):
    """The start of a backward pass: a loss of the model's outputs, or a given gradient.

    Attributes:
        loss: 'sum' of all outputs; 'mse', the mean squared difference between the first output and a target;
            or 'cross-entropy' of the first output, with classes on axis 1 (or on the only axis).
        target: For 'mse' an array like the first output, for 'cross-entropy' the classes, or None to draw the
            target.
        gradient: Gradient of the first output, which replaces the loss, or None.
    """

    loss: str = "sum"
    target: np.ndarray[Any, Any] | None = None
    gradient: np.ndarray[Any, Any] | None = None


class ActivationRequest(Struct, frozen=True):
    """The input of a run, and the layers to observe.

    Attributes:
        layers: Globs over paths of layers; empty means every layer.
        user_inputs: The user's input values, or None for seeded random values.
        seed: Seed of random values.
        take: Function called with every output of a layer, the index of the layer's call, and a name for
            files. The name is the path of the layer, with an index if it has several outputs. The function
            reads the numbers before it returns.
        step: Function called with the number of finished steps and of all steps. It may raise `Cancelled` to
            stop.
        batch: Samples of `user_inputs` that the model runs at a time, or None for as many as it takes.
        begin: Function called with the number of runs before the first run. Each run calls `take` for the
            same layers.
        kinds: Operators or module types of the layers; empty means all.
        backward: Start of a backward pass, or None. If set, gradients are measured instead of outputs.
        take_weight: Function called as `take`, with the gradients of parameters, once for each run.
    """

    layers: tuple[str, ...]
    user_inputs: InputArrays | None
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
        inputs: Descriptions of the inputs and their origins.
        skipped: Layers without output, each with the reason.
        sizes: Types and shapes of inputs that came from a file.
    """

    inputs: tuple[str, ...]
    skipped: tuple[tuple[str, str], ...] = ()
    sizes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)


class ActivationArchive:
    """An .npz file that is written one entry at a time."""

    def __init__(self, path: str) -> None:
        self._file = output_files.open_binary(path)
        self._zip = zipfile.ZipFile(self._file, "w", zipfile.ZIP_STORED)
        self._names: set[str] = set()

    def __enter__(self) -> ActivationArchive:
        return self

    def __exit__(self, *_: object) -> None:
        self._zip.close()
        self._file.close()

    def add(self, name: str, numbers: Numbers) -> None:
        """Writes one tensor, a slab at a time. A name that the file already has gets '#2', '#3' and so on.

        A type that .npy files do not support is replaced by the nearest wider type: float32 for bfloat16 and
        float8, int8 for int4.
        """
        unique_name, number = name, 2
        while unique_name in self._names:
            unique_name, number = f"{name}#{number}", number + 1
        self._names.add(unique_name)
        numpy_type = choose_file_type(numbers.dtype)
        header = {"descr": numpy_type.str, "fortran_order": False, "shape": numbers.shape}
        # entries have a fixed date, so that equal values give equal files
        entry = zipfile.ZipInfo(f"{unique_name}.npy", (1980, 1, 1, 0, 0, 0))
        with self._zip.open(entry, "w", force_zip64=True) as file:
            np.lib.format.write_array_header_2_0(file, header)
            for slab in numbers.slabs():
                file.write(np.ascontiguousarray(slab.astype(numpy_type, copy=False)).view(np.uint8).data)


class _Collector(Struct):
    """Measures the outputs of layers without storing them, and writes them to a file if requested.

    Attributes:
        options: The kinds of layers, and the additional statistics.
        choices: The additional statistics.
        archive: File for the values, or None.
        cancel: Function called regularly; True cancels.
        on_progress: Function called with the number of finished layers.
        runs: Number of runs.
        measured: Statistics of the outputs, if there is a single run.
        samples: Statistics of the outputs, if there are several runs, by name and call.
        stored_bytes: Bytes of the stored numbers of all outputs.
        weights: Names of parameters whose gradients were measured.
        rerun_text: Addition to the progress message of repeated runs.
        searches: Searches for exact quantiles.
        open_samples: Outputs whose search needs another run.
    """

    options: RequestedStatistics
    choices: Sequence[Choice]
    archive: ActivationArchive | None
    cancel: Cancel
    on_progress: OnProgress
    runs: int = 1
    measured: list[TensorStats] = field(default_factory=list)
    samples: dict[tuple[str, int], OutputSamples] = field(default_factory=dict)
    stored_bytes: int = 0
    weights: set[str] = field(default_factory=set)
    rerun_text: str = ""
    searches: Sequence[RankSearch] = ()
    open_samples: dict[tuple[str, int], OutputSamples] = field(default_factory=dict)

    def begin(self, runs: int) -> None:
        """Sets the number of runs. See `ActivationRequest`."""
        self.runs = runs

    def take(self, numbers: Numbers, call: int, name: str) -> None:
        """Measures an output of a layer. See `ActivationRequest`."""
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
            self.stored_bytes -= samples.stored_bytes
            samples.add(numbers, MAX_STORED_BYTES - self.stored_bytes - samples.stored_bytes, self.cancel)
            self.stored_bytes += samples.stored_bytes
        if self.archive is not None:
            entry_name = f"{name}#{call + 1}" if call else name
            self.archive.add(f"{entry_name}@{run + 1}" if self.runs > 1 else entry_name, numbers)

    def take_weight(self, numbers: Numbers, call: int, name: str) -> None:
        """Measures the gradient of a parameter. See `ActivationRequest`."""
        self.weights.add(name)
        self.take(numbers, call, name)

    def step(self, done: int, total: int) -> None:
        """Reports progress, and stops if the user canceled. See `ActivationRequest`."""
        stop_if(self.cancel)
        if self.on_progress is not None:
            self.on_progress(Progress(f"running the layers{self.rerun_text}", done, total))

    def search(self, run: Callable[[ActivationRequest], object], request: ActivationRequest) -> None:
        """Runs the same samples again until the requested quantiles are exact."""
        searches = {
            key: search
            for key, samples in self.samples.items()
            if (search := samples.start_search()) is not None
        }
        self.searches = list(searches.values())
        take = self.take_again
        rerun_request = replace(request, take=take, take_weight=take, begin=lambda runs: None)
        self.rerun_text = " again, for exact quantiles"
        while unfinished := {key: search for key, search in searches.items() if not search.is_done}:
            self.open_samples = {key: self.samples[key] for key in unfinished}
            for search in unfinished.values():
                search.begin_pass()
            run(rerun_request)
            for search in unfinished.values():
                search.end_pass()

    def take_again(self, numbers: Numbers, call: int, name: str) -> None:
        """Adds an output of a repeated run to the search for its quantiles."""
        samples = self.open_samples.get((name, call))
        if samples is not None:
            samples.search_in(numbers, self.cancel)

    def collect_stats(self) -> tuple[TensorStats, ...]:
        """Returns the statistics of every output, in the order of the first run."""
        return (
            *self.measured,
            *(
                samples.compute_stats(self.options.bins, call, self.cancel)
                for (_, call), samples in self.samples.items()
            ),
        )

    def build_rows(
        self, tensor_stats: Sequence[TensorStats], layers: Sequence[Layer], backward: Backward | None
    ) -> Iterator[StatisticsRow]:
        """Yields rows of additional statistics: of outputs or their gradients, then of weight gradients."""
        outputs: list[TensorStats] = []
        weights: list[TensorStats] = []
        for stats in tensor_stats:
            (weights if stats.tensor.name in self.weights else outputs).append(stats)
        role = "activation" if backward is None else "gradient"
        for name, stats_of_role in ((role, outputs), ("weight gradient", weights)):
            yield from build_statistics_rows(stats_of_role, layers, name, self.options.axis)

    def describe_gradients(self) -> tuple[str, ...]:
        """Returns a note on gradients of weights, if there are several runs."""
        if self.runs == 1 or not self.weights:
            return ()
        return (
            f"gradients of weights are those of each of the {self.runs:,} runs by itself, not of their sum",
        )


def measure_activations(
    run: Callable[[ActivationRequest], ActivationRun],
    layers: Sequence[str] = (),
    *,
    source: str = "",
    options: RequestedStatistics = EVERYTHING,
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
    """Computes statistics of the outputs of a model's layers, or of the gradients of outputs and weights.

    Args:
        run: Function of the model's format that runs the model.
        layers: Globs over paths of layers; empty means every layer.
        source: The user's name of the model.
        options: The kinds of layers, and the additional statistics.
        rows: Rows of the model's analysis.
        input: Path of an .npy or .npz file with the input, or None to draw the input. If the file has several
            times the samples that the model takes, the statistics cover all of them.
        batch: Number of samples to run at a time, or None for as many as the model takes.
        seed: Seed of the drawn input.
        backward: Start of a backward pass, or None to run only forward.
        output: Path of an .npz file for the values, or None to discard them.
        overwrite: Whether an existing file may be replaced.
        on_progress: Function called with the number of finished layers.
        cancel: Function called regularly; True cancels.

    Raises:
        Misuse: The input does not fit, a glob matches nothing, or the output cannot be written.
        BadModel: The model fails before the first of these layers.
        Cancelled: `cancel` returned True.
    """
    started = time.perf_counter()
    input_arrays = None if input is None else read_input(input)
    with _open_archive(output, overwrite) as archive:
        collector = _Collector(options, options.choices(), archive, cancel, on_progress)
        request = ActivationRequest(
            tuple(layers),
            input_arrays,
            seed,
            collector.take,
            collector.step,
            batch,
            collector.begin,
            options.kinds,
            backward,
            collector.take_weight,
        )
        outcome = run(request)
        collector.search(run, request)
        tensor_stats = collector.collect_stats()
        check_axis(tensor_stats, options.axis)
    return Activations(
        source,
        outcome.inputs,
        tensor_stats,
        output or "",
        outcome.skipped,
        time.perf_counter() - started,
        outcome.sizes,
        (*_describe_inexact(tensor_stats, collector), *collector.describe_gradients()),
        tuple(collector.build_rows(tensor_stats, rows, backward)),
    )


def _describe_inexact(tensor_stats: Sequence[TensorStats], collector: _Collector) -> tuple[str, ...]:
    """Returns a note on the figures that are not exact, if there are any."""
    estimated_count = sum(not stats.quantiles_exact for stats in tensor_stats)
    searched_count = sum(search.is_steady for search in collector.searches)
    if not max(estimated_count, searched_count):
        return ()
    estimated_figures = "quantiles and histograms"
    if searched_count:
        estimated_figures = (
            "histograms" if collector.options.axis is None else "quantiles over all indices, and histograms,"
        )
    note = (
        f"{estimated_figures} of {many_text(max(estimated_count, searched_count), 'output')} are accurate to"
        f" 0.4 % of a value, because the numbers of all samples do not fit in"
        f" {MAX_STORED_BYTES >> 20} MiB; all other figures are exact"
    )
    unsteady_count = len(collector.searches) - searched_count
    if unsteady_count:
        outputs = many_text(unsteady_count, "output")
        note += f"; {outputs} changed in the second run, which computes quantiles"
    return (
        note
        if searched_count or unsteady_count
        else f"{note}, and quantiles selected by --stat, which take further runs",
    )


@contextlib.contextmanager
def _open_archive(output: str | None, overwrite: bool) -> Iterator[ActivationArchive | None]:
    """Opens the file of values, or yields None without a path. An error leaves no file."""
    if output is None:
        yield None
        return
    with write_atomically(output, overwrite=overwrite) as temporary, ActivationArchive(temporary) as archive:
        yield archive
