"""Text output of `explorer tile` and `explorer settings`.

A site is a matrix product of the model that can be tiled.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from explorer.base.units import (
    count_text,
    dims_text,
    edges_text,
    exact_text,
    runs_text,
    seconds_text,
    sizes_text,
)
from explorer.facts import Diff, Info, Plan, SitePlan, SkippedSite, TileResult
from explorer.facts.quantize import Quantization
from explorer.facts.settings import Settings, SiteSettings
from explorer.features.tiling.records import TilingRecord
from explorer.report.blocks import Block, Cell, Column, Field, Line, Paragraph, Role, Span, Table, table_of
from explorer.report.present.accumulator import overflows
from explorer.report.present.compare.diff import build_changes
from explorer.report.present.compare.verify import evidence, suggest_blame
from explorer.report.present.effective_settings import origin_text, warn_unused_rules
from explorer.report.present.figures import report_written, share_text, utilization
from explorer.report.present.row_groups import group_rows, list_first_names
from explorer.settings.parse import write_option_words, write_path_word


def plan(fact: Plan, source: str) -> list[Block]:
    """Build the plan: a row for each site, and the skipped matmuls with the reasons."""
    # sites with open sizes and batched tiles are padded even if the spec says otherwise
    edges = {site.edges for site in fact.sites} or {fact.edges}
    tiles = [sizes_text(tile) for tile in sorted({site.tile for site in fact.sites} or {fact.tile})]
    remarks = [
        f"{tiles[0] if len(tiles) == 1 else f'{len(tiles):,} sizes of'} tiles",
        f"{' and '.join(edges_text(mode, brief=False) for mode in sorted(edges))} at the edges",
        f"form {fact.form}",
    ]
    remarks += [f"counted for {dims_text(fact.dims)}"] if fact.dims else []
    return [
        Line((Span(source, "strong"), Span(f"   in {', '.join(remarks)}", "quiet"))),
        Line(),
        *plan_matmuls(fact),
    ]


def plan_matmuls(fact: Plan) -> list[Block]:
    """Build the sites of a plan with one row for equal sites, and the skipped matmuls with the reasons."""
    blocks: list[Block] = []
    groups = group_rows(
        fact.sites, lambda site: replace(site, name="", output="", weight=None, place=(), layer="")
    )
    if fact.sites:
        blocks += [_add_total_row(matmuls(fact, groups), fact), Line(), *_build_notes(fact, groups)]
    else:
        blocks.append(Paragraph("Nothing to tile: no matmul here can be tiled.", "warning"))
    blocks += overflows(fact.accumulator_bits, {site.name: site.sums for site in fact.sites if site.sums})
    if fact.skipped:
        blocks += [Line(), build_skipped_table(fact)[0]]
    return blocks


def result_blocks(fact: TileResult) -> list[Block]:
    """Build the plan of a tiling, its proof, and the written file."""
    proof = (
        []
        if fact.verification is None
        else [Line(), Line(Span("Proof", "strong")), *evidence(fact.verification)]
    )
    written = [Line(), *report_written(fact.output, seconds_text(fact.seconds))] if fact.output else []
    return [*plan_matmuls(fact.plan), *proof, *written]


def headline(fact: Plan) -> Line:
    """State the numbers of tile matmuls and of sites, and their share of the model's MACs."""
    sites = len(fact.sites)
    if not sites:
        return Line(Span("Nothing to tile with these choices", "warning"))
    matmuls_text = f" tile matmul{'s' * (fact.products != 1)} in {sites:,} matmul{'s' * (sites != 1)}"
    role: Role = "good" if fact.macs == fact.macs_total is not None else "figure"
    share = Span(_format_share(fact), role)
    count = f"{fact.sign}{exact_text(fact.products)}"
    return Line((Span(count, "strong"), matmuls_text, Span(" · ", "quiet"), share))


def _format_share(fact: Plan) -> str:
    total_macs = fact.macs_total
    return (
        "of an unknown number of MACs"
        if total_macs is None
        else f"{share_text(fact.macs, total_macs)} of the model's MACs"
    )


def open_sizes(fact: Plan) -> tuple[str, Span]:
    """Return two texts: the dimension sizes for which figures are counted, and the sizes the graph takes."""
    fixed = [name for name in fact.dims if name not in fact.free]
    graph = [f"takes every size of {' and '.join(fact.free)}"] if fact.free else []
    graph += [f"works only for this {' and '.join(fixed)}"] if fixed else []
    sentence = f"The tiled graph {', and '.join(graph)}."
    return dims_text(fact.dims), Span(sentence, "warning" if fixed else "quiet")


def explain_padding(fact: Plan, next_step: str) -> str:
    """State that tiles of open sizes are padded, with the way to fix a size; '' if no such tile is padded."""
    is_padded = fact.free and any(site.edges == "padded" for site in fact.sites)
    return f"Tiles of open sizes are always padded; {next_step}." if is_padded else ""


def build_tiling_fields(site: SitePlan) -> list[Field]:
    """Build the fields for the tiling of one site, and for the utilization of its tiles."""
    return [
        Field("grid", _format_grid(site)),
        Field("tile", sizes_text(site.tile)),
        Field("edges", edges_text(site.edges)),
        Field("form", site.form),
        Field("utilization", utilization(site.utilisation)),
        Field("tile matmuls", exact_text(site.products)),
        *([Field("accumulator", f"{site.sums.bits} of {site.sums.bits_any} bits")] if site.sums else []),
        *([Field("in floats", Span(site.in_floats, "warning"))] if site.in_floats else []),
        *([Field("in a pass", Span(runs, "formula"))] if (runs := _format_runs(site)) else []),
        *([Field("known at run time", Span(", ".join(site.dynamic), "warning"))] if site.dynamic else []),
    ]


def matmuls(fact: Plan, groups: Sequence[Sequence[SitePlan]]) -> Table:
    """Build a table with a row for each group of equal sites."""
    # settings that differ between sites get a column; batched tiles are padded whatever the plan says
    varying: list[tuple[str, Callable[[SitePlan], str]]] = [
        (title, text_of)
        for title, plan_value, text_of in (
            ("tile", fact.tile, lambda site: sizes_text(site.tile)),
            ("edges", fact.edges, lambda site: edges_text(site.edges)),
        )
        if any(
            getattr(site, title) != plan_value
            for site in fact.sites
            if title == "tile" or site.form != "batched"
        )
    ]
    rows: list[tuple[Cell, ...]] = [
        (
            list_first_names([site.title for site in group]),
            Span(_format_operator(site), "quiet"),
            exact_text(site.M),
            exact_text(site.K),
            exact_text(site.N),
            *(text_of(site) for _, text_of in varying),
            _format_grid(site),
            Span(
                f"{site.sign}{exact_text(_count_products(group))}",
                "strong",
            ),
            utilization(site.utilisation),
            Span(site.form, "quiet"),
        )
        for group in groups
        for site in group[:1]
    ]
    columns = (
        Column("matmul", shrink=True),
        Column("operator", drop=2),
        Column("M", "right"),
        Column("K", "right"),
        Column("N", "right"),
        *(Column(title, "right") for title, _ in varying),
        Column("grid M x K x N", "right", drop=1),
        Column("tile matmuls", "right"),
        Column("utilization", "right"),
        Column("form", drop=3),
    )
    return Table(columns, rows)


def _add_total_row(table: Table, fact: Plan) -> Table:
    """Add a row of totals to the table."""
    if len(fact.sites) < 2:
        return table
    total: tuple[Cell, ...] = (
        Span("together", "quiet"),
        Span(f"{fact.sign}{exact_text(fact.products)}", "strong"),
    )
    return replace(table, rows=[*table.rows, (*("",) * (len(table.columns) - 4), *total)])


def _build_notes(fact: Plan, groups: Sequence[Sequence[SitePlan]]) -> list[Block]:
    """Build the notes below the table: rows for several sites, open sizes, the share of the MACs."""
    notes: list[Block] = []
    if len(groups) < len(fact.sites):
        subject = (
            f"{len(fact.sites):,} matmuls: equal matmuls share a row, which counts the tile matmuls of all"
        )
        notes.append(Paragraph(f"{subject}; --json lists each.", "quiet"))
    if fact.dims:
        padding = explain_padding(fact, f"'--dim {fact.free[0]}=SIZE' fixes a size" if fact.free else "")
        notes.append(Paragraph(f"{open_sizes(fact)[1].text} {padding}".rstrip(), "quiet"))
    unknown = sum(site.calls is None for site in fact.sites)
    if unknown:
        subject = "1 matmul runs" if unknown == 1 else f"{unknown:,} matmuls run"
        notes.append(
            Paragraph(f"How often {subject} depends on the data: that makes the sums unknown.", "warning")
        )
    fewer = sum(bool(site.sign) for site in fact.sites)
    if fewer:
        subject = "1 matmul stands" if fewer == 1 else f"{fewer:,} matmuls stand"
        note = (
            f"{subject} in a loop that may end earlier, or in one branch of several: <= marks upper bounds."
        )
        notes.append(Paragraph(note, "warning"))
    zeros = sum(site.zeros for site in fact.sites)
    if zeros:
        why = "phases of a transposed convolution with fewer taps, or groups packed into one matmul"
        notes.append(
            Paragraph(f"{count_text(zeros)} additional MACs multiply zeros in the kernels: {why}.", "warning")
        )
    notes += _list_float_matmuls(fact)
    if any(site.calls == 0 for site in fact.sites):
        notes.append(Paragraph("Of the branches of an If, the most expensive one counts.", "quiet"))
    notes.append(
        Paragraph(
            f"{fact.sign}{count_text(fact.macs)} MACs are tiled, {_format_share(fact)}."
            f"{_format_untiled(fact)} Tile utilization is the share of each tile's arithmetic that the matmul"
            " needs; the rest is idle.",
            "quiet",
        )
    )
    return notes


def _format_untiled(fact: Plan) -> str:
    """Describe the MACs that are neither tiled nor in the table of skipped matmuls; '' below 0.1 %."""
    skipped = [skip.macs for skip in fact.skipped]
    if fact.macs is None or fact.macs_total is None or None in skipped:
        return ""
    remaining_macs = fact.macs_total - fact.macs - sum(macs or 0 for macs in skipped)
    if 1000 * remaining_macs <= fact.macs_total:
        return ""
    share = share_text(remaining_macs, fact.macs_total)
    return f" {share} are in layers that were not chosen, or that have no matmul."


def _list_float_matmuls(fact: Plan) -> list[Block]:
    """List the quantized matmuls that are tiled as floats, with the reasons."""
    reasons = dict.fromkeys(site.in_floats for site in fact.sites if site.in_floats)
    site_names = {why: [site.name for site in fact.sites if site.in_floats == why] for why in reasons}
    return [
        Paragraph(f"Computed in floats, although quantized: {list_first_names(names)} ({why}).", "warning")
        for why, names in site_names.items()
    ]


def _format_operator(site: SitePlan) -> str:
    """Name the operator of a site, and how often it runs in one pass of the model."""
    floats = "in floats" if site.in_floats else ""
    parts = site.op + (" + bias" if site.bias else ""), floats, _format_runs(site)
    return ", ".join(filter(None, parts))


def _format_runs(site: SitePlan) -> str:
    """Format how often a site runs in one pass: '3 runs', '<= 3 runs', '' for once."""
    runs = runs_text(site.calls)
    return f"{site.sign}{runs or ('1 run' if site.sign else '')}"


def _count_products(group: Sequence[SitePlan]) -> int | None:
    """Return the number of tile matmuls of a group of equal sites, or None if unknown."""
    products = group[0].products_total
    return None if products is None else products * len(group)


def _format_grid(site: SitePlan) -> str:
    """Format the number of tiles along each axis, and the number of matmuls in the batch."""
    grid = " x ".join(f"{size:,}" for size in site.grid)
    return grid if site.batch == 1 else f"{site.batch:,} x ({grid})"


def _note_quantization(first: Quantization) -> list[Block]:
    """Summarize a quantization before the tiling."""
    changed = [layer for layer in first.layers if not layer.reason]
    formats = ", ".join(dict.fromkeys(layer.formats for layer in changed))
    text = f"quantized first: {len(changed):,} of {len(first.layers):,} layers to {formats}"
    return [Line((Span(text, "figure"),), 2)]


def _explain_exported_parameters(
    change: Diff, source: str, output: str, parameters: int | None
) -> list[Block]:
    """State the module's own number of parameters if its ONNX form stores another number."""
    stored = change.totals_before.params
    if parameters in (None, stored):
        return []
    command = f"`explorer compare {source} {output or 'FILE'}`"
    text = (
        f"The module has {parameters:,} parameters; its ONNX form stores {stored:,}. {command} explains why."
    )
    return [Paragraph(text, "quiet")]


def tile(
    fact: TileResult,
    source: str,
    change: Diff | None,
    opening: Sequence[str] = (),
    first: Quantization | None = None,
    module_parameters: int | None = None,
) -> list[Block]:
    """Build the output of `explorer tile`: plan, proof, changes, file, and next commands.

    Args:
        fact: Result of the tiling. An empty `output` means that only the plan was requested.
        source: Model as the user named it.
        change: Differences between the graphs, or None to leave them out.
        opening: Options with which the model was opened, for the next commands.
        first: Quantization before the tiling, or None.
        module_parameters: Parameters of the module that was exported, if the model is one.
    """
    blocks = plan(fact.plan, source)
    if first is not None:
        blocks[1:1] = _note_quantization(first)
    if fact.verification is not None:
        blocks += [Line(), Line(Span("Proof", "strong")), *evidence(fact.verification)]
    if change is not None:
        is_module = fact.verification is not None and bool(fact.verification.torch)
        origin = f"  before: {source} as ONNX" if is_module else ""
        blocks += [
            Line(),
            Line((Span("What changed", "strong"), Span(origin, "quiet"))),
            *build_changes(change),
            *(
                _explain_exported_parameters(change, source, fact.output, module_parameters)
                if is_module
                else []
            ),
        ]
    blocks.append(Line())
    if fact.verification is not None and not fact.verification.passed:
        differs = fact.verification.verdict_kind == "different"
        why = "The proof failed" if differs else "It could not be proved"
        blocks.append(Paragraph(f"{why}, so no file was written.", "bad" if differs else "warning"))
        if not fact.command:
            return blocks
        return [
            *blocks,
            *suggest_blame(source, fact.verification.after, opening, f"{fact.command} --no-verify"),
        ]
    if not fact.output:
        return [
            *blocks,
            Paragraph("This is only the plan; no file was written. Add -o FILE to tile.", "quiet"),
        ]
    blocks.append(
        Line(("wrote ", Span(fact.output, "strong"), Span(f"  in {seconds_text(fact.seconds)}", "quiet")), 2)
    )
    if fact.verification is None:
        blocks.append(Paragraph("Not verified, because --no-verify was given.", "warning"))
    # `diff` needs sizes for the open dimensions of the original that the tiling fixed
    assumed = [f"{name}={size}" for name, size in fact.plan.dims.items()]
    opening = [
        *opening,
        *(word for dim in assumed if dim not in opening for word in write_option_words("--dim", dim)),
    ]
    next_commands = [
        (
            "print what changed",
            ("explorer", "diff", write_path_word(source), write_path_word(fact.output), *opening),
        ),
        ("look around in the result", ("explorer", write_path_word(fact.output))),
    ]
    rows = [
        (Span("next" if index == 0 else "", "quiet"), shlex.join(command), Span(purpose, "quiet"))
        for index, (purpose, command) in enumerate(next_commands)
    ]
    blocks.append(Table((Column(""), Column(""), Column("")), rows))
    return blocks


def build_skipped_table(fact: Plan) -> tuple[Table, list[list[SkippedSite]]]:
    """Build a table with a row for each operator and reason, most MACs first, and return each row's sites."""
    sites_by_reason: dict[tuple[str, str], list[SkippedSite]] = {}
    for skip in fact.skipped:
        sites_by_reason.setdefault((skip.op, skip.reason), []).append(skip)
    groups = sorted(sites_by_reason.values(), key=lambda group: -sum(skip.macs or 0 for skip in group))

    def share(group: list[SkippedSite]) -> str:
        macs = [skip.macs for skip in group if skip.macs is not None]
        return share_text(sum(macs), fact.macs_total) if fact.macs_total and len(macs) == len(group) else ""

    table = table_of(
        groups,
        (
            (Column("", "right"), lambda group: exact_text(len(group))),
            (Column("left as it was"), lambda group: group[0].op),
            (
                Column("", shrink=True, drop=2),
                lambda group: Span(list_first_names([s.name for s in group]), "quiet"),
            ),
            (Column("of the MACs", "right", drop=1), share),
            (Column(""), lambda group: Span(group[0].reason, "warning")),
        ),
    )
    return table, groups


def state_fields(record: TilingRecord) -> list[Field]:
    """Build the field for the tiled matmuls on the page of a state."""
    if record.plan is None:
        return []
    names = [site.name for site in record.plan.sites]
    prefix = f"{len(names):,} matmuls: " if len(names) > 1 else ""
    return [Field("tiled", Span(f"{prefix}{', '.join(names[:3])}{', …' if len(names) > 3 else ''}"))]


def settings(info: Info, fact: Settings) -> list[Block]:
    """Build the output of `explorer settings`: a row for each site with each value and its source."""
    tiled_count = sum(site.on for site in fact.sites)
    grouped = f"{fact.grouped}{origin_text(fact.grouped_origin)}"
    head = f"   {tiled_count:,} of {len(fact.sites):,} matmuls are tiled; grouped convolutions: {grouped}"
    blocks: list[Block] = [Line((Span(info.model.source, "strong"), Span(head, "quiet"))), Line()]
    columns = (
        Column("matmul", shrink=True),
        Column("operator", drop=2, role="quiet"),
        Column("M", "right", drop=1),
        Column("K", "right", drop=1),
        Column("N", "right", drop=1),
        *(Column(name) for name in ("tiled", "tile", "edges", "form")),
    )
    if fact.sites:
        blocks.append(Table(columns, [_build_row(site) for site in fact.sites]))
        blocks.append(Line())
    blocks.append(
        Paragraph(
            "Brackets show where a value was set. A value without brackets is the default.",
            "quiet",
        )
    )
    return [*blocks, *warn_unused_rules(fact.unused, "matmul")]


def _build_row(site: SiteSettings) -> tuple[Cell, ...]:
    values = {
        "on": "yes" if site.on else "no",
        "tile": sizes_text(site.tile),
        "edges": edges_text(site.edges),
        "form": site.form,
    }
    cells: list[Cell] = []
    for name, value in values.items():
        # the settings of an untiled site have no effect
        hidden = name != "on" and not site.on
        cells.append(
            Span("", "quiet") if hidden else (Span(value), Span(origin_text(site.origins[name]), "quiet"))
        )
    return (site.name, site.op, exact_text(site.M), exact_text(site.K), exact_text(site.N), *cells)
