"""Evaluation on the screen: asks for a data file, and shows how well the states do on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import Misuse
from explorer.report.html.draw import markdown_text
from explorer.report.present.compare.evaluate import evaluation
from explorer.settings.parse import path_word
from explorer.tui.dialogs.dialogs import FormDialog, SubScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group, keys_line
from explorer.tui.text.lines import BLANK, Line, safe
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.strips import Status, TitleBar

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.evaluate.evaluation import Evaluation
    from explorer.report.blocks import Block

_FOOTER = (("↑↓", "scroll"), ("e", "exact"), ("y", "copy as Markdown"), ("Esc", "back"))

# fmt: off
EVALUATION_KEYS = key_group(
    "In an evaluation",
    ("evaluation_exact", ("e",), "e", "Exact or rounded", "84.8 % or 0.848"),
    ("evaluation_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
)
# fmt: on


class EvaluationRequest(NamedTuple):
    """The file, the array or column of labels, and another model; empty for the usual, or for none."""

    data: str = ""
    labels: str = ""
    other: str = ""


class EvaluateDialog(FormDialog[EvaluationRequest]):
    """Asks for the samples.

    Args:
        last: What was typed last.
        states: How many states stand beside each other.
    """

    TITLE_TEXT = "Evaluate on data"
    HINT = "↑↓ choose · Enter evaluate · Esc cancel"

    def __init__(self, last: EvaluationRequest, states: int, *, blink: bool = False) -> None:
        super().__init__(blink=blink)
        self._last, self._states = last, states

    def fields(self) -> ComposeResult:
        """The fields."""
        yield from self.entry("data", self._last.data, "test.npz, test.csv", "data")
        yield from self.entry("labels", self._last.labels, "by name", "labels")
        yield from self.entry("beside", self._last.other, "another model", "other")

    def meaning(self) -> list[tuple[str, str]]:
        """What goes in, and what comes out."""
        whose = "The model as opened and the current one" if self._states > 1 else "The model"
        return [
            (f"{whose} on every sample of the file: accuracy, loss, what is confused.", "dim"),
            ("Labels: an array or column; by default y, labels, target, or the last column.", "dim"),
        ]

    def answer(self) -> EvaluationRequest:
        """What the fields say."""
        found = EvaluationRequest(*(self.text_of(name).strip() for name in ("data", "labels", "other")))
        if not found.data:
            raise Misuse("there is no file", where="data")
        return found


class EvaluationScreen(SubScreen[None]):
    """Models side by side on a data file.

    Args:
        fact: What was found.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(EVALUATION_KEYS)
    AUTO_FOCUS = "#figures"

    def __init__(self, fact: Evaluation, *, exact: bool = False) -> None:
        super().__init__()
        self._fact, self._exact = fact, exact

    def compose(self) -> ComposeResult:
        """The parts."""
        yield TitleBar()
        yield LineView(id="figures")
        yield Status(id="figure-keys")

    def on_mount(self) -> None:
        """Show the page."""
        many = len(self._fact.models)
        said = f" {many:,} model{'s' * (many > 1)} on {self._fact.samples:,} samples"
        head = (((" Evaluation", "strong"), (f"   {safe(self._fact.data)}", "dim")), ((said, "dim"),))
        self.query_one(TitleBar).show(lambda width: head)
        self.query_one("#figures", LineView).show(self._page)
        self.query_one(Status).show(lambda width: (keys_line(_FOOTER, width),))

    def _page(self, width: int) -> Sequence[Line]:
        return [BLANK, *draw(evaluation(self._fact), width - 1, self._exact)]

    def page_blocks(self) -> Sequence[Block]:
        """All of it."""
        return evaluation(self._fact)

    def verb_words(self, source: str) -> Sequence[str]:
        """As one types it; a state that is in no file cannot be told to a verb."""
        others = [model.source for model in self._fact.models[1:]]
        if not all(os.path.exists(other) for other in others):
            return []
        labels = ["--labels", self._fact.labels] if self._fact.labels else []
        return ["evaluate", source, *map(path_word, others), "--data", path_word(self._fact.data), *labels]

    def action_evaluation_exact(self) -> None:
        """Write the figures out, or round them."""
        self._exact = not self._exact
        self.query_one("#figures", LineView).show(self._page)

    def action_evaluation_copy(self) -> None:
        """Send the page to the terminal's clipboard."""
        self.app.copy_to_clipboard(markdown_text(evaluation(self._fact)))
        self.query_one(Status).show(lambda width: (((" sent to terminal as Markdown", "dim"),),))
