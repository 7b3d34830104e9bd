"""Sweeps over serving layouts of several models, in this process or in worker processes."""

from __future__ import annotations

import os
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from explorer.base.checked import Count, PathText
from explorer.engine import sweep as engine
from explorer.engine.serving import sweep
from explorer.facts.roofline import Machine
from explorer.facts.serving.sweep import ServingSweep, ServingSweepSpec
from explorer.features.sizes.serving import Server, apply_preset
from explorer.session.files import open_sessions
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.parts.worker_models import (
    FIGURE_OPTIONS,
    build_open_arguments,
    open_worker_model,
    reopen_module,
)
from explorer.session.session import Session, reopen
from explorer.settings.parse import write_opening_words

if TYPE_CHECKING:
    from explorer.session.parts.keywords import OpeningKeywords


def sweep_serving(
    *sources: str | os.PathLike[str],
    spec: ServingSweepSpec,
    machine: Machine | None = None,
    output: PathText | None = None,
    scheduler: str | None = None,
    workers: Count | None = None,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
    **options: Unpack[OpeningKeywords],
) -> ServingSweep:
    """Count every combination of model, type, context, batch, device count and layout, one row each.

    Args:
        sources: Paths or names of models, as for `Session`.
        spec: Values to combine.
        machine: Machine of each device, for the times, or None to leave out times.
        output: Path of a file that stores the rows as they are computed. Rows that it already contains are
            not computed again.
        scheduler: Address of a Dask cluster that computes the rows, 'tcp://host:port'.
        workers: Number of processes on this machine; None and 1 use only this process.
        on_progress: Callback that receives the number of completed combinations.
        cancel: Callback that is polled regularly. If it returns True, the sweep stops and keeps the completed
            rows.
        options: Options of `Session` for all models.

    Raises:
        Misuse: A reason of `Session.serving` that affects all rows, or `output` is not a result file.
        MissingExtra: `scheduler` is set, but Dask is not installed.
        Cancelled: `cancel` returned True.
    """
    if output is not None:
        engine.check_output(output, [os.fspath(source) for source in sources])
    with open_sessions(sources, options, allow_broken=True) as sessions:
        return sweep.sweep_servings(
            [_build_subject(session, on_progress) for session in sessions],
            ServingSweepSpec(apply_preset(spec.base, machine), spec.dtypes, spec.kv_dtypes),
            machine,
            output=output,
            scheduler=scheduler,
            workers=workers,
            on_progress=on_progress,
            cancel=cancel,
        )


def _build_subject(session: Session, on_progress: OnProgress) -> sweep.ServedModel:
    models = session.parts.models
    source, options = build_open_arguments(models)
    return sweep.ServedModel(
        name=models.label(models.current),
        session=session,
        digest_content=partial(session.parts.get_part(Server).content, None, on_progress),
        opener=lambda content: partial(
            open_worker_model, partial(reopen_module, reopen), source, options, _identify_content, content
        ),
        opening={name: models.options[name] for name in FIGURE_OPTIONS},
        words=shlex.join(write_opening_words(models.options)),
        keep_in_process=models.module is not None,
    )


def _identify_content(session: Any) -> str:
    content: str = session.parts.get_part(Server).content(None, None)
    return content
