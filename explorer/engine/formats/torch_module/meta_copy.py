"""Meta copy of an nn.Module, without its weights: it runs on shapes and the original stays unchanged.

The twin has its own modules, so that a forward writes only to them (shapes of lazy layers, counters, cached
tensors). Its parameters are on the meta device and take no memory. Tensors that share storage share it in the
twin, too, so tied weights stay tied.
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
"""Most elements of a non-parameter tensor that keeps its values: code uses such tensors for indices and
branches."""


def without_values(model: nn.Module, *, numbers: bool = False) -> nn.Module:
    """A copy of `model` with parameters and buffers on the meta device; `model` stays unchanged.

    Small integer tensors that are no parameters keep a copy of their values.

    Args:
        model: The model with its values.
        numbers: Whether small floating-point tensors keep their values, too, except those of torch's layers.
    """
    return _without_values(model, _unregistered_tensors(model), numbers)


def _without_values(model: nn.Module, loose: Sequence[torch.Tensor], numbers: bool) -> nn.Module:
    twin = _deep_copy(model, _twins(model, loose, numbers))
    attach_wrapped(model, twin)
    return twin


def emptied(model: nn.Module) -> nn.Module:
    """Like `without_values` with `numbers`, for a model in no other use; changes it in place if easy."""
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
    """The replacement of each tensor, also of `loose` ones, by its id; shared storage stays shared."""
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
    """A twin without values whose lazy modules got their shapes from a run; `model` stays lazy.

    A run that fails gives shapes to the modules that it reached.
    """
    twin = without_values(model).eval()
    with torch.no_grad(), contextlib.suppress(Exception):
        twin(*args, **kwargs)
    return twin


def sharing_values(model: nn.Module) -> nn.Module:
    """A copy of `model` with the same tensors, which can be put in evaluation mode and run without changing
    `model`.
    """
    return _deep_copy(
        model, {id(t): t for t in (*model.parameters(), *model.buffers(), *_unregistered_tensors(model))}
    )


def with_plain_tensors(model: nn.Module) -> tuple[nn.Module, str]:
    """A copy of a model with plain tensors in place of tensor subclasses; the model itself without any.

    Returns:
        The model, and name and class of the first tensor whose class cannot give its numbers, which stays
        unchanged. The text is empty if there is none.
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
    """The logical form of a tensor subclass, without values; shared if the inner tensors are the same."""
    places = tuple(place(inner) for inner in inner_tensors(tensor))
    twin = storages.get((places, tensor.shape))
    if twin is None:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        storages[places, tensor.shape] = twin
    return twin.detach()


def _without_numbers(tensor: torch.Tensor, storages: dict[Any, Any]) -> torch.Tensor:
    """The same view of a storage without values."""
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
    """Tensors of modules other than parameters and buffers: masks, tables, a computed weight."""
    modules = named(model)
    attributes = own_attributes(modules)
    loose: list[torch.Tensor] = []
    for _, value in attributes:
        if isinstance(value, torch.Tensor):
            loose.append(value)
        elif isinstance(value, (list, tuple)):
            loose += [element for element in value if isinstance(element, torch.Tensor)]
        elif isinstance(value, dict):
            loose += [element for element in value.values() if isinstance(element, torch.Tensor)]
    beside = tensors_beside(modules, attributes)
    return loose + [tensor for _, tensor in unregistered_parameters(modules, beside)]


def _deep_copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy with tensors from `memo`. Objects that cannot be copied (an open file, a lock, a native
    handle, packed weights) are shared.
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
    """A copy of the modules only: all other attributes are shared with the original."""
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
