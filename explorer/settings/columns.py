"""Columns of the layer tree: the name, the value of a row, the unit and the group value of each.

This table serves every request for a figure by name: `layers --columns` and `--sort`, a comparison in a
filter (`explorer.settings.filter`), and the screen. It imports nothing heavier than the facts. Figures that a
row does not hold itself come from `ColumnFigures`: the totals of the model, the least time on a machine, the
utilization of tiles, and figures from outside the program.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct, field

from explorer.base.errors import Misuse, suggest_name
from explorer.base.units import sizes_text
from explorer.facts import Layer, Shape, TensorInfo, Totals
from explorer.facts.external.overlay import Over, Overlay

Unit = Literal["text", "shape", "count", "bytes", "mebibytes", "share", "seconds", "ratio", "plain", "number"]
"""Unit of a column: text, shapes, or numbers, each with its own rounding. 'ratio' and 'plain' have no unit.
'mebibytes' and 'number' have their unit in the header of the column.
"""
NUMBERS: frozenset[Unit] = frozenset(
    {"count", "bytes", "mebibytes", "share", "seconds", "ratio", "plain", "number"}
)
"""Units of columns that are compared and sorted as numbers."""


class ColumnFigures(Struct, frozen=True):
    """Figures of rows from other sources than the rows, by row id. A field is None if it was not requested.

    Attributes:
        totals: Totals of the model, for shares.
        seconds: Least seconds of each row on a machine, with groups.
        measured: Measured seconds of each row, with groups.
        measured_share: Share of the wall time of the profile, or of its kernel time if that is longer, with
            groups.
        efficiency: Least seconds divided by measured seconds, with groups.
        utilization: Share of the MACs in a row's tiles that its matmuls need. The rest is padding.
        overlay: Figures from outside the program.
        providers: Execution providers of onnxruntime that run each row, as text.
    """

    totals: Totals | None = None
    seconds: Mapping[int, float | None] | None = None
    utilization: Mapping[int, float] | None = None
    overlay: Overlay | None = None
    providers: Mapping[int, str] | None = None
    measured: Mapping[int, float | None] | None = None
    measured_share: Mapping[int, float | None] | None = None
    efficiency: Mapping[int, float | None] | None = None


NOTHING = ColumnFigures()
"""No figures from other sources than the rows."""


class LayerColumn(Struct, frozen=True):
    """A column of the layer tree.

    Attributes:
        name: Name of the column in options and filters.
        head: Header of the column.
        unit: Unit of the values.
        get_value: Function that returns the value of a row: a text, a shape, a number, or None if unknown.
        about: Description in one line.
        stored: Whether the value never depends on shapes, so unknown shapes do not make it a bound.
        field: Name of the field of `Layer` that holds the value, or ''. A group has the sum of its layers.
        needs: Name of the field of `ColumnFigures` that the column requires, or ''.
        blank: Whether None means that the row has no such value. Otherwise None means unknown.
        summed: Whether a group has the sum of its layers although the column is not a field.
        aggregate: How a group combines figures of a profile, an overlay or a split into stages, else ''.
    """

    name: str
    head: str
    unit: Unit
    get_value: Callable[[Layer, ColumnFigures], Any]
    about: str
    stored: bool = False
    field: str = ""
    needs: str = ""
    blank: bool = False
    summed: bool = False
    aggregate: Over | Literal[""] = ""

    @property
    def adds_up(self) -> bool:
        """Whether a group has the sum of its layers."""
        return self.summed or bool(self.field)

    @property
    def is_number(self) -> bool:
        """Whether rows are compared and sorted by number."""
        return self.unit in NUMBERS


ATTRIBUTE_NAMES: Mapping[str, tuple[str, ...]] = {
    "kernel": ("kernel_shape", "kernel_size"),
    "stride": ("strides", "stride"),
    "padding": ("pads", "padding"),
    "dilation": ("dilations", "dilation"),
    "groups": ("group", "groups"),
}
"""Names that an attribute has in different formats, by its name in a filter."""


def find_attribute(layer: Layer, names: Sequence[str]) -> Any:
    """Finds the first attribute in `names` that a row has, or returns None."""
    return next((layer.attributes[name] for name in names if name in layer.attributes), None)


def _format_kernel(layer: Layer, _: ColumnFigures) -> str:
    value = find_attribute(layer, ATTRIBUTE_NAMES["kernel"])
    if value is None:
        return ""
    sizes = value if isinstance(value, (list, tuple)) else (value,)
    if len(sizes) == 1 and layer.outputs and (shape := layer.outputs[0].shape) is not None:
        # torch writes 3 for a 3x3 window
        sizes = (*sizes,) * max(1, len(shape) - 2) if not isinstance(value, (list, tuple)) else sizes
    return sizes_text(sizes)


def _sum(*parts: int | None) -> int | None:
    """Sums numbers, or returns None if one of them is unknown."""
    known_parts = [part for part in parts if part is not None]
    return sum(known_parts) if len(known_parts) == len(parts) else None


def _count_bytes_moved(layer: Layer, _: ColumnFigures) -> int | None:
    return _sum(layer.bytes_read, layer.bytes_written)


def _double(value: int | None) -> int | None:
    return None if value is None else 2 * value


def _compute_intensity(layer: Layer, figures: ColumnFigures) -> float | None:
    moved = _count_bytes_moved(layer, figures)
    return 2 * layer.macs / moved if moved and layer.macs is not None else None


def _compute_macs_share(layer: Layer, figures: ColumnFigures) -> float | None:
    total = None if figures.totals is None else figures.totals.macs
    if not layer.counted:
        return 0.0  # the layer does not run, so it has no share of the work
    return layer.macs / total if layer.macs is not None and total else None


def _compute_params_share(layer: Layer, figures: ColumnFigures) -> float | None:
    total = None if figures.totals is None else figures.totals.params
    return layer.params / total if total else None


def _compute_bits(layer: Layer, _: ColumnFigures) -> float | None:
    return 8 * layer.weight_bytes / layer.params if layer.params else None


def sum_tensor_bytes(tensors: Iterable[TensorInfo]) -> int | None:
    """Sums the bytes of tensors, each tensor once, or returns None if a shape or element type is unknown.

    The bits of a type are the first number in its name, as numpy and ml_dtypes spell it; bool has 8 bits.
    """
    total = 0
    for tensor in {tensor.name: tensor for tensor in tensors}.values():
        digits = re.search(r"\d+", tensor.dtype or "")
        bits = 8 if tensor.dtype == "bool" else int(digits[0]) if digits else None
        if bits is None or tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
            return None
        total += -(-math.prod([size for size in tensor.shape if isinstance(size, int)]) * bits // 8)
    return total


def _count_input_bytes(layer: Layer, _: ColumnFigures) -> int | None:
    size = sum_tensor_bytes(layer.inputs)
    return None if size is None else size * (1 if layer.group else layer.calls)


def _list_shapes(tensors: Sequence[TensorInfo]) -> tuple[Shape | None, ...]:
    return tuple([tensor.shape for tensor in tensors])


def _list_output_shapes(layer: Layer, _: ColumnFigures) -> tuple[Shape | None, ...]:
    # in a file of tensors, a row is a tensor
    is_tensor = not layer.outputs and not layer.inputs and not layer.group and len(layer.weights) == 1
    return _list_shapes(layer.weights if is_tensor else layer.outputs)


def _list_dtypes(layer: Layer, _: ColumnFigures) -> str:
    return ", ".join(dict.fromkeys(t.dtype or "?" for t in (layer.outputs or layer.weights)))


def _read_profile_figure(field: str, layer: Layer, column_figures: ColumnFigures) -> float | None:
    figures: Mapping[int, float | None] = getattr(column_figures, field) or {}
    return figures.get(layer.id) or None  # a layer without a kernel of its own has no time


def _build_field_column(
    name: str, head: str, unit: Unit, field_name: str, about: str, *, stored: bool = False
) -> LayerColumn:
    """Builds a column for the field `field_name` of a row."""
    return LayerColumn(
        name, head, unit, lambda layer, _: getattr(layer, field_name), about, stored, field_name
    )


def _build_profile_column(name: str, head: str, unit: Unit, about: str, group_rule: Over) -> LayerColumn:
    return LayerColumn(
        *(name, head, unit, partial(_read_profile_figure, name), about),
        needs=name,
        blank=True,
        summed=group_rule == "sum",
        aggregate=group_rule,
    )


_TABLE = (
    LayerColumn("kind", "kind", "text", lambda layer, _: layer.kind_text, "the operator or class"),
    LayerColumn("path", "path", "text", lambda layer, _: layer.path, "the name in full"),
    LayerColumn("input", "input", "shape", lambda layer, _: _list_shapes(layer.inputs), "shape of the input"),
    LayerColumn("output", "output", "shape", _list_output_shapes, "shape of the output"),
    LayerColumn("dtype", "dtype", "text", _list_dtypes, "element type of the outputs"),
    LayerColumn("kernel", "kernel", "text", _format_kernel, "size of the window of a convolution or pooling"),
    _build_field_column("macs", "MACs", "count", "macs", "multiply-accumulates"),
    LayerColumn("share", "share", "share", _compute_macs_share, "share of the model's MACs"),
    LayerColumn(
        *("flops", "FLOPs", "count", lambda layer, _: _double(layer.macs), "twice the MACs"), summed=True
    ),
    _build_field_column("ops", "elementwise", "count", "elementwise_ops", "elementwise operations"),
    _build_field_column(
        "params", "params", "count", "params", "parameters, each stored parameter once", stored=True
    ),
    _build_field_column(
        *("trainable", "trainable", "count", "trainable_params"),
        "parameters with requires_grad; unknown where the format does not say",
        stored=True,
    ),
    _build_field_column(
        "weights", "weights", "bytes", "weight_bytes", "bytes of the parameters", stored=True
    ),
    LayerColumn("params_share", "of params", "share", _compute_params_share, "share of the parameters"),
    LayerColumn(
        *("bits", "bits", "ratio", _compute_bits, "bits of a stored parameter"), stored=True, blank=True
    ),
    _build_field_column("activations", "activations", "bytes", "activation_bytes", "bytes of the outputs"),
    _build_field_column("read", "read", "bytes", "bytes_read", "bytes read, each input once"),
    _build_field_column("written", "written", "bytes", "bytes_written", "bytes written, each output once"),
    LayerColumn("bytes", "bytes", "bytes", _count_bytes_moved, "bytes read and written", summed=True),
    LayerColumn("intensity", "FLOPs/byte", "ratio", _compute_intensity, "arithmetic intensity", blank=True),
    LayerColumn(
        *("time", "least time", "seconds", lambda layer, figures: (figures.seconds or {}).get(layer.id)),
        "least time on the machine of --machine",
        needs="seconds",
        summed=True,
    ),
    _build_profile_column(
        *("measured", "measured", "seconds"),
        "time of the last profile; a layer within another's kernel has none",
        "sum",
    ),
    _build_profile_column(
        *("measured_share", "of time", "share"),
        *("share of the wall time of the last profile, or of its kernel time if that is longer", "sum"),
    ),
    _build_profile_column(
        *("efficiency", "of roof", "share"),
        "least time on the machine of the profile, divided by the measured time",
        "mean",
    ),
    LayerColumn(
        *("utilization", "utilization", "share"),
        lambda layer, figures: (figures.utilization or {}).get(layer.id),
        "share of the tiles' arithmetic that the matmul needs",
        needs="utilization",
        blank=True,
    ),
    LayerColumn(
        *("provider", "provider", "text", lambda layer, figures: (figures.providers or {}).get(layer.id, "")),
        "which execution provider of onnxruntime runs it",
        needs="providers",
    ),
    LayerColumn(
        "input_size", "input MiB", "mebibytes", _count_input_bytes, "bytes of the inputs that are not weights"
    ),
    LayerColumn(
        *("pass_size", "forward+backward MiB", "mebibytes"),
        lambda layer, _: _double(layer.activation_bytes),
        "bytes of the outputs and of their gradients",
        summed=True,
    ),
    LayerColumn(
        *("param_size", "params MiB", "mebibytes", lambda layer, _: layer.weight_bytes),
        "bytes of the parameters",
        stored=True,
        summed=True,
    ),
    LayerColumn(
        *("total_size", "total MiB", "mebibytes"),
        lambda layer, figures: _sum(
            _count_input_bytes(layer, figures), _double(layer.activation_bytes), layer.weight_bytes
        ),
        "bytes of inputs, outputs, gradients and parameters",
    ),
    LayerColumn("calls", "calls", "plain", lambda layer, _: layer.calls, "runs in one forward pass"),
    LayerColumn("depth", "depth", "plain", lambda layer, _: layer.depth, "number of groups around the layer"),
    LayerColumn("status", "status", "text", lambda layer, _: layer.status, "exact, bound or unknown"),
)

COLUMNS: Mapping[str, LayerColumn] = {column.name: column for column in _TABLE}
"""Columns by name."""


def list_available_columns(figures: ColumnFigures) -> Mapping[str, LayerColumn]:
    """Lists the available columns, including columns of figures from outside the program."""
    return {**COLUMNS, **(build_overlay_columns(figures.overlay) if figures.overlay is not None else {})}


def build_overlay_columns(overlay: Overlay) -> Mapping[str, LayerColumn]:
    """Builds the columns for figures from outside the program, by name."""
    return {
        outside_column.name: LayerColumn(
            *(
                outside_column.name,
                outside_column.head,
                outside_column.unit,
                partial(_read_overlay_figure, outside_column.name),
            ),
            f"from {', '.join(overlay.sources)}; a group has the {outside_column.over} of those in it",
            stored=True,
            blank=True,
            summed=outside_column.over == "sum",
            aggregate=outside_column.over,
        )
        for outside_column in overlay.columns
    }


def _read_overlay_figure(name: str, layer: Layer, column_figures: ColumnFigures) -> float | None:
    figures = column_figures.overlay.figures if column_figures.overlay is not None else {}
    return figures.get(name, {}).get(layer.id)


def find_columns(
    names: Iterable[str],
    figures: ColumnFigures = NOTHING,
    where: str = "--columns",
    unknown: Collection[str] = (),
) -> list[LayerColumn]:
    """Finds columns by name. `unknown` lists the fields of `ColumnFigures` that columns may need and lack.

    Raises:
        Misuse: A column does not exist, or the figures that it needs are missing.
    """
    by_name = list_available_columns(figures)
    columns = []
    for name in dict.fromkeys(name.strip().lower() for name in names):
        column = by_name.get(name)
        if column is None:
            raise Misuse(
                f"there is no column '{name}'",
                where=where,
                hint=suggest_name(name, by_name, listing="explorer help filter"),
            )
        if column.needs not in unknown and (lacking := describe_missing_figures(column, figures)):
            raise Misuse(f"'{name}' {lacking}", where=where)
        columns.append(column)
    return columns


_PROFILE = "needs a profile: session.profile(); on the screen %"
NEEDS = {
    "seconds": "needs a machine: name one with --machine, or give --peak-macs and --bandwidth",
    "utilization": "needs a tile, or a model that is tiled: --tile 64x64x64",
    "measured": _PROFILE,
    "measured_share": _PROFILE,
    "efficiency": "needs a profile for a machine: session.profile(machine=...); on the screen m, then %",
    "providers": "needs to ask onnxruntime: --provider",
}
"""Error texts by the field of `ColumnFigures` that is missing."""


def describe_missing_figures(column: LayerColumn, figures: ColumnFigures) -> str:
    """Describes the figures that a column needs and lacks, or returns '' if none are missing."""
    return NEEDS[column.needs] if column.needs and getattr(figures, column.needs) is None else ""


class Style(Struct, frozen=True):
    """A named set of columns.

    Attributes:
        columns: Names of the columns from left to right.
        flat: Whether to list only the layers, without their groups.
        heads: Headers that replace the columns' headers, in the words of the imitated tool. The key '' is for
            the column with the names of the layers, which is not in `columns`.
        sums: Whether totals follow the table, as in that tool.
    """

    columns: tuple[str, ...]
    flat: bool = False
    heads: Mapping[str, str] = field(default_factory=dict)
    sums: bool = False


StyleName = Literal["tree", "torchinfo", "torchsummary", "keras", "sizes"]

STYLES: Mapping[str, Style] = {
    "tree": Style(("kind", "output", "params", "weights", "macs", "share", "activations")),
    "torchinfo": Style(
        ("kind", "input", "output", "kernel", "params", "macs", "trainable"),
        heads={
            "": "Layer",
            "kind": "(type)",
            "input": "Input Shape",
            "output": "Output Shape",
            "kernel": "Kernel Shape",
            "params": "Param #",
            "macs": "Mult-Adds",
            "trainable": "Trainable",
        },
        sums=True,
    ),
    "torchsummary": Style(
        ("kind", "output", "params"),
        flat=True,
        heads={"": "Layer", "kind": "(type)", "output": "Output Shape", "params": "Param #"},
        sums=True,
    ),
    "keras": Style(
        ("kind", "output", "params", "trainable"),
        heads={
            "": "Layer",
            "kind": "(type)",
            "output": "Output Shape",
            "params": "Param #",
            "trainable": "Trainable #",
        },
        sums=True,
    ),
    "sizes": Style(("kind", "output", "input_size", "pass_size", "param_size", "total_size")),
}
"""Styles of `layers --style`."""
