"""The screen: what `explorer MODEL` opens. It knows facts and the worker's door, and nothing heavier."""

from __future__ import annotations

__all__: list[str] = []
