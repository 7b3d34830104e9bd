"""What exporters compute with shapes stays an expression, and is what onnx computes once sizes are given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from explorer.engine.costs.onnx.analyse import analyse
from explorer.engine.formats.onnx.writer import encode
from explorer.engine.graph.model import Function, Graph, Model, Node, Value
from explorer.engine.shapes import infer
from explorer.engine.symbolic import dimensions as dims

Build = Callable[..., Model]


def size_of(source: str, axis: int, out: str) -> list[Node]:
    """What exporters write for x.shape[axis]: Shape, Gather, a vector of one."""
    return [
        Node("Shape", [source], [f"{out}_shape"]),
        Node("Gather", [f"{out}_shape", f"at{axis}"], [out]),
    ]


AT = {f"at{i}": np.array([i]) for i in range(4)}
K = {"k1": np.array([1]), "k2": np.array([2]), "k3": np.array([3]), "rest": np.array([-1]), **AT}

CASES: list[tuple[str, list[Node], dict[str, Any], tuple[Any, ...]]] = [
    (
        "Concat of two named sizes",
        [Node("Concat", ["x", "z"], ["y"], attributes={"axis": 0})],
        {"x": ("N", 4), "z": ("M", 4)},
        ("M+N", 4),
    ),
    (
        "Concat with three more rows",
        [Node("Concat", ["x", "z"], ["y"], attributes={"axis": 0})],
        {"x": ("N", 4), "z": (3, 4)},
        ("N+3", 4),
    ),
    (
        "Concat with itself",
        [Node("Concat", ["x", "x"], ["y"], attributes={"axis": 0})],
        {"x": ("N", 4)},
        ("2*N", 4),
    ),
    (
        "Reshape to a computed product of sizes",
        [
            *size_of("x", 0, "n"),
            *size_of("x", 1, "h"),
            Node("Mul", ["n", "h"], ["nh"]),
            Node("Concat", ["nh", "rest"], ["to"], attributes={"axis": 0}),
            Node("Reshape", ["x", "to"], ["y"]),
        ],
        {"x": ("N", "H", 8)},
        ("H*N", 8),
    ),
    (
        "Reshape with an open size",
        [
            *size_of("x", 0, "n"),
            Node("Concat", ["n", "k2", "rest"], ["to"], attributes={"axis": 0}),
            Node("Reshape", ["x", "to"], ["y"]),
        ],
        {"x": ("N", "H", 8)},
        ("N", 2, "4*H"),
    ),
    ("Flatten", [Node("Flatten", ["x"], ["y"])], {"x": ("N", 3, "H", "W")}, ("N", "3*H*W")),
    (
        "a transposed convolution of stride 2",
        [Node("ConvTranspose", ["x", "w"], ["y"], attributes={"strides": (2,)})],
        {"x": ("N", 3, "L")},
        ("N", 5, "2*L+1"),
    ),
    (
        "a convolution of stride 2: floor((H - 3) / 2) + 1",
        [Node("Conv", ["x", "v"], ["y"], attributes={"strides": (2, 2)})],
        {"x": ("N", 3, "H", "W")},
        ("N", 4, "floor((H+1)/2)-1", "floor((W+1)/2)-1"),
    ),
    (
        "pooling, rounded up",
        [Node("MaxPool", ["x"], ["y"], attributes={"kernel_shape": (2,), "strides": (2,), "ceil_mode": 1})],
        {"x": ("N", 3, "L")},
        ("N", 3, "floor((L+1)/2)"),
    ),
    (
        "pooling with padding kept the same",
        [
            Node(
                "AveragePool",
                ["x"],
                ["y"],
                attributes={"kernel_shape": (3,), "strides": (2,), "auto_pad": "SAME_UPPER"},
            )
        ],
        {"x": ("N", 3, "L")},
        ("N", 3, "floor((L+1)/2)"),
    ),
    ("Slice off the first", [Node("Slice", ["x", "k1", "far", "at0"], ["y"])], {"x": ("N", 4)}, ("N-1", 4)),
    ("Slice off the last", [Node("Slice", ["x", "at0", "rest", "at0"], ["y"])], {"x": ("N", 4)}, ("N-1", 4)),
    (
        "Slice every second",
        [Node("Slice", ["x", "at0", "far", "at0", "k2"], ["y"])],
        {"x": ("N", 4)},
        ("floor((N+1)/2)", 4),
    ),
    (
        "Slice backwards",
        [Node("Slice", ["x", "rest", "near", "at0", "rest"], ["y"])],
        {"x": ("N", 4)},
        ("N", 4),
    ),
    (
        "Slice of a table to the length of another",
        [*size_of("x", 0, "n"), Node("Slice", ["table", "at0", "n", "at0"], ["y"])],
        {"x": ("N", 4)},
        ("min(64,N)", 2),
    ),
    (
        "Range to a size",
        [
            Node("Shape", ["x"], ["s"]),
            Node("Gather", ["s", "zero"], ["n"]),
            Node("Range", ["zero", "n", "one"], ["y"]),
        ],
        {"x": ("N", 4)},
        ("N",),
    ),
    (
        "Range in steps",
        [
            Node("Shape", ["x"], ["s"]),
            Node("Gather", ["s", "zero"], ["n"]),
            Node("Range", ["zero", "n", "two"], ["y"]),
        ],
        {"x": ("N", 4)},
        ("floor((N+1)/2)",),
    ),
    (
        "Expand to the shape of another",
        [Node("Shape", ["z"], ["s"]), Node("Expand", ["x", "s"], ["y"])],
        {"x": (1, 4), "z": ("N", 4)},
        ("N", 4),
    ),
    (
        "Tile as often as a size says",
        [
            *size_of("z", 0, "m"),
            Node("Concat", ["m", "k2"], ["times"], attributes={"axis": 0}),
            Node("Tile", ["x", "times"], ["y"]),
        ],
        {"x": ("N", 4), "z": ("M",)},
        ("M*N", 8),
    ),
    (
        "ConstantOfShape",
        [Node("Shape", ["x"], ["s"]), Node("ConstantOfShape", ["s"], ["y"])],
        {"x": ("N", 4, "H")},
        ("N", 4, "H"),
    ),
    (
        "Where on shapes: -1 stands for the size that is there",
        [
            Node("Shape", ["x"], ["s"]),
            Node("Equal", ["wanted", "rest"], ["open"]),
            Node("Where", ["open", "s", "wanted"], ["to"]),
            Node("Expand", ["x", "to"], ["y"]),
        ],
        {"x": ("N", 1)},
        ("N", 7),
    ),
    (
        "Where that asks whether a size is -1",
        [
            Node("Shape", ["x"], ["s"]),
            Node("Equal", ["s", "rest"], ["open"]),
            Node("Where", ["open", "k3", "s"], ["to"]),
            Node("ConstantOfShape", ["to"], ["y"]),
        ],
        {"x": ("N", 4)},
        ("N", 4),
    ),
    (
        "sizes halved in floating point",
        [
            *size_of("x", 1, "h"),
            Node("Cast", ["h"], ["f"], attributes={"to": 1}),
            Node("Mul", ["f", "half"], ["g"]),
            Node("Floor", ["g"], ["i"]),
            Node("Cast", ["i"], ["j"], attributes={"to": 7}),
            *size_of("x", 0, "n"),
            Node("Concat", ["n", "j"], ["to"], attributes={"axis": 0}),
            Node("ConstantOfShape", ["to"], ["y"]),
        ],
        {"x": ("N", "H")},
        ("N", "floor(H/2)"),
    ),
    (
        "Resize by a factor",
        [Node("Resize", ["x", "", "scales"], ["y"])],
        {"x": ("N", 3, "H", "W")},
        ("N", 3, "2*H", "floor(W/2)"),
    ),
    ("Pad", [Node("Pad", ["x", "pads"], ["y"])], {"x": ("N", "L")}, ("N", "L+3")),
    ("DepthToSpace", [Node("DepthToSpace", ["x"], ["y"], attributes={"blocksize": 2})],
     {"x": ("N", 8, "H", "W")}, ("N", 2, "2*H", "2*W")),
    ("Split in two", [Node("Split", ["x"], ["y", "y2"], attributes={"axis": 1})],
     {"x": ("N", "H")}, ("N", "floor(H/2)")),
    ("batches that broadcast", [Node("MatMul", ["x", "z"], ["y"])],
     {"x": ("B", 1, "N", 4), "z": ("H", 4, "M")}, ("B", "H", "N", "M")),
    ("Einsum", [Node("Einsum", ["x", "z"], ["y"], attributes={"equation": "bij,bjk->bik"})],
     {"x": ("B", "N", 4), "z": ("B", 4, "M")}, ("B", "N", "M")),
    ("Einsum that stretches", [Node("Einsum", ["x", "z"], ["y"], attributes={"equation": "bij,bjk->bik"})],
     {"x": ("B", "N", 4), "z": (1, 4, "M")}, ("B", "N", "M")),
]  # fmt: skip

WEIGHTS = {
    **K,
    "w": (3, 5, 3),
    "v": (4, 3, 3, 3),
    "far": np.array([2**63 - 1]),
    "near": np.array([-(2**63) + 1]),
    "table": (64, 2),
    "zero": np.array(0),
    "one": np.array(1),
    "two": np.array(2),
    "wanted": np.array([-1, 7]),
    "half": np.array([0.5], np.float32),
    "scales": np.array([1, 1, 2, 0.5], np.float32),
    "pads": np.array([0, 1, 0, 2]),
}


def made(build: Build, nodes: Sequence[Node], inputs: dict[str, Any]) -> Model:
    used = {name for node in nodes for name in node.inputs}
    weights = {name: value for name, value in WEIGHTS.items() if name in used}
    return build(nodes, inputs=inputs, outputs=["y"], weights=weights)


@pytest.mark.parametrize(("name", "nodes", "inputs", "shape"), CASES, ids=[c[0] for c in CASES])
def test_a_computed_shape_is_an_expression(
    build: Build, name: str, nodes: list[Node], inputs: dict[str, Any], shape: tuple[Any, ...]
) -> None:
    assert infer(made(build, nodes, inputs)).values["y"].shape == shape


@pytest.mark.parametrize(("name", "nodes", "inputs", "shape"), CASES, ids=[c[0] for c in CASES])
def test_the_expression_is_what_the_runtime_makes_of_given_sizes(
    build: Build, name: str, nodes: list[Node], inputs: dict[str, Any], shape: tuple[Any, ...]
) -> None:
    ort = pytest.importorskip("onnxruntime")
    model = made(build, nodes, inputs)
    sizes = dict(
        zip(
            sorted(dims.collect_names(tuple(d for s in inputs.values() for d in s))),
            (6, 5, 7, 3),
            strict=False,
        )
    )
    feeds = {
        name: np.ones([sizes.get(d, d) if isinstance(d, str) else d for d in spec], np.float32)
        for name, spec in inputs.items()
    }
    expected = (
        ort.InferenceSession(encode(model), providers=["CPUExecutionProvider"]).run(["y"], feeds)[0].shape
    )
    assert tuple(dims.substitute_sizes(d, sizes) for d in shape) == expected
    assert infer(model, sizes).values["y"].shape == expected


def test_two_sizes_with_the_same_expression_are_the_same(build: Build) -> None:
    nodes = [
        Node("Concat", ["x", "z"], ["a"], attributes={"axis": 0}),
        Node("Concat", ["z", "x"], ["b"], attributes={"axis": 0}),
        Node("Add", ["a", "b"], ["y"]),
        Node("MatMul", ["flat", "a"], ["p"]),
    ]
    model = build(nodes, inputs={"x": ("N", 4), "z": (3, 4), "flat": (2, "N+3")}, outputs=["y", "p"])
    found = infer(model).values
    assert found["a"].shape == found["b"].shape == found["y"].shape == ("N+3", 4)
    assert found["p"].shape == (2, 4)


def test_a_size_given_later_puts_numbers_into_every_expression(build: Build) -> None:
    nodes = [
        Node("Concat", ["x", "z"], ["a"], attributes={"axis": 0}),
        Node("MatMul", ["a", "w"], ["y"]),
    ]
    model = build(nodes, inputs={"x": ("batch", 4), "z": (3, 4)}, outputs=["y"], weights={"w": (4, 5)})
    open_ = analyse(model)
    assert open_.info.totals.macs is None
    assert "batch+3" in open_.layers[1].formula
    bound = analyse(model, dims={"batch": 8})
    assert bound.info.totals.macs == 11 * 4 * 5


def test_a_size_that_a_file_writes_as_arithmetic_is_arithmetic(build: Build) -> None:
    """Exporters of decoders declare the mask as long as the past and the new tokens together."""
    nodes = [
        Node("Concat", ["past", "new"], ["keys"], attributes={"axis": 1}),
        Node("Mul", ["keys", "mask"], ["y"]),
    ]
    inputs = {"past": ("B", "past_len", 4), "new": ("B", "len", 4), "mask": ("B", "past_len + len", 1)}
    model = build(nodes, inputs=inputs, outputs=["y"])
    assert infer(model).values["y"].shape == ("B", "len+past_len", 4)
    assert infer(model, {"past_len": 10, "len": 1}).values["mask"].shape == ("B", 11, 1)


def test_a_name_of_two_words_is_a_name(build: Build) -> None:
    nodes = [Node("Concat", ["x", "x"], ["a"], attributes={"axis": 0}), Node("Relu", ["x"], ["y"])]
    found = infer(build(nodes, inputs={"x": ("batch-size", 4)}, outputs=["a", "y"])).values
    assert found["y"].shape == ("batch-size", 4)
    assert found["a"].shape == ("2*'batch-size'", 4)


def test_expressions_go_through_functions_branches_and_loops(build: Build) -> None:
    function = Function(
        "f", "Twice", ("a",), ("b",), (Node("Concat", ["a", "a"], ["b"], attributes={"axis": 0}),), {"": 17}
    )
    branch = Graph(
        "b", (Node("Concat", ["d", "x"], ["t"], attributes={"axis": 0}),), (), (Value("t", None, None),), {}
    )
    body = Graph(
        "body",
        (Node("Add", ["h", "e"], ["h2"]), Node("Identity", ["cond"], ["go"])),
        (Value("i", "int64", ()), Value("cond", "bool", ()), Value("h", None, None)),
        (Value("go", None, None), Value("h2", None, None)),
        {},
    )
    nodes = [
        Node("Twice", ["x"], ["d"], domain="f"),
        Node("If", ["c"], ["e"], attributes={"then_branch": branch, "else_branch": branch}),
        Node("Loop", ["n", "", "e"], ["y"], attributes={"body": body}),
    ]
    inputs = {"x": ("N", 4), "c": ("bool", ()), "n": ("int64", ())}
    model = build(nodes, inputs=inputs, outputs=["y"], functions=[function])
    found = infer(model).values
    assert [found[n].shape for n in "dey"] == [("2*N", 4), ("3*N", 4), ("3*N", 4)]


def test_a_branch_whose_condition_is_known_gives_its_shape(build: Build) -> None:
    """TorchScript writes x.squeeze(1) as: if the size is 1, Squeeze, else as it is."""
    squeeze = Graph("s", (Node("Squeeze", ["x", "at1"], ["s"]),), (), (Value("s", None, None),), {})
    keep = Graph("k", (Node("Identity", ["x"], ["k"]),), (), (Value("k", None, None),), {})
    nodes = [
        *size_of("x", 1, "h"),
        Node("Equal", ["h", "k1"], ["one"]),
        Node("If", ["one"], ["y"], attributes={"then_branch": squeeze, "else_branch": keep}),
    ]
    for size, shape in ((1, ("N",)), (5, ("N", 5))):
        model = build(nodes, inputs={"x": ("N", size)}, outputs=["y"], weights=K)
        assert infer(model).values["y"].shape == shape
    open_ = infer(build(nodes, inputs={"x": ("N", "H")}, outputs=["y"], weights=K)).values
    assert open_["y"].shape is None
