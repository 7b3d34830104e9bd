"""Profiles an nn.Module: the wall time of plain calls, and torch's profiler with a range for each module.

No hooks are active while the wall time is measured. A training step runs on a copy of the module, with a
learning rate of 0.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from traceback import clear_frames
from typing import Any, TypeVar

import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn
from torch.profiler import profile, record_function

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.base.units import many_text, seconds_text
from explorer.engine.compat.torch import intercept_calls
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.meta_copy import copy_module
from explorer.engine.formats.torch_module.modules import list_modules, walk_tensors
from explorer.engine.formats.torch_module.width_mismatch import describe_failure
from explorer.engine.profile.assemble import Conditions, TimeSamples, assemble_profile
from explorer.engine.profile.compare import TimedModel
from explorer.engine.profile.load import LoadWatch
from explorer.engine.profile.rounds import Measurement
from explorer.engine.profile.runs import TimedRuns
from explorer.engine.profile.statistics import compute_spread
from explorer.engine.profile.torch.device import Processor, find_device
from explorer.engine.profile.torch.events import (
    MODULE,
    PHASE,
    FunctionRows,
    ModuleRun,
    OperatorRun,
    RowRun,
    build_module_run,
    build_recorded_run,
)
from explorer.facts import Analysis, Layer
from explorer.facts.profile.profile import OperatorTime, PhaseTime, Profile, ProfileSpec, Stopped
from explorer.facts.profile.recording import RecordedRun
from explorer.facts.roofline import Machine

# otherwise the profiler's library prints to the terminal when it starts
os.environ.setdefault("KINETO_LOG_LEVEL", "99")

_T = TypeVar("_T")
_MAX_PROFILED_RUNS = 1000
"""Maximum number of runs under the profiler."""
_FORWARD, _LOSS, _BACKWARD, _STEP = "forward", "loss", "backward", "optimizer step"

_OPTIMIZERS: Mapping[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.0),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.0, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.0),
}
"""Optimizers by name, with a learning rate of 0, which keeps the weights unchanged."""


class TimedModule(Struct, frozen=True):
    """A module to be timed.

    Attributes:
        loaded: The model that contains the module.
        module: The module with its weights.
        args, kwargs: Arguments of a call.
        analysis: Analysis of the module at the sizes of the arguments.
        inputs: Description of each input's origin.
        batch: Size that was bound to the first dimension, or None.
        rows: Number of samples in one run, or None without a first dimension.
    """

    loaded: LoadedModule
    module: nn.Module
    args: Sequence[Any]
    kwargs: Mapping[str, Any]
    analysis: Analysis
    inputs: tuple[str, ...] = ()
    batch: int | None = None
    rows: int | None = None


def prepare_measurement(subject: TimedModule, spec: ProfileSpec) -> Measurement:
    """Prepares the measurement of a module in torch.

    Raises:
        Misuse: The device does not exist, or an optimization level is given.
    """
    device = find_device(spec.device)
    if spec.optimize is not None:
        raise Misuse("torch has no levels of graph optimization", where="--optimize", hint="leave it out")
    return _MeasuredModule(subject, device)


class _ModuleRuns(TimedRuns):
    """A module that runs without the profiler and with it.

    Attributes:
        module: The module.
        runs: Work in each run under the profiler.
        phases: Seconds of each phase of a training step in plain runs.
        recording: The last runs with their events.
        failed_at: Path of the innermost module that failed, and its error; None before a failure.
    """

    def __init__(self, subject: TimedModule, module: nn.Module, spec: ProfileSpec, device: Processor) -> None:
        super().__init__(spec.record)
        self._subject, self.module, self._train = subject, module, spec.train
        self._device = device
        self._arguments = _map_tensors(subject.args, device.move), _map_tensors(subject.kwargs, device.move)
        layers = subject.analysis.layers
        rows = {(layer.path, layer.kind): layer.id for layer in layers}
        paths = list_modules(module)
        # the work of a module without a row belongs to the module that calls it; a row of another kind
        # belongs to a function that has the name of the module with its weights
        module_rows = {part: rows.get((path, type(part).__name__)) for path, part in paths.items()}
        self._rows = {id(part): row for part, row in module_rows.items() if row is not None}
        self._rows.setdefault(id(module), -1)
        self._paths = {id(part): path for path, part in paths.items()}
        self._functions = FunctionRows(layers, self._rows.values())
        self.runs: list[ModuleRun] = []
        self._record, self.recording = spec.record, list[RecordedRun]()
        self.phases: dict[str, list[float]] = {}
        self.failed_at: tuple[str, BaseException | None] = "", None
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        if spec.train and not trained:
            raise Misuse("no parameter of the model is trained", where="--train", hint="leave it out")
        self._optimizer = _OPTIMIZERS[spec.optimizer](trained) if spec.train else None

    # methods that `intercept_calls` calls

    def run(self, call: Callable[..., Any], module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Calls a module inside a range of the profiler."""
        row = self._rows.get(id(module))
        try:
            if row is None:
                return call(module, *args, **kwargs)
            with record_function(f"{MODULE}{row}"):
                return call(module, *args, **kwargs)
        except Exception as error:
            if self.failed_at[1] is not error:
                self.failed_at = self._paths.get(id(module), ""), error
            raise

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """See `Watch`. Never called: functions are not watched."""
        raise NotImplementedError

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """See `Watch`. Never called: operators are not watched."""
        raise NotImplementedError

    def run_once(self, observed: bool) -> float:
        """See `TimedRuns`."""
        device = self._device
        # copy the inputs, because a module may change them in place
        args, kwargs = (_map_tensors(value, torch.clone) for value in self._arguments)
        device.wait()
        with self._subject.loaded.quiet(), torch.set_grad_enabled(self._train), device.make_default():
            if not observed:
                began = time.perf_counter()
                parts = self._step(args, kwargs, False)
                device.wait()
                seconds = time.perf_counter() - began
                for name, marks in parts.items():
                    self.phases.setdefault(name, []).append(device.compute_seconds(*marks))
                return seconds
            with profile(activities=device.activities, profile_memory=True) as profiler:
                with intercept_calls(self.run):
                    began = time.perf_counter()
                    self._step(args, kwargs, True)
                    device.wait()
                    seconds = time.perf_counter() - began
        events, kernels = device.read_events(profiler)
        self.runs.append(build_module_run(events, self._functions))
        if self._record:
            self.recording = [*self.recording, build_recorded_run([*events, *kernels])][-self._record :]
        return seconds

    def _step(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], observed: bool
    ) -> dict[str, tuple[Any, Any]]:
        """Runs once; returns, for each phase, the device's marks at its start and end."""
        parts: dict[str, tuple[Any, Any]] = {}
        with self._record_phase(_FORWARD, parts, observed):
            outputs = self.module(*args, **kwargs)
        if self._optimizer is None:
            return parts
        with self._record_phase(_LOSS, parts, observed):
            loss = _sum_outputs(outputs)
        with self._record_phase(_BACKWARD, parts, observed):
            loss.backward()  # type: ignore[no-untyped-call]
        with self._record_phase(_STEP, parts, observed):
            self._optimizer.step()
            self._optimizer.zero_grad()
        return parts

    @contextmanager
    def _record_phase(self, name: str, parts: dict[str, tuple[Any, Any]], observed: bool) -> Iterator[None]:
        with ExitStack() as stack:
            if observed:
                stack.enter_context(record_function(f"{PHASE}{name}"))
            began = self._device.create_mark()
            yield
            parts[name] = began, self._device.create_mark()


def _sum_outputs(outputs: Any) -> torch.Tensor:
    """Returns the sum of the means of all outputs that have a gradient.

    Raises:
        Misuse: No output has a gradient.
    """
    mean_losses = [t.mean() for _, t in walk_tensors(outputs) if t.is_floating_point() and t.requires_grad]
    if not mean_losses:
        raise Misuse("no output of the model has a gradient", where="--train", hint="leave it out")
    return sum(mean_losses[1:], mean_losses[0])


def _take_first_sentence(error: Exception) -> str:
    """Returns the first sentence of an error. The memory figures after it differ between attempts."""
    return str(error).partition(". ")[0]


def _describe_timed_runs(wall: Sequence[float]) -> str:
    """Describes the runs before a failure."""
    if not wall:
        return "no run was timed before"
    return f"{many_text(len(wall), 'run')} before it took {seconds_text(compute_spread(wall).median)} each"


def _map_tensors(structure: Any, function: Callable[[torch.Tensor], Any]) -> Any:
    """Applies a function to each tensor in a structure of mappings, lists and tuples."""
    if isinstance(structure, torch.Tensor):
        return function(structure)
    if isinstance(structure, Mapping):
        return {key: _map_tensors(value, function) for key, value in structure.items()}
    if isinstance(structure, (list, tuple)) and not hasattr(structure, "_fields"):
        return type(structure)(_map_tensors(value, function) for value in structure)
    return structure


class _MeasuredModule(Struct):
    """The measurements of a module so far, over all repeats.

    Attributes:
        loaded: The runs of the current repeat, or None.
        wall, profiled: Seconds of the counted runs without and with the profiler.
        spent: Seconds of each run under the profiler with the profiler's start and end.
        phases: Seconds of each phase of a training step in the counted runs without the profiler.
        runs: Work in each counted run under the profiler.
        recording: The last runs under the profiler with their events.
    """

    subject: TimedModule
    device: Processor
    loaded: _ModuleRuns | None = None
    stopped: Stopped = "steps"
    threads: int = 1
    wall: list[float] = field(default_factory=list)
    profiled: list[float] = field(default_factory=list)
    spent: list[float] = field(default_factory=list)
    phases: dict[str, list[float]] = field(default_factory=dict)
    runs: list[ModuleRun] = field(default_factory=list)
    recording: tuple[RecordedRun, ...] = ()

    @property
    def max_profiled_runs(self) -> int:
        """See `Measurement`."""
        return _MAX_PROFILED_RUNS

    def load(self, spec: ProfileSpec, folder: str, stack: ExitStack) -> None:
        """See `Measurement`."""
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        if spec.threads is not None:
            torch.set_num_threads(spec.threads)
        self.threads = torch.get_num_threads()
        module, device = self.subject.module, self.device
        stack.callback(device.free_memory)
        if spec.train or device.name != "cpu":
            # training changes batch statistics, and the user's module must stay on its device
            module = copy_module(module)
        module = device.move(module)
        for part in module.modules():
            stack.callback(setattr, part, "training", part.training)
        module.train(spec.train)
        self.loaded = _ModuleRuns(self.subject, module, spec, device)
        device.begin_measuring()

    def call_loaded(self, work: Callable[[Any], _T]) -> _T:
        """See `Measurement`."""
        assert self.loaded is not None
        try:
            return work(self.loaded)
        except ExplorerError:
            raise
        except Exception as error:
            layer = self._find_failed_module(error)
            layer_text = f" in {layer}" if layer else ""
            timed_runs_text = _describe_timed_runs(self.loaded.wall)
            message = describe_failure(self.loaded.module, partial(work, self.loaded), error, layer_text)
            raise BadModel(message, where=self.subject.loaded.source, hint=timed_runs_text) from error

    def _find_failed_module(self, error: Exception) -> str:
        """Returns the path of the module that failed, or ''.

        If the failed run was not under the profiler, the run is repeated under it.
        """
        assert self.loaded is not None
        if self.loaded.failed_at[1] is error:
            return self.loaded.failed_at[0]
        clear_frames(error.__traceback__)  # frees the tensors of the failed run
        self.device.free_memory()
        try:
            self.loaded.run_once(True)
        except Exception as again:  # a model may raise any exception
            where, raised = self.loaded.failed_at
            if raised is again and _take_first_sentence(again) == _take_first_sentence(error):
                return where
            return ""
        return ""

    def collect_samples(self) -> None:
        """See `Measurement`."""
        runs, self.loaded = self.loaded, None
        assert runs is not None
        self.wall += runs.wall
        self.profiled += runs.profiled
        self.spent += runs.spent
        self.recording = tuple(runs.recording)
        self.runs += [run for run, is_counted in zip(runs.runs, runs.counted, strict=True) if is_counted]
        for name, seconds_by_run in runs.phases.items():
            self.phases.setdefault(name, []).extend(seconds_by_run[-len(runs.wall) :])

    def build_timed_model(self, spec: ProfileSpec, watch: LoadWatch, machine: Machine | None) -> TimedModel:
        """See `Measurement`."""
        layers = self.subject.analysis.layers
        samples_by_row = _build_samples([run.rows for run in self.runs])
        other_samples = _build_samples([run.unplaced_work for run in self.runs])
        conditions = Conditions(
            warmup=spec.warmup,
            stopped=self.stopped,
            device=self.device.name,
            threads=self.threads,
            runtime=f"torch {torch.__version__}",
            profiled=self.profiled,
            spent=self.spent,
            batch=self.subject.batch,
            rows=self.subject.rows,
            inputs=self.subject.inputs,
            machine=machine,
            load=watch.describe_load(compute_spread(self.wall)),
            notes=(*(_NOTES if spec.train else ()), *self.device.list_notes()),
            recording=self.recording,
        )
        called_rows = {row for run in self.runs for row in run.called_rows}
        model_profile = assemble_profile(
            layers,
            self.wall,
            samples_by_row,
            _find_rows_in_modules(layers, samples_by_row, called_rows),
            other_samples,
            conditions,
        )
        model_profile = replace(
            model_profile,
            operators=_compute_operator_times(self.runs, model_profile.share_base_seconds),
            phases=self._compute_phase_times(model_profile) if spec.train else (),
        )
        return TimedModel(model_profile, layers, samples_by_row)

    def _compute_phase_times(self, model_profile: Profile) -> tuple[PhaseTime, ...]:
        times = {name: compute_spread(phase_seconds) for name, phase_seconds in self.phases.items()}
        return tuple(
            [
                PhaseTime(name, times_of_phase, times_of_phase.median / model_profile.wall_seconds)
                for name, times_of_phase in times.items()
            ]
        )


_NOTES = (
    "a training step is timed on a copy in training mode; its loss is the mean of the outputs, and its"
    " learning rate is 0",
    "MAC/s, bytes/s and, with a machine, the least time are those of the forward pass, because the counts"
    " cover only it",
)


def _find_rows_in_modules(
    layers: Sequence[Layer], timed_rows: Collection[int], called_rows: Collection[int]
) -> dict[int, int]:
    """Finds the rows that run in the analysis but were not called, because a module computed them itself.

    Returns:
        The row id of the module, by the row id of each such layer.
    """
    module_by_row: dict[int, int] = {}
    for layer in layers:
        if layer.group or not layer.calls or layer.id in timed_rows or layer.id in called_rows:
            continue
        module_row = layer.parent
        while module_row is not None and module_row not in timed_rows:
            module_row = layers[module_row].parent
        if module_row is not None:
            module_by_row[layer.id] = module_row
    return module_by_row


def _build_samples(runs: Sequence[Mapping[Any, RowRun]]) -> dict[Any, TimeSamples]:
    """Builds the samples of all runs, by row or name. A row that is missing in a run gets a sample of 0."""
    samples: dict[Any, TimeSamples] = {}
    for key in dict.fromkeys(key for run in runs for key in run):
        row_runs = [run.get(key, _NOTHING) for run in runs]
        last = next(row_run for row_run in reversed(row_runs) if row_run is not _NOTHING)
        backward = [row_run.backward for row_run in row_runs]
        samples[key] = TimeSamples(
            seconds=[row_run.seconds for row_run in row_runs],
            ops=last.ops,
            allocated_bytes=last.requested_bytes,
            peak_bytes=last.held_bytes,
            backward=backward if any(backward) else [],
        )
    return samples


_NOTHING = RowRun()


def _compute_operator_times(runs: Sequence[ModuleRun], base: float) -> tuple[OperatorTime, ...]:
    """Computes the medians of each operator over the runs, in descending order of self time."""
    operator_times = []
    for name in dict.fromkeys(name for run in runs for name in run.operators):
        operator_runs = [run.operators.get(name, _NO_CALL) for run in runs]
        last = next(operator_run for operator_run in reversed(operator_runs) if operator_run is not _NO_CALL)
        self_seconds = compute_spread([operator_run.self_seconds for operator_run in operator_runs]).median
        total = compute_spread([operator_run.seconds for operator_run in operator_runs]).median
        share = self_seconds / base if base else 0.0
        operator_times.append(
            OperatorTime(
                name,
                *(last.calls, total, share, len(last.rows), self_seconds),
                allocated_bytes=last.bytes,
                total_bytes=last.total_bytes,
            )
        )
    return tuple(sorted(operator_times, key=lambda operator: (-(operator.self_seconds or 0.0), operator.op)))


_NO_CALL = OperatorRun()
