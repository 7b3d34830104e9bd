"""Split of an ONNX graph into stages: what each is, what crosses between, what a pipeline of them does."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.onnx.analyse import examine
from explorer.engine.graph.model import Model, Value
from explorer.engine.models.opened import dims_of
from explorer.engine.progress import Cancel, OnProgress, report
from explorer.engine.shapes import infer
from explorer.engine.split.partition import Cuts
from explorer.engine.split.schedule import forecast
from explorer.engine.split.search import SplitSubject, StageSearch
from explorer.engine.split.stage_models import stage_models
from explorer.engine.split.units import across
from explorer.facts import TensorInfo
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
"""Numbers of stages that stand beside the one that was asked for."""
_QUICK = 3000
"""Places of cuts up to which other numbers are searched, too."""
_NAMED = 1024
"""Bytes from which on a shared tensor is named."""


def split(
    subject: SplitSubject, spec: SplitSpec, on_progress: OnProgress = None, cancel: Cancel = None
) -> tuple[Split, list[Model]]:
    """The stages of a model, told and as models, of which nothing is written.

    Args:
        subject: The model.
        spec: How it is cut.
        on_progress: Told phases.
        cancel: Asked now and then.

    Raises:
        Misuse: It cannot be cut so; why is said.
        Cancelled: `cancel` said so.
    """
    report(on_progress, cancel, "reading the graph")
    search = StageSearch(subject, spec, cancel)
    report(on_progress, cancel, "searching cuts")
    found = search.cuts()
    report(on_progress, cancel, "counting the stages")
    parts = stage_models(subject.model, search.units, found.places, infer(subject.model).values)
    return _told(search, found, parts), parts


def _told(search: StageSearch, found: Cuts, parts: Sequence[Model]) -> Split:
    """What the stages are."""
    subject, spec, stages = search.subject, search.spec, len(parts)
    each = search.each(found.places, search.cost(stages), search.kinds(stages))
    took = search.took(found.places, stages)
    spans = [range(*ends) for ends in itertools.pairwise((0, *found.places, search.count))]
    made = [
        _stage(search, part, mine, cost, took[at] if took else None)
        for at, (part, mine, cost) in enumerate(zip(parts, spans, each, strict=True))
    ]
    if subject.training is not None:
        made = _with_training(search, made, spans)
    cuts = tuple([_cut(search, at) for at in found.places])
    return Split(
        by=spec.by,
        unit=_UNITS[spec.by],
        stages=tuple(made),
        cuts=cuts,
        balance=_balance(each),
        shared=tuple([name for name in _shared(parts) if search.sizes[name] >= _NAMED]),
        forecast=_forecast(spec, took, cuts),
        counts=() if spec.cuts else _counts(search, stages),
        machines=tuple([one.name for one in subject.machines]),
        notes=_notes(search),
    )


def _stage(search: StageSearch, part: Model, mine: range, cost: float, seconds: float | None) -> Stage:
    inputs = [_info(search, value) for value in part.graph.feeds]
    totals = examine(part, **bound(part, search.types, search.subject.dims)).info.totals
    return Stage(
        file="",
        inputs=tuple(inputs),
        outputs=tuple([_info(search, value) for value in part.graph.outputs]),
        first=search.path(mine[0]),
        last=search.path(mine[-1]),
        layers=len(mine),
        params=totals.params,
        macs=totals.macs,
        weight_bytes=totals.weight_bytes,
        activation_bytes=totals.activation_bytes_peak,
        cost=cost,
        seconds=seconds,
    )


def bound(part: Model, types: Mapping[str, TensorInfo], dims: Mapping[str, int]) -> dict[str, Any]:
    """The sizes of a part's inputs in the whole, for its analysis."""
    shapes = {}
    for value in part.graph.feeds:
        info = types.get(value.name)
        sizes = tuple([size for size in (info and info.shape) or () if isinstance(size, int)])
        if info is not None and info.shape is not None and len(sizes) == len(info.shape):
            shapes[value.name] = info.dtype, sizes
    return {"dims": dims_of(part, dims), "input_shapes": shapes}


def _info(search: StageSearch, value: Value) -> TensorInfo:
    return search.types.get(value.name) or TensorInfo(value.name, value.dtype, value.shape)


def _with_training(search: StageSearch, made: Sequence[Stage], spans: Sequence[range]) -> list[Stage]:
    """The stages with the memory of a training step, by category."""
    found = []
    for stage, mine, flying in zip(made, spans, search.flights(len(made)), strict=True):
        figures = [int(part[mine.start : mine.stop].sum()) for part in search.training.values()]
        weights, gradients, optimizer, kept = figures
        whole = weights + gradients + optimizer + kept * flying
        step = StageTraining(weights, gradients, optimizer, kept, flying, whole)
        found.append(replace(stage, training=step))
    return found


def _cut(search: StageSearch, place: int) -> StageCut:
    crossed, rate = search.crossing[place], search.spec.links
    seconds = None if rate is None else crossed / rate
    tensors = tuple([value.info for value in across(search.units, place)])
    return StageCut(crossed, tensors, search.path(place), seconds)


def _shared(parts: Sequence[Model]) -> list[str]:
    """Stored tensors that several stages have."""
    seen: set[str] = set()
    found: dict[str, None] = {}
    for part in parts:
        names = set(part.graph.initializers)
        found.update(dict.fromkeys(sorted(seen & names)))
        seen |= names
    return list(found)


def _forecast(spec: SplitSpec, took: Sequence[float], cuts: Sequence[StageCut]) -> PipelineForecast | None:
    if not took:
        return None
    return forecast(took, [one.seconds or 0.0 for one in cuts], spec.micro_batches, spec.schedule)


def _counts(search: StageSearch, stages: int) -> tuple[StageCount, ...]:
    """Other numbers of stages, where they are found quickly and the machines do not say how many."""
    allowed, rate = search.allowed(), search.spec.links
    if len(allowed) > _QUICK or len(search.subject.machines) > 1:
        return ()
    found = []
    for count in sorted({*range(2, _COUNTED + 1), stages}):
        best = search.best(count, allowed) if count <= len(allowed) + 1 else None
        if best is None:
            continue
        each = search.each(best.places, search.cost(count), search.kinds(count))
        took = search.took(best.places, count)
        links = [search.crossing[at] / rate for at in best.places] if rate is not None else []
        period = max((*took, *links)) if took else None
        found.append(StageCount(count, max(each), _balance(each), best.crossing, period))
    return tuple(found)


def _notes(search: StageSearch) -> tuple[str, ...]:
    notes = []
    if search.seconds and not search.subject.machines:
        notes.append("times are of the profile that was measured of this model")
    elif search.seconds:
        notes.append("times are the least that each machine needs, by its peak and its bandwidth")
    if search.seconds and search.spec.links is None:
        notes.append("what crosses a cut takes no time: --links RATE says how fast it goes")
    return tuple(notes)


def _balance(each: Sequence[float]) -> float:
    largest = max(each, default=0.0)
    return sum(each) / len(each) / largest if largest else 1.0
