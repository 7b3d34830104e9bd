"""Weights on demand: which are meant, which are tied, which are equal by chance; none is read whole."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from explorer.base.errors import Cancelled, Misuse
from explorer.engine.models.tensors import TensorFile
from explorer.engine.values.numbers import SLAB, Numbers, make_slabs
from explorer.engine.values.weights import measure_weights
from explorer.facts import Layer, Progress, TensorInfo, TileSpec
from explorer.session import Session


def numbers(name: str, array: Any, **more: Any) -> Numbers:
    more.setdefault("identity", name)
    return Numbers(name, str(array.dtype), array.shape, array.nbytes, make_slabs(array), **more)


def layer(at: int, path: str, *names: str, parent: int | None = None, group: bool = False) -> Layer:
    held = tuple(TensorInfo(n, "float32", (2,)) for n in names)
    return Layer(at, parent, path, path, "Conv", 0, group, weights=held)


ONES = np.ones(6, np.float32)


def test_tied_names_and_equal_bytes_are_told_apart() -> None:
    found = measure_weights(
        [
            numbers("embed", ONES, identity=1),
            numbers("head", ONES, identity=1),
            numbers("copy", ONES.copy(), identity=2),
            numbers("other", 2 * ONES, identity=3),
            numbers("reshaped", ONES.reshape(2, 3), identity=4),
            numbers("retyped", np.ones(6, np.int32), identity=5),
        ]
    )
    assert found.tied == (("embed", "head"),)
    assert found.duplicates == (("embed", "copy"),)
    assert [t.tensor.name for t in found.tensors] == ["embed", "copy", "other", "reshaped", "retyped"]


def test_only_what_was_asked_for_is_called_tied_or_equal() -> None:
    held = [
        numbers("a", ONES, identity=1),
        numbers("b", ONES, identity=1),
        numbers("c", ONES, identity=3),
        numbers("d", 2 * ONES),
    ]
    found = measure_weights(held, ["d"])
    assert (found.tied, found.duplicates) == ((), ())


def test_equal_numbers_of_other_bits_are_no_duplicates() -> None:
    """0.0 and -0.0 compare equal; the bytes differ, and so does what 1/x makes of them."""
    zero = np.zeros(4, np.float32)
    assert not measure_weights([numbers("a", zero), numbers("b", -zero)]).duplicates


@pytest.mark.slow
def test_large_tensors_that_differ_at_their_end_are_no_duplicates() -> None:
    a = np.zeros(SLAB // 4 + 8, np.float32)
    b = a.copy()
    b[-1] = 1
    assert not measure_weights([numbers("a", a), numbers("b", b)]).duplicates
    assert measure_weights([numbers("a", a), numbers("b", a.copy())]).duplicates == (("a", "b"),)


def test_globs_mean_tensors_layers_and_the_groups_around_them() -> None:
    rows = [
        layer(0, "block", group=True),
        layer(1, "/block/conv", "w", parent=0),
        layer(2, "/fc", "v"),
    ]
    held = [numbers("w", ONES), numbers("v", ONES)]

    def names(*globs: str) -> list[str]:
        return [t.tensor.name for t in measure_weights(held, globs, layers=rows).tensors]

    assert names("w") == names("/block/*") == names("block") == ["w"]
    assert names("/fc") == ["v"]
    assert names("v", "*conv") == ["w", "v"]
    assert names() == ["w", "v"]
    with pytest.raises(Misuse, match="did you mean '/fc'"):
        names("/fcc")


def test_an_alias_that_was_asked_for_is_shown_under_its_name() -> None:
    held = [numbers("embed", ONES, identity=1), numbers("head", ONES, identity=1)]
    found = measure_weights(held, ["head"])
    assert [t.tensor.name for t in found.tensors] == ["head"]
    assert found.tied == (("embed", "head"),)


def test_a_tensor_belongs_to_the_layer_that_uses_it() -> None:
    found = measure_weights([numbers("w", ONES, layer="/Transpose")], layers=[layer(0, "/MatMul", "w")])
    assert found.tensors[0].layer == "/MatMul"


def test_progress_counts_tensors_and_cancel_stops() -> None:
    seen: list[Progress] = []
    measure_weights([numbers("a", ONES), numbers("b", ONES)], on_progress=seen.append)
    assert [(p.done, p.total) for p in seen if p.total] == [(0, 2), (1, 2)]
    with pytest.raises(Cancelled):
        measure_weights([numbers("a", ONES)], cancel=lambda: True)


def test_a_session_shows_the_weights_of_an_onnx_file(sample: Any) -> None:
    with Session(sample("lenet")) as session:
        found = session.weights()
        assert sum(t.elements for t in found.tensors if t.tensor.dtype == "float32") == (
            session.info().totals.params
        )
        assert all(t.layer for t in found.tensors)
        (first, *_) = found.tensors
        again = session.weights([first.layer])
        assert first in again.tensors


def test_the_weights_of_a_tiled_model_are_those_of_the_tiled_file(sample: Any) -> None:
    """The columns of a scanned weight lie one behind the other: another tensor, the same numbers."""
    with Session(sample("mlp_128")) as session:
        whole = session.weights()
        session.tile(TileSpec((64, 64, 64), form="scan"), verify=False)
        tiled = session.weights()
        assert session.weights(index=0) == whole
        big = {t.tensor.shape: t for t in whole.tensors}[(128, 128)]
        cut = next(t for t in tiled.tensors if t.tensor.shape != (128, 128) and t.elements == 128 * 128)
        assert (cut.minimum, cut.maximum, cut.quantiles) == (big.minimum, big.maximum, big.quantiles)


def test_a_tensor_chosen_by_its_name_is_measured_without_the_tree(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "w.safetensors"
    names = ("block.0.weight", "block.0.bias", "block.1.weight", "block.1.weight.scale")
    save_file({name: np.full((2, 3), index, np.float32) for index, name in enumerate(names)}, path)
    with Session(str(path)) as session:
        every = {stats.tensor.name: stats for stats in session.weights(stat="var").tensors}
        in_group = session.weights(["block.1.weight"]).tensors
    assert [stats.tensor.name for stats in in_group] == ["block.1.weight", "block.1.weight.scale"]
    monkeypatch.setattr(TensorFile, "_create_rows", lambda self: pytest.fail("the tree was built"))
    with Session(str(path)) as session:
        chosen = session.weights(["block.0.weight", "block.0.bias"], stat="var")
    assert [every[name] for name in names[:2]] == sorted(
        chosen.tensors, key=lambda stats: names.index(stats.tensor.name)
    )
    assert {row.operator for row in chosen.statistics} == {"float32"}
