"""Finds the epilogue of a matrix product: the operators that are applied to each finished sum.

These are the bias and the scales of the operator itself, and the operators that follow it in the graph: bias,
activation (Relu, Clip), residual (Add) and QuantizeLinear, which ends the epilogue. An operator is fused only
if no other node reads the value before it. `EpilogueStep` lists the kinds of steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from explorer.engine.graph.interpreter import Wiring, list_reads
from explorer.engine.graph.model import Model, Node
from explorer.engine.mapping.emit_c import EpilogueStep
from explorer.engine.mapping.proof import RunInputs
from explorer.engine.mapping.walk import finish_sums
from explorer.engine.proof.meanings import NodeReader, ProductSpec
from explorer.engine.proof.sites.proof import find_original
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.tiling.sites import Site
from explorer.facts import SitePlan, TensorInfo
from explorer.facts.mapping import Epilogue

_Array: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"

_QUANTIZED = {"QLinearConv": (6, 7), "QLinearMatMul": (6, 7), "QGemm": (7, 8)}
"""By operator, the indices of the inputs with the scale and the zero point of the output.

Inputs 1 and 4 of these operators are the scales of the operands.
"""

_CODES = ("int8", "uint8", "int16", "uint16")
"""Types that the output of an epilogue may be quantized to."""


class FusedEpilogue(NamedTuple):
    """Epilogue of a site with its constants.

    Attributes:
        steps: Steps in order.
        record: The epilogue as part of a mapping.
        output: Name of the value that the last step computes.
        residual: Name of the value that is added, or ''.
        bias: Bias of each column, (batch, N), or None.
        scale: Scale of each column, (batch, N), or None.
        offset: Float that is added to each column after the scale, (batch, N), or None.
    """

    steps: tuple[EpilogueStep, ...]
    record: Epilogue
    output: str
    residual: str
    bias: _Array | None
    scale: _Array | None
    offset: _Array | None

    def extend_inputs(self, product: RunInputs, residual: _Array | None) -> RunInputs:
        """Returns the operands of a product, extended by the constants of the epilogue and the residual."""
        return product._replace(bias=self.bias, scale=self.scale, offset=self.offset, residual=residual)


class Epilogues:
    """Finds the epilogues of the sites of a model.

    Args:
        model: The model.
        shapes: Shape and type of every value at the sizes of the mapping.
    """

    def __init__(self, model: Model, shapes: Mapping[str, TensorInfo]) -> None:
        self._model, self._shapes = model, shapes
        self._wiring = Wiring.from_graph(model.graph)
        self._readers: dict[str, list[Node]] = {}
        for node in model.graph.nodes:
            for name in list_reads(node):
                self._readers.setdefault(name, []).append(node)
        self._outputs = {value.name for value in model.graph.outputs}

    def find(self, site: Site, plan: SitePlan) -> FusedEpilogue | None:
        """Returns the epilogue of a site, or None if no operator can be fused."""
        if plan.is_in_body or not set(site.dynamic) <= {"M"}:
            return None
        try:
            original = find_original(self._model, plan.output, plan, self._wiring)
            if original is None:
                return None
            shapes = [self._find_shape(name) for name in original.inputs]
            shape = self._find_shape(plan.output)
            if shape is None or any(input_shape is None for input_shape in shapes):
                return None
            meaning = original.spec_for([input_shape or () for input_shape in shapes], shape)
        except NotTiled:
            return None
        if meaning.contained is not None or (meaning.batch, meaning.M, meaning.K, meaning.N) != (
            site.batch,
            site.M,
            site.K,
            site.N,
        ):
            return None
        chain = _Chain(NodeReader(self._model, plan, self._wiring), site, meaning)
        if not chain.start(original.node):
            return None
        value = plan.output
        while not chain.is_complete:
            readers = self._readers.get(value, [])
            if (
                value in self._outputs
                or len(readers) != 1
                or not chain.add(readers[0], value, self._find_shape)
            ):
                break
            value = readers[0].outputs[0]
        return chain.build_epilogue(value)

    def _find_shape(self, name: str) -> tuple[int, ...] | None:
        info = self._shapes.get(name)
        if info is None or info.shape is None or not all(isinstance(size, int) for size in info.shape):
            return None
        return tuple(size for size in info.shape if isinstance(size, int))


class _Chain:
    """Steps of an epilogue under construction.

    The methods that add a step return whether it can be fused.

    Attributes:
        reader: Reads constants of the model.
        site: Site of the product.
        meaning: Specification of the operator as a product.
        steps: Steps so far.
        ops: Names of the fused operators, for the mapping.
        columns: Constants for each column, (batch, N), by kind of step.
        residual: Name of the value that a residual step adds, or ''.
        sums: dtype of the sums of the product.
        float_dtype: dtype of the floats in the epilogue: that of float sums, or float32 after integer sums.
        has_floats: Whether the values after the last step are floats.
        output: Type of the values after the last step.
        is_complete: Whether the chain ends with a quantization, after which no operator is fused.
    """

    def __init__(self, reader: NodeReader, site: Site, meaning: ProductSpec) -> None:
        self.reader, self.site, self.meaning = reader, site, meaning
        self.steps: list[EpilogueStep] = []
        self.ops: list[str] = []
        self.columns: dict[str, _Array] = {}
        self.residual = ""
        self.sums = np.dtype(site.accumulator)
        self.float_dtype = self.sums if self.sums.kind == "f" else np.dtype(np.float32)
        self.has_floats = self.sums.kind == "f"
        self.output = site.accumulator
        self.is_complete = False

    # -- the operator itself

    def start(self, node: Node) -> bool:
        """Adds the bias and the scales of the operator. Returns whether each is constant in a column."""
        return self._start_floats() if self.meaning.integers is None else self._start_integers(node)

    def _start_floats(self) -> bool:
        meaning = self.meaning
        if meaning.alpha != 1.0:
            self.steps.append(EpilogueStep("scale", float(meaning.alpha)))
        if meaning.bias is None:
            return True
        if isinstance(meaning.bias, int):
            return False
        self.ops.append("bias")
        return self._add_column_step(
            "bias", meaning.bias.astype(self.float_dtype) * self.float_dtype.type(meaning.beta), self.sums
        )

    def _start_integers(self, node: Node) -> bool:
        meaning, integers = self.meaning, self.meaning.integers
        assert integers is not None
        if integers.zero is None or isinstance(meaning.bias, int) or self._has_weight_zero_point(node):
            return False
        if not isinstance(meaning.right, np.ndarray) and integers.zero:
            return False
        bias = np.zeros((), np.int64) if meaning.bias is None else meaning.bias
        if bias.any() and not self._add_column_step("bias", bias, self.sums):
            return False
        if node.op in _QUANTIZED:
            return self._add_requantization(node)
        if integers.scale is None:
            return node.op in ("MatMulInteger", "ConvInteger")
        if float(node.attributes.get("alpha", 1.0)) < 0:
            return False
        self.ops.append("DequantizeLinear")
        factors = _extract_column(integers.scale(meaning.arrange_bias))
        if factors is None:
            return False
        self._add_scale_step(factors.astype(np.float32))
        self.output, self.has_floats = "float32", True
        return self._add_float_bias(node)

    def _has_weight_zero_point(self, node: Node) -> bool:
        """Whether the weight has a zero point that is computed, or other than 0."""
        names = []
        if node.op in _QUANTIZED:
            names = [node.inputs[5]] if len(node.inputs) > 5 else []
        elif node.op in ("MatMulInteger", "ConvInteger"):
            names = [node.inputs[3]] if len(node.inputs) > 3 else []
        else:
            producers = [self.reader.wiring.find_producer(name) for name in node.inputs[:2]]
            nodes = [producer for producer in producers if producer is not None]
            weights = [
                producer for producer in nodes if self.reader.read_numbers(producer.inputs[0]) is not None
            ]
            activations = [producer for producer in nodes if producer not in weights]
            # without a stored weight, the second operand takes its place
            for producer in weights or activations[1:]:
                names += list(producer.inputs[2:3])
        for name in filter(None, names):
            zero = self.reader.read_numbers(name)
            if zero is None or zero.any():
                return True
        return False

    def _add_requantization(self, node: Node) -> bool:
        """Adds the scale (alpha x x_scale x w_scale / y_scale) and the zero point of a quantized operator."""
        scale_index, zero_index = _QUANTIZED[node.op]
        inputs = [*node.inputs, *[""] * 9]
        if not inputs[scale_index]:
            return False
        scales = [self.reader.read_numbers(inputs[index]) for index in (1, 4, scale_index)]
        zero = self.reader.read_numbers(inputs[zero_index]) if inputs[zero_index] else np.zeros((), np.uint8)
        if zero is None or any(scale is None for scale in scales):
            return False
        x, w, y = (np.asarray(scale, np.float32) for scale in scales)
        alpha = np.float32(node.attributes.get("alpha", 1.0)) if node.op == "QGemm" else np.float32(1)
        factors = np.asarray(alpha * x.reshape(()) * w / y.reshape(()), np.float32)
        column = _extract_column(
            self.meaning.arrange_bias(factors if factors.size > 1 else factors.reshape(()))
        )
        if column is None:
            return False
        self._add_scale_step(column)
        self._add_quantize_step(1.0, zero)
        self.ops.append(node.op)
        return True

    def _add_float_bias(self, node: Node) -> bool:
        """Adds the float bias of an operator with integer sums, unless the sums contain it as integers."""
        beta = float(node.attributes.get("beta", 1.0))
        bias = self.reader.read_numbers(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
        if bias is None or not beta:
            return len(node.inputs) < 3 or not node.inputs[2] or not beta
        self.ops.append("bias")
        if self._has_integer_bias():
            return True
        return self._add_column_step("offset", np.float32(beta) * bias.astype(np.float32), self.float_dtype)

    def _has_integer_bias(self) -> bool:
        """Whether the integer sums contain a bias besides the correction for the left zero point."""
        meaning, integers = self.meaning, self.meaning.integers
        if integers is None or meaning.bias is None or isinstance(meaning.bias, int):
            return False
        column = self.columns.get("bias", np.zeros((meaning.batch, meaning.N), np.int64)).astype(np.int64)
        if integers.zero and isinstance(meaning.right, np.ndarray):
            column = column + integers.zero * meaning.right.astype(np.int64).sum(1)
        return bool(column.any())

    # -- operators that follow in the graph

    def add(self, node: Node, value: str, shape_of: Any) -> bool:
        """Adds an operator of the graph. Returns whether it can be fused."""
        if node.domain or not self.has_floats or shape_of(node.outputs[0]) != self.meaning.shape:
            return False
        fuse = {
            "Relu": self._add_relu,
            "Clip": self._add_clip,
            "Add": self._add_operand,
            "QuantizeLinear": self._add_quantize,
        }
        if node.op not in fuse or not fuse[node.op](node, value):
            return False
        self.ops.append(node.op)
        return True

    def _add_relu(self, node: Node, value: str) -> bool:
        self.steps.append(EpilogueStep("relu"))
        return True

    def _add_clip(self, node: Node, value: str) -> bool:
        """Adds a Clip with stored limits."""
        limits = [node.attributes.get("min", -np.inf), node.attributes.get("max", np.inf)]
        for index, name in enumerate(node.inputs[1:3]):
            number = self.reader.read_numbers(name) if name else None
            if name and (number is None or number.size != 1):
                return False
            if number is not None:
                limits[index] = float(number.reshape(()))
        if np.isnan(limits).any():
            return False
        self.steps.append(EpilogueStep("clip", float(limits[0]), float(limits[1])))
        return True

    def _add_operand(self, node: Node, value: str) -> bool:
        """Adds the other operand of an Add: a constant of each column, or a residual."""
        names = [name for name in node.inputs if name != value]
        if len(names) != 1:
            return False
        number = self.reader.read_numbers(names[0])
        if number is None:
            is_input = names[0] in {value.name for value in self.reader.model.graph.required_inputs}
            if self.residual or not (is_input or self.reader.wiring.find_producer(names[0])):
                return False
            self.residual = names[0]
            self.steps.append(EpilogueStep("residual"))
            return True
        try:
            arranged = self.meaning.flatten_output(np.broadcast_to(number, self.meaning.shape))
        except ValueError:
            return False
        column = _extract_column(arranged)
        kind = "offset" if "bias" in self.columns or self.sums.kind != "f" else "bias"
        if column is None or kind in self.columns:
            return False
        self.columns[kind] = column.astype(self.float_dtype)
        self.steps.append(EpilogueStep(kind))
        return True

    def _add_quantize(self, node: Node, value: str) -> bool:
        """Adds a QuantizeLinear of integer sums with one stored scale."""
        if self.sums.kind == "f":
            return False  # a rounding error of a float sum could change a code
        scale = self.reader.read_numbers(node.inputs[1])
        name = node.inputs[2] if len(node.inputs) > 2 else ""
        zero = self.reader.read_numbers(name) if name else np.zeros((), np.uint8)
        if scale is None or zero is None or scale.size != 1 or str(zero.dtype) not in _CODES:
            return False
        self._add_quantize_step(float(scale.reshape(())), zero)
        return True

    # -- steps

    def _add_column_step(self, kind: str, values: _Array, dtype: np.dtype[Any]) -> bool:
        column = _extract_column(self.meaning.arrange_bias(values))
        if column is None:
            return False
        self.columns[kind] = column.astype(dtype)
        self.steps.append(EpilogueStep(kind))
        return True

    def _add_scale_step(self, column: _Array) -> None:
        first = column.reshape(-1)[0]
        if first and (column == first).all():
            self.steps.append(EpilogueStep("scale", float(first)))
            return
        self.columns["scale"] = column.astype(np.float32)
        self.steps.append(EpilogueStep("scale"))

    def _add_quantize_step(self, scale: float, zero: _Array) -> None:
        self.steps.append(EpilogueStep("quantize", scale, float(zero.reshape(-1)[0])))
        self.output, self.is_complete = str(zero.dtype), True

    def build_epilogue(self, value: str) -> FusedEpilogue | None:
        """Returns the epilogue that computes `value`, or None if the chain has no steps."""
        if not self.steps:
            return None
        float_bytes = self.float_dtype.itemsize
        sizes = {"bias": self.sums.itemsize, "scale": float_bytes, "offset": float_bytes}
        record = Epilogue(
            tuple(self.ops),
            self.output,
            bias_bytes=sum(sizes[kind] for kind in self.columns),
            residual_bytes=float_bytes if self.residual else 0,
        )
        column = {kind: np.ascontiguousarray(values) for kind, values in self.columns.items()}
        return FusedEpilogue(
            tuple(self.steps),
            record,
            value,
            self.residual,
            column.get("bias"),
            column.get("scale"),
            column.get("offset"),
        )


def _extract_column(values: _Array) -> _Array | None:
    """Returns the values of each column, (batch, N), or None if rows of (batch, M, N) differ."""
    return np.array(values[:, 0]) if (values == values[:, :1]).all() else None


def compute_output(sums: _Array, fused: FusedEpilogue, inputs: RunInputs) -> _Array:
    """Computes the outputs from exact sums, with the operations of the emitted code in the same order."""
    output = np.dtype(fused.record.output)
    return np.stack(
        [finish_sums(part, fused.steps, inputs, index, output) for index, part in enumerate(sums)]
    )


def compute_before_rounding(sums: _Array, fused: FusedEpilogue, inputs: RunInputs) -> _Array:
    """Computes the outputs in float64; quantized outputs are clipped to their type, but not rounded."""
    # a clip without limits takes the place of the quantization, which is computed below
    steps: Sequence[EpilogueStep] = [
        step._replace(kind="clip", low=-np.inf, high=np.inf) if step.kind == "quantize" else step
        for step in fused.steps
    ]
    wide_inputs = inputs._replace(
        bias=_widen(inputs.bias),
        scale=_widen(inputs.scale),
        offset=_widen(inputs.offset),
        residual=_widen(inputs.residual),
    )
    dtype = np.dtype(np.float64)
    values = np.stack(
        [
            finish_sums(product_sums.astype(dtype), tuple(steps), wide_inputs, index, dtype)
            for index, product_sums in enumerate(sums)
        ]
    )
    last = fused.steps[-1]
    if last.kind != "quantize":
        return values
    limits = np.iinfo(fused.record.output)
    scale, zero_point = last.low, last.high
    return np.clip(values / scale + zero_point, limits.min, limits.max)


def _widen(values: _Array | None) -> _Array | None:
    return None if values is None else values.astype(np.float64)
