"""Passes for `explorer apply MODEL PASS -o FILE --passes sample_models/passes.py --trust`."""

from typing import Annotated

import numpy as np
import onnx
from onnx import helper, numpy_helper

from explorer.passes import graph_pass


@graph_pass("split-bias", "the bias of a Gemm becomes an Add")
def split_bias(model: onnx.ModelProto) -> onnx.ModelProto:
    for gemm in [node for node in model.graph.node if node.op_type == "Gemm" and len(node.input) == 3]:
        bias, output = gemm.input.pop(), gemm.output[0]
        gemm.output[0] = f"{output}.product"
        model.graph.node.append(helper.make_node("Add", [gemm.output[0], bias], [output]))
    return model


@graph_pass("fuse-bias", "the Add behind a product of rows becomes the bias of a Gemm")
def fuse_bias(model: onnx.ModelProto) -> onnx.ModelProto:
    nodes = model.graph.node
    products = {
        node.output[0]: node for node in nodes if node.op_type in ("MatMul", "Gemm") and len(node.input) == 2
    }
    for add in [node for node in nodes if node.op_type == "Add" and node.input[0] in products]:
        product = products[add.input[0]]
        product.op_type, product.output[0] = "Gemm", add.output[0]
        product.input.append(add.input[1])
        nodes.remove(add)
    return model


@graph_pass("tanh-gelu", "Erf of a GELU becomes the tanh of a polynomial")
def tanh_gelu(
    model: onnx.ModelProto, *, cubic: Annotated[float, "factor of the cubic term"] = 0.044715
) -> onnx.ModelProto:
    for erf in [node for node in model.graph.node if node.op_type == "Erf"]:
        u, y = erf.input[0], erf.output[0]
        for name, value in ((f"{y}.a", 2 / np.sqrt(np.pi)), (f"{y}.b", 4 * cubic / np.sqrt(np.pi))):
            model.graph.initializer.append(numpy_helper.from_array(np.float32(value), name))
        model.graph.node.remove(erf)
        model.graph.node.extend(
            helper.make_node(op, inputs, [output])
            for op, inputs, output in (
                ("Mul", [u, u], f"{y}.square"),
                ("Mul", [f"{y}.square", f"{y}.b"], f"{y}.cubic"),
                ("Add", [f"{y}.cubic", f"{y}.a"], f"{y}.factor"),
                ("Mul", [u, f"{y}.factor"], f"{y}.sum"),
                ("Tanh", [f"{y}.sum"], y),
            )
        )
    return model
