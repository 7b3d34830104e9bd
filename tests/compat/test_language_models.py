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


def folder(path: Path, model: Model, dtype: str) -> str:
    (path / "config.json").write_text(json.dumps({**model.config, "model_type": model.name, "dtype": dtype}))
    return str(path)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_a_prompt_is_counted_the_same_in_both_types(model: Model, tmp_path: Path) -> None:
    for dtype in ("float32", "bfloat16"):
        with Session(folder(tmp_path, model, dtype)) as session:
            totals = session.info().totals
        assert (totals.macs, totals.coverage) == (model.prompt_macs, 1)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_serving_and_a_step_behind_a_cache_have_the_same_figures(
    model: Model, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = folder(tmp_path, model, "float32")
    with Session(path) as session:
        fact = session.serving(ServingSpec(16, (CONTEXT,), (1,)))
    assert fact.cache.bytes.text == model.cache_bytes
    assert main(["info", path, "--decode", "--past", str(CONTEXT), "--json", "--quiet"]) == 0
    step = json.loads(capsys.readouterr().out)["totals"]["macs"]
    assert (fact.decode_macs.text, step) in model.steps
