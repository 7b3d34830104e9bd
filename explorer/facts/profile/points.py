"""Facts about measured layers as points under a roof: what each reached, and what was predicted for it."""

from __future__ import annotations

from msgspec import Struct

from explorer.facts.profile.profile import Profile


class MeasuredPoint(Struct, frozen=True):
    """One layer that was timed, where it has MACs and moves bytes; with those that its kernel does, too.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        intensity: FLOPs a byte.
        flops: FLOPs a second that it reached.
        predicted_flops: Those of the time that was predicted for it.
        share: Of the run.
    """

    layer: int
    path: str
    intensity: float
    flops: float
    predicted_flops: float | None
    share: float


def measured_points(fact: Profile) -> tuple[MeasuredPoint, ...]:
    """The layers of a profile that have a place on a roofline, those that take most of the run last."""
    points = []
    for layer in fact.layers:
        took, macs, moved = layer.forward_seconds, layer.macs_per_second, layer.bytes_per_second
        if not took or not macs or not moved:
            continue
        predicted_seconds = layer.predicted_seconds
        predicted = 2 * macs * took / predicted_seconds if predicted_seconds else None
        points.append(
            MeasuredPoint(layer.layer, layer.path, 2 * macs / moved, 2 * macs, predicted, layer.share)
        )
    return tuple(sorted(points, key=lambda point: point.share))
