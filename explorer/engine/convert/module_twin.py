"""A module made of another by replacing layers: what it can be made of, and how it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from torch import nn

from explorer.base.errors import Misuse
from explorer.engine import convert
from explorer.engine.convert import comparison
from explorer.engine.convert.job import ConversionJob, ConversionOptions, module_of
from explorer.engine.formats.torch_module.loaded_module import CopyOf, LoadedModule
from explorer.engine.formats.torch_replay.rebuilt_module import ReplayModule
from explorer.engine.models.opened_model import OpenedModel


class _ModuleSource(Struct, frozen=True):
    """What a converter of modules asks of an opened model."""

    loaded: LoadedModule
    format: str


def replaceable(opened: OpenedModel, hint: str) -> LoadedModule:
    """The model as an nn.Module, if it is one with layers.

    Args:
        opened: The model.
        hint: What to do where it is none.

    Raises:
        Misuse: It is none.
    """
    loaded = module_of(opened)
    if _replays(loaded):
        message = f"only layers of an nn.Module can be replaced; {opened.format} keeps only their operators"
        raise Misuse(message, where=opened.source, hint=f"name the code: package.module:callable; or {hint}")
    return loaded


def has_layers(opened: object) -> bool:
    """Whether it is an nn.Module of layers, and not one that replays the operators of a file."""
    loaded: LoadedModule | None = getattr(opened, "loaded", None)
    return loaded is not None and not _replays(loaded)


def _replays(loaded: LoadedModule) -> bool:
    return any(isinstance(layer, ReplayModule) for layer in loaded.meta().modules())


def twin_of(loaded: LoadedModule, module: nn.Module) -> LoadedModule:
    """What was made of a module, as it was opened."""
    return replace(
        loaded,
        build=CopyOf(module),
        values=None,
        trained=True,
        bound=None,
        _meta=None,
        _real=None,
        _built=None,
    )


def writer_of(output: str, options: ConversionOptions) -> convert.Converter:
    """What writes a module to a file of this name, as it is asked for.

    Raises:
        Misuse: Nothing does.
    """
    if output.lower().endswith(".onnx"):
        raise Misuse("a module is no ONNX file", where=output, hint="give a .pt2 or .pt file")
    return convert.find("torch", output, output, options, module=True)


def write_twin(twin: LoadedModule, format: str, job: ConversionJob) -> Callable[[str], Any]:
    """Writes a module to `job.path` as the ending of `job.target` says, and gives what reads such a file.

    Raises:
        BadModel: It cannot be written.
    """
    writer = writer_of(os.fspath(job.target), job.asked)
    name, _, function = writer.function.partition(":")
    convert_module = getattr(import_module(f"explorer.engine.convert.{name}"), function)
    convert_module(replace(job, opened=_ModuleSource(twin, format), verify=False))
    return comparison.LOADERS[writer.format]
