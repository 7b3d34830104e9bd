"""Dialog of a proof: shows its verdict and evidence, and can start the search for the layer to blame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.tui.dialogs.dialogs import PageDialog
from explorer.tui.pages.verdict import TO_BLAME, verdict_lines, verdict_title, verdict_tone

if TYPE_CHECKING:
    from explorer.facts import Verification


def proof_dialog(proof: Verification, title: str = "") -> PageDialog:
    """Create the dialog of a proof. If the proof failed, Enter searches for the layer to blame."""
    return PageDialog(
        verdict_title(proof) + title,
        lambda width: verdict_lines(proof, width),
        hint="" if proof.passed else TO_BLAME,
        tone=verdict_tone(proof.verdict_kind),
    )
