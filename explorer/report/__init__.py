"""Facts to what a person or a script reads.

`document` maps facts to the JSON contract and needs the standard library only; the other modules lay
facts out as text through `layout`, which is the one door to the terminal.
"""

from __future__ import annotations

__all__: list[str] = []
