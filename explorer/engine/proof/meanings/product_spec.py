"""Defines the specification of an operator as a product: sizes M, K and N, and the operands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from msgspec import Struct

from explorer.engine.graph.interpreter import Interpreter, Wiring
from explorer.engine.graph.model import Model, Node
from explorer.engine.proof.symbolic.blocks import NotTiled
from explorer.engine.proof.symbolic.integers import Integers
from explorer.engine.proof.symbolic.symbols import Symbols
from explorer.engine.runtime.onnxruntime import Array
from explorer.engine.tiling.sites import Constants
from explorer.facts import SitePlan

Arrange = Callable[[Sequence[Array]], Array]
"""Function from the arrays of `Original.inputs` to an operand. The arrays contain numbers, or codes (0 is
zero)."""

Rows = Callable[[int, Array | slice], Array]
"""Function from (matrix index, rows) to these rows of a matrix. The full matrix is not stored, because that
of a convolution is many times larger than its input."""


class ProductSpec(Struct, frozen=True):
    """Specification of a node at given sizes: Y = alpha X W + beta C for a batch of products.

    Attributes:
        batch, M, K, N: Sizes of the product.
        left: Function from the inputs to X, (batch, M, K), which is read by rows.
        right: W as numbers (batch, K, N), or a function from the inputs to W.
        flatten_output: Function from an output, of `shape`, to (batch, M, N).
        shape: Shape of Y.
        alpha, beta: Factors of the product and of the bias.
        bias: C as numbers, the index of the input with C, or None without a bias.
        expand_bias: Function that expands C to the shape of Y, or None if C broadcasts.
        contained: Elements of the products that Y contains, (batch, M, N), or None for all.
        squares: Function from the inputs to the sums of squares of the rows of X, (batch, M) in float64, or
            None if they can only be computed from the rows.
        integers: Exact computation of a product of integers, or None. W and C are then the stored numbers,
            before zero points are subtracted.
    """

    batch: int
    M: int
    K: int
    N: int
    left: Callable[[Sequence[Array]], Rows]
    right: Array | Arrange
    flatten_output: Callable[[Array], Array]
    shape: tuple[int, ...]
    alpha: float = 1.0
    beta: float = 1.0
    bias: Array | int | None = None
    expand_bias: Callable[[Array], Array] | None = None
    contained: Array | None = None
    squares: Callable[[Sequence[Array]], Array] | None = None
    integers: Integers | None = None

    def arrange_bias(self, bias: Array) -> Array:
        """Expands C, or an array of its shape, to every element of the products, (batch, M, N)."""
        expanded = (
            self.expand_bias(bias) if self.expand_bias is not None else np.broadcast_to(bias, self.shape)
        )
        return self.flatten_output(expanded)

    def arrange_weight(self, inputs: Sequence[Array]) -> Array:
        """Returns W, (batch, K, N), as numbers or codes."""
        return self.right if isinstance(self.right, np.ndarray) else self.right(inputs)


class Original(Struct, frozen=True):
    """A product in the original graph.

    Attributes:
        node: Operator.
        inputs: Value names of the inputs that are not stored, without repetitions.
        operands: Number of inputs that are multiplied. The others are added.
        dtype: Element type of stored operands, or '' if none is stored.
        spec_for: Function from the shapes of the inputs and of the output to the specification.
    """

    node: Node
    inputs: tuple[str, ...]
    operands: int
    dtype: str
    spec_for: Callable[[Sequence[tuple[int, ...]], tuple[int, ...]], ProductSpec]

    @property
    def output(self) -> str:
        """Name of the output Y."""
        return self.node.outputs[0]


Meaning = Callable[[Node, "NodeReader"], Original]
"""Function that returns the product that a node computes. It raises NotTiled if the node is not a product."""


class NodeReader:
    """Finds the numbers of constant values in the original graph.

    Exporters insert Identity, Transpose and Constant nodes after a weight. These nodes are executed on the
    stored numbers, as views.

    Args:
        model: Original model.
        planned: Plan of the site.
        wiring: Edges of the graph, or None to compute them.
    """

    def __init__(self, model: Model, planned: SitePlan | None = None, wiring: Wiring | None = None) -> None:
        self.model = model
        self.wiring = wiring or Wiring.from_graph(model.graph)
        self._constants = Constants(model.graph, model.defaults, self.wiring.producers)
        self.planned = planned
        """Plan of the site, which shows how it is split into products."""
        self.codes: dict[str, Array] = {}
        """Codes of quantized weights by value name. They replace the numbers of the value."""

    def is_weight(self, name: str) -> bool:
        """Whether a plan treats a value as the weight, which is then the right operand.

        A constant that nodes compute is not a weight; the tiles read it like any other value.
        """
        producer = self.wiring.find_producer(name)
        is_quantizer = producer is not None and producer.op == "IntQuant"
        return (producer.inputs[0] if is_quantizer and producer is not None else name) in self._constants

    def read_numbers(self, name: str) -> Array | None:
        """Returns the numbers or codes of a value, or None if it is not constant."""
        if name in self.codes:
            return self.codes[name]
        graph = self.model.graph
        nodes, open_inputs = self.wiring.find_needed_nodes([name])
        # symbols reject a product of constants, so do not run the nodes before it
        if open_inputs or any(n.op in ("Gemm", "MatMul") for n in nodes):
            return None
        symbols = Symbols("float16")  # the narrowest type, for which no Cast to float16 or wider is rejected
        interpreter = Interpreter(symbols, self.model.functions)
        scope = interpreter.create_scope(graph.initializers, {})
        try:
            interpreter.run(nodes, scope)
            value: Any = scope[name]
        except (NotTiled, KeyError):
            return None
        return value if isinstance(value, np.ndarray) else None

    def read_factors(self, node: Node) -> tuple[Array | None, Array | None]:
        """Returns the numbers of both operands of a product, or None for an operand that is not a weight.

        Raises:
            NotTiled: Both operands are stored.
        """
        first, second = node.inputs[:2]
        are_weights = self.is_weight(first), self.is_weight(second)
        if all(are_weights):
            raise NotTiled(f"{node.op} '{node.label}' of the original has no operand that is not constant")
        if are_weights[0]:
            return self.read_numbers(first), None
        # a constant that the plan does not treat as a weight counts only if the left operand is not constant
        return None, self.read_numbers(second) if are_weights[1] or self.read_numbers(first) is None else None
