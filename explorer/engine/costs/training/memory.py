"""Computes the memory of a training step over time, from recorded allocations or the outputs of the layers.

`simulation` runs a step in torch on shapes and records allocations and deallocations. From them, this module
computes moments (points in time with the live bytes by purpose), the peak, and the holders of the peak (the
modules whose memory is live there). For a format without autograd, the memory is estimated from the outputs
of its layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts.training import Holding, Phase, StepMemory, Training, TrainingHolder, TrainingMoment

HOLDERS = 10
"""Maximum number of holders of the peak that are listed."""

_TRIES = 32
"""Maximum number of batch sizes tried to find the largest that fits."""

_KINDS: tuple[Holding, ...] = get_args(Holding)


class Allocation(Struct):
    """A live memory block.

    Attributes:
        kind: Purpose of the memory.
        path: Path of the module that allocated it.
        bytes: Size in bytes.
    """

    kind: Holding
    path: str
    bytes: int


class MemoryChange(NamedTuple):
    """An allocation or a deallocation.

    Attributes:
        phase: Phase of the step.
        path: Path of the module that runs.
        allocation: The memory block.
        born: Whether the block is allocated, not freed.
    """

    phase: Phase
    path: str
    allocation: Allocation
    born: bool = True


def compute_moments(
    start: Iterable[Allocation],
    changes: Sequence[MemoryChange],
    *,
    batch: int | None,
    kept_bytes: int,
    counted: Literal["autograd", "outputs"],
    mode: Literal["train", "eval"] = "train",
    recomputed_macs: int = 0,
) -> StepMemory:
    """Computes moments, peak and holders of a step.

    Args:
        start: Memory that is live at the beginning.
        changes: Changes in order. Consecutive changes in one module form one moment, with the largest live
            bytes.
        batch: Batch size, or None if unknown.
        kept_bytes: Bytes of activations kept at the end of the forward pass.
        counted: Source of the figures: recorded by autograd, or estimated from outputs.
        mode: Mode of the modules.
        recomputed_macs: MACs that the backward pass recomputes for checkpoints.
    """
    live: Counter[Holding] = Counter()
    bytes_by_holder: Counter[tuple[str, Holding]] = Counter()
    for allocation in start:
        live[allocation.kind] += allocation.bytes
        bytes_by_holder[allocation.path, allocation.kind] += allocation.bytes
    total, peak_bytes, peak = sum(live.values()), -1, 0
    holders: Counter[tuple[str, Holding]] = Counter()
    moments: list[TrainingMoment] = []
    for change in changes or [MemoryChange("forward", "", Allocation("temporary", "", 0))]:
        size = change.allocation.bytes if change.born else -change.allocation.bytes
        total += size
        live[change.allocation.kind] += size
        bytes_by_holder[change.allocation.path, change.allocation.kind] += size
        position = change.phase, change.path
        if moments and position == (moments[-1].phase, moments[-1].path):
            if total <= moments[-1].live_bytes:
                continue
            moments.pop()
        live_by_kind = {kind: live[kind] for kind in _KINDS}
        moments.append(TrainingMoment(**live_by_kind, phase=position[0], path=position[1], live_bytes=total))
        if total > peak_bytes:
            peak_bytes, peak, holders = total, len(moments) - 1, bytes_by_holder.copy()
    largest = sorted(((size, *holder) for holder, size in holders.items() if size > 0), reverse=True)[
        :HOLDERS
    ]
    return StepMemory(
        batch=batch,
        counted=counted,
        mode=mode,
        kept_bytes=kept_bytes,
        peak_bytes=peak_bytes,
        peak=peak,
        fits=None,
        recomputed_macs=recomputed_macs,
        plain_kept_bytes=None,
        plain_peak_bytes=None,
        moments=tuple(moments),
        holders=tuple(TrainingHolder(path, kind, size) for size, path, kind in largest),
    )


def estimate_by_outputs(fact: Training) -> StepMemory:
    """Computes the memory of a step without autograd: an output is kept until its layer's backward pass.

    Raises:
        Misuse: The size of an output or input is unknown.
    """
    unknown = next((row.path for row in fact.layers if row.activation_bytes is None), None)
    if unknown is not None or fact.input_bytes is None:
        tensor = "an input" if unknown is None else f"the output of {unknown}"
        raise Misuse(f"the memory of a step is unknown, because the size of {tensor} is unknown")
    outputs = [Allocation("activations", row.path, row.activation_bytes or 0) for row in fact.layers]
    gradients = [Allocation("gradients", row.path, row.gradient_bytes) for row in fact.layers]
    changes = [MemoryChange("forward", output.path, output) for output in outputs if output.bytes]
    for output, gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        # the gradient of an output has the size of the output
        flowing = Allocation("temporary", output.path, output.bytes)
        for allocation, born in ((flowing, True), (gradient, True), (flowing, False), (output, False)):
            if allocation.bytes:
                changes.append(MemoryChange("backward", output.path, allocation, born))
    changes.append(MemoryChange("step", "", Allocation("optimizer", "", 0)))
    start = [Allocation("inputs", "", fact.input_bytes)]
    for row in fact.layers:
        start += [
            Allocation("parameters", row.path, row.param_bytes),
            Allocation("optimizer", row.path, row.optimizer_bytes),
        ]
    kept_bytes = sum(allocation.bytes for allocation in outputs)
    return compute_moments(
        start, changes, batch=fact.batch, kept_bytes=kept_bytes, counted="outputs", mode="eval"
    )


def add_plain_figures(step: StepMemory, plain: StepMemory) -> StepMemory:
    """Adds the figures of the step without checkpoints to a checkpointed step."""
    return replace(step, plain_kept_bytes=plain.kept_bytes, plain_peak_bytes=plain.peak_bytes)


def find_largest_batch(peak: Callable[[int], int], limit: int) -> int:
    """Returns the largest batch size whose peak is within `limit` bytes, or 0 if there is none.

    Memory grows almost linearly with the batch, so a line through known peaks gives the next guess. Both the
    result and the result plus one were evaluated.

    Args:
        peak: Peak bytes of a step as a function of the batch size.
        limit: Maximum number of bytes.

    Raises:
        Misuse: The peak does not grow with the batch, or not steadily.
    """
    peaks: dict[int, int] = {}

    def compute_peak(batch: int) -> int:
        if batch not in peaks:
            peaks[batch] = peak(batch)
        return peaks[batch]

    if compute_peak(2) > limit:
        return int(compute_peak(1) <= limit)
    # the largest batch that fits; the smallest batch that does not fit, or 0 if none is known
    low, high = 2, 0
    guess = 4
    for attempt in range(_TRIES):
        if compute_peak(guess) <= limit:
            low = guess
        else:
            high = guess
        if high == low + 1:
            return low
        # a line through two known peaks: the largest two, or those around the limit
        first, second = sorted(peaks)[-2:] if not high else (low, high)
        slope = (compute_peak(second) - compute_peak(first)) / (second - first)
        if slope <= 0:
            break
        guess = low + max(1, int((limit - compute_peak(low)) / slope))
        if high:
            # every second guess bisects, because lines approach a convex curve from one side only
            guess = (low + high) // 2 if attempt % 2 else min(guess, high - 1)
    raise Misuse("the memory of a step does not grow with the batch", where="--card")
