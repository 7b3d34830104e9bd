"""Draws the result of a proof: the verdict, the evidence, and the title and tone of its dialog."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.verdicts import VERDICTS
from explorer.report.present.compare.verify import TONES, build_key_facts, evidence
from explorer.tui.text.drawing import ROLES, draw
from explorer.tui.text.letters import draw_large
from explorer.tui.text.lines import BLANK

if TYPE_CHECKING:
    from explorer.facts import VerdictKind, Verification
    from explorer.tui.text.lines import Line

TO_BLAME = "Enter first layer that differs · Esc close"
"""Keys of the dialog of a failed proof."""


def verdict_title(proof: Verification) -> str:
    """Return the verdict as a title: 'Proven equal', 'Not proved'."""
    return VERDICTS[proof.verdict_kind].capitalize()


def verdict_tone(kind: VerdictKind) -> str:
    """Return the screen role of a verdict."""
    return ROLES[TONES[kind]]


def verdict_lines(proof: Verification, width: int) -> list[Line]:
    """Draw the verdict in large letters if they fit, the key facts, and the evidence."""
    role = verdict_tone(proof.verdict_kind)
    letters = draw_large(VERDICTS[proof.verdict_kind].upper(), width - 2)
    lines: list[Line] = [((f" {row}", role),) for row in letters]
    facts = draw([build_key_facts(proof)], width - 1)
    return [*lines, *facts, BLANK, *draw(evidence(proof), width - 1)]
