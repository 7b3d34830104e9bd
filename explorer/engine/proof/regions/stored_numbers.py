"""Stored numbers of two regions, held against each other: constants and attributes that are not the same.

Two runs that agree within rounding show nothing of a weight whose change is smaller than that. Where the same
operators stand in both regions, or do once batch normalizations and constants are folded, each number has a
counterpart: it may differ by what another order of computing it makes, and no more.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.base.units import many_text
from explorer.engine.diff.folded_weights import folded_change
from explorer.engine.fold.activations import FUSED
from explorer.engine.fold.fold import fold_away
from explorer.engine.graph.constant_nodes import constant_of
from explorer.engine.graph.model import Graph, Model, Node, Tensor
from explorer.engine.proof.structure.probes import GraphProducers
from explorer.engine.runtime.onnxruntime import Array

_PLACES: Mapping[str, Collection[int]] = {
    **dict.fromkeys(("Expand", "Gather", "GatherElements", "GatherND", "Reshape", "Split"), (1,)),
    **dict.fromkeys(("Squeeze", "Tile", "TopK", "Unsqueeze", "CumSum"), (1,)),
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), (1,)),
    "Slice": (1, 2, 3, 4),
    "Pad": (1, 3),
    "Resize": (2, 3),
}
"""Inputs that only say where elements go: values that are all different show it."""

_SHAPES = frozenset(
    (
        *("auto_pad", "axes", "axis", "dilations", "ends", "group", "keepdims", "kernel_shape"),
        *("noop_with_empty_axes", "num_outputs", "output_padding", "output_shape", "pads", "perm", "shape"),
        *("split", "starts", "strides", "allowzero", "transA", "transB", "start", "end"),
    )
)
"""Attributes of which the same holds."""

_TURNS = ("transA", "transB")
"""Attributes that say the matrix at their place is stored turned: its numbers stand elsewhere then."""

_CLOSE, _ROUNDINGS = 2.0**-21, 8
"""By how much of itself a number may differ that was computed in another order: eight roundings of float32,
or of its own type where that is finer."""

_LAST, _OFTEN = 2.0**-24, 8
"""By how much of the largest, where one number in so many differs, and more than one: all were computed
anew, and those that are the difference of larger ones keep the error of those."""

_SELDOM = 256
"""One number in more than these that differs alone was not computed in another order: the others would be."""

_NEAR = 2.0**-12
"""By how much of itself a number may be off that a rewrite is said to have moved: more shows in a run."""

_SLAB, _MANY = 1 << 20, 1 << 23
"""Numbers that are compared together, and above which no number is looked for in another tensor."""

Sides = tuple[Model, Model]
"""A region of both graphs, each a model of its own."""

Same = Callable[[Tensor, Tensor], bool]
"""Whether two stored tensors hold the same bits."""


class StoredDifference(Struct, frozen=True):
    """A stored number, or several of one tensor, in which two regions differ.

    Attributes:
        text: What differs, in words.
        apart: By how much of itself at most.
        large: Whether by more than another order of computing makes.
        place: Position of the node in the second region, and the input's place or the attribute's name; None
            in a body or a function.
        was: What the first region has there; None for an attribute that is not given.
    """

    text: str
    apart: float
    large: bool
    place: tuple[int, int | str] | None = None
    was: Any = None


def differences(before: Model, after: Model, same: Same) -> tuple[Model, list[StoredDifference]]:
    """In what regions of the same operators, one by one, have other numbers.

    Args:
        before: The region of the first graph, a model of its own.
        after: That of the second.
        same: Of two stored tensors.

    Returns:
        The second region as it was compared, folded perhaps, and in what it differs: where the operators are
        others even then, the numbers that did not come through as the rest did.
    """
    for sides, sizes in _forms(before, after):
        try:
            return sides[1], list(_Comparison(sides, same, sizes).found())
        except _Unlike:
            continue
    return after, list(_moved(sides))


def restored(model: Model, one: StoredDifference) -> Model:
    """A region with what the first one has in the place of a difference."""
    assert one.place is not None
    at, place = one.place
    node, stored = model.graph.nodes[at], dict(model.graph.initializers)
    if isinstance(place, str):
        attributes = {name: value for name, value in node.attributes.items() if name != place}
        node = node.with_attributes(attributes if one.was is None else {**attributes, place: one.was})
    else:
        name = f"{node.inputs[place]}/restored"
        stored[name] = replace(one.was, name=name, record=None)
        inputs = [name if slot == place else given for slot, given in enumerate(node.inputs)]
        node = node.with_values(inputs, node.outputs)
    nodes = (*model.graph.nodes[:at], node, *model.graph.nodes[at + 1 :])
    return replace(model, graph=replace(model.graph, nodes=nodes, initializers=stored))


Sizes = tuple[Mapping[str, Array | None], Mapping[str, Array | None]]
"""Of folded weights of either side, by name: how large what each is the sum of is."""


def _forms(before: Model, after: Model) -> Iterator[tuple[Sides, Sizes]]:
    """The regions as they are, then with folded what can be."""
    yield (before, after), ({}, {})
    fused = any(node.op in FUSED.values() for model in (before, after) for node in model.graph.nodes)
    folded = [fold_away(model, range(len(model.graph.nodes)), fused) for model in (before, after)]
    if any(one.folded for one in folded):
        yield (folded[0].model, folded[1].model), (folded[0].sizes, folded[1].sizes)


class _Comparison:
    """Two regions, node by node."""

    def __init__(self, sides: Sides, same: Same, sizes: Sizes) -> None:
        self.sides, self.same, self.sizes = sides, same, sizes

    def found(self) -> Iterator[StoredDifference]:
        """All in which they differ.

        Raises:
            _Unlike: Other operators, or constants of other types, or that one of them turns.
        """
        nodes = self.sides[0].graph.nodes, self.sides[1].graph.nodes
        stored = [known(m.graph.nodes, m.graph.initializers, ChainMap()) for m in self.sides]
        live = [GraphProducers(model).live for model in self.sides]
        return self._differing(nodes, stored, live, top=True)

    def _differing(
        self,
        nodes: tuple[Sequence[Node], Sequence[Node]],
        stored: Sequence[ChainMap[str, Tensor]],
        live: Sequence[Collection[str]],
        *,
        top: bool = False,
    ) -> Iterator[StoredDifference]:
        first, second = ([(at, node) for at, node in enumerate(side) if _computes(node)] for side in nodes)
        if len(first) != len(second) or any(
            a.key != b.key for (_, a), (_, b) in zip(first, second, strict=True)
        ):
            raise _Unlike
        for (_, a), (position, b) in zip(first, second, strict=True):
            places = _PLACES.get(a.op, ()) if not a.domain else ()
            turned = [bool(a.attributes.get(flag)) != bool(b.attributes.get(flag)) for flag in _TURNS]
            for at, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=False)):
                if x in live[0] or y in live[1] or x not in stored[0] or y not in stored[1]:
                    continue
                one, other = stored[0][x], stored[1][y]
                if at < len(turned) and turned[at]:
                    raise _Unlike
                if not (at in places and one.dtype.startswith("int")):
                    place = (position, at) if top else None
                    yield from self._of_weights(f"a constant of {a.op}", (x, y), (one, other), place)
            yield from self._attributes(a, b, stored, position if top else None)
            functions = [model.functions.get(a.key) for model in self.sides]
            if functions[0] is not None and functions[1] is not None:
                bodies = functions[0].nodes, functions[1].nodes
                yield from self._differing(bodies, [known(body, {}, ChainMap()) for body in bodies], ((), ()))

    def _attributes(
        self, a: Node, b: Node, stored: Sequence[ChainMap[str, Tensor]], position: int | None
    ) -> Iterator[StoredDifference]:
        for name in sorted({*a.attributes, *b.attributes} - _SHAPES):
            x, y = (
                node.attributes[name] if name in node.attributes else self._default(at, node, name)
                for at, node in enumerate((a, b))
            )
            what, place = f"'{name}' of {a.op}", None if position is None else (position, name)
            if isinstance(x, Graph) and isinstance(y, Graph):
                held = [known(g.nodes, g.initializers, s) for g, s in zip((x, y), stored, strict=True)]
                yield from self._differing((x.nodes, y.nodes), held, ((), ()))
            elif isinstance(x, Tensor) and isinstance(y, Tensor):
                yield from self._of_tensors(what, x, y, place)
            elif type(x) is not type(y) or x != y:
                both = isinstance(x, float) and isinstance(y, float)
                apart = abs(x - y) / abs(x) if both and x else np.inf
                was = a.attributes.get(name)
                yield StoredDifference(f"{what} differs", float(apart), not apart <= _CLOSE, place, was)

    def _of_weights(
        self,
        what: str,
        names: tuple[str, str],
        tensors: tuple[Tensor, Tensor],
        place: tuple[int, int] | None,
    ) -> Iterator[StoredDifference]:
        """Of inputs of two nodes, which may be weights that were folded."""
        for at in (0, 1):
            if names[at] in self.sizes[at]:
                there, size = tensors[1 - at], self.sizes[at][names[at]]
                if text := folded_change(names[at], tensors[at], there, size):
                    yield StoredDifference(text, np.inf, True, place, tensors[0])
                return
        yield from self._of_tensors(what, *tensors, place)

    def _of_tensors(
        self, what: str, one: Tensor, other: Tensor, place: tuple[int, int | str] | None
    ) -> Iterator[StoredDifference]:
        if one.dtype != other.dtype or one.elements != other.elements:
            raise _Unlike
        if one.shape == other.shape and self.same(one, other):
            return
        try:
            a, b = np.asarray(one.array()).reshape(-1), np.asarray(other.array()).reshape(-1)
        except BadModel:  # strings, or zeros that are left out
            yield StoredDifference(f"{what} differs", np.inf, True)
            return
        if a.tobytes() != b.tobytes():
            yield _apart(what, a, b, place, one)

    def _default(self, at: int, node: Node, name: str) -> Any:
        """The value of an attribute that is not given."""
        import onnx.defs  # 200 ms, and only regions with other attributes need it
        from onnx.helper import get_attribute_value

        function = self.sides[at].functions.get(node.key)
        if function is not None:
            return function.defaults.get(name)
        try:
            version = self.sides[at].opsets.get(node.domain, 1)
            schema = onnx.defs.get_schema(node.op, version, node.domain).attributes.get(name)
        except onnx.defs.SchemaError:
            return None
        if schema is None or not schema.default_value.name:
            return None
        value = get_attribute_value(schema.default_value)
        value = value.decode() if isinstance(value, bytes) else value
        return tuple(value) if isinstance(value, list) else value


def _moved(sides: Sides) -> Iterator[StoredDifference]:
    """Numbers that a rewrite changed by a little while it handed on nearly all others to the bit.

    It may join tensors, part or turn them: whatever stands where, the numbers are the same.
    """
    if any(sum(t.elements for t in m.graph.initializers.values()) > _MANY for m in sides):
        return
    (mine, had), (theirs, have) = (np.unique(_numbers(m), return_counts=True) for m in sides)
    numbers = np.union1d(mine, theirs)
    surplus = np.zeros(numbers.size, np.int64)
    surplus[np.searchsorted(numbers, mine)] += had
    surplus[np.searchsorted(numbers, theirs)] -= have
    gone, new = numbers[surplus > 0], numbers[surplus < 0]
    few, total = min((surplus[surplus > 0].sum(), had.sum()), (-surplus[surplus < 0].sum(), have.sum()))
    # where weights were joined or parted, those beside have no counterpart here; where numbers were computed
    # of others, not every one has one that is near
    if not gone.size or not new.size or (few > 1 and few * _SELDOM > total):
        return
    near = [(_nearest(gone, one), _nearest(new, one)) for one in (gone if gone.size <= new.size else new)]
    apart = [abs(now - old) / abs(old) if old else np.inf for old, now in near]
    if _CLOSE < max(apart) <= _NEAR:
        old, now = near[apart.index(max(apart))]
        yield StoredDifference(
            f"a stored number is {now:.9g}, where the original has {old:.9g}", max(apart), True
        )


def _nearest(numbers: Array, one: float) -> float:
    return float(numbers[np.argmin(np.abs(numbers - one))])


def _numbers(model: Model) -> Array:
    """All finite floats that are stored in a region."""
    tensors = known(model.graph.nodes, model.graph.initializers, ChainMap()).values()
    found = [np.asarray(t.array(), np.float64).reshape(-1) for t in tensors if "float" in t.dtype]
    attributes = [v for node in model.graph.nodes for v in node.attributes.values() if isinstance(v, float)]
    numbers: Array = np.concatenate([*found, np.array(attributes)])
    return np.asarray(numbers[np.isfinite(numbers)])


class _Unlike(Exception):
    """Two rows of nodes are not the same operators."""


def _computes(node: Node) -> bool:
    """Whether a node is more than a name: a Constant is met where it is read."""
    return bool(node.domain) or node.op not in ("Constant", "Identity")


def _apart(
    what: str, a: Array, b: Array, place: tuple[int, int | str] | None, was: Tensor
) -> StoredDifference:
    """By how much two tensors of one type differ."""
    count = int(np.count_nonzero(a != b))
    text = f"{what} differs" + (f" in {count:,} of {many_text(a.size, 'number')}" if a.size > 1 else "")
    if a.dtype.kind in "iub":
        return StoredDifference(text, np.inf, True, place, was)
    close = min(_CLOSE, _ROUNDINGS / 2 * float(np.finfo(a.dtype).eps)) if a.dtype.kind == "f" else _CLOSE
    last = 0.0
    if 1 < count >= a.size / _OFTEN:
        last = _LAST * max(
            float(np.abs(old).max(where=np.isfinite(old), initial=0.0)) for old, _ in _slabs(a, b)
        )
    apart, far = 0.0, 0 < count * _SELDOM < a.size
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        for old, new in _slabs(a, b):
            differs = (new != old) & ~(np.isnan(new) & np.isnan(old))
            old, gap = np.abs(old[differs]), np.abs(new - old)[differs]
            apart = max(apart, float((gap / old).max(initial=0.0)))
            far = far or bool((~(gap <= np.maximum(close * old, last))).any())
    return StoredDifference(text, apart, far, place, was)


def _slabs(a: Array, b: Array) -> Iterator[tuple[Array, Array]]:
    """Two flat arrays in float64, a part at a time."""
    for at in range(0, a.size, _SLAB):
        yield a[at : at + _SLAB].astype(np.float64), b[at : at + _SLAB].astype(np.float64)


def known(
    nodes: Sequence[Node], stored: Mapping[str, Tensor], around: ChainMap[str, Tensor]
) -> ChainMap[str, Tensor]:
    """The constants that nodes of a graph can name."""
    made = {node.outputs[0]: tensor for node in nodes if (tensor := constant_of(node)) is not None}
    return ChainMap(made, dict(stored), *around.maps)
