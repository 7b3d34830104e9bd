"""Rows that were made are there for good, as they were, and nobody's file is lost for them."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine.sweep.store import Store, is_store
from explorer.facts.sweep import SweepRow

ROW = SweepRow(
    key="k1",
    model="a.onnx",
    fingerprint="f" * 64,
    opening="--dim batch=8",
    tile=(16, 32, 64),
    edges="ragged",
    form="auto",
    grouped="leave",
    hardware="npu: 4,096 MACs/cycle",
    sites=3,
    products=14_336,
    utilisation=1 / 3,
    traffic=1 << 70,  # more than SQLite's integers hold
    fits=False,
    seconds=1e-9,
    verified=True,
    verdict="equal; 'quoted' \x1b[1m",
    worst_error=float("inf"),
)


def test_a_row_comes_back_as_it_was_kept(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    unknown = SweepRow("k2", "b", "", "", (1, 2, 3), "padded", "lab", "pack", error="no product")
    with Store(SweepRow, path) as store:
        store.add([ROW, unknown])
    with Store(SweepRow, path) as store:
        assert list(store.rows()) == [ROW, unknown]
        assert list(store.rows(["k2", "none", "k1"])) == [unknown, ROW]


def test_a_row_that_is_made_again_replaces_the_one_before(tmp_path: Path) -> None:
    with Store(SweepRow, str(tmp_path / "results.db")) as store:
        store.add([ROW])
        store.add([replace(ROW, cycles=7)])
        assert [row.cycles for row in store.rows()] == [7]


def test_rows_are_kept_all_or_none(tmp_path: Path) -> None:
    with Store(SweepRow, str(tmp_path / "results.db")) as store:
        with pytest.raises(Misuse):
            store.add([ROW, replace(ROW, key="k2", model=object())])  # type: ignore[arg-type]
        assert not list(store.rows())


def test_other_programs_read_the_file(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    with Store(SweepRow, path) as store:
        store.add([ROW])
    found = sqlite3.connect(path)
    assert found.execute("select tile, products, verified from rows").fetchall() == [
        ("[16,32,64]", 14_336, 1)
    ]
    found.close()
    assert is_store(path)


@pytest.mark.parametrize("kind", ["text", "another database", "folder", "no folder"])
def test_a_file_that_is_no_sweeps_is_left_alone(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "precious"
    if kind == "text":
        path.write_text("my notes")
    elif kind == "another database":
        other = sqlite3.connect(path)
        other.execute("create table photos (name)")
        other.commit()
        other.close()
    elif kind == "folder":
        path.mkdir()
    else:
        path = tmp_path / "nowhere" / "results.db"
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(Misuse):
        Store(SweepRow, str(path))
    assert (path.read_bytes() if path.is_file() else None) == before
    assert not is_store(str(path))


def test_a_file_of_another_version_is_left_alone(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    with Store(SweepRow, path) as store:
        store.add([ROW])
    with contextlib.closing(sqlite3.connect(path)) as later:
        later.execute("PRAGMA user_version=2")
    with pytest.raises(Misuse, match="another version"):
        Store(SweepRow, path)


def test_two_sweeps_may_share_a_file(tmp_path: Path) -> None:
    path = str(tmp_path / "results.db")
    with Store(SweepRow, path) as one, Store(SweepRow, path) as two:
        one.add([ROW])
        two.add([replace(ROW, key="k2")])
        assert [row.key for row in one.rows()] == ["k1", "k2"]
