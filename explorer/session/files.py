"""Several model files at once: verify, blame, diff, compare, sweep; each is opened as a session opens it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from explorer.base.errors import ExplorerError
from explorer.engine.models.opened_model import OpenOptions, check_names
from explorer.session.parts.models import Dims, Models, OnProgress
from explorer.session.session import Session


@contextlib.contextmanager
def opened(
    sources: Sequence[str | os.PathLike[str]],
    options: Mapping[str, Any],
    on_progress: OnProgress = None,
    *,
    broken: bool = False,
) -> Iterator[list[Session]]:
    """Sessions with the same options; of several models a dimension need only exist in one.

    With `broken` one that cannot be opened is among them.
    """
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(Session(source, **options)) for source in sources]
        several = [session.parts.models for session in sessions]
        for models in several:
            models.strict = len(several) == 1
        if not broken:
            for models in several:
                models.opened(0, on_progress)
        if len(several) > 1:
            _check_sizes(several)
        yield sessions


@contextlib.contextmanager
def opened_pair(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: Mapping[str, Any]
) -> Iterator[list[Session]]:
    """Two sessions with the same options; of several sizes of a dimension they have the first."""
    dims: Dims = options.get("dims") or {}
    options = {**options, "dims": {n: s if isinstance(s, int) else s[0] for n, s in dims.items()}}
    with opened((a, b), options) as sessions:
        yield sessions


def _check_sizes(several: Sequence[Models]) -> None:
    """Whether every dimension and input that was named is one of some model's; a broken model has none."""
    opened = []
    for models in several:
        with contextlib.suppress(ExplorerError):
            opened.append(models.opened())
    if len(opened) == len(several):
        check_names(opened, OpenOptions(**several[0].options))
