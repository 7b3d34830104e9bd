"""Writes a folder of stages with its manifest, all files or none."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping

from explorer.base.errors import ExplorerError, Misuse
from explorer.engine.split import manifest
from explorer.host import confinement, output_files
from explorer.session.parts.models import Models


def check(models: Models, folder: str, overwrite: bool) -> None:
    """Check before any work that the folder can be written.

    Raises:
        Misuse: The folder cannot be written, or it contains stages and `overwrite` is False.
    """
    confinement.check(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise Misuse("is not a folder", where=folder, hint="name a folder; the stages go into it")
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        raise Misuse("there is no such folder", where=parent, hint="create it first")
    target = os.path.join(folder, manifest.NAME)
    if os.path.isdir(folder):
        models.check_output_path(target, overwrite)


@contextlib.contextmanager
def write_folder(folder: str, overwrite: bool) -> Iterator[str]:
    """Context manager that yields a temporary path for the manifest, in a temporary folder.

    Files written next to the manifest move to the folder at the end. After an error, or after
    `output_files.Discard`, the folder is unchanged. Stage files of a replaced split that the new split does
    not have are deleted.
    """
    target = os.path.join(folder, manifest.NAME)
    old_digests = _read_stage_files(target) if overwrite else {}
    with (
        output_files.make_folder(folder),
        output_files.write_atomically(target, overwrite=overwrite) as temporary,
    ):
        yield temporary
    if old_digests:
        _delete_old_stages(folder, old_digests, _read_stage_files(target))


def _read_stage_files(path: str) -> dict[str, str]:
    """Return the stage files that a manifest names, with their digests; empty without a readable manifest."""
    try:
        return manifest.list_digests(manifest.read_unchecked(path)) if os.path.isfile(path) else {}
    except ExplorerError:
        return {}


def _delete_old_stages(folder: str, old: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Delete the stage files of the replaced split, except files that were changed after it was written."""
    for name in old.keys() - new.keys():
        path = os.path.join(folder, name)
        if not os.path.islink(path) and os.path.isfile(path) and manifest.compute_sha256(path) == old[name]:
            os.unlink(path)


def check_free(folder: str, name: str, overwrite: bool) -> None:
    """Check that a file of the folder does not exist, unless `overwrite` is True.

    Raises:
        Misuse: The file exists and `overwrite` is False.
    """
    if not overwrite and os.path.lexists(os.path.join(folder, name)):
        raise Misuse(
            "the file exists", where=os.path.join(folder, name), hint="choose another folder, or add --force"
        )
