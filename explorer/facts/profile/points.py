"""Facts about measured layers as points on a roofline: the reached and the predicted rates."""

from __future__ import annotations

from explorer.base.fact import Fact
from explorer.facts.profile.profile import Profile


class MeasuredPoint(Fact, frozen=True):
    """One timed layer that has MACs and moves bytes, with the layers that its kernel also computes.

    Attributes:
        layer: Id of its row in `Analysis.layers`.
        intensity: FLOPs per byte.
        flops: Reached FLOPs per second.
        predicted_flops: FLOPs per second at the predicted time, or None without a prediction.
        share: Share of the run, 0 to 1.
    """

    layer: int
    path: str
    intensity: float
    flops: float
    predicted_flops: float | None
    share: float


def build_measured_points(fact: Profile) -> tuple[MeasuredPoint, ...]:
    """Builds the points of the layers that have a place on a roofline, in ascending order of their share."""
    points = []
    for layer in fact.layers:
        seconds, mac_rate, byte_rate = layer.forward_seconds, layer.macs_per_second, layer.bytes_per_second
        if not seconds or not mac_rate or not byte_rate:
            continue
        flops = 2 * mac_rate
        predicted_seconds = layer.predicted_seconds
        predicted_flops = flops * seconds / predicted_seconds if predicted_seconds else None
        points.append(
            MeasuredPoint(layer.layer, layer.path, flops / byte_rate, flops, predicted_flops, layer.share)
        )
    return tuple(sorted(points, key=lambda point: point.share))
