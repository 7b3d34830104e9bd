"""Basic queries of nn.Modules and tensors: name of a dtype, bytes, nested tensors, modules by path.

Reading, counting and running a module share them, with or without values.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from explorer.engine.compat.torch import MODULE_DICTS, buffers_of, children_of, parameters_of
from explorer.facts import TensorInfo


def dtype_name(dtype: torch.dtype) -> str:
    """A dtype in numpy's spelling: torch.float32 -> 'float32'."""
    name = _DTYPES.get(dtype)
    if name is None:
        name = _DTYPES[dtype] = str(dtype).removeprefix("torch.")
    return name


_DTYPES: dict[torch.dtype, str] = {}


def size_of(tensor: torch.Tensor) -> int:
    """Bytes of a tensor's elements; elements that an expanded view repeats count once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            elements *= size
    return elements * tensor.element_size()


def shape_of(tensor: torch.Tensor) -> tuple[int | str, ...]:
    """Sizes of a tensor; in a nested tensor, 'ragged' where the sizes of rows differ."""
    if not tensor.is_nested:
        return tuple(tensor.shape)
    sizes: list[int | str] = []
    for axis in range(tensor.dim()):
        try:
            size: Any = tensor.size(axis)
        except RuntimeError:
            size = None
        sizes.append(size if type(size) is int else "ragged")
    return tuple(sizes)


def tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested tuples, lists and dicts (and dataclass-like outputs), with its place."""
    if isinstance(value, torch.Tensor):
        yield "", value
        return
    items: Sequence[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", range(len(value)))
        items = list(zip(names, value, strict=True))
    elif hasattr(value, "__dataclass_fields__"):
        items = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    else:
        return
    for name, part in items:
        for rest, tensor in tensors(part):
            yield f"{name}.{rest}" if rest else str(name), tensor


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Like `tensors`, without the places, in a third of the time."""
    collected: list[torch.Tensor] = []
    _add_tensors(value, collected)
    return collected


def _add_tensors(value: Any, collected: list[torch.Tensor]) -> None:
    kind = type(value)
    if kind in _NOT_TENSORS:
        return
    if isinstance(value, torch.Tensor):
        collected.append(value)
    elif kind is tuple or kind is list:
        for part in value:
            _add_tensors(part, collected)
    elif kind is dict:
        for part in value.values():
            _add_tensors(part, collected)
    else:
        collected += [tensor for _, tensor in tensors(value)]


_NOT_TENSORS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size))
"""Classes of most arguments that hold no tensors; a size holds only numbers."""


def described(value: Any, name: str) -> tuple[TensorInfo, ...]:
    """The tensors in `value` as facts, called `name` or `name.place`."""
    if type(value) is torch.Tensor:
        return (TensorInfo(name, dtype_name(value.dtype), shape_of(value), "observed"),)
    return tuple(
        TensorInfo(f"{name}.{place}" if place else name, dtype_name(t.dtype), shape_of(t), "observed")
        for place, t in tensors(value)
    )


def flat(values: Any) -> list[torch.Tensor]:
    """The tensors among the arguments of a call, also those inside lists."""
    nested: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            nested.append(value)
        elif isinstance(value, (tuple, list)):
            nested.extend(flat(value))
    return nested


def registered(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module at every path where it is registered; torch's own walk takes ten times as long."""
    yield path, module
    for name, child in children_of(module).items():
        if child is not None:
            yield from registered(child, f"{path}.{name}" if path else name)


def named(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its path; the first path if it is registered several times."""
    visited: set[int] = set()
    return {
        path: module
        for path, module in registered(model)
        if not (id(module) in visited or visited.add(id(module)))  # type: ignore[func-returns-value]
    }


_WITHOUT_TENSORS = (bool, int, float, complex, str, bytes, type(None), type, ModuleType)


def held(
    value: Any, place: str = "", *, skipped: Collection[int] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors in nested containers and object attributes, each with its expression.

    Args:
        value: The value to search.
        place: The expression of `value`, with which all others begin.
        skipped: Ids of modules to skip; None skips all modules.
    """
    return _tensors_of(contents(value, place, skipped=skipped, plain=False))


def _tensors_of(parts: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((place, part) for place, part in parts if isinstance(part, torch.Tensor))


_PLAIN_TYPES = frozenset(_WITHOUT_TENSORS)
_MAPPINGS = frozenset((dict, OrderedDict))
_SEQUENCES = frozenset((list, tuple, set, frozenset))


def _is_bare(value: Any) -> bool:
    """Whether a value is plain or a container of plain values, as most attributes of modules are."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    if kind in _MAPPINGS:
        return not value or _PLAIN_TYPES.issuperset(map(type, value.values()))
    return kind in _SEQUENCES and _PLAIN_TYPES.issuperset(map(type, value))


def contents(
    value: Any, place: str = "", *, skipped: Collection[int] | None = None, plain: bool = True
) -> Iterator[tuple[str, Any]]:
    """All values in nested containers and object attributes, as in `held`.

    Each object is visited once, so that cycles end.

    Args:
        value: The value to search.
        place: The expression of `value`.
        skipped: As in `held`.
        plain: Whether to include numbers, text and containers of only these.
    """
    return _contents([(place, value)], skipped=skipped, plain=plain)


def _contents(
    waiting: list[tuple[str, Any]], *, skipped: Collection[int] | None, plain: bool
) -> Iterator[tuple[str, Any]]:
    """As `contents`, of several values with their places, the last one first."""
    visited: dict[int, Any] = {}
    while waiting:
        where, part = waiting.pop()
        yield where, part
        if isinstance(part, torch.Tensor) or id(part) in visited or isinstance(part, _WITHOUT_TENSORS):
            continue
        visited[id(part)] = part  # kept alive, so that no other object gets its id
        inner: list[tuple[str, Any]]
        if isinstance(part, nn.Module):
            if skipped is None or id(part) in skipped:
                continue
            dicts = [names for name, names in vars(part).items() if name in MODULE_DICTS]
            plain_attributes = [
                (name, value) for name, value in vars(part).items() if name not in MODULE_DICTS
            ]
            named_parts = [*(entry for names in dicts for entry in names.items()), *plain_attributes]
            inner = [
                (f"{where}.{name}", value) for name, value in named_parts if plain or not _is_bare(value)
            ]
        elif isinstance(part, (dict, Mapping)):
            inner = [
                (f"{where}[{key!r}]", value) for key, value in part.items() if plain or not _is_bare(value)
            ]
        elif isinstance(part, (list, tuple, set, frozenset)):
            inner = [
                (f"{where}[{index}]", value)
                for index, value in enumerate(part)
                if plain or not _is_bare(value)
            ]
        else:
            plain_attributes = list(getattr(part, "__dict__", {}).items())
            inner = [
                (f"{where}.{name}", value) for name, value in plain_attributes if plain or not _is_bare(value)
            ]
        waiting += reversed(inner)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor can be trained: an nn.Parameter, or a leaf that requires a gradient."""
    return (tensor.requires_grad and tensor.is_leaf) or isinstance(tensor, nn.Parameter)


def own_attributes(modules: Mapping[str, nn.Module]) -> list[tuple[str, Any]]:
    """Attributes of modules that may hold tensors, except parameters, buffers and children.

    Args:
        modules: All modules of a model by their paths, as in `named`.

    Returns:
        Pairs of an expression and its value: 'encoder.table'.
    """
    return [
        (f"{path}.{name}" if path else name, value)
        for path, module in modules.items()
        for name, value in vars(module).items()
        if type(value) not in _PLAIN_TYPES and name not in MODULE_DICTS and not _is_bare(value)
    ]


def tensors_beside(
    modules: Mapping[str, nn.Module], attributes: Sequence[tuple[str, Any]] | None = None
) -> list[tuple[str, torch.Tensor]]:
    """Tensors of modules other than parameters: buffers, and tensors in attributes, however deep.

    Args:
        modules: All modules of a model by their paths.
        attributes: Their `own_attributes`, if they were computed before.

    Returns:
        Pairs of an expression and its tensor: 'layers[0].weight'. A tensor that several objects hold is
        listed more than once.
    """
    roots = list(own_attributes(modules) if attributes is None else attributes)
    for path, module in modules.items():
        before = f"{path}." if path else ""
        roots += [
            (before + name, buffer) for name, buffer in buffers_of(module).items() if buffer is not None
        ]
    roots.reverse()
    listed = {id(module) for module in modules.values()}
    return list(_tensors_of(_contents(roots, skipped=listed, plain=False)))


def unregistered_parameters(
    modules: Mapping[str, nn.Module], beside: Iterable[tuple[str, torch.Tensor]] | None = None
) -> list[tuple[str, torch.Tensor]]:
    """Parameters that `parameters()` misses: those in lists, dicts, objects and buffers.

    Args:
        modules: All modules of the model by their paths.
        beside: Their `tensors_beside`, if they were computed before.

    Returns:
        Pairs of an expression and its parameter: 'layers[0].weight'.
    """
    beside = tensors_beside(modules) if beside is None else beside
    parameters = [(place, tensor) for place, tensor in beside if is_parameter(tensor)]
    if not parameters:
        return []
    registered_ids = {id(p) for module in modules.values() for p in parameters_of(module).values()}
    first: dict[int, tuple[str, torch.Tensor]] = {}
    for place, tensor in parameters:
        if id(tensor) not in registered_ids:
            first.setdefault(id(tensor), (place, tensor))
    return list(first.values())


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter or buffer gets its shape from the first input of its module."""
    # torch's own check of a parameter's class takes ten times as long
    return type(tensor) not in _SETTLED and isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


_SETTLED = frozenset((torch.Tensor, nn.Parameter))
"""Classes of most tensors, whose shapes are known."""


def plain(value: Any) -> Any:
    """A value for a fact: numbers, text and lists stay, anything else becomes text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return str(value)
