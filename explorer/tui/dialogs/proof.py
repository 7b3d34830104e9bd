"""Dialog of a proof: its verdict and evidence, and the way to the layer to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import TO_BLAME, verdict_lines, verdict_title, verdict_tone

if TYPE_CHECKING:
    from explorer.facts import Verification


def proof_dialog(proof: Verification, title: str = "") -> PageDialog:
    """A proof to read; of one that failed Enter leads to the layer to blame."""
    return PageDialog(
        verdict_title(proof) + title,
        lambda width: verdict_lines(proof, width),
        hint="" if proof.passed else TO_BLAME,
        tone=verdict_tone(proof.verdict_kind),
    )
