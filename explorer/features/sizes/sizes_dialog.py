"""The dialog of open sizes: every dimension that the model names, and the size that it is bound to."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Vertical

from explorer.base.errors import ExplorerError
from explorer.settings.parse import parse_count
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.text.lines import middle, safe

_MOST = 64
"""Sizes that have a field; those of a model of more are bound when it is opened."""
_LABEL = 11


class SizesDialog(FormDialog[dict[str, int]]):
    """Asks for sizes; answers with those that are bound.

    Args:
        sizes: What there is to bind, and to what it is bound; None for what is open.
    """

    TITLE_TEXT = "Open sizes"
    HINT = "↑↓ choose · Enter apply · Esc cancel"

    def __init__(self, sizes: Mapping[str, int | None]) -> None:
        super().__init__()
        self._sizes = sizes
        self._shown = list(sizes)[:_MOST]

    def fields(self) -> ComposeResult:
        """The fields."""
        with Vertical(id="sizes") as fields:  # a scrolling one would take the arrow keys for itself
            fields.styles.overflow_y = "auto"
            fields.styles.height = min(len(self._shown), max(3, self.app.size.height - 9))
            for at, name in enumerate(self._shown):
                size = "" if self._sizes[name] is None else str(self._sizes[name])
                yield from self.entry(middle(safe(name), _LABEL), size, "open", f"size-{at}", longest=20)

    def meaning(self) -> list[tuple[str, str]]:
        """Which are open, or what cannot be read."""
        try:
            bound, role = self.answer(), "dim"
            left = [name for name in self._sizes if name not in bound]
            said = f"Open: {', '.join(left)}. What depends on it is unknown." if left else ""
        except ExplorerError as error:
            said, role = str(error), "bad"
        more = len(self._sizes) - len(self._shown)
        also = f"{more:,} more have no field: they are bound when the model is opened" if more else ""
        return [(said, role), (also, "dim")]

    def answer(self) -> dict[str, int]:
        """The sizes in the fields; what is empty is open."""
        typed = {name: self.text_of(f"size-{at}") for at, name in enumerate(self._shown)}
        sizes = {name: parse_count(text, safe(name), 1) for name, text in typed.items() if text.strip()}
        kept = {name: size for name, size in self._sizes.items() if name not in typed and size is not None}
        return {**kept, **sizes}
