"""Numbers in a session's models: statistics of weights and activations, values of tensors, heat maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText
from explorer.features.values.activation_values import ModelValues
from explorer.features.values.tensor_values import TensorNumbers
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.statistics import AskedStatistics

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
    """Statistics of stored tensors, read a slab at a time.

    Args:
        names: Globs over the names of tensors and the paths of layers and groups; empty means all.
        kinds: Operators ('Conv') or module types ('Linear') of layers; empty means all.
        stat: Statistics that are wanted beside, 'var,absmean,range:3sigma,quantile:0.97' (see
            `explorer.settings.statistics`); `statistics` of the answer has them.
        axis: The axis whose indices these are told apart for, negative from behind; None: one number for
            a tensor.
        bins: Intervals of the histograms.
        index: Which model of the history; None is the current one.
        on_progress: Told how many tensors are done.
        cancel: Asked at every slab; True stops.

    Raises:
        Misuse: A glob or kind matches nothing, a statistic is not known, or there is no memory for the
            weights of a module.
        Cancelled: `cancel` said so.
    """
    choices = AskedStatistics(tuple(kinds), stat, axis, bins)
    return session.parts.of(ModelValues).weights(names, choices, index, on_progress, cancel)


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
    """What the layers of a model put out: statistics, and the values if asked for.

    Args:
        layers: Globs over the paths of layers; empty means every one.
        kinds: As of `weights`.
        stat: As of `weights`.
        axis: As of `weights`.
        input: An .npy file, or an .npz file by names of inputs; None draws it. Of several times as many
            samples as the model takes the figures are over all.
        batch: How many to run at a time, where the model leaves that open; None: all.
        seed: Of the drawn input, and the same for both kinds of model.
        loss: If given, the gradient is told that flows back to what layers of a module put out, and to
            their parameters: of the 'sum', 'mse' or 'cross-entropy' of outputs, or that of the first
            output in a .npy file.
        target: A .npy file with the target or the classes of such a loss; None draws it.
        bins: Intervals of the histograms.
        output: An .npz file that takes the values, named after their layers.
        overwrite: Whether an existing `output` may be replaced.
        index: Which model of the history; None is the current one.
        on_progress: Told how many layers have run.
        cancel: Asked at every layer; True stops, and nothing is written.

    Raises:
        Misuse: The input does not fit, a glob or kind matches nothing, or `output` cannot be written.
        BadModel: The model fails before any of these layers has run; if it fails later, what ran until
            then is told, and `skipped` says where it failed and why.
        Cancelled: `cancel` said so.
    """
    choices = AskedStatistics(tuple(kinds), stat, axis, bins)
    return session.parts.of(ModelValues).activations(
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
    """Numbers of one tensor: a stored one by its name, or what a layer or a value of a graph is in a run.

    Of a tensor in a file only what the slice needs is read. What is quantized is told by the numbers that
    it stands for, with the stored integers, scales and zero points beside.

    Args:
        name: Of a stored tensor, a layer or a value.
        slice: As numpy has it: '0:1, :8'. Without it a large tensor is told by its edges.
        before: A state of the history, or another model, whose numbers are set beside.
        before_name: What the tensor is called there; None: the same, or as its quantized integers are.
        input: For what a layer puts out: an .npy or .npz file with the input; None draws it.
        seed: Of the drawn input.
        output: An .npy file that takes the whole slice.
        overwrite: Whether an existing `output` may be replaced.
        index: Which model of the history; None is the current one.
        on_progress: Told where opening and running stand.
        cancel: True stops, and nothing is written.

    Raises:
        Misuse: Nothing is called so, the slice does not fit or is too large to be told, the other tensor
            has another shape, or `output` cannot be written.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(TensorNumbers).values(
        name,
        slice,
        index,
        _compared_model(session, before),
        before_name,
        input,
        seed,
        output,
        overwrite,
        on_progress,
        cancel,
    )


def _compared_model(session: Facade, before: int | PathText | None) -> tuple[Models, int] | None:
    """The model to compare with."""
    if before is None:
        return None
    return (
        session.parts.beside(None, before) if isinstance(before, str) else session.parts.beside(before, None)
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
    """A matrix of a tensor drawn small: of each cell the number of the largest magnitude.

    Args:
        name: As of `values`.
        place: The index on each axis before the last two; what is left out is 0.
        rows: The first that is drawn and the one behind the last; None for all.
        columns: The same across.
        size: How many cells there are room for, downwards and across.
        whole: Whether statistics, outliers and ranges of channels of the whole tensor are told as well.
        before: A state of the history, or another model, of which the same part is drawn as well.
        input: As of `values`.
        seed: Of the drawn input.
        index: Which model of the history; None is the current one.
        on_progress: Told where opening and running stand.
        cancel: True stops.

    Raises:
        Misuse: Nothing is called so, or there is no such place or part.
        Cancelled: `cancel` said so.
    """
    return session.parts.of(TensorNumbers).heat_map(
        name,
        place,
        rows,
        columns,
        size,
        whole,
        index,
        _compared_model(session, before),
        input,
        seed,
        on_progress,
        cancel,
    )
