"""Greedy search of a mixed precision: the next layer and format to try, and the outcome."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from explorer.base.units import count_text
from explorer.facts.quantize import FormatCost, FormatRow, FormatSweepSpec, MixedPrecision
from explorer.facts.quantize.sweep import cost_of, noise


def next_move(
    alone: Mapping[tuple[str, str], FormatRow],
    taken: Mapping[str, str],
    refused: set[tuple[str, str]],
    cost: FormatCost,
) -> tuple[str, str] | None:
    """The layer and format with the least noise for their savings; None where nothing saves any more.

    Args:
        alone: Rows of one layer in one format, by layer and format.
        taken: Formats of layers that have one already.
        refused: Layers and formats that are not tried again.
        cost: The cost to save.
    """
    best: tuple[float, tuple[str, str]] | None = None
    for (layer, name), row in alone.items():
        now = alone[layer, taken[layer]] if layer in taken else None
        saved = _saved(row, cost) - (_saved(now, cost) if now else 0)
        added = noise(row) - (noise(now) if now else 0.0)
        if (layer, name) in refused or saved <= 0 or not math.isfinite(added):
            continue
        if best is None or added / saved < best[0]:
            best = added / saved, (layer, name)
    return best[1] if best else None


def _saved(row: FormatRow, cost: FormatCost) -> int:
    if cost == "bitops":
        return (row.bitops_before or 0) - (row.bitops or 0)
    return (row.weight_bytes_before or 0) - (row.weight_bytes or 0)


def snr_of(row: FormatRow) -> float:
    """Decibels of the worst output; minus infinity if unknown."""
    return -math.inf if row.snr_db is None else row.snr_db


def bits_of(row: FormatRow) -> float:
    """Average bits of a weight; infinity if unknown."""
    return math.inf if row.weight_bits is None else row.weight_bits


def outcome(model: str, rows: Sequence[FormatRow], spec: FormatSweepSpec) -> MixedPrecision:
    """The best row within the limits; where no row is within them, the nearest one."""
    bits, snr = (math.inf if spec.bits is None else spec.bits), (-math.inf if spec.snr is None else spec.snr)
    measured_rows = [
        row for row in rows if not row.error and row.snr_db is not None and row.weight_bytes is not None
    ]
    sound = [row for row in measured_rows if snr_of(row) >= snr]
    good = [row for row in sound if bits_of(row) <= bits]
    limits = [f"at most {spec.bits:g} bits a weight"] if spec.bits is not None else []
    limits += [f"at least {spec.snr:g} dB"] if spec.snr is not None else []
    if good:
        paid = [row for row in good if cost_of(row, spec.cost) is not None]
        small = spec.snr is not None and paid
        best = (
            min(paid, key=lambda row: (cost_of(row, spec.cost), -snr_of(row)))
            if small
            else min(good, key=lambda row: (-snr_of(row), bits_of(row)))
        )
        summary = f"{' and '.join(limits)}: {_figures(best, spec.cost)}"
        return MixedPrecision(model, spec.bits, spec.snr, True, best.key, summary, spec.cost)
    nearest = min(sound, key=bits_of, default=max(measured_rows, key=snr_of, default=None))
    summary = f"no choice that was tried has {' and '.join(limits)}"
    if nearest is not None:
        summary += f"; the nearest has {_figures(nearest, spec.cost)}"
    return MixedPrecision(
        model, spec.bits, spec.snr, False, nearest.key if nearest else "", summary, spec.cost
    )


def _figures(row: FormatRow, cost: FormatCost) -> str:
    bitops = f"{count_text(row.bitops)} BitOPs, " if cost == "bitops" and row.bitops is not None else ""
    return f"{bitops}{bits_of(row):.4g} bits on average and {snr_of(row):.1f} dB"
