"""Computes layouts of a served model over devices: tensor, pipeline and expert parallelism.

A tensor layout cuts layers, a pipeline layout divides the layers into stages, and an expert layout
distributes experts. The plan of the model's class (`tp_plan` of transformers) says which weights a tensor
layout cuts by columns and by rows. A product whose weights are cut by rows needs an all-reduce: in a ring of
t devices, each device sends 2 (t - 1) / t of the product's output. If experts are distributed over e devices,
(e - 1) / e of the experts' inputs and outputs are sent to other devices. Outside the experts, each of
the e devices processes its own share of the sequences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from explorer.engine.costs.decode.module_cache import get_text_config
from explorer.engine.serving.bounds import PassWork
from explorer.engine.serving.weights import WeightHolder, find_layer_number
from explorer.engine.split.partition import divide_evenly
from explorer.facts.roofline import Machine
from explorer.facts.serving.serving import DeviceLayout, DeviceShare, ServingLimit


class Block(Struct, frozen=True):
    """Costs of one layer for one sequence and one decode step.

    The first and the last block include the costs outside layers, see `build_blocks`.

    Attributes:
        number: Number of the layer, or 0 if the model numbers no layers.
        dense: Bytes of weights that every device of a tensor layout stores in full.
        cut: Bytes of weights that a tensor layout divides among devices.
        table: Bytes of lookup tables and of idle weights.
        row: Bytes of the table rows that a step reads for one token.
        idle: Bytes of weights that only an encoder's pass over a prompt reads.
        table_cut: Whether a tensor layout divides the tables.
        experts: Bytes of stacks of experts.
        read_share: Share of the stacks that one token reads.
        macs: Multiply-accumulates of a step, without the experts'.
        expert_macs: Multiply-accumulates of the experts in a step.
        cache: Bytes of the cache.
        cache_cut: Whether a tensor layout divides the cache by heads.
        reduced: Number of products whose output is summed over devices.
        experts_per_token: Number of experts that process each token.
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
    read_share: float = 1.0
    macs: float = 0.0
    expert_macs: float = 0.0
    cache: float = 0.0
    cache_cut: bool = False
    reduced: int = 0
    experts_per_token: int = 0
    prompt_macs: float = 0.0
    prompt_cache: float = 0.0


class PassOfLayers(Struct, frozen=True):
    """The work of the layers in one pass over one sequence.

    Attributes:
        macs: Multiply-accumulates by number of the layer; the key None holds the part outside layers.
        cache: Bytes of the cache by index of the layer in the cache; the index is -1 for a cache without
            layers.
    """

    macs: Mapping[int | None, float]
    cache: Mapping[int, float]


class LayerCuts:
    """The ways in which a tensor layout may cut the layers of a model.

    Args:
        model: The model on the meta device.
        holders: The modules of the model that hold weights.
    """

    def __init__(self, model: nn.Module, holders: Sequence[WeightHolder]) -> None:
        self.model = model
        self.holders = holders
        self.find_style = cache(self._find_style)
        self.explain_refusal = cache(self._explain_refusal)
        self._weights: dict[float, list[dict[str, Any]]] = {}
        plan: Mapping[str, str] = getattr(model, "tp_plan", None) or {}
        self._plan = [
            (re.compile(re.escape(name).replace(r"\*", r"[^.]+")), style)
            for name, style in plan.items()
            if "colwise" in style or "rowwise" in style
        ]

    def _find_style(self, path: str) -> str:
        """Returns how the plan cuts the weights of a module: 'colwise', 'rowwise', or '' for no cut."""
        for pattern, style in self._plan:
            # for stacked experts, the plan names the weights gate_up_proj (columns) and down_proj (rows)
            if pattern.fullmatch(path) or pattern.fullmatch(f"{path}.gate_up_proj"):
                return "rowwise" if "rowwise" in style else "colwise"
        return ""

    @cached_property
    def numbers(self) -> list[int]:
        """Numbers of the layers, ascending."""
        return sorted(
            {n for holder in self.holders if (n := find_layer_number(holder.path)) is not None}
        ) or [0]

    @cached_property
    def cut_keys(self) -> frozenset[int | None]:
        """Numbers of the layers whose keys and values the plan cuts."""
        cut = [
            holder.path
            for holder in self.holders
            if self.find_style(holder.path) == "colwise"
            and holder.path.endswith(("k_proj", "v_proj", "qkv_proj"))
        ]
        return frozenset(map(find_layer_number, cut))

    def sum_weights(self, scale: float) -> list[dict[str, Any]]:
        """Returns the summed weights of each layer, as arguments of `Block` that the caller may change.

        Args:
            scale: Factor from the module's weight bytes to the stored weight bytes.
        """
        if scale not in self._weights:
            numbers = self.numbers
            index_by_number = {number: index for index, number in enumerate(numbers)}
            sums = self._weights[scale] = [{"number": number} for number in numbers]
            for holder in self.holders:
                number = find_layer_number(holder.path)
                if number is not None:
                    index = index_by_number[number]
                else:
                    index = 0 if holder.table else len(numbers) - 1
                _add_holder(sums[index], holder, self.find_style(holder.path), scale)
        return [dict(sums_of_block) for sums_of_block in self._weights[scale]]

    @cached_property
    def has_plan(self) -> bool:
        """Whether the plan cuts layers, not only tables and output heads."""
        return any(
            self.find_style(holder.path)
            for holder in self.holders
            if find_layer_number(holder.path) is not None
        )

    def _explain_refusal(self, tensor: int) -> str:
        """Returns the reason why layers cannot be cut into `tensor` parts, or '' if they can."""
        if tensor == 1:
            return ""
        if not self.has_plan:
            return f"{type(self.model).__name__} has no plan that tells how to cut its layers"
        config = get_text_config(self.model)
        heads = getattr(config, "num_attention_heads", None)
        if isinstance(heads, int) and heads % tensor:
            return f"{heads} heads do not divide by {tensor}"
        for holder in self.holders:
            style = self.find_style(holder.path)
            module = self.model.get_submodule(holder.path)
            if not style or not isinstance(module, nn.Linear):
                continue
            size = module.out_features if style == "colwise" else module.in_features
            if size % tensor and find_layer_number(holder.path) is not None:
                features = "output features" if style == "colwise" else "input features"
                return f"{size} {features} of {holder.path} do not divide by {tensor}"
        return ""

    @cached_property
    def kv_heads(self) -> int:
        """Heads of keys and values, or 1 if the configuration does not name them."""
        config = get_text_config(self.model)
        heads = getattr(config, "num_key_value_heads", None) or getattr(config, "num_attention_heads", None)
        return heads if isinstance(heads, int) and heads > 0 else 1

    @cached_property
    def hidden(self) -> int:
        """Width of the hidden states between layers, or 0 if the configuration does not name it."""
        width = getattr(get_text_config(self.model), "hidden_size", 0)
        return width if isinstance(width, int) else 0


def build_blocks(
    cuts: LayerCuts, step: PassOfLayers, prompt: PassOfLayers, scale: float
) -> tuple[Block, ...]:
    """Computes the costs of each layer, in order.

    Embedding tables are added to the first layer, other weights outside layers to the last. `step.macs`
    outside layers are added to the first layer. `prompt.macs` outside layers, mostly of the output head, are
    added to the last layer.

    Args:
        cuts: The cuts that the model allows.
        step: Costs of a decode step; its multiply-accumulates exclude products of the new token with weights.
        prompt: Costs of the pass over the prompt, with all multiply-accumulates.
        scale: Factor from the module's weight bytes to the stored weight bytes.
    """
    numbers = cuts.numbers
    index_by_number = {number: index for index, number in enumerate(numbers)}
    sums = cuts.sum_weights(scale)
    for layers_pass, name, outside_index in ((step, "macs", 0), (prompt, "prompt_macs", len(numbers) - 1)):
        for layer, macs in layers_pass.macs.items():
            index = index_by_number.get(layer, 0) if layer is not None else outside_index
            sums[index][name] = sums[index].get(name, 0.0) + macs
    for layers_pass, name in ((step, "cache"), (prompt, "prompt_cache")):
        for layer, size in layers_pass.cache.items():
            index = min(max(layer, 0), len(numbers) - 1)
            sums[index][name] = sums[index].get(name, 0.0) + size
            sums[index]["cache_cut"] = numbers[index] in cuts.cut_keys
    return tuple([Block(**arguments) for arguments in sums])


def _add_holder(block: dict[str, Any], holder: WeightHolder, style: str, scale: float) -> None:
    """Adds the weights of a module to the arguments of a `Block`.

    Args:
        block: The arguments, which are changed.
        holder: The module.
        style: How the plan cuts its weights: 'colwise', 'rowwise', or '' for no cut.
        scale: Factor from the module's weight bytes to the stored weight bytes.
    """
    size = holder.weight_bytes * scale
    if holder.routed:
        bytes_field, macs_field = "experts", "expert_macs"
        block["read_share"] = holder.used
        experts_per_token = round(holder.used * holder.experts)
        block["experts_per_token"] = max(block.get("experts_per_token", 0), experts_per_token)
    elif holder.table or holder.idle:
        bytes_field, macs_field = "table", "macs"
        block["table_cut"] = bool(style)
        block["row"] = block.get("row", 0.0) + holder.read * scale
        block["idle"] = block.get("idle", 0.0) + (size if holder.idle else 0.0)
    else:
        bytes_field, macs_field = "cut" if style else "dense", "macs"
    block[bytes_field] = block.get(bytes_field, 0.0) + size
    block[macs_field] = block.get(macs_field, 0.0) + holder.macs
    if style == "rowwise" and not holder.table:
        block["reduced"] = block.get("reduced", 0) + 1


class LayoutContext(Struct, frozen=True):
    """The data that all layouts at one context and batch size share.

    Attributes:
        cuts: The cuts that the model allows.
        blocks: Costs of each layer.
        context, batch: Context length in tokens and number of sequences of the step.
        machine: Peak rates of each device, or None for no times.
        card: Bytes of a device's memory, or None if unknown.
        links: Bandwidth between devices in bytes per second, or None if unknown.
        element_bytes: Bytes of an element of the hidden states.
        prompt: Tokens of the prompt of each sequence, or 0 if its figures by layer are unknown.
        encoder: Whether an encoder reads the prompt.
    """

    cuts: LayerCuts
    blocks: tuple[Block, ...]
    context: int
    batch: int
    machine: Machine | None
    card: int | None
    links: float | None
    element_bytes: int
    prompt: int = 0
    encoder: bool = False


def compute_layouts(setup: LayoutContext, devices: int) -> tuple[list[DeviceLayout], list[str]]:
    """Computes every possible layout over `devices` devices.

    Returns:
        The layouts, and the reasons why layers cannot be cut into some numbers of parts.
    """
    device_layouts, refusals = [], []
    experts = max(
        (
            round(block.experts_per_token / block.read_share)
            for block in setup.blocks
            if block.experts_per_token
        ),
        default=0,
    )
    for tensor in _list_divisors(devices):
        refusal = setup.cuts.explain_refusal(tensor)
        if refusal:
            refusals.append(refusal)
            continue
        for expert in _list_divisors(devices // tensor):
            pipeline = devices // tensor // expert
            if pipeline > len(setup.blocks) or (expert > 1 and (not experts or experts % expert)):
                continue
            device_layouts.append(_compute_layout(setup, tensor, pipeline, expert))
    return device_layouts, refusals


def _list_divisors(number: int) -> list[int]:
    return [n for n in range(1, number + 1) if number % n == 0]


def _compute_layout(setup: LayoutContext, tensor: int, pipeline: int, expert: int) -> DeviceLayout:
    """Computes one layout.

    Args:
        setup: The data that all layouts share.
        tensor: Number of parts of each layer.
        pipeline: Number of stages.
        expert: Number of groups of experts.
    """
    weights = [_count_weight_bytes(block, tensor, expert) for block in setup.blocks]
    cached = [
        _count_cache_bytes(setup, block, block.cache, tensor) * setup.batch / expert for block in setup.blocks
    ]
    stages = _divide_into_stages([w + c for w, c in zip(weights, cached, strict=True)], pipeline)
    # the batch enters the pipeline in this many pieces, one after another
    pieces = min(setup.batch, pipeline)
    works = [
        _compute_step_work(setup, setup.blocks[start:end], tensor, expert, setup.batch / pieces)
        for start, end in stages
    ]
    if pipeline > 1:
        sent_bytes = setup.batch / pieces / expert * setup.cuts.hidden * setup.element_bytes
        works[:-1] = [replace(work, links=work.links + sent_bytes) for work in works[:-1]]
    stage_times = _compute_stage_times(setup, works)
    shares = []
    for (start, end), work, (seconds, limit) in zip(stages, works, stage_times, strict=True):
        shares.append(
            DeviceShare(
                devices=tensor * expert,
                first=setup.blocks[start].number,
                last=setup.blocks[end - 1].number,
                weight_bytes=round(sum(weights[start:end])),
                cache_bytes=round(sum(cached[start:end])),
                link_bytes=round(work.links * pieces),
                busy=None if seconds is None else seconds * pieces,
                limit=limit,
            )
        )
    total_seconds, slowest, limit = _summarize_stages(stage_times)
    first_token, first_token_limit = _compute_first_token(setup, stages, tensor, expert)
    # a stage is idle while a piece passes the other stages, unless each stage has a piece of its own
    token = None if total_seconds is None or slowest is None else max(total_seconds, pieces * slowest)
    fullest = max(shares, key=lambda share: share.weight_bytes + share.cache_bytes)
    return DeviceLayout(
        context=setup.context,
        batch=setup.batch,
        devices=tensor * pipeline * expert,
        tensor=tensor,
        pipeline=pipeline,
        expert=expert,
        weight_bytes=fullest.weight_bytes,
        cache_bytes=fullest.cache_bytes,
        fits=None if setup.card is None else fullest.weight_bytes + fullest.cache_bytes <= setup.card,
        link_bytes=max(share.link_bytes for share in shares),
        token=token,
        rate=setup.batch / token if token else None,
        limit=limit,
        first_token=first_token,
        first_limit=first_token_limit,
        shares=tuple(shares),
    )


_StageTime = tuple[float | None, ServingLimit]
"""Seconds of a stage, or None if unknown, and the limit of its time."""


def _compute_stage_times(setup: LayoutContext, works: Sequence[PassWork]) -> list[_StageTime]:
    """Returns the least time of each stage for one piece of the batch."""
    return [work.compute_least(setup.machine, setup.links) for work in works]


def _summarize_stages(stage_times: Sequence[_StageTime]) -> tuple[float | None, float | None, ServingLimit]:
    """Returns the seconds of a piece through all stages, the seconds of the slowest stage, and its limit."""
    known_times = [(seconds, limit) for seconds, limit in stage_times if seconds is not None]
    if len(known_times) < len(stage_times):
        return None, None, "unknown"
    slowest, limit = max(known_times, key=lambda pair: pair[0])
    return sum(seconds for seconds, _ in known_times), slowest, limit


def _compute_first_token(
    setup: LayoutContext, stages: Sequence[tuple[int, int]], tensor: int, expert: int
) -> _StageTime:
    """Returns the seconds until the prompts of all sequences are processed, and the limit of that time.

    A single stage processes all prompts together. Several stages process them one by one.
    """
    if not setup.prompt:
        return None, "unknown"
    pieces = setup.batch if len(stages) > 1 else 1
    batch_per_piece = setup.batch / pieces
    works = [
        _compute_prompt_work(setup, setup.blocks[start:end], tensor, expert, batch_per_piece)
        for start, end in stages
    ]
    if len(stages) > 1:
        sent_bytes = batch_per_piece / expert * setup.prompt * setup.cuts.hidden * setup.element_bytes
        works[:-1] = [replace(work, links=work.links + sent_bytes) for work in works[:-1]]
    total_seconds, slowest, limit = _summarize_stages(_compute_stage_times(setup, works))
    return None if total_seconds is None or slowest is None else total_seconds + (pieces - 1) * slowest, limit


def _divide_into_stages(sizes: Sequence[float], count: int) -> list[tuple[int, int]]:
    """Divides the layers into `count` contiguous ranges with the smallest possible largest sum of sizes."""
    if count == 1:
        return [(0, len(sizes))]
    places = [0, *divide_evenly(sizes, count), len(sizes)]
    return list(pairwise(places))


def _count_weight_bytes(block: Block, tensor: int, expert: int) -> float:
    """Returns the bytes of a layer's weights on a device."""
    table = block.table / tensor if block.table_cut else block.table
    return table + block.dense + block.cut / tensor + block.experts / (tensor * expert)


def _count_cache_bytes(setup: LayoutContext, block: Block, size: float, tensor: int) -> float:
    """Returns the cache bytes of one sequence on a device.

    A device holds whole heads, or all heads if the cache cannot be cut.
    """
    if not block.cache_cut:
        return size
    heads = setup.cuts.kv_heads
    return size * -(-heads // tensor) / heads


def _compute_step_work(
    setup: LayoutContext, stage: Sequence[Block], tensor: int, expert: int, batch: float
) -> PassWork:
    """Returns the work of one device of a stage for one token of each of `batch` sequences."""
    batch_per_device = batch / expert
    macs = cache = 0.0
    for block in stage:
        macs += (block.macs + block.expert_macs) / tensor * batch_per_device
        cache += _count_cache_bytes(setup, block, block.cache, tensor) * batch_per_device
    read = sum(_count_read_bytes(block, tensor, expert, batch) for block in stage)
    return PassWork(macs, read, cache, _count_sent_bytes(setup, stage, tensor, expert, batch_per_device))


def _compute_prompt_work(
    setup: LayoutContext, stage: Sequence[Block], tensor: int, expert: int, batch: float
) -> PassWork:
    """Returns the work of one device of a stage for the prompts of `batch` sequences."""
    batch_per_device = batch / expert
    macs = cache = read = 0.0
    for block in stage:
        macs += block.prompt_macs / tensor * batch_per_device
        cache += _count_cache_bytes(setup, block, block.prompt_cache, tensor) * batch_per_device
        read += _count_read_bytes(block, tensor, expert, batch * setup.prompt)
        read += block.idle if setup.encoder else 0.0
    return PassWork(
        macs, read, cache, _count_sent_bytes(setup, stage, tensor, expert, batch_per_device * setup.prompt)
    )


def _count_read_bytes(block: Block, tensor: int, expert: int, tokens: float) -> float:
    """Returns the bytes of weights that a device reads for `tokens` tokens.

    Experts that no token is routed to are not read.
    """
    read_share = 1 - (1 - block.read_share) ** tokens if block.experts else 0.0
    rows = block.row * tokens / expert / (tensor if block.table_cut else 1)
    return rows + block.dense + block.cut / tensor + block.experts * read_share / (tensor * expert)


def _count_sent_bytes(
    setup: LayoutContext, stage: Sequence[Block], tensor: int, expert: int, tokens: float
) -> float:
    """Returns the bytes that a device sends to others of its stage for `tokens` tokens of its sequences."""
    width = setup.cuts.hidden * setup.element_bytes
    sent = 0.0
    for block in stage:
        reduced = block.reduced + (1 if block.experts else 0)  # down_proj of the experts
        sent += reduced * tokens * width * 2 * (tensor - 1) / tensor
        sent += 2 * block.experts_per_token * tokens * width * (expert - 1) / expert
    return sent
