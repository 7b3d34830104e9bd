"""Trace of a running nn.Module: its rows, operators and parameters, and how they become facts.

The nouns that `tracer` fills and `analyse` turns into the layer tree.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, NamedTuple

import torch
from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn

from explorer.engine.compat.torch import children_of, is_packed, parameters_of, schema_of, storage_key
from explorer.engine.costs.aten.packed_weights import nbytes_of, unpacked
from explorer.engine.costs.torch.data_dependence import CodePlace, Kind
from explorer.engine.formats.byte_ranges import MANY_RUNS, TensorView, is_dense, pieces
from explorer.engine.formats.torch_module.modules import (
    described,
    dtype_name,
    flat,
    is_lazy,
    plain,
    registered,
    tensors_in,
)
from explorer.engine.formats.torch_module.stored_form import StoredForm, of_module
from explorer.engine.operators.cost_formulas import Cost
from explorer.facts import TensorInfo

OPAQUE = (nn.MultiheadAttention,)
"""Modules with children that compute as one: attention never calls its own projection as a module."""


Piece = tuple[Hashable, int, int]
"""A part of what is stored: what counts it once, its elements, its bytes."""


class ModuleParameter(Struct, frozen=True):
    """A parameter: where it lives, its name in the model, and whether it is trained.

    `pieces` are parts of its memory, where it shares only some of it with other parameters; `bounded` says
    that they are at most these.
    """

    identity: tuple[int, int, int]
    elements: int
    bytes: int
    owner: str
    name: str
    info: TensorInfo
    trained: bool
    pieces: tuple[Piece, ...] = ()
    bounded: bool = False

    @property
    def stored(self) -> tuple[Piece, ...]:
        """What it stores, in pieces that count once: more than one where it is a view of another's memory."""
        return self.pieces or ((self.identity, self.elements, self.bytes),)


class Row(Struct, eq=False):
    """A leaf module or a functional operator of a module, while it is being counted.

    `sized` and `asked` say on which sizes that depend on values, and on which values, it may depend: whether
    it does, and is no exact figure (`bound`), shows when it is run in another way (`branch_outcomes`).
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
    stored: dict[tuple[int, int, int], ModuleParameter] = field(default_factory=dict)
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


class OperatorEvent(NamedTuple):
    """One ATen operator that moved bytes: its row, the storages it read, and those that it made."""

    row: Row
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, TensorInfo, int], ...]


class TensorTrail:
    """Which rows read and made which tensors, in order; the edges are computed when they are needed.

    A tensor is identified by its object, which code that does not change it passes on, and by its memory,
    which may have been written into through a view.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Row, Literal["reads", "makes", "writes"], Sequence[torch.Tensor]]] = []

    def reads(self, row: Row, args: Sequence[Any], kwargs: Mapping[str, Any], at: int | None = None) -> None:
        """A row reads the tensors it is called with; `at` is the event at which it began, if past."""
        read_tensors = _tensors_now(args) if not kwargs else _tensors_now((args, kwargs))
        self.events.insert(len(self.events) if at is None else at, (row, "reads", read_tensors))

    def makes(self, row: Row, value: Any) -> None:
        """A row hands out the tensors in `value`."""
        self.events.append((row, "makes", (value,) if type(value) is torch.Tensor else _tensors_now(value)))

    def writes(self, row: Row, value: Any) -> None:
        """A row writes into the memory of the tensors in `value`."""
        self.events.append((row, "writes", _tensors_now(value)))


def _tensors_now(value: Any) -> Sequence[torch.Tensor]:
    """The tensors in arguments or results, copied now: a list may change later."""
    if type(value) is tuple and all([type(part) is torch.Tensor for part in value]):  # noqa: C419 (half the time)
        return value
    return tensors_in(value)


class Trace(Struct):
    """The record of one forward pass.

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
        trail: Who read and made which tensors.
        inputs: What the model was called with.
        unseen: What to call work that was not seen, and why it was not, by the path of the module around it.
        outsiders: Parameters in use that belong to no module, called by where they are held or used.
    """

    rows: list[Row]
    modules: dict[str, Row]
    events: list[OperatorEvent]
    parameters: dict[str, ModuleParameter]
    named: dict[str, nn.Module]
    result: Any = None
    failed: tuple[str, str] | None = None
    kept: tuple[int, ...] = ()
    assumed: Counter[str] = field(default_factory=Counter)
    decided: tuple[bool, ...] = ()
    asked: Mapping[CodePlace, Kind] = field(default_factory=dict)
    sized: bool = False
    shared: bool = False
    refused: bool = False
    cut: bool = False
    elsewhere: frozenset[str] = frozenset()
    endless: CodePlace | None = None
    trail: TensorTrail = field(default_factory=TensorTrail)
    inputs: Sequence[torch.Tensor] = ()
    unseen: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    outsiders: Sequence[TensorInfo] = ()


def is_opaque(module: nn.Module) -> bool:
    """Whether a module computes as one although it has children."""
    return isinstance(module, OPAQUE) or is_packed(module)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one row of the tree: it has no children, or computes as one."""
    return not any(child is not None for child in children_of(module).values()) or is_opaque(module)


def parameters(model: nn.Module) -> dict[str, ModuleParameter]:
    """Every parameter by its path, first name of a tied one first."""
    by_path: dict[str, ModuleParameter] = {}
    strided: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for owner, module in registered(model):
        stored_forms = of_module(module)
        for name, p in parameters_of(module).items():
            if p is None or is_lazy(p):
                continue
            identity = _identity(p)
            form = stored_forms.get(name) or StoredForm(dtype_name(p.dtype), p.nbytes)
            info = TensorInfo(name, form.dtype, tuple(p.shape), "declared")
            path = f"{owner}.{name}" if owner else name
            by_path[path] = ModuleParameter(
                identity, p.numel(), form.nbytes, owner, name, info, p.requires_grad
            )
            if p.layout is torch.strided:
                strided.setdefault(identity[0], []).append((path, p))
        if is_packed(module) or isinstance(module, torch.jit.ScriptModule):
            for name, tensor in unpacked(module):
                path = f"{owner}.{name}" if owner else name
                kind = dtype_name(tensor.dtype)
                info = TensorInfo(name, kind.replace("qint", "int"), tuple(tensor.shape), "declared")
                # native code owns its memory; a negative number is no address of a storage
                identity = (-id(module), len(by_path), tensor.numel())
                by_path[path] = ModuleParameter(
                    identity, tensor.numel(), nbytes_of(tensor), owner, name, info, False
                )
    views: dict[str, TensorView] = {}
    for storage, tensors in strided.items():
        if len(tensors) == 1 and tensors[0][1].is_contiguous():
            continue  # most parameters share their memory with no other
        for path, parameter in tensors:
            width = parameter.element_size()
            place = by_path[path].identity[1] * width, width, tuple(parameter.shape), parameter.stride()
            views[path] = TensorView(storage, *place, by_path[path].bytes)
    bounded: set[str] = set()
    for path, own_pieces in pieces(views, bounded).items():
        by_path[path] = replace(by_path[path], pieces=own_pieces)
    by_path.update({path: replace(by_path[path], bounded=True) for path in bounded})
    return by_path


def bound_note(parameters: Mapping[str, ModuleParameter]) -> tuple[str, ...]:
    """A note where memory that parameters share cannot be divided exactly; else empty."""
    name = next((name for name, parameter in parameters.items() if parameter.bounded), None)
    return () if name is None else (MANY_RUNS.format(name=name),)


def trained(parameters: Iterable[ModuleParameter]) -> set[Hashable]:
    """The identities of the pieces of trained parameters, each once."""
    return {identity for p in parameters if p.trained for identity, _, _ in p.stored}


def _identity(tensor: torch.Tensor) -> tuple[int, int, int]:
    """The identity of a parameter: its storage, its offset in it, and its layout."""
    form = tensor.numel()
    is_strided = tensor.layout is torch.strided
    if is_strided and not tensor.is_contiguous() and not is_dense(tensor.shape, tensor.stride()):
        form = hash((tuple(tensor.shape), tensor.stride()))
    return storage_key(tensor.untyped_storage()), int(tensor.storage_offset()), form


def module_inputs(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[TensorInfo, ...]:
    """The tensors that go into a module, under the names that its forward gives them."""
    names = _forward_names(type(module))  # type: ignore[arg-type]
    infos: list[TensorInfo] = []
    for index, value in enumerate(args):
        infos.extend(described(value, names[index] if index < len(names) else f"input{index}"))
    for name, value in kwargs.items():
        infos.extend(described(value, name))
    return tuple(infos)


@cache
def _forward_names(kind: type[nn.Module]) -> tuple[str, ...]:
    """Names of the positional parameters of a module's forward."""
    try:
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def function_inputs(
    args: Any, kwargs: Any, is_weight: Callable[[torch.Tensor], bool]
) -> tuple[TensorInfo, ...]:
    """The tensors that go into a function, without the parameters among them."""
    inputs = [t for t in flat(args) + flat(tuple(kwargs.values())) if not is_weight(t)]
    return tuple(
        TensorInfo(
            "input" if len(inputs) == 1 else f"input.{i}", dtype_name(t.dtype), tuple(t.shape), "observed"
        )
        for i, t in enumerate(inputs)
    )


def call_attributes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of an operator that are not tensors, by their names in its schema."""
    attributes: dict[str, Any] = {}
    for index, argument in enumerate(schema_of(func).arguments):
        if index >= len(args) and argument.name not in kwargs:
            continue
        value = args[index] if index < len(args) else kwargs[argument.name]
        if value is None or isinstance(value, torch.Tensor) or flat((value,)):
            continue
        if argument.has_default_value() and value == argument.default_value:
            continue
        attributes[argument.name] = plain(value)
    return attributes
