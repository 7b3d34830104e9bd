"""Verbs of the command line, one file each: in folders by subject, or in the feature that they belong to.

Every start of the program comes through here, and needs one verb at most: only names are read, and a file is
imported when its verb is asked for.
"""

from __future__ import annotations

import os
from importlib import import_module

from explorer.cli.arguments.command import Command

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_ORDER = (
    *("info", "layers", "ops", "memory", "roofline", "sizes", "outline", "list", "formats", "weights"),
    *("activations", "values", "graph", "plot", "report"),
    *("compare", "diff", "verify", "blame", "evaluate"),
    *(
        "tile",
        "plan",
        "settings",
        "sweep",
        "quantize",
        "fold",
        "edit",
        "convert",
        "rebatch",
        "extract",
        "split",
    ),
    *("pipeline", "train", "make", "history"),
    *("profile", "training", "machines"),
    *("serving", "decode"),
    *("help", "doctor", "serve", "cache", "completion", "man"),
)
"""Order of the verbs in the help, group by group (`Command.group`). others follow by name."""

_ALSO = {"machine": "machines"}
"""Other spellings of verbs."""


def _of_features() -> Mapping[str, str]:
    """Verbs of features, and where each is."""
    from explorer.base.features import offered  # none of them is asked for the header of a file

    return offered("verbs")


class _Verbs:
    """The verbs by name: a mapping, without the class of one, which the header of a file has no time for."""

    def __init__(self) -> None:
        self._own: dict[str, str] = {}
        for folder in os.scandir(os.path.dirname(__file__)):
            if folder.is_dir():
                self._own |= {
                    name[:-3]: f"{__name__}.{folder.name}.{name[:-3]}.COMMAND"
                    for name in os.listdir(folder.path)
                    if name.endswith(".py") and not name.startswith("_")
                }

    def _home(self, name: str) -> str | None:
        """Where a verb's record is; features are asked for what is not here."""
        name = _ALSO.get(name, name)
        return self._own.get(name) or _of_features().get(name)

    def __getitem__(self, name: str) -> Command:
        home = self._home(name)
        if home is None:
            raise KeyError(name)
        module, _, attribute = home.rpartition(".")
        command: Command = getattr(import_module(module), attribute)
        return command

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self._home(name) is not None

    def __iter__(self) -> Iterator[str]:
        order = {name: place for place, name in enumerate(_ORDER)}
        names = {**self._own, **_of_features()}
        return iter(sorted(names, key=lambda name: (order.get(name, len(order)), name)))

    def __len__(self) -> int:
        return len(self._own) + len(_of_features())

    def keys(self) -> Iterator[str]:
        """The names."""
        return iter(self)

    def values(self) -> Iterator[Command]:
        """The verbs, each imported when its turn comes."""
        return (self[name] for name in self)

    def items(self) -> Iterator[tuple[str, Command]]:
        """Names and verbs."""
        return ((name, self[name]) for name in self)


VERBS: Mapping[str, Command] = _Verbs()  # type: ignore[assignment]
