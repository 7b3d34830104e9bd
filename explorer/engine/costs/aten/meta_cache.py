"""Caches the results of meta kernels, because torch's shape functions are slow and models repeat their calls.

Most of torch's meta kernels are Python code that takes longer than the rest of the analysis. A call with the
same sizes as an earlier one gets the earlier answer (new tensors, the same tensor, or a view) and the earlier
cost. For a first call, `meta_shapes` computes the result if it has a rule; otherwise torch does.

Answers depend on the arguments only, so they are kept between runs, up to a maximum number.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import torch

from explorer.engine.compat.torch import is_zero_tensor, schema_of, storage_key
from explorer.engine.costs.aten import data_dependent, dispatch, meta_shapes
from explorer.engine.costs.aten.call import OperatorRecord
from explorer.engine.costs.aten.expert_routing import COUNTS
from explorer.engine.formats.torch_module.modules import format_dtype, size_of
from explorer.engine.operators.cost_formulas import Cost

MAX_ANSWERS = 20_000
"""Maximum number of answers of all operators together."""

TensorLayouts = tuple[tuple[Any, Any, Any], ...]
"""Layouts of result tensors.

A new tensor has a shape, strides and a dtype. A view has a shape, strides and an offset from the start of its
source.
"""

_NUMBER_TYPES = frozenset((int, float, bool))

_NAMESPACES = frozenset(("aten", "prim", "prims", "profiler", "inductor", "c10d", "_c10d_functional"))
"""Namespaces of operators that torch defines. Operators without a result are checks, and cost nothing."""


class AtenOperator:
    """An ATen operator: its effect on its arguments, and its answers so far.

    Attributes:
        name: Name in the schema, with the namespace.
        short: Name without the namespace.
        changes_layout: Whether it changes the size or the storage of an argument that it returns.
        mutates: Whether it writes to an argument.
        is_repeatable: Whether sizes and values of the arguments determine its result.
        has_one_activation: Whether only its first result is an activation; further results are for the
            backward pass.
        gathers: Whether it reads rows of a table.
        is_bounded: Whether its result may have to be replaced by an upper bound.
        is_random: Whether it draws random numbers.
        is_foreign: Whether another library defines it, and no rule has its cost.
        layout_rule: Rule that computes the layouts of its results from its arguments, or None.
        answers: Earlier results by signature.
    """

    __slots__ = (
        "answers", "changes_layout", "gathers", "has_one_activation", "is_bounded", "is_foreign", "is_random",
        "is_repeatable", "layout_rule", "mutates", "name", "short",
    )  # fmt: skip

    def __init__(self, func: Any) -> None:
        schema = schema_of(func)
        self.name: str = schema.name
        self.short = self.name.partition("::")[2]
        self.mutates: bool = schema.is_mutable
        self.is_repeatable = func.namespace == "aten"
        self.is_random = torch.Tag.nondeterministic_seeded in func.tags
        self.is_foreign = func.namespace not in _NAMESPACES and dispatch.find_operator(func) is None
        record = dispatch.find_operator(func) or OperatorRecord()
        self.changes_layout = torch.Tag.inplace_view in func.tags or record.replaces_storage
        self.has_one_activation, self.gathers = record.has_one_activation, record.gathers
        self.is_bounded = self.name in data_dependent.BOUNDS or self.name in COUNTS
        self.layout_rule: meta_shapes.Rule | None = meta_shapes.RULES.get(func)
        self.answers: dict[Hashable, MetaAnswer] = {}


class MetaAnswer:
    """The result of an operator for one signature, and its cost.

    Attributes:
        layouts: Layouts of the tensors to create, or empty if the operator has to be called.
        kind: `FRESH`, `VIEWS`, `SAME` or `CALLED`.
        container: Type of the result, or None if it is a single tensor.
        cost: Cost of the call.
        input_bytes: Bytes of each tensor argument.
        outputs: dtype, shape and bytes of each result tensor.
        attributes: Non-tensor arguments, or None until they are requested.
    """

    __slots__ = ("attributes", "container", "cost", "input_bytes", "kind", "layouts", "outputs")

    def __init__(
        self,
        kind: int,
        layouts: TensorLayouts,
        container: Callable[[Any], Any] | None,
        cost: Cost,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[torch.Tensor],
    ) -> None:
        self.kind = kind
        self.layouts = layouts
        self.container = container
        self.cost = cost
        self.input_bytes = tuple(size_of(t) for t in inputs)
        self.outputs = tuple((format_dtype(t.dtype), tuple(t.shape), size_of(t)) for t in outputs)
        self.attributes: dict[str, Any] | None = None

    def replay(self, args: Sequence[Any]) -> Any:
        """Creates the same result for other tensors of the same sizes; not for the kind `CALLED`."""
        if self.kind == FRESH:
            tensors = [
                _EMPTY(shape, strides, dtype=dtype, device=_META) for shape, strides, dtype in self.layouts
            ]
        elif self.kind == SAME:
            return args[0]
        else:
            source = args[0]
            start = source.storage_offset()
            tensors = [
                _VIEW(source, shape, strides, start + offset) for shape, strides, offset in self.layouts
            ]
        return tensors[0] if self.container is None else self.container(tensors)


CALLED, FRESH, SAME, VIEWS = range(4)
"""Kinds of answers: call the operator, new tensors, its first argument, views of its first argument."""

_META = torch.device("meta")
_EMPTY = torch.empty_strided
_VIEW = torch.as_strided
_OPERATORS: dict[Any, AtenOperator] = {}


def get_operator(func: Any) -> AtenOperator:
    """Returns the operator of an OpOverload, with its answers so far."""
    operator = _OPERATORS.get(func)
    if operator is None:
        operator = _OPERATORS[func] = AtenOperator(func)
    return operator


def clear_answers() -> None:
    """Removes every answer."""
    for operator in _OPERATORS.values():
        operator.answers.clear()


def limit_answers() -> None:
    """Removes every answer if there are more than `MAX_ANSWERS`."""
    if sum(len(operator.answers) for operator in _OPERATORS.values()) > MAX_ANSWERS:
        clear_answers()


def read_arguments(values: Any, key: list[Any], tensors: list[torch.Tensor]) -> bool:
    """Collects the tensor arguments of a call, and everything that determines its result.

    Args:
        values: Arguments of the call.
        key: Receives sizes and dtypes of tensors, and type and value of other arguments (1, 1.0 and True are
            equal, but differ as arguments).
        tensors: Receives the tensors.

    Returns:
        Whether `key` determines the result; False if a tensor has values.
    """
    is_determined = True
    for value in values:
        kind = type(value)
        if kind is torch.Tensor or kind is torch.nn.Parameter or isinstance(value, torch.Tensor):
            tensors.append(value)
            if value.is_meta:
                key += (value.shape, value.stride(), value.dtype)
            else:
                is_determined = False
        elif kind is list or kind is tuple:
            # the numbers in a list have one type, as the operator's schema states
            if value and type(value[0]) in _NUMBER_TYPES:
                key += (type(value[0]), tuple(value))
            else:
                key.append(len(value))
                is_determined = read_arguments(value, key, tensors) and is_determined
        elif kind is torch.ScriptObject:
            # handles of native code are not comparable
            is_determined = False
        else:
            key += (kind, value)
    return is_determined


def compute_result(operator: AtenOperator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Returns the result of the operator in closed form, or None if torch has to compute it."""
    if operator.layout_rule is None:
        return None
    layouts = operator.layout_rule(*args, **kwargs)
    if layouts is None:
        return None
    if isinstance(layouts, str):  # `meta_shapes.SAME`
        return args[0]
    tensors = [_EMPTY(shape, strides, dtype=dtype, device=_META) for shape, strides, dtype in layouts]
    return tensors[0] if len(tensors) == 1 else tuple(tensors)


def store_answer(
    operator: AtenOperator,
    key: Hashable,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    result: Any,
    cost: Cost,
) -> MetaAnswer | None:
    """Stores an answer for later calls with the same signature.

    Returns:
        The answer, or None if a later call may have another result.
    """
    container = type(result) if isinstance(result, (tuple, list)) else None
    results = result if container is not None else (result,)
    if not all(isinstance(tensor, torch.Tensor) and tensor.is_meta for tensor in results):
        return None
    kind, layouts = _choose_replay(operator, args, inputs, results)
    outputs = results[:1] if operator.has_one_activation else results
    answer = MetaAnswer(kind, layouts, container, cost, inputs, outputs)
    operator.answers[key] = answer
    return answer


def _choose_replay(
    operator: AtenOperator,
    args: Sequence[Any],
    inputs: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
) -> tuple[int, TensorLayouts]:
    """Returns the kind of the answer, and the layouts of the tensors that `replay` creates.

    The kind is `CALLED` if `replay` cannot create the result, or if the call also has an effect.
    """
    source = args[0] if args and isinstance(args[0], torch.Tensor) else None
    if len(results) == 1 and results[0] is source and not operator.changes_layout:
        return SAME, ()
    if operator.mutates or any(t.is_conj() or t.is_neg() or is_zero_tensor(t) for t in results):
        return CALLED, ()
    if any(not t.dim() and t.untyped_storage().nbytes() > size_of(t) for t in results):
        return CALLED, ()  # a loss, which keeps the memory of its elements
    input_storages = {storage_key(t.untyped_storage()) for t in inputs}
    result_storages = {storage_key(t.untyped_storage()) for t in results}
    if len(result_storages) == len(results) and not result_storages & input_storages:
        return FRESH, tuple((t.shape, t.stride(), t.dtype) for t in results)
    if source is None or not all(_is_view(t, source) for t in results):
        return CALLED, ()
    start = source.storage_offset()
    return VIEWS, tuple((t.shape, t.stride(), t.storage_offset() - start) for t in results)


def _is_view(tensor: torch.Tensor, source: torch.Tensor) -> bool:
    return (
        tensor.dtype == source.dtype
        and storage_key(tensor.untyped_storage()) == storage_key(source.untyped_storage())
        and not source.is_conj()
        and not source.is_neg()
    )
