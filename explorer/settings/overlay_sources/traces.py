"""Traces of profilers: onnxruntime's profile, Chrome's trace events, torch.profiler's modules.

An event with a duration is one call of what it names. Where the trace says which run a call is in, a name has
the median of the runs, all calls of one run together and 0 where it did not run; where it does not, their
sum. Formats: onnxruntime writes a list of events, a node's called `NAME_kernel_time`, and one `model_run`
behind those of each run; torch.profiler writes `traceEvents`, modules called `nn.Module: Conv2d_3` (the
fourth Conv2d that ran) where stacks are recorded, and steps called `ProfilerStep#3`.
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

from explorer.base.errors import Misuse
from explorer.base.units import many_text

MODULE = "nn.Module: "
HEAD = "dur (us)"
_KERNEL, _STEP, _RUN = "_kernel_time", "ProfilerStep#", "model_run"
_NUMBERED = re.compile(r"nn\.Module: (.+)_([0-9]{1,9})", re.DOTALL)
_TORCH = frozenset({"cpu_op", "python_function"})
_NAMED = frozenset({"user_annotation", "gpu_user_annotation"})
"""Categories of what somebody named in a trace of torch: the rest are operators and Python's own calls."""


class _Args(Struct):
    op_name: Any = ""


class _Event(Struct):
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
    """A call: what, when it began and how long it took, in microseconds."""

    name: str
    start: float
    took: float
    category: str = ""
    op: str = ""


class TraceRows(Struct, frozen=True):
    """What a trace says of each name.

    Attributes:
        rows: A name, and microseconds.
        ops: What ran, as the runtime names it, by name.
        modules: By name of a numbered module its class, its place among those of the class, and how many
            there are.
        notes: What else to know, in words.
    """

    rows: tuple[tuple[str, float], ...]
    ops: Mapping[str, str]
    modules: Mapping[str, tuple[str, int, int]]
    notes: tuple[str, ...]


def read(trace: bytes, path: str) -> TraceRows | None:
    """What a trace says; None where the file is none.

    Raises:
        Misuse: An event is none, or no event names anything.
    """
    start = trace.lstrip()[:1]
    if b'"ph"' not in trace or start not in (b"[", b"{") or (start == b"{" and b'"traceEvents"' not in trace):
        return None
    try:
        if start == b"{":
            events = msgspec.json.decode(trace, type=_Trace).traceEvents
        else:
            events = msgspec.json.decode(_closed(trace), type=list[_Event])
    except msgspec.ValidationError as error:
        raise Misuse(f"this is no trace: {error}", where=path) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # what reads JSON says at which line
    spans = sorted(_spans(events), key=lambda span: (span.start, -span.took))
    if any(not math.isfinite(span.start + span.took) or span.took < 0 for span in spans):
        raise Misuse("this is no trace: an event ends before it begins, or never", where=path)
    return _rows(spans, path) if spans else None


def _closed(data: bytes) -> bytes:
    """A list with its end, which a profiler that is stopped leaves out, as the format lets it."""
    text = data.rstrip()
    return text if text.endswith(b"]") else text.rstrip(b",") + b"]"


def _spans(events: Sequence[_Event]) -> Iterator[TracedCall]:
    """Calls, written as one event or as two."""
    open_: dict[str, list[_Event]] = {}
    for event in events:
        if event.dur is not None:
            op = str(event.args.op_name) if event.args else ""
            yield TracedCall(str(event.name), event.ts, event.dur, event.cat or "", op)
        elif event.ph == "B":
            open_.setdefault(f"{event.pid}/{event.tid}", []).append(event)
        elif event.ph == "E" and (stack := open_.get(f"{event.pid}/{event.tid}")):
            began = stack.pop()
            yield TracedCall(str(began.name), began.ts, event.ts - began.ts, began.cat or "")


def _rows(spans: Sequence[TracedCall], path: str) -> TraceRows:
    """The calls that name layers, and the runs that they are in."""
    modules: dict[str, tuple[str, int, int]] = {}
    if any(span.name.endswith(_KERNEL) and span.category == "Node" for span in spans):
        named = [span for span in spans if span.name.endswith(_KERNEL)]
        runs = [span for span in spans if span.name == _RUN]
    elif any(span.category == "layer" for span in spans):
        named = [span for span in spans if span.category == "layer"]
        runs = [span for span in spans if span.category == "run"]
    elif any(span.category in _TORCH for span in spans):
        named, runs, modules = _of_torch(spans, path)
    else:
        named = [span for span in spans if not span.name.startswith(_STEP)]
        runs = [span for span in spans if span.name.startswith(_STEP)]
    took, notes = _taken(named, runs)
    ops = {span.name.removesuffix(_KERNEL): span.op for span in named if span.op}
    return TraceRows(tuple(took.items()), ops, modules, tuple(notes))


def _of_torch(
    spans: Sequence[TracedCall], path: str
) -> tuple[list[TracedCall], list[TracedCall], dict[str, tuple[str, int, int]]]:
    """Modules and what somebody named, the runs, and which module of its class each is."""
    steps = [span for span in spans if span.name.startswith(_STEP)]
    called = [span for span in spans if span.name.startswith(MODULE)]
    outer: list[TracedCall] = []
    for span in called:
        if not outer or span.start >= outer[-1].start + outer[-1].took:
            outer.append(span)
    whole = {span.name for span in outer}
    named = [span for span in called if span.name not in whole]
    if not named and len(called) == len(whole) == 1:
        named = called
    named += [span for span in spans if span.category in _NAMED and not span.name.startswith(_STEP)]
    if not named:
        hint = "torch.profiler.profile(with_stack=True) records modules; record_function names other things"
        raise Misuse("the trace names no modules", where=path, hint=hint)
    by_class: dict[str, list[tuple[int, str]]] = {}
    for name in dict.fromkeys(span.name for span in named):
        if match := _NUMBERED.fullmatch(name):
            by_class.setdefault(match[1], []).append((int(match[2]), name))
    places = {
        name: (kind, at, len(every))
        for kind, every in by_class.items()
        for at, (_, name) in enumerate(sorted(every))
    }
    return named, steps or (outer if len(whole) == 1 else []), places


def _taken(named: Sequence[TracedCall], runs: Sequence[TracedCall]) -> tuple[dict[str, float], list[str]]:
    """Microseconds by name: of one run the median, of an unknown number of runs all together."""
    apart = all(a.start + a.took <= b.start for a, b in pairwise(runs))
    starts = [run.start for run in runs]
    of_name: dict[str, dict[int, float]] = {}
    outside = 0
    for span in named:
        name = span.name.removesuffix(_KERNEL)
        at = bisect_right(starts, span.start) - 1 if apart and runs else 0
        if runs and apart and (at < 0 or span.start > runs[at].start + runs[at].took):
            outside += 1
            continue
        times = of_name.setdefault(name, {})
        times[at] = times.get(at, 0.0) + span.took
    notes = []
    if outside:
        notes.append(f"{many_text(outside, 'event')} of the trace are in no whole run, and left out")
    if len(runs) > 1 and not apart:
        notes.append(f"{len(runs):,} runs overlap: a layer has their mean")
        return {name: times[0] / len(runs) for name, times in of_name.items()}, notes
    if len(runs) > 1:
        notes.append(f"{len(runs):,} runs: a layer has the median of a run")
        every = {
            name: [*times.values(), *[0.0] * (len(runs) - len(times))] for name, times in of_name.items()
        }
        return {name: median(times) for name, times in every.items()}, notes
    return {name: times[0] for name, times in of_name.items()}, notes
