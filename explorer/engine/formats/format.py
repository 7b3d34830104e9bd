"""Format registration: how a format says what recognises it, what opens it, what it can do.

These few names are all that a format needs to register itself, and they import nothing: asking what a
file is comes before anything that a particular format needs, at every start of the program. What an opened
model can be asked is in `models.opened_model`.
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
"""How much of a file is read to recognise it."""

_ZIP = b"PK\x03\x04"


class SourceProbe:
    """What can be known of a source without opening it as anything, looked up once for every format.

    Args:
        source: A path or a name, as the user typed it.

    Attributes:
        source: The same.
        exists: Whether there is something at this path (a link that leads nowhere does not count).
        is_dir: Whether it is a folder.
        is_file: Whether it is a regular file; nothing else is ever opened, a pipe would wait for a writer.
        size: Bytes of the file; 0 of anything else.
        head: Its first `HEAD_BYTES` bytes, fewer of a small file; empty of anything else.
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
            # without a file of Python's: one read, and nothing more of the file is touched
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
        """Names of the entries of a zip archive; none of anything else, and of one that is broken."""
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
        """`names`, and the same without the folder that the writers of torch put around them."""
        if self._inner is None:
            self._inner = frozenset(self.names) | {name.partition("/")[2] for name in self.names}
        return self._inner


def named(entry: str) -> Callable[..., Any]:
    """What 'module:name' stands for in the engine, imported when it is called."""
    module, _, name = entry.partition(":")
    return lambda *args: getattr(import_module(f"explorer.engine.{module}"), name)(*args)


def graph_file(format: str, read: str) -> Callable[[str, Any], Any]:
    """Opens the files of a format each of which is a graph of ONNX's operators, as an ONNX file is.

    Args:
        format: Name of the format.
        read: What makes a `graph.model.Model` of a path, as for `named`.
    """
    return lambda source, options: named("models.onnx:open_graph")(source, options, format, named(read))


@record
class Format:
    """A kind of model: how it is recognised, opened and looked at.

    Args:
        name: What `ModelInfo.format` says.
        about: What it is, for a person: 'an ONNX file (.onnx)'.
        label: What stands beside a model's name, for a person: 'ONNX'; empty for the name.
        recognise: Whether a source is of this kind, by its content. It must be cheap and import nothing
            heavy, and it is asked of everything: files, folders, and what exists nowhere.
        open: Opens a path with `OpenOptions` (`models.opened_model`): gives the `OpenedModel` that answers,
            or the `TensorIndex` of a file that holds nothing but tensors. What is heavy to import is `named`.
        tensors: Reads the tensors of a path and no more, where `open` makes more of them.
        outline: Looks at its header only, without running or analysing anything; None where there is no
            file to look at.
        endings: How its files are called. A name decides only where no content does: of a file that is
            missing, broken or cut off; the format's `open` then says what is wrong with it.
        recognised: By what, for a person: 'fields of a protobuf ModelProto'.
        shows: What is known of such a model, for a person.
        needs: The extra of this package that `open` needs, such as 'torch'; empty for none. An outline
            never needs one.
        analysed: Whether MACs, memory and the execution order are known, as there is a graph or code.
        chooses: It is no model itself, but holds some to choose from: the rows of its outline.
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
