"""Option field: a dialog field with a few words to choose from, like radio buttons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, Self

from textual import events
from textual.binding import Binding, BindingType
from textual.message import Message
from textual.widgets import Static

from explorer.base.options import DeclaredOption
from explorer.tui.text.lines import Line, fit
from explorer.tui.widgets.line_view import RoleLines

_LABEL = 12
"""Default width of a label in cells. The last cell is the space before the first word, which is highlighted
together with the word."""
STACKED = "-fields-below"
"""CSS class of a screen that shows each field in its own row, so that up and down keys move between fields.
"""


class FieldLabel(Static):
    """Label of a declared option before a text input.

    Args:
        option: Declared option, which the help of the dialog explains.
        second: Whether the label stands beside another field in the same row.
    """

    def __init__(self, option: DeclaredOption, *, second: bool = False) -> None:
        super().__init__(option.declared.label, classes=f"form-label{' second' * second}", markup=False)
        self.option = option


def name_operators(operators: Iterable[str], otherwise: str) -> str:
    """Return the word for all rows with these operators: 'all Conv and Gemm'.

    For no operator and for more than two it is `otherwise`.
    """
    names = sorted(set(operators))
    return f"all {' and '.join(names)}" if 0 < len(names) <= 2 else otherwise


class OptionField(RoleLines, can_focus=True):
    """A choice between a few words with the left and right keys.

    Args:
        label: Label before the field.
        words: Words to choose from.
        value: Initial word; the first one if `words` does not contain it.
        id: ID of the widget.
        label_width: Width of the label in cells.

    Attributes:
        option: Declared option that this field sets, which the help of the dialog explains. None if the field
            sets no declared option.
    """

    option: DeclaredOption | None = None

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("left,h", "step(-1)", show=False),
        Binding("right,l,space", "step(1)", show=False),
    ]
    DEFAULT_CSS = "OptionField { height: 1; width: 1fr; }"

    class WordChosen(Message):
        """Sent when the user chose another word."""

        def __init__(self, field: OptionField) -> None:
            super().__init__()
            self.field = field

        @property
        def control(self) -> OptionField:
            """The field that changed."""
            return self.field

    def __init__(
        self, label: str, words: Sequence[str], value: str = "", *, id: str, label_width: int = _LABEL
    ) -> None:
        super().__init__(id=id)
        self._label, self._label_width = label, label_width
        self.words = tuple(words)
        self.index = self.words.index(value) if value in self.words else 0

    @classmethod
    def from_option(
        cls,
        option: DeclaredOption,
        value: str = "",
        *,
        words: Sequence[str] = (),
        id: str = "",
        label_width: int = _LABEL,
    ) -> Self:
        """Create the field of a declared option, with the label and the words of the declaration.

        Args:
            option: Declared option.
            value: See `OptionField`.
            words: Words in place of the declared ones.
            id: ID of the widget; by default the name of the option.
            label_width: See `OptionField`.
        """
        declared = option.declared
        words = words or declared.words or option.choices
        field = cls(declared.label, words, value, id=id or option.name, label_width=label_width)
        field.option = option
        return field

    @property
    def _label_cells(self) -> int:
        """Cells before the words. All fields of a stacked screen have the same number."""
        return _LABEL if self._label_width > 1 and self.screen.has_class(STACKED) else self._label_width

    @property
    def label(self) -> str:
        """The label, padded to its width."""
        return fit(self._label, self._label_cells - 1)

    @property
    def value(self) -> str:
        """The chosen word."""
        return self.words[self.index]

    def set_words(self, words: Sequence[str]) -> None:
        """Replace the words, keeping the index of the choice."""
        self.words = tuple(words)
        self.refresh()

    def line_at(self, y: int) -> Line:
        """Return line `y` of the field."""
        start, stop = self._find_slice()
        label = self.label[:-1] + "…" if start and self.label.endswith(" ") else self.label
        spans: list[tuple[str, str]] = [(label, "dim")]
        has_more = stop < len(self.words)
        room = max(1, self.size.width - len(label) - 2 - 2 * has_more)
        for i, word in enumerate(self.words[start:stop], start):
            role = "mark" if self.has_focus else "head"  # bold, so that the choice is visible without colors
            # a narrow field has no room for a long word that is chosen
            text = fit(word, min(len(word), room)) if i == self.index else word
            spans += [(f" {text} ", role if i == self.index else "dim"), (" ", "text")]
        return (*spans[:-1], ("…" if has_more else "", "dim"))

    def _find_slice(self) -> tuple[int, int]:
        """Return the slice of the words around the chosen word that fits."""
        word_cells, start, stop = self.size.width - self._label_cells + 1, self.index, self.index + 1
        while start and self._count_cells(start - 1, stop) <= word_cells:
            start -= 1
        while stop < len(self.words) and self._count_cells(start, stop + 1) <= word_cells:
            stop += 1
        return start, stop

    def _count_cells(self, start: int, stop: int) -> int:
        """Return the width of a slice of the words in cells; one cell is for '…' if more words follow."""
        return sum(len(word) + 3 for word in self.words[start:stop]) - (stop == len(self.words))

    def action_step(self, step: int) -> None:
        """Choose the neighboring word."""
        self.index = (self.index + step) % len(self.words)
        self.refresh()
        self.post_message(self.WordChosen(self))

    async def on_click(self, event: events.Click) -> None:
        """Choose the clicked word."""
        x, (start, stop) = self._label_cells - 1, self._find_slice()
        for i, word in enumerate(self.words[start:stop], start):
            if x <= event.x < x + len(word) + 2:
                self.index = i
                self.refresh()
                self.post_message(self.WordChosen(self))
                return
            x += len(word) + 3
