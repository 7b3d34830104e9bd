"""Prompt, decode step and serving of eight transformers architectures: the same figures in every version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from explorer import Session
from explorer.cli.main import main
from explorer.facts.serving.spec import ServingSpec
from tests.compat.language_models import MODELS, Model

CONTEXT = 24


@pytest.fixture(params=["float32", "bfloat16"])
def dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_counts_what_every_version_counts(model: Model, dtype: str, tmp_path: Path) -> None:
    config = {**model.config, "model_type": model.name, "dtype": dtype}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with Session(str(tmp_path)) as session:
        totals = session.info().totals
        assert (totals.macs, totals.coverage) == (model.prompt_macs, 1)
        fact = session.serving(ServingSpec(16, (CONTEXT,), (1,)))
    assert fact.decode_macs.text == model.step_macs
    assert fact.cache.bytes.text == (model.cache_bytes if dtype == "float32" else model.half_cache_bytes)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_step_behind_a_cache_is_counted(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(
        json.dumps({**model.config, "model_type": model.name, "dtype": "float32"})
    )
    words = ["info", str(tmp_path), "--decode", "--past", str(CONTEXT), "--json", "--quiet"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["totals"]["macs"] == model.step
