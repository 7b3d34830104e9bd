"""Labels and colors of a drawing, shared by all file formats and the screen."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from explorer.base.errors import Misuse, suggest_name
from explorer.base.families import FAMILIES
from explorer.base.units import bytes_text, count_text, exact_text, number_text, printable, seconds_text
from explorer.facts import TensorInfo
from explorer.facts.external.overlay import OutsideFigure
from explorer.facts.graph.drawing import FIGURES, GraphBox, GraphDrawing, GraphRoute
from explorer.report.names import NameSet
from explorer.report.present.figures import value_text
from explorer.report.present.look.layers import describe_same_names

COLORINGS = ("family", *FIGURES)
"""Values of `--color`: by operator family, or by a figure."""
_BYTES = frozenset({"activations", "weights", "read", "written"})
"""Figures that are numbers of bytes."""
_NOUNS = {"macs": "MACs", "params": "parameters", "ops": "elementwise operations"}
"""Noun after the value of a figure, if it is not the name of the figure."""
PALE_COLOR, FULL_COLOR = "#fff5eb", "#d94801"
"""Fill colors of zero and of the largest figure."""
LIT_COLOR = "#c2185b"
"""Color of the highlighted paths."""
_BLANK = "#f4f4f4"
"""Fill color of a box without a figure, and of a box that does not compute."""
_TINT = 0.45
"""Share of the family color in the fill of a box; the remainder is white."""
_MAX_LABEL_WIDTH = 30
_NAME = re.compile(r"((?:from|to|into|out of) |)(\S+)")
"""The name of a box: a preposition if the box is outside the drawn group, and a name from the file."""
_MAX_ATTRIBUTES = 24
"""Maximum number of attributes in the tooltip of a box."""


def check_coloring(color: str, outside: Sequence[str]) -> None:
    """Check that `color` names a figure of the program or a column of the overlay (`outside`).

    Raises:
        Misuse: `color` is not a known way to color.
    """
    colorings = (*COLORINGS, *outside)
    if color not in colorings:
        message = f"no figure is called '{shorten_label(color)}'"
        raise Misuse(message, where="--color", hint=suggest_name(color, colorings))


def shorten_label(text: str, max_length: int = _MAX_LABEL_WIDTH) -> str:
    """Make a name from a file printable and shorten it to its last `max_length` characters."""
    text = printable(text)
    return text if len(text) <= max_length else f"…{text[1 - max_length :].lstrip('./')}"


def format_figure(figure: str, value: float | None) -> str:
    """Format a figure with its unit, rounded: '70.28 M MACs'."""
    noun = _NOUNS.get(figure, figure)
    value = None if value is None else round(value)
    return f"{bytes_text(value) if figure in _BYTES else count_text(value)} {noun}"


def shorten_box_names(boxes: Sequence[GraphBox], rooms: Sequence[int] = ()) -> list[str]:
    """Return the names of boxes, shortened so that each keeps the part by which it differs from the others.

    Args:
        boxes: All boxes of a drawing.
        rooms: Cells for the name of each box; by default 30 for all.
    """
    parts = [match.groups() if (match := _NAME.fullmatch(printable(box.name))) else ("", "") for box in boxes]
    room_by_name: dict[str, int] = {}
    for (lead, name), room in zip(parts, rooms or [_MAX_LABEL_WIDTH] * len(boxes), strict=True):
        room_by_name[name] = min(max(1, room - len(lead)), room_by_name.get(name, room))
    texts = NameSet(room_by_name).shorten(room_by_name).texts
    return [
        lead + texts[name] if name else shorten_label(box.name)
        for box, (lead, name) in zip(boxes, parts, strict=True)
    ]


def list_box_lines(box: GraphBox, color: str, name: str) -> list[str]:
    """Return the lines in a box: name, kind, and tiles, figure `color` (MACs for 'family') or layer count."""
    lines = [name, shorten_label(box.kind_text)]
    figure = "macs" if color == "family" else color
    if box.tiles and color == "family":
        return [*lines, shorten_label(box.tiles)]
    if figure in box.outside or box.figures.get(figure) or (color != "family" and figure in box.figures):
        return [*lines, format_figure_label(box, figure)]
    return [*lines, f"{box.layers:,} layers"] if box.layers > 1 else lines


def find_figure_value(box: GraphBox, figure: str) -> float | None:
    """Return a figure of a box, or None if it is unknown or the box does not have it."""
    outside = box.outside.get(figure)
    return box.figures.get(figure) if outside is None else outside.value


def format_figure_label(box: GraphBox, figure: str) -> str:
    """Format a figure of a box with its unit; return '' if the box does not have it."""
    if (outside := box.outside.get(figure)) is not None:
        return _format_overlay_figure(outside, outside.value)
    return format_figure(figure, box.figures[figure]) if figure in box.figures else ""


def _format_overlay_figure(figure: OutsideFigure, value: float) -> str:
    """Format a figure of an overlay with its column name: '12.5 µs latency'."""
    if figure.unit == "bytes":
        text = bytes_text(round(value))
    elif figure.unit == "seconds":
        text = seconds_text(value)
    else:
        text = f"{100 * value:.1f} %" if figure.unit == "share" else number_text(value)
    return f"{text} {figure.head}"


def build_box_title(box: GraphBox) -> str:
    """Return the tooltip of a box: path, kind, nonzero figures and attributes, one per line."""
    lines = [printable(box.path), printable(box.kind_text)]
    if box.layers > 1:
        lines.append(f"{box.layers:,} layers")
    if box.tiles:
        lines.append(box.tiles)
    if box.call[1] > 1:
        lines.append(f"figures of all {box.call[1]:,} calls")
    for name, value in box.figures.items():
        if value != 0:
            lines.append(f"{exact_text(value)} {'bytes ' * (name in _BYTES)}{_NOUNS.get(name, name)}")
    lines += [_format_overlay_figure(figure, figure.value) for figure in box.outside.values()]
    attributes = [
        f"{printable(name)}: {printable(value_text(value))}" for name, value in box.attributes.items()
    ]
    return "\n".join([*lines, *(["", *attributes[:_MAX_ATTRIBUTES]] if attributes else [])])


def format_shape(tensor: TensorInfo, tensors: int = 1) -> str:
    """Format the shape of the tensor on an edge: '1×64×55×55', or '1×64×55×55 and 2 more' for several."""
    if tensor.shape is None:
        text = "?"
    else:
        sizes = ["?" if size is None else shorten_label(str(size), 16) for size in tensor.shape]
        text = "×".join(sizes) or "scalar"
    return f"{text} and {tensors - 1:,} more" if tensors > 1 else text


def choose_colors(drawing: GraphDrawing, color: str) -> list[str]:
    """Return the fill color of every box ('#rrggbb'), by family or by its share of the largest figure."""
    if color == "family":
        return [
            _BLANK if not _is_work(box) else "#ffffff" if _is_plain(box) else _get_tint(box.family)
            for box in drawing.boxes
        ]
    values = [find_figure_value(box, color) for box in drawing.boxes]
    largest = max((value for value in values if value), default=0)
    return [
        _BLANK
        if value is None or value < 0 or not largest > 0
        else _mix_colors(PALE_COLOR, FULL_COLOR, value / largest)
        for value in values
    ]


def choose_text_color(color: str) -> str:
    """Return the text color for a filled box: white on dark fills, dark on light fills."""
    red, green, blue = _parse_color(color)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue  # Rec. 601, from 0 to 255
    return "#ffffff" if luma < 140 else "#1c1c1c"


def legend(drawing: GraphDrawing, color: str) -> Iterator[tuple[str, str]]:
    """Yield the colors of the legend with their labels."""
    if color == "family":
        families = {box.family for box in drawing.boxes if _is_work(box) and not _is_plain(box)}
        yield from ((_get_tint(name), name) for name in FAMILIES if name in families)
        return
    largest = max((find_figure_value(box, color) or 0 for box in drawing.boxes), default=0)
    outside = next((box.outside[color] for box in drawing.boxes if color in box.outside), None)
    for share, value in ((0.0, 0), (1.0, largest)) if largest else ((0.0, 0),):
        label = format_figure(color, value) if outside is None else _format_overlay_figure(outside, value)
        yield _mix_colors(PALE_COLOR, FULL_COLOR, share), label


def notes(drawing: GraphDrawing) -> list[str]:
    """Return the lines under the title: highlighted paths, layers of the same name, folded layers, notes."""
    folded = drawing.folded
    fold_note = [f"{folded:,} layer{'s' * (folded != 1)} folded away: constants, shapes, no-ops"]
    route = [] if drawing.route is None else [describe_route(drawing.route)]
    same_names = describe_same_names(drawing.path, drawing.same_name)
    return [*route, *([same_names] if same_names else []), *(fold_note if folded else []), *drawing.notes]


def describe_route(route: GraphRoute) -> str:
    """Describe the highlighted paths: '3 paths from conv1 to layer2.0, 24 layers on them'."""
    paths_text = (
        "" if route.paths is None else "1 path" if route.paths == 1 else f"{count_text(route.paths)} paths"
    )
    layers = f"{route.layers:,} layer{'s' * (route.layers != 1)}"
    return (
        f"{paths_text or 'paths'} from {printable(route.source)} to {printable(route.target)},"
        f" {layers} on {'it' if route.paths == 1 else 'them'}"
    )


def heading(drawing: GraphDrawing) -> str:
    """Return the title of the drawing: the model, and the group if only one is drawn."""
    source = printable(drawing.source.rstrip("/").rpartition("/")[2])
    return f"{source}: {printable(drawing.path)}" if drawing.path else source


def _is_work(box: GraphBox) -> bool:
    return box.role in ("layer", "group", "part")


def _is_plain(box: GraphBox) -> bool:
    """Whether the box is a group or part without a family of its own."""
    return box.family == "other" and box.role in ("group", "part")


def _get_tint(family: str) -> str:
    return _mix_colors("#ffffff", FAMILIES[family].color, _TINT)


def _parse_color(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _mix_colors(low: str, high: str, share: float) -> str:
    parts = zip(_parse_color(low), _parse_color(high), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in parts)
