"""An Einsum that is a product is tiled whatever its letters; another one is left, with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from explorer import Misuse, Session, TileSpec
from tests.engine.tiling.test_tile import FORMS, run, save, tile_and_compare, weight
from tests.pairs import turns

CASES: dict[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    "matrices": ("ij,jk->ik", (5, 7), (7, 6)),
    "turned": ("ij,kj->ki", (5, 7), (6, 7)),
    "rows of a stack": ("bsh,hd->bsd", (2, 3, 7), (7, 6)),
    "heads of a weight": ("bsh,hnd->bsnd", (2, 3, 7), (7, 2, 4)),
    "heads turned": ("bsh,hnd->bnsd", (2, 3, 7), (7, 2, 4)),
    "back from heads": ("bsnd,hnd->bsh", (2, 3, 2, 4), (7, 2, 4)),
    "keys": ("bqhd,bkhd->bhqk", (2, 3, 2, 5), (2, 4, 2, 5)),
    "values": ("bhqk,bkhd->bqhd", (2, 2, 3, 4), (2, 4, 2, 5)),
    "ellipsis": ("...ij,...jk->...ik", (2, 3, 4, 5), (2, 3, 5, 6)),
    "ellipsis, one side": ("...j,jk->...k", (2, 3, 5), (5, 6)),
    "implicit output": ("ij,jk", (5, 7), (7, 6)),
    "batch last": ("ijb,jkb->bik", (4, 5, 3), (5, 6, 3)),
    "inner product": ("i,i->", (9,), (9,)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "form", "stored"), turns(CASES, FORMS, ["neither", "left", "right"]))
def test_a_product_by_any_letters(tmp_path: Path, case: str, form: Any, stored: str) -> None:
    equation, a, b = CASES[case]
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation, name="sum")
    shapes = {"a": a, "b": b}
    kept = {"neither": (), "left": ("a",), "right": ("b",)}[stored]
    weights = {name: weight(*shapes[name]) for name in kept}
    feeds = {name: shape for name, shape in shapes.items() if name not in kept}
    source = save(tmp_path / "a.onnx", [node], feeds, weights)
    session = tile_and_compare(source, tmp_path / "b.onnx", TileSpec((2, 3, 4), form=form))
    evidence = session.verify()
    assert evidence.passed, evidence.verdict
    assert len(evidence.sites) == 1
    plan = session.history().entries[1].plan
    assert plan is not None
    assert plan.macs == plan.macs_total


@pytest.mark.parametrize(
    ("equation", "shapes", "words"),
    [
        ("ii,ij->ij", [(4, 4), (4, 5)], "diagonal"),
        ("ij,ij->ij", [(4, 5), (4, 5)], "without a sum"),
        ("ij,kl->ik", [(4, 5), (6, 7)], "sums over an axis of a single operand"),
    ],
)
def test_what_is_no_product_is_left(tmp_path: Path, equation: str, shapes: Any, words: str) -> None:
    node = helper.make_node("Einsum", ["a", "b"], ["y"], equation=equation)
    source = save(tmp_path / "a.onnx", [node], dict(zip("ab", shapes, strict=True)), {})
    with Session(source) as session, pytest.raises(Misuse, match=words):
        session.plan(TileSpec())


def test_open_letters_stay_open(tmp_path: Path) -> None:
    node = helper.make_node("Einsum", ["q", "k"], ["y"], equation="bqhd,bkhd->bhqk", name="scores")
    source = save(tmp_path / "a.onnx", [node], {"q": ["n", "s", 2, 5], "k": ["n", "t", 2, 5]}, {})
    target = str(tmp_path / "b.onnx")
    with Session(source) as session:
        result = session.tile(TileSpec((4, 3, 2)), output=target)
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert result.plan.sites[0].dynamic == ("batch", "M", "N")
    onnx.checker.check_model(target, full_check=True)
    rng = np.random.default_rng(0)
    for n, s, t in ((1, 1, 1), (3, 5, 4), (2, 9, 7)):
        feeds = {"q": rng.standard_normal((n, s, 2, 5)), "k": rng.standard_normal((n, t, 2, 5))}
        given = {name: value.astype(np.float32) for name, value in feeds.items()}
        np.testing.assert_allclose(run(target, given), run(source, given), rtol=2e-5, atol=2e-5)
