"""Observability: what two regions differ in though every try of them gave the same.

A limit that is never reached, a branch that is not taken, a body that never runs, a weight so small that
rounding is larger: two runs show nothing of them. Whether they differ there stands in the graphs.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from explorer.base.errors import BadModel
from explorer.engine.graph.model import Graph, Model, Node, Tensor
from explorer.engine.graph.random_operators import all_nodes
from explorer.engine.proof.structure.value_numbers import held as constant_of
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

_CLOSE, _LAST = 2.0**-20, 2.0**-24
"""By how much of itself, and of the largest, a number may differ that was computed in another order."""

_FEW = 64
"""Numbers that a stored tensor may hold to be taken for limits."""

Sides = tuple[Sequence[Node], Sequence[Node]]
"""Nodes of both graphs."""

Difference = tuple[str, bool]
"""What differs, in words, and whether by more than rounding."""


class NodeContents:
    """What stands in the nodes of one graph and another beside what they read.

    Args:
        before, after: The models.
        same: Whether two stored tensors hold the same bits.
        live: Values of either that depend on its inputs.
    """

    def __init__(
        self,
        before: Model,
        after: Model,
        same: Callable[[Tensor, Tensor], bool],
        live: tuple[Collection[str], Collection[str]],
    ) -> None:
        self.models = before, after
        self.same = same
        self.live = live
        self._stored = tuple(_known(m.graph.nodes, m.graph.initializers, ChainMap()) for m in self.models)

    def differences(self, nodes: Sides) -> list[Difference]:
        """In what the same operators, one by one, have other numbers; nothing where operators differ."""
        try:
            return list(self._differing(nodes, self._stored, self.live))
        except _Unlike:
            return []

    def undecided(self, nodes: Sides, varied: Sequence[Collection[str]]) -> bool:
        """Whether what is run, or how often, was decided in one way only by what was tried.

        Args:
            nodes: Of both graphs.
            varied: Values of either that were tried in all ways.
        """
        for at, (model, side) in enumerate(zip(self.models, nodes, strict=True)):
            known = self._stored[at]
            top = {id(node) for node in side}
            for node in all_nodes(model, side):
                if node.domain or node.op not in ("If", "Loop"):
                    continue
                if id(node) in top and all(n in varied[at] or n in known for n in controls([node])):
                    continue
                if node.op == "If" or not all(n in known or not n for n in node.inputs[:2]):
                    return True
        return False

    def numbers(self, nodes: Sides) -> list[float]:
        """The few numbers that stand in nodes: limits, slopes, what is added to keep a root from zero."""
        found: set[float] = set()
        for at, side in enumerate(nodes):
            for node in side:
                tensors = [self._stored[at][n] for n in node.inputs if n in self._stored[at]]
                small = [t for t in tensors if "float" in t.dtype and (t.elements or 0) <= _FEW]
                found.update(float(v) for t in small for v in np.asarray(t.array(), np.float64).reshape(-1))
                found.update(v for v in node.attributes.values() if isinstance(v, float))
        return sorted(v for v in found if np.isfinite(v))

    def _differing(
        self,
        nodes: Sides,
        stored: Sequence[ChainMap[str, Tensor]],
        live: Sequence[Collection[str]],
    ) -> Iterator[Difference]:
        first, second = nodes
        if len(first) != len(second) or any(a.key != b.key for a, b in zip(first, second, strict=True)):
            raise _Unlike
        for a, b in zip(first, second, strict=True):
            places = _PLACES.get(a.op, ()) if not a.domain else ()
            for at, (x, y) in enumerate(zip(a.inputs, b.inputs, strict=False)):
                if x in live[0] or y in live[1] or x not in stored[0] or y not in stored[1]:
                    continue
                one, other = stored[0][x], stored[1][y]
                if not (at in places and one.dtype.startswith("int")):
                    yield from self._of_tensors(f"a constant of {a.op}", one, other)
            yield from self._attributes(a, b, stored, live)
            functions = [model.functions.get(a.key) for model in self.models]
            if functions[0] is not None and functions[1] is not None:
                bodies = functions[0].nodes, functions[1].nodes
                yield from self._inside(bodies, ({}, {}), (ChainMap(), ChainMap()))

    def _attributes(
        self, a: Node, b: Node, stored: Sequence[ChainMap[str, Tensor]], live: Sequence[Collection[str]]
    ) -> Iterator[Difference]:
        for name in sorted({*a.attributes, *b.attributes} - _SHAPES):
            x, y = (
                node.attributes[name] if name in node.attributes else self._default(at, node, name)
                for at, node in enumerate((a, b))
            )
            what = f"'{name}' of {a.op}"
            if isinstance(x, Graph) and isinstance(y, Graph):
                yield from self._inside((x.nodes, y.nodes), (x.initializers, y.initializers), stored)
            elif isinstance(x, Tensor) and isinstance(y, Tensor):
                if a.op != "Constant":  # met again where it is read
                    yield from self._of_tensors(what, x, y)
            elif type(x) is not type(y) or x != y:
                both = isinstance(x, float) and isinstance(y, float)
                yield what, not both or abs(x - y) > _CLOSE * abs(x)

    def _inside(
        self,
        nodes: Sides,
        held: tuple[Mapping[str, Tensor], Mapping[str, Tensor]],
        around: Sequence[ChainMap[str, Tensor]],
    ) -> Iterator[Difference]:
        known = [_known(*each) for each in zip(nodes, held, around, strict=True)]
        yield from self._differing(nodes, known, ((), ()))

    def _of_tensors(self, what: str, one: Tensor, other: Tensor) -> Iterator[Difference]:
        if one.dtype != other.dtype or one.elements != other.elements:
            raise _Unlike
        if one.shape == other.shape and self.same(one, other):
            return
        try:
            a, b = np.asarray(one.array()).reshape(-1), np.asarray(other.array()).reshape(-1)
        except BadModel:  # strings, or zeros that are left out
            yield what, True
            return
        if a.tobytes() != b.tobytes():
            yield what, _apart(a, b)

    def _default(self, at: int, node: Node, name: str) -> Any:
        """The value of an attribute that is not given."""
        import onnx.defs  # 200 ms, and only regions with other attributes need it
        from onnx.helper import get_attribute_value

        function = self.models[at].functions.get(node.key)
        if function is not None:
            return function.defaults.get(name)
        try:
            version = self.models[at].opsets.get(node.domain, 1)
            known = onnx.defs.get_schema(node.op, version, node.domain).attributes.get(name)
        except onnx.defs.SchemaError:
            return None
        if known is None or not known.default_value.name:
            return None
        value = get_attribute_value(known.default_value)
        value = value.decode() if isinstance(value, bytes) else value
        return tuple(value) if isinstance(value, list) else value


class _Unlike(Exception):
    """Two rows of nodes are not the same operators."""


def controls(nodes: Sequence[Node]) -> list[str]:
    """The values that decide which branches of nodes run and how often their loops."""
    found = dict.fromkeys(
        name
        for node in nodes
        if not node.domain and node.op in ("If", "Loop")
        for name in node.inputs[: 1 if node.op == "If" else 2]
        if name
    )
    return list(found)


def _apart(a: Array, b: Array) -> bool:
    if a.dtype.kind in "iub":
        return True
    with np.errstate(invalid="ignore", over="ignore"):
        old, new = a.astype(np.float64), b.astype(np.float64)
        allowed = np.maximum(_CLOSE * np.abs(old), _LAST * np.abs(old[np.isfinite(old)]).max(initial=0.0))
        return bool((~(np.abs(new - old) <= allowed) & (new != old)).any())


def _known(
    nodes: Sequence[Node], stored: Mapping[str, Tensor], around: ChainMap[str, Tensor]
) -> ChainMap[str, Tensor]:
    """The constants that nodes of a graph can name."""
    made = {node.outputs[0]: tensor for node in nodes if (tensor := constant_of(node)) is not None}
    return ChainMap(made, dict(stored), *around.maps)
