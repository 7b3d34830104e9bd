"""Mapping files: the levels of each matrix product of a model as TOML.

    version = 1
    machine = "npu"

    [[site]]
    name = "/fc1/Gemm"
    size = [512, 768, 3072]
    [[site.level]]
    memories = "scratchpad accumulator"
    order = "mnk"
    tile = [128, 64, 192]
    [[site.level]]
    memories = "array"
    order = "mnk"
    tile = [64, 64, 64]

A level may also have `split`, the cores along M, K and N, and `keep`, the operands that it holds whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from explorer.base.errors import Misuse, nearest
from explorer.facts.mapping import NestLevel, SiteMapping
from explorer.host import input_files

VERSION = 1

_SITE_KEYS = ("name", "size", "batch", "level")
_LEVEL_KEYS = ("memories", "order", "tile", "split", "keep")


class FileSite(NamedTuple):
    """A site of a mapping file.

    Attributes:
        size: M, K and N.
        batch: Number of products.
        levels: Levels from the outermost in.
        memories: Names of the memories of each level, as text.
    """

    size: tuple[int, int, int]
    batch: int
    levels: tuple[NestLevel, ...]
    memories: tuple[str, ...]


class MappingFile(NamedTuple):
    """Content of a mapping file.

    Attributes:
        path: Path of the file.
        machine: Name of the machine.
        sites: Sites by name.
    """

    path: str
    machine: str
    sites: Mapping[str, FileSite]


def mapping_text(machine: str, sites: Sequence[tuple[SiteMapping, Sequence[str]]]) -> str:
    """Writes mappings as TOML.

    Args:
        machine: Name of the machine.
        sites: Mapping of each site, and the names of the memories of its levels.
    """
    import tomlkit  # imported late: only writing needs it

    document = tomlkit.document()
    document.add("version", tomlkit.item(VERSION))
    document.add("machine", tomlkit.item(machine))
    tables = tomlkit.aot()
    for mapping, memories in sites:
        table = tomlkit.table()
        table.add("name", mapping.site)
        table.add("size", list(mapping.size))
        if mapping.batch > 1:
            table.add("batch", mapping.batch)
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
        content = input_files.toml(input_files.content(path), path)[1]
    except (FileNotFoundError, NotADirectoryError):
        raise Misuse(
            "there is no such file", where=path, hint="explorer map MODEL -o FILE writes one"
        ) from None
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None
    _check_keys(content, ("version", "machine", "site"), path)
    version = content.get("version")
    if version != VERSION:
        raise Misuse(
            f"version {version!r} of a mapping file", where=path, hint=f"this program reads {VERSION}"
        )
    sites = content.get("site", [])
    machine = content.get("machine")
    if not isinstance(sites, list) or not sites or not isinstance(machine, str):
        raise Misuse("it holds no mapping", where=path, hint="explorer map MODEL -o FILE writes one")
    entries = {}
    for number, entry in enumerate(sites, 1):
        where = f"{path}, site {number}"
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            raise Misuse("a site without a name", where=where)
        entries[entry["name"]] = _site(entry, f"{path}, site '{entry['name']}'")
    return MappingFile(path, machine, entries)


def _check_keys(entry: Mapping[str, Any], keys: Sequence[str], where: str) -> None:
    for key in entry:
        if key not in keys:
            raise Misuse(f"there is no field '{key}'", where=where, hint=nearest(key, keys))


def _site(entry: Mapping[str, Any], where: str) -> FileSite:
    _check_keys(entry, _SITE_KEYS, where)
    levels = []
    memories = []
    rows = entry.get("level")
    if not isinstance(rows, list) or not rows:
        raise Misuse("a site without levels", where=where, hint="write [[site.level]]")
    for number, row in enumerate(rows, 1):
        place = f"{where}, level {number}"
        if not isinstance(row, dict):
            raise Misuse("a level that is no table", where=place)
        _check_keys(row, _LEVEL_KEYS, place)
        memories.append(str(row.get("memories", "")))
        fields = {key: value for key, value in row.items() if key != "memories"}
        levels.append(_converted(fields, NestLevel, place))
    size = _converted(entry.get("size"), tuple[int, int, int], f"{where}, size")
    batch = _converted(entry.get("batch", 1), int, f"{where}, batch")
    return FileSite(size, batch, tuple(levels), tuple(memories))


def _converted(value: Any, kind: Any, where: str) -> Any:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        message = str(error)
        raise Misuse(message[:1].lower() + message[1:], where=where) from None
