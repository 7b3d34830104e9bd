"""Screen choices: how its user wants the screen, kept from one session to the next.

Unlike a saved session, which says where its user was in one model, these hold for every model, but for the
order of its layers. The file is
a few lines of JSON among what the XDG base directories call state; one that cannot be read, whoever wrote it,
is as good as none. Read before the first paint: nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

__all__ = ["LEFTMOST", "RIGHTMOST", "ScreenChoices", "keep", "kept", "state_folder"]

_FILE = "screen.json"
_MOST_BYTES = 1 << 16
LEFTMOST, RIGHTMOST = 20, 80
"""Where the divider may stand: the left pane's share of the width, in percent."""


class ScreenChoices(Struct, frozen=True, omit_defaults=True):
    """How its user wants the screen.

    Attributes:
        columns: Of the tree, from left to right; empty for those that are shown first.
        metric: The column that it is sorted by; empty for the first.
        by_cost, turned: Whether it is sorted, and from the smallest.
        flat: Layers without the groups around them.
        divider: The left pane's share of the width, in percent.
        model: Whose order it is: the model that was looked at last. Another one is shown as it is executed.
    """

    columns: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=64)] = ()
    metric: Annotated[str, Meta(max_length=64)] = ""
    by_cost: bool = False
    turned: bool = False
    flat: bool = False
    divider: Annotated[int, Meta(ge=LEFTMOST, le=RIGHTMOST)] = 50
    model: Annotated[str, Meta(max_length=4096)] = ""

    def of(self, model: str) -> ScreenChoices:
        """What holds for a model; `model` is empty in it."""
        if self.model == model:
            return replace(self, model="")
        return ScreenChoices(self.columns, divider=self.divider)


def state_folder(environment: Mapping[str, str]) -> str:
    """Our folder among the user's state, as the XDG base directories have it."""
    state = environment.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the specification: a relative path is to be ignored
        state = os.path.join(environment.get("HOME") or os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "explorer")


def kept(environment: Mapping[str, str]) -> ScreenChoices:
    """What was chosen last; what holds at first where nothing was, or it cannot be read."""
    try:
        with open(os.path.join(state_folder(environment), _FILE), "rb") as file:
            return msgspec.json.decode(file.read(_MOST_BYTES), type=ScreenChoices)
    except (OSError, ValueError, RecursionError):  # msgspec's own are ValueErrors
        return ScreenChoices()


def keep(choices: ScreenChoices, environment: Mapping[str, str]) -> bool:
    """Writes them down, all or nothing; whether that was possible."""
    path = os.path.join(state_folder(environment), _FILE)
    new = f"{path}.{os.getpid()}.new"
    try:
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(new, "wb") as file:
            file.write(msgspec.json.encode(choices))
        os.replace(new, path)
    except OSError:
        return False
    return True
