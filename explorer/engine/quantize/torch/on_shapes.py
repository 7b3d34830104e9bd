"""Quantizable layers of an nn.Module on the meta device, without parameter values.

Shapes and the element types in the files suffice for the bytes and BitOPs that number formats would save.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec.structs import replace
from torch import nn

from explorer.engine.compat.torch import is_of_torch, parameters_of
from explorer.engine.formats.torch_module.modules import format_dtype
from explorer.engine.formats.torch_module.stored_form import StoredForm, read_own_forms
from explorer.engine.graph.model import ComputedPayload, Node, Tensor
from explorer.engine.number_formats.number_format import Grid
from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.layers import Operand, QuantizableLayer
from explorer.engine.quantize.torch.layers import (
    LayerRun,
    ModuleLayer,
    build_layer,
    build_unquantized_layer,
    list_layer_modules,
)
from explorer.engine.quantize.weights import find_scale_axis
from explorer.engine.tiling.torch.replace import TILED_CLASSES, get_sizes
from explorer.facts import Layer

FLOATS = ("float32", "bfloat16", "float16")
"""Element types of stored numbers that can take a format."""


def list_layers_on_shapes(module: nn.Module, rows: Sequence[Layer]) -> list[ModuleLayer]:
    """Returns the layers of a module on the meta device, including modules with stacks of experts.

    Args:
        module: The module. Its files may store parameters in other element types than it computes in.
        rows: Rows of its layer tree.
    """
    by_path = {row.path: row for row in rows}
    names = {id(tensor): name for name, tensor in module.named_parameters()}
    module_layers = []
    for path, layer, kind in _list_modules(module):
        forms = {id(p): form for part in layer.modules() for p, form in read_own_forms(part).items()}
        unsupported_dtype = next((form.dtype for form in forms.values() if form.dtype not in FLOATS), "")
        run = _build_run(layer, kind, by_path.get(path))
        has_stacks = kind is type(layer) and _holds_stacks(layer)
        if unsupported_dtype:
            module_layers.append(_build_unquantized_layer(path, kind, f"it is stored as {unsupported_dtype}"))
        elif kind is nn.MultiheadAttention:
            module_layers.append(
                _build_unquantized_layer(
                    path, kind, "its products of two activations are known only during a run"
                )
            )
        elif has_stacks and run is None:
            module_layers.append(_build_unquantized_layer(path, kind, "it does not run with these inputs"))
        else:
            module_layer = (
                _build_experts_layer(path, layer, names)
                if has_stacks
                else build_layer(path, layer, kind, run, names, FLOATS)
            )
            module_layers.append(_apply_stored_dtypes(module_layer, layer, forms))
    return module_layers


def _list_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module, type[nn.Module]]]:
    """Yields the layers of `list_layer_modules` and modules with stacks of matrices, in their order."""
    layers_by_path = {path: (layer, kind) for path, layer, kind in list_layer_modules(module)}
    for path, layer in module.named_modules():
        if path in layers_by_path:
            yield path, *layers_by_path[path]
        elif _holds_stacks(layer):
            yield path, layer, type(layer)


def merge_expert_rows(rows: Sequence[Layer], paths: Sequence[str]) -> tuple[Layer, ...]:
    """Returns one row for each layer: the rows below a stack of experts are merged into its own row."""
    merged_rows: list[Layer] = []
    layers, layer_prefix = frozenset(paths), ""
    for row in rows:
        if layer_prefix and row.path.startswith(layer_prefix):
            continue
        layer_prefix = f"{row.path}." if row.group and row.path in layers else ""
        merged_rows.append(replace(row, group=False) if layer_prefix else row)
    return tuple(merged_rows)


def _holds_stacks(layer: nn.Module) -> bool:
    """Whether a module outside torch holds stacks of matrices as its own parameters."""
    return not is_of_torch(layer) and any(
        p.dim() == 3 for p in parameters_of(layer).values() if p is not None
    )


def _build_run(layer: nn.Module, kind: type[nn.Module], row: Layer | None) -> LayerRun | None:
    """Derives the run data of a layer from its row, or returns None if the layer did not run."""
    if row is None or not row.calls:
        return None
    shape = next((out.shape for out in row.outputs), None)
    dtype = next((format_dtype(p.dtype) for p in layer.parameters()), "float32")
    if kind not in TILED_CLASSES or not shape or not all(isinstance(n, int) for n in shape):
        return LayerRun(dtype, None)
    depth, width = get_sizes(layer)
    return LayerRun(dtype, (math.prod(int(n) for n in shape if n is not None) // max(width, 1), depth, width))


def _build_experts_layer(path: str, layer: nn.Module, names: Mapping[int, str]) -> ModuleLayer:
    """Builds the layer record of a module with stacks of matrices, of shape (experts, out, in).

    Each stack is a weight with one scale for each channel of each expert.
    """
    name = path or type(layer).__name__
    stacks = [
        (stack_name, p) for stack_name, p in parameters_of(layer).items() if p is not None and p.dim() == 3
    ]
    operands = [Operand("input", 0, f"{name} (input)")]
    for index, (stack_name, parameter) in enumerate(stacks, 1):
        stored_name, axes = names.get(id(parameter), stack_name), tuple(range(parameter.dim()))
        channels = parameter.shape[0] * parameter.shape[1]
        tensor = _build_tensor(stack_name, parameter)
        operands.append(Operand("weight", index, stack_name, -2, -1, channels, tensor, stored_name, axes))
    node = Node(type(layer).__name__, [f"{name} (input)"], [name], name)
    return ModuleLayer(
        QuantizableLayer(node, name, tuple(operands)),
        path,
        {index: stack_name for index, (stack_name, _) in enumerate(stacks, 1)},
    )


def _build_unquantized_layer(path: str, kind: type[nn.Module], reason: str) -> ModuleLayer:
    name = path or kind.__name__
    return build_unquantized_layer(path, Node(kind.__name__, [f"{name} (input)"], [name], name), reason)


def _build_tensor(name: str, parameter: nn.Parameter) -> Tensor:
    """Builds the tensor record of a parameter without values."""
    payload = ComputedPayload(parameter.nbytes, lambda: iter(()))
    return Tensor(name, format_dtype(parameter.dtype), tuple(parameter.shape), payload)


def _apply_stored_dtypes(
    module_layer: ModuleLayer, layer: nn.Module, stored_forms: Mapping[int, StoredForm]
) -> ModuleLayer:
    """Replaces the element types of the operands by the types in the file."""
    parameters = dict(layer.named_parameters(remove_duplicate=False))
    first = next((format_dtype(p.dtype) for p in parameters.values()), "float32")
    operands = []
    for operand in module_layer.layer.operands:
        if operand.tensor is None:
            operands.append(replace(operand, dtype=first))
            continue
        parameter = parameters[module_layer.parameters[operand.input_index]]
        tensor = replace(_build_tensor(operand.value, parameter), dtype=stored_forms[id(parameter)].dtype)
        operands.append(replace(operand, tensor=tensor))
    return replace(module_layer, layer=replace(module_layer.layer, operands=tuple(operands)))


def build_shape_grid(choice: LayerChoice, operand: Operand) -> Grid:
    """Returns a grid with the right number of scales and zero points, but placeholder values."""
    fmt = getattr(choice, operand.part)
    shape: tuple[int, ...] = ()
    axis, block = None, 0
    if operand.part == "weight" and fmt.scaled:
        axis, block = find_scale_axis(
            operand, fmt, per_channel=choice.granularity == "channel", block=choice.block
        )
    if axis is not None and block:
        shape = tuple([-(-n // block) if index == axis else n for index, n in enumerate(operand.shape)])
    elif axis is not None:
        shape = (operand.shape[axis],)
    symmetric = fmt.scaled and choice.is_symmetric(operand.part)
    zero = np.broadcast_to(np.int32(0 if symmetric else 1), shape)
    return Grid(np.broadcast_to(np.float32(1), shape), zero, axis, block)
