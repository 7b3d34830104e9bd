"""The main screen and its dialogs."""

from __future__ import annotations

__all__: list[str] = []
