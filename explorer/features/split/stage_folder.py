"""Folder of stages: written whole or not at all, with its manifest."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.split import manifest
from explorer.host import confinement, output_files
from explorer.session.parts.models import Models


def check(models: Models, folder: str, overwrite: bool) -> None:
    """Refuses a folder before any work is done.

    Raises:
        Misuse: It cannot be written, or holds stages.
    """
    confinement.check(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise Misuse("is no folder", where=folder, hint="name a folder; the stages go into it")
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        raise Misuse("there is no such folder", where=parent, hint="create it first")
    target = os.path.join(folder, manifest.NAME)
    if os.path.isdir(folder):
        models.check_target(target, overwrite)


@contextlib.contextmanager
def written(folder: str, overwrite: bool) -> Iterator[str]:
    """The manifest's path for now; what is written beside it becomes the folder's where no error comes.

    `output_files.Discard` leaves the folder as it was, without an error. Stages of a split that is replaced,
    which the new one does not have, go.
    """
    target = os.path.join(folder, manifest.NAME)
    old = _stages(target) if overwrite else {}
    with (
        output_files.made_folder(folder),
        output_files.atomic_write(target, overwrite=overwrite) as temporary,
    ):
        yield temporary
    if old:
        _take_away(folder, old, _stages(target))


def _stages(path: str) -> dict[str, str]:
    """Files of stages that a manifest names, with their digests; none where it is not there, or broken."""
    try:
        return manifest.files(manifest.listed(path)) if os.path.isfile(path) else {}
    except ExplorerError:
        return {}


def _take_away(folder: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Deletes stages of the split before, as far as they are still what it wrote."""
    for name in old.keys() - new.keys():
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.path.isfile(path) and manifest.sha256(path) == old[name]:
            os.unlink(path)


def check_free(folder: str, name: str, overwrite: bool) -> None:
    """Refuses to write over a file.

    Raises:
        Misuse: It is there, and may not be replaced.
    """
    if not overwrite and os.path.lexists(os.path.join(folder, name)):
        raise Misuse(
            "the file exists", where=os.path.join(folder, name), hint="choose another folder, or say --force"
        )
