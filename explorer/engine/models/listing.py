"""Lists figures from the header of each model in a folder, without opening the models.

Files may come from an untrusted source, so a broken file is a row with a note. To limit the memory and time
of hostile files, `explorer.process.header_reader` reads each header in another process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.models.header_figures import collect_header_figures
from explorer.engine.models.registry import SAVED_MODEL, build_saved_model_error, list_formats, recognize
from explorer.facts.models.listing import ModelFile, ModelListing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ENDINGS = tuple(ending for format in list_formats() for ending in format.endings)
"""File name endings of all formats."""
_MAX_FILES = 1_000
"""Maximum number of files of a model's folder whose modification time is read."""


def read_model_file(path: str) -> ModelFile | None:
    """Returns the record of one model: figures from its header, or a note with the reason if there are none.

    The result is None for a broken file without the ending of a model, such as a text that starts like a
    model.
    """
    size = os.path.getsize(path) if os.path.isfile(path) else None
    header = ModelFile(path, "", size, _read_change_time(path))
    try:
        format = recognize(path)
        header = replace(header, format=format.name)
        if format.is_collection and os.path.isfile(os.path.join(path, SAVED_MODEL)):
            refusal = build_saved_model_error(path)
            return replace(header, format="saved_model", note=f"{refusal.what}: {refusal.hint}")
        if format.outline is None or format.is_collection:
            return replace(header, note="this is not a model that could be listed")
        outline = format.outline(path)
        figures = collect_header_figures(outline)
    except ExplorerError as error:
        is_named_as_model = os.path.isdir(path) or path.lower().endswith(_ENDINGS)
        return replace(header, note=error.what) if is_named_as_model else None
    size = size if outline.file_bytes is None else outline.file_bytes
    return replace(header, format=outline.format, bytes=size, **figures)


def _read_change_time(path: str) -> int | None:
    """Returns the modification time of a file, or of the newest file in a folder, in seconds since 1970."""
    times: list[float] = []
    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                limited_entries = zip(range(_MAX_FILES), entries, strict=False)
                times += [entry.stat().st_mtime for _, entry in limited_entries if entry.is_file()]
        times = times or [os.stat(path).st_mtime]
    except OSError:
        return None
    return int(max(times))


def list_models(folder: str, read: Callable[[Sequence[str]], Iterable[ModelFile | None]]) -> ModelListing:
    """Lists the models of a folder with the figures from their headers.

    Args:
        folder: Path of the folder, or of one model.
        read: Function that reads the headers of paths, in their order, as `read_model_file` does.

    Raises:
        BadModel: The folder does not exist, or contains no model.
    """
    if not os.path.exists(folder):
        raise BadModel("there is no such folder", where=folder)
    format = recognize(folder)
    if not format.is_collection or format.outline is None:
        listed = [model for model in read([folder]) if model is not None]
        note = ""
    else:
        rows = list(format.outline(folder).rows)
        note = next((row.note for row in rows if row.kind != "model"), "")
        names = [row.path for row in rows if row.kind == "model"]
        models = zip(names, read([os.path.join(folder, name) for name in names]), strict=True)
        listed = [replace(model, path=name) for name, model in models if model is not None]
    if not listed:
        raise BadModel("no model is in it", where=folder)
    return ModelListing(folder, tuple(listed), note)
