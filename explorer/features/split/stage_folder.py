"""The folder of stages, which is written as a whole or not at all, with its manifest."""

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
    """Yields a temporary path for the manifest; files written beside it go to the folder at the end.

    After an error the folder is as it was; `output_files.Discard` does the same without an error. Stages of
    the replaced split that the new one does not have are deleted.
    """
    target = os.path.join(folder, manifest.NAME)
    old = _stages(target) if overwrite else {}
    with (
        output_files.made_folder(folder),
        output_files.atomic_write(target, overwrite=overwrite) as temporary,
    ):
        yield temporary
    if old:
        _delete_old_stages(folder, old, _stages(target))


def _stages(path: str) -> dict[str, str]:
    """Stage files that a manifest names, with their digests; empty without a readable manifest."""
    try:
        return manifest.files(manifest.listed(path)) if os.path.isfile(path) else {}
    except ExplorerError:
        return {}


def _delete_old_stages(folder: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Deletes stages of the replaced split, but not files that were changed since."""
    for name in old.keys() - new.keys():
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.path.isfile(path) and manifest.sha256(path) == old[name]:
            os.unlink(path)


def check_free(folder: str, name: str, overwrite: bool) -> None:
    """Refuses to overwrite a file without `overwrite`.

    Raises:
        Misuse: It is there, and may not be replaced.
    """
    if not overwrite and os.path.lexists(os.path.join(folder, name)):
        raise Misuse(
            "the file exists", where=os.path.join(folder, name), hint="choose another folder, or say --force"
        )
