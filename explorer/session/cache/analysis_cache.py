"""Analysis cache: what was found out about a model, found again while all that it rests on is the same.

An answer is served only where a fresh one would be the same, byte for byte in JSON. What it rests on:

- the bytes of files that its analysis read. Neither a size nor a time tells content, so these bytes are read
  and hashed anew each time; what the analysis was seen to pass over (weights) is not, and so 3 GB are checked
  as soon as they are opened;
- of a folder, also which files lie in it, and how long they are: one more may be a part of the model;
- how the model was opened, in which words, and this program, Python and the packages that had a part in it.
  Of code the size and time of every file is compared, as Python does before it runs what it compiled. What
  transformers builds of a folder depends on whatever else is installed, and on variables of the environment.

A profile is the exception: no two runs give the same, so it is kept as what was measured last, for who asks
how long layers take.

Nothing is kept of what rests on more: code of a user's own (`package.module:callable`, nn.Module objects,
rules, `--trust`) or weights of theirs (`--weights-file`), a run on random inputs (`--observe`), an answer
under a memory limit, files that changed while they were looked at. A model opened with trust is not even
looked up.
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

from explorer.facts import Info, OpStat
from explorer.facts.graph.flow import FlowRecord
from explorer.facts.memory import Memory
from explorer.facts.profile.profile import Profile
from explorer.host import SWITCH, cache_home, file_reads, memory_limit
from explorer.host.cache_folder import CacheFolder, CacheUsage
from explorer.host.file_reads import FileRead
from explorer.session.cache.rows import Chunk, RowPages, tupled

_VERSION = 2
_PACKAGES = (
    *("gguf", "ml_dtypes", "msgspec", "numpy", "onnx", "onnxruntime", "safetensors", "tflite", "torch"),
    *("torchvision", "transformers"),
)
"""Packages that may have a part in an analysis."""
_AT_ONCE, _A_SECOND = 16e6, 200e6
"""Bytes that are hashed in no time, and in a second at the least: what is analysed sooner is not kept."""
_CLOCK_NS = 20_000_000
"""By how much a file system's clock may lag behind."""
_PROGRAM = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_STARTED_NS = time.time_ns()


class _Evidence(Struct, frozen=True):
    """Files, and the digest of what was read of them."""

    files: tuple[FileRead, ...]
    digest: bytes


class AnalysisCache:
    """What is kept of one model, opened in one way.

    Args:
        source: A path or a name, as it was typed.
        options: The fields of `OpenOptions`.
        strict: Whether every dimension and input of the options has to be one of the model's.
        since: Nanoseconds since the epoch before which files must have changed last.

    Attributes:
        known: Which answers came from here, or went there.
        tried: Those and what could not be kept.
        files: What these were made from.
    """

    def __init__(self, source: str, options: Mapping[str, Any], strict: bool, since: int) -> None:
        self._source, self._since = source, since
        self._options = {**options, "strict": strict}
        self._folder = _folder()
        self._key: str | None = None
        self._name: str | None = None
        self.files: tuple[FileRead, ...] = ()
        self._asked = False
        self.known: set[str] = set()
        self.tried: set[str] = set()

    # answers, None where there is none

    def rows(self) -> RowPages | None:
        """The rows of the layer tree, packed."""
        chunks = self.get("rows")
        if chunks is None or any(chunk.name == "pickled" for chunk in chunks):
            return None
        rows = RowPages()
        for chunk in chunks:
            rows.add(chunk)
        return rows

    def unchanged(self) -> bool:
        """Whether the files are still those that the answers from here were about."""
        return not self.known or self._found() == self._name

    def get(self, name: str) -> Any:
        """An answer of one of `_KINDS`; None where there is none."""
        if not self._asked:
            self._asked = True
            self._name = self._found()
        content = None if self._name is None else self._folder.read(f"{self._name}.{name}")
        if content is None:
            return None
        kind, whole = _KINDS[name]
        try:
            fact = whole(msgspec.msgpack.decode(content, type=kind))
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            return None
        self.known.add(name)
        self.tried.add(name)
        return fact

    def _found(self) -> str | None:
        """What the answers about the files as they are now are called; None if nothing is known of them."""
        key = self._place()
        if key is None:
            return None
        if _is_name(self._source):
            return key
        content = self._folder.read(f"{key}.files")
        if content is None:
            return None
        try:
            evidence = msgspec.msgpack.decode(content, type=_Evidence)
        except msgspec.MsgspecError:
            return None
        if not evidence.files or file_reads.digest(evidence.files) != evidence.digest:
            return None
        self.files = evidence.files
        return _hash(key, evidence.digest)

    def _place(self) -> str | None:
        """The key, with what lies in a folder now."""
        self._key = self._key or self._made_key()
        if self._key is None or not os.path.isdir(self._source):
            return self._key
        with contextlib.suppress(OSError):
            return _hash(self._key, msgspec.msgpack.encode(_listed(self._source)))
        return None

    # keeping

    def keep(
        self, kind: str, fact: Callable[[], Any], files: Sequence[FileRead] | None, seconds: float
    ) -> None:
        """Keeps an answer.

        Args:
            kind: Which of `_KINDS`; rows are packed ones.
            fact: Makes it.
            files: What it was made from; None if nobody can say.
            seconds: That it took to be made.
        """
        self.tried.add(kind)
        limit = memory_limit.in_force()
        if (
            files is None
            or self._key is None
            or (limit is not None and limit < (memory_limit.machine() or 0))
        ):
            return
        if sum(size for file in files for _, size in file.spans) > _AT_ONCE + _A_SECOND * seconds:
            return
        with contextlib.suppress(MemoryError, OSError):
            name = self._named(tuple(files))
            content = None if name is None else _encoded(kind, fact())
            if content is not None and self._folder.write(f"{name}.{kind}", content):
                self.known.add(kind)

    def _named(self, files: tuple[FileRead, ...]) -> str | None:
        """What answers made from `files` are called; None if these may have changed since."""
        place = self._place()
        if place is None or _is_name(self._source):
            return None if files else place
        if files == self.files and self._name is not None:
            return self._name
        digest = file_reads.digest(files)
        if not files or digest is None:
            return None
        changed = max(file_reads.last_change(files), os.stat(self._source).st_ctime_ns)
        if self._since < changed + _CLOCK_NS:
            return None
        content = msgspec.msgpack.encode(_Evidence(files, digest))
        if not self._folder.write(f"{place}.files", content):
            return None
        self.files, self._name = files, _hash(place, digest)
        return self._name

    def _made_key(self) -> str | None:
        """Digest of everything but content; None where nothing may be kept."""
        about = self._options
        if about["trust"] or about["rules"] is not None or about["observe"] or about["weights_file"]:
            return None
        named = _is_name(self._source)
        folder = not named and os.path.isdir(self._source)
        if not (named or folder or os.path.isfile(self._source)):
            return None
        program = _code(_PROGRAM)
        if max(changed for _, _, changed in program) > _STARTED_NS:
            return None  # what runs is not what is there
        parts: list[Any] = [_VERSION, sys.version, sys.platform, sys.byteorder, program, _packages()]
        if named:
            models = _code_of("torchvision")
            if models is None:
                return None
            parts.append(models)
        else:
            parts.append(os.path.abspath(self._source))
        if folder:
            parts += [_code_of("transformers"), _installed(), _variables()]
        parts += [self._source, [[name, _ordered(value)] for name, value in sorted(about.items())]]
        try:
            return _hash("", msgspec.msgpack.encode(parts))
        except (OverflowError, TypeError, ValueError):
            return None


def cache_usage() -> CacheUsage:
    """Where analyses are kept, how many files that are, and their bytes."""
    return _folder().usage()


def clear_cache() -> CacheUsage:
    """Removes all analyses that are kept; returns what is left."""
    _folder().clear()
    return cache_usage()


def opens(source: Any, options: Mapping[str, Any], strict: bool, since: int) -> AnalysisCache | None:
    """The cache of a model; None where it is switched off."""
    return None if os.environ.get(SWITCH) else AnalysisCache(source, options, strict, since)


# inside: facts as bytes


def _info(fact: Info) -> Info:
    force_setattr(fact, "assumptions", tupled(fact.assumptions))
    return fact


def _ops(fact: tuple[OpStat, ...]) -> tuple[OpStat, ...]:
    for values in (values for stat in fact for values in stat.attributes.values()):
        for name in ("minimum", "maximum", "values"):
            force_setattr(values, name, tupled(getattr(values, name)))
    return fact


def _as_it_is(fact: Any) -> Any:
    return fact


_KINDS: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "info": (Info, _info),
    "ops": (tuple[OpStat, ...], _ops),
    "memory": (Memory, _as_it_is),
    "flow": (FlowRecord, _as_it_is),
    "profile": (Profile, _as_it_is),
    "rows": (tuple[Chunk, ...], _as_it_is),
}
"""Answers that are kept: what they are decoded as, and what makes that what it was."""


def _encoded(name: str, fact: Any) -> bytes | None:
    """A fact as bytes, if it comes back from them as it is; no pickled rows: a pickle may do anything."""
    if name == "rows":
        fact = tuple(fact.chunks())
        if any(chunk.name == "pickled" for chunk in fact):
            return None
    kind, whole = _KINDS[name]
    try:
        content = msgspec.msgpack.encode(fact)
        if name == "rows":
            return content
        again = whole(msgspec.msgpack.decode(content, type=kind))
    except (msgspec.MsgspecError, OverflowError, TypeError, ValueError):
        return None
    return content if again == fact and msgspec.msgpack.encode(again) == content else None


# inside: what they rest on


def _folder() -> CacheFolder:
    return CacheFolder(os.path.join(cache_home(os.environ), "analyses"))


def _is_name(source: str) -> bool:
    """Whether a model is meant by its name, and that may be one of torchvision's."""
    return source.isidentifier() and not os.path.lexists(source)


def _ordered(value: Any) -> Any:
    """An option as it was given: of dimensions the order is told, too."""
    return list(value.items()) if isinstance(value, Mapping) else value


def _hash(name: str, content: bytes) -> str:
    import hashlib

    return hashlib.sha256(name.encode() + content).hexdigest()[:40]


def _code(folder: str) -> list[tuple[str, int, int]]:
    """The Python files below a folder: name, size, time, which is what Python goes by itself."""
    files: list[tuple[str, int, int]] = []
    waiting = [folder]
    while waiting:
        with contextlib.suppress(OSError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name.endswith(".py"):
                    about = entry.stat()
                    files.append((entry.path, about.st_size, about.st_mtime_ns))
                elif "." not in entry.name and entry.name != "__pycache__" and entry.is_dir():
                    waiting.append(entry.path)
    return sorted(files)


def _packages() -> list[tuple[str, int, int]]:
    """Which versions of packages are installed: what their own files say, and what their installer wrote."""
    files: list[tuple[str, int, int]] = []
    for folder in dict.fromkeys(sys.path):
        for name in _PACKAGES:
            for file in ("__init__.py", "version.py"):
                path = os.path.join(folder, name, file)
                with contextlib.suppress(OSError):
                    about = os.stat(path)
                    files.append((path, about.st_size, about.st_mtime_ns))
        with contextlib.suppress(OSError):
            for name in sorted(os.listdir(folder or ".")):
                if name.endswith(".dist-info") and name.partition("-")[0].lower() in _PACKAGES:
                    path = os.path.join(folder, name)
                    files.append((path, 0, os.stat(path).st_mtime_ns))
    return files


def _code_of(package: str) -> list[tuple[str, int, int]] | None:
    """The code of a package; None if it is not installed."""
    from importlib.util import find_spec

    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None or not spec.origin:
        return None
    return _code(os.path.dirname(spec.origin)) or None


def _installed() -> list[str]:
    """The names and versions of all that is installed."""
    names: list[str] = []
    for folder in dict.fromkeys(sys.path):
        with contextlib.suppress(OSError):
            names += sorted(name for name in os.listdir(folder or ".") if name.endswith(".dist-info"))
    return names


def _variables() -> list[tuple[str, str]]:
    """What the environment tells torch and transformers."""
    told = ("ACCELERATE_", "HF_", "PYTORCH_", "TORCH", "TRANSFORMERS_", "USE_")
    found = [(name, value) for name, value in os.environ.items() if name.startswith(told)]
    return sorted(pair for pair in found if "TOKEN" not in pair[0])


def _listed(folder: str) -> list[tuple[str, int]]:
    """What lies in a folder: names and sizes, -1 for what leads nowhere.

    Raises:
        OSError: It cannot be read.
    """
    files: list[tuple[str, int]] = []
    for name in sorted(os.listdir(folder)):
        size = -1
        with contextlib.suppress(OSError):
            size = os.stat(os.path.join(folder, name)).st_size
        files.append((name, size))
    return files
