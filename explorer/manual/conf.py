"""Sphinx configuration of the manual: `sphinx-build explorer/manual site` writes it as HTML, with the API."""

from __future__ import annotations

import re
from typing import Any

import explorer

__all__ = ["setup"]

project = "Explorer"
author = "the Explorer authors"
release = explorer.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
myst_heading_anchors = 3
autodoc_member_order = "bysource"
default_role = "code"
suppress_warnings = ["ref.python"]
napoleon_use_ivar = True


def _as_restructured(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Docstrings are plain text: an indented block of a module's is code, and a star or a bar is itself."""
    code, made = False, list[str]()
    for line in lines:
        indented = line.startswith("    ")
        if what == "module" and indented and not code:
            made += ["::", ""]
        code = what == "module" and (indented or (code and not line))
        made.append(line if code else re.sub(r"([*|])", r"\\\1", line))
    lines[:] = made


def setup(app: Any) -> None:
    """Sphinx calls it."""
    app.connect("autodoc-process-docstring", _as_restructured, priority=400)
