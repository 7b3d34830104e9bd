"""Options of a quantization: number formats, the layers to quantize, and the form of the result."""

from __future__ import annotations

from explorer.cli.arguments.declared import list_declared_group, list_options
from explorer.cli.arguments.options import Option
from explorer.facts.quantize import FormatSweepSpec, QuantizeRequest, QuantizeSpec

FORMATS = (
    Option(
        "--to",
        "number format of weights and inputs, such as int8 (default), fixed8.4, mxfp8; or of each part:\n"
        "weight=int4,input=int8,bias=float32 (other parts as in --config, or unchanged)",
        "FORMAT",
        manual="number format of weights and inputs, such as `int8` (the default), `fixed8.4`, `mxfp8`; or"
        " of each part: `weight=int4,input=int8,bias=float32`, where other parts keep the"
        " formats of the `--config` file, or stay unchanged",
    ),
    *list_options(QuantizeSpec, "ops", "sites", "config"),
    *list_declared_group(QuantizeSpec, "scales"),
    Option("--symmetric", "zero points are 0 (default of weights and signed inputs)"),
    Option("--asymmetric", "integers have zero points"),
    *list_options(QuantizeSpec, "block", "form", "unsaturated", "bias_correction"),
    *list_options(QuantizeSpec, "calibrator", "percentile", "accumulator"),
)
"""Options of a quantization spec."""

_CALIBRATE, _DRAWS = list_options(QuantizeRequest, "calibrate", "draws")

CALIBRATION = (
    _CALIBRATE,
    _DRAWS,
    "--seed",
    Option("--no-report", "do not measure errors: faster, because the model runs only to find ranges"),
)
"""Options for choosing ranges."""

FIRST = (
    Option(
        "--quantize",
        "quantize first, to a format or weight=F,input=F, as `explorer quantize --form auto --to` does",
        "FORMAT",
        manual="quantize first, to a format or `weight=F,input=F`, as `explorer quantize --form auto --to`"
        " does",
    ),
    _CALIBRATE,
)
"""Options of commands that can quantize a model before they tile it."""

FORMAT_SWEEP = (
    *list_options(FormatSweepSpec),
    Option(
        "--plot",
        "also draw SNR over cost: .svg or .png; .html or .md writes a page with the table",
        "FILE",
    ),
    _CALIBRATE,
    *list_declared_group(QuantizeSpec, "scales"),
    Option(
        "--take",
        "write the number formats of a row (found: the row of --bits and --snr) for quantize --config;\n"
        "with --train the weights of a row, for --weights-file",
        "ROW:FILE",
        manual="write the number formats of a row by its number, or of the one that was `found` under"
        " `--bits` and `--snr`, as a file for `quantize --config`: `7:formats.toml`, `found:formats.toml`;"
        " with `--train` the weights of a row as a checkpoint for `--weights-file`: `1:best.ckpt`",
    ),
)
"""Options of `explorer sweep` for trying number formats."""
