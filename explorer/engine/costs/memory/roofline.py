"""Compares every layer with the peak MACs and the memory bandwidth of a machine: the roofline model.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (2009). The MACs of a layer take a minimum time at the machine's peak, and its bytes take a
minimum time at full bandwidth. The larger time bounds the layer. Bytes are counted as in `Layer`: each input
is read once, each output is written once, and nothing stays on chip between layers.
"""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import sum_known
from explorer.facts import Analysis, Layer
from explorer.facts.roofline import Limit, Machine, Roofline, RooflinePoint


def compute_roofline(analysis: Analysis, machine: Machine) -> Roofline:
    """Places the layers of a model on the roofline of a machine.

    Args:
        analysis: Analysis of the model. Groups, layers that do not run, and layers without MACs and bytes
            (views) get no point.
        machine: Machine with its two limits, both above 0.

    Returns:
        Points in the order of the rows. A layer whose MACs or bytes are unknown has no time and is left out
        of the sums.
    """
    points = [
        _build_point(layer, machine)
        for layer in analysis.layers
        if not layer.group
        and layer.counted
        and layer.calls
        and (layer.macs != 0 or count_moved_bytes(layer) != 0)
    ]
    timed = sum(p.seconds is not None for p in points)
    seconds = sum_known(p.seconds for p in points)
    macs, moved = sum_known(p.macs for p in points), sum_known(p.bytes for p in points)
    shared = [
        replace(p, share=p.seconds / seconds if p.seconds is not None and seconds else 0.0) for p in points
    ]
    limits = [p.limit for p in points]
    return Roofline(
        machine=machine,
        ridge=2 * machine.peak_macs / machine.bandwidth,
        points=tuple(shared),
        seconds=seconds,
        compute_seconds=None if macs is None else macs / machine.peak_macs,
        memory_seconds=None if moved is None else moved / machine.bandwidth,
        compute_bound=limits.count("compute"),
        memory_bound=limits.count("memory"),
        unknown=limits.count("unknown"),
        coverage=timed / len(points) if points else 1.0,
        multiplied=find_multiplied_type(analysis),
    )


def find_multiplied_type(analysis: Analysis) -> str:
    """Returns the type of floats in which most MACs are done.

    It is '' without MACs, and if an operand is an integer: a graph does not say whether a machine multiplies
    integers or converts them to floats.
    """
    counts: Counter[str] = Counter()
    for layer in analysis.layers:
        if layer.macs and layer.counted and not layer.group and layer.outputs:
            output = layer.outputs[0].dtype or ""
            types = (output, *(weight.dtype or "" for weight in layer.weights if weight.shape))
            counts[output if all("float" in dtype for dtype in types) else ""] += layer.macs
    return counts.most_common(1)[0][0] if counts else ""


def count_moved_bytes(layer: Layer) -> int | None:
    """Returns the sum of bytes read and written by a layer, or None if either is unknown."""
    if layer.bytes_read is None or layer.bytes_written is None:
        return None
    return layer.bytes_read + layer.bytes_written


def compute_minimum_seconds(macs: int, moved: int, machine: Machine) -> float:
    """Returns the minimum time in seconds: the larger of MACs at the peak and bytes at full bandwidth."""
    return max(macs / machine.peak_macs, moved / machine.bandwidth)


def _build_point(layer: Layer, machine: Machine) -> RooflinePoint:
    moved = count_moved_bytes(layer)
    intensity: float | None = None
    seconds: float | None = None
    limit: Limit = "unknown"
    if layer.macs is not None and moved is not None:
        computing, moving = layer.macs / machine.peak_macs, moved / machine.bandwidth
        seconds = compute_minimum_seconds(layer.macs, moved, machine)
        limit = "compute" if computing >= moving else "memory"
        intensity = 2 * layer.macs / moved if moved else None
    return RooflinePoint(layer.id, layer.path, layer.kind, layer.macs, moved, intensity, limit, seconds, 0.0)
