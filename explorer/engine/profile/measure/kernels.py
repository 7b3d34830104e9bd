"""Kernels to time alone: small graphs in onnxruntime, with inputs and outputs that are never copied.

A matmul has a weight of its own that the runtime packs, as in a model; a small one stands in its graph many
times, so that the call of a run weighs little.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import onnxruntime

from explorer.engine.formats.onnx.writer import skeleton
from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor, Value, dtype_code
from explorer.engine.profile.sessions import LEVELS
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.provider_assignment import HOST

Run = Callable[[], object]
"""Runs a graph once."""

_OPSET, _IR = 17, 8
DTYPES: Mapping[str, tuple[str, str]] = {
    "float32": ("MatMul", "float32"),
    "int8": ("MatMulInteger", "int32"),
    "float16": ("MatMul", "float16"),
    "bfloat16": ("MatMul", "bfloat16"),
}
"""Types of numbers that may be multiplied: by which operator, and what comes out."""


class Kernels(Protocol):
    """What can be timed alone; None of what the runtime has no kernel for."""

    def gemm(self, dtype: str, size: int, count: int) -> Run | None:
        """So many matmuls of size x size x size."""

    def matmul(self, m: int, k: int, n: int) -> Run:
        """A float32 matmul."""

    def conv(self, channels: tuple[int, int], side: int, kernel: int, groups: int, count: int) -> Run:
        """So many float32 convolutions one after the other, to and fro between two numbers of channels."""

    def elementwise(self, op: str, shape: tuple[int, ...]) -> Run:
        """An operator on a float32 array of 4 axes."""

    def add(self, elements: int) -> Run:
        """The sum of two float32 arrays, in a third."""

    def chain(self, nodes: int) -> Run:
        """So many nodes, one after the other, on one number."""


_MORE = {"LayerNormalization": ("scale", "bias")}
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "Transpose": {"perm": [0, 2, 1, 3]},
    "MaxPool": {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]},
    "Softmax": {"axis": -1},
    "Clip": {},
}
"""What some operators need beside an array."""


class RuntimeKernels:
    """Kernels of onnxruntime.

    Args:
        threads: For operators.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def gemm(self, dtype: str, size: int, count: int) -> Run | None:
        """See `Kernels`; int8 is unsigned by signed bytes, as quantized models have them."""
        op, result = DTYPES[dtype]
        left = "uint8" if dtype == "int8" else dtype
        draw = np.random.default_rng(0)
        feeds = {"x": _drawn(draw, left, size)}
        weights = {f"w{at}": _drawn(draw, dtype, size) for at in range(count)}
        nodes = [Node(op, ["x", name], [f"y{name}"], name) for name in weights]
        inputs = (Value("x", left, (size, size)),)
        outputs = tuple(Value(f"y{name}", result, (size, size)) for name in weights)
        tensors = {
            name: Tensor(name, dtype, array.shape, Inline(array.tobytes())) for name, array in weights.items()
        }
        try:
            return self._run(Graph("gemm", nodes, inputs, outputs, tensors), feeds)
        except Exception:  # onnxruntime's own classes share no base below Exception: it has no such kernel
            return None

    def matmul(self, m: int, k: int, n: int) -> Run:
        """See `Kernels`."""
        draw = np.random.default_rng(0)
        x, y = Value("x", "float32", (m, k)), Value("y", "float32", (m, n))
        weight = _normal(draw, (k, n))
        graph = Graph("matmul", [Node("MatMul", ["x", "w"], ["y"])], (x,), (y,), {"w": _tensor("w", weight)})
        return self._run(graph, {"x": _normal(draw, (m, k))})

    def conv(self, channels: tuple[int, int], side: int, kernel: int, groups: int, count: int) -> Run:
        """See `Kernels`; the runtime lays the channels out anew at the first and the last one alone."""
        draw = np.random.default_rng(0)
        widths = [channels[at % 2] for at in range(count + 1)]
        weights = {}
        for at, (before, after) in enumerate(itertools.pairwise(widths)):
            fan = before // groups * kernel * kernel
            array = _normal(draw, (after, before // groups, kernel, kernel))
            weights[f"w{at}"] = array / np.float32(fan**0.5)  # values neither grow nor vanish
        settings = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": groups}
        nodes = [
            Node("Conv", [f"v{at}", f"w{at}"], [f"v{at + 1}"], f"n{at}", attributes=settings)
            for at in range(count)
        ]
        shape = (1, widths[0], side, side)
        first = Value("v0", "float32", shape)
        last = Value(f"v{count}", "float32", (1, widths[-1], side, side))
        tensors = {name: _tensor(name, array) for name, array in weights.items()}
        return self._run(Graph("conv", nodes, (first,), (last,), tensors), {"v0": _normal(draw, shape)})

    def elementwise(self, op: str, shape: tuple[int, ...]) -> Run:
        """See `Kernels`."""
        draw = np.random.default_rng(0)
        x, y = Value("x", "float32", shape), Value("y", "float32", None)
        more = {name: _tensor(name, _normal(draw, shape[-1:])) for name in _MORE.get(op, ())}
        node = Node(op, ["x", *more], ["y"], attributes=_SETTINGS.get(op, {}))
        return self._run(Graph(op, [node], (x,), (y,), more), {"x": _normal(draw, shape)})

    def add(self, elements: int) -> Run:
        """See `Kernels`."""
        a, b, y = (Value(name, "float32", (elements,)) for name in "aby")
        feeds = {name: np.full(elements, 1, np.float32) for name in "ab"}
        return self._run(Graph("add", [Node("Add", ["a", "b"], ["y"])], (a, b), (y,), {}), feeds)

    def chain(self, nodes: int) -> Run:
        """See `Kernels`."""
        every = [Node("Neg", [f"v{at}"], [f"v{at + 1}"], f"n{at}") for at in range(nodes)]
        first, last = Value("v0", "float32", (1,)), Value(f"v{nodes}", "float32", (1,))
        graph = Graph("chain", every, (first,), (last,), {})
        return self._run(graph, {"v0": np.ones(1, np.float32)}, "none")

    def _run(self, graph: Graph, feeds: Mapping[str, Array], level: str = "all") -> Run:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self._threads
        options.graph_optimization_level = LEVELS[level]
        made = skeleton(Model(graph, {"": _OPSET}, _IR), folder=os.getcwd())
        session = onnxruntime.InferenceSession(made, options, providers=[HOST], enable_fallback=0)
        held = [(value.name, _on_host(feeds[value.name], str(value.dtype))) for value in graph.inputs]
        return _bound(session, held, [value.name for value in graph.outputs])


def _bound(session: Any, inputs: Sequence[tuple[str, Any]], outputs: Sequence[str]) -> Run:
    """A run whose inputs lie where they lie, and whose outputs stay where the runtime makes them."""
    binding = session.io_binding()
    for name, value in inputs:
        binding.bind_ortvalue_input(name, value)
    for name in outputs:
        binding.bind_output(name)
    return lambda: session.run_with_iobinding(binding)


def _on_host(array: Array, dtype: str) -> Any:
    if dtype == "bfloat16":  # numpy has no such type
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), dtype_code(dtype)
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _normal(draw: np.random.Generator, shape: Sequence[int]) -> Array:
    return draw.standard_normal(shape, np.float32)


def _tensor(name: str, array: Array) -> Tensor:
    return Tensor(name, "float32", array.shape, Inline(array.astype(np.float32).tobytes()))


def _drawn(draw: np.random.Generator, dtype: str, size: int) -> Array:
    """A square matrix of numbers as large as weights are: none is denormal."""
    if dtype in ("int8", "uint8"):
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
        return draw.integers(lowest, highest, (size, size), dtype, endpoint=True)
    drawn = draw.standard_normal((size, size), np.float32)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return drawn.astype(kind, copy=False)
