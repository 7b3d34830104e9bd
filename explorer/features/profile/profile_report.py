"""Pictures of a profile (slowest layers, one run), and the section `Measured time` of `explorer report`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from explorer.base.units import printable, seconds_text
from explorer.facts import Info, Layer
from explorer.facts.profile.profile import Profile, sort_times
from explorer.features.profile.profile_words import profile_blocks
from explorer.report.blocks import Chart
from explorer.report.flame_picture import flame_of
from explorer.report.html.page import LeftOut, PageRequest, Section
from explorer.report.plots import shorten_names
from explorer.report.timeline import Frame, build_frames, run_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from explorer.facts import Analysis
    from explorer.report.blocks import Block
    from explorer.session import Session


Timed = tuple[Profile, Sequence[Layer]]
"""A profile, and the rows of the layer tree."""
_MAX_BARS = 24  # layers, or lanes, in a picture
_COLORS = ("#3b6fb5", "#d98032", "#3d8f5f", "#8f6bb0", "#5aa5b0", "#b8913f")
_GREY = "#8a8f98"


def time(axes: Axes, info: Info, fact: Timed) -> None:
    """Draw the slowest layers as bars, with lines from the 10th to the 90th percentile of the runs."""
    profile, _ = fact
    timed = [layer for layer in sort_times(profile.layers) if layer.seconds is not None]
    bars = timed[:_MAX_BARS][::-1]
    medians = [layer.seconds.median for layer in bars if layer.seconds]
    low = [max(0.0, layer.seconds.median - layer.seconds.p10) for layer in bars if layer.seconds]
    high = [max(0.0, layer.seconds.p90 - layer.seconds.median) for layer in bars if layer.seconds]
    places = range(len(bars))
    axes.barh(places, medians, xerr=[low, high], color=_COLORS[0], ecolor=_GREY, error_kw={"elinewidth": 1})
    axes.set_yticks(places, shorten_names([layer.path for layer in bars]), fontsize=7)
    axes.set_xlabel(f"time of a run; lines from p10 to p90 ({len(bars):,} of {len(timed):,} layers)")
    _draw_heading(axes, info, profile, "Time")


def timeline(axes: Axes, info: Info, fact: Timed) -> None:
    """Draw a median run from left to right. Kinds of kernels and the overhead have lanes, longest on top."""
    profile, rows = fact
    lanes: dict[str, list[Frame]] = {}
    for frame in build_frames(profile, rows):
        if frame.category in ("kernel", "other", "overhead"):
            lanes.setdefault(frame.name, []).append(frame)
    seconds_by_lane = {
        name: sum(frame.seconds for frame in lane_frames) for name, lane_frames in lanes.items()
    }
    names = sorted(lanes, key=lambda name: -seconds_by_lane[name])[:_MAX_BARS]
    for lane, name in enumerate(names):
        spans = [(frame.start, frame.seconds) for frame in lanes[name]]
        color = _GREY if lanes[name][0].category != "kernel" else _COLORS[lane % len(_COLORS)]
        axes.broken_barh(spans, (lane - 0.4, 0.8), color=color, linewidth=0)
    axes.set_yticks(range(len(names)), shorten_names(names), fontsize=7)
    axes.invert_yaxis()
    axes.set_xlabel("median times, one layer after another; not a recording of one run")
    _draw_heading(axes, info, profile, "A run")


def _draw_heading(axes: Axes, info: Info, profile: Profile, subject: str) -> None:
    model = run_title(profile, printable(os.path.basename(info.model.source)))
    slowed = "; its kernels as the profiler slows them" if profile.share_base == "kernel" else ""
    remarks = slowed + ("; the machine was loaded" if profile.loaded else "")
    axes.set_title(
        f"{subject} of {model}: {seconds_text(profile.wall_seconds)} a run, {profile.device}{remarks}"
    )
    axes.xaxis.set_major_formatter(lambda value, _: seconds_text(max(0.0, value)))


def _gather(session: Session, analysis: Analysis, request: PageRequest) -> tuple[Profile, Sequence[float]]:
    """Measure the model; return the profile and the measured seconds of each row of the layer tree.

    Raises:
        LeftOut: The report was requested without measured time.
    """
    if request.measured is None:
        raise LeftOut("the model was not run: --measured")
    profile = session.profile(request.measured, batch=request.batch, machine=request.machine)
    return profile, session.column("measured")


def _build_blocks(about: Analysis, fact: tuple[Profile, Sequence[float]]) -> Sequence[Block]:
    """Build the charts of the slowest layers, of a run and of the groups, then the tables."""
    profile, seconds = fact
    drawn = profile, about.layers
    flame = flame_of("measured", about.info, about.layers, None, (profile, seconds))
    return [
        Chart("time", drawn),
        Chart("timeline", drawn),
        Chart("flame", flame),
        *profile_blocks(replace(profile, layers=sort_times(profile.layers)), len(profile.layers)),
    ]


SECTION = Section("Measured time", 2, _gather, _build_blocks)
