"""Checkpoints of torch.save: a state_dict, a dictionary of many things, a whole pickled module.

Asked after the other kinds of torch's, so that it also says what a file is that carries such a name and
is none of them. A checkpoint is opened by its description, without torch, and none of its code runs. With
`--trust`, and torch, and the classes at hand, a whole module is loaded as torch loads it and analysed like
any other.
"""

from __future__ import annotations

from explorer.base.errors import BadModel
from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.engine.formats.outline import Outline
    from explorer.engine.formats.tensor_index import TensorIndex
    from explorer.engine.formats.torch_files.checkpoint_modules import Checkpoint
    from explorer.engine.models.opened import Opened, OpenOptions

__all__ = ["FORMAT", "contents"]

_MAGIC = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_TAR_NAMES = (b"sys_info", b"pickle", b"storages", b"tensors")


def _recognise(probe: SourceProbe) -> bool:
    head = probe.head
    if probe.is_zip or head.startswith(_MAGIC):
        return True
    if head[257:262] == b"ustar":
        return head.startswith(_TAR_NAMES) or probe.source.endswith((".pt", ".pth", ".ckpt"))
    from explorer.engine.formats.torch_files.checkpoint import is_pickle

    return head[:1] == b"\x80" and is_pickle(head)


def _described(source: str, *, places: bool = True) -> Checkpoint:
    from explorer.engine.formats.torch_files.checkpoint import read
    from explorer.engine.formats.torch_files.checkpoint_modules import checkpoint

    probe = SourceProbe(source)
    if not probe.exists:
        raise BadModel("there is no such file", where=source)
    if not _recognise(probe):
        raise BadModel(
            "this is no file that torch wrote",
            where=source,
            hint="a .pt file is TorchScript, an exported program or a checkpoint",
        )
    return checkpoint(read(source, places=places), FORMAT.name)


def contents(source: str) -> TensorIndex:
    """The tensors of a checkpoint, and what else it says.

    Raises:
        BadModel: It is none, is broken, or holds no tensors.
    """
    return _described(source).contents


def _open(source: str, options: OpenOptions) -> Opened:
    from explorer.engine.models.torch.described import DescribedFile, leaves_of

    found = _described(source)
    if options.trust and found.whole:
        return _trusted(source, options, found)
    why = found.contents.why
    hint = (
        "--trust runs it, if its classes can be imported here"
        if found.whole
        else "name the code that builds it (package.module:callable), or export it to ONNX"
    )
    return DescribedFile(
        found.contents, options, lambda: leaves_of(found.parts, why), strides=found.strides, hint=hint
    )


def _outline(source: str) -> Outline:
    from explorer.engine.formats.module_index import outline_rows
    from explorer.engine.formats.outline import Outline

    found = _described(source, places=False)
    said = found.contents
    facts = [*said.facts, *(("note", note) for note in said.notes)]
    return Outline(FORMAT.name, source, said.file_bytes, facts, outline_rows(found.parts, found.notes))


# -- what the user trusts


def _trusted(source: str, options: OpenOptions, found: Checkpoint) -> Opened:
    """The module in a checkpoint, loaded as torch loads it: whatever code is in the file runs.

    Raises:
        MissingExtra: torch is not installed.
        BadModel: A class of the module cannot be imported here, or loading fails.
    """
    from explorer.engine.formats.torch_module import loaded as torch_module
    from explorer.engine.models.torch.module import RebuiltModule
    from explorer.host.optional_packages import require, said, search_here, silence

    torch = require("torch", source)
    search_here()
    path, qualname = found.whole[0]
    try:
        with silence():
            # weights of an archive stay in the file until somebody wants them
            mapped = found.form == "zip"
            loaded = torch.load(source, map_location="cpu", weights_only=False, mmap=mapped)
    except (ModuleNotFoundError, AttributeError) as error:
        raise BadModel(
            f"a class that it was saved with cannot be imported here ({said(error)})",
            where=source,
            hint=f"{qualname} must be importable from the current folder or an installed package",
        ) from error
    except (Exception, SystemExit) as error:
        raise BadModel(f"torch cannot load it ({said(error)})", where=source) from error
    module = _at(loaded, path, torch.nn.Module)
    if module is None:
        raise BadModel(f"there is no nn.Module at '{path}' once it is loaded", where=source)
    made = torch_module.of(module, source=source)
    if len(found.whole) > 1:
        made.notes = (f"the file holds {len(found.whole):,} modules; this is the first, '{path}'",)
    return RebuiltModule(FORMAT.name, source, options, made)


def _at(loaded: Any, path: str, kind: type) -> Any:
    """The module at a path in what was loaded: keys of dictionaries, places in lists."""
    while path and not isinstance(loaded, kind):
        if isinstance(loaded, dict):
            key = next((k for k in loaded if path == str(k) or path.startswith(f"{k}.")), None)
            if key is None:
                return None
            loaded, path = loaded[key], path[len(str(key)) + 1 :]
        elif isinstance(loaded, (list, tuple)):
            first, _, path = path.partition(".")
            if not first.isdecimal() or int(first) >= len(loaded):
                return None
            loaded = loaded[int(first)]
        else:
            return None
    return loaded if isinstance(loaded, kind) else None


FORMAT = Format(
    "checkpoint",
    "a checkpoint, state_dict or pickled module of torch.save (.pt, .pth, .bin, .ckpt)",
    recognise=_recognise,
    open=_open,
    outline=_outline,
    endings=(".pt", ".pth", ".pt2", ".ckpt"),
    recognised="a zip archive with data.pkl, a pickle with torch's magic number, or a pickle alone",
    shows="names, dtypes, shapes, strides and values of the tensors; the tree of a pickled module",
    analysed=False,
)
