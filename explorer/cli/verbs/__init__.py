"""What each verb of the command line does: options in, an answer out.

Thin over `explorer.session`: what a verb computes is a fact of the session's; how it reads is made by
`explorer.report` when the answer is printed. Nothing heavy is imported before a verb needs it, nor the other
verbs' modules: every start of the program comes through here.
"""

from __future__ import annotations

from importlib import import_module

from explorer.cli.output.answer import DONE, Answer, session_options, tool

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from explorer.cli.arguments.parser import Given
    from explorer.cli.output.progress import ProgressLine

__all__ = ["DONE", "INSTANT", "MODULES", "Answer", "instant", "run", "session_options", "tool"]

INSTANT = ("outline", "formats")
"""Verbs that only look at headers: nothing of a model's runs and nothing is written, so nothing has to be
kept in check around them."""

MODULES = {
    **dict.fromkeys(
        (
            *("info", "layers", "ops", "memory", "roofline", "training", "weights", "activations"),
            *("compare", "plot", "report"),
        ),
        "looking",
    ),
    **dict.fromkeys(("plan", "tile", "sweep", "settings", "history"), "tiling"),
    **dict.fromkeys(("convert", "verify", "blame", "diff"), "comparing"),
}
"""The other verbs, and the modules that have them in their `RUN`."""


def instant(verb: str, given: Given) -> Answer:
    """What one of `INSTANT` answers."""
    found: Answer = getattr(import_module("explorer.cli.verbs.headers"), verb)(given)
    return found


def run(verb: str, given: Given, line: ProgressLine) -> Answer:
    """What one of `MODULES` answers; `line` is told where the work stands."""
    verbs: dict[str, Callable[[Given, ProgressLine], Answer]]
    verbs = import_module(f"explorer.cli.verbs.{MODULES[verb]}").RUN
    return verbs[verb](given, line)
