"""Copies of an nn.Module on the meta device, without weights, for runs on shapes.

The copy, here called twin, has its own modules. A `forward` may write to them (shapes of lazy layers,
counters, cached tensors) without changing the original. Parameters of the twin are on the meta device and
need no memory. Tensors that share a storage also share one in the twin, so tied weights stay tied.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import sys
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from types import CellType, FunctionType, MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from explorer.base.errors import BadModel
from explorer.engine.compat.torch import (
    HOOKED,
    MODULE_DICTS,
    get_module_dicts,
    has_gradient_hooks,
    is_of_torch,
    is_packed,
    storage_key,
)
from explorer.engine.formats.torch_module import sparse
from explorer.engine.formats.torch_module.modules import (
    find_held_tensors,
    find_unregistered_parameters,
    is_lazy,
    is_parameter,
    list_modules,
    list_other_tensors,
    list_own_attributes,
)
from explorer.engine.formats.torch_module.stored_form import attach_wrapped
from explorer.engine.formats.torch_module.tensor_subclass import (
    attach_conversions,
    dequantize,
    is_wrapper,
    list_inner_tensors,
    view_key,
)

MAX_KEPT_ELEMENTS = 4096
"""Maximum number of elements of a non-parameter tensor that keeps its values. Code uses such tensors for
indices and branches."""


def copy_without_values(model: nn.Module, *, keep_floats: bool = False) -> nn.Module:
    """Copies a model to the meta device; the model itself stays unchanged.

    Scalars and small tensors of integers or booleans keep a copy of their values, unless they are parameters.

    Args:
        model: Model with values.
        keep_floats: Whether small floating-point tensors outside torch's layers also keep their values.
    """
    return _copy_without_values(model, _find_unregistered_tensors(model), keep_floats)


def _copy_without_values(
    model: nn.Module, unregistered: Sequence[torch.Tensor], keep_floats: bool
) -> nn.Module:
    """Implements `copy_without_values`; `unregistered` are the unregistered tensors of the model."""
    twin = _deep_copy(model, _create_twins(model, unregistered, keep_floats))
    attach_wrapped(model, twin)
    return twin


def remove_values(model: nn.Module) -> nn.Module:
    """Like `copy_without_values` with `keep_floats`, for a model without other references.

    The model is changed in place and returned, unless it has unregistered tensors; then the result is a copy.
    """
    unregistered = _find_unregistered_tensors(model)
    if unregistered:
        return _copy_without_values(model, unregistered, keep_floats=True)
    twins = _create_twins(model, unregistered, keep_floats=True)
    attach_wrapped(model, model)
    for module in model.modules():
        parameters, buffers, _ = get_module_dicts(module).values()
        for tensors in (parameters, buffers):
            tensors.update(
                {name: twins[id(tensor)] for name, tensor in tensors.items() if tensor is not None}
            )
    return model


def _create_twins(
    model: nn.Module, unregistered: Sequence[torch.Tensor], keep_floats: bool
) -> dict[int, Any]:
    """Creates the replacement of each tensor of a model.

    Args:
        model: Model with values.
        unregistered: Unregistered tensors of the model.
        keep_floats: Whether small floating-point tensors keep their values (see `copy_without_values`).

    Returns:
        The replacements by id of the original tensor. Tensors that share a storage also share one here.
    """
    torch_layers = [m for m in model.modules() if is_of_torch(m)]
    torch_buffers = {id(b) for m in torch_layers for b in m.buffers(recurse=False)}
    # a quantized layer passes its scale, a buffer of one element, to operators that take a number
    scales = {id(b) for m in torch_layers if is_packed(m) for b in m.buffers(recurse=False) if b.numel() == 1}
    storages: dict[Any, Any] = {}
    memo: dict[int, Any] = {}
    for tensor in (*model.parameters(), *model.buffers(), *unregistered):
        if id(tensor) in memo:
            continue
        if is_lazy(tensor):
            kind: Any = UninitializedParameter if isinstance(tensor, nn.Parameter) else UninitializedBuffer
            memo[id(tensor)] = kind(requires_grad=tensor.requires_grad, dtype=tensor.dtype, device="meta")
        elif is_wrapper(tensor):
            memo[id(tensor)] = _make_parameter(_create_logical_twin(tensor, storages), tensor)
            attach_conversions(memo[id(tensor)], tensor)
        elif tensor.is_meta:
            memo[id(tensor)] = _make_parameter(tensor.detach(), tensor)
        elif not isinstance(tensor, nn.Parameter) and (
            _should_keep_values(tensor)
            or id(tensor) in scales
            or (keep_floats and id(tensor) not in torch_buffers and tensor.numel() <= MAX_KEPT_ELEMENTS)
        ):
            values = tensor.detach()
            # torch copies no tensor whose channels have zero points in floating point
            is_shared = values.is_quantized and values.qscheme() is torch.per_channel_affine_float_qparams
            memo[id(tensor)] = _make_parameter(values if is_shared else values.clone(), tensor)
        else:
            memo[id(tensor)] = sparse.mark_sparse(
                _make_parameter(_copy_view(tensor, storages), tensor), tensor
            )
    return memo


def materialize_lazy_modules(model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> nn.Module:
    """Creates a twin without values, and runs it to give its lazy modules their shapes; `model` stays lazy.

    If the run fails, the modules that ran before the failure have their shapes.
    """
    twin = copy_without_values(model).eval()
    with torch.no_grad(), contextlib.suppress(Exception):
        twin(*args, **kwargs)
    return twin


def copy_sharing_values(model: nn.Module) -> nn.Module:
    """Copies a model but shares its tensors. The copy can be put in evaluation mode and run."""
    return _deep_copy(
        model, {id(t): t for t in (*model.parameters(), *model.buffers(), *_find_unregistered_tensors(model))}
    )


def convert_subclasses(model: nn.Module) -> tuple[nn.Module, str]:
    """Converts tensor subclasses of a model to plain tensors.

    Returns:
        A copy with plain tensors, or the model itself if it has no tensor subclasses; and the name and class
        of the first tensor that cannot be converted, or ''.
    """
    memo: dict[int, Any] = {}
    failed_name = ""
    has_wrappers = False
    unregistered = (("an attribute", tensor) for tensor in _find_unregistered_tensors(model))
    for name, tensor in (*model.named_parameters(), *model.named_buffers(), *unregistered):
        if id(tensor) in memo:
            continue
        memo[id(tensor)] = tensor
        if is_lazy(tensor) or not is_wrapper(tensor):
            continue
        has_wrappers = True
        plain = dequantize(tensor)
        if plain is None:
            failed_name = failed_name or f"{name} ({type(tensor).__name__})"
        else:
            memo[id(tensor)] = _make_parameter(plain, tensor)
    if not has_wrappers:
        return model, ""
    twin = _deep_copy(model, memo)
    attach_wrapped(model, twin)
    return twin, failed_name


def _should_keep_values(tensor: torch.Tensor) -> bool:
    """Whether a tensor is small and has integers or booleans, or is a scalar."""
    return tensor.numel() <= MAX_KEPT_ELEMENTS and not (
        tensor.dim() and (tensor.is_floating_point() or tensor.is_complex())
    )


def _create_logical_twin(tensor: torch.Tensor, storages: dict[Any, Any]) -> torch.Tensor:
    """Creates a plain tensor without values for a tensor subclass; shared if the inner tensors are."""
    views = tuple(view_key(inner) for inner in list_inner_tensors(tensor))
    twin = storages.get((views, tensor.shape))
    if twin is None:
        twin = torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
        storages[views, tensor.shape] = twin
    return twin.detach()


def _copy_view(tensor: torch.Tensor, storages: dict[Any, Any]) -> torch.Tensor:
    """Returns the same view of a storage on the meta device; `storages` holds the storages created so far."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")
    storage = tensor.untyped_storage()
    twin = storages.get(storage_key(storage))
    if twin is None:
        empty = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
        twin = storages[storage_key(storage)] = empty.untyped_storage()
    view = torch.empty(0, dtype=tensor.dtype, device="meta")
    view.set_(twin, tensor.storage_offset(), tensor.shape, tensor.stride())
    return view


def _make_parameter(tensor: torch.Tensor, original: torch.Tensor) -> torch.Tensor:
    """Makes `tensor` a parameter if `original` is one, and records gradient hooks of the original."""
    if isinstance(original, nn.Parameter):
        tensor = nn.Parameter(tensor, original.requires_grad)
    elif is_parameter(original):
        tensor.requires_grad_()
    if has_gradient_hooks(original):
        setattr(tensor, HOOKED, True)
    return tensor


def _find_unregistered_tensors(model: nn.Module) -> list[torch.Tensor]:
    """Lists tensors in attributes of modules (masks, tables, weights) that are not registered."""
    modules = list_modules(model)
    attributes = list_own_attributes(modules)
    unregistered: list[torch.Tensor] = []
    for _, value in attributes:
        if isinstance(value, torch.Tensor):
            unregistered.append(value)
        elif isinstance(value, (list, tuple)):
            unregistered += [element for element in value if isinstance(element, torch.Tensor)]
        elif isinstance(value, dict):
            unregistered += [element for element in value.values() if isinstance(element, torch.Tensor)]
    other_tensors = list_other_tensors(modules, attributes)
    return unregistered + [tensor for _, tensor in find_unregistered_parameters(modules, other_tensors)]


def copy_module(model: nn.Module, memo: Mapping[int, Any] | None = None) -> nn.Module:
    """Copies a model with its tensors. Functions in its attributes use the modules of the copy.

    The copy of a tensor that the model computed and stored, such as a normalized weight, has no gradient.

    Args:
        model: Model to copy.
        memo: Copies of some objects, by id of the original.
    """
    copies = dict(memo or {})
    for _, tensor in find_held_tensors(model, skipped=()):
        if not tensor.is_leaf:
            copies.setdefault(id(tensor), tensor.detach().clone())
    twin = copy.deepcopy(model, copies)
    _rebind_functions(twin, copies)
    return twin


def _deep_copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copies a model; `memo` has the replacement of each tensor, by the id of the original.

    TorchScript objects are shared. If the model has an object that cannot be copied, such as an open file or
    a lock, only its modules are copied.

    Raises:
        BadModel: The model is sharded by `fully_shard`.
    """
    sharded_class: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", ())
    for module in model.modules():
        if isinstance(module, sharded_class):
            problem = "torch cannot copy a module after `fully_shard`, whose hooks change the original"
            raise BadModel(problem, where=type(module).__name__, hint="open the model before `fully_shard`")
        memo.update((id(v), v) for v in vars(module).values() if isinstance(v, torch.ScriptObject))
    copies = dict(memo)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            twin: nn.Module = copy.deepcopy(model, copies)
        except Exception:
            copies = dict(memo)
            twin = _copy_module_by_module(model, copies)
    _rebind_functions(twin, copies)
    return twin


def _copy_module_by_module(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """Copies only the modules, which it adds to `memo`, and replaces tensors as in `memo`.

    Other attributes are shared.
    """
    modules = list(model.modules())
    for module in modules:
        twin = memo[id(module)] = object.__new__(type(module))
        vars(twin).update(vars(module))
        for kind, members in get_module_dicts(module).items():
            vars(twin)[kind] = {name: memo.get(id(member), member) for name, member in members.items()}
        for name, value in vars(module).items():
            if isinstance(value, torch.Tensor):
                vars(twin)[name] = memo.get(id(value), value)
            elif type(value) in (dict, list, OrderedDict) and name not in MODULE_DICTS:
                vars(twin)[name] = copy.copy(value)
    for module in modules:
        children = get_module_dicts(memo[id(module)])[MODULE_DICTS[-1]]
        children.update({name: memo.get(id(child), child) for name, child in children.items()})
    result: nn.Module = memo[id(model)]
    return result


def _rebind_functions(twin: nn.Module, copies: Mapping[int, Any]) -> None:
    """Replaces functions in attributes of a copied model that use modules or tensors of the original.

    Python does not copy functions. A wrapped `forward`, or a hook that was defined inside a method, would run
    the original.

    Args:
        twin: The copied model.
        copies: Copies by id of the original.
    """
    rebinding = _Rebinding(copies)
    for module in twin.modules():
        attributes = vars(module)
        for name, value in list(attributes.items()):
            if name not in MODULE_DICTS:
                rebound = rebinding.rebind(value)
                if rebound is not value:
                    attributes[name] = rebound


class _Rebinding:
    """Rebinds functions to copies of modules and tensors.

    Args:
        copies: Copies by id of the original.
    """

    def __init__(self, copies: Mapping[int, Any]) -> None:
        self._copies = copies
        self._functions: dict[int, tuple[FunctionType, FunctionType]] = {}
        self._cells: dict[int, tuple[CellType, CellType]] = {}

    def rebind(self, value: Any, depth: int = 0) -> Any:
        """Returns `value` with functions that use copies.

        If `value` is a list or dictionary, it is changed in place. Containers inside it are copied.
        """
        if depth > _MAX_DEPTH:
            return value
        if isinstance(value, (nn.Module, torch.Tensor)):
            return self._copies.get(id(value), value)
        if isinstance(value, FunctionType):
            return self._rebind_function(value, depth)
        if isinstance(value, MethodType):
            owner, function = self.rebind(value.__self__, depth + 1), self.rebind(value.__func__, depth + 1)
            is_same = owner is value.__self__ and function is value.__func__
            return value if is_same else MethodType(function, owner)
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            function, args, kwargs = (self.rebind(part, depth + 1) for part in (*parts[:2], dict(parts[2])))
            if function is value.func and args is value.args and _has_same_values(kwargs, value.keywords):
                return value
            return functools.partial(function, *args, **kwargs)
        if isinstance(value, dict) and not depth:
            value.update({key: self.rebind(part, depth + 1) for key, part in value.items()})
        elif type(value) is list and not depth:
            value[:] = [self.rebind(part, depth + 1) for part in value]
        elif type(value) in (tuple, list, dict):
            items = value.values() if type(value) is dict else value
            rebound = [self.rebind(part, depth + 1) for part in items]
            if any(new is not old for new, old in zip(rebound, items, strict=True)):
                return dict(zip(value, rebound, strict=True)) if type(value) is dict else type(value)(rebound)
        return value

    def _rebind_function(self, function: FunctionType, depth: int) -> FunctionType:
        if id(function) in self._functions:
            return self._functions[id(function)][1]
        self._functions[id(function)] = function, function
        cells = tuple(self._rebind_cell(cell, depth) for cell in function.__closure__ or ())
        defaults = self.rebind(function.__defaults__, depth + 1)
        named_defaults = self.rebind(function.__kwdefaults__, depth + 1)
        old = *(function.__closure__ or ()), function.__defaults__, function.__kwdefaults__
        if all(new is part for new, part in zip((*cells, defaults, named_defaults), old, strict=True)):
            return function
        twin = FunctionType(
            function.__code__, function.__globals__, function.__name__, defaults, cells or None
        )
        twin.__kwdefaults__, twin.__qualname__ = named_defaults, function.__qualname__
        twin.__module__, twin.__doc__ = function.__module__, function.__doc__
        vars(twin).update({key: self.rebind(part, depth + 1) for key, part in vars(function).items()})
        self._functions[id(function)] = function, twin
        return twin

    def _rebind_cell(self, cell: CellType, depth: int) -> CellType:
        if id(cell) not in self._cells:
            try:
                content = cell.cell_contents
            except ValueError:  # the variable has no value yet
                return cell
            rebound = self.rebind(content, depth + 1)
            self._cells[id(cell)] = cell, cell if rebound is content else CellType(rebound)
        return self._cells[id(cell)][1]


def _has_same_values(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(part is other[key] for key, part in one.items())


_MAX_DEPTH = 8
"""Maximum depth of functions and containers inside each other that are searched for modules."""
