"""Float64 layers: the original's values in float64, computed on request and dropped when no longer needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.progress import Cancel
from explorer.engine.proof.float64 import evaluator
from explorer.engine.proof.regions.correspondence import ChangedRegion
from explorer.engine.proof.regions.trials import ComparedValue
from explorer.engine.proof.structure.probes import GraphProducers, Region, region_model
from explorer.engine.runtime.onnxruntime import Array

Feeds = dict[str, Array]

EXACT = 2.0**-40
"""Relative difference of two float64 runs below which they compute from the same numbers."""


class Float64Layers:
    """The original in float64, up to the last requested value; drops values that no later layer reads."""

    def __init__(
        self,
        wiring: GraphProducers,
        places: Sequence[ComparedValue],
        feeds: Feeds,
        tell: Callable[[str, int, int], None],
    ) -> None:
        self.wiring = wiring
        self.places = places
        self.tell = tell
        self.values = dict(feeds)
        self.next = 0
        self.last: dict[str, int] = {}
        for at, place in enumerate(places):
            self.last[place.pair.before] = at
            self.last.update((name, at) for name in place.before.inputs)

    def at(self, index: int) -> Array | None:
        """The value at a place, or None without one. Ask for places in their order."""
        value = None
        while self.next <= index:
            self.tell("running the original in float64", self.next, len(self.places))
            place = self.places[self.next]
            value = None
            if place.before.inputs <= self.values.keys():
                inputs = {name: self.values[name] for name in place.before.inputs}
                value = in_float64(self.wiring, place.before, inputs, None)
            if value is not None and self.last[place.pair.before] > self.next:
                self.values[place.pair.before] = value
            for name in place.before.inputs:
                if self.last[name] <= self.next:
                    self.values.pop(name, None)
            self.next += 1
        return value


def in_float64(wiring: GraphProducers, region: Region, feeds: Feeds, cancel: Cancel) -> Array | None:
    """One value in float64, computed from others; None if float64 cannot run the nodes."""
    try:
        (result,) = evaluator.run(region_model(wiring, region), feeds, cancel).values()
    except (evaluator.NoReference, ValueError, IndexError, TypeError, OverflowError, MemoryError, BadModel):
        return None
    return result if isinstance(result, np.ndarray) or np.isscalar(result) else None


def in_full(
    region: ChangedRegion, wirings: tuple[GraphProducers, GraphProducers], values: Feeds, cancel: Cancel
) -> float | None:
    """Difference of two regions in float64, relative to the first region's largest output.

    A remaining difference comes from the numbers that are stored in them.

    Args:
        region: The region.
        wirings: The graphs.
        values: The inputs, by the original's names.
        cancel: Asked now and then.

    Returns:
        The relative difference; None if one of them cannot run in float64.
    """
    old = in_float64(wirings[0], region.before, {n: values[n] for n in region.before.inputs}, cancel)
    if old is None:
        return None
    after_values = {name: values[twin or name] for name, twin in region.twins.items()}
    new = in_float64(wirings[1], region.after, after_values, cancel)
    if new is None or np.shape(old) != np.shape(new):
        return None
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (old, new))
    finite = np.isfinite(a) & np.isfinite(b)
    largest = float(np.abs(a[finite]).max(initial=0.0))
    return float(np.abs(b - a)[finite].max(initial=0.0)) / largest if largest else None
