"""Small graphs to count, built without a file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from explorer.engine.graph.model import Function, Graph, Inline, Model, Node, Tensor, Value, build_tensor

Build = Callable[..., Model]


def _tensor(name: str, spec: Any) -> Tensor:
    if isinstance(spec, tuple):
        dtype, shape = spec if isinstance(spec[0], str) else ("float32", spec)
        tensor = Tensor(name, dtype, shape, None)
        # a model of half a gigabyte is counted without a byte of its weights
        large = tensor.nbytes >= 1 << 20
        return tensor if large else Tensor(name, dtype, shape, Inline(b"\0" * tensor.nbytes))
    return build_tensor(name, spec)


@pytest.fixture
def build() -> Build:
    """`build(nodes, inputs={'x': (1, 3)}, weights={'w': (3, 4)}, outputs=['y'])`: a model of those nodes.

    Inputs and weights are a shape (float32), or (dtype, shape); weights may be numpy arrays.
    """

    def make(
        nodes: Sequence[Node],
        *,
        inputs: Mapping[str, Any],
        outputs: Sequence[str],
        weights: Mapping[str, Any] | None = None,
        values: Sequence[Value] = (),
        functions: Sequence[Function] = (),
        opset: int = 17,
    ) -> Model:
        feeds = []
        for name, spec in inputs.items():
            typed = len(spec) == 2 and isinstance(spec[1], tuple)
            dtype, shape = spec if typed else ("float32", spec)
            feeds.append(Value(name, dtype, shape))
        graph = Graph(
            "g",
            tuple(nodes),
            tuple(feeds),
            tuple(Value(name, None, None) for name in outputs),
            {name: _tensor(name, spec) for name, spec in (weights or {}).items()},
            tuple(values),
        )
        opsets = {"": opset, **{f.domain: 1 for f in functions}}
        return Model(graph, opsets, 9, {f.key: f for f in functions})

    return make


@pytest.fixture
def rows() -> Callable[[Any], dict[str, Any]]:
    """The rows of an analysis by path."""
    return lambda analysis: {layer.path: layer for layer in analysis.layers}
