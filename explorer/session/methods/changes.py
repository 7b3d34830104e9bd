"""Changes of a session's model: the one method that does any of them."""

from __future__ import annotations

from typing import Any

from explorer.base.checked import PathText
from explorer.base.errors import Misuse, nearest
from explorer.base.features import load, offered
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
    """Changes a model of the history; what comes of it becomes the current one, and every other state stays.

    Args:
        change: The verb: 'tile', 'quantize', 'fold', 'edit', 'extract'.
        options: The record of the change, with all its options.
        state: The state that is changed; None for the current one.
        proof: How the result is proved; None for the change's usual way.
        output: Where the result is written; None keeps it in the session's folder until `save`.
        overwrite: Whether an existing `output` may be replaced.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Returns:
        What the change answers: the fact that the method of the same name returns.

    Raises:
        Misuse: There is no such change, the options are of another, or `output` cannot be written.
        Cancelled: `cancel` said so.
    """
    if change not in offered("changes"):
        hint = nearest(change, list(offered("changes"))) or f"one of {', '.join(offered('changes'))}"
        raise Misuse(f"there is no change '{change}'", where="do", hint=hint)
    work = Work(session.parts, proof or ProofRequest(), output, overwrite, on_progress, cancel)
    return change_model(load("changes", change), options, work, state=state)
