"""Session methods that read numbers: statistics of weights and activations, tensor values, heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText
from explorer.features.values.activation_values import ModelValues
from explorer.features.values.tensor_values import TensorNumbers
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.statistics import RequestedStatistics

if TYPE_CHECKING:
    from explorer.facts.values import Activations, HeatMap, TensorValues, Weights


def weights(
    session: Facade,
    names: Sequence[str] = (),
    *,
    kinds: Sequence[str] = (),
    stat: str | None = None,
    axis: int | None = None,
    bins: Count = 32,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Weights:
    """Measure stored tensors, reading one slab at a time.

    Args:
        names: Globs for names of tensors, and for paths of layers and groups; empty selects all.
        kinds: Operators ('Conv') or module types ('Linear') of layers; empty selects all.
        stat: Additional statistics, 'var,absmean,range:3sigma,quantile:0.97' (see
            `explorer.settings.statistics`). They are in `statistics` of the result.
        axis: Axis whose indices are measured separately; negative counts from the last axis. None measures
            whole tensors.
        bins: Number of histogram intervals.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the number of measured tensors.
        cancel: Callback that is polled at every slab; the work stops when it returns True.

    Raises:
        Misuse: A glob or kind matches nothing, a statistic is unknown, or memory does not suffice for the
            weights of a module.
        Cancelled: `cancel` returned True.
    """
    choices = RequestedStatistics(tuple(kinds), stat, axis, bins)
    return session.parts.get_part(ModelValues).weights(names, choices, index, on_progress, cancel)


def activations(
    session: Facade,
    layers: Sequence[str] = (),
    *,
    kinds: Sequence[str] = (),
    stat: str | None = None,
    axis: int | None = None,
    input: PathText | None = None,
    batch: Count | None = None,
    seed: Natural = 0,
    loss: str | None = None,
    target: PathText | None = None,
    bins: Count = 32,
    output: PathText | None = None,
    overwrite: bool = False,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Activations:
    """Run a model and measure the outputs of its layers; optionally write the outputs to a file.

    Args:
        layers: Globs for paths of layers; empty selects all.
        kinds: See `weights`.
        stat: See `weights`.
        axis: See `weights`.
        input: Path of an .npy file, or of an .npz file with arrays named after the inputs. None draws a
            random input. A file can contain several batches; figures then cover all samples.
        batch: Number of samples per run if the model leaves the batch open. None runs all at once.
        seed: Seed of the random input. Graphs and modules get the same numbers.
        loss: 'sum', 'mse' or 'cross-entropy' of the outputs, or the path of a .npy file with the gradient of
            the first output. With a loss, a backward pass runs, and the gradients of a module's layer outputs
            and parameters are measured instead of the outputs.
        target: Path of a .npy file with the target or the classes of the loss. None draws them.
        bins: Number of histogram intervals.
        output: Path of an .npz file for the values, named after their layers.
        overwrite: Whether to replace an existing `output`.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the number of completed layers.
        cancel: Callback that is polled at every layer. If it returns True, the work stops and no file is
            written.

    Raises:
        Misuse: The input does not fit, a glob or kind matches nothing, or `output` cannot be written.
        BadModel: The model fails before any of these layers has run. If it fails later, the result has the
            layers that ran, and its `skipped` says where the model failed and why.
        Cancelled: `cancel` returned True.
    """
    choices = RequestedStatistics(tuple(kinds), stat, axis, bins)
    return session.parts.get_part(ModelValues).activations(
        layers, choices, input, batch, seed, loss, target, output, overwrite, index, on_progress, cancel
    )


def values(
    session: Facade,
    name: str,
    slice: str = "",
    *,
    before: int | PathText | None = None,
    before_name: str | None = None,
    input: PathText | None = None,
    seed: Natural = 0,
    output: PathText | None = None,
    overwrite: bool = False,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> TensorValues:
    """Read the numbers of one tensor: a stored tensor, or the value of a layer or graph tensor in a run.

    Only the part of a file that the slice needs is read. A quantized tensor is returned as real numbers,
    together with the stored integers, scales and zero points.

    Args:
        name: Name of a stored tensor, a layer or a graph tensor.
        slice: Slice in numpy notation: '0:1, :8'. Without it, a large tensor is shown by its edges.
        before: Index of a state, or path or name of a model, to compare with.
        before_name: Name of the tensor in the compared model. None uses the same name, or its quantized form.
        input: Path of an .npy or .npz file with inputs, for the output of a layer. None draws a random input.
        seed: Seed of the random input.
        output: Path of an .npy file for the whole slice.
        overwrite: Whether to replace an existing `output`.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress of opening and running.
        cancel: Callback that is polled regularly. If it returns True, the work stops and no file is written.

    Raises:
        Misuse: The name does not exist, the slice does not fit or is too large, the compared tensor
            has another shape, or `output` cannot be written.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(TensorNumbers).values(
        name,
        slice,
        index,
        _find_compared_model(session, before),
        before_name,
        input,
        seed,
        output,
        overwrite,
        on_progress,
        cancel,
    )


def _find_compared_model(session: Facade, before: int | PathText | None) -> tuple[Models, int] | None:
    """Return the model to compare with, or None."""
    if before is None:
        return None
    return (
        session.parts.find_second_model(None, before)
        if isinstance(before, str)
        else session.parts.find_second_model(before, None)
    )


def heat_map(
    session: Facade,
    name: str,
    *,
    place: Sequence[int] = (),
    rows: tuple[int, int] | None = None,
    columns: tuple[int, int] | None = None,
    size: tuple[int, int] = (24, 64),
    whole: bool = True,
    before: int | PathText | None = None,
    input: PathText | None = None,
    seed: Natural = 0,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> HeatMap:
    """Draw a matrix of a tensor as few cells; each cell shows the number with the largest magnitude.

    Args:
        name: See `values`.
        place: Index on each axis before the last two; missing indices are 0.
        rows: Half-open range of rows, or None for all.
        columns: Half-open range of columns, or None for all.
        size: Maximum numbers of cells: rows, columns.
        whole: Whether to add statistics, outliers and channel ranges of the whole tensor.
        before: Index of a state, or path or name of a model. The same part of its tensor is drawn, too.
        input: See `values`.
        seed: Seed of the random input.
        index: Index of the state in the history, or None for the current state.
        on_progress: Callback that receives the progress of opening and running.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: The name, the place or the range does not exist.
        Cancelled: `cancel` returned True.
    """
    return session.parts.get_part(TensorNumbers).heat_map(
        name,
        place,
        rows,
        columns,
        size,
        whole,
        index,
        _find_compared_model(session, before),
        input,
        seed,
        on_progress,
        cancel,
    )
