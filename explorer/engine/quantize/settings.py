"""Effective quantization settings: the number formats of every layer, with origins (`explorer settings`)."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.layers import Part
from explorer.engine.tiling.rules import Rules
from explorer.engine.tiling.settings import DEFAULT, describe_unused_rule
from explorer.facts.quantize import QuantizeSpec
from explorer.facts.settings import LayerSettings, QuantizeSettings


def find_settings(spec: QuantizeSpec, choices: Sequence[LayerChoice]) -> QuantizeSettings:
    """Returns the effective settings of every layer, and the rules of `spec` that matched no layer."""
    rules = Rules(spec.rules)
    layers = [choice.layer for choice in choices]
    hits = {index for layer in layers for index, _ in rules.find_matching(layer.name, layer.op, layer.sizes)}
    names = [layer.name for layer in layers]
    unused_rules = [
        describe_unused_rule(rule, names) for index, rule in enumerate(spec.rules) if index not in hits
    ]
    return QuantizeSettings(tuple(map(_find_layer_settings, choices)), tuple(unused_rules))


def _find_layer_settings(choice: LayerChoice) -> LayerSettings:
    def get_format_name(part: Part) -> str:
        fmt = None if choice.reason else getattr(choice, part)
        return "" if fmt is None else str(fmt.name)

    return LayerSettings(
        choice.layer.name,
        choice.layer.op,
        choice.layer.sizes,
        get_format_name("weight"),
        get_format_name("input"),
        get_format_name("bias"),
        choice.granularity,
        choice.is_symmetric("weight"),
        choice.block,
        choice.form,
        {value: origin or DEFAULT for value, origin in choice.origins.items()},
        choice.reason,
    )
