"""Format registry: a path or a name in, its format out.

A format is a module of this package with a `Format` called `FORMAT`; `MODULES` lists its name. Nothing else
in the program asks what format a model has. Content goes before name: only if no format recognizes the
content of a file does its ending choose the format that says what is wrong with it. These modules, and this
one, are imported at every start, so they import nothing heavy.
"""

from __future__ import annotations

import os
from importlib import import_module

from explorer.base.errors import BadModel, nearest
from explorer.engine.formats.files import is_lfs_pointer, lfs_pointer
from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (
    *("formats.onnx", "formats.weights.safetensors", "formats.weights.gguf", "formats.tflite"),
    *("formats.weights.huggingface", "models.torch.torchscript", "models.torch.exported_program"),
    *("models.torch.checkpoint", "models.folder", "models.torch.name"),
)
"""The formats in the order in which they are tried; each is imported when its turn comes."""


def formats() -> Iterator[Format]:
    """Every format, in the order in which they are tried."""
    for name in MODULES:
        format: Format = import_module(f"explorer.engine.{name}").FORMAT
        yield format


def recognise(source: str) -> Format:
    """The format of what `source` names.

    Raises:
        BadModel: It is no model, or nothing that we know.
    """
    probe = SourceProbe(source)
    if probe.exists and not (probe.is_file or probe.is_dir):
        # opening a pipe would wait for a writer that may never come
        raise BadModel("this is not a regular file", where=source)
    if probe.unreadable:
        raise BadModel(f"cannot be read: {probe.unreadable}", where=source)
    if is_lfs_pointer(probe.head):
        raise lfs_pointer(source, probe.head)
    if probe.exists or not by_ending(source):
        for format in formats():
            if format.recognise(probe):
                return format
    called = by_ending(source)
    if not probe.exists:
        raise _missing(source, called)
    if not probe.size:
        raise BadModel("the file is empty", where=source)
    if os.path.basename(source) == SAVED_MODEL:
        raise saved_model(source)
    if called is None:
        raise BadModel(
            "this is no model of a known format",
            where=source,
            hint="explorer formats lists what can be opened",
        )
    return called


SAVED_MODEL = "saved_model.pb"
"""File of the graph in a TensorFlow SavedModel; its weights lie in files beside it."""


def saved_model(source: str) -> BadModel:
    """The error for a SavedModel, given as its folder or the file in it; its hint says what to do."""
    command = "python -m tf2onnx.convert --saved-model FOLDER --output model.onnx"
    hint = f"convert it to ONNX with the packages of the extra 'tensorflow': {command}"
    return BadModel("this is a SavedModel of TensorFlow's, which is not read", where=source, hint=hint)


def by_ending(source: str) -> Format | None:
    """The first format whose files have the ending of this name."""
    lower = source.lower()
    return next((f for f in formats() if f.endings and lower.endswith(f.endings)), None)


def _missing(source: str, called: Format | None) -> BadModel:
    """The error for a missing file or unknown name, with the nearest match as a hint."""
    if called is None and os.sep not in source:
        hint = "explorer formats lists what can be opened"
        return BadModel("this is neither a file nor a model's name", where=source, hint=hint)
    if os.path.islink(source):
        return BadModel("a link to a file that is not there", where=source)
    folder, name = os.path.split(source)
    try:
        beside = [f for f in sorted(os.listdir(folder or ".")) if by_ending(f) is not None]
    except (OSError, ValueError):
        beside = []
    return BadModel("no such file", where=source, hint=nearest(name, beside))
