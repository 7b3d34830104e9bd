"""Pareto front of a sweep: tilings, or number formats, of which no other is better in every figure.

Beside the facts, since the engine marks the rows of a file and the screen those of the tilings that it has so
far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.facts.quantize import FormatRow
from explorer.facts.sweep import OBJECTIVES, SweepRow


def with_front(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
    """The rows, each marked if it is on the front of its model and machine.

    Tilings of different models, of one at different sizes, or for different machines are no rivals. A figure
    that is not known of every rival (cycles of an unknown machine) decides nothing, and a tiling that was
    disproved competes with nobody.
    """
    rivals: dict[tuple[str, ...], list[int]] = {}
    for at, row in enumerate(rows):
        if not row.error and row.verified is not False:
            rivals.setdefault((row.model, row.fingerprint, row.opening, row.hardware), []).append(at)
    marked: set[int] = set()
    for group in rivals.values():
        objectives = [name for name in OBJECTIVES if all(getattr(rows[at], name) is not None for at in group)]
        points = [tuple(getattr(rows[at], name) for name in objectives) for at in group]
        if objectives:
            best = nondominated([(*point, 0, 0)[:3] for point in points])
            marked.update(at for at, point in zip(group, points, strict=True) if (*point, 0, 0)[:3] in best)
    return tuple(
        row if row.pareto == (at in marked) else replace(row, pareto=at in marked)
        for at, row in enumerate(rows)
    )


def with_format_front(rows: Sequence[FormatRow]) -> tuple[FormatRow, ...]:
    """The rows, each marked if it is on the front of its model, on the same samples.

    BitOPs that are not known of every rival decide nothing; a row without SNR is no rival.
    """
    rivals: dict[tuple[str, ...], list[int]] = {}
    for at, row in enumerate(rows):
        if not row.error and row.snr_db is not None and row.weight_bytes is not None:
            rivals.setdefault((row.model, row.fingerprint, row.opening, row.calibration), []).append(at)
    marked: set[int] = set()
    for group in rivals.values():
        counted = all(rows[at].bitops is not None for at in group)
        points = [
            (rows[at].weight_bytes, rows[at].bitops if counted else 0, -(rows[at].snr_db or 0.0))
            for at in group
        ]
        best = nondominated(points)
        marked.update(at for at, point in zip(group, points, strict=True) if point in best)
    return tuple(
        row if row.pareto == (at in marked) else replace(row, pareto=at in marked)
        for at, row in enumerate(rows)
    )


def nondominated(points: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """The points of which no other is at most as large in all three places.

    Whatever dominates a point comes before it in lexicographic order, so one pass is enough: of those passed,
    the least third figure for every second one is kept as a staircase.
    """
    best: set[tuple[Any, ...]] = set()
    seconds: list[Any] = []
    thirds: list[Any] = []
    for point in sorted(set(points)):
        _, second, third = point
        at = bisect_right(seconds, second)
        if at and thirds[at - 1] <= third:
            continue
        best.add(point)
        stop = at
        while stop < len(thirds) and thirds[stop] >= third:
            stop += 1
        start = at - 1 if at and seconds[at - 1] == second else at
        seconds[start:stop], thirds[start:stop] = [second], [third]
    return best
