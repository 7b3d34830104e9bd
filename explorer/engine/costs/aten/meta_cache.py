"""Cache of meta kernels' results: torch's shape functions are slow, and models repeat.

Most of torch's meta kernels are written in Python and take more time than everything that the analysis
does itself. An operator that was asked with the same sizes before is answered as it answered then, with
fresh tensors, the same tensor or a view of it, and costs what it cost then. What is asked for the first
time is answered by `meta_shapes`, where that knows the rule, and else by torch.

Answers outlive a run: an operator's answer depends on its arguments alone. They are dropped when there
are too many.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from explorer.engine.compat.torch import schema_of, storage_key
from explorer.engine.costs.aten import data_dependent, dispatch, meta_shapes
from explorer.engine.costs.aten.call import OperatorRecord
from explorer.engine.costs.aten.expert_routing import COUNTS
from explorer.engine.formats.torch_module.modules import dtype_name, size_of
from explorer.engine.operators.cost_formulas import Cost

MOST = 20_000
"""Answers that are kept, of all operators together."""

Sizes = tuple[tuple[Any, Any, Any], ...]
"""Shape, stride and (of a fresh tensor) dtype or (of a view) distance from its source's offset."""


class AtenOperator:
    """An ATen operator: what it does to its arguments, and its answers so far.

    Attributes:
        name: Of its schema, with the namespace.
        short: Without it.
        mutates: Whether it writes to an argument.
        repeats: Whether what it returns is decided by the sizes and values of its arguments.
        auxiliary: Whether only its first result is an activation.
        gathers: Whether it reads rows of a table.
        bounded: Whether it may have to be answered by an upper bound.
        shapes: Closed form of its sizes, None if there is none.
    """

    __slots__ = (
        "answers", "auxiliary", "bounded", "gathers", "moves", "mutates", "name", "repeats", "shapes",
        "short",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = schema_of(func)
        self.name: str = schema.name
        self.short = self.name.partition("::")[2]
        self.mutates: bool = schema.is_mutable
        self.repeats = func.namespace == "aten"
        record = dispatch.operator_of(func) or OperatorRecord()
        self.moves = torch.Tag.inplace_view in func.tags or record.swaps
        self.auxiliary, self.gathers = record.auxiliary, record.lookup
        self.bounded = self.name in data_dependent.BOUNDS or self.name in COUNTS
        self.shapes: meta_shapes.Rule | None = meta_shapes.RULES.get(func)
        self.answers: dict[Hashable, MetaAnswer] = {}


class MetaAnswer:
    """What an operator returned for one signature, and what it cost.

    Attributes:
        sizes: Of the tensors that it makes; empty when it has to be called.
        kind: `FRESH`, `VIEWS`, `SAME` or `CALLED`.
        container: Type of the result when it is not a single tensor.
        cost: Of the call.
        input_sizes: Bytes of each tensor among the arguments.
        outputs: dtype, shape and bytes of each tensor of the result.
        attributes: The arguments that are not tensors, once somebody asked.
    """

    __slots__ = ("attributes", "container", "cost", "input_sizes", "kind", "outputs", "sizes")

    def __init__(
        self,
        kind: int,
        sizes: Sizes,
        container: Callable[[Any], Any] | None,
        cost: Cost,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        self.kind = kind
        self.sizes = sizes
        self.container = container
        self.cost = cost
        self.input_sizes = tuple(size_of(t) for t in inputs)
        self.outputs = tuple((dtype_name(t.dtype), tuple(t.shape), size_of(t)) for t in outputs)
        self.attributes: dict[str, Any] | None = None

    def again(self, args: Sequence[Any]) -> Any:
        """The same answer for other tensors of the same sizes; not for an answer of kind `CALLED`."""
        if self.kind == FRESH:
            tensors = [_EMPTY(s, t, dtype=d, device=_META) for s, t, d in self.sizes]
        elif self.kind == SAME:
            return args[0]
        else:
            source = args[0]
            start = source.storage_offset()
            tensors = [_VIEW(source, s, t, start + d) for s, t, d in self.sizes]
        return tensors[0] if self.container is None else self.container(tensors)


CALLED, FRESH, SAME, VIEWS = range(4)
"""Ways to answer: by calling the operator, with new tensors, with its first argument, with views of it."""

_META = torch.device("meta")
_EMPTY = torch.empty_strided
_VIEW = torch.as_strided
_OPERATORS: dict[Any, AtenOperator] = {}


def operator_of(func: Any) -> AtenOperator:
    """The operator behind an OpOverload, with its answers so far."""
    operator = _OPERATORS.get(func)
    if operator is None:
        operator = _OPERATORS[func] = AtenOperator(func)
    return operator


def forget() -> None:
    """Drops every answer."""
    for operator in _OPERATORS.values():
        operator.answers.clear()


def trim() -> None:
    """Drops every answer when there are too many."""
    if sum(len(operator.answers) for operator in _OPERATORS.values()) > MOST:
        forget()


def read(values: Any, key: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Collects the tensors among the arguments of a call, and what decides its answer.

    Args:
        values: The arguments.
        key: Takes sizes and types of tensors, type and value of everything else (1, 1.0 and True are
            equal, but not the same).
        tensors: Takes the tensors.

    Returns:
        Whether the answer is decided by `key`: False when a tensor has values.
    """
    decided = True
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter or isinstance(value, torch.Tensor):
            tensors.append(value)
            if value.is_meta:
                key += (value.shape, value.stride(), value.dtype)
            else:
                decided = False
        elif kind is list or kind is tuple:
            # lists of numbers are of one type, as the operator's schema says
            if value and type(value[0]) in _PLAIN:
                key += (type(value[0]), tuple(value))
            else:
                key.append(len(value))
                decided = read(value, key, tensors) and decided
        elif kind is torch.ScriptObject:
            # handles of native code cannot be compared
            decided = False
        else:
            key += (kind, value)
    return decided


_PLAIN = frozenset((int, float, bool))


def answered(operator: AtenOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of the operator in closed form; None if torch has to compute it."""
    if operator.shapes is None:
        return None
    sizes = operator.shapes(*args, **kwargs)
    if sizes is None:
        return None
    if isinstance(sizes, str):
        return args[0]
    tensors = [_EMPTY(s, t, dtype=d, device=_META) for s, t, d in sizes]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def remember(
    operator: AtenOperator,
    key: Hashable,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    out: Any,
    cost: Cost,
) -> MetaAnswer | None:
    """Keeps an answer for the next call with the same signature.

    Returns:
        None if the next call may answer something else.
    """
    container = type(out) if isinstance(out, (tuple, list)) else None
    parts = out if container is not None else (out,)
    if not all(isinstance(t, torch.Tensor) and t.is_meta for t in parts):
        return None
    kind, sizes = _repeated(operator, args, inputs, parts)
    outputs = parts[:1] if operator.auxiliary else parts
    answer = MetaAnswer(kind, sizes, container, cost, inputs, outputs)
    operator.answers[key] = answer
    return answer


def _repeated(
    operator: AtenOperator, args: Sequence[Any], inputs: Sequence[torch.Tensor], parts: Sequence[torch.Tensor]
) -> tuple[int, Sizes]:
    """How to answer without calling the operator, if a call has no effect but its result."""
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if len(parts) == 1 and parts[0] is source and not operator.moves:
        return SAME, ()
    if operator.mutates or any(t.is_conj() or t.is_neg() for t in parts):
        return CALLED, ()
    storages = {storage_key(t.untyped_storage()) for t in inputs}
    out_storages = {storage_key(t.untyped_storage()) for t in parts}
    if len(out_storages) == len(parts) and not out_storages & storages:
        return FRESH, tuple((t.shape, t.stride(), t.dtype) for t in parts)
    if source is None or not all(_is_view(t, source) for t in parts):
        return CALLED, ()
    start = source.storage_offset()
    return VIEWS, tuple((t.shape, t.stride(), t.storage_offset() - start) for t in parts)


def _is_view(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    return (
        tensor.dtype == source.dtype
        and storage_key(tensor.untyped_storage()) == storage_key(source.untyped_storage())
        and not source.is_conj()
        and not source.is_neg()
    )
