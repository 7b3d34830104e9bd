"""TorchScript files: rebuilt as an nn.Module from their code, which is read as data and never run."""

from __future__ import annotations

from explorer.engine.formats.probe import Format, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.formats.opening import Opened, OpenOptions

__all__ = ["FORMAT"]


def _recognise(probe: Probe) -> bool:
    return "constants.pkl" in probe.inner and "data.pkl" in probe.inner


def _open(source: str, options: OpenOptions) -> Opened:
    from explorer.engine.formats.torch_module import require

    require("torch", source)
    from explorer.engine.formats import torch_script
    from explorer.engine.formats.torch_model import RebuiltModule

    return RebuiltModule(FORMAT.name, source, options, torch_script.load(source))


FORMAT = Format(
    "torchscript",
    "a TorchScript file (.pt)",
    recognise=_recognise,
    open=_open,
    recognised="a zip archive with constants.pkl beside data.pkl",
    shows="the module tree, types, the calls of its code",
    needs="torch",
)
