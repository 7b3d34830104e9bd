"""Traces of profilers: onnxruntime's profile, Chrome's trace events, torch.profiler's modules.

An event with a duration is one call of the layer or module that it names. If the trace separates the runs of
the model, the time of a layer is the median over the runs. Its time in one run is the sum of its calls, or 0
without a call. If the trace does not separate runs, the time of a layer is the sum over the trace.

onnxruntime writes a list of events. The event of a node is called `NAME_kernel_time`, and a `model_run`
follows the events of each run. torch.profiler writes `traceEvents`. With recorded stacks, modules are called
`nn.Module: Conv2d_3` (the fourth Conv2d that ran), and steps are called `ProfilerStep#3`. Explorer's own
traces (`explorer profile --trace`) have events of the categories `layer` and `run`.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

import msgspec
from msgspec import Struct

from explorer.base.compat import build_type
from explorer.base.errors import Misuse
from explorer.base.units import many_text

MODULE = "nn.Module: "
TIME_COLUMN = "dur (us)"
_KERNEL, _STEP, _RUN = "_kernel_time", "ProfilerStep#", "model_run"
_NUMBERED = re.compile(r"nn\.Module: (.+)_([0-9]{1,9})", re.DOTALL)
_TORCH = frozenset({"cpu_op", "python_function"})
"""Categories of events that only torch writes."""
_ANNOTATIONS = frozenset({"user_annotation", "gpu_user_annotation"})
"""Categories of user annotations in a trace of torch. Other events are operators and Python calls."""


class _Args(Struct):
    op_name: Any = ""


class _Event(Struct):
    """An event in the Trace Event Format. Times are in microseconds.

    Attributes:
        name: Name of the call.
        cat: Category.
        ph: Phase: 'X' for a complete call, 'B' and 'E' for its begin and its end.
        ts: Start time.
        dur: Duration, or None if separate events mark begin and end.
        pid: Process id.
        tid: Thread id.
        args: Further facts.
    """

    name: str | int | float | None = ""
    cat: str | None = ""
    ph: str = ""
    ts: float = 0.0
    dur: float | None = None
    pid: Any = None
    tid: Any = None
    args: _Args | None = None


class _Trace(Struct):
    traceEvents: list[_Event]


class TracedCall(Struct, frozen=True):
    """A call with its name, its start and duration in microseconds, its category, and its operator or ''."""

    name: str
    start: float
    duration: float
    category: str = ""
    op: str = ""


class TraceRows(Struct, frozen=True):
    """Times of a trace by name.

    Attributes:
        rows: (name, microseconds) of each layer or module.
        ops: Operator by row name, as the runtime calls it.
        modules: (class, position among the modules of the class, count of the modules of the class), by row
            name. Only rows whose name ends in a number, such as `nn.Module: Conv2d_3`, have an entry.
        notes: Remarks for the user.
    """

    rows: tuple[tuple[str, float], ...]
    ops: Mapping[str, str]
    modules: Mapping[str, tuple[str, int, int]]
    notes: tuple[str, ...]


def read(trace: bytes, path: str) -> TraceRows | None:
    """Reads a trace, or returns None if the file is not a trace or contains no calls.

    Raises:
        Misuse: An event is invalid, or no event has the name of a layer or module.
    """
    start = trace.lstrip()[:1]
    if b'"ph"' not in trace or start not in (b"[", b"{") or (start == b"{" and b'"traceEvents"' not in trace):
        return None
    try:
        if start == b"{":
            events = msgspec.json.decode(trace, type=build_type(_Trace)).traceEvents
        else:
            events = msgspec.json.decode(_add_closing_bracket(trace), type=build_type(list[_Event]))
    except msgspec.ValidationError as error:
        raise Misuse(f"this is not a trace: {error}", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # the JSON reader reports the line of the error
    calls = sorted(_list_calls(events), key=lambda call: (call.start, -call.duration))
    if any(not math.isfinite(call.start + call.duration) or call.duration < 0 for call in calls):
        raise Misuse("this is not a trace: an event ends before it begins, or never", where=path)
    return _build_rows(calls, path) if calls else None


def _add_closing_bracket(data: bytes) -> bytes:
    """Adds the closing bracket, which a stopped profiler omits and the format allows to be missing."""
    text = data.rstrip()
    return text if text.endswith(b"]") else text.rstrip(b",") + b"]"


def _list_calls(events: Sequence[_Event]) -> Iterator[TracedCall]:
    """Yields the calls in a trace. A call is one event with a duration, or a pair of events (begin, end)."""
    open_calls: dict[str, list[_Event]] = {}
    for event in events:
        if event.dur is not None:
            op = str(event.args.op_name) if event.args else ""
            yield TracedCall(str(event.name), event.ts, event.dur, event.cat or "", op)
        elif event.ph == "B":
            open_calls.setdefault(f"{event.pid}/{event.tid}", []).append(event)
        elif event.ph == "E" and (stack := open_calls.get(f"{event.pid}/{event.tid}")):
            start = stack.pop()
            yield TracedCall(str(start.name), start.ts, event.ts - start.ts, start.cat or "")


def _build_rows(calls: Sequence[TracedCall], path: str) -> TraceRows:
    """Computes the time of each layer or module from the calls of a trace.

    Args:
        calls: Calls, sorted by start.
        path: Path of the trace, for errors.
    """
    modules: dict[str, tuple[str, int, int]] = {}
    if any(call.name.endswith(_KERNEL) and call.category == "Node" for call in calls):
        layer_calls = [call for call in calls if call.name.endswith(_KERNEL)]
        runs = [call for call in calls if call.name == _RUN]
    elif any(call.category == "layer" for call in calls):
        layer_calls = [call for call in calls if call.category == "layer"]
        runs = [call for call in calls if call.category == "run"]
    elif any(call.category in _TORCH for call in calls):
        layer_calls, runs, modules = _find_torch_calls(calls, path)
    else:
        layer_calls = [call for call in calls if not call.name.startswith(_STEP)]
        runs = [call for call in calls if call.name.startswith(_STEP)]
    times, notes = _compute_times(layer_calls, runs)
    ops = {call.name.removesuffix(_KERNEL): call.op for call in layer_calls if call.op}
    return TraceRows(tuple(times.items()), ops, modules, tuple(notes))


def _find_torch_calls(
    calls: Sequence[TracedCall], path: str
) -> tuple[list[TracedCall], list[TracedCall], dict[str, tuple[str, int, int]]]:
    """Finds the calls of modules in a trace of torch.

    Returns:
        The calls of modules and user annotations; the runs of the model; and the position of each module
        among the modules of its class, as in `TraceRows.modules`.

    Raises:
        Misuse: The trace names neither modules nor user annotations.
    """
    steps = [call for call in calls if call.name.startswith(_STEP)]
    module_calls = [call for call in calls if call.name.startswith(MODULE)]
    outermost_calls: list[TracedCall] = []
    for call in module_calls:
        if not outermost_calls or call.start >= outermost_calls[-1].start + outermost_calls[-1].duration:
            outermost_calls.append(call)
    # an outermost call is a run of the whole model, unless the model is a single module
    model_names = {call.name for call in outermost_calls}
    layer_calls = [call for call in module_calls if call.name not in model_names]
    if not layer_calls and len(module_calls) == len(model_names) == 1:
        layer_calls = module_calls
    layer_calls += [
        call for call in calls if call.category in _ANNOTATIONS and not call.name.startswith(_STEP)
    ]
    if not layer_calls:
        hint = "torch.profiler.profile(with_stack=True) records modules; record_function names other things"
        raise Misuse("the trace names no modules", where=path, hint=hint)
    by_class: dict[str, list[tuple[int, str]]] = {}
    for name in dict.fromkeys(call.name for call in layer_calls):
        if match := _NUMBERED.fullmatch(name):
            by_class.setdefault(match[1], []).append((int(match[2]), name))
    positions = {
        name: (kind, index, len(class_modules))
        for kind, class_modules in by_class.items()
        for index, (_, name) in enumerate(sorted(class_modules))
    }
    return layer_calls, steps or (outermost_calls if len(model_names) == 1 else []), positions


def _compute_times(
    layer_calls: Sequence[TracedCall], runs: Sequence[TracedCall]
) -> tuple[dict[str, float], list[str]]:
    """Computes the microseconds of each layer: the median over the runs, or the sum if runs are unknown.

    If runs overlap, calls cannot be assigned to runs, so the time is the sum divided by the number of runs.

    Args:
        layer_calls: Calls of layers.
        runs: Runs of the model; empty if unknown.

    Returns:
        Microseconds by layer name, and notes for the user.
    """
    is_disjoint = all(a.start + a.duration <= b.start for a, b in pairwise(runs))
    starts = [run.start for run in runs]
    times_by_run: dict[str, dict[int, float]] = {}
    outside = 0
    for call in layer_calls:
        name = call.name.removesuffix(_KERNEL)
        run_index = bisect_right(starts, call.start) - 1 if is_disjoint and runs else 0
        if (
            runs
            and is_disjoint
            and (run_index < 0 or call.start > runs[run_index].start + runs[run_index].duration)
        ):
            outside += 1
            continue
        times = times_by_run.setdefault(name, {})
        times[run_index] = times.get(run_index, 0.0) + call.duration
    notes = []
    if outside:
        notes.append(
            f"{many_text(outside, 'event')} of the trace are outside every complete run, and are left out"
        )
    if len(runs) > 1 and not is_disjoint:
        notes.append(f"{len(runs):,} runs overlap: the time of a layer is its total divided by {len(runs):,}")
        return {name: times[0] / len(runs) for name, times in times_by_run.items()}, notes
    if len(runs) > 1:
        notes.append(f"{len(runs):,} runs: the time of a layer is the median over the runs")
        times_by_name = {
            name: [*times.values(), *[0.0] * (len(runs) - len(times))] for name, times in times_by_run.items()
        }
        return {name: median(times) for name, times in times_by_name.items()}, notes
    return {name: times[0] for name, times in times_by_run.items()}, notes
