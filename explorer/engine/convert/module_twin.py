"""Twin of a module: a copy with replaced layers. Tells which models allow one, and writes it to a file."""

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
from explorer.engine.convert.job import ConversionJob, get_module
from explorer.engine.formats.torch_module.loaded_module import CopyOf, LoadedModule
from explorer.engine.formats.torch_replay.rebuilt_module import ReplayModule
from explorer.engine.models.opened_model import OpenedModel
from explorer.facts.conversion import ConversionOptions


class _ModuleSource(Struct, frozen=True):
    """Parts of an opened model that a converter of modules uses."""

    loaded: LoadedModule
    format: str


def require_layers(opened: OpenedModel, hint: str) -> LoadedModule:
    """Returns the model as an nn.Module with layers, or refuses it.

    Args:
        opened: Source model.
        hint: Alternative that the error message offers.

    Raises:
        Misuse: The model is not an nn.Module with layers.
    """
    loaded = get_module(opened)
    if _is_replay(loaded):
        message = f"only layers of an nn.Module can be replaced; {opened.format} keeps only their operators"
        raise Misuse(
            message,
            where=opened.source,
            hint=f"open the code that builds it, FILE.py:callable or package.module:callable; or {hint}",
        )
    return loaded


def has_layers(opened: object) -> bool:
    """Whether a model is an nn.Module with layers. A module that replays a file's operators has none."""
    loaded: LoadedModule | None = getattr(opened, "loaded", None)
    return loaded is not None and not _is_replay(loaded)


def _is_replay(loaded: LoadedModule) -> bool:
    return any(isinstance(layer, ReplayModule) for layer in loaded.meta().modules())


def make_twin(loaded: LoadedModule, module: nn.Module) -> LoadedModule:
    """Wraps a copy of a module as a loaded module."""
    return replace(
        loaded,
        build=CopyOf(module),
        values=None,
        trained=True,  # `build` returns the copy's own weights, so the model is built once
        bound=None,
        _meta=None,
        _real=None,
        _built=None,
    )


def choose_writer(output: str, options: ConversionOptions) -> convert.Converter:
    """Returns the converter that writes a module to a file with this name.

    Raises:
        Misuse: No converter writes a file with this ending.
    """
    if output.lower().endswith(".onnx"):
        message = "a module with replaced layers cannot be written as ONNX"
        raise Misuse(message, where=output, hint="name a .pt2 or .pt file")
    return convert.find("torch", source=output, target=output, options=options, module=True)


def write_twin(twin: LoadedModule, source_format: str, job: ConversionJob) -> Callable[[str], Any]:
    """Writes a module to `job.path` in the format of `job.target`; returns a function that loads it.

    Args:
        twin: Module to write.
        source_format: Format of the model from which the twin was made.
        job: The conversion.

    Raises:
        BadModel: The module cannot be written.
    """
    writer = choose_writer(os.fspath(job.target), job.options)
    name, _, function = writer.function.partition(":")
    convert_module = getattr(import_module(f"explorer.engine.convert.{name}"), function)
    convert_module(replace(job, opened=_ModuleSource(twin, source_format), verify=False))
    return comparison.LOADERS[writer.format]
