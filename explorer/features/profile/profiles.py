"""Session methods that measure run times. The last profile of each state is stored with that state."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.checked import Count, PathText
from explorer.base.errors import Misuse
from explorer.engine.costs.memory.roofline import find_multiplied_type
from explorer.engine.costs.training.onnx import choose_batch_sizes
from explorer.engine.diff import compare_trees
from explorer.engine.graph.model import Model
from explorer.engine.profile.compare import compare_timed
from explorer.engine.profile.onnx import TimedGraph, prepare_measurement
from explorer.engine.profile.rounds import Measurement, time_models
from explorer.engine.progress import report
from explorer.engine.runtime.input_files import InputSpec, read_input
from explorer.engine.runtime.random_inputs import (
    ContradictsDeclaration,
    InputShapes,
    RandomInput,
    draw,
    get_symbol_sizes,
    plan_inputs,
    read_given_inputs,
)
from explorer.facts.profile.comparison import ProfileComparison
from explorer.facts.profile.profile import Profile, ProfileSpec
from explorer.facts.roofline import Machine
from explorer.session.methods.facade import Facade
from explorer.session.parts.history import amend
from explorer.session.parts.models import Cancel, Models, OnProgress, State
from explorer.settings.machines import describe_other_peak, find_measured

if TYPE_CHECKING:
    from explorer.engine.costs.value_flow import ValueFlow
    from explorer.engine.profile.torch.modules import TimedModule
    from explorer.facts.profile.machine import MeasuredMachine


def profile(
    session: Facade,
    spec: ProfileSpec | None = None,
    *,
    batch: Count | None = None,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Profile:
    """Measure the run time of a model, layer by layer; the history keeps the profile.

    Args:
        spec: Threads, optimization level, number of steps, and more. None uses the runtime's defaults and
            runs until the median is certain.
        batch: Size of the open first dimension, or None to keep the sizes of the model.
        machine: Machine for the least time of each layer (see `explorer.settings.machines`), or None.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the number of completed runs.
        cancel: Callback that is polled between runs. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The device does not exist, the machine has fewer processors, or the input does not fit.
        BadModel: The model cannot run; the message names the layer that fails and the layers before it.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(Profiler).profile(
        spec or ProfileSpec(), batch, machine, index, on_progress, cancel
    )


def compare_profiles(
    session: Facade,
    before: int = 0,
    after: int | None = None,
    *,
    other: PathText | None = None,
    spec: ProfileSpec | None = None,
    batches: tuple[Count | None, Count | None] = (None, None),
    machine: Machine | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> ProfileComparison:
    """Time two models in turn and compare their layers, matched as `diff` matches them.

    Args:
        before: Index of a state of the history.
        after: Index of another state, or None for the current state.
        other: Path or name of a model, as for `Session`, instead of `after`.
        spec: Settings for both models.
        batches: Size of the open first dimension, for each model.
        machine: Machine for the least time of each layer, or None.
        on_progress: Callback that receives the number of completed runs.
        cancel: Callback that is polled between runs; the work stops when it returns True.

    Raises:
        Misuse: A reason of `profile`, or the history has no such state.
        BadModel: One of the models cannot run.
        Cancelled: `cancel` returned True.
    """
    first = session.parts.models.resolve_index(before)
    second = session.parts.find_second_model(after, other)
    return session.parts.get_part(Profiler).compare(
        first, second, spec or ProfileSpec(), batches, machine, on_progress, cancel
    )


class Profiler:
    """Time states of a session; the last profile of each state is stored with it."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def profile(
        self,
        spec: ProfileSpec,
        batch: int | None,
        machine: Machine | None,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Profile:
        """Time one state."""
        check(spec)
        models, state_index = self._models, self._models.resolve_index(index)
        (timed_model,) = time_models(
            [self._prepare(models, state_index, spec, batch, find_measured(machine), on_progress, cancel)[0]],
            spec,
            scratch=models.workdir,
            machine=machine,
            on_progress=on_progress,
            cancel=cancel,
        )
        return self._record(models, state_index, timed_model.profile, machine)

    def compare(
        self,
        before: int,
        after: State,
        spec: ProfileSpec,
        batches: tuple[int | None, int | None],
        machine: Machine | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> ProfileComparison:
        """Time two states in turn and compare their layers.

        `after` is a state of this session or of another model: its models and its index.
        """
        check(spec)
        state_pair = (self._models, before), after
        measured_machine = find_measured(machine)
        subjects = [
            self._prepare(models, index, spec, batch, measured_machine, on_progress, cancel)
            for (models, index), batch in zip(state_pair, batches, strict=True)
        ]
        graphs = [subject.model for _, subject in subjects if isinstance(subject, TimedGraph)]

        def find_flow(models: Models, index: int) -> ValueFlow | None:
            return models.examine(index, on_progress, cancel).flow

        tree = compare_trees(
            subjects[0][1].analysis,
            subjects[1][1].analysis,
            form="graph" if len(graphs) == 2 else "rows",
            graphs=(graphs[0], graphs[1]) if len(graphs) == 2 else None,
            flows=(None, None) if graphs else (find_flow(*state_pair[0]), find_flow(*state_pair[1])),
            on_progress=on_progress,
            cancel=cancel,
        )
        timed_models = time_models(
            [measurement for measurement, _ in subjects],
            spec,
            scratch=self._models.workdir,
            machine=machine,
            on_progress=on_progress,
            cancel=cancel,
        )
        for (models, index), timed_model in zip(state_pair, timed_models, strict=True):
            self._record(models, index, timed_model.profile, machine)
        comparison = compare_timed(timed_models[0], timed_models[1], tree)
        return replace(comparison, names=(state_pair[0][0].label(before), after[0].label(after[1])))

    def _prepare(
        self,
        models: Models,
        state_index: int,
        spec: ProfileSpec,
        batch: int | None,
        measured_machine: MeasuredMachine | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> tuple[Measurement, TimedGraph | TimedModule]:
        """Return the measurement of a state to time, and the prepared graph or module."""
        report(on_progress, cancel, "loading")
        if models.is_module(state_index) or (not state_index and not models.is_graph and models.from_torch):
            from explorer.features.profile.timed_modules import prepare_module  # imports torch

            return prepare_module(models, state_index, spec, batch, on_progress, cancel)
        if spec.train:
            raise Misuse(
                "only a module has a training step, and this is an ONNX graph",
                where="--train",
                hint="give a torchvision name or FILE.py:callable or package.module:callable",
            )
        graph = prepare_graph(models, state_index, spec, batch, on_progress, cancel)
        return prepare_measurement(graph, spec, measured_machine), graph

    def _record(self, models: Models, state_index: int, profile: Profile, machine: Machine | None) -> Profile:
        """Store a profile with its state, without the recording. Return the full profile with all notes."""
        measured_machine = find_measured(machine)
        notes = [] if measured_machine is None else _note_machine(profile, measured_machine)
        if machine is not None:
            analysis = models.examine_or_refuse(state_index).analysis
            peak_note = describe_other_peak(machine, find_multiplied_type(analysis))
            notes += [peak_note] if peak_note else []
        full_profile = replace(profile, notes=(*models.list_weight_notes(), *profile.notes, *notes))
        without_recording = replace(full_profile, recording=())
        models.history = amend(models.history, state_index, profile=without_recording)
        models.keep_profile(state_index, without_recording)
        return full_profile


def _note_machine(profile: Profile, machine: MeasuredMachine) -> list[str]:
    """Return notes that interpret a profile by the measurement of its machine."""
    notes = []
    if profile.runtime.startswith("torch"):
        notes.append(
            "the times of a module are not predicted: the machine's kernels were timed in onnxruntime;"
            " explorer convert MODEL -o OUT.onnx, and profile that"
        )
    if any((layer.efficiency or 0) > 1 for layer in profile.layers):
        why = (
            f"the machine was loaded when it was measured ({machine.load}):"
            " explorer machines --measure --force measures it again"
            if machine.loaded
            else "their kernels compute fewer MACs (Winograd), or read counted bytes from a cache"
        )
        notes.append(f"layers above 100 % of the roof: {why}")
    return notes


def check(spec: ProfileSpec) -> None:
    """Check that the options of a profile are consistent.

    Raises:
        Misuse: An optimizer is named, but no training step is timed.
    """
    if spec.optimizer != ProfileSpec().optimizer and not spec.train:
        raise Misuse("it applies only to a training step", where="--optimizer", hint="add --train")


def prepare_graph(
    models: Models,
    state_index: int,
    spec: ProfileSpec,
    batch: int | None,
    on_progress: OnProgress,
    cancel: Cancel,
) -> TimedGraph:
    """Prepare a graph for timing: draw or read its inputs, and analyze it at their sizes.

    Raises:
        Misuse: The state is not an ONNX graph, or the inputs or the batch do not fit it.
    """
    if not state_index and not models.is_graph:
        raise Misuse(
            "it is neither an ONNX graph nor a module that can run",
            where=models.source,
            hint="run explorer convert MODEL -o OUT.onnx, and profile OUT.onnx",
        )
    model, opened = models.load_graph(state_index, on_progress), models.open_state(state_index, on_progress)
    options = opened.options
    dims, shapes = models.find_sizes(state_index, model)
    if batch is not None:
        dims, shapes = choose_batch_sizes(model, batch, dims, shapes)
    if spec.input is not None:
        input_specs = _read_inputs(model, spec.input, batch, shapes)
    else:
        input_specs = _draw_inputs(model, dims, shapes, batch)
    sizes = get_symbol_sizes(model, input_specs)
    declarations = {input_spec.name: (input_spec.dtype, input_spec.shape) for input_spec in input_specs}
    if not sizes and not options.dims and not shapes and options.past is None:
        analysis = models.examine(state_index, on_progress, cancel).analysis
    else:
        all_sizes = {**options.dims, **sizes}
        analysis = models.analyze_with(state_index, all_sizes, declarations, on_progress, cancel).analysis
    feeds = draw(input_specs, spec.seed)
    return TimedGraph(model, analysis, feeds, tuple([input_spec.text() for input_spec in input_specs]), batch)


def _draw_inputs(
    model: Model, dims: dict[str, int], shapes: InputShapes, batch: int | None
) -> tuple[RandomInput, ...]:
    """Choose random inputs of these sizes.

    Raises:
        Misuse: The model declares another batch than `batch`.
    """
    try:
        return plan_inputs(model, dims, shapes)
    except ContradictsDeclaration as error:
        if batch is None:
            raise
        hint = f"explorer rebatch MODEL {batch} -o OUT.onnx makes a model with this batch"
        raise Misuse(error.what, where="--batch", hint=hint) from None


def _read_inputs(model: Model, path: str, batch: int | None, shapes: InputShapes) -> tuple[RandomInput, ...]:
    """Read inputs from a file; with a batch, take the first `batch` rows."""
    arrays = read_input(path)
    if batch is None:
        return read_given_inputs(model, arrays, shapes)
    inputs = [
        InputSpec(value.name, value.dtype, shapes.get(value.name, (None, value.shape))[1])
        for value in model.graph.required_inputs
    ]
    inputs_of_file = read_given_inputs(model, arrays.samples(inputs, batch)[0], shapes)
    rows = inputs_of_file[0].shape[0] if inputs_of_file and inputs_of_file[0].shape else 0
    if rows != batch:
        raise Misuse(f"there are {rows:,} rows for a batch of {batch:,}", where=path)
    return inputs_of_file
