"""What is in force for every site of a model, and who said so."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

__all__ = ["Settings", "SiteSettings", "UnusedRule"]


class SiteSettings(Struct, frozen=True):
    """What is asked of one site.

    Attributes:
        tile, edges, form: As asked for, 'auto' not resolved.
        on: Whether it is tiled.
        origins: Of these four: 'default', a file and its line, 'command line'.
    """

    name: str
    op: str
    M: int
    K: int
    N: int
    tile: tuple[int, int, int]
    edges: str
    form: str
    on: bool
    origins: Mapping[str, str]


class UnusedRule(Struct, frozen=True):
    """A rule that means no site of this model; `near` is a site's name that its own is like, or ''."""

    origin: str
    says: str
    near: str = ""


class Settings(Struct, frozen=True):
    """What is in force.

    Attributes:
        grouped: What is done with grouped convolutions, and `grouped_origin` who said so.
        sites: Of all products that can be tiled, in execution order.
        unused: Rules that mean none of them.
    """

    grouped: str
    grouped_origin: str
    sites: tuple[SiteSettings, ...]
    unused: tuple[UnusedRule, ...] = ()
