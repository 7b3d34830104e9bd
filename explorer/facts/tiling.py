"""Tiling, before and after it is decided: what is tiled, how, and what is left.

Re-exported by `explorer.facts`; see there for the conventions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from msgspec import Struct, field

from explorer.base.checked import Count, Natural, Spec, Words
from explorer.base.options import option
from explorer.base.units import sizes_text
from explorer.facts.quantize import Accumulator
from explorer.facts.quantize.spec import ACCUMULATOR

Form = Literal["auto", "lab", "scan", "unrolled", "batched"]
Edges = Literal["ragged", "padded"]
Grouped = Literal["leave", "pack"]

MAX_TILE = 1 << 16
"""The longest side of a tile."""


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
    "leave the last tile of an axis partial (ragged), or pad it with zeros (padded)",
    spelled=True,
    label="edges",
)
_FORM = option(
    "how tiles are written as ONNX",
    usual="auto: lab up to 256 tiles a matmul, scan above",
    spelled=True,
    label="form",
)


class TileRule(Spec, frozen=True):
    """What is asked of some sites only: a `[[site]]` table of a settings file, or a choice made by hand.

    A rule applies to a site when every condition that it states holds. A value that is None is left to the
    next rule, and at the end to the specification itself.

    Attributes:
        site: Glob over site names; '' for any.
        op: Glob over operators; '' for any.
        shape: Conditions on the sizes, such as 'M>=64 N<=1000'; '' for any.
        tile, edges, form: For these sites.
        on: False leaves them as they are.
        origin: Where it was said: 'npu.toml:12', 'chosen by hand'.
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
    """What the user asks of a tiling.

    Attributes:
        tile: (TM, TK, TN): rows of the left operand, depth, columns of the right operand.
        sites: Site names, globs over them, or filters; empty means all.
        edges: 'ragged' leaves the last tile of an axis smaller; 'padded' makes every tile exact.
        form: How the plan is written as ONNX.
        grouped: Grouped and depthwise convolutions: 'leave' them to the vector unit, or 'pack' groups
            block-diagonally into tiles.
        rules: What is asked of some sites only; the first rule that has a value decides it.
        origins: Who said the values above, by their names: 'npu.toml:3', 'command line'; a value that is not
            among them is the default.
        config: Path of the file that such values and the rules stand in; '' for none.
        accumulator: Bits of the hardware's accumulator: sums of integers that do not fit it are named; 0 for
            none.
    """

    tile: Annotated[tuple[Count, Count, Count], _TILE] = (64, 64, 64)
    sites: Annotated[
        tuple[Words, ...],
        option(
            "tile only the matmuls whose name matches, or that a filter finds",
            metavar="GLOB|FILTER",
            flag="--site",
            selects=True,
            label="matmuls",
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

    @property
    def label(self) -> str:
        """What a state that was made so is called: the tile, and what is not as it is by default."""
        parts = [sizes_text(self.tile)]
        parts += ["padded"] * (self.edges == "padded") + [self.form] * (self.form != "auto")
        parts += ["packed"] * (self.grouped == "pack")
        parts += [f"{self.accumulator}-bit accumulator"] * (self.accumulator > 0)
        return f"tile {' '.join(parts)}"


class SitePlan(Struct, frozen=True):
    """One matrix product (M,K) x (K,N), or `batch` of them side by side, and its grid of tiles.

    Attributes:
        name: The node's name, or its output's when it has none; with the names of the nodes that hold it
            before it, where it stands in a branch, a loop or a function.
        grid: (m, k, n) = ceil of M/TM, K/TK, N/TN, of one product.
        products: batch x m x k x n tile products.
        utilisation: `macs` / (products x TM TK TN).
        form: The form chosen for this site ('auto' resolved).
        output: Name of the site's output value in the graph, the same before and after.
        weight: Name of the initializer that holds the weight; '' where both operands are activations.
        bias: Whether a bias is added behind the product.
        tile: (TM, TK, TN) of this site.
        batch: Products of this size: heads of an attention, groups of a convolution.
        dtype: Of the operands.
        accumulator: Of the sums: 'float32', 'int32', ...
        dynamic: Which of 'batch', 'M', 'K', 'N' are known at run time only: the graph takes every size, and
            the figures hold for the plan's `dims`.
        place: Names of the nodes or functions whose graph holds the site, outermost first; empty for the main
            graph.
        macs: That the operator needs, in one run: fewer than batch M K N where groups are packed, with zeros
            between them; None for batch M K N.
        calls: How often the site runs in one pass, at most: the trips of its loops, the calls of its
            function; of the branches of an If the costliest counts, the others 0 times. None where the data
            decides. `products` are of one run.
        rows: (runs, M of each) where a function is called with a different number of rows here and there;
            M and what follows from it are those of the first call.
        at_most: Whether it may run less often than `calls` says: the data may end a loop around it earlier,
            or choose another branch of an If. Then `products_total` and `macs_total` are upper bounds.
        in_floats: Why its quantized operands are multiplied as floats; '' where they are multiplied as
            integers, or nothing of it is quantized.
        sums: What an accumulator has to hold; None of floats, or where no accumulator was named.
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

    @property
    def sign(self) -> str:
        """What stands before figures of all its runs: '<= ' where there may be fewer."""
        return "<= " if self.at_most and self.calls else ""

    @property
    def zeros(self) -> int:
        """MACs in one pass that multiply zeros that stand in its weight, beyond those of the operator."""
        needed = self.batch * self.M * self.K * self.N if self.macs is None else self.macs
        return (self.batch * self.M * self.K * self.N - needed) * (self.calls or 0)

    @property
    def products_total(self) -> int | None:
        """Tile products of all its runs in one pass; None where the data decides how often it runs."""
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
        """MACs of all its runs in one pass; None where the data decides how often it runs."""
        if self.calls is None:
            return None
        macs = self.batch * self.M * self.K * self.N if self.macs is None else self.macs
        return sum(times * macs * rows // self.M for times, rows in self.rows or ((self.calls, self.M),))


class SkippedSite(Struct, frozen=True):
    """A matrix product that is left as it was, and why.

    Attributes:
        macs: None where they are not known.
        switched_off: The specification left it out; else it cannot be tiled.
    """

    name: str
    op: str
    reason: str
    macs: int | None = None
    switched_off: bool = False

    NOT_IN_JSON: ClassVar[tuple[str, ...]] = ("switched_off",)


class Plan(Struct, frozen=True):
    """What is tiled and how, whatever graph comes out.

    Attributes:
        tile, edges, form: As asked for; a site may have its own.
        products, macs: Of all sites, in all their runs; None where the data decides how often one runs.
        macs_total: Of the whole model; None unless every one is known.
        skipped: What is left as it was.
        dims: The sizes of symbolic dimensions that the figures are for.
        free: Those of `dims` that stay open in the tiled graph: it takes every size.
        decomposed: Nodes that were taken apart so that their products stand by themselves.
        accumulator_bits: Of the accumulator that the hardware has; 0 where none was named.
        overflows: Sites with sums that do not fit it, for some input.
    """

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
        """What stands before sums over sites: '<= ' where one of them may run less often."""
        return next((site.sign for site in self.sites if site.sign), "")


def scope_of(name: str) -> str:
    """The module in an exporter's name for a node: /classifier/classifier.1/Gemm is of classifier.1."""
    scope = ""
    for piece in name.strip("/").split("/"):
        nested = not scope or piece == scope or piece.startswith(scope + ".")
        scope = piece if nested else f"{scope}.{piece}"
    return scope


class LeftOver(Struct, frozen=True):
    """Operators of one type that multiply and accumulate beside the tiles, for one reason.

    Attributes:
        name: Path of the first.
        count: How many there are in the graph.
        macs: All of theirs in one forward pass; None if one is unknown.
        reason: Why they are left; what the plan in the file says, or what is wrong with them.
    """

    op: str
    name: str
    count: int
    macs: int | None
    reason: str


class TiledMacs(Struct, frozen=True):
    """The part of a model's MACs that tile products do.

    Attributes:
        products: Tile products of one forward pass; None where it is not known how often one runs.
        macs: Of these products, zeros that fill up a tile included; None if one is unknown.
        macs_total: Of the whole model; None if one is unknown.
        share: `macs` in `macs_total`; None if one of them is not known, or nothing multiplies.
        left: What multiplies and accumulates beside the tiles, the costliest first.
        dims: Where the model leaves sizes open: those that these figures are for, which the plan in the
            file names, unlike all other figures of the model; empty where they are for the same sizes.
        at_most: Whether they are upper bounds: the data may end a loop earlier, or choose another branch.
    """

    products: int | None
    macs: int | None
    macs_total: int | None
    share: float | None
    left: tuple[LeftOver, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    at_most: bool = False

    @property
    def sign(self) -> str:
        """What stands before `products` and `macs`."""
        return "<= " if self.at_most else ""
