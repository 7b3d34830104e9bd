"""The history of a session: a row a state, and what is known of the one under the cursor."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.report.present.tiling.history import proof_span
from explorer.report.terms import field_terms
from explorer.tui.pages.verdict import verdict_tone
from explorer.tui.text.drawing import ROLES
from explorer.tui.text.lines import BLANK, Line, Span, fit, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import HistoryEntry

__all__ = ["state_head", "state_lines", "state_name", "state_row"]

_PRODUCTS, _PROOF = 15, 18
"""Columns behind a state's name."""


def state_name(entry: HistoryEntry, at: int) -> str:
    """What a state is called: by its user, or by what was done."""
    return safe(entry.name or ("as opened" if at == 0 else entry.label))


def state_head(width: int) -> Line:
    """The heading of the rows."""
    name, products, proof = _widths(width)
    columns = fit("tile matmuls", products, right=True) + fit("proof", proof, right=True)
    return ((fit("    # state", name), "dim"), (columns, "dim"))


def state_row(entry: HistoryEntry, at: int, current: int, marked: int | None, width: int) -> Line:
    """One state: whether it is the current one or marked, its number, name, products and proof."""
    name, products, proof = _widths(width)
    dim = at > current
    role = "dim" if dim else "strong" if at == current else "text"
    mark: Span = ("●", "accent") if at == current else (" ", "text")
    first: Span = ("c", "key") if at == marked else (" ", "text")
    label = state_name(entry, at)
    done = f"  {safe(entry.label)}" if entry.name and at else ""
    said, role_of_proof, *_ = proof_span(entry, at)
    room = name - 6
    shown = fit(label, min(len(label), room))
    count = units.exact_text(entry.plan.products) if entry.plan is not None else ""
    return (
        mark,
        first,
        (f"{at:>3} ", "dim"),
        (shown, role),
        (fit(done, max(0, room - len(shown))), "dim"),
        (fit(count, products, right=True), "dim" if dim else "number"),
        (fit(said, proof, right=True), "dim" if dim else ROLES[role_of_proof]),
    )


def _widths(width: int) -> tuple[int, int, int]:
    """Cells of the name, the products and the proof."""
    products = _PRODUCTS if width >= 50 else 0
    return max(8, width - products - _PROOF), products, _PROOF


def state_lines(entry: HistoryEntry, at: int, current: int, width: int) -> list[Line]:
    """What is known of one state: how it was made, what came of the proof, where it is kept."""
    where = (
        "the current model" if at == current else "can be redone" if at > current else "before the current"
    )
    lines: list[Line] = [*_field("state", f"{at}: {state_name(entry, at)}, {where}", "text", width)]
    if at == 0:
        return [*lines, *_field("", "Nothing was done to it yet.", "dim", width)]
    if entry.name:
        lines += _field("done", safe(entry.label), "text", width)
    if entry.plan is not None:
        sites = [site.name for site in entry.plan.sites]
        many = f"{len(sites):,} matmuls: " if len(sites) > 1 else ""
        shown = ", ".join(safe(name) for name in sites[:3]) + (", …" if len(sites) > 3 else "")
        lines += _field("tiled", f"{many}{shown}", "text", width)
    if entry.verification is not None:
        proof = entry.verification
        lines += _field("proof", safe(field_terms(proof.verdict)), verdict_tone(proof.verdict_kind), width)
    kept = f"saved as {safe(os.path.basename(entry.saved))}" if entry.saved else "not saved"
    lines += _field("file", kept, "text" if entry.saved else "warn", width)
    if entry.command:
        lines += [BLANK, *wrap((("$ ", "accent"), (safe(entry.command), "text")), width - 1, 2)]
    return lines


def _field(label: str, said: str, role: str, width: int) -> list[Line]:
    return list(wrap(((f"{label:<7}", "dim"), (said, role)), width - 1, 7))
