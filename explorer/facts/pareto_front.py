"""Pareto front of a sweep: the rows that no other row beats in every figure.

This module is part of the facts because two packages use it: the engine marks the rows of a results file, and
the screen marks the rows that a running sweep has computed so far.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.facts.quantize import FormatRow
from explorer.facts.sweep import OBJECTIVES, SweepRow


def mark_front(rows: Sequence[SweepRow]) -> tuple[SweepRow, ...]:
    """Marks the tilings on the Pareto front of their model and machine.

    Tilings of different models, of different sizes of a model, or for different machines do not compete. A
    figure that is unknown for one rival (cycles of an unknown machine) is ignored. A tiling without figures,
    or whose proof failed, does not compete.
    """
    rivals: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if not row.error and row.verified is not False:
            rivals.setdefault((row.model, row.fingerprint, row.opening, row.hardware), []).append(index)
    marked: set[int] = set()
    for group in rivals.values():
        objectives = [
            name for name in OBJECTIVES if all(getattr(rows[index], name) is not None for index in group)
        ]
        points = [tuple(getattr(rows[index], name) for name in objectives) for index in group]
        if objectives:  # ignored figures become zeros, because `find_nondominated` needs three coordinates
            best = find_nondominated([(*point, 0, 0)[:3] for point in points])
            marked.update(
                index for index, point in zip(group, points, strict=True) if (*point, 0, 0)[:3] in best
            )
    return tuple(
        row if row.pareto == (index in marked) else replace(row, pareto=index in marked)
        for index, row in enumerate(rows)
    )


def mark_format_front(rows: Sequence[FormatRow]) -> tuple[FormatRow, ...]:
    """Marks the number formats on the Pareto front of their model and samples.

    Rows compete by weight bytes, BitOPs and SNR. BitOPs are ignored if they are unknown for one rival. A row
    with an error, or without an SNR or weight bytes, does not compete.
    """
    rivals: dict[tuple[str, ...], list[int]] = {}
    for index, row in enumerate(rows):
        if not row.error and row.snr_db is not None and row.weight_bytes is not None:
            rivals.setdefault((row.model, row.fingerprint, row.opening, row.calibration), []).append(index)
    marked: set[int] = set()
    for group in rivals.values():
        has_bitops = all(rows[index].bitops is not None for index in group)
        points = [
            (rows[index].weight_bytes, rows[index].bitops if has_bitops else 0, -(rows[index].snr_db or 0.0))
            for index in group
        ]
        best = find_nondominated(points)
        marked.update(index for index, point in zip(group, points, strict=True) if point in best)
    return tuple(
        row if row.pareto == (index in marked) else replace(row, pareto=index in marked)
        for index, row in enumerate(rows)
    )


def find_nondominated(points: Iterable[tuple[Any, ...]]) -> set[tuple[Any, ...]]:
    """Finds the points for which no other point is at most as large in all three coordinates.

    A dominating point precedes the dominated point in lexicographic order, so one pass over the sorted points
    is enough. The lists `seconds` (ascending) and `thirds` (descending) hold the second and third coordinates
    of those earlier points that no other earlier point beats in both of these coordinates.
    """
    best: set[tuple[Any, ...]] = set()
    seconds: list[Any] = []
    thirds: list[Any] = []
    for point in sorted(set(points)):
        _, second, third = point
        position = bisect_right(seconds, second)
        if position and thirds[position - 1] <= third:
            continue
        best.add(point)
        stop = position
        while stop < len(thirds) and thirds[stop] >= third:
            stop += 1
        start = position - 1 if position and seconds[position - 1] == second else position
        seconds[start:stop], thirds[start:stop] = [second], [third]
    return best
