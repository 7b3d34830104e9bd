"""Opens files as nn.Modules with torch: TorchScript, exported programs, trusted pickles."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch
from msgspec.structs import replace

from explorer.base.errors import BadModel
from explorer.engine.costs.memory.liveness import AnalysisResult
from explorer.engine.formats.torch_files.checkpoint_modules import Checkpoint
from explorer.engine.formats.torch_module.loaded_module import LoadedModule, wrap_module
from explorer.engine.formats.torch_replay import exported_program, torchscript
from explorer.engine.models.opened_model import OpenedModel, OpenOptions
from explorer.engine.models.torch.module import TorchModel
from explorer.engine.progress import Cancel, OnProgress
from explorer.facts import Info
from explorer.host import input_files
from explorer.host.file_reads import FileRead, record_full_read
from explorer.host.optional_packages import format_error, search_here, silence


class RebuiltModule(TorchModel):
    """A module that was rebuilt from a file of torch.

    Args:
        format: Format of the file.
        source: Path of the file.
        options: Options that the file was opened with.
        loaded: The rebuilt module.
    """

    takes_weights = False

    def __init__(self, format: str, source: str, options: OpenOptions, loaded: LoadedModule) -> None:
        self.format = format
        self.source = source
        self.options = options
        self.loaded = loaded
        self._graph = None

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> AnalysisResult:
        """See `OpenedModel`."""
        examined = super().examine(on_progress=on_progress, cancel=cancel)
        info = examined.info
        model = replace(info.model, format=self.format, file_bytes=os.path.getsize(self.source))
        return examined.replace_info(replace(info, model=model))

    def rests_on(self, info: Info) -> Sequence[FileRead] | None:
        """See `OpenedModel`."""
        return (record_full_read(self.source),)


def open_script(source: str, options: OpenOptions) -> OpenedModel:
    """Opens a TorchScript file. Its code is read as data, and runs only if `options.trust` allows it."""
    return RebuiltModule("torchscript", source, options, torchscript.load(source, trust=options.trust))


def open_program(source: str, options: OpenOptions) -> OpenedModel:
    """Opens an exported program. Its graph is read as data."""
    return RebuiltModule("torch.export", source, options, exported_program.load(source))


def open_pickled(source: str, options: OpenOptions, checkpoint: Checkpoint) -> OpenedModel:
    """Opens the first module in a checkpoint with torch.load, which runs any code in the file.

    Raises:
        BadModel: A class of the module cannot be imported, or loading fails.
    """
    input_files.check(source)
    search_here()
    path, qualname = checkpoint.pickled_modules[0]
    try:
        with silence():
            # weights of an archive stay in the file until they are read
            can_be_mapped = checkpoint.form == "zip"
            loaded = torch.load(source, map_location="cpu", weights_only=False, mmap=can_be_mapped)
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadModel(
            f"a class that it was saved with cannot be imported here ({format_error(error)})",
            where=source,
            hint=f"{qualname} must be importable from the current folder or an installed package",
        ) from error
    except (Exception, SystemExit) as error:
        raise BadModel(f"torch cannot load it ({format_error(error)})", where=source) from error
    module = _find_module(loaded, path)
    if module is None:
        raise BadModel(f"there is no nn.Module at '{path}' once it is loaded", where=source)
    model = wrap_module(module, source=source)
    if len(checkpoint.pickled_modules) > 1:
        model.notes = (
            f"the file holds {len(checkpoint.pickled_modules):,} modules; this is the first, '{path}'",
        )
    return RebuiltModule("checkpoint", source, options, model)


def _find_module(loaded: Any, path: str) -> torch.nn.Module | None:
    """Returns the module at a dotted path of dictionary keys and list indices in an object, or None."""
    while path and not isinstance(loaded, torch.nn.Module):
        if isinstance(loaded, dict):
            key = next(
                (dict_key for dict_key in loaded if path == str(dict_key) or path.startswith(f"{dict_key}.")),
                None,
            )
            if key is None:
                return None
            loaded, path = loaded[key], path[len(str(key)) + 1 :]
        elif isinstance(loaded, (list, tuple)):
            index_text, _, path = path.partition(".")
            if not index_text.isdecimal() or int(index_text) >= len(loaded):
                return None
            loaded = loaded[int(index_text)]
        else:
            return None
    return loaded if isinstance(loaded, torch.nn.Module) else None
