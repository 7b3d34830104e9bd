"""Everything about a model on one page that needs no network: `explorer report`.

The page is put together once, as sections of tables and pictures, and written as HTML (tables can be
sorted) or Markdown. Jinja2 fills the HTML because it escapes whatever a model file calls its layers.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from explorer.base.errors import ExplorerError, Misuse
from explorer.base.units import bytes_text, count_text, exact_text, printable, seconds_text, shape_text
from explorer.facts import Analysis, Info, OpStat, TensorInfo
from explorer.report import plots
from explorer.report.layout import Span
from explorer.report.text.costs import live_at, machine_text
from explorer.report.text.model import doubt_text, figures_text, layer_share, range_text, share_text
from explorer.session.headers import label

if TYPE_CHECKING:
    from explorer.facts.memory import Memory
    from explorer.facts.roofline import Machine, Roofline
    from explorer.facts.training import Optimizer, Training
    from explorer.facts.values import Weights
    from explorer.session import Session

__all__ = ["Everything", "check", "gather", "write"]

CAP = 5_000
"""Rows of a table: more make a page that no browser opens gladly."""

_READ_AT_MOST = 1 << 30
"""Bytes of weights whose values are read without being asked for."""


class Everything(Struct, frozen=True):
    """All facts of a page. What is None was not asked for, or could not be had: then `missing` says why."""

    analysis: Analysis
    ops: tuple[OpStat, ...]
    memory: Memory | None = None
    roofline: Roofline | None = None
    training: Training | None = None
    weights: Weights | None = None
    missing: tuple[tuple[str, str], ...] = ()


class _Cell(Struct, frozen=True):
    text: str
    value: float | str | None = None
    exact: str = ""
    indent: int = 0


class _Table(Struct, frozen=True):
    columns: Sequence[str]
    rows: Sequence[Sequence[_Cell]]
    right: frozenset[int] = frozenset()
    title: str = ""
    sortable: bool = True


class _Section(Struct, frozen=True):
    title: str
    notes: Sequence[str] = ()
    picture: str = ""
    tables: Sequence[_Table] = field(default_factory=list)


def check(path: str) -> None:
    """Refuses a file whose ending is no format of ours, before any work is done.

    Raises:
        Misuse: The ending is neither .html nor .md.
    """
    if os.path.splitext(path)[1].lower() not in _WRITERS:
        raise Misuse("the ending says the format", where=path, hint="use .html or .md")


def gather(
    session: Session,
    *,
    machine: Machine | None = None,
    batch: int | None = None,
    optimizer: Optimizer = "sgd",
) -> Everything:
    """All facts about the current model of a session.

    Args:
        session: The model.
        machine: For the roofline; without one there is none.
        batch: Of the training step; the model's own by default.
        optimizer: Of the training step.
    """
    analysis = session.analysis()
    missing: list[tuple[str, str]] = []

    def asked(what: str, ask: Callable[[], Any]) -> Any:
        try:
            return ask()
        except ExplorerError as error:
            missing.append((what, str(error)))
            return None

    if machine is None:
        missing.append(("Roofline", "no machine was named: --peak-macs and --bandwidth, or --machine"))
    weights = None
    if analysis.info.assumptions.get("weights", "").startswith("random"):
        missing.append(("Weights", "they are random: their values say nothing"))
    elif analysis.info.totals.weight_bytes > _READ_AT_MOST:
        missing.append(("Weights", "more than 1 GiB: explorer weights reads them when asked to"))
    else:
        weights = asked("Weights", session.weights)
    return Everything(
        analysis,
        session.ops(),
        memory=asked("Memory", session.memory),
        roofline=None if machine is None else asked("Roofline", lambda: session.roofline(machine)),
        training=asked("Training", lambda: session.training(batch=batch, optimizer=optimizer)),
        weights=weights,
        missing=tuple(missing),
    )


def write(fact: Everything, path: str, tool: str) -> None:
    """Writes the page; the ending of `path` says as what (.html or .md)."""
    sections = [section for section in _sections(fact) if section is not None]
    text = _WRITERS[os.path.splitext(path)[1].lower()](fact.analysis.info, sections, tool)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


# what stands on it


def _sections(fact: Everything) -> list[_Section | None]:
    return [
        _totals(fact),
        _operators(fact),
        _layers(fact.analysis),
        None if fact.memory is None else _memory(fact.analysis.info, fact.memory),
        None if fact.roofline is None else _roofline(fact.analysis.info, fact.roofline),
        None if fact.training is None else _training(fact.training),
        None if fact.weights is None else _weights(fact.weights),
        _missing(fact),
    ]


def _totals(fact: Everything) -> _Section:
    info = fact.analysis.info
    ports = [
        [_text(kind), _text(t.name), _text(t.dtype or "?"), _text(shape_text(t.shape))]
        for kind, tensors in (("input", info.model.inputs), ("output", info.model.outputs))
        for t in tensors
    ]
    assumed = [f"assumed: {key} = {value}" for key, value in info.assumptions.items() if value]
    figures = [[_text(piece) for piece in row] for row in figures_text(info)]
    return _Section(
        "Totals",
        [*info.model.notes, *assumed],
        tables=[
            _Table(("", "", "exact", ""), figures, frozenset({1, 2}), sortable=False),
            _Table(("", "name", "dtype", "shape"), ports, title="Inputs and outputs", sortable=False),
        ],
    )


def _operators(fact: Everything) -> _Section:
    whole = fact.analysis.info.totals.macs
    rows = [
        [
            _text(stat.op),
            _count(stat.count),
            _count(stat.macs),
            _text(share_text(stat.macs, whole) if stat.macs else ""),
            _count(stat.params),
            _count(stat.elementwise_ops),
            _text("; ".join(f"{name} {range_text(span)}" for name, span in stat.attributes.items())),
        ]
        for stat in fact.ops
    ]
    columns = ("operator", "count", "MACs", "share", "params", "elementwise", "attributes")
    return _Section(
        "Operators",
        picture=plots.svg("operators", fact.analysis.info, fact.ops),
        tables=[_Table(columns, rows, frozenset(range(1, 6)))],
    )


def _layers(fact: Analysis) -> _Section:
    whole = fact.info.totals.macs
    rows = [
        [
            _Cell(printable(row.name or row.path or "(model)"), row.id, printable(row.path), row.depth),
            _text(row.kind_text),
            _text(_shapes(row.outputs)),
            _count(row.params),
            _bytes(row.weight_bytes),
            _count(row.macs),
            _text(layer_share(row, whole) if row.macs else ""),
            _count(row.elementwise_ops),
            _bytes(row.activation_bytes),
            _bytes(_both(row.bytes_read, row.bytes_written)),
            _text(row.formula),
            _text(doubt_text(row)),
        ]
        for row in fact.layers[:CAP]
    ]
    columns = (
        *("layer", "kind", "output", "params", "weights", "MACs", "share"),
        *("elementwise", "activations", "bytes moved", "formula", "remark"),
    )
    return _Section(
        "Layers",
        _capped(len(rows), len(fact.layers)),
        tables=[_Table(columns, rows, frozenset(range(3, 10)))],
    )


def _both(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else a + b


def _shapes(tensors: Sequence[TensorInfo]) -> str:
    return ", ".join(shape_text(tensor.shape) for tensor in tensors)


def _memory(about: Info, fact: Memory) -> _Section:
    alive = [
        [
            _text(life.tensor.name),
            _text(life.tensor.dtype or "?"),
            _text(shape_text(life.tensor.shape)),
            _bytes(life.bytes),
            _text(f"{life.born:,} .. {life.dies:,}"),
        ]
        for life in live_at(fact, fact.peak_step)[:CAP]
    ]
    at = fact.steps[fact.peak_step].path if fact.steps else ""
    notes = [
        f"Activations, peak: {bytes_text(fact.peak_bytes)} ({fact.peak_bytes:,} bytes)"
        f" at step {fact.peak_step:,} of {len(fact.steps):,}, {at or 'the inputs'}.",
        f"Smallest arena, placed by first fit: {bytes_text(fact.arena_bytes)} ({fact.arena_bytes:,} bytes).",
        f"Buffers of all tensors, inputs too: {bytes_text(fact.sum_bytes)}; a result in place has none;"
        f" weights {bytes_text(fact.weight_bytes)} are resident beside them.",
    ]
    columns = ("tensor", "dtype", "shape", "bytes", "live in steps")
    return _Section(
        "Memory",
        [*notes, *([fact.reason] if fact.reason else [])],
        plots.svg("memory", about, fact),
        [_Table(columns, alive, frozenset({3}), "Live at the peak")],
    )


def _roofline(about: Info, fact: Roofline) -> _Section:
    rows = [
        [
            _text(point.path),
            _text(point.kind),
            _count(point.macs),
            _bytes(point.bytes),
            _Cell("?" if point.intensity is None else f"{point.intensity:.2f}", point.intensity),
            _text(point.limit),
            _Cell(seconds_text(point.seconds), point.seconds),
            _Cell(f"{100 * point.share:.1f} %", point.share),
        ]
        for point in fact.points[:CAP]
    ]
    columns = ("layer", "kind", "MACs", "bytes", "FLOPs/byte", "limit", "least time", "share")
    notes = [
        f"{machine_text(fact.machine)}; ridge at {fact.ridge:,.1f} FLOPs per byte.",
        f"At least {seconds_text(fact.seconds)}: {fact.compute_bound:,} layers are limited by compute,"
        f" {fact.memory_bound:,} by memory, {fact.unknown:,} unknown.",
        *_capped(len(rows), len(fact.points)),
    ]
    return _Section(
        "Roofline",
        notes,
        plots.svg("roofline", about, fact),
        [_Table(columns, rows, frozenset({2, 3, 4, 6, 7}))],
    )


def _training(fact: Training) -> _Section:
    rows = [
        [
            _text(row.path),
            _text(row.kind),
            _count(row.forward_macs),
            _count(row.backward_input_macs),
            _count(row.backward_weight_macs),
            *map(_bytes, (row.activation_bytes, row.param_bytes, row.gradient_bytes, row.optimizer_bytes)),
        ]
        for row in fact.layers[:CAP]
    ]
    columns = (
        *("layer", "kind", "forward MACs", "grad of input", "grad of weight"),
        *("kept", "params", "gradients", "optimizer"),
    )
    notes = [
        f"One step with batch {exact_text(fact.batch)} and {fact.optimizer}:"
        f" forward {count_text(fact.forward_macs)} MACs, backward {count_text(fact.backward_macs)} MACs;"
        f" elementwise {count_text(fact.elementwise_ops)} and {count_text(fact.backward_elementwise_ops)}.",
        f"Memory {bytes_text(fact.sum_bytes)}: input {bytes_text(fact.input_bytes)},"
        f" kept outputs {bytes_text(fact.activation_bytes)}, parameters {bytes_text(fact.param_bytes)},"
        f" gradients {bytes_text(fact.gradient_bytes)}, optimizer {bytes_text(fact.optimizer_bytes)}.",
        *fact.notes,
        *_capped(len(rows), len(fact.layers)),
    ]
    return _Section("Training", notes, tables=[_Table(columns, rows, frozenset(range(2, 9)))])


def _weights(fact: Weights) -> _Section:
    rows = [
        [
            _text(stats.tensor.name),
            _text(stats.tensor.dtype or "?"),
            _text(shape_text(stats.tensor.shape)),
            _bytes(stats.bytes),
            *map(_measured, (stats.minimum, stats.maximum, stats.mean, stats.std)),
            _Cell("" if stats.zeros is None else f"{100 * stats.zeros:.1f} %", stats.zeros),
        ]
        for stats in fact.tensors[:CAP]
    ]
    columns = ("tensor", "dtype", "shape", "bytes", "min", "max", "mean", "std", "zeros")
    twice = [f"Tied (one stored tensor): {_names(group)}." for group in fact.tied]
    twice += [f"Equal bytes, stored apart: {_names(group)}." for group in fact.duplicates]
    return _Section(
        "Weights",
        [*twice, *fact.notes, *_capped(len(rows), len(fact.tensors))],
        tables=[_Table(columns, rows, frozenset(range(3, 9)))],
    )


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 4:,} more" if len(names) > 4 else ""
    return ", ".join(map(printable, names[:4])) + more


def _missing(fact: Everything) -> _Section | None:
    if not fact.missing:
        return None
    return _Section("Not on this page", [f"{what}: {why}." for what, why in fact.missing])


def _capped(shown: int, of: int) -> list[str]:
    return [f"{shown:,} of {of:,} rows; --csv has all."] if shown < of else []


def _text(text: str | Span) -> _Cell:
    plain = printable(text.text if isinstance(text, Span) else text)
    return _Cell(plain, plain)


def _count(value: int | None) -> _Cell:
    return _Cell(count_text(value), value, exact_text(value))


def _bytes(value: int | None) -> _Cell:
    return _Cell(bytes_text(value), value, exact_text(value))


def _measured(value: float | None) -> _Cell:
    return _Cell("" if value is None else f"{value:.4g}", value)


# how it is written


def _html(info: Info, sections: Sequence[_Section], tool: str) -> str:
    from importlib.resources import files

    from jinja2 import Environment, StrictUndefined

    engine = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        # what is markup already is ours; a text may be a stranger's, and a page is also looked at by `cat`
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    template = engine.from_string(files("explorer.report").joinpath("page.html.j2").read_text("utf-8"))
    return template.render(title=_title(info), subtitle=_subtitle(info), sections=sections, tool=tool)


def _markdown(info: Info, sections: Sequence[_Section], tool: str) -> str:
    lines = [f"# {_escaped(_title(info))}", "", _escaped(_subtitle(info)), ""]
    for section in sections:
        lines += [f"## {section.title}", ""]
        lines += [piece for note in section.notes for piece in (_escaped(note), "")]
        if section.picture:
            coded = base64.b64encode(section.picture.encode()).decode()
            lines += [f"![{section.title}](data:image/svg+xml;base64,{coded})", ""]
        for table in section.tables:
            lines += [f"### {table.title}", ""] if table.title else []
            rule = ["---:" if at in table.right else "---" for at in range(len(table.columns))]
            lines += [_row(table.columns), _row(rule)]
            lines += [_row([_indented(cell) for cell in row]) for row in table.rows]
            lines.append("")
    return "\n".join([*lines, f"Made by {tool}. Counts are SI, bytes are IEC.", ""])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _indented(cell: _Cell) -> str:
    return "&nbsp;" * (2 * cell.indent) + _escaped(cell.text)


def _escaped(text: str) -> str:
    """Text that Markdown shows as it is, whatever it holds."""
    return "".join(
        f"\\{c}" if c in "\\`*_{}[]<>#|~$!" else "&amp;" if c == "&" else c for c in printable(text)
    )


def _title(info: Info) -> str:
    return printable(os.path.basename(info.model.source))


def _subtitle(info: Info) -> str:
    model = info.model
    kind = label(model.format)
    parts = [
        printable(model.source),
        f"{kind} opset {model.opset}" if model.opset else kind,
        printable(model.producer),
        bytes_text(model.file_bytes) if model.file_bytes is not None else "",
    ]
    return " · ".join(part for part in parts if part)


_WRITERS: dict[str, Callable[[Info, Sequence[_Section], str], str]] = {".html": _html, ".md": _markdown}
