"""Checkpoints of torch.save, and whatever else is named as a file of torch's.

Asked after the other kinds of torch's, so that it also says what a file is that carries such a name and
is none of them.
"""

from __future__ import annotations

from explorer.engine.formats.probe import Format, Probe
from explorer.errors import BadModel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.engine.formats.opening import Opened, OpenOptions

__all__ = ["FORMAT"]

_PICKLE = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
"""How a checkpoint of torch before 1.6 begins: its magic number, pickled."""


def _recognise(probe: Probe) -> bool:
    return probe.is_zip or probe.head.startswith(_PICKLE)


def _open(source: str, options: OpenOptions) -> Opened:
    what, hint = _REFUSALS[_kind(Probe(source))]
    raise BadModel(what, where=source, hint=hint)


def _kind(probe: Probe) -> str:
    if not probe.exists:
        return "missing"
    if probe.head.startswith(_PICKLE) or "data.pkl" in probe.inner:
        return "checkpoint"
    if not probe.is_zip:
        return "foreign"
    return "archive" if probe.names else "broken"


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


FORMAT = Format(
    "checkpoint",
    "a checkpoint or state_dict of torch.save (.pt, .pth, .bin)",
    recognise=_recognise,
    open=_open,
    endings=(".pt", ".pth", ".pt2", ".ckpt"),
    recognised="a zip archive with data.pkl, or a pickle with torch's magic number",
    shows="names, dtypes, shapes and strides of the tensors",
    analysed=False,
)
