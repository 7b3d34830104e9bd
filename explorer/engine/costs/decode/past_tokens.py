"""Tokens behind which a decode step stands: how many there may be, and the bytes of theirs that rows read.

Modules and ONNX graphs share this; what is of one kind alone is not imported for the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import Layer

Inputs = Mapping[str, tuple[str | None, tuple[int, ...]]]
"""Type and shape of inputs by name, where the user gave them."""


def check_past(past: int) -> None:
    """Refuses a cache of a negative size.

    Raises:
        Misuse: `past` is below 0.
    """
    if past < 0:
        raise Misuse(f"there cannot be {past} tokens in the cache", where="--past", hint="give 0 or more")


def summed(layers: Sequence[Layer], cache_bytes: Mapping[int, int | None]) -> tuple[Layer, ...]:
    """The rows with their share of a cache, groups with that of what is below them.

    Args:
        layers: Of one analysis.
        cache_bytes: Bytes by the id of the row that reads them.
    """
    sums: dict[int, int | None] = dict(cache_bytes)
    for layer in reversed(layers):
        if layer.id in sums and layer.parent is not None:
            mine, above = sums[layer.id], sums.get(layer.parent, 0)
            sums[layer.parent] = None if mine is None or above is None else mine + above
    return tuple(replace(x, kv_cache_bytes=sums[x.id]) if x.id in sums else x for x in layers)
