"""Models of a sweep on workers: opens the same model in another process, and checks that it is the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from explorer.base.errors import BadModel
from explorer.engine.sweep.measure import SweepSession
from explorer.session.parts.models import Models

FIGURE_OPTIONS = ("dims", "input_shapes", "observe", "past")
"""Opening options that affect the figures.

Rules, weights and the seed affect them, too. A digest of the model's content covers these.
"""

Reopen = Callable[..., SweepSession]


def build_open_arguments(models: Models) -> tuple[str, dict[str, Any]]:
    """Returns the source and the options with which any worker opens the model. Paths are absolute."""
    head, colon, name = models.source.rpartition(":")
    source = f"{os.path.abspath(head)}:{name}" if colon and os.path.exists(head) else models.source
    source = os.path.abspath(source) if os.path.exists(source) else source
    paths = {key: os.path.abspath(path) for key in ("rules", "weights_file") if (path := models.options[key])}
    return source, {**models.options, **paths}


def reopen_module(reopen: Reopen, source: str, **options: Any) -> SweepSession:
    """Opens a module from its current file, because a worker may have imported an older version."""
    sys.modules.pop(source.rpartition(":")[0], None)
    return reopen(source, **options)


def open_worker_model(
    reopen: Reopen,
    source: str,
    options: Mapping[str, Any],
    compute_digest: Callable[[SweepSession], str],
    expected_digest: str,
) -> SweepSession:
    """Opens a model on a worker and checks that its content has the expected digest.

    Raises:
        BadModel: The digest differs.
    """
    session = reopen(source, **options)
    if compute_digest(session) != expected_digest:
        session.close()
        raise BadModel("the worker has a different model with this name", where=source)
    return session
