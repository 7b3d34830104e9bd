"""Facts about a sweep over number formats of one model: a row for each choice, and the Pareto front."""

from __future__ import annotations

import math
from typing import Annotated, ClassVar, Literal

from explorer.base.checked import Count, Natural, Positive, Spec, Words
from explorer.base.errors import find_failed_models
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.units import join_values
from explorer.facts.quantize.spec import QuantizeSpec

FormatScope = Literal["all", "only", "without", "mixed"]
"""Layers that take the format: all layers, one alone, all but one, or each layer its own format."""


FormatCost = Literal["weights", "bitops"]
"""Cost of a choice of number formats: bytes of weights, or BitOPs."""


class FormatSweepSpec(Spec, frozen=True):
    """Settings of a sweep over number formats.

    Attributes:
        formats: Number formats in the syntax of `--to`, with parts joined by '+': 'int8',
            'weight=int4+input=int8'.
        per_layer: Whether to try each layer alone, and all layers but one.
        bits: Largest average number of bits per weight of a mixed precision to search for, or None.
        snr: Smallest SNR in dB of any output of a mixed precision to search for, or None.
        base: Settings common to all rows: layers, granularity, calibrator.
        calibrate: Path of a file or folder of samples, or '' for random samples.
        draws: Number of random samples.
        seed: Seed of the first random sample.
        cost: Cost that the search for a mixed precision minimizes.
    """

    formats: Annotated[
        tuple[Words, ...],
        option(
            "number formats to try in place of tiles, with commas: int8,fixed8.4,weight=int4+input=int8",
            manual="number formats to try in place of tiles, separated by commas: `int8,fixed8.4,mxfp4`;"
            " parts are joined by `+`: `weight=int4+input=int8`",
            metavar="FORMATS",
            flag="--quantize",
            reader="words",
            joined=True,
            write=join_values,
        ),
    ]
    per_layer: Annotated[bool, option("each format also on each layer alone, and on all but one")] = False
    bits: Annotated[
        Positive | None,
        option("search a mixed precision with at most this many bits per weight on average", metavar="BITS"),
    ] = None
    snr: Annotated[
        float | None,
        option("search a mixed precision whose outputs have at least this many dB", metavar="DB"),
    ] = None
    base: QuantizeSpec = QuantizeSpec()
    calibrate: str = ""
    draws: Count = 4
    seed: Natural = 0
    cost: Annotated[
        FormatCost,
        option("cost that the search saves and the plot shows: weights (bytes, default) or bitops", usual=""),
    ] = "weights"


class FormatRow(Fact, frozen=True):
    """One choice of number formats for one model.

    Attributes:
        key: Digest of all inputs of the figures: the content of the model and its opening options, the
            formats, the samples, and the program's version.
        model: Name of the model, as the user typed it.
        fingerprint: Digest of the model's content, or '' if no results file is kept.
        opening: Options with which the model was opened, as the user typed them.
        scope: Layers that take the format: 'all', 'only' one layer, all 'without' one layer, or 'mixed'.
        format: Number format of the layers in `scope`. For 'mixed', the formats in use, separated by commas.
        layer: Layer of the scopes 'only' and 'without'. For 'mixed', the layer that changed last. Otherwise
            ''.
        changed: Number of layers that take a format.
        layers: Number of layers that multiply or hold weights.
        weight_bits: Average bits per weight over the layers that store weights, with the shares of blocks.
        weight_bytes_before: Bytes of the model's weights before quantization, as in `QuantizeTotals`.
        weight_bytes: Bytes of the model's weights after quantization.
        bitops_before: BitOPs of the model before quantization.
        bitops: BitOPs of the model after quantization.
        output: Output of the model with the lowest SNR. The next four figures apply to it.
        snr_db, cosine, top1, top5: Agreement of this output with the original's, as in `OutputAgreement`.
        calibration: Source of the ranges and errors.
        config: Settings that reproduce the row with `quantize --config`.
        command: Command that reproduces the row. If options cannot express it, it reads a file with `config`.
        seconds: Seconds to quantize and run the model.
        error: Reason why the row has no figures, or ''.
        pareto: Whether the row is on the Pareto front: every other row of the model has more bytes, more
            BitOPs or a lower SNR, or equals this row in all three.
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


class MixedPrecision(Fact, frozen=True):
    """Result of the search for a mixed precision of one model.

    Attributes:
        bits: Limit of the average bits per weight, or None.
        snr: Limit of the SNR in dB, or None.
        met: Whether a row meets the limits.
        row: Key of the row that meets the limits or comes closest, or '' if there is none.
        told: Result in one sentence.
        cost: Cost that the search minimized.
    """

    model: str
    bits: Positive | None
    snr: float | None
    met: bool
    row: str
    told: str
    cost: FormatCost = "weights"


class FormatSweep(TableFact, frozen=True):
    """The answer of `explorer sweep --quantize`.

    Attributes:
        rows: Rows by model, in the order in which the user named the models. Each model has first the formats
            for all layers, then those layer by layer, then the steps to a mixed precision.
        mixed: Results of the searches for a mixed precision.
        made: Number of rows that were computed now.
        kept: Number of rows that the results file already had.
        output: Path of the results file, or '' for none.
        workers: Number of worker processes, or 0 if this process did the work.
        seconds: Seconds of the sweep.
        notes: Further remarks, in words.
        open: Number of known rows that were not computed because the time limit was reached.
    """

    ROWS: ClassVar[str] = "rows"

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
        """Reason by model name, for models that have no figure at all."""
        return find_failed_models(self.rows)


def compute_noise(row: FormatRow) -> float:
    """Returns the noise power of the outputs divided by their signal power.

    It is infinite if the ratio is unknown or too large for a float.
    """
    return math.inf if row.snr_db is None or row.snr_db < _MIN_DECIBELS else 10 ** (-row.snr_db / 10)


def read_cost(row: FormatRow, cost: FormatCost) -> int | None:
    """Returns the cost of a row: its BitOPs or bytes of weights. None if it is unknown."""
    return row.bitops if cost == "bitops" else row.weight_bytes


_MIN_DECIBELS = -3000.0
"""Decibels below which the ratio of the powers does not fit into a float."""
