"""A whole quantized network: one call tiles it, proves it and says what changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from explorer import Session, TileSpec
from explorer.session import diff_files
from tests.engine.tiling.quantized_models import quantized, resnet18

pytest.importorskip("torch")
pytest.importorskip("torchvision")


@pytest.fixture(scope="module")
def floats(tmp_path_factory: pytest.TempPathFactory) -> str:
    return resnet18(tmp_path_factory.mktemp("resnet18"))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "verdict"), [("QOperator", "equal bit for bit"), ("QDQ", "equal")])
def test_an_8_bit_resnet18_is_tiled_and_proven(floats: str, tmp_path: Path, kind: str, verdict: str) -> None:
    source, target = quantized(floats, tmp_path, kind), str(tmp_path / "tiled.onnx")
    result = Session(source).tile(TileSpec((64, 64, 64)), output=target, verify=True)
    assert result.verification is not None
    assert result.verification.passed, result.verification.verdict
    assert result.verification.verdict.startswith(verdict)
    assert len(result.plan.sites) == 21
    assert not result.plan.skipped
    assert {site.dtype for site in result.plan.sites} == {"int8"}
    assert result.plan.macs == result.plan.macs_total
    assert all("exact integer arithmetic" in site.reason for site in result.verification.sites)
    tiled = Session(target).info().tiled
    assert tiled is not None
    assert tiled.share == 1.0
    changed = diff_files(source, target)
    assert sum(change.status == "tiled" for change in changed.nodes) == 21
