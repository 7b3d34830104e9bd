"""What became of a model that was converted, and on what evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base import units
from explorer.report.terms import field_terms
from explorer.tui.pages.verdict import verdict_lines
from explorer.tui.text.lines import BLANK, Line, head, safe, wrap

if TYPE_CHECKING:
    from explorer.facts import TensorInfo
    from explorer.facts.conversion import Conversion, StoredEvidence

__all__ = ["conversion_lines"]

_MOST = 20


def conversion_lines(fact: Conversion, width: int) -> list[Line]:
    """What was made by what, what goes in and out, what to know, the evidence."""
    width -= 1
    size = units.bytes_text(fact.file_bytes)
    written = f"{safe(fact.output)}, {size}" if fact.output else "nothing was written"
    lines = list(wrap(((written, "text"), (f" · {safe(fact.how)}", "dim")), width))
    for title, tensors in (("in  ", fact.inputs), ("out ", fact.outputs)):
        lines += [line for tensor in tensors[:_MOST] for line in _port(title, tensor, width)]
    for note in fact.notes:
        lines.extend(wrap(((safe(note), "warn"),), width))
    lines.append(BLANK)
    if fact.verification is not None:
        return [*lines, *verdict_lines(fact.verification, width + 1)]
    if fact.stored is not None:
        return [*lines, *_stored(fact.stored, width)]
    return [*lines, *wrap((("not compared with the source", "warn"),), width)]


def _port(title: str, tensor: TensorInfo, width: int) -> list[Line]:
    kind = f"  {tensor.dtype or '?'} {units.shape_text(tensor.shape)}"
    return wrap(((title, "dim"), (safe(tensor.name), "text"), (kind, "dim")), width, 4)


def _stored(fact: StoredEvidence, width: int) -> Sequence[Line]:
    lines = list(wrap(((safe(field_terms(fact.verdict)), "good" if fact.passed else "bad"),), width))
    if fact.passed:
        lines.extend(wrap(((f"sha256 {fact.sha256} of all tensors by name", "dim"),), width, 2))
    for name, why in fact.differing[:_MOST]:
        lines.extend(wrap(((safe(name), "bad"), (f"  {why}", "dim")), width, 2))
    if len(fact.differing) > _MOST:
        lines.append(head(f"{_MOST} of {len(fact.differing):,}"))
    return lines
