"""Float64 layers: values of the original, layer by layer, as far as asked for; held is what is read again."""

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
"""Of what a region puts out: two float64 runs that are closer compute of the same numbers."""


class Float64Layers:
    """The original in float64, as far as it was asked for; what no later layer reads is dropped."""

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
            self.last.update((name, at) for name in place.before.given)

    def at(self, index: int) -> Array | None:
        """The value at a place; None if there is none. Places are asked for in their order."""
        value = None
        while self.next <= index:
            self.tell("running the original in float64", self.next, len(self.places))
            place = self.places[self.next]
            value = None
            if place.before.given <= self.values.keys():
                inputs = {name: self.values[name] for name in place.before.given}
                value = in_float64(self.wiring, place.before, inputs, None)
            if value is not None and self.last[place.pair.before] > self.next:
                self.values[place.pair.before] = value
            for name in place.before.given:
                if self.last[name] <= self.next:
                    self.values.pop(name, None)
            self.next += 1
        return value


def in_float64(wiring: GraphProducers, region: Region, feeds: Feeds, cancel: Cancel) -> Array | None:
    """One value in float64 from others; None if it cannot be run so."""
    try:
        (result,) = evaluator.run(region_model(wiring, region), feeds, cancel).values()
    except (evaluator.NoReference, ValueError, IndexError, TypeError, OverflowError, MemoryError, BadModel):
        return None
    return result if isinstance(result, np.ndarray) or np.isscalar(result) else None


def in_full(
    region: ChangedRegion, wirings: tuple[GraphProducers, GraphProducers], values: Feeds, cancel: Cancel
) -> float | None:
    """By how much two regions differ in float64, of the largest number that the first puts out.

    What is left of a difference then is that of the numbers that are stored in them.

    Args:
        region: Which.
        wirings: The graphs.
        values: What they are given.
        cancel: Asked now and then.

    Returns:
        None where one of them cannot be run so.
    """
    old = in_float64(wirings[0], region.before, {n: values[n] for n in region.before.given}, cancel)
    if old is None:
        return None
    after_values = {name: values[twin or name] for name, twin in region.given.items()}
    new = in_float64(wirings[1], region.after, after_values, cancel)
    if new is None or np.shape(old) != np.shape(new):
        return None
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (old, new))
    finite = np.isfinite(a) & np.isfinite(b)
    largest = float(np.abs(a[finite]).max(initial=0.0))
    return float(np.abs(b - a)[finite].max(initial=0.0)) / largest if largest else None
