"""Settings files: TOML tables, with the line of every entry.

No maintained TOML library reports line numbers, not even `tomllib`. This module therefore splits a valid file
into statements. A statement is the shortest group of lines that parses as TOML. tomlkit writes the files,
because it can write `[[site]]` tables and comments; tomli-w turns short tables into inline tables.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import printable
from explorer.facts.cost import Hardware
from explorer.host import input_files
from explorer.settings.option_values import Reader, build_table_readers, list_rule_values, list_toml_values

Key = tuple[str | int, ...]
"""Path of an entry: names of tables and settings, and indices of tables in lists: ('site', 0, 'tile')."""

Readers = Mapping[str, Reader]
"""Readers of values by the name of the setting."""

_MACHINE_KEYS = frozenset({"machine", "profile", *Hardware.__struct_fields__})
"""Tables and settings that `--machine` reads from the same file."""

Spec = TypeVar("Spec", bound=Struct)

TABLES = ("tile", "site", "quantize", "step")
"""All tables of settings. A file may contain the tables of several verbs."""


class SettingsFile:
    """A settings file with the line of each entry.

    Args:
        toml: Contents of the file.
        path: Path of the file, for errors.

    Raises:
        Misuse: The file is not TOML, or has an unknown table.
    """

    def __init__(self, toml: bytes | str, path: str) -> None:
        text, self.content = input_files.parse_toml(toml, path)
        self.path = path
        self._name = printable(os.path.basename(path))
        self._lines = find_lines(text)
        for key in self.content:
            if key not in (*TABLES, *_MACHINE_KEYS):
                where = self._find_place((key,), self.path)
                raise Misuse(f"there is no table '{key}'", where=where, hint=suggest_name(key, TABLES))

    def read_values(self, table: Key, entries: Mapping[str, Any], readers: Readers) -> dict[str, Any]:
        """Reads the settings of a table.

        Args:
            table: Path of the table, for errors.
            entries: Entries of the table.
            readers: Readers of the allowed settings.

        Raises:
            Misuse: A setting is unknown, or its value is invalid.
        """
        values = {}
        for key, value in entries.items():
            where = self._find_place((*table, key), self.path)
            if key not in readers:
                raise Misuse(f"there is no setting '{key}'", where=where, hint=suggest_name(key, readers))
            values[key] = readers[key](value, where)
        return values

    def read_table(self, name: str) -> Mapping[str, Any]:
        """Returns the entries of a table at the top level; empty if the table does not exist.

        Raises:
            Misuse: The entry is not a table.
        """
        entries = self.content.get(name, {})
        if not isinstance(entries, dict):
            where = self._find_place((name,), self.path)
            raise Misuse(f"'{name}' is not a table", where=where, hint=f"write [{name}]")
        return entries

    def read_rules(
        self, key: tuple[str, ...], tables: Any, readers: Readers, value_names: Collection[str]
    ) -> Iterator[dict[str, Any]]:
        """Reads the tables of a list. Yields the settings of each table, with its place as 'origin'.

        Args:
            key: Name of the list, with the names of the enclosing tables.
            tables: Value of the list in the file.
            readers: Readers of the settings of a table.
            value_names: Settings that are not conditions. Every table must have at least one of them.

        Raises:
            Misuse: The value is not a list of tables, or a table is invalid.
        """
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            name, where = ".".join(key), self._find_place(key, self.path)
            raise Misuse(f"'{name}' is not a list of tables", where=where, hint=f"write [[{name}]]")
        for index, table in enumerate(tables):
            rule = self.read_values((*key, index), table, readers)
            if not rule.keys() & set(value_names):
                *names, last = [name for name in readers if name in value_names and name != "on"]
                hint = f"add {', '.join((*names, last))}" + ", or on = false" * ("on" in readers)
                raise Misuse("it sets nothing", where=self._find_place((*key, index), self.path), hint=hint)
            yield {**rule, "origin": self.format_origin((*key, index))}

    def format_origin(self, key: Key) -> str:
        """Returns the place of an entry with the base name of the file: 'npu.toml:12'."""
        return self._find_place(key, self._name)

    def _find_place(self, key: Key, name: str) -> str:
        """Returns the place 'name:line' of an entry, or of the nearest enclosing entry with a known line."""
        for end in range(len(key), 0, -1):
            if key[:end] in self._lines:
                return f"{name}:{self._lines[key[:end]]}"
        return name


def read_content(path: str) -> bytes:
    """Reads a file.

    Raises:
        Misuse: The file cannot be read.
    """
    try:
        return input_files.read_content(path)
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None


def find_lines(text: str) -> dict[tuple[str | int, ...], int]:
    """Finds the line number, from 1, of every table and entry in a TOML text, by path (see `Key`).

    An entry of an inline table has the line on which its statement begins. Elements of lists have no lines.
    """
    lines: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for line, statement in _list_statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            plain = next(_list_key_paths(parsed))
            table = _add_indices(plain, counts, statement.lstrip().startswith("[["))
            lines.setdefault(table, line)
            lines.setdefault(plain, line)
            continue
        for path in _list_key_paths(parsed):
            for end in range(1, len(path) + 1):
                lines.setdefault((*table, *path[:end]), line)
    return lines


def _list_statements(text: str) -> Iterator[tuple[int, str]]:
    """Yields (line number, text) of each statement of a TOML text. A statement may have several lines."""
    first_line, statement = 0, ""
    for number, line in enumerate(text.split("\n"), 1):
        if not statement:
            bare = line.strip()
            if not bare or bare.startswith("#"):
                continue
            first_line = number
        is_continued, statement = bool(statement), f"{statement}{line}\n"
        # parse again only where a multi-line value can end, because each attempt parses all its lines
        if is_continued and not (
            '"""' in line or "'''" in line or "]" in re.sub(input_files.QUOTED, "", line)
        ):
            continue
        try:
            tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # the list or text continues on the next line
            continue
        yield first_line, statement
        statement = ""


def _list_key_paths(parsed: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """Yields the path of each key in a parsed statement; a dotted key or inline table has several parts."""
    for key, value in parsed.items():
        inner = value[0] if isinstance(value, list) and value else value
        if isinstance(inner, dict) and inner:
            for path in _list_key_paths(inner):
                yield (key, *path)
        else:
            yield (key,)


def _add_indices(
    path: tuple[str, ...], counts: dict[tuple[str | int, ...], int], is_listed: bool
) -> tuple[str | int, ...]:
    """Adds the indices of enclosing lists to the path of a table.

    Args:
        path: Path of the table.
        counts: Index of the latest table of each list, by path; updated.
        is_listed: Whether the table is a new table of a list: `[[site]]`.
    """
    key: tuple[str | int, ...] = ()
    for index, part in enumerate(path):
        key = (*key, part)
        if is_listed and index == len(path) - 1:
            counts[key] = counts.get(key, -1) + 1
        if key in counts:
            key = (*key, counts[key])
    return key


def write_tables(tables: Mapping[str, Any], heading: Sequence[str] = ()) -> str:
    """Writes a file with tables and lists of tables. Empty tables and lists are omitted.

    Args:
        tables: Tables by name. A table may contain a list of tables.
        heading: Lines of comment at the top.
    """
    import tomlkit

    document = tomlkit.document()
    for line in heading:
        document.add(tomlkit.comment(printable(line)))
    for name, entries in tables.items():
        if entries:
            document.add(name, _convert_to_tables(entries))
    return tomlkit.dumps(document)


def _convert_to_tables(value: Any) -> Any:
    """Converts dictionaries and lists of dictionaries to tomlkit's tables and lists of tables."""
    import tomlkit

    if isinstance(value, dict):
        # lists of tables follow the values of the table
        table = tomlkit.table()
        for key, entry in value.items():
            if entry != []:
                table.add(key, _convert_to_tables(entry))
        return table
    if isinstance(value, list):
        tables = tomlkit.aot()
        for entry in value:
            tables.append(_convert_to_tables(entry))
        return tables
    return list(value) if isinstance(value, tuple) else value


def read_spec(
    toml: bytes | str, path: str, spec: type[Spec], rule: type[Any], *, table: str, rules: tuple[str, ...]
) -> Spec:
    """Reads a specification from a file: a table of values, and a list of tables for single sites.

    Args:
        toml: Contents of the file.
        path: Path of the file.
        spec: Record type of the specification, with the fields `rules`, `origins` and `config`.
        rule: Record type of a rule.
        table: Name of the table of values.
        rules: Name of the list of rules, at the top level or in the table.

    Raises:
        Misuse: The text is not TOML or is invalid.
    """
    file = SettingsFile(toml, path)
    entries = dict(file.read_table(table))
    rule_list = entries.pop(rules[-1], []) if len(rules) > 1 else file.content.get(rules[0], [])
    values = file.read_values((table,), entries, build_table_readers(spec))
    rule_tables = file.read_rules(rules, rule_list, build_table_readers(rule), list_rule_values(rule))
    origins = tuple((name, file.format_origin((table, name))) for name in values)
    table_fields: Any = {
        "rules": tuple(rule(**rule_values) for rule_values in rule_tables),
        "origins": origins,
        "config": path,
    }
    return spec(**values, **table_fields)


def write_spec(spec: Any, *, table: str, rules: tuple[str, ...], heading: Sequence[str] = ()) -> str:
    """Writes a specification as a file: the values that differ from the defaults, and the rules with values.

    Args:
        spec: Specification, as `read_spec` returns it.
        table: See `read_spec`.
        rules: See `read_spec`.
        heading: Lines of comment at the top.
    """
    general = list_toml_values(spec)
    rule_tables = [
        list_toml_values(rule)
        for rule in spec.rules
        if set(list_toml_values(rule)) & set(list_rule_values(type(rule)))
    ]
    if len(rules) > 1:
        return write_tables(
            {table: {**general, rules[-1]: rule_tables}} if general or rule_tables else {}, heading
        )
    return write_tables({table: general, rules[0]: rule_tables}, heading)
