"""From facts to lines: what each tab and dialog says. Pure functions of facts and a width."""

from __future__ import annotations

__all__: list[str] = []
