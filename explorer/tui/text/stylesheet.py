"""Stylesheet that parses its rules only once per set of colors.

Textual parses all rules again if a theme is chosen before the first paint, and for each screen with its own
rules. This took 20 ms of a start of 280 ms.
"""

from __future__ import annotations

from textual.css.stylesheet import Stylesheet


class ParsedStylesheet(Stylesheet):
    """A stylesheet that keeps parsed rules until a color changes."""

    def __init__(self, *, variables: dict[str, str] | None = None) -> None:
        super().__init__(variables=variables)
        self._current_variables = variables or {}

    def set_variables(self, variables: dict[str, str]) -> None:
        """Set the variables of the rules, such as colors and sizes."""
        if variables != self._current_variables:
            self._current_variables = variables
            super().set_variables(variables)

    def reparse(self) -> None:
        """Parse the rules that were not parsed with the current variables."""
        self.parse()
