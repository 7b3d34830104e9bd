"""Diff of two models as graphs and as trees, and figures of several models side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.compare.models import compare
from explorer.engine.costs.memory.roofline import roofline
from explorer.engine.diff import diff, tree_diff
from explorer.engine.tiling.cost import plan_cost
from explorer.facts import Analysis, Diff, Info, Verification
from explorer.facts.comparison import (
    Comparison,
    Figures,
    FigureTable,
    TreeDiff,
    figure_table,
    model_figures,
    roofline_machine,
)
from explorer.facts.cost import Hardware
from explorer.features.quantize.quantize import formats_at
from explorer.features.tiling.tiling import Tiler
from explorer.session.parts.models import Cancel, Models, OnProgress, State


class Comparer:
    """Compares a state of a session with another state, or with a state of another session."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def diff(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> Diff:
        """What changed from `before` to `after`, both analyzed at the same sizes."""
        models, (after_models, after_at) = self._models, after
        if (changes := self._of_modules(before, after, on_progress, cancel)) is not None:
            return changes
        analyses = self._analyses(before, after, on_progress, cancel)
        changes = diff(
            models.graph(before, on_progress),
            after_models.graph(after_at, on_progress),
            before_analysis=analyses[0],
            after_analysis=analyses[1],
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=models.label(before), after=after_models.label(after_at))

    def _of_modules(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> Diff | None:
        """What changed between two states that are modules; None where one is no module of this session."""
        models, (after_models, after_at) = self._models, after
        if after_models is not models or not (models.is_module(before) or models.is_module(after_at)):
            return None
        opened: list[Any] = [models.opened(at, on_progress) for at in (before, after_at)]
        if not all(hasattr(module, "loaded") for module in opened):
            return None
        from explorer.engine.quantize.torch.differences import ModuleSide, module_diff  # torch

        sides = [
            ModuleSide(
                module.loaded.materialise(),
                formats_at(models.history, at),
                models.examined(at, on_progress, cancel).info,
            )
            for module, at in zip(opened, (before, after_at), strict=True)
        ]
        return replace(module_diff(*sides), before=models.label(before), after=models.label(after_at))

    def _analyses(
        self, before: int, after: State, on_progress: OnProgress, cancel: Cancel
    ) -> tuple[Analysis, Analysis]:
        """The analyses of both states as graphs."""
        models, (after_models, after_at) = self._models, after
        callbacks = on_progress, cancel
        if after_models is models:
            return models.comparable_analysis(before, after_at, *callbacks), models.comparable_analysis(
                after_at, before, *callbacks
            )
        return models.graph_analysis(before, *callbacks), after_models.graph_analysis(after_at, *callbacks)

    def tree(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> TreeDiff:
        """Both layer trees side by side; of graphs, if one is a graph and the other can become one."""
        before_models, (after_models, after_at) = self._models, after
        both = (before_models, before), after
        kinds = [models.opened(at, on_progress).is_graph for models, at in both]
        exported = any(kinds) and not all(kinds)
        if all(kinds) or (exported and (before_models if kinds[1] else after_models).from_torch):
            tree = tree_diff(
                *self._analyses(before, after, on_progress, cancel),
                form="exported" if exported else "graph",
                graphs=(before_models.graph(before, on_progress), after_models.graph(after_at, on_progress)),
                on_progress=on_progress,
                cancel=cancel,
            )
        else:
            examined = [models.examined(at, on_progress, cancel) for models, at in both]
            changes = self._of_modules(before, after, on_progress, cancel)
            tree = tree_diff(
                *[result.analysis for result in examined],
                form="rows",
                flows=(examined[0].flow, examined[1].flow),
                value_states=None
                if changes is None
                else {row.before or "": (row.status, row.what) for row in changes.nodes},
                on_progress=on_progress,
                cancel=cancel,
            )
        return replace(tree, before=before_models.label(before), after=after_models.label(after_at))

    def totals(
        self,
        before: int,
        others: Sequence[State],
        on_progress: OnProgress,
        cancel: Cancel,
        *,
        prove: Prove | None = None,
        hardware: Hardware | None = None,
    ) -> Comparison:
        """Figures of a state and of others, and the differences from the first; see `beside`."""
        every = (self._models, before), *others
        examined = [models.examined(at, on_progress, cancel) for models, at in every]
        compared = compare(
            [result.analysis for result in examined],
            [result.schedule for result in examined],
            [_zeros(models.opened(at)) for models, at in every],
        )
        named = zip(compared.models, every, strict=True)
        infos = [
            replace(info, model=replace(info.model, source=models.label(at))) if at else info
            for info, (models, at) in named
        ]
        names = [models.label(at) for models, at in every]
        figures = self.beside(every, names, on_progress, cancel, prove=prove, hardware=hardware)
        return replace(compared, models=tuple(infos), figures=figures)

    def beside(
        self,
        every: Sequence[State],
        names: Sequence[str],
        on_progress: OnProgress,
        cancel: Cancel,
        *,
        prove: Prove | None = None,
        hardware: Hardware | None = None,
    ) -> FigureTable:
        """Figures of several states side by side, of this session or of others.

        Args:
            every: The states; changes are relative to the first.
            names: The title of each.
            on_progress: Receives the progress of each analysis.
            cancel: Asked now and then; True stops.
            prove: Proves a state equal to the first; None takes the proof that was made with each state.
            hardware: The machine; None leaves out times and cycles.
        """
        infos = [models.examined(at, on_progress, cancel).info for models, at in every]
        proofs = [
            models.history.entries[at].verification
            if prove is None
            else prove((models, at))
            if place
            else None
            for place, (models, at) in enumerate(every)
        ]
        columns = [_column(state, hardware, proof) for state, proof in zip(every, proofs, strict=True)]
        notes = _notes(infos, None if prove is None else names[0])
        if prove is None and any(proofs):
            notes.append("proof and largest error: of the step that made a state, against the one before")
        machine = "" if hardware is None else hardware.name or "the machine that was given"
        alike = len({info.model.is_graph for info in infos}) == 1
        return figure_table(names, columns, machine, notes, alike=alike)


Prove = Callable[[State], Verification]
"""Proves a state equal to the first of those that are compared."""


def _column(state: State, hardware: Hardware | None, proof: Verification | None) -> Figures:
    models, at = state
    examined = models.examined(at)
    machine, tiled = roofline_machine(hardware), examined.info.tiled
    timed = machine is not None and examined.info.totals.nodes
    plan = Tiler(models).tiling(at) if tiled is not None else None
    return model_figures(
        examined.info,
        roofline=roofline(examined.analysis, machine) if timed and machine is not None else None,
        cost=None if plan is None else plan_cost(plan, hardware),
        proof=proof,
    )


def _notes(infos: Sequence[Info], proved: str | None) -> list[str]:
    """What the reader has to know to compare the figures."""
    notes = []
    shapes = [sorted(str(tensor.shape) for tensor in info.model.inputs) for info in infos]
    if any(shape != shapes[0] for shape in shapes):
        notes.append("their inputs have other shapes: figures that grow with those are not of the same work")
    if proved is not None:
        notes.append(f"proof and largest error: against {proved}")
    return notes


def _zeros(opened: Any) -> Callable[[str], bool]:
    """A function that says whether a parameter of a module is all zeros; False for other formats."""
    loaded: Any = getattr(opened, "loaded", None)
    parameters: dict[str, Any] = {}

    def zeros(name: str) -> bool:
        if not parameters and hasattr(loaded, "materialise"):
            parameters.update(loaded.materialise().named_parameters(remove_duplicate=False))
        return name in parameters and not bool(parameters[name].any())

    return zeros
