"""Quantization errors: of weights, activations, layers and outputs, by a number format.

Signal to noise is 10 log10(sum of squares of the original / sum of squares of the difference), over all
elements of all samples. Weights are processed one after the other, values of one sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.engine.graph.model import Model
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.microscaling import Microscaling
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat
from explorer.engine.proof.outputs.quantization import with_floats
from explorer.engine.proof.structure.probes import GraphProducers, cut_out
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.runs import infos
from explorer.engine.quantize.weights import as_read, slabs
from explorer.engine.runtime.batching import batches
from explorer.engine.runtime.observer import BUDGET, Observer, nbytes
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.samples import Feeds, Samples
from explorer.engine.values.agreement import Agreement
from explorer.facts import TensorInfo

GridOf = Callable[[LayerChoice, Operand], Grid]
"""The grid on which an operand of a layer was rounded."""

Step = Callable[[int, int], None]

_PIECE = 1 << 18
"""Numbers that are rounded together, which stay in a processor's cache."""


class LayerErrors(Struct):
    """Errors of a layer over all samples.

    Attributes:
        input: Agreement of its rounded inputs with its inputs.
        output: Agreement of the quantized layer's outputs with the original's, both on the original's inputs.
        saturated: Input values beyond the range of the format, by more than rounding moves them.
        inputs: All input values; 0 where no input has a format with a range of its own.
    """

    input: Agreement = field(default_factory=Agreement)
    output: Agreement = field(default_factory=Agreement)
    saturated: int = 0
    inputs: int = 0


def weight_errors(
    choice: LayerChoice, grid_of: GridOf, look: Callable[[Array], None] | None = None
) -> Agreement | None:
    """The agreement of a layer's rounded weights with the originals; None if the weights have no format.

    Args:
        choice: The layer's choice.
        grid_of: The grids on which weights were rounded.
        look: Called with the steps of each slab, in order, if the format is of integers.
    """
    operands = choice.layer.of("weight") if choice.weight is not None else ()
    agreement = Agreement()
    for operand in operands:
        depth = -1 if operand.depth is None else operand.depth
        for values, grid in slabs(operand, grid_of(choice, operand)):
            assert choice.weight is not None
            if look is not None and isinstance(choice.weight, Integer):
                steps = choice.weight.steps(values, grid)
                look(steps)
                flat = choice.weight.of_steps(steps, grid)
            else:
                flat = choice.weight.rounded(values, grid, depth)
            agreement.add(values.reshape(-1, 1), as_read(flat, operand).reshape(-1, 1))
    return agreement if operands else None


def run_errors(
    before: Model,
    after: Model,
    choices: Sequence[LayerChoice],
    grid_of: GridOf,
    samples: Samples,
    step: Step = lambda done, total: None,
) -> tuple[dict[str, LayerErrors], dict[str, Agreement]]:
    """Errors of activations, layers and outputs; each layer runs on the original's values of each sample.

    Args:
        before: The original.
        after: The model quantized by `choices`.
        choices: The choices for its layers.
        grid_of: As for `weight_errors`.
        samples: Inputs of both models.
        step: Called before each run with the number of finished runs and of all runs; raises `Cancelled` to
            stop.

    Returns:
        Errors of layers with a format, by their first output; and agreement of the model's outputs, by name.

    Raises:
        BadModel: A model does not run on a sample.
    """
    ends = [v.name for v in before.graph.outputs]
    pieces = _Pieces(before, after, [choice for choice in choices if not choice.reason])
    info_by_name = {info.name: info for info in infos(before, {*pieces.values, *ends}, samples)}
    parts = list(
        batches(pieces.choices, lambda c: sum(nbytes(info_by_name[n]) for n in pieces.of(c)), BUDGET)
    ) or [[]]
    layers: dict[str, LayerErrors] = {}
    outputs = {name: Agreement() for name in ends}
    whole = RuntimeSession(after, what="the quantized model")
    for at, part in enumerate(parts):
        values = {name for choice in part for name in pieces.of(choice)} | (set() if at else {*ends})
        observer = Observer(before, [info_by_name[name] for name in sorted(values)], "the original")
        quantized = pieces.session(part, info_by_name)
        for number, feeds in enumerate(samples):
            step(at * samples.count + number, len(parts) * samples.count)
            original_values = observer.run(feeds)
            if not at:
                agree(outputs, original_values, whole.run(feeds))
            quantized_values = quantized(original_values)
            for choice in part:
                errors = layers.setdefault(choice.layer.node.outputs[0], LayerErrors())
                add_sample(errors, choice, grid_of, original_values, quantized_values)
    return layers, outputs


def agree(
    outputs: Mapping[str, Agreement], original_values: Mapping[str, Any], quantized_values: Mapping[str, Any]
) -> None:
    """Adds the outputs of one sample, original and quantized, that are arrays of numbers."""
    for name, agreement in outputs.items():
        old, new = original_values[name], quantized_values.get(name)
        if isinstance(old, np.ndarray) and isinstance(new, np.ndarray) and old.dtype.kind in "biufV":
            agreement.add(old, new)


def add_sample(
    errors: LayerErrors,
    choice: LayerChoice,
    grid_of: GridOf,
    original_values: Mapping[str, Any],
    quantized_values: Mapping[str, Any],
) -> None:
    """Adds the errors of a layer on one sample."""
    for name in choice.layer.node.outputs:
        if name in quantized_values:
            errors.output.add(original_values[name].reshape(-1, 1), quantized_values[name].reshape(-1, 1))
    for operand in choice.layer.of("input") if choice.input is not None else ():
        assert choice.input is not None
        values, grid = original_values[operand.value], grid_of(choice, operand)
        for some, rounded in _rounded(choice.input, values, grid, operand.depth):
            errors.input.add(some.reshape(-1, 1), as_read(rounded, operand).reshape(-1, 1))
        if not isinstance(choice.input, Microscaling):
            errors.saturated += _saturated(choice.input, values, grid)
            errors.inputs += values.size


def _rounded(
    fmt: NumberFormat, values: Array, grid: Grid, depth: int | None
) -> Iterator[tuple[Array, Array]]:
    """Pairs of values and their rounded values; in parts, where the format's blocks allow."""
    if isinstance(fmt, Microscaling):
        values = values.astype(np.float32, copy=False)
        yield values, fmt.rounded(values, grid, -1 if depth is None else depth)
        return
    flat = values.reshape(-1).astype(np.float32, copy=False)
    for at in range(0, flat.size, _PIECE):
        yield flat[at : at + _PIECE], fmt.rounded(flat[at : at + _PIECE], grid)


def _saturated(fmt: NumberFormat, values: Array, grid: Grid) -> int:
    """How many lie beyond the least or the largest number, by more than half a step on a linear grid."""
    low, high = fmt.limits(grid)
    # the scale is a float32: the largest value itself may lie a rounding beyond the largest code
    slack = grid.scale / 2 if fmt.writing == "linear" else 1e-6 * np.maximum(-low, high)
    return int(np.count_nonzero((values < low - slack) | (values > high + slack)))


class _Pieces:
    """The layers of a quantized model, each by itself, for runs on the original's values.

    Attributes:
        choices: The choices of the layers.
        values: All values needed from the original, by name.
    """

    def __init__(self, before: Model, after: Model, choices: Sequence[LayerChoice]) -> None:
        old = GraphProducers(before)
        # the values of an integer layer are also converted to floats
        model, floats = with_floats(old, GraphProducers(after))
        self._wiring = GraphProducers(model)
        both = {name: name for name in (*self._wiring.producer, *self._wiring.live)} | floats
        self._originals = {both[name]: name for name in old.live if name in both}
        read = {name for choice in choices for name in choice.layer.node.inputs if name in old.live}
        stops = {both[name] for name in read if name in both}
        self.choices = choices
        self._regions = {
            choice.layer.node.outputs[0]: [
                (name, self._wiring.region(both[name], stops))
                for name in choice.layer.node.outputs
                if name in both
            ]
            for choice in choices
        }
        self.values = {name for choice in choices for name in self.of(choice)}

    def of(self, choice: LayerChoice) -> list[str]:
        """Names of the original's values that a layer needs: its inputs and its outputs."""
        regions = self._regions[choice.layer.node.outputs[0]]
        received = {self._originals[name] for _, region in regions for name in region.inputs}
        read = {operand.value for operand in choice.layer.of("input")}
        return sorted(received | read | {name for name, _ in regions})

    def session(
        self, choices: Sequence[LayerChoice], info_by_name: Mapping[str, TensorInfo]
    ) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """A function that runs some quantized layers on values of the original, and returns their outputs."""
        regions = [pair for choice in choices for pair in self._regions[choice.layer.node.outputs[0]]]
        if not regions:
            return lambda values: {}
        original_names = {name: self._originals[name] for _, region in regions for name in region.inputs}
        dtypes = {name: info_by_name[value].dtype or "float32" for name, value in original_names.items()}
        model, names = cut_out(self._wiring, [region for _, region in regions], dtypes)
        session = RuntimeSession(model, what="the quantized layers", optimise=False)

        def run(original_values: Mapping[str, Any]) -> dict[str, Any]:
            feeds: Feeds = {name: original_values[value] for name, value in original_names.items()}
            results = session.run(feeds)
            return {name: results[names[region.value]] for name, region in regions}

        return run
