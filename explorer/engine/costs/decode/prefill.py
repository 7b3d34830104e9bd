"""Prefill and decode side by side: the pass over a text, the step behind it, and the growth of the cache."""

from __future__ import annotations

from collections.abc import Callable

from explorer.base.errors import ExplorerError
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.memory.roofline import bytes_moved
from explorer.facts import Totals
from explorer.facts.sizes.decode import Decode, DecodeRow, DecodeTotals

StepBehind = Callable[[int], AnalysisResult]
"""Analyses the decode step behind so many tokens."""


def decode(step: StepBehind, text: Callable[[int], AnalysisResult], tokens: int) -> Decode:
    """A pass over a text beside one step behind it.

    Args:
        step: Analyses the step.
        text: Analyses the pass over so many tokens.
        tokens: Of the text.

    Raises:
        Misuse: The model has no decode step.
    """
    step_result = step(tokens)
    reason = ""
    prefill: AnalysisResult | None = None
    try:
        prefill = text(tokens)
    except ExplorerError as error:
        reason = str(error)
    totals = step_result.info.totals
    cache_bytes, weights = totals.kv_cache_bytes, totals.weight_bytes
    each = cache_bytes // tokens if cache_bytes else None
    passes = weights // each + 1 if each else None
    checked, unchecked = _checked(step, passes, weights) if passes else (False, "")
    return Decode(
        tokens,
        str(step_result.info.assumptions["decode"]["how"]),
        _totals(totals),
        None if prefill is None else _totals(prefill.info.totals),
        reason,
        _rows(step_result, prefill),
        weights,
        cache_bytes,
        each,
        passes,
        checked,
        unchecked,
    )


def _checked(step: StepBehind, passes: int, weights: int) -> tuple[bool, str]:
    """Whether the steps at the crossing and one before show it, or why they could not be counted."""
    try:
        before, after = (step(tokens).info.totals.kv_cache_bytes or 0 for tokens in (passes - 1, passes))
    except ExplorerError as error:
        return False, str(error)
    if before <= weights < after:
        return True, ""
    return False, f"the cache takes {before:,} and {after:,} bytes there, not {weights:,}: it grows unevenly"


def _totals(totals: Totals) -> DecodeTotals:
    return DecodeTotals(
        totals.macs,
        totals.bytes_read,
        totals.bytes_written,
        totals.weight_bytes_read,
        totals.activation_bytes_peak,
    )


def _rows(step_result: AnalysisResult, prefill: AnalysisResult | None) -> tuple[DecodeRow, ...]:
    """Layers that multiply or read the cache, by the path that both have."""
    before = {} if prefill is None else {x.path: x for x in prefill.analysis.layers if not x.group}
    rows = []
    for layer in step_result.analysis.layers:
        if layer.group or not layer.counted:
            continue
        text = before.get(layer.path)
        macs, moved = (None, None) if text is None else (text.macs, bytes_moved(text))
        decode_figures = layer.macs, bytes_moved(layer)
        row = DecodeRow(layer.id, layer.path, layer.kind, macs, moved, *decode_figures, layer.kv_cache_bytes)
        if row.prefill_macs or row.decode_macs or row.kv_cache_bytes or None in decode_figures:
            rows.append(row)
    return tuple(rows)
