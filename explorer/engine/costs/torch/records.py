"""What is seen of a running nn.Module: rows, operators, parameters, and how they become facts.

The nouns that `module_trace` fills and `module` turns into the layer tree, and the small questions that
both ask of tensors, modules and calls: how large, called what, made with which arguments.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from msgspec import Struct, field
from torch import nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from explorer.engine.costs.aten.packed_weights import is_packed, unpacked
from explorer.engine.costs.formulas import Cost
from explorer.engine.costs.memory.liveness import Detail
from explorer.engine.costs.torch.data_dependence import Kind, Place
from explorer.facts import TensorInfo

__all__ = [
    "OPAQUE",
    "Event",
    "Row",
    "Stored",
    "Trace",
    "call_attributes",
    "described",
    "dtype_name",
    "flat",
    "function_inputs",
    "is_lazy",
    "is_leaf",
    "is_opaque",
    "module_inputs",
    "named",
    "parameters",
    "plain",
    "registered",
    "size_of",
    "tensors",
]

OPAQUE = (nn.MultiheadAttention,)
"""Modules with children that compute as one: attention never calls its own projection as a module."""


class Stored(Struct, frozen=True):
    """A parameter: where it lives, its name in the model, and whether it is trained."""

    identity: tuple[int, int, int]
    elements: int
    bytes: int
    owner: str
    name: str
    info: TensorInfo
    trained: bool


class Row(Struct, eq=False):
    """A leaf module or a functional operator of a module, while it is being counted.

    `sized` and `asked` say on which sizes that depend on values, and on which values, it may depend: whether
    it does, and is no exact figure (`bound`), shows when it is run in another way (`both_ways`).
    `parts` are the functional operators of a module without children, which stand for themselves when
    there are several that multiply, and are merged into the module when not.
    """

    path: str
    name: str
    kind: str
    caller: str
    module: nn.Module | None = None
    calls: int = 0
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    macs: int = 0
    elementwise: int = 0
    read: int = 0
    stored_read: int = 0
    written: int = 0
    activation: int = 0
    formulas: Counter[str] = field(default_factory=Counter)
    free: str = ""
    stored: dict[tuple[int, int, int], Stored] = field(default_factory=dict)
    bound: str = ""
    sized: str = ""
    asked: str = ""
    unknown: str = ""
    attributes: Mapping[str, Any] = field(default_factory=dict)
    parts: list[Row] = field(default_factory=list)
    operators: int = 0
    merged: Row | None = None

    def add(self, cost: Cost) -> None:
        """Adds the cost of one operator."""
        self.macs += cost.macs or 0
        self.elementwise += cost.elementwise_ops or 0
        if cost.status == "unknown":
            self.unknown = self.unknown or cost.reason
        elif cost.status == "bound":
            self.bound = self.bound or cost.reason
        if cost.macs or (cost.elementwise_ops and not self.macs):
            self.formulas[cost.formula] += 1
        elif cost.formula and not self.free:
            self.free = cost.formula


class Event(NamedTuple):
    """One ATen operator that moved bytes: its row, the storages it read, and those that it made.

    `detail` is what it does by itself, where that was asked for.
    """

    row: Row
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, TensorInfo, int], ...]
    detail: Detail | None = None


class Trace(Struct):
    """What was seen in one forward pass.

    Attributes:
        rows: In the order of their first operator.
        modules: Calls, inputs and outputs of every module by path, also of those with children.
        events: Operators in execution order.
        parameters: Every parameter by its path.
        named: Every module by the path at which it is registered first.
        result: What the model returned, None if it failed.
        failed: Path of the module or operator that failed and why, or None.
        kept: Storages of the model's outputs, in their order.
        assumed: What was assumed, and how often.
        decided: Answers to the questions whether a tensor is true.
        asked: The places of the code that asked for values.
        sized: Whether sizes that depend on values were answered.
        shared: Whether elements were shared out to classes.
        refused: It failed because the model itself raised an error.
        elsewhere: Paths of what runs only where other answers are given.
        cut: It was ended because it did too much.
        endless: The place of the code that asked for values so often that the run was ended.
    """

    rows: list[Row]
    modules: dict[str, Row]
    events: list[Event]
    parameters: dict[str, Stored]
    named: dict[str, nn.Module]
    result: Any = None
    failed: tuple[str, str] | None = None
    kept: tuple[int, ...] = ()
    assumed: Counter[str] = field(default_factory=Counter)
    decided: tuple[bool, ...] = ()
    asked: Mapping[Place, Kind] = field(default_factory=dict)
    sized: bool = False
    shared: bool = False
    refused: bool = False
    cut: bool = False
    elsewhere: frozenset[str] = frozenset()
    endless: Place | None = None


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


def described(value: Any, name: str) -> tuple[TensorInfo, ...]:
    """The tensors in `value` as facts, called `name` or `name.place`."""
    if type(value) is torch.Tensor:
        return (TensorInfo(name, dtype_name(value.dtype), tuple(value.shape), "observed"),)
    return tuple(
        TensorInfo(f"{name}.{place}" if place else name, dtype_name(t.dtype), tuple(t.shape), "observed")
        for place, t in tensors(value)
    )


def is_opaque(module: nn.Module) -> bool:
    """Whether a module computes as one although it has children."""
    return isinstance(module, OPAQUE) or is_packed(module)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one row of the tree: it has no children, or computes as one."""
    return not any(child is not None for child in module._modules.values()) or is_opaque(module)


def flat(values: Any) -> list[torch.Tensor]:
    """The tensors among the arguments of a call, also those inside lists."""
    found: list[torch.Tensor] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found.extend(flat(value))
    return found


def registered(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Every module at every path at which it is registered; torch's own walk takes ten times as long."""
    yield path, module
    for name, child in module._modules.items():
        if child is not None:
            yield from registered(child, f"{path}.{name}" if path else name)


def named(model: nn.Module) -> dict[str, nn.Module]:
    """Every module by its path, the first one where it is registered several times."""
    seen: set[int] = set()
    return {
        path: module
        for path, module in registered(model)
        if not (id(module) in seen or seen.add(id(module)))  # type: ignore[func-returns-value]
    }


def is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a parameter or buffer gets its shape from the first input that its module sees."""
    return isinstance(tensor, (UninitializedParameter, UninitializedBuffer))


def parameters(model: nn.Module) -> dict[str, Stored]:
    """Every parameter by its path, first name of a tied one first."""
    found: dict[str, Stored] = {}
    for owner, module in registered(model):
        for name, p in module._parameters.items():
            if p is None or is_lazy(p):
                continue
            identity = (p.untyped_storage()._cdata, int(p.storage_offset()), p.numel())
            info = TensorInfo(name, dtype_name(p.dtype), tuple(p.shape), "declared")
            path = f"{owner}.{name}" if owner else name
            found[path] = Stored(identity, p.numel(), p.nbytes, owner, name, info, p.requires_grad)
        if is_packed(module):
            for name, tensor in unpacked(module):
                path = f"{owner}.{name}" if owner else name
                kind = dtype_name(tensor.dtype)
                info = TensorInfo(name, kind.replace("qint", "int"), tuple(tensor.shape), "declared")
                # its memory is native code's: no storage has the negative of an address
                identity = (-id(module), len(found), tensor.numel())
                found[path] = Stored(identity, tensor.numel(), tensor.nbytes, owner, name, info, False)
    return found


def module_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[TensorInfo, ...]:
    """The tensors that go into a module, under the names that its forward gives them."""
    names = _forward_names(type(module))
    found: list[TensorInfo] = []
    for index, value in enumerate(args):
        found.extend(described(value, names[index] if index < len(names) else f"input{index}"))
    for name, value in kwargs.items():
        found.extend(described(value, name))
    return tuple(found)


_FORWARD_NAMES: dict[type, tuple[str, ...]] = {}


def _forward_names(kind: type[nn.Module]) -> tuple[str, ...]:
    """Names of the positional parameters of a module's forward."""
    names = _FORWARD_NAMES.get(kind)
    if names is None:
        try:
            parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
        except (TypeError, ValueError):
            parameters = []
        names = tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))
        _FORWARD_NAMES[kind] = names
    return names


def function_inputs(
    args: Any, kwargs: Any, is_weight: Callable[[torch.Tensor], bool]
) -> tuple[TensorInfo, ...]:
    """The tensors that go into a function, without the parameters among them."""
    given = [t for t in flat(args) + flat(tuple(kwargs.values())) if not is_weight(t)]
    return tuple(
        TensorInfo(
            "input" if len(given) == 1 else f"input.{i}", dtype_name(t.dtype), tuple(t.shape), "observed"
        )
        for i, t in enumerate(given)
    )


def call_attributes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator that are not tensors, by their names in its schema."""
    found: dict[str, Any] = {}
    for index, argument in enumerate(func._schema.arguments):
        if index >= len(args) and argument.name not in kwargs:
            continue
        value = args[index] if index < len(args) else kwargs[argument.name]
        if value is None or isinstance(value, torch.Tensor) or flat((value,)):
            continue
        if argument.has_default_value() and value == argument.default_value:
            continue
        found[argument.name] = plain(value)
    return found


def plain(value: Any) -> Any:
    """A value that can go into a fact: numbers, text, lists of them; anything else as text."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (tuple, list)):
        return [plain(v) for v in value]
    return str(value)
