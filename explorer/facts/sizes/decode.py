"""Facts about a language model's two kinds of work: a pass over a whole text, and one decode step."""

from __future__ import annotations

from msgspec import Struct


class DecodeTotals(Struct, frozen=True):
    """Figures of a pass or of a step: as `Totals` has them."""

    macs: int | None
    bytes_read: int | None
    bytes_written: int | None
    weight_bytes_read: int | None
    activation_bytes_peak: int | None


class DecodeRow(Struct, frozen=True):
    """A layer (never a group) in both.

    Attributes:
        layer: Id of its row.
        prefill_macs, prefill_bytes: Of the pass over the text; None where that is not known.
        decode_macs, decode_bytes: Of the step; bytes are those read and written.
        kv_cache_bytes: Keys and values of earlier tokens that the step reads here; None for a layer without.
    """

    layer: int
    path: str
    kind: str
    prefill_macs: int | None
    prefill_bytes: int | None
    decode_macs: int | None
    decode_bytes: int | None
    kv_cache_bytes: int | None


class Decode(Struct, frozen=True):
    """A pass over `tokens` tokens (prefill) beside the step behind them.

    Attributes:
        tokens: Of the text, all of which are in the cache at the step.
        how: How the step was found, in words.
        prefill: None where the model makes no such pass; `reason` says why.
        rows: Layers that multiply in either, read the cache, or whose cost is not known, in execution order.
        weight_bytes: Of the model.
        kv_bytes_per_token: What the cache takes for each token, over all layers and the whole batch.
        kv_passes_weights: The least tokens at which the cache takes more bytes than the weights; None for a
            model without a cache.
        checked: The step was analysed with that many tokens in the cache and with one less, and shows it.
        unchecked: Why it could not be, such as a table of fewer positions; '' where it was.
    """

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
