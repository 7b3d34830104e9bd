"""File access: opens and maps regular files, and checks file names that a model contains."""

from __future__ import annotations

import os

from explorer.base.errors import BadModel, Misuse, suggest_only_near
from explorer.host import input_files
from explorer.host.confinement import find_blobs_folder

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from collections.abc import Iterable


def list_files_by_text() -> dict[str, str]:
    """Maps the lower-case name of each file in the current folder, with and without ending, to its name."""
    try:
        names = [name for name in sorted(os.listdir()) if os.path.isfile(name)]
    except OSError:  # the current folder was removed
        return {}
    return {text.lower(): name for name in names for text in (name, os.path.splitext(name)[0])}


def build_unknown_name_error(name: str, model_names: Iterable[str]) -> Misuse:
    """Returns the error for a name that is neither a file nor one of torchvision's models."""
    files = list_files_by_text()
    return Misuse(
        "no file and no torchvision model has this name",
        where=name,
        hint=suggest_only_near(name.lower(), [*model_names, *files], files)
        or "explorer list prints the models here and torchvision's names, explorer --help the verbs",
    )


def is_inside(path: str, folder: str) -> bool:
    """Whether a file is below a folder, or in the blobs folder that belongs to it in huggingface_hub's cache.

    Both paths must be resolved.
    """
    return path.startswith(folder.rstrip(os.sep) + os.sep) or os.path.dirname(path) == find_blobs_folder(
        folder
    )


def resolve_inside(location: str, folder: str, model_file: str = "") -> str:
    """Resolves the name of another file that a model contains.

    The file must be in the folder of the model, in the folder of the file that the model links to, or in the
    blobs of huggingface_hub's cache. Absolute names and names that leave the folder with '..' are refused.

    Args:
        location: File name in the model.
        folder: Folder of the model, as the user named it.
        model_file: Path of the model's own file, or '' if the model is the folder.

    Returns:
        The path with links resolved, or '' if the file is outside these folders.
    """
    # a NUL would end the path for the operating system, but not for this check
    if not location or "\0" in location or os.path.isabs(location):
        return ""
    if os.path.normpath(location).split(os.sep)[0] == os.pardir:
        return ""
    try:
        target = os.path.realpath(os.path.join(folder, location))
    except ValueError:  # a lone surrogate, which no file name has
        return ""
    roots = [
        os.path.realpath(folder),
        *([os.path.dirname(os.path.realpath(model_file))] if model_file else ()),
    ]
    return target if any(target == root or is_inside(target, root) for root in roots) else ""


_POINTER = b"version https://git-lfs.github.com/spec/"


def is_lfs_pointer(head: bytes) -> bool:
    """Whether a file is a Git LFS pointer, the placeholder of a file that was not downloaded."""
    return head.startswith(_POINTER)


def build_lfs_pointer_error(source: str, head: bytes) -> BadModel:
    """Builds the error for a Git LFS pointer. It names the model's size and the command that downloads it."""
    size = head.partition(b"\nsize ")[2].partition(b"\n")[0]
    size_text = f" of {int(size):,} bytes" if size.isdigit() and len(size) <= _DIGITS else ""
    problem = f"this is a pointer of Git LFS's, not the model{size_text}"
    return BadModel(problem, where=source, hint="`git lfs pull` in its folder fetches it")


_DIGITS = 19
"""Maximum number of digits of a size in a pointer."""


def open_regular(path: str) -> tuple[int, int]:
    """Opens a file for unbuffered reading.

    Returns:
        The file descriptor, which the caller must close, and the size of the file in bytes.

    Raises:
        BadModel: The file is missing, may not be read, or is not a regular file. A pipe would wait for a
            writer.
        Misuse: The file is outside the served folder.
    """
    try:
        return input_files.open_descriptor(path)
    except OSError as error:
        raise BadModel(f"cannot be read: {error.strerror or error}", where=path) from None


def map_file(path: str) -> mmap.mmap:
    """Maps a file into memory. The kernel reads only the pages that are used.

    Raises:
        BadModel: The file is empty, or `open_regular` refuses it.
        Misuse: The file is outside the served folder.
    """
    descriptor, size = open_regular(path)
    try:
        if not size:
            raise BadModel("the file is empty", where=path)
        mapping = input_files.map_into_memory(descriptor, size)
    except (OSError, ValueError) as error:
        raise BadModel(f"cannot be read: {getattr(error, 'strerror', None) or error}", where=path) from None
    finally:
        os.close(descriptor)
    # read-ahead would load the weights next to each header
    input_files.prevent_read_ahead(mapping)
    return mapping
