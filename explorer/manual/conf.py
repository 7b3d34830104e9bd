"""Sphinx configuration: `sphinx-build explorer/manual site` writes the manual and the API reference.

The extension `explorer.cli.verb_pages` adds a page for each verb.
"""

from __future__ import annotations

import re
from typing import Any

import explorer

__all__ = ["setup"]

project = "Explorer"
author = "the Explorer authors"
release = explorer.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "explorer.cli.verb_pages"]
html_theme = "furo"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
default_role = "code"
suppress_warnings = ["ref.python"]
napoleon_use_ivar = True


def _as_restructured(app: Any, what: str, name: str, documented: Any, options: Any, lines: list[str]) -> None:
    """Convert docstrings to reStructuredText.

    Indented blocks of a module's docstring become code blocks. Elsewhere, stars and bars are escaped.
    """
    code, converted = False, list[str]()
    for line in lines:
        indented = line.startswith("    ")
        if what == "module" and indented and not code:
            converted += ["::", ""]
        code = what == "module" and (indented or (code and not line))
        converted.append(line if code else re.sub(r"([*|])", r"\\\1", line))
    lines[:] = converted


def setup(app: Any) -> None:
    """Register the conversion of docstrings. Sphinx calls this function."""
    app.connect("autodoc-process-docstring", _as_restructured, priority=400)
