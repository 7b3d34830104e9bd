"""TorchScript file: rebuilt from its code with torch, and by its description where torch cannot be had."""

from __future__ import annotations

from explorer.base.errors import MissingExtra
from explorer.engine.formats.torch_files.torchscript import script
from explorer.engine.models.opened import Opened, OpenOptions
from explorer.engine.models.torch.described import (
    DescribedFile,
    declared,
    leaves_of,
    refuse_sizes,
)
from explorer.host.optional_packages import TORCH, require

_WHY = "its code is analysed with torch, which cannot be had here"


def open_script(source: str, options: OpenOptions, format: str) -> Opened:
    """A TorchScript file.

    Raises:
        BadModel: It is broken.
        Misuse: Without torch, other sizes are asked for than those in the file.
    """
    try:
        require("torch", source)
    except MissingExtra:
        return _described(source, options, format)
    from explorer.engine.models.torch import rebuilt

    return rebuilt.open_script(source, options, format)


def _described(source: str, options: OpenOptions, format: str) -> Opened:
    refuse_sizes(options, f"type: {TORCH}")
    found = script(source, format, _WHY)
    return DescribedFile(
        found.contents,
        options,
        lambda: leaves_of(found.parts, _WHY),
        strides=found.strides,
        hint=f"type: {TORCH}",
        inputs=declared(found.inputs),
    )
