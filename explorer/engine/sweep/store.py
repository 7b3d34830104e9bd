"""Stores the rows of a sweep in an SQLite file that survives a kill of the program.

A row is durable as soon as it is computed, and can be looked up by its key. A kill during a write leaves the
file as it was before that row. Parquet files have neither property, and need a library of 40 MB. Table tools
read SQLite files: `sqlite3 results.db 'select * from rows'`, pandas.read_sql.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar, get_args, get_type_hints

import msgspec

from explorer.base.compat import build_type
from explorer.base.errors import BadModel, ExplorerError, Misuse
from explorer.facts.evaluate.training_sweep import TrainingTrial
from explorer.facts.mapping_sweep import MappingRow
from explorer.facts.quantize import FormatRow
from explorer.facts.serving.sweep import ServingRow
from explorer.facts.sweep import SweepRow
from explorer.host import input_files

_APPLICATION_ID = 0x58505357
"""SQLite's application id of result files: 'XPSW'."""
_VERSION = 1
"""Version of the tables, which a file stores as its `user_version`."""
_MAGIC = b"SQLite format 3\0"
"""First bytes of every SQLite file."""
_LOCK_SECONDS = 30.0
"""Seconds to wait for another sweep that writes to the same file; each write takes the lock for one row."""
_MIN_TEXT_INTEGER = 1 << 63
"""Smallest absolute value of an integer that is stored as text, because SQLite cannot hold it."""


class TrainedWeights(msgspec.Struct, frozen=True):
    """The weights of a training's best epoch, as a Lightning checkpoint, with the key of the training."""

    key: str
    content: bytes


Row = TypeVar("Row", bound=msgspec.Struct)

_TABLES: dict[type, str] = {
    SweepRow: "rows",
    FormatRow: "formats",
    TrainingTrial: "trainings",
    TrainedWeights: "checkpoints",
    ServingRow: "servings",
    MappingRow: "mappings",
}
"""Name of the table for each type of rows."""


class _Layout(Generic[Row]):
    """Describes the table of one type of rows, which has one column for each field.

    The field `pareto` is not stored, because it depends on the other rows.

    Attributes:
        nested: Fields that are stored as JSON, because they hold tuples.
        flags: Boolean fields, which SQLite stores as integers.
        create, add, query: SQL statements that create the table, write a row and read rows.
    """

    def __init__(self, kind: type[Row]) -> None:
        self.kind, table = kind, _TABLES[kind]
        self.table = table
        self.hints = get_type_hints(kind)
        self.fields = tuple(name for name in kind.__struct_fields__ if name != "pareto")
        self.nested = tuple(name for name, hint in self.hints.items() if "tuple" in str(hint))
        self.flags = tuple(
            name for name, hint in self.hints.items() if hint is bool or bool in get_args(hint)
        )
        # columns have no types: a typed column converts a large integer, stored as text, to a float
        columns = (f"{name}{' TEXT PRIMARY KEY' if name == 'key' else ''}" for name in self.fields)
        self.create = f"CREATE TABLE IF NOT EXISTS {table} ({', '.join(columns)})"
        self.add = (
            f"INSERT INTO {table} ({', '.join(self.fields)}) VALUES ({', '.join('?' * len(self.fields))}) "
            f"ON CONFLICT(key) DO UPDATE SET {', '.join(f'{name}=excluded.{name}' for name in self.fields)}"
        )
        self.query = f"SELECT {', '.join(self.fields)} FROM {table}"

    def list_values(self, row: Row) -> list[Any]:
        """Returns the values that are stored for a row."""
        values = []
        for name in self.fields:
            value = getattr(row, name)
            if name in self.nested:
                value = msgspec.json.encode(value).decode()
            elif isinstance(value, int) and abs(value) >= _MIN_TEXT_INTEGER:
                value = str(value)
            values.append(value)
        return values

    def build_row(self, values: Sequence[Any]) -> Row:
        """Converts stored values to a row.

        Raises:
            ValueError, TypeError, msgspec.ValidationError: The values do not form a row.
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
        return msgspec.convert(record, build_type(self.kind))


def is_store(path: str) -> bool:
    """Whether a file is a file of sweep results."""
    try:
        with input_files.open_binary(path) as file:
            head = file.read(100)
    except OSError:
        return False
    # SQLite's header has the application id at offset 68
    return head[:16] == _MAGIC and head[68:72] == _APPLICATION_ID.to_bytes(4, "big")


class Store(Generic[Row]):
    """Rows of one type, by key.

    Tilings, number formats, trainings, trained weights, serving layouts and mappings have one table each.

    Args:
        kind: Type of the rows.
        path: Path of the file, which is created if it does not exist, or None to keep the rows in memory.
        changed: Whether the file may be changed. If False, its rows are only read.

    Raises:
        Misuse: The file holds no sweep results, or cannot be read or written.
    """

    def __init__(self, kind: type[Row], path: str | None, *, changed: bool = True) -> None:
        self.path = path
        self._layout = _Layout(kind)
        if path is not None:
            _check_results_path(path, changed)
            if os.path.exists(path):
                _check_readable(path)
        with self._translate_errors():
            self._file = sqlite3.connect(path or ":memory:", timeout=_LOCK_SECONDS, isolation_level=None)
            (version,) = self._file.execute("PRAGMA user_version").fetchone()
            if version not in (0, _VERSION):
                self._file.close()
                raise Misuse(
                    "another version of the program made this", where=path or "", hint="name another file"
                )
            if path is None or changed:
                self._prepare()

    def _prepare(self) -> None:
        """Creates the table if the file lacks it, and marks the file as a file of results."""
        run = self._file.execute
        run("PRAGMA synchronous=FULL")
        run("BEGIN IMMEDIATE")
        run(self._layout.create)
        run(f"PRAGMA application_id={_APPLICATION_ID}")
        run(f"PRAGMA user_version={_VERSION}")
        run("COMMIT")

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Store[Row]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def add(self, rows: Sequence[Row]) -> None:
        """Stores all rows or none. A row replaces a stored row with the same key.

        Raises:
            Misuse: The file cannot be written.
        """
        with self._translate_errors():
            self._file.execute("BEGIN IMMEDIATE")
            try:
                self._file.executemany(self._layout.add, [self._layout.list_values(row) for row in rows])
            except BaseException:
                self._file.execute("ROLLBACK")
                raise
            self._file.execute("COMMIT")

    def rows(self, keys: Iterable[str] | None = None) -> Iterator[Row]:
        """Yields the stored rows with these keys, in the order of the keys.

        None yields all rows, oldest first.

        Raises:
            BadModel: The file holds an invalid row.
        """
        query, table = self._layout.query, (self._layout.table,)
        with self._translate_errors():
            if not self._file.execute("SELECT 1 FROM sqlite_master WHERE name=?", table).fetchone():
                return  # a file opened for reading may lack the table
            if keys is None:
                for values in self._file.execute(f"{query} ORDER BY rowid"):
                    yield self._build_row(values)
                return
            for key in keys:
                for values in self._file.execute(f"{query} WHERE key=?", (key,)):
                    yield self._build_row(values)

    def _build_row(self, values: Sequence[Any]) -> Row:
        """Converts stored values to a row. Raises `BadModel` if they do not form one."""
        try:
            return self._layout.build_row(values)
        except (ValueError, TypeError, msgspec.ValidationError) as error:
            raise BadModel(f"a row cannot be read ({error})", where=self.path or "") from None

    @contextlib.contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Raises errors of SQLite as errors of Explorer."""
        try:
            yield
        except sqlite3.Error as error:
            raise _translate_error(error, self.path or "") from error


def has_rows(path: str, row_type: type[msgspec.Struct]) -> bool:
    """Whether a file of results has a row of the given type."""
    with Store(row_type, path, changed=False) as store:
        return next(store.rows(), None) is not None


def _check_readable(path: str) -> None:
    """Raises `Misuse` if a file cannot be opened."""
    try:
        input_files.check(path)
    except OSError as error:
        raise Misuse(f"cannot be opened: {error.strerror or error}", where=path) from None


def _check_results_path(path: str, changed: bool) -> None:
    """Raises `Misuse` if a path cannot hold results, or if a file that is only read holds none."""
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
        return  # the program was killed while it created the file, and SQLite undoes the changes
    raise Misuse("this holds no results of a sweep", where=path, hint="name another file for the results")


def _translate_error(error: sqlite3.Error, path: str) -> ExplorerError:
    """Returns the error with a message and a hint for the user."""
    messages_and_hints = {
        "SQLITE_BUSY": ("another program holds it", "try again when that is done"),
        "SQLITE_FULL": ("the disk is full", "make room and run it again: finished rows are kept"),
        "SQLITE_READONLY": ("may not be written", "name another file for the results"),
        "SQLITE_CANTOPEN": ("cannot be opened", "name another file for the results"),
        "SQLITE_NOTADB": ("this holds no results of a sweep", "name another file for the results"),
        "SQLITE_CORRUPT": ("the file is broken", "remove it and sweep again"),
    }
    name = getattr(error, "sqlite_errorname", "")
    message, hint = messages_and_hints.get(name, (f"cannot be used: {error}", ""))
    return Misuse(message, where=path, hint=hint)
