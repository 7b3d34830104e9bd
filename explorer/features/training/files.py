"""Several models on the samples of one file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from explorer.base.checked import Count, PathText
from explorer.features.training.evaluate import evaluated
from explorer.session.files import opened
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.evaluate.evaluation import Evaluation, Task


def evaluate_files(
    *sources: str | os.PathLike[str],
    data: PathText,
    labels: str = "",
    inputs: Sequence[str] = (),
    scores: str = "",
    batch: Count = 64,
    task: Task | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Any,
) -> Evaluation:
    """How well models do on the samples of a file, side by side; arguments as for `Session.evaluate`.

    `options` as for `explorer.session.Session`; a dimension or input need only exist in one of the models.
    """
    with opened(sources, options, on_progress) as sessions:
        return evaluated(
            [(session.parts.models, 0) for session in sessions],
            data,
            labels=labels,
            inputs=inputs,
            output=scores,
            batch=batch,
            task=task,
            on_progress=on_progress,
            cancel=cancel,
        )
