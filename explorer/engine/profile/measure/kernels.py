"""Kernels to time alone: small graphs in onnxruntime, with inputs and outputs that are never copied.

A matmul has a weight of its own that the runtime packs, as in a model. A small matmul occurs many times in
its graph, so that the call of a run weighs little.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnxruntime

from explorer.engine.formats.onnx.writer import skeleton
from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor, Value, dtype_code
from explorer.engine.profile.kernels import KernelRun, kernel_runs
from explorer.engine.profile.predict import OF_RUNTIME, TURNED
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
"""Types of numbers that are multiplied: the operator, and the type of the result."""


class ConvShape(NamedTuple):
    """A float32 convolution with a bias, as in models.

    Attributes:
        channels: Input and output channels.
        side: Rows, and columns, of the input.
        then: An activation that the runtime fuses into it; '' for none.
    """

    channels: tuple[int, int]
    side: int
    kernel: int
    groups: int = 1
    stride: int = 1
    batch: int = 1
    then: str = ""

    @property
    def inner(self) -> int:
        """Products that are added for a number that it makes."""
        return self.channels[0] // self.groups * self.kernel**2

    @property
    def places(self) -> int:
        """Output positions, over the batch."""
        return self.batch * (self.side // self.stride) ** 2


class DenseBlock(NamedTuple):
    """Layers that join the outputs of all layers before: Concat, BatchNormalization, Relu, two convolutions.

    Attributes:
        channels: Input channels of the first layer.
        side: Rows, and columns.
        layers: Number of layers.
    """

    channels: int
    side: int
    layers: int

    def width(self, at: int) -> int:
        """Channels that the layer `at` reads."""
        return self.channels + _GROWTH * at

    @property
    def kernels(self) -> list[tuple[str, int]]:
        """Operator and layer of each kernel that is timed; the first layer has no Concat."""
        return [(op, at) for at in range(self.layers) for op in _JOINS if at or op != "Concat"]


_GROWTH, _NARROW = 32, 128
"""Channels that a layer of a dense block adds, and those between its two convolutions."""
_JOINS = {"Concat": "joined", "BatchNormalization": "scaled"}
"""Operators of a dense block that move the outputs of all earlier layers, and the names of their values."""


class ObservedNetwork(NamedTuple):
    """A chain of kernels in a graph, under a profiler.

    Attributes:
        run: Runs the graph.
        each: Returns, once, for each run the seconds of each kernel, and of the whole run.
    """

    run: Run
    each: Callable[[], Sequence[tuple[Sequence[float], float]]]


_MORE = {"LayerNormalization": ("scale", "bias"), "SkipLayerNormalization": ("scale", "bias")}
_CONTRIBUTED = "com.microsoft"
_SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "Transpose": {"perm": [0, 2, 1, 3]},
    TURNED: {"perm": [0, 2, 3, 1]},
    "MaxPool": {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]},
    "Softmax": {"axis": -1},
    "Clip": {},
}
"""Additional inputs of some operators."""


class Kernels:
    """Kernels of onnxruntime that can be timed alone.

    Args:
        threads: Threads of operators.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def gemm(self, dtype: str, size: int, count: int) -> Run | None:
        """`count` matmuls of size x size x size; None if the runtime has no kernel for the type.

        int8 means unsigned by signed bytes, as in quantized models.
        """
        op, result = DTYPES[dtype]
        left_dtype = "uint8" if dtype == "int8" else dtype
        draw = np.random.default_rng(0)
        feeds = {"x": _drawn(draw, left_dtype, size)}
        weights = {f"w{at}": _drawn(draw, dtype, size) for at in range(count)}
        nodes = [Node(op, ["x", name], [f"y{name}"], name) for name in weights]
        inputs = (Value("x", left_dtype, (size, size)),)
        outputs = tuple(Value(f"y{name}", result, (size, size)) for name in weights)
        tensors = {
            name: Tensor(name, dtype, array.shape, Inline(array.tobytes())) for name, array in weights.items()
        }
        try:
            return self._run(Graph("gemm", nodes, inputs, outputs, tensors), feeds)
        except Exception:  # onnxruntime's own classes share no base below Exception: it has no such kernel
            return None

    def biased(self, m: int, k: int, n: int) -> Run:
        """A float32 matmul and the sum with a bias, which the runtime makes one kernel."""
        draw = np.random.default_rng(0)
        tensors = {"w": _tensor("w", _normal(draw, (k, n)) * np.float32(k**-0.5))}
        tensors["b"] = _tensor("b", _normal(draw, (n,)))
        nodes = [Node("MatMul", ["x", "w"], ["product"], "n0"), Node("Add", ["product", "b"], ["y"], "n1")]
        x, y = Value("x", "float32", (m, k)), Value("y", "float32", (m, n))
        return self._run(Graph("biased", nodes, (x,), (y,), tensors), {"x": _normal(draw, (m, k))})

    def matmul(self, m: int, k: int, n: int, count: int) -> Run:
        """`count` float32 matmuls in a chain, each with weights of its own; several must be square."""
        draw = np.random.default_rng(0)
        scale = np.float32(k**-0.5)  # values neither grow nor vanish
        weights = {f"w{at}": _tensor(f"w{at}", _normal(draw, (k, n)) * scale) for at in range(count)}
        nodes = [Node("MatMul", [f"v{at}", f"w{at}"], [f"v{at + 1}"], f"n{at}") for at in range(count)]
        x, y = Value("v0", "float32", (m, k)), Value(f"v{count}", "float32", (m, n))
        return self._run(Graph("matmul", nodes, (x,), (y,), weights), {"v0": _normal(draw, (m, k))})

    def products(self, batch: int, m: int, k: int, n: int) -> Run:
        """So many float32 matmuls of two arrays, neither of them weights."""
        draw = np.random.default_rng(0)
        shapes = {"a": (batch, m, k), "b": (batch, k, n)}
        inputs = tuple([Value(name, "float32", shape) for name, shape in shapes.items()])
        y = Value("y", "float32", (batch, m, n))
        feeds = {name: _normal(draw, shape) for name, shape in shapes.items()}
        return self._run(Graph("products", [Node("MatMul", ["a", "b"], ["y"])], inputs, (y,), {}), feeds)

    def conv(self, shape: ConvShape, count: int) -> Run:
        """`count` convolutions in a chain that alternates between two numbers of channels.

        Convolutions with a stride run side by side. The runtime changes the layout of channels only at the
        first and the last convolution.
        """
        draw = np.random.default_rng(0)
        chain = shape.stride == 1
        widths = [shape.channels[at % 2 if chain else bool(at)] for at in range(count + 1)]
        tensors, nodes = {**_LIMITS} if shape.then == "Clip" else {}, []
        settings = _conv(shape)
        for at in range(count):
            channels = (widths[at], widths[at + 1]) if chain else shape.channels
            tensors |= _weights(draw, shape._replace(channels=channels), at)
            conv_output = f"c{at}" if shape.then else f"v{at + 1}"
            read = f"v{at}" if chain else "v0"
            nodes.append(
                Node("Conv", [read, f"w{at}", f"b{at}"], [conv_output], f"n{at}", attributes=settings)
            )
            if shape.then:
                nodes.append(
                    Node(shape.then, [conv_output, *filter(tensors.get, _LIMITS)], [f"v{at + 1}"], f"a{at}")
                )
        size = (shape.batch, widths[0], shape.side, shape.side)
        first = Value("v0", "float32", size)
        ends = [count] if chain else range(1, count + 1)
        side = shape.side // shape.stride
        last = tuple([Value(f"v{at}", "float32", (shape.batch, widths[at], side, side)) for at in ends])
        return self._run(Graph("conv", nodes, (first,), last, tensors), {"v0": _normal(draw, size)})

    def network(self, shapes: Sequence[ConvShape]) -> Run:
        """Convolutions in a chain."""
        return self._run(*_network(shapes))

    def observed(self, shapes: Sequence[ConvShape]) -> ObservedNetwork:
        """The convolutions of `network`, under a profiler."""
        return self._observed(*_network(shapes), lambda run: _of_convs(run, len(shapes)))

    def block(self, block: DenseBlock) -> Run:
        """A dense block."""
        return self._run(*_dense(block))

    def observed_block(self, block: DenseBlock) -> ObservedNetwork:
        """A dense block under a profiler, with the seconds of each of `block.kernels`."""
        return self._observed(*_dense(block), lambda run: _of_block(run, block))

    def _observed(
        self,
        graph: Graph,
        feeds: Mapping[str, Array],
        read_run: Callable[[KernelRun], tuple[Sequence[float], float] | None],
    ) -> ObservedNetwork:
        folder = tempfile.TemporaryDirectory()
        session = self._session(graph, "all", os.path.join(folder.name, "profile"))

        def each() -> Sequence[tuple[Sequence[float], float]]:
            with folder:
                timings = [read_run(run) for run in kernel_runs(session.end_profiling())]
            return [timing for timing in timings if timing is not None]

        return ObservedNetwork(_bound_to(session, graph, feeds), each)

    def elementwise(self, op: str, shape: tuple[int, ...]) -> Run:
        """An operator on a float32 array; the text behind its name and a comma is a variant of it."""
        draw = np.random.default_rng(0)
        x, y = Value("x", "float32", shape), Value("y", "float32", None)
        settings, op = _SETTINGS.get(op, {}), op.partition(",")[0]
        more = {name: _tensor(name, _normal(draw, shape[-1:])) for name in _MORE.get(op, ())}
        read = ["x", "x", *more] if op == "SkipLayerNormalization" else ["x", *more]
        domain = _CONTRIBUTED if op in OF_RUNTIME else ""
        node = Node(op, read, ["y"], domain=domain, attributes=settings)
        return self._run(Graph(op, [node], (x,), (y,), more), {"x": _normal(draw, shape)})

    def add(self, elements: int) -> Run:
        """The sum of two float32 arrays, in a third."""
        a, b, y = (Value(name, "float32", (elements,)) for name in "aby")
        feeds = {name: np.full(elements, 1, np.float32) for name in "ab"}
        return self._run(Graph("add", [Node("Add", ["a", "b"], ["y"])], (a, b), (y,), {}), feeds)

    def chain(self, nodes: int) -> Run:
        """`count` nodes in a chain, on one number."""
        every = [Node("Neg", [f"v{at}"], [f"v{at + 1}"], f"n{at}") for at in range(nodes)]
        first, last = Value("v0", "float32", (1,)), Value(f"v{nodes}", "float32", (1,))
        graph = Graph("chain", every, (first,), (last,), {})
        return self._run(graph, {"v0": np.ones(1, np.float32)}, "none")

    def _run(self, graph: Graph, feeds: Mapping[str, Array], level: str = "all") -> Run:
        return _bound_to(self._session(graph, level), graph, feeds)

    def _session(self, graph: Graph, level: str, profile: str = "") -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self._threads
        options.graph_optimization_level = LEVELS[level]
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        model_bytes = skeleton(Model(graph, {"": _OPSET, _CONTRIBUTED: 1}, _IR), folder=os.getcwd())
        return onnxruntime.InferenceSession(model_bytes, options, providers=[HOST], enable_fallback=0)


def _network(shapes: Sequence[ConvShape]) -> tuple[Graph, dict[str, Array]]:
    """A graph of a chain of convolutions, and its input."""
    draw = np.random.default_rng(0)
    tensors, nodes = dict[str, Tensor](), []
    for at, shape in enumerate(shapes):
        tensors |= _weights(draw, shape, at)
        read = [f"v{at}", f"w{at}", f"b{at}"]
        nodes.append(Node("Conv", read, [f"v{at + 1}"], f"n{at}", attributes=_conv(shape)))
    first, last = shapes[0], shapes[-1]
    size = (first.batch, first.channels[0], first.side, first.side)
    end = (last.batch, last.channels[1], *[last.side // last.stride] * 2)
    x, y = Value("v0", "float32", size), Value(f"v{len(shapes)}", "float32", end)
    return Graph("network", nodes, (x,), (y,), tensors), {"v0": _normal(draw, size)}


def _dense(block: DenseBlock) -> tuple[Graph, dict[str, Array]]:
    """A graph of a dense block behind a convolution, so that the runtime uses its layout in models."""
    draw = np.random.default_rng(0)
    tensors, nodes, features = dict[str, Tensor](), list[Node](), ["v0"]

    def conv(channels: tuple[int, int], kernel: int, read: str, name: str) -> None:
        shape, number = ConvShape(channels, block.side, kernel), len(nodes)
        tensors.update(_weights(draw, shape, number))
        nodes.append(Node("Conv", [read, f"w{number}", f"b{number}"], [name], name, attributes=_conv(shape)))

    conv((block.channels, block.channels), 3, "x", "v0")
    for at in range(block.layers):
        read, wide = features[0], block.width(at)
        if at:
            read = f"joined{at}"
            nodes.append(Node("Concat", features, [read], read, attributes={"axis": 1}))
        scales = [f"{name}{at}" for name in ("scale", "shift", "mean", "variance")]
        tensors |= {name: _tensor(name, np.abs(_normal(draw, (wide,))) + 0.5) for name in scales}
        nodes += [
            Node("BatchNormalization", [read, *scales], [f"scaled{at}"], f"scaled{at}"),
            Node("Relu", [f"scaled{at}"], [f"wide{at}"], f"wide{at}"),
        ]
        conv((wide, _NARROW), 1, f"wide{at}", f"narrow{at}")
        nodes.append(Node("Relu", [f"narrow{at}"], [f"cut{at}"], f"cut{at}"))
        conv((_NARROW, _GROWTH), 3, f"cut{at}", f"v{at + 1}")
        features = [*features, f"v{at + 1}"]
    size = (1, block.channels, block.side, block.side)
    x, y = Value("x", "float32", size), Value(features[-1], "float32", (1, _GROWTH, block.side, block.side))
    return Graph("block", nodes, (x,), (y,), tensors), {"x": _normal(draw, size)}


def _of_block(run: KernelRun, block: DenseBlock) -> tuple[Sequence[float], float] | None:
    """Seconds of each of `block.kernels` in a run, and of all its kernels; None if a kernel is missing."""
    # the runtime appends a suffix to the name of a node that it changed
    by_node = {name.partition("_")[0]: kernel.seconds for name, kernel in run.kernels.items()}
    seconds_of_kernels = [by_node.get(f"{_JOINS[op]}{at}") for op, at in block.kernels]
    times = [seconds for seconds in seconds_of_kernels if seconds is not None]
    return (
        (times, sum(kernel.seconds for kernel in run.kernels.values()))
        if len(times) == len(seconds_of_kernels)
        else None
    )


def _of_convs(run: KernelRun, count: int) -> tuple[Sequence[float], float] | None:
    """Seconds of each convolution of a run, and of all its kernels; None if a convolution is missing."""
    convs = [kernel.seconds for kernel in run.kernels.values() if kernel.op == "Conv"]
    return (convs, sum(kernel.seconds for kernel in run.kernels.values())) if len(convs) == count else None


def _bound_to(session: Any, graph: Graph, feeds: Mapping[str, Array]) -> Run:
    """A run with inputs bound in place, and outputs that stay in the runtime's memory."""
    binding = session.io_binding()
    for value in graph.inputs:
        binding.bind_ortvalue_input(value.name, _on_host(feeds[value.name], str(value.dtype)))
    for value in graph.outputs:
        binding.bind_output(value.name)
    return lambda: session.run_with_iobinding(binding)


def _on_host(array: Array, dtype: str) -> Any:
    if dtype == "bfloat16":  # numpy has no such type
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), dtype_code(dtype)
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _conv(shape: ConvShape) -> Mapping[str, Any]:
    """The attributes of a Conv."""
    return {
        "kernel_shape": [shape.kernel] * 2,
        "pads": [shape.kernel // 2] * 4,
        "group": shape.groups,
        "strides": [shape.stride] * 2,
    }


def _weights(draw: np.random.Generator, shape: ConvShape, at: int) -> dict[str, Tensor]:
    """The weights and the bias of a Conv, with which values neither grow nor vanish."""
    before, after = shape.channels
    array = _normal(draw, (after, before // shape.groups, shape.kernel, shape.kernel))
    array /= np.float32(shape.inner**0.5)
    return {f"w{at}": _tensor(f"w{at}", array), f"b{at}": _tensor(f"b{at}", _normal(draw, (after,)))}


def _normal(draw: np.random.Generator, shape: Sequence[int]) -> Array:
    return draw.standard_normal(shape, np.float32)


def _tensor(name: str, array: Array) -> Tensor:
    return Tensor(name, "float32", array.shape, Inline(array.astype(np.float32).tobytes()))


_LIMITS = {
    name: Tensor(name, "float32", (), Inline(np.float32(at).tobytes()))
    for name, at in (("low", 0), ("high", 6))
}
"""The limits of a Clip."""


def _drawn(draw: np.random.Generator, dtype: str, size: int) -> Array:
    """A square matrix of numbers as large as weights are: none is denormal."""
    if dtype in ("int8", "uint8"):
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
        return draw.integers(lowest, highest, (size, size), dtype, endpoint=True)
    drawn = draw.standard_normal((size, size), np.float32)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return drawn.astype(kind, copy=False)
