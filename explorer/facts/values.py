"""Facts about the numbers in tensors: stored weights, and activations of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from msgspec import field

from explorer.base.checked import Count, Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.facts import Shape, TensorInfo


class StatisticsSpec(Spec, frozen=True):
    """Statistics of weights or activations, as the user requests them.

    Attributes:
        kinds: Operators or module types of layers, or empty for all layers.
        stat: Statistics by name, in the syntax of `explorer.settings.statistics`. None selects the usual
            ones.
        axis: Axis with separate statistics for each index, negative from the end. None measures whole
            tensors.
        bins: Number of intervals of a histogram.
    """

    kinds: Annotated[
        tuple[str, ...],
        option(
            "only layers of this operator or module type, such as Conv or Linear",
            manual="only layers of this operator or module type, such as `Conv` or `Linear`",
            metavar="KIND",
            label="operators",
            placeholder="all; Conv, Linear",
            flag="--op",
            old="--type",
        ),
    ] = ()
    stat: Annotated[
        str | None,
        option(
            "statistics beside each other, one row a tensor: var,absmean,range:3sigma,quantile:0.97, ...\n"
            "(explorer help counting)",
            manual="[statistics](counting.md#statistics) beside each other, one row a tensor:"
            " `var,absmean,range:3sigma,quantile:0.97`",
            metavar="NAMES",
            label="statistics",
            placeholder="var, absmax, zeros, quantile:0.97",
            reader="statistics",
        ),
    ] = None
    axis: Annotated[
        int | None,
        option(
            "statistics of each index of this axis, such as 0 for the output channels of a weight",
            metavar="N",
            label="axis",
            placeholder="none; 0 gives each output channel a row",
            reader="axis",
        ),
    ] = None
    bins: Annotated[Count, option("intervals of a histogram", metavar="N")] = 32


class Histogram(Fact, frozen=True):
    """A histogram: `counts[i]` values lie in [edges[i], edges[i + 1]).

    The last interval includes its right edge. NaN and Inf are not counted.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class TensorStats(Fact, frozen=True):
    """Statistics of the values of one tensor.

    Figures are over the finite values, computed in float64. They are None if no value is finite or the dtype
    has no numbers (strings).

    Attributes:
        tensor: Name, dtype and concrete shape of the tensor.
        layer: Path of the layer that owns the weight or produces the activation.
        elements: Number of elements.
        bytes: Bytes as stored.
        std: Population standard deviation.
        zeros: Share of the elements that are exactly 0.
        nan: Number of NaN elements.
        inf: Number of infinite elements.
        quantiles: Pairs (q, value) for q of 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99. Exact over all elements
            if `quantiles_exact`, otherwise read from a fine histogram.
        runs: Number of runs of the model that the figures cover. `tensor` has the shape of a single run.
        chosen: Requested statistics by label ('var', 'quantile:0.97'): one number, or one for each index of
            the requested axis. Statistics that the tensor does not have are missing.
        call: Number of the call, from 0, if the layer runs several times.
        trainable: Whether the weight is a parameter with requires_grad (nn.Module only), otherwise None.
    """

    tensor: TensorInfo
    layer: str
    elements: int
    bytes: int
    minimum: float | None
    maximum: float | None
    mean: float | None
    std: float | None
    zeros: float | None
    nan: int
    inf: int
    quantiles: tuple[tuple[float, float], ...] = ()
    quantiles_exact: bool = True
    histogram: Histogram | None = None
    call: int = 0
    trainable: bool | None = None
    runs: int = 1
    chosen: Mapping[str, tuple[float | None, ...]] = field(default_factory=dict)


class StatisticsRow(Fact, frozen=True):
    """Requested statistics of one tensor, or of one index of an axis of it, with properties of its layer.

    Attributes:
        layer: Path of the layer that owns the weight or produces the activation, or '' without a layer.
        operator: ONNX operator or module type of the layer, or '' without a layer.
        role: Role of the tensor: 'weight', 'activation', 'gradient' (of an output of the layer), or 'weight
            gradient'.
        tensor: Name of the tensor.
        dtype: Number type as stored.
        shape: Shape of the tensor.
        inputs: Shapes of the inputs of the layer, as analyzed.
        outputs: Shapes of the outputs of the layer, as analyzed.
        call: Number of the call, from 0, if the layer runs several times.
        index: Index on the requested axis, or None for the full tensor.
        values: Statistics by label, in the requested order.
    """

    layer: str
    operator: str
    role: str
    tensor: str
    dtype: str | None
    shape: Shape | None
    inputs: tuple[Shape | None, ...]
    outputs: tuple[Shape | None, ...]
    call: int
    index: int | None
    values: Mapping[str, float | None]


class Weights(TableFact, frozen=True):
    """Statistics of stored tensors.

    Attributes:
        tensors: Statistics in the order of the model.
        tied: Groups of names that share the same stored tensor.
        duplicates: Groups of names of different stored tensors with equal bytes, dtype and shape.
        notes: Remarks, for example 'random weights, seed 0'.
        statistics: Requested statistics with properties of the layers.
    """

    ROWS: ClassVar[str] = "tensors"

    source: str
    tensors: tuple[TensorStats, ...]
    tied: tuple[tuple[str, ...], ...] = ()
    duplicates: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    statistics: tuple[StatisticsRow, ...] = ()


class Activations(TableFact, frozen=True):
    """Outputs of the layers of a model for one input.

    Attributes:
        inputs: Origin of each input: 'x float32 (1, 3, 224, 224): random, seed 0'.
        tensors: Statistics in execution order. A layer that is called n times has n entries per output.
            Gradients of parameters, by name, follow the gradients of activations.
        output: Path of the .npz file with the values, or '' if none was requested.
        skipped: Path of each requested layer without an output tensor, with the reason: it did not run, or
            its output is not a tensor. If the model failed, the layer that failed comes first.
        sizes: Type and shape of each input that came from a file, by name. Empty if the arrays of the file do
            not match the inputs of the model.
        notes: Remarks about the values, for example that the weights are random.
        statistics: Requested statistics, as in `Weights`.
    """

    ROWS: ClassVar[str] = "tensors"

    source: str
    inputs: tuple[str, ...]
    tensors: tuple[TensorStats, ...]
    output: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    sizes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    statistics: tuple[StatisticsRow, ...] = ()


class ValuesBefore(Fact, frozen=True):
    """The same slice of a tensor in another model, and its differences.

    Attributes:
        source: Name of the other model, as the user calls it.
        tensor: Name, dtype and shape of the tensor in the other model.
        dtype: Number type of the values.
        values: Values at the same indices.
        differences: Value minus value of the other model, computed in float64.
        ulps: Number of representable floats between the two values, in the wider of the two types and at
            least float32. An entry is None if one value is NaN or infinite. None for types other than floats.
        equal: Number of equal values in the complete slice. NaN equals NaN.
        elements: Number of values in the complete slice.
        largest: Largest absolute difference of finite values in the complete slice, or None if no values are
            finite.
        rms: Root mean square of the differences of finite values, or None if there are none.
        largest_ulps: Largest of `ulps` in the complete slice.
    """

    source: str
    tensor: TensorInfo
    dtype: str
    values: tuple[float, ...]
    differences: tuple[float, ...]
    ulps: tuple[int | None, ...] | None
    equal: int
    elements: int
    largest: float | None
    rms: float | None
    largest_ulps: int | None


class TensorValues(Fact, frozen=True):
    """Values of a slice of one tensor.

    Attributes:
        source: Name of the model, as the user calls it.
        tensor: Name, stored dtype and shape of the tensor.
        layer: Path of the layer that owns the weight or produces the activation.
        role: 'weight' or 'activation'.
        slice: Slice as the user typed it, or '' for the full tensor.
        shape: Shape of the slice, as in numpy.
        indices: Indices of the listed values on each axis of the tensor. For a large slice, only the first
            and last ones.
        dtype: Number type of the values. For a quantized tensor, the type of its scales.
        values: Values at all combinations of `indices`, the last axis varying fastest.
        codes: Stored integers or small floats at these indices, or None if the values themselves are stored.
        scales: Scale of each value, or None if there are none.
        zero_points: Zero point of each value, or None if there are none.
        offsets: Offset of each value, which is added to scale x (code - zero point), or None if there are
            none.
        before: The same slice of another model, if it was requested.
        inputs: Origin of each input of the model (for an activation).
        calls: Number of runs of its layer (for an activation). The values are those of the first run.
        output: Path of the .npy file with all values of the slice, or '' if none was requested.
        notes: Remarks, for example that the weights are random.
    """

    source: str
    tensor: TensorInfo
    layer: str
    role: str
    slice: str
    shape: tuple[int, ...]
    indices: tuple[tuple[int, ...], ...]
    dtype: str
    values: tuple[float, ...]
    codes: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    zero_points: tuple[int, ...] | None = None
    offsets: tuple[float, ...] | None = None
    before: ValuesBefore | None = None
    inputs: tuple[str, ...] = ()
    calls: int = 1
    output: str = ""
    notes: tuple[str, ...] = ()


class Outlier(Fact, frozen=True):
    """A value of a tensor that is far from its mean. `deviations` is the distance in standard deviations."""

    index: tuple[int, ...]
    value: float
    deviations: float | None


class HeatMap(Fact, frozen=True):
    """A tensor reduced to a small matrix: each cell covers several rows and columns.

    Attributes:
        source, tensor, layer, role: Property of the tensor, as in `TensorValues`.
        dtype: Number type of the values. For a quantized tensor, the type of its scales.
        place: Index on each axis except the last two, which are rows and columns. A one-dimensional tensor is
            a single row.
        rows: Half-open range of the drawn rows.
        columns: Half-open range of the drawn columns.
        heights: Number of cells in vertical direction.
        widths: Number of cells in horizontal direction.
        cells: Finite value of the largest magnitude in each cell, row by row, or None if a cell has no finite
            value.
        notes: Remarks, as in `TensorValues`.
        stats: Statistics of the full tensor, if they were requested.
        outliers: Values of the tensor that are farthest from its mean, the farthest first.
        channels: Minimum and maximum for each index of the first axis, or (None, None) if none of its values
            is finite.
        before: The same part of another model's tensor, if it was requested.
        codes, scales, zero_points, offsets: Quantization of the cells, as in `TensorValues`, if every cell is
            a single value.
    """

    source: str
    tensor: TensorInfo
    layer: str
    role: str
    dtype: str
    place: tuple[int, ...]
    rows: tuple[int, int]
    columns: tuple[int, int]
    heights: int
    widths: int
    cells: tuple[float | None, ...]
    notes: tuple[str, ...] = ()
    stats: TensorStats | None = None
    outliers: tuple[Outlier, ...] = ()
    channels: tuple[tuple[float | None, float | None], ...] = ()
    before: HeatMap | None = None
    codes: tuple[float, ...] | None = None
    scales: tuple[float, ...] | None = None
    zero_points: tuple[int, ...] | None = None
    offsets: tuple[float, ...] | None = None
