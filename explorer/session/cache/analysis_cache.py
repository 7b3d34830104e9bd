"""Analysis cache: stores the analysis of a model and reuses it while all files it depends on are unchanged.

A stored answer, such as the totals or the packed rows, is used only if a new analysis would give the same
JSON, byte for byte. An answer depends on three inputs:

- the bytes of the files that the analysis read. Size and time do not identify content, so these bytes are
  read and hashed each time. The bytes of weights, which the analysis does not read, are not hashed.
- for a folder, also the names and sizes of its files, because a new file may belong to the model.
- the source and the options as the user wrote them, and the versions of this program, Python and the packages
  involved. Code is compared by the size and time of every file, as Python does for compiled files. A
  transformers model of a folder also depends on all installed packages and on environment variables.

A profile is an exception: every measurement differs, so the cache stores the last one.

Nothing is stored if the answer depends on more: the user's own code (`package.module:callable`, nn.Module
objects, rules, `--trust`) or weights (`--weights-file`), a run on random inputs (`--observe`), a memory
limit, or files that changed during the analysis. Nothing is read from the cache for a model opened with
trust.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from explorer.base.compat import build_type
from explorer.facts import Info, OpStat
from explorer.facts.graph.flow import FlowRecord
from explorer.facts.memory import Memory
from explorer.facts.profile.profile import Profile
from explorer.host import SWITCH, file_reads, find_cache_folder, memory_limit
from explorer.host.cache_folder import CacheFolder, CacheUsage
from explorer.host.file_reads import FileRead
from explorer.session.cache.rows import Chunk, RowPages, restore_tuples

_VERSION = 2
"""Version of the stored answers. Answers of another version are not found."""
_PACKAGES = (
    *("gguf", "ml_dtypes", "msgspec", "numpy", "onnx", "onnxruntime", "safetensors", "tflite", "torch"),
    *("torchvision", "transformers"),
)
"""Packages that can affect an analysis."""
_MIN_HASHED_BYTES, _HASHED_BYTES_PER_SECOND = 16e6, 200e6
"""Largest number of bytes that may be hashed for an answer: a fixed number, plus a number per second that the
analysis took. Above it, hashing could take longer than a new analysis, and the answer is not stored.
"""
_CLOCK_NS = 20_000_000
"""Largest lag of a file system's clock behind the system clock, in nanoseconds."""
_PROGRAM_FOLDER = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_STARTED_NS = time.time_ns()
"""Time at which this process imported this module, in nanoseconds since the epoch."""


class _Evidence(Struct, frozen=True):
    """Files of an answer, and the digest of the bytes that the analysis read from them."""

    files: tuple[FileRead, ...]
    digest: bytes


class AnalysisCache:
    """Reads and stores answers about one model, opened with one set of options.

    Args:
        source: Path or name, as the user typed it.
        options: Fields of `OpenOptions`.
        strict: Whether every dimension and input in the options must exist in the model.
        opened_ns: Time at which the session was created, in nanoseconds since the epoch. The cache stores no
            answers made from files that changed later.

    Attributes:
        read_or_written: Kinds of answers that were read from or written to the cache.
        tried: Kinds of answers that were read, written, or could not be written.
        files: Files from which the answers were made.
    """

    def __init__(self, source: str, options: Mapping[str, Any], strict: bool, opened_ns: int) -> None:
        self._source, self._opened_ns = source, opened_ns
        self._options = {**options, "strict": strict}
        self._folder = _find_folder()
        self._key: str | None = None
        self._name: str | None = None
        self.files: tuple[FileRead, ...] = ()
        self._is_looked_up = False
        self.read_or_written: set[str] = set()
        self.tried: set[str] = set()

    # stored answers

    def rows(self) -> RowPages | None:
        """Reads the packed rows of the layer tree, or returns None if they are not stored."""
        chunks = self.get("rows")
        if chunks is None or any(chunk.name == "pickled" for chunk in chunks):
            return None
        rows = RowPages()
        for chunk in chunks:
            rows.add(chunk)
        return rows

    def is_unchanged(self) -> bool:
        """Whether the files are still the files that the answers describe."""
        return not self.read_or_written or self._find_name() == self._name

    def get(self, name: str) -> Any:
        """Reads the answer of one kind in `_KINDS`, or returns None if it is not stored."""
        if not self._is_looked_up:
            self._is_looked_up = True
            self._name = self._find_name()
        content = None if self._name is None else self._folder.read(f"{self._name}.{name}")
        if content is None:
            return None
        kind, restore = _KINDS[name]
        try:
            fact = restore(msgspec.msgpack.decode(content, type=build_type(kind)))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        self.read_or_written.add(name)
        self.tried.add(name)
        return fact

    def _find_name(self) -> str | None:
        """Returns the name prefix of the answers about the current content, or None without answers."""
        key = self._find_source_key()
        if key is None:
            return None
        if _is_name(self._source):
            return key
        content = self._folder.read(f"{key}.files")
        if content is None:
            return None
        try:
            evidence = msgspec.msgpack.decode(content, type=build_type(_Evidence))
        except msgspec.MsgspecError:
            return None
        if not evidence.files or file_reads.compute_digest(evidence.files) != evidence.digest:
            return None
        self.files = evidence.files
        return _hash(key, evidence.digest)

    def _find_source_key(self) -> str | None:
        """Returns the digest of everything but the content of files, or None if nothing may be stored.

        If the source is a folder, its current list of files is part of the digest.
        """
        self._key = self._key or self._make_key()
        if self._key is None or not os.path.isdir(self._source):
            return self._key
        with contextlib.suppress(OSError):
            return _hash(self._key, msgspec.msgpack.encode(_list_folder_files(self._source)))
        return None

    # storing

    def keep(
        self, kind: str, make_fact: Callable[[], Any], files: Sequence[FileRead] | None, seconds: float
    ) -> None:
        """Stores an answer, if it can be stored and hashing its files is faster than making it.

        Args:
            kind: Key of `_KINDS`. The rows must be packed.
            make_fact: Function that makes the answer.
            files: Files from which it was made, or None if unknown.
            seconds: Seconds that it took to make it.
        """
        self.tried.add(kind)
        limit = memory_limit.read_limit()
        if (
            files is None
            or self._key is None
            or (limit is not None and limit < (memory_limit.read_machine_memory() or 0))
        ):
            return
        if (
            sum(size for file in files for _, size in file.spans)
            > _MIN_HASHED_BYTES + _HASHED_BYTES_PER_SECOND * seconds
        ):
            return
        with contextlib.suppress(MemoryError, OSError):
            name = self._make_name(tuple(files))
            content = None if name is None else _encode(kind, make_fact())
            if content is not None and self._folder.write(f"{name}.{kind}", content):
                self.read_or_written.add(kind)

    def _make_name(self, files: tuple[FileRead, ...]) -> str | None:
        """Stores the digest of `files`, and returns the name prefix of answers about them.

        Returns None if nothing may be stored, or the files may have changed since the session was created.
        """
        source_key = self._find_source_key()
        if source_key is None or _is_name(self._source):
            return None if files else source_key  # a model of torchvision is made from no files
        if files == self.files and self._name is not None:
            return self._name
        digest = file_reads.compute_digest(files)
        if not files or digest is None:
            return None
        changed = max(file_reads.find_last_change(files), os.stat(self._source).st_ctime_ns)
        if self._opened_ns < changed + _CLOCK_NS:
            return None
        content = msgspec.msgpack.encode(_Evidence(files, digest))
        if not self._folder.write(f"{source_key}.files", content):
            return None
        self.files, self._name = files, _hash(source_key, digest)
        return self._name

    def _make_key(self) -> str | None:
        """Computes a digest of everything but the content of files, or None if nothing may be stored."""
        options = self._options
        if options["trust"] or options["rules"] is not None or options["observe"] or options["weights_file"]:
            return None
        is_name = _is_name(self._source)
        is_folder = not is_name and os.path.isdir(self._source)
        if not (is_name or is_folder or os.path.isfile(self._source)):
            return None
        program = _list_code_files(_PROGRAM_FOLDER)
        if max(changed for _, _, changed in program) > _STARTED_NS:
            return None  # the installed program changed after this process started
        parts: list[Any] = [
            _VERSION,
            sys.version,
            sys.platform,
            sys.byteorder,
            program,
            _list_version_files(),
        ]
        if is_name:
            models = _list_package_files("torchvision")
            if models is None:
                return None
            parts.append(models)
        else:
            parts.append(os.path.abspath(self._source))
        if is_folder:
            parts += [_list_package_files("transformers"), _list_installed_packages(), _list_variables()]
        parts += [self._source, [[name, _keep_order(value)] for name, value in sorted(options.items())]]
        try:
            return _hash("", msgspec.msgpack.encode(parts))
        except (OverflowError, TypeError, ValueError):
            return None


def cache_usage() -> CacheUsage:
    """Reads the folder of the analysis cache, the number of its files, and their bytes."""
    return _find_folder().measure_usage()


def clear_cache() -> CacheUsage:
    """Removes all stored analyses and returns the remaining usage."""
    _find_folder().clear()
    return cache_usage()


def open_cache(source: Any, options: Mapping[str, Any], strict: bool, opened_ns: int) -> AnalysisCache | None:
    """Opens the cache for a model, or returns None if the cache is switched off."""
    return None if os.environ.get(SWITCH) else AnalysisCache(source, options, strict, opened_ns)


# facts as bytes


def _restore_info(fact: Info) -> Info:
    force_setattr(fact, "assumptions", restore_tuples(fact.assumptions))
    return fact


def _restore_ops(fact: tuple[OpStat, ...]) -> tuple[OpStat, ...]:
    for values in (values for stat in fact for values in stat.attributes.values()):
        for name in ("minimum", "maximum", "values"):
            force_setattr(values, name, restore_tuples(getattr(values, name)))
    return fact


def _return_unchanged(fact: Any) -> Any:
    return fact


_KINDS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "info": (Info, _restore_info),
    "ops": (tuple[OpStat, ...], _restore_ops),
    "memory": (Memory, _return_unchanged),
    "flow": (FlowRecord, _return_unchanged),
    "profile": (Profile, _return_unchanged),
    "rows": (tuple[Chunk, ...], _return_unchanged),
}
"""Kinds of answers: the type for decoding, and the function that restores tuples in the decoded fact."""


def _encode(name: str, fact: Any) -> bytes | None:
    """Encodes a fact, or returns None if decoding would not restore it exactly.

    Pickled rows are refused, because unpickling can run arbitrary code.
    """
    if name == "rows":
        fact = tuple(fact.chunks())
        if any(chunk.name == "pickled" for chunk in fact):
            return None
    kind, restore = _KINDS[name]
    try:
        content = msgspec.msgpack.encode(fact)
        if name == "rows":
            return content
        decoded = restore(msgspec.msgpack.decode(content, type=build_type(kind)))
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError):
        return None
    return content if decoded == fact and msgspec.msgpack.encode(decoded) == content else None


# versions and options that the answers depend on


def _find_folder() -> CacheFolder:
    return CacheFolder(os.path.join(find_cache_folder(os.environ), "analyses"))


def _is_name(source: str) -> bool:
    """Whether the source may be the name of a torchvision model."""
    return source.isidentifier() and not os.path.lexists(source)


def _keep_order(value: Any) -> Any:
    """Converts a mapping to a list of pairs, so that the key depends on the order of dimensions."""
    return list(value.items()) if isinstance(value, Mapping) else value


def _hash(name: str, content: bytes) -> str:
    import hashlib

    return hashlib.sha256(name.encode() + content).hexdigest()[:40]


def _list_code_files(folder: str) -> list[tuple[str, int, int]]:
    """Lists the Python files below a folder: path, size in bytes, time of the last change in nanoseconds."""
    files: list[tuple[str, int, int]] = []
    pending_folders = [folder]
    while pending_folders:
        with contextlib.suppress(OSError), os.scandir(pending_folders.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    status = entry.stat()
                    files.append((entry.path, status.st_size, status.st_mtime_ns))
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    pending_folders.append(entry.path)
    return sorted(files)


def _list_version_files() -> list[tuple[str, int, int]]:
    """Lists the files that tell the versions of `_PACKAGES`: path, size in bytes, time in nanoseconds."""
    files: list[tuple[str, int, int]] = []
    for folder in dict.fromkeys(sys.path):
        for name in _PACKAGES:
            for file in ("__init__.py", "version.py"):
                path = os.path.join(folder, name, file)
                with contextlib.suppress(OSError):
                    status = os.stat(path)
                    files.append((path, status.st_size, status.st_mtime_ns))
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder or ".")):
                if name.endswith(".dist-info") and name.partition("-")[0].lower() in _PACKAGES:
                    path = os.path.join(folder, name)
                    files.append((path, 0, os.stat(path).st_mtime_ns))
    return files


def _list_package_files(package: str) -> list[tuple[str, int, int]] | None:
    """Lists the Python files of a package like `_list_code_files`. None if it is not installed."""
    from importlib.util import find_spec

    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    return _list_code_files(os.path.dirname(spec.origin)) or None


def _list_installed_packages() -> list[str]:
    """Lists all installed packages by the names of their folders, which hold name and version."""
    names: list[str] = []
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            names += sorted(name for name in os.listdir(folder or ".") if name.endswith(".dist-info"))
    return names


def _list_variables() -> list[tuple[str, str]]:
    """Lists the environment variables that affect torch and transformers."""
    prefixes = ("ACCELERATE_", "HF_", "PYTORCH_", "TORCH", "TRANSFORMERS_", "USE_")
    variables = [(name, value) for name, value in os.environ.items() if name.startswith(prefixes)]
    return sorted(pair for pair in variables if "TOKEN" not in pair[0])


def _list_folder_files(folder: str) -> list[tuple[str, int]]:
    """Lists the names and sizes of the files in a folder. The size of a broken link is -1.

    Raises:
        OSError: The folder cannot be read.
    """
    files: list[tuple[str, int]] = []
    for name in sorted(os.listdir(folder)):
        size = -1
        with contextlib.suppress(OSError):
            size = os.stat(os.path.join(folder, name)).st_size
        files.append((name, size))
    return files
