"""Options of `explorer values`: the part of a tensor to print or draw, and the model to compare it with."""

from __future__ import annotations

from typing import Annotated

from explorer.base.checked import Count, Natural, Spec
from explorer.base.options import option
from explorer.base.units import join_values


def _format_span(span: tuple[int, int]) -> str:
    return f"{span[0]}:{span[1]}"


def _format_map_size(size: tuple[int, int]) -> str:
    return f"{size[0]}x{size[1]}"


class ValuesSpec(Spec, frozen=True):
    """Numbers of a tensor, as the user requests them: a slice, or with `map` a heat map.

    Attributes:
        slice: Slice in numpy notation. None selects the edges of a large tensor, or a whole small one.
        before: Path or name of the model to compare with, or None.
        before_name: Name of the tensor in the compared model. None uses the same name.
        map: Rows and columns of the heat map in cells, or None to print numbers.
        at: Index on each axis before the last two.
        rows: Half-open range of rows, or None for all.
        columns: Half-open range of columns, or None for all.
    """

    slice: Annotated[
        str | None,
        option(
            "slice in numpy notation: '[0:1, :8]', '3, ..., ::2', '-1'",
            manual="slice in numpy notation: `'[0:1, :8]'`, `'3, ..., ::2'`, `'-1'`; without it a"
            " large tensor is shown by its edges",
            metavar="SLICE",
        ),
    ] = None
    before: Annotated[str | None, option("compare with the numbers of another model", metavar="MODEL")] = None
    before_name: Annotated[
        str | None, option("name of the tensor in the other model, if it differs", metavar="NAME")
    ] = None
    map: Annotated[
        tuple[Count, Count] | None,
        option(
            "draw the tensor as a map of this many cells, with its outliers (default 24x64)",
            metavar="ROWSxCOLUMNS",
            reader="map_size",
            write=_format_map_size,
        ),
    ] = None
    at: Annotated[
        tuple[Natural, ...],
        option(
            "with --map: the index on each axis before the last two, such as 0,3",
            metavar="I,J",
            reader="place",
            joined=True,
            write=join_values,
        ),
    ] = ()
    rows: Annotated[
        tuple[Natural, Natural] | None,
        option(
            "with --map: only these rows, such as 0:512", metavar="A:B", reader="span", write=_format_span
        ),
    ] = None
    columns: Annotated[
        tuple[Natural, Natural] | None,
        option(
            "with --map: only these columns, such as 64:128", metavar="A:B", reader="span", write=_format_span
        ),
    ] = None
