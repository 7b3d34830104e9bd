"""Tiling file: tilings in a file of the user's own: a tile for all sites, and what is asked of some of them.

    [tile]
    tile = "64x64x64"         # or 64, or [64, 64, 64]: rows x depth x columns
    edges = "ragged"
    form = "auto"
    grouped = "leave"
    sites = ["*classifier*"]  # only these; all without it

    [[site]]                  # the first table that means a site and has a value decides that value
    site = "*fc2*"            # a name or a glob; so is op
    op = "Gemm"
    shape = "M>=64 N<=1000"   # conditions on the sizes
    tile = 32
    on = false                # leave it as it is

Precedence: the defaults, then the file, then what was typed on the command line. Every value knows where it
was said, down to the line.

`tomllib` reads and says nothing of lines, and neither does any kept library for TOML; but every prefix of
lines that is TOML by itself ends a statement, so the statements of a file that parses are found by parsing
them one by one. tomlkit writes: it makes `[[site]]` tables and comments, where tomli-w folds short tables
into lines of braces.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from msgspec.structs import replace

from explorer.base.errors import Misuse, nearest
from explorer.base.units import printable
from explorer.facts import Edges, Form, Plan, TileRule, TileSpec
from explorer.facts.cost import Hardware
from explorer.facts.tiling import Grouped
from explorer.host import input_files
from explorer.settings.parse import parse_choice, parse_conditions, parse_tile

COMMAND_LINE = "command line"
"""Origin of what was typed."""

_ASKS = frozenset({"tile", "edges", "form", "on"})
"""What a rule can ask for; one that asks for nothing is none."""

_ELSEWHERE = frozenset({"machine", "profile", *Hardware.__struct_fields__})
"""What `--machine` reads in the same file."""


def spec_of(path: str | None, typed: Mapping[str, Any]) -> TileSpec:
    """The specification that holds: default < file < command line.

    What was typed holds for every site, over the file's own tables too; so does `sites`, which decides what
    is switched on.

    Args:
        path: Of the file; None for none.
        typed: Fields of `TileSpec` that were really typed.

    Raises:
        Misuse: The file cannot be read, or says something that cannot be; file and line are named.
    """
    spec = TileSpec() if path is None else read(path)
    unset = {value: None for value in ("tile", "edges", "form") if value in typed}
    if "sites" in typed:
        unset["on"] = None
    rules = tuple(replace(rule, **unset) for rule in spec.rules)
    said = {**dict(spec.origins), **dict.fromkeys(typed, COMMAND_LINE)}
    return replace(spec, **typed, rules=rules, origins=tuple(said.items()))


def read(path: str) -> TileSpec:
    """What a file says: its `[tile]`, with the defaults where it says nothing, and its `[[site]]` tables.

    Raises:
        Misuse: It cannot be read, is no TOML, or says something that cannot be.
    """
    try:
        return read_text(input_files.content(path), path)
    except OSError as error:
        raise Misuse(f"cannot be read ({error.strerror or error})", where=path) from None


def read_text(data: bytes | str, path: str) -> TileSpec:
    """As `read`, of what stands in the file `path`."""
    return _File(path, *input_files.toml(data, path)).read()


class _File:
    """A file that is being read, and the lines of what it says."""

    def __init__(self, path: str, text: str, content: Mapping[str, Any]) -> None:
        self.path, self.content = path, content
        self.name = printable(os.path.basename(path))
        self.lines = _lines(text)

    def read(self) -> TileSpec:
        for key in self.content:
            if key not in ("tile", "site", *_ELSEWHERE):
                raise Misuse(
                    f"there is no table '{key}'",
                    where=self._where((key,), self.path),
                    hint=nearest(key, ("tile", "site")),
                )
        general = self.content.get("tile", {})
        if not isinstance(general, dict):
            raise Misuse("'tile' is no table", where=self._where(("tile",), self.path), hint="write [tile]")
        values = self._values(("tile",), general, _GENERAL)
        tables = self.content.get("site", [])
        if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
            where = self._where(("site",), self.path)
            raise Misuse("'site' is no list of tables", where=where, hint="write [[site]]")
        rules = []
        for at, table in enumerate(tables):
            entry: tuple[str | int, ...] = ("site", at)
            rule = self._values(entry, table, _PARTICULAR)
            if not rule.keys() & _ASKS:
                where = self._where(entry, self.path)
                raise Misuse("it asks for nothing", where=where, hint="add tile, edges, form, or on = false")
            rules.append(TileRule(**rule, origin=self._where(entry, self.name)))
        origins = tuple((name, self._where(("tile", name), self.name)) for name in values)
        return TileSpec(**values, rules=tuple(rules), origins=origins, config=self.path)

    def _values(
        self, table: tuple[str | int, ...], entries: Mapping[str, Any], known: Mapping[str, Any]
    ) -> dict[str, Any]:
        values = {}
        for key, value in entries.items():
            where = self._where((*table, key), self.path)
            if key not in known:
                raise Misuse(f"there is no setting '{key}'", where=where, hint=nearest(key, known))
            values[key] = known[key](value, where)
        return values

    def _where(self, key: tuple[str | int, ...], name: str) -> str:
        """The file and the line of an entry, or of the nearest thing around it that has one."""
        for end in range(len(key), 0, -1):
            if key[:end] in self.lines:
                return f"{name}:{self.lines[key[:end]]}"
        return name


def _lines(text: str) -> dict[tuple[str | int, ...], int]:
    """The line, from 1, of every table and entry that is not inside a value; `text` is TOML.

    The tables of a list are numbered: ('site', 0, 'tile').
    """
    found: dict[tuple[str | int, ...], int] = {}
    counts: dict[tuple[str | int, ...], int] = {}
    table: tuple[str | int, ...] = ()
    for line, statement in _statements(text):
        parsed = tomllib.loads(statement)
        if statement.lstrip().startswith("["):
            plain = next(_paths(parsed))
            table = _numbered(plain, counts, statement.lstrip().startswith("[["))
            found.setdefault(table, line)
            found.setdefault(plain, line)
            continue
        for path in _paths(parsed):
            for end in range(1, len(path) + 1):
                found.setdefault((*table, *path[:end]), line)
    return found


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
        if goes_on and not ('"""' in line or "'''" in line or "]" in input_files.QUOTED.sub("", line)):
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


# values


def _tile(value: Any, where: str) -> tuple[int, int, int]:
    sizes = value if isinstance(value, list) else [value]
    if isinstance(value, str):
        return parse_tile(value, where)
    if all(isinstance(size, int) and not isinstance(size, bool) for size in sizes):
        return parse_tile("x".join(map(str, sizes)), where)
    raise Misuse(f"'{value}' is not a tile size", where=where, hint='write 64, "64x32x16" or [64, 32, 16]')


def _one_of(words: Sequence[str]) -> Any:
    def read(value: Any, where: str) -> str:
        return parse_choice(_text(value, where), words, where)

    return read


def _text(value: Any, where: str) -> str:
    if not isinstance(value, str) or not value:
        raise Misuse(f"'{value}' is no text", where=where, hint='write "..."')
    return value


def _texts(value: Any, where: str) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(_text(one, where) for one in values)


def _flag(value: Any, where: str) -> bool:
    if not isinstance(value, bool):
        raise Misuse(f"'{value}' is neither true nor false", where=where)
    return value


def _shape(value: Any, where: str) -> str:
    text = _text(value, where)
    parse_conditions(text, where)
    return text


_BOTH: Mapping[str, Any] = {"tile": _tile, "edges": _one_of(get_args(Edges)), "form": _one_of(get_args(Form))}
_GENERAL: Mapping[str, Any] = {**_BOTH, "grouped": _one_of(get_args(Grouped)), "sites": _texts}
_PARTICULAR: Mapping[str, Any] = {"site": _text, "op": _text, "shape": _shape, **_BOTH, "on": _flag}


# writing


def as_toml(spec: TileSpec, heading: Sequence[str] = ()) -> str:
    """A file that says what `spec` says: only what differs from the defaults, and the rules.

    Args:
        spec: The specification.
        heading: Lines of comment above it.
    """
    import tomlkit

    document = tomlkit.document()
    for line in heading:
        document.add(tomlkit.comment(printable(line)))
    general = tomlkit.table()
    for name in _GENERAL:
        value = getattr(spec, name)
        if value != getattr(TileSpec(), name):
            general.add(name, _plain(name, value))
    if general:
        document.add("tile", general)
    tables = tomlkit.aot()
    asking = [rule for rule in spec.rules if any(getattr(rule, name) is not None for name in _ASKS)]
    for rule in asking:
        table = tomlkit.table()
        for name in _PARTICULAR:
            value = getattr(rule, name)
            if value not in (None, ""):
                table.add(name, _plain(name, value))
        tables.append(table)
    if asking:
        document.add("site", tables)
    return tomlkit.dumps(document)


def chosen_by_hand(plans: Sequence[Plan], every: Sequence[str]) -> TileSpec:
    """What was tiled, one plan after the other, as rules by the names of sites.

    Args:
        plans: What was done; a site that stands in two is as in the later one.
        every: All sites of the model as it was opened; those that no plan has are switched off.
    """
    chosen: dict[str, TileRule] = {}
    for plan in plans:
        for site in plan.sites:
            # what is the default anyway is left out; so are the edges of the batched form, which has one kind
            edges = site.edges if site.form != "batched" else plan.edges
            chosen[site.name] = TileRule(
                escape_glob(site.name),
                tile=site.tile,
                edges=edges if edges != TileSpec().edges else None,  # type: ignore[arg-type]
                form=site.form if plan.form != "auto" else None,  # type: ignore[arg-type]
            )
    rest = set(every) - chosen.keys()
    rules = [replace(rule, on=True) for rule in chosen.values()] if rest else list(chosen.values())
    return TileSpec(rules=(*rules, TileRule("*", on=False)) if rest else tuple(rules))


def _plain(name: str, value: Any) -> Any:
    if name == "tile":
        return "x".join(map(str, value))
    return list(value) if isinstance(value, tuple) else value


def escape_glob(name: str) -> str:
    """A glob that means the site `name` and no other."""
    return re.sub(r"([*?[])", r"[\1]", name)
