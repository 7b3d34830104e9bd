"""Method of `Session` that compares the figures of a model with its budgets."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.base.checked import PathText
from explorer.facts.check import CheckSpec, ModelCheck
from explorer.features.check.baseline import name_model, read_baseline
from explorer.features.check.checker import (
    check_needs,
    find_entry,
    judge,
    measure,
    needs_baseline,
    read_budgets,
)
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine


def check(
    session: Facade,
    spec: CheckSpec,
    *,
    against: PathText | None = None,
    machine: Machine | None = None,
    index: int | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> ModelCheck:
    """Compare the figures of a model with its budgets.

    Args:
        spec: Budgets, at least one.
        against: Path of a baseline that `explorer check --update` wrote, or None. A budget such as '+5%'
            needs one.
        machine: Machine for `max_seconds`, which is then the least time of the roofline. None measures the
            time on this computer.
        index: Index of the state in the history, or None for the current one.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly; the work stops when it returns True.

    Raises:
        Misuse: No budget is set, a limit is invalid, or the baseline is broken or lacks the model.
        BadModel: The model is broken.
        Cancelled: `cancel` returned True.
    """
    source = session.parts.models.source
    budgets = read_budgets(spec)
    baseline = None if against is None else read_baseline(against)
    check_needs(spec, budgets, has_baseline=baseline is not None)
    name = "" if against is None else name_model(source, os.path.dirname(os.path.abspath(against)))
    before = find_entry(baseline, name, against or "", is_needed=needs_baseline(spec, budgets))
    model_figures = measure(session, spec, machine, index, on_progress, cancel)
    return judge(source, spec, budgets, model_figures, before, before)
