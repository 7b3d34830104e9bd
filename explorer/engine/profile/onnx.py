"""Profiles an ONNX graph in onnxruntime: the wall time without its profiler, the kernels' times with it.

Both sessions have the settings of a normal user's session: weights are packed, the runtime chooses the number
of threads, and threads spin while they wait. Runs of the two sessions alternate, so that changes of the clock
or other work affect both.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import onnxruntime
from msgspec import Struct, field

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.units import many_text, seconds_text
from explorer.engine.costs.memory.roofline import count_moved_bytes
from explorer.engine.graph.model import Graph, Model, Node, list_bodies
from explorer.engine.profile import fusion
from explorer.engine.profile.assemble import Conditions, TimeSamples, assemble_profile
from explorer.engine.profile.compare import TimedModel
from explorer.engine.profile.flat_graph import FlatGraph, find_node_name, flatten
from explorer.engine.profile.kernels import KernelRun, read_kernel_runs
from explorer.engine.profile.load import LoadWatch, count_processors
from explorer.engine.profile.measure.speed_check import SpeedCheck
from explorer.engine.profile.predict import TimeModel
from explorer.engine.profile.rounds import Measurement
from explorer.engine.profile.sessions import TimedSessions
from explorer.engine.profile.statistics import compute_spread
from explorer.engine.runtime.onnxruntime import MAX_OPTIMIZED, Array, shorten_error
from explorer.engine.runtime.provider_assignment import HOST, resolve_providers
from explorer.facts import Analysis, Layer
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.profile.profile import MIN_INTERVAL_SAMPLES, ProfileSpec, Stopped
from explorer.facts.profile.recording import RecordedEvent, RecordedRun
from explorer.facts.roofline import Machine

_T = TypeVar("_T")

_EVENTS, _MAX_EVENTS = 150_000, 500_000
"""Maximum number of events in one profile: the normal limit, and that for `_PROFILED_MIN_SAMPLES` runs.

The runtime holds each event in memory until the end, at 2.4 KB each.
"""
_PROFILED_MIN_SAMPLES = MIN_INTERVAL_SAMPLES + 3
"""Number of runs that give an interval for each layer, with a reserve for runs that are not counted."""


class TimedGraph(Struct, frozen=True):
    """A graph to be timed.

    Attributes:
        model: The model of the graph.
        analysis: Its analysis at the sizes of `feeds`.
        feeds: Inputs by name.
        inputs: Description of each input's origin.
        batch: Size that was bound to the open first dimension, or None.
    """

    model: Model
    analysis: Analysis
    feeds: Mapping[str, Array]
    inputs: tuple[str, ...] = ()
    batch: int | None = None


def prepare_measurement(
    subject: TimedGraph, spec: ProfileSpec, measured_machine: MeasuredMachine | None = None
) -> Measurement:
    """Prepares the measurement of a graph in onnxruntime.

    Args:
        subject: The graph.
        spec: The options of the profile.
        measured_machine: The measurement of the machine for predicted times, or None.

    Raises:
        Misuse: onnxruntime does not support the device.
    """
    return _MeasuredGraph.create(subject, spec, _list_providers(spec.device), measured_machine)


def _list_providers(device: str) -> list[str]:
    """Returns the execution providers for a device, in order of preference.

    Raises:
        Misuse: onnxruntime does not support the device.
    """
    short = {
        name.removesuffix("ExecutionProvider").casefold(): name
        for name in onnxruntime.get_available_providers()
    }
    if device.casefold() not in short:
        available = ", ".join(sorted(short))
        raise Misuse(f"onnxruntime has no '{device}' here", where="--device", hint=f"it has {available}")
    return list(resolve_providers([device]))


def _list_notes(spec: ProfileSpec, level: str, providers: Sequence[str], nodes: int) -> tuple[str, ...]:
    notes = []
    if spec.optimize is None and level == "none":
        notes.append(
            f"{nodes:,} nodes are not optimized: the time for it grows with the square of their number;"
            " --optimize all optimizes them anyway"
        )
    if providers[0] != HOST:
        notes.append(
            f"times of kernels of {providers[0]} end when the kernel has started; the time of its computation"
            " is in the overhead"
        )
    return tuple(notes)


def _explain_missing_prediction(
    measured_machine: MeasuredMachine | None, threads: int, providers: Sequence[str]
) -> str:
    """Returns why the machine's measurement cannot predict times of this profile, or ''."""
    if measured_machine is None or (measured_machine.threads == threads and providers[0] == HOST):
        return ""
    machine_threads = many_text(measured_machine.threads, "thread")
    return (
        "no times are predicted: the machine was measured with other settings"
        f" ({machine_threads} on its processor)"
    )


class _MeasuredGraph(Struct):
    """The measurements of a graph so far, over all repeats.

    Attributes:
        level: Level of graph optimization.
        flat: The graph with inlined functions and named nodes.
        measured_machine: Measurement of the machine for predicted times, or None.
        check: Checks whether the machine is still as fast as in its measurement, or None.
        loaded: The sessions of the current repeat, or None.
        wall, profiled: Seconds of the runs without and with the profiler.
        spent: Seconds of each run under the profiler with the profiler's start and end.
        samples_by_row, unplaced_samples: Samples by row id, and by operator for kernels without a row.
        within: For each row whose work another row's kernel did, the id of that row.
        owners: Rows of each kernel; see `_map_kernels_to_rows`.
        record: Number of runs to record.
        recording: The last `record` runs with their events.
        runs: Number of counted runs under the profiler.
    """

    subject: TimedGraph
    level: str
    flat: FlatGraph
    providers: Sequence[str]
    measured_machine: MeasuredMachine | None = None
    check: SpeedCheck | None = None
    loaded: TimedSessions | None = None
    stopped: Stopped = "steps"
    wall: list[float] = field(default_factory=list)
    profiled: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    samples_by_row: dict[int, TimeSamples] = field(default_factory=dict)
    unplaced_samples: dict[str, TimeSamples] = field(default_factory=dict)
    within: dict[int, int] = field(default_factory=dict)
    owners: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    record: int = 0
    recording: list[RecordedRun] = field(default_factory=list)
    threads: int = 1
    runs: int = 0

    @classmethod
    def create(
        cls,
        subject: TimedGraph,
        spec: ProfileSpec,
        providers: Sequence[str],
        measured_machine: MeasuredMachine | None,
    ) -> _MeasuredGraph:
        """Creates the measurement of a graph, without samples."""
        flat = flatten(subject.model, subject.analysis.layers)
        is_small = len(flat.model.graph.nodes) <= MAX_OPTIMIZED
        level = spec.optimize or ("all" if is_small else "none")
        # a measurement with more threads than processors predicts nothing; its check would start all threads
        usable = (
            measured_machine is not None
            and measured_machine.threads <= count_processors()
            and providers[0] == HOST
        )
        check = SpeedCheck(measured_machine) if measured_machine is not None and usable else None
        return cls(subject, level, flat, providers, measured_machine, check, record=spec.record)

    @property
    def layers(self) -> Sequence[Layer]:
        """The rows of the layer tree."""
        return self.subject.analysis.layers

    @property
    def max_profiled_runs(self) -> int:
        """Number of runs whose events fit into one profile."""
        events = max(1, sum(max(1, layer.calls) for layer in self.layers if not layer.group))
        return max(1, _EVENTS // events, min(_PROFILED_MIN_SAMPLES, _MAX_EVENTS // events))

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        """See `Measurement`.

        Raises:
            BadModel: onnxruntime cannot load the model.
        """
        feeds, providers = self.subject.feeds, self.providers
        try:
            self.loaded = TimedSessions(self.flat.model, feeds, spec, self.level, providers, folder)
        except BadModel as error:
            where, problem = _find_named_path(error.what, self.flat, self.layers)
            raise BadModel(problem, where=where, hint=error.hint) from None
        self.owners = _map_kernels_to_rows(self.flat, self.loaded.read_optimized_graph(), self.layers)
        if self.check is not None:
            self.check.add_samples()

    def call_loaded(self, work: Callable[[TimedSessions], _T]) -> _T:
        """Calls `work` with the loaded sessions; returns its result.

        Raises:
            BadModel: The work failed. The error names the layer and the kernels that ran before it.
        """
        assert self.loaded is not None
        try:
            return work(self.loaded)
        except ExplorerError:
            raise
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            raise _build_failure(error, read_kernel_runs(self.loaded.end()), self.flat, self.layers) from None

    def collect_samples(self) -> None:
        """Adds the times of the loaded sessions, and releases them.

        Raises:
            BadModel: A run has more kernels than onnxruntime's profiler keeps.
        """
        loaded, self.loaded = self.loaded, None
        assert loaded is not None
        if self.check is not None:
            self.check.add_samples()
        self.wall += loaded.wall
        self.profiled += loaded.profiled
        self.spent += loaded.spent
        earlier_runs, path = self.runs, loaded.end()
        for run, is_counted in zip(read_kernel_runs(path), loaded.counted, strict=False):
            if not run.is_complete:
                break
            self.threads = max(self.threads, run.threads)
            if is_counted:
                self._add_run(run)
            if is_counted and self.record:
                self.recording = [*self.recording[1 - self.record :], self._build_recorded_run(run)][
                    -self.record :
                ]
            else:
                self._add_memory(run)
        if self.runs == earlier_runs:
            raise BadModel("one run has more kernels than onnxruntime's profiler keeps")
        os.unlink(path)

    def build_timed_model(self, spec: ProfileSpec, watch: LoadWatch, machine: Machine | None) -> TimedModel:
        """See `Measurement`."""
        threads, measured_machine = spec.threads or self.threads, self.measured_machine
        notes = _list_notes(spec, self.level, self.providers, len(self.flat.model.graph.nodes))
        if why := _explain_missing_prediction(measured_machine, threads, self.providers):
            measured_machine, notes = None, (*notes, why)
        slower_text = ""
        if self.check is not None and measured_machine is not None:
            slower_text = self.check.describe_slowdown()
            measured_machine, difference_text = self.check.adapt_machine()
            notes += tuple(filter(None, (difference_text, self._note_speedup())))
        first = next(iter(self.subject.feeds.values()), None)
        weights = sum(layer.weight_bytes_read or 0 for layer in self.layers if not layer.group)
        conditions = Conditions(
            warmup=spec.warmup,
            stopped=self.stopped,
            device=spec.device,
            threads=threads,
            runtime=f"onnxruntime {onnxruntime.__version__}",
            profiled=self.profiled,
            spent=self.spent,
            batch=self.subject.batch,
            rows=first.shape[0] if first is not None and first.ndim else None,
            optimize=self.level,
            inputs=self.subject.inputs,
            machine=machine,
            model=TimeModel(measured_machine, weights)
            if measured_machine is not None and measured_machine.probes
            else None,
            load="; ".join(filter(None, (watch.describe_load(compute_spread(self.wall)), slower_text))),
            notes=notes,
            recording=tuple(self.recording),
        )
        kernel_rows = {
            row: kernel_row for row, kernel_row in self.within.items() if row not in self.samples_by_row
        }
        profile = assemble_profile(
            self.layers, self.wall, self.samples_by_row, kernel_rows, self.unplaced_samples, conditions
        )
        return TimedModel(profile, self.layers, self.samples_by_row)

    def _note_speedup(self) -> str:
        """Returns a note if the machine is faster than in its measurement, or ''."""
        assert self.check is not None
        speedup_text = self.check.describe_speedup()
        return speedup_text and (
            f"the prediction is for a slower machine: {speedup_text}; measure again:"
            " explorer machines --measure"
        )

    def _add_run(self, run: KernelRun) -> None:
        """Adds a run. A row or operator that does not occur in a run gets a sample of 0."""
        for samples in (*self.samples_by_row.values(), *self.unplaced_samples.values()):
            samples.ops = {}
            samples.kernels = []
        keys_by_name = self._find_unnamed_keys(run)
        for name, kernel in run.kernels.items():
            row, further_rows = self.find_rows(keys_by_name.get(name, name))
            if row is None:
                samples = self.unplaced_samples.setdefault(kernel.op, TimeSamples())
                samples.kernels.append(kernel)
            else:
                samples = self.samples_by_row.setdefault(row, TimeSamples())
                self.within |= dict.fromkeys(further_rows, row)
            samples.seconds += [0.0] * (self.runs + 1 - len(samples.seconds))
            samples.seconds[-1] += kernel.seconds
            op_seconds, calls = samples.ops.get(kernel.op, (0.0, 0))
            samples.ops[kernel.op] = op_seconds + kernel.seconds, calls + kernel.calls
        self.runs += 1
        for samples in (*self.samples_by_row.values(), *self.unplaced_samples.values()):
            samples.seconds += [0.0] * (self.runs - len(samples.seconds))

    def _add_memory(self, run: KernelRun) -> None:
        """Adds the memory of a run: to all rows before the first counted run, then to rows without a figure.

        The runtime allocates its memory in the first run, which is not counted.
        """
        keys_by_name = self._find_unnamed_keys(run)
        for name, kernel in run.kernels.items():
            row, _ = self.find_rows(keys_by_name.get(name, name))
            if row is not None:
                samples = self.samples_by_row.setdefault(row, TimeSamples())
                if samples.allocated_bytes is None or not self.runs:
                    samples.allocated_bytes = max(samples.allocated_bytes or 0, kernel.requested_bytes)
                    samples.peak_bytes = max(samples.peak_bytes or 0, kernel.held_bytes)

    def _find_unnamed_keys(self, run: KernelRun) -> dict[str, str]:
        """Returns the keys of unnamed nodes by kernel name; see `fusion.build_unnamed_key`."""
        kernels_by_op: dict[str, list[tuple[int, str]]] = {}
        for name, kernel in run.kernels.items():
            number = name.removeprefix(f"{kernel.op}_")
            if name not in self.owners and number != name and number.isdecimal():
                kernels_by_op.setdefault(kernel.op, []).append((int(number), name))
        keys_by_name: dict[str, str] = {}
        for op, names in kernels_by_op.items():
            unnamed_keys = [fusion.build_unnamed_key(op, index) for index in range(len(names))]
            # the numbers match only if the profile has exactly as many unnamed nodes as the graph
            if (
                unnamed_keys[-1] in self.owners
                and fusion.build_unnamed_key(op, len(names)) not in self.owners
            ):
                keys_by_name |= {
                    name: key for (_, name), key in zip(sorted(names), unnamed_keys, strict=True)
                }
        return keys_by_name

    def _build_recorded_run(self, run: KernelRun) -> RecordedRun:
        """Builds a recorded run. The event of a node with a body includes the events of the body."""
        keys_by_name, threads = self._find_unnamed_keys(run), dict[int, int]()
        events = [
            RecordedEvent(
                name=event.op,
                kind="kernel",
                start=(event.start - run.start) * 1e-6,
                seconds=(event.end - event.start) * 1e-6,
                thread=threads.setdefault(event.thread, len(threads)),
                layer=self.find_rows(keys_by_name.get(event.name, event.name))[0],
            )
            for event in sorted(run.events, key=lambda event: (event.start, -event.end))
        ]
        return RecordedRun((run.end - run.start) * 1e-6, tuple(events))

    def find_rows(self, name: str) -> tuple[int | None, tuple[int, ...]]:
        """Returns the row of a kernel, and the further rows whose work it does."""
        if name in self.owners:
            return self.owners[name]
        return self.flat.rows.get(find_node_name(name)), ()


def _map_kernels_to_rows(
    flat: FlatGraph, optimized_graph: Graph, layers: Sequence[Layer]
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Maps each kernel name to the kernel's row and to the further rows whose work it does."""
    model, rows = flat.model, flat.rows
    owners: dict[str, tuple[int, tuple[int, ...]]] = {}
    for name, nodes in fusion.map_kernels(model.graph, optimized_graph, model.defaults).items():
        placed = [(node, row) for node in nodes if (row := rows.get(node.name)) is not None]
        if placed:
            main = max(placed, key=lambda pair: _make_layer_key(pair[0], layers[pair[1]]))[1]
            owners[name] = main, tuple(dict.fromkeys(row for _, row in placed if row != main))
    return owners


def _make_layer_key(node: Node, layer: Layer) -> tuple[bool, int, int]:
    """Returns a sort key of a layer in a kernel: has bodies, MACs, moved bytes.

    The layer with the largest key gets the time of the kernel.
    """
    return bool(list_bodies(node)), 0 if layer.group else layer.macs or 0, count_moved_bytes(layer) or 0


def _build_failure(
    error: Exception, runs: Iterable[KernelRun], flat: FlatGraph, layers: Sequence[Layer]
) -> BadModel:
    """Builds the error of a failed run, with its layer and the kernels that ran before it."""
    name = find_node_name(str(error))
    where, problem = _find_named_path(shorten_error(error), flat, layers)
    kernels = [
        kernel
        for run in runs
        for kernel_name, kernel in run.kernels.items()
        if not name or find_node_name(kernel_name) != name
    ]
    duration = seconds_text(sum(kernel.seconds for kernel in kernels))
    count_text = many_text(sum(kernel.calls for kernel in kernels), "kernel")
    hint = "no kernel ran before the failure"
    if kernels:
        hint = f"{count_text} ran before the failure, {duration} in all"
    return BadModel(f"onnxruntime cannot run the model: {problem}", where=where, hint=hint)


def _find_named_path(message: str, flat: FlatGraph, layers: Sequence[Layer]) -> tuple[str, str]:
    """Finds the layer in a message of the runtime.

    Returns:
        The layer's path or ''; and the message with the layer's path in place of the node name.
    """
    name = find_node_name(message)
    row = flat.rows.get(name)
    where = "" if row is None else layers[row].path
    return where, message.replace(name, where) if where else message
