"""Session: the one door to the engine (`session.session`), its parts, and the look at headers alone.

Names are resolved when they are first used (PEP 562): `session.headers` is for verbs that have to be done
before the finger has left the key.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from explorer.session.files import blame_files, compare_files, diff_files, sweep_files, verify_files
    from explorer.session.session import Session

__all__ = ["Session", "blame_files", "compare_files", "diff_files", "sweep_files", "verify_files"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from importlib import import_module

        home = "session" if name == "Session" else "files"
        return getattr(import_module(f"explorer.session.{home}"), name)
    raise AttributeError(f"module 'explorer.session' has no attribute '{name}'")
