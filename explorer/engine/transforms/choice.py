"""What is asked of one site: the specification, and the rules that speak of this site in particular."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from explorer.facts import Edges, Form, TileSpec

__all__ = ["Choice", "choose"]


class Choice(Struct, frozen=True):
    """What holds for a site.

    Attributes:
        tile, edges, form: As asked for.
        on: Whether it is tiled at all.
        origins: For each of these who said so: a rule's `origin`, or '' for the specification.
    """

    tile: tuple[int, int, int]
    edges: Edges
    form: Form
    on: bool
    origins: Mapping[str, str]


def choose(spec: TileSpec, name: str, op: str, sizes: tuple[int, int, int]) -> Choice:
    """What `spec` asks of the site `name`, an `op` of `sizes` (M, K, N)."""
    return Choice(spec.tile, spec.edges, spec.form, True, {})
