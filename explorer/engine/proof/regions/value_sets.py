"""Sets of values on which a changed region runs: the original's values, and synthetic values of some kinds.

A run of the full model gives a region only the values that reach it, such as zeros after a dead ReLU, or no
values near the limit of a Clip. So a region also runs on synthetic values: floats without zeros at 0.1, 1 and
10 times the spread of its own values, values at the limits that the region stores, sorted and equal values,
both settings of a condition, and values in each range of an operator. Indices, masks and ids keep the
original's values. An affine region whose stored numbers were compared, such as a folded normalization, runs
at one spread.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Literal

from msgspec.structs import replace

from explorer.engine.proof.regions.correspondence import ChangedRegion
from explorer.engine.proof.regions.observability import find_control_inputs
from explorer.engine.proof.regions.operator_ranges import (
    draw_flags,
    draw_integers,
    draw_sizes,
    list_integers_to_vary,
    prepare_side,
    reach_ranges,
)
from explorer.engine.proof.regions.original_values import OriginalValues
from explorer.engine.proof.regions.region_models import NodesOfSides, RegionModels
from explorer.engine.proof.regions.synthetic_values import (
    DRAWN_FLOATS,
    Feeds,
    compute_spreads,
    draw_dense_values,
    draw_ordered_values,
    draw_values_at_limits,
    set_conditions,
)
from explorer.engine.runtime.random_inputs import RandomInput

SetKind = Literal["", "steered", "dense", "limits", "driven", "integers", "flags"]
"""Kind of a set of values. '' stands for the original's values.

steered: conditions and loop counts have a chosen setting. dense: random floats without zeros. limits: values
at which comparisons change, and values in unusual orders. driven: values that bring an operator into a range
that other values do not reach. integers: negative and large integers, neighbors of stored integers, and small
integers where they decide sizes. flags: all combinations of a few bools.
"""

SET_TEXTS: Mapping[SetKind, str] = {
    "dense": "dense random",
    "limits": "few different",
    "driven": "small or far",
    "integers": "other integer",
    "flags": "other boolean",
}
"""Text for a message about a difference on synthetic values, by the kind of the set. A difference on a set of
another kind counts as a difference on the original's values."""

_SPREADS = (1.0, 0.1, 10.0)
"""Spreads of the dense values, relative to the spread of the original's values."""

_MIN_ELEMENTS, _MAX_SETS = 4096, 8
"""Number of dense elements to run on, and largest number of sets for them."""

_MIN_DRIVEN_ELEMENTS, _MAX_REPEATS = 64, 16
"""Number of driven elements that are compared together with dense values, and how often they may be repeated
to reach it."""

_RESHAPING = ("Cast", "Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze")
"""Operators that change only the shape or the type of integers."""

_DRAWS = 3
"""Number of draws of the model's inputs for a region without float inputs."""


class ValueSets:
    """Draws the sets of values on which regions run.

    Args:
        original_values: Values of the original.
        models: Both sides of the regions.
    """

    def __init__(self, original_values: OriginalValues, models: RegionModels) -> None:
        self._original_values, self._models = original_values, models
        self._seed = original_values.seed
        self._range_sets: dict[tuple[object, ...], tuple[list[tuple[SetKind, list[Feeds]]], str]] = {}

    def draw_sets(
        self, region: ChangedRegion, region_inputs: Feeds, inputs: tuple[RandomInput, ...]
    ) -> Iterator[tuple[SetKind, Iterable[Feeds]]]:
        """Yields the sets of values to run on, each with its kind. A set is drawn when it is read.

        Args:
            region: The region.
            region_inputs: The original's values of its inputs.
            inputs: Inputs of the model that gave these values. Only the first set of sizes gets all spreads
                and the ranges of operators.
        """
        nodes = self._models.list_nodes(region)
        controls = [name for name in find_control_inputs(nodes[0]) if name in region.before.inputs]
        is_first_size = inputs is self._original_values.random_inputs[0]
        floats = [n for n, v in region_inputs.items() if v.dtype.name in DRAWN_FLOATS and v.size]
        feeds = [region_inputs]
        if not floats:
            feeds += [
                self._original_values.compute(region.reads, inputs, self._seed + i) for i in range(1, _DRAWS)
            ]
        yield "", feeds
        if controls:
            yield "steered", [set_conditions(region_inputs, controls, setting) for setting in (True, False)]
        if not floats:
            if is_first_size:
                yield from self._build_range_sets(region, nodes)[0]
            return
        count = max(1, min(_MAX_SETS, _MIN_ELEMENTS // sum(region_inputs[name].size for name in floats)))
        spreads = compute_spreads(region_inputs)
        # values of other spreads show bends and curves
        has_all_spreads = is_first_size and not self._models.is_decided_by_one_spread(region)
        for spread in _SPREADS if has_all_spreads else _SPREADS[:1]:
            yield (
                "dense",
                (draw_dense_values(region_inputs, spreads, spread, self._seed + i) for i in range(count)),
            )
        yield (
            "limits",
            (
                draw_values_at_limits(
                    region_inputs, self._models.contents.collect_numbers(nodes), self._seed + i
                )
                for i in range(count)
            ),
        )
        if is_first_size:
            yield "limits", draw_ordered_values(region_inputs, self._seed)
            yield from self._build_range_sets(region, nodes)[0]

    def draw_dense(self, region_inputs: Feeds) -> Feeds:
        """Draws dense random values with the spread of the original's values."""
        return draw_dense_values(region_inputs, compute_spreads(region_inputs), _SPREADS[0], self._seed)

    def add_dense(self, region_inputs: Feeds, driven: Sequence[Feeds], output_elements: int) -> list[Feeds]:
        """Adds dense values to driven ones, so that errors are judged relative to results of usual size.

        The driven values are repeated, because a few small results are not judged beside many large ones.

        Args:
            region_inputs: The original's values of the region's inputs.
            driven: Sets of driven values.
            output_elements: Number of elements of the region's output.
        """
        input_elements = sum(value.size or 1 for value in region_inputs.values())
        elements = max(1, min(input_elements, output_elements))
        repeats = min(_MAX_REPEATS, -(-_MIN_DRIVEN_ELEMENTS // elements))
        return [self.draw_dense(region_inputs), *(feeds for feeds in driven for _ in range(repeats))]

    def _find_reshaped_integers(self, region_inputs: Feeds) -> Iterator[RandomInput]:
        """Yields the inputs of a region that are integers of the model's inputs in another shape or type."""
        planned_inputs = {planned.name: planned for planned in self._original_values.random_inputs[0]}
        wiring = self._models.before
        for name, value in region_inputs.items():
            source = name
            while source in wiring.producer:
                node = wiring.nodes[wiring.producer[source]]
                if node.domain or node.op not in _RESHAPING:
                    break
                source = node.inputs[0]
            planned = planned_inputs.get(source)
            if planned is None or source == name or value.dtype.kind not in "iu":
                continue
            if planned.dtype.startswith(("int", "uint")):
                yield replace(planned, name=name, dtype=value.dtype.name, shape=value.shape)

    def describe_unmet_range(self, region: ChangedRegion) -> str:
        """Describes a range of an operator that no run of the region meets, or returns ''."""
        return self._build_range_sets(region, self._models.list_nodes(region))[1]

    def _build_range_sets(
        self, region: ChangedRegion, nodes: NodesOfSides
    ) -> tuple[list[tuple[SetKind, list[Feeds]]], str]:
        """Draws the sets of values that reach the ranges of operators, small numbers, and other integers.

        Returns:
            The sets, each with its kind, and a description of a range that they do not reach, or ''.
        """
        if region.key not in self._range_sets:
            region_inputs = self._original_values.compute_first(region)
            before, after = self._models.build(region)
            own_names = {name: name for name in region.before.inputs}
            twins = {name: twin or name for name, twin in region.twins.items()}
            sides = prepare_side(before, own_names), prepare_side(after, twins)
            inputs = [*self._original_values.random_inputs[0], *self._find_reshaped_integers(region_inputs)]
            varied = list_integers_to_vary(sides, inputs, region_inputs)
            integers = list(draw_integers(sides, varied, region_inputs, self._seed)) if varied else []
            sizes = draw_sizes(sides, inputs, region_inputs, self._seed)

            def draw_tried() -> list[Feeds]:
                spreads = compute_spreads(region_inputs)
                tried = [draw_dense_values(region_inputs, spreads, spread, self._seed) for spread in _SPREADS]
                if spreads:
                    tried.append(
                        draw_values_at_limits(
                            region_inputs, self._models.contents.collect_numbers(nodes), self._seed
                        )
                    )
                return [*tried, *itertools.chain(*integers)]

            driven, unmet_range = reach_ranges(sides, region_inputs, draw_tried, self._seed)
            sets: list[tuple[SetKind, list[Feeds]]] = [("driven", [feeds]) for feeds in driven]
            sets += [("integers", feeds) for feeds in integers]
            sets += [("integers", [feeds]) for feeds in sizes]  # results of other sizes have other shapes
            sets += [("flags", draw_flags(sides, region_inputs, self.draw_dense(region_inputs), self._seed))]
            self._range_sets = {region.key: (sets, unmet_range)}
        return self._range_sets[region.key]
