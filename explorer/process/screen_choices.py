"""Screen choices: display settings of the user that later sessions use again.

Screen choices apply to every model; only the order of layers is stored for each recent model. (The user's
position in one model is part of a saved session.) The choices are in a small JSON file in the state folder of
the XDG base directories. A file that cannot be read counts as missing. It is read before the first paint, so
this module imports nothing large.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Annotated

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from explorer.base.compat import build_type
from explorer.host import own_files
from explorer.host.system import find_user_folder

_FILE = "screen.json"
_MAX_BYTES = 1 << 16
_LOCK = threading.Lock()
"""Held while the file is read and replaced, so that two threads lose no choice."""
LEFTMOST, RIGHTMOST = 20, 80
"""Limits of the divider's position: the left pane's share of the width, in percent."""


_MAX_ORDERS = 32
"""Number of models whose order is stored, most recently viewed first."""


class ModelOrder(Struct, frozen=True, omit_defaults=True):
    """Order in which the layers of a model are shown; see `ScreenChoices`."""

    model: Annotated[str, Meta(max_length=4096)]
    metric: Annotated[str, Meta(max_length=64)] = ""
    by_cost: bool = False
    turned: bool = False
    flat: bool = False


class ScreenChoices(Struct, frozen=True, omit_defaults=True):
    """Display settings of the user.

    Attributes:
        columns: Columns of the tree, from left to right; empty for the default columns.
        metric: Column that the layers are sorted by; empty for the first column.
        by_cost: Whether the layers are sorted.
        turned: Whether the order is reversed, so that the smallest layer comes first.
        flat: Whether layers are shown without their groups.
        divider: Left pane's share of the width in percent, or None for the width that the columns need.
        model: Model that the order belongs to: the most recently viewed one.
        others: Orders of models viewed earlier, most recent first. A model without an entry is shown in
            execution order.
        light: Whether the user chose the light theme, or None without a choice.
    """

    columns: Annotated[tuple[Annotated[str, Meta(max_length=64)], ...], Meta(max_length=64)] = ()
    metric: Annotated[str, Meta(max_length=64)] = ""
    by_cost: bool = False
    turned: bool = False
    flat: bool = False
    divider: Annotated[int, Meta(ge=LEFTMOST, le=RIGHTMOST)] | None = None
    model: Annotated[str, Meta(max_length=4096)] = ""
    others: Annotated[tuple[ModelOrder, ...], Meta(max_length=_MAX_ORDERS)] = ()
    light: bool | None = None

    def for_model(self, model: str) -> ScreenChoices:
        """Returns the choices for one model; `model` and `others` are empty in the result."""
        for entry in self._list_orders():
            if entry.model == model:
                order = entry.metric, entry.by_cost, entry.turned, entry.flat
                return ScreenChoices(self.columns, *order, self.divider)
        return ScreenChoices(self.columns, divider=self.divider)

    def keep_orders(self, previous: ScreenChoices) -> ScreenChoices:
        """Returns these choices with the theme and the orders of other models in `previous`.

        Args:
            previous: Earlier choices. Their theme is kept if these choices have none.
        """
        orders = [order for order in previous._list_orders() if order.model not in ("", self.model)]
        return replace(
            self,
            others=tuple(order for order in orders if order != ModelOrder(order.model))[:_MAX_ORDERS],
            light=previous.light if self.light is None else self.light,
        )

    def _list_orders(self) -> tuple[ModelOrder, ...]:
        """Lists the order of the current model, then those of other models."""
        return ModelOrder(self.model, self.metric, self.by_cost, self.turned, self.flat), *self.others


def find_state_folder(environment: Mapping[str, str]) -> str:
    """Returns the folder of the program's own state, such as saved sessions and recent models."""
    return find_user_folder("state", environment)


def has_choices(environment: Mapping[str, str]) -> bool:
    """Returns whether the screen was used before. Its first use writes the file."""
    return os.path.lexists(os.path.join(find_state_folder(environment), _FILE))


def load_choices(environment: Mapping[str, str]) -> ScreenChoices:
    """Reads the stored choices; returns the defaults if there is no readable file."""
    try:
        content = own_files.read(os.path.join(find_state_folder(environment), _FILE), _MAX_BYTES)
        return msgspec.json.decode(content, type=build_type(ScreenChoices))
    except (OSError, ValueError, RecursionError):  # msgspec's errors are ValueErrors
        return ScreenChoices()


def keep(choices: ScreenChoices, environment: Mapping[str, str]) -> bool:
    """Stores choices together with the orders of other models; replaces the file as a whole.

    Returns:
        Whether the file could be written.
    """
    with _LOCK:
        return _write(choices.keep_orders(load_choices(environment)), environment)


def keep_theme(light: bool, environment: Mapping[str, str]) -> bool:
    """Stores the theme; keeps the other choices.

    Returns:
        Whether the file could be written.
    """
    with _LOCK:
        return _write(replace(load_choices(environment), light=light), environment)


def _write(choices: ScreenChoices, environment: Mapping[str, str]) -> bool:
    path = os.path.join(find_state_folder(environment), _FILE)
    while len(content := msgspec.json.encode(choices)) > _MAX_BYTES and choices.others:
        choices = replace(choices, others=choices.others[:-1])
    try:
        own_files.make_folder(os.path.dirname(path))
        own_files.write(path, content)
    except OSError:
        return False
    return True
