"""Conversion from one kind of file to another, where that can be done for real, with evidence that it was.

Which kinds can become which stands in one table, and nothing else knows of pairs. A converter is a
function in a module of its own, imported when it is its turn: who turns a checkpoint into safetensors does
not wait for torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import asdict, replace

from explorer.base.errors import Misuse
from explorer.engine.convert.job import ConversionJob, ConversionOptions, ConversionResult
from explorer.engine.models.registry import recognise
from explorer.facts.conversion import Conversion
from explorer.host import output_files
from explorer.host.optional_packages import require
from explorer.settings.parse import dynamic_words, option_words

if TYPE_CHECKING:
    from explorer.engine.graph.model import Model
    from explorer.engine.models.opened_model import OpenedModel

_MADE: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "onnx": ("ONNX", (".onnx",)),
    "torchscript": ("TorchScript", (".pt", ".pth", ".ts", ".torchscript")),
    "torch.export": ("a torch.export program", (".pt2",)),
    "safetensors": ("safetensors", (".safetensors",)),
    "checkpoint": ("a state_dict", (".pt", ".pth", ".bin", ".ckpt")),
}
"""What can be made: in words, and how files of that kind are called; the first ending is the usual one."""


class Converter(Struct, frozen=True):
    """One way from some formats to another.

    Attributes:
        sources: Formats of what it starts from, as `explorer formats` names them.
        format: What it makes.
        function: Where it is: 'module:name', in this package.
        options: What `ConversionOptions` may say to it.
        module: It needs the source as an nn.Module: a file of torch's is one where torch is installed, and a
            pickled one with `--trust`.
    """

    sources: tuple[str, ...]
    format: str
    function: str
    options: tuple[str, ...] = ()
    module: bool = False

    @property
    def about(self) -> str:
        """What it makes, for a person."""
        return _MADE[self.format][0]

    @property
    def endings(self) -> tuple[str, ...]:
        """How files of that kind are called."""
        return _MADE[self.format][1]


_MODULES = ("torch", "torchscript", "torch.export", "checkpoint")
"""Formats that can open as an nn.Module."""

_TENSORS = ("checkpoint", "safetensors", "huggingface")
"""Formats of which there are only the tensors."""

_ONNX_OPTIONS = ("exporter", "opset", "input_names", "output_names", "dynamic", "fold")

CONVERTERS: tuple[Converter, ...] = (
    Converter(_MODULES, "onnx", "module_to_onnx:convert", _ONNX_OPTIONS, module=True),
    Converter(_MODULES, "torchscript", "module_to_torchscript:convert", ("method",), module=True),
    Converter(_MODULES, "torch.export", "module_to_program:convert", ("dynamic",), module=True),
    Converter(_TENSORS, "safetensors", "tensor_files.to_safetensors:convert"),
    Converter(_TENSORS, "checkpoint", "tensor_files.to_state_dict:convert"),
    Converter(("onnx",), "torchscript", "onnx_to_torch:torchscript"),
    Converter(("onnx",), "torch.export", "onnx_to_torch:program"),
    Converter(("tflite",), "onnx", "tflite_to_onnx:convert", ("opset", "fold")),
)
"""Every pair that there is."""

_FLAGS = {name: f"--{name.replace('_', '-')}" for name in ConversionOptions.__struct_fields__}
"""What `ConversionOptions` calls itself on the command line."""


def find(
    format: str, source: str, target: str, options: ConversionOptions, *, module: bool | None
) -> Converter:
    """The converter from a format to the kind of file that a name says.

    Args:
        format: Of the source.
        source: What the user named, for the message.
        target: The file to make; its ending says what it is to be.
        options: What the converter is to be told.
        module: Whether the source is open as an nn.Module; None: nobody knows yet.

    Raises:
        Misuse: There is none, or it takes no such option; the message lists what there is.
        MissingExtra: There would be one where torch is installed.
    """
    readers = [c for c in CONVERTERS if format in c.sources]
    if not readers:
        kinds = ", ".join(dict.fromkeys(name for c in CONVERTERS for name in c.sources))
        raise Misuse(
            f"a model of the format {format} cannot be converted", where=source, hint=f"these can: {kinds}"
        )
    can = [c for c in readers if not c.module or module is not False]
    converter = _by_ending(can, target)
    if converter is None and module is False and _by_ending(readers, target) is not None:
        _no_module(format, source)
    if converter is None:
        listed = ", ".join(f"{c.about} ({', '.join(c.endings)})" for c in can)
        ending = os.path.splitext(target)[1]
        ending_text = f"'{ending}'" if ending else "a file without an ending"
        raise Misuse(
            f"{format} cannot be converted to {ending_text}", where=target, hint=f"it can become {listed}"
        )
    if module is None and len({c.function for c in can if target.lower().endswith(c.endings)}) > 1:
        return converter  # which of them it will be shows when the source is open
    for option, flag in _FLAGS.items():
        if getattr(options, option) and option not in converter.options:
            there = ", ".join(_FLAGS[name] for name in converter.options)
            hint = f"there is {there}" if there else "leave it out"
            raise Misuse(f"does not go with {format} to {converter.about}", where=flag, hint=hint)
    return converter


def check_name(path: str, *formats: str, also: str = "") -> None:
    """Refuses a name that says another kind of file than is written.

    Args:
        path: Where somebody wants to write.
        formats: What the file may be, as `Converter.format` names it.
        also: What else is written, and how it is asked for.

    Raises:
        Misuse: It ends in none of their endings; the message lists those.
    """
    if path.lower().endswith(tuple(ending for name in formats for ending in _MADE[name][1])):
        return
    ending = os.path.splitext(path)[1]
    message = f"no such model is written as '{ending}'" if ending else "its name has no ending"
    can = [f"{_MADE[name][0]} ({', '.join(_MADE[name][1])})" for name in formats]
    raise Misuse(message, where=path, hint=f"it can be {'; '.join(filter(None, (*can, also)))}")


def _by_ending(converters: Sequence[Converter], target: str) -> Converter | None:
    """The one whose files are called so; the longest ending goes first, as .pt2 is not .pt."""
    name = os.path.basename(target).lower()
    ways = [(len(ending), c) for c in converters for ending in c.endings if name.endswith(ending)]
    return max(ways, key=lambda way: way[0])[1] if ways else None


def _no_module(format: str, source: str) -> None:
    """Says why a source is no nn.Module: no torch, or a checkpoint, whose code did not run."""
    if format != "checkpoint":
        require("torch", source)
    hint = "a pickled module runs with --trust; for a state_dict name the code: package.module:callable"
    raise Misuse("no nn.Module can be made of it without running its code", where=source, hint=hint)


def kinds(opened: OpenedModel) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What a model can become: for each kind what it is, and how files of it are called."""
    module = hasattr(opened, "loaded")
    return tuple(
        (c.about, c.endings) for c in CONVERTERS if opened.format in c.sources and (module or not c.module)
    )


def words(options: ConversionOptions) -> list[str]:
    """What was asked for, as it is typed."""
    typed = []
    for option, flag in _FLAGS.items():
        value = getattr(options, option)
        if not value:
            continue
        if isinstance(value, Mapping):
            typed += dynamic_words(value)
        elif value is True:
            typed.append(flag)
        else:
            typed += option_words(flag, ",".join(value) if isinstance(value, tuple) else str(value))
    return typed


def write(
    opening: Callable[[], OpenedModel], path: str | None, job: ConversionJob, *, overwrite: bool = False
) -> Conversion:
    """Writes a model as another kind of file, all or nothing, and compares the two.

    Args:
        opening: Opens the model.
        path: What the user named it; None for an nn.Module object.
        job: The conversion, but for the model and where it is written.
        overwrite: Whether an existing file may be replaced.

    Returns:
        What was written; a result that is not the same is not kept, and its `output` is empty.

    Raises:
        ExplorerError: As `explorer.session.Session.convert` says.
    """
    started = time.perf_counter()
    if job.draws < 1:
        raise Misuse(f"{job.draws} draws prove nothing", where="--draws", hint="give 1 or more")
    opened, converter = _opened(opening, path, job.target, job.asked, overwrite=overwrite)
    job = replace(job, opened=opened, source=opened.source)

    def convert(job: ConversionJob) -> ConversionResult:
        module, _, name = converter.function.partition(":")
        result: ConversionResult = getattr(require(f"{__name__}.{module}", job.target), name)(job)
        return result

    return _written(convert, job, (opened.format, converter.format), started, overwrite=overwrite)


def rebatch(
    model: Model, batch: int | str, job: ConversionJob, *, axes: Mapping[str, int], overwrite: bool = False
) -> Conversion:
    """Writes an ONNX model for another batch, as `write` does.

    Args:
        model: The original.
        batch: The new size, or a name for an open one.
        job: Where to, how often to compare, whom to tell.
        axes: Which axis of which input is the batch; empty: the first of every input.
        overwrite: Whether an existing file may be replaced.

    Raises:
        Misuse: The batch cannot be rewritten safely.
        BadModel: One of the two cannot be run.
        Cancelled: `job.cancel` said so.
    """
    started = time.perf_counter()
    convert = require(f"{__name__}.rebatching", job.target).rebatching(model, batch, job, axes)
    return _written(convert, job, ("onnx", "onnx"), started, overwrite=overwrite)


def _written(
    convert: Callable[[ConversionJob], ConversionResult],
    job: ConversionJob,
    formats: tuple[str, str],
    started: float,
    *,
    overwrite: bool,
) -> Conversion:
    """Has a model converted from one format to another; what is not the same is not kept."""
    result, size = None, None
    written = output_files.atomic_write(job.target, overwrite=overwrite)
    with written as temporary:
        result = convert(replace(job, path=temporary))
        if not all(proof is None or proof.passed for proof in (result.verification, result.stored)):
            raise output_files.Discard
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


def _opened(
    opening: Callable[[], OpenedModel],
    path: str | None,
    target: str,
    options: ConversionOptions,
    *,
    overwrite: bool,
) -> tuple[OpenedModel, Converter]:
    """The model and who converts it; what can be refused is, before anything is opened."""
    if path is not None and os.path.exists(path):
        format = recognise(path).name
        if any(format in c.sources for c in CONVERTERS):  # a folder says itself what is in it
            find(format, path, target, options, module=None)
    output_files.check_target(target, overwrite=overwrite, models=[path] if path else [], weights=())
    opened = opening()
    files = getattr(opened, "files", ())
    output_files.check_target(target, overwrite=overwrite, models=files, weights=files)
    return opened, find(opened.format, opened.source, target, options, module=hasattr(opened, "loaded"))
