"""Decode step of an nn.Module behind the cache that its own code keeps, and its pass over a prompt."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text, shape_text
from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.decode import module_cache
from explorer.engine.costs.decode.module_cache import OwnCache
from explorer.engine.costs.decode.past_tokens import Inputs, check_past, summed
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.torch import analyse
from explorer.engine.formats.torch_module.cache_tensors import CacheTensor, tensors_of
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import described
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts import Analysis


def step_of_module(
    loaded: LoadedModule,
    past: int,
    dims: Mapping[str, int],
    input_shapes: Inputs,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> AnalysisResult:
    """The analysis of one decode step of an nn.Module with a cache of its own.

    Args:
        loaded: From `torch_module.load`.
        past: Tokens in the cache before the new one.
        dims: 'batch', if the user gave it.
        input_shapes: Inputs, where the user gave them: the first size of ids is the batch.
        on_progress: Told about the modules that ran.
        cancel: Asked at every module.

    Raises:
        Misuse: It has no cache of its own.
        BadModel: It does not run over a prompt.
    """
    check_past(past)
    with loaded.quiet():
        own_cache = module_cache.of_module(loaded.meta(), loaded.source, cancel=cancel)
        batch = _batch(dims, input_shapes)
        arguments = own_cache.step(past, batch)
    return step_behind(
        own_cache,
        arguments,
        past,
        batch,
        source=loaded.source,
        notes=loaded.notes,
        on_progress=on_progress,
        cancel=cancel,
    )


def prefill_of_module(
    loaded: LoadedModule,
    tokens: int,
    dims: Mapping[str, int],
    input_shapes: Inputs,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> AnalysisResult:
    """A pass of an nn.Module over a prompt, with nothing in the cache before it.

    Raises:
        Misuse: It has no cache of its own.
    """
    with loaded.quiet():
        own_cache = module_cache.of_module(loaded.meta(), loaded.source, cancel=cancel)
        batch = _batch(dims, input_shapes)
        arguments = own_cache.prompt(max(tokens, 1), batch)
    return examined(
        own_cache,
        arguments,
        batch,
        source=loaded.source,
        notes=loaded.notes,
        on_progress=on_progress,
        cancel=cancel,
    )


def _batch(dims: Mapping[str, int], input_shapes: Inputs) -> int:
    first = next((shape for _, shape in input_shapes.values()), ())
    return dims.get("batch") or (first[0] if len(first) > 1 else 1)


def examined(own_cache: OwnCache, arguments: Mapping[str, Any], batch: int, **options: Any) -> AnalysisResult:
    """The analysis of one run of a module with a cache.

    Args:
        own_cache: The module.
        arguments: Arguments of its forward.
        batch: Sequences in them.
        options: Arguments of `analyse.examine_module`.
    """
    inputs = tuple([info for name, value in arguments.items() for info in described(value, name)])
    assumed = {"dims": {"batch": batch}}
    return analyse.examine_module(
        own_cache.model, (), arguments, inputs=inputs, assumptions=assumed, **options
    )


def step_behind(
    own_cache: OwnCache,
    arguments: Mapping[str, Any],
    past: int,
    batch: int,
    *,
    source: str = "",
    **options: Any,
) -> AnalysisResult:
    """The analysis of one step, with the bytes of the cache that its layers read.

    Args:
        own_cache: The module.
        arguments: Arguments of its forward; see `OwnCache.step`.
        past: Tokens in the cache.
        batch: Sequences.
        source: What the user asked for.
        options: Further arguments of `analyse.examine_module`.

    Raises:
        BadModel: It fails.
    """
    cache = tensors_of(arguments[own_cache.name]) if own_cache.name in arguments else ()
    step_result = examined(own_cache, arguments, batch, source=source, **options)
    if step_result.schedule.failed:
        raise BadModel(f"a step behind {past:,} tokens fails: {step_result.schedule.failure}", where=source)
    info = step_result.info
    info = replace(
        info,
        totals=replace(info.totals, kv_cache_bytes=sum(entry.nbytes for entry in cache)),
        assumptions={**info.assumptions, "decode": {"past": past, "tokens": 1, "how": _how(cache, past)}},
    )
    note = _mixed(own_cache, step_result, past, batch)
    info = replace(info, model=replace(info.model, notes=(*info.model.notes, *note)))
    layers = summed(step_result.analysis.layers, _readers(cache, step_result))
    return AnalysisResult.of(
        Analysis(info, layers), step_result.schedule, step_result.bounds, lambda: step_result.flow
    )


def _mixed(own_cache: OwnCache, step_result: AnalysisResult, past: int, batch: int) -> list[str]:
    """Notes that a step costs more than its sequences alone, where code mixes each with all others."""
    outputs = step_result.info.model.outputs
    shapes = (
        (output.name, output.shape)
        for output in outputs
        if output.shape is not None and len(output.shape) == 3
    )
    name, shape = next(((name, shape) for name, shape in shapes if shape[:2] == (batch, batch)), ("", ()))
    macs = step_result.info.totals.macs
    if batch == 1 or not shape or not macs:
        return []
    alone = examined(own_cache, own_cache.step(past, 1), 1).info.totals.macs
    if not alone or macs <= batch * alone:
        return []
    return [
        f"its code mixes each sequence with the state of every other: of {batch} new tokens it makes"
        f" {name} {shape_text(shape)}, at {macs / alone:.3f} times the MACs of one sequence, which"
        f" is counted as it runs; {batch} sequences apart take {batch * alone:,} MACs"
    ]


def _how(cache: Sequence[CacheTensor], past: int) -> str:
    if not past:
        return "a pass over the first token, with nothing in the cache"
    keys = sum(entry.keys for entry in cache)
    kinds = ((keys, "tensor", " of keys and values"), (len(cache) - keys, "state", ""))
    contents = " and ".join([f"{many_text(n, kind)}{of}" for n, kind, of in kinds if n])
    return f"behind what the module's own code keeps of {past:,} tokens ({contents}), one new token"


def _readers(cache: Sequence[CacheTensor], step_result: AnalysisResult) -> dict[int, int | None]:
    """Bytes of a cache by the row that reads them first; unread bytes are left out."""
    order = step_result.schedule
    unread_bytes: dict[Hashable, int] = {}
    for entry in cache:
        key: Hashable = storage_key(entry.tensor.untyped_storage())
        unread_bytes[key] = unread_bytes.get(key, 0) + entry.nbytes
    rows: dict[int, int | None] = {}
    for step, row in zip(order.steps, order.rows, strict=True):
        for key in step.inputs:
            if row is not None and key in unread_bytes:
                rows[row] = (rows.get(row) or 0) + unread_bytes.pop(key)
    return rows
