"""Rewrites a session's model for another batch size, and compares the results row by row."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText, Words
from explorer.engine import convert
from explorer.engine.convert.job import ConversionJob
from explorer.engine.models.opened_model import select_dims
from explorer.facts.conversion import RebatchSpec
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.option_values import write_words
from explorer.settings.parse import write_opening_words, write_path_word

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion


def _write_rebatched(
    models: Models,
    batch: int | str,
    output: str,
    *,
    axes: Mapping[str, int],
    overwrite: bool,
    on_progress: OnProgress,
    **settings: Any,
) -> Conversion:
    """Write the current model for another batch; `settings` are those of `ConversionJob`."""
    models.check_onnx(output, overwrite)
    model = models.load_graph(models.current, on_progress)
    job = ConversionJob(
        target=output,
        source=models.label(models.current),
        dims=select_dims(model, models.options["dims"]),
        shapes=bool(models.options["shapes"]),
        on_progress=on_progress,
        **settings,
    )
    fact = convert.rebatch(model, batch, job, axes=axes, overwrite=overwrite)
    if models.module is not None or models.current:
        return fact
    words = ["explorer", "rebatch", write_path_word(models.source), str(batch), "-o", write_path_word(output)]
    words += [*write_words(RebatchSpec(axes)), *write_opening_words(models.options)]
    return replace(fact, command=shlex.join(words))


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
    """Write the current model with another batch size than its fixed batch size, and compare each row.

    The original runs alone on every slice of the inputs. The result must give the same rows within rounding;
    otherwise the file is deleted and `Conversion.output` is empty.

    Args:
        batch: New batch size, or a name that leaves it open.
        output: Path of the ONNX file to write.
        axes: Batch axis of each input, by name. None uses the first axis of every input.
        overwrite: Whether to replace an existing `output`.
        verify: Whether to compare the rows before the file is kept.
        draws: Number of random inputs to run both models on.
        seed: Seed of the first random input.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The batch cannot be rewritten safely, or `output` cannot be written.
        BadModel: One of the models cannot run.
        Cancelled: `cancel` returned True.
    """
    return _write_rebatched(
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
