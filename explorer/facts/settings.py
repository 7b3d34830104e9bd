"""Facts about effective settings: the settings of every site or layer of a model, and their origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from explorer.base.fact import Fact, TableFact


class SiteSettings(Fact, frozen=True):
    """Effective tiling settings of one site.

    Attributes:
        tile: Requested tile as (TM, TK, TN).
        edges: Requested handling of the last tile of an axis.
        form: Requested form; 'auto' is not resolved.
        on: Whether the site is tiled.
        origins: Origin of the four settings above: 'default', a file and its line, 'command line', or 'open
            sizes' (for `edges`).
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


class UnusedRule(Fact, frozen=True):
    """A rule that matches no site of this model. `says` is its text, `near` a similar site name or ''."""

    origin: str
    says: str
    near: str = ""


class Settings(TableFact, frozen=True):
    """Effective tiling settings of a model.

    Attributes:
        grouped: Handling of grouped convolutions.
        grouped_origin: Origin of `grouped`.
        sites: Settings of all products that can be tiled, in execution order.
        unused: Rules that match no site.
    """

    ROWS: ClassVar[str] = "sites"

    grouped: str
    grouped_origin: str
    sites: tuple[SiteSettings, ...]
    unused: tuple[UnusedRule, ...] = ()


class LayerSettings(Fact, frozen=True):
    """Effective quantization settings of one layer.

    Attributes:
        sizes: M, K and N of its matrix product, or None if unknown or without a matrix product.
        weight: Number format of the weight, or '' if the weight is missing or not quantized.
        input: Number format of the input, or ''.
        bias: Number format of the bias, or ''.
        granularity: Granularity of the scales, as in `QuantizeSpec`.
        symmetric: Whether the zero point of the weight is 0.
        block: Number of weights that share a scale, or 0.
        form: Form of the written operators: 'qdq', 'qoperator', 'function', 'nbits' (MatMulNBits).
        origins: Origin of each setting: 'default', a file and its line, 'command line'.
        reason: Reason why the layer is not quantized, or '' if it is.
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
        """Weights that share a scale: 'channel', 'tensor', 'block 32', or '' if the layer has no weight."""
        return (f"block {self.block}" if self.block else self.granularity) if self.weight else ""

    @property
    def scales_origin(self) -> str:
        """Origin of `scales`."""
        return self.origins.get("block" if self.block else "granularity", "")


class QuantizeSettings(TableFact, frozen=True):
    """Effective quantization settings of a model.

    Attributes:
        layers: Settings of all layers that multiply or hold weights, in the order of the graph.
        unused: Rules that match no layer.
    """

    ROWS: ClassVar[str] = "layers"

    layers: tuple[LayerSettings, ...]
    unused: tuple[UnusedRule, ...] = ()
