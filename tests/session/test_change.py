"""The one transaction: whatever the change, its result is whole and in the history, or nothing is left."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from explorer import (
    Cancelled,
    EditStep,
    InferSpec,
    Misuse,
    PartSpec,
    PassSpec,
    QuantizeSpec,
    Session,
    TileSpec,
)
from explorer.base.features import list_offers
from explorer.facts.change import ProofRequest
from explorer.facts.quantize import QuantizeRequest
from explorer.facts.split.edit import EditSpec
from explorer.facts.split.fold import FoldSpec
from explorer.passes import graph_pass

ROOT = Path(__file__).parents[2] / "sample_models"
OPTIONS: dict[str, Any] = {
    "tile": TileSpec(tile=(16, 16, 16)),
    "quantize": QuantizeRequest(QuantizeSpec("int8", "int8"), draws=1),
    "fold": FoldSpec(),
    "edit": EditSpec((EditStep("rename", "/conv1/Conv", "first"), EditStep("rename", "first", "second"))),
    "extract": PartSpec(layers=("/conv1/Conv",)),
    "infer": InferSpec(),
    "apply": PassSpec("rename-nodes"),
}
"""Of each change options that do something to the sample of its name."""
SAMPLES = {"fold": "mobilenet_small.onnx"}


@graph_pass("rename-nodes", "numbers all nodes")
def rename_nodes(model: Any) -> Any:
    for number, node in enumerate(model.graph.node):
        node.name = f"node{number}"
    return model


@pytest.fixture(params=sorted(OPTIONS))
def change(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def session(change: str, tmp_path: Path) -> Iterator[Session]:
    folder = tmp_path / "states"
    folder.mkdir()
    with Session(ROOT / SAMPLES.get(change, "lenet.onnx"), workdir=folder) as opened:
        yield opened


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def test_every_change_is_tried_here() -> None:
    assert set(OPTIONS) == set(list_offers("changes"))


def test_what_is_made_is_the_current_state_with_its_record_and_what_made_it(
    session: Session, change: str, tmp_path: Path
) -> None:
    session.do(change, OPTIONS[change])
    history = session.history()
    made = history.entries[1:]
    assert history.current == len(made)
    assert {entry.change for entry in made} == {change}
    assert all(entry.record is not None for entry in made)
    assert files(tmp_path / "states") == sorted(Path(entry.path or "").name for entry in made)


def test_a_state_that_was_gone_back_to_is_changed_and_the_others_stay(session: Session, change: str) -> None:
    session.do(change, OPTIONS[change])
    states = len(session.history().entries)
    session.do(change, OPTIONS[change], state=0, proof=ProofRequest(verify=False))
    assert session.history().parent(states) == 0
    assert len(session.history().entries) == 2 * states - 1


@pytest.mark.parametrize("asked", [1, 2, 3])
def test_a_change_that_is_stopped_leaves_nothing(
    session: Session, change: str, tmp_path: Path, asked: int
) -> None:
    before, calls = session.history(), iter(range(1000))

    def cancel() -> bool:
        return next(calls) >= asked - 1

    with pytest.raises(Cancelled):
        session.do(change, OPTIONS[change], output=str(tmp_path / "out.onnx"), cancel=cancel)
    assert session.history() == before
    assert files(tmp_path) == []


def test_a_step_that_fails_takes_those_before_it_along(tmp_path: Path) -> None:
    steps = EditSpec((EditStep("rename", "/conv1/Conv", "first"), EditStep("rename", "nothing", "x")))
    with Session(ROOT / "lenet.onnx", workdir=tmp_path) as session:
        with pytest.raises(Misuse, match="nothing"):
            session.do("edit", steps)
        assert len(session.history().entries) == 1
    assert files(tmp_path) == []


def test_a_file_that_is_there_is_replaced_when_that_is_said_alone(
    session: Session, change: str, tmp_path: Path
) -> None:
    target = tmp_path / "out.onnx"
    target.write_bytes(b"mine")
    with pytest.raises(Misuse, match="exists"):
        session.do(change, OPTIONS[change], output=str(target))
    assert target.read_bytes() == b"mine"
    assert len(session.history().entries) == 1
    session.do(change, OPTIONS[change], output=str(target), overwrite=True)
    assert target.stat().st_size > 100


def test_options_of_another_change_and_no_change_are_one_line(session: Session, change: str) -> None:
    other = next(name for name in OPTIONS if name != change)
    with pytest.raises(Misuse, match="are not options of it"):
        session.do(change, OPTIONS[other])
    with pytest.raises(Misuse, match="there is no change 'no_such_change'"):
        session.do("no_such_change", OPTIONS[change])
