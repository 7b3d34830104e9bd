"""Defines data types for the trace of a running nn.Module: rows, operator events, parameters.

`tracer` fills them, and `analyse` turns them into the layer tree.
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
from explorer.engine.costs.assumption import is_assumption
from explorer.engine.costs.aten.packed_weights import count_bytes, unpack_weights
from explorer.engine.costs.torch.data_dependence import CodePlace, Kind, Variation
from explorer.engine.formats.byte_ranges import MANY_RUNS, TensorView, find_pieces, is_dense
from explorer.engine.formats.torch_module.modules import (
    collect_tensors,
    describe_tensors,
    flatten_tensors,
    format_dtype,
    is_lazy,
    make_plain,
    walk_modules,
)
from explorer.engine.formats.torch_module.stored_form import StoredForm, read_stored_forms
from explorer.engine.operators.cost_formulas import Cost, pick_bound
from explorer.facts import TensorInfo

OPAQUE = (nn.MultiheadAttention,)
"""Modules with children that count as leaves: attention never calls its output projection as a module."""


Piece = tuple[Hashable, int, int]
"""A part of the stored memory: identity (counted once), number of elements, bytes."""


class ModuleParameter(Struct, frozen=True):
    """A parameter: identity of its memory, its name in the model, and whether it is trained.

    `pieces` are the parts of its memory, if it shares only some of it with other parameters. `bounded` is
    True if the sizes of the pieces are upper bounds.
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
        """The stored pieces, each counted once; several for a view of another parameter's memory."""
        return self.pieces or ((self.identity, self.elements, self.bytes),)


class Row(Struct, eq=False):
    """A leaf module, or a functional operator of a module, while its costs are added up.

    A module without children may contain several functional operators. They become rows of their own if
    several of them multiply; otherwise they are merged into the module's row.

    Attributes:
        path, name, kind: Path, display name, and module class or function.
        caller: Path of the module that calls it.
        module: The leaf module, or None for a functional operator.
        calls: Number of calls.
        inputs, outputs: Tensors of the first call.
        macs, elementwise: Operations of all calls.
        read, written: Bytes read and bytes written.
        stored_read: Bytes of `read` that belong to parameters and buffers.
        activation: Bytes of the results.
        formulas: Number of operators by formula.
        free: Formula of an operator without operations, or ''.
        stored: Parameters that it uses, by identity.
        bound: Reason why the figures are not exact, or ''.
        size_assumption: Assumption about value-dependent sizes that may affect it, or ''.
        value_assumption: Assumption about queried values that may affect it, or ''. `branch_outcomes` runs
            the model with other answers. If figures change, it copies the responsible assumption to `bound`.
        unknown: Reason why the cost is unknown, or ''.
        attributes: Attributes to show.
        parts: Functional operators of a module without children.
        operators: Number of ATen operators.
        merged: Row that this row was merged into, or None.
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
    size_assumption: str = ""
    value_assumption: str = ""
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
            self.bound = pick_bound(self.bound, cost.reason)
        if cost.macs or (cost.elementwise_ops and not self.macs):
            self.formulas[cost.formula] += 1
        elif cost.formula and not self.free:
            self.free = cost.formula


class OperatorEvent(NamedTuple):
    """One ATen operator that moved bytes: its row, the storages that it read, and its outputs.

    An output is its storage, its description and the bytes of the storage.
    """

    row: Row
    inputs: tuple[int, ...]
    outputs: tuple[tuple[int, TensorInfo, int], ...]


class TensorTrail:
    """Records, in order, which rows read and produce which tensors; edges are computed on demand.

    A tensor is identified by its object if code passes it on unchanged, and by its memory if a row may have
    written into it through a view.
    """

    def __init__(self) -> None:
        self.events: list[tuple[Row, Literal["reads", "makes", "writes"], Sequence[torch.Tensor]]] = []

    def record_reads(
        self, row: Row, args: Sequence[Any], kwargs: Mapping[str, Any], index: int | None = None
    ) -> None:
        """Records the tensors that a row reads, as the event at `index` (None: after all other events)."""
        read_tensors = _copy_tensors(args) if not kwargs else _copy_tensors((args, kwargs))
        self.events.insert(len(self.events) if index is None else index, (row, "reads", read_tensors))

    def record_outputs(self, row: Row, value: Any) -> None:
        """Records that a row produces the tensors in `value`."""
        self.events.append((row, "makes", (value,) if type(value) is torch.Tensor else _copy_tensors(value)))

    def record_writes(self, row: Row, value: Any) -> None:
        """Records that a row writes into the memory of the tensors in `value`."""
        self.events.append((row, "writes", _copy_tensors(value)))


def _copy_tensors(value: Any) -> Sequence[torch.Tensor]:
    """Returns the tensors in arguments or results, copied because the caller may change a list later."""
    if type(value) is tuple and all([type(part) is torch.Tensor for part in value]):  # noqa: C419 (a list is twice as fast)
        return value
    return collect_tensors(value)


class Trace(Struct):
    """The record of one forward pass.

    Attributes:
        rows: Rows in the order of their first operator.
        modules: Calls, inputs and outputs of every module by path, parents included.
        events: Operators in execution order.
        parameters: Every parameter by its path.
        named: Every module by the path at which it is registered first.
        result: Return value of the model, or None if it failed.
        failed: Path of the failed module or operator, and the error; or None.
        kept: Storages of the model's outputs, in order.
        assumed: Assumptions, and how often each was made.
        decided: Answers to the queries whether a tensor is true.
        queries: Code places that queried values, with the kind of the query.
        has_assumed_sizes: Whether a value-dependent size was assumed.
        divides_classes: Whether elements were divided among classes.
        refused: Whether the model's own code raised the error.
        is_fault: Whether the model would fail with real tensors too, such as after a wrong input shape.
        variations: Reasons why another call of the model may differ from this run.
        modes: Whether the run left each of `named` in training mode.
        elsewhere: Paths of rows that this run lacks, because they run only if a query has another answer.
        was_cut_short: Whether the run was ended because it had too many operators.
        endless: Code place that queried values so often that the run was ended, or None.
        trail: Record of the tensors that rows read and produced.
        inputs: Tensors that the model was called with.
        unseen: Name of the unseen work and the reason, by the path of the module that contains it.
        outsiders: Unregistered parameters in use, named by the object that holds them or the row that uses
            them.
        mode: Mode in which the modules started.
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
    queries: Mapping[CodePlace, Kind] = field(default_factory=dict)
    has_assumed_sizes: bool = False
    divides_classes: bool = False
    variations: tuple[Variation, ...] = ()
    modes: Sequence[bool] = ()
    refused: bool = False
    is_fault: bool = False
    was_cut_short: bool = False
    elsewhere: frozenset[str] = frozenset()
    endless: CodePlace | None = None
    trail: TensorTrail = field(default_factory=TensorTrail)
    inputs: Sequence[torch.Tensor] = ()
    unseen: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    outsiders: Sequence[TensorInfo] = ()
    mode: Literal["evaluation", "training"] = "evaluation"


def is_opaque(module: nn.Module) -> bool:
    """Whether a module with children counts as one leaf."""
    return isinstance(module, OPAQUE) or is_packed(module)


def is_leaf(module: nn.Module) -> bool:
    """Whether a module is one row of the tree: it has no children, or `is_opaque`."""
    return not any(child is not None for child in children_of(module).values()) or is_opaque(module)


def list_parameters(model: nn.Module) -> dict[str, ModuleParameter]:
    """Returns every parameter by its path, and the weights that a packed or compiled module holds.

    Parameters without a shape yet (lazy ones) are left out. The names of a tied parameter are in the order of
    registration.
    """
    by_path: dict[str, ModuleParameter] = {}
    strided: dict[int, list[tuple[str, nn.Parameter]]] = {}
    for owner, module in walk_modules(model):
        stored_forms = read_stored_forms(module)
        for name, p in parameters_of(module).items():
            if p is None or is_lazy(p):
                continue
            identity = _identify(p)
            form = stored_forms.get(name) or StoredForm(format_dtype(p.dtype), p.nbytes)
            info = TensorInfo(name, form.dtype, tuple(p.shape), "declared")
            path = f"{owner}.{name}" if owner else name
            by_path[path] = ModuleParameter(
                identity, p.numel(), form.nbytes, owner, name, info, p.requires_grad
            )
            if p.layout is torch.strided:
                strided.setdefault(identity[0], []).append((path, p))
        if is_packed(module) or isinstance(module, torch.jit.ScriptModule):
            for index, (name, tensor) in enumerate(unpack_weights(module)):
                path = f"{owner}.{name}" if owner else name
                dtype_name = format_dtype(tensor.dtype)
                info = TensorInfo(name, dtype_name.replace("qint", "int"), tuple(tensor.shape), "declared")
                # native code owns its memory; a negative number is never the address of a storage
                identity = (-id(module), index, tensor.numel())
                by_path[path] = ModuleParameter(
                    identity, tensor.numel(), count_bytes(tensor), owner, name, info, False
                )
    views: dict[str, TensorView] = {}
    for storage, tensors in strided.items():
        if len(tensors) == 1 and tensors[0][1].is_contiguous():
            continue  # most parameters share no memory
        for path, parameter in tensors:
            width = parameter.element_size()
            geometry = by_path[path].identity[1] * width, width, tuple(parameter.shape), parameter.stride()
            views[path] = TensorView(storage, *geometry, by_path[path].bytes)
    bounded: set[str] = set()
    for path, pieces in find_pieces(views, bounded).items():
        by_path[path] = replace(by_path[path], pieces=pieces)
    by_path.update({path: replace(by_path[path], bounded=True) for path in bounded})
    return by_path


def list_bound_notes(parameters: Mapping[str, ModuleParameter]) -> tuple[str, ...]:
    """Returns a note if memory that parameters share cannot be divided exactly, else an empty tuple."""
    name = next((name for name, parameter in parameters.items() if parameter.bounded), None)
    return () if name is None else (MANY_RUNS.format(name=name),)


def collect_trained_pieces(parameters: Iterable[ModuleParameter]) -> set[Hashable]:
    """Returns the identities of all pieces of trained parameters."""
    return {identity for p in parameters if p.trained for identity, _, _ in p.stored}


def _identify(tensor: torch.Tensor) -> tuple[int, int, int]:
    """Returns the identity of a parameter: its storage, its offset in it, and a number for its layout.

    The number is the number of elements, or a hash of shape and strides if the elements have gaps.
    """
    layout = tensor.numel()
    is_strided = tensor.layout is torch.strided
    if is_strided and not tensor.is_contiguous() and not is_dense(tensor.shape, tensor.stride()):
        layout = hash((tuple(tensor.shape), tensor.stride()))
    return storage_key(tensor.untyped_storage()), int(tensor.storage_offset()), layout


def describe_module_inputs(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[TensorInfo, ...]:
    """Returns the input tensors of a module, named after the parameters of its forward."""
    names = _list_forward_parameters(type(module))  # type: ignore[arg-type]
    infos: list[TensorInfo] = []
    for index, value in enumerate(args):
        infos.extend(describe_tensors(value, names[index] if index < len(names) else f"input{index}"))
    for name, value in kwargs.items():
        infos.extend(describe_tensors(value, name))
    return tuple(infos)


@cache
def _list_forward_parameters(kind: type[nn.Module]) -> tuple[str, ...]:
    """Returns the names of the positional parameters of a module's forward."""
    try:
        parameters = list(inspect.signature(kind.forward).parameters.values())[1:]
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD))


def describe_function_inputs(
    args: Any, kwargs: Any, is_weight: Callable[[torch.Tensor], bool]
) -> tuple[TensorInfo, ...]:
    """Returns the input tensors of a function, without parameters of the model."""
    inputs = [t for t in flatten_tensors(args) + flatten_tensors(tuple(kwargs.values())) if not is_weight(t)]
    return tuple(
        TensorInfo(
            "input" if len(inputs) == 1 else f"input.{i}", format_dtype(t.dtype), tuple(t.shape), "observed"
        )
        for i, t in enumerate(inputs)
    )


def read_call_attributes(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Returns an operator's non-tensor arguments that differ from their defaults, by their schema names."""
    attributes: dict[str, Any] = {}
    for index, argument in enumerate(schema_of(func).arguments):
        if index >= len(args) and argument.name not in kwargs:
            continue
        value = args[index] if index < len(args) else kwargs[argument.name]
        if value is None or isinstance(value, torch.Tensor) or flatten_tensors((value,)):
            continue
        if argument.has_default_value() and value == argument.default_value:
            continue
        attributes[argument.name] = make_plain(value)
    return attributes


def merge(part: Row, target: Row) -> None:
    """Adds the figures of `part` to `target`, except for its calls.

    The activations of a module are its own results, so those of `part` are added to a functional row only.
    """
    part.merged = target
    target.macs += part.macs
    target.elementwise += part.elementwise
    target.read += part.read
    target.stored_read += part.stored_read
    target.written += part.written
    target.stored.update(part.stored)
    target.formulas.update(part.formulas)
    target.free = target.free or part.free
    target.bound = part.bound if is_assumption(part.bound) else pick_bound(target.bound, part.bound)
    target.unknown = target.unknown or part.unknown
    target.operators += part.operators
    if target.module is None:
        target.activation += part.activation
