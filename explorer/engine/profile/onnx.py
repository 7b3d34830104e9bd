"""Profile of an ONNX graph: onnxruntime's wall time without its profiler, its kernels' times with it.

Both sessions are set as a user's: weights are packed, the runtime chooses its threads, and they spin while
they wait. Runs of the two alternate, so changes of the clock or of other work affect both.
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
from explorer.engine.costs.memory.roofline import bytes_moved
from explorer.engine.graph.model import Graph, Model, Node, subgraphs
from explorer.engine.profile import fusion
from explorer.engine.profile.assemble import Conditions, TimeSamples, assembled
from explorer.engine.profile.compare import TimedModel
from explorer.engine.profile.flat_graph import FlatGraph, flattened, named_in
from explorer.engine.profile.kernels import KernelRun, kernel_runs
from explorer.engine.profile.load import LoadWatch, processors
from explorer.engine.profile.measure.speed_check import SpeedCheck
from explorer.engine.profile.predict import TimeModel
from explorer.engine.profile.rounds import Measurement
from explorer.engine.profile.sessions import TimedSessions
from explorer.engine.profile.statistics import spread
from explorer.engine.runtime.onnxruntime import MOST_OPTIMISED, Array, one_line
from explorer.engine.runtime.provider_assignment import HOST, chosen_providers
from explorer.facts import Analysis, Layer
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.profile.profile import SURE, ProfileSpec, Stopped
from explorer.facts.profile.recording import RecordedEvent, RecordedRun
from explorer.facts.roofline import Machine

_T = TypeVar("_T")

_EVENTS, _MOST_EVENTS = 150_000, 500_000
"""Events of one profile, which the runtime holds until the end, at 2.4 KB each: a normal limit, and a limit
for the runs that an interval of each layer needs."""
_SURE = SURE + 3
"""Runs that give an interval of each layer, with a reserve for runs that are not counted."""


class TimedGraph(Struct, frozen=True):
    """A graph to be timed.

    Attributes:
        model: The graph.
        analysis: Its analysis at the sizes of `feeds`.
        feeds: Inputs by name.
        inputs: The origin of each input, in words.
        batch: Size that was bound to the open first dimension.
    """

    model: Model
    analysis: Analysis
    feeds: Mapping[str, Array]
    inputs: tuple[str, ...] = ()
    batch: int | None = None


def measured(
    subject: TimedGraph, spec: ProfileSpec, measured_machine: MeasuredMachine | None = None
) -> Measurement:
    """A graph to be timed in onnxruntime.

    Args:
        subject: The graph.
        spec: The options.
        measured_machine: Measurements of the machine, for predicted times.

    Raises:
        Misuse: There is no such device.
    """
    return _MeasuredGraph.of(subject, spec, _providers(spec.device), measured_machine)


def _providers(device: str) -> list[str]:
    """The execution providers of a device, in their order."""
    short = {
        name.removesuffix("ExecutionProvider").casefold(): name
        for name in onnxruntime.get_available_providers()
    }
    if device.casefold() not in short:
        has = ", ".join(sorted(short))
        raise Misuse(f"onnxruntime has no '{device}' here", where="--device", hint=f"it has {has}")
    return list(chosen_providers([device]))


def _notes(spec: ProfileSpec, level: str, providers: Sequence[str], nodes: int) -> tuple[str, ...]:
    notes = []
    if spec.optimize is None and level == "none":
        notes.append(
            f"{nodes:,} nodes are not optimised: onnxruntime needs a time that grows with their square;"
            " --optimize all does it all the same"
        )
    if providers[0] != HOST:
        notes.append(
            f"the kernels of {providers[0]} are timed as they are started; what they compute behind that is"
            " in the overhead"
        )
    return tuple(notes)


def _unlike(measured_machine: MeasuredMachine | None, threads: int, providers: Sequence[str]) -> str:
    """The reason why measurements of a machine predict nothing here; '' if they do."""
    if measured_machine is None or (measured_machine.threads == threads and providers[0] == HOST):
        return ""
    used = many_text(measured_machine.threads, "thread")
    return f"nothing is predicted: the machine was measured with {used} of its processor"


class _MeasuredGraph(Struct):
    """The measurements of a graph so far, over all repeats.

    Attributes:
        seen: Measurements of the machine, for predicted times.
        check: Checks whether the machine is as fast now.
        owners: Row and name by kernel: see `_owners`.
        of_row, other: Samples by row, and by name of kernels without a row.
        within: Rows whose work the kernel of another row did.
        recording: The last `record` runs, with their events.
    """

    subject: TimedGraph
    level: str
    flat: FlatGraph
    providers: Sequence[str]
    seen: MeasuredMachine | None = None
    check: SpeedCheck | None = None
    loaded: TimedSessions | None = None
    stopped: Stopped = "steps"
    wall: list[float] = field(default_factory=list)
    profiled: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    of_row: dict[int, TimeSamples] = field(default_factory=dict)
    other: dict[str, TimeSamples] = field(default_factory=dict)
    within: dict[int, int] = field(default_factory=dict)
    owners: dict[str, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    record: int = 0
    recording: list[RecordedRun] = field(default_factory=list)
    threads: int = 1
    runs: int = 0

    @classmethod
    def of(
        cls,
        subject: TimedGraph,
        spec: ProfileSpec,
        providers: Sequence[str],
        measured_machine: MeasuredMachine | None,
    ) -> _MeasuredGraph:
        """A graph without measurements yet."""
        flat = flattened(subject.model, subject.analysis.layers)
        few = len(flat.model.graph.nodes) <= MOST_OPTIMISED
        level = spec.optimize or ("all" if few else "none")
        # a machine measured with more threads than run here predicts nothing; a check would start them all
        usable = (
            measured_machine is not None and measured_machine.threads <= processors() and providers[0] == HOST
        )
        check = SpeedCheck(measured_machine) if measured_machine is not None and usable else None
        return cls(subject, level, flat, providers, measured_machine, check, record=spec.record)

    @property
    def layers(self) -> Sequence[Layer]:
        """The rows of the model."""
        return self.subject.analysis.layers

    @property
    def room(self) -> int:
        """Runs whose events fit in a profile."""
        events = max(1, sum(max(1, layer.calls) for layer in self.layers if not layer.group))
        return max(1, _EVENTS // events, min(_SURE, _MOST_EVENTS // events))

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        """See `Measurement`."""
        feeds, providers = self.subject.feeds, self.providers
        try:
            self.loaded = TimedSessions(self.flat.model, feeds, spec, self.level, providers, folder)
        except BadModel as error:
            where, problem = _named_path(error.what, self.flat, self.layers)
            raise BadModel(problem, where=where, hint=error.hint) from None
        self.owners = _owners(self.flat, self.loaded.optimised(), self.layers)
        if self.check is not None:
            self.check.look()

    def trying(self, work: Callable[[TimedSessions], _T]) -> _T:
        """The result of `work` on the loaded model.

        Raises:
            BadModel: The work failed; the error names the layer and the kernels before it.
        """
        assert self.loaded is not None
        try:
            return work(self.loaded)
        except ExplorerError:
            raise
        except Exception as error:  # onnxruntime's own classes share no base below Exception
            raise _failed(error, kernel_runs(self.loaded.end()), self.flat, self.layers) from None

    def take(self) -> None:
        """Adds the times of the loaded model, and releases it."""
        loaded, self.loaded = self.loaded, None
        assert loaded is not None
        if self.check is not None:
            self.check.look()
        self.wall += loaded.wall
        self.profiled += loaded.profiled
        self.spent += loaded.spent
        before, path = self.runs, loaded.end()
        for run, is_counted in zip(kernel_runs(path), loaded.counted, strict=False):
            if not run.whole:
                break
            self.threads = max(self.threads, run.threads)
            if is_counted:
                self._add(run)
            if is_counted and self.record:
                self.recording = [*self.recording[1 - self.record :], self._recorded(run)][-self.record :]
            else:
                self._add_memory(run)
        if self.runs == before:
            raise BadModel("one run has more kernels than onnxruntime's profiler keeps")
        os.unlink(path)

    def timed(self, spec: ProfileSpec, watch: LoadWatch, machine: Machine | None) -> TimedModel:
        """See `Measurement`."""
        threads, measured_machine = spec.threads or self.threads, self.seen
        notes = _notes(spec, self.level, self.providers, len(self.flat.model.graph.nodes))
        if why := _unlike(measured_machine, threads, self.providers):
            measured_machine, notes = None, (*notes, why)
        slower = ""
        if self.check is not None and measured_machine is not None:
            slower = self.check.words()
            measured_machine, otherwise = self.check.now()
            notes = (*notes, otherwise) if otherwise else notes
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
            load="; ".join(filter(None, (watch.words(spread(self.wall)), slower))),
            notes=notes,
            recording=tuple(self.recording),
        )
        within = {row: around for row, around in self.within.items() if row not in self.of_row}
        profile = assembled(self.layers, self.wall, self.of_row, within, self.other, conditions)
        return TimedModel(profile, self.layers, self.of_row)

    def _add(self, run: KernelRun) -> None:
        """Adds a run; a row or name that is missing in a run gets a sample of 0 there."""
        for samples in (*self.of_row.values(), *self.other.values()):
            samples.ops = {}
            samples.kernels = []
        called = self._called(run)
        for name, kernel in run.kernels.items():
            row, within = self.owner(called.get(name, name))
            if row is None:
                samples = self.other.setdefault(kernel.op, TimeSamples())
                samples.kernels.append(kernel)
            else:
                samples = self.of_row.setdefault(row, TimeSamples())
                self.within |= dict.fromkeys(within, row)
            samples.seconds += [0.0] * (self.runs + 1 - len(samples.seconds))
            samples.seconds[-1] += kernel.seconds
            took, calls = samples.ops.get(kernel.op, (0.0, 0))
            samples.ops[kernel.op] = took + kernel.seconds, calls + kernel.calls
        self.runs += 1
        for samples in (*self.of_row.values(), *self.other.values()):
            samples.seconds += [0.0] * (self.runs - len(samples.seconds))

    def _add_memory(self, run: KernelRun) -> None:
        """Memory of a run before the counted ones: the runtime plans it then, and asks for it at once."""
        called = self._called(run)
        for name, kernel in run.kernels.items():
            row, _ = self.owner(called.get(name, name))
            if row is not None:
                samples = self.of_row.setdefault(row, TimeSamples())
                if samples.allocated_bytes is None or not self.runs:
                    samples.allocated_bytes = max(samples.allocated_bytes or 0, kernel.requested_bytes)
                    samples.peak_bytes = max(samples.peak_bytes or 0, kernel.held_bytes)

    def _called(self, run: KernelRun) -> dict[str, str]:
        """The keys of kernels of unnamed nodes, by kernel name; `fusion` numbers them for each operator."""
        kernels_by_op: dict[str, list[tuple[int, str]]] = {}
        for name, kernel in run.kernels.items():
            number = name.removeprefix(f"{kernel.op}_")
            if name not in self.owners and number != name and number.isdecimal():
                kernels_by_op.setdefault(kernel.op, []).append((int(number), name))
        keys_by_name: dict[str, str] = {}
        for op, names in kernels_by_op.items():
            unnamed_keys = [fusion.unnamed(op, at) for at in range(len(names))]
            # with one more or one less, the numbers cannot be matched
            if unnamed_keys[-1] in self.owners and fusion.unnamed(op, len(names)) not in self.owners:
                keys_by_name |= {
                    name: called for (_, name), called in zip(sorted(names), unnamed_keys, strict=True)
                }
        return keys_by_name

    def _recorded(self, run: KernelRun) -> RecordedRun:
        """A recorded run; the event of a node with a body encloses the events of the body."""
        called, threads = self._called(run), dict[int, int]()
        events = [
            RecordedEvent(
                event.op,
                "kernel",
                (event.start - run.start) * 1e-6,
                (event.end - event.start) * 1e-6,
                threads.setdefault(event.thread, len(threads)),
                self.owner(called.get(event.name, event.name))[0],
            )
            for event in sorted(run.events, key=lambda event: (event.start, -event.end))
        ]
        return RecordedRun((run.end - run.start) * 1e-6, tuple(events))

    def owner(self, name: str) -> tuple[int | None, tuple[int, ...]]:
        """The row that a kernel is, and those within it."""
        if name in self.owners:
            return self.owners[name]
        return self.flat.rows.get(named_in(name)), ()


def _owners(
    flat: FlatGraph, optimised: Graph, layers: Sequence[Layer]
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The row of each kernel, and further rows whose work it does, by the kernel's name."""
    model, rows = flat.model, flat.rows
    owners: dict[str, tuple[int, tuple[int, ...]]] = {}
    for name, nodes in fusion.works(model.graph, optimised, model.defaults).items():
        placed = [(node, row) for node in nodes if (row := rows.get(node.name)) is not None]
        if placed:
            main = max(placed, key=lambda pair: _weight(pair[0], layers[pair[1]]))[1]
            owners[name] = main, tuple(dict.fromkeys(row for _, row in placed if row != main))
    return owners


def _weight(node: Node, layer: Layer) -> tuple[bool, int, int]:
    """Sort key of layers in one kernel, of which the largest gets the time: bodies, MACs, bytes."""
    return bool(subgraphs(node)), 0 if layer.group else layer.macs or 0, bytes_moved(layer) or 0


def _failed(
    error: Exception, runs: Iterable[KernelRun], flat: FlatGraph, layers: Sequence[Layer]
) -> BadModel:
    """The error of a failed run: its layer, and the kernels that ran before it."""
    name = named_in(str(error))
    where, problem = _named_path(one_line(error), flat, layers)
    kernels = [
        kernel for run in runs for at, kernel in run.kernels.items() if not name or named_in(at) != name
    ]
    took = seconds_text(sum(kernel.seconds for kernel in kernels))
    ran = many_text(sum(kernel.calls for kernel in kernels), "kernel")
    before = f"{ran} ran before it, {took} together" if kernels else "nothing ran before it"
    return BadModel(f"onnxruntime cannot run the model: {problem}", where=where, hint=before)


def _named_path(message: str, flat: FlatGraph, layers: Sequence[Layer]) -> tuple[str, str]:
    """The layer in a message of the runtime ('' for none), and the message with the layer's own name."""
    name = named_in(message)
    row = flat.rows.get(name)
    where = "" if row is None else layers[row].path
    return where, message.replace(name, where) if where else message
