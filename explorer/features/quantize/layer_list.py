"""List widget with the format and the loss of each quantized layer."""

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
    """List of layers, one per row; layers without a format are dim."""

    rows: Sequence[QuantizedLayer] = ()
    exact = False

    def set_rows(self, rows: Sequence[QuantizedLayer]) -> None:
        """Show other layers. The cursor stays on the same layer if possible."""
        name = self.current.name if self.current is not None else ""
        self.rows, self.table = rows, layers(rows)
        self.move_to_layer(name)
        self.refresh_rows()

    table: Table = Table((), ())

    @property
    def current(self) -> QuantizedLayer | None:
        """The layer under the cursor."""
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def move_to_layer(self, name: str) -> None:
        """Move the cursor to a layer if the list contains it."""
        index = next((index for index, layer in enumerate(self.rows) if layer.name == name), None)
        if index is not None:
            self.move_to(index)

    def title(self, width: int) -> Line:
        """Build the line of column titles."""
        return title_line(self.table, width - 1, self.exact) if self.rows else ()

    def row_line(self, index: int, width: int) -> Line:
        """Build the line of row `index`, `width` cells wide."""
        line = row_line(self.table, index, width - 1, self.exact, mark=("   ", "text"))
        return tuple((text, "dim") for text, _ in line) if self.rows[index].reason else line

    def action_up(self) -> None:
        """Move up one row. From the first row of a dialog's list, move to the previous field."""
        if self.cursor or not self.screen.is_modal:
            super().action_up()
        else:
            self.screen.focus_previous()


def sort_by_loss(rows: Sequence[QuantizedLayer]) -> list[QuantizedLayer]:
    """Sort layers by the SNR at their output, worst first; layers without a value come last."""
    return sorted(rows, key=lambda layer: math.inf if layer.output_snr_db is None else layer.output_snr_db)
