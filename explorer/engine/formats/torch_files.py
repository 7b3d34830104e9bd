"""Files that torch wrote: which kind one is, told from its content, and the model in it.

A TorchScript file and an exported program are rebuilt as an nn.Module (`torch_script`, `torch_program`);
from there on they are torch models like any other. A checkpoint is recognised so that it can be said what
it is: its pickle would run code, and most hold weights without a graph.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.engine.formats import TorchModel
from explorer.engine.formats.torch_module import require
from explorer.errors import BadModel

if TYPE_CHECKING:
    from explorer.engine.analysis.memory import Examined
    from explorer.engine.formats import Cancel, OnProgress, OpenOptions
    from explorer.engine.formats.torch_module import LoadedModule

__all__ = ["ExportedProgram", "TorchScript", "kind_of", "open_file", "refuse"]

SUFFIXES = (".pt", ".pth", ".pt2", ".ckpt")
"""How files of torch's are called; only a file that is not there is judged by its name."""

_ZIP = b"PK\x03\x04"
_PICKLE = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How a checkpoint of torch before 1.6 begins: its magic number, pickled."""


def kind_of(source: str) -> str:
    """What a file is: 'torchscript', 'torch.export', 'checkpoint', 'broken', 'archive', 'missing', or ''
    when it is none of torch's.
    """
    named = source.endswith(SUFFIXES)
    if os.path.exists(source) and not os.path.isfile(source):
        return ""  # to open a pipe would wait for somebody to write into it
    try:
        with open(source, "rb") as file:
            start = file.read(len(_PICKLE))
    except FileNotFoundError:
        return "missing" if named else ""
    except OSError:
        return ""
    if start == _PICKLE:
        return "checkpoint"
    if not start.startswith(_ZIP):
        # 8 is how an ONNX file begins, whatever it is called
        return "foreign" if named and start[:1] != b"\x08" else ""
    from explorer.engine.formats.torch_archive import entry_names

    names = entry_names(source)
    if names is None:
        return "broken"
    inner = {name.partition("/")[2] for name in names} | set(names)
    if "constants.pkl" in inner and "data.pkl" in inner:
        return "torchscript"
    if any(n.startswith(("models/", "data/aotinductor/")) for n in inner) or (
        "serialized_exported_program.json" in inner
    ):
        return "torch.export"
    return "checkpoint" if "data.pkl" in inner else "archive"


_REFUSALS = {
    "checkpoint": (
        "this is a checkpoint of torch.save: its pickle would run code, and no graph is in it",
        "save the model with torch.jit.save or torch.export.save, or name the code: package.module:callable",
    ),
    "broken": ("the archive is broken or cut off", "fetch or save the file again"),
    "archive": ("this is a zip archive, and no model of torch's is in it", ""),
    "foreign": (
        "this is no file that torch wrote",
        "a .pt file is TorchScript, an exported program or a checkpoint",
    ),
    "missing": ("there is no such file", ""),
}


def refuse(source: str, options: OpenOptions) -> TorchModel:
    """Says what a file of torch's is that cannot be opened.

    Raises:
        BadModel: Always.
    """
    what, hint = _REFUSALS[kind_of(source)]
    raise BadModel(what, where=source, hint=hint)


class _File(TorchModel):
    """A module that was rebuilt from a file."""

    def __init__(self, source: str, options: OpenOptions) -> None:
        self.source = source
        self.options = options
        self.loaded = self._load(source)
        self._graph = None

    def _load(self, source: str) -> LoadedModule:
        raise NotImplementedError

    def examine(self, *, on_progress: OnProgress = None, cancel: Cancel = None) -> Examined:
        """See `Opened`."""
        examined = super().examine(on_progress=on_progress, cancel=cancel)
        info = examined.analysis.info
        model = replace(info.model, format=self.format, file_bytes=os.path.getsize(self.source))
        return replace(examined, analysis=replace(examined.analysis, info=replace(info, model=model)))


class TorchScript(_File):
    """A TorchScript file."""

    format = "torchscript"

    def _load(self, source: str) -> LoadedModule:
        require("torch", source)
        from explorer.engine.formats import torch_script

        return torch_script.load(source)


class ExportedProgram(_File):
    """An exported program."""

    format = "torch.export"

    def _load(self, source: str) -> LoadedModule:
        require("torch", source)
        from explorer.engine.formats import torch_program

        return torch_program.load(source)


_OPENERS: dict[str, type[TorchModel]] = {"torchscript": TorchScript, "torch.export": ExportedProgram}


def open_file(source: str, options: OpenOptions) -> TorchModel:
    """Opens a file of torch's, whatever kind it is.

    Raises:
        BadModel: It is of a kind that holds no model, or broken; the message says what it is.
    """
    return _OPENERS.get(kind_of(source), refuse)(source, options)
