"""Differences between an nn.Module and its quantized copy: one row per changed layer.

A change of a weight, a buffer or the rounding of an input counts.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping

import torch
from msgspec import Struct
from torch import nn

from explorer.engine.compat.torch import list_forward_pre_hooks
from explorer.engine.quantize.torch.layers import list_layer_modules
from explorer.engine.quantize.torch.rounding import InputRounding
from explorer.engine.runtime.torch_arrays import convert_to_array
from explorer.engine.values.agreement import Agreement
from explorer.facts import Diff as DiffFact
from explorer.facts import Info, NodeDiff, OpDiff
from explorer.facts.quantize import QuantizedLayer


class ModuleSide(Struct, frozen=True):
    """One of the two modules to compare.

    Attributes:
        module: The module with its parameter values.
        formats: Quantized layers, by name.
        info: Record of the module's analysis.
    """

    module: nn.Module
    formats: Mapping[str, QuantizedLayer]
    info: Info


def compare_modules(before: ModuleSide, after: ModuleSide) -> DiffFact:
    """Compares the layers of two modules whose submodules have the same paths.

    Weights, buffers and input roundings are compared by value. A layer without a row computes the same.
    """
    rows: list[NodeDiff] = []
    # number of layers of each kind, by whether they changed
    changes_by_kind: defaultdict[str, Counter[bool]] = defaultdict(Counter)
    new_modules = dict(after.module.named_modules())
    for path, layer, kind in _list_layers(before.module):
        row = _compare_layer(path, layer, new_modules[path], kind, before, after)
        changes_by_kind[kind][row is not None] += 1
        rows += [] if row is None else [row]
    summary = [
        OpDiff(op, counts.total(), counts[True], counts[False], 0, 0)
        for op, counts in changes_by_kind.items()
    ]
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


def _list_layers(module: nn.Module) -> Iterator[tuple[str, nn.Module, str]]:
    """Yields the layers that can take a number format, and other modules without children or with tensors.

    Modules inside a layer are not yielded.
    """
    kind_by_path = {path: kind.__name__ for path, _, kind in list_layer_modules(module)}
    layer_prefixes: tuple[str, ...] = ()
    for path, layer in module.named_modules():
        if path and path.startswith(layer_prefixes or ("\0",)):
            continue
        if path in kind_by_path:
            layer_prefixes = (*layer_prefixes, f"{path}." if path else "")
            yield path, layer, kind_by_path[path]
        elif not any(layer.children()) or [*layer.parameters(recurse=False), *layer.buffers(recurse=False)]:
            yield path, layer, type(layer).__name__


def _compare_layer(
    path: str, old: nn.Module, new: nn.Module, kind: str, before: ModuleSide, after: ModuleSide
) -> NodeDiff | None:
    """Returns the difference of a layer, or None if both modules compute the same in it."""
    pairs = [
        (name, tensor, new.get_parameter(name) if tensor is parameter else new.get_buffer(name))
        for name, tensor, parameter in _list_tensors(old)
    ]
    differing = [(name, a, b) for name, a, b in pairs if a is not b and not torch.equal(a, b)]
    if not differing and _list_roundings(old) == _list_roundings(new):
        return None
    name = path or type(old).__name__
    old_format, new_format = before.formats.get(name), after.formats.get(name)
    agreement = Agreement()
    for tensor_name, a, b in differing:
        if a.dim() > 1 and "weight" in tensor_name:
            agreement.add(*map(convert_to_array, (a, b) if new_format is not None else (b, a)))
    snr_text = _format_snr(agreement)
    became = ""
    if old_format is None and new_format is not None:
        became = f"{new_format.described}{snr_text}"
        text = f"{kind} -> {became}"
    elif old_format is not None:
        text = f"{old_format.described}{snr_text} -> {kind if new_format is None else new_format.described}"
    else:
        text = "; ".join(f"{tensor_name} values differ" for tensor_name, _, _ in differing)
    status = "quantized" if old_format is None and new_format is not None else "changed"
    return NodeDiff(status, name, name, text, kind, kind, "name", became=became)


def _list_tensors(layer: nn.Module) -> Iterator[tuple[str, torch.Tensor, torch.Tensor | None]]:
    """Yields the tensors of a layer: name, tensor, and the tensor again if it is a parameter."""
    recurse = not (any(layer.children()) and not isinstance(layer, nn.MultiheadAttention))
    yield from ((name, tensor, tensor) for name, tensor in layer.named_parameters(recurse=recurse))
    yield from ((name, tensor, None) for name, tensor in layer.named_buffers(recurse=recurse))


def _list_roundings(layer: nn.Module) -> list[tuple[str, float, float, int]]:
    """Returns the roundings of a layer's inputs: format name, scale, zero point and depth axis."""
    hooks = list_forward_pre_hooks(layer)
    return [(h.format.name, h.scale, h.zero, h.depth) for h in hooks if isinstance(h, InputRounding)]


def _format_snr(agreement: Agreement) -> str:
    """Returns the signal-to-noise ratio of rounded weights as text, or '' if it is unknown or infinite."""
    snr = agreement.snr_db if agreement.elements else None
    return "" if snr is None or not math.isfinite(snr) else f", {snr:.1f} dB"
