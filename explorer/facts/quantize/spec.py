"""Settings of a quantization: the layers and their number formats, for weights, inputs and biases."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from msgspec import Meta

from explorer.base.checked import Count, Natural, Spec, Words
from explorer.base.options import option

Granularity = Literal["tensor", "channel"]
QuantizeForm = Literal["auto", "fast", "qdq", "chain", "qoperator", "function", "torchao"]
Calibrator = Literal["minmax", "percentile", "entropy", "mse"]

PARTS = ("weight", "input", "bias")
"""Parts of a layer, each with its own number format."""


_FORMATS = (
    *("int8", "int4", "fixed8.4", "fixed16.8", "mxfp8", "mxfp6", "mxfp4", "mxint8", "uint8", "int16"),
    *("float8e4m3", "float8e5m2", "float16", "bfloat16", "floatE3M2", "float32"),
)
"""Number formats that dialogs offer. The user can type further names."""
_WEIGHT = option(
    "number format of weights", metavar="FORMAT", label="weights", words=(*_FORMATS, "ternary", "binary")
)
_INPUT = option("number format of inputs", metavar="FORMAT", label="inputs", words=_FORMATS)
_BIAS = option(
    "number format of biases",
    metavar="FORMAT",
    label="bias",
    words=("auto", "float32", "float16", "bfloat16", "fixed16.8"),
)
_GRANULARITY = option(
    "scales of weights: one for each output channel, or one for the tensor",
    label="scales per",
    words=("channel", "tensor"),
    group="scales",
)
_SYMMETRIC = option(
    "whether the zero point of integers is 0",
    label="zero",
    words=("auto", "0", "any"),
    group="written",
)
_BLOCK = option(
    "weights along K that share a scale, such as 32 with int4; a single format is then that of the weights",
    manual="weights along K, the summed axis, that share a scale, such as 32 with `int4`; a single format in"
    " `--to` is then that of the weights",
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
    label="acc bits",
    words=("none", "16", "20", "24", "32", "48"),
)


class QuantizeRule(Spec, frozen=True):
    """Settings of some layers only: a `[[quantize.site]]` table of a file, or a choice on the screen.

    A rule applies to a layer if all its conditions hold. A setting of None falls through to the next rule,
    and finally to the `QuantizeSpec`.

    Attributes:
        site: Glob over layer names, 're:' and a regular expression, or a filter; '' matches every layer.
        op: Glob over operators; '' matches every operator.
        shape: Conditions on M, K and N of the layer's matrix product, such as 'M>=64 N<=1000'; '' matches
            every shape.
        weight: Number format of the weight; 'float32' leaves it unchanged.
        input: Number format of the input; 'float32' leaves it unchanged.
        bias: Number format of the bias; 'float32' leaves it unchanged.
        granularity, symmetric, block: Settings of the same names in `QuantizeSpec`.
        on: Whether to quantize these layers.
        origin: Place where the rule was set: 'npu.toml:12', 'chosen by hand'.
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
    """Settings of a quantization as the user requests it.

    Attributes:
        weight: Number format of weights, see `engine.quantize.number_formats`; 'float32' leaves them
            unchanged.
        input: Number format of inputs; 'float32' leaves them unchanged.
        bias: Number format of biases. 'auto' selects int32 with the product of both scales if weight and
            input are integers with a scale, otherwise float32.
        granularity: Part of a weight that shares a scale: an output channel or the tensor. Inputs have one
            scale per tensor.
        symmetric: Whether the zero point of integers is 0. None selects True for weights and signed inputs,
            and False for unsigned inputs.
        block: Number of weights along K, the summed axis, that share a scale, or 0 for none. Only formats
            whose block size is free allow it (int4: MatMulNBits and DequantizeLinear).
        form: Form of the written operators. 'qdq'; 'chain': QDQ that also rounds the outputs of layers and
            the operators between them, so that onnxruntime computes with integers throughout; 'qoperator':
            integer operators; 'function': a local function of standard operators; 'auto': QDQ if
            QuantizeLinear supports the format, otherwise a function; 'fast': for int8 the formats and the
            form that a table lists for this processor and onnxruntime (`engine.quantize.speed.fast_forms`),
            otherwise 'auto'. An nn.Module takes 'auto', 'fast' or, in `quantize_module` only, 'torchao':
            weights become tensors of torchao if it supports the layer and the format.
        calibrator: Method that chooses the ranges of inputs from the observed values.
        percentile: Share of values inside the range for the calibrator 'percentile', in percent.
        accumulator: Bits of the hardware's accumulator, or 0 for none. Layers whose sums do not fit are
            listed.
        unsaturated: Whether int8 weights get scales that never saturate on a processor without VNNI: two
            neighboring codes of the same sign add up to at most 128.
        bias_correction: Whether to correct stored biases for the shift that rounding the weights causes in
            the mean of a layer's output. It uses the means of the layer's inputs on the samples.
        ops: Globs over operators. Empty selects all.
        sites: Names, globs, 're:' and a regular expression, or filters. Empty selects all layers.
        rules: Rules for some layers only. The first rule that sets a value decides it.
        origins: Place where each value above was set, by its name. A value without an entry is the default.
        config: Path of the file with the settings and rules, or '' for none.
        overridden: Number formats of the file that the command line overrides, each as part, name and place.
            They are checked, too.
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
            "form of the written operators: QuantizeLinear if it has the format, else a function (auto);\n"
            "for int8 alone the form that a table lists as fast on this processor (fast)",
            manual="form of the written operators. `fast`: for `int8`, the formats and the form that a table"
            " has for this processor and onnxruntime. `qdq`: QuantizeLinear and DequantizeLinear. `auto`:"
            " `qdq` if these support the format, else `function`. `chain`: as `qdq`, also for the outputs"
            " of layers and the operators between layers. `qoperator`: integer operators. `function`: local"
            " functions. `torchao`: for a PyTorch module without a file, weights of torchao",
            usual="fast for --to int8 unless another option sets the form, else auto",
            label="written",
            group="written",
        ),
    ] = "auto"
    calibrator: Annotated[Calibrator, option("how ranges of inputs are chosen", label="ranges by")] = "minmax"
    percentile: Annotated[
        float,
        Meta(gt=50, le=100),
        option(
            "for --calibrator percentile: share of values inside the range, in percent",
            metavar="P",
            reader="percentile",
        ),
    ] = 99.999
    accumulator: Annotated[Natural, ACCUMULATOR] = 0
    unsaturated: Annotated[
        bool,
        option(
            "limit int8 weights so that no sum of two products saturates on a processor without VNNI",
            manual="limit `int8` weights so that no sum of two neighboring products saturates on an x86"
            " processor without VNNI",
            group="written",
        ),
    ] = False
    bias_correction: Annotated[
        bool,
        option(
            "correct stored biases for the mean error that rounding the weights causes",
            manual="subtract from stored biases the shift of the mean output that rounded weights cause;"
            " it is computed from the mean inputs of the samples",
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
            words=("all", "this layer", "this kind"),
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
            label="config",
            placeholder="formats.toml",
        ),
    ] = ""
    overridden: tuple[tuple[str, str, str], ...] = ()

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("overridden",)


class QuantizeRequest(Spec, frozen=True):
    """Request that made a quantized state: the settings, and the samples that determined its ranges.

    Attributes:
        calibrate: Path of a file or folder of samples, or '' for random samples.
        draws: Number of random samples.
        seed: Seed of the first random sample.
        as_graph: Whether an nn.Module is exported to a graph, which is then quantized.
    """

    spec: QuantizeSpec
    calibrate: Annotated[
        str,
        option(
            "a .npy or .npz file, or a folder of them, with inputs to choose ranges on; random otherwise",
            manual="a `.npy` or `.npz` file, or a folder of them, with inputs to choose ranges on; random"
            " otherwise",
            metavar="FILE|FOLDER",
            label="calibrate",
        ),
    ] = ""
    draws: Annotated[Count, option("how many random inputs to choose ranges on", metavar="N")] = 4
    seed: Annotated[Natural, option("seed of the first random input", metavar="S", label="seed")] = 0
    as_graph: bool = False
