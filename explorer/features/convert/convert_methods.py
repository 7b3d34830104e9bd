"""Files that a session writes: its models, what was done to them as commands, script and tiling file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from explorer.base.checked import Count, Natural, PathText, Words
from explorer.facts import TileSpec
from explorer.session.methods.facade import Facade
from explorer.session.parts.models import Cancel, OnProgress

if TYPE_CHECKING:
    from explorer.engine.convert.job import ExporterName, ScriptMethod
    from explorer.facts.conversion import Conversion


def save(session: Facade, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None) -> str:
    """Writes the current model to `path` as ONNX.

    Returns:
        The path.

    Raises:
        Misuse: The file exists and `overwrite` is False, it is the opened model, or it cannot be
            written.
    """
    return session.parts.exporter.save(path, overwrite, on_progress)


def check_output(session: Facade, path: PathText, *, overwrite: bool = False) -> None:
    """Refuses, before anything is worked out, a file that the current model could not be written to.

    Raises:
        Misuse: The file exists and `overwrite` is False, it is one that is read, or its ending is that of
            another kind of file.
    """
    session.parts.exporter.check(path, overwrite)


def conversions(session: Facade) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What the opened model can become: for each kind what it is, and how files of it are called."""
    return session.parts.exporter.conversions()


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
    """Writes the opened model as another kind of file, and shows that it is the same.

    Args:
        output: The file; its ending says what it is to be (see `engine.convert.CONVERTERS`).
        exporter: Which of torch's ONNX exporters: 'torchscript' or 'dynamo'; None takes what works.
        opset: Version of ONNX's operators; None takes what the exporter does best.
        input_names: Names in the file, one for each input; empty for the model's own.
        output_names: The same of the outputs.
        dynamic: Input to axis to the name of a dimension that is left open: {'x': {0: 'batch'}}.
        method: How TorchScript is made: 'trace' (None too) or 'script'.
        fold: Fold batch normalization, constants, Identity and Dropout of what becomes ONNX.
        overwrite: Whether an existing `output` may be replaced.
        verify: Compare the result with the source before it gets its name. A result that fails is not
            kept: then `Conversion.output` is empty.
        draws: Random inputs to run both on.
        seed: Of the first draw.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: The model cannot become that; the message lists what it can become. Or an option does
            not fit, or `output` cannot be written.
        BadModel: The source is broken, or its framework cannot write it so.
        MissingExtra: It needs a package that is not installed.
        Cancelled: `cancel` said so.
    """
    return session.parts.exporter.convert(
        output,
        exporter=exporter,
        opset=opset,
        input_names=tuple(input_names),
        output_names=tuple(output_names),
        dynamic={name: dict(axes) for name, axes in (dynamic or {}).items()},
        method=method,
        fold=fold,
        overwrite=overwrite,
        verify=verify,
        draws=draws,
        seed=seed,
        on_progress=on_progress,
        cancel=cancel,
    )


def rebatch(
    session: Facade,
    batch: Count | Words,
    output: PathText,
    *,
    axes: Mapping[str, int] | None = None,
    overwrite: bool = False,
    verify: bool = True,
    draws: Count = 3,
    seed: Natural = 0,
    on_progress: OnProgress = None,
    cancel: Cancel = None,
) -> Conversion:
    """Writes the current model, whose batch is fixed, for another batch, and compares each row.

    The original is run alone on every slice of the inputs; the result has to give the same rows within
    rounding. One that does not is not kept: then `Conversion.output` is empty.

    Args:
        batch: The new size; or a name, which leaves it open.
        output: The ONNX file.
        axes: Input to the axis that is its batch; None takes the first axis of every input.
        overwrite: Whether an existing `output` may be replaced.
        verify: Compare before the result gets its name.
        draws: Random inputs to run both on.
        seed: Of the first draw.
        on_progress: Told where the job stands.
        cancel: Asked now and then; True stops the job and leaves nothing behind.

    Raises:
        Misuse: The batch cannot be rewritten safely, or `output` cannot be written.
        BadModel: One of the two cannot be run.
        Cancelled: `cancel` said so.
    """
    return session.parts.exporter.rebatch(
        batch,
        output,
        axes=dict(axes or {}),
        overwrite=overwrite,
        verify=verify,
        draws=draws,
        seed=seed,
        on_progress=on_progress,
        cancel=cancel,
    )


def command(session: Facade, spec: TileSpec, output: PathText | None = None) -> str:
    """The command that does headless what `tile` does to the opened model.

    '' where no command can: an nn.Module object has no name, rules that stand in no file no option.
    """
    return session.parts.exporter.command(spec, output)


def script(
    session: Facade,
    path: PathText,
    *,
    index: int | None = None,
    branches: bool = False,
    overwrite: bool = False,
) -> str:
    """Writes the commands that make a state, and those that lead to it, as a shell script.

    Run in an empty folder it makes files that are the session's, byte for byte.

    Args:
        path: Of the script.
        index: Which state of the history; None is the current one.
        branches: Every state, those of all branches.
        overwrite: Whether an existing file may be replaced.

    Returns:
        The path.

    Raises:
        Misuse: Nothing was done yet, no command can open the model, or `path` cannot be written.
    """
    return session.parts.exporter.script(path, index, branches, overwrite)


def script_text(session: Facade, index: int | None = None, *, branches: bool = False) -> str:
    """What `script` writes; it opens no model that is not ONNX, so nothing of its code runs.

    Raises:
        Misuse: Nothing was done yet, or no command can open the model.
    """
    return session.parts.exporter.script_text(index, branches)


def keep_choices(
    session: Facade, path: PathText, *, overwrite: bool = False, on_progress: OnProgress = None
) -> str:
    """Writes what was tiled, and how, as a file for `--config`: a rule for every site, by its name.

    Returns:
        The path.

    Raises:
        Misuse: Nothing was tiled yet, or `path` cannot be written.
    """
    return session.parts.exporter.keep_choices(path, overwrite, session.parts.tiler, on_progress)
