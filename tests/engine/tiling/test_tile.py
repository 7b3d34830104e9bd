"""Tiling promises: any Gemm or MatMul with a constant weight, any size, any tile, every form; and the
graph computes the same."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from explorer import Misuse, Session, TileSpec
from explorer.engine.formats.onnx import reader
from tests import stock
from tests.pairs import pairs, turns

FORMS = ("lab", "scan", "unrolled", "batched")
EDGES = ("ragged", "padded")


def save(
    path: Path, nodes: list[Any], feeds: dict[str, Any], weights: dict[str, Any], *, opset: int = 17
) -> str:
    """A model of float inputs `feeds` (name to shape), output 'y' of a shape left to inference."""
    dtype = next(iter(weights.values())).dtype if weights else np.dtype(np.float32)
    code = helper.np_dtype_to_tensor_dtype(dtype)
    inputs = [helper.make_tensor_value_info(n, code, s) for n, s in feeds.items()]
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        [helper.make_tensor_value_info("y", code, None)],
        [numpy_helper.from_array(w, n) for n, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
    return str(path)


def run(path: str, feeds: dict[str, np.ndarray], *, optimise: bool = True) -> np.ndarray:
    return stock.outputs(path, feeds, stock.LEVELS[-1 if optimise else 0])[0]


def tile_and_compare(source: str, target: Path, spec: TileSpec, **options: Any) -> Session:
    """Tiles `source`, checks the file as strictly as onnx can, and runs both on dense random data."""
    session = Session(source, **options)
    session.tile(spec, output=str(target), verify=False)
    onnx.checker.check_model(str(target), full_check=True)
    onnx.shape_inference.infer_shapes_path(
        str(target), str(target) + ".inferred", strict_mode=True, data_prop=True
    )
    rng = np.random.default_rng(1)
    types = {"tensor(float)": np.float32, "tensor(double)": np.float64, "tensor(float16)": np.float16}
    feeds = {
        i.name: rng.standard_normal(i.shape).astype(types[i.type])
        for i in ort.InferenceSession(str(target)).get_inputs()
    }
    before, after = run(source, feeds), run(str(target), feeds)
    assert after.shape == before.shape
    assert after.dtype == before.dtype
    tolerance = {2: 2e-2, 4: 2e-5, 8: 1e-12}[before.itemsize]
    np.testing.assert_allclose(after, before, rtol=tolerance, atol=tolerance * max(1.0, np.abs(before).max()))
    return session


def weight(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize(
    ("size", "tile"),
    [
        ((5, 7, 11), (2, 3, 4)),
        ((4, 6, 8), (2, 3, 4)),
        ((1, 13, 5), (4, 4, 4)),
        ((3, 2, 9), (1, 1, 1)),
        ((2, 3, 4), (8, 8, 8)),
        ((9, 5, 1), (4, 2, 3)),
        ((7, 1, 6), (3, 5, 2)),
    ],
)
def test_any_size_and_any_tile(tmp_path: Path, form: Any, edges: Any, size: Any, tile: Any) -> None:
    m, k, n = size
    source = save(
        tmp_path / "a.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [m, k]},
        {"w": weight(k, n)},
    )
    session = tile_and_compare(source, tmp_path / "b.onnx", TileSpec(tile, edges=edges, form=form))
    plan = session.history().entries[1].plan
    assert plan is not None
    assert plan.products == -(-m // tile[0]) * -(-k // tile[1]) * -(-n // tile[2])
    assert plan.sites[0].utilisation == m * k * n / (plan.products * tile[0] * tile[1] * tile[2])


BIASES: dict[str, tuple[int, ...] | None] = {
    "none": None,
    "scalar": (),
    "one": (1,),
    "row": (5,),
    "row2d": (1, 5),
    "column": (3, 1),
    "full": (3, 5),
    "one2d": (1, 1),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("bias", "form", "transposed"), pairs(BIASES, FORMS, itertools.product((0, 1), repeat=2))
)
def test_every_gemm(tmp_path: Path, form: Any, transposed: tuple[int, int], bias: str) -> None:
    trans_a, trans_b = transposed
    shape = BIASES[bias]
    inputs = ["x", "w"] + ([] if shape is None else ["c"])
    weights = {"w": weight(5, 7) if trans_b else weight(7, 5)}
    if shape is not None:
        weights["c"] = weight(*shape, seed=3) if shape else np.array(0.7, np.float32)
    node = helper.make_node("Gemm", inputs, ["y"], transA=trans_a, transB=trans_b, alpha=0.5, beta=-1.5)
    source = save(tmp_path / "a.onnx", [node], {"x": [7, 3] if trans_a else [3, 7]}, weights)
    edges: Any = "padded" if trans_a else "ragged"
    tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 3, 2), edges=edges, form=form))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("x", "w"), [((2, 3, 4, 6), (6, 5)), ((6,), (6, 5)), ((4, 6), (6,)), ((2, 4, 6), (1, 6, 5)), ((6,), (6,))]
)
def test_matmul_of_any_rank(tmp_path: Path, form: Any, x: tuple[int, ...], w: tuple[int, ...]) -> None:
    source = save(
        tmp_path / "a.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": list(x)},
        {"w": weight(*w)},
    )
    tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 4, 3), form=form))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("form", FORMS)
def test_the_weight_may_be_the_left_operand(tmp_path: Path, form: Any) -> None:
    matmul = save(
        tmp_path / "a.onnx",
        [helper.make_node("MatMul", ["w", "x"], ["y"])],
        {"x": [6, 5]},
        {"w": weight(7, 6)},
    )
    tile_and_compare(matmul, tmp_path / "b.onnx", TileSpec((2, 4, 3), form=form))
    node = helper.make_node("Gemm", ["w", "x", "c"], ["y"], transA=1, transB=1, alpha=2.0)
    gemm = save(tmp_path / "c.onnx", [node], {"x": [5, 6]}, {"w": weight(6, 7), "c": weight(7, 1)})
    tile_and_compare(gemm, tmp_path / "d.onnx", TileSpec((2, 4, 3), form=form, edges="padded"))


_COMPUTED = {
    "reshaped": [helper.make_node("Reshape", ["w", "shape"], ["computed"])],
    "scaled": [
        helper.make_node("Reshape", ["w", "shape"], ["flat"]),
        helper.make_node("Mul", ["flat", "flat"], ["computed"]),
    ],
    "through what the proof cannot follow": [
        helper.make_node("Reshape", ["w", "shape"], ["flat"]),
        helper.make_node("Relu", ["flat"], ["computed"]),
    ],
}
_PRODUCTS = {
    "MatMul": [helper.make_node("MatMul", ["computed", "x"], ["y"])],
    "Gemm": [helper.make_node("Gemm", ["computed", "x"], ["y"], transB=1)],
    "Einsum": [helper.make_node("Einsum", ["computed", "x"], ["y"], equation="ij,jk->ik")],
    "beside itself": [
        helper.make_node("Transpose", ["computed"], ["turned"]),
        helper.make_node("MatMul", ["turned", "computed"], ["both"]),
        helper.make_node("MatMul", ["both", "x"], ["y"]),
    ],
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("product", _PRODUCTS)
@pytest.mark.parametrize("made", _COMPUTED)
def test_a_left_operand_may_be_computed_from_what_is_stored(tmp_path: Path, made: str, product: str) -> None:
    # as many rows as columns: which operand is which is not to be told by the sizes
    nodes, stored = [*_COMPUTED[made], *_PRODUCTS[product]], {"w": weight(3, 2, 6), "shape": np.array([6, 6])}
    source = save(tmp_path / "a.onnx", nodes, {"x": [6, 6]}, stored)
    tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 4, 3)))


STACKS: dict[str, tuple[tuple[int | str, ...], tuple[int, ...], bool]] = {
    "a stack for each": ((2, 3, 5), (2, 5, 7), False),
    "a stack for one": ((3, 5), (2, 5, 7), False),
    "four axes, both sides broadcast": ((4, 1, 3, 5), (4, 2, 5, 7), False),
    "a vector": ((5,), (2, 5, 7), False),
    "an open batch": (("batch", 2, 3, 5), (2, 5, 7), False),
    "on the left of a stack": ((4, 2, 5, 7), (3, 5), True),
    "a stack on the left": ((2, 5, 7), (2, 3, 5), True),
    "a stack on the left of one": ((5, 7), (2, 3, 5), True),
    "on the left of a vector": ((5,), (3, 5), True),
    "on the left of an open batch": (("batch", 5, 7), (2, 1, 3, 5), True),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "form"), turns(STACKS, FORMS))
def test_a_stored_weight_may_be_a_stack_on_either_side(tmp_path: Path, form: Any, case: str) -> None:
    x, w, left = STACKS[case]
    if "open" in case and form != "scan":
        pytest.skip("an open size is for a Scan")
    node = helper.make_node("MatMul", ["w", "x"] if left else ["x", "w"], ["y"])
    source, target = save(tmp_path / "a.onnx", [node], {"x": x}, {"w": weight(*w)}), str(tmp_path / "b.onnx")
    with Session(source) as session:
        result = session.tile(TileSpec((2, 4, 3), form=form), output=target)
    assert result.plan.macs == result.plan.macs_total
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    feeds = {"x": weight(*(3 if d == "batch" else d for d in x), seed=5)}
    np.testing.assert_allclose(run(target, feeds), run(source, feeds), rtol=1e-5, atol=1e-5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("chain", ["Identity", "Transpose", "Constant", "Transpose+Identity+Constant"])
def test_a_weight_behind_other_nodes_is_found(tmp_path: Path, form: Any, chain: str) -> None:
    w = weight(5, 7) if "Transpose" in chain else weight(7, 5)
    nodes, name, weights = [], "w", {"w": w}
    if "Constant" in chain:
        weights = {}
        nodes.append(helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(w)))
    for op in ("Identity", "Transpose"):
        if op in chain:
            nodes.append(helper.make_node(op, [name], [name + op]))
            name += op
    nodes.append(helper.make_node("MatMul", ["x", name], ["y"]))
    source = save(tmp_path / "a.onnx", nodes, {"x": [3, 7]}, weights)
    tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 3, 2), form=form))
    tiled = reader.read(str(tmp_path / "b.onnx"))
    assert not any(
        n.op in ("Identity", "Transpose") for n in tiled.graph.nodes if "tile_hw.site" not in n.metadata
    )


@pytest.mark.parametrize("form", FORMS)
def test_a_shared_weight_is_stored_once(tmp_path: Path, form: Any) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])]
    source = save(tmp_path / "a.onnx", nodes, {"x": [3, 6]}, {"w": weight(6, 6)})
    session = tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 3, 2), form=form))
    assert session.info().totals.weight_bytes == 6 * 6 * 4


@pytest.mark.parametrize("form", FORMS)
def test_a_weight_shared_behind_an_identity_is_stored_once(tmp_path: Path, form: Any) -> None:
    """What torch's exporter makes of one nn.Linear that is called twice."""
    nodes = [
        helper.make_node("Identity", ["w"], ["same"]),
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("MatMul", ["h", "same"], ["y"]),
    ]
    source = save(tmp_path / "a.onnx", nodes, {"x": [3, 6]}, {"w": weight(6, 6)})
    session = tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 3, 2), form=form))
    assert session.info().totals.weight_bytes == 6 * 6 * 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [np.float64, np.float16])
def test_other_float_types(tmp_path: Path, form: Any, dtype: Any) -> None:
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], transB=1)
    weights = {"w": weight(5, 70, dtype=dtype), "c": weight(5, dtype=dtype)}
    source = save(tmp_path / "a.onnx", [node], {"x": [3, 70]}, weights)
    tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 8, 2), form=form))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("opset", [9, 11, 13, 18, 21])
def test_operator_sets_old_and_new(tmp_path: Path, form: Any, opset: int) -> None:
    node = helper.make_node("Gemm", ["x", "w", "c"], ["y"], transB=1)
    source = save(
        tmp_path / "a.onnx", [node], {"x": [3, 7]}, {"w": weight(5, 7), "c": weight(5)}, opset=opset
    )
    for edges in EDGES:
        spec = TileSpec((2, 3, 2), form=form, edges=edges)  # type: ignore[arg-type]
        tile_and_compare(source, tmp_path / f"{edges}.onnx", spec)


@pytest.mark.slow
def test_many_rows_are_scanned_too(tmp_path: Path) -> None:
    source = save(
        tmp_path / "a.onnx",
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        {"x": [131, 67]},
        {"w": weight(67, 6)},
    )
    for edges in EDGES:
        spec = TileSpec((2, 1, 4), form="scan", edges=edges)  # type: ignore[arg-type]
        tile_and_compare(source, tmp_path / f"{edges}.onnx", spec)
        tiled = reader.read(str(tmp_path / f"{edges}.onnx"))
        assert sum(n.op == "Scan" for n in tiled.graph.nodes) >= 1
        assert len(tiled.graph.nodes) < 1000


def test_the_textbook_case_has_8_products_2_splits_4_sums_1_concat(sample: Any, tmp_path: Path) -> None:
    target = tmp_path / "lab.onnx"
    tile_and_compare(sample("mlp_128"), target, TileSpec((64, 64, 64), form="lab"))
    tiled = reader.read(str(target))
    call = [n for n in tiled.graph.nodes if n.domain == "tile_hw"]
    assert len(call) == 1
    assert call[0].op == "Linear_128x128x128_by_64"
    body = tiled.functions["tile_hw", call[0].op, ""].nodes
    kinds = [n.op.split("_")[0] for n in body]
    assert {k: kinds.count(k) for k in set(kinds)} == {"2DMM": 8, "Split2D": 2, "Sum": 4, "Concat2D": 1}
    assert {n.op for n in body if n.op.startswith("2DMM")} == {"2DMM_64x64x64"}


def test_32x64x128_with_bias_is_one_tile_in_m_and_k_and_two_in_n(sample: Any, tmp_path: Path) -> None:
    session = tile_and_compare(sample("linear_32x64x128"), tmp_path / "b.onnx", TileSpec((64, 64, 64)))
    plan = session.history().entries[1].plan
    assert plan is not None
    (site,) = plan.sites
    assert (site.M, site.K, site.N, site.grid, site.products, site.bias) == (32, 64, 128, (1, 1, 2), 2, True)


@pytest.mark.parametrize(
    ("tile", "words"),
    [((0, 64, 64), "0, 64, 64"), ((64, -1, 64), "64, -1, 64"), ((1 << 20, 1, 1), "1048576")],
)
def test_an_impossible_tile_is_refused_in_one_line(sample: Any, tile: Any, words: str) -> None:
    with pytest.raises(Misuse, match=words):
        Session(sample("mlp_128")).plan(TileSpec(tile))


TWO_ACTIVATIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ((5, 7), (7, 6)),
    "heads": ((2, 3, 9, 4), (2, 3, 4, 10)),
    "one right for all": ((2, 3, 4), (4, 5)),
    "one left for all": ((3, 4), (2, 4, 5)),
    "broadcast both ways": ((2, 1, 3, 4), (1, 3, 4, 5)),
    "left vector": ((4,), (4, 5)),
    "left vector, stack": ((4,), (3, 4, 5)),
    "right vector": ((2, 3, 4), (4,)),
    "vectors": ((6,), (6,)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "form", "edges"), turns(TWO_ACTIVATIONS, FORMS, EDGES))
def test_two_activations_are_multiplied_in_tiles_and_proved(
    tmp_path: Path, form: Any, edges: Any, case: str
) -> None:
    a, b = TWO_ACTIVATIONS[case]
    node = helper.make_node("MatMul", ["a", "b"], ["y"])
    source = save(tmp_path / "a.onnx", [node], {"a": a, "b": b}, {})
    spec = TileSpec((2, 3, 4), edges=edges, form=form)
    session = tile_and_compare(source, tmp_path / "b.onnx", spec)
    evidence = session.verify()
    assert evidence.passed, evidence.verdict
    assert evidence.sites[0].tiles == session.history().entries[1].plan.sites[0].products  # type: ignore[union-attr]


def test_a_value_multiplied_by_its_own_transpose(tmp_path: Path) -> None:
    node = helper.make_node("Gemm", ["a", "a"], ["y"], transB=1, alpha=0.5)
    source = save(tmp_path / "a.onnx", [node], {"a": (5, 7)}, {})
    session = tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 3, 4)))
    assert session.verify().passed


def test_an_open_dimension_stays_open_and_figures_say_for_which_size_they_are(sample: Any) -> None:
    with Session(sample("bert_tiny")) as session:
        plan = session.plan(TileSpec((16, 16, 16)))
        assert plan.free == ("batch", "sequence")
        assert plan.dims == {"batch": 1, "sequence": 64}
        opened = {site.name: site.dynamic for site in plan.sites}
        assert opened["/encoder/layer.0/attention/self/query/MatMul"] == ("M",)
        assert opened["/encoder/layer.0/attention/self/MatMul"] == ("batch", "M", "N")
        assert opened["/encoder/layer.0/attention/self/MatMul_1"] == ("batch", "M", "K")
        assert plan.macs == plan.macs_total


def test_a_form_that_cannot_leave_a_size_open_names_the_option_that_binds_it(sample: Any) -> None:
    with Session(sample("bert_tiny")) as session, pytest.raises(Misuse, match="--dim"):
        session.plan(TileSpec((16, 16, 16), form="lab"))


OPEN: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "rows": (("MatMul", {}), {"a": ["n", 7]}, {"w": (7, 6)}),
    "rows of a stack": (("MatMul", {}), {"a": ["n", 3, "s", 7]}, {"w": (7, 6)}),
    "Gemm, turned": (("Gemm", {"transA": 1, "alpha": 0.5}), {"a": [7, "n"]}, {"w": (7, 6)}),
    "weight on the left": (("MatMul", {}), {"w": None, "b": [7, "n"]}, {"w": (6, 7)}),
    "keys": (("MatMul", {}), {"a": ["n", 2, "s", 5], "b": ["n", 2, 5, "s"]}, {}),
    "values": (("MatMul", {}), {"a": ["n", 2, "s", "t"], "b": ["n", 2, "t", 5]}, {}),
    "open batch only": (("MatMul", {}), {"a": ["n", 4, 5], "b": ["n", 5, 3]}, {}),
    "one left for all": (("MatMul", {}), {"a": [4, 5], "b": ["n", 5, "s"]}, {}),
    "broadcast both ways": (("MatMul", {}), {"a": ["n", 1, 4, 5], "b": [1, 3, 5, "s"]}, {}),
}


@pytest.mark.slow
@pytest.mark.parametrize("case", OPEN)
def test_one_graph_serves_every_size(tmp_path: Path, case: str) -> None:
    (op, attributes), feeds, weights = OPEN[case]
    arrays = {name: weight(*shape) for name, shape in weights.items()}
    inputs = list(feeds) + [name for name in arrays if name not in feeds]
    node = helper.make_node(op, inputs, ["y"], **attributes)
    given = {name: shape for name, shape in feeds.items() if name not in arrays}
    source = save(tmp_path / "a.onnx", [node], given, arrays)
    target = str(tmp_path / "b.onnx")
    with Session(source) as session:
        result = session.tile(TileSpec((4, 3, 2)), output=target)
        assert result.verification is not None
        assert result.verification.passed, result.verification.verdict
        assert result.plan.sites[0].dynamic
    onnx.checker.check_model(target, full_check=True)
    rng = np.random.default_rng(0)
    for n, s, t in ((1, 1, 1), (3, 4, 5), (2, 9, 3), (5, 7, 8)):
        sizes = {"n": n, "s": s, "t": t}
        drawn = {
            name: rng.standard_normal([sizes.get(d, d) for d in shape]).astype(np.float32)
            for name, shape in given.items()
        }
        before, after = run(source, drawn), run(target, drawn)
        assert after.shape == before.shape
        np.testing.assert_allclose(after, before, rtol=2e-5, atol=2e-5)


def test_tiling_part_of_a_model_leaves_the_rest_byte_for_byte(sample: Any, tmp_path: Path) -> None:
    source = sample("lenet")
    with Session(source) as session:
        names = [s.name for s in session.plan(TileSpec((16, 16, 16))).sites]
        session.tile(
            TileSpec((16, 16, 16), sites=(names[0],)), output=str(tmp_path / "one.onnx"), verify=False
        )
    before, after = reader.read(source), reader.read(str(tmp_path / "one.onnx"))
    kept = {n.label: n for n in after.graph.nodes}
    for node in before.graph.nodes:
        if node.label != names[0]:
            twin = kept[node.label]
            assert node.record is not None
            assert twin.record is not None
            assert bytes(node.record.view()) == bytes(twin.record.view())


@pytest.mark.parametrize("form", FORMS)
def test_what_is_tiled_is_not_tiled_again(tmp_path: Path, form: Any) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("MatMul", ["h", "w"], ["y"], name="second"),
    ]
    source = save(tmp_path / "a.onnx", nodes, {"x": [3, 6]}, {"w": weight(6, 6)})
    with Session(source) as session:
        session.tile(TileSpec((2, 3, 2), sites=("first",), form=form), verify=False)
        plan = session.plan(TileSpec((2, 3, 2), form=form))
        assert [s.name for s in plan.sites] == ["second"]
        assert [(s.name, s.reason) for s in plan.skipped] == [("first", "tiled already")]
        # the batched form fills its tiles up
        assert plan.skipped[0].macs == (4 if form == "batched" else 3) * 6 * 6
        session.tile(TileSpec((2, 3, 2), form=form), verify=False)
        with pytest.raises(Misuse, match="tiled already"):
            session.plan(TileSpec((2, 3, 2), form=form))


@pytest.mark.parametrize("form", FORMS)
def test_a_bias_times_zero_is_left_out(tmp_path: Path, form: Any) -> None:
    """As a runtime does, even if the bias is infinite."""
    gemm = helper.make_node("Gemm", ["x", "w", "c"], ["y"], beta=0.0)
    weights = {"w": weight(7, 9), "c": np.full(9, np.inf, np.float32)}
    source, target = save(tmp_path / "m.onnx", [gemm], {"x": (5, 7)}, weights), str(tmp_path / "t.onnx")
    result = Session(source).tile(TileSpec((2, 3, 4), form=form), output=target)
    assert result.verification is not None
    assert result.verification.verdict_kind == "equal"
    x = np.random.default_rng(3).standard_normal((5, 7)).astype(np.float32)
    np.testing.assert_allclose(run(target, {"x": x}), run(source, {"x": x}), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", ["auto", "scan"])
def test_two_open_batches_that_may_differ_are_not_taken_for_one(tmp_path: Path, form: Any) -> None:
    """One of them may be 1, and is then broadcast. With both bound, or with one name, it is tiled."""
    product = helper.make_node("MatMul", ["x", "z"], ["y"])
    shapes = {"x": ("here", 5, 7), "z": ("there", 7, 4)}
    source = save(tmp_path / "m.onnx", [product], shapes, {})
    with pytest.raises(Misuse, match="--dim here=N --dim there=N"):
        Session(source).tile(TileSpec((2, 3, 4), form=form), verify=False)
    bound = Session(source, dims={"here": 1, "there": 3}).tile(TileSpec((2, 3, 4), form=form))
    assert bound.verification is not None
    assert bound.verification.verdict_kind == "equal"
    same = save(tmp_path / "n.onnx", [product], {**shapes, "z": ("here", 7, 4)}, {})
    open_batch = Session(same).tile(TileSpec((2, 3, 4), form=form))
    assert open_batch.verification is not None
    assert open_batch.verification.verdict_kind == "equal"
