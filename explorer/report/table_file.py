"""Table export: layers or tilings as a CSV or JSON file, for a spreadsheet or a script."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from explorer.base.errors import Misuse
from explorer.base.version import __version__
from explorer.host.output_files import atomic_write
from explorer.report.csv_table import csv_text
from explorer.report.document import layers as layers_document
from explorer.report.document import overlay
from explorer.report.document import sweep as sweep_document

if TYPE_CHECKING:
    from explorer.facts import Analysis
    from explorer.facts.beside.overlay import Overlay
    from explorer.facts.sweep import Sweep


def write_layers(analysis: Analysis, path: str, outside: Overlay | None = None) -> None:
    """Write every layer to `path`: .csv or .json, as `explorer layers --csv` or `--json` prints it.

    Figures from outside are columns behind the others.

    The file appears when it is complete.

    Raises:
        Misuse: Another ending, or the file cannot be written.
    """

    def document() -> dict[str, Any]:
        made = layers_document(analysis, _tool())
        if outside is None:
            return made
        figures = outside.figures.items()
        rows = [{**row, **{name: f.get(row["id"]) for name, f in figures}} for row in made["layers"]]
        return {**made, "layers": rows, "overlay": overlay(outside)}

    _write(path, document, "layers")


def write_sweep(fact: Sweep, path: str) -> None:
    """Write tilings to `path`, as `explorer sweep --csv` or `--json` prints them.

    Raises:
        Misuse: As `write_layers`.
    """
    _write(path, lambda: sweep_document(fact, _tool()), "rows")


def _tool() -> str:
    return f"explorer {__version__}"


def _write(path: str, make: Callable[[], dict[str, Any]], rows: str) -> None:
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".csv", ".json"):
        raise Misuse("the ending says the format", where=path, hint="use .csv or .json")
    document = make()
    with atomic_write(path, overwrite=True) as temporary, open(temporary, "w", encoding="utf-8") as file:
        if ending == ".json":
            json.dump(document, file, indent=2, allow_nan=False)
            file.write("\n")
        else:
            file.write(csv_text(document[rows]))
