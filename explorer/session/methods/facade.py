"""Type `Facade`: the session as an argument of functions that become its methods.

The functions of the features take the session as first argument, and `Session` has them as methods. Type
checkers see all public methods. At run time the name is `Any`, because `public_api` imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.session.methods.public_api import PublicMethods as Facade
else:
    Facade = Any

__all__ = ["Facade"]
