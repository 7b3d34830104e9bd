"""Tolerance for models that may differ, such as quantized ones: whether they differ by more than allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace

from explorer.base.units import shape_text
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.values.agreement import snr_db
from explorer.facts import OutputEvidence
from explorer.facts.verification import Tolerance


def tolerance_text(tolerance: Tolerance) -> str:
    """The tolerance in words."""
    parts = []
    if tolerance.atol is not None or tolerance.rtol is not None:
        terms = [f"{tolerance.atol:g}"] if tolerance.atol else []
        terms += [f"{tolerance.rtol:g} of the value"] if tolerance.rtol else []
        parts.append(f"differences of at most {' + '.join(terms) or '0'}")
    if tolerance.snr is not None:
        parts.append(f"a signal to noise ratio of at least {tolerance.snr:g} dB")
    return " and ".join(parts)


def within(
    evidence: OutputEvidence, before: Sequence[Any], after: Sequence[Any], tolerance: Tolerance
) -> OutputEvidence:
    """The evidence of one output, judged by a tolerance: other types than arrays of numbers must be equal.

    Args:
        evidence: The evidence so far.
        before: The original's, for each draw.
        after: The other model's.
        tolerance: The allowed difference.
    """
    if not all(isinstance(v, np.ndarray) and v.dtype.kind in "biufV" for v in (*before, *after)):
        return evidence
    passed, reason, share = judge(before, after, tolerance)
    limit_share = share if math.isfinite(share) else None
    return replace(evidence, passed=passed, reason=reason, limit_share=limit_share)


def judge(before: Sequence[Array], after: Sequence[Array], tolerance: Tolerance) -> tuple[bool, str, float]:
    """Whether one output stays within a tolerance.

    Args:
        before: The original's, for each draw.
        after: The other model's.
        tolerance: The allowed difference: |after - before| <= atol + rtol |before| of every element, and
            10 log10(sum before**2 / sum (after - before)**2) >= snr of every draw.

    Returns:
        (whether it does; the figure closest to its limit, or furthest beyond it, in words; that figure as a
        share of its limit, infinite where no error at all is allowed).
    """
    worst, ratio, noise = 0.0, 0.0, math.inf
    for old, new in zip(before, after, strict=True):
        if old.shape != new.shape:
            return (
                False,
                f"{shape_text(old.shape)} in one model, {shape_text(new.shape)} in the other",
                math.inf,
            )
        a, b = (np.asarray(v).astype(np.float64).reshape(-1) for v in (old, new))
        finite = np.isfinite(a) & np.isfinite(b)
        strange = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b)))
        if strange.any():
            return False, f"{int(strange.sum()):,} elements are NaN or Inf in one model only", math.inf
        a, gap = a[finite], np.abs(b[finite] - a[finite])
        if not gap.size:
            continue
        allowed = (tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * np.abs(a)
        # 0 of a limit of 0 is within it, more than 0 is not
        shares = np.divide(gap, allowed, out=np.where(gap > 0, np.inf, 0.0), where=allowed > 0)
        at = int(np.argmax(shares))
        if shares[at] > ratio:
            ratio, worst = float(shares[at]), float(gap[at])
        noise = min(noise, snr_db(float(a @ a), float(gap @ gap)))
    passed, parts, share = True, [], 0.0
    if tolerance.atol is not None or tolerance.rtol is not None:
        passed = ratio <= 1.0
        share = ratio
        used = f"{ratio:.2g} of what is allowed" if math.isfinite(ratio) else "and none is allowed"
        parts.append(f"difference {worst:.2e}, {used}")
    if tolerance.snr is not None:
        passed = passed and noise >= tolerance.snr
        share = max(share, _amplitude(tolerance.snr - noise))
        parts.append("no noise" if noise == math.inf else f"signal to noise {noise:.1f} dB")
    return passed, "; ".join(parts), share


def _amplitude(decibels: float) -> float:
    """The amplitude ratio of a gain in dB; infinite beyond the range of a float."""
    return math.inf if decibels > 6000 else 10 ** (decibels / 20)
