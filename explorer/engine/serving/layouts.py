"""Layouts of a served model over devices: cut layers (tensor), stages (pipeline), shared experts (expert).

The model's own class says which weights a tensor-parallel layout cuts (transformers' plan of columns and
rows). All-reduce of a row-cut product sends 2 (t - 1) / t of its output from each device (a ring). Where
experts are distributed, (e - 1) / e of their inputs and outputs are sent each way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from explorer.engine.costs.decode.module_cache import text_config
from explorer.engine.serving.bounds import PassWork
from explorer.engine.serving.weights import WeightHolder, block_of
from explorer.engine.split.partition import best_cuts
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import DeviceLayout, DeviceShare, ServingLimit


class Block(Struct, frozen=True):
    """One layer of the model, or the part before or behind all layers, for one sequence and one step.

    Attributes:
        dense: Bytes of weights that no plan cuts.
        cut: Bytes of weights that a tensor-parallel layout divides.
        number: Number of the layer; 0 where it has none.
        table: Bytes of tables, of which a step reads one row per token, and of idle weights.
        row: Bytes of such rows.
        idle: Bytes of weights that only an encoder's pass over a prompt reads.
        table_cut: Whether a layout divides it.
        experts: Bytes of stacks of experts.
        shared: Share of the stacks that one token reads.
        macs: Multiply-accumulates of a step, without the experts'.
        expert_macs: Multiply-accumulates of the experts.
        cache: Bytes of the cache.
        cache_cut: Whether its heads can be cut.
        reduced: Products whose output is summed over devices.
        routed: Tokens that leave for experts: experts a token.
        prompt_macs: Multiply-accumulates of a prompt.
        prompt_cache: Bytes of the cache after a prompt.
    """

    number: int = 0
    dense: float = 0.0
    cut: float = 0.0
    table: float = 0.0
    row: float = 0.0
    idle: float = 0.0
    table_cut: bool = False
    experts: float = 0.0
    shared: float = 1.0
    macs: float = 0.0
    expert_macs: float = 0.0
    cache: float = 0.0
    cache_cut: bool = False
    reduced: int = 0
    routed: int = 0
    prompt_macs: float = 0.0
    prompt_cache: float = 0.0


class PassOfLayers(Struct, frozen=True):
    """The work of the layers in one pass over one sequence.

    Attributes:
        macs: Multiply-accumulates by the number of the layer; None for the part outside of layers.
        cache: Bytes of the cache, by layer.
    """

    macs: Mapping[int | None, float]
    cache: Mapping[int, float]


class LayerCuts:
    """How the layers of a model may be cut.

    Args:
        model: On the meta device.
        holders: Its holders of weights.
    """

    def __init__(self, model: nn.Module, holders: Sequence[WeightHolder]) -> None:
        self.model = model
        self.holders = holders
        self.style = cache(self._style)
        self.refused = cache(self._refused)
        self._weights: dict[float, list[dict[str, Any]]] = {}
        plan: Mapping[str, str] = getattr(model, "tp_plan", None) or {}
        self._plan = [
            (re.compile(re.escape(name).replace(r"\*", r"[^.]+")), style)
            for name, style in plan.items()
            if "colwise" in style or "rowwise" in style
        ]

    def _style(self, path: str) -> str:
        """How the plan cuts the weights of a module: 'colwise', 'rowwise' or '' for not at all."""
        for pattern, style in self._plan:
            if pattern.fullmatch(path) or pattern.fullmatch(f"{path}.gate_up_proj"):
                return "rowwise" if "rowwise" in style else "colwise"
        return ""

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the layers, in order."""
        return sorted({n for holder in self.holders if (n := block_of(holder.path)) is not None}) or [0]

    @cached_property
    def cut_keys(self) -> frozenset[int | None]:
        """Numbers of the layers whose keys and values the plan cuts."""
        cut = [
            holder.path
            for holder in self.holders
            if self.style(holder.path) == "colwise" and holder.path.endswith(("k_proj", "v_proj", "qkv_proj"))
        ]
        return frozenset(map(block_of, cut))

    def of_weights(self, scale: float) -> list[dict[str, Any]]:
        """Sums of the weights of each layer, as arguments of `Block`; the caller may change them.

        Args:
            scale: Factor for their bytes.
        """
        if scale not in self._weights:
            numbers = self.numbers
            places = {number: at for at, number in enumerate(numbers)}
            sums = self._weights[scale] = [{"number": number} for number in numbers]
            for holder in self.holders:
                number = block_of(holder.path)
                at = places[number] if number is not None else 0 if holder.table else len(numbers) - 1
                _add(sums[at], holder, self.style(holder.path), scale)
        return [dict(sums_of_block) for sums_of_block in self._weights[scale]]

    @cached_property
    def planned(self) -> bool:
        """Whether the plan cuts layers, and not only tables and heads."""
        return any(self.style(holder.path) for holder in self.holders if block_of(holder.path) is not None)

    def _refused(self, tensor: int) -> str:
        """The reason why layers cannot be cut into `tensor` parts; '' if they can."""
        if tensor == 1:
            return ""
        if not self.planned:
            return f"{type(self.model).__name__} has no plan by which its layers are cut"
        config = text_config(self.model)
        heads = getattr(config, "num_attention_heads", None)
        if isinstance(heads, int) and heads % tensor:
            return f"{heads} heads do not divide by {tensor}"
        for holder in self.holders:
            style = self.style(holder.path)
            module = self.model.get_submodule(holder.path)
            if not style or not isinstance(module, nn.Linear):
                continue
            size = module.out_features if style == "colwise" else module.in_features
            if size % tensor and block_of(holder.path) is not None:
                return f"the {size} of {holder.path} do not divide by {tensor}"
        return ""

    @cached_property
    def kv_heads(self) -> int:
        """Heads of keys and values; 1 if the configuration does not say."""
        config = text_config(self.model)
        heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
        return heads if isinstance(heads, int) and heads > 0 else 1

    @cached_property
    def hidden(self) -> int:
        """Width of the values between layers; 0 if the configuration does not say."""
        width = getattr(text_config(self.model), "hidden_size", 0)
        return width if isinstance(width, int) else 0


def blocks(cuts: LayerCuts, step: PassOfLayers, prompt: PassOfLayers, scale: float) -> tuple[Block, ...]:
    """The layers of a model in order; embedding tables belong to the first, heads to the last.

    Args:
        cuts: The cuts that the model allows.
        step: A decode step; its multiply-accumulates exclude those with weights.
        prompt: The pass over the prompt; all of its multiply-accumulates.
        scale: Factor for the bytes of weights, where they are stored in another type.
    """
    numbers = cuts.numbers
    places = {number: at for at, number in enumerate(numbers)}
    sums = cuts.of_weights(scale)
    for layers_pass, name, outside in ((step, "macs", 0), (prompt, "prompt_macs", len(numbers) - 1)):
        for layer, macs in layers_pass.macs.items():
            at = places.get(layer, 0) if layer is not None else outside
            sums[at][name] = sums[at].get(name, 0.0) + macs
    for layers_pass, name in ((step, "cache"), (prompt, "prompt_cache")):
        for layer, size in layers_pass.cache.items():
            at = min(max(layer, 0), len(numbers) - 1)
            sums[at][name] = sums[at].get(name, 0.0) + size
            sums[at]["cache_cut"] = numbers[at] in cuts.cut_keys
    return tuple([Block(**arguments) for arguments in sums])


def _add(block: dict[str, Any], holder: WeightHolder, style: str, scale: float) -> None:
    size = holder.weight_bytes * scale
    if holder.routed:
        kind, macs = "experts", "expert_macs"
        block["shared"] = holder.used
        block["routed"] = max(block.get("routed", 0), round(holder.used * holder.experts))
    elif holder.table or holder.idle:
        kind, macs = "table", "macs"
        block["table_cut"] = bool(style)
        block["row"] = block.get("row", 0.0) + holder.read * scale
        block["idle"] = block.get("idle", 0.0) + (size if holder.idle else 0.0)
    else:
        kind, macs = "cut" if style else "dense", "macs"
    block[kind] = block.get(kind, 0.0) + size
    block[macs] = block.get(macs, 0.0) + holder.macs
    if style == "rowwise" and not holder.table:
        block["reduced"] = block.get("reduced", 0) + 1


class LayoutContext(Struct, frozen=True):
    """The data that all layouts of one question share.

    Attributes:
        cuts: The cuts that the model allows.
        blocks: The layers.
        context, batch: Context and batch of the step.
        machine: Each device; None gives no times.
        card: Bytes of a device's memory.
        links: Bytes per second between devices.
        item: Bytes of an element of the values between layers.
        prompt: Tokens of the prompt of each sequence; 0 where it is not counted by layer.
        encoder: Whether an encoder reads the prompt.
    """

    cuts: LayerCuts
    blocks: tuple[Block, ...]
    context: int
    batch: int
    machine: Machine | None
    card: int | None
    links: float | None
    item: int
    prompt: int = 0
    encoder: bool = False


def layouts(laid: LayoutContext, devices: int) -> tuple[list[DeviceLayout], list[str]]:
    """Every layout over `devices` devices, and the reasons why others are impossible."""
    device_layouts, refused = [], []
    routed = max((block.routed for block in laid.blocks), default=0)
    stacks = max((round(block.routed / block.shared) for block in laid.blocks if block.routed), default=1)
    for tensor in _divisors(devices):
        why = laid.cuts.refused(tensor)
        if why:
            refused.append(why)
            continue
        for expert in _divisors(devices // tensor):
            pipeline = devices // tensor // expert
            if pipeline > len(laid.blocks) or (expert > 1 and (not routed or stacks % expert)):
                continue
            device_layouts.append(_layout(laid, tensor, pipeline, expert))
    return device_layouts, refused


def _divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _layout(laid: LayoutContext, tensor: int, pipeline: int, expert: int) -> DeviceLayout:
    weights = [_weights(block, tensor, expert) for block in laid.blocks]
    cached = [_cache(laid, block, block.cache, tensor) * laid.batch / expert for block in laid.blocks]
    stages = _stages([w + c for w, c in zip(weights, cached, strict=True)], pipeline)
    # the batch goes through the pipeline in this many pieces, one behind the other
    pieces = min(laid.batch, pipeline)
    works = [_step(laid, laid.blocks[a:b], tensor, expert, laid.batch / pieces) for a, b in stages]
    if pipeline > 1:
        handed = laid.batch / pieces / expert * laid.cuts.hidden * laid.item
        works[:-1] = [replace(work, links=work.links + handed) for work in works[:-1]]
    least = _least(laid, works)
    shares = []
    for (a, b), work, (seconds, limit) in zip(stages, works, least, strict=True):
        first, last = laid.blocks[a].number, laid.blocks[b - 1].number
        held_bytes = round(sum(weights[a:b])), round(sum(cached[a:b]))
        sent, busy = round(work.links * pieces), None if seconds is None else seconds * pieces
        shares.append(DeviceShare(tensor * expert, first, last, *held_bytes, sent, busy, limit))
    once, slowest, limit = _through(least)
    begun, why = _first_token(laid, stages, tensor, expert)
    # stages idle while a token goes through all of them, unless each stage has a piece of its own
    token = None if once is None or slowest is None else max(once, pieces * slowest)
    full = max(shares, key=lambda share: share.weight_bytes + share.cache_bytes)
    return DeviceLayout(
        laid.context,
        laid.batch,
        tensor * pipeline * expert,
        tensor,
        pipeline,
        expert,
        full.weight_bytes,
        full.cache_bytes,
        None if laid.card is None else full.weight_bytes + full.cache_bytes <= laid.card,
        max(share.link_bytes for share in shares),
        token,
        laid.batch / token if token else None,
        limit,
        begun,
        why,
        tuple(shares),
    )


_Least = tuple[float | None, ServingLimit]


def _least(laid: LayoutContext, works: Sequence[PassWork]) -> list[_Least]:
    return [work.least(laid.machine, laid.links) for work in works]


def _through(least: Sequence[_Least]) -> tuple[float | None, float | None, ServingLimit]:
    """Seconds of a piece through all stages, seconds of the slowest stage, and the limit of that stage."""
    timed = [(seconds, limit) for seconds, limit in least if seconds is not None]
    if len(timed) < len(least):
        return None, None, "unknown"
    slowest, limit = max(timed, key=lambda pair: pair[0])
    return sum(seconds for seconds, _ in timed), slowest, limit


def _first_token(laid: LayoutContext, stages: Sequence[tuple[int, int]], tensor: int, expert: int) -> _Least:
    """Seconds until all prompts are read: together by a single stage, one behind the other by several."""
    if not laid.prompt:
        return None, "unknown"
    pieces = laid.batch if len(stages) > 1 else 1
    each = laid.batch / pieces
    works = [_prompts(laid, laid.blocks[a:b], tensor, expert, each) for a, b in stages]
    if len(stages) > 1:
        handed = each / expert * laid.prompt * laid.cuts.hidden * laid.item
        works[:-1] = [replace(work, links=work.links + handed) for work in works[:-1]]
    once, slowest, limit = _through(_least(laid, works))
    return None if once is None or slowest is None else once + (pieces - 1) * slowest, limit


def _stages(sizes: Sequence[float], count: int) -> list[tuple[int, int]]:
    """The stages, as ranges of layers, whose largest stage is smallest."""
    if count == 1:
        return [(0, len(sizes))]
    sums = np.array(sizes)
    cuts = best_cuts(
        len(sizes),
        [0] * count,
        lambda kind, first: np.cumsum(sums[first:]),
        [0] * len(sizes),
        range(1, len(sizes)),
    )
    places = [0, *(cuts.places if cuts is not None else ()), len(sizes)]
    return list(pairwise(places))


def _weights(block: Block, tensor: int, expert: int) -> float:
    table = block.table / tensor if block.table_cut else block.table
    return table + block.dense + block.cut / tensor + block.experts / (tensor * expert)


def _cache(laid: LayoutContext, block: Block, size: float, tensor: int) -> float:
    """Bytes of the cache of one sequence on a device: whole heads, or all heads if they cannot be cut."""
    if not block.cache_cut:
        return size
    heads = laid.cuts.kv_heads
    return size * -(-heads // tensor) / heads


def _step(laid: LayoutContext, stage: Sequence[Block], tensor: int, expert: int, batch: float) -> PassWork:
    """The work of a device of a stage for one token of each of `batch` sequences."""
    each = batch / expert
    macs = cache = 0.0
    for block in stage:
        macs += (block.macs + block.expert_macs) / tensor * each
        cache += _cache(laid, block, block.cache, tensor) * each
    read = sum(_read(block, tensor, expert, batch) for block in stage)
    return PassWork(macs, read, cache, _sent(laid, stage, tensor, expert, each))


def _prompts(laid: LayoutContext, stage: Sequence[Block], tensor: int, expert: int, batch: float) -> PassWork:
    """The work of a device of a stage for the prompts of `batch` sequences."""
    each = batch / expert
    macs = cache = read = 0.0
    for block in stage:
        macs += block.prompt_macs / tensor * each
        cache += _cache(laid, block, block.prompt_cache, tensor) * each
        read += _read(block, tensor, expert, batch * laid.prompt)
        read += block.idle if laid.encoder else 0.0
    return PassWork(macs, read, cache, _sent(laid, stage, tensor, expert, each * laid.prompt))


def _read(block: Block, tensor: int, expert: int, tokens: float) -> float:
    """Bytes of weights that a device reads for `tokens` tokens; of experts, only those that are drawn."""
    drawn = 1 - (1 - block.shared) ** tokens if block.experts else 0.0
    rows = block.row * tokens / expert / (tensor if block.table_cut else 1)
    return rows + block.dense + block.cut / tensor + block.experts * drawn / (tensor * expert)


def _sent(laid: LayoutContext, stage: Sequence[Block], tensor: int, expert: int, tokens: float) -> float:
    """Bytes that a device sends to the other devices of its stage, for `tokens` tokens of its own."""
    width = laid.cuts.hidden * laid.item
    sent = 0.0
    for block in stage:
        reduced = block.reduced + (1 if block.experts else 0)
        sent += reduced * tokens * width * 2 * (tensor - 1) / tensor
        sent += 2 * block.routed * tokens * width * (expert - 1) / expert
    return sent
