"""Writer for QOperator: QLinearConv, QLinearMatMul and QGemm, which compute with integers only.

The outputs of the first two are rounded to the format of the inputs. A QGemm returns floats.
"""

from __future__ import annotations

from typing import Any

from explorer.engine.graph.model import Node
from explorer.engine.quantize.choice import LayerChoice, is_bias_added
from explorer.engine.quantize.grids import Grids
from explorer.engine.quantize.layers import Operand
from explorer.engine.quantize.write.additions import Additions
from explorer.engine.quantize.write.qdq import add_quantized_activation, store_bias, store_codes

DOMAIN = "com.microsoft"


def write(choice: LayerChoice, grids: Grids, additions: Additions) -> None:
    """Adds a layer as an integer operator. A DequantizeLinear follows it, except after a QGemm."""
    node = choice.layer.node
    inputs: list[str] = []
    for operand in choice.layer.operands:
        if operand.part != "bias":
            inputs += _write_codes(choice, operand, grids, additions)
    has_add = is_bias_added(choice)
    biases = () if has_add else choice.layer.list_operands("bias")
    bias = [store_bias(operand, grids.find_operand_grid(choice, operand), additions) for operand in biases]
    attributes = {name: value for name, value in node.attributes.items() if name != "beta"}  # QGemm has none
    fields: dict[str, Any] = {"name": node.name, "attributes": attributes, "metadata": node.metadata}
    if node.op == "Gemm":
        product = additions.create_name(f"{node.outputs[0]}_unbiased") if has_add else node.outputs[0]
        additions.nodes.append(Node("QGemm", (*inputs, *bias), (product,), domain=DOMAIN, **fields))
        additions.opsets[DOMAIN] = 1
        if has_add:
            additions.nodes.append(
                Node("Add", (product, node.inputs[2]), node.outputs, name=f"{product}/Add")
            )
        return
    assert choice.input is not None
    output = node.outputs[0]
    scale = additions.store_grid(output, choice.input, grids.find_value_grid(choice, output))
    codes = additions.create_name(f"{output}_quantized")
    additions.nodes.append(Node(f"QLinear{node.op}", (*inputs, *scale, *bias), (codes,), **fields))
    additions.nodes.append(
        Node("DequantizeLinear", (codes, *scale), node.outputs, name=f"{codes}/DequantizeLinear")
    )


def _write_codes(
    choice: LayerChoice, operand: Operand, grids: Grids, additions: Additions
) -> tuple[str, str, str]:
    """Returns the names of the codes, the scale and the zero point of an operand."""
    grid = grids.find_operand_grid(choice, operand)
    if operand.part == "input":
        assert choice.input is not None
        codes = add_quantized_activation(operand.value, choice.input, grid, additions)
        return codes, *additions.store_grid(operand.value, choice.input, grid)
    assert choice.weight is not None
    return store_codes(operand, choice.weight, grid, additions), *additions.store_grid(
        operand.stored, choice.weight, grid
    )
