"""Programs that torch.export wrote: rebuilt as an nn.Module from their graph, which is read as data."""

from __future__ import annotations

from explorer.engine.formats.probe import Format, Probe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.formats.opening import Opened, OpenOptions

__all__ = ["FORMAT"]


def _recognise(probe: Probe) -> bool:
    inner = probe.inner
    return "serialized_exported_program.json" in inner or any(
        name.startswith(("models/", "data/aotinductor/")) for name in inner
    )


def _open(source: str, options: OpenOptions) -> Opened:
    from explorer.engine.formats.torch_module import require

    require("torch", source)
    from explorer.engine.formats import torch_program
    from explorer.engine.formats.torch_model import RebuiltModule

    return RebuiltModule(FORMAT.name, source, options, torch_program.load(source))


FORMAT = Format(
    "torch.export",
    "an exported program (.pt2)",
    recognise=_recognise,
    open=_open,
    recognised="a zip archive with models/ or serialized_exported_program.json",
    shows="operators, shapes, the module stack, source lines",
    needs="torch",
)
