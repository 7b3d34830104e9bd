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
from explorer.engine.costs.decode.onnx_cache import summed
from explorer.engine.costs.decode.step import Inputs, check_past
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
    """Everything known of one decode step of an nn.Module with a cache of its own.

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
        own = module_cache.of_module(loaded.meta(), loaded.source, cancel=cancel)
        batch = _batch(dims, input_shapes)
        given = own.step(past, batch)
    return step_behind(
        own,
        given,
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
        own = module_cache.of_module(loaded.meta(), loaded.source, cancel=cancel)
        batch = _batch(dims, input_shapes)
        given = own.prompt(max(tokens, 1), batch)
    return examined(
        own, given, batch, source=loaded.source, notes=loaded.notes, on_progress=on_progress, cancel=cancel
    )


def _batch(dims: Mapping[str, int], input_shapes: Inputs) -> int:
    first = next((shape for _, shape in input_shapes.values()), ())
    return dims.get("batch") or (first[0] if len(first) > 1 else 1)


def examined(own: OwnCache, given: Mapping[str, Any], batch: int, **told: Any) -> AnalysisResult:
    """Everything known of one run of a module with a cache.

    Args:
        own: The module.
        given: Arguments of its forward.
        batch: Sequences in them.
        told: Arguments of `analyse.examine_module`.
    """
    inputs = tuple([info for name, value in given.items() for info in described(value, name)])
    assumed = {"dims": {"batch": batch}}
    return analyse.examine_module(own.model, (), given, inputs=inputs, assumptions=assumed, **told)


def step_behind(
    own: OwnCache, given: Mapping[str, Any], past: int, batch: int, *, source: str = "", **told: Any
) -> AnalysisResult:
    """Everything known of one step, with the bytes of the cache that its layers read.

    Args:
        own: The module.
        given: Arguments of its forward; see `OwnCache.step`.
        past: Tokens in the cache.
        batch: Sequences.
        source: What the user asked for.
        told: Further arguments of `analyse.examine_module`.

    Raises:
        BadModel: It fails.
    """
    cache = tensors_of(given[own.name]) if own.name in given else ()
    found = examined(own, given, batch, source=source, **told)
    if found.schedule.failed:
        raise BadModel(f"a step behind {past:,} tokens fails: {_why(found)}", where=source)
    info = found.info
    info = replace(
        info,
        totals=replace(info.totals, kv_cache_bytes=sum(one.nbytes for one in cache)),
        assumptions={**info.assumptions, "decode": {"past": past, "tokens": 1, "how": _how(cache, past)}},
    )
    note = _mixed(own, found, past, batch)
    info = replace(info, model=replace(info.model, notes=(*info.model.notes, *note)))
    layers = summed(found.analysis.layers, _readers(cache, found))
    return AnalysisResult.of(Analysis(info, layers), found.schedule, found.bounds, lambda: found.flow)


def _mixed(own: OwnCache, found: AnalysisResult, past: int, batch: int) -> list[str]:
    """Says of code that mixes each sequence with the state of every other that a step is more than theirs."""
    outputs = found.info.model.outputs
    shapes = ((one.name, one.shape) for one in outputs if one.shape is not None and len(one.shape) == 3)
    name, shape = next(((name, shape) for name, shape in shapes if shape[:2] == (batch, batch)), ("", ()))
    macs = found.info.totals.macs
    if batch == 1 or not shape or not macs:
        return []
    alone = examined(own, own.step(past, 1), 1).info.totals.macs
    if not alone or macs <= batch * alone:
        return []
    return [
        f"its code mixes each sequence with the state of every other: of {batch} new tokens it makes"
        f" {name} {shape_text(shape)}, at {macs / alone:.3f} times the MACs of one sequence, which"
        f" is counted as it runs; {batch} sequences apart take {batch * alone:,} MACs"
    ]


def _why(found: AnalysisResult) -> str:
    """The layer that failed, and with what."""
    failed = found.schedule.failed.partition(": ")[0]
    whole = next((note for note in found.info.model.notes if note.startswith(failed)), failed)
    return whole.removeprefix("the model failed in ")


def _how(cache: Sequence[CacheTensor], past: int) -> str:
    if not past:
        return "a pass over the first token, with nothing in the cache"
    keys = sum(one.keys for one in cache)
    kinds = ((keys, "tensor", " of keys and values"), (len(cache) - keys, "state", ""))
    what = " and ".join([f"{many_text(n, kind)}{of}" for n, kind, of in kinds if n])
    return f"behind what the module's own code keeps of {past:,} tokens ({what}), one new token"


def _readers(cache: Sequence[CacheTensor], found: AnalysisResult) -> dict[int, int | None]:
    """Bytes of a cache by the row that reads them first; what no row reads is in none."""
    order = found.schedule
    left: dict[Hashable, int] = {}
    for one in cache:
        key: Hashable = storage_key(one.tensor.untyped_storage())
        left[key] = left.get(key, 0) + one.nbytes
    rows: dict[int, int | None] = {}
    for step, row in zip(order.steps, order.rows, strict=True):
        for key in step.inputs:
            if row is not None and key in left:
                rows[row] = (rows.get(row) or 0) + left.pop(key)
    return rows
