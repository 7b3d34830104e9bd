"""Type of the session in functions that become its methods."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.session.methods.public_api import PublicMethods as Facade
else:
    Facade = Any

__all__ = ["Facade"]
