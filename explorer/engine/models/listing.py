"""Listing of models: figures from the header of each model in a folder, without opening the models.

A folder may come from anybody, and so may every file in it: a broken file is a row with a note. Against files
that take endless memory or time, `explorer.process.header_reader` reads each header in another process.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.errors import BadModel, ExplorerError
from explorer.engine.models.header_figures import header_figures
from explorer.engine.models.registry import SAVED_MODEL, formats, recognise, saved_model
from explorer.facts.models.listing import ModelFile, ModelListing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_ENDINGS = tuple(ending for format in formats() for ending in format.endings)
_MOST_FILES = 1_000
"""Files of a model folder whose time of writing is looked up."""


def model_file(path: str) -> ModelFile | None:
    """Figures from the header of one model; if it gives none, a note with the reason.

    None for a file that begins like a model but has another ending, such as a text or code.
    """
    size = os.path.getsize(path) if os.path.isfile(path) else None
    header = ModelFile(path, "", size, _modified(path))
    try:
        format = recognise(path)
        header = replace(header, format=format.name)
        if format.chooses and os.path.isfile(os.path.join(path, SAVED_MODEL)):
            refusal = saved_model(path)
            return replace(header, format="saved_model", note=f"{refusal.what}: {refusal.hint}")
        if format.outline is None or format.chooses:
            return replace(header, note="this is no model that could be listed")
        outline = format.outline(path)
        figures = header_figures(outline)
    except ExplorerError as error:
        broken = os.path.isdir(path) or path.lower().endswith(_ENDINGS)
        return replace(header, note=error.what) if broken else None
    size = size if outline.file_bytes is None else outline.file_bytes
    return replace(header, format=outline.format, bytes=size, **figures)


def _modified(path: str) -> int | None:
    """When a file was last written, or the newest one in a folder; in seconds since 1970."""
    times: list[float] = []
    try:
        if os.path.isdir(path):
            with os.scandir(path) as entries:
                some = zip(range(_MOST_FILES), entries, strict=False)
                times += [entry.stat().st_mtime for _, entry in some if entry.is_file()]
        times = times or [os.stat(path).st_mtime]
    except OSError:
        return None
    return int(max(times))


def list_models(folder: str, read: Callable[[Sequence[str]], Iterable[ModelFile | None]]) -> ModelListing:
    """The models of a folder, each with what its header says.

    Args:
        folder: Its path, or that of one model.
        read: Reads headers of paths, in their order, as `model_file` does.

    Raises:
        BadModel: There is no such folder, or no model in it.
    """
    if not os.path.exists(folder):
        raise BadModel("there is no such folder", where=folder)
    format = recognise(folder)
    if not format.chooses or format.outline is None:
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
