"""The product as the original graph has it, found again without help from the code that tiled it.

Exporters hide a weight behind Identity, Transpose and Constant nodes; they are run on the stored
numbers, as views, until the operand is the (K, N) matrix that the product means.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from explorer.engine.graph import Model, Node
from explorer.engine.verify.blocks import NotTiled
from explorer.engine.verify.interpret import Interpreter, needed
from explorer.engine.verify.runtime import Array
from explorer.engine.verify.symbols import Symbols

__all__ = ["Original", "find_original"]


class Original(Struct, frozen=True):
    """The product as the original graph has it: Y = alpha X W + beta C.

    Attributes:
        node: The Gemm or MatMul.
        x: Value name of the activation.
        weight: (K, N), a view of the stored numbers.
        bias: C as numbers, as a value name, or None.
        transposed: The activation arrives as (K, M).
        swapped: The weight is the left operand: Y arrives as (N, M).
    """

    node: Node
    x: str
    weight: Array
    bias: Array | str | None
    alpha: float
    beta: float
    transposed: bool
    swapped: bool

    @property
    def output(self) -> str:
        """Value name of Y."""
        return self.node.outputs[0]


def find_original(model: Model, output: str) -> Original | None:
    """The Gemm or MatMul of the original that makes `output`, its weight resolved to stored numbers.

    Returns:
        None if `output` is not made by a product.

    Raises:
        NotTiled: It is, but not one of its operands is constant, or both are.
    """
    node = next((n for n in model.graph.nodes if output in n.outputs), None)
    if node is None or node.domain or node.op not in ("Gemm", "MatMul"):
        return None
    attributes = node.attributes if node.op == "Gemm" else {}
    left, right = _number(model, node.inputs[0]), _number(model, node.inputs[1])
    if (left is None) == (right is None):
        raise NotTiled(f"{node.op} '{node.label}' of the original has not one constant operand")
    swapped = right is None
    weight = left if left is not None else right
    assert weight is not None
    turn_w = bool(attributes.get("transA" if swapped else "transB", 0)) != swapped
    turn_x = bool(attributes.get("transB" if swapped else "transA", 0)) != swapped
    if weight.ndim == 1:
        weight = weight.reshape(-1, 1)
    else:
        weight = weight.reshape(weight.shape[-2:])
        weight = weight.T if turn_w else weight
    name = node.inputs[2] if len(node.inputs) > 2 and node.op == "Gemm" else ""
    bias = _number(model, name) if name else None
    return Original(
        node=node,
        x=node.inputs[1 if swapped else 0],
        weight=weight,
        bias=bias if bias is not None or not name else name,
        alpha=float(attributes.get("alpha", 1.0)),
        beta=float(attributes.get("beta", 1.0)),
        transposed=turn_x,
        swapped=swapped,
    )


def _number(model: Model, name: str) -> Array | None:
    """The numbers behind a value, through Identity, Transpose, Constant; None if it is no constant."""
    nodes, open_ends = needed(model.graph.nodes, [name], known=model.graph.initializers)
    if open_ends or any(n.op in ("Gemm", "MatMul") for n in nodes):
        return None
    domain = Symbols("float16")
    interpreter = Interpreter(domain, model.functions)
    scope = interpreter.scope(model.graph.initializers, {})
    try:
        interpreter.run(nodes, scope)
        value = scope[name]
    except (NotTiled, KeyError):
        return None
    return value if isinstance(value, np.ndarray) else None
