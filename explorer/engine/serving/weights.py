"""Counts the parameters of a language model by module, and the share of them that one token uses.

A module that multiplies fewer times than it has weights holds experts: each token uses a part of the weights.
An embedding module that multiplies nothing is a table: each token reads one row.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from msgspec import Struct
from torch import nn

from explorer.engine.compat.torch import parameters_of
from explorer.engine.costs.decode.module_cache import get_text_config
from explorer.engine.formats.torch_module.modules import walk_modules
from explorer.engine.formats.torch_module.stored_form import StoredForm, read_own_forms
from explorer.facts import Layer
from explorer.facts.serving.serving import ServedPart

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
"""A part of a path that is a number, such as the number of a layer."""


class WeightHolder(Struct, frozen=True):
    """A module and the parameters that are registered on the module itself.

    Attributes:
        path: First path under which the module is registered.
        kind: Class name of the module.
        params: Elements of the module's parameters, without those shared with an earlier module.
        weight_bytes: Bytes of these elements, in the type of the file if they come from a file.
        dtypes: Stored types of these elements.
        used: Share of the weights that one token is multiplied with, or 1 if the module multiplies nothing.
        table: Whether the module looks rows up.
        idle: Whether a step does not run the module: an encoder, or a tower for another kind of input.
        read: Bytes that one token reads of the module, shared parameters included.
        macs: Multiply-accumulates of one token.
        experts: Number of experts in the module's stack, or 1 if the module is not a stack.
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
        """Whether a token uses only a part of the weights."""
        return self.used < 1


def list_holders(model: nn.Module, layers: Mapping[str, Layer]) -> tuple[WeightHolder, ...]:
    """Returns the modules of a model that hold parameters, in the order of their registration.

    Args:
        model: The model on the meta device.
        layers: Rows of the layer tree of one decode step, groups included, by path.
    """
    forms_by_path = {path: (module, read_own_forms(module)) for path, module in walk_modules(model)}
    idle_paths = {path for path in forms_by_path if (row := layers.get(path)) is not None and _is_idle(row)}
    # a shared parameter is counted at the module that runs with it
    used_ids = {
        id(p) for path, (_, parameters) in forms_by_path.items() if path not in idle_paths for p in parameters
    }
    seen_ids: set[int] = set()
    weight_holders = []
    for path, (module, parameters) in forms_by_path.items():
        if not parameters:
            continue
        is_idle = path in idle_paths
        new_parameters = [
            p for p in parameters if id(p) not in seen_ids and not (is_idle and id(p) in used_ids)
        ]
        seen_ids.update(map(id, new_parameters))
        row = layers.get(path)
        macs = (row.macs if row is not None else 0) or 0
        matrices = sum(p.numel() for p in parameters if p.dim() > 1)
        nbytes = sum(storage.nbytes for storage in parameters.values())
        is_embedding_table = not macs and bool(matrices) and isinstance(module, nn.Embedding)
        # at most 1, because convolutions and tied weights multiply more than once; biases are not counted
        used = min(1.0, macs / _count_matrix_elements(parameters)) if macs and matrices else 1.0
        read = 0 if is_idle else _count_row_bytes(parameters) if is_embedding_table else used * nbytes
        weight_holders.append(
            WeightHolder(
                path=path,
                kind=type(module).__name__,
                params=sum(p.numel() for p in new_parameters),
                weight_bytes=sum(parameters[p].nbytes for p in new_parameters),
                dtypes=tuple(dict.fromkeys(parameters[p].dtype for p in new_parameters)),
                used=used if used < _FULL_USE else 1.0,
                table=is_embedding_table,
                idle=is_idle,
                read=read,
                macs=macs,
                experts=next(iter(parameters)).shape[0] if used < _FULL_USE else 1,
            )
        )
    return tuple(weight_holders)


def _is_idle(row: Layer) -> bool:
    """Whether the step runs no part of a module. A module may run in parts without being called."""
    return not row.calls and not (row.macs or row.elementwise_ops)


_FULL_USE = 0.95
"""Share of used weights above which a module counts as using all its weights. The rest may serve other
passes."""


def _count_matrix_elements(parameters: Collection[nn.Parameter]) -> int:
    """Counts the elements of the weights with the most dimensions: matrices, or stacks of expert matrices."""
    rank = max(p.dim() for p in parameters)
    return sum(p.numel() for p in parameters if p.dim() == rank)


def _count_row_bytes(parameters: Mapping[nn.Parameter, StoredForm]) -> int:
    """Returns the stored bytes of one row of each parameter."""
    return sum(storage.nbytes // p.shape[0] for p, storage in parameters.items() if p.shape[0])


def count_read_bytes(all_holders: tuple[WeightHolder, ...], tokens: int, *, encoder: bool = False) -> float:
    """Returns the bytes of weights that a pass over `tokens` tokens reads, each weight once.

    Experts are assumed to be drawn evenly and independently for each token. With E experts and k per token, n
    tokens read E (1 - (1 - k/E)^n) experts on average.

    Args:
        all_holders: All weight holders of a model.
        tokens: Number of tokens of the pass.
        encoder: Whether the pass also runs the encoder, which a step leaves out.
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


def group_holders(all_holders: tuple[WeightHolder, ...]) -> tuple[ServedPart, ...]:
    """Groups the holders of a model into parts: holders whose paths differ only in numbers, in order."""
    grouped: dict[tuple[str, str], list[WeightHolder]] = {}
    for holder in all_holders:
        if holder.params:
            grouped.setdefault((_NUMBER.sub("*", holder.path), holder.kind), []).append(holder)
    return tuple(
        [
            ServedPart(
                name=name,
                kind=kind,
                count=len(members),
                params=sum(holder.params for holder in members),
                active=sum(count_active(holder) for holder in members),
                weight_bytes=sum(holder.weight_bytes for holder in members),
                dtype=", ".join(dict.fromkeys(dtype for holder in members for dtype in holder.dtypes)),
            )
            for (name, kind), members in grouped.items()
        ]
    )


def describe_all_experts(model: nn.Module, all_holders: Sequence[WeightHolder]) -> list[str]:
    """Returns a note if the code multiplies each token with all experts although its router selects a few.

    Args:
        model: The model.
        all_holders: All weight holders of the model.
    """
    config = get_text_config(model)
    experts = _read_setting(config, "num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    experts_per_token = _read_setting(config, "num_experts_per_tok", "moe_topk", "moe_top_k", "moe_k")
    if not experts_per_token or experts_per_token >= experts or any(holder.routed for holder in all_holders):
        return []
    stacks = [
        p
        for holder in all_holders
        for p in parameters_of(model.get_submodule(holder.path)).values()
        if p is not None and p.dim() > 2 and p.shape[0] == experts
    ]
    if not stacks:
        return []
    active_params = (
        sum(count_active(holder) for holder in all_holders)
        - sum(p.numel() for p in stacks) * (experts - experts_per_token) // experts
    )
    return [
        f"its code multiplies each token with all {experts} experts, and its router takes"
        f" {experts_per_token}:"
        f" engines that compute only those experts have {active_params:,} active parameters"
    ]


def _read_setting(config: object, *names: str) -> int:
    """Returns the first of the named settings that is a whole number, or 0."""
    values = (getattr(config, name, None) for name in names)
    return next((n for n in values if isinstance(n, int)), 0)


def count_active(holder: WeightHolder) -> int:
    """Returns the number of parameters of a holder that one token uses."""
    return 0 if holder.idle else round(holder.params * holder.used)


def find_layer_number(path: str) -> int | None:
    """Returns the number of the layer that contains a path, or None outside layers."""
    number = _NUMBER.search(path)
    return int(number.group()) if number else None
