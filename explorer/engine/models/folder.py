"""Folder of models: lists the models in it, for the user to choose from.

This format is tried after those of folders that are models themselves. The search reads the head of every
file, because names promise nothing. A folder may come from anybody, so the search is limited in files,
folders and depth. It opens regular files only, and follows a link out of the folder only in Hugging Face's
cache.
"""

from __future__ import annotations

import os

from explorer.base.errors import BadModel, Misuse
from explorer.base.outline import Outline, OutlineRow
from explorer.base.record import record
from explorer.engine.formats.files import is_inside, is_lfs_pointer
from explorer.engine.formats.format import Format, SourceProbe
from explorer.engine.formats.weights.huggingface import unnamed_model
from explorer.engine.models.registry import SAVED_MODEL, by_ending, formats, saved_model

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from explorer.engine.models.opened_model import OpenedModel, OpenOptions

MOST_FILES = 10_000
"""Files that the search looks at: about one second of work."""
MOST_FOLDERS = 2_000
MOST_DEPTH = 6

_PASSED_OVER = ("__pycache__", "node_modules", "site-packages")


@record
class _Look:
    """State of a search: how many files and folders it may still look at, and what it left out."""

    root: str
    files: int
    folders: int
    left_out: bool = False
    links: int = 0

    def leads_out(self, path: str) -> bool:
        """Whether a link leads out of the searched folder."""
        end = os.path.realpath(path)
        return not (is_inside(end, self.root) or is_inside(end, os.path.realpath(os.path.dirname(path))))


def _models(look: _Look, folder: str, inside: str, depth: int) -> Iterator[OutlineRow]:
    """Rows of the models below a folder: first those directly in it, then those in its subfolders."""
    try:
        with os.scandir(folder) as entries:
            dir_entries = []
            for entry in entries:
                look.files -= 1
                if look.files < 0:
                    look.left_out = True
                    break
                dir_entries.append(entry)
    except OSError:
        return
    dir_entries.sort(key=lambda entry: entry.name)
    below = []
    for entry in dir_entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                below.append(entry)
            elif entry.is_symlink() and look.leads_out(entry.path):
                look.links += os.path.exists(entry.path)
            elif entry.is_file():
                # a SavedModel's graph begins as an ONNX file does
                row = None if entry.name == SAVED_MODEL else _model(entry.path, inside + entry.name)
                if row is not None:
                    yield row
        except OSError:
            continue
    for entry in below:
        if entry.name.startswith(".") or entry.name in _PASSED_OVER:
            continue
        if entry.name == "blobs" and os.path.isdir(os.path.join(folder, "snapshots")):
            continue  # of huggingface_hub's cache: the same files, without their names
        look.folders -= 1
        if depth == MOST_DEPTH or look.folders < 0:
            look.left_out = True
            return
        try:
            row = _model(entry.path, f"{inside}{entry.name}{os.sep}")
        except OSError:
            continue
        if row is not None:
            yield row
        else:
            if os.path.isfile(os.path.join(entry.path, SAVED_MODEL)):
                # a model that no reader opens: reading its header says what to do with it
                yield OutlineRow(f"{inside}{entry.name}{os.sep}", "model", "saved_model", nbytes=None)
            yield from _models(look, entry.path, f"{inside}{entry.name}{os.sep}", depth + 1)


def _model(path: str, label: str) -> OutlineRow | None:
    """The row of a file or folder, None if no format recognizes what is in it.

    A Git LFS pointer stands for a model that was not fetched; reading its header says so.
    """
    probe = SourceProbe(path)
    if is_lfs_pointer(probe.head):
        called = by_ending(path)
        return None if called is None else OutlineRow(label, "model", called.name, None, probe.size)
    for format in formats():
        if format is not FORMAT and format.recognise(probe):
            return OutlineRow(
                label, "model", format.name, None, probe.size if probe.is_file else _folder_bytes(path)
            )
    return None


def _folder_bytes(folder: str) -> int | None:
    """Bytes of all files of a folder that is one model; None if there are too many files to add up."""
    with os.scandir(folder) as entries:
        sizes = [
            entry.stat().st_size
            for _, entry in zip(range(MOST_FILES), entries, strict=False)
            if entry.is_file()
        ]
    return sum(sizes) if len(sizes) < MOST_FILES else None


def outline(source: str) -> Outline:
    """The models in the folder `source`, found while the rows are read.

    Raises:
        BadModel: No model is in it.
    """
    look = _Look(os.path.realpath(source), MOST_FILES, MOST_FOLDERS)
    model_rows = _models(look, source, "", 0)
    first = next(model_rows, None)
    if first is None:
        if os.path.isfile(os.path.join(source, SAVED_MODEL)):
            raise saved_model(source)
        looked = f"among the first {MOST_FILES:,} files" if look.left_out else "in it"
        wrong = unnamed_model(source)
        why = f": {wrong}" if wrong else ""
        raise BadModel(f"this is a directory, not a model, and no model is {looked}{why}", where=source)

    def rows(first: OutlineRow) -> Iterator[OutlineRow]:
        yield first
        yield from model_rows
        notes = ["there is more than is looked at: name a folder in it"] if look.left_out else []
        if look.links:
            lead = "link leads" if look.links == 1 else "links lead"
            notes.append(f"{look.links:,} {lead} out of it: what is there is opened by its own path")
        if notes:
            yield OutlineRow("…", "more", note="; ".join(notes))

    return Outline(FORMAT.name, source, None, (), rows(first))


def _open(source: str, options: OpenOptions) -> OpenedModel:
    rows = [row for _, row in zip(range(_NAMED), outline(source).rows, strict=False)]
    names = ", ".join(row.path for row in rows)
    raise Misuse(
        "this is a directory, not a model",
        where=source,
        hint=f"name a model in it: {names}{', …' if len(rows) == _NAMED else ''}",
    )


_NAMED = 4

FORMAT = Format(
    "folder",
    "a folder of models",
    recognise=lambda probe: probe.is_dir,
    open=_open,
    outline=outline,
    recognised="being a folder that is no model itself",
    shows="which models are in it, their formats and sizes",
    analysed=False,
    chooses=True,
)
