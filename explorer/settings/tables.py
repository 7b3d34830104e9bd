"""Settings tables: a TOML file of the user's own as values that know the line where they stand.

`tomllib` reads and says nothing of lines, and neither does any kept library for TOML; but every prefix of
lines that is TOML by itself ends a statement, so the statements of a file that parses are found by parsing
them one by one. tomlkit writes: it makes `[[site]]` tables and comments, where tomli-w folds short tables
into lines of braces.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from explorer.base.errors import Misuse, nearest
from explorer.base.units import printable
from explorer.facts.cost import Hardware
from explorer.host import input_files
from explorer.settings.option_values import Reader, rule_values, table_readers, toml_values

Key = tuple[str | int, ...]

Readers = Mapping[str, Reader]
"""By the name of a setting what reads its value."""

_ELSEWHERE = frozenset({"machine", "profile", *Hardware.__struct_fields__})
"""What `--machine` reads in the same file."""

S = TypeVar("S", bound=Struct)

TABLES = ("tile", "site", "quantize", "step")
"""All tables of settings; a file may hold those of several subjects."""


class SettingsFile:
    """A file that is being read, and the lines of what it says.

    Args:
        data: What stands in the file.
        path: Where it stands, for complaints.

    Raises:
        Misuse: It is no TOML, or has a table that nobody reads.
    """

    def __init__(self, toml: bytes | str, path: str) -> None:
        text, self.content = input_files.toml(toml, path)
        self.path = path
        self._name = printable(os.path.basename(path))
        self._lines = _lines(text)
        for key in self.content:
            if key not in (*TABLES, *_ELSEWHERE):
                where = self._where((key,), self.path)
                raise Misuse(f"there is no table '{key}'", where=where, hint=nearest(key, TABLES))

    def values(self, table: Key, entries: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
        """The settings of a table, read.

        Raises:
            Misuse: There is no such setting, or its value cannot be.
        """
        values = {}
        for key, value in entries.items():
            where = self._where((*table, key), self.path)
            if key not in readers:
                raise Misuse(f"there is no setting '{key}'", where=where, hint=nearest(key, readers))
            values[key] = readers[key](value, where)
        return values

    def table(self, name: str) -> Mapping[str, Any]:
        """A table; empty where there is none.

        Raises:
            Misuse: It is something else.
        """
        entries = self.content.get(name, {})
        if not isinstance(entries, dict):
            where = self._where((name,), self.path)
            raise Misuse(f"'{name}' is no table", where=where, hint=f"write [{name}]")
        return entries

    def rules(
        self, key: tuple[str, ...], tables: Any, readers: Readers, asks: Collection[str]
    ) -> Iterator[dict[str, Any]]:
        """Tables of a list, each with its `origin`.

        Args:
            key: What they are called, and the tables around them.
            tables: What stands there.
            readers: What may stand in one.
            asks: What of it asks for something; a table without any is none.

        Raises:
            Misuse: It is no list of tables, or one of them cannot be.
        """
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            name, where = ".".join(key), self._where(key, self.path)
            raise Misuse(f"'{name}' is no list of tables", where=where, hint=f"write [[{name}]]")
        for at, table in enumerate(tables):
            rule = self.values((*key, at), table, readers)
            if not rule.keys() & set(asks):
                *some, last = [name for name in readers if name in asks and name != "on"]
                hint = f"add {', '.join((*some, last))}" + ", or on = false" * ("on" in readers)
                raise Misuse("it asks for nothing", where=self._where((*key, at), self.path), hint=hint)
            yield {**rule, "origin": self.origin((*key, at))}

    def origin(self, key: Key) -> str:
        """Where an entry stands, as a table of settings says it: 'npu.toml:12'."""
        return self._where(key, self._name)

    def _where(self, key: Key, name: str) -> str:
        """The file and the line of an entry, or of the nearest thing around it that has one."""
        for end in range(len(key), 0, -1):
            if key[:end] in self._lines:
                return f"{name}:{self._lines[key[:end]]}"
        return name


def content(path: str) -> bytes:
    """What stands in a file.

    Raises:
        Misuse: It cannot be read.
    """
    try:
        return input_files.content(path)
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None


def _lines(text: str) -> dict[tuple[str | int, ...], int]:
    """The line, from 1, of every table and entry that is not inside a value; `text` is TOML.

    The tables of a list are numbered: ('site', 0, 'tile').
    """
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for line, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            plain = next(_paths(parsed))
            table = _numbered(plain, counts, statement.lstrip().startswith("[["))
            lines.setdefault(table, line)
            lines.setdefault(plain, line)
            continue
        for path in _paths(parsed):
            for end in range(1, len(path) + 1):
                lines.setdefault((*table, *path[:end]), line)
    return lines


def _statements(text: str) -> Iterator[tuple[int, str]]:
    """The statements of a text that is TOML, with the lines where they begin."""
    begun, statement = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            bare = line.strip()
            if not bare or bare.startswith("#"):
                continue
            begun = number
        goes_on, statement = bool(statement), f"{statement}{line}\n"
        # a value of several lines may end here; each time it takes a look at all of them to know
        if goes_on and not ('"""' in line or "'''" in line or "]" in re.sub(input_files.QUOTED, "", line)):
            continue
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # a list or a text that goes on
            continue
        yield begun, statement
        statement = ""


def _paths(parsed: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The keys of a statement; one that is dotted has several, one inside the other."""
    for key, value in parsed.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and inner:
            for path in _paths(inner):
                yield (key, *path)
        else:
            yield (key,)


def _numbered(
    path: tuple[str, ...], counts: dict[tuple[str | int, ...], int], listed: bool
) -> tuple[str | int, ...]:
    """The path of a table with the numbers of the lists that it lies in."""
    key: tuple[str | int, ...] = ()
    for at, part in enumerate(path):
        key = (*key, part)
        if listed and at == len(path) - 1:
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            key = (*key, counts[key])
    return key


def written(tables: Mapping[str, Any], heading: Sequence[str] = ()) -> str:
    """A file with these tables and lists of tables, of which the empty ones are left out.

    Args:
        tables: By name; a table may have a list of tables among its values.
        heading: Lines of comment above them.
    """
    import tomlkit

    document = tomlkit.document()
    for line in heading:
        document.add(tomlkit.comment(printable(line)))
    for name, entries in tables.items():
        if entries:
            document.add(name, _as_tables(entries))
    return tomlkit.dumps(document)


def _as_tables(value: Any) -> Any:
    import tomlkit

    if isinstance(value, dict):
        # a list of tables stands behind what is of the table itself
        table = tomlkit.table()
        for key, entry in value.items():
            if entry != []:
                table.add(key, _as_tables(entry))
        return table
    if isinstance(value, list):
        listed = tomlkit.aot()
        for entry in value:
            listed.append(_as_tables(entry))
        return listed
    return list(value) if isinstance(value, tuple) else value


def read_spec(
    toml: bytes | str, path: str, spec: type[S], rule: type[Any], *, table: str, rules: tuple[str, ...]
) -> S:
    """The specification that a file holds: a table of values, and a list of tables for single sites.

    Args:
        toml: What stands in the file.
        path: Where it stands.
        spec: The record of the specification, with the fields `rules`, `origins` and `config`.
        rule: The record of a rule.
        table: The table of values.
        rules: The list of rules: a list of its own, or one in the table.

    Raises:
        Misuse: It is no TOML, or says something that cannot be.
    """
    file = SettingsFile(toml, path)
    entries = dict(file.table(table))
    listed = entries.pop(rules[-1], []) if len(rules) > 1 else file.content.get(rules[0], [])
    values = file.values((table,), entries, table_readers(spec))
    rule_tables = file.rules(rules, listed, table_readers(rule), rule_values(rule))
    origins = tuple((name, file.origin((table, name))) for name in values)
    more: Any = {
        "rules": tuple(rule(**values_of_rule) for values_of_rule in rule_tables),
        "origins": origins,
        "config": path,
    }
    return spec(**values, **more)


def written_spec(spec: Any, *, table: str, rules: tuple[str, ...], heading: Sequence[str] = ()) -> str:
    """A file that says what a specification says: only what differs from the defaults, and the rules.

    Args:
        spec: As `read_spec` returns it.
        table: See `read_spec`.
        rules: See `read_spec`.
        heading: Lines of comment above it.
    """
    general = toml_values(spec)
    rule_tables = [
        toml_values(rule) for rule in spec.rules if set(toml_values(rule)) & set(rule_values(type(rule)))
    ]
    if len(rules) > 1:
        return written(
            {table: {**general, rules[-1]: rule_tables}} if general or rule_tables else {}, heading
        )
    return written({table: general, rules[0]: rule_tables}, heading)
