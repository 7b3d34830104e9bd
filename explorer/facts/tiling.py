"""Facts about a tiling: its settings, the plan of each site, and the operators that are not tiled.

`explorer.facts` re-exports this module and documents the conventions.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import field

from explorer.base.checked import Count, Natural, Spec, Words
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.units import edges_text, sizes_text
from explorer.facts.quantize import Accumulator
from explorer.facts.quantize.spec import ACCUMULATOR
from explorer.facts.site_names import format_site

Form = Literal["auto", "lab", "scan", "unrolled", "batched"]
Edges = Literal["ragged", "padded"]
Grouped = Literal["leave", "pack"]

MAX_TILE = 1 << 16
"""Longest side of a tile."""


_TILE = option(
    "tile size, 64 or 64x64x64: M x K x N",
    manual="`64`, `64x64x64` or `64,64,64`: M x K x N of a tile",
    metavar="SIZE",
    reader="tile",
    write=sizes_text,
    spelled=True,
    label="tile",
)
_EDGES = option(
    "leave the last tile of an axis partial, or pad it with zeros (padded)",
    metavar="partial|padded",
    write=edges_text,
    spelled=True,
    label="edges",
    words=("partial", "padded"),
)
_FORM = option(
    "how tiles are written as ONNX",
    usual="auto: lab for matmuls of up to 256 tiles, 512 tiles in all; otherwise scan",
    spelled=True,
    label="form",
)


class TileRule(Spec, frozen=True):
    """Settings of some sites only: a `[[site]]` table of a settings file, or a choice on the screen.

    A rule applies to a site if all its conditions hold. A setting of None falls through to the next rule, and
    finally to the `TileSpec`.

    Attributes:
        site: Glob over site names; '' matches every site.
        op: Glob over operators; '' matches every operator.
        shape: Conditions on the sizes, such as 'M>=64 N<=1000'; '' matches every size.
        tile: Tile of these sites as (TM, TK, TN), or None.
        edges: Handling of the last tile of an axis, or None.
        form: Form of the tiled graph, or None.
        on: Whether to tile these sites, or None.
        origin: Place where the rule was set: 'npu.toml:12', 'chosen by hand'.
    """

    site: Annotated[str, option("a name or a glob over names of sites")] = ""
    op: Annotated[str, option("a glob over operators")] = ""
    shape: Annotated[str, option("conditions on the sizes M, K and N", reader="shape")] = ""
    tile: Annotated[tuple[Count, Count, Count] | None, _TILE] = None
    edges: Annotated[Edges | None, _EDGES] = None
    form: Annotated[Form | None, _FORM] = None
    on: Annotated[bool | None, option("false leaves these sites as they are")] = None
    origin: str = ""


class TileSpec(Spec, frozen=True):
    """Settings of a tiling as the user requests it.

    Attributes:
        tile: Tile as (TM, TK, TN): rows of the left operand, depth, columns of the right operand.
        sites: Site names, globs over them, or filters. Empty selects all sites.
        edges: Handling of the last tile of an axis: 'ragged' leaves it smaller, 'padded' fills it with zeros.
        form: Form in which the tiles are written as ONNX.
        grouped: Handling of grouped and depthwise convolutions: 'leave' does not tile them, and 'pack' packs
            their groups block-diagonally into tiles.
        rules: Rules for some sites only. The first rule that sets a value decides it.
        origins: Place where each value above was set, by its name: 'npu.toml:3', 'command line'. A value
            without an entry is the default.
        config: Path of the file with the settings and rules, or '' for none.
        accumulator: Bits of the hardware's accumulator, or 0 for none. Sites whose integer sums do not fit
            are listed.
        mapping: Path of a mapping file whose tiles the sites use in place of `tile`, or '' for none.
        level: Level of the mapping whose tiles are used: the name of a memory, or 'array'.
    """

    tile: Annotated[tuple[Count, Count, Count], _TILE] = (64, 64, 64)
    sites: Annotated[
        tuple[Words, ...],
        option(
            "only the matmuls whose name matches, or that a filter finds",
            metavar="GLOB|FILTER",
            flag="--site",
            selects=True,
            label="matmuls",
            words=("all", "this layer", "this kind"),
        ),
    ] = ()
    edges: Annotated[Edges, _EDGES] = "ragged"
    form: Annotated[Form, _FORM] = "auto"
    grouped: Annotated[
        Grouped,
        option(
            "leave grouped and depthwise convolutions to the vector unit, or pack them into tiles",
            manual="leave grouped and depthwise convolutions to the vector unit, or pack them into tiles,"
            " groups beside groups",
            label="grouped",
        ),
    ] = "leave"
    rules: tuple[TileRule, ...] = ()
    origins: tuple[tuple[str, str], ...] = ()
    config: Annotated[
        str,
        option(
            "a TOML file with tilings by matmul, operator or shape (explorer help tiling)",
            manual="a TOML file with tilings by matmul, operator or shape",
            metavar="FILE",
            in_file=False,
        ),
    ] = ""
    accumulator: Annotated[Natural, ACCUMULATOR] = 0
    mapping: Annotated[
        str,
        option(
            "mapping file (as map -o writes one) whose tiles are used instead of --tile",
            metavar="FILE",
            label="mapping",
            placeholder="none; a file that explorer map -o writes",
        ),
    ] = ""
    level: Annotated[
        str,
        option(
            "memory of the mapping whose tiles are used, or array for the innermost tiles",
            metavar="NAME",
            label="memory",
            placeholder="innermost, if a mapping is given",
        ),
    ] = "array"

    @property
    def label(self) -> str:
        """Label of a state with this tiling: the tile, and every changed setting that changes the model."""
        level = f" ({self.level})" if self.level != "array" else ""
        parts = [f"by {os.path.basename(self.mapping)}{level}" if self.mapping else sizes_text(self.tile)]
        parts += ["padded"] * (self.edges == "padded") + [self.form] * (self.form != "auto")
        parts += ["packed"] * (self.grouped == "pack")
        return f"tile {' '.join(parts)}"


class SitePlan(Fact, frozen=True):
    """One matrix product (M,K) x (K,N), or `batch` products of this size, and its grid of tiles.

    Attributes:
        name: Name of the node, or of its output if it has none. In a branch, loop or function, the names of
            the enclosing nodes precede it.
        grid: Number of tiles along each axis of one product: (m, k, n) = ceil of M/TM, K/TK, N/TN.
        products: Number of tile products of one run: batch x m x k x n.
        utilisation: Share of useful arithmetic: `macs` / (products x TM TK TN).
        form: Form of this site, with 'auto' resolved.
        output: Name of the site's output value in the graph, the same before and after tiling.
        weight: Name of the initializer that holds the weight, or '' if both operands are activations.
        bias: Whether a bias is added to the product.
        tile: Tile of this site as (TM, TK, TN).
        batch: Number of products of this size: heads of an attention, groups of a convolution.
        dtype: Number type of the operands.
        accumulator: Number type of the sums: 'float32', 'int32', ...
        dynamic: Sizes ('batch', 'M', 'K', 'N') that are known only at run time. The graph accepts every size,
            and the figures are for the plan's `dims`.
        place: Names of the nodes or functions that enclose the site, outermost first. Empty in the main
            graph.
        macs: Multiply-accumulates that the operator needs in one run. None means batch M K N. Packed groups
            need fewer, because zeros lie between them.
        calls: Largest number of runs in one pass: the trips of its loops and the calls of its function. Of
            the branches of an If, the costliest counts and the others have 0. None if the data sets no bound.
            `products` is the number for one run.
        rows: Pairs (runs, M) if a function is called with different numbers of rows. M and the figures that
            depend on it are those of the first call.
        at_most: Whether the site may run less often than `calls`, because the data can end a loop earlier or
            choose another branch. `products_total` and `macs_total` are then upper bounds.
        in_floats: Reason why its quantized operands are multiplied as floats, or '' if they are multiplied as
            integers or not quantized.
        sums: Accumulator size that the sums need, or None for floats or without a given accumulator.
        right: Number type in which the right operand is stored, or '' if it is `dtype`.
        layer: Path of the module that the matmul comes from, as the layer tree names it, or '' if the file
            does not say it.
    """

    name: str
    op: str
    M: int
    K: int
    N: int
    grid: tuple[int, int, int]
    products: int
    utilisation: float
    form: str
    edges: str
    output: str
    weight: str = ""
    bias: bool = False
    tile: tuple[Count, Count, Count] = (64, 64, 64)
    batch: int = 1
    dtype: str = "float32"
    accumulator: str = "float32"
    dynamic: tuple[str, ...] = ()
    place: tuple[str, ...] = ()
    calls: int | None = 1
    macs: int | None = None
    rows: tuple[tuple[int, int], ...] = ()
    in_floats: str = ""
    sums: Accumulator | None = None
    at_most: bool = False
    right: str = ""
    layer: str = ""

    @property
    def title(self) -> str:
        """Name for display, with the layer unless the name contains it."""
        return format_site(self.name, self.layer)

    @property
    def is_in_body(self) -> bool:
        """Whether the site is in a branch, loop or function, not in the main graph."""
        return bool(self.place)

    @property
    def sign(self) -> str:
        """Sign in front of figures of all its runs: '<= ' if there may be fewer runs, otherwise ''."""
        return "<= " if self.at_most and self.calls else ""

    @property
    def zeros(self) -> int:
        """MACs in one pass that multiply zeros between packed groups, beyond those of the operator."""
        needed = self.batch * self.M * self.K * self.N if self.macs is None else self.macs
        return (self.batch * self.M * self.K * self.N - needed) * (self.calls or 0)

    @property
    def products_total(self) -> int | None:
        """Tile products of all its runs in one pass, or None if the data decides the number of runs."""
        if self.calls is None:
            return None
        _, k, n = self.grid
        each = self.rows or ((self.calls, self.M),)
        return sum(
            times * (self.products if rows == self.M else self.batch * -(-rows // self.tile[0]) * k * n)
            for times, rows in each
        )

    @property
    def macs_total(self) -> int | None:
        """MACs of all its runs in one pass, or None if the data decides the number of runs."""
        if self.calls is None:
            return None
        macs = self.batch * self.M * self.K * self.N if self.macs is None else self.macs
        return sum(times * macs * rows // self.M for times, rows in self.rows or ((self.calls, self.M),))


class SkippedSite(Fact, frozen=True):
    """A matrix product that is not tiled, with the reason.

    Attributes:
        macs: Multiply-accumulates of one pass, or None if unknown.
        switched_off: Whether the settings exclude it. Otherwise it cannot be tiled.
    """

    name: str
    op: str
    reason: str
    macs: int | None = None
    switched_off: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("switched_off",)


class Plan(TableFact, frozen=True):
    """Plan of a tiling, independent of the form of the resulting graph.

    Attributes:
        tile: Requested tile as (TM, TK, TN). A site may have its own.
        edges: Requested handling of the last tile of an axis. A site may have its own.
        form: Requested form. A site may have its own.
        products: Tile products of all runs of all sites, or None if the data decides the number of runs.
        macs: Multiply-accumulates of all runs of all sites, or None if the data decides the number of runs.
        macs_total: Multiply-accumulates of the full model, or None unless all are known.
        skipped: Matrix products that are not tiled.
        dims: Sizes of symbolic dimensions to which the figures apply.
        free: Names of those `dims` that stay open in the tiled graph, which accepts every size.
        decomposed: Names of nodes that were decomposed to expose their matrix products.
        accumulator_bits: Bits of the hardware's accumulator, or 0 if none was given.
        overflows: Names of sites with sums that do not fit into the accumulator for some input.
    """

    ROWS: ClassVar[str] = "sites"

    tile: tuple[int, int, int]
    edges: str
    form: str
    sites: tuple[SitePlan, ...]
    products: int | None
    macs: int | None
    macs_total: int | None
    skipped: tuple[SkippedSite, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    free: tuple[str, ...] = ()
    decomposed: tuple[str, ...] = ()
    accumulator_bits: int = 0
    overflows: tuple[str, ...] = ()

    @property
    def sign(self) -> str:
        """Sign in front of sums over sites: '<= ' if one of them may run less often, otherwise ''."""
        return next((site.sign for site in self.sites if site.sign), "")


class LeftOver(Fact, frozen=True):
    """Operators of one type that have MACs but do not run on tiles, all for the same reason.

    Attributes:
        name: Path of the first of these operators.
        count: Number of these operators in the graph.
        macs: Multiply-accumulates of all of them in one forward pass, or None if one is unknown.
        reason: Reason why they are not tiled: the reason in the plan of the file, or the defect of the
            operators.
    """

    op: str
    name: str
    count: int
    macs: int | None
    reason: str


class TiledMacs(Fact, frozen=True):
    """Share of a model's MACs that run on tiles.

    Attributes:
        products: Tile products of one forward pass, or None if the number of runs of one is unknown.
        macs: Multiply-accumulates of these products, with the padding of tiles, or None if one is unknown.
        macs_total: Multiply-accumulates of the full model, or None if one is unknown.
        share: `macs` divided by `macs_total`, or None if one of them is unknown or the model has no MACs.
        left: Operators with MACs that do not run on tiles, the costliest first.
        dims: Sizes of open dimensions to which these figures apply. They come from the plan in the file and
            can differ from the sizes of the model's other figures. Empty if all figures are for the same
            sizes.
        at_most: Whether the figures are upper bounds, because the data can end a loop earlier or choose
            another branch.
        padded: Whether the plan in the file pads a tile with zeros.
    """

    products: int | None
    macs: int | None
    macs_total: int | None
    share: float | None
    left: tuple[LeftOver, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    at_most: bool = False
    padded: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("padded",)

    @property
    def sign(self) -> str:
        """Sign in front of `products` and `macs`: '<= ' for upper bounds, otherwise ''."""
        return "<= " if self.at_most else ""
