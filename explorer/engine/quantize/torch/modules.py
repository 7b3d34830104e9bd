"""Quantized nn.Module: a copy with rounded weights and hooks that round the inputs of its layers.

Calibrated ranges and errors come from hooks on the original while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from explorer.base.errors import BadModel
from explorer.engine.formats.torch_module.modules import walk_tensors
from explorer.engine.number_formats.integer import Integer
from explorer.engine.number_formats.number_format import Array, NumberFormat
from explorer.engine.quantize.calibration import calibrate_ranges_of_runs
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.errors import GetGrid, LayerErrors, Step, add_sample
from explorer.engine.quantize.grids import Ranges, list_range_uses
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.torch.layers import (
    LayerRun,
    ModuleLayer,
    get_input,
    list_layer_modules,
    record_runs,
)
from explorer.engine.quantize.torch.rounding import InputRounding
from explorer.engine.quantize.torch.torchao import TORCHAO, build_torchao_parameter, choose_weight_storage
from explorer.engine.quantize.weights import iterate_slabs
from explorer.engine.runtime.samples import Feeds, Samples
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.values.agreement import Agreement
from explorer.facts.quantize import QuantizeSpec
from explorer.host.optional_packages import format_error

Run = Callable[[nn.Module, Feeds], list[Array]]
"""Function that runs a module on a sample and returns its output tensors as arrays."""


def record_layer_runs(module: nn.Module, run: Run, samples: Samples) -> dict[str, LayerRun]:
    """Runs a module on the first sample and returns the data of its layers, by path."""
    runs: dict[str, LayerRun] = {}
    with ExitStack() as stack:
        for path, layer, kind in list_layer_modules(module):
            stack.callback(record_runs(path, layer, kind, runs))
        for feeds in samples:
            run(module, feeds)
            break
    return runs


def calibrate_ranges(
    module: nn.Module,
    layers: Sequence[ModuleLayer],
    choices: Sequence[LayerChoice],
    spec: QuantizeSpec,
    samples: Samples,
    run: Run,
    step: Step,
) -> Ranges:
    """Calibrates the ranges of the layers' inputs, as `calibration.calibrate_ranges` does for a graph."""
    uses = list_range_uses(choices)
    if not uses:
        return {}
    value_names = {use.value for use in uses}

    def observe(take: Callable[[str, Array], None]) -> None:
        modules = dict(module.named_modules())
        with ExitStack() as stack:
            for module_layer in layers:
                (value,) = module_layer.layer.node.inputs
                if value in value_names:

                    def observe_layer(_: nn.Module, args: Any, kwargs: Any, value: str = value) -> None:
                        take(value, convert_to_array(get_input(args, kwargs)))

                    hook = modules[module_layer.path].register_forward_pre_hook(
                        observe_layer, with_kwargs=True
                    )
                    stack.callback(hook.remove)
            for index, feeds in enumerate(samples):
                step(index, samples.count)
                run(module, feeds)

    return calibrate_ranges_of_runs(uses, observe, samples.text, spec.calibrator, spec.percentile)


def quantize_copy(
    twin: nn.Module,
    layers: Sequence[ModuleLayer],
    choices: Sequence[LayerChoice],
    get_grid: GetGrid,
    *,
    torchao: bool = False,
) -> None:
    """Rounds the weights and biases of a copy's layers, and adds hooks that round their inputs.

    A weight shared by several layers stays shared if they round it to the same grid.

    Args:
        twin: The copy, which this function changes. It may share tensors with the original.
        layers: Layers of the original.
        choices: Choices for these layers, in the same order.
        get_grid: Function that returns the grid of an operand.
        torchao: Whether to store weights as torchao tensors where torchao supports the layer and the format.
    """
    modules = dict(twin.named_modules())
    parameter_by_key: dict[Hashable, nn.Parameter] = {}
    for module_layer, choice in zip(layers, choices, strict=True):
        if choice.reason:
            continue
        layer = modules[module_layer.path]
        for operand in module_layer.layer.operands:
            fmt: NumberFormat | None = getattr(choice, operand.part)
            if fmt is None:
                continue
            grid = get_grid(choice, operand)
            block_axis = -1 if operand.depth is None else operand.depth
            if operand.tensor is None:
                layer.register_forward_pre_hook(InputRounding(fmt, grid, block_axis), with_kwargs=True)
                continue
            key: tuple[Hashable, ...] = (
                *(operand.stored, fmt, block_axis, grid.axis, grid.scale.tobytes(), grid.zero.tobytes()),
            )
            owner, _, name = module_layer.parameters[operand.input_index].rpartition(".")
            owner_module = layer.get_submodule(owner)
            if torchao and choose_weight_storage(choice, operand, grid) == TORCHAO:
                key = *key, TORCHAO
                make_parameter = partial(build_torchao_parameter, cast(Integer, fmt), operand, grid)
            else:
                make_parameter = partial(
                    _round_parameter, owner_module.get_parameter(name), choice, operand, fmt, get_grid
                )
            if key not in parameter_by_key:
                parameter_by_key[key] = make_parameter()
            setattr(owner_module, name, parameter_by_key[key])


def _round_parameter(
    old: nn.Parameter, choice: LayerChoice, operand: Operand, fmt: NumberFormat, get_grid: GetGrid
) -> nn.Parameter:
    """Returns a float32 parameter with the rounded numbers of an operand, on the device of `old`."""
    values = np.empty(operand.shape, np.float32)
    start, block_axis = 0, -1 if operand.depth is None else operand.depth
    for slab, grid in iterate_slabs(operand, get_grid(choice, operand)):
        values[start : start + len(slab)] = fmt.round_values(slab, grid, block_axis)
        start += len(slab)
    return nn.Parameter(torch.from_numpy(values).to(old.device), requires_grad=old.requires_grad)


def run_errors(
    module: nn.Module,
    twin: nn.Module,
    layers: Sequence[ModuleLayer],
    choices: Sequence[LayerChoice],
    get_grid: GetGrid,
    samples: Samples,
    run: Run,
    step: Step,
) -> tuple[dict[str, LayerErrors], dict[str, Agreement]]:
    """Measures errors of inputs, layers and outputs on samples, like `errors.run_errors` for a graph.

    While the original runs, each layer of the copy runs on the inputs of the original's layer.

    Raises:
        BadModel: A module does not run on a sample.
    """
    errors: dict[str, LayerErrors] = {}
    outputs: dict[str, Agreement] = {}
    old, new = dict(module.named_modules()), dict(twin.named_modules())
    for number, feeds in enumerate(samples):
        step(number, samples.count)
        with ExitStack() as stack:
            for module_layer, choice in zip(layers, choices, strict=True):
                if not choice.reason:
                    layer_errors = errors.setdefault(choice.layer.node.outputs[0], LayerErrors())
                    hook_function = _make_error_hook(layer_errors, choice, get_grid, new[module_layer.path])
                    hook = old[module_layer.path].register_forward_hook(hook_function, with_kwargs=True)
                    stack.callback(hook.remove)
            original_outputs = run(module, feeds)
        quantized_outputs = run(twin, feeds)
        if len(original_outputs) != len(quantized_outputs):
            raise BadModel("the outputs of the quantized module differ from its original")
        for index, (a, b) in enumerate(zip(original_outputs, quantized_outputs, strict=True)):
            output_name = "output" if len(original_outputs) == 1 else f"output.{index}"
            agreement = outputs.setdefault(output_name, Agreement())
            if a.shape == b.shape and a.dtype.kind in "biufV":
                agreement.add(a, b)
    return errors, outputs


def _make_error_hook(errors: LayerErrors, choice: LayerChoice, get_grid: GetGrid, twin: nn.Module) -> Any:
    """Returns a forward hook that runs the quantized layer on the inputs of the original layer."""
    (value,), (name,) = choice.layer.node.inputs, choice.layer.node.outputs

    def observe_layer(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        try:
            quantized_output = twin(*args, **kwargs)
        except Exception as error:
            raise BadModel(f"the quantized layer '{name}' failed: {format_error(error)}") from error
        x = get_input(args, kwargs)
        inputs = {value: convert_to_array(x)} if choice.input is not None else {}
        # the first output of a recurrent layer holds all time steps
        original_value, quantized_value = (
            convert_to_array(next(walk_tensors(result))[1]) for result in (output, quantized_output)
        )
        add_sample(errors, choice, get_grid, {**inputs, name: original_value}, {name: quantized_value})

    return observe_layer
