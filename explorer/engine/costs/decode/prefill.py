"""Compares prefill (the pass over a text) with the decode step after it, and computes the cache's growth."""

from __future__ import annotations

from collections.abc import Callable

from explorer.base.errors import ExplorerError
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.memory.roofline import count_moved_bytes
from explorer.facts import Totals
from explorer.facts.sizes.decode import Decode, DecodeRow, DecodeTotals

AnalyzeStep = Callable[[int], AnalysisResult]
"""Analyzes the decode step after a number of tokens."""


def compare_prefill_and_step(step: AnalyzeStep, text: Callable[[int], AnalysisResult], tokens: int) -> Decode:
    """Compares a pass over a text with one decode step after it.

    Args:
        step: Analyzes the decode step.
        text: Analyzes the pass over a number of tokens.
        tokens: Length of the text.

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
    bytes_per_token = cache_bytes // tokens if cache_bytes else None
    crossing = weights // bytes_per_token + 1 if bytes_per_token else None
    checked, unchecked = _check_crossing(step, crossing, weights) if crossing else (False, "")
    return Decode(
        tokens,
        str(step_result.info.assumptions["decode"]["how"]),
        _read_totals(totals),
        None if prefill is None else _read_totals(prefill.info.totals),
        reason,
        _build_rows(step_result, prefill),
        weights,
        cache_bytes,
        bytes_per_token,
        crossing,
        checked,
        unchecked,
    )


def _check_crossing(step: AnalyzeStep, crossing: int, weights: int) -> tuple[bool, str]:
    """Checks by two analyses that the cache exceeds the weights from `crossing` tokens on.

    Returns:
        Whether it does, and the reason if not.
    """
    try:
        bytes_before, bytes_after = (
            step(tokens).info.totals.kv_cache_bytes or 0 for tokens in (crossing - 1, crossing)
        )
    except ExplorerError as error:
        return False, str(error)
    if bytes_before <= weights < bytes_after:
        return True, ""
    return (
        False,
        f"the cache takes {bytes_before:,} and {bytes_after:,} bytes there, not {weights:,}:"
        " it grows unevenly",
    )


def _read_totals(totals: Totals) -> DecodeTotals:
    return DecodeTotals(
        totals.macs,
        totals.bytes_read,
        totals.bytes_written,
        totals.weight_bytes_read,
        totals.activation_bytes_peak,
    )


def _build_rows(step_result: AnalysisResult, prefill: AnalysisResult | None) -> tuple[DecodeRow, ...]:
    """Returns the rows of the layers that multiply or read the cache, matched by path."""
    prefill_layers = {} if prefill is None else {x.path: x for x in prefill.analysis.layers if not x.group}
    rows = []
    for layer in step_result.analysis.layers:
        if layer.group or not layer.counted:
            continue
        text = prefill_layers.get(layer.path)
        macs, moved = (None, None) if text is None else (text.macs, count_moved_bytes(text))
        decode_figures = layer.macs, count_moved_bytes(layer)
        row = DecodeRow(layer.id, layer.path, layer.kind, macs, moved, *decode_figures, layer.kv_cache_bytes)
        if row.prefill_macs or row.decode_macs or row.kv_cache_bytes or None in decode_figures:
            rows.append(row)
    return tuple(rows)
