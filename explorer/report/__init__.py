"""Reports: facts as text, JSON, CSV, HTML and plots, for a person or a script.

`document` maps facts to the JSON contract and needs the standard library only; the other modules lay
facts out as text through `layout`, which is the one door to the terminal.
"""

from __future__ import annotations

__all__: list[str] = []
