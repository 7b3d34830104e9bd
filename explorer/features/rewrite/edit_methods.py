"""Edits of a session's model by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import PathText
from explorer.facts.change import ProofRequest
from explorer.facts.split.edit import EditSpec, EditStep
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.split.edit import Edit


def edit(
    session: Facade,
    steps: EditSpec | Sequence[EditStep],
    *,
    output: PathText | None = None,
    overwrite: bool = False,
    verify: bool = True,
    each: bool = True,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Edit:
    """Edits the current model's graph; the result becomes the current one.

    Each step is checked against what the steps before it made, sizes are inferred anew, and what a file
    declares of its values is made true.

    Args:
        steps: Each an `explorer.facts.split.edit.EditStep`, in their order; or the record that holds them.
        output: Where to write the last state; None keeps it in the session until `save`.
        overwrite: Whether an existing `output` may be replaced.
        verify: Have onnxruntime load each state: one that it refuses is not made.
        each: Every step makes a state of its own, which `undo` goes back through; otherwise all of them
            make one.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: A step names what is not there, or several things, or cannot be done; or `output` cannot
            be written or exists. Then no step was taken.
        BadModel: onnxruntime refuses the result, or the model has no graph.
        Cancelled: `cancel` said so.
    """
    options = steps if isinstance(steps, EditSpec) else EditSpec(tuple(steps), each)
    fact: Edit = session.do(
        "edit",
        options,
        proof=ProofRequest(verify),
        output=output,
        overwrite=overwrite,
        on_progress=on_progress,
        cancel=cancel,
    )
    return fact
