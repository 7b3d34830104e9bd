"""What a header says is on show before the model is analyzed, and the rows are those that follow."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer import Session
from explorer.base.errors import BadModel
from explorer.base.outline import Outline, OutlineRow
from explorer.process import preview
from explorer.process.client import EngineProcess, TreePreview
from explorer.session.cache.rows import RowPages
from explorer.tui.tree.model import TreeModel
from explorer.tui.tree.rows import METRICS

LAYERS = 12


def tensors(path: Path, layers: int = LAYERS) -> str:
    """A safetensors file: blocks of two tensors each, and one of its own."""
    names = [f"model.layers.{i}.{name}" for i in range(layers) for name in ("a.weight", "b.bias")]
    header: dict[str, Any] = {}
    for at, name in enumerate([*names, "head.weight"]):
        header[name] = {"dtype": "F32", "shape": [2, 3], "data_offsets": [24 * at, 24 * at + 24]}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(24 * len(header)))
    return str(path)


def stages(source: str) -> list[tuple[RowPages, str]]:
    """What is sent of a source: rows, and how far they go."""
    rows = RowPages()
    found: list[tuple[RowPages, str]] = []
    grown = rows.without_structure()
    sent: list[tuple[str, Any]] = []
    preview.send(source, sent.append)
    assert sent[-1] == ("end", None)
    for kind, content in sent:
        if kind == "rows":
            for piece in content:
                rows.add(piece)
        elif kind == "tree":
            piece, far = content
            grown.add(piece)
            if far:
                found.append((grown, far))
                grown = rows.without_structure()
    return found


def test_what_a_header_does_not_say_is_unknown_and_not_0(tmp_path: Path) -> None:
    folder = tmp_path / "config_only"
    folder.mkdir()
    (folder / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"]})
    )
    for rows, _ in stages(str(folder)):
        model = TreeModel(rows)
        for row in range(model.count):
            assert [model.figure(row, metric)[0] for metric in METRICS] == [None] * len(METRICS)


def test_the_rows_of_a_header_are_those_of_the_analysis(tmp_path: Path) -> None:
    source = tensors(tmp_path / "some.safetensors")
    ((rows, far),) = stages(source)
    assert far == "all known"
    with Session(source) as session:
        analysis = session.analysis()
    assert rows.with_sums(analysis.layers[0].reason) == analysis.layers


def test_blocks_in_a_header_fold_like_those_of_an_analysis(tmp_path: Path) -> None:
    ((rows, _),) = stages(tensors(tmp_path / "some.safetensors"))
    model = TreeModel(rows)
    run = next(row for row in model.rows if row < 0)
    assert len(model.members(run)) == LAYERS
    assert model.figure(run, model.metric) == (LAYERS * 12, "")
    assert model.metric.id == "params"


def test_operators_of_a_header_lie_in_the_groups_of_the_analysis(sample: Callable[[str], str]) -> None:
    ((rows, _),) = stages(sample("mobilenet_small"))
    with Session(sample("mobilenet_small")) as session:
        layers = session.analysis().layers
    assert [row.path for row in rows if not row.group] == [x.path for x in layers if not x.group]
    assert {row.path for row in rows if row.group} == {x.path for x in layers if x.group}
    # nothing that a header does not tell is given as a number
    assert rows.structure.known_columns == ()
    assert all(row.status == "unknown" for row in rows)


@pytest.mark.slow
def test_a_long_header_comes_in_pieces_of_which_the_first_is_small(tmp_path: Path) -> None:
    source = tensors(tmp_path / "long.safetensors", 4_000)
    found = stages(source)
    counts = [len(rows) for rows, _ in found]
    assert counts[0] <= 1_024
    assert counts == sorted(counts)
    assert [far for _, far in found][-1] == "all known"
    with Session(source) as session:
        assert counts[-1] == len(session.analysis().layers)
    # a row keeps its number while more come
    first, last = found[0][0], found[-1][0]
    assert [first[i].path for i in range(200)] == [last[i].path for i in range(200)]


@pytest.mark.slow
def test_a_tree_that_grows_stays_open_where_it_was(tmp_path: Path) -> None:
    found = stages(tensors(tmp_path / "long.safetensors", 4_000))
    before, after = TreeModel(found[0][0]), TreeModel(found[-1][0])
    at = next(i for i, row in enumerate(before.rows) if row < 0)
    before.toggle(at)
    block = before.rows[at + 1]
    before.toggle(at + 1)
    after.grow_from(before)
    assert after.index_of(block, -1) >= 0
    assert after.is_open(block)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("content", [b"", b"nonsense", b"\x08\x09:\x05abc"])
def test_what_has_no_header_says_nothing_and_opening_says_why(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "broken.onnx"
    path.write_bytes(content)
    assert not stages(str(path))
    engine = EngineProcess(str(path))
    try:
        assert engine.submit("open").future.exception(60) is not None
        assert engine.request_outline(0).result(120) is None
    finally:
        engine.close()


def test_of_a_file_that_was_cut_off_the_layers_before_the_cut_are_shown(
    tmp_path: Path, sample: Callable[[str], Path]
) -> None:
    path = tmp_path / "cut.onnx"
    path.write_bytes(Path(sample("mobilenet_small")).read_bytes()[:-1_000])
    ((rows, far),) = stages(str(path))
    ((whole, _),) = stages(str(sample("mobilenet_small")))
    assert far == "all"
    assert [row.path for row in rows] == [row.path for row in whole]
    with pytest.raises(BadModel, match="truncated"), Session(path) as session:
        session.info()


def test_a_broken_file_of_tensors_is_never_all_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(source: str) -> Outline:
        def rows() -> Iterator[OutlineRow]:
            yield OutlineRow("a", "tensor", "float32", (2,), 8)
            raise BadModel("it ends here", where=source)

        return Outline("safetensors", source, 8, (), rows())

    monkeypatch.setattr(preview.headers, "read_outline", broken)
    ((rows, far),) = stages("any")
    assert far == "all"
    assert [row.path for row in rows] == ["a"]


def test_the_engine_reads_the_header_beside_whatever_it_does_first(tmp_path: Path) -> None:
    source = tensors(tmp_path / "some.safetensors")
    engine = EngineProcess(source)
    try:
        engine.start()
        seen = engine.request_outline(0).result(120)
        assert isinstance(seen, TreePreview)
        assert seen.is_complete
        assert seen.plain
        assert seen.header.format == "safetensors"
        # model, layers; of each block itself, a and b with a tensor each; head and its tensor
        assert len(seen.rows) == 2 + 5 * LAYERS + 2
        assert engine.request_outline(1).result(120) is None
    finally:
        engine.close()


def test_whoever_waits_for_the_header_of_an_engine_that_ends_is_told(tmp_path: Path) -> None:
    engine = EngineProcess(tensors(tmp_path / "some.safetensors"))
    engine.start()
    engine.close()
    for at in range(4):
        engine.request_outline(at).result(120)
    assert engine.request_outline(4).result(120) is None
