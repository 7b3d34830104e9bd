"""Memory of a training step over time: from tensors that are born and die, or from the layers' outputs.

`simulated` has torch run a step on shapes and records births and deaths; here they become moments, a peak and
who holds it. A format without autograd is counted by the outputs of its layers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, get_args

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts.training import (
    Holding,
    Phase,
    StepMemory,
    Training,
    TrainingHolder,
    TrainingMoment,
)

HOLDERS = 10
"""How many of those that hold the peak are named."""

_TRIES = 32
"""Batch sizes that are tried at most for the largest that fits."""

_KINDS: tuple[Holding, ...] = get_args(Holding)


class Allocation(Struct):
    """Memory that is live for a while: of what kind, made by which module, how large."""

    kind: Holding
    path: str
    bytes: int


class MemoryChange(NamedTuple):
    """An allocation is born (or dies) in a phase while a module runs."""

    phase: Phase
    path: str
    allocation: Allocation
    born: bool = True


def over_time(
    start: Iterable[Allocation],
    changes: Sequence[MemoryChange],
    *,
    batch: int | None,
    kept_bytes: int,
    counted: Literal["autograd", "outputs"],
    mode: Literal["train", "eval"] = "train",
    recomputed_macs: int = 0,
) -> StepMemory:
    """Moments, peak and holders of a step.

    Args:
        start: What is live when it begins.
        changes: What happens, in order; a moment is the fullest one of changes that follow each other in one
            module.
        batch: See `StepMemory`, and for the others too.
        kept_bytes: Bytes of activations kept at the end of forward.
        counted: How the memory was counted.
        mode: Of the modules.
        recomputed_macs: In the backward pass.
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
        here = change.phase, change.path
        if moments and here == (moments[-1].phase, moments[-1].path):
            if total <= moments[-1].live_bytes:
                continue
            moments.pop()
        held_now = {kind: live[kind] for kind in _KINDS}
        moments.append(TrainingMoment(**held_now, phase=here[0], path=here[1], live_bytes=total))
        if total > peak_bytes:
            peak_bytes, peak, holders = total, len(moments) - 1, bytes_by_holder.copy()
    largest = sorted(((size, *who) for who, size in holders.items() if size > 0), reverse=True)[:HOLDERS]
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


def by_outputs(fact: Training) -> StepMemory:
    """The step of a model that autograd does not run: an output is kept until its layer's backward.

    Raises:
        Misuse: The size of an output, or of an input, is not known.
    """
    unknown = next((row.path for row in fact.layers if row.activation_bytes is None), None)
    if unknown is not None or fact.input_bytes is None:
        raise Misuse(
            f"how much {unknown or 'an input'} puts out is not known, and so is the memory of a step"
        )
    outputs = [Allocation("activations", row.path, row.activation_bytes or 0) for row in fact.layers]
    gradients = [Allocation("gradients", row.path, row.gradient_bytes) for row in fact.layers]
    changes = [MemoryChange("forward", out.path, out) for out in outputs if out.bytes]
    for out, gradient in zip(reversed(outputs), reversed(gradients), strict=True):
        # the gradient of an output is as large as the output
        flowing = Allocation("temporary", out.path, out.bytes)
        for allocation, born in ((flowing, True), (gradient, True), (flowing, False), (out, False)):
            if allocation.bytes:
                changes.append(MemoryChange("backward", out.path, allocation, born))
    changes.append(MemoryChange("step", "", Allocation("optimizer", "", 0)))
    start = [Allocation("inputs", "", fact.input_bytes)]
    for row in fact.layers:
        start += [
            Allocation("parameters", row.path, row.param_bytes),
            Allocation("optimizer", row.path, row.optimizer_bytes),
        ]
    kept_bytes = sum(allocation.bytes for allocation in outputs)
    return over_time(start, changes, batch=fact.batch, kept_bytes=kept_bytes, counted="outputs", mode="eval")


def beside_plain(step: StepMemory, plain: StepMemory) -> StepMemory:
    """A checkpointed step, with the memory of the step without checkpoints."""
    return replace(step, plain_kept_bytes=plain.kept_bytes, plain_peak_bytes=plain.peak_bytes)


def largest_batch(peak: Callable[[int], int], limit: int) -> int:
    """The largest batch whose peak is within `limit` bytes; 0 if none is.

    Memory grows with the batch nearly in a straight line, and its slope gives the next guess. The answer
    was tried, and so was one batch more.

    Args:
        peak: Bytes of a step at a batch.
        limit: Bytes.

    Raises:
        Misuse: The peak does not grow with the batch, or grows in jumps.
    """
    peaks: dict[int, int] = {}

    def at(batch: int) -> int:
        if batch not in peaks:
            peaks[batch] = peak(batch)
        return peaks[batch]

    if at(2) > limit:
        return int(at(1) <= limit)
    low, high = 2, 0  # high: the least that is known not to fit
    guess = 4
    for tried in range(_TRIES):
        if at(guess) <= limit:
            low = guess
        else:
            high = guess
        if high == low + 1:
            return low
        # a line through the largest two that are known
        first, second = sorted(peaks)[-2:] if not high else (low, high)
        slope = (at(second) - at(first)) / (second - first)
        if slope <= 0:
            break
        guess = low + max(1, int((limit - at(low)) / slope))
        if high:
            # where memory is not linear, a line approaches from one side only
            guess = (low + high) // 2 if tried % 2 else min(guess, high - 1)
    raise Misuse("the memory of a step does not grow with the batch", where="--card")
