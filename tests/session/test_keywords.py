"""The types of shared keywords name exactly what the functions behind them accept."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import get_type_hints

import pytest

from explorer import Session
from explorer.base.errors import Misuse
from explorer.cli.main import main
from explorer.engine.evaluate.train import TrainingOptions
from explorer.features.sweep import sweep as sweeps
from explorer.features.sweep.sweep_methods import sweep
from explorer.features.training.train import train_module
from explorer.session.parts import keywords


def parameters(function: object) -> set[str]:
    """Names of the keywords that a function takes by name."""
    named = inspect.signature(function).parameters.values()  # type: ignore[arg-type]
    return {p.name for p in named if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}


OPENING = parameters(Session.__init__) - {"self", "source"}


@pytest.mark.parametrize(
    ("kind", "accepted"),
    [
        (keywords.OpeningKeywords, OPENING),
        (keywords.PairKeywords, OPENING - {"seed"}),
        (keywords.SweepKeywords, OPENING | parameters(sweep) - {"session", "spec"} | {"first_seed"}),
        (
            keywords.TrainingKeywords,
            parameters(train_module) - {"models", "data"}
            | {*TrainingOptions.__struct_fields__} - {"save_to"},
        ),
        (
            keywords.TrainingSweepKeywords,
            parameters(sweeps.sweep_trainings) - {"session", "models", "data", "over", "reopen"}
            | {"labels", "inputs", "held", "task"},
        ),
    ],
)
def test_typed_keywords_are_those_that_are_accepted(kind: type, accepted: set[str]) -> None:
    assert {*get_type_hints(kind)} == accepted


@pytest.mark.parametrize(
    ("source", "shape"), [("lenet.onnx", (3, 1, 28, 28)), ("mobilenet_small.onnx", None)]
)
def test_a_shape_without_a_name_is_that_of_the_only_input(
    source: str, shape: tuple[int, ...] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(Path(__file__).parent.parent.parent / "sample_models" / source)
    with Session(path) as session:
        (only,) = session.info().model.inputs
    sizes = shape or tuple(size if isinstance(size, int) else 1 for size in only.shape or ())
    for _ in range(2):  # the second analysis comes from the cache
        assert main(["info", path, "--input-shape", ",".join(map(str, sizes)), "--json"]) == 0
        assert f'"shape": {json.dumps(list(sizes))}'.replace(" ", "") in capsys.readouterr().out.replace(
            " ", ""
        ).replace("\n", "")


def test_a_shape_without_a_name_is_refused_for_several_inputs(capsys: pytest.CaptureFixture[str]) -> None:
    path = str(Path(__file__).parent.parent.parent / "sample_models" / "three_inputs.onnx")
    assert main(["info", path, "--input-shape", "1,3"]) == 2
    error = capsys.readouterr().err
    assert "the model has 3 inputs" in error
    assert "image0:" in error


def test_a_shape_without_a_name_is_that_of_the_only_input_of_a_module() -> None:
    torch = pytest.importorskip("torch")
    with Session(torch.nn.Linear(4, 2), input_shapes={"": (None, (7, 4))}) as session:
        assert session.info().totals.macs == 7 * 8
    with (
        Session(torch.nn.Bilinear(2, 3, 4), input_shapes={"": (None, (1, 2))}) as session,
        pytest.raises(Misuse, match="has 2 inputs"),
    ):
        session.info()
