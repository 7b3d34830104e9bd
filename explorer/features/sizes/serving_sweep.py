"""Sweep over layouts of serving, for several models, in this process or in others."""

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
from explorer.features.sizes.serving import Server, on_machine
from explorer.features.sweep.sweep import MATTERS, from_anywhere, module_anew, worker_model
from explorer.session.files import opened
from explorer.session.parts.models import Cancel, OnProgress
from explorer.session.session import Session, reopen
from explorer.settings.parse import opening_words

if TYPE_CHECKING:
    from explorer.session.keywords import OpeningKeywords


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
    """A row for every model, type, context, batch, number of devices and layout over these.

    Args:
        sources: As for `Session`.
        spec: What is combined.
        machine: Of the times, and of each device; None leaves them out.
        output: A file that keeps the rows as they are made: what it holds already is not done again.
        scheduler: Of a Dask cluster that does the work: 'tcp://host:port'.
        workers: Processes on this machine; None and 1 are this one.
        on_progress: Told how many combinations are done.
        cancel: Asked now and then; True stops, and what is done is kept.
        options: Those of `Session` for all models.

    Raises:
        Misuse: As for `Session.serving`, of all rows; or `output` is no file of results.
        MissingExtra: `scheduler` needs Dask, which is not installed.
        Cancelled: `cancel` said so.
    """
    if output is not None:
        engine.check_output(output, [os.fspath(source) for source in sources])
    with opened(sources, options, broken=True) as sessions:
        return sweep.sweep_servings(
            [_subject(session, on_progress) for session in sessions],
            ServingSweepSpec(on_machine(spec.base, machine), spec.dtypes, spec.kv_dtypes),
            machine,
            output=output,
            scheduler=scheduler,
            workers=workers,
            on_progress=on_progress,
            cancel=cancel,
        )


def _subject(session: Session, on_progress: OnProgress) -> sweep.ServedModel:
    models = session.parts.models
    source, options = from_anywhere(models)
    return sweep.ServedModel(
        name=models.label(models.current),
        door=session,
        content=partial(session.parts.of(Server).content, None, on_progress),
        opener=lambda content: partial(
            worker_model, partial(module_anew, reopen), source, options, _content, content
        ),
        opening={name: models.options[name] for name in MATTERS},
        words=shlex.join(opening_words(models.options)),
        stays=models.module is not None,
    )


def _content(session: Any) -> str:
    content: str = session.parts.of(Server).content(None, None)
    return content
