"""Facts about the numbers inside tensors: weights as stored, activations as a run produced them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from explorer.facts import Shape, TensorInfo

__all__ = ["Activations", "Histogram", "StatisticsRow", "TensorStats", "Weights"]


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
        role: 'weight', 'activation', or 'gradient'.
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
        tensors: In execution order; a layer called n times has n entries per output.
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
