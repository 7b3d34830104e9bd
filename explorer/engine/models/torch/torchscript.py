"""TorchScript files: rebuilt as an nn.Module from their code, which is read as data and never run.

Without torch, the file is known by its description: modules, tensors, types and calls.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.formats.outline import Outline, OutlineRow
    from explorer.engine.formats.torch_files.torchscript import Script
    from explorer.engine.models.opened import Opened, OpenOptions

__all__ = ["FORMAT"]


def _recognise(probe: SourceProbe) -> bool:
    return "constants.pkl" in probe.inner and "data.pkl" in probe.inner


def _open(source: str, options: OpenOptions) -> Opened:
    from explorer.base.errors import MissingExtra
    from explorer.host.optional_packages import require

    try:
        require("torch", source)
    except MissingExtra as missing:
        return _described(source, options, missing)
    from explorer.engine.formats.torch_replay import torchscript
    from explorer.engine.models.torch.module import RebuiltModule

    return RebuiltModule(FORMAT.name, source, options, torchscript.load(source, trust=options.trust))


def _described(source: str, options: OpenOptions, missing: Exception) -> Opened:
    """The file by its description, as torch cannot be had."""
    from explorer.engine.formats.torch_files.torchscript import script
    from explorer.engine.models.torch.described import DescribedFile, leaves_of, refuse_sizes
    from explorer.facts import TensorInfo
    from explorer.host.optional_packages import TORCH

    why = "its code is analysed with torch, which cannot be had here"
    refuse_sizes(options, f"type: {TORCH}")
    found = script(source, FORMAT.name, why)
    inputs = tuple(TensorInfo(name, dtype, shape, "declared") for name, dtype, shape in found.inputs)
    return DescribedFile(
        found.contents,
        options,
        lambda: leaves_of(found.parts, why),
        strides=found.strides,
        hint=f"type: {TORCH}",
        inputs=inputs,
    )


def _outline(source: str) -> Outline:
    from explorer.engine.formats.outline import Outline
    from explorer.engine.formats.torch_files.torchscript import script

    found = script(source, FORMAT.name, "", places=False)
    said = found.contents
    return Outline(FORMAT.name, source, said.file_bytes, said.facts, _rows(found))


def _rows(found: Script) -> Iterator[OutlineRow]:
    from explorer.engine.formats.module_index import outline_rows
    from explorer.engine.formats.outline import OutlineRow

    for name, dtype, shape in found.inputs:
        yield OutlineRow(name, "input", dtype or "", shape)
    yield from outline_rows(found.parts, found.notes)


FORMAT = Format(
    "torchscript",
    "a TorchScript file (.pt)",
    label="TorchScript",
    recognise=_recognise,
    open=_open,
    outline=_outline,
    recognised="a zip archive with constants.pkl beside data.pkl",
    shows="the module tree, types, the calls of its code",
    needs="torch",
)
