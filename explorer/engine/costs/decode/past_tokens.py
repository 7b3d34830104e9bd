"""Validates the number of cached tokens, and adds the cache bytes that a decode step reads to the rows.

Modules and ONNX graphs share this module, so neither has to import the code of the other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.facts import Layer

Inputs = Mapping[str, tuple[str | None, tuple[int, ...]]]
"""dtype and shape of inputs from the user, by name."""


def check_past(past: int) -> None:
    """Rejects a negative number of cached tokens.

    Raises:
        Misuse: `past` is below 0.
    """
    if past < 0:
        raise Misuse(f"there cannot be {past} tokens in the cache", where="--past", hint="give 0 or more")


def add_cache_bytes(layers: Sequence[Layer], cache_bytes: Mapping[int, int | None]) -> tuple[Layer, ...]:
    """Adds cache bytes to the rows that read them and to the groups that contain these rows.

    Args:
        layers: Rows of one analysis.
        cache_bytes: Bytes by the id of the row that reads them.
    """
    sums: dict[int, int | None] = dict(cache_bytes)
    for layer in reversed(layers):
        if layer.id in sums and layer.parent is not None:
            own_bytes, parent_bytes = sums[layer.id], sums.get(layer.parent, 0)
            sums[layer.parent] = (
                None if own_bytes is None or parent_bytes is None else own_bytes + parent_bytes
            )
    return tuple(replace(x, kv_cache_bytes=sums[x.id]) if x.id in sums else x for x in layers)
