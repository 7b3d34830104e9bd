"""Rows that are packed are the same rows, and only those that are looked at are taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from msgspec.structs import replace

from explorer.facts import Layer
from explorer.session.cache.rows import (
    COLUMNS,
    PAGE_ROWS,
    RANGE,
    RowPages,
    build_structure,
    pack,
    split_structure,
)
from tests.tui.scripted import alexnet, blocks, flat


def sent(layers: Sequence[Layer]) -> RowPages:
    """Rows on the other side of a pipe."""
    rows = RowPages()
    for page in pack(layers):
        rows.add(page)
    for chunk in split_structure(build_structure(layers)):
        rows.add(chunk)
    return rows


def test_packed_rows_are_the_rows() -> None:
    for layers in (alexnet().layers, blocks(40).layers, ()):
        rows = sent(layers)
        assert len(rows) == len(layers)
        assert rows == layers
        assert tuple(rows) == layers
        assert rows[3:17] == layers[3:17]
        assert rows[::-5] == layers[::-5]
        assert [rows[i] for i in range(-len(layers), 0)] == list(layers)


def test_rows_whose_numbers_are_not_their_places_come_back_too() -> None:
    some = tuple(alexnet().layers[at] for at in (5, 3, 4, 11))
    far = tuple(replace(layer, id=layer.id + (1 << 40), parent=1 << 41) for layer in some)
    for layers in (some, far):
        rows = RowPages()
        for chunk in pack(layers):
            rows.add(chunk)
        rows.structure = build_structure(some)
        assert tuple(rows) == layers


def test_a_page_that_is_like_the_first_takes_a_third_of_its_room() -> None:
    pages = [len(chunk.data) for chunk in pack(flat(40 * PAGE_ROWS).layers)]
    assert max(pages[1:]) < pages[0] / 1.5


def test_a_row_that_is_looked_at_takes_one_page_out_and_once() -> None:
    rows = sent(flat(20 * PAGE_ROWS).layers)
    assert rows.decompressed_count == 0
    assert rows[5 * PAGE_ROWS].name == f"node_{5 * PAGE_ROWS}"
    assert rows[5 * PAGE_ROWS + 1].name == f"node_{5 * PAGE_ROWS + 1}"
    assert rows.decompressed_count == 1
    assert rows[7 * PAGE_ROWS].name == f"node_{7 * PAGE_ROWS}"
    assert rows.decompressed_count == 2


def test_paths_are_found_without_taking_all_rows_apart() -> None:
    layers = blocks(40).layers
    rows = sent(layers)
    wanted = [layers[at].path for at in (0, 7, 90, len(layers) - 1)]
    assert rows.find_rows([*wanted, "nowhere"]) == {
        path: rows[:][at].id for at, path in zip((0, 7, 90, len(layers) - 1), wanted, strict=True)
    }
    assert rows.find_rows([]) == {}


def test_attributes_come_back_as_they_were_to_the_type() -> None:
    odd = {
        "list": [1, (2, [3])],
        "tuple": (1, [2]),
        "text": "é",
        "bytes": b"\xff",
        "none": None,
        "map": {"a": [True]},
    }
    for value in (odd, {"large": 3 << 70}, {"kind": {1, 2}}, {"float": 1.0, "whole": 1, "nought": -0.0}):
        layers = tuple(replace(layer, attributes=value) for layer in flat(3).layers)
        assert repr(tuple(sent(layers))) == repr(layers)


def test_what_was_taken_out_long_ago_is_not_kept() -> None:
    rows = sent(flat(200 * PAGE_ROWS).layers)
    for at in range(0, len(rows), PAGE_ROWS):
        assert rows[at].id == at
    assert len(rows._bodies) <= 128
    assert len(rows._decoded) <= 1_024


def test_rows_take_a_fraction_of_the_bytes_that_they_are() -> None:
    import pickle

    layers = blocks(2_000).layers
    assert sent(layers).packed_bytes < len(pickle.dumps(layers)) / 2


def test_the_structure_has_every_figure_of_the_columns() -> None:
    layers = blocks(7).layers
    found = sent(layers).structure
    for name in COLUMNS:
        known = [getattr(layer, name) for layer in layers]
        assert [None if value < 0 else value for value in found.columns[name]] == known


def test_figures_beyond_64_bits_stay_exact() -> None:
    huge = 3 << 70
    layers = tuple(replace(layer, macs=huge + layer.id) for layer in flat(3).layers)
    found = sent(layers).structure
    assert list(found.columns["macs"]) == [huge, huge + 1, huge + 2]
    assert "macs" in found.known_columns


def test_no_piece_of_a_large_structure_is_large() -> None:
    found = build_structure(flat(60_000).layers)
    sizes = [len(chunk.data) for chunk in split_structure(found) if chunk.code]
    assert max(sizes) <= 1 << 18
    assert len(found.wide[-1]) == 60_000 // RANGE


def test_every_block_of_a_run_knows_its_place() -> None:
    found = build_structure(blocks(5).layers)
    assert [found.repeat[at] for at in (1, 4, 7, 10, 13)] == [5, -1, -2, -3, -4]
    assert found.end[0] == 16
    assert found.end[1] == 4


@pytest.mark.slow
def test_a_sample_comes_through_the_engine_packed(sample: Callable[[str], str]) -> None:
    from explorer import Session
    from explorer.process.client import EngineProcess

    engine = EngineProcess(sample("bert_tiny"))
    try:
        layers = engine.submit("analysis").future.result(120).layers
        assert isinstance(layers, RowPages)
        assert layers.decompressed_count == 0
        with Session(sample("bert_tiny")) as session:
            assert layers == session.analysis().layers
        paths = [layers[7].path, layers[20].path, "nowhere"]
        assert engine.submit("locate", paths).future.result(120) == {paths[0]: 7, paths[1]: 20}
    finally:
        engine.close()
