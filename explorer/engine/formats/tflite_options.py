"""Options of custom operators: FlexBuffers, where they are that; else so many bytes."""

from __future__ import annotations

from typing import Any

from explorer.engine.wire import Buffer

__all__ = ["custom_options"]


def custom_options(data: Buffer, at: int, size: int) -> dict[str, Any]:
    """What is known of the options of a custom operator that lie in data[at : at + size]."""
    return {"options": f"{size:,} bytes"} if size else {}
