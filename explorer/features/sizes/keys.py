"""Keys that the sizes feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK

COMMANDS = (
    CommandKey(
        "sizes",
        ("D",),
        "D",
        "Open sizes…",
        "MACs, memory and time over a batch or a length, with a slider; Enter sets the size",
        LOOK,
        "sizes_screen.SizesCommand",
        footer="sizes",
        where=("model",),
        menu=True,
        package=__package__,
        after="machine",
    ),
    CommandKey(
        "decode",
        ("E",),
        "E",
        "Decoding, KV cache",
        "A decode step beside the prompt's pass; the length where the cache exceeds the weights",
        LOOK,
        "decode_screen.decode",
        menu=True,
        package=__package__,
        after="sizes",
    ),
    CommandKey(
        "serving",
        ("at",),
        "@",
        "Serving…",
        "Memory, times and layouts of a language model by prompt, context, batch and devices",
        LOOK,
        "serving_screen.serving",
        menu=True,
        package=__package__,
        after="decode",
    ),
)
