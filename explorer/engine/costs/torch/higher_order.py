"""Runs torch's higher-order operators (`cond`, `while_loop`, `scan`, `map`, flex_attention) as plain Python.

torch dispatches such an operator as one call that contains functions. Running the functions here lets the
tracer see their operators. If a value decides a branch or the end of a loop, it is queried like any other
value of the model: the costlier branch counts, and a loop without a known end runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from explorer.engine.compat.torch import find_dense_kernel, get_flex_attention_in_parts, leaves


class LoopObserver(Protocol):
    """Observer of the steps of a loop."""

    def step(self) -> None:
        """Begins a step; the operators of all steps belong to the same rows."""

    def assume_end(self) -> None:
        """Records that the loop is assumed to end here, because a value decides whether it continues."""


def run(operator: Any, loop: LoopObserver, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Runs the functions that a higher-order operator is called with, and returns the operator's result.

    Args:
        operator: An operator of `torch.ops.higher_order`.
        loop: Observer of the steps of a loop.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.

    Raises:
        RuntimeError: The operator is unknown.
    """
    implementation = _IMPLEMENTATIONS.get(operator.__name__)
    if implementation is not None:
        return implementation(loop, *args, **kwargs)
    kernel = find_dense_kernel(operator)
    if kernel is None:
        raise RuntimeError(f"the higher-order operator {operator.__name__} is not supported")
    return kernel(*args, **kwargs)


def _run_branch(
    loop: LoopObserver, pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()
) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def _run_loop(
    loop: LoopObserver,
    cond_fn: Any,
    body_fn: Any,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    carried = tuple(carried_inputs)
    for next_carried in _iterate(loop, cond_fn, body_fn, carried, additional_inputs):
        carried = next_carried  # keep the last values only; there may be thousands of rounds
    return carried


def _run_stacking_loop(
    loop: LoopObserver,
    cond_fn: Any,
    body_fn: Any,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    carried = tuple(carried_inputs)
    rounds = list(_iterate(loop, cond_fn, body_fn, carried, additional_inputs)) or [carried]
    return _stack_columns(rounds)


def _iterate(
    loop: LoopObserver, cond_fn: Any, body_fn: Any, carried: tuple[Any, ...], additional: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """Yields the carried values after each round of a loop; a loop that ends by a value runs once."""
    was_undecided = False
    while True:
        loop.step()
        (continues,) = leaves(
            cond_fn(*carried, *additional)
        )  # the graph of an exported program gives a tuple
        is_undecided = isinstance(continues, torch.Tensor) and continues.is_meta
        if is_undecided and was_undecided:
            loop.assume_end()
            return
        if not continues:
            return
        was_undecided = is_undecided
        carried = tuple(body_fn(*carried, *additional))
        yield carried


def _run_scan(
    loop: LoopObserver,
    combine_fn: Any,
    init: Sequence[Any],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """Runs a loop over the first axis of tensors; returns the final carried values and stacked outputs.

    Raises:
        RuntimeError: The axis is empty.
    """
    carried, rows = list(init), []
    for index in range(xs[0].shape[0]):
        loop.step()
        outputs = leaves(combine_fn(*carried, *(x.select(0, index) for x in xs), *additional_inputs))
        carried, row = outputs[: len(carried)], outputs[len(carried) :]
        rows.append(row)
    if not rows:
        raise RuntimeError("a scan over no elements has results of unknown sizes")
    return (*carried, *_stack_columns(rows))


def _run_map(
    loop: LoopObserver, f: Any, xs: Sequence[torch.Tensor], pos_args: Sequence[Any] = (), **options: Any
) -> Any:
    rows = []
    for index in range(xs[0].shape[0]):
        loop.step()
        rows.append(f(*(x.select(0, index) for x in xs), *pos_args))
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows)
    return type(rows[0])(_stack_columns(rows))


def _stack_columns(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Stacks each column of equal-length rows into a tensor; without tensors, its last value is kept."""
    columns = zip(*rows, strict=True)
    return tuple(
        torch.stack(column) if isinstance(column[0], torch.Tensor) else column[-1] for column in columns
    )


def _run_flex_attention(loop: LoopObserver, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Computes attention whose scores a function modifies; all scores are computed, as in uncompiled torch.

    The output has the memory layout of the query, so that the heads can be merged without a copy.
    """
    output, *auxiliary = get_flex_attention_in_parts()(query, *args, **kwargs)
    order = sorted(range(query.dim()), key=lambda axis: query.stride(axis), reverse=True)
    return torch.empty_permuted(output.shape, order, dtype=output.dtype, device=output.device).copy_(
        output
    ), *auxiliary


_IMPLEMENTATIONS: Mapping[str, Callable[..., Any]] = {
    "cond": _run_branch,
    "while_loop": _run_loop,
    "while_loop_stack_output": _run_stacking_loop,
    "scan": _run_scan,
    "map_impl": _run_map,
    "flex_attention": _run_flex_attention,
}
"""Replacements for operators whose torch code disables tracing, or whose steps need separate records."""

AS_ONE = frozenset(("flex_attention",))
"""Operators that form a single row, including the functions that they call."""
