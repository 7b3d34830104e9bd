"""Quantization specification: which layers take which number format, for weights, inputs and biases."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from explorer.base.checked import Count, Natural, Spec, Words
from explorer.base.options import option

Granularity = Literal["tensor", "channel"]
QuantizeForm = Literal["auto", "fast", "qdq", "chain", "qoperator", "function", "torchao"]
Calibrator = Literal["minmax", "percentile", "entropy", "mse"]

PARTS = ("weight", "input", "bias")
"""What of a layer has a format of its own."""


_WEIGHT = option("number format of weights", metavar="FORMAT", label="weights")
_INPUT = option("number format of inputs", metavar="FORMAT", label="inputs")
_BIAS = option("number format of biases", metavar="FORMAT", label="bias")
_GRANULARITY = option(
    "scales of weights: one for each output channel, or one for the tensor",
    label="scales per",
    words=("channel", "tensor"),
    group="scales",
)
_SYMMETRIC = option("whether the zero point of integers is 0", label="zero", group="written")
_BLOCK = option(
    "weights along the depth that share a scale, such as 32 with int4 (of weights alone)",
    manual="weights along the depth that share a scale, such as 32 with `int4`; a format by itself is then of"
    " weights alone",
    metavar="N",
    reader="block",
    usual="",
    label="block",
    words=("none", "16", "32", "64", "128"),
    group="written",
)
ACCUMULATOR = option(
    "bits of the hardware's accumulator: name the layers whose sums of integers do not fit it",
    metavar="BITS",
    reader="accumulator",
    usual="",
    label="accumulator",
)


class QuantizeRule(Spec, frozen=True):
    """What is asked of some layers only: a `[[quantize.site]]` table, or a choice made by hand.

    A rule applies to a layer when every condition that it states holds. A value that is None is left to the
    next rule, and at the end to the specification itself.

    Attributes:
        site: Glob over names of layers, 're:' and a regular expression, or a filter; '' for any.
        op: Glob over operators; '' for any.
        shape: Conditions on M, K, N of the layer's matrix product, such as 'M>=64 N<=1000'; '' for any.
        weight, input, bias: Number formats; 'float32' leaves the part as it is.
        granularity, symmetric, block: As in `QuantizeSpec`.
        on: False leaves these layers as they are.
        origin: Where it was said: 'npu.toml:12', 'chosen by hand'.
    """

    site: Annotated[str, option("a name, a glob, `re:` and a regular expression, or a filter")] = ""
    op: Annotated[str, option("a glob over operators")] = ""
    shape: Annotated[str, option("conditions on the sizes M, K and N of the product", reader="shape")] = ""
    weight: Annotated[str | None, _WEIGHT] = None
    input: Annotated[str | None, _INPUT] = None
    bias: Annotated[str | None, _BIAS] = None
    granularity: Annotated[Granularity | None, _GRANULARITY] = None
    symmetric: Annotated[bool | None, _SYMMETRIC] = None
    block: Annotated[Natural | None, _BLOCK] = None
    on: Annotated[bool | None, option("false leaves these layers as they are")] = None
    origin: str = ""


class QuantizeSpec(Spec, frozen=True):
    """What the user asks of a quantization.

    Attributes:
        weight, input: Number formats, see `engine.quantize.number_formats`; 'float32' leaves the part as it
            is.
        bias: Likewise; 'auto': int32 of the two scales' product where weight and input are integers with a
            scale, else float32.
        granularity: Scales of weights: one for each output channel, or one for the tensor; those of inputs
            are of the tensor.
        symmetric: Whether the zero point of integers is 0; None: weights and signed inputs yes, unsigned
            inputs no.
        block: Weights along the depth that share a scale, where the format has blocks of its own choice
            (int4 alone: MatMulNBits and DequantizeLinear); 0 for none.
        form: What is written: 'qdq', 'chain' (QDQ that also rounds what layers give and what stands between
            them, so that onnxruntime computes with integers throughout), 'qoperator', 'function' (a local
            function of standard operators); 'fast': of int8 the formats and the form that a table has for
            this processor and onnxruntime (`engine.quantize.speed.fast_forms`), else 'auto'; 'auto': QDQ for
            what QuantizeLinear can say, else a function. Of an nn.Module 'auto', 'fast' or 'torchao':
            weights are tensors of torchao where that has the layer and the format, of `quantize_module`
            alone.
        calibrator: How ranges of inputs are chosen from the values that were seen.
        percentile: Of 'percentile': the share of values inside the range, in per cent.
        accumulator: Bits of the hardware's accumulator: sums that do not fit are named; 0 for none.
        unsaturated: Whether weights of int8 get scales on which no processor without VNNI saturates: two
            neighboring codes of one sign add up to at most 128.
        bias_correction: Whether stored biases make up for what rounding a weight does to the mean of a
            layer's output, by the means of its inputs on the samples.
        ops: Globs over operators; empty means all.
        sites: Names, globs, 're:…' or filters; empty means all.
        rules: What is asked of some layers only; the first rule that has a value decides it.
        origins: Who said the values above, by their names; a value that is not among them is the default.
        config: Path of the file that such values and the rules stand in; '' for none.
    """

    weight: Annotated[Words, _WEIGHT] = "int8"
    input: Annotated[Words, _INPUT] = "int8"
    bias: Annotated[Words, _BIAS] = "auto"
    granularity: Annotated[Granularity, _GRANULARITY] = "channel"
    symmetric: Annotated[bool | None, _SYMMETRIC] = None
    block: Annotated[Natural, _BLOCK] = 0
    form: Annotated[
        QuantizeForm,
        option(
            "what is written: of int8 alone what a table says is fast here (fast), else QuantizeLinear\n"
            "where it can say the format and a function where not (auto)",
            manual="what is written: of `int8` the formats and the form that a table has for this processor"
            " and onnxruntime (`fast`); QuantizeLinear and DequantizeLinear where they can say the format,"
            " else a function (`auto`); these also behind layers and around what stands between them"
            " (`chain`); integer operators (`qoperator`); functions for all (`function`); of a PyTorch"
            " module, without a file, which weights torchao has (`torchao`)",
            usual="fast for --to int8 where nothing else says how it is written, else auto",
            label="written",
            group="written",
        ),
    ] = "auto"
    calibrator: Annotated[Calibrator, option("how ranges of inputs are chosen", label="ranges by")] = "minmax"
    percentile: Annotated[
        float,
        Meta(gt=50, le=100),
        option(
            "values inside the range, in per cent: --calibrator percentile",
            metavar="P",
            reader="percentile",
        ),
    ] = 99.999
    accumulator: Annotated[Natural, ACCUMULATOR] = 0
    unsaturated: Annotated[
        bool,
        option(
            "int8 weights of which no two products saturate on a processor without VNNI",
            manual="scales of `int8` weights on which no two neighboring products saturate on an x86"
            " processor without VNNI",
            group="written",
        ),
    ] = False
    bias_correction: Annotated[
        bool,
        option(
            "stored biases make up for the mean of what rounding a weight changes",
            manual="stored biases make up for what rounding a weight does to the mean of a layer's output, by"
            " the means of its inputs on the samples",
            group="written",
        ),
    ] = False
    ops: Annotated[
        tuple[Words, ...],
        option("only layers of this operator, such as Conv", metavar="GLOB", flag="--op", selects=True),
    ] = ()
    sites: Annotated[
        tuple[Words, ...],
        option(
            "only layers whose name matches a glob or re:EXPRESSION, or that a filter finds",
            manual="only layers whose name matches a glob or `re:` and a regular expression, or that a filter"
            " finds",
            metavar="GLOB|FILTER",
            flag="--site",
            selects=True,
            label="layers",
        ),
    ] = ()
    rules: tuple[QuantizeRule, ...] = ()
    origins: tuple[tuple[str, str], ...] = ()
    config: Annotated[
        str,
        option(
            "a TOML file with formats by layer, operator or shape (explorer help quantize)",
            manual="a TOML file with formats by layer, operator or shape",
            metavar="FILE",
            in_file=False,
        ),
    ] = ""


class QuantizeRequest(Spec, frozen=True):
    """What made a state: what was asked, and what its ranges were chosen on.

    Attributes:
        calibrate: File or folder of samples; '' for random ones.
        draws: How many random samples.
        seed: Of the first of them.
        as_graph: An nn.Module is quantized as the graph that it is exported to.
    """

    spec: QuantizeSpec
    calibrate: Annotated[
        str,
        option(
            "a .npy or .npz file, or a folder of such, with inputs to choose ranges on; random otherwise",
            manual="a `.npy` or `.npz` file, or a folder of such, with inputs to choose ranges on; random"
            " otherwise",
            metavar="FILE|FOLDER",
            label="calibrate",
        ),
    ] = ""
    draws: Annotated[Count, option("how many random inputs to choose ranges on", metavar="N")] = 4
    seed: Annotated[Natural, option("seed of the first random input", metavar="S", label="seed")] = 0
    as_graph: bool = False
