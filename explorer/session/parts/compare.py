"""Diff of two models as ONNX graphs and as trees side by side, and totals of several side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.compare.models import compare
from explorer.engine.diff import diff, tree_diff
from explorer.facts import Analysis, Diff
from explorer.facts.comparison import Comparison, TreeDiff
from explorer.session.parts.models import Cancel, Models, OnProgress

State = tuple[Models, int]
"""A model of a session: which session's, and where in its history."""


class Comparer:
    """Holds a state of a session against another state, or against another session's."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def diff(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> Diff:
        """What changed from one to the other, analysed at the same sizes."""
        own, (other, b) = self._models, after
        analyses = self._analyses(before, after, on_progress, cancel)
        changes = diff(
            own.graph(before, on_progress),
            other.graph(b, on_progress),
            before_analysis=analyses[0],
            after_analysis=analyses[1],
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=own.label(before), after=other.label(b))

    def _analyses(
        self, before: int, after: State, on_progress: OnProgress, cancel: Cancel
    ) -> tuple[Analysis, Analysis]:
        """The analyses of both as graphs."""
        own, (other, b) = self._models, after
        how = on_progress, cancel
        if other is own:
            return own.comparable_analysis(before, b, *how), own.comparable_analysis(b, before, *how)
        return own.graph_analysis(before, *how), other.graph_analysis(b, *how)

    def tree(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> TreeDiff:
        """The layer trees of both side by side: as graphs if one is a graph and the other can be."""
        own, (other, b) = self._models, after
        both = (own, before), after
        kinds = [at > 0 or models.opened(0, on_progress).is_graph for models, at in both]
        exported = any(kinds) and not all(kinds)
        if all(kinds) or (exported and (own if kinds[1] else other).from_torch):
            found = tree_diff(
                *self._analyses(before, after, on_progress, cancel),
                form="exported" if exported else "graph",
                graphs=(own.graph(before, on_progress), other.graph(b, on_progress)),
                on_progress=on_progress,
                cancel=cancel,
            )
        else:
            examined = [models.examined(at, on_progress, cancel) for models, at in both]
            found = tree_diff(
                *[one.analysis for one in examined],
                form="rows",
                flows=(examined[0].flow, examined[1].flow),
                on_progress=on_progress,
                cancel=cancel,
            )
        return replace(found, before=own.label(before), after=other.label(b))

    def totals(
        self, before: int, others: Sequence[State], on_progress: OnProgress, cancel: Cancel
    ) -> Comparison:
        """Totals of a state and of others, and their differences from the first."""
        every = (self._models, before), *others
        examined = [models.examined(at, on_progress, cancel) for models, at in every]
        compared = compare(
            [one.analysis for one in examined],
            [one.schedule for one in examined],
            [_zeros(models.opened(at)) for models, at in every],
        )
        named = zip(compared.models, every, strict=True)
        infos = [
            replace(info, model=replace(info.model, source=models.label(at))) if at else info
            for info, (models, at) in named
        ]
        return replace(compared, models=tuple(infos))


def _zeros(opened: Any) -> Callable[[str], bool]:
    """Whether a parameter of a module is all zeros; of other formats nothing is said."""
    loaded: Any = getattr(opened, "loaded", None)
    known: dict[str, Any] = {}

    def zeros(name: str) -> bool:
        if not known and hasattr(loaded, "materialise"):
            known.update(loaded.materialise().named_parameters(remove_duplicate=False))
        return name in known and not bool(known[name].any())

    return zeros
