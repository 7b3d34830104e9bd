"""Runs the original's layers in float64 on request, and drops values that no later layer reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.progress import Cancel
from explorer.engine.proof.float64 import evaluator
from explorer.engine.proof.regions.correspondence import ChangedRegion
from explorer.engine.proof.regions.trials import ComparedValue
from explorer.engine.proof.structure.probes import GraphProducers, Region, build_region_model_of_one
from explorer.engine.runtime.onnxruntime import Array

Feeds = dict[str, Array]

EXACT = 2.0**-40
"""Relative difference of two float64 runs up to which their stored numbers count as equal."""


class Float64Layers:
    """Float64 values of the original's layers, computed in order up to the last requested value.

    Args:
        wiring: Producers of the original's values.
        compared_values: Compared values, in the execution order of the original.
        feeds: Input arrays of the original, by name.
        report_phase: Receives a phase, the number of completed values and the number of all values.
    """

    def __init__(
        self,
        wiring: GraphProducers,
        compared_values: Sequence[ComparedValue],
        feeds: Feeds,
        report_phase: Callable[[str, int, int], None],
    ) -> None:
        self.wiring = wiring
        self.compared_values = compared_values
        self.report_phase = report_phase
        self.values = dict(feeds)
        self.next_index = 0
        self.last_use: dict[str, int] = {}
        """Index of the last compared value that reads or computes a value, by the value's name."""
        for index, compared in enumerate(compared_values):
            self.last_use[compared.pair.before] = index
            self.last_use.update((name, index) for name in compared.before.inputs)

    def compute_value_at(self, index: int) -> Array | None:
        """Returns the float64 value at an index of `compared_values`, or None if its layer cannot run.

        The index must be larger than that of the previous call.
        """
        value = None
        while self.next_index <= index:
            count = len(self.compared_values)
            self.report_phase("running the original in float64", self.next_index, count)
            compared = self.compared_values[self.next_index]
            value = None
            if compared.before.inputs <= self.values.keys():
                inputs = {name: self.values[name] for name in compared.before.inputs}
                value = run_in_float64(self.wiring, compared.before, inputs, None)
            if value is not None and self.last_use[compared.pair.before] > self.next_index:
                self.values[compared.pair.before] = value
            for name in compared.before.inputs:
                if self.last_use[name] <= self.next_index:
                    self.values.pop(name, None)
            self.next_index += 1
        return value


def run_in_float64(
    wiring: GraphProducers, region: Region, feeds: Feeds, cancel: Cancel, *, rounds_results: bool = False
) -> Array | None:
    """Computes the value of a region in float64, or returns None if float64 cannot run its nodes.

    Args:
        wiring: Producers of the values of the region's graph.
        region: The region.
        feeds: Inputs of the region, by name.
        cancel: Function that returns True to cancel, or None.
        rounds_results: Whether the result of each operator is rounded to its own type.
    """
    model = build_region_model_of_one(wiring, region)
    try:
        (result,) = evaluator.run(model, feeds, cancel, rounds_results=rounds_results).values()
    except (evaluator.NoReference, ValueError, IndexError, TypeError, OverflowError, MemoryError, BadModel):
        return None
    return result if isinstance(result, np.ndarray) or np.isscalar(result) else None


def measure_float64_difference(
    region: ChangedRegion, wirings: tuple[GraphProducers, GraphProducers], values: Feeds, cancel: Cancel
) -> float | None:
    """Compares two regions in float64, relative to the first region's largest output.

    A difference in float64 comes from the numbers stored in the regions.

    Args:
        region: Region of both graphs.
        wirings: Producers of the values of the two graphs.
        values: Inputs of the region, by the original's names.
        cancel: Function that returns True to cancel, or None.

    Returns:
        The relative difference, or None if one of the regions cannot run in float64, if their outputs have
        different shapes, or if the first output is zero.
    """
    old = run_in_float64(wirings[0], region.before, {n: values[n] for n in region.before.inputs}, cancel)
    if old is None:
        return None
    after_values = {name: values[twin or name] for name, twin in region.twins.items()}
    new = run_in_float64(wirings[1], region.after, after_values, cancel)
    if new is None or np.shape(old) != np.shape(new):
        return None
    a, b = (np.asarray(v, np.float64).reshape(-1) for v in (old, new))
    finite = np.isfinite(a) & np.isfinite(b)
    largest = float(np.abs(a[finite]).max(initial=0.0))
    return float(np.abs(b[finite] - a[finite]).max(initial=0.0)) / largest if largest else None
