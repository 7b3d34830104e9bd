"""Text about effective settings: the source of a value, and rules that match nothing."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.facts.settings import UnusedRule
from explorer.report.blocks import Block, Paragraph

_DEFAULT = "default"


def warn_unused_rules(rules: Sequence[UnusedRule], noun: str) -> list[Block]:
    """Warn about rules that match nothing in this model."""
    near = [f"; did you mean '{rule.near}'?" if rule.near else "" for rule in rules]
    return [
        Paragraph(f"{rule.origin or 'a rule'} matches no {noun}: {rule.says}{hint}", "warning")
        for rule, hint in zip(rules, near, strict=True)
    ]


def origin_text(origin: str) -> str:
    """Format the source of a value in parentheses, or '' for a default."""
    return "" if origin == _DEFAULT else f" ({origin})"
