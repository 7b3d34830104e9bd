"""Evaluation dialog, which asks for a data file, and the screen with the scores of the states on it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.app import ComposeResult
from textual.binding import BindingType

from explorer.base.errors import Misuse
from explorer.features.training.evaluate_words import evaluation
from explorer.settings.parse import write_path_word
from explorer.tui.commands.context import ScreenCommand
from explorer.tui.dialogs.dialogs import FormDialog
from explorer.tui.dialogs.report import ReportScreen
from explorer.tui.text.drawing import draw
from explorer.tui.text.keys import bindings, key_group
from explorer.tui.text.lines import BLANK, Line, escape_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from explorer.facts.evaluate.evaluation import Evaluation
    from explorer.report.blocks import Block


# fmt: off
EVALUATION_KEYS = key_group(
    "In an evaluation",
    ("figures_exact", ("e",), "e", "Exact or rounded", "0.848 or 84.8 %"),
    ("figures_copy", ("y",), "y", "Copy", "Copy the whole page as Markdown to the clipboard"),
)
# fmt: on


class EvaluationRequest(NamedTuple):
    """Data file, name of the labels, and path of another model. An empty field means the default or none."""

    data: str = ""
    labels: str = ""
    other: str = ""


class EvaluateDialog(FormDialog[EvaluationRequest]):
    """Ask for the samples.

    Args:
        last: Initial content of the fields.
        states: Number of states to evaluate.
    """

    TITLE_TEXT = "Evaluate on data"
    HINT = "↑↓ choose · Enter evaluate · Esc cancel"

    def __init__(self, last: EvaluationRequest, states: int) -> None:
        super().__init__()
        self._last, self._state_count = last, states

    def compose_fields(self) -> ComposeResult:
        """Yield the fields for the data, the labels and another model."""
        yield from self.compose_row("data", self._last.data, "test.npz, test.csv", "data")
        yield from self.compose_row("labels", self._last.labels, "by name", "labels")
        yield from self.compose_row("beside", self._last.other, "another model", "other")

    def describe(self) -> list[tuple[str, str]]:
        """State the evaluated models and the default labels."""
        subject = "The model as opened and the current one" if self._state_count > 1 else "The model"
        return [
            (f"{subject} on every sample of the file: accuracy, loss, confused classes.", "dim"),
            ("Labels: an array or column; by default y, labels, target, or the last column.", "dim"),
        ]

    def read_answer(self) -> EvaluationRequest:
        """Return the request that the fields describe."""
        request = EvaluationRequest(*(self.get_text(name).strip() for name in ("data", "labels", "other")))
        if not request.data:
            raise Misuse("there is no file", where="data")
        return request


class EvaluationScreen(ReportScreen[None]):
    """Show the scores of models on a data file.

    Args:
        fact: Scores of the models.
        exact: Whether to show exact instead of rounded numbers.
    """

    BINDINGS: ClassVar[list[BindingType]] = bindings(EVALUATION_KEYS)

    def __init__(self, fact: Evaluation, *, exact: bool = False) -> None:
        super().__init__(exact=exact)
        self._fact = fact

    def head(self) -> tuple[Line, Line]:
        """Build the title with the numbers of models and samples."""
        count = len(self._fact.models)
        counts = f" {count:,} model{'s' * (count > 1)} on {self._fact.samples:,} samples"
        return ((" Evaluation", "strong"), (f"   {escape_name(self._fact.data)}", "dim")), ((counts, "dim"),)

    def report_lines(self, width: int) -> Sequence[Line]:
        """Build the lines that `explorer evaluate` prints."""
        return [BLANK, *draw(evaluation(self._fact), width - 1, self._exact)]

    def page_blocks(self) -> Sequence[Block]:
        """Return the blocks of the whole page."""
        return evaluation(self._fact)

    def verb_words(self, source: str) -> Sequence[str]:
        """Return the command line that prints the same scores; empty if a state is not saved in a file."""
        other_sources = [model.source for model in self._fact.models[1:]]
        if not all(os.path.exists(source_path) for source_path in other_sources):
            return []
        labels = ["--labels", self._fact.labels] if self._fact.labels else []
        return [
            "evaluate",
            source,
            *map(write_path_word, other_sources),
            "--data",
            write_path_word(self._fact.data),
            *labels,
        ]


class EvaluateCommand(ScreenCommand):
    """Command that scores the opened and the current model on a data file."""

    def run(self) -> None:
        """Open the dialog."""
        if self.context.ready():
            dialog = EvaluateDialog(EvaluationRequest(*self.store.evaluated), len(self._list_states()))
            self.context.ask(dialog, self._handle_answer)

    def _list_states(self) -> list[int]:
        return sorted({0, self.store.history_place})

    def _handle_answer(self, request: EvaluationRequest | None) -> None:
        if request is not None:
            self.store.evaluated = request.data, request.labels, request.other
            self.context.start("Evaluation", self._evaluate(request))

    async def _evaluate(self, request: EvaluationRequest) -> None:
        fact: Evaluation = await self.jobs.run(
            "evaluating",
            "evaluate",
            os.path.expanduser(request.data),
            labels=request.labels,
            states=self._list_states(),
            others=[os.path.expanduser(request.other)] if request.other else [],
        )
        self.context.ask(EvaluationScreen(fact, exact=self.store.exact), lambda _: None)
