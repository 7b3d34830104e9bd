"""Options of a quantization: number formats, the layers that take them, how they are written."""

from __future__ import annotations

from explorer.cli.arguments.options import Option

ACCUMULATOR = Option(
    "--accumulator",
    "bits of the hardware's accumulator: layers whose sums of integers do not fit it are named",
    "BITS",
    least=2,
)

FORMATS = (
    Option(
        "--to",
        "number format of weights and inputs, such as int8 (default), fixed8.4, mxfp8; or of each part:\n"
        "weight=int4,input=int8,bias=float32 (others as --config has them, or as they are)",
        "FORMAT",
        manual="number format of weights and inputs, such as `int8` (the default), `fixed8.4`, `mxfp8`; or"
        " of each part: `weight=int4,input=int8,bias=float32`, where parts that are not named are as the"
        " file of `--config` has them, or stay as they are",
    ),
    Option("--op", "only layers of this operator, such as Conv; repeatable", "GLOB", many=True),
    Option(
        "--site",
        "only layers whose name matches a glob or re:EXPRESSION, or that a filter finds; repeatable",
        "GLOB|FILTER",
        many=True,
        manual="only layers whose name matches a glob or `re:` and a regular expression, or that a filter"
        " finds; repeatable",
    ),
    Option(
        "--config",
        "a TOML file with formats by layer, operator or shape (explorer help quantize)",
        "FILE",
        manual="a TOML file with formats by layer, operator or shape",
    ),
    Option(
        "--granularity",
        "scales of weights: one for each output channel (default), or one for the tensor",
        default="channel",
        choices=("tensor", "channel"),
    ),
    Option("--symmetric", "zero points are 0 (default of weights and signed inputs)"),
    Option("--asymmetric", "integers have zero points"),
    Option(
        "--block",
        "weights along the depth that share a scale, such as 32 with int4 (of weights alone)",
        "N",
        least=2,
        manual="weights along the depth that share a scale, such as 32 with `int4`; a format by itself is"
        " then of weights alone",
    ),
    Option(
        "--form",
        "what is written: of int8 alone what a table says is fast here (fast, its default), else\n"
        "QuantizeLinear where it can say the format and a function where not (auto)",
        default="auto",
        choices=("auto", "fast", "qdq", "chain", "qoperator", "function", "torchao"),
        manual="what is written: of `int8` the formats and the form that a table has for this processor and"
        " onnxruntime (`fast`, the default of `--to int8` where nothing else says how it is written);"
        " QuantizeLinear and DequantizeLinear where they can say the format, else a function (`auto`, the"
        " default of all else); these also behind layers and around what stands between them (`chain`);"
        " integer operators (`qoperator`); functions for all (`function`); of a PyTorch"
        " module, without a file, which weights torchao has (`torchao`)",
    ),
    Option(
        "--unsaturated",
        "int8 weights of which no two products saturate on a processor without VNNI",
        manual="scales of `int8` weights on which no two neighboring products saturate on an x86 processor"
        " without VNNI",
    ),
    Option(
        "--bias-correction",
        "stored biases make up for the mean of what rounding a weight changes",
        manual="stored biases make up for what rounding a weight does to the mean of a layer's output, by the"
        " means of its inputs on the samples",
    ),
    Option(
        "--calibrator",
        "how ranges of inputs are chosen (default minmax)",
        default="minmax",
        choices=("minmax", "percentile", "entropy", "mse"),
    ),
    Option(
        "--percentile",
        "values inside the range, in per cent (default 99.999): --calibrator percentile",
        "P",
        "99.999",
        reads="limit",
    ),
    ACCUMULATOR,
)
"""What a specification is made of."""

_CALIBRATE = Option(
    "--calibrate",
    "a .npy or .npz file, or a folder of such, with inputs to choose ranges on; random otherwise",
    "FILE|FOLDER",
    manual="a `.npy` or `.npz` file, or a folder of such, with inputs to choose ranges on; random otherwise",
)

CALIBRATION = (
    _CALIBRATE,
    Option("--draws", "how many random inputs to choose ranges on (default 4)", "N", least=1),
    "--seed",
    Option("--no-report", "measure no errors: quicker, and nothing is run where no range is needed"),
)
"""What its ranges are chosen on."""

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
"""Of a tiling: a quantization before it."""

FORMAT_SWEEP = (
    Option(
        "--quantize",
        "number formats to try in place of tiles, between commas: int8,fixed8.4,weight=int4+input=int8",
        "FORMATS",
        reads="words",
        manual="number formats to try in place of tiles, between commas: `int8,fixed8.4,mxfp4`; parts are"
        " joined by `+`: `weight=int4+input=int8`",
    ),
    Option("--per-layer", "each format also on each layer alone, and on all but one"),
    Option(
        "--bits",
        "seek a mixed precision whose weights have at most so many bits, on average",
        "BITS",
        reads="limit",
    ),
    Option("--snr", "seek one whose outputs have at least so many dB", "DB", reads="limit"),
    Option(
        "--cost",
        "what that saves step by step, and what is drawn: weights (their bytes, default), or bitops",
        default="weights",
        choices=("weights", "bitops"),
    ),
    Option(
        "--plot",
        "also draw SNR over what it costs: .svg, .png; .html or .md is a page with the table, too",
        "FILE",
    ),
    _CALIBRATE,
    next(option for option in FORMATS if option.flag == "--granularity"),
    Option(
        "--take",
        "write the number formats of a row, or of the one that was found, for quantize --config;\n"
        "with --train the weights of a row, for --weights-file",
        "ROW:FILE",
        manual="write the number formats of a row by its number, or of the one that was `found` under"
        " `--bits` and `--snr`, as a file for `quantize --config`: `7:formats.toml`, `found:formats.toml`;"
        " with `--train` the weights of a row as a checkpoint for `--weights-file`: `1:best.ckpt`",
    ),
)
"""What number formats are tried on; of `explorer sweep`."""
