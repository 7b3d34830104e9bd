"""Convolutions of every sort, small: what the tests of tiling and of its proof share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from msgspec import Struct
from onnx import helper, numpy_helper

__all__ = ["CASES", "FIXED", "OPEN", "Case", "save"]


class Case(Struct, frozen=True):
    """A convolution.

    Attributes:
        op: 'Conv' or 'ConvTranspose'.
        x: Shape of the images; a string is a size that is open.
        w: Shape of the kernel.
        attributes: Of the operator.
        bias: 'stored', 'computed' or ''.
        kernel: How the kernel is given: 'stored', 'constant' (a Constant node), 'identity', 'transposed'
            (behind a Transpose), or 'computed'.
    """

    x: tuple[Any, ...]
    w: tuple[int, ...]
    attributes: dict[str, Any] = {}
    op: str = "Conv"
    bias: str = "stored"
    kernel: str = "stored"


T = "ConvTranspose"

CASES: dict[str, Case] = {
    "1d": Case((2, 3, 9), (5, 3, 3)),
    "1d padded and strided": Case((1, 4, 12), (6, 4, 5), {"pads": [3, 1], "strides": [2]}),
    "2d": Case((1, 3, 7, 6), (5, 3, 3, 3)),
    "2d without a bias": Case((1, 3, 7, 6), (5, 3, 3, 3), bias=""),
    "2d with a computed bias": Case((1, 3, 7, 6), (5, 3, 3, 3), bias="computed"),
    "pads of four sizes": Case((2, 3, 6, 5), (5, 3, 3, 2), {"pads": [2, 0, 1, 3]}),
    "strides and pads": Case((2, 3, 9, 8), (5, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}),
    "dilated": Case((1, 3, 9, 8), (5, 3, 3, 2), {"pads": [1, 0, 2, 1], "dilations": [2, 3]}),
    "dilated and strided": Case((1, 2, 11, 9), (3, 2, 3, 3), {"dilations": [2, 1], "strides": [3, 2]}),
    "3d": Case((2, 3, 4, 3, 5), (4, 3, 2, 2, 3), {"pads": [0, 1, 0, 0, 1, 1]}),
    "1x1": Case((2, 6, 5, 4), (5, 6, 1, 1)),
    "1x1 strided": Case((2, 6, 5, 4), (5, 6, 1, 1), {"strides": [2, 3]}),
    "1x1 padded": Case((1, 6, 3, 4), (5, 6, 1, 1), {"pads": [1, 1, 0, 1]}),
    "the whole image at once": Case((3, 4, 5, 5), (7, 4, 5, 5)),
    "one channel": Case((1, 1, 9, 8), (5, 1, 3, 2)),
    "SAME_UPPER": Case((1, 3, 9, 8), (5, 3, 3, 2), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "SAME_LOWER": Case((1, 3, 9, 8), (5, 3, 4, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 1]}),
    "VALID": Case((1, 3, 9, 8), (5, 3, 3, 2), {"auto_pad": "VALID"}),
    "a kernel in a Constant": Case((1, 3, 6, 6), (5, 3, 3, 3), kernel="constant"),
    "a kernel behind Identity": Case((1, 3, 6, 6), (5, 3, 3, 3), kernel="identity"),
    "a kernel stored in another order": Case((1, 3, 6, 6), (5, 3, 3, 2), kernel="transposed"),
    "a computed kernel": Case((1, 3, 6, 6), (5, 3, 3, 3), {"pads": [1, 1, 1, 1]}, kernel="computed"),
    "any number of images": Case(("images", 3, 5, 4), (5, 3, 3, 2), {"pads": [1, 0, 0, 1]}),
    "images of any size": Case(
        ("images", 3, "height", "width"), (5, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]}
    ),
    "dilated, of any length": Case((2, 3, "length"), (5, 3, 3), {"dilations": [2]}),
    "1x1, of any size": Case((1, 3, "height", 5), (5, 3, 1, 1)),
    "SAME_UPPER, of any size": Case((1, 3, "height", "width"), (5, 3, 4, 3), {"auto_pad": "SAME_UPPER"}),
    "depthwise, of any size": Case(("images", 5, "height", "width"), (5, 1, 3, 3), {"group": 5}),
    "groups": Case((2, 6, 6, 5), (4, 3, 3, 2), {"group": 2}),
    "groups that do not fill a pack": Case((1, 10, 5, 5), (15, 2, 2, 2), {"group": 5}),
    "groups as large as a tile": Case((1, 12, 5, 4), (12, 6, 3, 3), {"group": 2}),
    "groups with a computed kernel": Case((1, 6, 5, 4), (4, 3, 2, 2), {"group": 2}, kernel="computed"),
    "depthwise": Case((2, 5, 6, 6), (5, 1, 3, 3), {"group": 5, "pads": [1, 1, 1, 1]}),
    "depthwise 1d, two outputs each": Case((2, 5, 7), (10, 1, 3), {"group": 5}),
    "depthwise 1x1": Case((1, 7, 3, 4), (7, 1, 1, 1), {"group": 7}),
    "depthwise, any number of images": Case(("images", 5, 4, 4), (5, 1, 3, 3), {"group": 5}),
    "transposed 1d": Case((2, 3, 5), (3, 4, 3), {"strides": [2]}, T),
    "transposed, stride 1": Case((2, 3, 4, 5), (3, 4, 3, 2), {"pads": [1, 0, 0, 1]}, T),
    "transposed, the kernel divides by the stride": Case(
        (1, 3, 5, 4), (3, 4, 4, 4), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, T
    ),
    "transposed 1x1, its output cut": Case((1, 3, 5, 4), (3, 4, 1, 1), {"pads": [1, 0, 1, 2]}, T),
    "transposed 3d": Case((1, 2, 3, 2, 3), (2, 3, 3, 2, 2), {"strides": [2, 1, 3]}, T),
    "transposed, output_padding": Case(
        (2, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]}, T
    ),
    "transposed, a stride larger than the kernel": Case((1, 3, 4, 3), (3, 5, 2, 1), {"strides": [3, 2]}, T),
    "transposed, dilated": Case((1, 3, 5, 4), (3, 4, 3, 2), {"strides": [3, 2], "dilations": [2, 3]}, T),
    "transposed, a dilation that leaves phases without taps": Case(
        (1, 3, 4, 4), (3, 4, 2, 2), {"strides": [2, 2], "dilations": [2, 2]}, T
    ),
    "transposed, groups": Case((2, 6, 4, 3), (6, 2, 3, 3), {"strides": [2, 1], "group": 3}, T),
    "transposed, depthwise": Case((1, 5, 4, 3), (5, 1, 2, 2), {"strides": [2, 2], "group": 5}, T),
    "transposed, output_shape": Case(
        (1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "output_shape": [10, 8]}, T
    ),
    "transposed, an odd output_shape": Case(
        (1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "output_shape": [9, 7]}, T
    ),
    "transposed, SAME_UPPER": Case(
        (1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, T
    ),
    "transposed, SAME_LOWER": Case(
        (1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, T
    ),
    "transposed, VALID": Case((1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}, T),
    "transposed, any number of images": Case(
        ("images", 3, 3, 4), (3, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 0, 0]}, T
    ),
}

FIXED = [name for name, case in CASES.items() if all(isinstance(d, int) for d in case.x)]
OPEN = [name for name in CASES if name not in FIXED]


def save(path: Path, case: Case, *, dtype: Any = np.float32, opset: int = 17) -> str:
    """The case as a model x -> y, written and checked by onnx itself; what is computed is inputs k, c."""
    random = np.random.default_rng(5)
    count = case.w[0] if case.op == "Conv" else case.w[1] * case.attributes.get("group", 1)
    kernel = random.standard_normal(case.w).astype(dtype)
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    feeds = [helper.make_tensor_value_info("x", code, case.x)]
    nodes, stored, name = [], {}, "w"
    if case.kernel == "constant":
        nodes.append(helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(kernel)))
    elif case.kernel == "transposed":
        stored["stored"] = np.ascontiguousarray(kernel.transpose(2, 3, 1, 0))
        nodes.append(helper.make_node("Transpose", ["stored"], ["w"], perm=[3, 2, 0, 1]))
    elif case.kernel == "identity":
        stored["stored"] = kernel
        nodes.append(helper.make_node("Identity", ["stored"], ["w"]))
    elif case.kernel == "computed":
        feeds.append(helper.make_tensor_value_info("k", code, case.w))
        name = "k"
    else:
        stored["w"] = kernel
    inputs = ["x", name]
    if case.bias == "stored":
        stored["b"] = random.standard_normal(count).astype(dtype)
        inputs.append("b")
    elif case.bias:
        feeds.append(helper.make_tensor_value_info("c", code, [count]))
        inputs.append("c")
    nodes.append(helper.make_node(case.op, inputs, ["y"], name="conv", **case.attributes))
    made = helper.make_tensor_value_info("y", code, None)
    weights = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", feeds, [made], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return str(path)
