"""Branches and sizes that depend on values, run in every way: which figures change, and what costs most.

A model that asks tensors for values, or makes tensors whose sizes depend on them, is run again with other
answers: a branch the other way, a number larger and smaller, sizes as small as they can be, classes of other
sizes. What every run counts alike is exact, and nobody needs to know what was assumed for it. What costs
more one way than the other is counted as the more, and says so.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace
from torch import nn

from explorer.engine.compat import torchvision
from explorer.engine.costs.assumption import Assumption, is_assumption
from explorer.engine.costs.aten import data_dependent
from explorer.engine.costs.aten.expert_routing import EVENLY
from explorer.engine.costs.torch.data_dependence import (
    ALTERNATIVES,
    ONCE,
    AnswerPolicy,
    CodePlace,
    place_text,
)
from explorer.engine.costs.torch.records import Row, Trace
from explorer.engine.costs.torch.tracer import trace
from explorer.facts import Reach

DECISIONS = 8
"""Times that a model is run at most until it gets through."""

RUNS = 24
"""Times that it is run at most to see what other answers change."""

_LITTLE = 0.01
"""Share of a total, other than MACs, below which a difference is not told of the whole."""

_MORE = 20
"""Times as many operators that another way may take; more is more, whatever it would come to."""

_ASKED = (data_dependent.ASKED, data_dependent.REFUSED, data_dependent.EQUAL, ONCE)
"""What is said of values that were asked for; everything else that is assumed is of sizes."""

_DIFFERS = Assumption(
    "assumed: which way a branch goes that depends on a value; the way that costs more is counted"
)

_SIZED = "sizes that depend on values are taken as large as they can be"


class Verdict(Struct):
    """The result of all runs of a model.

    Attributes:
        run: The run that counts: the finished run with the most MACs.
        notes: Assumptions behind its figures, where another answer changes them.
        reach: Of its MACs; None where the rows have to say.
        unnoticed: Paths of rows that are not exact in themselves, and of which the whole shows nothing.
    """

    run: Trace
    notes: tuple[str, ...] = ()
    reach: Reach | None = None
    unnoticed: frozenset[str] = frozenset()


class _Others(Struct):
    """The runs whose answers differ from those of the run that counts.

    Attributes:
        asked: With other values, by the place that asked.
        sized: With other sizes.
        open: Kinds of answers ('asked', 'sized') that were not all tried.
    """

    asked: list[tuple[CodePlace, Trace]] = field(default_factory=list)
    sized: list[Trace] = field(default_factory=list)
    open: set[str] = field(default_factory=set)


def traced(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    valued: Callable[[], nn.Module] | None = None,
    *,
    asks: bool = False,
    plain: Callable[[], nn.Module] | None = None,
    **options: Any,
) -> Verdict:
    """Runs a model on shapes: once if shapes decide everything, else until it is clear what values decide.

    Args:
        model: On the meta device.
        args: Positional arguments of its forward, on the meta device too.
        kwargs: Keyword arguments.
        valued: Makes the model with the values of its small tensors, if `model` may have lost them.
        asks: It is known to ask for values, so they are there in the first run.
        plain: Makes the model without any values, where small tensors of `model` have theirs.
        options: Of `tracer.trace`.
    """
    if asks and valued is not None and options.get("gradients") is None:
        try:
            first = valued()
        except Exception:
            first = model if plain is None else plain()
        run, _ = _through(first, args, kwargs, AnswerPolicy(valued=True), options)
        if not run.assumed and not run.failed:
            return Verdict(run)
    if plain is not None:
        model = plain()
    run, way = _through(model, args, kwargs, AnswerPolicy(), options)
    if not run.assumed:
        return Verdict(run)
    untrained = {**options, "gradients": None}
    runs = _Runs(model, args, kwargs, untrained)
    if valued is not None:
        with contextlib.suppress(Exception):
            runs.model = valued()
    again, with_values = runs.run(AnswerPolicy(valued=True))
    if again.failed and not run.failed:
        runs.model = model
    else:
        run, way = again, with_values
    others = _Others()
    if run.assumed:
        run, way = runs.explore(run, way, others)
    if options.get("gradients") is not None:
        run, _ = _through(runs.model, args, kwargs, replace(way, events=0), options)
    if not run.assumed:
        return Verdict(run)
    return _judged(run, others)


def _through(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    way: AnswerPolicy,
    options: Mapping[str, Any],
) -> tuple[Trace, AnswerPolicy]:
    """One run on shapes.

    A model may fail after it asked whether a tensor is true (is anything not a number?). It runs again with
    the other answer, and that run counts if it gets further. A model that asks for values without an end
    runs again with that loop taken once.
    """
    best: tuple[Trace, AnswerPolicy] | None = None
    for _ in range(DECISIONS):
        taken: Counter[str] = Counter()
        with torchvision.replaced(lambda text, taken=taken: taken.update([text])):  # type: ignore[misc]
            run = trace(model, args, kwargs, way=way, **options)
        run.assumed.update(taken)
        if run.endless is not None:
            again = "refused" if run.endless in way.loops else "once"
            way = replace(way, loops={**way.loops, run.endless: again}, decisions=())
            best = None
            continue
        if best is not None and run.failed and len(run.events) <= len(best[0].events):
            break
        best = run, way
        if not run.failed or run.cut or not run.decided or not run.decided[-1]:
            break
        way = replace(way, decisions=(*run.decided[:-1], False))
    return best or (run, way)


class _Runs:
    """Runs of one model with different answers."""

    def __init__(
        self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Mapping[str, Any]
    ) -> None:
        self.model = model
        self.args = args
        self.kwargs = kwargs
        self.options = options
        self.left = RUNS

    def run(self, way: AnswerPolicy) -> tuple[Trace, AnswerPolicy]:
        self.left -= 1
        return _through(self.model, self.args, self.kwargs, way, self.options)

    def explore(self, best: Trace, way: AnswerPolicy, others: _Others) -> tuple[Trace, AnswerPolicy]:
        """The run with the most MACs, and in `others` those with other answers."""
        way = replace(way, events=_MORE * len(best.events) + 1000)
        tried: set[CodePlace] = set()
        while place := next((place for place in best.asked if place not in tried), None):
            tried.add(place)
            if self.left <= 0:
                others.open.add("asked")
                break
            best, way = self._elsewhere(best, way, place, others)
        changed = [replace(way, least=True)] if best.sized else []
        changed += [replace(way, uneven=True)] if best.shared else []
        for policy in changed:
            run, _ = self.run(policy)
            if run.failed and not best.failed:
                others.open.add("sized")
            else:
                others.sized.append(run)
        return best, way

    def _elsewhere(
        self, best: Trace, way: AnswerPolicy, place: CodePlace, others: _Others
    ) -> tuple[Trace, AnswerPolicy]:
        """The run that counts, among one run and those in which one place gets other answers."""
        first = _macs(best)
        outcomes = []
        for choice in ALTERNATIVES[best.asked[place]]:
            run, taken = self.run(replace(way, choices={**way.choices, place: choice}))
            if not run.failed or run.cut or best.failed:
                others.asked.append((place, run))
                outcomes.append((choice, run, taken))
            elif not run.refused:
                others.open.add("asked")
        # a number that sets the amount of work has no upper bound
        if any(choice == 2 and _macs(run) != first for choice, run, _ in outcomes):
            return best, way
        for _, run, taken in outcomes:
            further = len(run.events) > len(best.events) if best.failed else _macs(run) > _macs(best)
            if not run.cut and further and (best.failed or not run.failed):
                others.asked.append((place, best))
                best, way = run, taken
        return best, way


def _macs(run: Trace) -> int:
    return sum(row.macs for row in _rows(run))


def _rows(run: Trace) -> Iterable[Row]:
    for row in run.rows:
        yield row
        yield from row.parts


def _figures(run: Trace) -> dict[str, tuple[int, ...]]:
    return {row.path: (row.macs, row.elementwise, row.read, row.written, row.calls) for row in _rows(run)}


def _judged(run: Trace, others: _Others) -> Verdict:
    """Marks the rows that other answers change, and notes the assumptions."""
    mine = _figures(run)
    asked_paths = _differing(mine, (variant for _, variant in others.asked))
    sized = _differing(mine, others.sized)
    bounds = any(row.bound and row.macs for row in _rows(run))
    for row in _rows(run):
        reason = ""
        if row.path in sized or (row.sized and "sized" in others.open):
            reason = row.sized or _SIZED
        if row.path in asked_paths or (row.asked and "asked" in others.open):
            reason = row.asked or _DIFFERS
        if is_assumption(reason) or not row.bound:
            row.bound = reason
    run.elsewhere = frozenset(asked_paths - mine.keys()) | frozenset(sized - mine.keys())
    reach: Reach | None = None
    every = [variant for _, variant in others.asked] + others.sized
    if not (others.open or run.failed or bounds) and all(_macs(o) == _macs(run) and not o.cut for o in every):
        reach = "exact"
    elif not any(row.bound and row.macs for row in _rows(run)) and any(_macs(o) > _macs(run) for o in every):
        # layers that run only with other answers have no row in this run
        reach = "assumed"
    notes = _notes(run, others, mine)
    quiet = reach == "exact" and not notes
    return Verdict(run, notes, reach, frozenset(asked_paths | sized) if quiet else frozenset())


def _differing(mine: Mapping[str, tuple[int, ...]], others: Iterable[Trace]) -> set[str]:
    """Paths of the rows whose figures are not the same in every run."""
    paths: set[str] = set()
    for variant in others:
        its = _figures(variant)
        paths.update(path for path in mine.keys() | its.keys() if mine.get(path) != its.get(path))
    return paths


def _notes(run: Trace, others: _Others, mine: Mapping[str, tuple[int, ...]]) -> tuple[str, ...]:
    """The assumptions that change a figure of the whole model, in words."""
    total = _sums(mine)
    places: dict[CodePlace, None] = {}
    for place, variant in others.asked:
        if variant.cut or _notable(variant, total):
            places[place] = None
    branches = [p for p in places if run.asked.get(p, "branch") == "branch"]
    notes = [f"assumed: the branch at {place_text(place)} goes the way that costs more" for place in branches]
    changes = any(_notable(variant, total) for variant in others.sized) or "sized" in others.open
    for text, times in run.assumed.items():
        of_values = text in _ASKED
        numbers = len(places) > len(branches) or "asked" in others.open or (text == ONCE and places)
        if numbers if of_values else changes and (text != EVENLY or _uneven(mine, others)):
            notes.append(f"{text} ({times:,} times)")
    return tuple(notes)


def _uneven(mine: Mapping[str, tuple[int, ...]], others: _Others) -> bool:
    """Whether the division of elements among classes changes a figure of the whole."""
    return any(run.shared and _notable(run, _sums(mine)) for run in others.sized)


def _notable(run: Trace, total: tuple[int, ...]) -> bool:
    """Whether the MACs of a run differ from `total`, or another figure differs by more than a little.

    A mask that is made or left out shows on its row and needs no note on the whole.
    """
    macs, *rest = zip(_sums(_figures(run)), total, strict=True)
    return macs[0] != macs[1] or any(abs(its - mine) > _LITTLE * mine for its, mine in rest)


def _sums(figures: Mapping[str, tuple[int, ...]]) -> tuple[int, ...]:
    """Totals of the figures that are shown of the whole."""
    return tuple(map(sum, zip(*figures.values(), strict=True)))[:4] or (0, 0, 0, 0)
