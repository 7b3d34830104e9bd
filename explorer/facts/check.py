"""Facts about budgets: the limits of a model's figures, and the change of each figure since a baseline."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Literal

from msgspec import Meta, field

from explorer.base.checked import Natural, Spec
from explorer.base.fact import Fact
from explorer.base.options import option
from explorer.facts.comparison import FigureValue, Unit

CheckVerdict = Literal["met", "missed", "unknown"]
"""'met': the figure keeps its limit. 'missed': it does not. 'unknown': the figure or the limit is unknown."""

BudgetValue = Natural | Annotated[float, Meta(ge=0)] | str | None
"""Limit of a figure: a number, a text with a unit ('4.1G', '25MiB', '20ms'), or a change ('+5%')."""


_MAX_FIGURE = (1 << 63) - 1
"""Largest figure of a baseline, as for other numbers in files: it fits in 64 bits."""


class CheckSpec(Spec, frozen=True):
    """Budgets of a model. A budget that is None limits nothing.

    Attributes:
        max_macs: Most multiply-accumulates of one forward pass.
        max_params: Most parameters.
        max_weight_bytes: Most bytes of the stored parameters.
        max_peak: Most bytes of activations that are live at one step of the execution.
        max_seconds: Most seconds of one run, measured on this computer. With a machine, the most seconds of
            its roofline, which are not measured.
        min_coverage: Least share of nodes whose figures are all known, 0 to 1.
        no_new_unknown: Whether each layer with an unknown figure must have one in the baseline.
    """

    max_macs: Annotated[
        BudgetValue,
        option(
            "largest number of MACs: 4.1G, or +5% on the baseline", metavar="LIMIT", reader="count_budget"
        ),
    ] = None
    max_params: Annotated[
        BudgetValue,
        option("largest number of parameters: 25M, or +0%", metavar="LIMIT", reader="count_budget"),
    ] = None
    max_weight_bytes: Annotated[
        BudgetValue, option("largest size of weights: 100MiB, or +0%", metavar="LIMIT", reader="bytes_budget")
    ] = None
    max_peak: Annotated[
        BudgetValue,
        option("largest size of live activations: 8MiB, or +10%", metavar="LIMIT", reader="bytes_budget"),
    ] = None
    max_seconds: Annotated[
        BudgetValue,
        option(
            "longest run: 20ms, or +10%; measured here, or the least time of the machine that you name",
            metavar="LIMIT",
            reader="seconds_budget",
        ),
    ] = None
    min_coverage: Annotated[
        BudgetValue,
        option(
            "smallest share of nodes whose figures are known: 95% or 0.95",
            metavar="SHARE",
            reader="coverage_budget",
        ),
    ] = None
    no_new_unknown: Annotated[
        bool, option("allow unknown figures only in layers where the baseline has them")
    ] = False


class BudgetRow(Fact, frozen=True):
    """A budget of a model, and the figure that it limits.

    Attributes:
        name: Name of the budget: a field of `CheckSpec`.
        figure: Name of the figure: 'macs', 'params', 'weight_bytes', 'activation_bytes_peak', 'seconds',
            'least_seconds', 'coverage' or 'unknown_layers'.
        unit: Unit of the figure.
        limit: Limit as the user wrote it.
        bound: Limit as a number, or None if it depends on an unknown figure of the baseline.
        value: Figure of the model, or None if it is unknown.
        sign: Sign of an inexact value: '<= ', '>= ' or '~ '.
        before: Figure of the baseline, or None if the baseline does not know it.
        before_sign: Sign of an inexact figure of the baseline.
        change: Growth since the baseline as a share, or None if one of the two values is not exact.
        verdict: Whether the figure keeps its limit.
        reason: Reason for a verdict other than 'met', in words.
    """

    name: str
    figure: str
    unit: Unit
    limit: str
    bound: float | None
    value: float | None
    sign: str
    before: float | None
    before_sign: str
    change: float | None
    verdict: CheckVerdict
    reason: str = ""


class ModelCheck(Fact, frozen=True):
    """Budgets of one model.

    Attributes:
        model: Name of the model, as the user typed it.
        budgets: Budgets in the order of `CheckSpec`.
        new_unknown: Paths of the layers with an unknown figure that the baseline does not list.
        notes: Remarks for the reader, in words.
    """

    model: str
    budgets: tuple[BudgetRow, ...]
    new_unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> CheckVerdict:
        """Worst verdict of the budgets: 'missed' is worse than 'unknown', and 'unknown' than 'met'."""
        return find_worst(row.verdict for row in self.budgets)


def find_worst(verdicts: Iterable[CheckVerdict]) -> CheckVerdict:
    """Returns the worst verdict: 'missed' is worse than 'unknown', and 'unknown' than 'met'."""
    present = set(verdicts)
    return "missed" if "missed" in present else "unknown" if "unknown" in present else "met"


class Check(Fact, frozen=True):
    """Answer of `explorer check`.

    Attributes:
        models: Checked models.
        baseline: Path of the baseline, or '' without one.
        updated: Whether the figures were written into the baseline.
        verdict: Worst verdict of the models: 'missed' is worse than 'unknown', and 'unknown' than 'met'.
    """

    models: tuple[ModelCheck, ...]
    baseline: str
    updated: bool
    verdict: CheckVerdict


class BaselineFigure(Fact, frozen=True):
    """Figure of a baseline. `value` is None if it was unknown. `sign` is that of `Totals.sign`."""

    value: Annotated[int, Meta(ge=0, le=_MAX_FIGURE)] | Annotated[float, Meta(ge=0, le=_MAX_FIGURE)] | None
    sign: Literal["", "<= ", ">= ", "~ "] = ""

    @property
    def figure(self) -> FigureValue:
        """The figure as a comparison uses it, to compute its range."""
        return FigureValue(self.value, self.sign)


class BaselineModel(Fact, frozen=True):
    """Figures of one model in a baseline.

    Attributes:
        figures: Figures by name.
        inputs: Shape of each input by name, as text.
        unknown: Paths of the layers with an unknown figure.
        machine: Machine of 'least_seconds', or '' without one.
    """

    figures: dict[str, BaselineFigure]
    inputs: dict[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    machine: str = ""


class Baseline(Fact, frozen=True):
    """Baseline file: the figures of models by name.

    Attributes:
        baseline_version: Version of the file's format.
        tool: Name and version of the program that wrote the file.
        models: Figures by the name of the model.
    """

    baseline_version: Literal[1]
    models: dict[str, BaselineModel]
    tool: str = ""
