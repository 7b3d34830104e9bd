"""A module that is imported when something of it is first used, and not when it is named.

For parts of libraries that their other parts import and that no model which runs on shapes uses.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any


class LateModule(ModuleType):
    """Stands for a module before that is loaded; then it is the module."""

    def __init__(self, name: str, spec: Any) -> None:
        super().__init__(name)
        self.__spec__, self.__loader__, self.__file__ = spec, spec.loader, spec.origin

    def __getattr__(self, name: str) -> Any:
        # all modules are looked through for `__warningregistry__` and the like, and that is no use of it;
        # who asks a package for its path imports a part of it
        package: Any = self.__spec__ and self.__spec__.submodule_search_locations
        if name.startswith("__") and not (name == "__path__" and package):
            raise AttributeError(name)
        self._load()
        return getattr(self, name)

    def _load(self) -> None:
        """Becomes the real one."""
        spec: Any = self.__spec__
        self.__class__ = ModuleType  # type: ignore[assignment]
        if spec.submodule_search_locations:
            self.__path__ = list(spec.submodule_search_locations)
        self.__package__ = spec.parent
        try:
            spec.loader.exec_module(self)
        except BaseException:
            sys.modules.pop(spec.name, None)
            raise


def put_off(name: str, kind: type[LateModule] = LateModule) -> LateModule | None:
    """Has a module imported when it is used.

    Args:
        name: Of the module; what it is a part of is not imported for it.
        kind: What stands for it.

    Returns:
        What stands for it; None where it is there already, or cannot be had.
    """
    if name in sys.modules or (spec := _found(name)) is None or spec.loader is None:
        return None
    late = sys.modules[name] = kind(name, spec)
    whole, _, last = name.rpartition(".")
    if whole in sys.modules:
        setattr(sys.modules[whole], last, late)
    return late


def _found(name: str) -> ModuleSpec | None:
    """Where a module is, by the finder of installed files."""
    whole = name.rpartition(".")[0]
    if not whole:
        return PathFinder.find_spec(name)
    above = _found(whole)
    return above and PathFinder.find_spec(name, above.submodule_search_locations)
