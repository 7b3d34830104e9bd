"""Job of a conversion in PyTorch: what a tiled or a quantized module is made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from explorer.base.errors import Misuse
from explorer.engine.convert.job import ConversionJob, ConversionOptions
from explorer.session.parts.models import Models, OnProgress

MODULE_ENDINGS = (".pt2", ".pt", ".pth", ".ts", ".torchscript")
"""Of files that hold an nn.Module."""


def module_job(
    models: Models,
    *,
    target: str = "",
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    on_progress: OnProgress,
    **fields: Any,
) -> ConversionJob:
    """What makes a module of the current state.

    Args:
        models: Of the session.
        target: Where the module is written; '' for nowhere.
        dynamic: Input to axis to the name of a dimension that is left open.
        on_progress: Told where the job stands.
        fields: Further fields of `ConversionJob`.

    Raises:
        Misuse: The current state was made as ONNX.
    """
    if models.current and not models.is_module(models.current):
        raise Misuse(
            "the current model was made as ONNX: it is no module",
            where=models.source,
            hint="explorer.to_torch(path) loads the file; or go back to the original",
        )
    return ConversionJob(
        opened=models.opened(models.current, on_progress),
        source=models.source,
        dims=models.options["dims"],
        input_shapes=models.options["input_shapes"],
        asked=ConversionOptions(dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()}),
        target=target,
        trust=bool(models.options["trust"]),
        on_progress=on_progress,
        **fields,
    )
