"""Analyzes a decode step of an nn.Module that keeps its own cache, and its pass over a prompt."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text, shape_text
from explorer.engine.compat.torch import storage_key
from explorer.engine.costs.decode import module_cache
from explorer.engine.costs.decode.module_cache import OwnCache
from explorer.engine.costs.decode.past_tokens import Inputs, add_cache_bytes, check_past
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.costs.torch import analyse
from explorer.engine.formats.torch_module.cache_tensors import CacheTensor, list_cache_tensors
from explorer.engine.formats.torch_module.loaded_module import LoadedModule
from explorer.engine.formats.torch_module.modules import describe_tensors
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts import Analysis


def analyze_step(
    loaded: LoadedModule,
    past: int,
    dims: Mapping[str, int],
    input_shapes: Inputs,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> AnalysisResult:
    """Analyzes one decode step of an nn.Module that keeps its own cache.

    Args:
        loaded: Model from `torch_module.load`.
        past: Number of cached tokens.
        dims: Sizes from the user; only 'batch' is used.
        input_shapes: Inputs from the user; the first size of the ids is the batch.
        on_progress: Called with the number of modules that ran.
        cancel: Called at every module; a true result stops the analysis.

    Raises:
        Misuse: The model keeps no cache.
        BadModel: The model fails over a prompt.
    """
    check_past(past)
    with loaded.quiet():
        own_cache = module_cache.find_own_cache(loaded.meta(), loaded.source, cancel=cancel)
        batch = _find_batch_size(dims, input_shapes)
        arguments = own_cache.step(past, batch)
    return analyze_step_with_cache(
        own_cache,
        arguments,
        past,
        batch,
        source=loaded.source,
        notes=loaded.notes,
        on_progress=on_progress,
        cancel=cancel,
    )


def analyze_prefill(
    loaded: LoadedModule,
    tokens: int,
    dims: Mapping[str, int],
    input_shapes: Inputs,
    *,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> AnalysisResult:
    """Analyzes a pass of an nn.Module over a prompt, with an empty cache.

    Raises:
        Misuse: The model keeps no cache.
    """
    with loaded.quiet():
        own_cache = module_cache.find_own_cache(loaded.meta(), loaded.source, cancel=cancel)
        batch = _find_batch_size(dims, input_shapes)
        arguments = own_cache.build_prompt(max(tokens, 1), batch)
    return analyze_run(
        own_cache,
        arguments,
        batch,
        source=loaded.source,
        notes=loaded.notes,
        on_progress=on_progress,
        cancel=cancel,
    )


def _find_batch_size(dims: Mapping[str, int], input_shapes: Inputs) -> int:
    """Returns the batch size from the user's dimensions or inputs, else 1."""
    first = next((shape for _, shape in input_shapes.values()), ())
    return dims.get("batch") or (first[0] if len(first) > 1 else 1)


def analyze_run(
    own_cache: OwnCache, arguments: Mapping[str, Any], batch: int, **options: Any
) -> AnalysisResult:
    """Analyzes one run of a module that keeps its own cache.

    Args:
        own_cache: Module with its cache.
        arguments: Arguments of its forward.
        batch: Number of sequences in the arguments.
        options: Further arguments of `analyse.examine_module`.
    """
    inputs = tuple([info for name, value in arguments.items() for info in describe_tensors(value, name)])
    assumptions = {"dims": {"batch": batch}}
    return analyse.examine_module(
        own_cache.model, (), arguments, inputs=inputs, assumptions=assumptions, **options
    )


def analyze_step_with_cache(
    own_cache: OwnCache,
    arguments: Mapping[str, Any],
    past: int,
    batch: int,
    *,
    source: str = "",
    **options: Any,
) -> AnalysisResult:
    """Analyzes one decode step, and adds the bytes of the cache that its layers read.

    Args:
        own_cache: Module with its cache.
        arguments: Arguments of its forward; see `OwnCache.step`.
        past: Number of cached tokens.
        batch: Number of sequences.
        source: The name under which the user opened the model.
        options: Further arguments of `analyse.examine_module`.

    Raises:
        BadModel: The step fails.
    """
    cache = list_cache_tensors(arguments[own_cache.name]) if own_cache.name in arguments else ()
    step_result = analyze_run(own_cache, arguments, batch, source=source, **options)
    if step_result.schedule.incomplete_reason:
        raise BadModel(
            f"a step after {past:,} tokens fails: {step_result.schedule.failed_layer}", where=source
        )
    info = step_result.info
    info = replace(
        info,
        totals=replace(info.totals, kv_cache_bytes=sum(entry.nbytes for entry in cache)),
        assumptions={
            **info.assumptions,
            "decode": {"past": past, "tokens": 1, "how": _describe_step(cache, past)},
        },
    )
    note = _describe_mixing(own_cache, step_result, past, batch)
    info = replace(info, model=replace(info.model, notes=(*info.model.notes, *note)))
    layers = add_cache_bytes(step_result.analysis.layers, _assign_cache_bytes(cache, step_result))
    return AnalysisResult.from_analysis(
        Analysis(info, layers), step_result.schedule, step_result.bounds, lambda: step_result.flow
    )


def _describe_mixing(own_cache: OwnCache, step_result: AnalysisResult, past: int, batch: int) -> list[str]:
    """Returns a note if a step of a batch costs more than its sequences cost separately.

    The model's code then combines the sequences with each other.
    """
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
    single_macs = analyze_run(own_cache, own_cache.step(past, 1), 1).info.totals.macs
    if not single_macs or macs <= batch * single_macs:
        return []
    return [
        f"its code combines each sequence with the states of all others: for {batch} new tokens,"
        f" {name} {shape_text(shape)}, with {macs / single_macs:.3f} times the MACs of one sequence."
        f" Figures count that run; {batch} separate sequences take {batch * single_macs:,} MACs"
    ]


def _describe_step(cache: Sequence[CacheTensor], past: int) -> str:
    if not past:
        return "a pass over the first token, with nothing in the cache"
    key_count = sum(entry.is_key_or_value for entry in cache)
    counted_nouns = ((key_count, "tensor", " of keys and values"), (len(cache) - key_count, "state", ""))
    contents = " and ".join([f"{many_text(n, kind)}{suffix}" for n, kind, suffix in counted_nouns if n])
    return f"one new token after {past:,} tokens in the cache of the module's own code ({contents})"


def _assign_cache_bytes(cache: Sequence[CacheTensor], step_result: AnalysisResult) -> dict[int, int | None]:
    """Returns the bytes of the cache by the row that reads them first, without bytes that no row reads."""
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
