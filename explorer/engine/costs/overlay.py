"""Matches figures from report files to the rows of a layer tree, and aggregates them for groups (an overlay).

A name is looked up as a path, then as the name of a layer, then as the name of a tensor that a layer
produces. A glob applies its figures to every layer whose path matches; square brackets in it are literal. A
name takes precedence over a glob, and the first matching glob of a file over later ones. Several rows with
one name, such as the kernels in a profile, are aggregated like the layers of a group. Three further lookups
follow: names that a runtime derives from a layer, the index of a module among the modules of its class, and,
for a report with numbers only, the order of the layers with MACs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce

from msgspec import Struct
from msgspec.structs import replace

from explorer.base.errors import Misuse
from explorer.base.units import many_do_text, many_text, printable
from explorer.engine.costs.layer_names import MATMULS, LayerNames
from explorer.facts import Layer
from explorer.facts.external.overlay import OutsideFigure, Over, Overlay, OverlayColumn
from explorer.settings.overlay import OutsideFigures, make_unique

MAX_GLOBS = 256
"""Maximum number of globs in a file, because each is compared with every path."""
MAX_LETTERS = 1_000
"""Maximum length of a glob; longer text is looked up as a name only."""
_MAX_NEIGHBOR_SEARCHES = 8
"""Maximum number of unmatched names for which the error message searches a similar name."""

Part = tuple[float, int]
"""A figure, and the number of values it aggregates."""
_AGGREGATIONS: Mapping[Over, Callable[[Part, Part], Part]] = {
    "sum": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "mean": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "max": lambda a, b: (max(a[0], b[0]), a[1] + b[1]),
    "min": lambda a, b: (min(a[0], b[0]), a[1] + b[1]),
}


def match_overlay(layers: Sequence[Layer], files: Sequence[OutsideFigures]) -> Overlay:
    """Matches the figures of report files to the rows of a tree.

    Args:
        layers: All rows, parents before children.
        files: Contents of the files. A duplicate column name gets a number appended.

    Raises:
        Misuse: A file has too many globs, or none of its names matches a layer.
    """
    names = LayerNames(layers)
    columns: list[OverlayColumn] = []
    figures: dict[str, Mapping[int, float]] = {}
    unmatched: dict[str, None] = {}
    ambiguous: dict[str, None] = {}
    notes: list[str] = []
    rows = matched = 0
    matched_rows: set[int] = set()
    for file in [_replace_numbers_by_paths(file, layers) if file.numbered else file for file in files]:
        match = _match(names, file)
        unmatched.update(dict.fromkeys(match.unmatched))
        ambiguous.update(dict.fromkeys(match.ambiguous))
        notes += [*file.notes, *match.notes]
        rows += len(file.rows)
        matched += match.matched
        for index, column in enumerate(file.columns):
            name = make_unique(column.name, figures)
            columns.append(replace(column, name=name, head=column.head + name.removeprefix(column.name)))
            column_parts = match.figures[index]
            matched_rows |= column_parts.keys()
            figures[name] = _aggregate(
                layers,
                {row: _compute_value(part, column.over) for row, part in column_parts.items()},
                column.over,
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


def narrow_overlay(whole_overlay: Overlay, layers: Sequence[Layer], filtered: Sequence[Layer]) -> Overlay:
    """Aggregates the figures for a filtered tree: a group's figures cover its remaining rows only.

    Args:
        whole_overlay: Figures of the full tree.
        layers: All rows.
        filtered: Rows that the filter kept.
    """
    all_counts, remaining_counts = _count_leaves(layers), _count_leaves(filtered)
    partial = {
        row_id for row_id, count in remaining_counts.items() if count and count < all_counts[row_id]
    } | {-1}
    figures = {}
    for column in whole_overlay.columns:
        tree_figures = whole_overlay.figures[column.name]
        complete_figures = {
            row.id: tree_figures[row.id]
            for row in filtered
            if row.id in tree_figures and row.id not in partial
        }
        figures[column.name] = _aggregate(filtered, complete_figures, column.over)
    return replace(whole_overlay, figures=figures)


def merge_figures(
    tree_overlay: Overlay, rows: Sequence[int], ends: Sequence[int]
) -> dict[str, OutsideFigure]:
    """Aggregates the figures of rows that are drawn as one, by column name.

    Args:
        tree_overlay: Figures of the tree.
        rows: Ids of the rows.
        ends: For each row, the index after the last row of its subtree.
    """
    merged = {}
    for column in tree_overlay.columns:
        figures = tree_overlay.figures[column.name]
        parts = []
        for row in (row for row in rows if row in figures):
            # a mean is weighted by the number of its layers
            inner_rows = range(row, ends[row]) if column.over == "mean" and len(rows) > 1 else ()
            count = (
                sum(inner_row in figures and ends[inner_row] == inner_row + 1 for inner_row in inner_rows)
                or 1
            )
            parts.append((figures[row] * count if column.over == "mean" else figures[row], count))
        if parts:
            value = _compute_value(reduce(_AGGREGATIONS[column.over], parts), column.over)
            merged[column.name] = OutsideFigure(value, column.head, column.unit)
    return merged


def _count_leaves(layers: Sequence[Layer]) -> dict[int, int]:
    """Returns the number of layers in each group."""
    counts: dict[int, int] = {}
    rows = [(row.id, row.parent, row.group) for row in layers]
    for row_id, parent, group in reversed(rows):
        leaf_count = counts.setdefault(row_id, 0) if group else 1
        if parent is not None:
            counts[parent] = counts.get(parent, 0) + leaf_count
    return counts


def _aggregate(
    layers: Sequence[Layer], row_figures: Mapping[int, float], aggregation: Over
) -> dict[int, float]:
    """Returns the figures of rows, groups and the model (-1). A group's own figure takes precedence."""
    join = _AGGREGATIONS[aggregation]
    parts: dict[int, Part] = {}
    for row_id, parent in reversed([(row.id, row.parent) for row in layers]):
        if row_id in row_figures:
            # the mean of a group is weighted by the number of figures in it
            count = parts[row_id][1] if row_id in parts else 1
            parts[row_id] = (
                row_figures[row_id] * count if aggregation == "mean" else row_figures[row_id],
                count,
            )
        if row_id in parts:
            group_id = -1 if parent is None else parent
            parts[group_id] = join(parts[group_id], parts[row_id]) if group_id in parts else parts[row_id]
    return {row_id: _compute_value(part, aggregation) for row_id, part in parts.items()}


def _compute_value(part: Part, aggregation: Over) -> float:
    """Returns the aggregated figure; the parts of a mean are sums."""
    return part[0] / part[1] if aggregation == "mean" else part[0]


class _Match(Struct):
    """The match of a file with a tree.

    Attributes:
        figures: Figures by column, then by row id.
        matched: Number of names that match one row, and of globs that match any number of rows.
        unmatched: Names and globs that match no row.
        ambiguous: Names that match several rows.
        notes: Notes for the user.
    """

    figures: list[dict[int, Part]]
    matched: int = 0
    unmatched: list[str] = []
    ambiguous: list[str] = []
    notes: list[str] = []


def _match(names: LayerNames, file: OutsideFigures) -> _Match:
    """Matches the names of a file: single names first, then globs for rows that no name matches.

    Raises:
        Misuse: No name matches a row, or the file has more than `MAX_GLOBS` globs.
    """
    match = _Match([{} for _ in file.columns])
    globs: list[tuple[str, tuple[float | None, ...]]] = []
    for name, cells in file.rows:
        rows = names.find_named(name, file.ops.get(name, ""), file.modules.get(name))
        if len(rows) == 1:
            match.matched += 1
            _add(match.figures, rows[0], cells, file.columns)
        elif rows:
            match.ambiguous.append(name)
        elif len(name) <= MAX_LETTERS and any(letter in name for letter in "*?"):
            globs.append((name, cells))
        else:
            match.unmatched.append(name)
    if file.rows and not globs and not match.matched and not match.ambiguous:
        names_with_neighbors = (
            name for name in match.unmatched[:_MAX_NEIGHBOR_SEARCHES] if names.suggest_similar(name)
        )
        first = next(names_with_neighbors, match.unmatched[0])
        problem = f"no layer is called {_format_names(first, len(match.unmatched))}"
        raise Misuse(problem, where=file.source, hint=names.suggest_names(first))
    if len(globs) > MAX_GLOBS:
        raise Misuse(
            f"{len(globs):,} patterns such as *conv*, and at most {MAX_GLOBS} are allowed", where=file.source
        )
    named_rows: set[int] = set().union(*match.figures)
    globbed_rows: set[int] = set()
    rows_of_several_globs: set[int] = set()
    for name, cells in globs:
        rows = names.find_matching(name)
        if not rows:
            match.unmatched.append(name)
            continue
        match.matched += 1
        rows_of_several_globs.update(row for row in rows if row in globbed_rows)
        for row in rows:
            if row not in named_rows and row not in globbed_rows:
                _add(match.figures, row, cells, file.columns)
        globbed_rows.update(rows)
    if rows_of_several_globs:
        match.notes.append(
            f"{many_do_text(len(rows_of_several_globs), 'layer', 'matches', 'match')} several patterns:"
            " the first in the file applies"
        )
    return match


def _format_names(name: str, count: int) -> str:
    more_text = f" or {many_text(count - 1, 'other name')}" if count > 1 else ""
    return f"'{printable(name)[:60]}'{more_text}"


def _replace_numbers_by_paths(file: OutsideFigures, layers: Sequence[Layer]) -> OutsideFigures:
    """Replaces the numbers in a report by the paths of layers, in order.

    The layers are those with MACs, the matmuls and convolutions among them, or the convolutions: the first of
    these sets that has as many layers as the report.

    Raises:
        Misuse: No set has as many layers as the report.
    """
    mac_layers = [row for row in layers if not row.group and row.macs]
    sets = {
        "layers with MACs": mac_layers,
        "layers that are matmuls or convolutions": [row for row in mac_layers if row.kind in MATMULS],
        "convolutions": [row for row in mac_layers if row.kind.startswith("Conv")],
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
    for column_parts, cell, column in zip(figures, cells, columns, strict=True):
        if cell is not None:
            part = (cell, 1)
            column_parts[row] = (
                _AGGREGATIONS[column.over](column_parts[row], part) if row in column_parts else part
            )
