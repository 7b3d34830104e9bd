"""Quantization errors of weights, activations, layers and outputs.

The signal-to-noise ratio is 10 log10(sum of squares of the original / sum of squares of the difference), over
all elements of all samples. Weights are processed one at a time, activations one sample at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct, field

from explorer.base.units import printable
from explorer.engine.graph.model import Model
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.microscaling import Microscaling
from explorer.engine.number_formats.number_format import Array, Grid, NumberFormat
from explorer.engine.proof.outputs.quantization import add_float_outputs
from explorer.engine.proof.structure.probes import GraphProducers, build_region_model
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.runs import get_sample_infos
from explorer.engine.quantize.weights import convert_to_layer_dtype, iterate_slabs
from explorer.engine.runtime.batching import split_into_batches
from explorer.engine.runtime.observer import BUDGET, Observer, estimate_bytes
from explorer.engine.runtime.onnxruntime import RuntimeSession
from explorer.engine.runtime.samples import Feeds, Samples
from explorer.engine.values.agreement import Agreement
from explorer.facts import TensorInfo
from explorer.facts.quantize import OutputAgreement

GetGrid = Callable[[LayerChoice, Operand], Grid]
"""Function that returns the grid on which an operand of a layer is rounded."""

Step = Callable[[int, int], None]

_PIECE_ELEMENTS = 1 << 18
"""Number of elements rounded at a time, so that they stay in the processor's cache."""

_LOSS_NOTE_DB = 10.0
"""Loss in dB, relative to the minmax calibrator, from which a note warns the user."""


class LayerErrors(Struct):
    """Errors of a layer over all samples.

    Attributes:
        input: Agreement of the rounded inputs with the original inputs.
        output: Agreement of the quantized layer's outputs with the original's. Both layers get the original's
            inputs.
        saturated: Number of input elements outside the range of the format by more than a rounding error.
        inputs: Number of elements of the inputs with a format, or 0 if they have none or a block format.
        nan: Number of NaN in inputs with a format.
        lost_nan: Number of NaN in the original's outputs that are numbers in those of the quantized layer.
    """

    input: Agreement = field(default_factory=Agreement)
    output: Agreement = field(default_factory=Agreement)
    saturated: int = 0
    inputs: int = 0
    nan: int = 0
    lost_nan: int = 0


def measure_weight_errors(
    choice: LayerChoice, get_grid: GetGrid, observe_steps: Callable[[Array], None] | None = None
) -> Agreement | None:
    """Returns the agreement of a layer's rounded weights with the originals, or None if they have no format.

    Args:
        choice: Choice for the layer.
        get_grid: Function that returns the grid of an operand.
        observe_steps: Function called with the integer steps of each slab of the weight, in order. It is not
            called for a float format.
    """
    operands = choice.layer.list_operands("weight") if choice.weight is not None else ()
    agreement = Agreement()
    for operand in operands:
        depth = -1 if operand.depth is None else operand.depth
        for values, grid in iterate_slabs(operand, get_grid(choice, operand)):
            assert choice.weight is not None
            if observe_steps is not None and isinstance(choice.weight, Integer):
                steps = choice.weight.count_steps(values, grid)
                observe_steps(steps)
                rounded = choice.weight.decode_steps(steps, grid)
            else:
                rounded = choice.weight.round_values(values, grid, depth)
            agreement.add(values.reshape(-1, 1), convert_to_layer_dtype(rounded, operand).reshape(-1, 1))
    return agreement if operands else None


def run_errors(
    original: Model,
    quantized_model: Model,
    choices: Sequence[LayerChoice],
    get_grid: GetGrid,
    samples: Samples,
    step: Step = lambda done, total: None,
) -> tuple[dict[str, LayerErrors], dict[str, Agreement]]:
    """Runs both models on samples and measures the errors of activations, layers and outputs.

    Each quantized layer runs on the inputs that the original layer has on the sample.

    Args:
        original: The original.
        quantized_model: The model quantized by `choices`.
        choices: Choices for the layers of the original.
        get_grid: Function that returns the grid of an operand.
        samples: Inputs of both models.
        step: Function called before each run with the number of completed runs and of all runs. It raises
            `Cancelled` to stop.

    Returns:
        Errors of each layer with a format, by the name of its first output, and agreement of each model
        output, by name.

    Raises:
        BadModel: A model does not run on a sample.
    """
    output_names = [v.name for v in original.graph.outputs]
    subgraphs = _LayerSubgraphs(
        original, quantized_model, [choice for choice in choices if not choice.reason]
    )
    info_by_name = {
        info.name: info for info in get_sample_infos(original, {*subgraphs.values, *output_names}, samples)
    }
    parts = list(
        split_into_batches(
            subgraphs.choices,
            lambda c: sum(estimate_bytes(info_by_name[n]) for n in subgraphs.list_value_names(c)),
            BUDGET,
        )
    ) or [[]]
    layers: dict[str, LayerErrors] = {}
    outputs = {name: Agreement() for name in output_names}
    full_session = RuntimeSession(quantized_model, label="the quantized model")
    for part_index, part in enumerate(parts):
        values = {name for choice in part for name in subgraphs.list_value_names(choice)} | (
            set() if part_index else {*output_names}
        )
        observer = Observer(original, [info_by_name[name] for name in sorted(values)], "the original")
        run_quantized = subgraphs.make_runner(part, info_by_name)
        for number, feeds in enumerate(samples):
            step(part_index * samples.count + number, len(parts) * samples.count)
            original_values = observer.run(feeds)
            if not part_index:
                add_outputs(outputs, original_values, full_session.run(feeds))
            quantized_values = run_quantized(original_values)
            for choice in part:
                errors = layers.setdefault(choice.layer.node.outputs[0], LayerErrors())
                add_sample(errors, choice, get_grid, original_values, quantized_values)
    return layers, outputs


def add_outputs(
    outputs: Mapping[str, Agreement], original_values: Mapping[str, Any], quantized_values: Mapping[str, Any]
) -> None:
    """Adds the outputs of one sample to `outputs`. Outputs that are not arrays of numbers are skipped."""
    for name, agreement in outputs.items():
        old, new = original_values[name], quantized_values.get(name)
        if isinstance(old, np.ndarray) and isinstance(new, np.ndarray) and old.dtype.kind in "biufV":
            agreement.add(old, new)


def add_sample(
    errors: LayerErrors,
    choice: LayerChoice,
    get_grid: GetGrid,
    original_values: Mapping[str, Any],
    quantized_values: Mapping[str, Any],
) -> None:
    """Adds the errors of a layer on one sample."""
    for name in choice.layer.node.outputs:
        if name in quantized_values:
            original_output, quantized_output = original_values[name], quantized_values[name]
            errors.output.add(original_output.reshape(-1, 1), quantized_output.reshape(-1, 1))
            is_lost = np.isnan(original_output) & ~np.isnan(quantized_output)
            errors.lost_nan += int(np.count_nonzero(is_lost))
    for operand in choice.layer.list_operands("input") if choice.input is not None else ():
        assert choice.input is not None
        values, grid = original_values[operand.value], get_grid(choice, operand)
        errors.nan += int(np.count_nonzero(np.isnan(values)))
        for original, rounded in _iterate_rounded_pairs(choice.input, values, grid, operand.depth):
            errors.input.add(original.reshape(-1, 1), convert_to_layer_dtype(rounded, operand).reshape(-1, 1))
        if not isinstance(choice.input, Microscaling):
            errors.saturated += _count_saturated(choice.input, values, grid)
            errors.inputs += values.size


def _iterate_rounded_pairs(
    fmt: NumberFormat, values: Array, grid: Grid, depth: int | None
) -> Iterator[tuple[Array, Array]]:
    """Yields pieces of the original with their rounded elements. A format with blocks gets one piece."""
    if isinstance(fmt, Microscaling):
        values = values.astype(np.float32, copy=False)
        yield values, fmt.round_values(values, grid, -1 if depth is None else depth)
        return
    flat_values = values.reshape(-1).astype(np.float32, copy=False)
    for start in range(0, flat_values.size, _PIECE_ELEMENTS):
        yield (
            flat_values[start : start + _PIECE_ELEMENTS],
            fmt.round_values(flat_values[start : start + _PIECE_ELEMENTS], grid),
        )


def _count_saturated(fmt: NumberFormat, values: Array, grid: Grid) -> int:
    """Counts the elements beyond the limits of the format. On a linear grid, half a step is allowed."""
    low, high = fmt.find_limits(grid)
    # the float32 scale is rounded, so the maximum itself may be slightly beyond the largest code
    slack = grid.scale / 2 if fmt.writing == "linear" else 1e-6 * np.maximum(-low, high)
    return int(np.count_nonzero((values < low - slack) | (values > high + slack)))


class _LayerSubgraphs:
    """The layers of a quantized model as separate subgraphs that run on the original's values.

    Attributes:
        choices: Choices for the layers.
        values: Names of all values needed from the original.
    """

    def __init__(self, original: Model, quantized_model: Model, choices: Sequence[LayerChoice]) -> None:
        producers = GraphProducers(original)
        # integer layers get additional nodes that convert their values to floats
        model, floats = add_float_outputs(producers, GraphProducers(quantized_model))
        self._wiring = GraphProducers(model)
        quantized_names = {
            name: name for name in (*self._wiring.producer, *self._wiring.input_dependent)
        } | floats
        self._originals = {
            quantized_names[name]: name for name in producers.input_dependent if name in quantized_names
        }
        reads = {
            name
            for choice in choices
            for name in choice.layer.node.inputs
            if name in producers.input_dependent
        }
        stops = {quantized_names[name] for name in reads if name in quantized_names}
        self.choices = choices
        self._regions = {
            choice.layer.node.outputs[0]: [
                (name, self._wiring.find_region(quantized_names[name], stops))
                for name in choice.layer.node.outputs
                if name in quantized_names
            ]
            for choice in choices
        }
        self.values = {name for choice in choices for name in self.list_value_names(choice)}

    def list_value_names(self, choice: LayerChoice) -> list[str]:
        """Returns the names of the original's values that a layer needs: its inputs and its outputs."""
        regions = self._regions[choice.layer.node.outputs[0]]
        region_inputs = {self._originals[name] for _, region in regions for name in region.inputs}
        input_names = {operand.value for operand in choice.layer.list_operands("input")}
        return sorted(region_inputs | input_names | {name for name, _ in regions})

    def make_runner(
        self, choices: Sequence[LayerChoice], info_by_name: Mapping[str, TensorInfo]
    ) -> Callable[[Mapping[str, Any]], dict[str, Any]]:
        """Returns a function that maps the original's values to the outputs of the given quantized layers."""
        regions = [pair for choice in choices for pair in self._regions[choice.layer.node.outputs[0]]]
        if not regions:
            return lambda values: {}
        original_names = {name: self._originals[name] for _, region in regions for name in region.inputs}
        dtypes = {name: info_by_name[value].dtype or "float32" for name, value in original_names.items()}
        model, names = build_region_model(self._wiring, [region for _, region in regions], dtypes)
        session = RuntimeSession(model, label="the quantized layers", optimize=False)

        def run(original_values: Mapping[str, Any]) -> dict[str, Any]:
            feeds: Feeds = {name: original_values[value] for name, value in original_names.items()}
            results = session.run(feeds)
            return {name: results[names[region.value]] for name, region in regions}

        return run


def describe_nonfinite_inputs(
    choices: Sequence[LayerChoice], layers: Mapping[str, LayerErrors]
) -> tuple[str, ...]:
    """Returns a note on each layer whose format changes NaN or infinity in its input.

    QuantizeLinear turns NaN into a number, and a block of a microscaling format becomes NaN as a whole.
    Formats with a calibrated range never get here with NaN, because calibration refuses it.
    """
    notes = []
    for choice in choices:
        errors = layers.get(choice.layer.node.outputs[0])
        if errors is None or choice.input is None or choice.reason:
            continue
        name, layer = choice.input.name, printable(choice.layer.name)
        if isinstance(choice.input, Microscaling) and errors.input.nonfinite:
            notes.append(
                f"the input of '{layer}' holds NaN or infinity on these samples: in {name}, all numbers of"
                f" a block that holds one become NaN, {errors.input.nonfinite:,} in all"
            )
        elif isinstance(choice.input, Integer) and errors.nan and errors.lost_nan:
            notes.append(
                f"the input of '{layer}' holds {errors.nan:,} NaN on these samples: {name} has no NaN, so the"
                " written layer computes with other numbers"
            )
    return tuple(notes)


def describe_calibrator_loss(
    calibrator: str, snr_db: Mapping[str, float | None], minmax_outputs: Sequence[OutputAgreement]
) -> tuple[str, ...]:
    """Returns a note on the first output where a calibrator loses `_LOSS_NOTE_DB` or more relative to minmax.

    Returns () if no output loses so much.

    Args:
        calibrator: Name of the calibrator.
        snr_db: Signal-to-noise ratio in dB of each output with this calibrator, by name.
        minmax_outputs: Outputs of the same model with minmax, on the same samples.
    """
    for output in minmax_outputs:
        ratio = snr_db.get(output.name)
        if ratio is not None and output.snr_db is not None and output.snr_db - ratio >= _LOSS_NOTE_DB:
            return (
                f"calibrator {calibrator} gives {ratio:.1f} dB at '{output.name}',"
                f" minmax {output.snr_db:.1f} dB on the same samples",
            )
    return ()
