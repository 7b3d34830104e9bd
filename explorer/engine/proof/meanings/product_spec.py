"""Product specification: an operator's meaning as M, K, N and operands."""

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
"""Takes the arrays of `Original.inputs`: numbers, or codes of which 0 is a zero."""

Rows = Callable[[int, Array | slice], Array]
"""Returns some rows of one matrix of a stack: the whole matrix of a convolution is many times its input."""


class ProductSpec(Struct, frozen=True):
    """A node at given sizes: Y = alpha X W + beta C for a stack of `batch` products.

    Attributes:
        batch, M, K, N: Sizes of the product.
        left: The inputs arranged as X, (batch, M, K), to be read in rows.
        right: W as numbers (batch, K, N), or the inputs arranged so.
        arrange_output: Y arranged as (batch, M, N).
        bias: C as numbers, or the index of an input. None without one.
        shape: Of Y.
        expand_bias: C in the shape of Y; None where it broadcasts by itself.
        visible: The elements of the products that Y contains, (batch, M, N); None for all.
        squares: Takes the inputs to sums of squares of the rows of X, (batch, M) in float64, where these are
            known without the rows.
        integers: For a product of integers: W and C are then the stored numbers, before zero points are
            subtracted.
    """

    batch: int
    M: int
    K: int
    N: int
    left: Callable[[Sequence[Array]], Rows]
    right: Array | Arrange
    arrange_output: Callable[[Array], Array]
    shape: tuple[int, ...]
    alpha: float = 1.0
    beta: float = 1.0
    bias: Array | int | None = None
    expand_bias: Callable[[Array], Array] | None = None
    visible: Array | None = None
    squares: Callable[[Sequence[Array]], Array] | None = None
    integers: Integers | None = None

    def arrange_bias(self, bias: Array) -> Array:
        """C, or an array of its shape, for every element of the products, (batch, M, N)."""
        spread = self.expand_bias(bias) if self.expand_bias is not None else np.broadcast_to(bias, self.shape)
        return self.arrange_output(spread)

    def weight(self, inputs: Sequence[Array]) -> Array:
        """W, (batch, K, N), of numbers or of codes."""
        return self.right if isinstance(self.right, np.ndarray) else self.right(inputs)


class Original(Struct, frozen=True):
    """A product as the original graph has it.

    Attributes:
        node: The operator.
        inputs: Value names of the inputs that the file does not store, each once.
        operands: Number of inputs that are multiplied; the others are added.
        dtype: Type of stored operands; '' without one.
        spec_for: The meaning for inputs of given shapes and an output of a given shape.
    """

    node: Node
    inputs: tuple[str, ...]
    operands: int
    dtype: str
    spec_for: Callable[[Sequence[tuple[int, ...]], tuple[int, ...]], ProductSpec]

    @property
    def output(self) -> str:
        """Value name of Y."""
        return self.node.outputs[0]


Meaning = Callable[[Node, "NodeReader"], Original]
"""The meaning of a node; raises NotTiled for a node that is no product."""


class NodeReader:
    """Finds the numbers behind values of the original graph.

    Exporters put a weight behind Identity, Transpose and Constant nodes. These nodes are run on the stored
    numbers, as views.
    """

    def __init__(self, model: Model, planned: SitePlan | None = None, wiring: Wiring | None = None) -> None:
        self.model = model
        self.wiring = wiring or Wiring.of(model.graph)
        self._constants = Constants(model.graph, model.defaults, self.wiring.producers)
        self.planned = planned
        """The plan of the site: how it is split into products."""
        self.codes: dict[str, Array] = {}
        """Numbers in place of a value's own: the codes of a weight."""

    def is_weight(self, name: str) -> bool:
        """Whether a plan takes a value for the weight, which is then the right operand.

        The plan only says which operand is which. It gives no number: a constant that is computed on the left
        arrives at the tiles like any value of the graph.
        """
        producer = self.wiring.maker(name)
        is_quantizer = producer is not None and producer.op == "IntQuant"
        return (producer.inputs[0] if is_quantizer and producer is not None else name) in self._constants

    def number(self, name: str) -> Array | None:
        """The numbers of a value; None if it is no constant."""
        if name in self.codes:
            return self.codes[name]
        graph = self.model.graph
        nodes, open_ends = self.wiring.needed([name])
        if open_ends or any(n.op in ("Gemm", "MatMul") for n in nodes):
            return None
        domain = Symbols("float16")
        interpreter = Interpreter(domain, self.model.functions)
        scope = interpreter.scope(graph.initializers, {})
        try:
            interpreter.run(nodes, scope)
            value: Any = scope[name]
        except (NotTiled, KeyError):
            return None
        return value if isinstance(value, np.ndarray) else None

    def factors(self, node: Node) -> tuple[Array | None, Array | None]:
        """The numbers of both operands of a product; None for an operand that the tiles read as a value.

        Raises:
            NotTiled: Both are stored.
        """
        first, second = node.inputs[:2]
        are_weights = self.is_weight(first), self.is_weight(second)
        if all(are_weights):
            raise NotTiled(f"{node.op} '{node.label}' of the original has no operand that is not constant")
        if are_weights[0]:
            return self.number(first), None
        # a constant computed beside a computed operand may be made from it
        return None, self.number(second) if are_weights[1] or self.number(first) is None else None
