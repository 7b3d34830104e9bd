"""Conversion between file formats, with evidence that the result is the same model.

`CONVERTERS` lists every supported pair of source and target format. Each converter is a function in its own
module, which is imported on first use. Converting a checkpoint to safetensors therefore does not import
torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from explorer.base.errors import Misuse, format_choices
from explorer.base.options import list_declared_options
from explorer.engine.convert.job import ConversionJob, ConversionResult
from explorer.engine.formats.format import SourceProbe
from explorer.engine.models.registry import SAVED_MODEL, recognize
from explorer.engine.models.unread_formats import UNREAD_FORMATS
from explorer.facts.conversion import Conversion, ConversionOptions
from explorer.host import output_files
from explorer.host.optional_packages import require

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened_model import OpenedModel

_TARGET_FORMATS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "onnx": ("ONNX", (".onnx",)),
    "torchscript": ("TorchScript", (".pt", ".pth", ".ts", ".torchscript")),
    "torch.export": ("a torch.export program", (".pt2",)),
    "safetensors": ("safetensors", (".safetensors",)),
    "checkpoint": ("a state_dict", (".pt", ".pth", ".bin", ".ckpt")),
}
"""Description and file endings of each target format. The usual ending comes first."""


class Converter(Struct, frozen=True):
    """A conversion from some formats to another.

    Attributes:
        sources: Source formats, as `explorer formats` names them.
        format: Target format.
        function: Function that converts: 'module:name' in this package.
        options: Names of the fields of `ConversionOptions` that the function accepts.
        module: Whether the source must open as an nn.Module. This needs torch, and `--trust` for a pickled
            module.
    """

    sources: tuple[str, ...]
    format: str
    function: str
    options: tuple[str, ...] = ()
    module: bool = False

    @property
    def about(self) -> str:
        """Description of the target format."""
        return _TARGET_FORMATS[self.format][0]

    @property
    def endings(self) -> tuple[str, ...]:
        """File endings of the target format."""
        return _TARGET_FORMATS[self.format][1]


_MODULES = ("torch", "torchscript", "torch.export", "checkpoint")
"""Formats that can open as an nn.Module."""

_TENSORS = ("checkpoint", "safetensors", "huggingface")
"""Formats that contain only tensors."""

_ONNX_OPTIONS = ("exporter", "opset", "input_names", "output_names", "dynamic", "fold")

CONVERTERS: tuple[Converter, ...] = (
    Converter(_MODULES, "onnx", "module_to_onnx:convert", _ONNX_OPTIONS, module=True),
    Converter(_MODULES, "torchscript", "module_to_torchscript:convert", ("method",), module=True),
    Converter(_MODULES, "torch.export", "module_to_program:convert", ("dynamic",), module=True),
    Converter(_TENSORS, "safetensors", "tensor_files.to_safetensors:convert"),
    Converter(_TENSORS, "checkpoint", "tensor_files.to_state_dict:convert"),
    Converter(("onnx",), "torchscript", "onnx_to_torch:write_torchscript"),
    Converter(("onnx",), "torch.export", "onnx_to_torch:write_program"),
    Converter(("tflite",), "onnx", "tflite_to_onnx:convert", ("opset", "fold")),
    Converter(("keras",), "onnx", "tensorflow_to_onnx:convert_keras", ("opset", "fold")),
    Converter(("saved_model",), "onnx", "tensorflow_to_onnx:convert_saved_model", ("opset", "fold")),
)
"""All conversions."""

_FLAGS = {option.name: option.flag for option in list_declared_options(ConversionOptions)}
"""The command-line flag of each field of `ConversionOptions`."""


def find(
    format: str, source: str, target: str, options: ConversionOptions, *, module: bool | None
) -> Converter:
    """Finds the converter from a source format to the format that the target's file name implies.

    The options are not checked if `module` is None and several converters match. Call again when the source
    is open.

    Args:
        format: Source format.
        source: Name of the source, for messages.
        target: File to write; its ending selects the target format.
        options: Options for the converter.
        module: Whether the source is open as an nn.Module, or None if the source is not open yet.

    Raises:
        Misuse: No converter exists, or the converter does not accept an option; the message lists the
            alternatives.
        MissingExtra: The conversion needs torch.
    """
    readers = [c for c in CONVERTERS if format in c.sources]
    if not readers:
        names = ", ".join(dict.fromkeys(name for c in CONVERTERS for name in c.sources))
        message = f"a model of the format {format} cannot be converted"
        raise Misuse(message, where=source, hint=f"these can: {names}")
    usable_converters = [c for c in readers if not c.module or module is not False]
    converter = _find_by_ending(usable_converters, target)
    if converter is None and module is False and _find_by_ending(readers, target) is not None:
        _refuse_module(format, source)
    if converter is None:
        listed = ", ".join(f"{c.about} ({', '.join(c.endings)})" for c in usable_converters)
        ending = os.path.splitext(target)[1]
        ending_text = f"'{ending}'" if ending else "a file without an ending"
        raise Misuse(
            f"{format} cannot be converted to {ending_text}", where=target, hint=f"it can become {listed}"
        )
    if (
        module is None
        and len({c.function for c in usable_converters if target.lower().endswith(c.endings)}) > 1
    ):
        return converter  # several converters match: the opened source decides
    for option, flag in _FLAGS.items():
        if getattr(options, option) and option not in converter.options:
            possible = [_FLAGS[name] for name in converter.options]
            hint = format_choices(possible) if possible else "leave it out"
            raise Misuse(f"does not go with {format} to {converter.about}", where=flag, hint=hint)
    return converter


def check_name(path: str, *formats: str, also: str = "") -> None:
    """Raises an error if the ending of a file name does not match the format to write.

    Args:
        path: Target path.
        formats: Allowed formats, as `Converter.format` names them.
        also: Another possible target and how to request it, for the hint.

    Raises:
        Misuse: The ending belongs to none of the formats; the message lists the endings.
    """
    if path.lower().endswith(tuple(ending for name in formats for ending in _TARGET_FORMATS[name][1])):
        return
    ending = os.path.splitext(path)[1]
    message = f"the ending {ending} is not possible here" if ending else "its name has no ending"
    possible = [f"{', '.join(_TARGET_FORMATS[name][1])} ({_TARGET_FORMATS[name][0]})" for name in formats]
    hint = f"possible endings: {'; '.join(possible)}{also and f'; {also}'}"
    raise Misuse(message, where=path, hint=hint)


def _find_by_ending(converters: Sequence[Converter], target: str) -> Converter | None:
    """Finds the converter with the longest matching file ending: .pt2 is not read as .pt."""
    name = os.path.basename(target).lower()
    matches = [(len(ending), c) for c in converters for ending in c.endings if name.endswith(ending)]
    return max(matches, key=lambda match: match[0])[1] if matches else None


def _refuse_module(format: str, source: str) -> None:
    """Raises an error that explains why the source did not open as an nn.Module."""
    if format != "checkpoint":
        require("torch", source)
    hint = (
        "a pickled module runs with --trust; for a state_dict name the code:"
        " FILE.py:callable or package.module:callable"
    )
    raise Misuse("an nn.Module can be built from it only by running its code", where=source, hint=hint)


def list_target_formats(opened: OpenedModel) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Lists the formats that a model can be converted to: a description and the file endings of each."""
    module = hasattr(opened, "loaded")
    return tuple(
        (c.about, c.endings) for c in CONVERTERS if opened.format in c.sources and (module or not c.module)
    )


def write(
    opening: Callable[[], OpenedModel], path: str | None, job: ConversionJob, *, overwrite: bool = False
) -> Conversion:
    """Converts a model to another format and compares the two. Keeps the file only if both steps succeed.

    Args:
        opening: Function that opens the model.
        path: Path of the model, or None for an nn.Module object.
        job: The conversion, without the model and the temporary path.
        overwrite: Whether an existing file may be replaced.

    Returns:
        The conversion. If the result differs from the source, no file is kept, and `output` is empty.

    Raises:
        ExplorerError: See `explorer.session.Session.convert`.
    """
    started = time.perf_counter()
    if job.draws < 1:
        raise Misuse(f"{job.draws} draws prove nothing", where="--draws", hint="give 1 or more")
    unopened_format = _recognize_unopened_format(path) if path is not None else ""
    if path is not None and unopened_format:
        converter = find(unopened_format, path, job.target, job.options, module=None)
        output_files.check_target(job.target, overwrite=overwrite, models=[path], weights=())
        source_format, job = unopened_format, replace(job, source=path)
    else:
        opened, converter = _open(opening, path, job.target, job.options, overwrite=overwrite)
        source_format, job = opened.format, replace(job, opened=opened, source=opened.source)

    if job.shapes and converter.format != "onnx":
        raise Misuse("only ONNX files declare shapes", where="--shapes", hint="leave it out")

    def convert(job: ConversionJob) -> ConversionResult:
        module, _, name = converter.function.partition(":")
        result: ConversionResult = getattr(require(f"{__name__}.{module}", job.target), name)(job)
        return result

    return _write(convert, job, (source_format, converter.format), started, overwrite=overwrite)


def rebatch(
    model: Model, batch: int | str, job: ConversionJob, *, axes: Mapping[str, int], overwrite: bool = False
) -> Conversion:
    """Writes an ONNX model for another batch size, and compares it with the original as `write` does.

    Args:
        model: Original model.
        batch: New batch size, or a name for an open batch dimension.
        job: Target, number of comparisons, and progress callback.
        axes: Batch axis by input name; an input without an entry has no batch. Empty for the first axis of
            every input.
        overwrite: Whether an existing file may be replaced.

    Raises:
        Misuse: The batch cannot be rewritten safely.
        BadModel: The original or the result cannot be run.
        Cancelled: The user canceled (`job.cancel`).
    """
    started = time.perf_counter()
    convert = require(f"{__name__}.rebatching", job.target).make_rebatching(model, batch, job, axes)
    return _write(convert, job, ("onnx", "onnx"), started, overwrite=overwrite)


def _write(
    convert: Callable[[ConversionJob], ConversionResult],
    job: ConversionJob,
    formats: tuple[str, str],
    started: float,
    *,
    overwrite: bool,
) -> Conversion:
    """Runs a conversion into a temporary file, and keeps the file if the result equals the source."""
    result, size = None, None
    target_file = output_files.write_atomically(job.target, overwrite=overwrite)
    with target_file as temporary:
        result = convert(replace(job, path=temporary))
        if not all(proof is None or proof.passed for proof in (result.verification, result.stored)):
            raise output_files.Discard
        if job.shapes:
            # imported late: it imports the fold passes, and this package
            from explorer.engine.convert.onnx_file import declare_in_file

            declare_in_file(temporary)
        size = sum(entry.stat().st_size for entry in os.scandir(os.path.dirname(temporary)))
    assert result is not None
    return Conversion(
        job.source,
        *formats,
        output="" if size is None else job.target,
        file_bytes=size,
        **asdict(result),
        seconds=time.perf_counter() - started,
    )


def _recognize_unopened_format(path: str) -> str:
    """Returns the format of a source that only a conversion reads ('keras', 'saved_model'), or ''."""
    if os.path.isfile(os.path.join(path, SAVED_MODEL)):
        return "saved_model"
    probe = SourceProbe(path)
    return next((unread.converter for unread in UNREAD_FORMATS if probe.head and unread.recognize(probe)), "")


def _open(
    opening: Callable[[], OpenedModel],
    path: str | None,
    target: str,
    options: ConversionOptions,
    *,
    overwrite: bool,
) -> tuple[OpenedModel, Converter]:
    """Opens the model and finds its converter.

    Checks the target and the options first, because opening is slow.
    """
    if path is not None and os.path.exists(path):
        format = recognize(path).name
        if any(format in c.sources for c in CONVERTERS):  # a folder's format is known only after opening
            find(format, path, target, options, module=None)
    output_files.check_target(target, overwrite=overwrite, models=[path] if path else [], weights=())
    opened = opening()
    files = getattr(opened, "files", ())
    output_files.check_target(target, overwrite=overwrite, models=files, weights=files)
    return opened, find(opened.format, opened.source, target, options, module=hasattr(opened, "loaded"))
