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
        "Range, mean, spread, zeros, quantiles and histogram of the chosen layer's weights; so does n",
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
        "Run the model and tell the same of what the chosen layer puts out",
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
        "Inside a tensor: a map",
        "The numbers of the chosen layer's weights and of what it puts out, as colors",
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
        "Variance, range, quantiles, ... of all weights or activations as a table that sorts",
        LOOK,
        "statistics_screen.StatisticsCommand",
        menu=True,
        package=__package__,
        after="map",
    ),
)
