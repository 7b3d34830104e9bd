"""Compares the stored numbers of two regions: constants and attributes.

Two runs that agree within rounding do not exclude a smaller change of a weight. If both regions have the same
operators, possibly after folding batch normalizations and constants, each number has a counterpart. A number
and its counterpart may differ only by the rounding of another order of computation.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text
from explorer.engine.diff.describe import get_default
from explorer.engine.diff.folded_weights import describe_folded_change
from explorer.engine.fold.activations import FUSED
from explorer.engine.fold.fold import fold_away
from explorer.engine.graph.constant_nodes import read_constant
from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor
from explorer.engine.operators.registry import find_operator
from explorer.engine.proof.structure.probes import GraphProducers
from explorer.engine.runtime.onnxruntime import Array

_LAYOUT_INPUTS: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Split"), (1,)),
    **dict.fromkeys(("Squeeze", "Tile", "TopK", "Unsqueeze", "CumSum"), (1,)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), (1,)),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (2, 3),
}
"""Indices of the inputs that only decide where elements go. Runs detect differences of such inputs."""

_LAYOUT_ATTRIBUTES = frozenset(
    str.split("""
        auto_pad axes axis dilations ends group keepdims kernel_shape noop_with_empty_axes num_outputs
        output_padding output_shape pads perm shape split starts strides allowzero transA transB start end
    """)
)
"""Attributes that only decide where elements go."""

_TRANSPOSE_FLAGS = ("transA", "transB")
"""Attributes that say that a matrix is stored transposed."""

CLOSE, _ROUNDINGS = 2.0**-21, 8
"""Largest relative difference of a number computed in another order: eight roundings of float32. For a float
type with a finer resolution it is eight roundings of that type."""

_CANCELLATION, _RECOMPUTED_SHARE = 2.0**-24, 1 / 8
"""Allowed difference relative to the largest number of a tensor, if this share of its numbers differ. Then
all numbers were computed in another order, and a small one may be the difference of two large ones."""

MIN_NUMBERS_PER_CHANGE = 256
"""A tensor was changed on purpose if it has more than this many numbers for each changed number. Another
order of computation would change more of the numbers."""

_SLAB_ELEMENTS = 1 << 20
"""Number of elements that are compared at a time."""

Sides = tuple[Model, Model]
"""The models of a region in the two graphs."""

Magnitudes = tuple[Mapping[str, Array | None], Mapping[str, Array | None]]
"""For either side, the sum of the absolute values of the terms of each folded weight, by weight name."""

IsSameTensor = Callable[[Tensor, Tensor], bool]
"""Function that returns whether two stored tensors are equal bit for bit."""


class StoredDifference(Struct, frozen=True):
    """A difference between stored numbers of one tensor or attribute in two regions.

    Attributes:
        text: Description of the difference.
        largest: Largest relative difference.
        is_large: Whether the difference exceeds the rounding of another order of computation.
        location: Index of the node in the second region, and the input index or attribute name. None in a
            body or a function.
        original: Tensor or attribute value in the first region, or None if the attribute is absent.
    """

    text: str
    largest: float
    is_large: bool
    location: tuple[int, int | str] | None = None
    original: Any = None


class StoredDifferences(Struct, frozen=True):
    """The differences between the stored numbers of two regions.

    Attributes:
        differences: All differences found.
        has_same_operators: Whether the operators are the same, so that every number has a counterpart.
        sides: Models that were compared, possibly after folding.
        magnitudes: Magnitudes of the terms of the folded weights.
    """

    differences: list[StoredDifference]
    has_same_operators: bool
    sides: Sides
    magnitudes: Magnitudes

    @property
    def are_roundings(self) -> bool:
        """Whether there are differences, all of them within the rounding of another order of computation."""
        return (
            self.has_same_operators
            and bool(self.differences)
            and not any(difference.is_large for difference in self.differences)
        )


def compare_stored(before: Model, after: Model, is_same: IsSameTensor) -> StoredDifferences:
    """Compares the stored numbers of two regions, if they have the same operators, possibly after folding.

    Otherwise the result has no differences, and `has_same_operators` is false.

    Args:
        before: Region of the first graph, as a model.
        after: Region of the second graph, as a model.
        is_same: Function that returns whether two stored tensors are equal.
    """
    for sides, magnitudes in _list_comparable_forms(before, after):
        try:
            return StoredDifferences(
                list(_Comparison(sides, is_same, magnitudes).compare_stored()), True, sides, magnitudes
            )
        except _NoCounterpart:
            continue
    return StoredDifferences([], False, sides, magnitudes)


def restore(model: Model, difference: StoredDifference) -> Model:
    """Undoes one difference: puts the first region's number into the second region."""
    assert difference.location is not None
    index, slot = difference.location  # a slot is the name of an attribute or the index of an input
    node, initializers = model.graph.nodes[index], dict(model.graph.initializers)
    if isinstance(slot, str):
        attributes = {name: value for name, value in node.attributes.items() if name != slot}
        node = node.replace_attributes(
            attributes if difference.original is None else {**attributes, slot: difference.original}
        )
    else:
        inputs = [*node.inputs, *[""] * (slot + 1 - len(node.inputs))]
        inputs[slot] = "" if difference.original is None else f"{inputs[slot]}/restored/{slot}"
        if difference.original is not None:
            initializers[inputs[slot]] = replace(difference.original, name=inputs[slot], record=None)
        node = node.replace_values(inputs, node.outputs)
    nodes = (*model.graph.nodes[:index], node, *model.graph.nodes[index + 1 :])
    return replace(model, graph=replace(model.graph, nodes=nodes, initializers=initializers))


def _list_comparable_forms(before: Model, after: Model) -> Iterator[tuple[Sides, Magnitudes]]:
    """Yields the regions unchanged, then folded if a node of either region can be folded."""
    yield (before, after), ({}, {})
    fused = any(node.op in FUSED.values() for model in (before, after) for node in model.graph.nodes)
    folded = [fold_away(model, range(len(model.graph.nodes)), fused) for model in (before, after)]
    if any(side.folded for side in folded):
        yield (folded[0].model, folded[1].model), (folded[0].magnitudes, folded[1].magnitudes)


class _Comparison:
    """Compares two regions node by node."""

    def __init__(self, sides: Sides, is_same: IsSameTensor, magnitudes: Magnitudes) -> None:
        self.sides, self.is_same, self.magnitudes = sides, is_same, magnitudes

    def compare_stored(self) -> Iterator[StoredDifference]:
        """Returns an iterator over all differences.

        Raises:
            _NoCounterpart: During the iteration, if operators differ or constants differ in type or size.
        """
        nodes = self.sides[0].graph.nodes, self.sides[1].graph.nodes
        constants = [collect_constants(m.graph.nodes, m.graph.initializers) for m in self.sides]
        input_dependent = [GraphProducers(model).input_dependent for model in self.sides]
        return self._compare_nodes(nodes, constants, input_dependent, is_top_level=True)

    def _compare_nodes(
        self,
        nodes: tuple[Sequence[Node], Sequence[Node]],
        constants: Sequence[ChainMap[str, Tensor]],
        input_dependent: Sequence[Collection[str]],
        *,
        is_top_level: bool = False,
    ) -> Iterator[StoredDifference]:
        """Yields the differences of two lists of nodes. Only nodes of the top level have a location.

        Raises:
            _NoCounterpart: The operators differ, or constants differ in type or size.
        """
        first, second = (
            [(index, node) for index, node in enumerate(side) if _computes_value(node)] for side in nodes
        )
        if len(first) != len(second) or any(
            a.key != b.key for (_, a), (_, b) in zip(first, second, strict=True)
        ):
            raise _NoCounterpart
        for (_, a), (position, b) in zip(first, second, strict=True):
            layout_inputs = _LAYOUT_INPUTS.get(a.op, ()) if not a.domain else ()
            is_transposed = [
                bool(a.attributes.get(flag)) != bool(b.attributes.get(flag)) for flag in _TRANSPOSE_FLAGS
            ]
            for index, (x, y) in enumerate(zip_longest(a.inputs, b.inputs, fillvalue="")):
                if x in input_dependent[0] or y in input_dependent[1]:
                    continue
                x_tensor, y_tensor = constants[0].get(x), constants[1].get(y)
                location = (position, index) if is_top_level else None
                if x_tensor is not None and y_tensor is not None:
                    if index in layout_inputs and x_tensor.dtype.startswith("int"):
                        continue
                    if index < len(is_transposed) and is_transposed[index] and x in self.magnitudes[0]:
                        y_tensor, y, location = transpose_matrix(y_tensor), "", None
                    elif index < len(is_transposed) and is_transposed[index]:
                        x_tensor, x = transpose_matrix(x_tensor), ""
                    elif not a.domain and find_operator(a.op).position == "each":
                        x_tensor, y_tensor = _broadcast(x_tensor, y_tensor)
                    yield from self._compare_weights(
                        f"a constant of {a.op}", (x, y), (x_tensor, y_tensor), location
                    )
                elif (
                    (x_tensor is None) != (y_tensor is None) and not (x and y) and index not in layout_inputs
                ):
                    yield from _describe_one_sided(a.op, x_tensor, y_tensor, location)
            yield from self._compare_attributes(a, b, constants, position if is_top_level else None)
            functions = [model.functions.get(a.key) for model in self.sides]
            if functions[0] is not None and functions[1] is not None:
                bodies = functions[0].nodes, functions[1].nodes
                yield from self._compare_nodes(
                    bodies, [collect_constants(body, {}) for body in bodies], ((), ())
                )

    def _compare_attributes(
        self, a: Node, b: Node, constants: Sequence[ChainMap[str, Tensor]], position: int | None
    ) -> Iterator[StoredDifference]:
        """Yields the differences between the attributes of two nodes, bodies included.

        `position` is the index of `b` in the second region, or None in a body or a function.
        """
        for name in sorted(
            {*a.attributes, *b.attributes} - _LAYOUT_ATTRIBUTES - {*_list_unused_attributes(a)}
        ):
            x, y = (
                node.attributes[name] if name in node.attributes else _find_default(model, node, name)
                for model, node in zip(self.sides, (a, b), strict=True)
            )
            label, location = f"'{name}' of {a.op}", None if position is None else (position, name)
            if isinstance(x, Graph) and isinstance(y, Graph):
                inner_constants = [
                    collect_constants(g.nodes, g.initializers, *s.maps)
                    for g, s in zip((x, y), constants, strict=True)
                ]
                yield from self._compare_nodes((x.nodes, y.nodes), inner_constants, ((), ()))
            elif isinstance(x, Tensor) and isinstance(y, Tensor):
                yield from self._compare_tensors(label, x, y, location)
            elif type(x) is not type(y) or x != y:
                share = _compute_relative_difference(x, y)
                original = a.attributes.get(name)
                yield StoredDifference(f"{label} differs", share, not share <= CLOSE, location, original)

    def _compare_weights(
        self,
        label: str,
        names: tuple[str, str],
        tensors: tuple[Tensor, Tensor],
        location: tuple[int, int] | None,
    ) -> Iterator[StoredDifference]:
        """Yields the differences between two inputs, of which one may be a folded weight."""
        for index in (0, 1):
            if names[index] in self.magnitudes[index]:
                counterpart, magnitude = tensors[1 - index], self.magnitudes[index][names[index]]
                if text := describe_folded_change(names[index], tensors[index], counterpart, magnitude):
                    yield StoredDifference(text, np.inf, True, location, tensors[0])
                return
        yield from self._compare_tensors(label, *tensors, location)

    def _compare_tensors(
        self, label: str, first: Tensor, second: Tensor, location: tuple[int, int | str] | None
    ) -> Iterator[StoredDifference]:
        """Yields the difference between two tensors, if any.

        Raises:
            _NoCounterpart: The tensors differ in type or number of elements.
        """
        if first.dtype != second.dtype or first.elements != second.elements:
            raise _NoCounterpart
        if first.shape == second.shape and self.is_same(first, second):
            return
        try:
            a, b = np.asarray(first.array()).reshape(-1), np.asarray(second.array()).reshape(-1)
        except BadModel:  # strings, or sparse data
            yield StoredDifference(f"{label} differs", np.inf, True)
            return
        if a.tobytes() != b.tobytes():
            yield describe_difference(label, a, b, location, first)


class _NoCounterpart(Exception):
    """Two lists of nodes have different operators, or stored tensors that cannot correspond."""


def _find_default(model: Model, node: Node, name: str) -> Any:
    """Returns the default value of an absent attribute."""
    function = model.functions.get(node.key)
    return get_default(model, node, name, None) if function is None else function.defaults.get(name)


def _computes_value(node: Node) -> bool:
    """Whether a node computes something. A Constant is compared at the nodes that read it."""
    return bool(node.domain) or node.op not in ("Constant", "Identity")


def _compute_relative_difference(x: Any, y: Any) -> float:
    """Returns the largest relative difference of a float attribute or a list of floats; else infinity."""
    old_values, new_values = ([*value] if isinstance(value, (list, tuple)) else [value] for value in (x, y))
    if len(old_values) != len(new_values) or not all(
        isinstance(value, float) for value in (*old_values, *new_values)
    ):
        return float(np.inf)
    return max(
        abs(b - a) / abs(a) if a else 0.0 if a == b else float(np.inf)
        for a, b in zip(old_values, new_values, strict=True)
    )


def transpose_matrix(tensor: Tensor) -> Tensor:
    """Transposes a stored matrix.

    Raises:
        _NoCounterpart: The tensor is not a matrix of numbers.
    """
    try:
        values = np.asarray(tensor.array())
    except BadModel:
        raise _NoCounterpart from None
    if values.ndim != 2:
        raise _NoCounterpart
    matrix = np.ascontiguousarray(values.T)
    return Tensor(tensor.name, tensor.dtype, matrix.shape, Inline(matrix.tobytes()))


def _broadcast(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Repeats the smaller of two tensors if it broadcasts to the shape of the other one."""
    if first.elements == second.elements:
        return first, second
    return _expand(first, second.shape), _expand(second, first.shape)


def _expand(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Repeats the numbers of a tensor to a larger shape, or returns it unchanged if that is not possible."""
    try:
        values = np.asarray(tensor.array())
        expanded = np.broadcast_to(values, shape)
    except (BadModel, ValueError):
        return tensor
    if values.nbytes != tensor.nbytes:
        return tensor  # several numbers in a byte
    return Tensor(tensor.name, tensor.dtype, shape, Inline(expanded.tobytes()))


def _describe_one_sided(
    op: str, first: Tensor | None, second: Tensor | None, location: tuple[int, int] | None
) -> Iterator[StoredDifference]:
    """Yields the difference for a constant that only one of two nodes has, unless it has no effect."""
    constant = first if first is not None else second
    assert constant is not None
    try:
        values = np.asarray(constant.array())
    except BadModel:
        values = np.ones(1)
    if op == "Clip":  # limits at the ends of the type's range have no effect
        ends = np.iinfo(values.dtype) if values.dtype.kind in "iu" else np.finfo(values.dtype)
        has_no_effect = bool(np.isin(values, (ends.min, ends.max, -np.inf, np.inf)).all())
    else:  # an added number, a zero point, an initial state
        has_no_effect = not values.any()
    if not has_no_effect:
        lacking_side = "the second lacks" if first is not None else "the first lacks"
        yield StoredDifference(f"{lacking_side} a constant of {op}", np.inf, True, location, first)


def describe_difference(
    label: str, a: Array, b: Array, location: tuple[int, int | str] | None, original: Tensor
) -> StoredDifference:
    """Describes the difference between two tensors of the same type."""
    count = int(np.count_nonzero(a != b))
    text = f"{label} differs" + (f" in {count:,} of {many_text(a.size, 'number')}" if a.size > 1 else "")
    if a.dtype.kind in "iub":
        return StoredDifference(text, np.inf, True, location, original)
    relative_limit = (
        min(CLOSE, _ROUNDINGS / 2 * float(np.finfo(a.dtype).eps)) if a.dtype.kind == "f" else CLOSE
    )
    largest = max(
        float(np.abs(old).max(where=np.isfinite(old), initial=0.0)) for old, _ in _iterate_slabs(a, b)
    )
    absolute_limit = _CANCELLATION * largest if 1 < count >= a.size * _RECOMPUTED_SHARE else 0.0
    share, exceeds_limit = 0.0, 0 < count * MIN_NUMBERS_PER_CHANGE < a.size
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for old, new in _iterate_slabs(a, b):
            differs = (new != old) & ~(np.isnan(new) & np.isnan(old))
            old, differences = np.abs(old[differs]), np.abs(new - old)[differs]
            share = max(share, float((differences / np.where(old > 0, old, largest)).max(initial=0.0)))
            exceeds_limit = exceeds_limit or bool(
                (~(differences <= np.maximum(relative_limit * old, absolute_limit))).any()
            )
    return StoredDifference(text, share, exceeds_limit, location, original)


def _iterate_slabs(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Yields two flat arrays in float64, one slab at a time."""
    for index in range(0, a.size, _SLAB_ELEMENTS):
        yield (
            a[index : index + _SLAB_ELEMENTS].astype(np.float64),
            b[index : index + _SLAB_ELEMENTS].astype(np.float64),
        )


def collect_constants(
    nodes: Sequence[Node], initializers: Mapping[str, Tensor], *around: MutableMapping[str, Tensor]
) -> ChainMap[str, Tensor]:
    """Collects the constants that nodes can read, with the constants `around` of the enclosing graphs."""
    constants = {node.outputs[0]: tensor for node in nodes if (tensor := read_constant(node)) is not None}
    return ChainMap(constants, dict(initializers), *around)


def _list_unused_attributes(node: Node) -> Collection[str]:
    """Returns the names of a node's attributes that do not affect its result."""
    if node.domain:
        return ()
    if node.op == "Gemm":
        return () if len(node.inputs) > 2 and node.inputs[2] else ("beta",)
    if node.op == "BatchNormalization":
        return ("momentum",) if len(node.outputs) == 1 else ()
    return ()
