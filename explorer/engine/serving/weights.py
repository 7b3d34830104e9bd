"""Parameters of a language model by the module that holds them: those a token multiplies with, or reads.

A module that multiplies fewer times than it has weights uses a part of them for each token: experts. A module
with two-dimensional weights that multiplies with none of them looks rows up in a table.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from torch import nn

from explorer.engine.compat.torch import parameters_of
from explorer.engine.costs.decode.module_cache import text_config
from explorer.engine.formats.torch_module.modules import registered
from explorer.engine.formats.torch_module.stored_form import StoredForm, of_own
from explorer.facts import Layer
from explorer.facts.serving.serving import ServedPart

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


class WeightHolder(Struct, frozen=True):
    """A module and the parameters that it holds itself.

    Attributes:
        path: The path under which it is registered first.
        kind: Its class.
        params: Elements of its parameters, without those shared with an earlier module.
        weight_bytes: Bytes of these, in the files' types where they come from files.
        dtypes: Their stored types.
        used: Share of its weights with which one token is multiplied; 1 if it multiplies with none.
        table: It looks rows up.
        idle: A step leaves it out: an encoder, or a tower for another kind of input.
        read: Bytes that one token reads of it, shared parameters included.
        macs: Multiply-accumulates of one token.
        experts: Number of experts in its stack; 1 if it is no stack.
    """

    path: str
    kind: str
    params: int
    weight_bytes: int
    dtypes: tuple[str, ...]
    used: float
    table: bool
    idle: bool
    read: float
    macs: int
    experts: int

    @property
    def routed(self) -> bool:
        """Whether a token uses a part of it only."""
        return self.used < 1


def holders(model: nn.Module, layers: Mapping[str, Layer]) -> tuple[WeightHolder, ...]:
    """The modules of a model that hold parameters, in the order of their registration.

    Args:
        model: On the meta device.
        layers: Rows of the tree of one decode step, groups included, by path.
    """
    all_own = {path: (module, of_own(module)) for path, module in registered(model)}
    idle_paths = {path for path in all_own if (row := layers.get(path)) is not None and _is_idle(row)}
    # a shared parameter is counted at the module that runs with it
    run = {id(p) for path, (_, parameters) in all_own.items() if path not in idle_paths for p in parameters}
    seen_ids: set[int] = set()
    weight_holders = []
    for path, (module, parameters) in all_own.items():
        if not parameters:
            continue
        idle = path in idle_paths
        new = [p for p in parameters if id(p) not in seen_ids and not (idle and id(p) in run)]
        seen_ids.update(map(id, new))
        row = layers.get(path)
        macs = (row.macs if row is not None else 0) or 0
        matrices = sum(p.numel() for p in parameters if p.dim() > 1)
        nbytes = sum(storage.nbytes for storage in parameters.values())
        table = not macs and bool(matrices) and isinstance(module, nn.Embedding)
        # convolutions and tied weights multiply more often than once; a bias of experts is no matrix
        used = min(1.0, macs / _multiplying(parameters)) if macs and matrices else 1.0
        read = 0 if idle else _row_bytes(parameters) if table else used * nbytes
        weight_holders.append(
            WeightHolder(
                path,
                type(module).__name__,
                sum(p.numel() for p in new),
                sum(parameters[p].nbytes for p in new),
                tuple(dict.fromkeys(parameters[p].dtype for p in new)),
                used if used < _WHOLE else 1.0,
                table,
                idle,
                read,
                macs,
                next(iter(parameters)).shape[0] if used < _WHOLE else 1,
            )
        )
    return tuple(weight_holders)


def _is_idle(row: Layer) -> bool:
    """Whether nothing of it runs; modules that are not called may have parts that are."""
    return not row.calls and not (row.macs or row.elementwise_ops)


_WHOLE = 0.95
"""Share from which on a module counts as using all of its weights: a few may be for other passes."""


def _multiplying(parameters: Collection[nn.Parameter]) -> int:
    """Elements of the weights that a product takes: of stacks of experts those stacks alone."""
    rank = max(p.dim() for p in parameters)
    return sum(p.numel() for p in parameters if p.dim() == rank)


def _row_bytes(parameters: Mapping[nn.Parameter, StoredForm]) -> int:
    return sum(storage.nbytes // p.shape[0] for p, storage in parameters.items() if p.shape[0])


def read_bytes(all_holders: tuple[WeightHolder, ...], tokens: int, *, encoder: bool = False) -> float:
    """Bytes of weights that a pass over `tokens` tokens reads, each weight once.

    Experts are assumed to be drawn evenly and independently for each token: of E experts, k per token, n
    tokens read E (1 - (1 - k/E)^n) on average.

    Args:
        all_holders: All of a model.
        tokens: Tokens of the pass.
        encoder: The pass also runs the encoder, which a step leaves out.
    """
    total = 0.0
    for holder in all_holders:
        if holder.idle:
            total += holder.weight_bytes if encoder else 0
        elif holder.table:
            total += holder.read * tokens
        elif holder.routed:
            total += holder.read / holder.used * (1 - (1 - holder.used) ** tokens)
        else:
            total += holder.read
    return total


def parts(all_holders: tuple[WeightHolder, ...]) -> tuple[ServedPart, ...]:
    """The parts of a model: holders grouped by their path without numbers, in order."""
    grouped: dict[tuple[str, str], list[WeightHolder]] = {}
    for holder in all_holders:
        if holder.params:
            grouped.setdefault((_NUMBER.sub("*", holder.path), holder.kind), []).append(holder)
    return tuple(
        [
            ServedPart(
                name,
                kind,
                len(members),
                sum(holder.params for holder in members),
                sum(active(holder) for holder in members),
                sum(holder.weight_bytes for holder in members),
                ", ".join(dict.fromkeys(dtype for holder in members for dtype in holder.dtypes)),
            )
            for (name, kind), members in grouped.items()
        ]
    )


def all_experts(model: nn.Module, all_holders: Sequence[WeightHolder]) -> list[str]:
    """A note on code that multiplies each token with all experts, although its router selects a few.

    Args:
        model: The model.
        all_holders: All of its holders.
    """
    config = text_config(model)
    many = _setting(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    few = _setting(config, "num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k")
    if not few or few >= many or any(holder.routed for holder in all_holders):
        return []
    stacks = [
        p
        for holder in all_holders
        for p in parameters_of(model.get_submodule(holder.path)).values()
        if p is not None and p.dim() > 2 and p.shape[0] == many
    ]
    if not stacks:
        return []
    active_params = (
        sum(active(holder) for holder in all_holders) - sum(p.numel() for p in stacks) * (many - few) // many
    )
    return [
        f"its code multiplies each token with all {many} experts, and its router takes {few}: engines that"
        f" work with those alone have {active_params:,} active parameters"
    ]


def _setting(config: object, *names: str) -> int:
    """The first of these settings that is a whole number; 0 for none."""
    values = (getattr(config, name, None) for name in names)
    return next((n for n in values if isinstance(n, int)), 0)


def active(holder: WeightHolder) -> int:
    """Parameters of a holder that one token works with."""
    return 0 if holder.idle else round(holder.params * holder.used)


def block_of(path: str) -> int | None:
    """The number of the layer that a path is in; None outside of layers."""
    match_ = _NUMBER.search(path)
    return int(match_.group()) if match_ else None
