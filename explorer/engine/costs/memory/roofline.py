"""Roofline model: every layer against the peak MACs and the bandwidth of a machine.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (2009). A layer takes at least the time of its multiply-accumulates at the machine's peak,
and at least the time of its bytes at full bandwidth; the longer one is what bounds it. Bytes are those
of `Layer`: each input read once, each output written once, nothing kept on chip between layers.
"""

from __future__ import annotations

from msgspec.structs import replace

from explorer.engine.costs.layer_tree import summed
from explorer.facts import Analysis, Layer
from explorer.facts.roofline import Limit, Machine, Roofline, RooflinePoint


def roofline(analysis: Analysis, machine: Machine) -> Roofline:
    """The layers of a model on the roofline of a machine.

    Args:
        analysis: Its rows; groups, layers that do not run and layers that neither compute nor move a byte
            (views) have no point.
        machine: Its two limits, both above 0.

    Returns:
        Points in the order of the rows. A layer whose MACs or bytes are not known has no time, and the sums
        are over the others.
    """
    points = [
        _point(layer, machine)
        for layer in analysis.layers
        if not layer.group and layer.counted and layer.calls and (layer.macs != 0 or bytes_moved(layer) != 0)
    ]
    timed = sum(p.seconds is not None for p in points)
    seconds = summed(p.seconds for p in points)
    macs, moved = summed(p.macs for p in points), summed(p.bytes for p in points)
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
    )


def bytes_moved(layer: Layer) -> int | None:
    """Bytes that a layer reads and writes; None if either is unknown."""
    if layer.bytes_read is None or layer.bytes_written is None:
        return None
    return layer.bytes_read + layer.bytes_written


def least_seconds(macs: int, moved: int, machine: Machine) -> float:
    """The longer of all MACs at the peak and all bytes at full bandwidth."""
    return max(macs / machine.peak_macs, moved / machine.bandwidth)


def _point(layer: Layer, machine: Machine) -> RooflinePoint:
    moved = bytes_moved(layer)
    intensity: float | None = None
    seconds: float | None = None
    limit: Limit = "unknown"
    if layer.macs is not None and moved is not None:
        computing, moving = layer.macs / machine.peak_macs, moved / machine.bandwidth
        seconds = least_seconds(layer.macs, moved, machine)
        limit = "compute" if computing >= moving else "memory"
        intensity = 2 * layer.macs / moved if moved else None
    return RooflinePoint(layer.id, layer.path, layer.kind, layer.macs, moved, intensity, limit, seconds, 0.0)
