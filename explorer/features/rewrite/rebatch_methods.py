"""Rebatching of a session's model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText, Words
from explorer.features.rewrite import rebatch as rebatching
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion


def rebatch(
    session: Facade,
    batch: Count | Words,
    output: PathText,
    *,
    axes: Mapping[str, int] | None = None,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 3,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Conversion:
    """Writes the current model, whose batch is fixed, for another batch, and compares each row.

    The original is run alone on every slice of the inputs; the result has to give the same rows within
    rounding. One that does not is not kept: then `Conversion.output` is empty.

    Args:
        batch: The new size; or a name, which leaves it open.
        output: The ONNX file.
        axes: Input to the axis that is its batch; None takes the first axis of every input.
        overwrite: Whether an existing `output` may be replaced.
        verify: Compare before the result gets its name.
        draws: Random inputs to run both on.
        seed: Of the first draw.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: The batch cannot be rewritten safely, or `output` cannot be written.
        BadModel: One of the two cannot be run.
        Cancelled: `cancel` said so.
    """
    return rebatching.rebatch(
        session.parts.models,
        batch,
        output,
        axes=dict(axes or {}),
        overwrite=overwrite,
        verify=verify,
        draws=draws,
        seed=seed,
        on_progress=on_progress,
        cancel=cancel,
    )
