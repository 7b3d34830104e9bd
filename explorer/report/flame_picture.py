"""Flame graph as a picture: the groups and layers of a model as boxes, as wide as their share of a figure."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from explorer.base.families import FAMILIES
from explorer.base.units import printable, seconds_text
from explorer.facts import Info, Layer
from explorer.facts.profile.profile import Profile
from explorer.report.flame_layout import (
    FlameFigure,
    FlameLabel,
    IcicleBox,
    create_counted_figure,
    create_measured_figure,
    icicle,
    label_of,
    shorten_labels,
)
from explorer.report.timeline import run_title
from explorer.session.cache.rows import build_structure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STEPS = 2_000
"""Number of steps into which the width is divided."""

_CHARACTERS = 110
"""Number of characters that fit side by side."""

_MAX_LEVELS = 60
"""Maximum number of levels of boxes."""


class Flame(Struct, frozen=True):
    """Contents of a flame graph.

    Attributes:
        figure: Figure that determines the widths.
        layers: Rows of the tree.
        top: Row of the topmost box, or None for the whole model.
        profile: Profile for measured time, or None for a counted figure.
    """

    figure: FlameFigure
    layers: Sequence[Layer]
    top: int | None = None
    profile: Profile | None = None


def flame_of(
    by: str,
    info: Info,
    layers: Sequence[Layer],
    top: int | None,
    measured: tuple[Profile, Sequence[float]] | None,
) -> Flame:
    """Create the contents of a flame graph, for a counted figure or for measured time.

    Args:
        by: Name of the counted figure.
        info: Facts about the model.
        layers: Rows of its tree.
        top: Row of the topmost box, or None for the whole model.
        measured: Profile and column of the tree for measured time, or None for a counted figure.
    """
    structure = build_structure(layers)
    if measured is not None:
        profile, seconds = measured
        return Flame(create_measured_figure(structure, seconds, profile), layers, top, profile)
    return Flame(create_counted_figure(by, structure, info.totals), layers, top)


def flame(axes: Axes, info: Info, fact: Flame) -> None:
    """Draw the groups and layers as boxes. Rows too narrow to be visible are merged."""
    figure, layers, profile = fact.figure, fact.layers, fact.profile
    model = printable(os.path.basename(info.model.source))
    span = None if fact.top is None else (fact.top, figure.weights.end[fact.top])
    boxes = icicle(figure.weights, span, _STEPS, _MAX_LEVELS)
    labels = [label_of(box, layers, model) for box in boxes]
    max_lengths = [box.width * _CHARACTERS // _STEPS for box in boxes]
    for box, label, max_length in zip(
        boxes, shorten_labels(boxes, labels, max_lengths), max_lengths, strict=True
    ):
        _draw(axes, box, label, max_length)
    axes.set_xlim(0, _STEPS)
    axes.invert_yaxis()
    axes.set_xticks([])
    axes.set_yticks([])
    value_text = figure.text(boxes[0].value)
    folded = sum(box.rows for box in boxes if box.rows > 1)
    axes.set_xlabel(
        figure.title + (f"; {folded:,} rows are too narrow for a box of their own" if folded else "")
    )
    if fact.top is not None:
        model = f"{printable(layers[fact.top].path)} of {model}"
    elif profile is not None:
        value_text = f"{seconds_text(profile.wall_seconds)} a run, {profile.device}"
        value_text += "; the machine was loaded" * profile.loaded
        model = run_title(profile, model)
    axes.set_title(f"{model}: {value_text}")


def _draw(axes: Axes, box: IcicleBox, label: FlameLabel, max_length: int) -> None:
    color = FAMILIES[label.family].color
    axes.barh(
        box.level, box.width, left=box.start, height=0.95, color=color, edgecolor="white", linewidth=0.4
    )
    if max_length >= 3:
        name = label.name if len(label.name) <= max_length else f"{label.name[: max_length - 1]}…"
        center = box.start + box.width / 2, box.level
        axes.text(*center, name, ha="center", va="center", fontsize=6, clip_on=True)
