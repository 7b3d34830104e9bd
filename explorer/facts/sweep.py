"""Sweep over tilings: a row for every combination, and which of them nothing else beats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import replace

from explorer.base.checked import Count, Spec
from explorer.base.errors import Misuse, failed_models
from explorer.base.verdicts import VerdictKind
from explorer.facts.cost import Hardware
from explorer.facts.tiling import Edges, Form, Grouped, TileSpec

Tile = tuple[Count, Count, Count]

MOST_TILES = 1_000_000
"""Tiles of one sweep: they are listed before the first is weighed."""

OBJECTIVES = ("cycles", "traffic", "buffer")
"""Of two tilings that are equal in all others, the one with less of any of these is the better one."""


class SweepSpec(Spec, frozen=True):
    """What is combined: every tile with every kind of edges, form and treatment of groups.

    Attributes:
        base: What all of them have in common: its sites and rules.
    """

    tiles: Annotated[tuple[Tile, ...], Meta(min_length=1)]
    edges: Annotated[tuple[Edges, ...], Meta(min_length=1)] = ("ragged",)
    forms: Annotated[tuple[Form, ...], Meta(min_length=1)] = ("auto",)
    grouped: Annotated[tuple[Grouped, ...], Meta(min_length=1)] = ("leave",)
    base: TileSpec = TileSpec()


class SweepRow(Struct, frozen=True):
    """One tiling of one model; figures are sums over all sites and all calls of each.

    Attributes:
        key: Digest of everything that the figures depend on: the model's content and how it was opened, the
            tiling, the hardware, the program's version.
        model: As the user named it.
        fingerprint: Digest of the model's content; '' where nothing is kept.
        opening: The options that it was opened with, as they are typed.
        hardware: What the user calls the machine.
        sites: Products that are tiled; `skipped` are left as they were.
        products, macs, utilisation, padded_share, traffic_without_reuse, lower_bound, intensity, cycles,
            seconds, memory_bound: As in `facts.cost.PlanCost`, each site in the order of its loops that moves
            the least.
        traffic: Bytes moved in that order.
        buffer: Bytes that the machine needs for the tiles at a time: twice one of each where it is
            double-buffered.
        fits: Whether that is in its buffer.
        verified: Whether the proof passed; None where none was made.
        verdict_kind: What the proof showed.
        verdict: The proof in a sentence.
        worst_error: Largest difference between an output of the model and of the tiled one.
        tiled_bytes: Size of the tiled file.
        draws, seed: Of the proof.
        proof_seconds: What tiling, writing and proving took.
        error: Why there are no figures; '' where there are.
        at_most: Whether sums over all runs are upper bounds: a loop may end earlier, another branch may run.
        pareto: Nothing else among the model's tilings has less of one of `OBJECTIVES` and no more of another.
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
        """What stands before sums over all runs."""
        return "<= " if self.at_most else ""

    @property
    def share(self) -> float | None:
        """Share of the model's MACs that run on tiles."""
        if self.macs is None or not self.macs_total:
            return None
        return self.macs / self.macs_total


class SweepLayer(Struct, frozen=True):
    """A product of a model, whatever its tiles: `batch` of them in each of `calls` runs."""

    model: str
    name: str
    M: int
    K: int
    N: int
    batch: int = 1
    calls: int | None = 1


class Sweep(Struct, frozen=True):
    """The answer of `explorer sweep`.

    Attributes:
        rows: Models in the order in which they were named, each with its tilings in the order of the
            combinations; or as `ordered` by a figure.
        layers: The products of the models, for programs that simulate them.
        made: Rows that were computed now.
        kept: Rows that were known before.
        proved: Proofs that were made now.
        output: The file that keeps the rows; '' for none.
        workers: Processes that worked at it; 0 where it was done in this one.
        notes: What the user should know of how it was done.
    """

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
        """Why there is not one figure of a model, by its name: it cannot be opened, or not be tiled."""
        return failed_models(self.rows)


def combinations(spec: SweepSpec) -> list[TileSpec]:
    """Every tiling that is asked for, each once; tiles change slowest."""
    return [
        replace(spec.base, tile=tile, edges=edges, form=form, grouped=grouped)
        for tile in dict.fromkeys(spec.tiles)
        for edges in dict.fromkeys(spec.edges)
        for form in dict.fromkeys(spec.forms)
        for grouped in dict.fromkeys(spec.grouped)
    ]


def tiles_of(
    whole: Sequence[Tile] | None,
    rows: Sequence[int] | None = None,
    depths: Sequence[int] | None = None,
    columns: Sequence[int] | None = None,
) -> tuple[Tile, ...]:
    """Tiles from whole ones, and from sizes that replace one side of each of them in turn.

    Args:
        whole: None for cubes of 16, 32, 64 and 128.
        rows: In place of the first size of each; None leaves it as it is.
        depths: In place of the second.
        columns: In place of the third.

    Raises:
        Misuse: They are too many to be weighed.
    """
    most = math.prod(
        len(sizes) for sizes in (whole or range(4), rows or (0,), depths or (0,), columns or (0,))
    )
    if most > MOST_TILES:
        raise Misuse(f"{most:,} tiles are too many", where="sweep", hint=f"combine at most {MOST_TILES:,}")
    if rows and depths and columns and whole is None:
        whole = ((1, 1, 1),)  # nothing of it is left
    return tuple(
        dict.fromkeys(
            (m, k, n)
            for tile in whole or tuple((size, size, size) for size in (16, 32, 64, 128))
            for m in rows or tile[:1]
            for k in depths or tile[1:2]
            for n in columns or tile[2:]
        )
    )


# the order

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
"""What rows can be sorted by: the field, and whether the largest comes first."""


def ordered(rows: Iterable[SweepRow], by: str, *, reverse: bool = False) -> tuple[SweepRow, ...]:
    """Rows by one of `SORTS`, the best first; rows of which it is not known come last either way."""
    name, largest = SORTS[by]
    if not name:
        return tuple(rows)[::-1] if reverse else tuple(rows)
    # the front itself goes by what its machine, or without one its memory, does best
    listed = list(ordered(ordered(rows, "traffic"), "cycles")) if by == "pareto" else list(rows)
    sortable = [row for row in listed if getattr(row, name) is not None]
    unknown = [row for row in listed if getattr(row, name) is None]
    sortable.sort(key=lambda row: getattr(row, name), reverse=largest != reverse)
    return (*sortable, *unknown)
