"""Helpers for nn.Modules and tensors: names of types, sizes, tensors in nested values, modules by path.

The code that reads, counts or runs a module uses them. They work with and without values.
"""

from __future__ import annotations

import contextlib
import functools
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MemberDescriptorType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from explorer.engine.compat.torch import MODULE_DICTS, buffers_of, children_of, parameters_of
from explorer.facts import TensorInfo


def format_dtype(dtype: torch.dtype) -> str:
    """Returns the name of an element type in numpy's spelling: torch.float32 -> 'float32'."""
    name = _DTYPES.get(dtype)
    if name is None:
        name = _DTYPES[dtype] = str(dtype).removeprefix("torch.")
    return name


_DTYPES: dict[torch.dtype, str] = {}
"""Cache of `format_dtype`."""


def size_of(tensor: torch.Tensor) -> int:
    """Returns the bytes of a tensor's elements. Elements that an expanded view repeats are counted once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride or not size:
            elements *= size
    return elements * tensor.element_size()


def shape_of(tensor: torch.Tensor) -> tuple[int | str, ...]:
    """Returns the shape of a tensor; an axis of a nested tensor is 'ragged' if the sizes of rows differ."""
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


def walk_tensors(value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the (path, tensor) of each tensor in nested tuples, lists, dictionaries and dataclasses."""
    if isinstance(value, torch.Tensor):
        yield "", value
        return
    items: Sequence[tuple[Any, Any]]
    if isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, (list, tuple)):
        names = getattr(type(value), "_fields", range(len(value)))
        items = list(zip(names, value, strict=True))
    elif hasattr(type(value), "__dataclass_fields__"):
        items = [(name, getattr(value, name)) for name in value.__dataclass_fields__]
    else:
        return
    for name, part in items:
        for inner_path, tensor in walk_tensors(part):
            yield f"{name}.{inner_path}" if inner_path else str(name), tensor


def collect_tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in a nested value, without their paths; three times faster than with paths."""
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
        collected += [tensor for _, tensor in walk_tensors(value)]


_NOT_TENSORS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.Size))
"""Common classes of arguments that contain no tensors."""


def describe_tensors(value: Any, name: str) -> tuple[TensorInfo, ...]:
    """Describes each tensor in a nested value; its name is `name`, followed by its path in the value."""
    if type(value) is torch.Tensor:
        return (TensorInfo(name, format_dtype(value.dtype), shape_of(value), "observed"),)
    return tuple(
        TensorInfo(f"{name}.{path}" if path else name, format_dtype(t.dtype), shape_of(t), "observed")
        for path, t in walk_tensors(value)
    )


def flatten_tensors(values: Any) -> list[torch.Tensor]:
    """Returns the tensors among the arguments of a call, and those in nested lists and tuples."""
    nested: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            nested.append(value)
        elif isinstance(value, (tuple, list)):
            nested.extend(flatten_tensors(value))
    return nested


def walk_modules(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yields (path, module) once for each path, ten times as fast as torch's `named_modules`."""
    yield path, module
    for name, child in children_of(module).items():
        if child is not None:
            yield from walk_modules(child, f"{path}.{name}" if path else name)


def list_modules(model: nn.Module) -> dict[str, nn.Module]:
    """Returns all modules by path; a module that is registered several times has its first path."""
    visited: set[int] = set()
    return {
        path: module
        for path, module in walk_modules(model)
        if not (id(module) in visited or visited.add(id(module)))  # type: ignore[func-returns-value]
    }


_WITHOUT_TENSORS = (bool, int, float, complex, str, bytes, type(None), type, ModuleType)
"""Classes of values that contain no tensors."""


def find_held_tensors(
    value: Any, expression: str = "", *, skipped: Collection[int] | None = None
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields the (expression, tensor) of each tensor in nested containers and object attributes.

    Args:
        value: Value to search.
        expression: Expression of `value`, with which the other expressions begin.
        skipped: Ids of the modules that are not searched, or None to search no modules.
    """
    return _list_tensors(walk_contents(value, expression, skipped=skipped, plain=False))


def _list_tensors(parts: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    return ((expression, part) for expression, part in parts if isinstance(part, torch.Tensor))


_PLAIN_TYPES = frozenset(_WITHOUT_TENSORS)
_MAPPINGS = frozenset((dict, OrderedDict))
_SEQUENCES = frozenset((list, tuple, set, frozenset))


def _is_without_tensors(value: Any) -> bool:
    """Whether a value is a plain value or a container of plain values, so that it contains no tensors."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return True
    if kind in _MAPPINGS:
        return not value or _PLAIN_TYPES.issuperset(map(type, value.values()))
    return kind in _SEQUENCES and _PLAIN_TYPES.issuperset(map(type, value))


@functools.cache
def _list_slots(class_: type) -> tuple[tuple[str, MemberDescriptorType], ...]:
    bases = [vars(base) for base in class_.__mro__ if "__slots__" in vars(base)]
    return tuple(
        (name, member)
        for base in bases
        for name, member in base.items()
        if isinstance(member, MemberDescriptorType)
    )


def read_attributes(value: Any) -> dict[str, Any]:
    """Returns the attributes of an object by name, from its `__dict__` and its `__slots__`."""
    attributes = dict(getattr(value, "__dict__", {}))
    class_: Any = type(value)  # mypy takes no type[Any] for hashable
    for name, member in _list_slots(class_):
        with contextlib.suppress(AttributeError):  # a slot may be empty
            attributes[name] = member.__get__(value)
    return attributes


def walk_contents(
    value: Any, expression: str = "", *, skipped: Collection[int] | None = None, plain: bool = True
) -> Iterator[tuple[str, Any]]:
    """Yields the (expression, value) of each value in nested containers and object attributes.

    Each object is visited once, so cycles end.

    Args:
        value: Value to search.
        expression: Expression of `value`, with which the other expressions begin.
        skipped: Ids of the modules that are not searched, or None to search no modules.
        plain: Whether to include plain values and containers of only plain values.
    """
    return _walk_contents([(expression, value)], skipped=skipped, plain=plain)


def _walk_contents(
    pending: list[tuple[str, Any]], *, skipped: Collection[int] | None, plain: bool
) -> Iterator[tuple[str, Any]]:
    """Implements `walk_contents` for several (expression, value) pairs, the last one first."""
    visited: dict[int, Any] = {}
    while pending:
        expression, part = pending.pop()
        yield expression, part
        if isinstance(part, torch.Tensor) or id(part) in visited or isinstance(part, _WITHOUT_TENSORS):
            continue
        visited[id(part)] = part  # keep the object alive, so that no other object gets its id
        inner: list[tuple[str, Any]]
        if isinstance(part, nn.Module):
            if skipped is None or id(part) in skipped:
                continue
            dicts = [members for name, members in vars(part).items() if name in MODULE_DICTS]
            attributes = [(name, value) for name, value in vars(part).items() if name not in MODULE_DICTS]
            named_parts = [*(entry for members in dicts for entry in members.items()), *attributes]
            inner = [
                (f"{expression}.{name}", value)
                for name, value in named_parts
                if plain or not _is_without_tensors(value)
            ]
        elif isinstance(part, (dict, Mapping)):
            inner = [
                (f"{expression}[{key!r}]", value)
                for key, value in part.items()
                if plain or not _is_without_tensors(value)
            ]
        elif isinstance(part, (list, tuple, set, frozenset)):
            inner = [
                (f"{expression}[{index}]", value)
                for index, value in enumerate(part)
                if plain or not _is_without_tensors(value)
            ]
        else:
            attributes = list(read_attributes(part).items())
            inner = [
                (f"{expression}.{name}", value)
                for name, value in attributes
                if plain or not _is_without_tensors(value)
            ]
        pending += reversed(inner)


def is_parameter(tensor: torch.Tensor) -> bool:
    """Whether a tensor is an nn.Parameter or a leaf that requires a gradient."""
    return (tensor.requires_grad and tensor.is_leaf) or isinstance(tensor, nn.Parameter)


def list_own_attributes(modules: Mapping[str, nn.Module]) -> list[tuple[str, Any]]:
    """Returns the attributes of modules that may contain tensors, except parameters, buffers and children.

    Args:
        modules: All modules of a model by path, as `list_modules` returns them.

    Returns:
        (expression, value) pairs. An example of an expression is 'encoder.table'.
    """
    return [
        (f"{path}.{name}" if path else name, value)
        for path, module in modules.items()
        for name, value in vars(module).items()
        if type(value) not in _PLAIN_TYPES and name not in MODULE_DICTS and not _is_without_tensors(value)
    ]


def list_other_tensors(
    modules: Mapping[str, nn.Module], attributes: Sequence[tuple[str, Any]] | None = None
) -> list[tuple[str, torch.Tensor]]:
    """Returns tensors of modules other than registered parameters: buffers, and tensors nested in attributes.

    Args:
        modules: All modules of a model by path.
        attributes: Result of `list_own_attributes(modules)`, or None to compute it.

    Returns:
        (expression, tensor) pairs. An example of an expression is 'layers[0].weight'. A tensor in several
        objects is listed several times.
    """
    roots = list(list_own_attributes(modules) if attributes is None else attributes)
    for path, module in modules.items():
        prefix = f"{path}." if path else ""
        roots += [
            (prefix + name, buffer) for name, buffer in buffers_of(module).items() if buffer is not None
        ]
    roots.reverse()
    listed = {id(module) for module in modules.values()}
    return list(_list_tensors(_walk_contents(roots, skipped=listed, plain=False)))


def find_unregistered_parameters(
    modules: Mapping[str, nn.Module], other_tensors: Iterable[tuple[str, torch.Tensor]] | None = None
) -> list[tuple[str, torch.Tensor]]:
    """Returns each parameter that `parameters()` omits: one in a list, dictionary, object or buffer.

    Args:
        modules: All modules of a model by path.
        other_tensors: Result of `list_other_tensors(modules)`, or None to compute it.

    Returns:
        (expression, parameter) pairs. An example of an expression is 'layers[0].weight'.
    """
    other_tensors = list_other_tensors(modules) if other_tensors is None else other_tensors
    parameters = [(expression, tensor) for expression, tensor in other_tensors if is_parameter(tensor)]
    if not parameters:
        return []
    registered_ids = {id(p) for module in modules.values() for p in parameters_of(module).values()}
    first: dict[int, tuple[str, torch.Tensor]] = {}
    for expression, tensor in parameters:
        if id(tensor) not in registered_ids:
            first.setdefault(id(tensor), (expression, tensor))
    return list(first.values())


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter or buffer gets its shape from the first input of its module."""
    # check the common classes first: torch's `isinstance` check takes ten times as long
    return type(tensor) not in _NOT_LAZY and isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


_NOT_LAZY = frozenset((torch.Tensor, nn.Parameter))
"""Common classes of tensors that are not lazy."""


def make_plain(value: Any) -> Any:
    """Converts a value for a fact: None, numbers and text stay, tuples become lists, others text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [make_plain(v) for v in value]
    return str(value)


_MAX_NESTED = 3
"""Maximum depth of lists and dictionaries in an attribute that are restored."""


@contextmanager
def restoring_attributes(modules: Iterable[nn.Module]) -> Iterator[None]:
    """Restores the attributes of modules afterwards, with the contents of lists and dictionaries in them.

    A forward may store a result for its next call. In another analysis of these modules, the result would
    replace the work.
    """
    states = [
        (module, type(module), dict(vars(module)), _copy_containers(vars(module)))
        for module in modules
        if not isinstance(module, torch.jit.ScriptModule)
    ]
    try:
        yield
    finally:
        for module, class_, attributes, containers in states:
            if type(module) is not class_:  # a lazy module that has got its sizes
                continue
            vars(module).clear()
            vars(module).update(attributes)
            for container, contents in containers:
                if not container and not contents:
                    continue
                if isinstance(container, list):
                    container[:] = contents
                else:
                    container.clear()
                    container.update(contents)


def _copy_containers(attributes: Mapping[str, Any]) -> list[tuple[Any, Any]]:
    """Returns each list and dictionary in attributes with a copy of it."""
    containers: dict[int, tuple[Any, Any]] = {}
    values: list[Any] = list(attributes.values())
    for _ in range(_MAX_NESTED + 1):
        parts: list[Any] = []
        for value in values:
            if type(value) not in _CONTAINERS or id(value) in containers:
                continue
            containers[id(value)] = value, list(value) if type(value) is list else dict(value)
            parts += value if type(value) is list else value.values()
        values = parts
    return list(containers.values())


_CONTAINERS = frozenset((dict, OrderedDict, list))
