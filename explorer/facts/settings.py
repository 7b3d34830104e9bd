"""Settings in force for every site of a model, or every layer that takes a number format, and who said so."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct


class SiteSettings(Struct, frozen=True):
    """What is asked of one site.

    Attributes:
        tile, edges, form: As asked for, 'auto' not resolved.
        on: Whether it is tiled.
        origins: Of these four: 'default', a file and its line, 'command line'; of edges 'open sizes', too.
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


class LayerSettings(Struct, frozen=True):
    """What is asked of one layer.

    Attributes:
        sizes: M, K and N of its matrix product; None where it is none, or they are not known.
        weight, input, bias: Number formats that hold; '' where there is no such part, or it stays.
        granularity, symmetric, block: As in `QuantizeSpec`; `symmetric` of its weight.
        form: How it is written: 'qdq', 'qoperator', 'function', 'nbits' (MatMulNBits).
        origins: Of what was asked: 'default', a file and its line, 'command line'.
        reason: Why it is left as it is; '' where it takes a format.
    """

    name: str
    op: str
    sizes: tuple[int, int, int] | None
    weight: str
    input: str
    bias: str
    granularity: str
    symmetric: bool
    block: int
    form: str
    origins: Mapping[str, str]
    reason: str = ""

    @property
    def scales(self) -> str:
        """The weights that share a scale: 'channel', 'tensor', 'block 32'; '' if the layer has no weight."""
        return (f"block {self.block}" if self.block else self.granularity) if self.weight else ""

    @property
    def scales_origin(self) -> str:
        """The origin of `scales`."""
        return self.origins.get("block" if self.block else "granularity", "")


class QuantizeSettings(Struct, frozen=True):
    """What is in force.

    Attributes:
        layers: All that multiply or hold weights, in the order of the graph.
        unused: Rules that mean none of them.
    """

    layers: tuple[LayerSettings, ...]
    unused: tuple[UnusedRule, ...] = ()
