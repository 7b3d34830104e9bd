"""SQLite store of the rows of a sweep, a file that loses nothing when the program is killed.

SQLite, from the standard library, and not Parquet: a row is stored for good as soon as it is computed, and is
found by its key; a kill during a write leaves the file as it was before that row. Parquet is written as a
whole, or in parts that must be joined, and needs a library of 40 MB. Table tools read SQLite:
`sqlite3 results.db 'select * from rows'`, pandas.read_sql.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.facts.evaluate.training_sweep import TrainingTrial
from explorer.facts.quantize import FormatRow
from explorer.facts.serving.sweep import ServingRow
from explorer.facts.sweep import SweepRow
from explorer.host import input_files

_APPLICATION = 0x58505357
"""SQLite's application id of our files: 'XPSW'."""
_VERSION = 1
_MAGIC = b"SQLite format 3\0"
_BUSY = 30.0
"""Seconds to wait for another sweep into the same file, which holds the file for a row at a time."""
_LARGEST = 1 << 63


class TrainedWeights(msgspec.Struct, frozen=True):
    """The weights of a training's best epoch, as Lightning writes them."""

    key: str
    content: bytes


Row = TypeVar("Row", bound=msgspec.Struct)

_TABLES: dict[type, str] = {
    SweepRow: "rows",
    FormatRow: "formats",
    TrainingTrial: "trainings",
    TrainedWeights: "checkpoints",
    ServingRow: "servings",
}


class _Layout(Generic[Row]):
    """The layout of rows of one kind in a table: one column per field.

    Whether a row is on the front depends on the other rows, so it is not stored.
    """

    def __init__(self, kind: type[Row]) -> None:
        self.kind, table = kind, _TABLES[kind]
        self.table = table
        self.hints = get_type_hints(kind)
        self.fields = tuple(name for name in kind.__struct_fields__ if name != "pareto")
        self.nested = tuple(name for name, hint in self.hints.items() if "tuple" in str(hint))
        self.flags = tuple(n for n, hint in self.hints.items() if hint is bool or bool in get_args(hint))
        # no types: a column of a type of its own would make a float of an integer beyond SQLite's, written
        # as text
        columns = (f"{name}{' TEXT PRIMARY KEY' if name == 'key' else ''}" for name in self.fields)
        self.create = f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})"
        self.add = (
            f"INSERT INTO {table} ({', '.join(self.fields)}) VALUES ({', '.join('?' * len(self.fields))}) "
            f"ON CONFLICT(key) DO UPDATE SET {', '.join(f'{name}=excluded.{name}' for name in self.fields)}"
        )
        self.query = f"SELECT {', '.join(self.fields)} FROM {table}"

    def values(self, row: Row) -> list[Any]:
        """The values that are stored for a row."""
        values = []
        for name in self.fields:
            value = getattr(row, name)
            if name in self.nested:
                value = msgspec.json.encode(value).decode()
            elif isinstance(value, int) and abs(value) >= _LARGEST:
                value = str(value)  # beyond SQLite's integers
            values.append(value)
        return values

    def row(self, values: Sequence[Any]) -> Row:
        """The row of stored values.

        Raises:
            ValueError, TypeError, msgspec.ValidationError: The values are no row.
        """
        record = dict(zip(self.fields, values, strict=True))
        for name in self.nested:
            record[name] = msgspec.json.decode(record[name])
        for name in self.flags:
            if name in record and record[name] is not None:
                record[name] = bool(record[name])
        for name, value in record.items():
            if isinstance(value, str) and int in (self.hints[name], *get_args(self.hints[name])):
                record[name] = int(value)
        return msgspec.convert(record, self.kind)


def is_store(path: str) -> bool:
    """Whether this is a file of sweep results."""
    try:
        with input_files.binary(path) as file:
            head = file.read(100)
    except OSError:
        return False
    return head[:16] == _MAGIC and head[68:72] == _APPLICATION.to_bytes(4, "big")


class Store(Generic[Row]):
    """Rows of one kind, by key.

    Tilings, number formats, trainings, their weights, and layouts of serving have one table each.

    Args:
        kind: Type of the rows.
        path: The file, which is created if it does not exist; None keeps the rows in memory.
        changed: False opens the file for reading only.

    Raises:
        Misuse: The file is not from a sweep, or cannot be read or written.
    """

    def __init__(self, kind: type[Row], path: str | None, *, changed: bool = True) -> None:
        self.path = path
        self._layout = _Layout(kind)
        if path is not None:
            _check(path, changed)
            if os.path.exists(path):
                _read_check(path)
        with self._refusing():
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
        run(self._layout.create)
        run(f"PRAGMA application_id={_APPLICATION}")
        run(f"PRAGMA user_version={_VERSION}")
        run("COMMIT")

    def close(self) -> None:
        """Lets go of the file."""
        self._file.close()

    def __enter__(self) -> Store[Row]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, rows: Sequence[Row]) -> None:
        """Stores rows, all or none of them; replaces a row with the same key.

        Raises:
            Misuse: The file cannot be written.
        """
        with self._refusing():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._file.executemany(self._layout.add, [self._layout.values(row) for row in rows])
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")

    def rows(self, keys: Iterable[str] | None = None) -> Iterator[Row]:
        """The stored rows with these keys, in the order of the keys; None for all, oldest first.

        Raises:
            BadModel: The file holds a row that no sweep writes.
        """
        query, table = self._layout.query, (self._layout.table,)
        with self._refusing():
            if not self._file.execute("SELECT 1 FROM sqlite_master WHERE name=?", table).fetchone():
                return  # of a file that is only looked into
            if keys is None:
                for values in self._file.execute(f"{query} ORDER BY rowid"):
                    yield self._row(values)
                return
            for key in keys:
                for values in self._file.execute(f"{query} WHERE key=?", (key,)):
                    yield self._row(values)

    def _row(self, values: Sequence[Any]) -> Row:
        try:
            return self._layout.row(values)
        except (ValueError, TypeError, msgspec.ValidationError) as error:
            raise BadModel(f"a row cannot be read ({error})", where=self.path or "") from None

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _refusal(error, self.path or "") from error


def holds(path: str, kind: type[msgspec.Struct]) -> bool:
    """Whether a file of results has a row of a kind."""
    with Store(kind, path, changed=False) as store:
        return next(store.rows(), None) is not None


def _read_check(path: str) -> None:
    try:
        input_files.check(path)
    except OSError as error:
        raise Misuse(f"cannot be opened: {error.strerror or error}", where=path) from None


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


def _refusal(error: sqlite3.Error, path: str) -> ExplorerError:
    reasons = {
        "SQLITE_BUSY": ("another program holds it", "try again when that is done"),
        "SQLITE_FULL": ("the disk is full", "make room and say the same again: what is kept stays"),
        "SQLITE_READONLY": ("may not be written", "name another file for the results"),
        "SQLITE_CANTOPEN": ("cannot be opened", "name another file for the results"),
        "SQLITE_NOTADB": ("this holds no results of a sweep", "name another file for the results"),
        "SQLITE_CORRUPT": ("the file is broken", "take it away and sweep again"),
    }
    name = getattr(error, "sqlite_errorname", "")
    message, hint = reasons.get(name, (f"cannot be used: {error}", ""))
    return Misuse(message, where=path, hint=hint)
