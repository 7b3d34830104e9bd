"""Runs a model with different answers for values, to find which figures depend on them.

A model may query the values of tensors, or create tensors of value-dependent size. A run on shapes has to
assume both. The model then runs again with other answers: the other branch, a larger and a smaller number,
minimal sizes, other class sizes. A figure that is equal in all runs is exact. A figure that differs is an
assumption, and the run with the most MACs counts. Of runs with equal MACs, the one with the larger other
figures counts.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn

from explorer.engine.compat import torchvision
from explorer.engine.costs.assumption import MAX_DECISION_RUNS, Assumption, is_assumption
from explorer.engine.costs.aten import data_dependent
from explorer.engine.costs.aten.expert_routing import EVENLY
from explorer.engine.costs.torch.chance import DRAWS
from explorer.engine.costs.torch.data_dependence import (
    ALTERNATIVES,
    ONCE,
    AnswerPolicy,
    CodePlace,
    Variation,
    describe_place,
    list_compared,
)
from explorer.engine.costs.torch.records import Row, Trace
from explorer.engine.costs.torch.tracer import trace
from explorer.engine.costs.torch.unseen import LATER_WORK
from explorer.engine.operators.cost_formulas import pick_bound
from explorer.facts import Reach

MAX_RUNS = 24
"""Maximum number of runs with other answers."""

_MAX_VARIED_EVENTS = 50_000
"""Maximum number of operators in further runs of a model whose calls may differ; two runs always happen."""

_TOLERANCE = 0.01
"""Relative difference of a total (other than MACs) below which the model gets no note."""

_EVENT_FACTOR = 20
"""Factor by which the number of operators may grow in another run before it is ended as costlier."""

_VALUE_ASSUMPTIONS = (data_dependent.ASKED, data_dependent.REFUSED, data_dependent.EQUAL, ONCE)
"""Assumptions about queried values; all other assumptions are about sizes."""

_DIFFERS = Assumption(
    "assumed: the outcome of a branch that depends on a value; the outcome that costs more is counted"
)

_VARIES = Assumption("assumed: other calls do other work; the call that costs more is counted")

_VARIATIONS: Mapping[Variation, str] = {
    "draw": "assumed: a branch on a random number or a clock goes the way that costs more",
    "state": "assumed: the model's calls differ from each other, and the call that costs more is counted",
    "date": "assumed: the model reads the date, and a branch on it takes the path of today",
}
"""Notes on what makes the calls of a model differ."""

_SIZED = "sizes that depend on values count as their largest possible size"


class Verdict(Struct):
    """The result of all runs of a model.

    Attributes:
        run: Run that counts: the run with the most MACs among the finished runs, and of runs with equal MACs
            the one that moves and computes more.
        notes: Assumptions that change a total.
        total_status: Status of the total MACs, or None if it follows from the rows.
        unnoticed: Paths of inexact rows that change no total.
    """

    run: Trace
    notes: tuple[str, ...] = ()
    total_status: Reach | None = None
    unnoticed: frozenset[str] = frozenset()


class _OtherRuns(Struct):
    """Runs whose answers differ from the answers of the counting run.

    Attributes:
        with_other_values: Runs with other values, with the code place that queried them.
        with_other_sizes: Runs with other sizes.
        varied: Runs with other random numbers, other times, or after an earlier call.
        untried: Kinds of answers ('values', 'sizes', 'date') of which some were not tried.
    """

    with_other_values: list[tuple[CodePlace, Trace]] = field(default_factory=list)
    with_other_sizes: list[Trace] = field(default_factory=list)
    varied: list[Trace] = field(default_factory=list)
    untried: set[str] = field(default_factory=set)


def trace_model(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    valued: Callable[[], nn.Module] | None = None,
    *,
    reads_values: bool = False,
    plain: Callable[[], nn.Module] | None = None,
    **options: Any,
) -> Verdict:
    """Runs a model on shapes: once if no figure depends on values, else with different answers.

    Args:
        model: Model on the meta device.
        args: Positional arguments of its forward, on the meta device.
        kwargs: Keyword arguments of its forward.
        valued: Builds the model with the values of its small tensors, if `model` may have lost them.
        reads_values: Whether the model is known to query values; the first run then has them.
        plain: Builds the model without values, if the small tensors of `model` have values.
        options: Further arguments of `tracer.trace`.
    """
    untrained = {**options, "gradients": None}
    is_trained = options.get("gradients") is not None
    other_runs = _OtherRuns()
    run = None
    if reads_values and valued is not None and not is_trained:
        try:
            first = valued()
        except Exception:
            first = model if plain is None else plain()
        run, policy = _run_to_end(first, args, kwargs, AnswerPolicy(valued=True), options)
        runs = _Runs(first, args, kwargs, untrained)
    if run is None or run.assumed or run.failed:
        if plain is not None:
            model = plain()
        run, policy = _run_to_end(model, args, kwargs, AnswerPolicy(), options)
        runs = _Runs(model, args, kwargs, untrained)
        if run.assumed:
            run, policy = _explore_values(runs, run, policy, valued, other_runs)
            if is_trained:
                run, _ = _run_to_end(runs.model, args, kwargs, replace(policy, events=0), options)
    if run.variations:
        run, policy = runs.vary(run, policy, other_runs)
        if is_trained and policy.draw:
            run, _ = _run_to_end(runs.model, args, kwargs, policy, options)
    if not run.assumed and not run.variations:
        return Verdict(run)
    return _judge(run, other_runs)


def _explore_values(
    runs: _Runs,
    run: Trace,
    policy: AnswerPolicy,
    valued: Callable[[], nn.Module] | None,
    other_runs: _OtherRuns,
) -> tuple[Trace, AnswerPolicy]:
    """Runs a model that depends on values with its small tensors' values, and then with other answers."""
    model = runs.model
    if valued is not None:
        with contextlib.suppress(Exception):
            runs.model = valued()
    second_run, with_values = runs.run(AnswerPolicy(valued=True))
    if second_run.failed and not run.failed:
        runs.model = model
    else:
        run, policy = second_run, with_values
    if run.assumed:
        run, policy = runs.explore(run, policy, other_runs)
    return run, policy


def _run_to_end(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    policy: AnswerPolicy,
    options: Mapping[str, Any],
) -> tuple[Trace, AnswerPolicy]:
    """Runs a model on shapes, and repeats the run with other answers if it fails.

    A model may fail after a query whether a tensor is true (is any element NaN?). It runs again with the
    other answer, and the new run counts if it gets further. A model that queries values endlessly runs again
    with that loop executed once.
    """
    best: tuple[Trace, AnswerPolicy] | None = None
    for _ in range(MAX_DECISION_RUNS):
        substitutions: Counter[str] = Counter()
        with torchvision.install_replacements(partial(_count_text, substitutions)):
            run = trace(model, args, kwargs, policy=policy, **options)
        run.assumed.update(substitutions)
        if run.endless is not None:
            loop_answer = "refused" if run.endless in policy.loops else "once"
            policy = replace(policy, loops={**policy.loops, run.endless: loop_answer}, decisions=())
            best = None
            continue
        if best is not None and run.failed and len(run.events) <= len(best[0].events):
            break
        best = run, policy
        if not run.failed or run.was_cut_short or not run.decided or not run.decided[-1]:
            break
        policy = replace(policy, decisions=(*run.decided[:-1], False))
    return best or (run, policy)


def _count_text(counts: Counter[str], text: str) -> None:
    counts[text] += 1


class _Runs:
    """Runs one model with different answers, up to a maximum number of runs."""

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.remaining_runs = MAX_RUNS

    def run(self, policy: AnswerPolicy) -> tuple[Trace, AnswerPolicy]:
        """Runs the model once; returns the trace and the policy of the attempt that got furthest."""
        self.remaining_runs -= 1
        return _run_to_end(self.model, self.args, self.kwargs, policy, self.options)

    def explore(
        self, best: Trace, policy: AnswerPolicy, other_runs: _OtherRuns
    ) -> tuple[Trace, AnswerPolicy]:
        """Returns the run that costs most, and collects runs with other answers in `other_runs`."""
        policy = replace(policy, events=_EVENT_FACTOR * len(best.events) + 1000)
        tried: set[CodePlace] = set()
        while place := next((place for place in best.queries if place not in tried), None):
            tried.add(place)
            if self.remaining_runs <= 0:
                other_runs.untried.add("values")
                break
            best, policy = self._try_alternatives(best, policy, place, other_runs)
        changed = [replace(policy, least=True)] if best.has_assumed_sizes else []
        changed += [replace(policy, uneven=True)] if best.divides_classes else []
        for changed_policy in changed:
            run, _ = self.run(changed_policy)
            if run.failed and not best.failed:
                other_runs.untried.add("sizes")
            else:
                other_runs.with_other_sizes.append(run)
        return best, policy

    def vary(self, best: Trace, policy: AnswerPolicy, other_runs: _OtherRuns) -> tuple[Trace, AnswerPolicy]:
        """Runs a model whose calls may differ from each other again; returns the run that counts."""
        if "date" in best.variations:
            other_runs.untried.add("date")
        if LATER_WORK in best.unseen.values():  # it counts for all runs
            self.options = {**self.options, "search_later_work": False}
        counted, policy = best, replace(policy, events=_EVENT_FACTOR * len(best.events) + 1000)
        remaining_events, run = _MAX_VARIED_EVENTS, best
        for draw in range(1, DRAWS + 1):
            self.options = {**self.options, "modes": run.modes}  # as in a second call without `eval()`
            run, run_policy = self.run(replace(policy, draw=draw))
            remaining_events -= len(run.events)
            if not run.failed or run.was_cut_short or best.failed:
                other_runs.varied.append(run)
            # a run on other assumptions cannot replace the run whose assumptions were explored
            if (
                not run.failed
                and not run.was_cut_short
                and not counted.assumed
                and _measure_cost(run) > _measure_cost(counted)
            ):
                other_runs.varied.append(counted)
                counted, policy = run, run_policy
            is_settled = best.variations == ("state",) and not run.variations
            if is_settled or (draw > 1 and remaining_events < 0):
                break
        counted.variations = best.variations
        counted.unseen = {**counted.unseen, **best.unseen}
        return counted, replace(policy, events=0)

    def _try_alternatives(
        self, best: Trace, policy: AnswerPolicy, place: CodePlace, other_runs: _OtherRuns
    ) -> tuple[Trace, AnswerPolicy]:
        """Runs the model with each alternative answer at one code place; returns the run that counts."""
        base_macs = _sum_macs(best)
        outcomes = []
        for choice in (*ALTERNATIVES[best.queries[place]], *list_compared(place, best.queries[place])):
            run, run_policy = self.run(replace(policy, choices={**policy.choices, place: choice}))
            if not run.failed or run.was_cut_short or best.failed:
                other_runs.with_other_values.append((place, run))
                outcomes.append((choice, run, run_policy))
            elif not run.refused:
                other_runs.untried.add("values")
        # if a number determines the amount of work, the work has no upper bound
        if any(choice == 2 and _sum_macs(run) != base_macs for choice, run, _ in outcomes):
            return best, policy
        for _, run, run_policy in outcomes:
            is_better = (
                len(run.events) > len(best.events)
                if best.failed
                else _measure_cost(run) > _measure_cost(best)
            )
            if not run.was_cut_short and is_better and (best.failed or not run.failed):
                other_runs.with_other_values.append((place, best))
                best, policy = run, run_policy
        return best, policy


def _sum_macs(run: Trace) -> int:
    return sum(row.macs for row in _iterate_rows(run))


def _measure_cost(run: Trace) -> tuple[int, int]:
    """Returns the figures that rank runs: the MACs, then the sum of operations and bytes."""
    others = sum(row.elementwise + row.read + row.written for row in _iterate_rows(run))
    return _sum_macs(run), others


def _iterate_rows(run: Trace) -> Iterable[Row]:
    """Yields every row, each followed by its parts."""
    for row in run.rows:
        yield row
        yield from row.parts


def _collect_figures(run: Trace) -> dict[str, tuple[int, ...]]:
    """Returns MACs, elementwise operations, bytes read, bytes written and calls of each row, by path."""
    return {
        row.path: (row.macs, row.elementwise, row.read, row.written, row.calls) for row in _iterate_rows(run)
    }


def _judge(run: Trace, other_runs: _OtherRuns) -> Verdict:
    """Marks the rows whose figures change with the answers, and collects notes on the assumptions."""
    figures = _collect_figures(run)
    value_paths = _find_differing_paths(figures, (variant for _, variant in other_runs.with_other_values))
    size_paths = _find_differing_paths(figures, other_runs.with_other_sizes)
    has_bounds = any(row.bound and row.macs for row in _iterate_rows(run))
    varied_paths = _find_differing_paths(figures, other_runs.varied)
    for row in _iterate_rows(run):
        reason = ""
        if row.path in size_paths or (row.size_assumption and "sizes" in other_runs.untried):
            reason = row.size_assumption or _SIZED
        if row.path in value_paths or (row.value_assumption and "values" in other_runs.untried):
            reason = row.value_assumption or _DIFFERS
        if row.path in varied_paths:
            reason = _VARIES
        row.bound = reason if is_assumption(reason) else pick_bound(row.bound, reason)
    paths = value_paths | size_paths | varied_paths
    run.elsewhere = frozenset(paths - figures.keys())
    total_status: Reach | None = None
    variant_runs = (
        [variant for _, variant in other_runs.with_other_values]
        + other_runs.with_other_sizes
        + other_runs.varied
    )
    if "date" in other_runs.untried:
        total_status = "assumed"
    elif not (other_runs.untried or run.failed or has_bounds) and all(
        _sum_macs(o) == _sum_macs(run) and not o.was_cut_short for o in variant_runs
    ):
        total_status = "exact"
    elif not any(row.bound and row.macs for row in _iterate_rows(run)) and any(
        _sum_macs(o) > _sum_macs(run) for o in variant_runs
    ):
        # layers that run only with other answers have no row in this run
        total_status = "assumed"
    notes = _list_notes(run, other_runs, figures)
    is_settled = total_status == "exact" and not notes
    return Verdict(run, notes, total_status, frozenset(paths) if is_settled else frozenset())


def _find_differing_paths(figures: Mapping[str, tuple[int, ...]], other_runs: Iterable[Trace]) -> set[str]:
    """Finds the paths of the rows whose figures differ between runs."""
    paths: set[str] = set()
    for variant in other_runs:
        variant_figures = _collect_figures(variant)
        paths.update(
            path
            for path in figures.keys() | variant_figures.keys()
            if figures.get(path) != variant_figures.get(path)
        )
    return paths


def _list_notes(
    run: Trace, other_runs: _OtherRuns, figures: Mapping[str, tuple[int, ...]]
) -> tuple[str, ...]:
    """Lists the assumptions that change a total of the model."""
    total = _sum_figures(figures)
    places: dict[CodePlace, None] = {}
    for place, variant in other_runs.with_other_values:
        if variant.was_cut_short or _changes_totals(variant, total):
            places[place] = None
    branches = [place for place in places if run.queries.get(place, "branch") == "branch"]
    notes = [
        f"assumed: the branch at {describe_place(place)} takes the path that costs more" for place in branches
    ]
    changes_totals = (
        any(_changes_totals(variant, total) for variant in other_runs.with_other_sizes)
        or "sizes" in other_runs.untried
    )
    for text, times in run.assumed.items():
        is_value_assumption = text in _VALUE_ASSUMPTIONS
        is_relevant = (
            len(places) > len(branches) or "values" in other_runs.untried or (text == ONCE and places)
        )
        if (
            is_relevant
            if is_value_assumption
            else changes_totals and (text != EVENLY or _depends_on_class_shares(figures, other_runs))
        ):
            notes.append(f"{text} ({times:,} time{'s' * (times > 1)})")
    if "date" in other_runs.untried or any(_changes_totals(variant, total) for variant in other_runs.varied):
        notes += [_VARIATIONS[variation] for variation in run.variations]
    return tuple(notes)


def _depends_on_class_shares(figures: Mapping[str, tuple[int, ...]], other_runs: _OtherRuns) -> bool:
    """Whether the division of elements among classes changes a total of the model."""
    return any(
        run.divides_classes and _changes_totals(run, _sum_figures(figures))
        for run in other_runs.with_other_sizes
    )


def _changes_totals(run: Trace, total: tuple[int, ...]) -> bool:
    """Whether the MACs of a run differ from `total`, or another figure by more than the tolerance.

    A small difference, such as one additional mask, is reported on its row only.
    """
    macs, *figure_pairs = zip(_sum_figures(_collect_figures(run)), total, strict=True)
    return macs[0] != macs[1] or any(
        abs(figure - expected) > _TOLERANCE * expected for figure, expected in figure_pairs
    )


def _sum_figures(figures: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Sums the figures that are shown for the model: MACs, elementwise operations, bytes read and written."""
    return tuple(map(sum, zip(*figures.values(), strict=True)))[:4] or (0, 0, 0, 0)
