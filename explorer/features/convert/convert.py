"""Conversion of a session's model into another kind of file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.checked import Count, Natural, PathText
from explorer.base.errors import Misuse
from explorer.engine.convert import kinds, words, write
from explorer.engine.convert.job import ConversionJob, ConversionOptions
from explorer.session.methods.facade import Facade
from explorer.session.parts import scripts
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.engine.convert.job import ExporterName, ScriptMethod
    from explorer.facts.conversion import Conversion


def conversions(session: Facade) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The kinds of file that the opened model can become: for each its name and its endings."""
    return kinds(session.parts.models.opened())


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
    """Writes the opened model as another kind of file, and compares the two.

    Args:
        output: The file; its ending selects the format (see `engine.convert.CONVERTERS`).
        exporter: torch's ONNX exporter, 'torchscript' or 'dynamo'; None takes the one that works.
        opset: Version of ONNX's operators; None takes the exporter's best.
        input_names: Names of the inputs in the file, in order; empty keeps the model's names.
        output_names: Names of the outputs in the file, in order; empty keeps the model's names.
        dynamic: Axes to leave open, by input and axis: {'x': {0: 'batch'}}.
        method: How TorchScript is made: 'trace' (also for None) or 'script'.
        fold: Fold batch normalization, constants, Identity and Dropout when the target is ONNX.
        overwrite: Whether an existing `output` may be replaced.
        verify: Compare the result with the source before it gets its name. A result that fails is not
            kept: then `Conversion.output` is empty.
        draws: The number of random inputs to run both on.
        seed: The seed of the first random input.
        on_progress: Receives the progress.
        cancel: Polled now and then; True stops the job and leaves no file.

    Raises:
        Misuse: The model cannot be converted to that format, and the message lists the possible ones. Or an
            option does not fit, or `output` cannot be written.
        BadModel: The source is broken, or its framework cannot write that format.
        MissingExtra: The conversion needs a package that is not installed.
        Cancelled: `cancel` said so.
    """
    models = session.parts.models
    if models.current:
        raise Misuse(
            "the current model was quantized: the model as opened is converted"
            if models.is_module(models.current)
            else "the current model was tiled: it is ONNX already",
            where=models.source,
            hint="save it as it is",
        )
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
        asked=options,
        trust=bool(models.options["trust"]),
        verify=verify,
        draws=draws,
        seed=seed,
        on_progress=on_progress,
        cancel=cancel,
    )
    path = models.source if models.module is None else None
    fact = write(lambda: models.opened(0, on_progress), path, job, overwrite=overwrite)
    return replace(fact, command=scripts.headless(models, "convert", output, "", *words(options)))
