"""Compare the figures of a model with its budgets."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from explorer.base.errors import BadModel, Misuse, suggest_name
from explorer.base.options import find_option
from explorer.base.units import format_short_list, shape_text
from explorer.facts.check import (
    Baseline,
    BaselineFigure,
    BaselineModel,
    BudgetRow,
    CheckSpec,
    CheckVerdict,
    ModelCheck,
)
from explorer.facts.comparison import FigureValue, collect_model_figures, compute_range
from explorer.facts.profile.profile import ProfileSpec
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress
from explorer.settings.budgets import Budget, BudgetUnit, parse_budget
from explorer.settings.machines import describe_other_peak

if TYPE_CHECKING:
    from explorer.facts.roofline import Machine

_BUDGETS: Mapping[str, tuple[str, BudgetUnit]] = {
    "max_macs": ("macs", "count"),
    "max_params": ("params", "count"),
    "max_weight_bytes": ("weight_bytes", "bytes"),
    "max_peak": ("activation_bytes_peak", "bytes"),
    "max_seconds": ("seconds", "seconds"),
    "min_coverage": ("coverage", "share"),
}
"""Figure and unit of each budget."""

_STORED = ("macs", "params", "weight_bytes", "activation_bytes_peak", "coverage")
"""Figures that each baseline contains. A baseline also contains the time if a budget limits it."""


class Interval(NamedTuple):
    """Smallest and largest possible value of a figure or of a limit."""

    low: float | Fraction
    high: float | Fraction


class ModelFigures(Struct, frozen=True):
    """Figures of a model.

    Attributes:
        figures: Figures by name.
        seconds: Interval of the measured time; None without a measurement, or if input sizes are open.
        no_seconds: Reason why the time could not be measured, or ''.
        unknown: Paths of the layers with an unknown figure.
        inputs: Shape of each input by name, as text.
        open_sizes: Names of the sizes of inputs that are open.
        machine: Name of the machine of the least time, or ''.
        notes: Remarks for the reader, in words.
    """

    figures: Mapping[str, FigureValue]
    seconds: Interval | None
    no_seconds: str
    unknown: tuple[str, ...]
    inputs: Mapping[str, str]
    open_sizes: tuple[str, ...]
    machine: str
    notes: tuple[str, ...]

    def build_baseline(self) -> BaselineModel:
        """Build the entry of a baseline."""
        names = (*_STORED, *(name for name in ("seconds", "least_seconds") if name in self.figures))
        figures = {name: self.figures[name] for name in names}
        return BaselineModel(
            {name: BaselineFigure(figure.value, figure.sign) for name, figure in figures.items()},  # type: ignore[arg-type]
            dict(self.inputs),
            self.unknown,
            self.machine,
        )


def is_empty(spec: CheckSpec) -> bool:
    """Return whether a specification sets no budget."""
    return spec == CheckSpec()


def read_budgets(spec: CheckSpec) -> dict[str, Budget]:
    """Parse the limits of a specification, by name.

    Raises:
        Misuse: A limit is invalid.
    """
    return {
        name: parse_budget(value, unit, find_option(CheckSpec, name).flag)
        for name, (_, unit) in _BUDGETS.items()
        if (value := getattr(spec, name)) is not None
    }


def needs_baseline(spec: CheckSpec, budgets: Mapping[str, Budget]) -> bool:
    """Return whether a budget depends on the figures of a baseline."""
    return spec.no_new_unknown or any(budget.is_change for budget in budgets.values())


def check_needs(
    spec: CheckSpec, budgets: Mapping[str, Budget], *, has_baseline: bool, where: str = ""
) -> None:
    """Refuse a specification that limits nothing, or that needs a baseline which is missing.

    Args:
        spec: Budgets as the user wrote them.
        budgets: The same budgets, parsed.
        has_baseline: Whether there is a baseline.
        where: Place of the budgets, for errors; '' for the options of the command.

    Raises:
        Misuse: No budget is set, or a budget needs a baseline and there is none.
    """
    if is_empty(spec):
        raise Misuse("no budget is set", where=where or "check", hint="add one, such as --max-macs 4.1G")
    if needs_baseline(spec, budgets) and not has_baseline:
        changes = [name for name, budget in budgets.items() if budget.is_change]
        flag = where or find_option(CheckSpec, changes[0] if changes else "no_new_unknown").flag
        hint = "add --against baseline.json, which --update writes"
        raise Misuse("needs the figures of a baseline", where=flag, hint=hint)


def find_entry(baseline: Baseline | None, name: str, path: str, *, is_needed: bool) -> BaselineModel | None:
    """Return the figures of a model in a baseline; None without a baseline, or if it lacks the model.

    Raises:
        Misuse: The baseline lacks the model, and a budget needs its figures.
    """
    entry = None if baseline is None else baseline.models.get(name)
    if baseline is not None and entry is None and is_needed:
        suggestion = suggest_name(name, baseline.models)
        hint = f"add it with --update{'; ' * bool(suggestion)}{suggestion}"
        raise Misuse(f"the baseline has no model '{name}'", where=path, hint=hint)
    return entry


def measure(
    session: Facade,
    spec: CheckSpec,
    machine: Machine | None,
    index: int | None,
    on_progress: OnProgress,
    cancel: Cancel,
) -> ModelFigures:
    """Collect the figures of a model.

    A time is included only if a budget limits it: the least time on `machine`, or the measured time without a
    machine.
    """
    analysis = session.analysis(index, on_progress=on_progress, cancel=cancel)
    is_timed = spec.max_seconds is not None
    roofline = session.roofline(machine, index) if is_timed and machine is not None else None
    all_figures = collect_model_figures(analysis.info, roofline=roofline)
    figures = {name: all_figures[name] for name in (*_STORED, "least_seconds") if name in all_figures}
    tensors = analysis.info.model.inputs
    inputs = {tensor.name: shape_text(tensor.shape) for tensor in tensors}
    dims = (dim for tensor in tensors for dim in tensor.shape or ())
    open_sizes = tuple(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))
    seconds, no_seconds, notes = None, "", list[str]()
    if is_timed and machine is None:
        try:
            profile = session.profile(ProfileSpec(), index=index, on_progress=on_progress, cancel=cancel)
        except BadModel as error:
            figures["seconds"] = FigureValue(None)
            no_seconds = str(error)
        else:
            figures["seconds"] = FigureValue(profile.wall.median, "~ " if open_sizes else "")
            seconds = None if open_sizes else Interval(profile.wall.low, profile.wall.high)
            if profile.loaded:
                notes.append(f"the time was measured while other programs ran: {profile.load}")
    unknown = (
        row.path for row in analysis.layers if row.status == "unknown" and row.counted and not row.group
    )
    if roofline is not None and (peak_note := describe_other_peak(roofline.machine, roofline.multiplied)):
        notes.append(peak_note)
    name = "" if roofline is None else roofline.machine.name
    return ModelFigures(figures, seconds, no_seconds, tuple(unknown), inputs, open_sizes, name, tuple(notes))


def judge(
    model: str,
    spec: CheckSpec,
    budgets: Mapping[str, Budget],
    model_figures: ModelFigures,
    before: BaselineModel | None,
    past_entry: BaselineModel | None,
) -> ModelCheck:
    """Compare figures with budgets.

    Args:
        model: Name of the model.
        spec: Budgets as the user wrote them.
        budgets: The same budgets, parsed.
        model_figures: Figures of the model.
        before: Figures to which changes such as '+5%' refer, or None.
        past_entry: Figures of the baseline as it was, from which the table shows the changes, or None.
    """
    rows = [
        _judge_figure(model, name, str(getattr(spec, name)), budget, model_figures, before, past_entry)
        for name, budget in budgets.items()
    ]
    new_unknown: tuple[str, ...] = ()
    if spec.no_new_unknown and before is not None:
        old_paths = set(before.unknown)
        new_unknown = tuple(path for path in model_figures.unknown if path not in old_paths)
        rows.append(_build_unknown_row(model_figures, new_unknown, past_entry))
    notes = (*model_figures.notes, *_compare_conditions(model_figures, past_entry))
    return ModelCheck(model, tuple(rows), new_unknown, notes)


def _judge_figure(
    model: str,
    name: str,
    limit: str,
    budget: Budget,
    model_figures: ModelFigures,
    before: BaselineModel | None,
    past_entry: BaselineModel | None,
) -> BudgetRow:
    """Compare a figure with the budget `name`, which the user wrote as `limit`; see `judge`."""
    figure_name, unit = _BUDGETS[name]
    if figure_name not in model_figures.figures:  # with a machine, its least time replaces the measured time
        figure_name = "least_seconds"
    figure = model_figures.figures[figure_name]
    interval = model_figures.seconds if figure_name == "seconds" else None
    values = interval or Interval(*compute_range(figure))
    old = None if before is None else before.figures.get(figure_name)
    limits, limit_value = _find_limits(budget, unit, old)
    is_minimum = name == "min_coverage"
    verdict = _compare(values, limits, is_minimum=is_minimum)
    reason = ""
    if verdict == "missed":
        reason = "below the limit" if is_minimum else "over the limit"
    elif verdict == "unknown":
        reason = _explain_unknown(model, figure_name, figure, model_figures, budget, old)
    past = (
        FigureValue(None)
        if past_entry is None
        else past_entry.figures.get(figure_name, BaselineFigure(None)).figure
    )
    return BudgetRow(
        name,
        figure_name,
        unit,
        limit,
        None if limit_value is None else _convert_bound(limit_value, unit),
        _get_number(figure),
        figure.sign,
        _get_number(past),
        past.sign,
        _compute_change(figure, past),
        verdict,
        reason,
    )


def _get_number(figure: FigureValue) -> float | None:
    value = figure.value
    return None if isinstance(value, str) else value


def _convert_bound(bound: Fraction, unit: BudgetUnit) -> float:
    """Return a limit as a number. A limit of a count is rounded down, because counts are whole numbers."""
    return math.floor(bound) if unit in ("count", "bytes") else float(bound)


def _find_limits(
    budget: Budget, unit: BudgetUnit, old: BaselineFigure | None
) -> tuple[Interval | None, Fraction | None]:
    """Return the interval of possible limits, and the limit for the number that the baseline states.

    The ends of the interval differ if the baseline's figure is inexact. Without the figure, both are None.
    """
    if not budget.is_change:
        # a coverage is a rounded quotient, so its limit is rounded in the same way
        limit = float(budget.number) if unit == "share" else budget.number
        return Interval(limit, limit), budget.number
    if old is None or old.value is None:
        return None, None
    low, high = compute_range(old.figure)
    greatest = high if math.isinf(high) else budget.compute_bound(high)
    return Interval(budget.compute_bound(low), greatest), budget.compute_bound(old.value)


def _compare(values: Interval, limits: Interval | None, *, is_minimum: bool) -> CheckVerdict:
    """Compare a figure with its limit. Both may be intervals: the verdict is valid for all values in them."""
    if limits is None:
        return "unknown"
    if is_minimum:
        return "met" if values.low >= limits.high else "missed" if values.high < limits.low else "unknown"
    return "met" if values.high <= limits.low else "missed" if values.low > limits.high else "unknown"


def _compute_change(figure: FigureValue, past: FigureValue) -> float | None:
    """Return the relative change; None if a figure is unknown or inexact, or the change starts from 0."""
    value, old = _get_number(figure), _get_number(past)
    if value is None or old is None or figure.sign or past.sign or (not old and value):
        return None
    return value / old - 1 if old else 0.0


_INEXACT = {  # explanation of each sign of a figure
    ">= ": "only a lower bound of it is known",
    "<= ": "only an upper bound of it is known",
    "~ ": "it depends on an assumption",
}


def _explain_unknown(
    model: str,
    name: str,
    figure: FigureValue,
    model_figures: ModelFigures,
    budget: Budget,
    old: BaselineFigure | None,
) -> str:
    """Explain why it is unknown whether a figure is within its limit, and name the next step."""
    if name == "seconds" and model_figures.no_seconds:
        return model_figures.no_seconds
    number = _get_number(figure)
    if number is None or figure.sign:
        text = _INEXACT[figure.sign] if number is not None else "the figure is unknown"
        if model_figures.open_sizes:
            sizes = " ".join(f"--dim {size}=1" for size in model_figures.open_sizes)
            return f"{text}, because sizes are open; add {sizes}, with your sizes"
        if model_figures.unknown:
            return f"{text}; explorer layers {model} --filter status:unknown lists the layers"
        return text
    if budget.is_change and old is None:
        return "the baseline has no such figure; --update adds it"
    if budget.is_change and old is not None and (old.sign or old.value is None):
        return f"the baseline's figure is inexact: {_INEXACT.get(old.sign, 'it is unknown')}"
    return "the limit is within the 95 % interval of the measured time" if name == "seconds" else ""


def _build_unknown_row(
    model_figures: ModelFigures, new_unknown: tuple[str, ...], past_entry: BaselineModel | None
) -> BudgetRow:
    """Build the row of the budget that allows no layer with a newly unknown figure."""
    figure = FigureValue(len(model_figures.unknown))
    past = FigureValue(None if past_entry is None else len(past_entry.unknown))
    return BudgetRow(
        "no_new_unknown",
        "unknown_layers",
        "whole",
        "no new ones",
        None,
        _get_number(figure),
        "",
        _get_number(past),
        "",
        _compute_change(figure, past),
        "missed" if new_unknown else "met",
        f"newly unknown: {format_short_list(new_unknown)}" if new_unknown else "",
    )


def _compare_conditions(model_figures: ModelFigures, before: BaselineModel | None) -> list[str]:
    """Return remarks if the figures of the baseline are for other inputs or another machine."""
    if before is None:
        return []
    notes = []
    if before.inputs != dict(model_figures.inputs):
        old = ", ".join(f"{name} {shape}" for name, shape in before.inputs.items())
        notes.append(f"the baseline is of inputs with other shapes: {old or 'none'}")
    if (
        "least_seconds" in model_figures.figures
        and before.machine != model_figures.machine
        and before.machine
    ):
        notes.append(f"the least time of the baseline is that of {before.machine}")
    return notes
