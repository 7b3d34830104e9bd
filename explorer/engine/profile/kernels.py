"""Reads kernel times from onnxruntime's profile file as a stream, one event a line.

An event gives a duration in whole microseconds, rounded down. The event of a node with a body includes the
time of the body's nodes, whose events come before it in the file. This module subtracts them, so that each
kernel has only its own time. The kernels of a run then add up to the times that onnxruntime reports for the
nodes of the main graph.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field

from explorer.base.errors import BadModel
from explorer.engine.compat.onnxruntime import find_timed_node
from explorer.engine.graph.model import CONTROL_FLOW
from explorer.host import input_files

_UNESCAPED_EVENT = re.compile(
    r'"dur" :(\d+),"ts" :(\d+),"ph" : "X","name" :"(.*_kernel_time)","args" : \{', re.DOTALL
)
"""Pattern of an event that is not valid JSON: duration, start and name."""
_OP = re.compile(r'"op_name" : "([^"]*)"')
"""Pattern of the operator in such an event."""


class RuntimeKernel(Struct):
    """A node of the optimized graph in one run, with all its calls together.

    Attributes:
        op: The node's operator.
        seconds: Seconds without the nodes of its body.
        calls: Number of calls.
        requested_bytes: Memory that the node allocated and did not free.
        held_bytes: Maximum of the memory that was allocated when a call ended.
        output_bytes: Size of the outputs of all calls.
        is_turned: Whether the last sizes of its first output and its first input differ.
    """

    op: str
    seconds: float = 0.0
    calls: int = 0
    requested_bytes: int = 0
    held_bytes: int = 0
    output_bytes: int = 0
    is_turned: bool = False


class KernelEvent(NamedTuple):
    """One call of a kernel.

    Attributes:
        name: Name of the node.
        op: The node's operator.
        start, end: Microseconds since the start of the profile.
        thread: Id of the thread.
    """

    name: str
    op: str
    start: int
    end: int
    thread: int


class KernelRun(Struct):
    """One run of a model.

    Attributes:
        kernels: The kernels, by node name.
        events: All calls of kernels, in the order of their ends.
        threads: Number of threads that the runtime used for operators.
        is_complete: Whether the run was complete.
        start, end: Microseconds since the start of the profile, for a complete run.
    """

    kernels: dict[str, RuntimeKernel] = field(default_factory=dict)
    events: list[KernelEvent] = field(default_factory=list)
    threads: int = 1
    is_complete: bool = False
    start: int = 0
    end: int = 0


def read_kernel_runs(path: str) -> Iterator[KernelRun]:
    """Yields the runs in a profile file one at a time. The last run may be incomplete.

    Raises:
        BadModel: The file is incomplete, because the disk was full.
    """
    run, last = KernelRun(), ""
    inner: list[tuple[int, int]] = []
    with input_files.open_text(path, errors="replace") as lines:
        for line in lines:
            last = line.strip() or last
            event = _parse_event(line)
            if event is None:
                continue
            if event["name"] == "model_run":
                run.is_complete, run.start = True, int(event["ts"])
                run.end = run.start + int(event["dur"])
                yield run
                run, inner = KernelRun(), []
            elif (name := find_timed_node(event["name"])) is not None:
                _add_event(run, name, event, inner)
    if last != "]":
        message = "onnxruntime could not write its complete profile"
        raise BadModel(message, hint="is the disk full? TMPDIR=FOLDER names another place")
    if run.kernels:
        yield run


def _parse_event(line: str) -> Mapping[str, Any] | None:
    """Parses the event in a line, or returns None if the line contains no event with a duration.

    onnxruntime does not escape names, so a name with a quotation mark makes the line invalid JSON.
    """
    text = line.strip().rstrip(",")
    if not text.startswith("{"):
        return None
    try:
        event: Mapping[str, Any] = msgspec.json.decode(text)
        return event if "dur" in event and "name" in event else None
    except msgspec.DecodeError:
        fields = _UNESCAPED_EVENT.search(text)
        if fields is None:
            return None
        op = _OP.search(text)
        args = {"op_name": op[1] if op else ""}
        return {"name": fields[3], "dur": int(fields[1]), "ts": int(fields[2]), "args": args}


def _add_event(run: KernelRun, name: str, event: Mapping[str, Any], inner: list[tuple[int, int]]) -> None:
    """Adds an event to a run.

    Args:
        run: The run.
        name: Name of the node.
        event: The event.
        inner: Start and duration of each earlier event that no control-flow node contains so far.
    """
    args, start, duration = event["args"], int(event["ts"]), int(event["dur"])
    op, self_time = str(args.get("op_name", "")), duration
    if op in CONTROL_FLOW:
        while inner and inner[-1][0] >= start:
            self_time -= inner.pop()[1]
    inner.append((start, duration))
    run.events.append(
        KernelEvent(name=name, op=op, start=start, end=start + duration, thread=int(event.get("tid", 0)))
    )
    kernel = run.kernels.setdefault(name, RuntimeKernel(op))
    kernel.seconds += self_time * 1e-6
    kernel.calls += 1
    kernel.requested_bytes += max(0, int(args.get("mem_requested_in_use_delta", 0)))
    kernel.held_bytes = max(kernel.held_bytes, int(args.get("mem_bytes_requested_in_use", 0)))
    kernel.output_bytes += int(args.get("output_size", 0))
    kernel.is_turned = _read_last_axis(args.get("input_type_shape")) != _read_last_axis(
        args.get("output_type_shape")
    )
    scheduled = args.get("thread_scheduling_stats")
    if isinstance(scheduled, dict):
        run.threads = max(run.threads, 1 + len(scheduled.get("sub_threads", ())))


def _read_last_axis(shapes: Any) -> int | None:
    """Returns the last size of the first shape in a list such as [{'float': [1, 56, 56, 96]}], or None."""
    first = next(iter(shapes), None) if isinstance(shapes, list) else None
    shape = next(iter(first.values()), None) if isinstance(first, dict) else None
    return shape[-1] if shape else None
