"""Data frames of facts: their rows as a frame of pandas or polars, with the names of the JSON document."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from msgspec import Struct

from explorer.base.errors import MissingExtra, Misuse
from explorer.base.fact import FrameLibrary, TableFact
from explorer.facts import Analysis, LayerTable, to_json
from explorer.facts.summary import Summary
from explorer.host.optional_packages import format_error
from explorer.report.csv_table import list_columns
from explorer.report.document import table
from explorer.report.json_records import encode_layer

_LIBRARIES: tuple[FrameLibrary, ...] = get_args(FrameLibrary)


def build_frame(fact: TableFact, library: FrameLibrary | None) -> Any:
    """Return the rows of a fact as a data frame; see `TableFact.to_frame`."""
    if library is not None and library not in _LIBRARIES:
        hint = f"choose from: {', '.join(_LIBRARIES)}"
        raise Misuse(f"there are no data frames of '{library}'", where="to_frame(library)", hint=hint)
    name = library or _choose_library(type(fact).__name__)
    frames = _import_library(name, type(fact).__name__)
    # a column of polars has one type: a figure may be whole in one row and not in another
    options = {"strict": False} if name == "polars" else {}
    return frames.DataFrame(list_columns(_list_rows(fact)), **options)


def _choose_library(fact_name: str) -> FrameLibrary:
    """Choose a library that is imported already, or else an installed library.

    Raises:
        MissingExtra: Neither is installed.
    """
    imported = [name for name in _LIBRARIES if sys.modules.get(name) is not None]
    installed = imported or [name for name in _LIBRARIES if importlib.util.find_spec(name) is not None]
    if not installed:
        raise MissingExtra(
            "this needs pandas or polars, and neither is installed",
            where=f"{fact_name}.to_frame",
            hint="type: pip install pandas",
        )
    return installed[0]


def _import_library(name: FrameLibrary, fact_name: str) -> Any:
    """Import a library of data frames.

    Raises:
        MissingExtra: The library is not installed or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except Exception as error:  # a package that does not match its numpy may raise any exception
        is_missing = isinstance(error, ModuleNotFoundError)
        fault = "is not installed" if is_missing else f"cannot be imported ({format_error(error)})"
        command = f"type: pip install {name}"
        raise MissingExtra(f"{name} {fault}", where=f"{fact_name}.to_frame", hint=command) from error


def _list_rows(fact: TableFact) -> Sequence[Mapping[str, Any]]:
    """List the rows of a fact as records of the JSON document."""
    if isinstance(fact, LayerTable):
        rows: list[Mapping[str, Any]] = table(fact, "")["table"]
        return rows
    if isinstance(fact, (Analysis, Summary)):
        return [encode_layer(layer) for layer in fact.layers]
    return [_build_record(row) for row in getattr(fact, type(fact).ROWS)]


def _build_record(row: Struct) -> dict[str, Any]:
    """Return the fields of a row. Infinite numbers and NaN stay numbers, unlike in JSON."""
    values = {name: getattr(row, name) for name in row.__struct_fields__}
    return {name: value if isinstance(value, float) else to_json(value) for name, value in values.items()}
