"""Lists the models in a folder of models, so that the user can choose.

This format is tried after the formats of folders that are one model. The search reads the start of every
file, because file names are not reliable. A folder may come from an untrusted source, so the search is
limited in files, folders and depth. It opens only regular files, and follows a link out of the folder only in
Hugging Face's cache.
"""

from __future__ import annotations

import os

from explorer.base.errors import BadModel, Misuse
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import record
from explorer.engine.formats.files import is_inside, is_lfs_pointer
from explorer.engine.formats.format import Format, SourceProbe
from explorer.engine.formats.weights.huggingface import explain_missing_type
from explorer.engine.models.registry import (
    SAVED_MODEL,
    build_saved_model_error,
    find_format_by_ending,
    list_formats,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.models.opened_model import OpenedModel, OpenOptions

MAX_FILES = 10_000
"""Maximum number of entries of folders that the search examines: about one second of work."""
MAX_FOLDERS, MAX_DEPTH = 2_000, 6
"""Maximum number and depth of the subfolders that the search enters."""

_SKIPPED_FOLDERS = ("__pycache__", "node_modules", "site-packages")


@record
class _Search:
    """State of a search.

    Attributes:
        root: Real path of the searched folder.
        files: Number of entries of folders that the search may still examine.
        folders: Number of folders that the search may still enter.
        left_out: Whether files or folders were left out.
        links: Number of links out of the folder that were not followed.
    """

    root: str
    files: int
    folders: int
    left_out: bool = False
    links: int = 0

    def is_link_outside(self, path: str) -> bool:
        """Whether a link leads out of the searched folder."""
        end = os.path.realpath(path)
        return not (is_inside(end, self.root) or is_inside(end, os.path.realpath(os.path.dirname(path))))


def _find_models(search: _Search, folder: str, inside: str, depth: int) -> Iterator[OutlineRow]:
    """Yields rows of the models below a folder: first directly in it, then in its subfolders.

    `inside` is the path of the folder in the searched folder with a separator at its end, or ''.
    """
    try:
        with os.scandir(folder) as entries:
            dir_entries = []
            for entry in entries:
                search.files -= 1
                if search.files < 0:
                    search.left_out = True
                    break
                dir_entries.append(entry)
    except OSError:
        return
    dir_entries.sort(key=lambda entry: entry.name)
    subfolders = []
    for entry in dir_entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                subfolders.append(entry)
            elif entry.is_symlink() and search.is_link_outside(entry.path):
                search.links += os.path.exists(entry.path)
            elif entry.is_file():
                # the graph of a SavedModel starts like an ONNX file
                row = None if entry.name == SAVED_MODEL else _recognize_model(entry.path, inside + entry.name)
                if row is not None:
                    yield row
        except OSError:
            continue
    for entry in subfolders:
        if entry.name.startswith(".") or entry.name in _SKIPPED_FOLDERS:
            continue
        if entry.name == "blobs" and os.path.isdir(os.path.join(folder, "snapshots")):
            continue  # huggingface_hub's cache holds the same files under other names
        search.folders -= 1
        if depth == MAX_DEPTH or search.folders < 0:
            search.left_out = True
            return
        try:
            row = _recognize_model(entry.path, f"{inside}{entry.name}{os.sep}")
        except OSError:
            continue
        if row is not None:
            yield row
        else:
            if os.path.isfile(os.path.join(entry.path, SAVED_MODEL)):
                # no reader opens a SavedModel, but reading its header gives the next step
                yield OutlineRow(f"{inside}{entry.name}{os.sep}", "model", "saved_model", nbytes=None)
            yield from _find_models(search, entry.path, f"{inside}{entry.name}{os.sep}", depth + 1)


def _recognize_model(path: str, label: str) -> OutlineRow | None:
    """Returns the row of a file or folder, or None if no format recognizes its content.

    A Git LFS pointer has a row if its name has the ending of a format. Reading its header reports that the
    model was not fetched.
    """
    probe = SourceProbe(path)
    if is_lfs_pointer(probe.head):
        format_by_name = find_format_by_ending(path)
        if format_by_name is None:
            return None
        return OutlineRow(label, "model", format_by_name.name, None, probe.size)
    for format in list_formats():
        if format is not FORMAT and format.recognize(probe):
            return OutlineRow(
                label, "model", format.name, None, probe.size if probe.is_file else _sum_folder_bytes(path)
            )
    return None


def _sum_folder_bytes(folder: str) -> int | None:
    """Returns the bytes of the files directly in a folder, or None if it has too many entries."""
    with os.scandir(folder) as entries:
        sizes = [
            entry.stat().st_size
            for _, entry in zip(range(MAX_FILES), entries, strict=False)
            if entry.is_file()
        ]
    return sum(sizes) if len(sizes) < MAX_FILES else None


def outline(source: str) -> Outline:
    """Lists the models in the folder `source`. The search continues while the rows are read.

    Raises:
        BadModel: The folder contains no model.
    """
    search = _Search(os.path.realpath(source), MAX_FILES, MAX_FOLDERS)
    model_rows = _find_models(search, source, "", 0)
    first = next(model_rows, None)
    if first is None:
        if os.path.isfile(os.path.join(source, SAVED_MODEL)):
            raise build_saved_model_error(source)
        from explorer.engine.models.unread_formats import find_folder_error  # needed only for unread folders

        if error := find_folder_error(source):
            raise error
        searched_text = f"among the first {MAX_FILES:,} files" if search.left_out else "in it"
        reason = explain_missing_type(source)
        reason_text = f": {reason}" if reason else ""
        raise BadModel(
            f"this is a directory, not a model, and no model is {searched_text}{reason_text}", where=source
        )

    def list_rows(first: OutlineRow) -> Iterator[OutlineRow]:
        yield first
        yield from model_rows
        notes = ["the search stopped at its limit: name a folder in it"] if search.left_out else []
        if search.links:
            lead = "link leads" if search.links == 1 else "links lead"
            notes.append(f"{search.links:,} {lead} out of it: open the targets by their own paths")
        if notes:
            yield OutlineRow("…", "more", note="; ".join(notes))

    return Outline(FORMAT.name, source, None, (), list_rows(first))


def _open(source: str, options: OpenOptions) -> OpenedModel:
    """Refuses the folder, with its first models as a hint."""
    rows = [row for _, row in zip(range(_MAX_LISTED), outline(source).rows, strict=False)]
    names = ", ".join(row.path for row in rows)
    raise Misuse(
        "this is a directory, not a model",
        where=source,
        hint=f"name a model in it: {names}{', …' if len(rows) == _MAX_LISTED else ''}",
    )


_MAX_LISTED = 4
"""Maximum number of models that the message lists."""

FORMAT = Format(
    "folder",
    "a folder of models",
    recognize=lambda probe: probe.is_dir,
    open=_open,
    outline=outline,
    recognized_by="a folder that is not a model itself",
    shows="which models are in it, their formats and sizes",
    is_analyzed=False,
    is_collection=True,
)
