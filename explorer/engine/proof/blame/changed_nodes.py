"""Finds the node in a region that was inserted, removed, replaced, changed or connected to other inputs.

The proof compares values, but a fault is in a node. The region that computes a value has a few nodes in each
model, and most of them are equal. Two steps ignore equal nodes. The first step starts at the inputs and drops
nodes that compute the same values. The second step starts at the output and drops equal operators that read
the result of the changed node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from explorer.engine.diff.forms import Forms, encode_literal
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.model import Node, Tensor
from explorer.engine.graph.schema_defaults import get_default_attributes
from explorer.engine.proof.structure.probes import GraphProducers, Region
from explorer.facts.blame import Change


class ChangedNodes(Struct, frozen=True):
    """The difference between two regions that compute one value.

    Attributes:
        change: Kind of the change, or '' if no node differs.
        before, after: Indices of the nodes that differ, in execution order.
    """

    change: Change
    before: tuple[int, ...]
    after: tuple[int, ...]


def find_changed_nodes(
    before: GraphProducers,
    after: GraphProducers,
    regions: tuple[Region, Region],
    original_names: Mapping[str, str],
) -> ChangedNodes:
    """Finds the nodes in which two regions differ.

    Args:
        before: First graph.
        after: Second graph.
        regions: Region that computes the value, in either graph.
        original_names: Name of a value in the first graph by its name in the second graph.
    """
    forms = _Forms()
    sides = (
        _NumberedRegion(before, regions[0], {}, forms),
        _NumberedRegion(after, regions[1], original_names, forms),
    )
    shared = set(sides[0].numbers.values()) & set(sides[1].numbers.values())
    only_before, only_after = (
        {index for index in side.input_dependent if not side.is_shared(index, shared)} for side in sides
    )
    rewired = _remove_equal_tail(sides, only_before, only_after)
    if not only_before and not only_after:
        return ChangedNodes("connected otherwise", *rewired) if rewired else ChangedNodes("", (), ())
    kind: Change = "removed" if not only_after else "inserted" if not only_before else "replaced"
    if len(only_before) == len(only_after) == 1:
        a, b = before.nodes[next(iter(only_before))], after.nodes[next(iter(only_after))]
        kind = "changed" if a.key == b.key else "replaced"
    return ChangedNodes(kind, tuple(sorted(only_before)), tuple(sorted(only_after)))


class _Forms:
    """Numbers for operators, tensors and values. Equal things get equal numbers in both regions."""

    def __init__(self) -> None:
        self.forms = Forms()
        self._numbers: dict[Any, int] = {}
        self._tensors: list[tuple[Tensor, int]] = []

    def number_form(self, form: Any) -> int:
        """Returns the number of a form, which is any hashable value."""
        return self._numbers.setdefault(form, len(self._numbers))

    def number_tensor(self, tensor: Tensor) -> int:
        """Returns the number of a stored tensor, which is equal for equal type, shape and bytes."""
        bucket = self.forms.get_sample(tensor)
        for candidate, number in self._tensors:
            if candidate is tensor or (
                self.forms.get_sample(candidate) == bucket and self.forms.has_equal_content(candidate, tensor)
            ):
                return number
        self._tensors.append((tensor, self.number_form(("stored", len(self._tensors)))))
        return self._tensors[-1][1]


class _NumberedRegion:
    """One region, with its values numbered from its inputs on.

    Attributes:
        numbers: Number of each value by name. Equal numbers in both regions mean equal values.
        input_dependent: Indices of the nodes that depend on the region's inputs; others compute constants.
        local: Number of the operator and the constant inputs of each of these nodes, by node index.
    """

    def __init__(
        self, wiring: GraphProducers, region: Region, original_names: Mapping[str, str], forms: _Forms
    ) -> None:
        self.wiring, self.region, self.forms = wiring, region, forms
        self.opset = wiring.model.opset
        self.numbers: dict[str, int] = {}
        self.input_dependent: list[int] = []
        self.local: dict[int, int] = {}
        dependent_names = set(region.inputs)
        for name in region.inputs:
            self.numbers[name] = forms.number_form(("given", original_names.get(name, name)))
        for index in region.nodes:
            node = wiring.nodes[index]
            read_names = wiring.reads[index]
            is_dependent = any(name in dependent_names for name in read_names)
            inputs = tuple(self._number_value(name) for name in node.inputs)
            captured = tuple(self._number_value(name) for name in read_names if name not in node.inputs)
            signature = self._number_operator(node)
            node_number = forms.number_form(("node", signature, inputs, captured))
            if is_dependent:
                self.input_dependent.append(index)
                dependent_names.update(filter(None, node.outputs))
                constant_inputs = tuple(
                    "" if name in dependent_names else self._number_value(name) for name in node.inputs
                )
                self.local[index] = forms.number_form(("local", signature, constant_inputs))
            constant = read_constant(node)
            if not node.domain and node.op == "Identity" and inputs:
                self.numbers[node.outputs[0]] = inputs[0]
                continue
            for slot, name in enumerate(node.outputs):
                if name:
                    self.numbers[name] = (
                        forms.number_tensor(constant)
                        if constant is not None
                        else forms.number_form(("output", node_number, slot))
                    )

    def _number_value(self, name: str) -> int:
        """Returns the number of a value that a node reads. A value from outside the region counts by name."""
        if name not in self.numbers:
            tensor = self.wiring.model.graph.initializers.get(name)
            if tensor is not None:
                self.numbers[name] = self.forms.number_tensor(tensor)
            else:
                self.numbers[name] = self.forms.number_form(("given", name) if name else "absent")
        return self.numbers[name]

    def _number_operator(self, node: Node) -> int:
        """Numbers an operator together with its attributes."""
        values = {**get_default_attributes(node.domain, node.op, self.opset), **node.attributes}
        attribute_forms = tuple((name, self._encode_attribute(values[name])) for name in sorted(values))
        return self.forms.number_form((node.key, attribute_forms))

    def _encode_attribute(self, value: Any) -> Any:
        """Returns a form of an attribute value that is equal for equal values."""
        if (form := encode_literal(value)) is not None:
            return form
        if isinstance(value, (tuple, list)):
            return tuple(self._encode_attribute(element) for element in value)
        if isinstance(value, Tensor):
            return self.forms.number_tensor(value)
        return self.forms.forms.number_attribute(self.wiring.model, value)

    def is_shared(self, index: int, shared: set[int]) -> bool:
        """Whether the other region also computes all outputs of a node."""
        outputs = [name for name in self.wiring.nodes[index].outputs if name]
        return all(self.numbers[name] in shared for name in outputs)


def _remove_equal_tail(
    sides: tuple[_NumberedRegion, _NumberedRegion], only_before: set[int], only_after: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Removes the nodes at the end of the regions that are equal in both.

    Returns:
        The first removed pair of nodes that read different values of unchanged nodes, or None.
    """
    before, after = sides
    pending = [(before.region.value, after.region.value)]
    rewired: list[tuple[int, int]] = []
    visited: set[tuple[str, str]] = set()
    while pending:
        pair = pending.pop()
        if pair in visited:
            continue
        visited.add(pair)
        a, b = (side.wiring.producer.get(name) for side, name in zip(sides, pair, strict=True))
        if (
            a is None
            or b is None
            or a not in only_before
            or b not in only_after
            or before.local[a] != after.local[b]
        ):
            continue
        first, second = before.wiring.nodes[a], after.wiring.nodes[b]
        if len(first.inputs) != len(second.inputs):
            continue
        only_before.discard(a)
        only_after.discard(b)
        inputs = list(zip(first.inputs, second.inputs, strict=True))
        pending += inputs
        unequal_inputs = [(x, y) for x, y in inputs if before.numbers.get(x) != after.numbers.get(y)]
        are_unchanged = [
            not ({before.wiring.producer.get(x)} & only_before)
            and not ({after.wiring.producer.get(y)} & only_after)
            for x, y in unequal_inputs
        ]
        if unequal_inputs and all(are_unchanged):
            rewired.append((a, b))
    if not rewired:
        return None
    a, b = min(rewired)
    return (a,), (b,)
