"""Columns of the layer tree: what each is called, how it is got from a row, its unit, what its sum is.

One table for all who ask for a figure by name: `layers --columns` and `--sort`, a comparison in a filter
(`explorer.settings.filter`), the screen. Nothing heavier than the facts is imported. What a row does not say
itself lies beside it (`ColumnFigures`): the model's totals, the least time on a machine, how full the tiles
are, and figures from elsewhere.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

from msgspec import Struct, field

from explorer.base.errors import Misuse, nearest
from explorer.base.units import sizes_text
from explorer.facts import Layer, Shape, TensorInfo, Totals
from explorer.facts.external.overlay import Over, Overlay

Unit = Literal["text", "shape", "count", "bytes", "mebibytes", "share", "seconds", "ratio", "plain", "number"]
"""What a column holds: words, the shapes of some tensors, and numbers, each rounded in a way of its own.
'ratio' and 'plain' have no unit, 'mebibytes' are bytes in a unit that stands in the head, as that of a
'number' from outside does."""
NUMBERS: frozenset[Unit] = frozenset(
    {"count", "bytes", "mebibytes", "share", "seconds", "ratio", "plain", "number"}
)
"""Units of what can be compared and sorted as numbers."""


class ColumnFigures(Struct, frozen=True):
    """What is known of rows beside what they say themselves, by the id of the row; None: it was not asked.

    Attributes:
        totals: Of the model, for shares.
        seconds: The least time on a machine, of groups too.
        measured, measured_share, efficiency: Of a profile: seconds, their share of the wall time, and what of
            them the least time is; of groups too.
        utilization: Of the arithmetic of a row's tile products, the share that its products need.
        overlay: Figures that came from elsewhere.
        providers: What of onnxruntime runs each row, in words.
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


class LayerColumn(Struct, frozen=True):
    """A column of the layer tree.

    Attributes:
        name: As it is typed.
        head: As it is printed.
        unit: See `Unit`.
        of: What a row has there: text, a shape, a number, or None for what is not known.
        about: What it is, in a line.
        stored: Known of every row, whatever its shapes are: never a bound.
        field: The field of a `Layer` that it is, where it is one; a group's is the sum of those in it.
        needs: What has to lie beside the rows: the field of `ColumnFigures`.
        blank: None means that a row has nothing of the kind, not that it is not known.
        summed: A group's is the sum of those in it, though it is no field.
        over: Of figures from outside, what rows have together.
    """

    name: str
    head: str
    unit: Unit
    of: Callable[[Layer, ColumnFigures], Any]
    about: str
    stored: bool = False
    field: str = ""
    needs: str = ""
    blank: bool = False
    summed: bool = False
    over: Over | Literal[""] = ""

    @property
    def adds_up(self) -> bool:
        """Whether a group's is the sum of those in it."""
        return self.summed or bool(self.field)

    @property
    def is_number(self) -> bool:
        """Whether rows are compared and sorted by it as by a number."""
        return self.unit in NUMBERS


KERNELS: Mapping[str, tuple[str, ...]] = {
    "kernel": ("kernel_shape", "kernel_size"),
    "stride": ("strides", "stride"),
    "padding": ("pads", "padding"),
    "dilation": ("dilations", "dilation"),
    "groups": ("group", "groups"),
}
"""Attributes that the formats call by different words."""


def attribute(layer: Layer, names: Sequence[str]) -> Any:
    """The first attribute of these names that a row has; None for none."""
    return next((layer.attributes[name] for name in names if name in layer.attributes), None)


def _kernel(layer: Layer, _: ColumnFigures) -> str:
    value = attribute(layer, KERNELS["kernel"])
    if value is None:
        return ""
    sizes = value if isinstance(value, (list, tuple)) else (value,)
    if len(sizes) == 1 and layer.outputs and (shape := layer.outputs[0].shape) is not None:
        # torch says 3 of a window of 3x3, whose every side is the same
        sizes = (*sizes,) * max(1, len(shape) - 2) if not isinstance(value, (list, tuple)) else sizes
    return sizes_text(sizes)


def _sum(*parts: int | None) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _moved(layer: Layer, _: ColumnFigures) -> int | None:
    return _sum(layer.bytes_read, layer.bytes_written)


def _double(value: int | None) -> int | None:
    return None if value is None else 2 * value


def _intensity(layer: Layer, beside: ColumnFigures) -> float | None:
    moved = _moved(layer, beside)
    return 2 * layer.macs / moved if moved and layer.macs is not None else None


def _share(layer: Layer, beside: ColumnFigures) -> float | None:
    whole = None if beside.totals is None else beside.totals.macs
    if not layer.counted:
        return 0.0  # what does not run beside the rest has no part in the model's work
    return layer.macs / whole if layer.macs is not None and whole else None


def _bits(layer: Layer, _: ColumnFigures) -> float | None:
    return 8 * layer.weight_bytes / layer.params if layer.params else None


def tensor_bytes(tensors: Iterable[TensorInfo]) -> int | None:
    """Bytes of tensors, each once; None unless the shape and the element type of all are known.

    A type is as wide as the number in its name says: numpy's and ml_dtypes' spelling.
    """
    whole = 0
    for tensor in {tensor.name: tensor for tensor in tensors}.values():
        digits = re.search(r"\d+", tensor.dtype or "")
        bits = 8 if tensor.dtype == "bool" else int(digits[0]) if digits else None
        if bits is None or tensor.shape is None or not all(isinstance(size, int) for size in tensor.shape):
            return None
        whole += -(-math.prod([size for size in tensor.shape if isinstance(size, int)]) * bits // 8)
    return whole


def _taken(layer: Layer, _: ColumnFigures) -> int | None:
    size = tensor_bytes(layer.inputs)
    return None if size is None else size * (1 if layer.group else layer.calls)


def _shapes(tensors: Sequence[TensorInfo]) -> tuple[Shape | None, ...]:
    return tuple([tensor.shape for tensor in tensors])


def _outputs(layer: Layer, _: ColumnFigures) -> tuple[Shape | None, ...]:
    # a row of a file of tensors is a tensor
    bare = not layer.outputs and not layer.inputs and not layer.group and len(layer.weights) == 1
    return _shapes(layer.weights if bare else layer.outputs)


def _dtypes(layer: Layer, _: ColumnFigures) -> str:
    return ", ".join(dict.fromkeys(t.dtype or "?" for t in (layer.outputs or layer.weights)))


def _of_profile(field: str, layer: Layer, beside: ColumnFigures) -> float | None:
    figures: Mapping[int, float | None] = getattr(beside, field) or {}
    return figures.get(layer.id) or None  # what did not run for itself has no time


def _own(name: str, head: str, unit: Unit, of: str, about: str, *, stored: bool = False) -> LayerColumn:
    """The field `of` of a row."""
    return LayerColumn(name, head, unit, lambda layer, _: getattr(layer, of), about, stored, of)


def _profiled(name: str, head: str, unit: Unit, about: str, over: Over) -> LayerColumn:
    return LayerColumn(
        *(name, head, unit, partial(_of_profile, name), about),
        needs=name,
        blank=True,
        summed=over == "sum",
        over=over,
    )


_TABLE = (
    LayerColumn("kind", "kind", "text", lambda layer, _: layer.kind_text, "the operator or class"),
    LayerColumn("path", "path", "text", lambda layer, _: layer.path, "the name in full"),
    LayerColumn("input", "input", "shape", lambda layer, _: _shapes(layer.inputs), "shape of the input"),
    LayerColumn("output", "output", "shape", _outputs, "shape of the output"),
    LayerColumn("dtype", "dtype", "text", _dtypes, "element type of the outputs"),
    LayerColumn("kernel", "kernel", "text", _kernel, "size of the window of a convolution or pooling"),
    _own("macs", "MACs", "count", "macs", "multiply-accumulates"),
    LayerColumn("share", "share", "share", _share, "of the model's MACs"),
    LayerColumn(
        *("flops", "FLOPs", "count", lambda layer, _: _double(layer.macs), "twice the MACs"), summed=True
    ),
    _own("ops", "elementwise", "count", "elementwise_ops", "elementwise operations"),
    _own("params", "params", "count", "params", "parameters, each stored one once", stored=True),
    _own(
        *("trainable", "trainable", "count", "trainable_params"),
        "parameters with requires_grad; unknown where the format does not say",
        stored=True,
    ),
    _own("weights", "weights", "bytes", "weight_bytes", "bytes of the parameters", stored=True),
    LayerColumn(*("bits", "bits", "ratio", _bits, "a parameter, as it is stored"), stored=True, blank=True),
    _own("activations", "activations", "bytes", "activation_bytes", "bytes of the outputs"),
    _own("read", "read", "bytes", "bytes_read", "bytes read, each input once"),
    _own("written", "written", "bytes", "bytes_written", "bytes written, each output once"),
    LayerColumn("bytes", "bytes", "bytes", _moved, "bytes read and written", summed=True),
    LayerColumn("intensity", "FLOPs/byte", "ratio", _intensity, "arithmetic intensity", blank=True),
    LayerColumn(
        *("time", "least time", "seconds", lambda layer, beside: (beside.seconds or {}).get(layer.id)),
        "lower bound on the machine that is named",
        needs="seconds",
        summed=True,
    ),
    _profiled(
        *("measured", "measured", "seconds"),
        "time of the last profile; a layer within another's kernel has none",
        "sum",
    ),
    _profiled("measured_share", "of time", "share", "of the wall time of the last profile", "sum"),
    _profiled(
        *("efficiency", "of roof", "share"),
        "the least time on the machine that was profiled for, over the measured one",
        "mean",
    ),
    LayerColumn(
        *("utilization", "utilization", "share"),
        lambda layer, beside: (beside.utilization or {}).get(layer.id),
        "of the arithmetic of the tiles, the share that the matmul needs",
        needs="utilization",
        blank=True,
    ),
    LayerColumn(
        *("provider", "provider", "text", lambda layer, beside: (beside.providers or {}).get(layer.id, "")),
        "which execution provider of onnxruntime runs it",
        needs="providers",
    ),
    LayerColumn("input_size", "input MiB", "mebibytes", _taken, "bytes of the inputs that are no weights"),
    LayerColumn(
        *("pass_size", "forward+backward MiB", "mebibytes"),
        lambda layer, _: _double(layer.activation_bytes),
        "bytes of the outputs, and as many of their gradients",
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
        lambda layer, beside: _sum(
            _taken(layer, beside), _double(layer.activation_bytes), layer.weight_bytes
        ),
        "inputs, forward and backward, and parameters",
    ),
    LayerColumn("calls", "calls", "plain", lambda layer, _: layer.calls, "runs in one forward pass"),
    LayerColumn("depth", "depth", "plain", lambda layer, _: layer.depth, "groups around it"),
    LayerColumn("status", "status", "text", lambda layer, _: layer.status, "exact, bound or unknown"),
)

COLUMNS: Mapping[str, LayerColumn] = {column.name: column for column in _TABLE}
"""Every column by its name."""


def columns_beside(beside: ColumnFigures) -> Mapping[str, LayerColumn]:
    """The columns that there are, those of outside figures too."""
    return {**COLUMNS, **(outside_columns(beside.overlay) if beside.overlay is not None else {})}


def outside_columns(overlay: Overlay) -> Mapping[str, LayerColumn]:
    """The columns of figures from outside, by name."""
    return {
        one.name: LayerColumn(
            *(one.name, one.head, one.unit, partial(_outside, one.name)),
            f"from {', '.join(overlay.sources)}; a group has the {one.over} of those in it",
            stored=True,
            blank=True,
            summed=one.over == "sum",
            over=one.over,
        )
        for one in overlay.columns
    }


def _outside(name: str, layer: Layer, beside: ColumnFigures) -> float | None:
    figures = beside.overlay.figures if beside.overlay is not None else {}
    return figures.get(name, {}).get(layer.id)


def chosen_columns(
    names: Iterable[str],
    beside: ColumnFigures = NOTHING,
    where: str = "--columns",
    unknown: Collection[str] = (),
) -> list[LayerColumn]:
    """Columns by their names; of one that needs what is in `unknown` every figure may be unknown.

    Raises:
        Misuse: There is no such column, or what it needs was not given.
    """
    by_name = columns_beside(beside)
    columns = []
    for name in dict.fromkeys(name.strip().lower() for name in names):
        column = by_name.get(name)
        if column is None:
            raise Misuse(f"there is no column '{name}'", where=where, hint=nearest(name, by_name))
        if column.needs not in unknown and (lacking := missing(column, beside)):
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
"""What columns need that does not lie beside every table."""


def missing(column: LayerColumn, beside: ColumnFigures) -> str:
    """What a column needs that does not lie beside the rows, in words; '' if all is there."""
    return NEEDS[column.needs] if column.needs and getattr(beside, column.needs) is None else ""


class Style(Struct, frozen=True):
    """Columns that go together under a name.

    Attributes:
        columns: Their names, from left to right.
        flat: The layers alone, without the groups around them.
        heads: What the tool whose table it is calls them; for the first column the key is ''.
        sums: Whether totals stand below the table as that tool has them.
    """

    columns: tuple[str, ...]
    flat: bool = False
    heads: Mapping[str, str] = field(default_factory=dict)
    sums: bool = False


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
"""What `layers --style` has."""
