"""TorchScript files: rebuilt as an nn.Module from their code, which is read as data and never run.

Without torch, the file is known by its description: modules, tensors, types and calls.
"""

from __future__ import annotations

from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.base.outline import Outline
    from explorer.engine.models.opened import Opened, OpenOptions


def _recognise(probe: SourceProbe) -> bool:
    return "constants.pkl" in probe.inner and "data.pkl" in probe.inner


def _open(source: str, options: OpenOptions) -> Opened:
    from explorer.engine.models.torch.described_script import open_script

    return open_script(source, options, FORMAT.name)


def _outline(source: str) -> Outline:
    from explorer.engine.formats.torch_files.torchscript import outline

    return outline(source, FORMAT.name)


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
