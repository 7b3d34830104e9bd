"""Stylesheet: rules parsed once for the colours that they are drawn in.

Textual parses all of them again when a theme was chosen before the first paint, and for every screen that
comes with rules of its own: 20 ms of a start that took 280.
"""

from __future__ import annotations

from textual.css.stylesheet import Stylesheet


class ParsedStylesheet(Stylesheet):
    """Forgets what it parsed when a colour changes, and not before."""

    def __init__(self, *, variables: dict[str, str] | None = None) -> None:
        super().__init__(variables=variables)
        self._known = variables or {}

    def set_variables(self, variables: dict[str, str]) -> None:
        """Takes colours and sizes by name, which rules refer to."""
        if variables != self._known:
            self._known = variables
            super().set_variables(variables)

    def reparse(self) -> None:
        """Parses what has not been parsed with the variables of now."""
        self.parse()
