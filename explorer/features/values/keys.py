"""Keys that the values feature adds to the main screen."""

from __future__ import annotations

from explorer.tui.commands.command_key import CommandKey
from explorer.tui.text.keys import LOOK

COMMANDS = (
    CommandKey(
        "weights",
        ("V",),
        "V",
        "Values in the weights",
        "Range, mean, spread, zeros, quantiles and histogram of the current layer's weights",
        LOOK,
        "values_action.WeightsCommand",
        footer="values",
        where=("layer",),
        menu=True,
        package=__package__,
        after="bookmarks",
    ),
    CommandKey(
        "activations",
        ("f",),
        "f",
        "Forward: activations",
        "Run the model, and show the range, mean and histogram of the current layer's outputs",
        LOOK,
        "values_action.ActivationsCommand",
        menu=True,
        package=__package__,
        after="weights",
    ),
    CommandKey(
        "map",
        ("I",),
        "I",
        "Map of a tensor",
        "The numbers of the current layer's weights and outputs, as colors",
        LOOK,
        "values_action.MapCommand",
        menu=True,
        package=__package__,
        after="activations",
    ),
    CommandKey(
        "statistics",
        ("number_sign",),
        "#",
        "Statistics…",
        "A sortable table of variance, range, quantiles and others, for all weights or activations",
        LOOK,
        "statistics_screen.StatisticsCommand",
        menu=True,
        package=__package__,
        after="map",
    ),
)
