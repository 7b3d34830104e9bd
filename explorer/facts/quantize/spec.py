"""Quantization specification: which layers take which number format, for weights, inputs and biases."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from explorer.base.checked import Count, Natural, Spec, Words

Granularity = Literal["tensor", "channel"]
QuantizeForm = Literal["auto", "fast", "qdq", "chain", "qoperator", "function", "torchao"]
Calibrator = Literal["minmax", "percentile", "entropy", "mse"]

PARTS = ("weight", "input", "bias")
"""What of a layer has a format of its own."""


class QuantizeRule(Spec, frozen=True):
    """What is asked of some layers only: a `[[quantize.site]]` table, or a choice made by hand.

    A layer is meant when every condition that is given holds. What is None is left to the next rule, and at
    the end to the specification itself.

    Attributes:
        site: Glob over names of layers, 're:' and a regular expression, or a filter; '' for any.
        op: Glob over operators; '' for any.
        shape: Conditions on M, K, N of the layer's matrix product, such as 'M>=64 N<=1000'; '' for any.
        weight, input, bias: Number formats; 'float32' leaves the part as it is.
        granularity, symmetric, block: As in `QuantizeSpec`.
        on: False leaves these layers as they are.
        origin: Where it was said: 'npu.toml:12', 'chosen by hand'.
    """

    site: str = ""
    op: str = ""
    shape: str = ""
    weight: str | None = None
    input: str | None = None
    bias: str | None = None
    granularity: Granularity | None = None
    symmetric: bool | None = None
    block: Natural | None = None
    on: bool | None = None
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
        rules: What is asked of some layers only; the first that speaks of a value decides it.
        origins: Who said the values above, by their names; a value that is not among them is the default.
        config: Path of the file that such values and the rules stand in; '' for none.
    """

    weight: Words = "int8"
    input: Words = "int8"
    bias: Words = "auto"
    granularity: Granularity = "channel"
    symmetric: bool | None = None
    block: Natural = 0
    form: QuantizeForm = "auto"
    calibrator: Calibrator = "minmax"
    percentile: Annotated[float, Meta(gt=50, le=100)] = 99.999
    accumulator: Natural = 0
    unsaturated: bool = False
    bias_correction: bool = False
    ops: tuple[Words, ...] = ()
    sites: tuple[Words, ...] = ()
    rules: tuple[QuantizeRule, ...] = ()
    origins: tuple[tuple[str, str], ...] = ()
    config: str = ""


class QuantizeRequest(Spec, frozen=True):
    """What made a state: what was asked, and what its ranges were chosen on.

    Attributes:
        calibrate: File or folder of samples; '' for random ones.
        draws: How many random samples.
        seed: Of the first of them.
        as_graph: An nn.Module is quantized as the graph that it is exported to.
    """

    spec: QuantizeSpec
    calibrate: str = ""
    draws: Count = 4
    seed: Natural = 0
    as_graph: bool = False
