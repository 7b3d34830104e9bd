"""Plots as SVG or PNG, drawn by matplotlib: memory, roofline, operators, error growth, pipelines and others.

matplotlib needs no display and writes both formats. It takes 100 MB and 0.3 s to import, so it is an optional
dependency that is imported when a picture is drawn. Parsing of `$` as mathematics is disabled, because names
come from model files.
"""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, get_args

from msgspec import Struct

from explorer.base.errors import Misuse
from explorer.base.features import load
from explorer.base.units import bytes_text, count_text, many_text, printable, rate_text, seconds_text
from explorer.facts import Info, OpStat
from explorer.facts.blame import Blame
from explorer.facts.memory import Memory
from explorer.facts.profile.points import MeasuredPoint, build_measured_points
from explorer.facts.profile.profile import Profile
from explorer.facts.roofline import Roofline, RooflinePoint
from explorer.facts.split.schedule import Work
from explorer.facts.split.split import Split
from explorer.facts.training import Holding, Phase, StepMemory, TrainingMemory
from explorer.host import SWITCH, find_cache_folder
from explorer.host.optional_packages import require
from explorer.host.system import can_make
from explorer.report.blocks import Axis, Scatter
from explorer.report.flame_picture import flame
from explorer.report.flame_picture import flame_of as flame_of
from explorer.report.names import NameSet

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ENDINGS = (".svg", ".png")
_BLUE, _ORANGE, _GREEN, _RED, _GRAY = "#3b6fb5", "#d98032", "#3d8f5f", "#b8413f", "#8a8f98"
_WORK_COLORS: dict[Work, tuple[str, str]] = {"forward": (_BLUE, "#7ba3d6"), "backward": (_ORANGE, "#e8b07d")}
_LEGIBLE = 60
"""Work on a micro-batch is drawn with its number if it takes more than 1/60 of the total time."""
_MAX_BARS, _MAX_LABELS, _MAX_TICKS = 24, 6, 8
"""Maximum numbers of operators as bars, of numbered marks on a roofline, and of ticks on an axis of bytes."""
_MARKS_PER_DECADE = 12
"""Number of intensities per factor of 10 that a roofline tells apart. Layers between them share a mark."""
_MAX_SHORT_SPAN = 1000.0
"""Ratio of the ends of a logarithmic axis below which its ticks include 2 and 5."""
_MAX_NAME_LENGTH = 40
"""Maximum length of a name in a label, in cells."""


def check(path: str) -> None:
    """Check that a picture can be drawn, before any work is done.

    Raises:
        Misuse: The path ends neither in .svg nor in .png.
        MissingExtra: matplotlib is not installed, or is broken.
    """
    if os.path.splitext(path)[1].lower() not in _ENDINGS:
        raise Misuse("the file name's ending selects the format", where=path, hint="use .svg or .png")
    check_library(path)


def check_library(path: str) -> None:
    """Check that matplotlib is available, and for a page in HTML also Jinja2.

    Args:
        path: Path of the picture or the page, for the error message.

    Raises:
        MissingExtra: One of them is not installed, or is broken.
    """
    _set_font_folder()
    require("matplotlib.backends.backend_agg", path)
    if os.path.splitext(path)[1].lower() == ".html":
        require("jinja2", path)


def _set_font_folder() -> None:
    """Let matplotlib store its list of fonts, which takes a second to build, in a writable folder."""
    cache_folder = "" if SWITCH in os.environ else find_cache_folder(os.environ)
    folder = cache_folder if cache_folder and can_make(cache_folder) else os.environ.get("TMPDIR")
    if folder:
        os.environ.setdefault("MPLCONFIGDIR", os.path.join(folder, "matplotlib"))


def write(picture: str, info: Info | None, fact: Any, path: str) -> None:
    """Draw a fact to a file.

    Args:
        picture: Name of the picture: 'memory' (a `Memory`), 'roofline' (a `Roofline`, or a pair of it and a
            `Profile`), 'operators' (a tuple of `OpStat`), 'blame' (a `Blame`), 'scatter' (a `Scatter`),
            'flame' (a `Flame`), 'pipeline' (a `Split`), 'memory-over-time' (a `TrainingMemory`), or a name
            that a feature adds, such as 'serving' (a `Serving`), 'time' or 'timeline' (a `Profile` and rows).
        info: Facts about the model, or None for pictures of two models or with their own titles.
        fact: Fact to draw.
        path: Output path, ending in .svg or .png.
    """
    with _draw_figure(picture, info, fact) as figure:
        figure.savefig(path, **_save_options(path))


def svg(picture: str, info: Info | None, fact: Any) -> str:
    """Return the picture as an `<svg>` element for a page."""
    text = io.StringIO()
    with _draw_figure(picture, info, fact) as figure:
        figure.savefig(text, **_save_options(".svg"))
    svg_text = text.getvalue()
    return svg_text[svg_text.index("<svg") :]


def _save_options(path: str) -> dict[str, Any]:
    """Return the options of `savefig`. They omit the date, so that equal facts produce equal files."""
    ending = os.path.splitext(path)[1].lower().lstrip(".") or "svg"
    return {"format": ending, "metadata": {"Date": None} if ending == "svg" else None, "dpi": 144}


@contextmanager
def _draw_figure(picture: str, info: Info | None, fact: Any) -> Iterator[Figure]:
    """Yield a figure with the picture drawn, in the style of all pictures."""
    _set_font_folder()
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style: dict[Any, Any] = {
        "text.parse_math": False,
        "svg.hashsalt": "explorer",
        "svg.fonttype": "none",
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": 10,
    }
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9, 4.5), layout="constrained")
        FigureCanvasAgg(figure)
        (_DRAW.get(picture) or load("pictures", picture))(figure.add_subplot(), info, fact)
        yield figure


def _format_bytes_axis(axes: Axes, top: float) -> None:
    """Format a vertical axis of bytes, with ticks that are round in IEC units."""
    axes.yaxis.set_major_formatter(lambda value, _: bytes_text(round(value)))
    axes.set_ylim(0, top)
    tick = 2 ** max(0, math.ceil(math.log2(top / _MAX_TICKS)))
    axes.set_yticks([tick * index for index in range(int(top / tick) + 1)])


def _draw_memory(axes: Axes, info: Info, fact: Memory) -> None:
    """Draw the live bytes of each step, with the peak and the smallest arena."""
    steps = range(len(fact.steps))
    live = [float(step.live_bytes) for step in fact.steps]  # numpy integers are limited to 2^63
    axes.fill_between(steps, live, step="mid", color=_BLUE, alpha=0.35, linewidth=0)
    axes.step(steps, live, where="mid", color=_BLUE, linewidth=1)
    axes.set_title(f"Activation memory of {_format_name(info)}")
    axes.set_xlabel("step of the execution order")
    axes.set_ylabel("live bytes")
    axes.set_xlim(-0.5, max(len(live) - 0.5, 0.5))
    _format_bytes_axis(axes, max(fact.arena_bytes, fact.peak_bytes, 1) * 1.25)
    if fact.arena_bytes:
        axes.axhline(fact.arena_bytes, color=_GRAY, linewidth=0.8, linestyle="--")
        axes.annotate(
            f"smallest arena {bytes_text(fact.arena_bytes)}",
            (1, fact.arena_bytes),
            xycoords=("axes fraction", "data"),
            xytext=(-2, 3),
            textcoords="offset points",
            ha="right",
            color=_GRAY,
        )
    if fact.steps:
        peak_step = fact.steps[fact.peak_step]
        is_left = fact.peak_step < len(live) / 2
        axes.plot([fact.peak_step], [fact.peak_bytes], "o", color=_RED, markersize=5)
        axes.annotate(
            f"peak {bytes_text(fact.peak_bytes)}, {shorten_name(peak_step.path) or 'inputs'}",
            (fact.peak_step, fact.peak_bytes),
            xytext=(6 if is_left else -6, 14),
            textcoords="offset points",
            ha="left" if is_left else "right",
            color=_RED,
        )


class _Mark(Struct, frozen=True):
    """Layers of similar intensity, drawn as one mark because they would overlap."""

    intensity: float
    share: float
    limit: str
    label: str


def _list_marks(fact: Roofline) -> list[_Mark]:
    """Return the marks of a roofline, the largest share of the time first."""
    points_by_mark: dict[tuple[str, int], list[RooflinePoint]] = {}
    for point in fact.points:
        if point.intensity and point.seconds:
            intensity_step = round(_MARKS_PER_DECADE * math.log10(point.intensity))
            points_by_mark.setdefault((point.limit, intensity_step), []).append(point)
    marks = []
    for (limit, _), points in points_by_mark.items():
        points.sort(key=lambda p: -p.share)
        suffix = f" and {len(points) - 1} more" if len(points) > 1 else ""
        share = sum(p.share for p in points)
        label = f"{shorten_name(points[0].path)}{suffix}, {100 * share:.0f} %"
        marks.append(_Mark(points[0].intensity or 0, share, limit, label))
    return sorted(marks, key=lambda mark: -mark.share)


def _draw_roofline(axes: Axes, info: Info, facts: Roofline | tuple[Roofline, Profile]) -> None:
    """Draw the layers on the roofline of a machine, and measured rates if there is a profile."""
    fact, profile = facts if isinstance(facts, tuple) else (facts, None)
    machine, marks = fact.machine, _list_marks(fact)
    measured = () if profile is None else build_measured_points(profile)
    intensities = [
        *(mark.intensity for mark in marks),
        *(measured_point.intensity for measured_point in measured),
    ] or [fact.ridge]
    low, high = min(*intensities, fact.ridge) / 4, max(*intensities, fact.ridge) * 8
    flops = 2 * machine.peak_macs

    def compute_roof(intensity: float) -> float:
        return min(flops, intensity * machine.bandwidth)

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.plot(
        [low, fact.ridge, high], [compute_roof(low), flops, flops], color=_GRAY, linewidth=1.5, zorder=1
    )
    axes.axvline(fact.ridge, color=_GRAY, linewidth=0.6, linestyle=":")
    for limit, color in (("compute", _GREEN), ("memory", _ORANGE)):
        limit_marks = [mark for mark in marks if mark.limit == limit]
        bound_points = [p for p in fact.points if p.limit == limit and p.intensity]
        bound_seconds = sum(p.seconds or 0 for p in bound_points)
        axes.scatter(
            [mark.intensity for mark in limit_marks],
            [compute_roof(mark.intensity) for mark in limit_marks],
            s=[20 + 900 * mark.share for mark in limit_marks],
            color=color,
            alpha=0.6,
            linewidths=0,
            label=f"{len(bound_points):,} {limit}-bound layers, {seconds_text(bound_seconds)}",
            zorder=2,
        )
    idle = [p for p in fact.points if p.seconds and not p.intensity]
    if idle:
        label = (
            f"{many_text(len(idle), 'layer')} without MACs, {seconds_text(sum(p.seconds or 0 for p in idle))}"
        )
        axes.plot([], [], " ", label=label)
    lowest = min([compute_roof(low), *(measured_point.flops for measured_point in measured)])
    if profile is not None:
        _draw_measured_rates(axes, measured, compute_roof)
    # labels beside the marks would overlap, so the marks are numbered and listed
    for number, mark in enumerate(marks[:_MAX_LABELS], 1):
        axes.annotate(
            str(number),
            (mark.intensity, compute_roof(mark.intensity)),
            xytext=(0, 7 + 11 * math.sqrt(mark.share)),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )
    key = [f"{number}  {mark.label}" for number, mark in enumerate(marks[:_MAX_LABELS], 1)]
    axes.text(0.99, 0.03, "\n".join(key), transform=axes.transAxes, ha="right", va="bottom", fontsize=8)
    unknown = sum(point.seconds is None for point in fact.points)
    without = f" without {many_text(unknown, 'layer')} whose work is not known" if unknown else ""
    axes.set_title(
        f"Roofline of {_format_name(info)}: {rate_text(machine.peak_macs, 'MAC/s')}, "
        f"{rate_text(machine.bandwidth, 'B/s')}; at least {seconds_text(fact.seconds)}{without}"
        + ("" if profile is None else f", measured {seconds_text(profile.wall_seconds)}")
    )
    axes.set_xlabel("FLOPs per byte (area: share of the time)")
    axes.set_ylabel("FLOP/s within reach")
    axes.legend(frameon=False, loc="upper left")
    axes.set_ylim(lowest / 2, flops * 4)
    _format_rate_axes(axes, high / low, 8 * flops / lowest)


def _format_rate_axes(axes: Axes, x_span: float, y_span: float) -> None:
    """Format axes of intensities and rates that span the given ratios."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.yaxis.set_major_formatter(lambda value, _: rate_text(value, "").replace(".00", ""))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    for axis, span in ((axes.xaxis, x_span), (axes.yaxis, y_span)):
        # on a short axis, matplotlib would label minor ticks with its own markup
        axis.set_minor_formatter(NullFormatter())
        if span < _MAX_SHORT_SPAN:
            axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))


def _draw_operators(axes: Axes, info: Info, stats: Sequence[OpStat]) -> None:
    """Draw operator counts as bars, each with its MACs."""
    drawn_stats = sorted(stats, key=lambda stat: stat.count)[-_MAX_BARS:]
    bars = axes.barh(
        shorten_names([stat.op for stat in drawn_stats]), [stat.count for stat in drawn_stats], color=_BLUE
    )
    labels = [
        f"{stat.count:,}" + (f"   {count_text(stat.macs)} MACs" if stat.macs != 0 else "")
        for stat in drawn_stats
    ]
    axes.bar_label(bars, labels, padding=3, fontsize=8)
    axes.set_title(f"Operators of {_format_name(info)}")
    axes.set_xlabel(
        "how many" + (f" ({_MAX_BARS} of {len(stats)} types)" if len(drawn_stats) < len(stats) else "")
    )
    axes.margins(x=0.2)


def _draw_blame(axes: Axes, info: None, fact: Blame) -> None:
    """Draw the error along the graph, the noise of the original model, and the error that each layer adds."""
    from matplotlib.ticker import MaxNLocator

    axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    probes = fact.probes
    curves = (
        ("error", [p.relative for p in probes], _BLUE, "-", "."),
        ("the original's own noise", [p.noise for p in probes], _GRAY, "--", ""),
        ("introduced by the layer", [p.introduced for p in probes], _ORANGE, "", "x"),
    )
    for label, values, color, line, marker in curves:
        # a logarithmic axis cannot show 0
        logged = [value or math.nan for value in values]
        axes.plot(logged, label=label, color=color, linestyle=line, marker=marker, markersize=4, linewidth=1)
    faults = [(i, p.introduced) for i, p in enumerate(probes) if p.state == "introduced" and p.introduced]
    if faults:
        x_values, y_values = zip(*faults, strict=True)
        label = f"beyond rounding: {len(faults):,} layer{'s' if len(faults) > 1 else ''}"
        axes.plot(x_values, y_values, "o", color=_RED, markersize=5, label=label)
    if fact.worst is not None and (size := probes[fact.worst].relative):
        axes.plot([fact.worst], [size], "v", color=_ORANGE, markersize=7, label=f"largest: {size:.1e}")
    if fact.first is not None and (size := probes[fact.first].introduced or probes[fact.first].relative):
        is_left = fact.first < len(probes) / 2
        axes.annotate(
            f"first: {shorten_name(probes[fact.first].layer)}",
            (fact.first, size),
            xytext=(6 if is_left else -6, 10),
            textcoords="offset points",
            ha="left" if is_left else "right",
            color=_RED,
        )
    names = [printable(os.path.basename(name)) for name in (fact.before, fact.after)]
    axes.set_title(f"Error of {names[1]} against {names[0]}")
    axes.set_xlabel("value, in execution order")
    axes.set_ylabel("RMS error / RMS of the value")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0e}")
    axes.set_xlim(-0.5, max(len(probes) - 0.5, 0.5))
    axes.margins(y=0.15)
    axes.legend(frameon=False, fontsize=8)


_MARKS = {"·": ("o", "", 10), "○": ("o", "none", 24)}
"""Shape, fill and size of each mark that is not a diamond. The fill '' is the color of the mark's role."""


def _draw_scatter(axes: Axes, info: Info | None, fact: Scatter) -> None:
    """Draw dots between two axes, with a color per role."""
    colors = {"good": _GREEN, "warning": _ORANGE, "quiet": _GRAY}
    if fact.path:
        axes.plot(*zip(*fact.path, strict=True), color=_ORANGE, linewidth=0.8, zorder=1)
    for mark, role, label in fact.legend:
        places = [dot.at for dot in fact.dots if (dot.mark, dot.role) == (mark, role)]
        if places:
            shape, face, size = _MARKS.get(mark, ("D", "", 26))
            color = colors.get(role, _BLUE)
            x_values, y_values = zip(*places, strict=True)
            edge = _ORANGE if mark == "◈" else color  # this mark also lies on the path, which is orange
            axes.scatter(
                *(x_values, y_values),
                s=size,
                marker=shape,
                facecolor=face or color,
                edgecolor=edge,
                label=label,
            )
    for dot in fact.dots:
        if dot.label:
            axes.annotate(
                dot.label, dot.at, xytext=(4, 4), textcoords="offset points", fontsize=7, clip_on=True
            )
    for axis, plot_axis in ((fact.across, axes.xaxis), (fact.upwards, axes.yaxis)):
        if axis.logarithmic:
            (axes.set_xscale if plot_axis is axes.xaxis else axes.set_yscale)("log")
            _set_few_ticks(plot_axis, [dot.at[plot_axis is axes.yaxis] for dot in fact.dots])
        plot_axis.set_major_formatter(partial(_format_tick, axis))
    axes.set_title(fact.title)
    axes.set_xlabel(fact.across.name)
    axes.set_ylabel(fact.upwards.name)
    axes.margins(0.05)
    axes.legend(frameon=False, fontsize=8)


def _format_tick(axis: Axis, value: float, position: int | None) -> str:
    return axis.text(value)


def _set_few_ticks(plot_axis: Any, values: Sequence[float]) -> None:
    """Set a few ticks on a logarithmic axis of any length."""
    from matplotlib.ticker import FixedLocator, NullFormatter

    low, high = min(values), max(values)
    steps = 4 if high > low else 0
    plot_axis.set_major_locator(
        FixedLocator([low * (high / low) ** (step / max(1, steps)) for step in range(steps + 1)])
    )
    plot_axis.set_minor_formatter(NullFormatter())


_STACK_COLORS = (_GRAY, "#8f6fb5", _GREEN, _BLUE, _RED, _ORANGE)


def _draw_training(axes: Axes, info: Info | None, fact: TrainingMemory) -> None:
    """Draw the memory of the first step, stacked by kind. Other batch sizes are lines."""
    first = fact.steps[0]
    kinds = get_args(Holding)
    layers = [[float(getattr(moment, kind)) for moment in first.moments] for kind in kinds]
    moment_indices = range(len(first.moments))
    axes.stackplot(
        moment_indices, layers, labels=kinds, colors=_STACK_COLORS, alpha=0.6, linewidth=0, step="mid"
    )
    for step in fact.steps[1:]:
        live = [float(moment.live_bytes) for moment in step.moments]
        places = [index * (len(moment_indices) - 1) / max(1, len(live) - 1) for index in range(len(live))]
        axes.plot(places, live, linewidth=1, label=f"batch {step.batch}, all")
    _draw_measured(axes, first)
    for phase in ("backward", "step"):
        start = next((index for index in moment_indices if first.moments[index].phase == phase), None)
        if start is not None:
            axes.axvline(start - 0.5, color=_GRAY, linewidth=0.6, linestyle=":")
            axes.annotate(phase, (start, 1), xycoords=("data", "axes fraction"), color=_GRAY, va="top")
    peak_moment = first.moments[first.peak]
    axes.plot([first.peak], [first.peak_bytes], "o", color=_RED, markersize=5)
    where = shorten_name(peak_moment.path) or peak_moment.phase
    title = f"Training step, batch {first.batch}, {fact.optimizer}"
    axes.set_title(
        f"{title}{f' of {_format_name(info)}' if info else ''}: peak {bytes_text(first.peak_bytes)}, {where}"
    )
    axes.set_xlabel("modules: forward, backward, step")
    axes.set_ylabel("live bytes")
    axes.set_xlim(-0.5, max(len(moment_indices) - 0.5, 0.5))
    peaks = [max(step.peak_bytes, step.measured.peak_bytes if step.measured else 0) for step in fact.steps]
    _format_bytes_axis(axes, max(1, *peaks) * 1.05)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))


def _draw_measured(axes: Axes, step: StepMemory) -> None:
    """Draw the measured memory as a line. The values of a phase are spread evenly over its modules."""
    if step.measured is None:
        return
    places: list[float] = []
    values: list[float] = []
    for phase in get_args(Phase):
        moments = [index for index, moment in enumerate(step.moments) if moment.phase == phase]
        phase_values = getattr(step.measured, phase)
        for number, value in enumerate(phase_values if moments else ()):
            places.append(moments[0] - 0.5 + (number + 0.5) / len(phase_values) * len(moments))
            values.append(float(value))
    axes.plot(places, values, color="black", linewidth=0.9, label="measured on the CPU")


def _draw_pipeline(axes: Axes, info: Info, fact: Split) -> None:
    """Draw the schedule of a pipeline with one lane per stage: inference above, a training step below."""
    forecast, timed = fact.forecast or fact.by_macs, fact.forecast is not None
    if forecast is None:
        raise Misuse("the pipeline cannot be drawn: no time and no MACs are known", where="--plot")
    figure, lanes = axes.figure, len(fact.stages)
    axes.remove()
    upper, lower = figure.subplots(2, 1)
    rate = f", {rate_text(forecast.throughput, 'runs/s')}" if timed else ""
    titles = (
        f"Pipeline of {_format_name(info)}: {lanes:,} stages by {fact.by},"
        f" {forecast.micro_batches:,} micro-batches, bubble {forecast.bubble:.1%}{rate}",
        f"Training step, {forecast.schedule}, backward twice forward: bubble {forecast.training_bubble:.1%}",
    )
    for part_axes, works, title in zip((upper, lower), (forecast.works, forecast.steps), titles, strict=True):
        for stage in range(lanes):
            stage_works = [work for work in works if work.stage == stage]
            spans = [(work.start, work.end - work.start) for work in stage_works]
            colors = [_WORK_COLORS[work.work][work.micro_batch % 2] for work in stage_works]
            part_axes.broken_barh(spans, (stage + 0.6, 0.8), color=colors, linewidth=0)
        end_time = max((work.end for work in works), default=1.0)
        for work in works:
            if work.end - work.start > end_time / _LEGIBLE:
                middle = (work.start + work.end) / 2, work.stage + 1
                part_axes.text(
                    *middle, str(work.micro_batch), ha="center", va="center", fontsize=6, color="white"
                )
        part_axes.set_title(title)
        part_axes.set_yticks(
            range(1, lanes + 1), [f"stage {stage}" for stage in range(1, lanes + 1)], fontsize=7
        )
        part_axes.set_ylim(lanes + 0.6, 0.4)
        part_axes.set_xlim(0, end_time)
        part_axes.xaxis.set_major_formatter(
            (lambda value, _: seconds_text(max(0.0, value)))
            if timed
            else (lambda value, _: f"{count_text(round(value))} MACs")
        )
    assumption = "" if timed else " with times in proportion to MACs: no machine is named"
    lower.set_xlabel(f"time{assumption}; blue and light blue forward, orange and light orange backward")


_DRAW: dict[str, Callable[[Any, Any, Any], None]] = {
    "blame": _draw_blame,
    "memory": _draw_memory,
    "memory-over-time": _draw_training,
    "roofline": _draw_roofline,
    "operators": _draw_operators,
    "pipeline": _draw_pipeline,
    "scatter": _draw_scatter,
    "flame": flame,
}


def _format_name(info: Info) -> str:
    return printable(os.path.basename(info.model.source))


def _draw_measured_rates(
    axes: Axes, measured: Sequence[MeasuredPoint], compute_roof: Callable[[float], float]
) -> None:
    """Draw the measured rate of each layer, with a line up to the predicted rate or to the roof.

    Args:
        axes: Axes of a roofline.
        measured: Layers with measured rates.
        compute_roof: Function that returns the attainable FLOPs per second for an intensity.
    """
    predicted = [point for point in measured if point.predicted_flops]
    for point in measured:
        goal = point.predicted_flops or compute_roof(point.intensity)
        axes.plot([point.intensity] * 2, [point.flops, goal], color=_GRAY, linewidth=0.5, zorder=1)
    axes.scatter(
        [point.intensity for point in measured],
        [point.flops for point in measured],
        s=[20 + 900 * point.share for point in measured],
        facecolor="none",
        edgecolor=_BLUE,
        label=f"{many_text(len(measured), 'layer')} as measured (area: share of the run)",
        zorder=3,
    )
    if predicted:
        axes.scatter(
            [point.intensity for point in predicted],
            [point.predicted_flops or 0 for point in predicted],
            s=14,
            marker="x",
            color=_GRAY,
            linewidths=0.8,
            label="predicted",
        )


def shorten_name(name: str) -> str:
    """Shorten a name for a label."""
    return shorten_names([name])[0]


def shorten_names(names: Sequence[str]) -> list[str]:
    """Shorten the names on an axis so that different names stay different."""
    printable_names = [printable(name) for name in names]
    short = NameSet(printable_names).shorten(dict.fromkeys(printable_names, _MAX_NAME_LENGTH))
    return [short.texts[name] for name in printable_names]
