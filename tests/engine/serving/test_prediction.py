"""Times are predicted from kernels that were measured, beside bounds, in the type that those are of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from explorer.cli import main
from explorer.facts.profile.machine import MeasuredMachine
from explorer.facts.serving.serving import Serving
from explorer.facts.serving.spec import ServingSpec
from explorer.host import processor
from explorer.session import Session
from explorer.settings import machine_file, machines
from tests.engine.profile.measure.test_machine import Machine as Clockwork
from tests.engine.serving.test_sweep import configured

SPEC = ServingSpec(24, (40, 80), (1, 16))


@pytest.fixture(scope="module")
def usual() -> MeasuredMachine:
    return Clockwork().measured()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usual: MeasuredMachine) -> str:
    """The name of a machine that was measured: 100 GMAC/s in float32, 50 GB/s."""
    monkeypatch.setenv("EXPLORER_CONFIG", str(tmp_path / "config.toml"))
    machine_file.save_measured("here", replace(usual, processor=processor.name()))
    return "here"


def served(source: str, name: str, dtype: str = "") -> Serving:
    with Session(source) as session:
        return session.serving(replace(SPEC, dtype=dtype), machine=machines.find(name, None, None))


@pytest.mark.slow
def test_predictions_stand_beside_bounds_which_no_kernel_passes(tmp_path: Path, here: str) -> None:
    fact = served(configured(tmp_path / "model", hidden_size=512, intermediate_size=1024), here, "f32")
    assert [(one.context, one.batch) for one in fact.times] == [(40, 1), (40, 16), (80, 1), (80, 16)]
    for one in fact.times:
        assert one.token is not None
        assert one.first_token is not None
        assert one.token_predicted is not None
        assert one.first_token_predicted is not None
        assert one.token <= one.token_predicted < 100 * one.token
        assert one.first_token <= one.first_token_predicted < 100 * one.first_token
    # sixteen sequences multiply sixteen times as much, and read the weights once
    few, many = (one.token_predicted or 0 for one in fact.times[:2])
    assert few < many < 16 * few
    assert "predicted times are those of the kernels of onnxruntime" in fact.notes[-1]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bf16", "int8"])
def test_nothing_is_predicted_of_another_type_than_was_measured(
    tmp_path: Path, here: str, dtype: str
) -> None:
    fact = served(configured(tmp_path / "model"), here, dtype)
    assert {(one.first_token_predicted, one.token_predicted) for one in fact.times} == {(None, None)}
    assert all(one.token for one in fact.times)
    assert "no time is predicted: some layers have no kernel like the measured ones" in fact.notes[-1]


@pytest.mark.slow
def test_no_step_of_several_sequences_is_predicted_of_code_that_mixes_them(tmp_path: Path, here: str) -> None:
    sizes = dict.fromkeys(("hidden_size", "attention_hidden_size", "intermediate_size"), 64)
    config = {"model_type": "rwkv", "vocab_size": 128, "num_hidden_layers": 2, **sizes}
    (tmp_path / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    fact = served(str(tmp_path), here)
    assert [one.token_predicted is None for one in fact.times] == [False, True, False, True]
    assert None not in {one.first_token_predicted for one in fact.times}


@pytest.mark.slow
def test_bounds_of_another_machine_stay_alone(
    tmp_path: Path, here: str, capsys: pytest.CaptureFixture[str]
) -> None:
    source = configured(tmp_path / "model", dtype="float32")
    words = ["serving", source, "--prompt", "24", "--context", "40", "--machine"]
    assert main.main([*words, here]) == 0
    assert "predicted" in capsys.readouterr().out
    assert main.main([*words, "h100", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {row["token_predicted"] for row in found["times"]} == {None}
    assert not any("predicted" in note for note in found["serving"]["notes"])
