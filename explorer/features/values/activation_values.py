"""Weights and activations of a session's models, and what would run them: what asks values or the runtime."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.engine.graph.model import Model
from explorer.engine.quantize.stored_weights import as_multiplied
from explorer.engine.runtime.input_files import Array as InputArray
from explorer.engine.runtime.input_files import read_input
from explorer.engine.values import activations, weights
from explorer.engine.values.activations import Backward
from explorer.facts import Layer
from explorer.facts.values import Activations, StatisticsRow, Weights
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.statistics import AskedStatistics

_LOSSES = ("sum", "mse", "cross-entropy")


def _backward(loss: str, target: str | None) -> Backward:
    """Where a gradient begins: at one of the losses, or at what a file holds.

    Raises:
        Misuse: It is none of these, or a file cannot be read.
    """
    if loss not in _LOSSES and not loss.endswith((".npy", ".npz")):
        hint = nearest(loss, _LOSSES) or f"one of {', '.join(_LOSSES)}, or a .npy file with the gradient"
        raise Misuse(f"'{loss}' is no loss", where="--loss", hint=hint)
    wanted = None if target is None else _only(target)
    if loss in _LOSSES:
        if wanted is not None and loss == "sum":
            raise Misuse("the sum of the outputs has no target", where="--target", hint="--loss mse")
        return Backward(loss, wanted)
    if wanted is not None:
        raise Misuse("a gradient that is given has no target", where="--target", hint="leave it out")
    return Backward("", None, _only(loss))


def _only(path: str) -> InputArray:
    found = list(read_input(path).arrays.values())
    if len(found) != 1:
        raise Misuse(f"it holds {len(found):,} arrays, and one is needed", where=path)
    return found[0]


def _as_ran(found: Sequence[StatisticsRow], layers: Sequence[Layer]) -> tuple[StatisticsRow, ...]:
    """Rows whose layers have the shapes that they have at the sizes of what ran."""
    at = {
        layer.path: [tuple(t.shape for t in side) for side in (layer.inputs, layer.outputs)]
        for layer in layers
    }
    return tuple(
        replace(row, inputs=at[row.layer][0], outputs=at[row.layer][1]) if row.layer in at else row
        for row in found
    )


def graph_of(models: Models, at: int, on_progress: OnProgress) -> Model | None:
    """The graph of a state that is one; None of a module, and of what holds tensors alone."""
    return models.graph(at, on_progress) if models.opened(at, on_progress).format == "onnx" else None


class ModelValues:
    """Statistics of stored tensors and of what layers put out."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def weights(
        self,
        names: Sequence[str],
        asked: AskedStatistics,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Weights:
        """Statistics of stored tensors, read a slab at a time."""
        at = self._models.at(index)
        layers = self._models.rows(at, on_progress, cancel)
        tensors, notes = self._models.opened(at, on_progress).tensors()
        return weights.weights(
            tensors,
            names,
            options=asked,
            source=self._models.label(at),
            layers=layers,
            real=as_multiplied(graph_of(self._models, at, on_progress)),
            # whatever was made of random weights is as random as they are
            notes=self._models.random_weights() if at else notes,
            on_progress=on_progress,
            cancel=cancel,
        )

    def activations(
        self,
        layers: Sequence[str],
        asked: AskedStatistics,
        input: str | None,
        batch: int | None,
        seed: int,
        loss: str | None,
        target: str | None,
        output: str | None,
        overwrite: bool,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Activations:
        """What the layers of a model put out, or what flows back through them."""
        at = self._models.at(index)
        if target is not None and loss is None:
            raise Misuse("no loss is named, and a target is of one", where="--target", hint="--loss mse")
        if output is not None:
            self._models.check_target(output, overwrite, input)
        rows = self._models.rows(at, on_progress, cancel)
        found = activations.activations(
            lambda request: self._models.opened(at, on_progress).activations(request, rows),
            layers,
            source=self._models.label(at),
            options=asked,
            rows=rows,
            input=input,
            batch=batch,
            seed=seed,
            backward=None if loss is None else _backward(loss, target),
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        if found.statistics and found.sizes and rows and at == 0:
            ran = self._models.original_at(found.sizes, on_progress, cancel).analysis.layers
            found = replace(found, statistics=_as_ran(found.statistics, ran))
        return replace(found, notes=(*self._models.random_weights(), *found.notes))
