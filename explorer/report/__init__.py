"""Reports: facts as text, JSON, CSV, HTML and plots, for people and scripts.

`document` converts facts to the documented JSON. `present` converts facts to blocks, which `layout` draws for
a terminal and `html` for a page.
"""

from __future__ import annotations

__all__: list[str] = []
