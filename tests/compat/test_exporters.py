"""A module written by both of torch's ONNX exporters, as a program and as TorchScript: the same results."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from explorer import Session, TileSpec  # noqa: E402
from tests.engine.convert.nets import Small  # noqa: E402

#: 3 x 3 x 1 x 4 at each of 12 x 12 places, then 4 x 10
MACS = 9 * 4 * 144 + 40


def converted(output: Path, **options: str) -> Path:
    torch.manual_seed(0)
    with Session(Small().eval(), inputs=torch.rand(1, 1, 12, 12)) as session:
        fact = session.convert(str(output), **options)
    assert fact.verification is not None
    assert fact.verification.passed
    return output


@pytest.mark.parametrize("exporter", ["dynamo", "torchscript"])
def test_an_exporter_writes_a_model_that_computes_the_same(exporter: str, tmp_path: Path) -> None:
    path = converted(tmp_path / "small.onnx", exporter=exporter)
    with Session(str(path)) as session:
        assert session.info().totals.macs == MACS
        tiled = session.tile(TileSpec(tile=(64, 64, 64)), output=str(tmp_path / "tiled.onnx"))
    assert tiled.verification is not None
    assert tiled.verification.passed


@pytest.mark.parametrize("name", ["small.pt2", "small.pt"])
def test_torchs_own_files_are_written_and_read_back(name: str, tmp_path: Path) -> None:
    path = converted(tmp_path / name)
    with Session(str(path)) as session:
        totals = session.info().totals
    assert (totals.params, totals.macs) == (9 * 4 + 4 + 40 + 10, MACS)
