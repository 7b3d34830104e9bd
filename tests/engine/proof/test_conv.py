"""The proof of a tiled convolution: every sort passes all three layers, and a fault planted in how positions,
taps, channels or groups meet is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from msgspec.structs import replace

from explorer import Session
from explorer.engine.formats.onnx import reader
from explorer.engine.graph.model import Model, Node, build_tensor
from explorer.engine.proof.float64 import evaluator
from explorer.engine.proof.meanings import MEANINGS, NodeReader
from explorer.engine.proof.proof import verify
from explorer.facts import TileSpec, Verification
from tests.engine.proof import tiled as t
from tests.engine.tiling.convolutions import CASES, FIXED, OPEN, Case, save

SMALL = (8, 16, 4)
Spoil = Callable[[Model], Model]


def prove(path: Path, case: Case, spec: TileSpec, spoil: Spoil | None = None) -> Verification:
    return t.prove(reader.read(save(path / "a.onnx", case)), spec, spoil, draws=1)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", FIXED)
def test_every_sort_is_proved(tmp_path: Path, name: str) -> None:
    form: Any = t.FORMS[FIXED.index(name) % 4]
    verification = prove(tmp_path, CASES[name], TileSpec(SMALL, form=form, grouped="pack"))
    assert verification.passed, verification.verdict
    (site,) = verification.sites
    # every product was found, and the figures say how exact its sum is
    assert site.tiles > 0
    assert site.bound_ratio is not None
    assert site.bound_ratio < site.limit


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", OPEN)
def test_open_sizes_are_proved_at_several(tmp_path: Path, name: str) -> None:
    session = Session(save(tmp_path / "a.onnx", CASES[name]))
    session.tile(TileSpec(SMALL, grouped="pack"), verify=False)
    (planned,) = session.history().entries[1].plan.sites  # type: ignore[union-attr]
    verification = session.verify(draws=1)
    assert verification.passed, verification.verdict
    # more than at the size that the plan is for
    assert verification.sites[0].tiles > planned.products


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", FIXED)
def test_the_meaning_is_the_operator(tmp_path: Path, name: str) -> None:
    """What the proof compares with is itself held against the operator in float64, number by number."""
    case = CASES[name]
    model = reader.read(save(tmp_path / "a.onnx", case, dtype=np.float64))
    node = model.graph.nodes[-1]
    original = MEANINGS["", node.op](node, NodeReader(model))
    random = np.random.default_rng(7)
    feeds = {v.name: random.standard_normal(v.shape) for v in model.graph.inputs}
    y = evaluator.run(model, feeds)["y"]
    values = [feeds[given] for given in original.inputs]
    meaning = original.spec_for([v.shape for v in values], y.shape)
    bias = values[meaning.bias] if isinstance(meaning.bias, int) else meaning.bias
    x = meaning.left(values)
    made = np.stack([x(b, slice(None)) for b in range(meaning.batch)]) @ meaning.arrange_weight(values)
    if bias is not None:
        made = made + meaning.arrange_bias(bias)
    shown = np.ones(made.shape, bool) if meaning.contained is None else meaning.contained
    assert np.count_nonzero(shown) == y.size
    np.testing.assert_allclose(made[shown], meaning.flatten_output(y)[shown], rtol=1e-9, atol=1e-9)
    some = random.integers(0, meaning.M, 5)
    np.testing.assert_array_equal(x(meaning.batch - 1, some), x(meaning.batch - 1, slice(None))[some])
    # the corners meet what lies beyond the image: a zero, whatever stands in it
    ends = [np.concatenate([[np.inf], v.reshape(-1)[1:-1], [np.nan]]).reshape(v.shape) for v in values[:1]]
    whole, few = (meaning.left([*ends, *values[1:]]) for _ in range(2))
    corners = np.array([0, meaning.M - 1])
    for b in range(meaning.batch):
        expected = whole(b, slice(None))[corners]
        for row, one in zip(corners, expected, strict=True):
            np.testing.assert_array_equal(few(b, np.array([row])), one[None])
    squares = [np.square(x(b, slice(None))).sum(-1) for b in range(meaning.batch)]
    assert meaning.squares is not None
    np.testing.assert_allclose(meaning.squares(values), squares, rtol=1e-12, atol=1e-12)


def changed(suffix: str, change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    """Other numbers in the Constants whose value names end so."""

    def node(old: Node) -> Node:
        if old.op != "Constant" or not old.outputs[0].endswith(suffix):
            return old
        array = np.array(old.attributes["value"].array())
        return t.node_like(old, attributes={"value": build_tensor("", change(array))})

    return lambda made: t.with_nodes(made, node)


def one_more(array: np.ndarray) -> np.ndarray:
    array.reshape(-1)[1] += 1
    return array


def exchanged(array: np.ndarray) -> np.ndarray:
    array.reshape(-1)[:2] = array.reshape(-1)[1::-1]
    return array


def exchanged_late(array: np.ndarray) -> np.ndarray:
    """Two taps of the twelfth of 14 lines: in the third block of 64 rows, the second to repeat the first."""
    taps = array.reshape(14, 3)[11]
    taps[:2] = taps[1::-1].copy()
    return array


def padded_with_ones(made: Model) -> Model:
    ones = build_tensor("ones", np.asarray(1, np.float32))

    def node(old: Node) -> Node:
        if old.op != "Pad" or not old.outputs[0].endswith("images_padded"):
            return old
        return t.node_like(old, inputs=[*old.inputs[:2], "ones"])

    spoiled = t.with_nodes(made, node)
    return t.with_graph(spoiled, initializers={**spoiled.graph.initializers, "ones": ones})


def columns_exchanged(made: Model) -> Model:
    """Two output channels in the weight."""
    return t.with_array(made, "w/tile_0_0", lambda w: w[:, [1, 0, *range(2, w.shape[1])]])


def one_ulp(made: Model) -> Model:
    def up(w: np.ndarray) -> np.ndarray:
        w[2, 1] = np.nextafter(w[2, 1], np.inf)
        return w

    return t.with_array(made, "w/tile_0_0", up)


def turned(suffix: str, perm: tuple[int, ...]) -> Spoil:
    def node(old: Node) -> Node:
        if old.op != "Transpose" or not old.name.endswith(suffix):
            return old
        return t.node_like(old, attributes={"perm": perm})

    return lambda made: t.with_nodes(made, node)


def without_bias(made: Model) -> Model:
    def node(old: Node) -> Node:
        return (
            t.node_like(old, op="Identity", inputs=old.inputs[:1])
            if old.outputs[0].endswith("biased")
            else old
        )

    return t.with_nodes(made, node)


@pytest.mark.sampled(10)
@pytest.mark.parametrize("name", FIXED)
def test_the_operator_in_float64_is_the_runtimes(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / "a.onnx", CASES[name])
    model = reader.read(path)
    random = np.random.default_rng(7)
    feeds = {v.name: random.standard_normal(v.shape).astype(np.float32) for v in model.graph.inputs}
    want = ort.InferenceSession(path).run(None, feeds)[0]
    np.testing.assert_allclose(evaluator.run(model, feeds)["y"], want, rtol=1e-5, atol=1e-5)


SQUARE = Case((1, 6, 6, 6), (6, 6, 3, 3), {"pads": [1, 1, 1, 1]})
"""As wide as high and as many channels in as out: shapes alone show no exchange."""

FAULTS: dict[str, tuple[Spoil, str]] = {
    "a position one to the right": (changed("places_1", one_more), "not a block of the input|is due"),
    "a tap one down": (changed("places_0", one_more), "not a block of the input|is due"),
    "two positions exchanged": (changed("places_0", exchanged), "of the input"),
    "ones around the image": (padded_with_ones, "pads with another number than zero"),
    "one row of padding moved": (
        changed("images_padded_sizes", lambda a: a + np.array([0, 0, 1, 0, 0, 0, -1, 0])),
        "of the input",
    ),
    "two output channels exchanged": (columns_exchanged, "not its slice of the weight"),
    "one weight off by one unit in the last place": (one_ulp, "1 of .* elements differ"),
    "the output turned": (
        turned("channels_first", (0, 3, 2, 1)),
        "not where they belong|is from another place",
    ),
    "the image turned": (turned("images_channels_last", (0, 3, 2, 1)), "of the input"),
    "no bias": (without_bias, "the bias is missing"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_how_they_meet_is_found(tmp_path: Path, fault: str) -> None:
    spoil, said = FAULTS[fault]
    spec = TileSpec((8, 16, 4), form="unrolled")
    verification = prove(tmp_path, SQUARE, spec, spoil)
    assert not verification.passed, fault
    (site,) = verification.sites
    assert not site.passed
    assert re.search(said, site.structure), site.structure


WIDE = Case((1, 128, 14, 14), (8, 128, 3, 3), {"pads": [1, 1, 1, 1]})
"""Rows that are cut inside a Scan, of images so large that the walk does not keep them."""


MOVED: dict[str, Spoil] = {
    "": lambda made: made,
    "taps of the first line exchanged": changed("places_0", exchanged),
    "taps of the first column exchanged": changed("places_1", exchanged),
    "taps of a late line exchanged": changed("places_0", exchanged_late),
    "one row of padding moved": FAULTS["one row of padding moved"][0],
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fault", MOVED)
def test_rows_that_a_scan_takes_are_those_of_the_image(tmp_path: Path, fault: str) -> None:
    verification = prove(tmp_path, WIDE, TileSpec((64, 64, 64), form="scan"), MOVED[fault])
    (site,) = verification.sites
    assert site.passed == (not fault), site.structure
    assert ("of the input" in site.structure) == bool(fault), site.structure


PACKED = Case((1, 10, 5, 5), (10, 2, 2, 2), {"group": 5})
"""Two groups of 8 x 2 in a pack of 16 x 4; the last pack holds one."""


def first_pack(change: Callable[[np.ndarray], np.ndarray]) -> Spoil:
    return lambda made: t.with_array(made, "w/0/tile_0_0", change)


def shifted(w: np.ndarray) -> np.ndarray:
    return np.roll(w, 2, axis=1)


def stray(w: np.ndarray) -> np.ndarray:
    assert w[0, 3] == 0.0
    w[0, 3] = 1e-30
    return w


def minus(w: np.ndarray) -> np.ndarray:
    w[0, 3] = -0.0
    return w


def packs_exchanged(made: Model) -> Model:
    names = {"w/0/tile_0_0": "w/1/tile_0_0", "w/1/tile_0_0": "w/0/tile_0_0"}

    def node(old: Node) -> Node:
        return t.node_like(old, inputs=[names.get(i, i) for i in old.inputs])

    return t.with_nodes(made, node)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (first_pack(shifted), "not its slice of the weight"),
        (first_pack(stray), "1 of .* elements differ"),
        (first_pack(minus), "not its slice of the weight"),
        (packs_exchanged, "not its slice of the weight"),
        (turned("unfolded_stacked", (1, 4, 0, 2, 3, 5)), ""),
    ],
    ids=[
        "a block shifted",
        "a zero off the blocks that is none",
        "minus zero",
        "packs exchanged",
        "no fault",
    ],
)
def test_a_fault_in_a_pack_is_found(tmp_path: Path, spoil: Spoil, said: str) -> None:
    verification = prove(tmp_path, PACKED, TileSpec(SMALL, form="unrolled", grouped="pack"), spoil)
    (site,) = verification.sites
    assert site.passed is (said == "")
    if said:
        assert re.search(said, site.structure), site.structure


STRIDED = Case((1, 3, 5, 4), (3, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, "ConvTranspose")


@pytest.mark.parametrize(
    "spoil",
    [
        changed("places_1", one_more),
        turned("products_joined", (3, 4, 1, 5, 0, 2, 6)),
        lambda made: t.with_array(made, "w/0/tile_0_0", lambda w: w[::-1]),
    ],
    ids=["an input beside the one that is due", "two phases exchanged", "taps reversed"],
)
def test_a_fault_in_a_phase_is_found(tmp_path: Path, spoil: Spoil) -> None:
    verification = prove(tmp_path, STRIDED, TileSpec(SMALL, form="unrolled"), spoil)
    assert not verification.passed
    assert not verification.sites[0].passed


def test_tile_matmuls_that_the_output_omits_are_counted(tmp_path: Path) -> None:
    """Some phases have fewer taps, so some tiles compute no element of the output."""
    source = reader.read(save(tmp_path / "a.onnx", STRIDED))
    after, plan = t.tiled(source, TileSpec((8, 16, 2), form="unrolled"))
    verification = verify(source, after, plan=plan, draws=1)
    checked = sum(site.tiles for site in verification.sites)
    assert 0 < checked < plan.products
    assert f"{checked} of {plan.products} tile matmuls checked bit for bit" in verification.verdict
    assert f"no element of the other {plan.products - checked})" in verification.verdict


def test_a_plan_that_packs_otherwise_is_not_believed(tmp_path: Path) -> None:
    """The size in the plan says how many groups stand in a product; the graph must agree."""
    source = reader.read(save(tmp_path / "a.onnx", PACKED))
    after, plan = t.tiled(source, TileSpec(SMALL, form="unrolled", grouped="pack"))
    (site,) = plan.sites
    assert (site.batch, site.K, site.N) == (3, 16, 4)
    claimed = replace(site, batch=5, K=8, N=2, products=5 * 2)
    verification = verify(source, after, plan=replace(plan, sites=(claimed,)), draws=1)
    assert not verification.sites[0].passed


@pytest.mark.slow
def test_walking_large_images_stays_within_memory(tmp_path: Path) -> None:
    """64 channels of 224 x 224: the unfolded image has 29 million elements."""
    import tracemalloc

    case = Case((1, 64, 112, 112), (64, 64, 3, 3), {"pads": [1, 1, 1, 1]})
    source = reader.read(save(tmp_path / "a.onnx", case))
    after, plan = t.tiled(source, TileSpec((64, 64, 64), form="scan"))
    from explorer.engine.proof.proof import verify

    tracemalloc.start()
    verification = verify(source, after, plan=plan, draws=1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert verification.passed
    assert peak < 300e6
