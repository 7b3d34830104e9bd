"""Facts about a sweep over tilings: a row for each combination, and the Pareto front."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated, ClassVar, Literal

from msgspec import Meta
from msgspec.structs import replace

from explorer.base.checked import Count, PathText, Spec
from explorer.base.errors import Misuse, find_failed_models
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.base.verdicts import VerdictKind
from explorer.facts.cost import Hardware
from explorer.facts.tiling import Edges, Form, Grouped, TileSpec

Tile = tuple[Count, Count, Count]

MAX_TILES = 100_000
"""Largest number of tiles in one sweep. All tiles are listed in memory before the first is evaluated."""

OBJECTIVES = ("cycles", "traffic", "buffer")
"""Figures of the Pareto front. Lower is better for each of them."""


class SweepSpec(Spec, frozen=True):
    """Settings of a sweep: every tile is combined with every edge mode, form and treatment of groups.

    Attributes:
        base: Settings common to all combinations: sites and rules.
    """

    tiles: Annotated[tuple[Tile, ...], Meta(min_length=1)]
    edges: Annotated[tuple[Edges, ...], Meta(min_length=1)] = ("ragged",)
    forms: Annotated[tuple[Form, ...], Meta(min_length=1)] = ("auto",)
    grouped: Annotated[tuple[Grouped, ...], Meta(min_length=1)] = ("leave",)
    base: TileSpec = TileSpec()


class SweepRunSpec(Spec, frozen=True):
    """Processes that compute the rows of a sweep, and the file that stores the rows.

    Attributes:
        output: Path of the file. Rows that it already contains are not computed again.
        workers: Number of processes on this machine. 1 uses only this process.
        scheduler: Address of a Dask cluster that computes the rows, 'tcp://host:port'.
    """

    output: Annotated[
        PathText | None,
        option(
            "SQLite file that keeps the rows; the same command continues an interrupted sweep",
            metavar="FILE",
            short="-o",
        ),
    ] = None
    workers: Annotated[
        Count | None,
        option(
            "processes that share the work; 1 uses only this one (default: one for each processor if that is"
            " faster; 1 for serving)",
            metavar="N",
        ),
    ] = None
    scheduler: Annotated[
        str | None,
        option(
            "address of a Dask cluster that does the work, fully trusted: tcp://host:8786", metavar="ADDRESS"
        ),
    ] = None


SortName = Literal[
    "asked",
    "cycles",
    "time",
    "traffic",
    "buffer",
    "products",
    "utilisation",
    "padded",
    "error",
    "pareto",
]
"""Order of the rows of a sweep; see `SORTS`."""


class SweepViewSpec(Spec, frozen=True):
    """Selection and order of the rows of a sweep.

    Attributes:
        sort: Figure by which the rows are sorted, or None for the order of the combinations.
        beside: Tilings that are compared: 'all', 'front' (the Pareto front), or tile sizes. None for none.
    """

    sort: Annotated[
        SortName | None, option("figure to sort the rows by (default: asked, the order of the combinations)")
    ] = None
    beside: Annotated[
        str | None,
        option("compare tilings with the first of them: their tiles, all, or front", metavar="TILES"),
    ] = None


class SweepRow(Fact, frozen=True):
    """One tiling of one model. Figures are sums over all sites and all calls of each.

    Attributes:
        key: Digest of all inputs of the figures: the content of the model and its opening options, the
            tiling, the hardware, and the program's version.
        model: Name of the model, as the user typed it.
        fingerprint: Digest of the model's content, or '' if no results file is kept.
        opening: Options with which the model was opened, as the user typed them.
        hardware: Name of the machine.
        sites: Number of tiled products.
        skipped: Number of products that are not tiled.
        products, macs, utilisation, padded_share, traffic_without_reuse, lower_bound, intensity, cycles,
            seconds, memory_bound: Figure of the same name, as in `facts.cost.PlanCost` or its `total`, with
            the loop order of least traffic for each site.
        traffic: Bytes of traffic in that loop order.
        buffer: Bytes of buffer that the tiles of one step need, twice that if the machine is double-buffered.
        fits: Whether the machine's buffer holds them, or None if its size is unknown.
        verified: Whether the proof passed, or None without a proof.
        verdict_kind: Kind of the verdict of the proof.
        verdict: Verdict in one sentence.
        worst_error: Largest difference between an output of the model and of the tiled model.
        tiled_bytes: Bytes of the tiled file.
        draws: Number of random inputs of the proof.
        seed: Seed of the first random input of the proof.
        proof_seconds: Seconds to tile, write and prove the model.
        error: Reason why the row has no figures, or ''.
        at_most: Whether sums over all runs are upper bounds, because a loop may end earlier or another branch
            may run.
        pareto: Whether the row is on the Pareto front: no other tiling of the model has less of one of
            `OBJECTIVES` and no more of another.
    """

    key: str
    model: str
    fingerprint: str
    opening: str
    tile: Tile
    edges: str
    form: str
    grouped: str
    hardware: str = ""
    sites: int | None = None
    skipped: int | None = None
    products: int | None = None
    macs: int | None = None
    macs_total: int | None = None
    utilisation: float | None = None
    padded_share: float | None = None
    traffic: int | None = None
    traffic_without_reuse: int | None = None
    lower_bound: int | None = None
    intensity: float | None = None
    buffer: int | None = None
    fits: bool | None = None
    cycles: int | None = None
    seconds: float | None = None
    memory_bound: int | None = None
    verified: bool | None = None
    verdict_kind: VerdictKind | None = None
    verdict: str = ""
    worst_error: float | None = None
    tiled_bytes: int | None = None
    draws: int | None = None
    seed: int | None = None
    proof_seconds: float | None = None
    error: str = ""
    pareto: bool = False
    at_most: bool = False

    @property
    def sign(self) -> str:
        """Sign in front of sums over all runs: '<= ' for upper bounds, otherwise ''."""
        return "<= " if self.at_most else ""

    @property
    def share(self) -> float | None:
        """Share of the model's MACs that run on tiles, or None if unknown."""
        if self.macs is None or not self.macs_total:
            return None
        return self.macs / self.macs_total


class SweepLayer(Fact, frozen=True):
    """A product of a model, without a tiling: `batch` products of this size in each of `calls` runs."""

    model: str
    name: str
    M: int
    K: int
    N: int
    batch: int = 1
    calls: int | None = 1


class Sweep(TableFact, frozen=True):
    """The answer of `explorer sweep`.

    Attributes:
        rows: Rows by model, in the order in which the user named the models, each with its tilings in the
            order of the combinations. A requested sort order replaces this.
        layers: Products of the models, for programs that simulate them.
        made: Number of rows that were computed now.
        kept: Number of rows that the results file already had.
        proved: Number of proofs that were made now.
        output: Path of the results file, or '' for none.
        workers: Number of worker processes, or 0 if this process did the work.
        notes: Remarks about the execution of the sweep.
    """

    ROWS: ClassVar[str] = "rows"

    rows: tuple[SweepRow, ...]
    hardware: Hardware
    layers: tuple[SweepLayer, ...] = ()
    made: int = 0
    kept: int = 0
    proved: int = 0
    output: str = ""
    workers: int = 0
    seconds: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def failed(self) -> dict[str, str]:
        """Reason by model name, for models that cannot be opened or have no tiling at all."""
        return find_failed_models(self.rows)


def count_combinations(spec: SweepSpec) -> int:
    """Counts the tilings that `list_combinations` lists, without building them."""
    return math.prod(len(set(values)) for values in (spec.tiles, spec.edges, spec.forms, spec.grouped))


def list_combinations(spec: SweepSpec) -> list[TileSpec]:
    """Lists every requested tiling once. Tiles change slowest."""
    if spec.base.mapping:
        hint = "leave 'mapping' out; explorer sweep MODEL --map searches mappings"
        raise Misuse("a mapping has tiles of its own", where=spec.base.config or "sweep", hint=hint)
    return [
        replace(spec.base, tile=tile, edges=edges, form=form, grouped=grouped)
        for tile in dict.fromkeys(spec.tiles)
        for edges in dict.fromkeys(spec.edges)
        for form in dict.fromkeys(spec.forms)
        for grouped in dict.fromkeys(spec.grouped)
    ]


def combine_tiles(
    tiles: Sequence[Tile] | None,
    rows: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
) -> tuple[Tile, ...]:
    """Combines tiles with sizes that replace one side of each tile.

    Args:
        tiles: Tiles, or None for cubes of 16, 32, 64 and 128.
        rows: Sizes that replace the first side (M) of each tile, or None.
        depths: Sizes that replace the second side (K), or None.
        columns: Sizes that replace the third side (N), or None.

    Raises:
        Misuse: The combinations exceed `MAX_TILES`.
    """
    sides = [dict.fromkeys(sizes or ()) for sizes in (rows, depths, columns)]
    # tiles that differ only in replaced sides give the same combinations
    distinct = dict.fromkeys(
        tuple(1 if sizes else side for sizes, side in zip(sides, tile, strict=True))
        for tile in tiles or tuple((size, size, size) for size in (16, 32, 64, 128))
    )
    count = len(distinct) * math.prod(len(sizes) or 1 for sizes in sides)
    if count > MAX_TILES:
        raise Misuse(f"{count:,} tiles are too many", where="sweep", hint=f"combine at most {MAX_TILES:,}")
    return tuple(
        dict.fromkeys(
            (m, k, n)
            for tile in distinct
            for m in sides[0] or tile[:1]
            for k in sides[1] or tile[1:2]
            for n in sides[2] or tile[2:]
        )
    )


# sort orders

SORTS: dict[str, tuple[str, bool]] = {
    "asked": ("", False),
    "cycles": ("cycles", False),
    "time": ("seconds", False),
    "traffic": ("traffic", False),
    "buffer": ("buffer", False),
    "products": ("products", False),
    "utilisation": ("utilisation", True),
    "padded": ("padded_share", False),
    "error": ("worst_error", False),
    "pareto": ("pareto", True),
}
"""Sort orders of rows: the field, and whether the largest value comes first."""


def sort_tilings(rows: Iterable[SweepRow], sort_name: str, *, reverse: bool = False) -> tuple[SweepRow, ...]:
    """Sorts rows by one of `SORTS`, the best first, or the worst with `reverse`; unknown values come last."""
    name, largest = SORTS[sort_name]
    if not name:
        return tuple(rows)[::-1] if reverse else tuple(rows)
    # rows on the front are ordered by cycles, or by traffic if the machine is unknown
    listed = (
        list(sort_tilings(sort_tilings(rows, "traffic"), "cycles")) if sort_name == "pareto" else list(rows)
    )
    sortable = [row for row in listed if getattr(row, name) is not None]
    unknown = [row for row in listed if getattr(row, name) is None]
    sortable.sort(key=lambda row: getattr(row, name), reverse=largest != reverse)
    return (*sortable, *unknown)
