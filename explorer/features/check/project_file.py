"""Budgets in `pyproject.toml`: the table `[tool.explorer]`, with a table for each model.

    [tool.explorer]
    against = "explorer-baseline.json"

    [tool.explorer."models/net.onnx"]
    max-macs = "4.1G"
    max-params = "+0%"
    dim = "batch=1"

A setting outside of the tables of models applies to each model whose table does not set it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from explorer.base.errors import Misuse, suggest_name
from explorer.facts.check import CheckSpec
from explorer.features.check.baseline import name_model
from explorer.host import input_files
from explorer.settings.option_values import Reader, build_table_readers, read_text
from explorer.settings.parse import parse_dims, parse_input_shapes
from explorer.settings.tables import Key, find_lines, read_content

FILE = "pyproject.toml"
_TABLE: Key = ("tool", "explorer")


class ProjectModel(Struct, frozen=True):
    """Budgets of one model.

    Attributes:
        name: Name of the model, as in the file.
        source: Path or name with which the model is opened.
        values: Settings by name: fields of `CheckSpec`, `machine`, and keywords of `Session`.
        where: Place of its table: 'pyproject.toml:12'.
    """

    name: str
    source: str
    values: Mapping[str, Any]
    where: str


class Project(Struct, frozen=True):
    """Budgets of a project.

    Attributes:
        path: Path of the file.
        against: Path of the baseline, or None.
        values: Settings for models whose table does not set them.
        models: Budgets of models by name.
    """

    path: str
    against: str | None
    values: Mapping[str, Any]
    models: Mapping[str, ProjectModel]

    def find(self, source: str) -> ProjectModel | None:
        """Return the budgets of a model that the user typed, or None."""
        folder = os.path.dirname(os.path.abspath(self.path))
        return self.models.get(source) or self.models.get(name_model(source, folder))


def read_project(path: str | None) -> Project | None:
    """Read the budgets of a project.

    Args:
        path: Path of the file. None takes the `pyproject.toml` of the working folder or of the nearest folder
            above it that has one.

    Returns:
        The budgets, or None if the file or its table does not exist.

    Raises:
        Misuse: The file is not TOML, has an unknown setting, or was named and has no budgets.
    """
    file = path or _find_file()
    if file is None:
        return None
    text, content = input_files.parse_toml(read_content(file), file)
    tool = content.get("tool", {})
    table = tool.get("explorer") if isinstance(tool, dict) else None
    if table is None and path is None:
        return None
    if not isinstance(table, dict):
        hint = 'write [tool.explorer."model.onnx"] and max-macs = "4.1G"'
        raise Misuse("there is no table [tool.explorer]", where=file, hint=hint)
    return _ProjectReader(file, text).read(table)


def _find_file() -> str | None:
    """Return the path of the `pyproject.toml` in the working folder or the nearest folder above, or None."""
    folder = os.path.abspath(os.curdir)
    while True:
        path = os.path.join(folder, FILE)
        if os.path.isfile(path):
            return os.path.relpath(path)
        parent = os.path.dirname(folder)
        if parent == folder:
            return None
        folder = parent


def _read_dims(value: Any, where: str) -> dict[str, int]:
    return parse_dims(_list_texts(value, where), where)


def _read_input_shapes(value: Any, where: str) -> Any:
    return parse_input_shapes(_list_texts(value, where), where)


def _list_texts(value: Any, where: str) -> list[str]:
    return [read_text(text, where) for text in (value if isinstance(value, list) else [value])]


_SESSION_READERS: Mapping[str, tuple[str, Callable[[Any, str], Any]]] = {
    "dim": ("dims", _read_dims),
    "input_shape": ("input_shapes", _read_input_shapes),
    "machine": ("machine", read_text),
}
"""Settings other than budgets: the key in `ProjectModel.values`, and the reader of the value."""


class _ProjectReader:
    """Reads the table of a file. Errors name the line of the entry."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._text = text
        self._readers: dict[str, Reader] = build_table_readers(CheckSpec)

    def read(self, table: Mapping[str, Any]) -> Project:
        """Read the table of the file."""
        models = {name: entry for name, entry in table.items() if isinstance(entry, dict)}
        shared = {name: value for name, value in table.items() if name not in models and name != "against"}
        values = self._read_values(_TABLE, shared)
        folder = os.path.dirname(self._path)
        against = table.get("against")
        if against is not None:
            against = os.path.join(folder, read_text(against, self._find_place((*_TABLE, "against"))))
        return Project(
            self._path,
            against,
            values,
            {
                name: ProjectModel(
                    name,
                    self._find_source(name, folder),
                    {**values, **self._read_values((*_TABLE, name), entry)},
                    self._find_place((*_TABLE, name)),
                )
                for name, entry in models.items()
            },
        )

    def _find_source(self, name: str, folder: str) -> str:
        """Return the path of a model relative to the file, or `name` if it is no path of an existing file.

        A path may end with a colon and a name in the file.
        """
        path = os.path.join(folder, name)
        is_file = os.path.exists(path) or os.path.exists(path.rpartition(":")[0] or path)
        return path if is_file else name

    def _read_values(self, table: Key, entries: Mapping[str, Any]) -> dict[str, Any]:
        """Read the settings in `table` for `ProjectModel.values`.

        Raises:
            Misuse: A setting is unknown or invalid.
        """
        values = {}
        for key, value in entries.items():
            name, where = key.replace("-", "_"), self._find_place((*table, key))
            if isinstance(value, dict):
                hint = f'write the name of a model in quotes: [tool.explorer."{table[-1]}.{key}"]'
                raise Misuse(f"'{key}' is a table in the table of a model", where=where, hint=hint)
            if name in self._readers:
                values[name] = self._readers[name](value, where)
            elif name in _SESSION_READERS:
                keyword, reader = _SESSION_READERS[name]
                values[keyword] = reader(value, where)
            else:
                valid_names = [name.replace("_", "-") for name in (*self._readers, *_SESSION_READERS)]
                hint = suggest_name(name.replace("_", "-"), [*valid_names, "against"])
                raise Misuse(f"there is no setting '{key}'", where=where, hint=hint)
        return values

    def _find_place(self, key: Key) -> str:
        lines = find_lines(self._text)
        line = next((lines[key[:end]] for end in range(len(key), 0, -1) if key[:end] in lines), None)
        return self._path if line is None else f"{self._path}:{line}"
