"""Evaluation: the model as opened and the current one on the samples of a file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from explorer.features.training.evaluate_dialog import EvaluateDialog, EvaluationRequest, EvaluationScreen
from explorer.tui.commands.context import ScreenCommand

if TYPE_CHECKING:
    from explorer.facts.evaluate.evaluation import Evaluation


class EvaluateCommand(ScreenCommand):
    """Asks for a data file, and shows accuracy, loss and agreement."""

    def run(self) -> None:
        """Ask."""
        if self.context.ready():
            dialog = EvaluateDialog(EvaluationRequest(*self.store.evaluated), len(self._states()))
            self.context.ask(dialog, self._take)

    def _states(self) -> list[int]:
        return sorted({0, self.store.history_place})

    def _take(self, request: EvaluationRequest | None) -> None:
        if request is not None:
            self.store.evaluated = request.data, request.labels, request.other
            self.context.start("Evaluation", self._evaluate(request))

    async def _evaluate(self, request: EvaluationRequest) -> None:
        fact: Evaluation = await self.jobs.run(
            "evaluating",
            "evaluate",
            os.path.expanduser(request.data),
            labels=request.labels,
            states=self._states(),
            others=[os.path.expanduser(request.other)] if request.other else [],
        )
        self.context.ask(EvaluationScreen(fact, exact=self.store.exact), lambda _: None)
