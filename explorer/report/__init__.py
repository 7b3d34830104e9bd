"""Reports: facts as text, JSON, CSV, HTML and plots, for people and scripts.

`document` converts facts to the documented JSON and uses only the standard library. The other modules build
text; only `layout` writes to the terminal.
"""

from __future__ import annotations

__all__: list[str] = []
