"""Text output of `explorer layers`: the layer tree as a table with selectable columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from explorer.base.units import MACS, bytes_text, exact_text, sentence_text, shape_text
from explorer.facts import Analysis, Info, Layer, LayerTable, Totals, build_total_row
from explorer.report.blocks import (
    Block,
    Cell,
    Column,
    Field,
    Fields,
    Line,
    Paragraph,
    SharedRows,
    Span,
    Table,
)
from explorer.report.present.figures import bar_text, count, format_in_unit, size
from explorer.report.present.look.info import answer
from explorer.report.present.look.layers import describe_doubt, describe_part_read, find_work_sign
from explorer.report.present.look.overlay_words import build_placement_blocks, overlay_blocks
from explorer.settings.columns import (
    COLUMNS,
    NEEDS,
    STYLES,
    ColumnFigures,
    LayerColumn,
    build_overlay_columns,
    sum_tensor_bytes,
)

_DROP_ORDER = {"kind": 1, "share": 2, "output": 4, "weights": 6, "activations": 7}
"""Order in which default columns are left out of a narrow table, highest first."""
_BAR_DROP = 5
_REMARK_DROP = 3
"""Positions of the column of bars and of the column of remarks in this order."""


def layers(fact: Analysis) -> list[Block]:
    """Return the answer of `explorer layers`."""
    return answer(fact.info, build_tree_blocks(fact))


def build_tree_blocks(fact: Analysis) -> list[Block]:
    """Return the tree, indented, with the costs of each row."""
    figures, totals = ColumnFigures(totals=fact.info.totals), fact.info.totals
    columns = [COLUMNS[name] for name in STYLES["tree"].columns]
    rows = _TableBuilder(fact.info, columns, _DROP_ORDER)
    for row in fact.layers:
        rows.add(row, tuple([column.get_value(row, figures) for column in columns]))
    model_row = build_total_row(fact.info.totals, fact.info.model.inputs, fact.info.model.outputs)
    return [
        rows.table(tuple([column.get_value(model_row, figures) for column in columns])),
        *_build_table_notes(totals, columns),
    ]


def table(fact: LayerTable) -> list[Block]:
    """Return the answer of `explorer layers` with columns, a filter, an order or a style."""
    return answer(fact.info, build_table_blocks(fact))


def build_table_blocks(fact: LayerTable) -> list[Block]:
    """Return the selected rows and columns, and their totals."""
    style = STYLES[fact.style]
    outside = {} if fact.overlay is None else build_overlay_columns(fact.overlay)
    columns = [COLUMNS.get(name) or outside[name] for name in fact.columns]
    rows = _TableBuilder(fact.info, columns, heads=style.heads, flat=fact.flat, match_count=fact.found)
    for row, values in zip(fact.layers, fact.values, strict=True):
        rows.add(row, values)
    return [
        rows.table(fact.totals),
        *_build_empty_note(fact),
        *_build_missing_time_note(fact),
        *_build_table_remarks(fact),
        *(
            _build_summary_totals(fact)
            if style.sums
            else _build_table_notes(fact.info.totals, columns, narrowed=fact.found is not None)
        ),
        *([] if fact.overlay is None else overlay_blocks(fact.overlay)),
        *([] if fact.placement is None else build_placement_blocks(fact.placement)),
    ]


_WORK = ("macs", "flops", "ops")
"""Columns with operations."""


class _RowContents(NamedTuple):
    """Contents of a row except its name. Rows with equal contents share their cells."""

    group: bool
    counted: bool
    values: tuple[Any, ...]
    remark: str
    sign: str


class _TableBuilder:
    """Builds a table. In a large model most rows have equal cells, which are created once."""

    def __init__(
        self,
        info: Info,
        columns: Sequence[LayerColumn],
        drop: Mapping[str, int] | None = None,
        *,
        heads: Mapping[str, str] | None = None,
        flat: bool = False,
        match_count: int | None = None,
    ) -> None:
        self._info, self._columns, self._flat, self._match_count = info, columns, flat, match_count
        self._drop, self._heads = drop, heads or {}
        self._shape_remarks = _list_shape_remarks(info)
        # in a file of tensors the work of every row is unknown
        self._has_no_work = not info.totals.nodes and not info.totals.coverage
        self._names: list[Cell] = []
        self._depths: list[int] = []
        self._contents: list[_RowContents] = []
        self._shared_contents: dict[_RowContents, _RowContents] = {}
        indices = {column.name: index for index, column in enumerate(columns)}
        self._macs_index = indices.get("macs") if "share" in indices else None

    def add(self, row: Layer, values: tuple[Any, ...]) -> None:
        """Add a row with its values in the columns."""
        name = row.path or row.name if self._flat else "  " * row.depth + (row.name or row.path or "(model)")
        remark = _compose_remark(row, self._shape_remarks, self._has_no_work)
        contents = _RowContents(row.group, row.counted, values, remark, find_work_sign(row))
        self._names.append(Span(name, "strong") if row.group else name)
        self._depths.append(0 if self._flat else row.depth)
        self._contents.append(self._shared_contents.setdefault(contents, contents))

    def table(self, totals: tuple[Any, ...]) -> Table:
        """Return the table with the row of totals."""
        macs_index = self._macs_index
        leaves = [
            contents.values[macs_index] or 0
            for contents in self._shared_contents
            if macs_index is not None and not contents.group
        ]
        largest = max(leaves, default=0)
        cells = {contents: self._cells(contents, largest) for contents in self._shared_contents}
        label = "total" if self._match_count is None else f"total of {self._match_count:,} found"
        rows = SharedRows(
            [*self._names, Span(label, "strong")],
            [*[cells[contents] for contents in self._contents], tuple(self._total(totals))],
        )
        return Table(tuple(self._table_columns()), rows, 0, depths=(*self._depths, 0))

    def _table_columns(self) -> Iterator[Column]:
        yield Column(self._heads.get("", "layer"), shrink=True)
        for column in self._columns:
            head = self._heads.get(column.name, column.head)
            if self._has_no_work and column.name == "output":
                head = "shape"
            drop = self._drop.get(column.name, 0) if self._drop is not None else 0
            if column.is_number:
                yield Column(head, "right", drop=drop)
            else:
                yield Column(head, shrink=column.unit == "text", drop=drop)
            if column.name == "share" and self._macs_index is not None:
                yield Column("", role="bar", drop=_BAR_DROP)
        yield Column("", shrink=True, drop=_REMARK_DROP, role="warning")

    def _cells(self, contents: _RowContents, largest: float) -> tuple[Cell, ...]:
        """Return the cells of a row after its name."""
        cells: list[Cell] = []
        for column, value in zip(self._columns, contents.values, strict=True):
            cell = self._cell(column, value)
            if contents.sign and value and column.name in _WORK and isinstance(cell, Span):
                exact = contents.sign + cell.exact if cell.exact else ""
                cell = cell._replace(text=contents.sign + cell.text, exact=exact)
            cells.append(Span(cell, "quiet") if contents.group and isinstance(cell, str) and cell else cell)
            if column.name == "share" and self._macs_index is not None:
                is_counted_leaf = not contents.group and contents.counted
                cells.append(bar_text(contents.values[self._macs_index], largest) if is_counted_leaf else "")
        return (*cells, contents.remark)

    def _cell(self, column: LayerColumn, value: Any) -> Cell:
        """Return a value as a cell: in the unit of its column, with a mark if it is unknown."""
        if column.unit == "shape":
            suffix = f" and {len(value) - 1:,} more" if len(value) > 1 else ""
            return shape_text(value[0]) + suffix if value else ""
        if column.unit == "text":
            return Span(value, "quiet") if value and column.name == "kind" else str(value)
        if value is None and (column.blank or not self._info.totals.macs):
            return "" if column.blank or column.name == "share" else Span("?", "warning")
        return format_in_unit(column.unit, value)

    def _total(self, totals: Sequence[Any]) -> Iterator[Cell]:
        """Yield the cells of the totals row; columns without a sum, such as shapes and shares, are blank."""
        model_totals = self._info.totals
        for column, value in zip(self._columns, totals, strict=True):
            if (
                not column.is_number
                or column.name in ("share", "calls", "depth")
                or (value is None and column.blank)
            ):
                yield ""
            else:
                name = "elementwise_ops" if column.name == "ops" else column.name
                sign = model_totals.sign_of(name) if value is not None and not column.stored else ""
                yield _emphasize(column, value, sign)
            if column.name == "share" and self._macs_index is not None:
                yield ""


def _emphasize(column: LayerColumn, value: Any, sign: str) -> Span:
    """Return a figure of the totals row with its sign."""
    figures = {"count": count, "bytes": size}
    figure = (
        figures[column.unit](round(value))
        if column.unit in figures and value is not None
        else format_in_unit(column.unit, value)
    )
    exact = sign + figure.exact if figure.exact else ""
    return Span(sign + figure.text, "strong", exact, value)


def _build_table_notes(
    totals: Totals, columns: Sequence[LayerColumn], *, narrowed: bool = False
) -> list[Block]:
    """Return notes below the table; `narrowed` means that a filter removed rows."""
    names = {column.name for column in columns}
    has_no_work = not totals.nodes and not totals.coverage
    unit: list[Block] = (
        [Line(), Paragraph(f"MACs: {MACS}.", "quiet")] if "macs" in names and not has_no_work else []
    )
    has_size_columns = names & {"activations", "pass_size"} and not narrowed
    return [*unit, *(_build_functional_note(totals) if has_size_columns else [])]


def _build_empty_note(fact: LayerTable) -> list[Block]:
    """Return the next step after a filter that no layer matches, or []."""
    if fact.found != 0:
        return []
    note = "no layer matches; explorer ops MODEL lists operators, explorer help filter describes the terms"
    return [Line(), Paragraph(note, "warning")]


def _build_table_remarks(fact: LayerTable) -> list[Block]:
    if not fact.notes:
        return []
    return [Line(), *(Paragraph(sentence_text(note), "warning") for note in fact.notes)]


def _build_missing_time_note(fact: LayerTable) -> list[Block]:
    """Return the reason that the minimum times are unknown, or []."""
    if "time" not in fact.columns:
        return []
    time_column = fact.columns.index("time")
    has_times = any(values[time_column] is not None for values in (*fact.values, fact.totals))
    if has_times or all(row.bytes_read is None for row in fact.layers):
        return []  # with a machine, every row with known bytes has a time
    return [Line(), Paragraph(f"Least time: ?, because it {NEEDS['seconds']}.", "quiet")]


def _build_summary_totals(fact: LayerTable) -> list[Block]:
    """Return totals as torchsummary, torchinfo and Keras print them, with the model's own dtypes."""
    totals, total = fact.info.totals, fact.total
    trained = total.trainable_params
    untrained = None if trained is None else total.params - trained
    inputs = fact.info.model.inputs
    is_input_unknown = not inputs and totals.status == "unknown"
    input_bytes = None if is_input_unknown else sum_tensor_bytes(inputs)
    passes = None if total.activation_bytes is None else 2 * total.activation_bytes
    parts = (input_bytes, passes, total.weight_bytes)
    sizes = [
        ("Input size", input_bytes),
        ("Forward/backward pass size", passes),
        ("Params size", total.weight_bytes),
        ("Estimated total size", None if None in parts else sum(part or 0 for part in parts)),
    ]
    rows = [
        Field("Total params", exact_text(total.params)),
        Field("Trainable params", exact_text(trained)),
        Field("Non-trainable params", exact_text(untrained)),
        Field("Total mult-adds", count(total.macs, totals.sign if total.macs is not None else "")),
        *(Field(name, size(value)) for name, value in sizes),
    ]
    return [
        Line(),
        Fields(rows),
        *(_build_functional_note(totals, "The pass size includes") if fact.found is None else []),
    ]


def _build_functional_note(totals: Totals, subject: str = "Activations include") -> list[Block]:
    """Return a note that the figures of activations include the outputs of functions; [] without any."""
    if not totals.activation_bytes_functional:
        return []
    total = bytes_text(totals.activation_bytes_functional)
    text = (
        f"{subject} the outputs of functions ({total}), which `explorer info` prints on a line of their own."
    )
    return [Line(), Paragraph(text, "quiet")]


def _list_shape_remarks(info: Info) -> dict[str, str]:
    """Return the remarks about shapes, by the origin of the shape. Other origins need no remark."""
    remark_by_origin = {"bound": "size at most"}
    if info.model.opset is not None:
        # for ONNX, shapes are usually inferred or observed; other formats declare all shapes
        remark_by_origin["declared"] = "shape as declared"
    if "observed" in info.assumptions:
        # modules always run on tensors without data
        remark_by_origin["observed"] = "shape as seen in a run"
    return remark_by_origin


def _compose_remark(row: Layer, remark_by_origin: Mapping[str, str], has_no_work: bool) -> str:
    """Return the remark of a row: doubts, sharing, repetition, origin of the shape, conflicts."""
    remarks = [describe_doubt(row)] if row.reason and not has_no_work else []
    if row.shared_with:
        suffix = f" and {len(row.shared_with) - 1} more" if len(row.shared_with) > 1 else ""
        remarks.append(f"{describe_part_read(row)}shared with {row.shared_with[0]}{suffix}")
    if row.repeat > 1:
        remarks.append(f"first of {row.repeat} alike")
    if not row.group:
        origin = row.outputs[0].origin if row.outputs else ""
        if origin in remark_by_origin and not origin == row.status == "bound":
            remarks.append(remark_by_origin[origin])
        remarks += [f"{t.name}: {t.conflict}" for t in row.outputs if t.conflict]
    return "; ".join(remark for remark in remarks if remark)
