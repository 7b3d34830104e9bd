"""The method of a session that applies any change to a model."""

from __future__ import annotations

from typing import Any

from explorer.base.checked import PathText
from explorer.base.errors import Misuse, suggest_name
from explorer.base.features import list_offers, load
from explorer.facts.change import ProofRequest
from explorer.session.methods.facade import Facade
from explorer.session.parts.change import Work
from explorer.session.parts.change import do as change_model
from explorer.session.parts.models import Cancel, OnProgress


def do(
    session: Facade,
    change: str,
    options: Any,
    *,
    state: int | None = None,
    proof: ProofRequest | None = None,
    output: PathText | None = None,
    overwrite: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Any:
    """Changes a model of the history and makes the result the current state. All other states stay.

    Args:
        change: Verb of the change: 'tile', 'quantize', 'fold', 'edit', 'extract'.
        options: Record with all options of the change.
        state: Index of the state to change, or None for the current one.
        proof: Settings of the proof, or None for the change's default.
        output: Path of the file for the result. None stores it in the session's folder until `save`.
        overwrite: Whether to replace an existing `output`.
        on_progress: Callback with the progress of the job.
        cancel: Callback. If it returns True, the job stops and leaves nothing behind.

    Returns:
        The answer of the change. The session's method of the same name returns the same fact.

    Raises:
        Misuse: The change does not exist, the options belong to another change, or `output` cannot be
            written.
        Cancelled: `cancel` returned True.
    """
    if change not in list_offers("changes"):
        hint = suggest_name(change, list(list_offers("changes")))
        raise Misuse(f"there is no change '{change}'", where="do", hint=hint)
    work = Work(session.parts, proof or ProofRequest(), output, overwrite, on_progress, cancel)
    return change_model(load("changes", change), options, work, state=state)
