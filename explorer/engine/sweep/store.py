"""SQLite store: where the rows of a sweep are kept: a file that loses nothing when the program is killed.

SQLite, from the standard library, and not Parquet: a row is written for good as soon as it is there, a row
that exists is found by its key, and a kill in the middle leaves the file as it was before that row. Parquet
is written as a whole, or in parts that somebody has to join, and needs a library of 40 MB. What reads tables
reads SQLite: `sqlite3 results.db 'select * from rows'`, pandas.read_sql.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args, get_type_hints

import msgspec

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.facts.sweep import SweepRow

_APPLICATION = 0x58505357
"""SQLite's mark of whose file it is: 'XPSW'."""
_VERSION = 1
_MAGIC = b"SQLite format 3\0"
_BUSY = 30.0
"""Seconds that another sweep into the same file is waited for; it holds the file for a row at a time."""
_LARGEST = 1 << 63

_HINTS = get_type_hints(SweepRow)
_NESTED = tuple(name for name, hint in _HINTS.items() if "tuple" in str(hint))
_FLAGS = tuple(name for name, hint in _HINTS.items() if hint is bool or bool in get_args(hint))
_FIELDS = tuple(name for name in SweepRow.__struct_fields__ if name != "pareto")
"""Whether a row is on the front depends on its rivals, so it is not kept."""

# no types: a column of a type of its own would make a float of an integer beyond SQLite's, written as text
_COLUMNS = ", ".join(f"{name}{' TEXT PRIMARY KEY' if name == 'key' else ''}" for name in _FIELDS)
_ADD = (
    f"INSERT INTO rows ({', '.join(_FIELDS)}) VALUES ({', '.join('?' * len(_FIELDS))}) "
    f"ON CONFLICT(key) DO UPDATE SET {', '.join(f'{name}=excluded.{name}' for name in _FIELDS)}"
)


def is_store(path: str) -> bool:
    """Whether this is a file of sweep results."""
    try:
        with open(path, "rb") as file:
            head = file.read(100)
    except OSError:
        return False
    return head[:16] == _MAGIC and head[68:72] == _APPLICATION.to_bytes(4, "big")


class Store:
    """Rows by key.

    Args:
        path: The file, which is made if it is not there; None keeps the rows in memory.
        changed: False for a file that is only looked into.

    Raises:
        Misuse: The file is no sweep's, or cannot be read or written.
    """

    def __init__(self, path: str | None, *, changed: bool = True) -> None:
        self.path = path
        if path is not None:
            _check(path, changed)
        with self._told():
            self._file = sqlite3.connect(path or ":memory:", timeout=_BUSY, isolation_level=None)
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                self._file.close()
                raise Misuse(
                    "another version of the program made this", where=path or "", hint="name another file"
                )
            if path is None or changed:
                self._prepare()

    def _prepare(self) -> None:
        run = self._file.execute
        run("PRAGMA synchronous=FULL")
        run("BEGIN IMMEDIATE")
        run(f"CREATE TABLE IF NOT EXISTS rows ({_COLUMNS})")
        run(f"PRAGMA application_id={_APPLICATION}")
        run(f"PRAGMA user_version={_VERSION}")
        run("COMMIT")

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, rows: Sequence[SweepRow]) -> None:
        """Keeps rows, all or none of them; a row whose key is there is replaced.

        Raises:
            Misuse: The file cannot be written.
        """
        with self._told():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._file.executemany(_ADD, [_values(row) for row in rows])
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")

    def rows(self, keys: Iterable[str] | None = None) -> Iterator[SweepRow]:
        """The rows with these keys that there are, in the order of the keys; None for all, oldest first.

        Raises:
            BadModel: The file holds what no sweep writes.
        """
        query = f"SELECT {', '.join(_FIELDS)} FROM rows"
        with self._told():
            if keys is None:
                for values in self._file.execute(f"{query} ORDER BY rowid"):
                    yield self._row(values)
                return
            for key in keys:
                for values in self._file.execute(f"{query} WHERE key=?", (key,)):
                    yield self._row(values)

    def _row(self, values: Sequence[Any]) -> SweepRow:
        record = dict(zip(_FIELDS, values, strict=True))
        try:
            for name in _NESTED:
                record[name] = msgspec.json.decode(record[name])
            for name in _FLAGS:
                if name in record and record[name] is not None:
                    record[name] = bool(record[name])
            for name, value in record.items():
                if isinstance(value, str) and int in (_HINTS[name], *get_args(_HINTS[name])):
                    record[name] = int(value)
            return msgspec.convert(record, SweepRow)
        except (ValueError, TypeError, msgspec.ValidationError) as error:
            raise BadModel(f"a row cannot be read ({error})", where=self.path or "") from None

    @contextlib.contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _said(error, self.path or "") from error


def _values(row: SweepRow) -> list[Any]:
    values = []
    for name in _FIELDS:
        value = getattr(row, name)
        if name in _NESTED:
            value = msgspec.json.encode(value).decode()
        elif isinstance(value, int) and abs(value) >= _LARGEST:
            value = str(value)  # beyond SQLite's integers
        values.append(value)
    return values


def _check(path: str, changed: bool) -> None:
    if not os.path.exists(path) and changed:
        folder = os.path.dirname(os.path.abspath(path))
        if not os.path.isdir(folder):
            raise Misuse("there is no such folder", where=folder, hint="create it first")
        return
    if os.path.isdir(path):
        raise Misuse("is a directory", where=path, hint="name a file for the results")
    if os.path.isfile(path) and (is_store(path) or (changed and os.path.getsize(path) == 0)):
        return
    if os.path.isfile(path) and os.path.isfile(f"{path}-journal"):
        return  # a kill while it was being made: SQLite takes it back
    raise Misuse("this holds no results of a sweep", where=path, hint="name another file for the results")


def _said(error: sqlite3.Error, path: str) -> ExplorerError:
    reasons = {
        "SQLITE_BUSY": ("another program holds it", "try again when that is done"),
        "SQLITE_FULL": ("the disk is full", "make room and say the same again: what is kept stays"),
        "SQLITE_READONLY": ("may not be written", "name another file for the results"),
        "SQLITE_CANTOPEN": ("cannot be opened", "name another file for the results"),
        "SQLITE_NOTADB": ("this holds no results of a sweep", "name another file for the results"),
        "SQLITE_CORRUPT": ("the file is broken", "take it away and sweep again"),
    }
    name = getattr(error, "sqlite_errorname", "")
    what, hint = reasons.get(name, (f"cannot be used: {error}", ""))
    return Misuse(what, where=path, hint=hint)
