"""Least times of a served model on a machine: its products and its bytes at the machine's peak rates.

A step reads every weight once for the whole batch, and the cache of each sequence. At small batches these
reads bound it, not the products. Activations are assumed to stay in the cache of the processor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from explorer.engine.serving.kv_cache import first_beyond
from explorer.facts.roofline import Machine
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.serving import ServingLimit, ServingTime


class PassWork(Struct, frozen=True):
    """The work of a pass: multiply-accumulates (None: unknown), and bytes by kind."""

    macs: float | None
    weights: float
    cache: float
    links: float = 0.0

    def seconds(self, machine: Machine, links: float | None) -> Mapping[ServingLimit, float | None]:
        """Seconds of each kind of work alone; None for unknown products, and for links of an unknown rate."""
        return {
            "compute": None if self.macs is None else self.macs / machine.peak_macs,
            "weights": self.weights / machine.bandwidth,
            "cache": self.cache / machine.bandwidth,
            "links": 0.0 if not self.links else None if links is None else self.links / links,
        }

    def least(self, machine: Machine | None, links: float | None = None) -> tuple[float | None, ServingLimit]:
        """The least time, with products and bytes in parallel and the links after them, and its limit."""
        if machine is None:
            return None, "unknown"
        each = self.seconds(machine, links)
        compute, weights, cache, over = (each[k] for k in ("compute", "weights", "cache", "links"))
        if over is None or compute is None or weights is None or cache is None:
            return None, "unknown"
        if over > max(compute, weights + cache):
            return max(compute, weights + cache) + over, "links"
        if compute >= weights + cache:
            return compute + over, "compute"
        return weights + cache + over, "weights" if weights >= cache else "cache"


def times(
    first: Mapping[int, PassWork],
    steps: Mapping[tuple[int, int], PassWork],
    machine: Machine | None,
    weights: int,
    card: int | None,
) -> tuple[ServingTime, ...]:
    """Times of every context and batch.

    Args:
        first: The work for the prompts of a batch, by batch.
        steps: The work of a decode step, by context and batch.
        machine: None gives no times.
        weights: Bytes of weights in memory.
        card: Bytes of a device's memory.
    """
    serving_times = []
    for (context, batch), work in steps.items():
        memory = round(weights + work.cache)
        begun, why = first[batch].least(machine)
        token, limit = work.least(machine)
        serving_times.append(
            ServingTime(
                context,
                batch,
                memory,
                None if card is None else memory <= card,
                begun,
                why,
                token,
                limit,
                batch / token if token else None,
            )
        )
    return tuple(serving_times)


def longest_contexts(
    cache: ClosedForm, batches: Sequence[int], weights: int, card: int | None
) -> tuple[tuple[int, int | None], ...]:
    """The longest context, in tokens, that fits a memory, by batch."""
    if card is None or not cache.pieces:
        return tuple([(batch, None) for batch in batches])
    longest = []
    for batch in batches:
        beyond = first_beyond(cache, card - weights, batch)
        longest.append((batch, None if beyond is None else beyond - 1))
    return tuple(longest)


def largest_batches(
    cache_bytes: Mapping[int, int], weights: int, card: int | None
) -> tuple[tuple[int, int | None], ...]:
    """The most sequences that fit a memory, by context; `cache_bytes` are of one sequence, by context."""
    return tuple(
        [
            (context, None if card is None or not each else max((card - weights) // each, 0))
            for context, each in cache_bytes.items()
        ]
    )
