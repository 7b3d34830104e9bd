"""Computes which tensors are live at each execution step, and the activation memory that they take.

A tensor is live from the step that produces it through the last step that reads it. The inputs and outputs of
a step are live together. Weights are resident and not counted. The peak in the totals and the timeline in
`Memory` use the same lifetimes, so they agree.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from explorer.engine.costs.assumption import is_assumption
from explorer.engine.costs.layer_tree import EXACT, BoundCounts
from explorer.engine.costs.memory.arena import ArenaBlock, place_blocks
from explorer.engine.costs.value_flow import ValueFlow
from explorer.facts import Analysis, Info, Layer, Status, TensorInfo
from explorer.facts.memory import Lifetime, Memory, MemoryStep

MAX_LISTED_TENSORS = 16
"""Maximum number of tensors that are listed at the peak."""


DeferredDescription = tuple[Mapping[str, TensorInfo], str]
"""A mapping and a name: `mapping[name]` builds the description of the tensor when it is needed."""


class ExecutionStep(Struct, gc=False):
    """One operator in execution order.

    Attributes:
        label: Path of the layer.
        inputs: Keys of the tensors that it reads.
        outputs: Key, description and bytes (None if unknown) of each tensor that it produces. In a finished
            schedule the description is a `TensorInfo`. A key that is live already (a view, an in-place
            update) takes no further memory.
        leaf: Index of its leaf in the analysis, or -1 if the step belongs to the group `label` or to no row.
        bound: Reason why the bytes are upper bounds, or '' if they are exact.
    """

    label: str
    inputs: Sequence[Hashable]
    outputs: Sequence[tuple[Hashable, TensorInfo | DeferredDescription, int | None]]
    leaf: int = -1
    bound: str = ""


class LiveRange(Struct, gc=False):
    """The lifetime of a tensor.

    Attributes:
        info: Description of the tensor.
        size: Bytes of the tensor, or None if unknown.
        born: First step at which it is live.
        dies: Last step at which it is live.
    """

    info: TensorInfo | DeferredDescription
    size: int | None
    born: int
    dies: int


class Peak(Struct, frozen=True):
    """The step at which most bytes are live, and the tensors that are live there, largest first.

    `bytes` is None if there are tensors but no size is known.
    """

    bytes: int | None
    label: str
    tensors: tuple[TensorInfo, ...]


class Schedule(Struct, frozen=True):
    """The execution order of an analyzed model, from which `compute_memory` computes the timeline.

    Attributes:
        steps: Steps in execution order; the outputs of the first step are the model's inputs.
        keep: Keys that are never freed: the model's outputs.
        rows: For each step, the id of its row in `Analysis.layers`, or None if it has no row.
        incomplete_reason: Reason why the order ends early, or ''.
        hint: Suggestion for the user if the order ends early.
        failed_layer: Path of the layer that failed in the run, and the error: "layers.3: ..."; '' if none
            failed.
    """

    steps: Sequence[ExecutionStep]
    keep: Collection[Hashable]
    rows: Sequence[int | None]
    incomplete_reason: str = ""
    hint: str = ""
    failed_layer: str = ""


class BuiltRows(NamedTuple):
    """The rows of a tree, and functions that build the execution order and the edges (None if unknown)."""

    layers: tuple[Layer, ...]
    build_schedule: Callable[[], Schedule]
    build_flow: Callable[[], ValueFlow | None] = lambda: None


class AnalysisResult:
    """The result of an analysis: totals at once, rows, execution order and edges on demand.

    Args:
        info: Facts of the whole model.
        rows: Function that builds the rows of the layer tree.
        bounds: Rows with inexact figures, from `layer_tree.count_bounds`.
        failed_layer: Layer at which the model's own code failed, and its error; '' if it ran to its end.

    Attributes:
        info: Facts of the whole model.
        bounds: Rows with inexact figures.
        rows: The function `rows` with its result cached.
        failed_layer: Layer at which the model's own code failed, and its error; '' if it ran to its end.
    """

    __slots__ = ("bounds", "failed_layer", "info", "rows")

    def __init__(
        self, info: Info, rows: Callable[[], BuiltRows], bounds: BoundCounts = EXACT, failed_layer: str = ""
    ) -> None:
        self.failed_layer = failed_layer
        self.info = info
        self.bounds = bounds
        self.rows = cache(rows)

    @classmethod
    def from_analysis(
        cls,
        analysis: Analysis,
        order: Schedule,
        bounds: BoundCounts = EXACT,
        flow: Callable[[], ValueFlow | None] = lambda: None,
        failed_layer: str = "",
    ) -> AnalysisResult:
        """Creates a result from rows that are built already."""
        return cls(
            analysis.info, lambda: BuiltRows(analysis.layers, lambda: order, flow), bounds, failed_layer
        )

    @property
    def analysis(self) -> Analysis:
        """The totals and every row of the layer tree."""
        return Analysis(self.info, self.rows().layers)

    @property
    def schedule(self) -> Schedule:
        """The execution order."""
        return self.rows().build_schedule()

    @property
    def flow(self) -> ValueFlow | None:
        """The edges between the rows, or None if they are unknown."""
        return self.rows().build_flow()

    def replace_info(self, info: Info) -> AnalysisResult:
        """Returns a copy of the result with other facts of the whole model."""
        return AnalysisResult(info, self.rows, self.bounds, self.failed_layer)


def compute_lifetimes(steps: Sequence[ExecutionStep], keep: Collection[Hashable] = ()) -> list[LiveRange]:
    """Returns the lifetime of every tensor that has memory of its own, in order of birth.

    Args:
        steps: Steps in execution order; the outputs of step 0 are the graph's inputs.
        keep: Keys that are never freed: the graph's outputs, and inputs that the caller keeps.
    """
    lifetimes: dict[Hashable, LiveRange] = {}
    for index, step in enumerate(steps):
        for key in step.inputs:
            if (life := lifetimes.get(key)) is not None:
                life.dies = index
        for key, info, size in step.outputs:
            if (life := lifetimes.get(key)) is not None:
                life.dies = index
            else:
                lifetimes[key] = LiveRange(info, size, index, index)
    for key in keep:
        if (life := lifetimes.get(key)) is not None:
            life.dies = len(steps) - 1
    return [life for life in lifetimes.values() if life.size != 0]


def _sum_live_bytes(lifetimes: Sequence[LiveRange], count: int) -> list[int]:
    """Returns the bytes that are live at each of `count` steps, without tensors of unknown size."""
    change = [0] * (count + 1)
    for life in lifetimes:
        if life.size:
            change[life.born] += life.size
            change[life.dies + 1] -= life.size
    return list(accumulate(change[:-1]))


def sum_live_bytes(order: Schedule) -> list[int]:
    """Returns the bytes that are live at each step, without tensors of unknown size."""
    return _sum_live_bytes(compute_lifetimes(order.steps, order.keep), len(order.steps))


def find_live_peak(steps: Sequence[ExecutionStep], keep: Collection[Hashable] = ()) -> Peak:
    """Finds the step at which most bytes are live, and the tensors that are live there.

    Args:
        steps: Steps in execution order; the outputs of step 0 are the graph's inputs.
        keep: Keys that are never freed: the graph's outputs, and inputs that the caller keeps.

    Returns:
        The peak, at the first step that reaches it. `bytes` is 0 if there are no tensors.
    """
    lifetimes = compute_lifetimes(steps, keep)
    live = _sum_live_bytes(lifetimes, len(steps))
    if not live:
        return Peak(0, "", ())
    peak_bytes = max(live)
    peak_step = live.index(peak_bytes)
    live_tensors = [life for life in lifetimes if life.size and life.born <= peak_step <= life.dies]
    live_tensors.sort(key=lambda life: -(life.size or 0))
    is_known = peak_bytes or not lifetimes
    return Peak(
        peak_bytes if is_known else None,
        steps[peak_step].label,
        tuple(build_description(x.info) for x in live_tensors[:MAX_LISTED_TENSORS]),
    )


def build_description(info: TensorInfo | DeferredDescription) -> TensorInfo:
    """Returns the description of a tensor, built from its name if it is deferred."""
    if isinstance(info, TensorInfo):
        return info
    values, name = info
    return values.get(name) or TensorInfo(name, None, None, "unknown")


def build_descriptions(steps: Iterable[ExecutionStep]) -> Sequence[ExecutionStep]:
    """Returns the steps with a `TensorInfo` for each tensor in place of a deferred description."""
    return [
        replace(step, outputs=[(key, build_description(info), size) for key, info, size in step.outputs])
        for step in steps
    ]


def build_schedule(
    steps: Sequence[ExecutionStep],
    keep: Collection[Hashable],
    layers: Sequence[Layer],
    rows_of: Sequence[int],
    *,
    incomplete_reason: str = "",
    failed_layer: str = "",
) -> Schedule:
    """Assigns a row to every step of an execution order.

    Args:
        steps: Steps in execution order.
        keep: Keys that are never freed.
        layers: Rows of the analysis.
        rows_of: Row id of each leaf, from `layer_rows.build`.
        incomplete_reason: Reason why the order ends early, or ''.
        failed_layer: Path of the layer that failed in the run, and the error, or ''.
    """
    groups = {layer.path: layer.id for layer in layers if layer.group}
    rows = [rows_of[step.leaf] if step.leaf >= 0 else groups.get(step.label) for step in steps]
    return Schedule(steps, keep, rows, incomplete_reason, failed_layer=failed_layer)


def compute_memory(examined: AnalysisResult) -> Memory:
    """Computes the activation memory over the execution order of an analyzed model.

    `place_blocks` lays out the arena. Tensors of unknown size are left out, and `reason` states their number.
    """
    order, layers = examined.schedule, examined.analysis.layers
    lifetimes = compute_lifetimes(order.steps, order.keep)
    live = _sum_live_bytes(lifetimes, len(order.steps))
    sized = [(life, life.size) for life in lifetimes if life.size is not None]
    arena = place_blocks([ArenaBlock(size, life.born, life.dies) for life, size in sized])
    peak = max(live, default=0)
    status, reason = _assess_figures(order, len(lifetimes), len(lifetimes) - len(sized))
    memory_steps = []
    for step, row, size in zip(order.steps, order.rows, live, strict=True):
        layer = None if row is None else layers[row]
        path, kind = (step.label, "") if layer is None else (layer.path, layer.kind)
        memory_steps.append(MemoryStep(path=path, kind=kind, live_bytes=size, layer=row))
    return Memory(
        steps=tuple(memory_steps),
        lifetimes=tuple(
            Lifetime(build_description(life.info), size, life.born, life.dies, offset)
            for (life, size), offset in zip(sized, arena.offsets, strict=True)
        ),
        sum_bytes=sum(size for _, size in sized),
        peak_bytes=peak,
        peak_step=live.index(peak) if live else 0,
        arena_bytes=arena.size,
        weight_bytes=examined.analysis.info.totals.weight_bytes,
        status=status,
        reason=str(reason),
        assumed=status == "bound" and is_assumption(reason),
    )


def _assess_figures(order: Schedule, tensors: int, missing: int) -> tuple[Status, str]:
    """Returns the status of the figures, and the reason if they are not exact."""
    reasons = [order.incomplete_reason] if order.incomplete_reason else []
    if missing:
        reasons.append(f"{missing:,} of {tensors:,} tensors are left out: their sizes are not known")
    if reasons:
        return "unknown", "; ".join(reasons)
    bounds = [step.bound for step in order.steps if step.bound and step.outputs]
    return ("bound", next(filter(is_assumption, bounds), bounds[0])) if bounds else ("exact", "")
