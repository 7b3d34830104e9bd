"""The training dialog: the batch size and the optimizer of a training step."""

from __future__ import annotations

from typing import ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Input, Static

from explorer.facts.training import OPTIMIZERS, Optimizer
from explorer.tui.dialogs.dialogs import Dialog
from explorer.tui.text.lines import Line, wrap
from explorer.tui.widgets.line_view import LineView
from explorer.tui.widgets.options import OptionField
from explorer.tui.widgets.text_input import text_input

__all__ = ["TrainingDialog", "TrainingRequest", "parse_batch"]

TrainingRequest = tuple[str, int | None, Optimizer]


def parse_batch(text: str) -> int | None:
    """A batch size; None for the model's own.

    Raises:
        ValueError: It is no number above 0.
    """
    if not text.strip():
        return None
    batch = int(text)
    if batch < 1:
        raise ValueError(text)
    return batch


class TrainingDialog(Dialog[TrainingRequest]):
    """Asks for a training step; answers with the batch as typed, as a number, and the optimizer.

    Args:
        batch: What was typed last.
        optimizer: What was chosen last.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "apply", show=False, priority=True),
        Binding("up", "app.focus_previous", show=False),
        Binding("down", "app.focus_next", show=False),
    ]
    TITLE_TEXT = "A training step"
    HINT = "↑↓←→ choose · Enter count · Esc cancel"

    def __init__(self, batch: str, optimizer: Optimizer, *, blink: bool = False) -> None:
        super().__init__()
        self._batch, self._optimizer, self._blink = batch, optimizer, blink

    def body(self) -> ComposeResult:
        """What is in the box."""
        with Horizontal(classes="form-row"):
            yield Static("batch", classes="form-label", markup=False)
            yield text_input(self._batch, placeholder="as opened", blink=self._blink, id="batch")
        options = OptionField("optimizer", tuple(OPTIMIZERS), id="optimizer")
        options.index = list(OPTIMIZERS).index(self._optimizer)
        yield options
        yield LineView(id="said")

    def on_mount(self) -> None:
        """Go to the batch."""
        self.query_one("#said", LineView).can_focus = False
        self.query_one(Input).focus()
        self._tell()

    @on(Input.Changed)
    @on(OptionField.OptionChanged)
    def _tell(self) -> None:
        """What the optimizer keeps, or what is wrong with the batch."""
        view = self.query_one("#said", LineView)
        if self._request() is None:
            view.show(lambda width: _said("The batch is a number above 0, or nothing.", width, "bad"))
            return
        kept = OPTIMIZERS[self._chosen()]
        said = (
            f"It keeps {kept or 'no'} number{'' if kept == 1 else 's'} for every parameter that is trained."
        )
        view.show(lambda width: _said(said, width, "dim"))

    def _chosen(self) -> Optimizer:
        return list(OPTIMIZERS)[self.query_one(OptionField).index]

    def _request(self) -> TrainingRequest | None:
        text = self.query_one("#batch", Input).value
        try:
            return text, parse_batch(text), self._chosen()
        except ValueError:
            return None

    def action_apply(self) -> None:
        """Count it."""
        request = self._request()
        if request is not None:
            self.dismiss(request)


def _said(text: str, width: int, role: str) -> list[Line]:
    return wrap(((text, role),), width)
