"""Keys that the quantize feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import CHANGE

COMMANDS = (
    CommandKey(
        "quantize",
        ("Q",),
        "Q",
        "Quantize…",
        "Choose number formats for weights and inputs; in a quantized state, show each layer's loss",
        CHANGE,
        "quantize_screen.QuantizeCommand",
        menu=True,
        package=__package__,
        after="sweep",
    ),
)
