"""Evaluation on the screen: asks for a data file, and shows how well the states do on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import Misuse
from explorer.features.training.evaluate_words import evaluation
from explorer.settings.parse import path_word
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, safe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.evaluate.evaluation import Evaluation
    from explorer.report.blocks import Block


# fmt: off
EVALUATION_KEYS = key_group(
    "In an evaluation",
    ("figures_exact", ("e",), "e", "Exact or rounded", "84.8 % or 0.848"),
    ("figures_copy", ("y",), "y", "Copy", "Send the whole page to the terminal as Markdown"),
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

    def __init__(self, last: EvaluationRequest, states: int) -> None:
        super().__init__()
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


class EvaluationScreen(ReportScreen[None]):
    """Models side by side on a data file.

    Args:
        fact: What was found.
        exact: Exact or rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(EVALUATION_KEYS)

    def __init__(self, fact: Evaluation, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._fact = fact

    def head(self) -> tuple[Line, Line]:
        """How many models on how many samples."""
        many = len(self._fact.models)
        said = f" {many:,} model{'s' * (many > 1)} on {self._fact.samples:,} samples"
        return ((" Evaluation", "strong"), (f"   {safe(self._fact.data)}", "dim")), ((said, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """What `explorer evaluate` prints."""
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
