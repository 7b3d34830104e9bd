"""Lightning callback: prints the figures of a module when a fit starts, and logs them.

    import lightning
    from explorer.lightning import ExplorerSummary

    trainer = lightning.Trainer(callbacks=[ExplorerSummary()], enable_model_summary=False)

The inputs are those that the callback gets, or `example_input_array` of the module. Without both, Explorer
guesses the inputs from the first layers of the module.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

import explorer
from explorer.base.errors import UnknownShape
from explorer.facts import Info
from explorer.facts.comparison import collect_model_figures
from explorer.report.layout import Page
from explorer.report.present.look import info as presenter

__all__ = ["ExplorerSummary"]

_STORED = ("params", "weight_bytes")
_COMPUTED = ("macs", "activation_bytes_peak", "coverage")
"""Figures that are logged, as `explorer/macs` and the like, if they are exactly known.

Those in `_COMPUTED` depend on the inputs, so they are not logged for inputs that were guessed.
"""


class ExplorerSummary(Callback):
    """Print the totals of a module when a fit starts, and log them as metrics at step 0.

    If a module cannot be analyzed, training continues, and a warning gives the reason.

    Args:
        inputs: Inputs of the module's forward: a tensor, a tuple of tensors, or a dict of keyword inputs. If
            None, the inputs are `example_input_array` of the module. Without this array the inputs are
            guessed, and only figures of the weights are logged.
        log: Whether the loggers of the trainer receive the figures.
    """

    def __init__(self, *, inputs: Any = None, log: bool = True) -> None:
        self._inputs = inputs
        self._log = log

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print and log the figures, in the first process only."""
        if not trainer.is_global_zero:
            return
        inputs = self._inputs if self._inputs is not None else pl_module.example_input_array
        try:
            info = _examine(pl_module, inputs)
        except explorer.ExplorerError as error:
            warnings.warn(f"no summary of {type(pl_module).__name__}: {error}", stacklevel=2)
            return
        sys.stdout.write("".join(Page(presenter.info(info), fit=False).plain()))
        if inputs is None:
            sys.stdout.write(
                "  set example_input_array, or pass inputs= to ExplorerSummary, for your own inputs\n"
            )
        sys.stdout.flush()
        if self._log:
            figures = collect_model_figures(info)
            # a figure with a sign, such as '<= ', is not exact
            metrics = {
                f"explorer/{name}": float(figure.value)
                for name in (*_STORED, *(_COMPUTED if inputs is not None else ()))
                if not (figure := figures[name]).sign and isinstance(figure.value, int | float)
            }
            for logger in trainer.loggers:
                logger.log_metrics(metrics, step=0)


def _examine(module: LightningModule, inputs: Any) -> Info:
    """Return the totals of a module, or only those of its weights if its inputs cannot be guessed."""
    with explorer.Session(module, inputs=inputs) as session:
        try:
            return session.open()
        except UnknownShape:
            return session.stored()
