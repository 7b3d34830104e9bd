"""Mapping files: the levels of each matrix product of a model as TOML.

    version = 1
    machine = "npu"

    [[site]]
    name = "/fc1/Gemm"
    size = [512, 768, 3072]
    dtype = "int8"
    accumulator = "int32"
    [[site.level]]
    memories = "scratchpad accumulator"
    order = "mnk"
    tile = [128, 64, 192]
    [[site.level]]
    memories = "array"
    order = "mnk"
    tile = [64, 64, 64]

The line `grouped = "pack"` or `grouped = "leave"` says how grouped convolutions are mapped. Without it, each
group is one product.
A site may also have `right`, the number type of B, and `output`, the number type of the finished C. A level
may also have `split`, the cores along M, K and N, and `keep`, the operands that it holds completely.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, get_args

from explorer.base.errors import Misuse, suggest_name
from explorer.facts.mapping import GroupForm, LoopOrder, NestLevel, SiteMapping
from explorer.host import input_files
from explorer.settings.toml_lines import find_line

VERSION = 1

_TYPE_KEYS = ("dtype", "right", "accumulator", "output")
_SITE_KEYS = ("name", "size", "batch", *_TYPE_KEYS, "level")
_MAX_SIZE = 1 << 40


class FileSite(NamedTuple):
    """A site of a mapping file.

    Attributes:
        size: M, K and N.
        batch: Number of products.
        levels: Levels from the outermost in.
        memories: Names of the memories of each level, as text; '' if the file does not name them.
        types: Number types by key: 'dtype', 'right', 'accumulator', 'output'; only those in the file.
        line: Line of the site, for errors: ':7', or ''.
    """

    size: tuple[int, int, int]
    batch: int
    levels: tuple[NestLevel, ...]
    memories: tuple[str, ...]
    types: Mapping[str, str] = {}
    line: str = ""


class MappingFile(NamedTuple):
    """Content of a mapping file.

    Attributes:
        path: Path of the file.
        machine: Name of the machine.
        sites: Sites by name.
        grouped: Handling of grouped convolutions.
    """

    path: str
    machine: str
    sites: Mapping[str, FileSite]
    grouped: GroupForm = "batch"


def format_mappings(
    machine: str, sites: Sequence[tuple[SiteMapping, Sequence[str]]], grouped: GroupForm = "batch"
) -> str:
    """Writes mappings as TOML.

    Args:
        machine: Name of the machine.
        sites: Mapping of each site, and the names of the memories of its levels.
        grouped: Handling of grouped convolutions.
    """
    import tomlkit  # imported late: only writing needs it

    document = tomlkit.document()
    document.add("version", tomlkit.item(VERSION))
    document.add("machine", tomlkit.item(machine))
    if grouped != "batch":
        document.add("grouped", tomlkit.item(grouped))
    tables = tomlkit.aot()
    for mapping, memories in sites:
        table = tomlkit.table()
        table.add("name", mapping.site)
        table.add("size", list(mapping.size))
        if mapping.batch > 1:
            table.add("batch", mapping.batch)
        for key in _TYPE_KEYS:
            if (dtype := getattr(mapping, key)) and not (key == "output" and dtype == mapping.accumulator):
                table.add(key, dtype)
        levels = tomlkit.aot()
        for level, names in zip(mapping.levels, memories, strict=True):
            entry = tomlkit.table()
            entry.add("memories", names)
            entry.add("order", level.order)
            entry.add("tile", list(level.tile))
            if level.split != (1, 1, 1):
                entry.add("split", list(level.split))
            if level.keep:
                entry.add("keep", level.keep)
            levels.append(entry)
        table.add("level", levels)
        tables.append(table)
    document.add("site", tables)
    return tomlkit.dumps(document)


def read_mapping(path: str) -> MappingFile:
    """Reads a mapping file.

    Raises:
        Misuse: The file cannot be read, has an unknown field, or has a field of a wrong type.
    """
    try:
        text, content = input_files.parse_toml(input_files.read_content(path), path)
    except (FileNotFoundError, NotADirectoryError):
        raise Misuse(
            "there is no such file", where=path, hint="explorer map MODEL -o FILE writes one"
        ) from None
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None
    reader = _Reader(path, text)
    reader.check_keys(content, ("version", "machine", "grouped", "site"), [])
    version = content.get("version")
    if version != VERSION:
        raise Misuse(
            f"version {version!r} of a mapping file",
            where=path + find_line(reader.text, [], "version"),
            hint=f"this program reads {VERSION}",
        )
    sites = content.get("site", [])
    machine = content.get("machine")
    if not isinstance(sites, list) or not sites or not isinstance(machine, str):
        raise Misuse("it holds no mapping", where=path, hint="explorer map MODEL -o FILE writes one")
    grouped = content.get("grouped", "batch")
    if grouped not in get_args(GroupForm):
        hint = suggest_name(str(grouped), get_args(GroupForm)) or 'write grouped = "batch"'
        raise reader.build_misuse(
            f"'grouped' is {_shorten(grouped)}, not batch, pack or leave", [], "grouped", hint
        )
    entries: dict[str, FileSite] = {}
    for index, entry in enumerate(sites):
        table = [("site", index)]
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise reader.build_misuse("a site without a name", table, hint='write name = "/fc1/Gemm"')
        if entry["name"] in entries:
            raise reader.build_misuse(
                f"a second mapping of '{entry['name']}'", table, "name", hint="leave one of them out"
            )
        entries[entry["name"]] = reader.read_site(entry, table)
    return MappingFile(path, machine, entries, grouped)


_Table = Sequence[tuple[str, int]]
"""Path of a table: (name, index) of each nested table, as `find_line` needs it."""


class _Reader:
    """Reads the tables of a mapping file and names the line of a wrong field.

    Attributes:
        path: Path of the file.
        text: Its content.
    """

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text = path, text

    def build_misuse(self, problem: str, table: _Table, key: str = "", hint: str = "") -> Misuse:
        """Builds the error for a problem with a table, or with the field `key` in it."""
        place = find_line(self.text, table, key) or find_line(self.text, table)
        if not place and table:
            place = ", " + ", ".join(f"{name} {index + 1}" for name, index in table)
        return Misuse(problem, where=f"{self.path}{place}", hint=hint)

    def check_keys(self, entry: Mapping[str, Any], keys: Sequence[str], table: _Table) -> None:
        """Checks that a table has only fields in `keys`.

        Raises:
            Misuse: A field is unknown.
        """
        for key in entry:
            if key not in keys:
                raise self.build_misuse(
                    f"there is no field '{key}'", table, key, hint=suggest_name(key, keys)
                )

    def read_site(self, entry: Mapping[str, Any], table: _Table) -> FileSite:
        """Reads a table `[[site]]`.

        Raises:
            Misuse: A field is unknown, missing or of a wrong type.
        """
        self.check_keys(entry, _SITE_KEYS, table)
        level_tables = entry.get("level")
        if not isinstance(level_tables, list) or not level_tables:
            raise self.build_misuse("a site without levels", table, hint="write [[site.level]]")
        levels, memories = [], []
        for index, row in enumerate(level_tables):
            place = [*table, ("level", index)]
            if not isinstance(row, dict):
                raise self.build_misuse("a level that is not a table", place, hint="write [[site.level]]")
            self.check_keys(row, tuple(_LEVEL_FIELDS), place)
            for key in ("order", "tile"):
                if key not in row:
                    raise self.build_misuse(
                        f"a level without '{key}'", place, hint=f"add {_LEVEL_FIELDS[key].example}"
                    )
            fields = {
                key: self.read_field(_LEVEL_FIELDS[key], value, place, key) for key, value in row.items()
            }
            memories.append(fields.pop("memories", ""))
            levels.append(NestLevel(**fields))
        if "size" not in entry:
            raise self.build_misuse("a site without a size", table, hint="add size = [512, 768, 3072]")
        types = {key: self.read_field(_TEXT, entry[key], table, key) for key in _TYPE_KEYS if key in entry}
        return FileSite(
            self.read_field(_SIZES, entry["size"], table, "size"),
            self.read_field(_NUMBER, entry.get("batch", 1), table, "batch"),
            tuple(levels),
            tuple(memories),
            types,
            find_line(self.text, table),
        )

    def read_field(self, kind: _Field, value: Any, table: _Table, key: str) -> Any:
        """Returns the value of a field after a check; lists become tuples.

        Raises:
            Misuse: The value is invalid.
        """
        if not kind.is_valid(value):
            raise self.build_misuse(
                f"'{key}' is {_shorten(value)}, not {kind.noun}", table, key, hint=f"write {kind.example}"
            )
        return tuple(value) if isinstance(value, list) else value


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


class _Field(NamedTuple):
    """A field of a mapping file: a description and an example of its value, and a check."""

    noun: str
    example: str
    is_valid: Callable[[Any], bool]


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= _MAX_SIZE


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(map(_is_count, value))


_NUMBER = _Field("a whole number of at least 1", "batch = 8", _is_count)
_SIZES = _Field("three whole numbers of at least 1, for M, K and N", "size = [512, 768, 3072]", _are_counts)
_TEXT = _Field("a text", 'dtype = "int8"', lambda value: isinstance(value, str) and bool(value))
_LEVEL_FIELDS: Mapping[str, _Field] = {
    "memories": _Field("a text", 'memories = "scratchpad"', lambda value: isinstance(value, str)),
    "order": _Field("an order of the loops", 'order = "mnk"', lambda value: value in get_args(LoopOrder)),
    "tile": _SIZES._replace(example="tile = [128, 64, 192]"),
    "split": _SIZES._replace(example="split = [2, 1, 4]"),
    "keep": _Field(
        "a list of operands", 'keep = "AB"', lambda value: isinstance(value, str) and set(value) <= set("ABC")
    ),
}
