"""Facts about the numbers inside tensors: weights as stored, activations as a run produced them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from explorer.facts import Shape, TensorInfo


class Histogram(Struct, frozen=True):
    """`counts[i]` values lie in [edges[i], edges[i + 1]), the last interval closed; NaN and Inf in none."""

    edges: tuple[float, ...]
    counts: tuple[int, ...]


class TensorStats(Struct, frozen=True):
    """The values of one tensor.

    Figures are over the finite values, computed in float64; None where there are none, or where the
    dtype has no numbers (strings).

    Attributes:
        tensor: Its name, dtype and shape (concrete).
        layer: Path of the layer that owns (weights) or makes (activations) it.
        elements, bytes: As stored.
        std: Population standard deviation.
        zeros: Share of the elements that are exactly 0.
        nan, inf: How many are not finite.
        quantiles: (q, value) for 0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99; exact over all elements where
            `quantiles_exact`, else read off a fine histogram.
        runs: How many runs of the model the figures are over; `tensor` has the shape that one makes.
        chosen: The statistics that were asked for, by label ('var', 'quantile:0.97'): one number, or one for
            each index of the axis that was asked for. A tensor that has none of it is not in it.
        call: Which call of a layer that runs several times, from 0.
        trainable: Weights of an nn.Module: whether it is a parameter with requires_grad; None elsewhere.
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


class StatisticsRow(Struct, frozen=True):
    """Chosen statistics of one tensor, or of one index of an axis of it, and what is known of its layer.

    Attributes:
        layer: Path of the layer that owns (weights) or makes (activations) the tensor; '' if none does.
        operator: Of the layer: an operator of ONNX, a type of module; '' where there is no layer.
        role: 'weight', 'activation', 'gradient' of what a layer puts out, or 'weight gradient'.
        tensor: Its name.
        dtype: Its precision, as stored.
        shape: Its sizes.
        inputs, outputs: Shapes that the layer reads and makes, as the analysis knows them.
        call: Which call of a layer that runs several times, from 0.
        index: On the axis; None for the whole tensor.
        values: The statistics by label, in the order in which they were asked for.
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


class Weights(Struct, frozen=True):
    """Statistics of stored tensors.

    Attributes:
        tensors: In the order of the model.
        tied: Groups of names that are one and the same stored tensor.
        duplicates: Groups of names of different stored tensors whose bytes, dtype and shape are equal.
        notes: What is worth knowing: 'random weights, seed 0'.
        statistics: The statistics that were asked for, beside what is known of the layers.
    """

    source: str
    tensors: tuple[TensorStats, ...]
    tied: tuple[tuple[str, ...], ...] = ()
    duplicates: tuple[tuple[str, ...], ...] = ()
    notes: tuple[str, ...] = ()
    statistics: tuple[StatisticsRow, ...] = ()


class Activations(Struct, frozen=True):
    """What the layers of a model put out for one input.

    Attributes:
        inputs: How each input came about: 'x float32 (1, 3, 224, 224): random, seed 0'.
        tensors: In execution order; a layer called n times has n entries per output. Of what flows back those
            of the parameters, by their names, are behind the others.
        output: The .npz file with the values, '' when none was asked for.
        skipped: Layers that were asked for and did not run, or whose output is no tensor, and why; first the
            one that failed, if the model did.
        sizes: Types and shapes of the inputs that came from a file, by name; none where the file has other
            arrays than the model has inputs.
        notes: What else there is to know of the values: that the weights are random.
        statistics: As of `Weights`.
    """

    source: str
    inputs: tuple[str, ...]
    tensors: tuple[TensorStats, ...]
    output: str = ""
    skipped: tuple[tuple[str, str], ...] = ()
    seconds: float = 0.0
    sizes: Mapping[str, tuple[str | None, tuple[int, ...]]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    statistics: tuple[StatisticsRow, ...] = ()


class ValuesBefore(Struct, frozen=True):
    """The same slice of the tensor of another model, and how far the numbers are apart.

    Attributes:
        source: What the user calls that model.
        tensor: Its name, dtype and shape there.
        dtype: Of its numbers.
        values: Its numbers where those of the other are told.
        differences: Number - number before, computed in float64.
        ulps: How many numbers of the type lie from one to the other, of two floats; of two types it is the
            wider, float32 at least. None where one is NaN or infinite. None for other types.
        equal: How many of the whole slice are the same, NaN and NaN too.
        elements: How many the whole slice has.
        largest: The largest magnitude of a difference in it; None where there is none of finite numbers.
        rms: Root of the mean square of the differences of finite numbers.
        largest_ulps: Of the whole slice.
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


class TensorValues(Struct, frozen=True):
    """Numbers of a slice of one tensor.

    Attributes:
        source: What the user calls the model.
        tensor: Its name, dtype as stored, and shape.
        layer: Path of the layer that owns (a weight) or makes (an activation) it.
        role: 'weight' or 'activation'.
        slice: As it was asked for; '' for all.
        shape: Of the slice, as numpy has it.
        indices: Of each axis of the tensor, the indices whose numbers are told: of a large slice the first
            and last ones.
        dtype: Of the numbers: that of the scales where the tensor is quantized.
        values: The numbers at all combinations of `indices`, the last axis running fastest.
        codes: What is stored in their places, integers or small floats; None where that are the numbers
            themselves.
        scales: Of each of them; None where there are none.
        zero_points: As `scales`.
        offsets: As `scales`: what is added to scale x (code - zero point); None: nothing is.
        before: The same of another model, if that was asked for.
        inputs: Of an activation: how each input of the model came about.
        calls: Of an activation: how often its layer ran; told is the first.
        output: The .npy file with all numbers of the slice, '' when none was asked for.
        notes: What else there is to know: that the weights are random.
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


class Outlier(Struct, frozen=True):
    """One of the numbers of a tensor that are farthest from its mean, and by how many standard deviations."""

    index: tuple[int, ...]
    value: float
    deviations: float | None


class HeatMap(Struct, frozen=True):
    """A tensor drawn small: a matrix of it, rows and columns gathered into cells.

    Attributes:
        source, tensor, layer, role: As of `TensorValues`.
        dtype: Of the numbers: that of the scales where the tensor is quantized.
        place: The index on each axis before the last two; the last two are rows and columns. A tensor of one
            axis is one row.
        rows, columns: First and behind the last of those that are drawn.
        heights, widths: How many cells there are, downwards and across.
        cells: Row by row, of each cell the finite number of the largest magnitude; None where there is none.
        notes: As of `TensorValues`.
        stats: Of the whole tensor, if that was asked for.
        outliers: Those numbers of it that are farthest from the mean, the farthest first.
        channels: Least and greatest number of each index of the first axis; (None, None) of no finite one.
        before: The same part of another model's tensor, if that was asked for.
        codes, scales, zero_points, offsets: As of `TensorValues`, where every cell is one number.
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
