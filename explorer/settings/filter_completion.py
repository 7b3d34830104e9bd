"""Completion of a filter: the words that may follow from what is typed, for Tab on the screen."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from explorer.settings.columns import ATTRIBUTE_NAMES, LayerColumn
from explorer.settings.filter import TEXTS

_WORD = re.compile(r"(?:\A|[\s(])-?((?:op:|kind:)?[A-Za-z_0-9]*)\Z", re.IGNORECASE)
_FIRST = ("op", "name")
"""Keys that precede the attributes, because most filters use them."""


def complete_filter(text: str, columns: Mapping[str, LayerColumn], kinds: Iterable[str] = ()) -> list[str]:
    """Returns the texts that `text` can be completed to, the most used first; empty if there are none.

    The last word becomes a key with its sign, such as 'kernel=', or after 'op:' an operator of the model.

    Args:
        text: Filter up to the cursor.
        columns: Columns that a filter can compare.
        kinds: Operators of the model.
    """
    match = _WORD.search(text)
    if match is None or not match[1]:
        return []
    word = match[1].lower()
    before = text[: match.start(1)]
    key, colon, typed_kind = word.partition(":")
    if colon:
        return [f"{before}{key}:{kind}" for kind in kinds if kind.lower().startswith(typed_kind)]
    keys = {
        **{name: f"{name}:" for name in _FIRST},
        **{name: f"{name}=" for name in ATTRIBUTE_NAMES},
        **{name: f"{name}>" for name, column in columns.items() if column.is_number},
        **{name: f"{name}:" for name in TEXTS},
    }
    return [before + keys[name] for name in keys if name.startswith(word)]
