"""Rows of two trees side by side as lines: two columns of names where there is room, else one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.facts import NodeDiff
from explorer.features.compare.compared_tree_words import (
    FIGURES,
    STATES,
    change,
    either,
    pair_blocks,
    summary,
)
from explorer.report.present.figures import count, size
from explorer.report.terms import field_terms
from explorer.tui.text.drawing import ROLES, draw
from explorer.tui.text.lines import BLANK, Line, Span, cut, fit, flow, middle, safe, wrap

if TYPE_CHECKING:
    from explorer.facts.comparison import RowPair, RowSide, TreeDiff

FROM = 100
"""Cells from which on the trees stand side by side."""

_DELTA = 12
"""Cells of a difference; written out in full it takes twice as many."""
_KIND, _MACS = 13, 10
_SHORT = {"activations": "act."}


class PairColumns(Struct, frozen=True):
    """How many cells what has: the name of a side, its kind, its MACs, and the differences that fit."""

    name: int
    kind: int
    macs: int
    deltas: tuple[int, ...]
    beside: bool

    @property
    def side(self) -> int:
        """Cells of one side."""
        return self.name + self.kind + self.macs


def columns(width: int, *, exact: bool) -> PairColumns:
    """The columns that fit."""
    delta = 2 * _DELTA if exact else _DELTA
    beside = width >= FROM
    rest = 68 if beside else 30
    most = max(1, min(len(FIGURES), (width - rest) // delta))
    most = min(most, 3 if width < 130 else 4 if width < 180 else len(FIGURES))
    side = (width - 4 - most * delta) // (2 if beside else 1)
    kind = _KIND if side >= 30 else 0
    macs = _MACS if beside and side >= 42 else 0
    return PairColumns(side - kind - macs, kind, macs, (delta,) * most, beside)


def head_line(width: int, *, exact: bool) -> Line:
    """The heads over the columns."""
    laid = columns(width, exact=exact)
    line = "   "
    for title in ("before", "after") if laid.beside else ("layer",):
        line += fit(title, laid.name) + fit("kind", laid.kind) + fit("MACs ", laid.macs, right=True)
    for (title, _, _), cells in zip(FIGURES, laid.deltas, strict=False):
        line += fit(f"Δ {_SHORT.get(title, title)}", cells, right=True)
    return ((line, "dim"),)


def row_line(row: RowPair, sign: str, width: int, *, exact: bool) -> Line:
    """A row; `sign` says whether it is open."""
    laid = columns(width, exact=exact)
    mark, role = STATES[row.status]
    shown = ROLES[role] if row.differs else "dim"
    spans: list[Span] = [(f" {mark if row.status != 'same' else '·' if row.inside else ' '} ", shown)]
    if laid.beside:
        spans += _side(row.before, row, sign, laid, "bad" if row.after is None else "text")
        spans += _side(row.after, row, sign, laid, "good" if row.before is None else "text")
    else:
        room = max(1, laid.name - 2 * row.depth - 3)
        name = middle(safe(either(row, "name")), room)
        spans.append((fit("  " * row.depth + sign + name, laid.name), "dim" if not row.differs else "text"))
        spans.append((fit(safe(row.either.kind), laid.kind - 1) + " ", "dim"))
    for (_, field, of_bytes), cells in zip(FIGURES, laid.deltas, strict=False):
        delta = change(row, field, of_bytes)
        text = (delta.exact or delta.text) if exact else delta.text
        spans.append((fit(text, cells, right=True), ROLES[delta.role]))
    return _joined(spans)


def _joined(spans: Sequence[Span]) -> Line:
    """Neighbours of one role in one span, blanks in any: each costs bytes on a line."""
    found: list[Span] = []
    for text, role in spans:
        if found and (found[-1][1] == role or not text.strip()):
            found[-1] = (found[-1][0] + text, found[-1][1])
        else:
            found.append((text, role))
    return tuple(found)


def _side(side: RowSide | None, row: RowPair, sign: str, laid: PairColumns, role: str) -> list[Span]:
    if side is None:
        return [(" " * laid.side, "text")]
    room = max(1, laid.name - 2 * row.depth - 3)
    name = fit("  " * row.depth + sign + middle(safe(side.name), room), laid.name)
    alike = row.before is not None and row.after is not None and row.before.kind == row.after.kind
    macs = "" if side.macs == 0 else count(side.macs).text
    return [
        (name, role if row.differs else "dim"),
        (fit(safe(side.kind), laid.kind - 1) + " " * bool(laid.kind), "dim" if alike else "accent"),
        (fit(f"{macs} ", laid.macs, right=True), "number" if row.differs else "dim"),
    ]


def graph_line(row: NodeDiff, width: int) -> Line:
    """What differs in no row: an input, an output, an operator set."""
    return ((fit(f" ~ {_of_graph(row)}", width - 1), "warn"),)  # the last cell is the scroll bar's


def _of_graph(row: NodeDiff) -> str:
    op = row.op_before or row.op_after or ""
    return safe(f"{op} {row.before or row.after or ''}: {field_terms(row.what)}")


def title_lines(fact: TreeDiff, only: bool, width: int) -> tuple[Line, ...]:
    """Which two, and what became of how many layers."""
    room = max(8, (width - 6) // 2)
    names: Line = (
        (f" {middle(safe(fact.before), room)}", "strong"),
        ("  →  ", "dim"),
        (middle(safe(fact.after), room), "strong"),
    )
    said = f" {summary(fact)}{' · differences only' * only}"
    return names, ((fit(said, width), "good" if fact.equal else "warn"),)


def about_lines(row: RowPair | NodeDiff, width: int, height: int) -> list[Line]:
    """What is known of the row under the cursor: both sides one below the other, what differs, figures."""
    if isinstance(row, NodeDiff):
        return wrap(((f" {_of_graph(row)}", "warn"),), width, 1)[:height]
    if height >= 12:
        return draw(pair_blocks(row), width - 1)[:height]
    mark = ROLES[STATES[row.status][1]] if row.differs else "dim"
    inside = f", {row.inside:,} differ in it" if row.inside else ""
    what = f"  {safe(field_terms(row.what))}" if row.what else ""
    lines = wrap(((f" {row.status}{inside}", mark), (what, "text")), width, 1)[: max(1, height - 4)]
    for title, side in (("before", row.before), ("after", row.after)):
        said = f"{side.path}  {side.kind}" if side else "-"
        lines.append(cut(((f" {title:<7}", "dim"), (safe(said), "text")), width))
    pieces: list[Line] = []
    for label, field, of_bytes in FIGURES:
        text = size if of_bytes else count
        sides = [text(getattr(side, field)).text for side in (row.before, row.after) if side is not None]
        delta = change(row, field, of_bytes)
        name, grown = (f"{label} ", "dim"), (f"  {delta.text}", ROLES[delta.role])
        if delta.text and len(sides) == 2:
            pieces.append((name, (" → ".join(sides), "number"), grown))
        elif field in ("macs", "params"):
            pieces.append((name, (sides[0], "number")))
    return [*lines, *flow(pieces, width)][:height] or [BLANK]
