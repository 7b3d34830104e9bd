"""Builds small ONNX graphs whose weights are identical on every machine, byte for byte.

The weights come from the raw bits of a seeded generator. NumPy guarantees that these do not change between
releases, but not that its distributions do not change. Names of nodes and values follow torch's TorchScript
exporter, so that the layer tree has a hierarchy.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8

Shape = Sequence[int | str]
Array = np.ndarray[Any, Any]


class SeededGraph:
    """A graph under construction; most methods return the name of the value that they produce.

    In all methods, `scope` is the prefix of a node's name, and `path` the prefix of the names of its weights.

    Args:
        name: Name of the graph; each name has its own random numbers.
        seed: Seed of the random numbers.
        store_weights: Whether to store the weights; otherwise they are inputs without values.
    """

    def __init__(self, name: str, seed: int = 0, *, store_weights: bool = True) -> None:
        self.name, self.stored = name, store_weights
        self.nodes: list[onnx.NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}
        self.names: dict[str, int] = {}
        self.generator = np.random.PCG64(zlib.crc32(name.encode()) + seed)

    def add_input(self, name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> str:
        """Adds an input of the graph."""
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def add_output(self, value: str, name: str, shape: Shape, dtype: int = TensorProto.FLOAT) -> None:
        """Renames `value`, an output of the last node, to the graph output `name`."""
        self.nodes[-1].output[:] = [name if out == value else out for out in self.nodes[-1].output]
        assert name in self.nodes[-1].output, value
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def draw_uniform(self, shape: Sequence[int], low: float, high: float) -> Array:
        """Draws uniform random numbers of 24 bits, which float32 represents exactly."""
        raw = np.asarray(self.generator.random_raw(math.prod(shape)), dtype=np.uint64)
        unit = (raw >> np.uint64(40)).astype(np.float32) / np.float32(1 << 24)
        return (np.float32(low) + unit * np.float32(high - low)).reshape(shape)

    def add_parameter(self, name: str, array: Array) -> str:
        """Adds a stored tensor."""
        self.initializers[name] = numpy_helper.from_array(np.ascontiguousarray(array), name)
        return name

    def add_weight(self, name: str, shape: Sequence[int], fan_in: int, gain: float = 1.0) -> str:
        """Adds a weight as torch initializes it: uniform within gain / sqrt(fan_in).

        If the graph stores no weights, this adds an input.
        """
        limit = gain / math.sqrt(fan_in)
        return self.add_uniform(name, shape, -limit, limit)

    def add_uniform(self, name: str, shape: Sequence[int], low: float, high: float) -> str:
        """Adds a weight, uniform between two numbers, or an input if the graph stores no weights."""
        if not self.stored:
            return self.add_input(name, list(shape))
        return self.add_parameter(name, self.draw_uniform(shape, low, high))

    def add_node(self, kind: str, scope: str, *inputs: str, **attributes: Any) -> str:
        """Appends a node named `scope/kind` (`scope/kind_1` the second time)."""
        name = f"{scope}/{kind}"
        count = self.names.get(name, 0)
        self.names[name] = count + 1
        name = f"{name}_{count}" if count else name
        out = f"{name}_output_0"
        self.nodes.append(helper.make_node(kind, inputs, [out], name=name, **attributes))
        return out

    def add_constant(self, scope: str, value: Any, dtype: Any) -> str:
        """Adds a Constant node."""
        return self.add_node("Constant", scope, value=numpy_helper.from_array(np.array(value, dtype=dtype)))

    def add_conv(
        self,
        scope: str,
        path: str,
        x: str,
        cin: int,
        cout: int,
        kernel: int,
        *,
        bias: bool = True,
        **attributes: int,
    ) -> str:
        """Adds a square convolution; attributes: stride, padding, groups."""
        stride, padding = attributes.get("stride", 1), attributes.get("padding", 0)
        groups = attributes.get("groups", 1)
        fan_in = cin // groups * kernel * kernel
        # before a batch norm with random statistics, preserve the variance through a ReLU (He et al., 2015);
        # otherwise a deep network's output would hardly depend on its input
        gain = 1.0 if bias else math.sqrt(6)
        names = [self.add_weight(f"{path}.weight", (cout, cin // groups, kernel, kernel), fan_in, gain)]
        if bias:
            names.append(self.add_weight(f"{path}.bias", (cout,), fan_in))
        return self.add_node(
            "Conv",
            scope,
            x,
            *names,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel, kernel],
            pads=[padding] * 4,
            strides=[stride, stride],
        )

    def add_linear(self, scope: str, path: str, x: str, cin: int, cout: int) -> str:
        """Adds a fully connected layer on rows: Gemm with the weight in torch's layout."""
        weight = self.add_weight(f"{path}.weight", (cout, cin), cin)
        bias = self.add_weight(f"{path}.bias", (cout,), cin)
        return self.add_node("Gemm", scope, x, weight, bias, alpha=1.0, beta=1.0, transB=1)

    def add_batch_norm(self, scope: str, path: str, x: str, width: int) -> str:
        """Adds a batch normalization with random statistics, because ones and zeros would hide errors."""
        parts = [
            self.add_uniform(f"{path}.weight", (width,), 0.5, 1.5),
            self.add_uniform(f"{path}.bias", (width,), -0.2, 0.2),
            self.add_uniform(f"{path}.running_mean", (width,), -0.3, 0.3),
            self.add_uniform(f"{path}.running_var", (width,), 0.5, 2.0),
        ]
        return self.add_node(
            "BatchNormalization", scope, x, *parts, epsilon=1e-5, momentum=0.9, training_mode=0
        )

    def add_pool(self, scope: str, x: str, kernel: int, stride: int) -> str:
        """Adds a square MaxPool."""
        return self.add_node(
            "MaxPool",
            scope,
            x,
            ceil_mode=0,
            dilations=[1, 1],
            kernel_shape=[kernel, kernel],
            pads=[0, 0, 0, 0],
            strides=[stride, stride],
        )

    def build_model(self, producer: str) -> onnx.ModelProto:
        """Builds the model."""
        graph = helper.make_graph(
            self.nodes, self.name, self.inputs, self.outputs, list(self.initializers.values())
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name=producer)
