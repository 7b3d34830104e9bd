"""The types of shared keywords name exactly what the functions behind them accept."""

from __future__ import annotations

import inspect
from typing import get_type_hints

import pytest

from explorer import Session
from explorer.engine.evaluate.train import TrainingOptions
from explorer.features.sweep import sweep as sweeps
from explorer.features.sweep.sweep_methods import sweep
from explorer.features.training.train import trained
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
            parameters(trained) - {"models", "data"} | {*TrainingOptions.__struct_fields__} - {"save_to"},
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
