"""Harmless rewritings are equal by construction; what looks like one, and is none, is not."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.defs
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxruntime import InferenceSession

from explorer import verify_files
from explorer.base.errors import BadModel
from explorer.engine.graph.schema_defaults import DEFAULTS, ChangedDefault, get_default_attributes
from explorer.engine.proof.structure.identities import can_represent
from explorer.engine.proof.structure.normal_form import normalize_equation
from tests.engine.proof import tiled as t

node = helper.make_node
Pair = tuple[list[Any], list[Any]]


def stored(name: str, value: Any) -> Any:
    """A Constant."""
    return node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value), ""))


def ints(name: str, *values: int) -> Any:
    return stored(name, np.asarray(values, np.int64))


def same(op: str, inputs: list[str], one: dict[str, Any], other: dict[str, Any], **options: Any) -> Pair:
    return ([node(op, inputs, ["y"], **one, **options)], [node(op, inputs, ["y"], **other, **options)])


W = {
    "w": t.weight(6, 4, 3, 3, scale=0.2),
    "lw": t.weight(1, 20, 8),
    "lr": t.weight(1, 20, 5),
    "lw2": t.weight(2, 20, 8),
    "lr2": t.weight(2, 20, 5),
    "m": t.weight(8, 5),
    "q": np.random.default_rng(0).integers(-90, 90, (8, 5)).astype(np.int8),
    "s": np.float32(0.05),
}

QUANTIZED = [
    *(stored("u", np.float32(0.03)), stored("z", np.uint8(128)), stored("k", np.int8(0))),
    node("QuantizeLinear", ["x", "u", "z"], ["xq"]),
]


def gemm(**attributes: Any) -> list[Any]:
    """A product of quantized numbers, of onnxruntime's own operators."""
    inputs = ["xq", "u", "z", "q", "s", "k"]
    return [node("QGemm", inputs, ["y"], domain="com.microsoft", **attributes)]


def branch(op: str, source: str) -> Any:
    """A branch of an If that applies an operator to a value of the graph."""
    result = helper.make_tensor_value_info("b", 1, None)
    return helper.make_graph([node(op, [source], ["b"])], "branch", [], [result])


def turns(condition: Any) -> Any:
    """A body of a Loop that takes a tanh; `condition` computes `still` from `go_on`."""
    infos = [helper.make_tensor_value_info(n, kind, []) for n, kind in (("i", 7), ("go_on", 9), ("still", 9))]
    states = [helper.make_tensor_value_info(n, 1, None) for n in ("before", "after")]
    nodes = [condition, node("Tanh", ["before"], ["after"])]
    return helper.make_graph(nodes, "body", [*infos[:2], states[0]], [infos[2], states[1]])


SIGN = [stored("zero", np.float32(0)), node("ReduceSum", ["x"], ["sum"], keepdims=0)]


def choice(negated: bool, *operators: str) -> list[Any]:
    """An If of a condition or of its opposite, with an operator in each branch."""
    first, second = (branch(op, "x") for op in operators)
    nodes = [*SIGN, node("Greater", ["sum", "zero"], ["c"]), node("Not", ["c"], ["n"])]
    return [*nodes, node("If", ["n" if negated else "c"], ["y"], then_branch=first, else_branch=second)]


def products(*zeros: int | None) -> list[Any]:
    """A product of integers with zero points."""
    names = [f"k{index}" if zero is not None else "" for index, zero in enumerate(zeros)]
    types = np.uint8, np.int8
    return [
        *QUANTIZED,
        *(stored(n, t(z)) for n, t, z in zip(names, types, zeros, strict=False) if z is not None),
        node("MatMulInteger", ["xq", "q", *names], ["i"]),
        node("Cast", ["i"], ["y"], to=1),
    ]


EQUAL: dict[str, tuple[Any, Pair]] = {
    "a group of one": ((1, 4, 8, 8), same("Conv", ["x", "w"], {"group": 1, "dilations": [1, 1]}, {})),
    "strides and pads of no account": (
        (1, 4, 8, 8),
        same("Conv", ["x", "w"], {"strides": [1, 1], "pads": [0, 0, 0, 0], "kernel_shape": [3, 3]}, {}),
    ),
    "valid windows": ((1, 4, 8, 8), same("Conv", ["x", "w"], {"auto_pad": "VALID"}, {"pads": [0, 0, 0, 0]})),
    "as large as the input": (
        (1, 4, 8, 8),
        same("Conv", ["x", "w"], {"auto_pad": "SAME_UPPER"}, {"pads": [1, 1, 1, 1]}),
    ),
    "no pads that could count": (
        (1, 4, 8, 8),
        same("AveragePool", ["x"], {"count_include_pad": 1}, {"strides": [1, 1]}, kernel_shape=[3, 3]),
    ),
    "the last axis": ((2, 3, 8), same("Softmax", ["x"], {"axis": -1}, {"axis": 2})),
    "the default axis": ((2, 3, 8), same("Softmax", ["x"], {}, {"axis": 2})),
    "axes joined from behind": ((2, 3, 8), same("Concat", ["x", "x"], {"axis": -2}, {"axis": 1})),
    "flattened from behind": ((2, 3, 8), same("Flatten", ["x"], {"axis": -2}, {})),
    "axes of a mean": (
        (2, 3, 8),
        same("ReduceMean", ["x"], {"axes": [-1, 0]}, {"axes": [0, 2], "keepdims": 1}),
    ),
    "all axes": ((2, 3, 8), same("ReduceMax", ["x"], {"axes": [0, 1, 2]}, {})),
    "axes that are an input": (
        (2, 3, 8),
        (
            [ints("a", -1, 1), node("ReduceSum", ["x", "a"], ["y"])],
            [ints("a", 1, 2), node("ReduceSum", ["x", "a"], ["y"], noop_with_empty_axes=1)],
        ),
    ),
    "new axes": (
        (2, 3, 8),
        (
            [ints("a", -1, 0), node("Unsqueeze", ["x", "a"], ["y"])],
            [ints("a", 0, 4), node("Unsqueeze", ["x", "a"], ["y"])],
        ),
    ),
    "slices without axes and steps": (
        (2, 3, 8),
        (
            [ints("b", 0, 1), ints("e", 2, 3), node("Slice", ["x", "b", "e"], ["y"])],
            [
                *(ints("b", 0, 1), ints("e", 2, 3), ints("a", -3, -2), ints("st", 1, 1)),
                node("Slice", ["x", "b", "e", "a", "st"], ["y"]),
            ],
        ),
    ),
    "letters": (
        (2, 3, 8),
        same("Einsum", ["x", "m"], {"equation": "bij,jk->bik"}, {"equation": "zyx, xa -> zya"}),
    ),
    "letters in order": (
        (3, 8),
        same("Einsum", ["x", "m"], {"equation": "ij,jk"}, {"equation": "ij,jk->ik"}),
    ),
    "turned by default": ((3, 8), same("Transpose", ["x"], {}, {"perm": [1, 0]})),
    "turned twice": (
        (2, 3, 8),
        (
            [
                node("Transpose", ["x"], ["a"], perm=[2, 0, 1]),
                node("Transpose", ["a"], ["y"], perm=[0, 2, 1]),
            ],
            [node("Transpose", ["x"], ["y"], perm=[2, 1, 0])],
        ),
    ),
    "shaped twice": (
        (2, 3, 8),
        (
            [
                ints("a", 4, 12),
                node("Reshape", ["x", "a"], ["r"]),
                ints("b", 6, -1),
                node("Reshape", ["r", "b"], ["y"]),
            ],
            [ints("b", 6, -1), node("Reshape", ["x", "b"], ["y"])],
        ),
    ),
    "there and back": (
        (3, 8),
        (
            [
                *(
                    node("Cast", ["x"], ["d"], to=TensorProto.DOUBLE),
                    node("Cast", ["d"], ["f"], to=TensorProto.FLOAT),
                ),
                node("MatMul", ["f", "m"], ["y"]),
            ],
            [node("MatMul", ["x", "m"], ["y"])],
        ),
    ),
    "cast to what it is": (
        (3, 8),
        (
            [node("Relu", ["x"], ["r"]), node("Cast", ["r"], ["c"], to=1), node("MatMul", ["c", "m"], ["y"])],
            [node("Relu", ["x"], ["r"]), node("MatMul", ["r", "m"], ["y"])],
        ),
    ),
    "usual activations": (
        (4, 3, 8),
        same(
            "LSTM",
            ["x", "lw", "lr"],
            {"activations": ["Sigmoid", "Tanh", "Tanh"], "direction": "forward"},
            {"input_forget": 0},
            hidden_size=5,
        ),
    ),
    "in both directions": (
        (4, 3, 8),
        same(
            "LSTM",
            ["x", "lw2", "lr2"],
            {"activations": ["sigmoid", "tanh", "tanh"] * 2},
            {},
            hidden_size=5,
            direction="bidirectional",
        ),
    ),
    "operands trade places": (
        (3, 8),
        (
            [node("Relu", ["x"], ["r"]), node("Mul", ["r", "x"], ["p"]), node("Add", ["p", "r"], ["y"])],
            [node("Relu", ["x"], ["r"]), node("Mul", ["x", "r"], ["p"]), node("Add", ["r", "p"], ["y"])],
        ),
    ),
    "greater is less": (
        (3, 8),
        (
            [
                node("Abs", ["x"], ["a"]),
                node("Greater", ["a", "x"], ["g"]),
                node("Where", ["g", "a", "x"], ["y"]),
            ],
            [
                node("Abs", ["x"], ["a"]),
                node("Less", ["x", "a"], ["g"]),
                node("Where", ["g", "a", "x"], ["y"]),
            ],
        ),
    ),
    "twice negated": (
        (3, 8),
        (
            [node("Neg", ["x"], ["a"]), node("Neg", ["a"], ["b"]), node("Tanh", ["b"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "nothing is dropped": (
        (3, 8),
        ([node("Dropout", ["x"], ["d"]), node("Tanh", ["d"], ["y"])], [node("Tanh", ["x"], ["y"])]),
    ),
    "times one": (
        (3, 8),
        (
            [stored("one", np.float32(1)), node("Mul", ["one", "x"], ["d"]), node("Tanh", ["d"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "a sum of one": (
        (3, 8),
        ([node("Sum", ["x"], ["d"]), node("Tanh", ["d"], ["y"])], [node("Tanh", ["x"], ["y"])]),
    ),
    "padded by nothing": (
        (3, 8),
        (
            [ints("p", 0, 0, 0, 0), node("Pad", ["x", "p"], ["d"], mode="edge"), node("Tanh", ["d"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "padded by zeros": (
        (3, 8),
        (
            [ints("p", 0, 1, 0, 1), stored("z", np.float32(0)), node("Pad", ["x", "p", "z"], ["y"])],
            [ints("p", 0, 1, 0, 1), node("Pad", ["x", "p"], ["y"], mode="constant")],
        ),
    ),
    "a zero point of 0": (
        (3, 8),
        (
            [
                stored("z", np.int8(0)),
                node("DequantizeLinear", ["q", "s", "z"], ["d"]),
                node("MatMul", ["x", "d"], ["y"]),
            ],
            [node("DequantizeLinear", ["q", "s"], ["d"], axis=0), node("MatMul", ["x", "d"], ["y"])],
        ),
    ),
    "outputs that nobody names": (
        (4, 3, 8),
        (
            [node("LSTM", ["x", "lw", "lr"], ["y", "", ""], hidden_size=5)],
            [node("LSTM", ["x", "lw", "lr", "", ""], ["y"], hidden_size=5)],
        ),
    ),
    "applied again": (
        (3, 8),
        (
            [node("Relu", ["x"], ["a"]), node("Relu", ["a"], ["b"]), node("Tanh", ["b"], ["y"])],
            [node("Relu", ["x"], ["a"]), node("Tanh", ["a"], ["y"])],
        ),
    ),
    "joined twice": (
        (2, 3, 8),
        (
            [node("Concat", ["x", "x"], ["a"], axis=-2), node("Concat", ["x", "a"], ["y"], axis=1)],
            [node("Concat", ["x", "x", "x"], ["y"], axis=1)],
        ),
    ),
    "minus is plus": (
        (3, 8),
        (
            [stored("c", np.float32([0.3, -2] * 4)), node("Sub", ["x", "c"], ["y"])],
            [stored("c", np.float32([-0.3, 2] * 4)), node("Add", ["c", "x"], ["y"])],
        ),
    ),
    "an eighth": (
        (3, 8),
        (
            [stored("c", np.float32(8)), node("Div", ["x", "c"], ["y"])],
            [stored("c", np.float32(0.125)), node("Mul", ["x", "c"], ["y"])],
        ),
    ),
    "to the power of one": (
        (3, 8),
        (
            [stored("c", np.float32(1)), node("Pow", ["x", "c"], ["p"]), node("Tanh", ["p"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "the other one if not": (
        (3, 8),
        (
            [
                *(stored("z", np.float32(0.2)), node("Less", ["x", "z"], ["l"]), node("Not", ["l"], ["n"])),
                *(node("Tanh", ["x"], ["t"]), node("Where", ["n", "t", "x"], ["y"])),
            ],
            [
                *(stored("z", np.float32(0.2)), node("Less", ["x", "z"], ["l"])),
                *(node("Tanh", ["x"], ["t"]), node("Where", ["l", "x", "t"], ["y"])),
            ],
        ),
    ),
    "expanded by nothing": (
        (3, 8),
        (
            [ints("sh", 1, 1), node("Expand", ["x", "sh"], ["e"]), node("Tanh", ["e"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "tiled once": (
        (3, 8),
        (
            [ints("sh", 1, 1), node("Tile", ["x", "sh"], ["e"]), node("Tanh", ["e"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "from the first to the last": (
        (3, 8),
        (
            [
                *(ints("b", 0), ints("e", 2**63 - 1), ints("a", -1), node("Slice", ["x", *"bea"], ["all"])),
                node("Tanh", ["all"], ["y"]),
            ],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "a type in between": (
        (3, 8),
        (
            [
                node("Cast", ["x"], ["c"], to=TensorProto.INT8),
                *(node("Cast", ["c"], ["i"], to=TensorProto.INT32), node("Cast", ["i"], ["y"], to=1)),
            ],
            [node("Cast", ["x"], ["c"], to=TensorProto.INT8), node("Cast", ["c"], ["y"], to=1)],
        ),
    ),
    "the larger of two alike": (
        (3, 8),
        (
            [node("Tanh", ["x"], ["t"]), node("Max", ["t", "t"], ["l"]), node("Sigmoid", ["l"], ["y"])],
            [node("Tanh", ["x"], ["t"]), node("Sigmoid", ["t"], ["y"])],
        ),
    ),
    "one flat shape in four ways": (
        (2, 3, 8),
        (
            [node("Flatten", ["x"], ["f"]), ints("sh", 0, -1), node("Reshape", ["f", "sh"], ["y"])],
            [
                *(ints("a", 1), node("Unsqueeze", ["x", "a"], ["u"]), node("Squeeze", ["u"], ["p"])),
                *(ints("sh", 2, 24), node("Reshape", ["p", "sh"], ["y"], allowzero=1)),
            ],
        ),
    ),
    "an axis squeezed by name": (
        (1, 3, 1, 8),
        ([node("Squeeze", ["x"], ["y"])], [ints("a", -2, 0), node("Squeeze", ["x", "a"], ["y"])]),
    ),
    "an index from behind": (
        (2, 3, 8),
        (
            [ints("i", -1, 2), node("Gather", ["x", "i"], ["y"], axis=2)],
            [stored("i", np.asarray([7, 2], np.int32)), node("Gather", ["x", "i"], ["y"], axis=-1)],
        ),
    ),
    "an end beyond the axis": (
        (2, 3, 8),
        (
            [ints("b", 1, 0), ints("e", 99, 5), ints("a", 2, 1), node("Slice", ["x", "b", "e", "a"], ["y"])],
            [ints("b", -7), ints("e", 8), ints("a", -1), node("Slice", ["x", "b", "e", "a"], ["y"])],
        ),
    ),
    "expanded to its own sizes": (
        (2, 3, 8),
        (
            [ints("e", 3, 8), node("Expand", ["x", "e"], ["a"]), node("Tanh", ["a"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "a sum of two": (
        (3, 8),
        (
            [node("Tanh", ["x"], ["t"]), node("Sum", ["t", "x"], ["y"])],
            [node("Tanh", ["x"], ["t"]), node("Add", ["x", "t"], ["y"])],
        ),
    ),
    "the main diagonal": (
        (8, 8),
        (
            [stored("k", np.int64(0)), node("Trilu", ["x", "k"], ["y"], upper=0)],
            [node("Trilu", ["x"], ["y"], upper=0)],
        ),
    ),
    "an alpha of one": (
        (3, 8),
        (
            [*QUANTIZED, *gemm(alpha=1.0, transB=0)],
            [*QUANTIZED, *gemm()],
        ),
    ),
    "sizes that are stored": (
        (2, 3, 8),
        (
            [
                *(node("Shape", ["x"], ["sx"]), ints("i", 0, 2), node("Gather", ["sx", "i"], ["part"])),
                ints("rest", -1),
                *(node("Concat", ["part", "rest"], ["to"], axis=0), node("Reshape", ["x", "to"], ["y"])),
            ],
            [ints("to", 2, 8, -1), node("Reshape", ["x", "to"], ["y"])],
        ),
    ),
    "a number of elements": (
        (2, 3, 8),
        (
            [
                *(node("Size", ["x"], ["n"]), node("Cast", ["n"], ["c"], to=1)),
                *(node("Sqrt", ["c"], ["r"]), node("Div", ["x", "r"], ["y"])),
            ],
            [stored("r", np.sqrt(np.float32(48))), node("Div", ["x", "r"], ["y"])],
        ),
    ),
    "a filled tensor": (
        (2, 3, 8),
        (
            [
                *(node("Shape", ["x"], ["sx"], start=1), stored("two", np.int64(2))),
                *(node("Mul", ["sx", "two"], ["d"]), ints("mm", 2, 2), node("Div", ["d", "mm"], ["e"])),
                node("ConstantOfShape", ["e"], ["f"], value=numpy_helper.from_array(np.float32([1.5]))),
                node("Add", ["x", "f"], ["y"]),
            ],
            [stored("f", np.full((3, 8), 1.5, np.float32)), node("Add", ["x", "f"], ["y"])],
        ),
    ),
    "an initial state": (
        (4, 3, 8),
        (
            [
                *(node("Shape", ["x"], ["sx"], start=1, end=2), ints("one", 1), ints("five", 5)),
                node("Concat", ["one", "sx", "five"], ["to"], axis=0),
                *(
                    node("ConstantOfShape", ["to"], ["h"]),
                    node("LSTM", ["x", "lw", "lr", "", "", "h"], ["y"], hidden_size=5),
                ),
            ],
            [
                stored("h", np.zeros((1, 3, 5), np.float32)),
                node("LSTM", ["x", "lw", "lr", "", "", "h"], ["y"], hidden_size=5),
            ],
        ),
    ),
    "sizes for scales": (
        (1, 2, 4, 6),
        (
            [
                stored("scales", np.float32([1, 1, 2, 1.5])),
                node("Resize", ["x", "", "scales"], ["y"], mode="linear"),
            ],
            [ints("sizes", 1, 2, 8, 9), node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")],
        ),
    ),
    "nearest elements by another rule": (
        (1, 2, 4, 8),
        (
            [
                stored("scales", np.float32([1, 1, 4, 0.5])),
                node(
                    *("Resize", ["x", "", "scales"], ["y"]),
                    coordinate_transformation_mode="asymmetric",
                    nearest_mode="floor",
                ),
            ],
            [
                stored("scales", np.float32([1, 1, 4, 0.5])),
                node("Resize", ["x", "", "scales"], ["y"], nearest_mode="round_prefer_floor"),
            ],
        ),
    ),
    "half pixels of torch": (
        (1, 2, 4, 1),
        (
            [
                ints("sizes", 1, 2, 7, 1),
                node(
                    *("Resize", ["x", "", "", "sizes"], ["y"]),
                    mode="cubic",
                    coordinate_transformation_mode="pytorch_half_pixel",
                ),
            ],
            [ints("sizes", 1, 2, 7, 1), node("Resize", ["x", "", "", "sizes"], ["y"], mode="cubic")],
        ),
    ),
    "computed sizes for scales": (
        (1, 2, 4, 6),
        (
            [
                *(stored("roi", np.float32([])), stored("scales", np.float32([]))),
                *(
                    node("Shape", ["x"], ["sx"]),
                    ints("three", 1, 1, 3, 3),
                    node("Mul", ["sx", "three"], ["to"]),
                ),
                node("Resize", ["x", "roi", "scales", "to"], ["y"]),
            ],
            [
                stored("scales", np.float32([1, 1, 3, 3])),
                node("Resize", ["x", "", "scales"], ["y"], mode="nearest", exclude_outside=0),
            ],
        ),
    ),
    "a branch that is always taken": (
        (3, 8),
        (
            [
                *(stored("c", np.asarray(False)), node("Relu", ["x"], ["r"])),
                node("If", ["c"], ["y"], then_branch=branch("Neg", "r"), else_branch=branch("Tanh", "r")),
            ],
            [node("Relu", ["x"], ["r"]), node("Tanh", ["r"], ["y"])],
        ),
    ),
    "an order of one channel": (
        (1, 9, 2, 2),
        same("DepthToSpace", ["x"], {"mode": "CRD"}, {}, blocksize=3),
    ),
    "a condition that stays true": (
        (3, 8),
        (
            [
                *(stored("n", np.int64(3)), stored("go", np.asarray(True))),
                node("Loop", ["n", "go", "x"], ["y"], body=turns(node("Identity", ["go_on"], ["still"]))),
            ],
            [
                stored("n", np.int64(3)),
                node("Loop", ["n", "", "x"], ["y"], body=turns(stored("still", np.asarray(True)))),
            ],
        ),
    ),
    "pads that follow from the size": (
        (1, 4, 8, 7),
        same("Conv", ["x", "w"], {"auto_pad": "SAME_LOWER"}, {"pads": [1, 1, 0, 1]}, strides=[2, 3]),
    ),
    "a larger end of the pads": (
        (1, 4, 8, 7),
        same(
            "AveragePool",
            ["x"],
            {"auto_pad": "SAME_UPPER"},
            {"pads": [0, 1, 1, 1]},
            kernel_shape=[3, 3],
            strides=[2, 3],
        ),
    ),
    "a ceiling of a whole number": (
        (1, 4, 8, 9),
        same("MaxPool", ["x"], {"ceil_mode": 1}, {}, kernel_shape=[2, 3], strides=[2, 3]),
    ),
    "zero points of a product": ((3, 8), (products(0, 0), products())),
    "one zero point of a product": ((3, 8), (products(7, 0), products(7))),
    "a cast like another value": (
        (3, 8),
        (
            [*SIGN, node("CastLike", ["x", "sum"], ["c"]), node("Tanh", ["c"], ["y"])],
            [node("Tanh", ["x"], ["y"])],
        ),
    ),
    "clipped by nothing": (
        (3, 8),
        ([node("Clip", ["x"], ["c"]), node("Elu", ["c"], ["y"])], [node("Elu", ["x"], ["y"])]),
    ),
    "a choice between a value and itself": (
        (3, 8),
        (
            [
                *(*SIGN, node("Greater", ["x", "zero"], ["c"])),
                *(node("Where", ["c", "x", "x"], ["chosen"]), node("Elu", ["chosen"], ["y"])),
            ],
            [node("Elu", ["x"], ["y"])],
        ),
    ),
    "the other branch if not": ((3, 8), (choice(False, "Neg", "Tanh"), choice(True, "Tanh", "Neg"))),
    "an open batch made flat": (
        ("rows", 3, 8),
        ([node("Flatten", ["x"], ["y"])], [ints("sh", -1, 24), node("Reshape", ["x", "sh"], ["y"])]),
    ),
    "an open batch made flat by its own size": (
        ("rows", 3, 8),
        ([node("Flatten", ["x"], ["y"])], [ints("sh", 0, -1), node("Reshape", ["x", "sh"], ["y"])]),
    ),
    "an open batch with a new axis": (
        ("rows", 8),
        (
            [ints("a", -1), node("Unsqueeze", ["x", "a"], ["y"])],
            [ints("sh", 0, 8, 1), node("Reshape", ["x", "sh"], ["y"])],
        ),
    ),
}

DIFFERENT: dict[str, tuple[Any, Pair]] = {
    "a smaller end of the pads": (
        (1, 4, 8, 7),
        same("Conv", ["x", "w"], {"auto_pad": "SAME_UPPER"}, {"pads": [1, 1, 0, 1]}, strides=[2, 3]),
    ),
    "a ceiling of a part": (
        (1, 4, 8, 8),
        same("MaxPool", ["x"], {"ceil_mode": 1}, {}, kernel_shape=[2, 3], strides=[2, 3]),
    ),
    "another zero point of a product": ((3, 8), (products(0, 1), products())),
    "the same branch if not": ((3, 8), (choice(False, "Neg", "Tanh"), choice(True, "Neg", "Tanh"))),
    "a choice that repeats a value": (
        (1, 8),
        (
            [
                stored("c", np.ones((3, 1), bool)),
                *(node("Where", ["c", "x", "x"], ["chosen"]), node("Elu", ["chosen"], ["y"])),
            ],
            [node("Elu", ["x"], ["y"])],
        ),
    ),
    "an open batch in other rows": (
        ("rows", 3, 8),
        (
            [ints("sh", -1, 12), node("Reshape", ["x", "sh"], ["y"])],
            [ints("sh", 12, -1), node("Reshape", ["x", "sh"], ["y"])],
        ),
    ),
    "an order of two channels": (
        (1, 18, 2, 2),
        same("DepthToSpace", ["x"], {"mode": "CRD"}, {}, blocksize=3),
    ),
    "scales that sizes do not give": (
        (1, 2, 4, 7),
        (
            [
                stored("scales", np.float32([1, 1, 1, 1.5])),
                node("Resize", ["x", "", "scales"], ["y"], mode="linear"),
            ],
            [ints("sizes", 1, 2, 4, 10), node("Resize", ["x", "", "", "sizes"], ["y"], mode="linear")],
        ),
    ),
    "another number of elements": (
        (2, 3, 8),
        (
            [*(node("Size", ["x"], ["n"]), node("Cast", ["n"], ["c"], to=1)), node("Div", ["x", "c"], ["y"])],
            [stored("c", np.float32(47)), node("Div", ["x", "c"], ["y"])],
        ),
    ),
    "the other branch": (
        (3, 8),
        (
            [
                *(stored("c", np.asarray(True)), node("Relu", ["x"], ["r"])),
                node("If", ["c"], ["y"], then_branch=branch("Neg", "r"), else_branch=branch("Tanh", "r")),
            ],
            [node("Relu", ["x"], ["r"]), node("Tanh", ["r"], ["y"])],
        ),
    ),
    "a condition that ends the loop": (
        (3, 8),
        (
            [
                *(stored("n", np.int64(3)), stored("go", np.asarray(True))),
                node("Loop", ["n", "go", "x"], ["y"], body=turns(node("Not", ["go_on"], ["still"]))),
            ],
            [
                stored("n", np.int64(3)),
                node("Loop", ["n", "", "x"], ["y"], body=turns(stored("still", np.asarray(True)))),
            ],
        ),
    ),
    "another axis": ((2, 8, 8), same("Softmax", ["x"], {"axis": -1}, {"axis": 1})),
    "another index": (
        (8, 8),
        (
            [ints("i", -1), node("Gather", ["x", "i"], ["y"])],
            [ints("i", 6), node("Gather", ["x", "i"], ["y"])],
        ),
    ),
    "a part that begins one later": (
        (8, 8),
        (
            [ints("b", 1), ints("e", 7), node("Slice", ["x", "b", "e"], ["y"])],
            [ints("b", -8), ints("e", -2), node("Slice", ["x", "b", "e"], ["y"])],
        ),
    ),
    "letters that meet others": (
        (8, 8),
        same("Einsum", ["x", "x"], {"equation": "ij,jk"}, {"equation": "ij,kj->ik"}),
    ),
    "pads that count": (
        (1, 4, 8, 8),
        same("AveragePool", ["x"], {"count_include_pad": 1}, {}, kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
    ),
    "half and back": (
        (3, 8),
        (
            [
                node("Cast", ["x"], ["d"], to=TensorProto.FLOAT16),
                node("Cast", ["d"], ["y"], to=TensorProto.FLOAT),
            ],
            [node("Identity", ["x"], ["y"])],
        ),
    ),
    "other activations": (
        (4, 3, 8),
        same("LSTM", ["x", "lw", "lr"], {"activations": ["Sigmoid", "Tanh", "Relu"]}, {}, hidden_size=5),
    ),
    "less the other way": (
        (3, 8),
        (
            [node("Relu", ["x"], ["a"]), node("Sub", ["a", "x"], ["y"])],
            [node("Relu", ["x"], ["a"]), node("Sub", ["x", "a"], ["y"])],
        ),
    ),
    "turned otherwise": (
        (4, 4, 4),
        (
            [
                node("Transpose", ["x"], ["a"], perm=[2, 0, 1]),
                node("Transpose", ["a"], ["y"], perm=[2, 0, 1]),
            ],
            [node("Transpose", ["x"], ["y"], perm=[2, 1, 0])],
        ),
    ),
    "less a number is not plus it": (
        (3, 8),
        (
            [stored("c", np.float32(0.3)), node("Sub", ["c", "x"], ["y"])],
            [stored("c", np.float32(-0.3)), node("Add", ["c", "x"], ["y"])],
        ),
    ),
    "a type that does not hold it": (
        (3, 8),
        (
            [node("Cast", ["x"], ["c"], to=TensorProto.INT8), node("Cast", ["c"], ["y"], to=1)],
            [node("Identity", ["x"], ["y"])],
        ),
    ),
    "joined along another axis": (
        (2, 2, 2),
        (
            [
                *(node("Neg", ["x"], ["n"]), node("Concat", ["x", "n"], ["a"], axis=0)),
                *(node("Concat", ["n", "x"], ["b"], axis=0), node("Concat", ["a", "b"], ["y"], axis=1)),
            ],
            [
                *(node("Neg", ["x"], ["n"]), node("Concat", ["x", "n"], ["a"], axis=1)),
                *(node("Concat", ["x", "n"], ["b"], axis=1), node("Concat", ["a", "b"], ["y"], axis=0)),
            ],
        ),
    ),
    "another alpha": ((3, 8), ([*QUANTIZED, *gemm(alpha=0.5)], [*QUANTIZED, *gemm()])),
    "slices of other axes": (
        (4, 4, 8),
        (
            [ints("b", 0), ints("e", 2), node("Slice", ["x", "b", "e"], ["y"])],
            [ints("b", 0), ints("e", 2), ints("a", 1), node("Slice", ["x", "b", "e", "a"], ["y"])],
        ),
    ),
}


def saved(path: Path, nodes: list[Any], shape: Any, opset: int = 17) -> str:
    used = {name for each in nodes for name in each.input}
    t.model(
        path,
        nodes,
        {"x": shape},
        {n: w for n, w in W.items() if n in used},
        opset=opset,
        dtypes={"x": 1, "y": 1},
    )
    return str(path)


@pytest.mark.parametrize("case", EQUAL)
def test_harmless_rewritings_are_equal_by_construction(tmp_path: Path, case: str) -> None:
    shape, (one, other) = EQUAL[case]
    a, b = saved(tmp_path / "a.onnx", one, shape), saved(tmp_path / "b.onnx", other, shape)
    for first, second in ((a, b), (b, a)):
        fact = verify_files(first, second)
        assert fact.verdict.startswith("equal bit for bit"), fact.verdict
        assert not fact.regions


@pytest.mark.parametrize("case", DIFFERENT)
def test_what_is_no_harmless_rewriting_is_different(tmp_path: Path, case: str) -> None:
    shape, (one, other) = DIFFERENT[case]
    fact = verify_files(saved(tmp_path / "a.onnx", one, shape), saved(tmp_path / "b.onnx", other, shape))
    assert fact.verdict_kind == "different", fact.verdict


def function(attribute: str, value: Any, call: dict[str, Any], *, default: bool) -> onnx.ModelProto:
    """A function of one LeakyRelu, whose slope is an attribute of the call."""
    inner = node("LeakyRelu", ["a"], ["b"])
    reference = onnx.AttributeProto(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name=attribute)
    inner.attribute.append(reference)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    given = (
        {"attribute_protos": [helper.make_attribute(attribute, value)]}
        if default
        else {"attributes": [attribute]}
    )
    made = helper.make_function("own", "Leak", ["a"], ["b"], [inner], opsets[:1], **given)
    info = [helper.make_tensor_value_info(name, 1, [3, 8]) for name in "xy"]
    graph = helper.make_graph([node("Leak", ["x"], ["y"], domain="own", **call)], "g", info[:1], info[1:])
    return helper.make_model(graph, opset_imports=opsets, ir_version=9, functions=[made])


def test_attributes_of_functions_may_be_left_out(tmp_path: Path) -> None:
    spelled = {
        "a": function("slope", 0.3, {}, default=True),
        "b": function("slope", 0.3, {"slope": 0.3}, default=True),
        "c": function("tilt", 0.3, {"tilt": 0.3}, default=False),
        "d": function("slope", 0.2, {}, default=True),
        # a call without the attribute means what the operator means without it
        "e": function("slope", 0.01, {}, default=False),
        "f": function("slope", 0.01, {"slope": 0.01}, default=False),
    }
    for name, model in spelled.items():
        onnx.save(model, tmp_path / f"{name}.onnx")
    alike = [{"a", "b", "c"}, {"e", "f"}]
    for one, other in itertools.combinations(spelled, 2):
        fact = verify_files(str(tmp_path / f"{one}.onnx"), str(tmp_path / f"{other}.onnx"))
        expected = "equal" if any({one, other} <= group for group in alike) else "different"
        assert fact.verdict_kind == expected, (one, other, fact.verdict)


def scan(**attributes: Any) -> list[Any]:
    info = [helper.make_tensor_value_info(name, 1, [8]) for name in ("s", "r", "so", "ro")]
    inner = [node("Add", ["s", "r"], ["so"]), node("Tanh", ["so"], ["ro"])]
    body = helper.make_graph(inner, "b", info[:2], info[2:])
    return [
        stored("s0", np.zeros(8, np.float32)),
        node("Scan", ["s0", "x"], ["last", "y"], body=body, num_scan_inputs=1, **attributes),
    ]


def test_the_default_scale_of_attention_may_be_written_out(tmp_path: Path) -> None:
    """It is 1 / sqrt(12): the width of a head."""
    graphs = {
        "default": {},
        "written": {"scale": 0.28867513},
        "other": {"scale": 0.2886},
    }
    for name, scale in graphs.items():
        attention = node("Attention", ["x", "x", "x"], ["y"], q_num_heads=2, kv_num_heads=2, **scale)
        t.model(tmp_path / f"{name}.onnx", [attention], {"x": (1, 5, 24)}, {}, opset=23)
    first = tmp_path / "default.onnx"
    assert verify_files(first, tmp_path / "written.onnx").verdict_kind == "equal"
    assert verify_files(first, tmp_path / "other.onnx").verdict_kind == "different"


def test_directions_of_a_scan_may_be_left_out(tmp_path: Path) -> None:
    said = {
        "scan_input_directions": [0],
        "scan_output_directions": [0],
        "scan_input_axes": [0],
        "scan_output_axes": [0],
    }
    paths = [
        saved(tmp_path / f"{at}.onnx", scan(**given), (4, 8))
        for at, given in enumerate(({}, said, {**said, "scan_input_directions": [1]}))
    ]
    assert verify_files(paths[0], paths[1]).verdict.startswith("equal bit for bit")
    assert verify_files(paths[0], paths[2]).verdict_kind == "different"


def test_axes_of_a_scan_may_count_from_the_back(tmp_path: Path) -> None:
    info = [helper.make_tensor_value_info(name, 1, [8, 2]) for name in ("s", "r", "so", "ro")]
    inner = [node("Add", ["s", "r"], ["so"]), node("Tanh", ["so"], ["ro"])]
    body = helper.make_graph(inner, "b", info[:2], info[2:])
    paths = []
    for at, (taken, joined) in enumerate([(1, 2), (-2, 2), (1, -1), (-2, -1), (-2, -2)]):
        axes = {"scan_input_axes": [taken], "scan_output_axes": [joined]}
        nodes = [
            stored("s0", np.zeros((8, 2), np.float32)),
            node("Scan", ["s0", "x"], ["last", "y"], body=body, num_scan_inputs=1, **axes),
        ]
        paths.append(saved(tmp_path / f"{at}.onnx", nodes, (8, 4, 2)))
    for path in paths[1:4]:
        assert verify_files(paths[0], path).verdict.startswith("equal bit for bit")
    assert verify_files(paths[0], paths[4]).verdict_kind == "different"


def test_a_rank_that_a_file_only_claims_is_not_believed(tmp_path: Path) -> None:
    nodes = [
        [
            ints("sh", 2, 4, 8),
            node("Custom", ["x"], ["h"], domain="own"),
            node("Softmax", ["h"], ["y"], axis=axis),
        ]
        for axis in (-1, 1)
    ]
    # only the second file says that what nobody can infer has two axes
    paths = []
    for at, each in enumerate(nodes):
        info = [helper.make_tensor_value_info("x", 1, [2, 4, 8]), helper.make_tensor_value_info("y", 1, None)]
        claim = [helper.make_tensor_value_info("h", 1, [4, 8])] if at else []
        graph = helper.make_graph(each, "g", info[:1], info[1:], value_info=claim)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / f"{at}.onnx")
        paths.append(str(tmp_path / f"{at}.onnx"))
    # neither can be run, and what the second one claims makes them no more equal
    with pytest.raises(BadModel, match="cannot load"):
        verify_files(*paths)


LEFT_OUT = {
    # since they changed in a way that one default does not say, or belong to training alone
    *(("Cast", "round_mode"), ("CastLike", "round_mode"), ("DFT", "axis"), ("Dropout", "ratio")),
    *(("BatchNormalization", "spatial"), ("BatchNormalization", "is_test"), ("Dropout", "is_test")),
    *(
        ("DequantizeLinear", "output_dtype"),
        ("Gemm", "broadcast"),
        ("RNN", "activations"),
        ("Range", "stash_type"),
    ),
    *(("Clip", "max"), ("Clip", "min"), ("Multinomial", "dtype"), ("Multinomial", "sample_size")),
}
IN_FULL = frozenset({op for domain, op in DEFAULTS if not domain})


def test_the_defaults_are_those_of_the_schemas() -> None:
    seen = set()
    for schema in onnx.defs.get_all_schemas_with_history():
        if schema.domain or schema.name not in IN_FULL or schema.deprecated:
            continue
        ours = get_default_attributes("", schema.name, schema.since_version)
        for name, attribute in schema.attributes.items():
            if (
                not attribute.default_value.name
                or (schema.name, name) in LEFT_OUT
                or name == "output_sequence"
            ):
                continue
            theirs = helper.get_attribute_value(attribute.default_value)
            theirs = theirs.decode() if isinstance(theirs, bytes) else theirs
            theirs = tuple(theirs) if isinstance(theirs, list) else theirs
            if theirs == "foward":
                continue  # a slip in the GRU of opset 1
            if (schema.name, name) in (("GlobalLpPool", "p"), ("LpPool", "p")) and schema.since_version == 1:
                continue  # a float then
            assert ours.get(name) == theirs, (schema.name, name, schema.since_version)
            seen.add((schema.name, name))
    named = {(op, name) for (domain, op), values in DEFAULTS.items() if not domain for name in values}
    assert named == seen


def test_operators_with_defaults_are_all_in_the_table() -> None:
    missing = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if not (schema.domain or schema.deprecated)
        and schema.name not in IN_FULL
        and any(a.default_value.name for a in schema.attributes.values())
    }
    # random, newer than the runtime, or such that a version decides
    known = {"Attention", "CausalConvWithState", "CumProd", "ImageDecoder", "LinearAttention", "Multinomial"}
    known |= {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Range", "Selu"}
    known |= {"StringNormalizer", "SwiGLU", "Swish", "TensorScatter", "RoiAlign"}
    assert missing <= known


def test_a_default_that_changed_is_that_of_the_operator_set() -> None:
    assert get_default_attributes("", "Softmax", 12) == {"axis": 1}
    assert get_default_attributes("", "Softmax", 13) == {"axis": -1}
    assert any(isinstance(v, ChangedDefault) for v in DEFAULTS["", "GridSample"].values())


def test_every_number_comes_back_from_a_type_that_holds_it() -> None:
    import ml_dtypes

    kinds: dict[str, Any] = {
        **{name: np.dtype(name) for name in ("bool", "int8", "uint8", "int16", "uint16")},
        "float16": np.dtype("float16"),
        "bfloat16": np.dtype(ml_dtypes.bfloat16),
        **{name: np.dtype(name) for name in ("int32", "int64", "uint32", "uint64", "float32", "float64")},
    }
    bits = np.arange(1 << 16, dtype=np.uint16)
    every: dict[str, Callable[[], np.ndarray]] = {
        "bool": lambda: np.asarray([False, True]),
        "int8": lambda: np.arange(-128, 128).astype(np.int8),
        "uint8": lambda: np.arange(256).astype(np.uint8),
        "int16": lambda: bits.view(np.int16),
        "uint16": lambda: bits,
        "float16": lambda: bits.view(np.float16)[np.isfinite(bits.view(np.float16))],
        "bfloat16": lambda: bits.view(kinds["bfloat16"])[
            np.isfinite(bits.view(kinds["bfloat16"]).astype(np.float32))
        ],
        "int32": lambda: np.asarray([2**31 - 1, -(2**31), (1 << 24) + 1, (1 << 30) + 1], np.int32),
        "uint32": lambda: np.asarray([2**32 - 1, (1 << 24) + 1, 2**31 + 1], np.uint32),
        "int64": lambda: np.asarray([2**63 - 1, -(2**63), (1 << 53) + 1], np.int64),
        "uint64": lambda: np.asarray([2**64 - 1, (1 << 53) + 1], np.uint64),
        "float32": lambda: np.asarray([1 + 2**-23, 3e38, 1e-40], np.float32),
        "float64": lambda: np.asarray([1 + 2**-52, 1e300, 1e-310]),
    }
    for narrow, wide in itertools.product(every, kinds):
        values = every[narrow]()
        with np.errstate(all="ignore"):
            back = values.astype(kinds[wide]).astype(kinds[narrow])
        whole = bool((back == values).all())
        # a value or two may come back where a type does not hold all: only the claim must be true
        assert whole or not can_represent(wide, narrow), (wide, narrow)
    assert can_represent("float64", "int32")
    assert not can_represent("float64", "int64")
    assert not can_represent("float16", "bfloat16")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ij , jk", "ab,bc->ac"),
        ("ba", "xy->yx"),
        ("...ij,...jk", "...pq,...qr->...pr"),
        ("ii", "kk->"),
        ("Zb->bZ", "ab->ba"),
    ],
)
def test_equations_have_one_form(one: str, other: str) -> None:
    assert normalize_equation(one) == normalize_equation(other)


def test_runtimes_order_capital_letters_otherwise() -> None:
    assert normalize_equation("aB") == "aB"
    assert normalize_equation("aB") != normalize_equation("aB->aB")


@pytest.mark.parametrize(("height", "width"), [(16, 4), (32, 2)])
def test_rules_for_the_nearest_element_are_equal_if_a_runtime_takes_the_same_elements(
    height: int, width: int, tmp_path: Path
) -> None:
    values = np.random.default_rng(5).permutation(64).reshape(1, 1, 8, 8).astype(np.float32)
    results = {}
    rules = itertools.product(
        ("asymmetric", "half_pixel"), ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
    )
    for mode, rounding in rules:
        nodes = [
            ints("sizes", 1, 1, height, width),
            node(
                *("Resize", ["x", "", "", "sizes"], ["y"]),
                coordinate_transformation_mode=mode,
                nearest_mode=rounding,
            ),
        ]
        info = [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in (("x", [1, 1, 8, 8]), ("y", [1, 1, height, width]))
        ]
        graph = helper.make_graph(nodes, "g", info[:1], info[1:])
        path = tmp_path / f"{mode}_{rounding}.onnx"
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
        onnx.save(model, path)
        results[path] = InferenceSession(path).run(None, {"x": values})[0]
    first, *others = results
    verdicts = {path: verify_files(first, path).verdict_kind for path in others}
    same = {path: np.array_equal(results[first], results[path]) for path in others}
    assert any(same.values()) or height == 32, "or the test shows nothing"
    assert verdicts == {path: "equal" if is_same else "different" for path, is_same in same.items()}
