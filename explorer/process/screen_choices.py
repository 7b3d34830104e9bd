"""Screen choices: how its user wants the screen, kept from one session to the next.

Unlike a saved session, which says where its user was in one model, these hold for every model, but for the
order of its layers, which is kept for each of the last ones. The file is a few lines of JSON among what the
XDG base directories call state; one that cannot be read, whoever wrote it, is as good as none. Read before
the first paint: nothing heavy is imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from explorer.host import own_files
from explorer.host.system import user_folder

_FILE = "screen.json"
_MOST_BYTES = 1 << 16
LEFTMOST, RIGHTMOST = 20, 80
"""Where the divider may stand: the left pane's share of the width, in percent."""


_MOST_ORDERS = 32
"""Models whose order is kept, those that were looked at last."""


class ModelOrder(Struct, frozen=True, omit_defaults=True):
    """In which order the layers of a model are shown; see `ScreenChoices`."""

    model: Annotated[str, Meta(max_length=4096)]
    metric: Annotated[str, Meta(max_length=64)] = ""
    by_cost: bool = False
    turned: bool = False
    flat: bool = False


class ScreenChoices(Struct, frozen=True, omit_defaults=True):
    """How its user wants the screen.

    Attributes:
        columns: Of the tree, from left to right; empty for those that are shown first.
        metric: The column that it is sorted by; empty for the first.
        by_cost, turned: Whether it is sorted, and from the smallest.
        flat: Layers without the groups around them.
        divider: The left pane's share of the width, in percent; None for what the columns need.
        model: Whose order it is: the model that was looked at last.
        others: Orders of models before it, the last first. One without an order is shown as it is executed.
    """

    columns: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=64)] = ()
    metric: Annotated[str, Meta(max_length=64)] = ""
    by_cost: bool = False
    turned: bool = False
    flat: bool = False
    divider: Annotated[int, Meta(ge=LEFTMOST, le=RIGHTMOST)] | None = None
    model: Annotated[str, Meta(max_length=4096)] = ""
    others: Annotated[tuple[ModelOrder, ...], Meta(max_length=_MOST_ORDERS)] = ()

    def of(self, model: str) -> ScreenChoices:
        """What holds for a model; `model` and `others` are empty in it."""
        for entry in self._orders():
            if entry.model == model:
                order = entry.metric, entry.by_cost, entry.turned, entry.flat
                return ScreenChoices(self.columns, *order, self.divider)
        return ScreenChoices(self.columns, divider=self.divider)

    def after(self, before: ScreenChoices) -> ScreenChoices:
        """These, with the orders that other models had before."""
        orders = [one for one in before._orders() if one.model not in ("", self.model)]
        return replace(
            self, others=tuple(one for one in orders if one != ModelOrder(one.model))[:_MOST_ORDERS]
        )

    def _orders(self) -> tuple[ModelOrder, ...]:
        return ModelOrder(self.model, self.metric, self.by_cost, self.turned, self.flat), *self.others


def state_folder(environment: Mapping[str, str]) -> str:
    """Our folder among the user's state."""
    return user_folder("state", environment)


def stored_choices(environment: Mapping[str, str]) -> ScreenChoices:
    """What was chosen last; what holds at first where nothing was, or it cannot be read."""
    try:
        content = own_files.read(os.path.join(state_folder(environment), _FILE), _MOST_BYTES)
        return msgspec.json.decode(content, type=ScreenChoices)
    except (OSError, ValueError, RecursionError):  # msgspec's own are ValueErrors
        return ScreenChoices()


def keep(choices: ScreenChoices, environment: Mapping[str, str]) -> bool:
    """Writes them down beside the orders of other models, all or nothing; whether that was possible."""
    path = os.path.join(state_folder(environment), _FILE)
    choices = choices.after(stored_choices(environment))
    while len(written := msgspec.json.encode(choices)) > _MOST_BYTES and choices.others:
        choices = replace(choices, others=choices.others[:-1])
    try:
        own_files.make_folder(os.path.dirname(path))
        own_files.write(path, written)
    except OSError:
        return False
    return True
