"""Overlay: figures from outside matched to the rows of a layer tree, and what groups have of them.

A name is looked for as a path, then as the name of one layer, then as a tensor that a layer makes; a glob, in
which square brackets are letters, finds all layers whose path it fits, and each of them has its figures. A
path holds before a glob, and of several globs the first in the file. Rows of one name are taken together as
a group takes what is in it: a profiler has one for each kernel. What a runtime made of a layer is looked for
by what the runtime calls it, a module that has a number among those of its class, and a report with numbers
alone among the layers that multiply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import many_text, printable
from explorer.engine.costs.layer_names import MATMULS, LayerNames
from explorer.facts import Layer
from explorer.facts.external.overlay import OutsideFigure, Over, Overlay, OverlayColumn
from explorer.settings.overlay import OutsideFigures, unique

MOST_GLOBS = 256
MOST_LETTERS = 1_000
"""Of a glob: longer ones are looked up as names."""
_LOOKED = 8
"""Names that fit nothing for which one of the model's is looked for that is near."""

Part = tuple[float, int]
"""A figure, and how many it was made of."""
_OVER: Mapping[Over, Callable[[Part, Part], Part]] = {
    "sum": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "mean": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "max": lambda a, b: (max(a[0], b[0]), a[1] + b[1]),
    "min": lambda a, b: (min(a[0], b[0]), a[1] + b[1]),
}


def overlay(layers: Sequence[Layer], files: Sequence[OutsideFigures]) -> Overlay:
    """Figures of files on the rows of a tree.

    Args:
        layers: All rows, parents before children.
        files: What the files say; columns of one name have a number behind it from the second on.

    Raises:
        Misuse: There are too many globs.
    """
    names = LayerNames(layers)
    columns: list[OverlayColumn] = []
    figures: dict[str, Mapping[int, float]] = {}
    unmatched: dict[str, None] = {}
    ambiguous: dict[str, None] = {}
    notes: list[str] = []
    rows = matched = 0
    matched_rows: set[int] = set()
    for file in [_renamed(file, layers) if file.numbered else file for file in files]:
        match = _match(names, file)
        unmatched.update(dict.fromkeys(match.unmatched))
        ambiguous.update(dict.fromkeys(match.ambiguous))
        notes += [*file.notes, *match.notes]
        rows += len(file.rows)
        matched += match.matched
        for at, column in enumerate(file.columns):
            name = unique(column.name, figures)
            columns.append(replace(column, name=name, head=column.head + name.removeprefix(column.name)))
            mine = match.figures[at]
            matched_rows |= mine.keys()
            figures[name] = _gathered(
                layers, {row: _value(part, column.over) for row, part in mine.items()}, column.over
            )
    return Overlay(
        tuple([file.source for file in files]),
        tuple(columns),
        figures,
        rows,
        matched,
        len(matched_rows),
        tuple(unmatched),
        tuple(ambiguous),
        tuple(notes),
    )


def narrowed_overlay(whole_overlay: Overlay, layers: Sequence[Layer], filtered: Sequence[Layer]) -> Overlay:
    """The figures of a filtered tree: those of a group cover the rows that the filter left in it.

    Args:
        whole_overlay: Figures of the whole tree.
        layers: All rows.
        filtered: The rows that the filter left.
    """
    every, some = _leaves(layers), _leaves(filtered)
    partial = {at for at, count in some.items() if count and count < every[at]} | {-1}
    figures = {}
    for column in whole_overlay.columns:
        whole = whole_overlay.figures[column.name]
        complete_figures = {
            row.id: whole[row.id] for row in filtered if row.id in whole and row.id not in partial
        }
        figures[column.name] = _gathered(filtered, complete_figures, column.over)
    return replace(whole_overlay, figures=figures)


def over_rows(tree_overlay: Overlay, rows: Sequence[int], ends: Sequence[int]) -> dict[str, OutsideFigure]:
    """What rows that are drawn as one have together, by the names of the columns.

    Args:
        tree_overlay: Figures of the tree.
        rows: Their ids.
        ends: Behind the last row inside each.
    """
    merged = {}
    for column in tree_overlay.columns:
        figures = tree_overlay.figures[column.name]
        parts = []
        for row in (row for row in rows if row in figures):
            # a mean is weighted by the number of its layers
            inside = range(row, ends[row]) if column.over == "mean" and len(rows) > 1 else ()
            count = sum(at in figures and ends[at] == at + 1 for at in inside) or 1
            parts.append((figures[row] * count if column.over == "mean" else figures[row], count))
        if parts:
            value = _value(reduce(_OVER[column.over], parts), column.over)
            merged[column.name] = OutsideFigure(value, column.head, column.unit)
    return merged


def _leaves(layers: Sequence[Layer]) -> dict[int, int]:
    """How many layers lie in each group."""
    counts: dict[int, int] = {}
    rows = [(row.id, row.parent, row.group) for row in layers]
    for at, parent, group in reversed(rows):
        inside = counts.setdefault(at, 0) if group else 1
        if parent is not None:
            counts[parent] = counts.get(parent, 0) + inside
    return counts


def _gathered(layers: Sequence[Layer], row_figures: Mapping[int, float], over: Over) -> dict[int, float]:
    """Figures of rows and of the groups around them, -1: of all; a group's own stands for those inside."""
    join = _OVER[over]
    parts: dict[int, Part] = {}
    for at, parent in reversed([(row.id, row.parent) for row in layers]):
        if at in row_figures:
            # the mean of a group is weighted by the number of figures in it
            count = parts[at][1] if at in parts else 1
            parts[at] = (row_figures[at] * count if over == "mean" else row_figures[at], count)
        if at in parts:
            above = -1 if parent is None else parent
            parts[above] = join(parts[above], parts[at]) if above in parts else parts[at]
    return {at: _value(part, over) for at, part in parts.items()}


def _value(part: Part, over: Over) -> float:
    return part[0] / part[1] if over == "mean" else part[0]


class _Match(Struct):
    """What the rows of a file are: by column, by layer."""

    figures: list[dict[int, Part]]
    matched: int = 0
    unmatched: list[str] = []
    ambiguous: list[str] = []
    notes: list[str] = []


def _match(names: LayerNames, file: OutsideFigures) -> _Match:
    match = _Match([{} for _ in file.columns])
    globs: list[tuple[str, tuple[float | None, ...]]] = []
    for name, cells in file.rows:
        rows = names.named(name, file.ops.get(name, ""), file.modules.get(name))
        if len(rows) == 1:
            match.matched += 1
            _add(match.figures, rows[0], cells, file.columns)
        elif rows:
            match.ambiguous.append(name)
        elif len(name) <= MOST_LETTERS and any(letter in name for letter in "*?"):
            globs.append((name, cells))
        else:
            match.unmatched.append(name)
    if file.rows and not globs and not match.matched and not match.ambiguous:
        close = (name for name in match.unmatched[:_LOOKED] if names.near_alone(name))
        first = next(close, match.unmatched[0])
        problem = f"no layer is called {_several(first, len(match.unmatched))}"
        raise Misuse(problem, where=file.source, hint=names.near(first))
    if len(globs) > MOST_GLOBS:
        raise Misuse(f"{len(globs):,} globs; {MOST_GLOBS} are looked for", where=file.source)
    exact: set[int] = set().union(*match.figures)
    taken: set[int] = set()
    several: set[int] = set()
    for name, cells in globs:
        rows = names.like(name)
        if not rows:
            match.unmatched.append(name)
            continue
        match.matched += 1
        several.update(row for row in rows if row in taken)
        for row in rows:
            if row not in exact and row not in taken:
                _add(match.figures, row, cells, file.columns)
        taken.update(rows)
    if several:
        match.notes.append(f"{len(several):,} layers fit several globs: the first in the file holds")
    return match


def _several(name: str, count: int) -> str:
    more = f" or {many_text(count - 1, 'other name')}" if count > 1 else ""
    return f"'{printable(name)[:60]}'{more}"


def _renamed(file: OutsideFigures, layers: Sequence[Layer]) -> OutsideFigures:
    """A report that numbers layers, by the paths of the layers that multiply.

    Raises:
        Misuse: The model has another number of such layers.
    """
    every = [row for row in layers if not row.group and row.macs]
    sets = {
        "layers with MACs": every,
        "layers that are matmuls or convolutions": [row for row in every if row.kind in MATMULS],
        "convolutions": [row for row in every if row.kind.startswith("Conv")],
    }
    for words, rows in sets.items():
        if len(rows) == len(file.rows):
            named = tuple([(row.path, cells) for row, (_, cells) in zip(rows, file.rows, strict=True)])
            note = f"LayerID counts the {len(rows):,} {words}, as they run"
            return replace(file, rows=named, notes=(*file.notes, note))
    counts = ", ".join(f"{len(rows):,} {words}" for words, rows in sets.items())
    raise Misuse(
        f"the report has {len(file.rows):,} layers, the model {counts}",
        where=file.source,
        hint="write names or paths in place of the numbers under LayerID",
    )


def _add(
    figures: list[dict[int, Part]], row: int, cells: Sequence[float | None], columns: Sequence[OverlayColumn]
) -> None:
    for of_rows, cell, column in zip(figures, cells, columns, strict=True):
        if cell is not None:
            part = (cell, 1)
            of_rows[row] = _OVER[column.over](of_rows[row], part) if row in of_rows else part
