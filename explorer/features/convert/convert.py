"""Session methods that convert the opened model to another file format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.convert import list_target_formats, write
from explorer.engine.convert.job import ConversionJob
from explorer.facts.conversion import ConversionOptions
from explorer.session.methods.facade import Facade
from explorer.session.parts import scripts
from explorer.session.parts.models import Cancel, Models, OnProgress
from explorer.settings.option_values import write_words

if TYPE_CHECKING:
    from explorer.facts.conversion import Conversion, ExporterName, ScriptMethod


def conversions(session: Facade) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the formats that the opened model can be converted to: name and file extensions of each."""
    return list_target_formats(session.parts.models.open_state())


def convert(
    session: Facade,
    output: PathText,
    *,
    exporter: ExporterName | None = None,
    opset: Count | None = None,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    method: ScriptMethod | None = None,
    fold: bool = False,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 3,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Conversion:
    """Write the opened model in another format, and compare both models.

    Args:
        output: Path of the file; its extension selects the format (see `engine.convert.CONVERTERS`).
        exporter: ONNX exporter of torch, 'torchscript' or 'dynamo'. By default the first that works.
        opset: Version of the ONNX operators. By default the best for the exporter.
        input_names: Names of the inputs in the file, in order; empty keeps the model's names. Further names
            are for the weights, in the order of the file.
        output_names: Names of the outputs in the file, in order; empty keeps the model's names.
        dynamic: Axes that stay open, by input and axis: {'x': {0: 'batch'}}.
        method: Method for TorchScript: 'trace' (the default) or 'script'.
        fold: Whether to fold batch normalization, constants, Identity and Dropout in an ONNX file.
        overwrite: Whether to replace an existing `output`.
        verify: Whether to compare the result with the source before the file is kept. If the check fails, the
            file is deleted and `Conversion.output` is empty.
        draws: Number of random inputs to run both models on.
        seed: Seed of the first random input.
        on_progress: Callback that receives the progress.
        cancel: Callback that is polled regularly. If it returns True, the job stops and leaves no files.

    Raises:
        Misuse: The model cannot be converted to that format, and the message lists the possible ones. Or an
            option does not fit, or `output` cannot be written.
        BadModel: The source is broken, or its framework cannot write that format.
        MissingExtra: The conversion needs a package that is not installed.
        Cancelled: `cancel` returned True.
    """
    models = session.parts.models
    _check_unchanged(models)
    options = ConversionOptions(
        exporter=exporter,
        opset=opset,
        input_names=tuple(input_names),
        output_names=tuple(output_names),
        dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()},
        method=method,
        fold=fold,
    )
    job = ConversionJob(
        target=output,
        dims=models.options["dims"],
        input_shapes=models.options["input_shapes"],
        options=options,
        trust=bool(models.options["trust"]),
        shapes=bool(models.options["shapes"]),
        verify=verify,
        draws=draws,
        seed=seed,
        on_progress=on_progress,
        cancel=cancel,
    )
    path = models.source if models.module is None else None
    fact = write(lambda: models.open_state(0, on_progress), path, job, overwrite=overwrite)
    return replace(fact, command=scripts.write_command(models, "convert", output, "", *write_words(options)))


def _check_unchanged(models: Models) -> None:
    """Refuse a model that was changed in the session."""
    if models.current:
        raise Misuse(
            "the current model was quantized: the model as opened is converted"
            if models.is_module(models.current)
            else "the current model was changed here and is ONNX already",
            where=models.source,
            hint="save it as it is",
        )
