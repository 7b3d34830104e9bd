"""The state of the screen: one store that widgets watch, and the job that runs for it."""

from __future__ import annotations

__all__: list[str] = []
