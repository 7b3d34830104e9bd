"""Models of a sweep on workers: how another process opens the same model, and checks that it is the same."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from explorer.base.errors import BadModel
from explorer.engine.sweep.measure import SweepSession
from explorer.session.parts.models import Models

MATTERS = ("dims", "input_shapes", "observe", "past")
"""Opening options that affect the figures, in addition to the rules. The content covers weights and seed."""

Reopen = Callable[..., SweepSession]


def build_open_arguments(models: Models) -> tuple[str, dict[str, Any]]:
    """Returns source and options that open a module on any worker, with absolute paths."""
    head, colon, name = models.source.rpartition(":")
    source = f"{os.path.abspath(head)}:{name}" if colon and os.path.exists(head) else models.source
    source = os.path.abspath(source) if os.path.exists(source) else source
    paths = {key: os.path.abspath(path) for key in ("rules", "weights_file") if (path := models.options[key])}
    return source, {**models.options, **paths}


def module_anew(reopen: Reopen, source: str, **options: Any) -> SweepSession:
    """Opens a module from its present file, because a worker may have imported an older version."""
    sys.modules.pop(source.rpartition(":")[0], None)
    return reopen(source, **options)


def worker_model(
    reopen: Reopen,
    source: str,
    options: Mapping[str, Any],
    content: Callable[[SweepSession], str],
    expected: str,
) -> SweepSession:
    """Opens a model on a worker and checks that it is the expected one.

    Raises:
        BadModel: The digest that `content` returns is not `expected`.
    """
    session = reopen(source, **options)
    if content(session) != expected:
        session.close()
        raise BadModel("the worker has another model of this name", where=source)
    return session
