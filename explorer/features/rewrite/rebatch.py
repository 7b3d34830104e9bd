"""Rebatching of a session's model: the same model for another batch, proved on slices of it."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.engine import convert
from explorer.engine.convert.job import ConversionJob
from explorer.engine.models.opened_model import dims_of
from explorer.settings.parse import opening_words, option_words, path_word

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion
    from explorer.session.parts.models import Models, OnProgress


def rebatch(
    models: Models,
    batch: int | str,
    output: str,
    *,
    axes: Mapping[str, int],
    overwrite: bool,
    on_progress: OnProgress,
    **how: Any,
) -> Conversion:
    """Writes the current model for another batch; `how` as for `ConversionJob`."""
    models.check_onnx(output, overwrite)
    model = models.graph(models.current, on_progress)
    job = ConversionJob(
        target=output,
        source=models.label(models.current),
        dims=dims_of(model, models.options["dims"]),
        on_progress=on_progress,
        **how,
    )
    fact = convert.rebatch(model, batch, job, axes=axes, overwrite=overwrite)
    if models.module is not None or models.current:
        return fact
    words = ["explorer", "rebatch", path_word(models.source), str(batch), "-o", path_word(output)]
    for name, axis in axes.items():
        words += option_words("--axis", f"{name}:{axis}")
    return replace(fact, command=shlex.join([*words, *opening_words(models.options)]))
