"""What a tiling would do or did, in text: `explorer tile`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from itertools import groupby

from msgspec.structs import replace

from explorer.base.units import count_text, edges_text, exact_text, runs_text, seconds_text
from explorer.facts import Diff, Plan, SitePlan, SkippedSite, TileResult
from explorer.report.blocks import Block, Cell, Column, Line, Paragraph, Span, Table
from explorer.report.present.alike import alike, and_more
from explorer.report.present.compare.diff import changes
from explorer.report.present.compare.verify import evidence, to_blame
from explorer.report.present.figures import share_text
from explorer.settings.parse import option_words, path_word

__all__ = ["plan", "plan_matmuls", "tile"]


def plan(fact: Plan, source: str) -> list[Block]:
    """What would be tiled and how: one row a matmul, what is left as it was, and why."""
    sizes = [f"{name} = {size:,}" for name, size in fact.dims.items()]
    how = [
        f"{'x'.join(map(str, fact.tile))} tiles",
        f"{edges_text(fact.edges)} at the edges",
        f"form {fact.form}",
    ]
    how += [f"counted for {', '.join(sizes)}"] if fact.free else sizes
    return [
        Line((Span(source, "strong"), Span(f"   in {', '.join(how)}", "quiet"))),
        Line(),
        *plan_matmuls(fact),
    ]


def plan_matmuls(fact: Plan) -> list[Block]:
    """The matmuls of a plan, a row for those that are alike; what is left as it was, and why."""
    blocks: list[Block] = []
    groups = alike(fact.sites, lambda site: replace(site, name="", output="", weight=None, place=()))
    if fact.sites:
        blocks += [_sites(fact, groups), Line(), *_notes(fact, groups)]
    else:
        blocks.append(Paragraph("Nothing to tile: no matmul here can be tiled.", "warning"))
    if fact.skipped:
        head = (Column("", "right"), Column("left as it was"), Column("", shrink=True, drop=1), Column(""))
        blocks += [Line(), Table(head, _skipped_rows(fact.skipped))]
    return blocks


def _sites(fact: Plan, groups: Sequence[Sequence[SitePlan]]) -> Table:
    """A row for each group of sites that are alike, and what they come to together."""
    # what differs from site to site is said at each
    own: list[tuple[str, Callable[[SitePlan], str]]] = [
        (title, shown)
        for title, asked, shown in (
            ("tile", fact.tile, lambda site: "x".join(map(str, site.tile))),
            ("edges", fact.edges, lambda site: edges_text(site.edges)),
        )
        if any(
            getattr(site, title) != asked for site in fact.sites if title == "tile" or site.form != "batched"
        )
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            and_more([site.name for site in group]),
            Span(_operator(site), "quiet"),
            exact_text(site.M),
            exact_text(site.K),
            exact_text(site.N),
            *(shown(site) for _, shown in own),
            _grid(site),
            Span(exact_text(_of_all(site.products_total, len(group))), "strong"),
            f"{100 * site.utilisation:.1f} %",
            Span(site.form, "quiet"),
        )
        for group in groups
        for site in group[:1]
    ]
    if len(fact.sites) > 1:
        rows.append(
            (
                *("",) * (5 + len(own)),
                Span("together", "quiet"),
                Span(exact_text(fact.products), "strong"),
                "",
                "",
            )
        )
    columns = (
        Column("matmul", shrink=True),
        Column("operator", drop=2),
        Column("M", "right"),
        Column("K", "right"),
        Column("N", "right"),
        *(Column(title, "right") for title, _ in own),
        Column("grid M x K x N", "right", drop=1),
        Column("tile matmuls", "right"),
        Column("utilization", "right"),
        Column("form", drop=3),
    )
    return Table(columns, rows)


def _notes(fact: Plan, groups: Sequence[Sequence[SitePlan]]) -> list[Block]:
    """What the rows of sites do not say: how many share one, what is open, the share of the MACs."""
    share = "the model's own total is not known"
    if fact.macs_total is not None:
        share = f"{share_text(fact.macs, fact.macs_total)} of the model's"
    notes: list[Block] = []
    if len(groups) < len(fact.sites):
        many = f"{len(fact.sites):,} matmuls in {len(groups):,} rows: those that are alike share one"
        notes.append(Paragraph(f"{many}; --json lists each.", "quiet"))
    if fact.free:
        free = " and ".join(fact.free)
        notes.append(Paragraph(f"The tiled graph takes every size of {free}.", "quiet"))
    unknown = sum(site.calls is None for site in fact.sites)
    if unknown:
        many = "1 matmul runs" if unknown == 1 else f"{unknown:,} matmuls run"
        notes.append(
            Paragraph(f"How often {many} depends on the data: that makes the sums unknown.", "warning")
        )
    if any(site.calls == 0 for site in fact.sites):
        notes.append(Paragraph("Of the branches of an If the costliest counts.", "quiet"))
    notes.append(
        Paragraph(
            f"{count_text(fact.macs)} MACs are tiled, {share}. Tile utilization is the share "
            "of each tile's arithmetic that the matmul needs; the rest is idle.",
            "quiet",
        )
    )
    return notes


def _operator(site: SitePlan) -> str:
    """What the site is, and how often it runs in one pass of the model."""
    return ", ".join(filter(None, (site.op + (" + bias" if site.bias else ""), runs_text(site.calls))))


def _of_all(count: int | None, times: int) -> int | None:
    return None if count is None else count * times


def _grid(site: SitePlan) -> str:
    """Tiles along each axis, of as many matmuls as there are side by side."""
    grid = " x ".join(f"{size:,}" for size in site.grid)
    return grid if site.batch == 1 else f"{site.batch:,} of {grid}"


def tile(fact: TileResult, source: str, change: Diff | None, opening: Sequence[str] = ()) -> list[Block]:
    """The answer of `explorer tile`: plan, proof, what changed, where it lies, what to type next.

    Args:
        fact: The result; an empty `output` means that only the plan was asked for.
        source: The model as the user named it.
        change: What changed in the graph; None leaves that part out.
        opening: Options with which the model was opened, for the commands to type next.
    """
    blocks = plan(fact.plan, source)
    if fact.verification is not None:
        blocks += [Line(), Line(Span("Proof", "strong")), *evidence(fact.verification)]
    if change is not None:
        blocks += [Line(), Line(Span("What changed", "strong")), *changes(change)]
    blocks.append(Line())
    if fact.verification is not None and not fact.verification.passed:
        shown = fact.verification.verdict_kind == "different"
        why = "The proof failed" if shown else "It could not be proved"
        blocks.append(Paragraph(f"{why}, so nothing was written.", "bad" if shown else "warning"))
        if not fact.command:
            return blocks
        return [*blocks, *to_blame(source, fact.verification.after, opening, f"{fact.command} --no-verify")]
    if not fact.output:
        return [*blocks, Paragraph("Only the plan: nothing was written. Add -o FILE to tile.", "quiet")]
    blocks.append(
        Line(("wrote ", Span(fact.output, "strong"), Span(f"  in {seconds_text(fact.seconds)}", "quiet")), 2)
    )
    if fact.verification is None:
        blocks.append(Paragraph("Not verified, because --no-verify was given.", "warning"))
    # a dimension that the tiling bound by itself is still open in the original
    assumed = [f"{name}={size}" for name, size in fact.plan.dims.items()]
    opening = [
        *opening,
        *(word for one in assumed if one not in opening for word in option_words("--dim", one)),
    ]
    following = [
        (
            "see both graphs side by side",
            ("explorer", "diff", path_word(source), path_word(fact.output), *opening),
        ),
        ("look around in the result", ("explorer", path_word(fact.output))),
    ]
    rows = [
        (Span("next" if i == 0 else "", "quiet"), shlex.join(c), Span(w, "quiet"))
        for i, (w, c) in enumerate(following)
    ]
    blocks.append(Table((Column(""), Column(""), Column("")), rows))
    return blocks


def _skipped_rows(skipped: Sequence[SkippedSite]) -> list[tuple[Cell, ...]]:
    """A row for every reason: how many, which operator, the first name."""

    def alike(skip: SkippedSite) -> tuple[str, str]:
        return skip.op, skip.reason

    rows: list[tuple[Cell, ...]] = []
    for (op, reason), group in groupby(sorted(skipped, key=alike), key=alike):
        names = [skip.name for skip in group]
        which = and_more(names)
        rows.append((exact_text(len(names)), op, Span(which, "quiet"), Span(reason, "warning")))
    return rows
