"""Settings in force: the number formats of every layer, with their origins (`explorer settings`)."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.engine.quantize.choice import LayerChoice
from explorer.engine.quantize.layers import Part
from explorer.engine.tiling.rules import Rules
from explorer.engine.tiling.settings import DEFAULT, unused_rule
from explorer.facts.quantize import QuantizeSpec
from explorer.facts.settings import LayerSettings, QuantizeSettings


def in_force(spec: QuantizeSpec, choices: Sequence[LayerChoice]) -> QuantizeSettings:
    """The settings of the layers that `spec` selects."""
    rules = Rules(spec.rules)
    layers = [choice.layer for choice in choices]
    used = {at for layer in layers for at, _ in rules.matching(layer.name, layer.op, layer.sizes)}
    names = [layer.name for layer in layers]
    unused = [unused_rule(rule, names) for at, rule in enumerate(spec.rules) if at not in used]
    return QuantizeSettings(tuple(map(_layer, choices)), tuple(unused))


def _layer(choice: LayerChoice) -> LayerSettings:
    def name(part: Part) -> str:
        fmt = None if choice.reason else getattr(choice, part)
        return "" if fmt is None else str(fmt.name)

    return LayerSettings(
        choice.layer.name,
        choice.layer.op,
        choice.layer.sizes,
        name("weight"),
        name("input"),
        name("bias"),
        choice.granularity,
        choice.symmetric_of("weight"),
        choice.block,
        choice.form,
        {value: origin or DEFAULT for value, origin in choice.origins.items()},
        choice.reason,
    )
