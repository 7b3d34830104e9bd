"""Rebatching of a session's model: the same model for another batch, compared row by row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText, Words
from explorer.engine import convert
from explorer.engine.convert.job import ConversionJob
from explorer.engine.models.opened_model import dims_of
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.parse import opening_words, option_words, path_word

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion


def _rebatched(
    models: Models,
    batch: int | str,
    output: str,
    *,
    axes: Mapping[str, int],
    overwrite: bool,
    on_progress: OnProgress,
    **settings: Any,
) -> Conversion:
    """Write the current model for another batch; `settings` as for `ConversionJob`."""
    models.check_onnx(output, overwrite)
    model = models.graph(models.current, on_progress)
    job = ConversionJob(
        target=output,
        source=models.label(models.current),
        dims=dims_of(model, models.options["dims"]),
        on_progress=on_progress,
        **settings,
    )
    fact = convert.rebatch(model, batch, job, axes=axes, overwrite=overwrite)
    if models.module is not None or models.current:
        return fact
    words = ["explorer", "rebatch", path_word(models.source), str(batch), "-o", path_word(output)]
    for name, axis in axes.items():
        words += option_words("--axis", f"{name}:{axis}")
    return replace(fact, command=shlex.join([*words, *opening_words(models.options)]))


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
    return _rebatched(
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
