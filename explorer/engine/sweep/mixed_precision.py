"""Selects the next step of a greedy search for a mixed precision, and its final choice."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from explorer.base.units import count_text
from explorer.facts.quantize import FormatCost, FormatRow, FormatSweepSpec, MixedPrecision
from explorer.facts.quantize.sweep import compute_noise, read_cost


def find_next_move(
    single_layer_rows: Mapping[tuple[str, str], FormatRow],
    format_by_layer: Mapping[str, str],
    rejected: set[tuple[str, str]],
    cost: FormatCost,
) -> tuple[str, str] | None:
    """Returns the layer and format with the least added noise per saved unit, or None if nothing saves.

    Args:
        single_layer_rows: Rows of trials with one layer in one format, by layer and format.
        format_by_layer: Chosen format of each layer that has one.
        rejected: Layers and formats that were rejected.
        cost: The cost to save: bytes of weights or BitOPs.
    """
    best: tuple[float, tuple[str, str]] | None = None
    for (layer, name), row in single_layer_rows.items():
        current_row = single_layer_rows[layer, format_by_layer[layer]] if layer in format_by_layer else None
        savings = _compute_savings(row, cost) - (_compute_savings(current_row, cost) if current_row else 0)
        added_noise = compute_noise(row) - (compute_noise(current_row) if current_row else 0.0)
        if (layer, name) in rejected or savings <= 0 or not math.isfinite(added_noise):
            continue
        if best is None or added_noise / savings < best[0]:
            best = added_noise / savings, (layer, name)
    return best[1] if best else None


def _compute_savings(row: FormatRow, cost: FormatCost) -> int:
    """Returns the bytes of weights or the BitOPs that the choice of a row saves."""
    if cost == "bitops":
        return (row.bitops_before or 0) - (row.bitops or 0)
    return (row.weight_bytes_before or 0) - (row.weight_bytes or 0)


def get_worst_snr(row: FormatRow) -> float:
    """Returns the SNR of the worst output in decibels, or minus infinity if unknown."""
    return -math.inf if row.snr_db is None else row.snr_db


def get_average_bits(row: FormatRow) -> float:
    """Returns the average bits of a weight, or infinity if unknown."""
    return math.inf if row.weight_bits is None else row.weight_bits


def choose_outcome(model: str, rows: Sequence[FormatRow], spec: FormatSweepSpec) -> MixedPrecision:
    """Returns the best row within the limits of bits and SNR, or the nearest row if none is within them.

    With a minimum SNR, the best row has the lowest cost; else it has the highest SNR. The nearest row has the
    fewest bits among the rows with the minimum SNR, or the highest SNR if no row has it.
    """
    max_bits = math.inf if spec.bits is None else spec.bits
    min_snr = -math.inf if spec.snr is None else spec.snr
    measured_rows = [
        row for row in rows if not row.error and row.snr_db is not None and row.weight_bytes is not None
    ]
    rows_with_snr = [row for row in measured_rows if get_worst_snr(row) >= min_snr]
    accepted_rows = [row for row in rows_with_snr if get_average_bits(row) <= max_bits]
    limit_texts = [f"at most {spec.bits:g} bits a weight"] if spec.bits is not None else []
    limit_texts += [f"at least {spec.snr:g} dB"] if spec.snr is not None else []
    if accepted_rows:
        rows_with_cost = [row for row in accepted_rows if read_cost(row, spec.cost) is not None]
        minimizes_cost = spec.snr is not None and rows_with_cost
        best = (
            min(rows_with_cost, key=lambda row: (read_cost(row, spec.cost), -get_worst_snr(row)))
            if minimizes_cost
            else min(accepted_rows, key=lambda row: (-get_worst_snr(row), get_average_bits(row)))
        )
        summary = f"{' and '.join(limit_texts)}: {_describe_row(best, spec.cost)}"
        return MixedPrecision(
            model=model, bits=spec.bits, snr=spec.snr, met=True, row=best.key, told=summary, cost=spec.cost
        )
    nearest = min(
        rows_with_snr, key=get_average_bits, default=max(measured_rows, key=get_worst_snr, default=None)
    )
    summary = f"no choice that was tried has {' and '.join(limit_texts)}"
    if nearest is not None:
        summary += f"; the nearest has {_describe_row(nearest, spec.cost)}"
    return MixedPrecision(
        model=model,
        bits=spec.bits,
        snr=spec.snr,
        met=False,
        row=nearest.key if nearest else "",
        told=summary,
        cost=spec.cost,
    )


def _describe_row(row: FormatRow, cost: FormatCost) -> str:
    """Describes a row by its bits and its SNR, and by its BitOPs if they are the cost."""
    bitops_text = f"{count_text(row.bitops)} BitOPs, " if cost == "bitops" and row.bitops is not None else ""
    return f"{bitops_text}{get_average_bits(row):.4g} bits on average and {get_worst_snr(row):.1f} dB"
