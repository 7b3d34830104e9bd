"""Resolution of runs: how small a difference of two regions the runs of them still tell from rounding.

Both run in float64, too, where they can: then what is left of a difference is that of the numbers that are
stored in them, and of those a rewrite that only moves them leaves nothing.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from explorer.engine.progress import Cancel
from explorer.engine.proof.compare import unit_roundoff
from explorer.engine.proof.regions.correspondence import ChangedRegion
from explorer.engine.proof.regions.float64_layers import in_float64
from explorer.engine.proof.regions.synthetic_values import Feeds
from explorer.engine.proof.structure.probes import GraphProducers
from explorer.facts import OutputEvidence

EXACT = 2.0**-40
"""Of what a region puts out: two float64 runs that are closer compute of the same numbers."""


def in_full(
    region: ChangedRegion, wirings: tuple[GraphProducers, GraphProducers], values: Feeds, cancel: Cancel
) -> float | None:
    """By how much two regions differ in float64, of the largest number that the first puts out.

    Args:
        region: Which.
        wirings: The graphs.
        values: What they are given.
        cancel: Asked now and then.

    Returns:
        None where one of them cannot be run so.
    """
    run = partial(in_float64, cancel=cancel)
    old = run(wirings[0], region.before, {n: values[n] for n in region.before.given})
    if old is None:
        return None
    new = run(wirings[1], region.after, {n: values[twin or n] for n, twin in region.given.items()})
    if new is None or np.shape(old) != np.shape(new):
        return None
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (old, new))
    finite = np.isfinite(a) & np.isfinite(b)
    largest = float(np.abs(a[finite]).max(initial=0.0))
    return float(np.abs(b - a)[finite].max(initial=0.0)) / largest if largest else None


def of_runs(worst: OutputEvidence) -> float:
    """Of what a region puts out, the difference that its runs would have let pass for rounding."""
    least = unit_roundoff(worst.dtype)
    if worst.relative_rms is None or worst.equal:
        return least
    return max(least, worst.relative_rms / min(worst.limit_share or 1.0, 1.0))
