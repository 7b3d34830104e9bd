"""QOperator: QLinearConv, QLinearMatMul and QGemm, which compute with integers from end to end.

Their outputs are rounded, too, to the format of the inputs (those of a QGemm are floats).
"""

from __future__ import annotations

from typing import Any

from explorer.engine.graph.model import Node
from explorer.engine.quantize.choice import LayerChoice, is_bias_added
from explorer.engine.quantize.grids import Grids
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.write.additions import Additions
from explorer.engine.quantize.write.qdq import quantized_activation, stored_bias, stored_codes

DOMAIN = "com.microsoft"


def write(choice: LayerChoice, grids: Grids, to: Additions) -> None:
    """Adds a layer as an operator of integers, with a DequantizeLinear behind it."""
    node = choice.layer.node
    inputs: list[str] = []
    for operand in choice.layer.operands:
        if operand.part != "bias":
            inputs += _codes(choice, operand, grids, to)
    added = is_bias_added(choice)
    biases = () if added else choice.layer.of("bias")
    bias = [stored_bias(operand, grids.of(choice, operand), to) for operand in biases]
    attributes = {name: value for name, value in node.attributes.items() if name != "beta"}
    fields: dict[str, Any] = {"name": node.name, "attributes": attributes, "metadata": node.metadata}
    if node.op == "Gemm":
        product = to.unique(f"{node.outputs[0]}_unbiased") if added else node.outputs[0]
        to.nodes.append(Node("QGemm", (*inputs, *bias), (product,), domain=DOMAIN, **fields))
        to.opsets[DOMAIN] = 1
        if added:
            to.nodes.append(Node("Add", (product, node.inputs[2]), node.outputs, name=f"{product}/Add"))
        return
    assert choice.input is not None
    output = node.outputs[0]
    scale = to.scale(output, choice.input, grids.of_value(choice, output))
    codes = to.unique(f"{output}_quantized")
    to.nodes.append(Node(f"QLinear{node.op}", (*inputs, *scale, *bias), (codes,), **fields))
    to.nodes.append(Node("DequantizeLinear", (codes, *scale), node.outputs, name=f"{codes}/DequantizeLinear"))


def _codes(choice: LayerChoice, operand: Operand, grids: Grids, to: Additions) -> tuple[str, str, str]:
    """The codes of an operand, its scale and its zero point."""
    grid = grids.of(choice, operand)
    if operand.part == "input":
        assert choice.input is not None
        codes = quantized_activation(operand.value, choice.input, grid, to)
        return codes, *to.scale(operand.value, choice.input, grid)
    assert choice.weight is not None
    return stored_codes(operand, choice.weight, grid, to), *to.scale(operand.stored, choice.weight, grid)
