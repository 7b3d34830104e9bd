"""Meta copy of an nn.Module, without its weights: it runs on shapes while the original stays as it is.

The twin has modules of its own, so that whatever a forward writes to itself (shapes of lazy layers,
counters, cached tensors) is written there, and parameters on the meta device that take no memory. Tensors
that share storage share it in the twin too, so tied weights stay tied.
"""

from __future__ import annotations

import contextlib
import copy
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from explorer.engine.compat.torch import (
    HOOKED,
    MODULE_DICTS,
    has_gradient_hooks,
    is_of_torch,
    module_dicts,
    storage_key,
)
from explorer.engine.formats.torch_module import sparse
from explorer.engine.formats.torch_module.modules import (
    is_lazy,
    is_parameter,
    named,
    own_attributes,
    tensors_beside,
    unregistered_parameters,
)
from explorer.engine.formats.torch_module.stored_form import attach_wrapped
from explorer.engine.formats.torch_module.tensor_subclass import (
    dequantized,
    inner_tensors,
    is_wrapper,
    place,
)

MOST_KEPT = 4096
"""Elements up to which a tensor that no input goes into keeps its values: programs index and branch with
them."""


def without_values(model: nn.Module, *, numbers: bool = False) -> nn.Module:
    """A copy of `model` whose parameters and buffers lie on the meta device; `model` stays as it is.

    Small tensors of integers that are no parameters keep their values, in a copy.

    Args:
        model: With its values.
        numbers: Small ones of floating-point numbers keep theirs, too, but for what layers of torch hold.
    """
    return _without_values(model, _unregistered_tensors(model), numbers)


def _without_values(model: nn.Module, loose: Sequence[torch.Tensor], numbers: bool) -> nn.Module:
    twin = _deep_copy(model, _twins(model, loose, numbers))
    attach_wrapped(model, twin)
    return twin


def emptied(model: nn.Module) -> nn.Module:
    """As a copy `without_values` with numbers, of a model that nobody else has: itself where that is easy."""
    loose = _unregistered_tensors(model)
    if loose:
        return _without_values(model, loose, numbers=True)
    twins = _twins(model, loose, numbers=True)
    attach_wrapped(model, model)
    for module in model.modules():
        parameters, buffers, _ = module_dicts(module).values()
        for tensors in (parameters, buffers):
            tensors.update(
                {name: twins[id(tensor)] for name, tensor in tensors.items() if tensor is not None}
            )
    return model


def _twins(model: nn.Module, loose: Sequence[torch.Tensor], numbers: bool) -> dict[int, Any]:
    """What stands for each tensor, `loose` ones too, by its id; tensors that share storage share it there."""
    of_torch = [m for m in model.modules() if is_of_torch(m)]
    torch_buffers = {id(b) for m in of_torch for b in m.buffers(recurse=False)}
    storages: dict[Any, Any] = {}
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers(), *loose):
        if id(tensor) in memo:
            continue
        if is_lazy(tensor):
            kind: Any = UninitializedParameter if isinstance(tensor, nn.Parameter) else UninitializedBuffer
            memo[id(tensor)] = kind(requires_grad=tensor.requires_grad, dtype=tensor.dtype, device="meta")
        elif is_wrapper(tensor):
            memo[id(tensor)] = _as_parameter(_logical(tensor, storages), tensor)
        elif tensor.is_meta:
            memo[id(tensor)] = _as_parameter(tensor.detach(), tensor)
        elif not isinstance(tensor, nn.Parameter) and (
            _keeps_values(tensor)
            or (numbers and id(tensor) not in torch_buffers and tensor.numel() <= MOST_KEPT)
        ):
            memo[id(tensor)] = _as_parameter(tensor.detach().clone(), tensor)
        else:
            memo[id(tensor)] = sparse.marked(
                _as_parameter(_without_numbers(tensor, storages), tensor), tensor
            )
    return memo


def materialised(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
    """A twin without values whose lazy modules got their shapes from one run; `model` stays lazy.

    A run that fails gives shapes to those that it reached.
    """
    twin = without_values(model).eval()
    with torch.no_grad(), contextlib.suppress(Exception):
        twin(*args, **kwargs)
    return twin


def sharing_values(model: nn.Module) -> nn.Module:
    """A copy of `model` that holds the same tensors: to be put in evaluation mode, and run, without a trace
    on `model`.
    """
    return _deep_copy(
        model, {id(t): t for t in (*model.parameters(), *model.buffers(), *_unregistered_tensors(model))}
    )


def with_plain_tensors(model: nn.Module) -> tuple[nn.Module, str]:
    """A copy of a model whose tensor subclasses are plain tensors of the same numbers; without any, itself.

    Returns:
        The model, and the name and the class of the first tensor whose numbers its class cannot tell: that
        tensor stays what it is. The name is empty where there is none.
    """
    memo: dict[int, Any] = {}
    failed = ""
    has_wrappers = False
    loose = (("an attribute", tensor) for tensor in _unregistered_tensors(model))
    for name, tensor in (*model.named_parameters(), *model.named_buffers(), *loose):
        if id(tensor) in memo:
            continue
        memo[id(tensor)] = tensor
        if is_lazy(tensor) or not is_wrapper(tensor):
            continue
        has_wrappers = True
        plain = dequantized(tensor)
        if plain is None:
            failed = failed or f"{name} ({type(tensor).__name__})"
        else:
            memo[id(tensor)] = _as_parameter(plain, tensor)
    if not has_wrappers:
        return model, ""
    twin = _deep_copy(model, memo)
    attach_wrapped(model, twin)
    return twin, failed


def _keeps_values(tensor: torch.Tensor) -> bool:
    return tensor.numel() <= MOST_KEPT and not (
        tensor.dim() and (tensor.is_floating_point() or tensor.is_complex())
    )


def _logical(tensor: torch.Tensor, storages: dict[Any, Any]) -> torch.Tensor:
    """What a tensor subclass is to its users, without values: the same for two of the same inner tensors."""
    places = tuple(place(inner) for inner in inner_tensors(tensor))
    twin = storages.get((places, tensor.shape))
    if twin is None:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        storages[places, tensor.shape] = twin
    return twin.detach()


def _without_numbers(tensor: torch.Tensor, storages: dict[Any, Any]) -> torch.Tensor:
    """The same view of storage without values."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    storage = tensor.untyped_storage()
    twin = storages.get(storage_key(storage))
    if twin is None:
        empty = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
        twin = storages[storage_key(storage)] = empty.untyped_storage()
    bare = torch.empty(0, dtype=tensor.dtype, device="meta")
    bare.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride())
    return bare


def _as_parameter(bare: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    if isinstance(original, nn.Parameter):
        bare = nn.Parameter(bare, original.requires_grad)
    elif is_parameter(original):
        bare.requires_grad_()
    if has_gradient_hooks(original):
        setattr(bare, HOOKED, True)
    return bare


def _unregistered_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Tensors that modules hold beside their parameters and buffers: masks, tables, a computed weight."""
    modules = named(model)
    attributes = own_attributes(modules)
    loose: list[torch.Tensor] = []
    for _, value in attributes:
        if isinstance(value, torch.Tensor):
            loose.append(value)
        elif isinstance(value, (list, tuple)):
            loose += [item for item in value if isinstance(item, torch.Tensor)]
        elif isinstance(value, dict):
            loose += [item for item in value.values() if isinstance(item, torch.Tensor)]
    beside = tensors_beside(modules, attributes)
    return loose + [tensor for _, tensor in unregistered_parameters(modules, beside)]


def _deep_copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy that takes tensors from `memo`. What cannot be copied (an open file, a lock, a handle of
    native code, packed weights) is shared.
    """
    for module in model.modules():
        memo.update((id(v), v) for v in vars(module).values() if isinstance(v, torch.ScriptObject))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return copy.deepcopy(model, dict(memo))
        except Exception:
            return _module_by_module(model, memo)


def _module_by_module(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A copy of the modules alone: every other attribute is the original's."""
    twins: dict[int, Any] = {}
    for module in model.modules():
        twin = twins[id(module)] = module.__new__(type(module))
        vars(twin).update(vars(module))
        for kind, members in module_dicts(module).items():
            vars(twin)[kind] = {name: memo.get(id(member), member) for name, member in members.items()}
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                vars(twin)[name] = memo.get(id(value), value)
    for module in model.modules():
        children = module_dicts(twins[id(module)])[MODULE_DICTS[-1]]
        children.update({name: twins.get(id(child), child) for name, child in children.items()})
    result: nn.Module = twins[id(model)]
    return result
