"""Commands of the command line, one module each, in folders by subject or in the package of a feature.

Every start of the program imports this module and needs at most one command. Therefore only names are listed,
and a command's module is imported on demand.
"""

from __future__ import annotations

import os
from importlib import import_module

from explorer.cli.arguments.command import Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ORDER = """
info layers ops nodes memory roofline sizes outline list formats weights activations values graph plot
report compare check diff verify blame evaluate tile plan map settings sweep quantize fold edit convert
rebatch extract split pipeline train make history profile training machines serving decode help
schema doctor serve cache completion man
"""
"""Order of the commands within their groups (`Command.group`). Other commands follow by name."""

_ALIASES = {"machine": "machines"}
"""Alternative spellings of verbs."""


def _list_feature_commands() -> Mapping[str, str]:
    """Return the import path of each command that a feature adds."""
    # imported on demand: commands that only read a header need no features
    from explorer.base.features import list_offers

    return list_offers("verbs")


class _Verbs:
    """A mapping of the commands by name. It does not subclass `Mapping`, which takes too long to import."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}  # import path of each command in the folders next to this module
        for folder in os.scandir(os.path.dirname(__file__)):
            if folder.is_dir():
                self._own |= {
                    name[:-3]: f"{__name__}.{folder.name}.{name[:-3]}.COMMAND"
                    for name in os.listdir(folder.path)
                    if name.endswith(".py") and not name.startswith("_")
                }

    def _find_import_path(self, name: str) -> str | None:
        """Return the import path of a command, or None. Features are searched last."""
        name = _ALIASES.get(name, name)
        return self._own.get(name) or _list_feature_commands().get(name)

    def __getitem__(self, name: str) -> Command:
        import_path = self._find_import_path(name)
        if import_path is None:
            raise KeyError(name)
        module, _, attribute = import_path.rpartition(".")
        command: Command = getattr(import_module(module), attribute)
        return command

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._find_import_path(name) is not None

    def __iter__(self) -> Iterator[str]:
        position = {name: index for index, name in enumerate(_ORDER.split())}
        names = {**self._own, **_list_feature_commands()}
        return iter(sorted(names, key=lambda name: (position.get(name, len(position)), name)))

    def __len__(self) -> int:
        return len(self._own) + len(_list_feature_commands())

    def keys(self) -> Iterator[str]:
        """Iterate over the names."""
        return iter(self)

    def values(self) -> Iterator[Command]:
        """Iterate over the commands, importing each one."""
        return (self[name] for name in self)

    def items(self) -> Iterator[tuple[str, Command]]:
        """Iterate over names and commands."""
        return ((name, self[name]) for name in self)


VERBS: Mapping[str, Command] = _Verbs()  # type: ignore[assignment]
