"""Detail of one operator, which no row of the tree says: what it reads, writes and goes over."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import torch

from explorer.engine.costs.aten import live, meta_cache
from explorer.engine.costs.aten.call import OperatorRecord
from explorer.engine.costs.memory.liveness import Detail, TensorAccess


def detail_of(
    func: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    given: Sequence[torch.Tensor],
    made: Sequence[torch.Tensor],
    known: meta_cache.MetaAnswer,
    stored: Container[int],
) -> Detail:
    """What one operator does by itself.

    Args:
        func: The ATen operator.
        args: As it was called.
        kwargs: As it was called.
        given: The tensors among these.
        made: Those that it gave.
        known: What is known of such a call.
        stored: Storages that hold no activations.
    """
    operator = live.operator_of(func) or OperatorRecord()
    reads: list[TensorAccess | None] = []
    for at, (t, size) in enumerate(zip(given, known.given, strict=True)):
        key = t.untyped_storage()._cdata
        gathers = at == 0 and operator.lookup
        if not seen_among(t, given[:at]):
            size = known.made[0][2] if gathers and known.made else size
            reads.append(TensorAccess(key, tuple(t.shape), size, key in stored))
    results = [
        TensorAccess(t.untyped_storage()._cdata, shape, size)
        for t, (_, shape, size) in zip(made, known.made, strict=True)
    ]
    return Detail(
        func._schema.name,
        known.cost.macs,
        known.cost.elementwise_ops,
        tuple(reads),
        tuple(results),
        pointwise=torch.Tag.pointwise in func.tags,
        causal=bool(live.call_of(func, args, kwargs, None).get("is_causal")),
        axes=_axes(args) if operator.position in ("normalise", "softmax") else (),
    )


def _axes(args: Sequence[Any]) -> tuple[int, ...]:
    """The axes that a softmax (its dim) or a normalisation (its shape) goes over."""
    rank = args[0].dim() if args else 0
    if len(args) < 2 or not rank:
        return ()
    if isinstance(args[1], int):
        return (args[1] % rank,)
    return tuple(range(rank - len(args[1]), rank)) if isinstance(args[1], (list, tuple)) else ()


def seen_among(tensor: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether one of the others is the same view of the same memory."""
    key, place = tensor.untyped_storage()._cdata, (tensor.storage_offset(), tensor.shape, tensor.stride())
    return any(
        t is tensor
        or (t.untyped_storage()._cdata == key and (t.storage_offset(), t.shape, t.stride()) == place)
        for t in others
    )
