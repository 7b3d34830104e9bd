"""Computes minimum times of a served model, from its MACs and bytes at the machine's peak rates.

A step reads every weight once for the whole batch, and the cache of each sequence. At small batches these
reads limit the step, instead of the MACs. Activations are assumed to stay in the processor's caches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from explorer.engine.serving.kv_cache import find_first_beyond
from explorer.facts.roofline import Machine
from explorer.facts.serving.forms import ClosedForm
from explorer.facts.serving.serving import ServingLimit, ServingTime


class PassWork(Struct, frozen=True):
    """The work of a pass.

    Attributes:
        macs: Multiply-accumulates, or None if unknown.
        weights: Bytes of weights that are read.
        cache: Bytes of the KV cache that are read or written.
        links: Bytes that are sent to other devices.
    """

    macs: float | None
    weights: float
    cache: float
    links: float = 0.0

    def compute_seconds(self, machine: Machine, links: float | None) -> Mapping[ServingLimit, float | None]:
        """Returns the seconds of each kind of work alone, or None if unknown. `links` is bytes per second."""
        return {
            "compute": None if self.macs is None else self.macs / machine.peak_macs,
            "weights": self.weights / machine.bandwidth,
            "cache": self.cache / machine.bandwidth,
            "links": 0.0 if not self.links else None if links is None else self.links / links,
        }

    def compute_least(
        self, machine: Machine | None, links: float | None = None
    ) -> tuple[float | None, ServingLimit]:
        """Returns the minimum time in seconds, or None if unknown, and the kind of work that limits it.

        Computation and memory reads run at the same time; transfers between devices follow.
        """
        if machine is None:
            return None, "unknown"
        seconds = self.compute_seconds(machine, links)
        compute, links_seconds = seconds["compute"], seconds["links"]
        weights, cache = seconds["weights"], seconds["cache"]
        if links_seconds is None or compute is None or weights is None or cache is None:
            return None, "unknown"
        if links_seconds > max(compute, weights + cache):
            return max(compute, weights + cache) + links_seconds, "links"
        if compute >= weights + cache:
            return compute + links_seconds, "compute"
        return weights + cache + links_seconds, "weights" if weights >= cache else "cache"


def compute_times(
    first: Mapping[int, PassWork],
    steps: Mapping[tuple[int, int], PassWork],
    machine: Machine | None,
    weights: int,
    card: int | None,
) -> tuple[ServingTime, ...]:
    """Computes the times of every context and batch.

    Args:
        first: Work for the prompts of a batch, by batch size.
        steps: Work of a decode step, by context and batch size.
        machine: Machine with the peak rates, or None for no times.
        weights: Bytes of weights in memory.
        card: Bytes of the device's memory, or None if unknown.
    """
    serving_times = []
    for (context, batch), work in steps.items():
        memory = round(weights + work.cache)
        first_token, first_token_limit = first[batch].compute_least(machine)
        token, limit = work.compute_least(machine)
        serving_times.append(
            ServingTime(
                context=context,
                batch=batch,
                memory=memory,
                fits=None if card is None else memory <= card,
                first_token=first_token,
                first_limit=first_token_limit,
                token=token,
                token_limit=limit,
                rate=batch / token if token else None,
            )
        )
    return tuple(serving_times)


def find_longest_contexts(
    cache: ClosedForm, batches: Sequence[int], weights: int, card: int | None
) -> tuple[tuple[int, int | None], ...]:
    """Returns the longest context, in tokens, that fits the memory, by batch size.

    The context is None if every context fits, or if the memory or the size of the cache is unknown.
    """
    if card is None or not cache.pieces:
        return tuple([(batch, None) for batch in batches])
    longest = []
    for batch in batches:
        beyond = find_first_beyond(cache, card - weights, batch)
        longest.append((batch, None if beyond is None else beyond - 1))
    return tuple(longest)


def find_largest_batches(
    cache_bytes: Mapping[int, int], weights: int, card: int | None
) -> tuple[tuple[int, int | None], ...]:
    """Returns the largest number of sequences that fit the memory, by context.

    The number is None if the memory is unknown or a sequence has no cache.

    Args:
        cache_bytes: Bytes of the cache of one sequence, by context.
        weights: Bytes of all weights.
        card: Bytes of the device's memory, or None if unknown.
    """
    return tuple(
        [
            (context, None if card is None or not size else max((card - weights) // size, 0))
            for context, size in cache_bytes.items()
        ]
    )
