"""Tiling promises: convolutions of every sort become matrix products of tiles, in every form; and the graph
computes the same. What is left for the vector unit is named."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper
from onnx.reference import ReferenceEvaluator

from explorer import Misuse, Session, TileSpec
from explorer.engine.tiling.cost import compute_plan_cost
from tests import stock
from tests.engine.tiling.convolutions import CASES, FIXED, Case, save

FORMS = ("lab", "scan", "unrolled", "batched")
SMALL = (8, 16, 4)


def fed(path: str, size: int = 2) -> dict[str, np.ndarray]:
    """Dense random inputs; what is open is of this size."""
    random = np.random.default_rng(3)
    feeds = {}
    for value in onnx.load(path).graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value or size for d in kind.shape.dim]
        feeds[value.name] = random.standard_normal(shape).astype(
            helper.tensor_dtype_to_np_dtype(kind.elem_type)
        )
    return feeds


def run(path: str, feeds: dict[str, np.ndarray]) -> np.ndarray:
    return stock.outputs(path, feeds)[0]


def close(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    tolerance = {2: 5e-3, 4: 2e-5, 8: 1e-12}[want.itemsize]
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance * max(1.0, np.abs(want).max()))


def tiled(source: str, target: Path, spec: TileSpec) -> Session:
    session = Session(source)
    session.tile(spec, output=str(target), verify=False)
    onnx.checker.check_model(str(target), full_check=True)
    onnx.shape_inference.infer_shapes_path(
        str(target), str(target) + ".inferred", strict_mode=True, data_prop=True
    )
    return session


SORTS = [
    (name, form)
    for at, name in enumerate(CASES)
    for form in (FORMS if name in FIXED else ("scan",))
    if form in ("scan", FORMS[at % 4], FORMS[(at + 2) % 4])
]


@pytest.mark.sampled(5)
@pytest.mark.parametrize(("name", "form"), SORTS)
def test_every_sort_of_convolution(tmp_path: Path, name: str, form: Any) -> None:
    source = save(tmp_path / "a.onnx", CASES[name])
    edges: Any = ("ragged", "padded")[FORMS.index(form) % 2]
    target = tmp_path / "b.onnx"
    tiled(source, target, TileSpec(SMALL, form=form, edges=edges, grouped="pack"))
    for size in (7,) if name in FIXED else (5, 6, 9):
        feeds = fed(source, size)
        close(run(str(target), feeds), run(source, feeds))


@pytest.mark.parametrize("name", ["pads of four sizes", "depthwise", "transposed, dilated"])
def test_onnx_own_evaluator_agrees(tmp_path: Path, name: str) -> None:
    source = save(tmp_path / "a.onnx", CASES[name])
    tiled(source, tmp_path / "b.onnx", TileSpec(SMALL, form="lab", grouped="pack"))
    feeds = fed(source)
    close(ReferenceEvaluator(str(tmp_path / "b.onnx")).run(None, feeds)[0], run(source, feeds))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize("name", ["strides and pads", "groups", "transposed, output_padding"])
def test_half_and_double_precision(tmp_path: Path, name: str, dtype: Any) -> None:
    """onnxruntime has no such convolution, and runs the tiled one: onnx's evaluator says what is right."""
    source = save(tmp_path / "a.onnx", CASES[name], dtype=dtype)
    tiled(source, tmp_path / "b.onnx", TileSpec(SMALL, grouped="pack"))
    wide = save(tmp_path / "c.onnx", CASES[name], dtype=np.float64)
    feeds = fed(source)
    # the kernel of the narrow model, in float64
    model = onnx.load(wide)
    for tensor, narrow in zip(model.graph.initializer, onnx.load(source).graph.initializer, strict=True):
        values = onnx.numpy_helper.to_array(narrow).astype(np.float64)
        tensor.CopyFrom(onnx.numpy_helper.from_array(values, tensor.name))
    want = ReferenceEvaluator(model).run(None, {k: v.astype(np.float64) for k, v in feeds.items()})[0]
    close(run(str(tmp_path / "b.onnx"), feeds), want.astype(dtype))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("opset", [9, 11, 13, 18, 21])
def test_every_version_of_the_operators(tmp_path: Path, opset: int) -> None:
    for at, name in enumerate(["strides and pads", "1x1 strided", "transposed, dilated"]):
        source = save(tmp_path / f"a{at}.onnx", CASES[name], opset=opset)
        tiled(source, tmp_path / f"b{at}.onnx", TileSpec(SMALL))
        feeds = fed(source)
        close(run(str(tmp_path / f"b{at}.onnx"), feeds), run(source, feeds))


@st.composite
def convolutions(draw: st.DrawFn) -> Case:
    rank = draw(st.integers(1, 3))
    small = st.integers(1, 3)
    groups, given_, made = draw(st.sampled_from([1, 1, 2, 3, 5])), draw(small), draw(small)
    kernel = [draw(st.integers(1, 3 if rank < 3 else 2)) for _ in range(rank)]
    strides = [draw(small) for _ in range(rank)]
    dilations = [draw(st.integers(1, 2)) for _ in range(rank)]
    op = draw(st.sampled_from(["Conv", "Conv", "ConvTranspose"])) if rank < 3 else "Conv"
    attributes: dict[str, Any] = {"group": groups, "strides": strides, "dilations": dilations}
    reach = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    pads = [draw(st.integers(0, 2)) for _ in range(2 * rank)]
    extra = [draw(st.integers(0, 3)) for _ in range(rank)]
    if op == "ConvTranspose":
        # something must be left of the output
        sizes = [1 + e for e in extra]
        full = [(n - 1) * s + r for n, s, r in zip(sizes, strides, reach, strict=True)]
        pads = [min(p, (full[i % rank] - 1) // 2) for i, p in enumerate(pads)]
        attributes["output_padding"] = [draw(st.integers(0, s - 1)) for s in strides]
        weight = (groups * given_, made, *kernel)
    else:
        sizes = [max(1, r - pads[i] - pads[i + rank]) + extra[i] for i, r in enumerate(reach)]
        weight = (groups * made, given_, *kernel)
    attributes["pads"] = pads
    images = draw(st.integers(1, 2))
    return Case(
        (images, groups * given_, *sizes), weight, attributes, op, draw(st.sampled_from(["stored", ""]))
    )


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    case=convolutions(),
    tile=st.tuples(st.integers(1, 9), st.integers(1, 12), st.integers(1, 5)),
    form=st.sampled_from(FORMS),
    edges=st.sampled_from(["ragged", "padded"]),
)
def test_any_convolution_and_any_tile(tmp_path: Path, case: Case, tile: Any, form: Any, edges: Any) -> None:
    source = save(tmp_path / "a.onnx", case)
    session = Session(source)
    target = tmp_path / "b.onnx"
    session.tile(
        TileSpec(tile, form=form, edges=edges, grouped="pack"),
        output=str(target),
        verify=False,
        overwrite=True,
    )
    feeds = fed(source)
    close(run(str(target), feeds), run(source, feeds))
    verification = session.verify(draws=1)
    assert verification.passed, verification.verdict


def test_groups_are_left_to_the_vector_unit_unless_asked_for(tmp_path: Path) -> None:
    source = save(tmp_path / "a.onnx", CASES["depthwise"])
    with pytest.raises(Misuse, match=r"5 groups of 9 x 1 are left for the vector unit; '--grouped pack'"):
        Session(source).plan(TileSpec())


@pytest.mark.parametrize(
    ("w", "group", "tile", "batch", "k", "n"),
    [
        ((32, 1, 3, 3), 32, (64, 64, 64), 5, 63, 7),  # 7 groups of 9 x 1 in a depth of 64
        ((32, 1, 3, 3), 32, (64, 64, 4), 8, 36, 4),  # 4 columns hold 4 groups
        ((32, 2, 3, 3), 16, (64, 64, 64), 6, 54, 6),  # 3 groups of 18 x 2
        ((64, 32, 3, 3), 2, (64, 64, 64), 2, 288, 32),  # a group fills a tile: a product each
        ((8, 1, 1, 1), 8, (64, 64, 64), 1, 8, 8),  # all of them in one
    ],
)
def test_as_many_groups_as_a_tile_holds_are_packed(
    tmp_path: Path, w: Any, group: int, tile: Any, batch: int, k: int, n: int
) -> None:
    case = Case((1, w[1] * group, 8, 8), w, {"group": group, "pads": [w[2] // 2] * 4})
    session = Session(save(tmp_path / "a.onnx", case))
    (site,) = session.plan(TileSpec(tile, grouped="pack")).sites
    assert (site.batch, site.M, site.K, site.N) == (batch, 64, k, n)
    macs = 64 * w[0] * w[1] * w[2] * w[3]
    assert session.plan(TileSpec(tile, grouped="pack")).macs == macs
    # the zeros of a pack are no use
    assert site.utilisation == macs / (site.products * tile[0] * tile[1] * tile[2])
    assert site.macs == macs
    assert compute_plan_cost(session.plan(TileSpec(tile, grouped="pack"))).utilisation == site.utilisation


def test_rows_are_positions_and_columns_are_output_channels(tmp_path: Path) -> None:
    case = Case((2, 3, 9, 8), (5, 3, 3, 2), {"pads": [1, 0, 2, 1], "strides": [2, 1]})
    (site,) = Session(save(tmp_path / "a.onnx", case)).plan(TileSpec(SMALL)).sites
    assert (site.batch, site.M, site.K, site.N) == (1, 2 * 5 * 8, 3 * 3 * 2, 5)


@pytest.mark.parametrize(("kernel", "exact"), [((4, 4), True), ((2, 2), True), ((3, 3), False)])
def test_phases_of_a_transposed_convolution_waste_nothing_if_the_kernel_divides_by_the_stride(
    tmp_path: Path, kernel: Any, exact: bool
) -> None:
    pads = [(k - 2) // 2 for k in kernel] + [-(-(k - 2) // 2) for k in kernel]
    case = Case((1, 8, 8, 8), (8, 8, *kernel), {"strides": [2, 2], "pads": pads}, "ConvTranspose")
    plan = Session(save(tmp_path / "a.onnx", case)).plan(TileSpec((4, 4, 4)))
    (site,) = plan.sites
    assert site.batch == 4
    assert plan.macs == 64 * 64 * kernel[0] * kernel[1]
    assert (site.batch * site.M * site.K * site.N == plan.macs) is exact


@pytest.mark.parametrize(
    "case",
    [
        Case((1, 3, "height", 5), (5, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
        Case((1, 3, "height", 5), (3, 4, 3, 3), {"strides": [2, 2]}, "ConvTranspose"),
    ],
)
def test_a_size_that_changes_how_positions_lie_is_bound_by_an_option(tmp_path: Path, case: Case) -> None:
    source = save(tmp_path / "a.onnx", case)
    with pytest.raises(Misuse, match="--dim height=N"):
        Session(source).plan(TileSpec())
    assert len(Session(source, dims={"height": 9}).plan(TileSpec()).sites) == 1


def test_two_convolutions_share_a_kernel(tmp_path: Path) -> None:
    w = np.random.default_rng(0).standard_normal((6, 6, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["h"], pads=[1, 1, 1, 1]),
        helper.make_node("Conv", ["h", "w"], ["y"], dilations=[2, 2]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", 1, [1, 6, 8, 8])],
        [value("y", 1, None)],
        [onnx.numpy_helper.from_array(w, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "a.onnx")
    tiled(str(tmp_path / "a.onnx"), tmp_path / "b.onnx", TileSpec((16, 16, 4), form="unrolled"))
    after = onnx.load(tmp_path / "b.onnx")
    assert sum(np.prod(t.dims) for t in after.graph.initializer) == w.size
    feeds = fed(str(tmp_path / "a.onnx"))
    close(run(str(tmp_path / "b.onnx"), feeds), run(str(tmp_path / "a.onnx"), feeds))


def test_no_table_of_positions_and_taps_lies_in_the_file(tmp_path: Path) -> None:
    case = Case((1, 3, 64, 64), (8, 3, 7, 7), {"pads": [3, 3, 3, 3], "strides": [2, 2]})
    source = save(tmp_path / "a.onnx", case)
    for form in FORMS[:2]:
        target = tmp_path / f"{form}.onnx"
        tiled(source, target, TileSpec((64, 64, 64), form=form))
        assert target.stat().st_size < 1.3 * Path(source).stat().st_size + 40_000  # a table would take 400 kB


def test_what_is_no_product_is_left_and_named(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    w = onnx.numpy_helper.from_array(np.ones((2, 2, 2, 2), np.float32), "w")
    fc = onnx.numpy_helper.from_array(np.ones((3, 3), np.float32), "fc")
    nodes = [
        helper.make_node("DeformConv", ["x", "w", "o"], ["d"], name="deformed"),
        helper.make_node("ConvTranspose", ["d", "k"], ["t"], name="computed"),
        helper.make_node("MatMul", ["t", "fc"], ["y"], name="fc"),
    ]
    feeds = [value("x", 1, [1, 2, 3, 3]), value("o", 1, [1, 8, 2, 2]), value("k", 1, [2, 1, 2, 2])]
    graph = helper.make_graph(nodes, "g", feeds, [value("y", 1, None)], [w, fc])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    onnx.save(onnx.shape_inference.infer_shapes(model), tmp_path / "a.onnx")
    plan = Session(str(tmp_path / "a.onnx")).plan(TileSpec())
    assert [s.name for s in plan.sites] == ["fc"]
    said = {s.name: s.reason for s in plan.skipped}
    assert "deformable" in said["deformed"]
    assert "computed kernel" in said["computed"]


WHOLE = {"resnet18": (8240, 0.84, 1.0), "mobilenet_v2": (2892, 0.37, 0.93)}


def exported(path: Path, name: str, side: int) -> str:
    """A torchvision model with random weights, for one image."""
    torch = pytest.importorskip("torch")
    torchvision = pytest.importorskip("torchvision")
    torch.manual_seed(0)
    module = getattr(torchvision.models, name)(weights=None).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = (torch.randn(1, 3, side, side),)
        torch.onnx.export(module, given, str(path), dynamo=False, opset_version=17)
    return str(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", WHOLE)
def test_whole_models(tmp_path: Path, name: str) -> None:
    products, used, share = WHOLE[name]
    session = Session(exported(tmp_path / "a.onnx", name, 224))
    plan = session.plan(TileSpec())
    assert plan.products == products
    assert plan.macs_total is not None
    assert plan.macs / plan.macs_total == pytest.approx(share, abs=0.005)
    assert plan.macs / (plan.products * 64**3) == pytest.approx(used, abs=0.01)
    assert all("left for the vector unit" in s.reason for s in plan.skipped)
    session.tile(TileSpec(), verify=False)
    verification = session.verify(draws=1)
    assert verification.passed, verification.verdict
    assert len(verification.sites) == len(plan.sites)
    assert sum(s.tiles for s in verification.sites) == plan.products


@pytest.mark.slow
def test_a_whole_model_with_its_groups_packed(sample: Callable[[str], Path]) -> None:
    session = Session(sample("mobilenet_small"))
    spec = TileSpec(grouped="pack")
    plan = session.plan(spec)
    assert plan.skipped == ()
    assert plan.macs == plan.macs_total
    assert any(site.batch > 1 for site in plan.sites)
    session.tile(spec, verify=False)
    verification = session.verify(draws=1)
    assert verification.passed, verification.verdict
    assert sum(s.tiles for s in verification.sites) == plan.products
