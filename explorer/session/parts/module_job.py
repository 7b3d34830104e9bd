"""Module jobs: checks that a model is a PyTorch module, and builds the job that tiles or quantizes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.base.errors import Misuse
from explorer.engine.convert.job import ConversionJob, get_module
from explorer.facts.conversion import ConversionOptions
from explorer.session.parts.models import Models, OnProgress


def check_module(models: Models, on_progress: OnProgress) -> None:
    """Checks that the opened model is a module and that torch is installed, if it is the current state.

    Raises:
        Misuse: The opened model is not a module.
        MissingExtra: torch is not installed.
    """
    if not models.current:
        get_module(models.open_state(0, on_progress))


def build_module_job(
    models: Models,
    *,
    target: str = "",
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    on_progress: OnProgress,
    **fields: Any,
) -> ConversionJob:
    """Builds the job that converts the module of the current state.

    Args:
        models: Models of the session.
        target: Path of the file for the module, or '' for none.
        dynamic: Names of open dimensions by input name and axis.
        on_progress: Callback with the progress of the job.
        fields: Further fields of `ConversionJob`.

    Raises:
        Misuse: The current state is an ONNX graph, or the session has the option `shapes`.
    """
    models.refuse_shapes()
    if models.current and not models.is_module(models.current):
        raise Misuse(
            "the current model was made as ONNX: it is not a module",
            where=models.source,
            hint="explorer.to_torch(path) loads the file; or go back to the original",
        )
    return ConversionJob(
        opened=models.open_state(models.current, on_progress),
        source=models.source,
        dims=models.options["dims"],
        input_shapes=models.options["input_shapes"],
        options=ConversionOptions(dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()}),
        target=target,
        trust=bool(models.options["trust"]),
        on_progress=on_progress,
        **fields,
    )
