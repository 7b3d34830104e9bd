"""Quantization result: what changed, by operator type and by layer, and what it costs in accuracy."""

from __future__ import annotations

from typing import ClassVar

from msgspec import Struct


class OperatorCount(Struct, frozen=True):
    """Layers of one operator type: how many took a format."""

    op: str
    total: int
    changed: int
    unchanged: int


class Bits(Struct, frozen=True):
    """Bits of a number, a share of what blocks have in common included; None: no such part, or not known."""

    weight: float | None
    input: float | None


class Accumulator(Struct, frozen=True):
    """What the sums of a layer's integer products need.

    Attributes:
        depth: Products of one sum: K.
        bits: Of a signed integer that holds every sum of the stored weights, for whatever input.
        bits_any: Likewise of any weights in their format.
        reach: The largest sum, of the output channel `channel`: there is an input that makes it.
    """

    depth: int
    bits: int
    bits_any: int
    channel: int
    reach: int


class QuantizedLayer(Struct, frozen=True):
    """A layer that multiplies (or holds weights), and what quantization did to it.

    Attributes:
        weight, input, bias: Number formats after; the element type where they stayed, '' where there is no
            such part.
        before: Element type of its weight (or input) before.
        granularity: What of the weight shares a scale: 'tensor', 'channel', '4 channels' (the groups of a
            transposed convolution, the directions of an LSTM) or 'block 32'; '' where nothing has one.
        bits, bits_before: Of its numbers.
        weight_max_error, weight_rms_error, weight_snr_db: Of the stored weight against the original's; dB is
            10 log10(sum w**2 / sum (q - w)**2), infinite where nothing is lost, minus infinite where NaN or
            infinity came in or the original is zero throughout, None where nothing was changed or measured.
        input_snr_db: Of the input's quantization alone, on the original's values.
        output_snr_db: Of what the quantized layer makes of the original's values against what the original
            makes of them, so that it is the layer's own; None where it was not run.
        saturated: Share of input values beyond the range of its format, by more than rounding moves them;
            None where it was not run, or blocks choose their range themselves (mx formats).
        macs: In one run at the sizes of the samples; `bitops` are macs x bits of weight x bits of input (of
            both inputs, where there is no weight): of `bits`, shares of blocks included.
        weight_bytes_before, weight_bytes: In its format, with scales that its name does not say, and zero
            points that are not 0: what hardware holds. A file holds as much where ONNX has a type for it.
        accumulator: What its sums need; None where they are not of integers with one scale, or no weights
            were looked at.
        reason: Why the layer was left as it was; '' where it took a format.
        held: Where torchao was asked for: what the weight is, 'torchao' (its tensor) or 'float32' (rounded
            numbers, since it has none for this layer or format); else ''.
        kernel: The operator that it becomes in onnxruntime's optimized form of the file; '' where that was
            not looked at, or does not have it.
    """

    name: str
    op: str
    weight: str = ""
    input: str = ""
    bias: str = ""
    before: str = "float32"
    granularity: str = ""
    bits: Bits = Bits(None, None)
    bits_before: Bits = Bits(None, None)
    weight_max_error: float | None = None
    weight_rms_error: float | None = None
    weight_snr_db: float | None = None
    input_snr_db: float | None = None
    output_snr_db: float | None = None
    saturated: float | None = None
    macs: int | None = None
    bitops_before: int | None = None
    bitops: int | None = None
    weight_bytes_before: int = 0
    weight_bytes: int = 0
    accumulator: Accumulator | None = None
    reason: str = ""
    held: str = ""
    kernel: str = ""

    @property
    def formats(self) -> str:
        """Of its weight and inputs: 'int8', 'mxfp4 x float16', 'weight int4'."""
        weight, inputs = (name if name not in ("float32", "") else "" for name in (self.weight, self.input))
        if weight and inputs:
            return weight if weight == inputs else f"{weight} x {inputs}"
        return f"weight {weight}" if weight else (inputs and f"input {inputs}") or self.before

    @property
    def described(self) -> str:
        """They, and what shares a scale: 'int8, per channel', 'int8, per 4 channels', 'int4, block 32'."""
        if not self.granularity:
            return self.formats
        shared = self.granularity if self.granularity.startswith("block") else f"per {self.granularity}"
        return f"{self.formats}, {shared}"


class BeforeAfter(Struct, frozen=True):
    """A figure of the model as it was, and as it is; None where it is not known."""

    before: int | None
    after: int | None


class QuantizeTotals(Struct, frozen=True):
    """Sums over the whole model."""

    weight_bytes: BeforeAfter
    bitops: BeforeAfter


class OutputAgreement(Struct, frozen=True):
    """An output of the quantized model against the original's, over all samples.

    Attributes:
        snr_db: As in `QuantizedLayer`; that of all layers together.
        cosine: None where one of them is zero.
        top1, top5: Share of rows along the last axis whose largest class is the same, or whose largest class
            of the original's is among the five largest; None where there is nothing to choose.
        samples: How many rows were compared.
    """

    name: str
    snr_db: float | None
    cosine: float | None
    top1: float | None
    top5: float | None
    samples: int = 0


class KernelCount(Struct, frozen=True):
    """Layers that run as one operator of a runtime."""

    op: str
    layers: int


class RuntimeKernels(Struct, frozen=True):
    """What a runtime makes of the quantized layers, from the form to which it optimizes the file.

    Attributes:
        runtime: 'onnxruntime 1.32.0', with its default options at the level 'extended'.
        instructions: Of this processor, for products of bytes: 'avx2', 'avx512_vnni'; '' if unknown.
        layers: How many took a format.
        integer_layers: How many of these run on integer kernels; None where the file was not looked at.
        kernels: On which.
        problem: Why the file was not looked at; '' where it was.
    """

    runtime: str
    instructions: str
    layers: int
    integer_layers: int | None = None
    kernels: tuple[KernelCount, ...] = ()
    problem: str = ""


class RunTimes(Struct, frozen=True):
    """Seconds of a run of the original and of the quantized model, which ran in turn on the same input.

    Attributes:
        before_min, after_min: The shortest run.
        before_median, after_median: The median run.
        rounds: How often each ran, after a first run that does not count.
    """

    before_min: float
    after_min: float
    before_median: float
    after_median: float
    rounds: int

    @property
    def ratio(self) -> float:
        """The shortest run of the quantized model, of that of the original."""
        return self.after_min / self.before_min if self.before_min else 1.0


class Quantization(Struct, frozen=True):
    """The answer of `explorer quantize`.

    Attributes:
        layers: In the order of the graph; `worst` names the one whose output lost most.
        output: The file that was written; '' where nothing was (only the choice was asked for).
        calibration: What ranges and errors rest on: 'calib.npz, 64 samples', 'random inputs, seed 0'; '' for
            nothing.
        accumulator_bits: Of the accumulator that the hardware has; 0 where none was named.
        overflows: Layers with sums that do not fit it, for some input.
        command: What does the same at the command line.
        modules: Whether the layers are those of an nn.Module, and what is made is one; else they are nodes of
            a graph.
        notes: What else there is to know of the figures: that the weights are random, or of which file.
        by_shapes: The layers of a module are known by their shapes alone, and a note says so.
        kernels: What onnxruntime runs the layers on; None where no file of operators was written.
        times: Of runs beside the original's; None where none were made, `untimed` says why.
    """

    by_op: tuple[OperatorCount, ...]
    layers: tuple[QuantizedLayer, ...]
    totals: QuantizeTotals
    outputs: tuple[OutputAgreement, ...] = ()
    output: str = ""
    worst: str = ""
    calibration: str = ""
    accumulator_bits: int = 0
    overflows: tuple[str, ...] = ()
    command: str = ""
    seconds: float = 0.0
    modules: bool = False
    notes: tuple[str, ...] = ()
    kernels: RuntimeKernels | None = None
    times: RunTimes | None = None
    untimed: str = ""
    by_shapes: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("by_shapes",)
