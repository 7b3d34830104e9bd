"""The layer table as a file, for a spreadsheet or a script."""

from __future__ import annotations

import csv
import json
import os
from typing import TYPE_CHECKING, Any

import explorer
from explorer.errors import Misuse
from explorer.report.document import layers as layers_document

if TYPE_CHECKING:
    from explorer.facts import Analysis, Layer

__all__ = ["write_layers"]

_COLUMNS = (
    "id", "parent", "path", "kind", "depth", "calls", "params", "weight_bytes", "macs", "formula",
    "elementwise_ops", "bytes_read", "bytes_written", "activation_bytes", "status", "reason",
)  # fmt: skip


def write_layers(analysis: Analysis, path: str) -> None:
    """Write every layer to `path`: .csv, or .json as `explorer layers --json` prints it.

    An unknown figure is an empty cell or null. The file appears when it is complete.

    Raises:
        Misuse: Another ending, or the file cannot be written.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in (".csv", ".json"):
        raise Misuse("the ending says the format", where=path, hint="use .csv or .json")
    partial = f"{path}.partial"
    try:
        with open(partial, "w", encoding="utf-8", newline="") as file:
            if ending == ".json":
                json.dump(layers_document(analysis, f"explorer {explorer.__version__}"), file, indent=1)
            else:
                rows = csv.writer(file)
                rows.writerow(_COLUMNS)
                rows.writerows([_cell(layer, name) for name in _COLUMNS] for layer in analysis.layers)
        os.replace(partial, path)
    except OSError as error:
        if os.path.exists(partial):
            os.remove(partial)
        raise Misuse(error.strerror or "cannot be written", where=path) from error


def _cell(layer: Layer, name: str) -> Any:
    value = getattr(layer, name)
    return "" if value is None else value
