"""What a tiling would do, before it is done: the counts of the plan, site by site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base import units
from explorer.tui.text.lines import BLANK, Line, fit, head, middle, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import Plan

__all__ = ["plan_lines"]

_MOST = 200
_NAMED = 6


def plan_lines(plan: Plan, width: int) -> list[Line]:
    """Headline, a row a matmul, and what is left alone with the reason."""
    width -= 1
    sites = len(plan.sites)
    if sites:
        share = "the model's total is not known"
        if plan.macs_total is not None:
            share = f"{units.percent_text(plan.macs, plan.macs_total)} of the model"
        lines = wrap(
            (
                (units.exact_text(plan.products), "strong"),
                (f" tile {_many(plan.products, 'matmul')} in {sites:,} {_many(sites, 'matmul')}", "text"),
                (f" · {units.count_text(plan.macs)} MACs, {share}", "dim"),
            ),
            width,
        )
    else:
        lines = [(("Nothing to tile with these choices", "warn"),)]
    if sites:
        shown = plan.sites[:_MOST]
        sizes = [f"{site.M}×{site.K}×{site.N}" for site in shown]
        size_width = max(len(size) for size in sizes) + 2
        form_width = max(4, *(len(site.form) for site in shown))
        used_width = 8 if width >= 60 else 0
        name = max(10, width - size_width - form_width - used_width - 16)
        lines.append(BLANK)
        columns = f"{'M×K×N':>{size_width}}{'tile matmuls':>14}{fit('util.', used_width, right=True)}  form"
        lines.append(((fit("matmul", name), "dim"), (columns, "dim")))
        for site, size in zip(shown, sizes, strict=True):
            lines.append(
                (
                    (fit(middle(safe(site.name), name - 1), name), "text"),
                    (fit(size, size_width, right=True), "number"),
                    (fit(units.exact_text(site.products_total), 14, right=True), "number"),
                    (fit(f"{100 * site.utilisation:.1f} %", used_width, right=True), "dim"),
                    ("  " + site.form, "accent"),
                )
            )
        if sites > _MOST:
            lines.append(((f"{_MOST:,} of {sites:,} shown", "dim"),))
    if plan.skipped:
        lines += [BLANK, head(f"Left as they are: {len(plan.skipped):,}")]
        reasons: dict[str, list[str]] = {}
        for skipped in plan.skipped:
            reasons.setdefault(skipped.reason, []).append(skipped.name)
        for reason, names in list(reasons.items())[:_MOST]:
            lines.extend(wrap(((f"{len(names):,} × ", "number"), (safe(reason), "text")), width, 4))
            more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
            named = ", ".join(safe(name) for name in names[:_NAMED]) + more
            lines.extend(wrap((("    ", "text"), (named, "dim")), width, 4))
    return lines


def _many(count: int | None, noun: str) -> str:
    return noun if count == 1 else noun + "s"
