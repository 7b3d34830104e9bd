"""Sweep over number formats of one model: a row for every choice, and which none beats."""

from __future__ import annotations

import math
from typing import Literal

from msgspec import Struct

from explorer.base.checked import Count, Natural, Positive, Spec, Words
from explorer.base.errors import failed_models
from explorer.facts.quantize.spec import QuantizeSpec

FormatScope = Literal["all", "only", "without", "mixed"]
"""All layers, one alone, all but one, or layers in formats of their own."""


FormatCost = Literal["weights", "bitops"]
"""What a choice of number formats costs: bytes of weights, or BitOPs."""


class FormatSweepSpec(Spec, frozen=True):
    """What number formats are tried on.

    Attributes:
        formats: Each as `--to` has it, parts joined by '+': 'int8', 'weight=int4+input=int8'.
        per_layer: Also each layer alone, and all but one.
        bits: A mixed precision is sought whose weights have at most so many bits, on average; None for none.
        snr: One whose least SNR of an output is at least so many dB; None for none.
        base: What all have in common: layers, granularity, calibrator.
        calibrate, draws, seed: As in `QuantizeRequest`.
        cost: What the search for a mixed precision saves.
    """

    formats: tuple[Words, ...]
    per_layer: bool = False
    bits: Positive | None = None
    snr: float | None = None
    base: QuantizeSpec = QuantizeSpec()
    calibrate: str = ""
    draws: Count = 4
    seed: Natural = 0
    cost: FormatCost = "weights"


class FormatRow(Struct, frozen=True):
    """One choice of number formats for one model.

    Attributes:
        key: Digest of everything that the figures depend on: the model's content and how it was opened, the
            choice, the samples, the program's version.
        model, fingerprint, opening: As in `facts.sweep.SweepRow`.
        scope: 'all' layers, 'only' the layer, all 'without' it, or 'mixed'.
        format: That of the layers that take one; of 'mixed' those that are in use, between commas.
        layer: The one that is meant; of 'mixed' the one that changed last; '' for none.
        changed: Layers that take a format.
        layers: Layers of the model that multiply or hold weights.
        weight_bits: Of a weight on average, over the layers that store weights, shares of blocks included.
        weight_bytes_before, weight_bytes: Of the model, as in `QuantizeTotals`.
        bitops_before, bitops: Likewise.
        output: Of those of the model the one with the least SNR; the next four are of it.
        snr_db, cosine, top1, top5: As in `OutputAgreement`.
        calibration: What the figures rest on.
        config: What `quantize --config` takes to make it.
        command: What makes it at the command line; where options cannot say it, with a file of `config`.
        seconds: What making and running it took.
        error: Why there are no figures; '' where there are.
        pareto: No other row of the model has fewer bytes, fewer BitOPs or more SNR without being worse in
            another of them.
    """

    key: str
    model: str
    fingerprint: str
    opening: str
    scope: str
    format: str
    layer: str = ""
    changed: int | None = None
    layers: int | None = None
    weight_bits: Positive | None = None
    weight_bytes_before: int | None = None
    weight_bytes: int | None = None
    bitops_before: int | None = None
    bitops: int | None = None
    output: str = ""
    snr_db: float | None = None
    cosine: float | None = None
    top1: float | None = None
    top5: float | None = None
    calibration: str = ""
    config: str = ""
    command: str = ""
    seconds: float | None = None
    error: str = ""
    pareto: bool = False


class MixedPrecision(Struct, frozen=True):
    """What became of the search for a mixed precision of one model.

    Attributes:
        bits, snr: The limits; None for none.
        met: Whether they hold.
        row: Key of the row that holds them, or comes nearest; '' where there is none.
        told: That in a sentence.
        cost: What was saved step by step.
    """

    model: str
    bits: Positive | None
    snr: float | None
    met: bool
    row: str
    told: str
    cost: FormatCost = "weights"


class FormatSweep(Struct, frozen=True):
    """The answer of `explorer sweep --quantize`.

    Attributes:
        rows: Models in the order in which they were named; of each the formats for all layers, then layer by
            layer, then the path to a mixed precision.
        mixed: What became of the limits.
        made, kept, output, workers, seconds, notes: As in `facts.sweep.Sweep`.
        open: Rows that are not made yet, as far as it is known that there will be any: time was up.
    """

    rows: tuple[FormatRow, ...]
    mixed: tuple[MixedPrecision, ...] = ()
    made: int = 0
    kept: int = 0
    output: str = ""
    workers: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    open: int = 0

    @property
    def failed(self) -> dict[str, str]:
        """Why there is not one figure of a model, by its name."""
        return failed_models(self.rows)


def noise(row: FormatRow) -> float:
    """Noise of the outputs over their signal, as powers; infinite where nothing is known, or all is lost."""
    return math.inf if row.snr_db is None or row.snr_db < _LOST else 10 ** (-row.snr_db / 10)


def cost_of(row: FormatRow, cost: FormatCost) -> int | None:
    """What a row costs; None where that is not known."""
    return row.bitops if cost == "bitops" else row.weight_bytes


_LOST = -3000.0
"""Decibels below which the ratio is no float."""
