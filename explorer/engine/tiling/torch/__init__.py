"""Tiling of nn.Modules: torch's layers replaced by ones that multiply by tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from explorer.base.errors import Misuse
from explorer.host.optional_packages import require

if TYPE_CHECKING:
    from explorer.engine.formats.torch_module.loaded import LoadedModule
    from explorer.engine.models.opened import Opened

__all__ = ["module_of"]


def module_of(opened: Opened) -> LoadedModule:
    """The nn.Module of a model, and torch beside it.

    Raises:
        Misuse: It is none.
        MissingExtra: torch is not installed.
    """
    loaded: LoadedModule | None = getattr(opened, "loaded", None)
    if loaded is None:
        raise Misuse(
            f"--to torch replaces the layers of an nn.Module; a file of the format {opened.format} has none",
            where=opened.source,
            hint="name the code: package.module:callable",
        )
    require("torch", opened.source)
    return loaded
