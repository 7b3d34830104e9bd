"""The dialog of open sizes: every dimension that the model names, and the size that it is bound to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.widgets import Input, Static

from explorer.base.errors import ExplorerError
from explorer.settings.parse import parse_count
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import middle, safe, wrap
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.text_input import text_input

__all__ = ["SizesDialog"]

_MOST = 64
"""Sizes that have a field; a model of more is opened with --dim."""
_LABEL = 11


class SizesDialog(Dialog[dict[str, int]]):
    """Asks for sizes; answers with those that are bound.

    Args:
        sizes: What there is to bind, and to what it is bound; None for what is open.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]
    TITLE_TEXT = "Open sizes"
    HINT = "↑↓ choose · Enter apply · Esc cancel"

    def __init__(self, sizes: Mapping[str, int | None], *, blink: bool = False) -> None:
        super().__init__()
        self._sizes, self._blink = sizes, blink
        self._shown = list(sizes)[:_MOST]

    def body(self) -> ComposeResult:
        """What is in the box."""
        with Vertical(id="sizes") as fields:  # a scrolling one would take the arrow keys for itself
            fields.styles.overflow_y = "auto"
            fields.styles.height = min(len(self._shown), max(3, self.app.size.height - 9))
            for at, name in enumerate(self._shown):
                size = self._sizes[name]
                with Horizontal(classes="form-row"):
                    yield Static(middle(safe(name), _LABEL), classes="form-label", markup=False)
                    yield text_input(
                        "" if size is None else str(size),
                        placeholder="open",
                        blink=self._blink,
                        id=f"size-{at}",
                        longest=20,
                    )
        yield LineView(id="said")

    def on_mount(self) -> None:
        """Go to the first field."""
        self.query_one("#said", LineView).can_focus = False
        self.query(Input).first().focus()
        self._tell()

    @on(Input.Changed)
    def _tell(self) -> None:
        """Which are bound, or what cannot be read."""
        try:
            bound, role = self.bound(), "dim"
            left = [name for name in self._sizes if name not in bound]
            said = f"Open: {', '.join(map(safe, left))}. What depends on it is unknown." if left else ""
        except ExplorerError as error:
            said, role = str(error), "bad"
        more = len(self._sizes) - len(self._shown)
        also = f"{more:,} more are bound at the start: --dim NAME=SIZE" if more else ""
        texts = ((said, role), (also, "dim"))
        self.query_one("#said", LineView).show(
            lambda width: [line for text, tone in texts if text for line in wrap(((text, tone),), width)]
        )

    def bound(self) -> dict[str, int]:
        """The sizes in the fields; what is empty is open.

        Raises:
            ExplorerError: One is no size.
        """
        typed = {name: self.query_one(f"#size-{at}", Input).value for at, name in enumerate(self._shown)}
        sizes = {name: parse_count(text, safe(name), 1) for name, text in typed.items() if text.strip()}
        kept = {name: size for name, size in self._sizes.items() if name not in typed and size is not None}
        return {**kept, **sizes}

    def action_apply(self) -> None:
        """Bind them."""
        try:
            self.dismiss(self.bound())
        except ExplorerError:
            self.app.bell()
