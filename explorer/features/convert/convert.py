"""Conversion of a session's model into another kind of file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.engine import convert
from explorer.engine.convert.job import ConversionJob, ConversionOptions, ExporterName, ScriptMethod
from explorer.facts.conversion import Conversion
from explorer.session.parts import scripts
from explorer.session.parts.models import Models, OnProgress


class ModelConversion:
    """Writes the opened model as another kind of file."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def convert(
        self,
        output: str,
        *,
        exporter: ExporterName | None,
        opset: int | None,
        input_names: tuple[str, ...],
        output_names: tuple[str, ...],
        dynamic: Mapping[str, Mapping[int, str]],
        method: ScriptMethod | None,
        fold: bool,
        overwrite: bool,
        on_progress: OnProgress,
        **how: Any,
    ) -> Conversion:
        """Writes the opened model as another kind of file; `how` as for `ConversionJob`."""
        models = self._models
        if models.current:
            raise Misuse(
                "the current model was quantized: the model as opened is converted"
                if models.is_module(models.current)
                else "the current model was tiled: it is ONNX already",
                where=models.source,
                hint="save it as it is",
            )
        request = ConversionOptions(
            exporter=exporter,
            opset=opset,
            input_names=input_names,
            output_names=output_names,
            dynamic=dynamic,
            method=method,
            fold=fold,
        )
        job = ConversionJob(
            target=output,
            dims=models.options["dims"],
            input_shapes=models.options["input_shapes"],
            asked=request,
            trust=bool(models.options["trust"]),
            on_progress=on_progress,
            **how,
        )
        path = models.source if models.module is None else None
        fact = convert.write(lambda: models.opened(0, on_progress), path, job, overwrite=overwrite)
        return replace(fact, command=scripts.headless(models, "convert", output, "", *convert.words(request)))

    def conversions(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """What the opened model can become."""
        return convert.kinds(self._models.opened())
