"""Format registration: how each model format is recognized, opened and outlined.

Each format creates one `Format` record. This module imports nothing heavy, because every program start
recognizes a file before it loads the modules of the file's format. `models.opened_model` defines the
interface of an opened model.
"""

from __future__ import annotations

import os
import stat
from importlib import import_module

from explorer.base.errors import Misuse
from explorer.base.record import record
from explorer.host import input_files

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from explorer.base.outline import Outline
    from explorer.engine.formats.tensor_index import TensorIndex

HEAD_BYTES = 4096
"""Bytes at the start of a file that are read to recognize its format."""

_ZIP = b"PK\x03\x04"


class SourceProbe:
    """Facts about a source before it is opened, read once and shared by all formats.

    Args:
        source: Path or name, as the user typed it.

    Attributes:
        source: Path or name, as the user typed it.
        exists: Whether the path exists. A dangling link does not exist.
        is_dir: Whether the path is a folder.
        is_file: Whether the path is a regular file. Only regular files are opened: a pipe would wait for a
            writer.
        size: Bytes of the file, or 0 if the path is not a regular file.
        head: First `HEAD_BYTES` bytes of the file, or fewer for a small file.
        unreadable: Reason why the file cannot be read. '' if it can, or if the path is no regular file.
    """

    __slots__ = ("_inner", "_names", "exists", "head", "is_dir", "is_file", "size", "source", "unreadable")

    def __init__(self, source: str) -> None:
        self.source = source
        self.exists = self.is_dir = self.is_file = False
        self.size = 0
        self.head = b""
        self.unreadable = ""
        self._names: tuple[str, ...] | None = None
        self._inner: frozenset[str] | None = None
        try:
            status = os.stat(source)
        except (OSError, ValueError):
            return
        self.exists = True
        self.is_dir = stat.S_ISDIR(status.st_mode)
        self.is_file = stat.S_ISREG(status.st_mode)
        if not self.is_file:
            return
        self.size = status.st_size
        try:
            # a Python file object would read more than the head
            descriptor, self.size = input_files.open_descriptor(source)
            try:
                self.head = os.read(descriptor, HEAD_BYTES)
            finally:
                os.close(descriptor)
        except OSError as error:
            self.unreadable = error.strerror or str(error)
        except Misuse as error:  # outside the served folder
            self.unreadable = error.what

    @property
    def is_zip(self) -> bool:
        """Whether the file begins with the magic number of a zip archive."""
        return self.head.startswith(_ZIP)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries of a zip archive; empty for a broken archive or any other file."""
        if self._names is None:
            entries: list[str] | None = None
            if self.is_zip:
                # the import takes 7 ms, and few files are archives
                from explorer.engine.formats.torch_files.zip_archive import list_entry_names

                entries = list_entry_names(self.source)
            self._names = tuple(entries or ())
        return self._names

    @property
    def inner(self) -> frozenset[str]:
        """Entry names of a zip archive, with and without the top folder that torch writes."""
        if self._inner is None:
            self._inner = frozenset(self.names) | {name.partition("/")[2] for name in self.names}
        return self._inner


def import_on_call(entry: str) -> Callable[..., Any]:
    """Creates a function that imports and calls `name` of the engine's `module`; `entry` is 'module:name'."""
    module, _, name = entry.partition(":")
    return lambda *args: getattr(import_module(f"explorer.engine.{module}"), name)(*args)


def open_graph_file(format: str, read: str) -> Callable[[str, Any], Any]:
    """Creates the `open` function of a format whose files are graphs of ONNX operators.

    Args:
        format: Name of the format.
        read: 'module:name' of the function that reads a path into a `graph.model.Model`.
    """
    return lambda source, options: import_on_call("models.onnx:open_graph")(
        source, options, format, import_on_call(read)
    )


@record
class Format:
    """A kind of model: how to recognize, open and outline it.

    Args:
        name: Value of `ModelInfo.format`.
        about: Description shown to users: 'an ONNX file (.onnx)'.
        label: Label shown next to a model's name: 'ONNX'. '' to show `name`.
        recognize: Function that tells by content whether a source has this format. It is called for every
            source: files, folders, and names that do not exist. It must be fast and import nothing heavy.
        open: Function that opens a path with `OpenOptions` (`models.opened_model`). It returns an
            `OpenedModel`, or the `TensorIndex` of a file with only tensors. `import_on_call` defers imports.
        tensors: Function that reads only the tensors of a path, or None to use `open` for this, too.
        outline: Function that reads only the header, and runs and analyzes nothing; None if the format has
            no file.
        endings: File name endings. They decide only if no format recognizes the content, as with a missing,
            broken or truncated file. The `open` of the format then reports the problem.
        recognized_by: Content that identifies the format, shown to users: 'fields of a protobuf ModelProto'.
        shows: Facts that are known of a model in this format, shown to users.
        needs: Extra of this package that `open` needs, such as 'torch', or '' for none. An outline needs no
            extra.
        is_analyzed: Whether the graph or the code of the model gives MACs, memory and execution order.
        is_collection: Whether the source is a set of models to choose from. Its outline lists the models.
    """

    name: str
    about: str
    recognize: Callable[[SourceProbe], bool]
    open: Callable[[str, Any], Any]
    outline: Callable[[str], Outline] | None = None
    tensors: Callable[[str], TensorIndex] | None = None
    endings: tuple[str, ...] = ()
    label: str = ""
    recognized_by: str = ""
    shows: str = ""
    needs: str = ""
    is_analyzed: bool = True
    is_collection: bool = False
