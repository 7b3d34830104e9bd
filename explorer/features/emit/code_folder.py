"""Folder of emitted code: C files with a manifest, written all or none."""

from __future__ import annotations

import os
from collections.abc import Mapping

import msgspec

from explorer.base.compat import build_type
from explorer.base.errors import BadModel, Misuse
from explorer.facts.emission import MANIFEST, MANIFEST_VERSION, CodeManifest
from explorer.host import confinement, input_files, output_files


def check(folder: str, overwrite: bool) -> None:
    """Check before any work that the folder can be written.

    Raises:
        Misuse: The path is not a folder, the folder contains other files, or it contains code and
            `overwrite` is False.
    """
    confinement.check(folder)
    if os.path.lexists(folder) and not os.path.isdir(folder):
        raise Misuse("is not a folder", where=folder, hint="name a folder; the code goes into it")
    parent = os.path.dirname(os.path.abspath(folder))
    if not os.path.isdir(parent):
        raise Misuse("there is no such folder", where=parent, hint="create it first")
    if not os.path.isdir(folder) or not os.listdir(folder):
        return
    if not os.path.isfile(os.path.join(folder, MANIFEST)):
        raise Misuse("the folder holds other files", where=folder, hint="name a new folder")
    read(folder)  # a mapping.json of another program is not replaced
    if not overwrite:
        raise Misuse(
            "the folder holds emitted code", where=folder, hint="choose another name, or add --force"
        )


def write(folder: str, files: Mapping[str, str], manifest: CodeManifest, overwrite: bool) -> None:
    """Write the C files and the manifest; after an error the folder is unchanged.

    Args:
        folder: Path of the folder.
        files: Text of each file by name.
        manifest: Content of the manifest.
        overwrite: Whether to replace emitted code.

    Raises:
        Misuse: The folder cannot be written.
    """
    target = os.path.join(folder, MANIFEST)
    old_names = _list_code_files(read(folder)) if os.path.isfile(target) else set()
    with (
        output_files.make_folder(folder),
        output_files.write_atomically(target, overwrite=overwrite) as temporary,
    ):
        staging = os.path.dirname(temporary)  # `write_atomically` moves all files of this folder
        for name, code in files.items():
            with output_files.open_text(os.path.join(staging, name)) as file:
                file.write(code)
        with output_files.open_binary(temporary) as binary:
            binary.write(msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n")
    for name in old_names - set(files):
        path = os.path.join(folder, name)
        if os.path.isfile(path) and not os.path.islink(path):
            os.unlink(path)


def keep_rejected(folder: str, files: Mapping[str, str], file: str) -> str:
    """Write a C file that the compiler rejects next to the folder, under a new name; return its path."""
    path, number = f"{folder.rstrip(os.sep)}_{file}", 2
    while os.path.lexists(path):
        path, number = f"{folder.rstrip(os.sep)}_{number}_{file}", number + 1
    with output_files.write_atomically(path) as temporary, output_files.open_text(temporary) as target:
        target.write(files[file])
    return path


def is_code(folder: str) -> bool:
    """Return whether a path is a folder with a manifest of emitted code."""
    return os.path.isfile(os.path.join(folder, MANIFEST))


def read(folder: str) -> CodeManifest:
    """Read the manifest of a folder.

    Raises:
        Misuse: There is no manifest, or another version of the program wrote it.
        BadModel: The manifest is damaged.
    """
    path = os.path.join(folder, MANIFEST)
    try:
        content = input_files.read_content(path)
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None
    try:
        manifest = msgspec.json.decode(content, type=build_type(CodeManifest))
    except (msgspec.DecodeError, Misuse) as error:
        raise BadModel(
            f"is not a manifest of emitted code: {error}",
            where=path,
            hint="explorer emit MODEL -o FOLDER writes one",
        ) from None
    if manifest.version != MANIFEST_VERSION:
        raise Misuse(
            f"version {manifest.version} of a manifest",
            where=path,
            hint=f"this program reads {MANIFEST_VERSION}; emit the code again",
        )
    return manifest


def read_code(folder: str, name: str) -> str:
    """Read a C file of a folder.

    Raises:
        Misuse: The file cannot be read.
    """
    path = os.path.join(folder, name)
    try:
        return input_files.read_content(path).decode("utf-8", "replace")
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None


def _list_code_files(manifest: CodeManifest) -> set[str]:
    return {site.file for site in manifest.sites if site.file} | {"driver.c"}
