"""Diff of two models as ONNX graphs and as trees side by side, and figures of several beside each other."""

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
    """Holds a state of a session against another state, or against another session's."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def diff(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> Diff:
        """What changed from one to the other, analysed at the same sizes."""
        own, (other, b) = self._models, after
        if (changes := self._of_modules(before, after, on_progress, cancel)) is not None:
            return changes
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

    def _of_modules(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> Diff | None:
        """What changed between two modules of this session that quantization made; None where one is none."""
        models, (other, b) = self._models, after
        if other is not models or not (models.is_module(before) or models.is_module(b)):
            return None
        opened: list[Any] = [models.opened(at, on_progress) for at in (before, b)]
        if not all(hasattr(one, "loaded") for one in opened):
            return None
        from explorer.engine.quantize.torch.differences import ModuleSide, module_diff  # torch

        sides = [
            ModuleSide(
                one.loaded.materialise(),
                formats_at(models.history, at),
                models.examined(at, on_progress, cancel).info,
            )
            for one, at in zip(opened, (before, b), strict=True)
        ]
        return replace(module_diff(*sides), before=models.label(before), after=models.label(b))

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
        kinds = [models.opened(at, on_progress).is_graph for models, at in both]
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
            changes = self._of_modules(before, after, on_progress, cancel)
            found = tree_diff(
                *[one.analysis for one in examined],
                form="rows",
                flows=(examined[0].flow, examined[1].flow),
                value_states=None
                if changes is None
                else {row.before or "": (row.status, row.what) for row in changes.nodes},
                on_progress=on_progress,
                cancel=cancel,
            )
        return replace(found, before=own.label(before), after=other.label(b))

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
        """Figures of a state and of others, and their differences from the first; see `beside`."""
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
        """Figures of states of this session and of others beside each other.

        Args:
            every: They; changes are from the first.
            names: What the user calls each.
            on_progress: Told where an analysis stands.
            cancel: Asked now and then; True stops.
            prove: Compares the first with another one; None shows the proof that was made with each.
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
        columns = [_column(one, hardware, proof) for one, proof in zip(every, proofs, strict=True)]
        notes = _notes(infos, None if prove is None else names[0])
        if prove is None and any(proofs):
            notes.append("proof and largest error: of the step that made a state, against the one before")
        machine = "" if hardware is None else hardware.name or "the machine that was given"
        alike = len({info.model.is_graph for info in infos}) == 1
        return figure_table(names, columns, machine, notes, alike=alike)


Prove = Callable[[State], Verification]
"""Holds the first of those that are compared against another one."""


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
    """What one has to know of figures beside each other."""
    notes = []
    shapes = [sorted(str(tensor.shape) for tensor in info.model.inputs) for info in infos]
    if any(other != shapes[0] for other in shapes):
        notes.append("their inputs have other shapes: figures that grow with those are not of the same work")
    if proved is not None:
        notes.append(f"proof and largest error: against {proved}")
    return notes


def _zeros(opened: Any) -> Callable[[str], bool]:
    """Whether a parameter of a module is all zeros; of other formats nothing is said."""
    loaded: Any = getattr(opened, "loaded", None)
    known: dict[str, Any] = {}

    def zeros(name: str) -> bool:
        if not known and hasattr(loaded, "materialise"):
            known.update(loaded.materialise().named_parameters(remove_duplicate=False))
        return name in known and not bool(known[name].any())

    return zeros
