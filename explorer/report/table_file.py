"""Table export: writes layers or tilings as a CSV or JSON file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.host import output_files
from explorer.report.csv_table import format_csv
from explorer.report.document import layers as layers_document
from explorer.report.document import overlay
from explorer.report.document import sweep as sweep_document

if TYPE_CHECKING:
    from explorer.facts import Analysis
    from explorer.facts.external.overlay import Overlay
    from explorer.facts.sweep import Sweep


def write_layers(analysis: Analysis, path: str, outside: Overlay | None = None) -> None:
    """Write all layers to `path`, like `explorer layers --csv` or `--json`.

    External figures become additional columns. The file appears only when it is complete.

    Raises:
        Misuse: The path ends neither in .csv nor in .json, or the file cannot be written.
    """

    def document() -> dict[str, Any]:
        layer_document = layers_document(analysis, _format_tool())
        if outside is None:
            return layer_document
        figures = outside.figures.items()
        rows = [
            {**row, **{name: f.get(row["id"]) for name, f in figures}} for row in layer_document["layers"]
        ]
        return {**layer_document, "layers": rows, "overlay": overlay(outside)}

    write_document(document(), "layers", path)


def write_sweep(fact: Sweep, path: str) -> None:
    """Write tilings to `path`, like `explorer sweep --csv` or `--json`.

    Raises:
        Misuse: The path ends neither in .csv nor in .json, or the file cannot be written.
    """
    write_document(sweep_document(fact, _format_tool()), "rows", path)


def _format_tool() -> str:
    return f"explorer {__version__}"


def write_document(document: dict[str, Any], rows: str, path: str) -> None:
    """Write a document to a .json file, or its list `rows` to a .csv file.

    Raises:
        Misuse: The path ends neither in .csv nor in .json, or the file cannot be written.
    """
    with write_text_file(format_document(document, rows, path), path):
        pass


def format_document(document: dict[str, Any], rows: str, path: str) -> str:
    """Return the text that `write_document` writes.

    Raises:
        Misuse: The path ends neither in .csv nor in .json.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".csv", ".json"):
        raise Misuse("the file name's ending selects the format", where=path, hint="use .csv or .json")
    if ending == ".csv":
        return format_csv(document[rows])
    return json.dumps(document, indent=2, allow_nan=False) + "\n"


@contextmanager
def write_text_file(text: str, path: str, overwrite: bool = True) -> Iterator[None]:
    """Write a text to `path` if the block ends without an error. Nested blocks write all files or none.

    Raises:
        Misuse: The file cannot be written.
    """
    with output_files.write_atomically(path, overwrite=overwrite) as temporary:
        with output_files.open_text(temporary) as file:
            file.write(text)
        yield
