"""Commands that look: at the tree, at tiles, at values, at what a training step costs."""

from __future__ import annotations

__all__: list[str] = []
