"""Keys that the training feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK

COMMANDS = (
    CommandKey(
        "training",
        ("b",),
        "b",
        "Training…",
        "Backward, gradients and optimizer for a batch size, of the layer and of the model",
        LOOK,
        "training_screen.ask_training",
        footer="training",
        where=("model",),
        menu=True,
        package=__package__,
        after="statistics",
    ),
    CommandKey(
        "evaluate",
        ("A",),
        "A",
        "Evaluate on data…",
        "Accuracy, loss and confused classes on the samples of a file, of the original and the current model",
        LOOK,
        "evaluate_screen.EvaluateCommand",
        menu=True,
        package=__package__,
        after="training",
    ),
)
