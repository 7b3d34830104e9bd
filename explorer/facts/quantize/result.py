"""Facts about a quantized model: the changes by operator type and by layer, and the loss of accuracy."""

from __future__ import annotations

from typing import ClassVar

from explorer.base.fact import Fact, TableFact


class OperatorCount(Fact, frozen=True):
    """Number of layers of one operator type: all, and by whether they take a number format."""

    op: str
    total: int
    changed: int
    unchanged: int


class Bits(Fact, frozen=True):
    """Bits per weight and per input element, with the element's share of its block's scale and zero point.

    A field is None if the layer has no such part or its size is unknown.
    """

    weight: float | None
    input: float | None


class Accumulator(Fact, frozen=True):
    """Accumulator size that the sums of a layer's integer products need.

    Attributes:
        depth: Number of products in one sum: K.
        bits: Bits of a signed integer that holds every sum of the stored weights, for any input.
        bits_any: Bits of a signed integer that holds every sum for any weights of this format.
        channel: Output channel with the largest sum.
        reach: Largest absolute sum. Some input produces it.
    """

    depth: int
    bits: int
    bits_any: int
    channel: int
    reach: int


class QuantizedLayer(Fact, frozen=True):
    """A layer that multiplies or holds weights, and its quantization.

    Attributes:
        weight: Number format of the weight after quantization, its element type if it was kept, or '' if the
            layer has no weight.
        input: Number format of the input after quantization, its element type if it was kept, or ''.
        bias: Number format of the bias after quantization, its element type if it was kept, or ''.
        before: Element type of the weight (or of the input) before quantization.
        granularity: Part of the weight that shares a scale: 'tensor', 'channel', '4 channels' (the groups of
            a transposed convolution, the directions of an LSTM) or 'block 32'; '' if the weight has no scale.
        bits: Bits of the numbers after quantization.
        bits_before: Bits of the numbers before quantization.
        weight_max_error: Largest absolute error of the stored weight against the original. Infinity if a
            number became infinite, as in float16.
        weight_rms_error: RMS error of the stored weight against the original.
        weight_snr_db: Signal-to-noise ratio of the weight in dB, 10 log10(sum w**2 / sum (q - w)**2).
            Infinity if both are equal, minus infinity if NaN or infinity occur or the original is zero
            throughout, None if the weight was not changed or not measured.
        input_snr_db: Signal-to-noise ratio in dB of quantizing the input alone, on the original model's
            values.
        output_snr_db: Signal-to-noise ratio in dB of the layer's output against the original layer's. Both
            layers read the original model's values, so the ratio excludes the errors of earlier layers. None
            if the layer was not run.
        saturated: Share of input values that exceed the range of the format by more than rounding. None if
            the layer was not run or its blocks choose their own range (mx formats).
        macs: Multiply-accumulates of one run at the sizes of the samples.
        bitops_before: BitOPs before quantization.
        bitops: BitOPs: macs x bits of the weight x bits of the input. Without a weight, bits of both inputs.
        weight_bytes_before: Bytes of the weight before quantization.
        weight_bytes: Bytes of the weight in its format, with the scales and nonzero zero points that hardware
            needs. The file is of the same size if ONNX has a type for the format.
        accumulator: Accumulator size of the layer, or None if its sums are not sums of integers with one
            scale or its weights were not examined.
        reason: Reason why the layer was not quantized, or '' if it was.
        held: Storage of the weight if torchao was requested: 'torchao' (a tensor of torchao) or 'float32'
            (rounded numbers, because torchao does not support this layer or format). Otherwise ''.
        kernel: Operator of the layer in onnxruntime's optimized form of the file, or '' if that was not
            examined or lacks the layer.
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
        """Formats of the weight and the inputs: 'int8', 'mxfp4 x float16', 'weight int4'."""
        weight, inputs = (name if name not in ("float32", "") else "" for name in (self.weight, self.input))
        if weight and inputs:
            return weight if weight == inputs else f"{weight} x {inputs}"
        return f"weight {weight}" if weight else (inputs and f"input {inputs}") or self.before

    @property
    def described(self) -> str:
        """Formats and granularity: 'int8, per channel', 'int8, per 4 channels', 'int4, block 32'."""
        if not self.granularity:
            return self.formats
        shared = self.granularity if self.granularity.startswith("block") else f"per {self.granularity}"
        return f"{self.formats}, {shared}"


class BeforeAfter(Fact, frozen=True):
    """A figure of the model before and after a change. A value is None if it is unknown."""

    before: int | None
    after: int | None


class QuantizeTotals(Fact, frozen=True):
    """Sums over the full model."""

    weight_bytes: BeforeAfter
    bitops: BeforeAfter


class OutputAgreement(Fact, frozen=True):
    """Comparison of an output of the quantized model with the original's, over all samples.

    Attributes:
        snr_db: Signal-to-noise ratio in dB, as in `QuantizedLayer`, with the error of all layers together.
        cosine: Cosine of the angle between the two outputs, or None if one of them is zero.
        top1: Share of rows along the last axis whose largest class is the same, or None if the output does
            not choose a class.
        top5: Share of rows for which the original's largest class is among the five largest, or None if the
            output does not choose a class.
        samples: Number of compared rows.
    """

    name: str
    snr_db: float | None
    cosine: float | None
    top1: float | None
    top5: float | None
    samples: int = 0


class KernelCount(Fact, frozen=True):
    """Number of layers that a runtime runs as the same operator.

    Attributes:
        integer: Whether the kernel computes with the integers. False if it reads integer weights and
            multiplies floats, as MatMulNBits does.
    """

    op: str
    layers: int
    integer: bool = True


class RuntimeKernels(Fact, frozen=True):
    """Kernels of the quantized layers in a runtime, read from the runtime's optimized form of the file.

    Attributes:
        runtime: Name and version of the runtime: 'onnxruntime 1.32.0'. It ran with its default options at the
            optimization level 'extended'.
        instructions: Instruction set of this processor for products of bytes: 'avx2', 'avx512_vnni', or '' if
            unknown.
        layers: Number of layers that take a number format.
        integer_layers: Number of these layers on integer kernels, or None if the file was not examined.
        kernels: Number of layers on each kernel.
        problem: Reason why the file was not examined, or ''.
    """

    runtime: str
    instructions: str
    layers: int
    integer_layers: int | None = None
    kernels: tuple[KernelCount, ...] = ()
    problem: str = ""


class RunTimes(Fact, frozen=True):
    """Run times of the original and of the quantized model, which ran in turn on the same input.

    Attributes:
        before_min: Seconds of the shortest run of the original.
        after_min: Seconds of the shortest run of the quantized model.
        before_median: Median seconds of the original.
        after_median: Median seconds of the quantized model.
        rounds: Number of timed runs of each, after one untimed run.
    """

    before_min: float
    after_min: float
    before_median: float
    after_median: float
    rounds: int

    @property
    def ratio(self) -> float:
        """Shortest run of the quantized model divided by that of the original."""
        return self.after_min / self.before_min if self.before_min else 1.0


class Quantization(TableFact, frozen=True):
    """The answer of `explorer quantize`.

    Attributes:
        layers: Layers in the order of the graph.
        worst: Name of the layer with the lowest output SNR, or '' if unknown.
        output: Path of the written file, or '' if only the settings were requested.
        calibration: Source of the ranges and errors: 'calib.npz, 64 samples', 'random inputs, seed 0'; '' for
            none.
        accumulator_bits: Bits of the hardware's accumulator, or 0 if none was given.
        overflows: Names of layers with sums that do not fit into the accumulator for some input.
        command: Command that makes the same quantization.
        modules: Whether the model and the result are nn.Modules. Otherwise they are graphs.
        notes: Remarks about the figures, for example that the weights are random.
        by_shapes: Whether layers of a module were matched to operators by shape alone; a note says so.
        kernels: Kernels of the layers in onnxruntime, or None if no ONNX file was written.
        times: Run times of the original and the quantized model, or None if they were not measured.
        untimed: Reason why the run times were not measured, or ''.
    """

    ROWS: ClassVar[str] = "layers"

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
