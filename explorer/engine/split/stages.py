"""Splits an ONNX graph into stages, and computes their figures and the forecast of their pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.graph.model import Model, Value
from explorer.engine.models.opened_model import select_dims
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.shapes import infer
from explorer.engine.split.partition import Cuts
from explorer.engine.split.schedule import compute_forecast
from explorer.engine.split.search import SplitSubject, StageSearch, build_graph_sequence
from explorer.engine.split.stage_models import build_stage_models, make_stage_builder
from explorer.engine.split.units import list_crossing_values
from explorer.facts import TensorInfo
from explorer.facts.split.draft import CutPlaces, SplitDraft
from explorer.facts.split.schedule import PipelineForecast
from explorer.facts.split.split import Split, SplitBy, SplitSpec, Stage, StageCount, StageCut, StageTraining

_UNITS: Mapping[SplitBy, str] = {
    "macs": "MACs",
    "params": "parameters",
    "memory": "bytes",
    "training": "bytes",
    "time": "s",
}
"""Unit of each cost, for the report."""
_MAX_OTHER_COUNT = 8
"""Largest number of stages for which figures are reported besides the chosen number."""
_MAX_PLACES = 3000
"""Maximum number of allowed places of cuts for which other numbers of stages are searched."""
_MIN_SHARED_BYTES = 1024
"""Minimum bytes of a shared tensor to be listed."""
_CACHED_STAGES = 256
"""Number of stages that are cached while the user moves cuts."""


def split(
    subject: SplitSubject, spec: SplitSpec, on_progress: OnProgress = None, cancel: Cancel = None
) -> tuple[Split, list[Model]]:
    """Splits a model without writing files.

    Args:
        subject: The model.
        spec: The specification of the split.
        on_progress: Receives the phases.
        cancel: Returns whether to stop; polled repeatedly.

    Returns:
        The figures of the split, and the stages as models.

    Raises:
        Misuse: The model cannot be cut as specified; the message gives the reason.
        Cancelled: `cancel` returned True.
    """
    report(on_progress, cancel, "reading the graph")
    search = StageSearch(build_graph_sequence(subject), spec, cancel)
    report(on_progress, cancel, "searching cuts")
    cuts = search.find_cuts()
    report(on_progress, cancel, "counting the stages")
    parts = build_stage_models(subject.model, search.units, cuts.places, infer(subject.model).values)
    spans = list_stage_spans(search, cuts.places)
    stages = [
        _compute_stage(search, part, span, subject.dims) for part, span in zip(parts, spans, strict=True)
    ]
    shared = find_shared_names(part.graph.initializers.keys() for part in parts)
    return build_split_fact(search, cuts, stages, shared, with_other_counts=not spec.cuts), parts


class StageDraft:
    """Figures of a model's stages while the user moves the cuts.

    Args:
        search: The search for the model's cuts.
        stage: Computes the figures of a stage from its units, without the stage's cost.
        shared: Takes the places of the cuts; returns the names of the stored tensors that several stages
            share.
    """

    def __init__(
        self,
        search: StageSearch,
        stage: Callable[[range], Stage],
        shared: Callable[[Sequence[int]], Sequence[str]],
    ) -> None:
        self.search, self._stage, self._shared = search, stage, shared

    def compute_draft(self, places: Sequence[int] | None = None) -> SplitDraft:
        """Computes the figures of the stages for cuts at `places`, or for the best cuts if None.

        Raises:
            Misuse: The model cannot be cut at these places.
        """
        search = self.search
        cuts = search.find_cuts() if places is None else search.cut_at(places)
        stages = [self._stage(span) for span in list_stage_spans(search, cuts.places)]
        with_other_counts = places is None and not search.spec.cuts
        fact = build_split_fact(
            search, cuts, stages, self._shared(cuts.places), with_other_counts=with_other_counts
        )
        return SplitDraft(fact, cuts.places)

    def list_cut_places(self) -> CutPlaces:
        """Returns the places where the user may cut."""
        search = self.search
        rows = tuple([-1 if row is None else row for row in search.units.rows])
        return CutPlaces(rows, tuple(search.crossing), tuple(search.list_named_places()))


def create_graph_draft(subject: SplitSubject, search: StageSearch) -> StageDraft:
    """Creates the draft of a graph's stages. The figures of recent stages are cached."""
    build_stage = make_stage_builder(subject.model, search.units, infer(subject.model).values)

    @lru_cache(_CACHED_STAGES)
    def extract_stage(first: int, last: int) -> tuple[Model, Stage]:
        part = build_stage(first, last)
        return part, _compute_stage(search, part, range(first, last), subject.dims)

    def find_shared(places: Sequence[int]) -> list[str]:
        parts = (extract_stage(span.start, span.stop)[0] for span in list_stage_spans(search, places))
        return find_shared_names(part.graph.initializers.keys() for part in parts)

    return StageDraft(search, lambda span: extract_stage(span.start, span.stop)[1], find_shared)


def list_stage_spans(search: StageSearch, places: Sequence[int]) -> list[range]:
    """Returns the range of units of each stage."""
    return [range(*ends) for ends in itertools.pairwise((0, *places, search.count))]


def build_split_fact(
    search: StageSearch,
    cuts: Cuts,
    stages: Sequence[Stage],
    shared: Sequence[str],
    *,
    with_other_counts: bool,
) -> Split:
    """Builds the fact of a split: the stages with costs and times, and the forecast of their pipeline.

    Args:
        search: The search that found the cuts.
        cuts: The cuts.
        stages: Figures of the stages, without costs.
        shared: Names of stored tensors that several stages share.
        with_other_counts: Whether to add the figures for other numbers of stages.
    """
    subject, spec, count = search.subject, search.spec, len(stages)
    stage_costs = search.compute_stage_costs(cuts.places, search.make_cost(count), search.list_kinds(count))
    seconds = search.compute_stage_seconds(cuts.places, count)
    stages = [
        replace(stage, cost=stage_costs[index], seconds=seconds[index] if seconds else None)
        for index, stage in enumerate(stages)
    ]
    if subject.training is not None:
        stages = _add_training_memory(search, stages, list_stage_spans(search, cuts.places))
    stage_cuts = tuple([_compute_cut_figures(search, place) for place in cuts.places])
    return Split(
        by=spec.by,
        unit=_UNITS[spec.by],
        stages=tuple(stages),
        cuts=stage_cuts,
        balance=_compute_balance(stage_costs),
        shared=tuple([name for name in shared if search.sizes[name] >= _MIN_SHARED_BYTES]),
        forecast=_compute_forecast(spec, seconds, stage_cuts),
        by_macs=None if seconds else _compute_forecast_by_macs(spec, stages),
        counts=_compute_other_counts(search, count) if with_other_counts else (),
        machines=tuple([machine.name for machine in subject.machines]),
        notes=_list_notes(search),
    )


def _compute_stage(search: StageSearch, part: Model, span: range, dims: Mapping[str, int]) -> Stage:
    """Computes the figures of a stage, without its cost."""
    inputs = [_describe_value(search, value) for value in part.graph.required_inputs]
    totals = examine(part, **get_bound_sizes(part, search.types, dims)).info.totals
    return Stage(
        file="",
        inputs=tuple(inputs),
        outputs=tuple([_describe_value(search, value) for value in part.graph.outputs]),
        first=search.get_path(span[0]),
        last=search.get_path(span[-1]),
        layers=len(span),
        params=totals.params,
        macs=totals.macs,
        weight_bytes=totals.weight_bytes,
        activation_bytes=totals.activation_bytes_peak,
        cost=0.0,
    )


def get_bound_sizes(part: Model, types: Mapping[str, TensorInfo], dims: Mapping[str, int]) -> dict[str, Any]:
    """Returns the sizes of a part's inputs in the original model, as arguments of `examine`."""
    shapes = {}
    for value in part.graph.required_inputs:
        info = types.get(value.name)
        sizes = tuple([size for size in (info and info.shape) or () if isinstance(size, int)])
        if info is not None and info.shape is not None and len(sizes) == len(info.shape):
            shapes[value.name] = info.dtype, sizes
    return {"dims": select_dims(part, dims), "input_shapes": shapes}


def _describe_value(search: StageSearch, value: Value) -> TensorInfo:
    return search.types.get(value.name) or TensorInfo(value.name, value.dtype, value.shape)


def _add_training_memory(search: StageSearch, stages: Sequence[Stage], spans: Sequence[range]) -> list[Stage]:
    """Adds the memory of a training step to the stages."""
    with_training = []
    for stage, span, in_flight in zip(stages, spans, search.list_in_flight(len(stages)), strict=True):
        figures = [int(part[span.start : span.stop].sum()) for part in search.training.values()]
        weights, gradients, optimizer, activations = figures
        total = weights + gradients + optimizer + activations * in_flight
        step = StageTraining(
            parameters=weights,
            gradients=gradients,
            optimizer=optimizer,
            activations=activations,
            in_flight=in_flight,
            total=total,
        )
        with_training.append(replace(stage, training=step))
    return with_training


def _compute_cut_figures(search: StageSearch, place: int) -> StageCut:
    crossed, rate = search.crossing[place], search.spec.links
    seconds = None if rate is None else crossed / rate
    tensors = tuple([value.info for value in list_crossing_values(search.units, place)])
    return StageCut(crossed, tensors, search.get_path(place), seconds)


def find_shared_names(names_by_stage: Iterable[Set[str]]) -> list[str]:
    """Returns the names that occur in more than one stage."""
    earlier: set[str] = set()
    repeated: dict[str, None] = {}
    for names in names_by_stage:
        repeated.update(dict.fromkeys(sorted(earlier & names)))
        earlier |= names
    return list(repeated)


def _compute_forecast(
    spec: SplitSpec, seconds: Sequence[float], cuts: Sequence[StageCut]
) -> PipelineForecast | None:
    if not seconds:
        return None
    return compute_forecast(seconds, [cut.seconds or 0.0 for cut in cuts], spec.micro_batches, spec.schedule)


def _compute_forecast_by_macs(spec: SplitSpec, stages: Sequence[Stage]) -> PipelineForecast | None:
    """Computes the forecast of a pipeline with times proportional to MACs, or None if MACs are unknown."""
    macs = [float(stage.macs) for stage in stages if stage.macs is not None]
    if len(macs) < len(stages) or not any(macs):
        return None
    return compute_forecast(macs, [0.0] * (len(macs) - 1), spec.micro_batches, spec.schedule)


def _compute_other_counts(search: StageSearch, stages: int) -> tuple[StageCount, ...]:
    """Computes the figures for other numbers of stages.

    Empty if the search would be slow, or if the user named one machine for each stage.
    """
    allowed, rate = search.list_allowed_places(), search.spec.links
    if len(allowed) > _MAX_PLACES or len(search.subject.machines) > 1:
        return ()
    counts = []
    for count in sorted({*range(2, _MAX_OTHER_COUNT + 1), stages}):
        best = search.find_best(count, allowed) if count <= len(allowed) + 1 else None
        if best is None:
            continue
        stage_costs = search.compute_stage_costs(
            best.places, search.make_cost(count), search.list_kinds(count)
        )
        seconds = search.compute_stage_seconds(best.places, count)
        links = [search.crossing[place] / rate for place in best.places] if rate is not None else []
        period = max((*seconds, *links)) if seconds else None
        counts.append(
            StageCount(
                stages=count,
                cost=max(stage_costs),
                balance=_compute_balance(stage_costs),
                cut_bytes=best.crossing,
                period=period,
            )
        )
    return tuple(counts)


def _list_notes(search: StageSearch) -> tuple[str, ...]:
    notes, profile = [], search.subject.profile
    if search.seconds and not search.subject.machines and profile is not None:
        batch = "" if profile.batch is None else f", at a batch of {profile.batch:,}"
        step_name = "forward pass of a training step" if profile.phases else "profile"
        notes.append(f"times come from the measured {step_name} of this model{batch}")
        if search.subject.unit_seconds is not None:
            uncut = "; a module that was measured as a whole is not cut" if search.spec.by == "time" else ""
            notes.append(f"the times are those of modules in {profile.runtime}{uncut}")
    elif search.seconds:
        notes.append("times are the least that each machine needs, by its peak and its bandwidth")
    if search.seconds and search.spec.links is None:
        notes.append("the transfer of tensors between stages is counted as free: --links RATE sets its speed")
    return tuple(notes)


def _compute_balance(costs: Sequence[float]) -> float:
    """Computes the mean cost divided by the largest cost; 1 if all costs are 0."""
    maximum = max(costs, default=0.0)
    return sum(costs) / len(costs) / maximum if maximum else 1.0
