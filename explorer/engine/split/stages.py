"""Split of an ONNX graph into stages: their figures, the values that cross the cuts, and the pipeline."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import lru_cache
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.graph.model import Model, Value
from explorer.engine.models.opened_model import dims_of
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.shapes import infer
from explorer.engine.split.partition import Cuts
from explorer.engine.split.schedule import forecast
from explorer.engine.split.search import SplitSubject, StageSearch, graph_sequence
from explorer.engine.split.stage_models import stage_maker, stage_models
from explorer.engine.split.units import across
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
_COUNTED = 8
"""Other numbers of stages that are reported, up to this one."""
_QUICK = 3000
"""The most places of cuts for which other numbers of stages are searched, too."""
_NAMED = 1024
"""Bytes from which a shared tensor is listed."""
_KEPT = 256
"""Stages that are cached while the user moves cuts."""


def split(
    subject: SplitSubject, spec: SplitSpec, on_progress: OnProgress = None, cancel: Cancel = None
) -> tuple[Split, list[Model]]:
    """Splits a model: returns the figures of the stages, and the stages as models; writes no file.

    Args:
        subject: The model.
        spec: How to cut it.
        on_progress: Receives the phases.
        cancel: Polled now and then.

    Raises:
        Misuse: The model cannot be cut in this way; the message gives the reason.
        Cancelled: `cancel` said so.
    """
    report(on_progress, cancel, "reading the graph")
    search = StageSearch(graph_sequence(subject), spec, cancel)
    report(on_progress, cancel, "searching cuts")
    cuts = search.cuts()
    report(on_progress, cancel, "counting the stages")
    parts = stage_models(subject.model, search.units, cuts.places, infer(subject.model).values)
    spans = stage_spans(search, cuts.places)
    stages = [_stage(search, part, span, subject.dims) for part, span in zip(parts, spans, strict=True)]
    shared = in_several(part.graph.initializers.keys() for part in parts)
    return split_figures(search, cuts, stages, shared, others=not spec.cuts), parts


class StageDraft:
    """The stages of a model while the user moves the cuts.

    Args:
        search: The search for the model's cuts.
        stage: Computes the figures of a stage from its units, without its cost.
        shared: Names of the stored tensors that several stages share, from the places of the cuts.
    """

    def __init__(
        self,
        search: StageSearch,
        stage: Callable[[range], Stage],
        shared: Callable[[Sequence[int]], Sequence[str]],
    ) -> None:
        self.search, self._stage, self._shared = search, stage, shared

    def at(self, places: Sequence[int] | None = None) -> SplitDraft:
        """The stages for cuts at these places, or for the best cuts.

        Raises:
            Misuse: The model cannot be cut there.
        """
        search = self.search
        cuts = search.cuts() if places is None else search.at_places(places)
        stages = [self._stage(span) for span in stage_spans(search, cuts.places)]
        others = places is None and not search.spec.cuts
        fact = split_figures(search, cuts, stages, self._shared(cuts.places), others=others)
        return SplitDraft(fact, cuts.places)

    def where(self) -> CutPlaces:
        """The places where the user may cut."""
        search = self.search
        rows = tuple([-1 if row is None else row for row in search.units.rows])
        return CutPlaces(rows, tuple(search.crossing), tuple(search.named()))


def graph_draft(subject: SplitSubject, search: StageSearch) -> StageDraft:
    """A draft of a graph's stages; the figures of each stage are computed once."""
    make = stage_maker(subject.model, search.units, infer(subject.model).values)

    @lru_cache(_KEPT)
    def counted(first: int, last: int) -> tuple[Model, Stage]:
        part = make(first, last)
        return part, _stage(search, part, range(first, last), subject.dims)

    def shared(places: Sequence[int]) -> list[str]:
        parts = (counted(span.start, span.stop)[0] for span in stage_spans(search, places))
        return in_several(part.graph.initializers.keys() for part in parts)

    return StageDraft(search, lambda span: counted(span.start, span.stop)[1], shared)


def stage_spans(search: StageSearch, places: Sequence[int]) -> list[range]:
    """Units of each stage."""
    return [range(*ends) for ends in itertools.pairwise((0, *places, search.count))]


def split_figures(
    search: StageSearch, cuts: Cuts, stages: Sequence[Stage], shared: Sequence[str], *, others: bool
) -> Split:
    """The split as a fact: the stages with costs and times, and the forecast of a pipeline.

    Args:
        search: The search that found the cuts.
        cuts: The cuts.
        stages: The stages, without costs.
        shared: Names of stored tensors that several stages share.
        others: Whether to add the figures for other numbers of stages.
    """
    subject, spec, count = search.subject, search.spec, len(stages)
    each = search.each(cuts.places, search.cost(count), search.kinds(count))
    seconds = search.took(cuts.places, count)
    stages = [
        replace(stage, cost=each[at], seconds=seconds[at] if seconds else None)
        for at, stage in enumerate(stages)
    ]
    if subject.training is not None:
        stages = _with_training(search, stages, stage_spans(search, cuts.places))
    stage_cuts = tuple([_cut_figures(search, at) for at in cuts.places])
    return Split(
        by=spec.by,
        unit=_UNITS[spec.by],
        stages=tuple(stages),
        cuts=stage_cuts,
        balance=_balance(each),
        shared=tuple([name for name in shared if search.sizes[name] >= _NAMED]),
        forecast=_forecast(spec, seconds, stage_cuts),
        by_macs=None if seconds else _by_macs(spec, stages),
        counts=_other_counts(search, count) if others else (),
        machines=tuple([machine.name for machine in subject.machines]),
        notes=_notes(search),
    )


def _stage(search: StageSearch, part: Model, span: range, dims: Mapping[str, int]) -> Stage:
    """The figures of a stage, without its cost."""
    inputs = [_info(search, value) for value in part.graph.feeds]
    totals = examine(part, **bound(part, search.types, dims)).info.totals
    return Stage(
        file="",
        inputs=tuple(inputs),
        outputs=tuple([_info(search, value) for value in part.graph.outputs]),
        first=search.path(span[0]),
        last=search.path(span[-1]),
        layers=len(span),
        params=totals.params,
        macs=totals.macs,
        weight_bytes=totals.weight_bytes,
        activation_bytes=totals.activation_bytes_peak,
        cost=0.0,
    )


def bound(part: Model, types: Mapping[str, TensorInfo], dims: Mapping[str, int]) -> dict[str, Any]:
    """The sizes that a part's inputs have in the whole, for its analysis."""
    shapes = {}
    for value in part.graph.feeds:
        info = types.get(value.name)
        sizes = tuple([size for size in (info and info.shape) or () if isinstance(size, int)])
        if info is not None and info.shape is not None and len(sizes) == len(info.shape):
            shapes[value.name] = info.dtype, sizes
    return {"dims": dims_of(part, dims), "input_shapes": shapes}


def _info(search: StageSearch, value: Value) -> TensorInfo:
    return search.types.get(value.name) or TensorInfo(value.name, value.dtype, value.shape)


def _with_training(search: StageSearch, stages: Sequence[Stage], spans: Sequence[range]) -> list[Stage]:
    """The stages with the memory of a training step, by category."""
    with_training = []
    for stage, span, flying in zip(stages, spans, search.flights(len(stages)), strict=True):
        figures = [int(part[span.start : span.stop].sum()) for part in search.training.values()]
        weights, gradients, optimizer, activations = figures
        whole = weights + gradients + optimizer + activations * flying
        step = StageTraining(weights, gradients, optimizer, activations, flying, whole)
        with_training.append(replace(stage, training=step))
    return with_training


def _cut_figures(search: StageSearch, place: int) -> StageCut:
    crossed, rate = search.crossing[place], search.spec.links
    seconds = None if rate is None else crossed / rate
    tensors = tuple([value.info for value in across(search.units, place)])
    return StageCut(crossed, tensors, search.path(place), seconds)


def in_several(names_by_stage: Iterable[Set[str]]) -> list[str]:
    """Names of the tensors that more than one stage stores."""
    earlier: set[str] = set()
    repeated: dict[str, None] = {}
    for names in names_by_stage:
        repeated.update(dict.fromkeys(sorted(earlier & names)))
        earlier |= names
    return list(repeated)


def _forecast(spec: SplitSpec, seconds: Sequence[float], cuts: Sequence[StageCut]) -> PipelineForecast | None:
    if not seconds:
        return None
    return forecast(seconds, [cut.seconds or 0.0 for cut in cuts], spec.micro_batches, spec.schedule)


def _by_macs(spec: SplitSpec, stages: Sequence[Stage]) -> PipelineForecast | None:
    """The forecast if every MAC took the same time, and nothing else took any."""
    macs = [float(stage.macs) for stage in stages if stage.macs is not None]
    if len(macs) < len(stages) or not any(macs):
        return None
    return forecast(macs, [0.0] * (len(macs) - 1), spec.micro_batches, spec.schedule)


def _other_counts(search: StageSearch, stages: int) -> tuple[StageCount, ...]:
    """Figures for other numbers of stages, if the search is quick and the machines do not fix the number."""
    allowed, rate = search.allowed(), search.spec.links
    if len(allowed) > _QUICK or len(search.subject.machines) > 1:
        return ()
    counts = []
    for count in sorted({*range(2, _COUNTED + 1), stages}):
        best = search.best(count, allowed) if count <= len(allowed) + 1 else None
        if best is None:
            continue
        each = search.each(best.places, search.cost(count), search.kinds(count))
        seconds = search.took(best.places, count)
        links = [search.crossing[at] / rate for at in best.places] if rate is not None else []
        period = max((*seconds, *links)) if seconds else None
        counts.append(StageCount(count, max(each), _balance(each), best.crossing, period))
    return tuple(counts)


def _notes(search: StageSearch) -> tuple[str, ...]:
    notes, profile = [], search.subject.profile
    if search.seconds and not search.subject.machines and profile is not None:
        batch = "" if profile.batch is None else f", at a batch of {profile.batch:,}"
        step_name = "forward pass of a training step" if profile.phases else "profile"
        notes.append(f"times are of the {step_name} that was measured of this model{batch}")
        if search.subject.took is not None:
            uncut = ": what was measured as one is not cut" if search.spec.by == "time" else ""
            notes.append(f"modules were timed, in {profile.runtime}{uncut}")
    elif search.seconds:
        notes.append("times are the least that each machine needs, by its peak and its bandwidth")
    if search.seconds and search.spec.links is None:
        notes.append("what crosses a cut takes no time: --links RATE says how fast it goes")
    return tuple(notes)


def _balance(each: Sequence[float]) -> float:
    largest = max(each, default=0.0)
    return sum(each) / len(each) / largest if largest else 1.0
