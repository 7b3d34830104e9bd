"""Opens checkpoints of torch.save: a state_dict, a dictionary with further objects, or a pickled module.

This format is tried after torch's other formats, so it also reports files that have the name of a checkpoint
but are not checkpoints. Explorer reads the tensors and the module tree without torch, and runs no code of the
checkpoint. With `--trust`, torch loads a pickled module, and Explorer analyzes it like any other module. This
needs torch and the classes of the module.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from explorer.base.outline import Outline
    from explorer.engine.models.opened_model import OpenedModel, OpenOptions

_TAR_NAMES = (b"sys_info", b"pickle", b"storages", b"tensors")
"""Names of the first file in a tar archive that old versions of torch wrote."""


def _recognize(probe: SourceProbe) -> bool:
    head = probe.head
    if probe.is_zip:
        # `unread_formats` reports archives of Keras (.h5) and archives with a TensorFlow Lite model
        return not any(name.endswith((".h5", ".tflite")) for name in probe.names)
    if head[257:262] == b"ustar":  # signature of the tar format
        return head.startswith(_TAR_NAMES) or probe.source.endswith((".pt", ".pth", ".ckpt"))
    return _is_pickle(head)


def _is_pickle(head: bytes) -> bool:
    """Whether a file starts like a pickle of protocol 2 or later."""
    if len(head) < 3 or head[0] != 0x80 or not 2 <= head[1] <= 5:  # opcode PROTO, and its version
        return False
    # opcodes that can follow the protocol: a frame, a container, a global, a number, text, None, the memo
    return head[2] in b"\x95}](c\x8a\x8cXq)\x94NKMJ"


def _check(source: str) -> None:
    """Raises BadModel for a missing file, and for a file that only has the name of a checkpoint."""
    probe = SourceProbe(source)
    if not probe.exists:
        raise BadModel("there is no such file", where=source)
    if not _recognize(probe):
        raise BadModel(
            "this is not a file that torch wrote",
            where=source,
            hint="a .pt file is TorchScript, an exported program or a checkpoint",
        )


def _open(source: str, options: OpenOptions) -> OpenedModel:
    _check(source)
    from explorer.engine.models.torch.described_file import open_checkpoint  # not needed to list formats

    return open_checkpoint(source, options)


def _outline(source: str) -> Outline:
    _check(source)
    from explorer.engine.formats.torch_files.checkpoint_modules import outline  # not needed to list formats

    return outline(source)


FORMAT = Format(
    "checkpoint",
    "a checkpoint, state_dict or pickled module of torch.save (.pt, .pth, .bin, .ckpt)",
    recognize=_recognize,
    open=_open,
    outline=_outline,
    endings=(".pt", ".pth", ".pt2", ".ckpt"),
    recognized_by="a zip archive with data.pkl, a pickle with torch's magic number, or a pickle alone",
    shows="names, dtypes, shapes, strides and values of the tensors; the tree of a pickled module",
    is_analyzed=False,
)
