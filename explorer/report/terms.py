"""Terms of the field for the engine's sentences: tile matmuls, inputs, rounding in u.

A verdict, a difference and a formula are text in the JSON answers too, which stay as they were; on screen and
in text they are read through here. What stands in quotes is a name out of a model and is left alone.
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
        (r"\bsite $", "matmul "),
        (r"\bas a product of both\b", "as a matmul of both"),
        (r"\bworst error (\S+) of the 1 u scale \((\S+) allowed\)", r"worst rounding \1 u, limit \2 u"),
        (r"\berror (\S+) u \(\|x\| \|W\|\), (\S+) allowed", r"rounding \1 u, limit \2 u"),
        (r"\berror of (\S+) x u \(\|x\| \|W\|\), allowed are (\S+)", r"rounding \1 u, limit \2 u"),
        (r"\bin (a|the first|any) draw\b", r"with \1 input"),
        (r"\b(\d[\d,]*) draw(s?)\b", r"\1 input\2"),
    )
)


def field_terms(sentence: str) -> str:
    """`sentence` with the field's terms: '5 sites, 39 products' -> '5 matmuls, 39 tile matmuls'."""
    parts = sentence.split("'")
    for at in range(0, len(parts), 2):
        for pattern, term in _TERMS:
            parts[at] = pattern.sub(term, parts[at])
    return "'".join(parts)


def claim_and_grounds(verdict: str) -> tuple[str, str]:
    """A verdict for two places on a page: what it claims, and what the claim rests on."""
    claim, _, grounds = verdict.partition(": ")
    return claim, grounds


def clauses(sentence: str) -> list[str]:
    """The parts of a sentence between semicolons, for lines of their own."""
    return sentence.split("; ")
