"""Opens several model files at once, for verify, blame, diff, compare and sweep."""

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
def open_sessions(
    sources: Sequence[str | os.PathLike[str]],
    options: Mapping[str, Any],
    on_progress: OnProgress = None,
    *,
    allow_broken: bool = False,
) -> Iterator[list[Session]]:
    """Opens sessions with the same options, and closes them at the end of the block.

    Args:
        sources: Paths or names of the models. With several, a dimension needs to exist in only one of them.
        options: Keyword arguments of `Session`.
        on_progress: Callback with the progress of opening.
        allow_broken: Whether to yield the sessions of models that cannot be opened, in place of an error.
    """
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(Session(source, **options)) for source in sources]
        all_models = [session.parts.models for session in sessions]
        for models in all_models:
            models.strict = len(all_models) == 1  # `_check_names` checks the names of several models
        if not allow_broken:
            for models in all_models:
                models.open_state(0, on_progress)
        if len(all_models) > 1:
            _check_names(all_models)
        yield sessions


@contextlib.contextmanager
def open_pair(
    a: str | os.PathLike[str], b: str | os.PathLike[str], options: Mapping[str, Any]
) -> Iterator[list[Session]]:
    """Opens two sessions with the same options. If a dimension has several sizes, both use the first."""
    dims: Dims = options.get("dims") or {}
    options = {
        **options,
        "dims": {name: size if isinstance(size, int) else size[0] for name, size in dims.items()},
    }
    with open_sessions((a, b), options) as sessions:
        yield sessions


def _check_names(all_models: Sequence[Models]) -> None:
    """Refuses dimensions and inputs that no model has. Skips the check if one of the models is broken."""
    opened = []
    for models in all_models:
        with contextlib.suppress(ExplorerError):
            opened.append(models.open_state())
    if len(opened) == len(all_models):
        check_names(opened, OpenOptions(**all_models[0].options))
