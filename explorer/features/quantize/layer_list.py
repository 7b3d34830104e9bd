"""The list of a quantization's layers: the format and loss of each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from explorer.facts.quantize import QuantizedLayer
from explorer.features.quantize.quantize_words import layers
from explorer.report.blocks import Table
from explorer.tui.text.drawing import row_line, title_line
from explorer.tui.text.lines import Line
from explorer.tui.widgets.line_view import LineList


class QuantizedLayers(LineList):
    """One row for each layer; layers without a format are dim."""

    rows: Sequence[QuantizedLayer] = ()
    exact = False

    def take(self, rows: Sequence[QuantizedLayer]) -> None:
        """Show these layers; the cursor stays on the one that it was on."""
        name = self.current.name if self.current is not None else ""
        self.rows, self.table = rows, layers(rows)
        self.to_layer(name)
        self.rows_changed()

    table: Table = Table((), ())

    @property
    def current(self) -> QuantizedLayer | None:
        """The layer under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def to_layer(self, name: str) -> None:
        """Put the cursor on a layer, if it is there."""
        at = next((at for at, layer in enumerate(self.rows) if layer.name == name), None)
        if at is not None:
            self.move_to(at)

    def title(self, width: int) -> Line:
        """The titles of the columns."""
        return title_line(self.table, width - 1, self.exact) if self.rows else ()

    def row_line(self, index: int, width: int) -> Line:
        """Row `index` in `width` cells."""
        line = row_line(self.table, index, width - 1, self.exact, mark=("   ", "text"))
        return tuple((text, "dim") for text, _ in line) if self.rows[index].reason else line

    def action_up(self) -> None:
        """One row up, or out of the list of a dialog."""
        if self.cursor or not self.screen.is_modal:
            super().action_up()
        else:
            self.screen.focus_previous()


def by_loss(rows: Sequence[QuantizedLayer]) -> list[QuantizedLayer]:
    """The layers by loss at their output, the worst first; layers that did not run come last."""
    return sorted(rows, key=lambda layer: math.inf if layer.output_snr_db is None else layer.output_snr_db)
