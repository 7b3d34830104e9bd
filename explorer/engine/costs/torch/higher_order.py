"""Higher-order operators of torch (`cond`, `while_loop`, `scan`, `map`, flex_attention), run as plain Python.

torch hands such an operator over whole, with its functions. Here the functions run, so that whoever watches
sees their operators. A branch or the end of a loop that a value decides is asked for like any other value of
the model: a branch runs both ways and the one that costs more counts, a loop without a known end runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch

from explorer.engine.compat.torch import dense_kernel, flex_attention_in_parts, leaves


class LoopObserver(Protocol):
    """The listener for the steps of a loop."""

    def step(self) -> None:
        """A step begins: the operators of all steps belong to the same rows."""

    def cut(self) -> None:
        """Ends the loop: only a value decides whether it goes on."""


def run(operator: Any, loop: LoopObserver, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What a higher-order operator returns, computed by the functions that it is called with.

    Args:
        operator: One of `torch.ops.higher_order`.
        loop: Told of the steps of a loop.
        args: Of the call.
        kwargs: Of the call.

    Raises:
        RuntimeError: The operator is unknown.
    """
    way = _WAYS.get(operator.__name__)
    if way is not None:
        return way(loop, *args, **kwargs)
    kernel = dense_kernel(operator)
    if kernel is None:
        raise RuntimeError(f"the higher-order operator {operator.__name__} is not supported")
    return kernel(*args, **kwargs)


def _branch(loop: LoopObserver, pred: Any, true_fn: Any, false_fn: Any, operands: Sequence[Any] = ()) -> Any:
    return true_fn(*operands) if pred else false_fn(*operands)


def _loop(
    loop: LoopObserver,
    cond_fn: Any,
    body_fn: Any,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    carried = tuple(carried_inputs)
    for after in _rounds(loop, cond_fn, body_fn, carried, additional_inputs):
        carried = after  # keep only the last of thousands of rounds
    return carried


def _stacking_loop(
    loop: LoopObserver,
    cond_fn: Any,
    body_fn: Any,
    carried_inputs: Sequence[Any],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    carried = tuple(carried_inputs)
    rounds = list(_rounds(loop, cond_fn, body_fn, carried, additional_inputs)) or [carried]
    return _stacked(rounds)


def _rounds(
    loop: LoopObserver, cond_fn: Any, body_fn: Any, carried: tuple[Any, ...], more: Sequence[Any]
) -> Iterator[tuple[Any, ...]]:
    """The carried values after each round of a loop."""
    was_open = False
    while True:
        loop.step()
        (goes_on,) = leaves(cond_fn(*carried, *more))  # the graph of an exported program gives a tuple
        open_end = isinstance(goes_on, torch.Tensor) and goes_on.is_meta
        if open_end and was_open:
            loop.cut()
            return
        if not goes_on:
            return
        was_open = open_end
        carried = tuple(body_fn(*carried, *more))
        yield carried


def _scan(
    loop: LoopObserver,
    combine_fn: Any,
    init: Sequence[Any],
    xs: Sequence[torch.Tensor],
    additional_inputs: Sequence[Any] = (),
    **options: Any,
) -> Any:
    """A loop over the first axis of tensors: the carried values at the end, and the output of each step."""
    carried, rows = list(init), []
    for at in range(xs[0].shape[0]):
        loop.step()
        outputs = leaves(combine_fn(*carried, *(x.select(0, at) for x in xs), *additional_inputs))
        carried, row = outputs[: len(carried)], outputs[len(carried) :]
        rows.append(row)
    if not rows:
        raise RuntimeError("a scan over no elements has results of unknown sizes")
    return (*carried, *_stacked(rows))


def _map(
    loop: LoopObserver, f: Any, xs: Sequence[torch.Tensor], pos_args: Sequence[Any] = (), **options: Any
) -> Any:
    rows = []
    for at in range(xs[0].shape[0]):
        loop.step()
        rows.append(f(*(x.select(0, at) for x in xs), *pos_args))
    if isinstance(rows[0], torch.Tensor):
        return torch.stack(rows)
    return type(rows[0])(_stacked(rows))


def _stacked(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """The columns of equally long rows, each as one tensor; None stays None."""
    columns = zip(*rows, strict=True)
    return tuple(
        torch.stack(column) if isinstance(column[0], torch.Tensor) else column[-1] for column in columns
    )


def _flex_attention(loop: LoopObserver, query: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    """Attention with a score that a function changes: all scores are made, as outside of the compiler.

    The output lies in memory as the query does, so that the heads are put together without a copy.
    """
    output, *rest = flex_attention_in_parts()(query, *args, **kwargs)
    order = sorted(range(query.dim()), key=lambda axis: query.stride(axis), reverse=True)
    return torch.empty_permuted(output.shape, order, dtype=output.dtype, device=output.device).copy_(
        output
    ), *rest


_WAYS: Mapping[str, Callable[..., Any]] = {
    "cond": _branch,
    "while_loop": _loop,
    "while_loop_stack_output": _stacking_loop,
    "scan": _scan,
    "map_impl": _map,
    "flex_attention": _flex_attention,
}
"""How operators run whose own code asks that nobody watches, or whose steps are to be told apart."""

AS_ONE = frozenset(("flex_attention",))
"""Operators that are one row, whatever functions they are called with."""
