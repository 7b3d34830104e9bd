"""Builds both sides of a changed region as models, and compares their graphs without a run."""

from __future__ import annotations

from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.regions.affine import is_affine
from explorer.engine.proof.regions.correspondence import ChangedRegion, Correspondence
from explorer.engine.proof.regions.observability import NodeContents
from explorer.engine.proof.regions.original_values import OriginalValues
from explorer.engine.proof.regions.stored_numbers import StoredDifferences, compare_stored
from explorer.engine.proof.structure.probes import build_region_model_of_one

NodesOfSides = tuple[list[Node], list[Node]]
"""Nodes of a region in the original and in the other model."""

_WIDE_FLOATS = frozenset(("float32", "float64"))
"""Float types that represent activations of all spreads without overflow."""


class RegionModels:
    """Builds the models of regions, and caches the results of the last region.

    Args:
        correspondence: Matched values of the two models.
        original_values: Values of the original, which tell the types of a region's inputs.

    Attributes:
        before, after: Producers of the values in either model.
        contents: Control flow and stored numbers of the two models.
    """

    def __init__(self, correspondence: Correspondence, original_values: OriginalValues) -> None:
        self.correspondence = correspondence
        self.before, self.after = correspondence.wirings
        self.contents = NodeContents(correspondence.before, correspondence.after)
        self._original_values = original_values
        self._models: dict[tuple[object, ...], tuple[Model, Model]] = {}
        self._stored_differences: dict[tuple[object, ...], StoredDifferences] = {}

    def list_nodes(self, region: ChangedRegion) -> NodesOfSides:
        """Lists the nodes of a region in either model."""
        return (
            [self.before.nodes[index] for index in region.before.nodes],
            [self.after.nodes[index] for index in region.after.nodes],
        )

    def build(self, region: ChangedRegion) -> tuple[Model, Model]:
        """Builds a model of either side of a region."""
        if region.key not in self._models:
            types = self._original_values.types
            if not types.keys() >= set(region.reads):
                self._original_values.compute_first(region)
            after_types = {name: types[twin or name] for name, twin in region.twins.items()}
            before = build_region_model_of_one(self.before, region.before, types)
            after = build_region_model_of_one(self.after, region.after, after_types)
            self._models = {region.key: (before, after)}
        return self._models[region.key]

    def compare_stored_numbers(self, region: ChangedRegion) -> StoredDifferences:
        """Compares the numbers that a region stores in the two models."""
        if region.key not in self._stored_differences:
            self._stored_differences = {
                region.key: compare_stored(*self.build(region), self.correspondence.has_same_content)
            }
        return self._stored_differences[region.key]

    def is_decided_by_one_spread(self, region: ChangedRegion) -> bool:
        """Whether values of a single spread show every difference between the sides of a region.

        They do if both sides are affine functions with the same stored numbers, except for rounding. Inputs
        of narrow types do not count, because they may overflow at another spread.
        """
        models = self.build(region)
        types = {value.dtype for model in models for value in model.graph.required_inputs}
        if not types.issubset(_WIDE_FLOATS) or not all(map(is_affine, models)):
            return False
        stored = self.compare_stored_numbers(region)
        return stored.has_same_operators and not any(difference.is_large for difference in stored.differences)
