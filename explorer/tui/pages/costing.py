"""What a tiling would do and cost, as rows to walk through: figures, sites, and what is left.

Each row has lines of its own about it, which stand below the list while the cursor is on it: of a figure its
formula, in letters and with the numbers of a site, of a site what it costs, of what is left the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.base import units
from explorer.facts.cost import ORDERS, Hardware
from explorer.report.present.tiling.plan import formula_value
from explorer.report.terms import field_terms
from explorer.tui.text.lines import BLANK, Line, Span, cut, ending, fit, flow, line_width, middle, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import Plan, SitePlan, SkippedSite
    from explorer.facts.cost import Formula, OrderTotal, PlanCost, SiteCost, Systolic

__all__ = ["CostRow", "cost_rows", "formula_lines", "formula_page", "headline"]

_MOST = 500
"""Sites that are listed, and reasons."""
_LABEL = 22


class CostRow(Struct, frozen=True):
    """A row, what is to be said of it, and the site that it is, if it is one."""

    head: Callable[[int], Line]
    about: Callable[[int], list[Line]]
    site: str = ""


def headline(plan: Plan, width: int) -> Line:
    """How many tile matmuls, in how many matmuls, and the share of the model's MACs that they do."""
    sites = len(plan.sites)
    if not sites:
        return (("Nothing to tile with these choices", "warn"),)
    share = "of how many MACs is not known"
    if plan.macs_total is not None:
        part = None if plan.macs is None else plan.macs / plan.macs_total if plan.macs_total else 0
        share = f"{units.reached_text(part)} of the MACs"
    role = "good" if plan.macs == plan.macs_total is not None else "number"
    said = ((units.exact_text(plan.products), "strong"), (f" tile {_many(plan.products, 'matmul')}", "text"))
    where: Line = ((f" in {sites:,} {_many(sites, 'matmul')}", "text"), (" · ", "dim"), (share, role))
    return cut((*said, *where), width)


def cost_rows(
    plan: Plan, cost: PlanCost | None, example: SiteCost | None, missing: str = "choose a machine above"
) -> list[CostRow]:
    """Everything that is known of a plan.

    Args:
        plan: What would be done.
        cost: What that costs; None leaves the figures out.
        example: One of its sites with formulas, to show how figures come about.
        missing: What to do where no machine is known.
    """
    rows = [_counted_for(plan)] if plan.dims and plan.sites else []
    rows += _figures(cost, example, missing) if cost is not None and plan.sites else []
    if plan.sites:
        rows += [_head(f"Matmuls: {len(plan.sites):,}"), *_sites(plan.sites, cost)]
    if plan.skipped:
        rows += [_head(f"Left as they are: {len(plan.skipped):,}"), *_left(plan.skipped, plan.macs_total)]
    return rows


def _head(title: str) -> CostRow:
    return CostRow(lambda width: cut(((title, "head"),), width), lambda width: [])


def _counted_for(plan: Plan) -> CostRow:
    """For which sizes of open dimensions the figures hold, and whether the graph holds for others, too."""
    sizes = ", ".join(f"{safe(name)}={size:,}" for name, size in plan.dims.items())
    bound = [safe(name) for name in plan.dims if name not in plan.free]
    said = "the tiled graph takes every size"
    if bound:
        said = f"the tiled graph is for this {', '.join(bound)} only"
    parts: tuple[Line, ...] = (((sizes, "accent"),), ((said, "warn" if bound else "dim"),))
    return CostRow(
        partial(_entry, "counted for", parts),
        lambda width: wrap(((f"{sizes}: ", "accent"), (said, "dim")), width),
    )


# figures


def _figures(cost: PlanCost, example: SiteCost | None, missing: str) -> list[CostRow]:
    machine, total = cost.hardware, cost.total
    explain = _Explained(cost, example)
    timed = total.cycles is not None or total.seconds is not None
    rows = [
        explain.row("tile utilization", "utilisation", _share(cost.utilisation, _use_role(cost.utilisation))),
        explain.row(
            "padding overhead",
            "padded share",
            _share(cost.padded_share, "warn" if cost.padded_share else "dim"),
        ),
    ]
    if timed:
        rows.append(explain.row("time at full rate", ("cycles", "time"), _timing(total, len(cost.sites))))
    else:
        why = missing if machine == Hardware() else "its MACs and bytes a cycle are not known"
        rows.append(
            CostRow(
                lambda width: _entry("time", ((("?", "warn"),), ((why, "dim"),)), width),
                lambda width: [],
            )
        )
    least = f"×{cost.ratio:,.2f} the lower bound"
    rows += [
        explain.row("traffic, best order", f"traffic {_order(example)}", _amounts(total.traffic, least)),
        explain.row(
            "traffic, no reuse",
            "traffic without reuse",
            _amounts(cost.traffic_without_reuse, _times(cost.traffic_without_reuse, total.traffic)),
        ),
        explain.row("lower bound", ("lower bound", "distance from it"), _amounts(cost.lower_bound, "")),
        explain.row("intensity", "intensity", _intensity(total.intensity)),
        explain.row("buffer, single", "buffer", _buffer(cost, cost.buffer, not machine.double_buffered)),
        explain.row(
            "buffer, double", "buffer, double", _buffer(cost, cost.buffer_double, machine.double_buffered)
        ),
    ]
    rows.append(_head("Every matmul in one loop order"))
    best = min(one.traffic for one in cost.orders)
    for one in cost.orders:
        if one.order in ORDERS:
            formula = (f"traffic {one.order}",)
            title = f"{one.order} {ORDERS[one.order]}"
            rows.append(explain.row(title, formula, _in_order(one, best)))
    if cost.systolic:
        sides = "" if machine.array is None else " of {}×{}".format(*machine.array)
        rows.append(_head(f"A systolic array{sides}: filling and draining it counted"))
        rows += [_systolic(explain, timing) for timing in cost.systolic]
    return rows


def _systolic(explain: _Explained, timing: Systolic) -> CostRow:
    said: list[Line] = [((f"{units.count_text(timing.cycles)} cycles", "number"),)]
    if timing.total is not None:
        said.append(((f"{units.count_text(timing.total)} with moving", "number"),))
    if timing.seconds is not None:
        said.append(((units.seconds_text(timing.seconds), "number"),))
    said.append(((f"{units.count_text(timing.whole)} in one go", "dim"),))
    if timing.scalesim != timing.whole:
        said.append(((f"{units.count_text(timing.scalesim)} as SCALE-Sim 3 counts", "dim"),))
    name = timing.dataflow
    parts = ("", ", with moving", ", in one go", ", as SCALE-Sim 3")
    return explain.row(name, tuple(f"{name} array{part}" for part in parts), tuple(said))


class _Explained:
    """Makes rows of figures, with the formulas of one site under them."""

    def __init__(self, cost: PlanCost, example: SiteCost | None) -> None:
        self._cost, self._example = cost, example
        self._formulas = {f.name: f for f in example.formulas} if example is not None else {}

    def row(self, label: str, formulas: str | Sequence[str], said: Sequence[Line]) -> CostRow:
        names = (formulas,) if isinstance(formulas, str) else formulas
        found = [self._formulas[name] for name in names if name in self._formulas]
        return CostRow(partial(_entry, label, said), partial(self._about, found))

    def _about(self, found: Sequence[Formula], width: int) -> list[Line]:
        if not found or self._example is None:
            return [
                line for said in self._cost.assumptions for line in wrap(((field_terms(said), "dim"),), width)
            ]
        sites = self._cost.sites
        if len(sites) == 1 and sites[0].calls == 1:
            return [line for formula in found for line in formula_lines(formula, width)]
        # the figure is that of all sites: the numbers of one would give another
        lines: list[Line] = []
        for formula in found:
            said = _of_all(formula, f"{len(sites):,} {_many(len(sites), 'matmul')}, every call")
            lines += wrap(((f"{field_terms(formula.name)} = ", "dim"), (said, "accent")), width, 2)
        name = ending(safe(self._example.name), max(8, width - 34))
        return [
            *lines,
            cut((("f has the numbers of ", "dim"), (name, "text"), (", the largest", "dim")), width),
        ]


_RATIOS = {
    "utilisation": "MACs of all matmuls / TM TK TN of all their tile matmuls",
    "padded share": "padding of all matmuls / all their bytes with it",
    "intensity": "FLOPs of all matmuls / all their traffic",
    "distance from it": "traffic of all matmuls / all their lower bounds",
}
"""What is no sum over sites."""


def _of_all(formula: Formula, sites: str) -> str:
    """How a figure of all sites comes about from the formula of one."""
    if formula.name.startswith("buffer"):
        return f"the most that a matmul needs, of {field_terms(formula.rule)}"
    return _RATIOS.get(formula.name) or f"sum over {sites}: {field_terms(formula.rule)}"


def formula_page(site: SiteCost, width: int) -> list[Line]:
    """Every figure of a site with its formula, in letters and with its numbers."""
    width -= 1
    lines: list[Line] = [((safe(site.name), "strong"),)]
    tile = "×".join(map(str, site.tile))
    lines.append(((f"{site.M:,} × {site.K:,} × {site.N:,} in tiles of {tile}", "dim"),))
    for formula in site.formulas:
        lines += [BLANK, *formula_lines(formula, width)]
    return lines


def formula_lines(formula: Formula, width: int) -> list[Line]:
    """A formula in letters, and filled in."""
    rule = wrap(((f"{field_terms(formula.name)} = ", "dim"), (field_terms(formula.rule), "accent")), width, 2)
    value = formula_value(formula)
    return rule + wrap((("  = ", "dim"), (formula.filled, "text"), (f" = {value}", "number")), width, 4)


def _entry(label: str, said: Sequence[Line], width: int) -> Line:
    """A figure: its name, and as much of what is said of it as fits."""
    name = fit(f"  {label}", _LABEL + 2 if width >= 44 else max(14, width // 2))
    lines = flow(said, width - line_width(((name, ""),)), 0)
    return cut(((name, "dim"), *(lines[0] if lines else ())), width)


def _share(value: float, role: str) -> tuple[Line, ...]:
    return (((f"{100 * value:.1f} %", role),),)


def _use_role(used: float) -> str:
    return "good" if used >= 0.75 else "number" if used >= 0.25 else "warn"


def _amounts(value: int, remark: str) -> tuple[Line, ...]:
    return ((units.bytes_text(value), "number"),), ((remark, "dim"),)


def _times(value: int, whole: int) -> str:
    return f"×{value / whole:,.2f} of that" if whole else ""


def _intensity(value: float | None) -> tuple[Line, ...]:
    return ((("-" if value is None else f"{value:,.2f}", "number"),), (("FLOPs a byte", "dim"),))


def _timing(total: OrderTotal, sites: int) -> tuple[Line, ...]:
    said: list[Line] = []
    if total.seconds is not None:
        said.append(((units.seconds_text(total.seconds), "strong"),))
    if total.cycles is not None:
        said.append(((f"{units.count_text(total.cycles)} cycles", "number"),))
    if total.memory_bound is not None:
        moving = total.memory_bound
        said.append(((f"moving bounds {moving:,} of {sites:,}", "warn" if moving else "dim"),))
    return tuple(said)


def _buffer(cost: PlanCost, size: int, needed: bool) -> tuple[Line, ...]:
    said: list[Line] = [((units.bytes_text(size), "number"),)]
    room = cost.hardware.buffer
    if room is not None:
        fits = size <= room
        word = "fits in" if fits else "does not fit in"
        role = ("good" if fits else "bad") if needed else "dim"
        said.append(((f"{word} {units.bytes_text(room)}", role),))
    return tuple(said)


def _in_order(one: OrderTotal, best: int) -> tuple[Line, ...]:
    least = one.traffic == best
    said: list[Line] = [((units.bytes_text(one.traffic), "good" if least else "number"),)]
    if one.seconds is not None:
        said.append(((units.seconds_text(one.seconds), "number"),))
    if one.cycles is not None:
        said.append(((f"{units.count_text(one.cycles)} cycles", "dim"),))
    if one.intensity is not None:
        said.append(((f"{one.intensity:,.2f} FLOPs a byte", "dim"),))
    return tuple(said)


def _order(example: SiteCost | None) -> str:
    return example.order if example is not None else ""


# sites


def _sites(sites: Sequence[SitePlan], cost: PlanCost | None) -> list[CostRow]:
    costs = {site.name: site for site in cost.sites} if cost is not None else {}
    return [
        CostRow(partial(_site_row, site), partial(_site_about, site, costs.get(site.name)), site.name)
        for site in sites[:_MOST]
    ]


def _site_row(site: SitePlan, width: int) -> Line:
    batch = f"{site.batch:,}×" if site.batch > 1 else ""
    size = f"{batch}{site.M}×{site.K}×{site.N}"
    figures: list[Span] = [(fit(size, max(14, len(size)), right=True), "number")]
    figures.append((fit(units.exact_text(site.products_total), 9, right=True), "number"))
    if width >= 56:
        used = f"{100 * site.utilisation:.1f} %"
        figures.append((fit(used, 9, right=True), _use_role(site.utilisation)))
    if width >= 66:
        figures.append((fit("  " + site.form, 10), "accent"))
    room = max(6, width - line_width(figures) - 3)
    return cut((("  ", "text"), (fit(ending(safe(site.name), room), room + 1), "text"), *figures), width)


def _site_about(site: SitePlan, cost: SiteCost | None, width: int) -> list[Line]:
    first: list[Line] = [((middle(safe(site.name), width), "strong"),)]
    grid = " × ".join(f"{count:,}" for count in site.grid)
    tile = "×".join(map(str, site.tile))
    edges = units.edges_text(site.edges)
    said: list[Line] = [
        ((f"{safe(site.op)}{' + bias' if site.bias else ''}", "accent"),),
        ((f"{grid} tiles of {tile}", "number"),),
        ((f"{100 * site.utilisation:.1f} % utilization", _use_role(site.utilisation)),),
        ((f"{edges}, {site.form}", "dim"),),
    ]
    if site.dynamic:
        said.append(((f"{', '.join(site.dynamic)} known at run time", "warn"),))
    if site.calls != 1:
        often = f"runs {units.exact_text(site.calls)} times" if site.calls != 0 else "in a branch not counted"
        said.append(((often, "accent"),))
    if cost is not None:
        chosen = cost.chosen
        said.append(((f"{units.bytes_text(chosen.traffic)} in order {chosen.order}", "number"),))
        said.append(((f"×{cost.ratio:,.2f} the lower bound", "dim"),))
        if chosen.seconds is not None:
            said.append(((units.seconds_text(chosen.seconds), "number"),))
        if chosen.bound:
            said.append(((f"bound by {'moving' if chosen.bound == 'memory' else 'computing'}", "dim"),))
        said.append(((f"buffer {units.bytes_text(cost.buffer)}", "bad" if cost.fits is False else "dim"),))
    return [*first, *flow(said, width, 0)]


# what is left


def _left(skipped: Sequence[SkippedSite], whole: int | None) -> list[CostRow]:
    """A row for every operator and reason, the one with most MACs first."""
    kinds: dict[tuple[str, str], list[SkippedSite]] = {}
    for skip in skipped:
        kinds.setdefault((skip.op, skip.reason), []).append(skip)
    ordered = sorted(kinds.items(), key=lambda kind: -sum(skip.macs or 0 for skip in kind[1]))
    return [
        CostRow(partial(_left_row, op, reason, found, whole), partial(_left_about, reason, found))
        for (op, reason), found in ordered[:_MOST]
    ]


def _left_row(op: str, reason: str, found: Sequence[SkippedSite], whole: int | None, width: int) -> Line:
    known = [skip.macs for skip in found if skip.macs is not None]
    part = units.percent_text(sum(known), whole) if len(known) == len(found) and whole else ""
    spans: list[Span] = [(f"{len(found):>5,} × ", "number"), (f"{safe(op)} ", "text")]
    spans += [(f"{part} of the MACs ", "warn")] if part else []
    room = max(0, width - line_width(spans))
    return cut((*spans, (fit(safe(reason), min(room, len(safe(reason)))), "dim")), width)


def _left_about(reason: str, found: Sequence[SkippedSite], width: int) -> list[Line]:
    names = ", ".join(safe(skip.name) for skip in found[:6])
    more = f" and {len(found) - 6:,} more" if len(found) > 6 else ""
    return [*wrap(((safe(reason), "warn"),), width), *wrap(((names + more, "dim"),), width)]


def _many(count: int | None, noun: str) -> str:
    return noun if count == 1 else noun + "s"
