"""Options of `explorer sweep` for training runs."""

from __future__ import annotations

from explorer.cli.arguments.declared import list_options
from explorer.facts.evaluate.evaluation import SampleSpec
from explorer.facts.evaluate.training_run import TrainSpec
from explorer.facts.evaluate.training_sweep import TrainingSweepSpec

TRAINING_SWEEP = (
    *list_options(TrainingSweepSpec),
    *list_options(SampleSpec),
    *list_options(TrainSpec, "held"),
)
"""Options of `explorer sweep` for training runs."""
