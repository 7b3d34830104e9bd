"""Text output of `explorer memory`, also used by the Memory tab: memory by step, the peak, and the arena."""

from __future__ import annotations

from rich.cells import cell_len

from explorer.base.units import percent_text, shape_text
from explorer.facts import Info
from explorer.facts.memory import Lifetime, Memory
from explorer.report.blocks import (
    Block,
    Chart,
    Column,
    Field,
    Fields,
    Heading,
    Line,
    Paragraph,
    Role,
    Span,
    Table,
    table_of,
)
from explorer.report.names import shorten_name
from explorer.report.present.figures import bar_text, bytes_field, plain, share_text, size
from explorer.report.present.look.info import answer

NO_TIMELINE = "No timeline: no tensor has a known size"
_MIN_STEP_NAME = 24
"""Cells of a step's name before the number of steps is left out."""
_NEIGHBORS = 24
"""Number of steps before and after a step from which its shortened name must differ."""


def memory(info: Info, fact: Memory) -> list[Block]:
    """Return the answer of `explorer memory`."""
    return answer(info, memory_blocks(fact))


def is_unknown(fact: Memory) -> bool:
    """Whether no tensor has a known size, so that there is no timeline."""
    return fact.status == "unknown" and not fact.peak_bytes


def memory_blocks(fact: Memory) -> list[Block]:
    """Return the figures, the live tensors at the peak, and the timeline as bars."""
    if is_unknown(fact):
        return [*figures(fact), Line(), Paragraph(NO_TIMELINE, "quiet")]
    return [
        *figures(fact),
        Chart("memory", fact),
        Line(),
        Heading("live at the peak"),
        _build_tensor_table(fact, fact.peak_step),
        Line(),
        _build_timeline(fact),
    ]


def figures(fact: Memory) -> list[Block]:
    """Return the peak, the smallest arena, and the stored weights."""
    sign = find_sign(fact)
    peak_path = fact.steps[fact.peak_step].path if fact.steps else ""
    sum_remark = "of all tensors, with inputs; an in-place result needs none"
    peak = f"buffers live at step {fact.peak_step:,}, {peak_path or 'the inputs'}"
    if is_unknown(fact):
        peak = "most buffers that are live at once"
    resident = "in memory all the time; not part of the figures above"
    rows = [
        bytes_field("Buffers, sum", fact.sum_bytes, sign, sum_remark, "sum of buffers"),
        bytes_field("Activations, peak", fact.peak_bytes, sign, peak, "peak"),
        bytes_field("Smallest arena", fact.arena_bytes, sign, _describe_arena(fact), "arena"),
        bytes_field("Weight bytes", fact.weight_bytes, "", resident, "weights"),
        Field("Steps", plain(len(fact.steps)), "step 0 holds the inputs", "steps"),
    ]
    return [Fields(rows), *([Paragraph(fact.reason, "warning")] if fact.reason else [])]


def find_sign(fact: Memory) -> str:
    """Return the sign of the figures. They are a lower bound if sizes are unknown."""
    signs = {"unknown": ">= ", "bound": "~ " if fact.assumed else "<= "}
    return signs.get(fact.status, "")


def _describe_arena(fact: Memory) -> str:
    """Compare the arena with the peak, below which no allocator can go."""
    if not fact.peak_bytes:
        return ""
    packing = "one block for all buffers, packed by first fit"
    if fact.arena_bytes == fact.peak_bytes:
        return f"{packing}; no allocator needs less"
    return f"{packing}; {percent_text(fact.arena_bytes - fact.peak_bytes, fact.peak_bytes)} above the peak"


def step_blocks(fact: Memory, step_index: int, width: int) -> list[Block]:
    """Describe a step and its live memory, each in one line of `width` cells if possible."""
    step = fact.steps[step_index]
    name = step.path or ("the model's inputs" if not step_index else "(unnamed)")
    number, kind = f"Step {step_index:,}", f" {step.kind}" if step.kind else ""
    of_all = f" of 0 .. {len(fact.steps) - 1:,}"
    if cell_len(f"{number}{of_all} {name}{kind}") > width:
        if step.kind and name.rpartition("/")[2].startswith(step.kind):
            kind = ""  # the name says it
        free_width = width - cell_len(f"{number} {kind}")
        # the timeline shows the number of the last step
        of_all *= free_width - len(of_all) >= min(cell_len(name), _MIN_STEP_NAME)
        neighbors = fact.steps[max(0, step_index - _NEIGHBORS) : step_index + _NEIGHBORS + 1]
        name = shorten_name(name, max(8, free_width - len(of_all)), [other.path for other in neighbors])
    live = step.live_bytes
    role: Role = "quiet"
    remark = f", {percent_text(live, fact.peak_bytes)} of the peak"
    if live == fact.peak_bytes:
        role = "warning"
        remark = ": this is the peak" if step_index == fact.peak_step else ": as much as at the peak"
    return [
        Line(
            (
                f"{number}{of_all} ",
                Span(name, "strong"),
                Span(kind, "kind"),
            )
        ),
        Line((_format_live(fact, step_index), Span(" live", "quiet"), Span(remark, role))),
    ]


def build_live_blocks(fact: Memory, step_index: int) -> list[Block]:
    """Return the live tensors of a step, with a mark on those that are live at the peak."""
    table = _build_tensor_table(fact, step_index, marked=True)
    has_mark = any(life.born <= fact.peak_step <= life.dies for life in _list_live(fact, step_index))
    legend = Paragraph(f"◆ live at the peak, step {fact.peak_step:,}", "quiet", 0)
    return [table, *([legend] if has_mark else [])]


def _build_tensor_table(fact: Memory, step: int, *, marked: bool = False) -> Table:
    """Return the live tensors of a step, largest first. `marked` marks those that are live at the peak."""

    def mark(life: Lifetime) -> Span:
        return Span("◆" if marked and life.born <= fact.peak_step <= life.dies else "", "warning")

    live = fact.steps[step].live_bytes if fact.steps else 0
    return table_of(
        _list_live(fact, step),
        (
            (Column(""), mark),
            (
                Column("tensor", shrink=True),
                lambda life: life.tensor.name or _find_producer_path(fact, life) or "(unnamed)",
            ),
            (Column("", drop=3), lambda life: Span(life.tensor.dtype or "?", "quiet")),
            (Column("shape", drop=2), lambda life: shape_text(life.tensor.shape)),
            (Column("bytes", "right"), lambda life: size(life.bytes)),
            (Column("of live", "right", drop=4), lambda life: share_text(life.bytes, live)),
            (Column("steps", "right", drop=1), lambda life: f"{life.born:,} .. {life.dies:,}"),
        ),
        what="tensors",
    )


def _list_live(fact: Memory, step: int) -> list[Lifetime]:
    lifetimes = [life for life in fact.lifetimes if life.born <= step <= life.dies]
    return sorted(lifetimes, key=lambda life: -life.bytes)


def _find_producer_path(fact: Memory, life: Lifetime) -> str:
    return fact.steps[life.born].path if life.born < len(fact.steps) else ""


def _format_live(fact: Memory, step_index: int) -> Span | str:
    """Return the live bytes of a step; '?' if none of its tensors has a known size."""
    live = fact.steps[step_index].live_bytes
    return "?" if fact.status == "unknown" and not live else size(live)


def _build_timeline(fact: Memory) -> Table:
    """Return a table of all steps with their live bytes; a short page shows those around the peak."""
    steps, peak = fact.steps, fact.peak_step
    return table_of(
        range(len(steps)),
        (
            (Column("step", "right"), lambda index: f"{index:,}"),
            (
                Column("layer", shrink=True),
                lambda index: Span(steps[index].path or "(inputs)", "strong" if index == peak else ""),
            ),
            (Column("kind", shrink=True, drop=1), lambda index: Span(steps[index].kind, "kind")),
            (Column("live", "right"), lambda index: _format_live(fact, index)),
            (Column("", role="bar"), lambda index: bar_text(steps[index].live_bytes, fact.peak_bytes)),
            (Column(""), lambda index: Span("peak" if index == peak else "", "bad")),
        ),
        what="steps, around the peak",
        around=peak,
    )
