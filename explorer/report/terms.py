"""Replaces words in the engine's sentences by common terms: matmul, tile matmul, padding, utilization.

Verdicts, differences and formulas are also part of the JSON documents, which must not change. Text output and
the screen show them with these replacements. Quoted text contains names from a model and is not changed.
"""

from __future__ import annotations

import re

_TERMS = tuple(
    (re.compile(pattern), term)
    for pattern, term in (
        (r"^products by\b", "tile matmuls by"),
        (r"(\d) product(s?)\b", r"\1 tile matmul\2"),
        (r"\b(?:the tile of )?product (\(\d)", r"tile matmul \1"),
        (r"\bproducts(?= TM TK TN)", "tile matmuls"),
        (r"^products$", "tile matmuls"),
        (r"^utilisation$", "tile utilization"),
        (r"^padded share$", "padding overhead"),
        (r"^distance from it$", "traffic / lower bound"),
        (r"(\d) site(s?)\b", r"\1 matmul\2"),
        (r"\bbetween the sites\b", "between the matmuls"),
        (r"\ba site takes\b", "a matmul takes"),
        (r"\bwithout filling\b", "without padding"),
        (r"\bno larger than the product$", "no larger than the matmul"),
    )
)


def field_terms(sentence: str) -> str:
    """Replace words by terms of the field: '5 sites, 39 products' becomes '5 matmuls, 39 tile matmuls'."""
    parts = sentence.split("'")
    for index in range(0, len(parts), 2):
        for pattern, term in _TERMS:
            parts[index] = pattern.sub(term, parts[index])
    return "'".join(parts)


def split_verdict(verdict: str) -> tuple[str, str]:
    """Split a verdict into its claim and the grounds of the claim."""
    claim, _, grounds = verdict.partition(": ")
    return claim, grounds


def clauses(sentence: str) -> list[str]:
    """Split a sentence at semicolons."""
    return sentence.split("; ")
