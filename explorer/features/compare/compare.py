"""Compares states of sessions: graph diff, tree diff, and figures of several models in columns.

A state is a pair of a session's models and an index into its history.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from explorer.engine.costs.compare.models import compare
from explorer.engine.costs.memory.roofline import compute_roofline
from explorer.engine.diff import compare_trees, diff
from explorer.engine.tiling.cost import compute_plan_cost
from explorer.facts import Analysis, Diff, Info, Verification
from explorer.facts.comparison import (
    Comparison,
    Figures,
    FigureTable,
    TreeDiff,
    build_figure_table,
    build_roofline_machine,
    collect_model_figures,
)
from explorer.facts.cost import Hardware
from explorer.facts.roofline import Roofline
from explorer.features.quantize.quantize import find_quantized_layers
from explorer.features.tiling.tiling import Tiler
from explorer.session.parts.figures import find_constants
from explorer.session.parts.models import Cancel, Models, OnProgress, State
from explorer.settings.machines import describe_other_peak


class Comparer:
    """Compares a state of a session with other states of this session or of another session."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def diff(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> Diff:
        """Compare two states node by node as graphs, or as modules; see `_diff_modules`.

        Graphs of one session are analyzed at the same sizes.
        """
        models, (after_models, after_at) = self._models, after
        if (changes := self._diff_modules(before, after, on_progress, cancel)) is not None:
            return changes
        analyses = self._analyze_both(before, after, on_progress, cancel)
        changes = diff(
            models.load_graph(before, on_progress),
            after_models.load_graph(after_at, on_progress),
            before_analysis=analyses[0],
            after_analysis=analyses[1],
            on_progress=on_progress,
            cancel=cancel,
        )
        return replace(changes, before=models.label(before), after=after_models.label(after_at))

    def _diff_modules(
        self, before: int, after: State, on_progress: OnProgress, cancel: Cancel
    ) -> Diff | None:
        """Compare two states of this session as torch modules.

        Return None unless both are torch modules and at least one was made in this session without a file.
        """
        models, (after_models, after_at) = self._models, after
        if after_models is not models or not (models.is_module(before) or models.is_module(after_at)):
            return None
        opened: list[Any] = [models.open_state(index, on_progress) for index in (before, after_at)]
        if not all(hasattr(module, "loaded") for module in opened):
            return None
        from explorer.engine.quantize.torch.differences import ModuleSide, compare_modules  # imports torch

        sides = [
            ModuleSide(
                module.loaded.materialize(),
                find_quantized_layers(models.history, index),
                models.examine_or_refuse(index, on_progress, cancel).info,
            )
            for module, index in zip(opened, (before, after_at), strict=True)
        ]
        return replace(compare_modules(*sides), before=models.label(before), after=models.label(after_at))

    def _analyze_both(
        self, before: int, after: State, on_progress: OnProgress, cancel: Cancel
    ) -> tuple[Analysis, Analysis]:
        """Analyze both states in their graph form."""
        models, (after_models, after_at) = self._models, after
        callbacks = on_progress, cancel
        if after_models is models:
            return models.analyze_comparable(before, after_at, *callbacks), models.analyze_comparable(
                after_at, before, *callbacks
            )
        return models.graph_analysis(before, *callbacks), after_models.graph_analysis(after_at, *callbacks)

    def tree(self, before: int, after: State, on_progress: OnProgress, cancel: Cancel) -> TreeDiff:
        """Align the layer trees of two states.

        If one state is a graph and the other comes from PyTorch, the latter is exported first. Other states
        are aligned as they are, and only `_diff_modules` compares the values of their weights.
        """
        before_models, (after_models, after_at) = self._models, after
        states = (before_models, before), after
        are_graphs = [models.open_state(index, on_progress).is_graph for models, index in states]
        exported = any(are_graphs) and not all(are_graphs)
        if all(are_graphs) or (exported and (before_models if are_graphs[1] else after_models).from_torch):
            tree = compare_trees(
                *self._analyze_both(before, after, on_progress, cancel),
                form="exported" if exported else "graph",
                graphs=(
                    before_models.load_graph(before, on_progress),
                    after_models.load_graph(after_at, on_progress),
                ),
                on_progress=on_progress,
                cancel=cancel,
            )
        else:
            examined = [models.examine_or_refuse(index, on_progress, cancel) for models, index in states]
            changes = self._diff_modules(before, after, on_progress, cancel)
            tree = compare_trees(
                *[result.analysis for result in examined],
                form="rows",
                flows=(examined[0].flow, examined[1].flow),
                value_states=None
                if changes is None
                else {row.before or "": (row.status, row.what) for row in changes.nodes},
                on_progress=on_progress,
                cancel=cancel,
            )
        constants = _find_equal_constants(tree, states, on_progress, cancel)
        labels = before_models.label(before), after_models.label(after_at)
        return replace(tree, before=labels[0], after=labels[1], constants=constants)

    def totals(
        self,
        before: int,
        other_states: Sequence[State],
        on_progress: OnProgress,
        cancel: Cancel,
        *,
        prove: Prove | None = None,
        hardware: Hardware | None = None,
    ) -> Comparison:
        """Compare totals and operators of a state with other states; see `build_figure_columns`."""
        states = (self._models, before), *other_states
        examined = [models.examine_or_refuse(index, on_progress, cancel) for models, index in states]
        compared = compare(
            [result.analysis for result in examined],
            [result.schedule for result in examined],
            [_build_zero_test(models.open_state(index)) for models, index in states],
            [partial(_read_buffer_shapes, models.open_state(index)) for models, index in states],
        )
        models_with_states = zip(compared.models, states, strict=True)
        infos = [
            replace(info, model=replace(info.model, source=models.label(index))) if index else info
            for info, (models, index) in models_with_states
        ]
        names = [models.label(index) for models, index in states]
        figures = self.build_figure_columns(
            states, names, on_progress, cancel, prove=prove, hardware=hardware
        )
        return replace(compared, models=tuple(infos), figures=figures)

    def build_figure_columns(
        self,
        states: Sequence[State],
        names: Sequence[str],
        on_progress: OnProgress,
        cancel: Cancel,
        *,
        prove: Prove | None = None,
        hardware: Hardware | None = None,
    ) -> FigureTable:
        """Build a table of figures with a column for each state, of this session or of others.

        Args:
            states: States to compare. Changes are relative to the first state.
            names: Column titles, one for each state.
            on_progress: Callback that receives the progress of each analysis.
            cancel: Callback that is polled regularly; the work stops when it returns True.
            prove: Function that proves a state equal to the first. None uses the proof recorded with each
                state.
            hardware: Machine for times and cycles, or None to leave them out.
        """
        infos = [models.examine_or_refuse(index, on_progress, cancel).info for models, index in states]
        proofs = [
            models.history.entries[index].verification
            if prove is None
            else prove((models, index))
            if column
            else None
            for column, (models, index) in enumerate(states)
        ]
        rooflines = [_compute_roofline(state, hardware) for state in states]
        columns = [
            _build_figures(state, hardware, roofline, proof)
            for state, roofline, proof in zip(states, rooflines, proofs, strict=True)
        ]
        notes = _list_warnings(infos, None if prove is None else names[0])
        peak_notes = (describe_other_peak(r.machine, r.multiplied) for r in rooflines if r is not None)
        notes += [note for note in dict.fromkeys(peak_notes) if note]
        if prove is None and any(proofs):
            notes.append("proof and largest error compare each state with the state that it was made from")
        machine_name = "" if hardware is None else hardware.name or "the machine that was given"
        alike = len({info.model.is_graph for info in infos}) == 1
        return build_figure_table(names, columns, machine_name, notes, alike=alike)


Prove = Callable[[State], Verification]
"""Function that tries to prove a state equal to the first compared state, and returns the evidence."""


def _find_equal_constants(
    tree: TreeDiff, states: Sequence[State], on_progress: OnProgress, cancel: Cancel
) -> tuple[int, ...]:
    """Return the indices of equal rows that contain only constants and shape arithmetic in both trees."""
    ids: list[frozenset[int]] = []
    for models, index in states:
        examine = models.examine_or_refuse if tree.form == "rows" else models.examine_graph
        examined = examine(index, on_progress, cancel)
        flow = examined.flow
        ids.append(frozenset() if flow is None else find_constants(examined, flow))
    return tuple(
        index
        for index, row in enumerate(tree.rows)
        if not row.differs
        and all(
            side is not None and side.id in constants
            for side, constants in zip((row.before, row.after), ids, strict=True)
        )
    )


def _compute_roofline(state: State, hardware: Hardware | None) -> Roofline | None:
    """Return the roofline of a state; None without a machine that has both rates, or without operators."""
    models, index = state
    examined, machine = models.examine_or_refuse(index), build_roofline_machine(hardware)
    if machine is None or not examined.info.totals.nodes:
        return None
    return compute_roofline(examined.analysis, machine)


def _build_figures(
    state: State, hardware: Hardware | None, roofline: Roofline | None, proof: Verification | None
) -> Figures:
    models, index = state
    examined = models.examine_or_refuse(index)
    plan = Tiler(models).tiling(index) if examined.info.tiled is not None else None
    return collect_model_figures(
        examined.info,
        roofline=roofline,
        cost=None if plan is None else compute_plan_cost(plan, hardware),
        proof=proof,
    )


def _list_warnings(infos: Sequence[Info], proved: str | None) -> list[str]:
    """Return warnings that a reader needs to interpret the figures."""
    notes = []
    shapes = [sorted(str(tensor.shape) for tensor in info.model.inputs) for info in infos]
    if any(shape != shapes[0] for shape in shapes):
        notes.append(
            "the shapes of their inputs differ, so figures that grow with the inputs are not comparable"
        )
    if proved is not None:
        notes.append(f"proof and largest error: against {proved}")
    return notes


def _read_buffer_shapes(opened: Any) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a torch module's buffers by name; nothing for other model formats."""
    build = getattr(getattr(opened, "loaded", None), "build_for_inspection", None)
    return {} if build is None else {name: tuple(buffer.shape) for name, buffer in build().named_buffers()}


def _build_zero_test(opened: Any) -> Callable[[str], bool]:
    """Return a function that reports whether a parameter of a torch module is all zeros.

    For other model formats the function always returns False.
    """
    loaded: Any = getattr(opened, "loaded", None)
    parameters: dict[str, Any] = {}

    def is_zero(name: str) -> bool:
        if not parameters and hasattr(loaded, "materialize"):
            parameters.update(loaded.materialize().named_parameters(remove_duplicate=False))
        return name in parameters and not bool(parameters[name].any())

    return is_zero
