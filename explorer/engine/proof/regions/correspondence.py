"""Finds the changed regions of two graphs: the nodes whose outputs are not equal by construction.

Value numbers (`value_numbers`) show that some outputs are equal, and these need no test. For the other nodes,
values that a diff matched are assumed to be equal. A region is the set of nodes that compute a matched value
from other equal values. Usually it is one operator. If every region gives the same value in both graphs, the
outputs are the same, by induction along the execution order.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

from msgspec import Struct

from explorer.engine.graph.model import Model, Node, Tensor
from explorer.engine.progress import Cancel
from explorer.engine.proof.meanings import Original
from explorer.engine.proof.regions.trials import COMPARABLE
from explorer.engine.proof.structure.inferred_types import TypeLookup
from explorer.engine.proof.structure.probes import GraphProducers, Pair, Region, pair_values
from explorer.engine.proof.structure.value_numbers import GraphNumbers, ValueNumbers
from explorer.facts import TensorInfo

Sites = Mapping[str, Original]
Types = Mapping[str, TensorInfo]

_INPUT_TYPES = COMPARABLE | {"bfloat16"}
"""Types of values that a region can take as inputs."""


class ChangedRegion(Struct, frozen=True):
    """The nodes in both graphs that compute one matched value.

    Attributes:
        pair: Names of the value in the two graphs.
        before, after: Nodes and inputs of the region in either graph.
        twins: The original's name of each input of `after`.
    """

    pair: Pair
    before: Region
    after: Region
    twins: Mapping[str, str]

    @property
    def key(self) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
        """A key that is unique among the regions of the same two graphs."""
        return self.pair.before, self.before.nodes, self.after.nodes

    @property
    def reads(self) -> list[str]:
        """The original's names of all inputs of the region."""
        return sorted({*self.before.inputs, *self.twins.values()})


def _find_original_product(sites: Sites, path: tuple[str, ...], name: str, node: Node) -> Original | None:
    """Finds the proved product that computes a value of the original, or None."""
    product = sites.get("/".join((*path, name)))
    # an operator that was decomposed before it was tiled may end in a value of the same name
    if product is None or (product.node.key, product.node.inputs) != (node.key, node.inputs):
        return None
    return product


class Correspondence:
    """The value numbers of two graphs, and the regions in which they differ.

    Args:
        before: Original model.
        after: Model to compare with it.
        inputs: Name of the input of `after` by the name of the original's input.
        outputs: Pairs of the names of the outputs.
        sites: Products whose tiling is proved, by path and output name.
        types: Function that returns the types of the values of both graphs.
        cancel: Function that returns True to cancel. It is called between slabs of weights.

    Attributes:
        unequal: Outputs that are not equal by construction.
        nodes: Number of nodes that the original's outputs depend on.
        used_sites: Keys of the sites that the equality of outputs relies on.
        unreachable: Outputs without a region whose inputs a run can supply, set by `list_regions`.
    """

    def __init__(
        self,
        before: Model,
        after: Model,
        inputs: Mapping[str, str],
        outputs: Sequence[Pair],
        sites: Sites,
        types: Callable[[], tuple[Types, Types]],
        cancel: Cancel,
    ) -> None:
        self.before, self.after = before, after
        self.inputs, self.outputs, self._sites, self._types = inputs, outputs, sites, types
        self._table = ValueNumbers([before, after], cancel)
        input_numbers = {name: self._table.get_number("input", name) for name in inputs}
        self.unreachable: list[Pair] = []
        declared = {value.name: value.dtype for value in before.graph.required_inputs}
        self._table.sources.dtypes.update(
            (number, dtype)
            for name, number in input_numbers.items()
            if (dtype := declared.get(name)) is not None
        )
        self._input_numbers = input_numbers
        self._input_numbers_after = {inputs[name]: number for name, number in input_numbers.items()}
        self._type_lookups: tuple[TypeLookup, TypeLookup] | None = None
        self.unequal = self._number_values()
        if self.unequal:
            # normal forms of axes counted from the end, and of types, need inferred types of both graphs
            self._type_lookups = TypeLookup(before), TypeLookup(after)
            self.unequal = self._number_values()
        self.nodes = self._first.nodes

    def _number_values(self) -> list[Pair]:
        """Numbers the values of both graphs and returns the outputs whose numbers differ."""
        types = self._type_lookups[0] if self._type_lookups is not None else None
        find_site = partial(_find_original_product, self._sites)
        self._first = GraphNumbers(
            self._table, self.before, self._input_numbers, find_site=find_site, types=types
        )
        second = self._number_second({})
        self._certain = {*self._first.values.values()}.intersection(second.values.values())
        self.used_sites = self._first.sites & second.sites
        return [p for p in self.outputs if self._first.values[p.before] != second.values[p.after]]

    def _number_second(self, assumed: Mapping[str, int]) -> GraphNumbers:
        """Numbers the values of the second graph.

        Args:
            assumed: Numbers of the values that are assumed to be equal, by the second graph's name.
        """

        def find_site(path: tuple[str, ...], name: str, node: Node) -> Original | None:
            return self._sites.get("/".join((*path, name)))

        types = self._type_lookups[1] if self._type_lookups is not None else None
        return GraphNumbers(
            self._table,
            self.after,
            self._input_numbers_after,
            find_site=find_site,
            assumed=assumed,
            types=types,
        )

    def count_certain_nodes(self, sites: Collection[str]) -> int:
        """Counts the nodes that are equal by construction, without the products of `sites`."""
        first = self._first
        product_indices = self.find_product_indices(sites)
        return sum(
            id(node) in first.visited_nodes
            and index not in product_indices
            and any(first.values.get(name) in self._certain for name in node.outputs if name)
            for index, node in enumerate(self.before.graph.nodes)
        )

    def find_product_indices(self, sites: Collection[str]) -> set[int]:
        """Finds the indices of the main graph's nodes that are products of the sites with these keys."""
        nodes = enumerate(self.before.graph.nodes if sites else ())
        return {index for index, node in nodes if any(name in sites for name in node.outputs)}

    def list_regions(
        self, separate: set[str], crossed_by_value: Mapping[str, Collection[str]]
    ) -> list[ChangedRegion]:
        """Lists the changed regions in the execution order of the original.

        Args:
            separate: Values of the original that must not be assumed to be equal. The method adds values
                whose region would depend on a later value.
            crossed_by_value: Values that a region must not stop at, by the value that the region computes.
        """
        first_graph, second_graph = self.wirings
        first, position = self._first.values, first_graph.producer
        output_names = {p.before for p in self.outputs}
        while True:
            pairs = [p for p in self._pairs if p.before not in separate and p.before in first]
            second = self._number_second({p.after: first[p.before] for p in pairs})
            common_names = self._find_common_numbers(second)
            stops = {name for name, number in first.items() if number in common_names}
            stops_after = {name for name, number in second.values.items() if number in common_names}
            changed, newly_separate = [], set()
            self.unreachable = []
            for pair in pairs:
                if second.derived.get(pair.after, first[pair.before]) == first[pair.before]:
                    continue
                crossed_values = set(crossed_by_value.get(pair.before, ()))
                # an Identity of the value has the same number, and the value must not count as its own input
                excluded_numbers = {first[pair.before], *(first[name] for name in crossed_values)}
                before = first_graph.find_region(pair.before, _Stops(stops, first, excluded_numbers))
                after = second_graph.find_region(
                    pair.after, _Stops(stops_after, second.values, excluded_numbers)
                )
                twins = {name: common_names.get(second.values[name], "") for name in after.inputs}
                region_position = position[pair.before]
                uncertain_inputs = [
                    n for n in (*before.inputs, *twins.values()) if first.get(n) not in self._certain
                ]
                later_inputs = {n for n in uncertain_inputs if position.get(n, -1) >= region_position}
                if "" not in twins.values() and not later_inputs:
                    changed.append(ChangedRegion(pair, before, after, twins))
                elif pair.before not in output_names:
                    newly_separate.add(pair.before)  # the region of this value would depend on a later value
                else:
                    candidates = {p.before for p in pairs} - output_names
                    excluded = later_inputs & candidates or {
                        n for n in candidates if position[n] > region_position and later_inputs
                    }
                    newly_separate |= excluded
                    self.unreachable += [] if excluded else [pair]
            if not newly_separate:
                return changed
            separate |= newly_separate

    def is_implied(self, value: Pair, equal: Collection[str], separate: Collection[str]) -> bool:
        """Whether a value is equal by construction once other values are assumed to be equal.

        Args:
            value: Names of the value in the two graphs.
            equal: Values of the original to assume equal.
            separate: Other values that must not be assumed to be equal.
        """
        first = self._first.values
        pairs = [p for p in self._pairs if p.before in equal or p.before not in separate]
        second = self._number_second({p.after: first[p.before] for p in pairs if p.before in first})
        return second.derived.get(value.after) == first[value.before]

    def has_same_content(self, first: Tensor, second: Tensor) -> bool:
        """Whether two stored tensors are equal bit for bit."""
        return self._table.number_tensor(first) == self._table.number_tensor(second)

    def estimate_bytes(self, name: str) -> int:
        """Returns the bytes of an original's value at 8 bytes per element, or a huge number if unknown."""
        info = self._value_types[0].get(name)
        sizes = [n if isinstance(n, int) else sys.maxsize for n in (info and info.shape) or (sys.maxsize,)]
        return 8 * math.prod(sizes)

    @property
    def matched(self) -> set[str]:
        """Values of the original that a diff matched to values of the other graph."""
        return {p.before for p in self._pairs}

    @cached_property
    def wirings(self) -> tuple[GraphProducers, GraphProducers]:
        """The producers of the values in either graph."""
        return GraphProducers(self.before), GraphProducers(self.after)

    @cached_property
    def _value_types(self) -> tuple[Types, Types]:
        return self._types()

    @cached_property
    def _pairs(self) -> list[Pair]:
        """Values that a diff matched, including the outputs."""
        before_types, after_types = self._value_types
        output_names = {p.before for p in self.outputs}
        return [
            p
            for p in pair_values(*self.wirings, self.inputs, self.outputs)
            if p.before in output_names
            or _has_same_type(before_types.get(p.before), after_types.get(p.after))
        ]

    def _find_common_numbers(self, second: GraphNumbers) -> dict[int, str]:
        """Finds the value numbers that both graphs contain and whose values a run can supply.

        Returns:
            The original's name of the value by its number.
        """
        first_graph, second_graph = self.wirings
        usable_names, usable_names_after = (
            {name for name in wiring.input_dependent if _is_usable(types.get(name))}
            for wiring, types in zip((first_graph, second_graph), self._value_types, strict=True)
        )
        after_numbers = {number for name, number in second.values.items() if name in usable_names_after}
        names: dict[int, str] = {}
        for name, number in self._first.values.items():
            if name in usable_names and number in after_numbers:
                best = names.get(number)
                if best is None or first_graph.producer.get(name, -1) < first_graph.producer.get(best, -1):
                    names[number] = name
        return names


class _Stops(Struct, frozen=True):
    """The names at which a region stops: `names`, except values with a number in `excluded_numbers`."""

    names: Collection[str]
    numbers: Mapping[str, int]
    excluded_numbers: Collection[int]

    def __contains__(self, name: Any) -> bool:
        return name in self.names and self.numbers[name] not in self.excluded_numbers


def _is_usable(info: TensorInfo | None) -> bool:
    """Whether a region can take a value of this type as an input."""
    return info is not None and info.dtype in _INPUT_TYPES


def _has_same_type(first: TensorInfo | None, second: TensorInfo | None) -> bool:
    return _is_usable(first) and first is not None and second is not None and first.dtype == second.dtype
