"""Measures statistics of weights and activations in a state of a session.

State 0 is the model as opened. Each change of the model makes a further state.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse, format_choices, suggest_only_near
from explorer.engine.graph.model import Model
from explorer.engine.quantize.stored_weights import make_weight_decoder
from explorer.engine.runtime.input_files import Array as InputArray
from explorer.engine.runtime.input_files import read_input
from explorer.engine.values import activations, weights
from explorer.engine.values.activations import Backward
from explorer.facts import Layer
from explorer.facts.values import Activations, StatisticsRow, Weights
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.statistics import RequestedStatistics

_LOSSES = ("sum", "mse", "cross-entropy")


def _parse_backward(loss: str, target: str | None) -> Backward:
    """Parse the start of the backward pass: the name of a loss, or a file with a gradient.

    Raises:
        Misuse: `loss` is unknown, the loss takes no target, or a file cannot be read or holds several arrays.
    """
    if loss not in _LOSSES and not loss.endswith((".npy", ".npz")):
        choices = f"{format_choices(_LOSSES)}, or a .npy file with the gradient"
        hint = suggest_only_near(loss, _LOSSES) or choices
        raise Misuse(f"'{loss}' is not a loss", where="--loss", hint=hint)
    target_values = None if target is None else _read_single_array(target)
    if loss in _LOSSES:
        if target_values is not None and loss == "sum":
            raise Misuse("the sum of the outputs needs no target", where="--target", hint="--loss mse")
        return Backward(loss, target_values)
    if target_values is not None:
        raise Misuse("a gradient from a file needs no target", where="--target", hint="leave it out")
    return Backward("", None, _read_single_array(loss))


def _read_single_array(path: str) -> InputArray:
    arrays = list(read_input(path).arrays.values())
    if len(arrays) != 1:
        raise Misuse(f"it holds {len(arrays):,} arrays, and one is needed", where=path)
    return arrays[0]


def _set_run_shapes(
    statistics: Sequence[StatisticsRow], layers: Sequence[Layer]
) -> tuple[StatisticsRow, ...]:
    """Set the input and output shapes of each row to the shapes in the run."""
    shapes_by_path = {
        layer.path: [tuple(t.shape for t in side) for side in (layer.inputs, layer.outputs)]
        for layer in layers
    }
    return tuple(
        replace(row, inputs=shapes_by_path[row.layer][0], outputs=shapes_by_path[row.layer][1])
        if row.layer in shapes_by_path
        else row
        for row in statistics
    )


def graph_of(models: Models, state_index: int, on_progress: OnProgress) -> Model | None:
    """Return the graph of a state, or None for a module or a file that contains only tensors."""
    return (
        models.load_graph(state_index, on_progress)
        if models.open_state(state_index, on_progress).format == "onnx"
        else None
    )


class ModelValues:
    """Measure stored tensors, and outputs of layers."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def weights(
        self,
        names: Sequence[str],
        choices: RequestedStatistics,
        index: int | None,
        on_progress: OnProgress,
        cancel: Cancel,
    ) -> Weights:
        """Measure stored tensors, reading one slab at a time."""
        state_index = self._models.resolve_index(index)
        opened: Any = self._models.open_state(state_index, on_progress)
        find_rows = getattr(opened, "find_rows", None)
        # the rows of the named tensors suffice, unless `kinds` selects layers by their kind
        rows = None if choices.kinds or not names or find_rows is None else find_rows(names)
        if rows is None:
            rows = self._models.rows(state_index, on_progress, cancel)
        tensors, notes = opened.tensors()
        return weights.measure_weights(
            tensors,
            names,
            options=choices,
            source=self._models.label(state_index),
            layers=rows,
            decode=make_weight_decoder(graph_of(self._models, state_index, on_progress)),
            # a later state does not record that the weights are random or replaced: use the original's notes
            notes=self._models.list_weight_notes() if state_index else notes,
            on_progress=on_progress,
            cancel=cancel,
        )

    def activations(
        self,
        layers: Sequence[str],
        choices: RequestedStatistics,
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
        """Measure the outputs of layers, or the gradients that flow back to them."""
        state_index = self._models.resolve_index(index)
        if target is not None and loss is None:
            raise Misuse("a target needs a loss", where="--target", hint="--loss mse")
        if output is not None:
            self._models.check_output_path(output, overwrite, input)
        rows = self._models.rows(state_index, on_progress, cancel)
        answer = activations.measure_activations(
            lambda request: self._models.open_state(state_index, on_progress).activations(request, rows),
            layers,
            source=self._models.label(state_index),
            options=choices,
            rows=rows,
            input=input,
            batch=batch,
            seed=seed,
            backward=None if loss is None else _parse_backward(loss, target),
            output=output,
            overwrite=overwrite,
            on_progress=on_progress,
            cancel=cancel,
        )
        if answer.statistics and answer.sizes and rows and state_index == 0:
            # only the original can be analyzed again, at the sizes of the user's input file
            layers_in_run = self._models.analyze_original_at(
                answer.sizes, on_progress, cancel
            ).analysis.layers
            answer = replace(answer, statistics=_set_run_shapes(answer.statistics, layers_in_run))
        return replace(answer, notes=(*self._models.list_weight_notes(), *answer.notes))
