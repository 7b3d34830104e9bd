"""Facts about the two kinds of passes of a language model: prefill and one decode step."""

from __future__ import annotations

from typing import ClassVar

from explorer.base.fact import Fact, TableFact


class DecodeTotals(Fact, frozen=True):
    """Figures of a prefill pass or a decode step, as in `Totals`."""

    macs: int | None
    bytes_read: int | None
    bytes_written: int | None
    weight_bytes_read: int | None
    activation_bytes_peak: int | None


class DecodeRow(Fact, frozen=True):
    """A layer (never a group) in prefill and decode.

    Attributes:
        layer: Id of its row.
        prefill_macs: Multiply-accumulates of the prefill, or None if unknown.
        prefill_bytes: Bytes read and written in the prefill, or None if unknown.
        decode_macs: Multiply-accumulates of the decode step, or None if unknown.
        decode_bytes: Bytes read and written in the decode step, or None if unknown.
        kv_cache_bytes: Bytes of cached keys and values that the layer reads in the decode step, or None if it
            reads none.
    """

    layer: int
    path: str
    kind: str
    prefill_macs: int | None
    prefill_bytes: int | None
    decode_macs: int | None
    decode_bytes: int | None
    kv_cache_bytes: int | None


class Decode(TableFact, frozen=True):
    """A prefill pass over `tokens` tokens, and the decode step that follows it.

    Attributes:
        tokens: Number of tokens in the text, all of which are in the cache at the decode step.
        how: Method by which the decode step was found, in words.
        decode: Figures of the decode step.
        prefill: Figures of the prefill pass, or None if the model has no such pass.
        reason: Reason why the model has no prefill pass, or ''.
        rows: Layers that multiply in either pass, read the cache, or have an unknown cost, in execution
            order.
        weight_bytes: Bytes of the model's weights.
        kv_bytes_per_token: Bytes of the cache per token, over all layers and the full batch.
        kv_passes_weights: Smallest number of tokens at which the cache is larger than the weights, or None if
            the model has no cache.
        checked: Whether analyses of the decode step with `kv_passes_weights` tokens, and with one token less,
            confirm that number.
        unchecked: Reason why it could not be checked, such as a position table that is too short, or ''.
    """

    ROWS: ClassVar[str] = "rows"

    tokens: int
    how: str
    decode: DecodeTotals
    prefill: DecodeTotals | None
    reason: str
    rows: tuple[DecodeRow, ...]
    weight_bytes: int
    kv_cache_bytes: int | None
    kv_bytes_per_token: int | None
    kv_passes_weights: int | None
    checked: bool
    unchecked: str = ""
