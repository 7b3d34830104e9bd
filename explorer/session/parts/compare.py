"""Diff of a session's models as ONNX graphs, and totals of several opened models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.compare.models import compare
from explorer.engine.diff import diff
from explorer.facts import Diff
from explorer.facts.comparison import Comparison
from explorer.session.parts.models import Cancel, Models, OnProgress


class Comparer:
    """Holds the models of a session against each other, or those that it opened against another's."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def diff(self, before: int, after: int | None, on_progress: OnProgress, cancel: Cancel) -> Diff:
        """What changed from one state to another, analysed at the same sizes."""
        models = self._models
        a, b = models.at(before), models.at(after)
        how = on_progress, cancel
        changes = diff(
            models.graph(a, on_progress),
            models.graph(b, on_progress),
            before_analysis=models.comparable_analysis(a, b, *how),
            after_analysis=models.comparable_analysis(b, a, *how),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=models.label(a), after=models.label(b))

    def diff_from(self, other: Models, on_progress: OnProgress, cancel: Cancel) -> Diff:
        """What changed from the opened model to another one."""
        changes = diff(
            self._models.graph(0, on_progress),
            other.graph(0, on_progress),
            before_analysis=self._models.graph_analysis(0, on_progress, cancel),
            after_analysis=other.graph_analysis(0, on_progress, cancel),
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=self._models.source, after=other.source)

    def totals(self, others: Sequence[Models], on_progress: OnProgress, cancel: Cancel) -> Comparison:
        """Totals of the opened model and of others, and their differences from the first."""
        every = self._models, *others
        examined = [models.examined(0, on_progress, cancel) for models in every]
        return compare(
            [one.analysis for one in examined],
            [one.schedule for one in examined],
            [_zeros(models.opened()) for models in every],
        )


def _zeros(opened: Any) -> Callable[[str], bool]:
    """Whether a parameter of a module is all zeros; of other formats nothing is said."""
    loaded: Any = getattr(opened, "loaded", None)
    known: dict[str, Any] = {}

    def zeros(name: str) -> bool:
        if not known and hasattr(loaded, "materialise"):
            known.update(loaded.materialise().named_parameters(remove_duplicate=False))
        return name in known and not bool(known[name].any())

    return zeros
