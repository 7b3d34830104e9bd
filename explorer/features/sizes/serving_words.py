"""Serving a language model, in text, and what that costs: `explorer serving`."""

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
from explorer.report.present.figures import bytes_field, count, count_field, plain, quiet_zero, seconds, size
from explorer.report.present.look.info import title

LIMITS = {"compute": "products", "weights": "weights", "cache": "cache", "links": "links", "unknown": "?"}


LAYOUT = "layout"
LAYOUT_AXES = "tensor x pipeline x expert"
"""What a column of `layout_text` is called, and what its numbers are."""


def serving(found: Sequence[tuple[Info, Serving]]) -> list[Block]:
    """The answer of `explorer serving`, of one model or of several side by side."""
    if len(found) > 1:
        return side_by_side(found)
    about, fact = found[0]
    return [*title(about.model), Line(), *serving_blocks(fact)]


def serving_blocks(fact: Serving) -> list[Block]:
    """Parameters, passes, cache, times, layouts, and what is worth knowing."""
    blocks: list[Block] = [parameters(fact), Line(), parts_table(fact), Line(), passes_table(fact)]
    blocks += [*forms(fact), Line(), Heading("KV cache"), cache_figures(fact), Line(), cache_table(fact)]
    if fact.times:
        blocks += [Line(), Heading(_times_title(fact)), times_table(fact)]
    blocks += fits(fact)
    if fact.layouts:
        blocks += [Line(), Heading(f"Layouts over devices: {LAYOUT_AXES}"), layouts_table(fact)]
        blocks += devices(fact)
    return [*blocks, *([Line()] if fact.notes else []), *(Paragraph(note, "quiet") for note in fact.notes)]


def parameters(fact: Serving) -> Fields:
    """How many, and how many of them a token works with."""
    rows = [count_field("Parameters", fact.params, "", fact.architecture, "params")]
    if fact.active != fact.params:
        rows.append(
            count_field(
                "Active", fact.active, fact.decode.sign, "that a token works with, tables whole", "active"
            )
        )
    rows += [
        count_field("Embedding", fact.embedding, "", "tables in which rows are looked up", "embedding"),
        bytes_field("Weight bytes", fact.weight_bytes, "", _stored(fact), "weights"),
    ]
    return Fields(rows)


def _stored(fact: Serving) -> str:
    if fact.spec.dtype:
        return f"stored in {fact.spec.dtype}"
    return ", ".join(dict.fromkeys(piece for part in fact.parts for piece in part.dtype.split(", ")))


def parts_table(fact: Serving) -> Table:
    """Parameters by the kind of layer."""
    return table_of(
        fact.parts,
        (
            (Column("part", shrink=True), lambda one: one.name or "(the model itself)"),
            (Column("kind", shrink=True, drop=2), lambda one: Span(one.kind, "kind")),
            (Column("layers", "right", drop=1), lambda one: plain(one.count)),
            (Column("params", "right"), lambda one: count(one.params)),
            (Column("active", "right"), lambda one: count(one.active)),
            (Column("weights", "right", drop=3), lambda one: size(one.weight_bytes)),
        ),
        what="parts",
    )


def passes_table(fact: Serving) -> Table:
    """The prompt and a step, of one sequence."""

    def row(label: str, name: str, kind: str) -> tuple[Cell, ...]:
        make = count if kind == "count" else size
        each: tuple[PassFigures, ...] = (fact.prefill, fact.decode)
        return label, *[quiet_zero(make(getattr(one, name), one.sign * (kind == "count"))) for one in each]

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
        Column(f"a token behind {fact.spec.contexts[0]:,}", "right"),
    )
    return Table(columns, rows)


def forms(fact: Serving) -> list[Block]:
    """MACs as closed forms, with the sizes at which they were checked."""
    found: list[Block] = []
    named = (
        ("prompt ", fact.prefill_macs, fact.prefill.sign),
        ("a token", fact.decode_macs, fact.decode.sign),
        ("cache  ", fact.cache.bytes, ""),
    )
    for label, form, sign in named:
        if form.pieces:
            sizes = ", ".join(f"{one:,}" for one in form.checked)
            unit = "bytes" if label.startswith("cache") else "MACs"
            text = (Span(f"{label}  {unit}({form.over}) {sign or '= '}", "quiet"), Span(form.text, "formula"))
            found.append(Line((*text, Span(f"   checked at {sizes}", "quiet"))))
    return [Line(), *found] if found else []


def cache_figures(fact: Serving) -> Fields:
    """What the cache takes, beside the weights."""
    cache, context = fact.cache, fact.spec.contexts[0]
    held = cache.bytes.at(context)
    rows = [
        bytes_field("A token", cache.token_bytes, "", "that every growing layer adds", "KV/token"),
        bytes_field("A sequence", held, "", f"of {context:,} tokens", "KV cache"),
    ]
    if cache.state_bytes:
        rows.append(bytes_field("States", cache.state_bytes, "", "of them do not grow", "states"))
    passes = cache.passes_weights
    text = "the cache of one sequence never takes more than the weights" if passes is None else "tokens"
    rows.append(Field("As the weights", plain(passes) if passes is not None else "-", text, "passes"))
    return Fields(rows)


def cache_table(fact: Serving) -> Table:
    """Groups of layers whose cache is alike."""

    def shapes(one: CacheGroup) -> str:
        return ", ".join(f"{name} {shape_text(shape)}" for name, shape in one.shapes)

    return table_of(
        fact.cache.groups,
        (
            (Column("layers", "right"), lambda one: plain(one.layers)),
            (Column("kind", shrink=True, drop=1), lambda one: Span(one.kind, "kind")),
            (Column("tensors of one sequence", shrink=True), shapes),
            (Column("elements a token", "right"), lambda one: quiet_zero(plain(one.growing))),
            (Column("window", "right"), lambda one: "-" if one.window is None else f"{one.window:,}"),
        ),
        what="kinds of layers",
    )


def _times_title(fact: Serving) -> str:
    if fact.machine is None:
        return "Memory"
    machine = fact.machine
    peak, moved = rate_text(machine.peak_macs, "MAC/s"), rate_text(machine.bandwidth, "B/s")
    return f"Least times on {machine.name or 'the machine'}: {peak}, {moved}"


def times_table(fact: Serving) -> Table:
    """A row for each context and batch."""
    predicted = any(one.token_predicted is not None for one in fact.times)
    shown = [one for one in _TIMED if predicted or one not in _PREDICTIONS]
    return table_of(
        fact.times,
        (
            (Column("context", "right"), lambda one: plain(one.context)),
            (Column("batch", "right"), lambda one: plain(one.batch)),
            (Column("memory", "right"), lambda one: _held(one.memory, one.fits)),
            *(shown if fact.machine is not None else ()),
            (Column(""), lambda one: _fits(one.fits)),
        ),
        what="batches",
    )


def _fits(fits: bool | None) -> Span:
    return Span({True: "fits", False: "does not fit", None: ""}[fits], "bad" if fits is False else "quiet")


def _held(memory: int, fits: bool | None) -> Span:
    """What a device holds, in another colour where it does not."""
    return Span(bytes_text(memory), "bad" if fits is False else "figure", f"{memory:,}", memory)


_PREDICTIONS: Sequence[tuple[Column, Callable[[ServingTime], Cell]]] = (
    (Column("predicted", "right"), lambda one: seconds(one.first_token_predicted)),
    (Column("predicted", "right"), lambda one: seconds(one.token_predicted)),
)
_TIMED: Sequence[tuple[Column, Callable[[ServingTime], Cell]]] = (
    (Column("first token", "right"), lambda one: seconds(one.first_token)),
    (Column("bound by", drop=2), lambda one: Span(LIMITS[one.first_limit], "quiet")),
    _PREDICTIONS[0],
    (Column("a token", "right"), lambda one: seconds(one.token)),
    (Column("bound by", drop=1), lambda one: Span(LIMITS[one.token_limit], "quiet")),
    _PREDICTIONS[1],
    (Column("tokens/s", "right"), lambda one: rate_cell(one.rate)),
)


def rate_cell(rate: float | None) -> Span:
    """Tokens a second."""
    return Span(
        "?" if rate is None else f"{rate:,.0f}" if rate >= 10 else f"{rate:.2g}", "figure", value=rate
    )


def fits(fact: Serving) -> list[Block]:
    """The longest context and the largest batch that the memory of a device holds."""
    if fact.spec.card is None:
        return []
    room = bytes_text(fact.spec.card)
    contexts = [
        f"{'any context' if most is None else many_text(most, 'token')} at batch {batch:,}"
        for batch, most in fact.longest_context
    ]
    batches = [
        f"{'any batch' if most is None else many_text(most, 'sequence')} of {context:,}"
        for context, most in fact.largest_batch
    ]
    if fact.weight_bytes > fact.spec.card:
        return [Line(), Paragraph(f"one device of {room} does not hold the weights", "warning")]
    return [
        Line(),
        Line((Span(f"{room} hold  ", "quiet"), Span(", ".join(contexts)))),
        Line((Span(" " * (len(room) + 7), "quiet"), Span(", ".join(batches)))),
    ]


def layouts_table(fact: Serving) -> Table:
    """A row a layout, the best of each number of devices first."""
    best = {id(one) for one in best_layouts(fact)}

    def mark(one: DeviceLayout) -> Span:
        return Span(("best" if one.fits else "fastest") if id(one) in best else "", "good")

    return table_of(
        fact.layouts,
        (
            (Column("context", "right", drop=2), lambda one: plain(one.context)),
            (Column("batch", "right"), lambda one: plain(one.batch)),
            (Column("devices", "right"), lambda one: plain(one.devices)),
            (Column(LAYOUT, "right"), layout_text),
            (Column("weights", "right", drop=4), lambda one: size(one.weight_bytes)),
            (Column("cache", "right", drop=3), lambda one: size(one.cache_bytes)),
            (Column("a device", "right"), lambda one: _held(one.weight_bytes + one.cache_bytes, one.fits)),
            (Column("sent a step", "right", drop=1), lambda one: quiet_zero(size(one.link_bytes))),
            (Column("first token", "right", drop=6), lambda one: seconds(one.first_token)),
            (Column("a token", "right"), lambda one: seconds(one.token)),
            (Column("tokens/s", "right"), lambda one: rate_cell(one.rate)),
            (Column("bound by", drop=5), lambda one: Span(LIMITS[one.limit], "quiet")),
            (Column("", drop=7), mark),
        ),
        what="layouts",
    )


def layout_text(one: DeviceLayout | ServingRow) -> str:
    """How many devices share layers, follow one another, share experts."""
    return f"{one.tensor} x {one.pipeline} x {one.expert}"


def best_layouts(fact: Serving) -> list[DeviceLayout]:
    """The fastest of each number of devices, context and batch, of those that fit, or may fit."""
    found: dict[tuple[int, int, int], DeviceLayout] = {}
    for one in fact.layouts:
        if one.fits is not False and one.token is not None:
            found.setdefault((one.context, one.batch, one.devices), one)
    return list(found.values())


def devices(fact: Serving) -> list[Block]:
    """What each device has of the best layout in stages, of each number of devices; others are all alike."""
    context, batch = max(fact.spec.contexts), max(fact.spec.batches)
    staged: dict[int, DeviceLayout] = {}
    for one in fact.layouts:
        if len(one.shares) > 1 and (one.context, one.batch) == (context, batch):
            staged.setdefault(one.devices, one)
    if not staged:
        return []

    def row(pair: tuple[DeviceLayout, int]) -> tuple[Cell, ...]:
        one, at = pair
        share = one.shares[at]
        before = sum(each.devices for each in one.shares[:at]) + 1
        held = share.weight_bytes + share.cache_bytes
        return (
            layout_text(one),
            _numbers(before, before + share.devices - 1),
            _numbers(share.first, share.last),
            size(share.weight_bytes),
            size(share.cache_bytes),
            size(held),
            quiet_zero(size(share.link_bytes)),
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
    pairs = [(one, at) for one in staged.values() for at in range(len(one.shares))]
    heading = Heading(f"Devices of layouts in stages: behind {context:,} tokens, batch {batch:,}")
    return [Line(), heading, Table(columns, Rows(row, pairs), what="stages")]


def _numbers(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"


def side_by_side(found: Sequence[tuple[Info, Serving]]) -> list[Block]:
    """Several models, a column each."""
    facts = [fact for _, fact in found]

    def row(label: str, cell: object) -> tuple[Cell, ...]:
        return label, *[cell(fact) for fact in facts]  # type: ignore[operator]

    rows = [
        row("Parameters", lambda one: count(one.params)),
        row("  active", lambda one: count(one.active)),
        row("Weight bytes", lambda one: size(one.weight_bytes)),
        row("KV bytes a token", lambda one: size(one.cache.token_bytes)),
        row("MACs of the prompt", lambda one: count(one.prefill.macs, one.prefill.sign)),
        row("MACs of a token", lambda one: count(one.decode.macs, one.decode.sign)),
    ]
    for at, time in enumerate(facts[0].times):
        what = f"{time.context:,} tokens, batch {time.batch:,}"
        rows.append(
            row(f"Memory, {what}", lambda one, at=at: _held(one.times[at].memory, one.times[at].fits))
        )
        if (card := facts[0].spec.card) is not None:
            rows.append(row(f"  in {bytes_text(card)}", lambda one, at=at: _fits(one.times[at].fits)))
        if facts[0].machine is not None:
            rows.append(row("  first token", lambda one, at=at: seconds(one.times[at].first_token)))
            rows.append(row("  a token", lambda one, at=at: seconds(one.times[at].token)))
            rows.append(row("  tokens/s", lambda one, at=at: rate_cell(one.times[at].rate)))
    for at, (batch, _) in enumerate(facts[0].longest_context):
        label = f"Longest context, batch {batch:,}"
        rows.append(row(label, lambda one, at=at: _most(one, one.longest_context[at][1])))
    for at, (context, _) in enumerate(facts[0].largest_batch):
        label = f"Largest batch, {context:,} tokens"
        rows.append(row(label, lambda one, at=at: _most(one, one.largest_batch[at][1])))
    rows += _layouts_beside(facts)
    columns = (Column(""), *[Column(about.model.source, "right", shrink=True) for about, _ in found])
    notes = [f"{about.model.source}: {note}" for about, fact in found for note in fact.notes]
    blocks: list[Block] = [Table(columns, rows)]
    if any(map(_first_layouts, facts)):
        blocks += [Line(), Paragraph(f"layouts: {LAYOUT_AXES}", "quiet")]
    return [*blocks, *([Line()] if notes else []), *(Paragraph(note, "quiet") for note in notes)]


def _layouts_beside(facts: Sequence[Serving]) -> list[tuple[Cell, ...]]:
    """Of each number of devices the layout that is best for each model; where none fits, the first."""
    found: list[tuple[Cell, ...]] = []
    each = [_first_layouts(fact) for fact in facts]
    for key in dict.fromkeys(key for one in each for key in one):
        shown = [one.get(key) for one in each]
        context, batch, devices = key
        found.append(
            (f"{devices:,} devices, {context:,} tokens, batch {batch:,}", *map(_layout_beside, shown))
        )
        held = [one and _held(one.weight_bytes + one.cache_bytes, one.fits) for one in shown]
        found.append(("  a device", *[one or _NONE for one in held]))
        if (card := facts[0].spec.card) is not None:
            held = [one and _fits(one.fits) for one in shown]
            found.append((f"  in {bytes_text(card)}", *[one or _NONE for one in held]))
        found.append(("  sent a step", *[size(one.link_bytes) if one else _NONE for one in shown]))
        if facts[0].machine is not None:
            found.append(("  first token", *[seconds(one.first_token) if one else _NONE for one in shown]))
            found.append(("  a token", *[seconds(one.token) if one else _NONE for one in shown]))
            found.append(("  tokens/s", *[rate_cell(one.rate) if one else _NONE for one in shown]))
    return found


_NONE = Span("-", "quiet")


def _first_layouts(fact: Serving) -> dict[tuple[int, int, int], DeviceLayout]:
    found: dict[tuple[int, int, int], DeviceLayout] = {}
    for one in (*best_layouts(fact), *fact.layouts):
        if one.devices > 1:
            found.setdefault((one.context, one.batch, one.devices), one)
    return dict(sorted(found.items()))


def _most(fact: Serving, most: int | None) -> Span:
    if fact.spec.card is not None and fact.weight_bytes > fact.spec.card:
        return Span("does not fit", "bad")
    return Span("any", "figure") if most is None else plain(most)


def _layout_beside(one: DeviceLayout | None) -> Cell:
    return _NONE if one is None else Span(layout_text(one), "figure")
