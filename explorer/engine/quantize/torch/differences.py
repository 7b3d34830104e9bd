"""Differences between an nn.Module and its quantized copy: one row per layer, its rounding included."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import torch
from msgspec import Struct
from torch import nn

from explorer.engine.compat.torch import forward_pre_hooks
from explorer.engine.quantize.torch.layers import found_modules
from explorer.engine.quantize.torch.rounding import InputRounding
from explorer.engine.runtime.torch_arrays import as_array
from explorer.engine.values.agreement import Agreement
from explorer.facts import Diff as DiffFact
from explorer.facts import Info, NodeDiff, OpDiff
from explorer.facts.quantize import QuantizedLayer


class ModuleSide(Struct, frozen=True):
    """One of the two modules.

    Attributes:
        module: The module with its values.
        formats: The quantized layers, by their names.
        info: Facts of its analysis.
    """

    module: nn.Module
    formats: Mapping[str, QuantizedLayer]
    info: Info


def module_diff(before: ModuleSide, after: ModuleSide) -> DiffFact:
    """The differences between the layers of two modules with the same names.

    Weights, buffers and roundings are compared by value: layers without a row compute the same.
    """
    rows: list[NodeDiff] = []
    fates: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    new_modules = dict(after.module.named_modules())
    for path, layer, kind in _layers(before.module):
        row = _row(path, layer, new_modules[path], kind, before, after)
        fates[kind][row is not None] += 1
        rows += [] if row is None else [row]
    summary = [OpDiff(op, many.total(), many[True], many[False], 0, 0) for op, many in fates.items()]
    return DiffFact(
        before=before.info.model.source,
        after=after.info.model.source,
        equal=not rows,
        summary=tuple(
            sorted(summary, key=lambda operator: (not operator.changed, -operator.total, operator.op))
        ),
        nodes=tuple(rows),
        totals_before=before.info.totals,
        totals_after=after.info.totals,
    )


def _layers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Layers that can take a number format, each as a whole; and other modules that hold or make values."""
    whole = {path: kind.__name__ for path, _, kind in found_modules(module)}
    inside: tuple[str, ...] = ()
    for path, layer in module.named_modules():
        if path and path.startswith(inside or ("\0",)):
            continue
        if path in whole:
            inside = (*inside, f"{path}." if path else "")
            yield path, layer, whole[path]
        elif not any(layer.children()) or [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            yield path, layer, type(layer).__name__


def _row(
    path: str, old: nn.Module, new: nn.Module, kind: str, before: ModuleSide, after: ModuleSide
) -> NodeDiff | None:
    """The difference of a layer; None if there is none."""
    pairs = [
        (name, tensor, new.get_parameter(name) if tensor is parameter else new.get_buffer(name))
        for name, tensor, parameter in _tensors(old)
    ]
    differing = [(name, a, b) for name, a, b in pairs if a is not b and not torch.equal(a, b)]
    if not differing and _roundings(old) == _roundings(new):
        return None
    name = path or type(old).__name__
    was, now = before.formats.get(name), after.formats.get(name)
    agreement = Agreement()
    for tensor_name, a, b in differing:
        if a.dim() > 1 and "weight" in tensor_name:
            agreement.add(*map(as_array, (a, b) if now is not None else (b, a)))
    snr_text = _snr(agreement)
    became = ""
    if was is None and now is not None:
        became = f"{now.described}{snr_text}"
        text = f"{kind} -> {became}"
    elif was is not None:
        text = f"{was.described}{snr_text} -> {kind if now is None else now.described}"
    else:
        text = "; ".join(f"{tensor_name} values differ" for tensor_name, _, _ in differing)
    status = "quantized" if was is None and now is not None else "changed"
    return NodeDiff(status, name, name, text, kind, kind, "name", became=became)


def _tensors(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """The tensors of a layer: name, tensor, and the tensor again if it is a parameter."""
    whole = not (any(layer.children()) and not isinstance(layer, nn.MultiheadAttention))
    yield from ((name, tensor, tensor) for name, tensor in layer.named_parameters(recurse=whole))
    yield from ((name, tensor, None) for name, tensor in layer.named_buffers(recurse=whole))


def _roundings(layer: nn.Module) -> list[tuple[str, float, float, int]]:
    """The roundings of a layer's inputs."""
    hooks = forward_pre_hooks(layer)
    return [(h.format.name, h.scale, h.zero, h.depth) for h in hooks if isinstance(h, InputRounding)]


def _snr(agreement: Agreement) -> str:
    """Signal to noise of stored weights that lost precision, in words; '' for the others."""
    snr = agreement.snr_db if agreement.elements else None
    return "" if snr is None or not math.isfinite(snr) else f", {snr:.1f} dB"
