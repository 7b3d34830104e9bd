"""Tiling promises: whatever else a model holds, the tiled file is valid, computes the same, and is proved so;
or one line says why not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from explorer import Misuse, Session, TileSpec

RNG = np.random.default_rng(0)
SMALL = (2, 3, 4)
FORMS = ("lab", "scan", "unrolled", "batched")
node = helper.make_node


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return RNG.standard_normal(shape).astype(dtype)


def value(name: str, shape: Any, kind: int = 1) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(
    path: Path,
    nodes: list[Any],
    inputs: list[Any],
    outputs: list[Any],
    weights: dict[str, np.ndarray],
    *,
    opset: int = 17,
    functions: tuple[Any, ...] = (),
    domains: tuple[str, ...] = (),
) -> str:
    stored = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    imports = [
        helper.make_opsetid("", opset),
        *(helper.make_opsetid(d, 1) for d in {*domains, *(f.domain for f in functions)}),
    ]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    made = helper.make_model(graph, opset_imports=imports, ir_version=8, functions=list(functions))
    onnx.checker.check_model(made)
    onnx.save(made, path)
    return str(path)


def function(domain: str, name: str, nodes: list[Any], opset: int = 17) -> Any:
    return helper.make_function(domain, name, ["A", "B"], ["C"], nodes, [helper.make_opsetid("", opset)])


def fed(path: str, size: int = 3) -> dict[str, np.ndarray]:
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
    feeds = {}
    for each in ort.InferenceSession(path).get_inputs():
        shape = [d if isinstance(d, int) else size for d in each.shape]
        feeds[each.name] = np.asarray(
            np.random.default_rng(1).standard_normal(shape), types.get(each.type, np.bool_)
        )
    return feeds


def close(after: list[Any], before: list[Any]) -> None:
    for one, other in zip(after, before, strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        tolerance = {2: 2e-2, 4: 1e-4, 8: 1e-10}[other.itemsize]
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * max(1.0, np.abs(other).max()))


def proved(source: str, spec: TileSpec, *, size: int = 3, evaluator: bool = True) -> onnx.ModelProto:
    """Tiles and proves, checks the file, runs it in onnxruntime and in onnx's own evaluator."""
    target = source.replace(".onnx", f"_{spec.form}.onnx")
    result = Session(source).tile(spec, output=target)
    assert result.output, result.verification and result.verification.verdict
    onnx.checker.check_model(target, full_check=True)
    feeds = fed(source, size)
    close(ort.InferenceSession(target).run(None, feeds), ort.InferenceSession(source).run(None, feeds))
    if evaluator:
        close(ReferenceEvaluator(target).run(None, feeds), ReferenceEvaluator(source).run(None, feeds))
    return onnx.load(target)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("taken", ["y/tiled/x_0_0", "y/tiled/p_0_0_0", "y/tiled/columns", "y/tiled"])
def test_names_of_the_model_that_look_like_ours_stay_apart(tmp_path: Path, form: Any, taken: str) -> None:
    nodes = [
        node("Relu", ["x"], [taken], name="fc/Split2D_x"),
        node("MatMul", [taken, "w"], ["y"], name="fc"),
        node("Add", ["y", taken], ["z"]),
    ]
    source = model(
        tmp_path / "a.onnx", nodes, [value("x", [7, 7])], [value("z", [7, 7])], {"w": numbers(7, 7)}
    )
    proved(source, TileSpec(tile=SMALL, form=form), evaluator=form != "scan")


def test_a_nameless_product_may_make_a_value_called_as_another_node(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], ["fc"]), node("MatMul", ["fc", "w"], ["y"], name="fc")]
    source = model(
        tmp_path / "a.onnx", nodes, [value("x", [3, 7])], [value("y", [3, 7])], {"w": numbers(7, 7)}
    )
    proved(source, TileSpec(tile=SMALL))


@pytest.mark.parametrize("domain", ["tile_hw", "mine"])
def test_a_function_of_the_model_may_be_called_as_a_tile_operator(tmp_path: Path, domain: str) -> None:
    own = function(domain, "2DMM_2x3x4", [node("MatMul", ["A", "B"], ["P"]), node("Relu", ["P"], ["C"])])
    nodes = [
        node("2DMM_2x3x4", ["x", "v"], ["h"], domain=domain),
        node("MatMul", ["h", "w"], ["y"], name="fc"),
    ]
    source = model(
        tmp_path / "a.onnx",
        nodes,
        [value("x", [3, 7])],
        [value("y", [3, 5])],
        {"v": numbers(7, 9), "w": numbers(9, 5)},
        functions=(own,),
    )
    proved(source, TileSpec(tile=SMALL))


def test_functions_of_one_name_in_two_domains_are_two_places(tmp_path: Path) -> None:
    mine = function("mine", "linear", [node("MatMul", ["A", "B"], ["C"], name="p")])
    other = function(
        "other", "linear", [node("Relu", ["A"], ["R"]), node("MatMul", ["R", "B"], ["C"], name="p")]
    )
    nodes = [
        node("linear", ["x", "w"], ["h"], domain="mine"),
        node("linear", ["h", "w"], ["y"], domain="other"),
    ]
    source = model(
        tmp_path / "a.onnx",
        nodes,
        [value("x", [3, 7])],
        [value("y", [3, 7])],
        {"w": numbers(7, 7)},
        functions=(mine, other),
    )
    proved(source, TileSpec(tile=SMALL))
    assert [s.name for s in Session(source).plan(TileSpec(tile=SMALL)).sites] == [
        "mine:linear()/p",
        "other:linear()/p",
    ]


def test_a_function_of_another_operator_set_is_left_with_the_reason(tmp_path: Path) -> None:
    older = function("mine", "linear", [node("MatMul", ["A", "B"], ["C"], name="p")], opset=13)
    nodes = [node("linear", ["x", "w"], ["h"], domain="mine"), node("MatMul", ["h", "w"], ["y"], name="fc")]
    source = model(
        tmp_path / "a.onnx",
        nodes,
        [value("x", [3, 7])],
        [value("y", [3, 7])],
        {"w": numbers(7, 7)},
        opset=18,
        functions=(older,),
    )
    proved(source, TileSpec(tile=SMALL, edges="padded", form="unrolled"))
    plan = Session(source).plan(TileSpec(tile=SMALL))
    assert [(s.name, s.reason, s.macs) for s in plan.skipped] == [
        ("linear()/p", "its function has opset 13, but the model has opset 18", 3 * 7 * 7)
    ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", ["lab", "unrolled", "batched"])
@pytest.mark.parametrize("opset", [7, 8, 9, 10, 11, 12])
def test_sizes_are_written_as_the_operator_set_has_them(tmp_path: Path, form: Any, opset: int) -> None:
    nodes = [node("MatMul", ["x", "w"], ["h"], name="fc"), node("MatMul", ["h", "k"], ["y"], name="qk")]
    source = model(
        tmp_path / "a.onnx",
        nodes,
        [value("x", [2, 3, 7]), value("k", [2, 5, 4])],
        [value("y", [2, 3, 4])],
        {"w": numbers(7, 5)},
        opset=opset,
    )
    proved(source, TileSpec(tile=SMALL, form=form, edges="padded"))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("left", "right"),
    [((1, 1, 5, 4), (1, 1, 4, 6)), ((1, 5, 4), (1, 4, 6)), ((1, 1, 3, 7), (1, 7, 5)), ((3, 7), (1, 1, 7, 5))],
)
def test_a_stack_of_one_matrix_is_a_product(tmp_path: Path, form: Any, left: Any, right: Any) -> None:
    out = [*np.broadcast_shapes(left[:-2], right[:-2]), left[-2], right[-1]]
    source = model(
        tmp_path / "a.onnx",
        [node("MatMul", ["a", "b"], ["y"], name="qk")],
        [value("a", left), value("b", right)],
        [value("y", out)],
        {},
    )
    proved(source, TileSpec(tile=SMALL, form=form), evaluator=form != "scan")


FUSED: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "a turned activation, a weight": ("x w", (8, 2), (8, 4), {"alpha": 0.5, "transA": 1}),
    "stacks of both, turned": ("x k", (2, 3, 8, 5), (2, 3, 6, 8), {"alpha": 0.125, "transA": 1, "transB": 1}),
    "a turned stack, a turned weight": ("x w", (3, 8, 5), (4, 8), {"transA": 1, "transB": 1}),
    "a vector has nothing to turn": ("x w", (8,), (8, 4), {"alpha": 3.0, "transA": 1}),
    "a column has nothing to turn": ("x w", (2, 5, 8), (8,), {"alpha": 3.0, "transB": 1}),
    "a turned weight on the left": ("w x", (8, 6), (5, 8), {"alpha": 0.25, "transA": 1, "transB": 1}),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("case", FUSED)
@pytest.mark.parametrize("form", ["lab", "scan"])
def test_a_fused_matmul_is_the_product_of_turned_operands(tmp_path: Path, case: str, form: Any) -> None:
    names, *shapes, attributes = FUSED[case]
    stored = {"w": numbers(*shapes[names.split().index("w")])} if "w" in names else {}
    sides = [np.zeros(shape) for shape in shapes]
    sides = [
        side.swapaxes(-1, -2) if attributes.get(turn) and side.ndim > 1 else side
        for side, turn in zip(sides, ("transA", "transB"), strict=True)
    ]
    fused = node("FusedMatMul", names.split(), ["y"], name="fc", domain="com.microsoft", **attributes)
    source = model(
        tmp_path / "a.onnx",
        [fused],
        [value(n, s) for n, s in zip(names.split(), shapes, strict=True) if n not in stored],
        [value("y", np.matmul(*sides).shape)],
        stored,
        domains=("com.microsoft",),
    )
    proved(source, TileSpec(tile=SMALL, form=form), evaluator=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("open_", ["a", "b"])
@pytest.mark.parametrize("size", [1, 4])
def test_an_open_batch_may_be_one_beside_a_fixed_one(tmp_path: Path, open_: str, size: int) -> None:
    shapes = {"a": [4, 5, 3], "b": [4, 3, 6]}
    shapes[open_] = ["B", *shapes[open_][1:]]
    source = model(
        tmp_path / "a.onnx",
        [node("MatMul", ["a", "b"], ["y"], name="qk")],
        [value(n, s) for n, s in shapes.items()],
        [value("y", [4, 5, 6])],
        {},
    )
    proved(source, TileSpec(tile=SMALL), size=size, evaluator=False)


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "kind"), [(np.float16, 10), (np.float64, 11)])
def test_products_of_products_in_other_precisions_raise_no_alarm(
    tmp_path: Path, dtype: Any, kind: int
) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="fc"),
        node("Transpose", ["h"], ["t"], perm=[0, 2, 1]),
        node("MatMul", ["h", "t"], ["y"], name="qk"),
    ]
    source = model(
        tmp_path / "a.onnx",
        nodes,
        [value("x", ["B", "T", 7], kind)],
        [value("y", ["B", "T", "T"], kind)],
        {"w": numbers(7, 9, dtype=dtype)},
    )
    proved(source, TileSpec(tile=SMALL), evaluator=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_weights_keep_what_else_they_are(tmp_path: Path, form: Any) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="one"),
        node("Gemm", ["h", "w"], ["y"], name="two", transB=1),
        node("Gather", ["w", "rows"], ["rows_of_w"]),
    ]
    source = model(
        tmp_path / "a.onnx",
        nodes,
        [value("x", [3, 7])],
        [value("y", [3, 7]), value("w", [7, 9]), value("rows_of_w", [2, 9])],
        {"w": numbers(7, 9), "rows": np.asarray([1, 4])},
    )
    proved(source, TileSpec(tile=SMALL, form=form), evaluator=form != "scan")


def test_a_tiled_model_is_tiled_again_elsewhere(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], ["h"], name="one"),
        node("Relu", ["h"], ["r"]),
        node("MatMul", ["r", "v"], ["y"], name="two"),
    ]
    weights = {"w": numbers(7, 9), "v": numbers(9, 5)}
    source = model(tmp_path / "a.onnx", nodes, [value("x", [3, 7])], [value("y", [3, 5])], weights)
    proved(source, TileSpec(tile=SMALL, sites=("one",), form="lab"))
    proved(source.replace(".onnx", "_lab.onnx"), TileSpec(tile=(3, 2, 2), sites=("two",), form="unrolled"))
    with pytest.raises(Misuse, match="tiled already"):
        Session(source.replace(".onnx", "_lab_unrolled.onnx")).plan(TileSpec(tile=SMALL))


@pytest.mark.slow
def test_a_long_stack_unrolled_is_proved_in_columns(tmp_path: Path) -> None:
    source = model(
        tmp_path / "a.onnx",
        [node("MatMul", ["x", "k"], ["y"], name="qk")],
        [value("x", [2, 12, 8]), value("k", [2, 8, 12])],
        [value("y", [2, 12, 12])],
        {},
    )
    proved(source, TileSpec(tile=(1, 1, 1), form="lab"), evaluator=False)


BRANCHES: list[tuple[str, Callable[[Any], None]]] = [
    ("branch", lambda m: setattr(body(m, "else_branch").node[0], "op_type", "Neg")),
    ("its output", lambda m: setattr(body(m, "else_branch").output[0], "name", "s")),
]


def body(made: Any, name: str) -> Any:
    return next(a.g for a in made.graph.node[-1].attribute if a.name == name)


@pytest.mark.parametrize(("fault", "spoil"), BRANCHES, ids=[b[0] for b in BRANCHES])
def test_a_fault_in_a_branch_that_no_draw_takes_is_found(
    tmp_path: Path, fault: str, spoil: Callable[[Any], None]
) -> None:
    taken = helper.make_graph(
        [node("MatMul", ["x", "w"], ["t"], name="fc")], "then", [], [value("t", [3, 7])]
    )
    others = [node("Relu", ["x"], ["s"], name="not taken"), node("Add", ["s", "s"], ["e"])]
    other = helper.make_graph(others, "else", [], [value("e", [3, 7])])
    asked = [node("ReduceSum", ["x"], ["total"], keepdims=0), node("Less", ["total", "huge"], ["always"])]
    holder = node("If", ["always"], ["y"], name="branch", then_branch=taken, else_branch=other)
    made = helper.make_model(
        helper.make_graph(
            [*asked, holder],
            "g",
            [value("x", [3, 7])],
            [value("y", [3, 7])],
            [
                numpy_helper.from_array(numbers(7, 7), "w"),
                numpy_helper.from_array(np.asarray(1e9, np.float32), "huge"),
            ],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    source = str(tmp_path / "a.onnx")
    onnx.save(made, source)
    after = proved(source, TileSpec(tile=SMALL))
    spoil(after)
    onnx.save(after, tmp_path / "b.onnx")
    from explorer import verify_files

    evidence = verify_files(source, str(tmp_path / "b.onnx"))
    assert not evidence.passed
    assert evidence.verdict_kind == "different"
    assert evidence.verdict.startswith("different: If that computes 'y': ")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_one_value_may_be_every_input_of_a_product(tmp_path: Path, form: Any) -> None:
    product = node("Gemm", ["x", "x", "x"], ["y"], name="fc", transB=1, alpha=0.5)
    source = model(tmp_path / "a.onnx", [product], [value("x", [7, 7])], [value("y", [7, 7])], {})
    proved(source, TileSpec(tile=SMALL, form=form), evaluator=False)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_an_einsum_may_have_a_batch_of_one(tmp_path: Path, form: Any) -> None:
    product = node("Einsum", ["a", "b"], ["y"], name="sum", equation="bij,bjk->bki")
    feeds = [value("a", [1, 3, 4]), value("b", [1, 4, 5])]
    source = model(tmp_path / "a.onnx", [product], feeds, [value("y", [1, 5, 3])], {})
    proved(source, TileSpec(tile=SMALL, form=form), evaluator=form != "scan")
