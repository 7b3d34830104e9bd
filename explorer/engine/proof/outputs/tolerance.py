"""Judges whether two models, such as a quantized one and its original, differ by more than a tolerance."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.units import shape_text
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.values.agreement import compute_snr_db
from explorer.facts import OutputEvidence
from explorer.facts.verification import Tolerance


def describe_tolerance(tolerance: Tolerance) -> str:
    """Returns a tolerance as text, such as 'differences of at most 0.001'."""
    parts = []
    if tolerance.atol is not None or tolerance.rtol is not None:
        terms = [f"{tolerance.atol:g}"] if tolerance.atol else []
        terms += [f"{tolerance.rtol:g} of the value"] if tolerance.rtol else []
        parts.append(f"differences of at most {' + '.join(terms) or '0'}")
    if tolerance.snr is not None:
        parts.append(f"a signal to noise ratio of at least {tolerance.snr:g} dB")
    return " and ".join(parts)


def judge_within(
    evidence: OutputEvidence, before: Sequence[Any], after: Sequence[Any], tolerance: Tolerance
) -> OutputEvidence:
    """Judges one output by a tolerance. The evidence of values other than numeric arrays stays unchanged.

    Args:
        evidence: Evidence of the exact comparison.
        before: Output of the original for each draw.
        after: Output of the other model for each draw.
        tolerance: Allowed difference.

    Returns:
        The evidence with the result of the judgment.
    """
    if not all(isinstance(v, np.ndarray) and v.dtype.kind in "biufV" for v in (*before, *after)):
        return evidence
    passed, reason, share = judge(before, after, tolerance)
    limit_share = share if math.isfinite(share) else None
    return replace(evidence, passed=passed, reason=reason, limit_share=limit_share)


def judge(before: Sequence[Array], after: Sequence[Array], tolerance: Tolerance) -> tuple[bool, str, float]:
    """Judges whether one output stays within a tolerance.

    Two criteria may apply. Every element: |after - before| <= atol + rtol |before|. Every draw: 10 log10(sum
    before**2 / sum (after - before)**2) >= snr.

    Args:
        before: Output of the original for each draw.
        after: Output of the other model for each draw.
        tolerance: Allowed difference.

    Returns:
        Tuple of three: whether the output passes; a text with the figures closest to their limits; the
        largest figure as a share of its limit, infinite if no error is allowed.
    """
    largest_difference, largest_share, lowest_snr = 0.0, 0.0, math.inf
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            return (
                False,
                f"{shape_text(old.shape)} in one model, {shape_text(new.shape)} in the other",
                math.inf,
            )
        a, b = (np.asarray(v).astype(np.float64).reshape(-1) for v in (old, new))
        is_finite = np.isfinite(a) & np.isfinite(b)
        differs_in_kind = ~is_finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if differs_in_kind.any():
            return (
                False,
                f"{int(differs_in_kind.sum()):,} elements are NaN or Inf in one model only",
                math.inf,
            )
        a, deltas = a[is_finite], np.abs(b[is_finite] - a[is_finite])
        if not deltas.size:
            continue
        allowed = (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * np.abs(a)
        # with a limit of 0, only a difference of 0 passes
        shares = np.divide(deltas, allowed, out=np.where(deltas > 0, np.inf, 0.0), where=allowed > 0)
        index = int(np.argmax(shares))
        if shares[index] > largest_share:
            largest_share, largest_difference = float(shares[index]), float(deltas[index])
        lowest_snr = min(lowest_snr, compute_snr_db(float(a @ a), float(deltas @ deltas)))
    passed, parts, limit_share = True, [], 0.0
    if tolerance.atol is not None or tolerance.rtol is not None:
        passed = largest_share <= 1.0
        limit_share = largest_share
        share_text = (
            f"{largest_share:.2g} of the limit" if math.isfinite(largest_share) else "and none is allowed"
        )
        parts.append(f"difference {largest_difference:.2e}, {share_text}")
    if tolerance.snr is not None:
        passed = passed and lowest_snr >= tolerance.snr
        limit_share = max(limit_share, _convert_gain(tolerance.snr - lowest_snr))
        parts.append("no noise" if lowest_snr == math.inf else f"signal to noise {lowest_snr:.1f} dB")
    return passed, "; ".join(parts), limit_share


def _convert_gain(decibels: float) -> float:
    """Converts a gain in dB to an amplitude ratio. It is infinite beyond the range of a float."""
    return math.inf if decibels > 6000 else 10 ** (decibels / 20)
