"""Quantizable layers of an nn.Module, with their weights, inputs and biases.

They use the records of a graph's layers, so the code for choices, grids and figures is shared. The operator
is the name of the torch class, and the name is the path of the module.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from msgspec import Struct
from msgspec.structs import replace
from torch import nn
from torch.nn.parameter import UninitializedParameter
from torch.nn.utils import parametrize

from explorer.engine.compat.torch import list_forward_pre_hooks, makes_weight, parameters_of
from explorer.engine.formats.torch_module.modules import format_dtype
from explorer.engine.graph.model import ComputedPayload, Node, Tensor
from explorer.engine.quantize.layers import Operand, QuantizableLayer, Sizes, set_transposed_axes
from explorer.engine.tiling.torch.replace import TILED_CLASSES, count_rows, get_sizes

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_RECURRENT = (nn.LSTM, nn.GRU, nn.RNN, nn.LSTMCell, nn.GRUCell, nn.RNNCell)
_TABLES = (nn.Embedding, nn.EmbeddingBag)

_KINDS: tuple[type[nn.Module], ...] = (
    nn.Linear,
    *_CONVOLUTIONS,
    *_TRANSPOSED,
    *_RECURRENT,
    *_TABLES,
    nn.MultiheadAttention,
    nn.Bilinear,
)


class LayerRun(Struct):
    """Data of a layer from a run of its module.

    Attributes:
        dtype: Element type of the layer's first input, or '' if the input is not a tensor.
        sizes: M, K and N of the matrix product, or None for another layer.
        activation_macs: MACs of products of two activations, over all calls.
    """

    dtype: str
    sizes: Sizes | None
    activation_macs: int = 0


class ModuleLayer(Struct, frozen=True):
    """A layer of a module.

    Attributes:
        layer: Record for the choice of number formats.
        path: Path of the layer in the module; '' for the root module.
        parameters: Names of the layer's parameters, by the input index of the operand.
    """

    layer: QuantizableLayer
    path: str
    parameters: Mapping[int, str]


def list_layer_modules(module: nn.Module) -> Iterator[tuple[str, nn.Module, type[nn.Module]]]:
    """Yields the submodules that multiply or hold weights: path, module, and the torch class."""
    attention_prefixes: tuple[str, ...] = ()
    for path, layer in module.named_modules():
        kind = next((candidate for candidate in _KINDS if isinstance(layer, candidate)), None)
        if kind is None or (attention_prefixes and path.startswith(attention_prefixes)):
            continue
        # attention reads the weights of its projections directly, so they are not layers of their own
        if kind is nn.MultiheadAttention:
            attention_prefixes = (*attention_prefixes, f"{path}." if path else "")
        yield path, layer, kind


def get_input(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the input of a layer: its first positional argument, or the argument `input`."""
    return args[0] if args else kwargs.get("input")


def record_runs(
    path: str, layer: Any, kind: type[nn.Module], runs: dict[str, LayerRun]
) -> Callable[[], None]:
    """Records runs of a layer in `runs`. Returns a function that stops the recording.

    The type and the sizes are those of the first run.
    """

    def record_call(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        x = get_input(args, kwargs)
        dtype = str(x.dtype).removeprefix("torch.") if isinstance(x, torch.Tensor) else ""
        sizes = None
        if kind in TILED_CLASSES and isinstance(output, torch.Tensor):
            sizes = count_rows(layer, output), *get_sizes(layer)
        runs.setdefault(path, LayerRun(dtype, sizes)).activation_macs += _count_attention_macs(
            layer, args, kwargs
        )

    return layer.register_forward_hook(record_call, with_kwargs=True).remove  # type: ignore[no-any-return]


def _count_attention_macs(layer: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """Returns the MACs of attention's scores and weighted sums, which read no weights: 2 B Lq Lk E."""
    if not isinstance(layer, nn.MultiheadAttention):
        return 0
    query, key = (
        args[index] if index < len(args) else kwargs.get(name) for index, name in enumerate(("query", "key"))
    )
    if not isinstance(query, torch.Tensor) or not isinstance(key, torch.Tensor):
        return 0
    length_axis = 1 if layer.batch_first and key.dim() > 2 else 0
    added = int(layer.bias_k is not None) + int(layer.add_zero_attn)
    return 2 * int(query.shape[:-1].numel()) * (int(key.shape[length_axis]) + added) * int(layer.embed_dim)


def list_module_layers(module: nn.Module, runs: Mapping[str, LayerRun]) -> list[ModuleLayer]:
    """Returns the layers of a module, in the module's order.

    Args:
        module: The module with its parameter values.
        runs: Data from a run, by the path of the layer, as `record_runs` records it.
    """
    names: dict[int, str] = {id(tensor): name for name, tensor in module.named_parameters()}
    return [
        build_layer(path, layer, kind, runs.get(path), names)
        for path, layer, kind in list_layer_modules(module)
    ]


def build_layer(
    path: str,
    layer: nn.Module,
    kind: type[nn.Module],
    run: LayerRun | None,
    names: Mapping[int, str],
    types: Sequence[str] = ("float32",),
) -> ModuleLayer:
    """Builds the layer record of a submodule that `list_layer_modules` yields.

    Args:
        path: Path of the submodule.
        layer: The submodule.
        kind: Torch class of the submodule.
        run: Data from its run, or None if it did not run.
        names: Names of all parameters of the root module, by their ids.
        types: Element types of weights and activations that can take a format.
    """
    name, op = path or type(layer).__name__, kind.__name__
    node = Node(op, [f"{name} (input)"], [name], name)
    if reason := _explain_unfit(layer, kind, run, types):
        return build_unquantized_layer(path, node, reason)
    operands = list(_list_operands(layer, kind, name))
    parameters = {operand.input_index: operand.stored for operand in operands if operand.tensor is not None}
    parameters_by_name = dict(layer.named_parameters(remove_duplicate=False))
    # use the name in the root module, because tied tensors share one name there
    named_operands = [
        replace(operand, stored=names.get(id(parameters_by_name[operand.stored])) or operand.stored)
        if operand.stored
        else operand
        for operand in operands
    ]
    sizes = run.sizes if run is not None else None
    activation_macs = run.activation_macs if run is not None else 0
    quantizable = QuantizableLayer(
        node,
        name,
        tuple(named_operands),
        sizes,
        needs_selection=isinstance(layer, _TABLES),
        activation_macs=activation_macs,
    )
    return ModuleLayer(quantizable, path, parameters)


def build_unquantized_layer(path: str, node: Node, reason: str) -> ModuleLayer:
    """Builds the record of a layer that takes no format, with the reason."""
    return ModuleLayer(QuantizableLayer(node, node.label, reason=reason), path, {})


def _explain_unfit(layer: Any, kind: type[nn.Module], run: LayerRun | None, types: Sequence[str]) -> str:
    """Returns the reason why a layer cannot take a format, or '' if it can."""
    if kind is nn.Bilinear:
        return "Bilinear multiplies three tensors; only a product of two takes a number format"
    if any(parametrize.is_parametrized(part) for part in layer.modules()):
        return "its weight is made by a parametrization"
    hooks = [hook for part in layer.modules() for hook in list_forward_pre_hooks(part)]
    if any(makes_weight(hook) for hook in hooks):
        return "its weight is made by a hook"  # weight_norm, spectral_norm and pruning use hooks
    if type(layer).forward is not kind.forward:
        return f"the class {type(layer).__name__} has its own forward()"
    weights = [tensor for name, tensor in layer.named_parameters() if "weight" in name]
    if not weights or (hasattr(layer, "weight") and parameters_of(layer).get("weight") is None):
        return "its weight is not a parameter"
    if any(isinstance(tensor, UninitializedParameter) for tensor in weights):
        return "its shape is not known before it has run"
    unsupported = next(
        (t for t in weights if format_dtype(t.dtype) not in types or t.layout != torch.strided), None
    )
    if unsupported is not None:
        return f"its type is {format_dtype(unsupported.dtype)}, but only {types[0]} can be quantized"
    if any(not tensor.numel() for tensor in weights):
        return "it is empty"
    if run is None:
        return "it does not run with these inputs"
    if run.dtype not in (*types, "") and not isinstance(layer, _TABLES):
        return f"its input is {run.dtype}, but only {types[0]} can be quantized"
    return ""


def _list_operands(layer: Any, kind: type[nn.Module], name: str) -> Iterator[Operand]:
    """Yields the operands of a layer. `stored` is the name of the parameter in the layer."""
    value = f"{name} (input)"
    if kind in (*_RECURRENT, nn.MultiheadAttention):
        # activations of these layers stay in float
        weight_names = [
            weight_name
            for weight_name, tensor in layer.named_parameters()
            if "weight" in weight_name and tensor.dim() == 2
        ]
        for index, weight_name in enumerate(weight_names, 1):
            yield _build_weight_operand("weight", index, layer, weight_name, -2, -1)
        return
    rank = layer.weight.dim()
    if kind in _TABLES:
        yield _build_weight_operand("weight", 1, layer, "weight", -2, -1)
        return
    yield Operand("input", 0, value, depth=1 - rank)
    weight = _build_weight_operand("weight", 1, layer, "weight", -rank, 1 - rank)
    yield set_transposed_axes(weight, layer.groups) if kind in _TRANSPOSED else weight
    if layer.bias is not None:
        yield _build_weight_operand("bias", 2, layer, "bias", -1, None)


def _build_weight_operand(
    part: Any, index: int, layer: nn.Module, name: str, channel: int, depth: int | None
) -> Operand:
    parameter = layer.get_parameter(name)
    shape = tuple(parameter.shape)

    def read_bytes() -> Iterator[memoryview]:
        yield parameter.detach().cpu().contiguous().numpy().data.cast("B")

    tensor = Tensor(name, "float32", shape, ComputedPayload(parameter.nbytes, read_bytes))
    return Operand(part, index, name, channel, depth, 0, tensor, name, tuple(range(len(shape))))
