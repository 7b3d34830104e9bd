"""Format registration: what recognizes a format, what opens it, and what it supports.

A format needs only these names to register, and they import nothing heavy: a file is recognized at every
start, before the needs of its format are known. `models.opened_model` defines what an opened model answers.
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
"""Bytes of a file that are read to recognize it."""

_ZIP = b"PK\x03\x04"


class SourceProbe:
    """Facts about a source before it is opened, looked up once for all formats.

    Args:
        source: A path or a name, as the user typed it.

    Attributes:
        source: The same.
        exists: Whether the path exists (a dangling link does not count).
        is_dir: Whether it is a folder.
        is_file: Whether it is a regular file. Nothing else is opened: a pipe would wait for a writer.
        size: Bytes of the file; 0 for anything else.
        head: Its first `HEAD_BYTES` bytes, fewer for a small file; empty for anything else.
        unreadable: Why the file cannot be read; empty if it can.
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
            # no Python file object: a single read, which touches nothing else of the file
            descriptor, self.size = input_files.descriptor(source)
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
        """Whether the file begins as a zip archive does."""
        return self.head.startswith(_ZIP)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the entries of a zip archive; none for a broken archive or another file."""
        if self._names is None:
            entries: list[str] | None = None
            if self.is_zip:
                # 7 ms, and few files are archives
                from explorer.engine.formats.torch_files.zip_archive import entry_names

                entries = entry_names(self.source)
            self._names = tuple(entries or ())
        return self._names

    @property
    def inner(self) -> frozenset[str]:
        """`names`, and the same names without the top folder that torch writes."""
        if self._inner is None:
            self._inner = frozenset(self.names) | {name.partition("/")[2] for name in self.names}
        return self._inner


def named(entry: str) -> Callable[..., Any]:
    """A function that imports 'module:name' of the engine when it is called."""
    module, _, name = entry.partition(":")
    return lambda *args: getattr(import_module(f"explorer.engine.{module}"), name)(*args)


def graph_file(format: str, read: str) -> Callable[[str, Any], Any]:
    """The `open` of a format whose files are graphs of ONNX operators.

    Args:
        format: Name of the format.
        read: 'module:name' of the function that reads a path into a `graph.model.Model`.
    """
    return lambda source, options: named("models.onnx:open_graph")(source, options, format, named(read))


@record
class Format:
    """A kind of model: how to recognize, open and outline it.

    Args:
        name: Value of `ModelInfo.format`.
        about: Description for a person: 'an ONNX file (.onnx)'.
        label: Text beside a model's name, for a person: 'ONNX'; empty for the name.
        recognise: Whether a source is of this kind, by its content. It must be cheap and import nothing
            heavy. It is called for everything: files, folders, and names that do not exist.
        open: Opens a path with `OpenOptions` (`models.opened_model`). Returns an `OpenedModel`, or the
            `TensorIndex` of a file with tensors only. A heavy module is imported by `named`.
        tensors: Reads only the tensors of a path, if `open` does more.
        outline: Reads the header only, without running or analyzing anything; None if there is no file.
        endings: Endings of its files. They decide only if no content does: for a missing, broken or
            truncated file, where the format's `open` says what is wrong.
        recognised: The sign of the format, for a person: 'fields of a protobuf ModelProto'.
        shows: The known facts of such a model, for a person.
        needs: The extra of this package that `open` needs, such as 'torch'; empty for none. An outline
            never needs one.
        analysed: Whether MACs, memory and the execution order are known from a graph or code.
        chooses: Whether it is no model but a set of models to choose from, the rows of its outline.
    """

    name: str
    about: str
    recognise: Callable[[SourceProbe], bool]
    open: Callable[[str, Any], Any]
    outline: Callable[[str], Outline] | None = None
    tensors: Callable[[str], TensorIndex] | None = None
    endings: tuple[str, ...] = ()
    label: str = ""
    recognised: str = ""
    shows: str = ""
    needs: str = ""
    analysed: bool = True
    chooses: bool = False
