"""Changed nodes of a region: which one was inserted, removed, replaced, changed or connected otherwise.

A comparison is of values, a fault is in a node. The region that makes a value is a few nodes in each model,
and most of them are the same. Equal nodes are removed from the front, where they compute the same values from
the same inputs, and from the back, where equal operators read what the changed node makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from explorer.engine.diff.forms import Forms, literal_form
from explorer.engine.graph.constant_nodes import constant_of
from explorer.engine.graph.model import Node, Tensor
from explorer.engine.graph.schema_defaults import default_attributes
from explorer.engine.proof.structure.probes import GraphProducers, Region
from explorer.facts.blame import Change


class ChangedNodes(Struct, frozen=True):
    """What differs between two regions that make one value.

    Attributes:
        change: What was done; '' where no single change explains it.
        before, after: Positions of the nodes that differ, in execution order.
    """

    change: Change
    before: tuple[int, ...]
    after: tuple[int, ...]


def changed_nodes(
    before: GraphProducers,
    after: GraphProducers,
    regions: tuple[Region, Region],
    named: Mapping[str, str],
) -> ChangedNodes:
    """The nodes in which two regions differ.

    Args:
        before: The first graph.
        after: The second graph.
        regions: The region that makes the value, in either graph.
        named: By names in the second graph: the names of the same values in the first.
    """
    forms = _Forms()
    sides = _Side(before, regions[0], {}, forms), _Side(after, regions[1], named, forms)
    shared = set(sides[0].numbers.values()) & set(sides[1].numbers.values())
    only_before, only_after = ({at for at in side.live if not side.has(at, shared)} for side in sides)
    rewired = _peel(sides, only_before, only_after)
    if not only_before and not only_after:
        return ChangedNodes("connected otherwise", *rewired) if rewired else ChangedNodes("", (), ())
    kind: Change = "removed" if not only_after else "inserted" if not only_before else "replaced"
    if len(only_before) == len(only_after) == 1:
        a, b = before.nodes[next(iter(only_before))], after.nodes[next(iter(only_after))]
        kind = "changed" if a.key == b.key else "replaced"
    return ChangedNodes(kind, tuple(sorted(only_before)), tuple(sorted(only_after)))


class _Forms:
    """The numbers that both sides share."""

    def __init__(self) -> None:
        self.forms = Forms()
        self._numbers: dict[Any, int] = {}
        self._tensors: list[tuple[Tensor, int]] = []

    def number(self, form: Any) -> int:
        return self._numbers.setdefault(form, len(self._numbers))

    def stored(self, tensor: Tensor) -> int:
        bucket = self.forms.sample(tensor)
        for candidate, number in self._tensors:
            if candidate is tensor or (
                self.forms.sample(candidate) == bucket and self.forms.equal_content(candidate, tensor)
            ):
                return number
        self._tensors.append((tensor, self.number(("stored", len(self._tensors)))))
        return self._tensors[-1][1]


class _Side:
    """One region, its nodes numbered from its inputs on.

    Attributes:
        numbers: Of values, by name: equal numbers in both regions are equal values.
        live: Positions of the nodes that depend on the region's inputs; the others are constants.
        local: Of each live node, a number for the operator and its constant inputs.
    """

    def __init__(
        self, wiring: GraphProducers, region: Region, named: Mapping[str, str], forms: _Forms
    ) -> None:
        self.wiring, self.region, self.forms = wiring, region, forms
        self.opset = wiring.model.opset
        self.numbers: dict[str, int] = {}
        self.live: list[int] = []
        self.local: dict[int, int] = {}
        flowing = set(region.inputs)
        for name in region.inputs:
            self.numbers[name] = forms.number(("given", named.get(name, name)))
        for at in region.nodes:
            node = wiring.nodes[at]
            reads = wiring.reads[at]
            live = any(name in flowing for name in reads)
            inputs = tuple(self._number_of(name) for name in node.inputs)
            captured = tuple(self._number_of(name) for name in reads if name not in node.inputs)
            signature = self._operator_number(node)
            whole = forms.number(("node", signature, inputs, captured))
            if live:
                self.live.append(at)
                flowing.update(filter(None, node.outputs))
                fixed = tuple("" if name in flowing else self._number_of(name) for name in node.inputs)
                self.local[at] = forms.number(("local", signature, fixed))
            single = constant_of(node)
            if not node.domain and node.op == "Identity" and inputs:
                self.numbers[node.outputs[0]] = inputs[0]
                continue
            for slot, name in enumerate(node.outputs):
                if name:
                    self.numbers[name] = (
                        forms.stored(single) if single is not None else forms.number(("output", whole, slot))
                    )

    def _number_of(self, name: str) -> int:
        if name not in self.numbers:
            tensor = self.wiring.model.graph.initializers.get(name)
            if tensor is not None:
                self.numbers[name] = self.forms.stored(tensor)
            else:
                self.numbers[name] = self.forms.number(("given", name) if name else "absent")
        return self.numbers[name]

    def _operator_number(self, node: Node) -> int:
        """The number of an operator with its attributes."""
        values = {**default_attributes(node.domain, node.op, self.opset), **node.attributes}
        plain = tuple((name, self._attribute(values[name])) for name in sorted(values))
        return self.forms.number((node.key, plain))

    def _attribute(self, value: Any) -> Any:
        if (form := literal_form(value)) is not None:
            return form
        if isinstance(value, (tuple, list)):
            return tuple(self._attribute(element) for element in value)
        if isinstance(value, Tensor):
            return self.forms.stored(value)
        return self.forms.forms.attribute(self.wiring.model, value)

    def has(self, at: int, shared: set[int]) -> bool:
        """Whether the other region, too, has all outputs of a node."""
        outputs = [name for name in self.wiring.nodes[at].outputs if name]
        return all(self.numbers[name] in shared for name in outputs)


def _peel(
    sides: tuple[_Side, _Side], only_before: set[int], only_after: set[int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Removes from the back the nodes that are equal in both regions.

    Returns:
        The first removed pair whose inputs have different known values; None without such a pair.
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
        apart = [(x, y) for x, y in inputs if before.numbers.get(x) != after.numbers.get(y)]
        settled = [
            not ({before.wiring.producer.get(x)} & only_before)
            and not ({after.wiring.producer.get(y)} & only_after)
            for x, y in apart
        ]
        if apart and all(settled):
            rewired.append((a, b))
    if not rewired:
        return None
    a, b = min(rewired)
    return (a,), (b,)
