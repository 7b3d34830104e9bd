"""Facts about a sweep over machines and sizes of a memory: which memory is worth its area."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

from msgspec.structs import replace

from explorer.base.checked import Spec
from explorer.base.fact import Fact, TableFact
from explorer.base.options import option
from explorer.facts.mapping import Objective
from explorer.facts.pareto_front import find_nondominated

FrontFigure = Literal["cycles", "traffic"]


class MappingSweepSpec(Spec, frozen=True):
    """Memory sizes of a mapping sweep, as the user requests them.

    Attributes:
        capacity: Sizes of the first memory on the chip, each combined with each machine: a range, or sizes
            separated by commas. Empty takes each machine's own size.
    """

    capacity: Annotated[
        str,
        option(
            "sizes of each machine's first memory on the chip, with --map: 64K,256K,1M, or a range 64K:1M\n"
            "(default: the machine's own)",
            metavar="SIZES",
        ),
    ] = ""


class MappingRow(Fact, frozen=True, kw_only=True):
    """The best mappings of a model to a machine with one size of its first memory on the chip.

    Figures are sums over all matrix products and all runs of each, as in `ModelMapping`.

    Attributes:
        key: Digest of all inputs of the figures, or '' if no results file is kept.
        model: Name of the model, as the user typed it.
        fingerprint: Digest of the model's content, or '' if no results file is kept.
        opening: Options with which the model was opened, as the user typed them.
        site: Globs of the names of the mapped matrix products, or '' for all.
        objective: Figure that the searches minimized.
        machine: Name of the machine.
        memory: Name of the first memory on the chip.
        size: Bytes of one instance of that memory, or None if it is not limited.
        on_chip: Bytes of all instances of all memories but the outermost, or None if one is not limited.
        sites: Number of mapped matrix products.
        fits: Whether the memories hold a tile of each matrix product, or None if the row has another error.
        exact: Whether every search found the optimum.
        macs, traffic, compulsory, cycles, seconds, pj: Figure of the same name, as in `ModelMapping`.
        pareto: Whether the row is on the Pareto front of its model: no other row has as few bytes on the chip
            and as few cycles (or as little traffic, if `front` is 'traffic'), and less of one of the two.
        error: Reason why the row has no figures, or ''.
    """

    key: str
    model: str
    fingerprint: str = ""
    opening: str = ""
    site: str = ""
    objective: Objective = "cycles"
    machine: str
    memory: str
    size: int | None
    on_chip: int | None
    sites: int | None = None
    fits: bool | None = None
    exact: bool | None = None
    macs: int | None = None
    traffic: int | None = None
    compulsory: int | None = None
    cycles: int | None = None
    seconds: float | None = None
    pj: float | None = None
    pareto: bool = False
    error: str = ""


class MappingSweep(TableFact, frozen=True, kw_only=True):
    """The answer of `explorer sweep --map`.

    Attributes:
        rows: Rows in the order of the machines and sizes.
        front: Figure of the Pareto front beside the bytes on the chip. It is the traffic if the cycles of a
            row are unknown.
        made: Number of rows that were computed now.
        kept: Number of rows that the results file already had.
        output: Path of the results file, or '' for none.
        workers: Number of worker processes, or 0 if this process did the work.
        seconds: Seconds of the sweep.
    """

    ROWS: ClassVar[str] = "rows"

    rows: tuple[MappingRow, ...]
    front: FrontFigure = "cycles"
    made: int = 0
    kept: int = 0
    output: str = ""
    workers: int = 0
    seconds: float = 0.0


def mark_mapping_front(rows: Sequence[MappingRow]) -> tuple[tuple[MappingRow, ...], FrontFigure]:
    """Marks the rows on the Pareto front of the bytes on the chip and a second figure.

    Rows of different models, sizes of a model, sites or objectives do not compete.

    Returns:
        The marked rows, and the second figure.
    """
    fitting_rows = [row for row in rows if row.fits]
    figure: FrontFigure = "traffic" if any(row.cycles is None for row in fitting_rows) else "cycles"

    def get_group(row: MappingRow) -> tuple[str, ...]:
        return row.model, row.fingerprint, row.opening, row.site, row.objective

    def build_point(row: MappingRow) -> tuple[int, int, int] | None:
        value = getattr(row, figure)
        return None if row.on_chip is None or value is None or not row.fits else (row.on_chip, value, 0)

    points: dict[tuple[str, ...], list[tuple[int, int, int]]] = {}
    for row in fitting_rows:
        if (point := build_point(row)) is not None:
            points.setdefault(get_group(row), []).append(point)
    fronts = {group: find_nondominated(group_points) for group, group_points in points.items()}
    marked_rows = [replace(row, pareto=build_point(row) in fronts.get(get_group(row), ())) for row in rows]
    return tuple(marked_rows), figure
