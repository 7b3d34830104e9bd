"""Text output of `explorer serving`: the cost of serving a language model."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from explorer.base.units import bytes_text, many_text, rate_text, shape_text
from explorer.facts import Info
from explorer.facts.serving.serving import (
    CacheGroup,
    DeviceLayout,
    PassFigures,
    Serving,
    ServingTime,
)
from explorer.facts.serving.sweep import ServingRow
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Rows,
    Span,
    Table,
    table_of,
)
from explorer.report.present.figures import bytes_field, count, count_field, dash_zero, plain, seconds, size
from explorer.report.present.look.info import title

LIMITS = {"compute": "products", "weights": "weights", "cache": "cache", "links": "links", "unknown": "?"}
"""Word for each `ServingLimit`."""


LAYOUT = "layout"
LAYOUT_AXES = "tensor x pipeline x expert"
"""Column title for `format_layout`, and the meaning of its three numbers."""


def serving(models: Sequence[tuple[Info, Serving]]) -> list[Block]:
    """Build the output of `explorer serving` for one model, or a table with a column for each of several."""
    if len(models) > 1:
        return build_comparison(models)
    info, fact = models[0]
    return [*title(info.model), Line(), *serving_blocks(fact)]


def serving_blocks(fact: Serving) -> list[Block]:
    """Build the blocks for parameters, passes, cache, times, layouts and notes."""
    blocks: list[Block] = [parameters(fact), Line(), parts_table(fact), Line(), passes_table(fact)]
    blocks += [*forms(fact), Line(), Heading("KV cache"), cache_figures(fact), Line(), cache_table(fact)]
    if fact.times:
        blocks += [Line(), Heading(_title_times(fact)), times_table(fact)]
    blocks += fit_blocks(fact)
    if fact.layouts:
        blocks += [Line(), Heading(f"Layouts over devices: {LAYOUT_AXES}"), build_layout_table(fact)]
        blocks += build_device_table(fact)
    return [*blocks, *([Line()] if fact.notes else []), *(Paragraph(note, "quiet") for note in fact.notes)]


def parameters(fact: Serving) -> Fields:
    """Build the fields for count and bytes of parameters, and for the parameters active per token."""
    rows = [count_field("Parameters", fact.params, "", fact.architecture, "params")]
    if fact.active != fact.params:
        rows.append(
            count_field(
                "Active",
                fact.active,
                fact.decode.sign,
                "used for one token, with full embedding tables",
                "active",
            )
        )
    rows += [
        count_field("Embedding", fact.embedding, "", "tables in which rows are looked up", "embedding"),
        bytes_field("Weight bytes", fact.weight_bytes, "", _format_storage(fact), "weights"),
    ]
    return Fields(rows)


def _format_storage(fact: Serving) -> str:
    if fact.spec.dtype:
        return f"stored in {fact.spec.dtype}"
    return ", ".join(dict.fromkeys(dtype for part in fact.parts for dtype in part.dtype.split(", ")))


def parts_table(fact: Serving) -> Table:
    """Build a table of parameters with a row for each kind of layer."""
    return table_of(
        fact.parts,
        (
            (Column("part", shrink=True), lambda part: part.name or "(the model)"),
            (Column("kind", shrink=True, drop=2), lambda part: Span(part.kind, "kind")),
            (Column("layers", "right", drop=1), lambda part: plain(part.count)),
            (Column("params", "right"), lambda part: count(part.params)),
            (Column("active", "right"), lambda part: count(part.active)),
            (Column("weights", "right", drop=3), lambda part: size(part.weight_bytes)),
        ),
        what="parts",
    )


def passes_table(fact: Serving) -> Table:
    """Build a table of the work for the prompt and for one decode step of one sequence."""

    def row(label: str, name: str, kind: str) -> tuple[Cell, ...]:
        format_figure = count if kind == "count" else size
        passes: tuple[PassFigures, ...] = (fact.prefill, fact.decode)
        return label, *[
            dash_zero(format_figure(getattr(figures, name), figures.sign * (kind == "count")))
            for figures in passes
        ]

    rows = [
        row("MACs", "macs", "count"),
        row("  with weights", "weight_macs", "count"),
        row("Weights read", "weight_bytes", "bytes"),
        row("Cache read", "cache_bytes", "bytes"),
        row("Activations moved", "activation_bytes", "bytes"),
    ]
    columns = (
        Column("of one sequence"),
        Column(f"prompt of {fact.spec.prompt:,}", "right"),
        Column(f"a token after {fact.spec.contexts[0]:,}", "right"),
    )
    return Table(columns, rows)


def forms(fact: Serving) -> list[Block]:
    """List the closed forms of MACs and cache bytes, and the sizes at which they were checked."""
    lines: list[Block] = []
    labeled_forms = (
        ("prompt ", fact.prefill_macs, fact.prefill.sign),
        ("a token", fact.decode_macs, fact.decode.sign),
        ("cache  ", fact.cache.bytes, ""),
    )
    for label, form, sign in labeled_forms:
        if form.pieces:
            sizes = ", ".join(f"{checked_size:,}" for checked_size in form.checked)
            unit = "bytes" if label.startswith("cache") else "MACs"
            text = (Span(f"{label}  {unit}({form.over}) {sign or '= '}", "quiet"), Span(form.text, "formula"))
            lines.append(Line((*text, Span(f"   checked at {sizes}", "quiet"))))
    return [Line(), *lines] if lines else []


def cache_figures(fact: Serving) -> Fields:
    """Build the fields for the bytes of the cache, and for the context at which it outgrows the weights."""
    cache, context = fact.cache, fact.spec.contexts[0]
    sequence_bytes = cache.bytes.at(context)
    rows = [
        bytes_field("A token", cache.token_bytes, "", "added for each further token", "KV/token"),
        bytes_field("A sequence", sequence_bytes, "", f"of {context:,} tokens", "KV cache"),
    ]
    if cache.state_bytes:
        rows.append(bytes_field("States", cache.state_bytes, "", "of them do not grow", "states"))
    passes = cache.passes_weights
    text = "the cache of one sequence never takes more than the weights" if passes is None else "tokens"
    rows.append(Field("As the weights", plain(passes) if passes is not None else "-", text, "passes"))
    return Fields(rows)


def cache_table(fact: Serving) -> Table:
    """Build a table with a row for each group of layers with equal cache shapes."""

    def shapes(group: CacheGroup) -> str:
        return ", ".join(f"{name} {shape_text(shape)}" for name, shape in group.shapes)

    return table_of(
        fact.cache.groups,
        (
            (Column("layers", "right"), lambda group: plain(group.layers)),
            (Column("kind", shrink=True, drop=1), lambda group: Span(group.kind, "kind")),
            (Column("tensors of one sequence", shrink=True), shapes),
            (Column("elements a token", "right"), lambda group: dash_zero(plain(group.growing))),
            (Column("window", "right"), lambda group: "-" if group.window is None else f"{group.window:,}"),
        ),
        what="kinds of layers",
    )


def _title_times(fact: Serving) -> str:
    if fact.machine is None:
        return "Memory"
    machine = fact.machine
    peak, moved = rate_text(machine.peak_macs, "MAC/s"), rate_text(machine.bandwidth, "B/s")
    return f"Least times on {machine.name or 'the machine'}: {peak}, {moved}"


def times_table(fact: Serving) -> Table:
    """Build a table of memory and least times with a row for each context and batch."""
    has_predictions = any(time.token_predicted is not None for time in fact.times)
    time_columns = [time for time in _TIME_COLUMNS if has_predictions or time not in _PREDICTIONS]
    return table_of(
        fact.times,
        (
            (Column("context", "right"), lambda time: plain(time.context)),
            (Column("batch", "right"), lambda time: plain(time.batch)),
            (Column("memory", "right"), lambda time: _format_memory(time.memory, time.fits)),
            *(time_columns if fact.machine is not None else ()),
            (Column(""), lambda time: _fit_cell(time.fits)),
        ),
        what="batches",
    )


def _fit_cell(fits_memory: bool | None) -> Span:
    return Span(
        {True: "fits", False: "does not fit", None: ""}[fits_memory],
        "bad" if fits_memory is False else "quiet",
    )


def _format_memory(memory: int, fits_memory: bool | None) -> Span:
    """Format bytes on a device, in another color if they do not fit."""
    return Span(bytes_text(memory), "bad" if fits_memory is False else "figure", f"{memory:,}", memory)


_PREDICTIONS: Sequence[tuple[Column, Callable[[ServingTime], Cell]]] = (
    (Column("predicted", "right"), lambda time: seconds(time.first_token_predicted)),
    (Column("predicted", "right"), lambda time: seconds(time.token_predicted)),
)
_TIME_COLUMNS: Sequence[tuple[Column, Callable[[ServingTime], Cell]]] = (
    (Column("first token", "right"), lambda time: seconds(time.first_token)),
    (Column("bound by", drop=2), lambda time: Span(LIMITS[time.first_limit], "quiet")),
    _PREDICTIONS[0],
    (Column("a token", "right"), lambda time: seconds(time.token)),
    (Column("bound by", drop=1), lambda time: Span(LIMITS[time.token_limit], "quiet")),
    _PREDICTIONS[1],
    (Column("tokens/s", "right"), lambda time: rate_cell(time.rate)),
)


def rate_cell(rate: float | None) -> Span:
    """Format tokens per second."""
    return Span(
        "?" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}", "figure", value=rate
    )


def fit_blocks(fact: Serving) -> list[Block]:
    """State the longest context and the largest batch that fit in the memory of a device."""
    if fact.spec.card is None:
        return []
    memory_text = bytes_text(fact.spec.card)
    contexts = [
        f"{'any context' if limit is None else many_text(limit, 'token')} at batch {batch:,}"
        for batch, limit in fact.longest_context
    ]
    batches = [
        f"{'any batch' if limit is None else many_text(limit, 'sequence')} of {context:,}"
        for context, limit in fact.largest_batch
    ]
    if fact.weight_bytes > fact.spec.card:
        return [Line(), Paragraph(f"one device of {memory_text} does not hold the weights", "warning")]
    return [
        Line(),
        Line((Span(f"{memory_text} hold  ", "quiet"), Span(", ".join(contexts)))),
        Line((Span(" " * (len(memory_text) + 7), "quiet"), Span(", ".join(batches)))),
    ]


def build_layout_table(fact: Serving) -> Table:
    """Build a table with a row for each layout; the best one for each device count is marked."""
    best = set(map(id, find_best_layouts(fact)))

    def mark(layout: DeviceLayout) -> Span:
        return Span(("best" if layout.fits else "fastest") if id(layout) in best else "", "good")

    return table_of(
        fact.layouts,
        (
            (Column("context", "right", drop=2), lambda layout: plain(layout.context)),
            (Column("batch", "right"), lambda layout: plain(layout.batch)),
            (Column("devices", "right"), lambda layout: plain(layout.devices)),
            (Column(LAYOUT, "right"), format_layout),
            (Column("weights", "right", drop=4), lambda layout: size(layout.weight_bytes)),
            (Column("cache", "right", drop=3), lambda layout: size(layout.cache_bytes)),
            (
                Column("a device", "right"),
                lambda layout: _format_memory(layout.weight_bytes + layout.cache_bytes, layout.fits),
            ),
            (Column("sent a step", "right", drop=1), lambda layout: dash_zero(size(layout.link_bytes))),
            (Column("first token", "right", drop=6), lambda layout: seconds(layout.first_token)),
            (Column("a token", "right"), lambda layout: seconds(layout.token)),
            (Column("tokens/s", "right"), lambda layout: rate_cell(layout.rate)),
            (Column("bound by", drop=5), lambda layout: Span(LIMITS[layout.limit], "quiet")),
            (Column("", drop=7), mark),
        ),
        what="layouts",
    )


def format_layout(layout: DeviceLayout | ServingRow) -> str:
    """Format the device counts of tensor, pipeline and expert parallelism."""
    return f"{layout.tensor} x {layout.pipeline} x {layout.expert}"


def find_best_layouts(fact: Serving) -> list[DeviceLayout]:
    """Return the fastest layout that may fit, for each context, batch and device count."""
    best: dict[tuple[int, int, int], DeviceLayout] = {}
    for layout in fact.layouts:
        if layout.fits is not False and layout.token is not None:
            best.setdefault((layout.context, layout.batch, layout.devices), layout)
    return list(best.values())


def build_device_table(fact: Serving) -> list[Block]:
    """Build a table of the share of each device, for the first pipeline layout of each device count.

    The layouts are those at the longest context and the largest batch. Layouts without a pipeline give every
    device the same share, and need no table.
    """
    context, batch = max(fact.spec.contexts), max(fact.spec.batches)
    layout_by_devices: dict[int, DeviceLayout] = {}
    for layout in fact.layouts:
        if len(layout.shares) > 1 and (layout.context, layout.batch) == (context, batch):
            layout_by_devices.setdefault(layout.devices, layout)
    if not layout_by_devices:
        return []

    def row(pair: tuple[DeviceLayout, int]) -> tuple[Cell, ...]:
        layout, index = pair
        share = layout.shares[index]
        first_device = sum(stage_share.devices for stage_share in layout.shares[:index]) + 1
        device_bytes = share.weight_bytes + share.cache_bytes
        return (
            format_layout(layout),
            _format_range(first_device, first_device + share.devices - 1),
            _format_range(share.first, share.last),
            size(share.weight_bytes),
            size(share.cache_bytes),
            size(device_bytes),
            dash_zero(size(share.link_bytes)),
            seconds(share.busy),
            Span(LIMITS[share.limit], "quiet"),
        )

    columns = (
        Column(LAYOUT, "right"),
        Column("devices", "right"),
        Column("layers", "right"),
        Column("weights", "right", drop=4),
        Column("cache", "right", drop=3),
        Column("each holds", "right"),
        Column("sent a step", "right", drop=1),
        Column("busy a step", "right"),
        Column("bound by", drop=5),
    )
    pairs = [(layout, index) for layout in layout_by_devices.values() for index in range(len(layout.shares))]
    heading = Heading(f"Devices of pipeline layouts: after {context:,} tokens, batch {batch:,}")
    return [Line(), heading, Table(columns, Rows(row, pairs), what="stages")]


def _format_range(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def build_comparison(models: Sequence[tuple[Info, Serving]]) -> list[Block]:
    """Build a table with a column for each model."""
    facts = [fact for _, fact in models]

    def row(label: str, cell: object) -> tuple[Cell, ...]:
        return label, *[cell(fact) for fact in facts]  # type: ignore[operator]

    rows = [
        row("Parameters", lambda fact: count(fact.params)),
        row("  active", lambda fact: count(fact.active)),
        row("Weight bytes", lambda fact: size(fact.weight_bytes)),
        row("KV bytes a token", lambda fact: size(fact.cache.token_bytes)),
        row("MACs of the prompt", lambda fact: count(fact.prefill.macs, fact.prefill.sign)),
        row("MACs of a token", lambda fact: count(fact.decode.macs, fact.decode.sign)),
    ]
    for index, time in enumerate(facts[0].times):
        workload = f"{time.context:,} tokens, batch {time.batch:,}"
        rows.append(
            row(
                f"Memory, {workload}",
                lambda fact, index=index: _format_memory(fact.times[index].memory, fact.times[index].fits),
            )
        )
        if (card := facts[0].spec.card) is not None:
            rows.append(
                row(f"  in {bytes_text(card)}", lambda fact, index=index: _fit_cell(fact.times[index].fits))
            )
        if facts[0].machine is not None:
            rows.append(
                row("  first token", lambda fact, index=index: seconds(fact.times[index].first_token))
            )
            rows.append(row("  a token", lambda fact, index=index: seconds(fact.times[index].token)))
            rows.append(row("  tokens/s", lambda fact, index=index: rate_cell(fact.times[index].rate)))
    for index, (batch, _) in enumerate(facts[0].longest_context):
        label = f"Longest context, batch {batch:,}"
        rows.append(row(label, lambda fact, index=index: _limit_cell(fact, fact.longest_context[index][1])))
    for index, (context, _) in enumerate(facts[0].largest_batch):
        label = f"Largest batch, {context:,} tokens"
        rows.append(row(label, lambda fact, index=index: _limit_cell(fact, fact.largest_batch[index][1])))
    rows += _build_layouts(facts)
    columns = (Column(""), *[Column(info.model.source, "right", shrink=True) for info, _ in models])
    notes = [f"{info.model.source}: {note}" for info, fact in models for note in fact.notes]
    blocks: list[Block] = [Table(columns, rows)]
    if any(map(_index_first_layouts, facts)):
        blocks += [Line(), Paragraph(f"layouts: {LAYOUT_AXES}", "quiet")]
    return [*blocks, *([Line()] if notes else []), *(Paragraph(note, "quiet") for note in notes)]


def _build_layouts(facts: Sequence[Serving]) -> list[tuple[Cell, ...]]:
    """Build the rows of the best layout of each model for each device count, or its first if none fits."""
    rows: list[tuple[Cell, ...]] = []
    layouts_by_key = [_index_first_layouts(fact) for fact in facts]
    for key in dict.fromkeys(key for by_key in layouts_by_key for key in by_key):
        layouts = [by_key.get(key) for by_key in layouts_by_key]
        context, batch, devices = key
        rows.append(
            (f"{devices:,} devices, {context:,} tokens, batch {batch:,}", *map(_build_layout, layouts))
        )
        cells = [
            layout and _format_memory(layout.weight_bytes + layout.cache_bytes, layout.fits)
            for layout in layouts
        ]
        rows.append(("  a device", *[cell or _EMPTY for cell in cells]))
        if (card := facts[0].spec.card) is not None:
            cells = [layout and _fit_cell(layout.fits) for layout in layouts]
            rows.append((f"  in {bytes_text(card)}", *[cell or _EMPTY for cell in cells]))
        rows.append(("  sent a step", *[size(layout.link_bytes) if layout else _EMPTY for layout in layouts]))
        if facts[0].machine is not None:
            rows.append(
                ("  first token", *[seconds(layout.first_token) if layout else _EMPTY for layout in layouts])
            )
            rows.append(("  a token", *[seconds(layout.token) if layout else _EMPTY for layout in layouts]))
            rows.append(("  tokens/s", *[rate_cell(layout.rate) if layout else _EMPTY for layout in layouts]))
    return rows


_EMPTY = Span("-", "quiet")


def _index_first_layouts(fact: Serving) -> dict[tuple[int, int, int], DeviceLayout]:
    layouts: dict[tuple[int, int, int], DeviceLayout] = {}
    for layout in (*find_best_layouts(fact), *fact.layouts):
        if layout.devices > 1:
            layouts.setdefault((layout.context, layout.batch, layout.devices), layout)
    return dict(sorted(layouts.items()))


def _limit_cell(fact: Serving, limit: int | None) -> Span:
    if fact.spec.card is not None and fact.weight_bytes > fact.spec.card:
        return Span("does not fit", "bad")
    return Span("any", "figure") if limit is None else plain(limit)


def _build_layout(layout: DeviceLayout | None) -> Cell:
    return _EMPTY if layout is None else Span(format_layout(layout), "figure")
