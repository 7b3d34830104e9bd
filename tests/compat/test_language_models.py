"""Prompt, decode step and serving of eight transformers architectures: the same figures in every version."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from explorer import Session
from explorer.cli.main import main
from explorer.facts.serving.spec import ServingSpec
from tests.compat.language_models import MODELS, Figures, Model

CONTEXT = 24


def folder(path: Path, model: Model, dtype: str) -> str:
    (path / "config.json").write_text(json.dumps({**model.config, "model_type": model.name, "dtype": dtype}))
    return str(path)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_model_has_its_figures_in_both_types(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path, model, "bfloat16")
    with Session(path) as session:
        half = session.info().totals
    path = folder(tmp_path, model, "float32")
    with Session(path) as session:
        prompt = session.info().totals
        fact = session.serving(ServingSpec(16, (CONTEXT,), (1,)))
    assert main(["info", path, "--decode", "--past", str(CONTEXT), "--json", "--quiet"]) == 0
    step = json.loads(capsys.readouterr().out)["totals"]
    assert half.macs == prompt.macs
    assert half.coverage == prompt.coverage == step["coverage"] == 1
    assert prompt.macs is not None
    assert Figures(prompt.macs, fact.decode_macs.text, step["macs"], fact.cache.bytes.text) in model.figures
