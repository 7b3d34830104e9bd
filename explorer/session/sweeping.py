"""Sessions as what a sweep takes: which files hold a model, and how another process opens them.

`explorer.engine.sweep` knows no sessions; here they are handed to it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import BadModel, ExplorerError
from explorer.facts.cost import Hardware
from explorer.facts.sweep import Sweep, SweepSpec, ordered
from explorer.host import input_files
from explorer.session import Session
from explorer.session.states import Cancel, OnProgress
from explorer.settings.parse import opening_words

__all__ = ["is_results", "reopen", "results", "sorted_by", "sweep_files", "sweep_session"]

_MATTERS = ("dims", "input_shapes", "observe", "past")
"""Options of opening that figures depend on, beside the rules; weights and seed are in the content."""

_HOW = (
    *("hardware", "order", "verify", "draws", "output", "scheduler", "workers", "layers"),
    *("first_seed", "on_progress", "cancel"),
)


def sweep_files(*sources: str | os.PathLike[str], spec: SweepSpec, **options: Any) -> Sweep:
    """A row for every model and every combination.

    Args:
        sources: As for `Session`.
        spec: What is combined.
        options: Those of `Session.sweep`, its `seed` as `first_seed`, and those of `Session` for all models;
            a dimension or input that they name need only exist in one of them.
    """
    how = {name: options.pop(name) for name in _HOW if name in options}
    how["seed"] = how.pop("first_seed", 0)
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(Session(source, **options)) for source in sources]
        if len(sessions) > 1:
            _check_names(sessions)
        return _sweep(sessions, spec, **how)


def sweep_session(session: Session, spec: SweepSpec, **how: Any) -> Sweep:
    """A row for every combination, of the current model of a session; `how` as in `Session.sweep`."""
    return _sweep([session], spec, **how)


def is_results(path: str) -> bool:
    """Whether this is a file that a sweep keeps its rows in."""
    if not os.path.isfile(path):
        return False
    from explorer.engine.sweep import is_store

    return is_store(path)


def results(path: str) -> Sweep:
    """Everything that such a file holds."""
    from explorer.engine.sweep import kept

    return kept(path)


def sorted_by(fact: Sweep, by: str) -> Sweep:
    """A sweep with its rows by one of `facts.sweep.SORTS`."""
    return replace(fact, rows=ordered(fact.rows, by))


def _sweep(
    sessions: Sequence[Session],
    spec: SweepSpec,
    *,
    hardware: Hardware | None = None,
    order: str = "best",
    verify: bool = False,
    draws: int = 1,
    seed: int = 0,
    output: str | None = None,
    scheduler: str | None = None,
    workers: int | None = None,
    layers: bool = False,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Sweep:
    from explorer.engine import sweep

    if output is not None:
        sweep.check_output(output, [session.source for session in sessions])
    return sweep.sweep(
        [_subject(session, on_progress) for session in sessions],
        spec,
        hardware=hardware,
        order=order,
        proof=sweep.ProofSpec(draws, seed) if verify else None,
        output=output,
        scheduler=scheduler,
        workers=workers,
        layers=layers,
        on_progress=on_progress,
        cancel=cancel,
    )


def _check_names(sessions: Sequence[Session]) -> None:
    """Whether every dimension and input that was named is one of some model's; a broken model has none."""
    from explorer.engine.models.opened import OpenOptions, check_names

    opened = []
    for session in sessions:
        session._strict = False
        with contextlib.suppress(ExplorerError):
            opened.append(session._open(None))
    if len(opened) == len(sessions):
        check_names(opened, OpenOptions(**sessions[0]._options))


def _subject(session: Session, on_progress: OnProgress) -> Any:
    """A session's current model."""
    from explorer.engine.sweep import Subject

    options = session._options
    opening = {name: options[name] for name in _MATTERS}
    return Subject(
        name=session._label(session._history.current),
        door=session,
        files=partial(_files, session, on_progress),
        opener=partial(_opener, options),
        opening={**opening, "rules": _digest(options["rules"])},
        words=shlex.join(opening_words(options)),
    )


def _files(session: Session, on_progress: OnProgress) -> tuple[str, ...]:
    """The files of the current model; what is no ONNX file is exported."""
    from explorer.engine.sweep.fingerprint import files_of

    return files_of(session._model(session._history.current, on_progress))


def _opener(options: Mapping[str, Any], files: Sequence[str]) -> partial[Session]:
    """What opens the model once more, here or on a worker, whatever it was before it was ONNX."""
    kept = {name: value for name, value in options.items() if name not in ("weights", "seed")}
    if kept["rules"] is not None:
        kept["rules"] = os.path.abspath(kept["rules"])
    return partial(reopen, files[0], **kept)


def reopen(path: str, **options: Any) -> Session:
    """A session of an ONNX file that need not have every dimension and input that `options` name."""
    session = Session(path, **options)
    session._strict = False
    return session


def _digest(rules: str | None) -> str:
    """Digest of the file of rules: figures may change with it."""
    if rules is None:
        return ""
    try:
        return hashlib.sha256(input_files.content(rules)).hexdigest()
    except OSError as error:
        raise BadModel(f"cannot be read ({error.strerror or error})", where=rules) from None
