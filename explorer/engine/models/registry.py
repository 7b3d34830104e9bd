"""Finds the format of a path or name.

A format is a module of this package with a `Format` called `FORMAT`, and `MODULES` lists its name. No other
part of the program depends on the format. The content of a file takes precedence over its name. Only if no
format recognizes the content does the file's ending choose a format, which then reports what is wrong with
the file. This module and the modules of the formats are imported at every start, so they import nothing slow.
"""

from __future__ import annotations

import os
from importlib import import_module

from explorer.base.errors import BadModel, suggest_name
from explorer.engine.formats.files import build_lfs_pointer_error, is_lfs_pointer
from explorer.engine.formats.format import Format, SourceProbe

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

MODULES = (
    *("formats.onnx", "formats.weights.safetensors", "formats.weights.gguf", "formats.tflite"),
    *("formats.weights.huggingface", "models.torch.torchscript", "models.torch.exported_program"),
    *("models.torch.checkpoint", "models.folder", "models.torch.name"),
)
"""Modules of the formats in the order in which they are tried; each is imported when its turn comes."""


def list_formats() -> Iterator[Format]:
    """Yields every format, in the order in which they are tried."""
    for name in MODULES:
        format: Format = import_module(f"explorer.engine.{name}").FORMAT
        yield format


def recognize(source: str) -> Format:
    """Returns the format of the model that `source` names.

    Raises:
        BadModel: `source` is not a model, or has an unknown format.
    """
    probe = SourceProbe(source)
    if probe.exists and not (probe.is_file or probe.is_dir):
        # opening a pipe would wait for a writer that may never come
        raise BadModel("this is not a regular file", where=source)
    if probe.unreadable:
        raise BadModel(f"cannot be read: {probe.unreadable}", where=source)
    if is_lfs_pointer(probe.head):
        raise build_lfs_pointer_error(source, probe.head)
    if probe.exists or not find_format_by_ending(source):
        for format in list_formats():
            if format.recognize(probe):
                return format
    format_by_name = find_format_by_ending(source)
    if not probe.exists:
        raise _build_missing_error(source, format_by_name)
    if not probe.size:
        raise BadModel("the file is empty", where=source)
    if os.path.basename(source) == SAVED_MODEL:
        raise build_saved_model_error(source)
    from explorer.engine.models.unread_formats import find_file_error  # needed only for unread files

    if error := find_file_error(probe, by_ending=format_by_name is None):
        raise error
    if format_by_name is None:
        message = "this is not a model of a known format"
        raise BadModel(message, where=source, hint="explorer formats lists what can be opened")
    return format_by_name


SAVED_MODEL = "saved_model.pb"
"""Name of the graph's file in a TensorFlow SavedModel. The weights are in further files next to it."""


def build_saved_model_error(source: str) -> BadModel:
    """Returns the error for a SavedModel, given as its folder or its file, with the command to convert it."""
    folder = os.path.dirname(source) if os.path.basename(source) == SAVED_MODEL else source
    hint = (
        f"explorer convert {folder or '.'} -o model.onnx --trust converts it (needs the extra 'tensorflow')"
    )
    return BadModel(
        "this is a SavedModel of TensorFlow's, which Explorer does not read", where=source, hint=hint
    )


def find_format_by_ending(source: str) -> Format | None:
    """Returns the first format whose files have the ending of this name, or None."""
    lower = source.lower()
    return next((f for f in list_formats() if f.endings and lower.endswith(f.endings)), None)


def _build_missing_error(source: str, format_by_name: Format | None) -> BadModel:
    """Returns the error for an unknown name, a broken link or a missing file (with the nearest name)."""
    if format_by_name is None and os.sep not in source:
        hint = "explorer formats lists what can be opened"
        return BadModel("this is neither a file nor a model's name", where=source, hint=hint)
    if os.path.islink(source):
        return BadModel("a link to a file that is not there", where=source)
    folder, name = os.path.split(source)
    try:
        candidates = [f for f in sorted(os.listdir(folder or ".")) if find_format_by_ending(f) is not None]
    except (OSError, ValueError):
        candidates = []
    return BadModel("no such file", where=source, hint=suggest_name(name, candidates))
