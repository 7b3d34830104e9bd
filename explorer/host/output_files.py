"""Output files: no existing file is lost, and no incomplete file gets its final name.

Before any work starts, a target that would replace a file that the user needs is refused. Results are written
to a temporary folder next to their target and then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import IO

from explorer.base.errors import Misuse
from explorer.host import confinement, scratch


def check_target(
    path: str,
    *,
    overwrite: bool,
    models: Iterable[str],
    weights: Collection[str],
    inputs: Iterable[str] = (),
    new_folder: str = "",
) -> None:
    """Refuses a target that would replace a file that the user needs.

    Args:
        path: Path of the file to write.
        overwrite: Whether to replace an existing file.
        models: Files in use, and names of models made by code: net.py:net, package.net:net.
        weights: Files with the weights of the models.
        inputs: Other inputs of the result: files, and folders of files.
        new_folder: Folder that will be created before the result is written.

    Raises:
        Misuse: `path` is a file in use, or it exists and must not be replaced. Or `path` is not a regular
            file, its folder does not exist, or this process may not write there (`confinement`).
    """
    _check_confined(path)
    if os.path.isdir(path):
        raise Misuse("is a directory", where=path, hint="name a file to write")
    data_path = f"{path}.data"
    if any(_is_same_file(file, data_path) for file in weights):
        raise Misuse("the model's weights lie beside it", where=data_path, hint="choose another name")
    if not os.path.lexists(path):
        _check_folder(os.path.dirname(os.path.abspath(path)), new_folder)
        return
    if os.path.exists(path) and not os.path.isfile(path):
        # replacing a device node or a pipe would remove it for every user
        raise Misuse("is not a regular file", where=path, hint="name a file to write")
    if any(_is_same_file(file, path) for model in models for file in _list_model_files(model)):
        raise Misuse("this is the model itself", where=path, hint="choose another name for the result")
    if any(_is_same_file(file, path) for file in weights):
        raise Misuse("the model's weights lie in this file", where=path, hint="choose another name")
    refuse_input(path, inputs)
    if not overwrite:
        raise Misuse("the file exists", where=path, hint="choose another name, or add --force")


def _check_folder(folder: str, new_folder: str = "") -> None:
    if not os.path.isdir(folder) and not (
        new_folder and os.path.realpath(new_folder) == os.path.realpath(folder)
    ):
        raise Misuse("there is no such folder", where=folder, hint="create it first")


def refuse_input(path: str, inputs: Iterable[str]) -> None:
    """Refuses a target that is also an input of the result.

    Args:
        path: Path of the file to write.
        inputs: Inputs: files, or folders of arrays.

    Raises:
        Misuse: `path` is an input, or an array in an input folder.
    """
    folder = os.path.dirname(os.path.abspath(path)) if path.endswith((".npy", ".npz")) else path
    for name in inputs:
        if os.path.isfile(path) and (_is_same_file(name, path) or _is_same_file(name, folder)):
            raise Misuse("the result would replace its own input", where=path, hint="choose another name")


def _list_model_files(model: str) -> tuple[str, ...]:
    """Lists the possible files of a model, with its source file."""
    source = model.rpartition(":")[0]
    return (model, source, f"{source.replace('.', os.sep)}.py") if source else (model,)


def _check_confined(path: str) -> None:
    confinement.check(path, for_writing=True)


def _is_same_file(a: str, b: str) -> bool:
    """Whether both paths exist and are the same file."""
    return os.path.exists(a) and os.path.exists(b) and os.path.samefile(a, b)


def open_binary(path: str, *, read: bool = False) -> IO[bytes]:
    """Opens an empty binary file for writing: a path from `write_atomically`, or in a temporary folder.

    Args:
        path: Path of the file.
        read: Whether the file can also be read.

    Raises:
        Misuse: This process may not write there (`confinement`).
        OSError: The file cannot be written.
    """
    _check_confined(path)
    return open(path, "w+b" if read else "wb")


def open_descriptor(path: str) -> int:
    """Like `open_binary`, but returns a descriptor, which the caller must close."""
    _check_confined(path)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0), 0o666)


def open_text(path: str, *, errors: str = "strict") -> IO[str]:
    """Like `open_binary`, for UTF-8 text."""
    _check_confined(path)
    return open(path, "w", encoding="utf-8", errors=errors)


class Discard(Exception):
    """Exception that ends the block of `write_atomically` without a result and without an error."""


@contextlib.contextmanager
def write_atomically(path: str, *, overwrite: bool = False, executable: bool = False) -> Iterator[str]:
    """Yields a path of the same name in a temporary folder next to `path`, for atomic writing.

    After the block, every file in that folder (the model and its external data) is moved into place, the
    model last. If the block raises, no file remains. `Discard` is not raised further.

    Args:
        path: Path of the result, which `check_target` has accepted.
        overwrite: Whether to replace existing files at `path` and at its external data.
        executable: Whether every user who may read the file may execute it.

    Raises:
        Misuse: The folder does not exist, `path` is a directory, a file would be replaced, another process is
            writing to `path`, or writing failed (permission, disk space).
    """
    _check_confined(path)
    if os.path.isdir(path):
        raise Misuse("is a directory", where=path, hint="name a file to write")
    folder, name = os.path.split(os.path.abspath(path))
    _check_folder(folder)
    staging, is_private = _find_staging_folder(path), scratch.is_private(path)
    if not is_private:
        tell("writing", staging)
    lock = _claim_folder(staging, path)
    try:
        clear_abandoned(folder)
        temporary = os.path.join(staging, name)
        try:
            yield temporary
        except Discard:
            return
        if executable:
            mode = os.stat(temporary).st_mode
            os.chmod(temporary, mode | (mode & 0o444) >> 2)
        _move_into_place(staging, folder, name, overwrite, is_private)
    except OSError as error:
        raise _build_write_error(path, error) from error
    finally:
        scratch.release(staging, lock)


def _claim_folder(staging: str, path: str) -> int:
    try:
        return scratch.claim(staging)
    except FileExistsError:
        raise Misuse("another process is writing it", where=path, hint="nothing was written") from None
    except OSError as error:
        raise _build_write_error(path, error) from error


def _build_write_error(path: str, error: OSError) -> Misuse:
    reason = {errno.ENOSPC: "the disk is full", errno.EDQUOT: "the quota is used up"}
    text = reason.get(error.errno or 0, error.strerror or str(error))
    return Misuse(f"cannot be written: {text}", where=path, hint="nothing was written")


def _move_into_place(staging: str, folder: str, name: str, overwrite: bool, is_private: bool) -> None:
    """Moves the written files into place, the file `name` last.

    Raises:
        Misuse: A file would be replaced.
        OSError: A file cannot be moved.
    """
    entries = sorted(os.listdir(staging), key=lambda entry: entry == name)
    if is_private:
        for entry in entries:
            os.chmod(os.path.join(staging, entry), scratch.PRIVATE)
    else:
        status = os.stat(os.path.join(staging, name))
        tell("putting", os.path.join(folder, name), status.st_dev, status.st_ino)
    moved_paths: list[str] = []
    try:
        for entry in entries:
            target = os.path.join(folder, entry)
            _move(os.path.join(staging, entry), target, overwrite)
            moved_paths.append(target)
    except BaseException as error:
        for moved_path in () if overwrite else moved_paths:
            os.unlink(moved_path)
        if isinstance(error, FileExistsError) and not overwrite:
            raise Misuse(
                "the file exists", where=target, hint="choose another name, or add --force"
            ) from None
        raise


def _move(source: str, target: str, overwrite: bool) -> None:
    """Renames a file.

    Without `overwrite` an existing file is never replaced, even if it was created in the meantime.

    Raises:
        FileExistsError: The target exists.
    """
    if overwrite:
        os.replace(source, target)
        return
    try:
        os.link(source, target)
        os.unlink(source)
    except FileExistsError:
        raise
    except OSError:  # the file system has no links
        os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL))
        os.replace(source, target)


_MARGIN_BYTES = 1 << 20
"""Bytes that a file needs besides its weights."""


def check_disk_space(path: str, nbytes: int) -> None:
    """Checks the free disk space for a file of weights, because torch ends the process on a full disk.

    Args:
        path: Path of the file.
        nbytes: Bytes of the weights.

    Raises:
        OSError: The disk has not enough space.
    """
    import shutil  # takes 12 ms with its imports, too slow for the start of every command

    if shutil.disk_usage(os.path.dirname(path)).free < nbytes + _MARGIN_BYTES:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_listener: Callable[..., None] | None = None


def listen(tell: Callable[..., None]) -> None:
    """Registers a listener for written files, so that another process can remove unfinished ones.

    Args:
        tell: Callback with one of three groups of arguments: ('writing', temporary folder of a new result);
            ('made', folder for results that does not exist yet); or ('putting', path of a result, device and
            inode of the file that will get this name).
    """
    global _listener
    _listener = tell


def tell(*arguments: object) -> None:
    """Calls the listener, if `listen` registered one."""
    if _listener is not None:
        _listener(*arguments)


@contextlib.contextmanager
def make_folder(path: str) -> Iterator[None]:
    """Creates a folder for results if it is missing, and removes it after the block if it is still empty.

    Raises:
        Misuse: The folder cannot be created.
    """
    is_new = not os.path.isdir(path)
    try:
        if is_new:
            tell("made", os.path.abspath(path))
            try:
                os.mkdir(path)
            except OSError as error:
                is_new = False
                raise _build_write_error(path, error) from error
        yield
    finally:
        if is_new:
            with contextlib.suppress(OSError):  # the folder contains a result
                os.rmdir(path)


def clear_abandoned(folder: str) -> None:
    """Removes unfinished files of killed processes from `folder`."""
    scratch.clear_abandoned(folder, _PART.fullmatch)


_PART = re.compile(r"\.explorer-[0-9a-f]{16}\.part")


def _find_staging_folder(path: str) -> str:
    """Returns the temporary folder for writing `path`.

    All processes use the same short name for a path, so that only one process can write it at a time.
    """
    import hashlib  # takes 10 ms; commands that write nothing do not need it

    folder, name = os.path.split(os.path.abspath(path))
    digest = hashlib.blake2b(os.fsencode(name), digest_size=8).hexdigest()
    return os.path.join(folder, f".explorer-{digest}.part")
