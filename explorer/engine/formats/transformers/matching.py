"""Matches the tensors of files with the parameters of a module, and finds missing and unexpected tensors.

Names and shapes in older files may differ from the module's. For example, single experts in a file
become one parameter with three axes, and Q, K and V may become one tensor. This module runs the conversions
of transformers on tensors without values.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from msgspec import Struct, field
from torch import nn

from explorer.base.units import many_text, printable, shape_text
from explorer.engine.formats.tensor_index import StoredTensor, format_names
from explorer.engine.formats.torch_module.stored_form import StoredForm
from explorer.engine.formats.weights.stored_forms import LogicalTensor, group_weights


class NameMatch(Struct):
    """The match of the tensors in files with a module.

    Attributes:
        stored: Stored form of each parameter and buffer, by name.
        names: Names of the file tensors from which each parameter or buffer is created, by its name.
        missing: Names of parameters and buffers that are in no file.
        unexpected: Names of file tensors that the module does not have.
        contradictions: Descriptions of tensors whose shape differs from the module's.
    """

    stored: dict[str, StoredForm] = field(default_factory=dict)
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    contradictions: list[str] = field(default_factory=list)

    def list_notes(self) -> Iterator[str]:
        """Yields notes on missing and unexpected tensors, which explain the reported figures."""
        if self.missing:
            yield (
                f"{many_text(len(self.missing), 'parameter')} of the module in no file, counted as the"
                f" configuration declares them: {format_names(self.missing)}"
            )
        if self.unexpected:
            yield (
                f"{many_text(len(self.unexpected), 'tensor')} of the files not in the module and not counted:"
                f" {format_names(self.unexpected)}"
            )


class Names(Protocol):
    """Maps the tensors of a file to the parameters of a module."""

    def find_target(self, name: str) -> tuple[str, str]:
        """Returns the parameter name of a file tensor, and the pattern of its conversion or ''."""
        ...

    def list_shapes(
        self, target: str, sources: Sequence[tuple[str, LogicalTensor]]
    ) -> Mapping[str, tuple[int, ...] | None]:
        """Returns the shape of each parameter that is created from file tensors, by name.

        A shape is None if it is unknown, and empty if the file tensors cannot be converted.

        Args:
            target: Parameter name that `find_target` returned.
            sources: (pattern, tensor) of each file tensor with this target.
        """
        ...


def match(module: nn.Module, tensors: Sequence[StoredTensor], quantization: Mapping[str, Any]) -> NameMatch:
    """Matches the tensors in files of transformers with a module.

    Args:
        module: Module of transformers, on the meta device.
        tensors: Tensors of all files, from their headers.
        quantization: Quantization settings of the configuration; empty without quantization.
    """
    parameters = module.state_dict(keep_vars=True)
    weights = sorted(group_weights(tensors, quantization), key=lambda w: _build_natural_key(w.name))
    has_same_names = all(
        w.name in parameters and w.fits_shape(tuple(parameters[w.name].shape)) for w in weights
    )
    return match_weights(
        parameters, weights, _SameNames(parameters) if has_same_names else _Conversions(module, parameters)
    )


def match_weights(
    parameters: Mapping[str, torch.Tensor], weights: Iterable[LogicalTensor], name_map: Names
) -> NameMatch:
    """Matches weights with the parameters of a module.

    Args:
        parameters: Parameters and buffers of the module by name; a tied tensor has several names.
        weights: Weights of the files; experts must be in order.
        name_map: Map from file names to parameter names.
    """
    name_match = NameMatch()
    groups: dict[str, list[tuple[str, LogicalTensor]]] = defaultdict(list)
    for weight in weights:
        target, pattern = name_map.find_target(weight.name)
        if target in parameters:
            groups[target].append((pattern, weight))
        else:
            name_match.unexpected.append(weight.name)
    for target, sources in groups.items():
        shapes = name_map.list_shapes(target, sources)
        _record_match(name_match, parameters, shapes, [weight for _, weight in sources])
    shared: dict[int, list[str]] = defaultdict(list)
    for name, tensor in parameters.items():
        shared[id(tensor)].append(name)
    for tied in shared.values():
        stored_form = next((name_match.stored[name] for name in tied if name in name_match.stored), None)
        if stored_form is None:
            name_match.missing.append(tied[0])
        else:
            name_match.stored.update((name, stored_form) for name in tied if name not in name_match.stored)
    return name_match


class _SameNames:
    """The map for files that have the names and shapes of the module."""

    def __init__(self, parameters: Mapping[str, torch.Tensor]) -> None:
        self.parameters = parameters

    def find_target(self, name: str) -> tuple[str, str]:
        """See `Names`."""
        return name, ""

    def list_shapes(
        self, target: str, sources: Sequence[tuple[str, LogicalTensor]]
    ) -> Mapping[str, tuple[int, ...] | None]:
        """See `Names`."""
        return {target: tuple(self.parameters[target].shape)}


class _Conversions:
    """The map that uses the conversions of names and shapes in transformers."""

    def __init__(self, module: Any, parameters: Mapping[str, torch.Tensor]) -> None:
        from transformers import conversion_mapping, core_model_loading

        self.module, self.parameters, self.loading = module, parameters, core_model_loading
        conversions = conversion_mapping.get_model_conversion_mapping(module)
        converter = core_model_loading.WeightConverter
        self.converters = [t for t in conversions if isinstance(t, converter)]
        self.renamings = [t for t in conversions if not isinstance(t, converter)]
        self.by_pattern = {p: t for t in self.converters for p in t.source_patterns}
        self.prefix = getattr(module, "base_model_prefix", "")

    def find_target(self, name: str) -> tuple[str, str]:
        """See `Names`."""
        rename = self.loading.rename_source_key
        renamed, pattern = rename(name, self.renamings, self.converters, self.prefix, self.parameters)
        if renamed not in self.parameters and name in self.parameters:
            renamed, pattern = rename(name, [], [], self.prefix, self.parameters)
        return renamed, pattern or ""

    def list_shapes(
        self, target: str, sources: Sequence[tuple[str, LogicalTensor]]
    ) -> Mapping[str, tuple[int, ...] | None]:
        """See `Names`."""
        pattern, first = sources[0]
        if not pattern:
            shape = tuple(self.parameters[target].shape)
            is_only_source = len(sources) == 1
            return {
                target: shape
                if is_only_source and first.fits_shape(shape)
                else (is_only_source and first.shape) or ()
            }
        if any(weight.shape is None for _, weight in sources):
            return {target: None}
        converter = copy.deepcopy(self.by_pattern[pattern])
        for source, weight in sources:
            empty = torch.empty(weight.shape or (), device="meta")
            converter.add_tensor(target, weight.name, source, lambda empty=empty: empty)
        try:
            converted = converter.convert(
                target, model=self.module, config=getattr(self.module, "config", None)
            )
        except Exception:
            return {target: ()}
        return {
            name: tuple((value[0] if isinstance(value, list) else value).shape)
            for name, value in converted.items()
        }


def _record_match(
    name_match: NameMatch,
    parameters: Mapping[str, torch.Tensor],
    shapes: Mapping[str, tuple[int, ...] | None],
    weights: Sequence[LogicalTensor],
) -> None:
    """Records the file tensors of one or more parameters, and a contradiction if a shape differs.

    Args:
        name_match: Match to which the result is added.
        parameters: Parameters and buffers of the module, by name.
        shapes: Shape of each parameter that is created from the weights, by name; None if unknown.
        weights: Weights of the files.
    """
    size = sum(weight.nbytes for weight in weights)
    dtypes = list(dict.fromkeys(weight.dtype for weight in weights))
    names = tuple(tensor.name for weight in weights for tensor in weight.tensors)
    stored_elements = [weight.elements for weight in weights if weight.elements is not None]
    total = sum(parameters[name].numel() for name in shapes if name in parameters) or 1
    bytes_left = size
    for index, (name, shape) in enumerate(shapes.items()):
        target = parameters.get(name)
        if target is None:
            name_match.unexpected += names
            continue
        is_contradiction = shape is not None and shape != tuple(target.shape)
        if shape is None and len(stored_elements) == len(weights):
            is_contradiction = sum(stored_elements) < target.numel()
        if is_contradiction:
            stored_text = (
                shape_text(shape)
                if shape
                else f"{sum(stored_elements):,} numbers in {many_text(len(weights), 'tensor')}"
            )
            name_match.contradictions.append(
                f"{printable(names[0])} is {stored_text}, by the configuration"
                f" {shape_text(tuple(target.shape))}"
            )
        share = bytes_left if index == len(shapes) - 1 else size * target.numel() // total
        bytes_left -= share
        name_match.stored[name] = StoredForm(", ".join(dtypes), share)
        name_match.names[name] = names


def _build_natural_key(name: str) -> tuple[tuple[int, str], ...]:
    """Returns a sort key of a name that compares numbers by value, so that experts are in order."""
    return tuple((int(p), "") if p.isdecimal() and len(p) < 10 else (-1, p) for p in name.split("."))
