"""Builds small graphs that time one kind of kernel in onnxruntime.

Inputs and outputs are bound in place and never copied. Each matmul has its own weight, which the runtime
packs, as in a model. A small matmul occurs many times in its graph, so that the call of the runtime takes a
negligible share of the time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnxruntime

from explorer.engine.formats.onnx.writer import encode_skeleton
from explorer.engine.graph.model import Graph, Inline, Model, Node, Tensor, Value, get_dtype_code
from explorer.engine.profile.kernels import KernelRun, read_kernel_runs
from explorer.engine.profile.predict import RUNTIME_OPERATORS, TURNED
from explorer.engine.profile.sessions import LEVELS
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.runtime.provider_assignment import HOST

Run = Callable[[], object]
"""A function that runs a graph once."""

_OPSET, _IR = 17, 8
DTYPES: Mapping[str, tuple[str, str]] = {
    "float32": ("MatMul", "float32"),
    "int8": ("MatMulInteger", "int32"),
    "float16": ("MatMul", "float16"),
    "bfloat16": ("MatMul", "bfloat16"),
}
"""For each element type of the factors, the matmul operator and the element type of its result."""


class ConvShape(NamedTuple):
    """A float32 convolution with a bias, as in models.

    Attributes:
        channels: Numbers of input and output channels.
        side: Height and width of the input.
        kernel: Height and width of the kernel.
        groups: Number of groups.
        stride: Stride in both directions.
        batch: Batch size.
        activation: Operator of an activation that the runtime fuses into the convolution, or ''.
    """

    channels: tuple[int, int]
    side: int
    kernel: int
    groups: int = 1
    stride: int = 1
    batch: int = 1
    activation: str = ""

    @property
    def depth(self) -> int:
        """Number of products that are summed for one output element."""
        return self.channels[0] // self.groups * self.kernel**2

    @property
    def positions(self) -> int:
        """Number of output positions, over the batch."""
        return self.batch * (self.side // self.stride) ** 2


class DenseBlock(NamedTuple):
    """A dense block: each layer reads the concatenated outputs of all earlier layers.

    A layer is Concat, BatchNormalization, Relu, Conv, Relu, Conv.

    Attributes:
        channels: Input channels of the first layer.
        side: Height and width of all tensors.
        layers: Number of layers.
    """

    channels: int
    side: int
    layers: int

    def count_channels(self, layer: int) -> int:
        """Returns the number of channels that a layer reads, by the layer's index."""
        return self.channels + _ADDED_CHANNELS * layer

    @property
    def kernels(self) -> list[tuple[str, int]]:
        """Operator and layer index of each timed kernel. Layer 0 joins nothing, so it has no Concat."""
        return [
            (op, layer) for layer in range(self.layers) for op in _VALUE_PREFIXES if layer or op != "Concat"
        ]


_ADDED_CHANNELS, _INNER_CHANNELS = 32, 128
"""Channels that each layer of a dense block adds, and channels between its two convolutions."""
_VALUE_PREFIXES = {"Concat": "joined", "BatchNormalization": "scaled"}
"""The timed operators of a dense block, each with the prefix of its output names."""


class ObservedNetwork(NamedTuple):
    """A graph in a session with onnxruntime's profiler.

    Attributes:
        run: Runs the graph.
        read_times: Ends the profiler. Returns, for each run, the seconds of each timed kernel and the seconds
            of all kernels.
    """

    run: Run
    read_times: Callable[[], Sequence[tuple[Sequence[float], float]]]


_EXTRA_INPUTS = {"LayerNormalization": ("scale", "bias"), "SkipLayerNormalization": ("scale", "bias")}
"""Names of the stored inputs of an operator; each has the length of the last axis."""
_CONTRIBUTED = "com.microsoft"
"""Domain of `RUNTIME_OPERATORS`."""
_ATTRIBUTES: Mapping[str, Mapping[str, Any]] = {
    "Transpose": {"perm": [0, 2, 1, 3]},
    TURNED: {"perm": [0, 2, 3, 1]},
    "MaxPool": {"kernel_shape": [3, 3], "strides": [1, 1], "pads": [1, 1, 1, 1]},
    "Softmax": {"axis": -1},
    "Clip": {},
}
"""Attributes by operator, or by operator and variant."""


class Kernels:
    """Builds runs of kernels of onnxruntime.

    Args:
        threads: Number of threads for operators.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads

    def build_gemm(self, dtype: str, size: int, count: int) -> Run | None:
        """Builds a run of `count` square matmuls, or returns None if the runtime has no kernel for the type.

        'int8' multiplies unsigned by signed bytes, as quantized models do.

        Args:
            dtype: Element type of the factors; a key of `DTYPES`.
            size: Number of rows and columns of each matrix.
            count: Number of matmuls in the graph.
        """
        op, result = DTYPES[dtype]
        left_dtype = "uint8" if dtype == "int8" else dtype
        draw = np.random.default_rng(0)
        feeds = {"x": _draw_matrix(draw, left_dtype, size)}
        weights = {f"w{index}": _draw_matrix(draw, dtype, size) for index in range(count)}
        nodes = [Node(op, ["x", name], [f"y{name}"], name) for name in weights]
        inputs = (Value("x", left_dtype, (size, size)),)
        outputs = tuple(Value(f"y{name}", result, (size, size)) for name in weights)
        tensors = {
            name: Tensor(name, dtype, array.shape, Inline(array.tobytes())) for name, array in weights.items()
        }
        try:
            return self._build_run(Graph("gemm", nodes, inputs, outputs, tensors), feeds)
        except Exception:  # no such kernel; onnxruntime's errors have no common base class
            return None

    def build_biased_matmul(self, m: int, k: int, n: int) -> Run:
        """Builds a run of a float32 MatMul and an Add of a bias, which the runtime fuses into one kernel."""
        draw = np.random.default_rng(0)
        tensors = {"w": _build_tensor("w", _draw_normal(draw, (k, n)) * np.float32(k**-0.5))}
        tensors["b"] = _build_tensor("b", _draw_normal(draw, (n,)))
        nodes = [Node("MatMul", ["x", "w"], ["product"], "n0"), Node("Add", ["product", "b"], ["y"], "n1")]
        x, y = Value("x", "float32", (m, k)), Value("y", "float32", (m, n))
        return self._build_run(Graph("biased", nodes, (x,), (y,), tensors), {"x": _draw_normal(draw, (m, k))})

    def build_matmuls(self, m: int, k: int, n: int, count: int) -> Run:
        """Builds a run of `count` float32 matmuls in a chain, each with its own weight.

        With `count` above 1, `k` and `n` must be equal.
        """
        draw = np.random.default_rng(0)
        scale = np.float32(k**-0.5)  # keeps the values of the chain at about the same size
        weights = {
            f"w{index}": _build_tensor(f"w{index}", _draw_normal(draw, (k, n)) * scale)
            for index in range(count)
        }
        nodes = [
            Node("MatMul", [f"v{index}", f"w{index}"], [f"v{index + 1}"], f"n{index}")
            for index in range(count)
        ]
        x, y = Value("v0", "float32", (m, k)), Value(f"v{count}", "float32", (m, n))
        return self._build_run(
            Graph("matmul", nodes, (x,), (y,), weights), {"v0": _draw_normal(draw, (m, k))}
        )

    def build_batched_matmul(self, batch: int, m: int, k: int, n: int) -> Run:
        """Builds a run of a batched float32 matmul of two inputs, without weights."""
        draw = np.random.default_rng(0)
        shapes = {"a": (batch, m, k), "b": (batch, k, n)}
        inputs = tuple([Value(name, "float32", shape) for name, shape in shapes.items()])
        y = Value("y", "float32", (batch, m, n))
        feeds = {name: _draw_normal(draw, shape) for name, shape in shapes.items()}
        return self._build_run(
            Graph("products", [Node("MatMul", ["a", "b"], ["y"])], inputs, (y,), {}), feeds
        )

    def build_convolutions(self, shape: ConvShape, count: int) -> Run:
        """Builds a run of `count` convolutions.

        Convolutions of stride 1 form a chain that alternates between the two numbers of channels. The runtime
        then changes the layout only at the first and the last one. Convolutions with a larger stride all read
        the same input.
        """
        draw = np.random.default_rng(0)
        is_chain = shape.stride == 1
        widths = [shape.channels[index % 2 if is_chain else bool(index)] for index in range(count + 1)]
        tensors, nodes = {**_CLIP_LIMITS} if shape.activation == "Clip" else {}, []
        settings = _list_conv_attributes(shape)
        for index in range(count):
            channels = (widths[index], widths[index + 1]) if is_chain else shape.channels
            tensors |= _create_weights(draw, shape._replace(channels=channels), index)
            conv_output = f"c{index}" if shape.activation else f"v{index + 1}"
            read = f"v{index}" if is_chain else "v0"
            nodes.append(
                Node(
                    "Conv", [read, f"w{index}", f"b{index}"], [conv_output], f"n{index}", attributes=settings
                )
            )
            if shape.activation:
                nodes.append(
                    Node(
                        shape.activation,
                        [conv_output, *filter(tensors.get, _CLIP_LIMITS)],
                        [f"v{index + 1}"],
                        f"a{index}",
                    )
                )
        size = (shape.batch, widths[0], shape.side, shape.side)
        first = Value("v0", "float32", size)
        output_indices = [count] if is_chain else range(1, count + 1)
        side = shape.side // shape.stride
        last = tuple(
            [
                Value(f"v{index}", "float32", (shape.batch, widths[index], side, side))
                for index in output_indices
            ]
        )
        return self._build_run(
            Graph("conv", nodes, (first,), last, tensors), {"v0": _draw_normal(draw, size)}
        )

    def build_network(self, shapes: Sequence[ConvShape]) -> Run:
        """Builds a run of convolutions in a chain."""
        return self._build_run(*_build_network_graph(shapes))

    def build_observed_network(self, shapes: Sequence[ConvShape]) -> ObservedNetwork:
        """Builds the graph of `build_network` in a session with the profiler."""
        return self._profile_network(
            *_build_network_graph(shapes), lambda run: _read_conv_times(run, len(shapes))
        )

    def build_block(self, block: DenseBlock) -> Run:
        """Builds a run of a dense block."""
        return self._build_run(*_build_block_graph(block))

    def build_observed_block(self, block: DenseBlock) -> ObservedNetwork:
        """Builds a dense block in a session with the profiler, which times `block.kernels`."""
        return self._profile_network(*_build_block_graph(block), lambda run: _read_block_times(run, block))

    def _profile_network(
        self,
        graph: Graph,
        feeds: Mapping[str, Array],
        read_run: Callable[[KernelRun], tuple[Sequence[float], float] | None],
    ) -> ObservedNetwork:
        """Builds a graph in a session with the profiler. `read_run` returns None for a run to leave out."""
        folder = tempfile.TemporaryDirectory()
        session = self._create_session(graph, "all", os.path.join(folder.name, "profile"))

        def read_times() -> Sequence[tuple[Sequence[float], float]]:
            with folder:
                timings = [read_run(run) for run in read_kernel_runs(session.end_profiling())]
            return [timing for timing in timings if timing is not None]

        return ObservedNetwork(_bind(session, graph, feeds), read_times)

    def build_elementwise(self, op: str, shape: tuple[int, ...]) -> Run:
        """Builds a run of an operator on a float32 array.

        Args:
            op: Operator, optionally followed by a comma and a variant; see `_ATTRIBUTES`.
            shape: Shape of the array.
        """
        draw = np.random.default_rng(0)
        x, y = Value("x", "float32", shape), Value("y", "float32", None)
        settings, op = _ATTRIBUTES.get(op, {}), op.partition(",")[0]
        extra_inputs = {
            name: _build_tensor(name, _draw_normal(draw, shape[-1:])) for name in _EXTRA_INPUTS.get(op, ())
        }
        read = ["x", "x", *extra_inputs] if op == "SkipLayerNormalization" else ["x", *extra_inputs]
        domain = _CONTRIBUTED if op in RUNTIME_OPERATORS else ""
        node = Node(op, read, ["y"], domain=domain, attributes=settings)
        return self._build_run(Graph(op, [node], (x,), (y,), extra_inputs), {"x": _draw_normal(draw, shape)})

    def build_add(self, elements: int) -> Run:
        """Builds a run that adds two float32 arrays."""
        a, b, y = (Value(name, "float32", (elements,)) for name in "aby")
        feeds = {name: np.full(elements, 1, np.float32) for name in "ab"}
        return self._build_run(Graph("add", [Node("Add", ["a", "b"], ["y"])], (a, b), (y,), {}), feeds)

    def build_chain(self, nodes: int) -> Run:
        """Builds a run of Neg nodes in a chain, on one number."""
        chained_nodes = [Node("Neg", [f"v{index}"], [f"v{index + 1}"], f"n{index}") for index in range(nodes)]
        first, last = Value("v0", "float32", (1,)), Value(f"v{nodes}", "float32", (1,))
        graph = Graph("chain", chained_nodes, (first,), (last,), {})
        return self._build_run(graph, {"v0": np.ones(1, np.float32)}, "none")

    def _build_run(self, graph: Graph, feeds: Mapping[str, Array], level: str = "all") -> Run:
        return _bind(self._create_session(graph, level), graph, feeds)

    def _create_session(self, graph: Graph, level: str, profile: str = "") -> Any:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = self._threads
        options.graph_optimization_level = LEVELS[level]
        if profile:
            options.enable_profiling, options.profile_file_prefix = True, profile
        model_bytes = encode_skeleton(Model(graph, {"": _OPSET, _CONTRIBUTED: 1}, _IR), folder=os.getcwd())
        return onnxruntime.InferenceSession(model_bytes, options, providers=[HOST], enable_fallback=0)


def _build_network_graph(shapes: Sequence[ConvShape]) -> tuple[Graph, dict[str, Array]]:
    """Builds the graph of a chain of convolutions, with its input."""
    draw = np.random.default_rng(0)
    tensors, nodes = dict[str, Tensor](), []
    for index, shape in enumerate(shapes):
        tensors |= _create_weights(draw, shape, index)
        read = [f"v{index}", f"w{index}", f"b{index}"]
        nodes.append(
            Node("Conv", read, [f"v{index + 1}"], f"n{index}", attributes=_list_conv_attributes(shape))
        )
    first, last = shapes[0], shapes[-1]
    size = (first.batch, first.channels[0], first.side, first.side)
    end = (last.batch, last.channels[1], *[last.side // last.stride] * 2)
    x, y = Value("v0", "float32", size), Value(f"v{len(shapes)}", "float32", end)
    return Graph("network", nodes, (x,), (y,), tensors), {"v0": _draw_normal(draw, size)}


def _build_block_graph(block: DenseBlock) -> tuple[Graph, dict[str, Array]]:
    """Builds the graph of a dense block, with its input.

    A convolution before the block makes the runtime use the same layout as in models.
    """
    draw = np.random.default_rng(0)
    tensors, nodes, features = dict[str, Tensor](), list[Node](), ["v0"]

    def conv(channels: tuple[int, int], kernel: int, read: str, name: str) -> None:
        shape, number = ConvShape(channels, block.side, kernel), len(nodes)
        tensors.update(_create_weights(draw, shape, number))
        nodes.append(
            Node(
                "Conv",
                [read, f"w{number}", f"b{number}"],
                [name],
                name,
                attributes=_list_conv_attributes(shape),
            )
        )

    conv((block.channels, block.channels), 3, "x", "v0")
    for layer in range(block.layers):
        read, wide = features[0], block.count_channels(layer)
        if layer:
            read = f"joined{layer}"
            nodes.append(Node("Concat", features, [read], read, attributes={"axis": 1}))
        scales = [f"{name}{layer}" for name in ("scale", "shift", "mean", "variance")]
        tensors |= {name: _build_tensor(name, np.abs(_draw_normal(draw, (wide,))) + 0.5) for name in scales}
        nodes += [
            Node("BatchNormalization", [read, *scales], [f"scaled{layer}"], f"scaled{layer}"),
            Node("Relu", [f"scaled{layer}"], [f"wide{layer}"], f"wide{layer}"),
        ]
        conv((wide, _INNER_CHANNELS), 1, f"wide{layer}", f"narrow{layer}")
        nodes.append(Node("Relu", [f"narrow{layer}"], [f"cut{layer}"], f"cut{layer}"))
        conv((_INNER_CHANNELS, _ADDED_CHANNELS), 3, f"cut{layer}", f"v{layer + 1}")
        features = [*features, f"v{layer + 1}"]
    size = (1, block.channels, block.side, block.side)
    x = Value("x", "float32", size)
    y = Value(features[-1], "float32", (1, _ADDED_CHANNELS, block.side, block.side))
    return Graph("block", nodes, (x,), (y,), tensors), {"x": _draw_normal(draw, size)}


def _read_block_times(run: KernelRun, block: DenseBlock) -> tuple[Sequence[float], float] | None:
    """Returns the seconds of each of `block.kernels` and of the whole run, or None if a kernel is missing."""
    # the runtime appends a suffix to the name of a node that it changed
    by_node = {name.partition("_")[0]: kernel.seconds for name, kernel in run.kernels.items()}
    seconds_of_kernels = [by_node.get(f"{_VALUE_PREFIXES[op]}{layer}") for op, layer in block.kernels]
    times = [seconds for seconds in seconds_of_kernels if seconds is not None]
    if len(times) == len(seconds_of_kernels):
        return (times, sum(kernel.seconds for kernel in run.kernels.values()))
    return None


def _read_conv_times(run: KernelRun, count: int) -> tuple[Sequence[float], float] | None:
    """Returns the seconds of each convolution in a run, and of all kernels, or None if one is missing."""
    convs = [kernel.seconds for kernel in run.kernels.values() if kernel.op == "Conv"]
    return (convs, sum(kernel.seconds for kernel in run.kernels.values())) if len(convs) == count else None


def _bind(session: Any, graph: Graph, feeds: Mapping[str, Array]) -> Run:
    """Builds a run with inputs bound in place, and outputs that stay in the runtime's memory."""
    binding = session.io_binding()
    for value in graph.inputs:
        binding.bind_ortvalue_input(value.name, _create_ort_value(feeds[value.name], str(value.dtype)))
    for value in graph.outputs:
        binding.bind_output(value.name)
    return lambda: session.run_with_iobinding(binding)


def _create_ort_value(array: Array, dtype: str) -> Any:
    if dtype == "bfloat16":  # not a type of numpy
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(
            array.view(np.uint16), get_dtype_code(dtype)
        )
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _list_conv_attributes(shape: ConvShape) -> Mapping[str, Any]:
    """Returns the attributes of a Conv."""
    return {
        "kernel_shape": [shape.kernel] * 2,
        "pads": [shape.kernel // 2] * 4,
        "group": shape.groups,
        "strides": [shape.stride] * 2,
    }


def _create_weights(draw: np.random.Generator, shape: ConvShape, index: int) -> dict[str, Tensor]:
    """Creates the weight and bias of a Conv, scaled so that the values of a chain keep their size."""
    inputs, outputs = shape.channels
    array = _draw_normal(draw, (outputs, inputs // shape.groups, shape.kernel, shape.kernel))
    array /= np.float32(shape.depth**0.5)
    return {
        f"w{index}": _build_tensor(f"w{index}", array),
        f"b{index}": _build_tensor(f"b{index}", _draw_normal(draw, (outputs,))),
    }


def _draw_normal(draw: np.random.Generator, shape: Sequence[int]) -> Array:
    return draw.standard_normal(shape, np.float32)


def _build_tensor(name: str, array: Array) -> Tensor:
    return Tensor(name, "float32", array.shape, Inline(array.astype(np.float32).tobytes()))


_CLIP_LIMITS = {
    name: Tensor(name, "float32", (), Inline(np.float32(at).tobytes()))
    for name, at in (("low", 0), ("high", 6))
}
"""Limits of a Clip."""


def _draw_matrix(draw: np.random.Generator, dtype: str, size: int) -> Array:
    """Draws a square matrix: uniform integers, or standard normal numbers, which are hardly ever denormal."""
    if dtype in ("int8", "uint8"):
        lowest, highest = np.iinfo(dtype).min, np.iinfo(dtype).max
        return draw.integers(lowest, highest, (size, size), dtype, endpoint=True)
    drawn = draw.standard_normal((size, size), np.float32)
    kind = ml_dtypes.bfloat16 if dtype == "bfloat16" else np.dtype(dtype)
    return drawn.astype(kind, copy=False)
